"""The check's run directories become the gate's facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from campaign_builders import PACE, host

from opprof.artifacts.common import Provenance, RunIdentity, SanityBlock
from opprof.artifacts.kernels import AttentionSplit, FamilyTime, Kernels, Window
from opprof.artifacts.run import Interval, Result, Timeline
from opprof.campaign.colocation import Round, rounds
from opprof.campaign.colocation_read import CheckedPlace, gate_of, read_gates, write_gate
from opprof.campaign.naming import gate_file
from opprof.errors import InputError, SchemaError
from opprof.files import sha256_file, write_atomic
from opprof.protocol import load_protocol
from opprof.protocol.load import Protocol

SHA = "a" * 64
PLACE = CheckedPlace(host(), "vllm", "0.24.0", PACE)


def protocol() -> Protocol:
    found = load_protocol("phase3")
    assert found is not None
    return found


def put(path: Path, value: object) -> Path:
    write_atomic(path, msgspec.json.encode(value))
    return path


def result(pattern: str, load_point: Any, rps: float | None, **metrics: Any) -> Result:
    return Result(
        schema=1,
        accepted=True,
        reasons=[],
        completed_rps=rps,
        offered_rps=None,
        manifest_sha256=SHA,
        pattern=pattern,
        config="C00",
        load_point=load_point,
        role="colocation",
        drain_quarantined=False,
        metrics=metrics,
    )


def timeline(pattern: str, load_point: Any, spans: dict[Any, tuple[int, int]]) -> Timeline:
    return Timeline(
        schema=1,
        pattern=pattern,
        config="C00",
        load_point=load_point,
        max_concurrency=256,
        rate_rps=None,
        clock="test",
        intervals=[Interval(kind, 0, *span) for kind, span in spans.items()],
        role="colocation",
    )


def kernels(shares: dict[str, float], mapping: str = "v2") -> Kernels:
    window = Window(
        window=0,
        rank=0,
        mapping_version=mapping,
        trace="traces/window0-rank0.pt.trace.json.gz",
        profiler_steps=list(range(2, 10)),
        annotations=8,
        kernel_events=100,
        kernel_ns=1000,
        prologue_events=0,
        prologue_ns=0,
        classified_fraction=0.9,
        families={name: FamilyTime(round(1000 * s), s, 10) for name, s in shares.items()},
        attention=AttentionSplit(0, 0, 0),
        by_mode={},
        top_unmatched=[],
        accepted=True,
        reasons=[],
        steps=[],
        alternatives={},
    )
    return Kernels(
        schema=1,
        run=RunIdentity("x", "P05", "C00", "moderate", "colocation"),
        mapping_version=mapping,
        mapping_sha256=SHA,
        windows=[window],
        alternatives={},
        breakdown_valid=None,
        breakdown_reasons=[],
        representativeness=None,
        gates=[],
        sanity=SanityBlock([], []),
        provenance=Provenance({}, None, None, None, None, "1", SHA),
    )


def measured(campaign: Path, both: tuple[Round, Round], rps: float, moe: float) -> None:
    calibration, moderate = both
    source = put(
        campaign / calibration.target.folder / "client/result.json",
        result("P05", "saturation", 2 * rps),
    )
    put(
        campaign / calibration.target.folder / "client/timeline.json",
        timeline(
            "P05", "saturation", {"warmup": (100, 200), "clean": (200, 500), "drain": (500, 600)}
        ),
    )
    folder = campaign / moderate.target.folder
    rate = {"saturation_result_sha256": sha256_file(source)}
    put(folder / "client/result.json", result("P05", "moderate", rps, rate=rate))
    put(
        folder / "client/timeline.json",
        timeline(
            "P05",
            "moderate",
            {
                "warmup": (100, 200),
                "clean": (200, 500),
                "profile": (500, 520),
                "recovery": (520, 600),
                "drain": (600, 900),
            },
        ),
    )
    put(folder / "analysis/kernels.json", kernels({"moe_gemm": moe, "attention": 0.3}))
    for each in both:
        for background in each.backgrounds:
            client = campaign / background.folder / "client"
            put(client / "result.json", result(background.pattern, "saturation", None))
            put(
                client / "timeline.json",
                timeline(
                    background.pattern, "saturation", {"warmup": (50, 650), "drain": (650, 700)}
                ),
            )


def campaign_of(tmp_path: Path) -> Path:
    file = protocol().file
    measured(tmp_path, rounds(file, host(), "solo", PACE, port_base=0), 10.0, 0.5)
    measured(tmp_path, rounds(file, host(), "eight", PACE, port_base=0), 10.1, 0.51)
    return tmp_path


def test_two_regimes_on_disk_become_a_gate(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path)
    gate = gate_of(campaign, protocol(), ["solo", "eight"], PLACE, wall_ns=7)
    assert gate.outcome == "eight", gate.reason
    assert gate.regimes[0].ratio == pytest.approx(1.01)
    assert gate.regimes[0].families[0].difference == pytest.approx(0.01)
    assert (gate.mapping_version, gate.mapping_sha256) == ("v2", SHA)
    # Two targets a regime (5 files with kernels), seven backgrounds a round of the second.
    assert len(gate.inputs) == 2 * 5 + 2 * 7 * 2
    for path, sha in gate.inputs.items():
        assert sha256_file(campaign / path) == sha
    path = write_gate(campaign, gate)
    assert path == campaign / gate_file("dash0") and read_gates(campaign) == {"dash0": gate}


def test_a_background_that_left_early_is_seen(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path)
    both = rounds(protocol().file, host(), "eight", PACE, port_base=0)
    early = campaign / both[1].backgrounds[2].folder / "client/timeline.json"
    put(early, timeline("P03", "saturation", {"warmup": (50, 599), "drain": (599, 700)}))
    gate = gate_of(campaign, protocol(), ["solo", "eight"], PLACE, wall_ns=7)
    assert gate.outcome == "stop"
    assert gate.regimes[0].reasons == [
        "backgrounds_active (moderate): P03 was not active throughout"
    ]


def test_what_is_missing_is_a_fact(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, protocol(), ["solo"], PLACE, wall_ns=7)
    assert gate.outcome == "stop" and "the run is missing" in gate.reason
    assert gate.inputs == {}


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path)
    folder = campaign / rounds(protocol().file, host(), "solo", PACE, port_base=0)[1].target.folder
    put(folder / "analysis/kernels.json", kernels({"moe_gemm": 0.5}, mapping="v1"))
    with pytest.raises(InputError, match="analysed with mapping v1"):
        gate_of(campaign, protocol(), ["solo", "eight"], PLACE, wall_ns=7)
    (folder / "client/result.json").write_bytes(b"{")
    with pytest.raises(SchemaError, match=r"result\.json"):
        gate_of(campaign, protocol(), ["solo"], PLACE, wall_ns=7)
