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


def stop_controller(folder: Path, *, now: bool, patience_s: float = 900.0) -> str:
    """Tell the controller to end and wait until it has; return a line for people.

    Raises:
        InputError: the folder is no campaign.
        EnvironmentFailure: it does not end in time.
    """
    store = Store(folder, wall_ns=time.time_ns)
    store.campaign()
    table, sent = ProcessTable(), 0
    give_up = time.monotonic() + patience_s
    while is_locked(folder):
        record = store.controller()
        if record is not None and sent < (2 if now else 1):
            sent += table.send(record.process, signal.SIGTERM)
        if time.monotonic() > give_up:
            raise EnvironmentFailure(f"the controller did not end in {patience_s:g} s", path=folder)
        time.sleep(_LOOK_S)
    state, record = controller_state(folder)
    if record is None:
        return "no controller was ever started here"
    if not sent:
        return f"no controller runs here ({state})"
    return f"stopped: {record.message or state}"


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
