"""Which hosts need the co-location check, and which may not be used together."""

from __future__ import annotations

import msgspec
import pytest
from campaign_builders import host, phase3

from opprof.artifacts.campaign import EngineKind
from opprof.artifacts.environment import Topology
from opprof.campaign.hosts import hosts_to_check, require_alike
from opprof.campaign.options import Options
from opprof.errors import StateConflict


def machine(name: str, gpus: int = 8, kind: str = "fake") -> Topology:
    made = host(name, gpus)
    cards = [msgspec.structs.replace(gpu, name=kind) for gpu in made.gpus]
    return msgspec.structs.replace(made, boot_id=f"boot of {name}", gpus=cards)


def checked(*hosts: Topology, engine: EngineKind = "vllm", serial: bool = False) -> list[str]:
    found = hosts_to_check(engine, Options(serial=serial), phase3(), hosts)
    return [each.host for each in found]


def test_every_host_that_holds_a_regime_is_checked() -> None:
    hosts = [machine("a"), machine("b", 4), machine("c", 2), machine("d", 1)]
    assert checked(*hosts) == ["a", "b"]
    assert checked(*hosts, serial=True) == []
    assert checked(*hosts, engine="sim") == ["a", "b"]
    assert checked(*hosts, engine="sim-virtual") == []


def test_without_a_check_several_cells_are_for_simulated_engines_only() -> None:
    free = msgspec.structs.replace(phase3(), colocation=None)
    assert hosts_to_check("sim", Options(), free, [machine("a"), machine("b")]) == []
    assert hosts_to_check("vllm", Options(), free, [machine("a", 1), machine("b", 1)]) == []
    with pytest.raises(StateConflict, match="does not define"):
        hosts_to_check("vllm", Options(), free, [machine("a", 1), machine("b")])


@pytest.mark.parametrize("name", ["two words", "a/b", "..", "", "a@b"])
def test_a_host_that_no_folder_can_be_called_after_is_refused(name: str) -> None:
    with pytest.raises(StateConflict, match="needs a name of letters"):
        checked(machine(name))


def test_two_nodes_of_one_machine_are_refused() -> None:
    require_alike([machine("a"), machine("b")])
    twin = msgspec.structs.replace(machine("b"), boot_id="boot of a")
    with pytest.raises(StateConflict, match="a and b are one machine"):
        require_alike([machine("a"), twin])


def test_hosts_with_other_gpus_are_refused() -> None:
    require_alike([machine("a", kind="H20")])
    with pytest.raises(StateConflict, match="H20 in a, H200 in b"):
        require_alike([machine("a", kind="H20"), machine("b", kind="H200")])
