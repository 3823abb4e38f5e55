"""A small campaign on the embedded engine, end to end: detached, killed, resumed, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from campaign_small import small_manifests, small_protocol
from click.testing import CliRunner

from opprof.artifacts.campaign import ProcessRecord
from opprof.artifacts.environment import Environment
from opprof.campaign import launcher
from opprof.campaign.processes import ProcessTable
from opprof.campaign.state import StoreJournal
from opprof.campaign.store import CRASH_VARIABLE, Store, is_locked
from opprof.campaign.watch import controller_state
from opprof.cli.campaign import group
from opprof.errors import EnvironmentFailure
from opprof.protocol import load_protocol
from opprof.protocol.amend import Request, amend_protocol
from patience import patiently

T = TypeVar("T")
pytestmark = pytest.mark.slow
PATIENCE_S = 900
SCALES = (0.03, 0.15, 0.6)
"""Of the small protocol's time, for campaigns on a real clock."""


class Site:
    """Protocol, manifests and the command line; in virtual time unless a time scale is given.

    Virtual time is no matter of the machine's speed, and one that stands still shortens no phase.
    """

    def __init__(self, folder: Path, *, scale: float | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.pace = ["--virtual"] if scale is None else ["--time-scale", f"{scale:g}"]
        # In virtual time every second has its full number of requests.
        self.changes = (
            {} if scale else dict.fromkeys(("warmup_s", "clean_segment_s", "recovery_s"), "4")
        )
        self.protocol = small_protocol(folder / "small.toml", changes=self.changes)
        self.private = small_manifests(folder / "private")
        self.out = folder / "campaign"

    def opprof(
        self, *arguments: str, code: int = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "opprof", "campaign", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def start(self, *more: str, code: int = 0, env: dict[str, str] | None = None) -> str:
        flags = ["start", str(self.protocol), "--out", str(self.out), "--engine", "sim"]
        flags += ["--private", str(self.private), "--var", "MODEL=tiny", "--no-cpu-masks"]
        return self.opprof(*flags, *self.pace, *more, code=code, env=env).stdout

    @property
    def store(self) -> Store:
        return Store(self.out, wall_ns=time.time_ns)

    def wait(self, look: Callable[[], T], what: str) -> T:
        """Return what ``look`` finds, as soon as it finds something."""
        give_up = time.monotonic() + PATIENCE_S
        while not (found := look()):
            assert time.monotonic() < give_up, f"{what}: {self.log()}"
            time.sleep(0.02)
        return found

    def process(self, run: str, role: str) -> ProcessRecord | None:
        """Return the process of a role that the run's last attempt has recorded, if it has one."""
        attempt = self.store.run(run).attempt
        found = [each for each in attempt.processes if each.role == role] if attempt else []
        assert len(found) <= 1
        return found[0] if found else None

    def hold(self, run: str) -> bool:
        """Stop a run's client once it has written the first answers; False where it was faster."""
        table, path = ProcessTable(), self.out / "runs" / run / "client" / "requests.jsonl"
        self.wait(lambda: self.process(run, "client") or not is_locked(self.out), "a client")
        client = self.process(run, "client")
        assert client is not None, self.log()
        self.wait(
            lambda: (path.is_file() and path.stat().st_size) or not table.is_alive(client),
            "answers",
        )
        table.send(client, signal.SIGSTOP)
        self.wait(
            lambda: (seen := table.look(client.pid)) is None or seen.state in "TZ", "its standstill"
        )
        self.held = client
        return table.is_alive(client) and self.store.run(run).state == "loading"

    def let_go(self) -> None:
        """Let the held client go on."""
        ProcessTable().send(self.held, signal.SIGCONT)

    def wait_end(self) -> None:
        self.wait(lambda: not is_locked(self.out), "end")

    def log(self) -> str:
        return self.store.log.read_text()

    def kill_controller(self) -> None:
        record = self.store.controller()
        assert record is not None
        assert ProcessTable().send(record.process, signal.SIGKILL)
        self.wait_end()

    def left(self) -> list[Any]:
        return ProcessTable().marked(self.store.campaign().id)


@contextmanager
def ended(site: Site) -> Iterator[Site]:
    """Yield a site whose campaign is stopped where the test has left it running."""
    try:
        yield site
    finally:
        if site.out.is_dir() and is_locked(site.out):
            site.opprof("stop", "--now", str(site.out))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ended(Site(tmp_path)) as made:
        yield made


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Site]:
    """A campaign of one cell whose saturation run is under load, its client held there."""
    for number in range(5):
        with ended(Site(tmp_path / f"{number}")) as made:
            made.start("--only", "P01")
            if made.hold("P01-C00-saturation"):
                yield made
                return
    pytest.fail("five loads were over before this test could look at them")


def test_a_campaign_runs_detached_to_its_end(tmp_path: Path) -> None:
    def check(scale: float, folder: Path) -> None:
        with ended(Site(folder, scale=scale)) as site:
            check_detached(site)

    patiently(check, tmp_path, SCALES)


def check_detached(site: Site) -> None:
    shown = site.start()
    assert "controller started, pid" in shown
    record = site.store.controller()
    assert record is not None
    assert record.session != os.getsid(0)
    site.wait_end()
    assert controller_state(site.out)[0] == "finished", site.log()
    runs = site.store.runs()
    assert [run.run for run in runs] == [
        "P01-C00-saturation-burnin",
        "P09-C00-saturation",
        "P09-C00-moderate",
        "P01-C00-saturation",
        "P01-C00-moderate",
    ]
    for run in runs:
        assert run.state == "complete"
        assert run.accepted
        assert run.attempt is not None
        assert set(run.attempt.checks) >= {"client", "layer1", "layer2", "sanity", "command"}
        assert all(gate.outcome != "fail" for gate in run.attempt.checks.values())
        roles = [process.role for process in run.attempt.processes]
        analyses = 1 if run.role == "burnin" else 2
        assert roles == ["server", "client", *["analysis"] * analyses]
        assert all(process.exit_status is not None for process in run.attempt.processes)
        assert (site.out / "provenance" / "runs" / f"{run.run}.json").is_file()
    assert site.left() == []
    assert not (site.out / "attempts").exists()
    private = str(site.private)
    for path in site.out.rglob("*"):
        if path.is_file() and path.name != "commands.log":
            assert private.encode() not in path.read_bytes(), path
    site.opprof("status", str(site.out))
    facts = json.loads(site.opprof("status", "--json", str(site.out)).stdout)
    assert facts["gpu_hours"]["reserved"] == 0
    assert "P01-C00-moderate: complete" in site.opprof("logs", str(site.out)).stdout
    assert "server" in site.opprof("logs", str(site.out), "P01-C00-moderate").stdout
    site.start(code=2)


def test_a_killed_controller_is_resumed(loading: Site) -> None:
    site = loading
    before = (site.out / "state" / "P01-C00-saturation-burnin.json").read_bytes()
    site.kill_controller()
    assert controller_state(site.out)[0] == "dead"
    assert len(site.left()) >= 2, "server and client live on without their controller"
    site.let_go()
    killed_ns = time.time_ns()
    site.opprof("resume", str(site.out))
    site.wait_end()
    saturation = site.store.run("P01-C00-saturation")
    assert [(a.number, a.phase, a.fault) for a in saturation.attempts] == [
        (1, "interrupted", "interrupted"),
        (2, "complete", ""),
    ], site.log()
    kept = site.out / "attempts" / "P01-C00-saturation.1"
    assert (kept / "server.log").is_file()
    # A launch is recorded before it is made, and what is effective before any load.
    environment = msgspec.json.decode((kept / "environment.json").read_bytes(), type=Environment)
    assert environment.before is not None and environment.after is None
    assert environment.effective_config and environment.engine_config_sha256
    broken = saturation.attempts[0]
    assert broken.gpu_seconds >= (killed_ns - broken.transitions[0].wall_ns) / 1e9
    assert site.store.run("P01-C00-moderate").state == "complete"
    assert (site.out / "state" / "P01-C00-saturation-burnin.json").read_bytes() == before
    assert site.left() == []
    record = site.store.controller()
    assert record is not None
    assert record.resumed == 1


@pytest.mark.parametrize(
    "point",
    [
        "P01-C00-saturation-burnin:starting.after",
        "P01-C00-saturation:server.recorded",
        "P01-C00-saturation:draining.after",
        "P01-C00-saturation:hashed",
        "P01-C00-moderate:complete.before",
    ],
)
def test_a_crash_point_is_resumed(site: Site, point: str) -> None:
    site.start("--only", "P01", env={CRASH_VARIABLE: point})
    site.wait_end()
    assert controller_state(site.out)[0] == "dead"
    site.opprof("resume", str(site.out))
    site.wait_end()
    runs = site.store.runs()
    assert [run.state for run in runs] == ["complete"] * 3, site.log()
    assert site.left() == []
    late = point.endswith(("hashed", "complete.before"))
    assert sum(len(run.attempts) for run in runs) == (3 if late else 4)


def test_a_stopped_campaign_leaves_nothing_and_goes_on(loading: Site) -> None:
    site = loading
    assert "owns this" in site.opprof("resume", str(site.out), code=2).stderr
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(site.opprof, "stop", str(site.out))
        site.wait(lambda: (record := site.store.controller()) and record.phase == "stopping", "it")
        site.let_go()
        shown = stopping.result().stdout
    assert "1 of 3 runs complete" in shown
    assert site.left() == []
    saturation = site.store.run("P01-C00-saturation")
    assert saturation.state == "interrupted"
    assert saturation.attempt is not None
    assert all(process.exit_status is not None for process in saturation.attempt.processes)
    site.opprof("resume", str(site.out))
    site.wait_end()
    assert [run.state for run in site.store.runs()] == ["complete"] * 3, site.log()


def kill_child(site: Site, run: str, role: str) -> None:
    process = site.process(run, role)
    assert process is not None
    assert ProcessTable().send(process, signal.SIGKILL)


def test_a_server_that_dies_stops_the_matrix_until_somebody_has_looked(loading: Site) -> None:
    site = loading
    kill_child(site, "P01-C00-saturation", "server")
    site.let_go()
    site.wait_end()
    stop = site.store.stop()
    assert stop is not None, site.log()
    assert stop.condition == 2
    assert stop.run == "P01-C00-saturation"
    failed = site.store.run("P01-C00-saturation")
    assert failed.state == "failed"
    assert failed.attempt is not None
    assert failed.attempt.fault == "infrastructure"
    assert site.left() == []
    site.opprof("status", str(site.out), code=1)
    assert "waits for review" in site.opprof("resume", str(site.out), code=2).stderr
    site.opprof("resume", str(site.out), "--reviewed", "a test killed it")
    site.wait_end()
    runs = site.store.runs()
    assert [run.state for run in runs] == ["complete"] * 3, site.log()
    assert [a.phase for a in site.store.run("P01-C00-saturation").attempts] == [
        "failed",
        "complete",
    ]
    kept = json.loads((site.out / "stops" / "001.json").read_bytes())
    assert kept["reviewed"] == "a test killed it"
    assert (site.out / "attempts" / "P01-C00-saturation.1" / "server.log").is_file()


def test_a_client_that_dies_has_its_exact_rerun(loading: Site) -> None:
    site = loading
    kill_child(site, "P01-C00-saturation", "client")
    site.wait_end()
    attempts = site.store.run("P01-C00-saturation").attempts
    assert [(a.phase, a.fault) for a in attempts] == [
        ("failed", "infrastructure"),
        ("complete", ""),
    ], site.log()
    assert [run.state for run in site.store.runs()] == ["complete"] * 3


class FullDisk(StoreJournal):
    """A journal whose disk is full from the moment that the server is told to end."""

    async def signalled(self, wall_ns: int) -> None:
        raise EnvironmentFailure("cannot write: No space left on device")


def test_a_full_disk_holds_up_no_ending_of_processes(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr(launcher, "StoreJournal", FullDisk)
    flags = ["start", str(site.protocol), "--out", str(site.out), "--engine", "sim"]
    flags += ["--private", str(site.private), "--var", "MODEL=tiny", "--no-cpu-masks"]
    flags += [*site.pace, "--only", "P01", "--foreground"]
    done = CliRunner().invoke(group, flags)
    assert done.exit_code == 1, done.output
    assert site.left() == []
    state, record = controller_state(site.out)
    assert state == "failed"
    assert record is not None
    assert "No space left" in record.message
    burnin = site.store.run("P01-C00-saturation-burnin")
    assert burnin.state == "interrupted"
    monkeypatch.undo()
    site.opprof("resume", str(site.out))
    site.wait_end()
    assert [run.state for run in site.store.runs()] == ["complete"] * 3, site.log()


def test_an_amendment_judges_kept_data_again(site: Site, tmp_path: Path) -> None:
    """A failed run becomes complete with the data that it has; nothing is rerun."""
    strict = small_protocol(
        site.protocol, changes={**site.changes, "warmup_completions_min": "4096"}
    )
    site.start("--only", "P01")
    site.wait_end()
    failed = site.store.run("P01-C00-saturation")
    assert failed.state == "failed", site.log()
    assert failed.attempt is not None
    assert failed.attempt.fault == "semantic"
    assert site.store.run("P01-C00-moderate").state == "pending"
    frozen = load_protocol(strict)
    assert frozen is not None
    request = Request(
        id="A-T-1",
        title="warm-up",
        reason="the service is steady long before",
        date="2026-11-30",
        settings=[("gates.warmup_completions_min", "1")],
        rejudge=True,
    )
    amended = tmp_path / "amended.toml"
    amended.write_bytes(amend_protocol(frozen, request))
    site.opprof("resume", str(site.out), "--protocol", str(amended))
    site.wait_end()
    runs = site.store.runs()
    assert [run.state for run in runs] == ["complete"] * 3, site.log()
    revived = site.store.run("P01-C00-saturation")
    assert len(revived.attempts) == 1
    assert [verdict.accepted for verdict in revived.adjudications] == [True]
    assert revived.accepted is False, "the client's own verdict stays"
    verdicts = site.out / revived.adjudications[0].artefact
    assert (verdicts / "adjudication.json").is_file()
    # The moderate run's client took its rate from the later verdict's result.
    commands = (site.out / "runs" / "P01-C00-moderate" / "commands.log").read_text()
    assert f"--saturation-result {verdicts / 'result.json'}" in commands
    timeline = json.loads((site.out / "runs/P01-C00-moderate/client/timeline.json").read_bytes())
    later = json.loads((verdicts / "result.json").read_bytes())
    fraction = frozen.file.load.moderate_rate_fraction
    assert timeline["rate_rps"] == pytest.approx(fraction * later["completed_rps"])
    # A further resume finds nothing to do: what was accepted later is not made again.
    site.opprof("resume", str(site.out))
    site.wait_end()
    assert site.store.run("P01-C00-saturation") == revived
    assert (site.out / "attempts" / "P01-C00-saturation.1" / "client" / "result.json").is_file()
    assert len(list((site.out / "protocols").iterdir())) == 2
    assert site.store.protocol.read_bytes() == amended.read_bytes()
    assert site.store.campaign().protocol_sha256 == frozen.sha256


def test_a_changed_manifest_is_refused(site: Site) -> None:
    site.start("--only", "P01", env={CRASH_VARIABLE: "P01-C00-saturation-burnin:starting.after"})
    site.wait_end()
    manifest = site.private / "P01.jsonl"
    manifest.write_bytes(manifest.read_bytes().replace(b'"steady"', b'"burst:"', 1))
    refused = site.opprof("resume", str(site.out), code=2)
    assert "manifest of P01" in refused.stderr
    assert site.store.run("P01-C00-saturation-burnin").state == "starting"


def stop_after_load(site: Site) -> tuple[int, str]:
    """Let the held client go on; return the hard stop that its run then calls for."""
    site.let_go()
    site.wait_end()
    stop = site.store.stop()
    assert stop is not None, site.log()
    assert site.store.run("P01-C00-saturation").state == "failed"
    assert site.store.run("P01-C00-moderate").state == "pending"
    return stop.condition, stop.reason


def test_a_manifest_that_is_changed_under_load_stops_the_matrix(loading: Site) -> None:
    manifest = loading.private / "P01.jsonl"
    size = manifest.stat().st_size
    with manifest.open("r+b") as stream:
        stream.seek(size // 2)
        at = size // 2 + stream.read(1 << 16).index(b'"input_tokens"')
        stream.seek(at)
        stream.write(b'"Input_tokens"')
    condition, reason = stop_after_load(loading)
    assert condition == 1 and "manifest is" in reason


def test_a_prompt_in_a_log_beside_the_run_stops_the_matrix(loading: Site) -> None:
    line = (loading.private / "P01.jsonl").read_bytes().partition(b"\n")[0]
    with (loading.out / "logs" / "P01-C00-saturation.1.client.log").open("ab") as log:
        log.write(line + b"\n")
    condition, reason = stop_after_load(loading)
    assert condition == 8 and "P01-C00-saturation.1.client.log" in reason


def test_stop_now_waits_for_no_drain(site: Site) -> None:
    """A server that ignores SIGTERM is killed at once; without --now it has its whole time."""
    fake, deafened = site.private / "deaf.py", site.private / "deafened"
    fake.write_text(
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(deafened)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    flags = ["start", str(site.protocol), "--out", str(site.out), "--engine", "vllm"]
    flags += ["--private", str(site.private), "--var", "MODEL=tiny", "--no-cpu-masks"]
    flags += ["--server-command", f"{sys.executable} {fake} serve ${{MODEL}}", "--serial"]
    site.opprof(*flags, "--only", "P01")
    site.wait(lambda: deafened.is_file(), "a server that ignores SIGTERM")
    site.opprof("stop", "--now", str(site.out))
    assert site.left() == []
    burnin = site.store.run("P01-C00-saturation-burnin")
    assert burnin.state == "interrupted"
    assert burnin.attempt is not None
    (server,) = burnin.attempt.processes
    assert server.exit_status == -signal.SIGKILL


def test_a_place_that_cannot_be_written_has_one_message(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    site.out = tmp_path / "file" / "campaign"
    flags = [
        "--engine",
        "sim",
        "--private",
        str(site.private),
        "--var",
        "MODEL=tiny",
        "--no-cpu-masks",
    ]
    place = ["start", str(site.protocol), "--out", str(site.out)]
    said = site.opprof(*place, *flags, code=2).stderr
    assert "cannot be made" in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_the_reason_that_is_told(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        site.start("--only", "P01", "--serial", "--base-port", str(taken.getsockname()[1]))
        site.wait_end()
    stop = site.store.stop()
    assert stop is not None
    assert "is in use" in stop.reason
    assert "nobody looked" not in stop.reason
