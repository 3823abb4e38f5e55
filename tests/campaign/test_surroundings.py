"""What counts as an idle GPU is the protocol's word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from campaign_builders import phase3
from ray_builders import make_spec

from opprof.campaign.frozen import idle_gpu_bytes_max, require
from opprof.campaign.options import Limits, limits_of
from opprof.campaign.surroundings import Surroundings
from opprof.errors import InputError
from opprof.host.fake import FakeHost
from opprof.host.fake_file import load_machine

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
    assert idle_gpu_bytes_max(phase3()) == 64 << 20
    place = msgspec.structs.replace(phase3().placement, idle_gpu_bytes_max=None)
    with pytest.raises(InputError, match=r"leaves out placement\.idle_gpu_bytes_max"):
        require(msgspec.structs.replace(phase3(), placement=place))
    with pytest.raises(InputError, match="unknown field"):
        limits_of(["idle_gpu_bytes_max=0"])
