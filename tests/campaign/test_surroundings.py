"""What counts as an idle GPU is the protocol's word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from campaign_builders import phase3
from ray_builders import make_spec

from opprof.campaign.attempt import Facts
from opprof.campaign.frozen import frozen_of
from opprof.campaign.options import Limits, limits_of
from opprof.campaign.surroundings import Surroundings
from opprof.errors import InputError
from opprof.host.fake import FakeHost
from opprof.host.fake_file import Event, FakeProcess, load_machine

USED = 1000


@pytest.mark.parametrize(("idle_bytes", "outcome"), [(USED, "pass"), (USED - 1, "fail")])
def test_the_floor_judges_the_start_and_the_end(
    tmp_path: Path, idle_bytes: int, outcome: str
) -> None:
    around = Surroundings(
        FakeHost(load_machine("dash0")),
        make_spec(tmp_path, "dash0"),
        Limits(),
        idle_bytes=idle_bytes,
    )
    look = asyncio.run(around.look("idle"))
    gpus = [msgspec.structs.replace(gpu, memory_used_bytes=USED) for gpu in look.gpus]
    around.looks["idle"] = msgspec.structs.replace(look, gpus=gpus, processes=[])
    assert around.idle().outcome == outcome
    # At the end the value before the server counts as well.
    around.memory_left = [USED]
    assert around.memory(launched=True).outcome == "pass"
    around.memory_left = [USED + 1]
    assert around.memory(launched=True).outcome == "fail"


def test_it_is_the_protocols_and_no_option() -> None:
    assert frozen_of(phase3()).idle_gpu_bytes_max == 64 << 20
    with pytest.raises(InputError, match="unknown field"):
        limits_of(["idle_gpu_bytes_max=0"])


@pytest.mark.parametrize(
    ("table", "key", "named"),
    [
        ("server", "shutdown_timeout_s", r"server\.shutdown_timeout_s"),
        ("placement", "idle_gpu_bytes_max", r"placement\.idle_gpu_bytes_max"),
        (None, "reruns", r"\[reruns\]"),
    ],
)
def test_a_campaign_refuses_a_protocol_without_it(table: str | None, key: str, named: str) -> None:
    file = phase3()
    assert frozen_of(file).reruns == file.reruns
    if table is None:
        cut = msgspec.structs.replace(file, **{key: None})
    else:
        inside = msgspec.structs.replace(getattr(file, table), **{key: None})
        cut = msgspec.structs.replace(file, **{table: inside})
    with pytest.raises(InputError, match=f"phase3 leaves out {named}, which a campaign takes"):
        frozen_of(cut)


STRANGER = FakeProcess(pid=77, owner="other_user", name="x")


@pytest.mark.parametrize(
    ("width", "gpu", "gpus", "outcome"),
    [
        (1, 0, [], "fail"),
        (1, 5, [], "pass"),
        (8, 5, [], "fail"),
        (4, 5, [], "pass"),
        (4, 3, [], "fail"),
        (2, 5, [0, 5], "fail"),
        (2, 1, [0, 5], "pass"),
    ],
)
def test_a_stranger_is_judged_on_the_gpus_of_the_placement_regime_and_recorded_on_all(
    tmp_path: Path, width: int, gpu: int, gpus: list[int], outcome: str
) -> None:
    """Hard stop 2: another user's process on a selected GPU; A-P3-1 selects several together."""
    machine = msgspec.structs.replace(
        load_machine("dash0"), events=[Event(gpus=[gpu], processes=[STRANGER])]
    )
    spec = make_spec(tmp_path, "dash0")
    campaign = msgspec.structs.replace(
        spec.campaign, options=spec.campaign.options | {"gpus": gpus}
    )
    slot = msgspec.structs.replace(spec.slot, width=width)
    around = Surroundings(
        FakeHost(machine),
        msgspec.structs.replace(spec, slot=slot, campaign=campaign),
        msgspec.structs.replace(Limits(), sample_s=0.01),
        idle_bytes=USED,
    )
    look = asyncio.run(around.look("before"))
    seen = [*look.processes, *look.elsewhere]
    assert [(each.gpu, each.pid, each.owner) for each in seen] == [(gpu, 77, "other_user")]
    gates = {gate.name: gate for gate in around.gates(Facts())}
    assert gates["gpu_contamination"].outcome == outcome
    watching = asyncio.wait_for(around.watch(), 0.3)
    if outcome == "fail":
        assert asyncio.run(watching) == f"x 77 (other_user) on GPU {gpu}"
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(watching)


def test_a_further_gpu_that_cannot_be_asked_is_no_fault_of_the_run(tmp_path: Path) -> None:
    gone = Event(gpus=[5], kinds=["processes"], fail="GPU 5 is lost")
    host = FakeHost(msgspec.structs.replace(load_machine("dash0"), events=[gone]))
    around = Surroundings(host, make_spec(tmp_path, "dash0"), Limits(), idle_bytes=USED)
    look = asyncio.run(around.look("before"))
    assert look.elsewhere == [] and "GPU 5 is lost" in look.not_available["elsewhere"]
