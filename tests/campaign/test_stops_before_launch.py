"""What stops the matrix before something is launched: a round's run, and a disk that is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import campaign_small
import msgspec
import pytest
from campaign_builders import host
from test_many_hosts import Rig, never

from opprof.artifacts.campaign import Stop
from opprof.artifacts.common import Gate
from opprof.campaign.attempt import AttemptSpec, Outcome
from opprof.campaign.colocate import colocation_gate
from opprof.host.cpu import CpuHost

CONTAMINATED = Gate("gpu_contamination", "fail", "somebody 4242 (other_user) on GPU 1", {})


def disturb(rig: Rig, *, target: str) -> None:
    """Let somebody else appear on the GPUs of a run at its first attempt."""
    execute = rig.executor.execute

    async def disturbed(spec: AttemptSpec, *rest: Any) -> Outcome:
        done = await execute(spec, *rest)
        if spec.run != target or spec.number > 1:
            return done
        short = spec.run.split("-", 2)[2].partition("@")[0]
        stop = Stop(1, 2, "foreign process", CONTAMINATED.reason, short, 1)
        return msgspec.structs.replace(
            done,
            checks={**done.checks, CONTAMINATED.name: CONTAMINATED},
            reason=CONTAMINATED.reason,
            fault="infrastructure",
            stops=[stop],
        )

    rig.monkeypatch.setattr(rig.executor, "execute", disturbed)


@pytest.mark.parametrize("target", ["saturation", "moderate"])
def test_a_stop_of_a_round_is_the_matrixs_before_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Also after the last round of a regime: no gate is judged by runs that are missing."""
    rig = Rig(tmp_path, monkeypatch)
    run = f"solo-{target}-P01-C00-{target}-colocation@a"
    disturb(rig, target=run)
    ending = rig.run(colocation_gate, host("a", 2))
    assert ending.stop is not None and ending.stop == rig.store.stop()
    assert (ending.stop.condition, ending.stop.run) == (2, run)
    assert ending.stop.attempts == [f"{run}.1"]
    assert rig.store.run(run).attempts[0].stops == [ending.stop]
    assert rig.executor.hosts[-1][0] == run, "nothing was launched after it"
    assert not (rig.store.folder / "colocation" / "a" / "gate.json").exists()
    assert {run.state for run in rig.store.runs() if run.role == "primary"} == {"pending"}


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_full_disk_stops_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    monkeypatch.setitem(campaign_small.VALUES, "free_space_bytes_min", "1000")
    monkeypatch.setattr(CpuHost, "free_bytes", lambda _self, _path: 999)
    rig = Rig(tmp_path, monkeypatch)
    ending = rig.run(never, host("a", gpus))
    assert ending.stop is not None and ending.stop == rig.store.stop()
    assert ending.stop.condition == 9 and "999 bytes free" in ending.stop.reason
    assert rig.executor.hosts == []


def test_a_disk_that_fills_up_during_the_burn_in_stops_before_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(campaign_small.VALUES, "free_space_bytes_min", "1000")
    free = [2000, 2000]
    monkeypatch.setattr(CpuHost, "free_bytes", lambda _self, _path: free.pop() if free else 999)
    rig = Rig(tmp_path, monkeypatch)
    ending = rig.run(colocation_gate, host("a", 2))
    assert ending.stop is not None and ending.stop.condition == 9
    assert [run for run, _ in rig.executor.hosts] == ["P01-C00-saturation-burnin"]
