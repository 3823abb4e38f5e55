"""The co-location check end to end: real processes, embedded engine, two slots (A-P3-1).

What the embedded engine measures on a shared machine says nothing about co-location, so the limits
stand open (or closed); the order, the backgrounds, the gate and its ledger are what is tested.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import campaign_small
import pytest
from test_campaign_sim import SCALES, Site, ended

from opprof.artifacts.run import Timeline
from opprof.campaign.colocation_read import read_gates
from opprof.campaign.ledger import ledger_problems, open_reservations
from opprof.campaign.ledger_file import read_ledger
from opprof.campaign.store import CRASH_VARIABLE
from opprof.campaign.watch import controller_state
from opprof.files import sha256_file
from opprof.integrity.ledger import NAME
from opprof.telemetry.timeline import read_timeline
from patience import patiently

pytestmark = pytest.mark.slow

TABLE = """[colocation]
pattern = "P01"
config = "C00"
backgrounds_eight = ["P09"]
backgrounds_four = []
top_families = 3
throughput_error_max = {limit}
share_error_max = {share}

[placement]"""
HOST = os.uname().nodename
TARGETS = [
    f"{regime}-{load}-P01-C00-{load}-colocation@{HOST}"
    for regime in ("solo", "eight")
    for load in ("saturation", "moderate")
]


Play = Callable[[Callable[[Site], None], float], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return a function that checks a campaign with a limit, on a real clock."""
    text, source = campaign_small.SOURCE.read_text(), tmp_path / "source.toml"
    assert "[colocation]" not in text
    monkeypatch.setattr(campaign_small, "SOURCE", source)

    def made(judge: Callable[[Site], None], limit: float) -> None:
        source.write_text(
            text.replace("[placement]", TABLE.format(limit=limit, share=min(1.0, limit)), 1)
        )

        def check(scale: float, folder: Path) -> None:
            with ended(Site(folder, scale=scale)) as site:
                judge(site)

        patiently(check, tmp_path, SCALES)

    return made


def timeline(site: Site, folder: str) -> Timeline:
    return read_timeline(site.out / folder / "client" / "timeline.json")


def test_open_limits_authorise_two_cells_at_once_even_after_a_crash_in_a_round(play: Play) -> None:
    play(check_open_limits, 1000.0)


def check_open_limits(site: Site) -> None:
    point = f"{TARGETS[3]}:loading.after"
    site.start("--gpus", "0,1", env={CRASH_VARIABLE: point})
    site.wait_end()
    assert controller_state(site.out)[0] == "dead"
    before = {name: site.store.run(name).attempts for name in TARGETS[:3]}
    site.opprof("resume", str(site.out))
    site.wait_end()
    assert controller_state(site.out)[0] == "finished", site.log()

    gate = read_gates(site.out)[HOST]
    assert (gate.outcome, gate.authorised_width, gate.simulated) == ("eight", 2, True)
    assert (gate.gpus, gate.gpu_uuids) == ([0, 1], ["", ""])
    assert (
        f"host {HOST} (GPU 0,1): 2 of its GPU slots at once"
        in site.opprof("status", str(site.out)).stdout
    )
    for path, sha in gate.inputs.items():
        assert sha256_file(site.out / path) == sha
    # Complete rounds were not made again; the broken one was, as a whole.
    assert {name: site.store.run(name).attempts for name in TARGETS[:3]} == before
    for name in (TARGETS[3], f"eight-moderate-P09-C00-saturation-colocation@{HOST}"):
        phases = [attempt.phase for attempt in site.store.run(name).attempts]
        assert phases == ["interrupted", "complete"], name

    for load in ("saturation", "moderate"):
        folder = f"colocation/{HOST}/eight-{load}"
        target = timeline(site, f"{folder}/P01-C00-{load}-colocation").intervals
        background = timeline(site, f"{folder}/P09-C00-saturation-colocation").intervals
        assert [each.kind for each in background] == ["warmup", "drain"]
        ends = [each.end_mono_ns for each in target if each.kind in ("clean", "recovery")]
        assert background[0].start_mono_ns <= target[0].start_mono_ns
        assert background[0].end_mono_ns >= max(ends)
        assert sum(each.kind == "profile" for each in target) == (load == "moderate")

    matrix = [r for r in site.store.runs() if r.role == "primary"]
    slots = [r.attempts[-1].slot for r in matrix]
    assert {slot.width for slot in slots if slot is not None} == {2}
    spans = [
        (r.attempts[-1].transitions[0].wall_ns, r.attempts[-1].transitions[-1].wall_ns)
        for r in matrix
        if r.load_point == "saturation"
    ]
    assert len(spans) == 2
    assert max(start for start, _ in spans) < min(end for _, end in spans), "one wave, not two"

    charges, records = read_ledger(site.out / NAME), site.store.runs()
    assert ledger_problems(charges, records) == []
    assert open_reservations(charges) == {}
    assert sum(charge.kind == "colocation" for charge in charges) == 2 + 2 * 2
    assert site.left() == []


def test_closed_limits_stop_the_campaign_before_its_matrix(play: Play) -> None:
    play(check_closed_limits, 1e-12)


def check_closed_limits(site: Site) -> None:
    site.start("--gpus", "0,1")
    site.wait_end()
    gates = read_gates(site.out)
    assert list(gates) == [HOST], site.log()
    gate = gates[HOST]
    assert (gate.outcome, gate.authorised_width) == ("stop", 1)
    assert [regime.outcome for regime in gate.regimes][:1] == ["fail"], site.log()
    stop = site.store.stop()
    assert stop is not None
    assert stop.condition == 0 and "no smaller regime is authorised" in stop.reason
    assert all(r.state == "pending" for r in site.store.runs() if r.role == "primary")
    assert site.left() == []


def test_one_cell_at_a_time_needs_no_check(play: Play) -> None:
    play(check_serial, 1e-12)


def check_serial(site: Site) -> None:
    site.start("--gpus", "0,1", "--serial", "--only", "P01")
    site.wait_end()
    assert not (site.out / "colocation").exists()
    assert [run.state for run in site.store.runs()] == ["complete"] * 3, site.log()
