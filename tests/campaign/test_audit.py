"""A run's state ends with a checked sanity block; a red flag fails the attempt."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from campaign_builders import NS, attempt, phase3

from opprof.artifacts.campaign import Attempt, CheckName, ProcessRecord, Slot
from opprof.artifacts.common import Gate
from opprof.campaign.attempt import Outcome
from opprof.campaign.audit import audited

SLOT = Slot("here", [0], ["GPU-0"], 0, "", 1)


def outcome(**changes: object) -> Outcome:
    checks = {name: Gate(name, "pass", "") for name in get_args(CheckName)}
    good = Outcome(checks, "", "", True, False, 100.0, None)
    return msgspec.structs.replace(good, **changes)


def ended(*, ended_s: float | None = 60.0, cleaning_s: float = 90.0) -> Attempt:
    process = ProcessRecord("client", "here", 7, 1, "boot", 7, ["opprof"], 10 * NS)
    stop = None if ended_s is None else round(ended_s * NS)
    process = msgspec.structs.replace(process, ended_wall_ns=stop, exit_status=0)
    found = attempt(1, "checking", SLOT, start_s=0, cleaning_s=cleaning_s, end_s=100)
    return msgspec.structs.replace(found, processes=[process])


def test_a_sound_state_keeps_its_outcome_and_gets_its_block() -> None:
    found = audited("r", ended(), outcome(), phase3(), wall_ns=1)
    assert found.sanity is not None
    assert found.sanity.red_flags == []
    assert msgspec.structs.replace(found, sanity=None) == outcome()
    families = {family.name: family for family in found.sanity.families}
    assert (families["phase_s"].n, families["phase_s"].min, families["phase_s"].max) == (2, 10, 90)
    assert families["process_s"].max == 50
    assert families["gpu_seconds"].max == 100


@pytest.mark.parametrize(
    ("state", "changes", "flag"),
    [
        (ended(ended_s=5), {}, "negative: process_s goes down to -5.0 s"),
        (ended(cleaning_s=101), {}, "negative: phase_s goes down to -1.0 s"),
        (ended(ended_s=None), {}, "processes: nobody saw the client end"),
        (ended(), {"gpu_seconds": -1.0}, "negative: gpu_seconds"),
        (ended(), {"gpu_seconds": float("nan")}, "non_finite: gpu_seconds"),
        (ended(), {"checks": {}}, "checks: no clock_load"),
        (
            ended(),
            {"checks": outcome().checks | {"privacy": Gate("privacy", "fail", "")}},
            "checks: privacy failed, and no reason is given",
        ),
    ],
)
def test_a_red_flag_fails_the_attempt_and_stops_the_matrix(
    state: Attempt, changes: dict[str, object], flag: str
) -> None:
    found = audited("r", state, outcome(**changes), phase3(), wall_ns=1)
    assert found.checks["sanity"].outcome == "fail"
    assert flag in found.reason
    assert found.fault == "semantic"
    assert [(stop.condition, stop.run) for stop in found.stops] == [(10, "r")]
    unlisted = msgspec.structs.replace(phase3(), stops=[])
    again = audited("r", state, outcome(**changes), unlisted, wall_ns=1)
    assert again.reason == found.reason and again.stops == []
