"""Looking at a campaign from outside: is its controller alive, stop it, read its logs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from opprof.artifacts.campaign import ControllerRecord
from opprof.campaign.processes import ProcessTable
from opprof.campaign.store import Store, is_locked
from opprof.errors import EnvironmentFailure, InputError

_LOOK_S = 0.2
_STANDSTILL_S = 2.0
"""A process that a terminal or debugger stops for an instant is let go on by then."""
_REACT_S = 5.0
"""A controller confirms SIGTERM at once, unless it is just writing something long."""
_CHUNK_BYTES = 1 << 16


def controller_state(folder: Path) -> tuple[str, ControllerRecord | None]:
    """Return ``running``, ``dead``, ``not started`` or its last phase, with its record."""
    record = Store(folder, wall_ns=time.time_ns).controller()
    if is_locked(folder):
        return "running", record
    if record is None:
        return "not started", None
    if record.phase in ("running", "stopping"):
        return "dead", record
    return record.phase, record


def standstill(table: ProcessTable, record: ControllerRecord) -> str:
    """Return why a controller can do nothing, and what helps; empty where nothing holds it."""
    process = record.process
    seen = table.look(process.pid) if table.is_alive(process) else None
    if seen is None or seen.state not in ("T", "t"):
        return ""
    return (
        f"the controller (pid {process.pid}) does not react: its process is stopped (state "
        f"{seen.state}), while its servers go on. `kill -CONT {process.pid}` lets it go on; or "
        f"`kill -KILL {process.pid}`, and `opprof campaign resume` ends what it left"
    )


def stop_controller(
    folder: Path, *, now: bool, say: Callable[[str], None], patience_s: float = 900.0
) -> str:
    """Tell the controller to end and wait until it has; return a line for people.

    ``say`` is told, once, of a controller that has not confirmed within seconds.

    Raises:
        InputError: the folder is no campaign.
        EnvironmentFailure: it is stopped (SIGSTOP), or does not end in time.
    """
    store = Store(folder, wall_ns=time.time_ns)
    store.campaign()
    table, sent, told = ProcessTable(), 0, False
    begun, held_since = time.monotonic(), None
    while is_locked(folder):
        record, at = store.controller(), time.monotonic()
        if record is not None and sent < (2 if now else 1):
            sent += table.send(record.process, signal.SIGTERM)
        held = "" if record is None else standstill(table, record)
        if not held:
            held_since = None
        elif held_since is None:
            # However long ago the last look was: what held it may have begun just now.
            held_since = at
        elif at - held_since > _STANDSTILL_S:
            then = "; it has been told to end, and does once it goes on" if sent else ""
            raise EnvironmentFailure(f"{held}{then}", path=folder)
        if not told and at - begun > _REACT_S and (why := _unconfirmed(table, record)):
            say(
                f"the controller has not reacted in {_REACT_S:g} s: {why}; waiting {patience_s:g} s"
            )
            told = True
        if at - begun > patience_s:
            why = _unconfirmed(table, record) or "it is still ending what it started"
            raise EnvironmentFailure(
                f"the controller did not end in {patience_s:g} s: {why}", path=folder
            )
        time.sleep(_LOOK_S)
    state, record = controller_state(folder)
    if record is None:
        return "no controller was ever started here"
    if not sent:
        return f"no controller runs here ({state})"
    return f"stopped: {record.message or state}"


def _unconfirmed(table: ProcessTable, record: ControllerRecord | None) -> str:
    """Return why nobody has confirmed to be ending; empty once somebody has."""
    if record is None:
        return "it is still starting"
    process = record.process
    if not table.is_alive(process):
        return (
            f"pid {process.pid} of host {process.host}, which it was last, is no process here: "
            "another one is starting, or it runs on another machine"
        )
    if record.phase == "stopping":
        return ""
    seen = table.look(process.pid)
    state = "gone" if seen is None else seen.state
    return f"pid {process.pid} (state {state}) is busy, or belongs to another user"


def log_lines(
    folder: Path,
    run: str | None,
    *,
    follow: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield the lines of the controller's log, or of a run's last attempt.

    Raises:
        InputError: there is no such run, or no log yet.
    """
    store = Store(folder, wall_ns=time.time_ns)
    store.campaign()
    paths = [store.log]
    if run is not None:
        attempt = store.run(run).attempt
        if attempt is None:
            raise InputError(f"{run} has not begun", path=folder)
        base = folder / "logs" / f"{run}.{attempt.number}"
        paths = [folder / attempt.folder / name for name in ("commands.log", "server.log")]
        paths += [Path(f"{base}.{role}.log") for role in ("client", "analysis", "scan")]
    present = [path for path in paths if path.is_file()]
    if not present:
        raise InputError("no log is there yet", path=paths[0])
    for path in present[:-1] if follow else present:
        if len(present) > 1:
            yield f"==> {path.name} <=="
        yield from path.read_text(errors="replace").splitlines()
    if follow:
        yield from _follow(present[-1], folder, sleep)


def _follow(path: Path, folder: Path, sleep: Callable[[float], None]) -> Iterator[str]:
    """Yield lines as they come until the controller is gone and the file has ended."""
    rest = ""
    with path.open(errors="replace") as stream:
        while True:
            alive = is_locked(folder)
            while piece := stream.read(_CHUNK_BYTES):
                *lines, rest = (rest + piece).split("\n")
                yield from lines
            if not alive:
                break
            sleep(_LOOK_S)
    if rest:
        yield rest
