"""The campaign's folder: atomic state files, the lock, and the points at which a test may crash.

Crash-first (A-P3-2): every state file is written to a temporary file in the same folder, flushed,
renamed, and the folder is synced; what was there before stays readable until then. A record is
what the controller believed last; what a run directory holds is judged anew on a resume.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from opprof.artifacts.campaign import (
    Attempt,
    Campaign,
    ControllerRecord,
    Phase,
    RunRecord,
    Stop,
    Transition,
)
from opprof.campaign.processes import ProcessTable
from opprof.campaign.stamps import Stamp, stamp_of, wall_step_ns
from opprof.errors import EnvironmentFailure, InputError, SchemaError, StateConflict
from opprof.files import read_bytes, sync_folder, write_atomic

CRASH_VARIABLE = "OPPROF_CRASH_AT"
"""A test's hook: the controller kills itself (SIGKILL) at a crash point.

``NAME`` is the first point of that name, ``NAME*N`` its N-th occurrence, ``#N`` the N-th point of
the process whatever its name. Points are named ``<run>:<phase>.before`` and ``.after`` (around the
write of a run's state), ``<run>:<place>`` (see :meth:`Store.crash_point`'s callers).
"""
FINAL_PHASES: frozenset[Phase] = frozenset({"complete", "failed", "interrupted"})
_LIMIT_BYTES = 64 << 20
_LOOKED_AT_S = 1.0

T = TypeVar("T")


class CrashPoints:
    """Counts the crash points of a process and kills it at the one that was asked for."""

    def __init__(self, wanted: str, die: Callable[[], None] | None = None) -> None:
        self._die = die or _die
        name, _, count = wanted.partition("*")
        self._name = "" if wanted.startswith("#") else name
        self._count = int(wanted[1:] if wanted.startswith("#") else count or 1) if wanted else 0
        self._seen = 0

    def reached(self, name: str) -> None:
        """Die here when this is the point; else count it."""
        if not self._count or self._name not in ("", name):
            return
        self._seen += 1
        if self._seen == self._count:
            self._die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Store:
    """Reads and writes one campaign folder; only the controller that holds the lock writes."""

    def __init__(
        self,
        folder: Path,
        *,
        wall_ns: Callable[[], int],
        mono_ns: Callable[[], int] = time.monotonic_ns,
        boot_id: str | None = None,
    ) -> None:
        self.folder = folder
        self.wall_ns = wall_ns
        self._mono_ns = mono_ns
        self._boot_id = ProcessTable().boot_id if boot_id is None else boot_id
        self._home: tuple[int, int] | None = None
        """Device and inode of the folder, from the first write."""
        self._crash = CrashPoints(os.environ.get(CRASH_VARIABLE, ""))

    def now(self) -> Stamp:
        """Return this moment by both clocks."""
        return Stamp(self.wall_ns(), self._mono_ns(), self._boot_id)

    def step(self, phase: Phase, reason: str = "", after: Attempt | None = None) -> Transition:
        """Return a transition of this moment, the next one of an attempt."""
        now, before = self.now(), after.transitions[-1] if after and after.transitions else None
        step_ns = 0 if before is None else wall_step_ns(stamp_of(before), now)
        return Transition(phase, now.wall_ns, reason, now.mono_ns, now.boot_id, step_ns / 1e9)

    # ------------------------------------------------------------------ places

    @property
    def protocol(self) -> Path:
        """The protocol in force."""
        return self.folder / "protocol.toml"

    @property
    def log(self) -> Path:
        """Where the detached controller's output goes."""
        return self.folder / "controller.log"

    @property
    def commands(self) -> Path:
        """Exact commands of the campaign itself; the only place of private paths."""
        return self.folder / "commands.log"

    def run_folder(self, run: str) -> Path:
        """The run directory of the attempt in progress or of the complete run."""
        return self.folder / "runs" / run

    def last_written_ns(self, folder: str) -> int:
        """Return when the newest file below ``folder`` was written, Unix ns; 0 for none."""
        entries = (self.folder / folder).rglob("*")
        return max((entry.lstat().st_mtime_ns for entry in entries), default=0)

    # --------------------------------------------------------- campaign, stop, controller

    def campaign(self) -> Campaign:
        """Return ``campaign.json``.

        Raises:
            InputError, SchemaError: the folder is no campaign.
        """
        path = self.folder / "campaign.json"
        if not path.is_file():
            raise InputError("is no campaign folder (it has no campaign.json)", path=self.folder)
        campaign = _read(path, Campaign)
        if campaign.simulated != (campaign.engine != "vllm"):
            reason = f"engine {campaign.engine} and simulated {campaign.simulated} contradict"
            raise SchemaError(reason, path=path)
        return campaign

    def stop(self) -> Stop | None:
        """Return ``stop.json``, or None without one (:func:`opprof.campaign.review.standing`).

        Raises:
            SchemaError: it is damaged, or no file.
        """
        path = self.folder / "stop.json"
        if not os.path.lexists(path):
            return None
        if not path.is_file():
            raise SchemaError("is no file: bring the stop back that stood here", path=path)
        return _read(path, Stop)

    def write_stop(self, stop: Stop) -> None:
        """Make the matrix stand still, or record its release."""
        self._write("stop.json", stop)

    def archive_stop(self) -> None:
        """Move a released stop to ``stops/``: it stays on record and stops nothing any more."""
        path, target = self.folder / "stop.json", self.folder / "stops"
        target.mkdir(exist_ok=True)
        numbers = [int(kept.stem) for kept in target.glob("*.json") if kept.stem.isdecimal()]
        path.rename(target / f"{max(numbers, default=0) + 1:03d}.json")
        sync_folder(target)
        sync_folder(self.folder)

    def released_stops(self) -> list[Stop]:
        """Return the stops that reviews have released, the first one first."""
        return [_read(path, Stop) for path in sorted((self.folder / "stops").glob("*.json"))]

    def controller(self) -> ControllerRecord | None:
        """Return ``controller.json``, or None before the first controller."""
        path = self.folder / "controller.json"
        return _read(path, ControllerRecord) if path.is_file() else None

    def write_controller(self, record: ControllerRecord) -> None:
        """Replace ``controller.json``."""
        self._write("controller.json", record)

    def _write(self, name: str, value: object) -> None:
        """Replace a file of the folder, which is never made anew where it was moved away."""
        try:
            here = self.folder.stat()
        except OSError as error:
            reason = f"the campaign's folder is gone: {error.strerror or error}"
            raise EnvironmentFailure(reason, path=self.folder) from error
        self._home = self._home or (here.st_dev, here.st_ino)
        if (here.st_dev, here.st_ino) != self._home:
            # A server or client that was under way made it again at its old place.
            reason = "the campaign's folder is gone: another stands in its place"
            raise EnvironmentFailure(reason, path=self.folder)
        write_atomic(self.folder / name, pretty(value))

    # ---------------------------------------------------------------------- run records

    def runs(self) -> list[RunRecord]:
        """Return every planned run, in the order of execution.

        Raises:
            SchemaError: a state file is damaged; none is ever written in place.
        """
        folder = self.folder / "state"
        paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
        return sorted(map(_read_run, paths), key=lambda item: item.order)

    def run(self, name: str) -> RunRecord:
        """Return one run's record."""
        path = self.folder / "state" / f"{name}.json"
        if path.parent.parent != self.folder or not path.is_file():
            raise InputError(f"the campaign has no run {name!r}", path=self.folder)
        return _read_run(path)

    def save(self, record: RunRecord) -> None:
        """Replace a run's state file; the record on disk is the old one or this one."""
        self.crash_point(record.run, f"{record.state}.before")
        self._write(f"state/{record.run}.json", record)
        self.crash_point(record.run, f"{record.state}.after")

    def forget(self, run: str) -> None:
        """Remove the state of a run that is no longer planned and never began."""
        if self.run(run).attempts:
            raise StateConflict(f"{run} has begun; nothing of it is ever removed")
        (self.folder / "state" / f"{run}.json").unlink()
        sync_folder(self.folder / "state")

    def transition(
        self, record: RunRecord, phase: Phase, reason: str = "", **changes: object
    ) -> RunRecord:
        """Save the run's last attempt in its next phase and return the record.

        ``reason`` becomes the attempt's where the phase ends it. ``changes``: further fields of the
        attempt.
        """
        attempt = _last(record)
        step = self.step(phase, reason, after=attempt)
        if phase in FINAL_PHASES:
            changes["reason"] = reason
        attempt = msgspec.structs.replace(
            attempt, phase=phase, transitions=[*attempt.transitions, step], **changes
        )
        record = with_attempt(record, attempt)
        self.save(record)
        return record

    def move_aside(self, record: RunRecord) -> RunRecord:
        """Move the last attempt's folder whole to ``attempts/`` and return the saved record.

        Safe to repeat: a crash between the move and the state's write is finished by the next call.
        """
        attempt = _last(record)
        relative = f"attempts/{record.run}.{attempt.number}"
        source, target = self.folder / attempt.folder, self.folder / relative
        if source != target and source.is_dir():
            target.parent.mkdir(exist_ok=True)
            if target.exists():
                raise StateConflict("an attempt of that number was kept already", path=target)
            source.rename(target)
            sync_folder(target.parent)
            sync_folder(source.parent)
        self.crash_point(record.run, "moved")
        record = with_attempt(record, msgspec.structs.replace(attempt, folder=relative))
        self.save(record)
        return record

    def crash_point(self, run: str, place: str) -> None:
        """The one place where a test makes the controller die (:data:`CRASH_VARIABLE`)."""
        self._crash.reached(f"{run}:{place}")


