"""An attempt that only does what its launch words say: the executor's tests steer it by them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from opprof.campaign.attempt import AttemptSpec, Halt, Journal, Meeting, Outcome
from opprof.campaign.processes import (
    ATTEMPT_VARIABLE,
    CAMPAIGN_VARIABLE,
    RUN_VARIABLE,
    ProcessTable,
    spawn,
)
from opprof.errors import EnvironmentFailure

ENTRY = "ray_standin:run"


async def run(
    spec: AttemptSpec, journal: Journal, halt: Halt, meeting: Meeting | None = None
) -> Outcome:
    """Write what the node is, start a child, then do as the words say; end the child."""
    folder = Path(spec.folder)
    folder.mkdir(parents=True)
    (folder / "traces").mkdir()
    (folder / "facts.txt").write_text(_facts(spec))
    Path(f"{spec.logs}.client.log").write_text("said\n")
    marks = {
        CAMPAIGN_VARIABLE: spec.campaign.id,
        RUN_VARIABLE: spec.run,
        ATTEMPT_VARIABLE: str(spec.number),
    }
    with (folder / "server.log").open("ab") as log:
        command = ["/bin/sh", "-c", "trap '' TERM; echo up; sleep 600 & wait; sleep 600"]
        child = await spawn(
            ProcessTable(),
            "server",
            command,
            campaign=spec.campaign.id,
            run=spec.run,
            environment=dict(os.environ) | marks,
            log=log,
            cwd=folder,
        )
        await journal.started(child.record)
        child.go()
    while not (folder / "server.log").read_text():
        await asyncio.sleep(0.01)
    try:
        await journal.phase("serving")
        await _obey(spec, folder, journal)
        if meeting is not None:
            await _meet(spec, folder, meeting)
        await journal.phase("draining", "as told")
    except asyncio.CancelledError:
        (folder / "cancelled").write_text(str(halt.now))
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.record.pgid, signal.SIGKILL)
        await child.wait(300)
    await journal.signalled(time.time_ns())
    return Outcome({}, "", "", True, False, 1.5, 7)


async def _obey(spec: AttemptSpec, folder: Path, journal: Journal) -> None:
    word, _, rest = " ".join(spec.launch).partition(" ")
    if word == "write":
        (folder / "traces" / "big.bin").write_bytes(os.urandom(int(rest)))
    elif word == "hold":
        await journal.phase("loading")
        await asyncio.sleep(600)
    elif word == "fail":
        raise EnvironmentFailure(rest, path=folder)
    elif word == "crash":
        raise TypeError(rest)
    elif word == "read":
        text = [Path(spec.protocol).read_text(), Path(spec.manifest).read_text()]
        text += [Path(spec.saturation or "").read_text()]
        (folder / "inputs.txt").write_text("".join(text))


async def _meet(spec: AttemptSpec, folder: Path, meeting: Meeting) -> None:
    """Load as a run of a round does; note when."""

    def note(what: str) -> None:
        with (folder / "round.txt").open("a") as stream:
            stream.write(f"{time.monotonic_ns()} {what}\n")

    await meeting.may_load(spec.run)
    note("begins")
    if spec.background:
        await asyncio.sleep(0.2)
        await meeting.loads(spec.run)
        await meeting.until_over()
    note("ends")
    await meeting.leave(spec.run)


def _facts(spec: AttemptSpec) -> str:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    lines = {
        "nice": os.nice(0),
        "blocked": sorted(blocked),
        "omp": os.environ.get("OMP_NUM_THREADS", "(none)"),
        "ray": sorted(name for name in os.environ if name.startswith("RAY_")),
        "host": spec.slot.host,
        "parent": os.getppid(),
        "manifest": spec.manifest,
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items())
