"""What a later verdict may pass: kept data, never what happened on the machine."""

from __future__ import annotations

import msgspec
import pytest
from campaign_builders import attempt

from opprof.artifacts.campaign import Attempt
from opprof.artifacts.common import Gate, SanityBlock
from opprof.campaign.amend import standing_failures


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