def with_attempt(record: RunRecord, attempt: Attempt) -> RunRecord:
    """Return the record with its last attempt replaced and its state that attempt's phase."""
    attempts = [*record.attempts[:-1], attempt]
    return msgspec.structs.replace(record, attempts=attempts, state=attempt.phase)


def _last(record: RunRecord) -> Attempt:
    if record.attempt is None:
        raise StateConflict(f"{record.run} has no attempt")
    return record.attempt


@contextmanager
def campaign_lock(folder: Path) -> Iterator[Callable[[], bool]]:
    """Own the campaign while the block runs; the kernel releases it with the process.

    Yields a question: is the lock file still the one that is held? Where somebody deleted it,
    another controller could lock a new one.

    Raises:
        StateConflict: another controller owns it.
        EnvironmentFailure: the folder cannot hold a lock.
    """
    path = folder / "controller.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise EnvironmentFailure(f"cannot lock: {error.strerror or error}", path=path) from error
    try:
        # Who only looks (`is_locked`) shares the lock for an instant and is no owner.
        give_up = time.monotonic() + _LOOKED_AT_S
        while not _locks(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                reason = "a controller owns this campaign already (`opprof campaign status`)"
                raise StateConflict(reason, path=folder)
            time.sleep(_LOOKED_AT_S / 20)
        yield lambda: _is_same_file(descriptor, path)
    finally:
        os.close(descriptor)


def _locks(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    held = os.fstat(descriptor)
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


@contextmanager
def machine_lock(campaign: str, folder: Path) -> Iterator[None]:
    """Be the only controller of the campaign on this machine, whatever copies its folder has.

    A copy has a lock file of its own and the same marks on its processes: a second controller would
    end those of the first. The name is the kernel's (an abstract socket) and goes with the process.

    Raises:
        StateConflict: another controller has it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        try:
            held.bind(f"\0opprof-campaign-{campaign}")
        except OSError as error:
            reason = (
                f"a controller of {campaign} works in another copy of this folder (or its lock "
                "file was deleted): stop it first"
            )
            raise StateConflict(reason, path=folder) from error
        yield


def is_locked(folder: Path) -> bool:
    """Tell whether a living controller owns the campaign; writes nothing.

    Raises:
        EnvironmentFailure: the lock file cannot be looked at.
    """
    path = folder / "controller.lock"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise EnvironmentFailure(f"cannot look: {error.strerror or error}", path=path) from error
    try:
        return not _locks(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary user may still write where the campaign lies."""
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise EnvironmentFailure(f"cannot look: {error.strerror or error}", path=folder) from error


def pretty(value: object) -> bytes:
    """Encode a Struct as indented JSON with a final line end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _read_run(path: Path) -> RunRecord:
    """Read one state file and see that it speaks of its own run and does not contradict itself."""
    record = _read(path, RunRecord)
    attempt, numbers = record.attempt, [each.number for each in record.attempts]
    if record.run != path.stem:
        raise SchemaError(f"is of another run, {record.run!r}", path=path)
    if record.state != ("pending" if attempt is None else attempt.phase):
        last = "it has no attempt" if attempt is None else f"its last attempt is {attempt.phase}"
        raise SchemaError(f"says {record.state}, but {last}", path=path)
    if numbers != list(range(1, len(numbers) + 1)):
        raise SchemaError(f"its attempts are numbered {numbers}", path=path)
    return record


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error
