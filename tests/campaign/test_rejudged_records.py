"""What a later verdict may pass: kept data, never what happened on the machine."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from campaign_builders import attempt

from opprof.artifacts.campaign import Attempt, Stop
from opprof.artifacts.common import Gate, SanityBlock
from opprof.campaign.amend import standing_failures
from opprof.campaign.life import check_review, release_stop
from opprof.campaign.store import Store
from opprof.errors import StateConflict


def failed(*names: str) -> Attempt:
    gates = {name: Gate(name, "fail", "because") for name in names}
    passed = {"command": Gate("command", "pass", "")}
    return msgspec.structs.replace(attempt(1, "failed"), checks=passed | gates)


def test_checks_over_kept_data_are_judged_again() -> None:
    bad = failed("client", "layer1", "layer2", "sanity")
    assert standing_failures(bad, stored_accepted=False) == []


@pytest.mark.parametrize("name", ["privacy", "gpu_memory", "clock_load", "server_health"])
def test_what_happened_on_the_machine_stands(name: str) -> None:
    found = standing_failures(failed("client", name), stored_accepted=False)
    assert found == [f"stands: {name}: because"]


def test_a_red_flag_of_the_state_stands() -> None:
    block = SanityBlock([], ["negative: phase_s goes down to -1.0 s"])
    bad = msgspec.structs.replace(failed("sanity"), sanity=block)
    found = standing_failures(bad, stored_accepted=False)
    assert found == ["stands: state: negative: phase_s goes down to -1.0 s"]


def test_a_client_that_accepted_failed_in_another_way() -> None:
    found = standing_failures(failed("client"), stored_accepted=True)
    assert found == ["stands: client: because"]


def test_a_stop_is_looked_at_before_anything_changes(tmp_path: Path) -> None:
    store = Store(tmp_path, wall_ns=time.time_ns)
    check_review(tmp_path, "")
    store.write_stop(Stop(1, 3, "clean", "a request failed", "r", 1))
    with pytest.raises(StateConflict, match="waits for review"):
        check_review(tmp_path, " ")
    check_review(tmp_path, "Ann")
    assert store.stop() is not None, "only looked at"
    release_stop(tmp_path, "Ann:\nit was shared")
    assert store.stop() is None
    [line] = store.log.read_text().splitlines()
    assert line.endswith(" hard stop 3 (clean) released after review: Ann: it was shared")
