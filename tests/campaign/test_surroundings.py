"""What counts as an idle GPU is the protocol's word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from campaign_builders import phase3
from ray_builders import make_spec

from opprof.campaign.frozen import frozen_of
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
