"""An attempt that ends before its load: only what ended it is a hard stop."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from pathlib import Path

import msgspec
import pytest
from ray_builders import Notes, make_spec

from opprof.campaign.attempt import AttemptSpec, Facts, Halt, Outcome
from opprof.campaign.options import Limits
from opprof.campaign.processes import ProcessTable
from opprof.campaign.run_attempt import Attempt
from opprof.campaign.surroundings import Surroundings
from opprof.errors import EnvironmentFailure
from opprof.files import sha256_file
from opprof.host.fake import FakeHost
from opprof.host.fake_file import Event, load_machine
from opprof.protocol.load import packaged_path


def host(*events: Event) -> FakeHost:
    return FakeHost(msgspec.structs.replace(load_machine("dash0"), events=list(events)))


def run(spec: AttemptSpec, *events: Event) -> Outcome:
    shutil.copy(packaged_path(), spec.protocol)
    hashes = spec.source_hashes | {"protocol": sha256_file(Path(spec.protocol))}
    spec = msgspec.structs.replace(spec, source_hashes=hashes)
    attempt = Attempt(spec, Notes(), Halt(), ProcessTable(), host(*events))
    return asyncio.run(attempt.run())


def made(folder: Path, *launch: str, port: int = 0) -> AttemptSpec:
    spec = make_spec(folder, "dash0", *launch)
    slot = msgspec.structs.replace(spec.slot, port=port)
    campaign = msgspec.structs.replace(spec.campaign, simulated=True)
    return msgspec.structs.replace(spec, slot=slot, campaign=campaign)


HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("launch", "condition", "words"),
    [
        ([sys.executable, "-c", "raise SystemExit(3)"], 2, "ended"),
        (["/no/such/server"], 2, "by itself with 127"),
        ([sys.executable, "-c", HEALTHY, "${PORT}"], 1, "no readable engine-config.json"),
    ],
    ids=["never healthy", "no program", "not what was frozen"],
)
def test_a_server_that_gets_no_load(
    tmp_path: Path, launch: list[str], condition: int, words: str
) -> None:
    outcome = run(made(tmp_path, *launch))
    assert [stop.condition for stop in outcome.stops] == [condition]
    assert words in outcome.stops[0].reason
    assert outcome.checks["clock_load"].outcome == "not_evaluable"
    assert outcome.fault == ("infrastructure" if condition == 2 else "semantic")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(label="*/idle", memory_left_bytes=10**9), "GPU 0 holds 1000000000 bytes"),
        (Event(label="*/idle", fail="the driver is gone"), "the driver is gone"),
    ],
)
def test_a_gpu_that_is_not_fit_gets_no_server(tmp_path: Path, event: Event, words: str) -> None:
    outcome = run(made(tmp_path, "never"), event)
    (stop,) = outcome.stops
    assert (stop.condition, stop.reason.count(";")) == (2, 0)
    assert words in stop.reason
    assert outcome.checks["gpu_memory"].outcome == "not_evaluable"


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = run(made(tmp_path, "never", port=taken.getsockname()[1]))
    (stop,) = outcome.stops
    assert (stop.condition, stop.reason.count("nobody")) == (2, 0)
    assert "is in use" in stop.reason


def test_a_look_that_failed_before_the_load_is_a_fault_of_its_own(tmp_path: Path) -> None:
    spec = made(tmp_path)
    around = Surroundings(
        host(Event(label="*/before", fail="the driver is gone")), spec, Limits(), idle_bytes=0
    )
    asyncio.run(around.look("idle"))
    with pytest.raises(EnvironmentFailure):
        asyncio.run(around.look("before"))
    assert around.clock_load(Facts(fault="the driver is gone")).outcome == "fail"
