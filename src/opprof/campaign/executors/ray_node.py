"""What lives on a Ray node: one warden a campaign, one bridge an attempt. Neither imports Ray.

The warden holds the node's GPUs for the campaign (Ray gives them to nobody else meanwhile), tells
the topology, keeps the scratch folder where there is no common file system, and ends what carries
the campaign's mark. A bridge ties an attempt's worker process to the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from opprof.artifacts.environment import GpuDevice, Topology
from opprof.campaign.executors import frames, shipping
from opprof.campaign.executors.ray_worker import RAYLET_VARIABLE, node_environment
from opprof.campaign.processes import (
    ATTEMPT_VARIABLE,
    CAMPAIGN_VARIABLE,
    RUN_VARIABLE,
    Ended,
    ProcessTable,
    end_marked,
    ended,
)
from opprof.errors import EnvironmentFailure, InputError
from opprof.files import sha256_file
from opprof.host.cpu import CpuHost

_WORKER_MODULE = "opprof.campaign.executors.ray_worker"
_LOG_TAIL_BYTES = 2000
_SAFE = re.compile(r"[^A-Za-z0-9._-]")
RUN_FOLDER, LOG_PREFIX = "run", "log"
"""Below an attempt's scratch folder."""


class Sent(Struct, frozen=True):
    """A file that a node needs: where it lies at the controller, and its bytes."""

    path: str
    size: int
    sha256: str
    place: str
    """Files that must lie side by side (a manifest, its summary and index) share a place."""


class Warden:
    """See the module; every method may run in a thread of its own."""

    def __init__(self, name: str, campaign: str, scratch: str) -> None:
        self._name, self._campaign = name, campaign
        base = Path(scratch) if scratch else Path(tempfile.gettempdir())
        # One a machine, whatever its node is called: what an earlier one left is found again.
        self._scratch = base / f"opprof-{os.geteuid()}-{campaign}"

    def topology(self, slots: int, allotted: Sequence[str] | None) -> Topology:
        """Return the node's topology with the GPUs that the campaign holds on it.

        Args:
            slots: how many slots the node offers.
            allotted: indices or UUIDs of the real GPUs that Ray gave; None on a node whose slots
                are no GPUs (a custom resource, for the embedded engine).

        Raises:
            EnvironmentFailure: the driver does not know a GPU that Ray gave away.
        """
        if allotted is None:
            found = CpuHost(self._name).topology()
            places = [GpuDevice(index, "", "none", 0, None) for index in range(slots)]
            return msgspec.structs.replace(found, gpus=places)
        from opprof.host.nvml import NvmlHost

        found = NvmlHost(self._name).topology()
        keys = {str(key) for key in allotted}
        held = [gpu for gpu in found.gpus if str(gpu.index) in keys or gpu.uuid in keys]
        if len(held) != len(keys):
            known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in found.gpus)
            raise EnvironmentFailure(f"{self._name}: Ray gave {sorted(keys)}, NVML knows {known}")
        return msgspec.structs.replace(found, gpus=held)

    def pid(self) -> int:
        """Return the pid of the warden's own process (the answer says that it lives)."""
        return os.getpid()

    # ------------------------------------------------------------- a common file system?

    def answer(self, folder: str, token: str, reply: str) -> bool:
        """Read the controller's token in the campaign's folder and write the reply beside it."""
        try:
            if (Path(folder) / f".{token}").read_text() != token:
                return False
            (Path(folder) / f".{reply}").write_text(reply)
        except OSError:
            return False
        return True

    def has(self, wanted: Sequence[Sent]) -> list[bool]:
        """Tell which files lie here under the same path with the same bytes."""
        return [_same(Path(sent.path), sent) for sent in wanted]

    # ------------------------------------------------------------------ the scratch folder

    def attempt_folder(self, run: str, number: int) -> str:
        """Make and return the scratch folder of an attempt; what lay there before is refused.

        Raises:
            EnvironmentFailure: it exists, or cannot be made.
        """
        shipping.private_folder(self._scratch)
        folder = self._scratch / f"{run}.{number}"
        if folder.exists():
            raise EnvironmentFailure("an attempt of that number lies there already", path=folder)
        return str(shipping.private_folder(folder))

    def receive(self, sent: Sent, offset: int, piece: bytes) -> str:
        """Take a piece of a file; return its path once it is whole, else an empty text.

        Raises:
            EnvironmentFailure: it cannot be written.
            IntegrityError: it is whole and has other bytes.
        """
        shipping.private_folder(self._scratch)
        shipping.checked_name(f"{sent.place}/{Path(sent.path).name}")
        path = self._scratch / "inputs" / sent.place / Path(sent.path).name
        if _same(path, sent):
            return str(path)
        # Two nodes of one machine, as in the tests, may be sent the same file at once.
        part = path.with_name(f".{path.name}.{_SAFE.sub('_', self._name)}.part")
        shipping.append_piece(part, offset, piece)
        if offset + len(piece) < sent.size:
            return ""
        shipping.finish_file(part, path, sent.sha256)
        return str(path)

    def kept(self) -> list[str]:
        """Return ``<run>.<attempt>`` of every attempt that was not brought home."""
        if not self._scratch.is_dir():
            return []
        return sorted(
            entry.name
            for entry in self._scratch.iterdir()
            if (entry / RUN_FOLDER).is_dir() or list(entry.glob(f"{LOG_PREFIX}.*"))
        )

    def listing(self, attempt: str) -> shipping.Listing:
        """List an attempt's scratch folder: run directory and logs."""
        return shipping.list_folder(self._scratch / shipping.checked_name(attempt))

    def read(self, attempt: str, name: str, offset: int) -> bytes:
        """Return a piece of a file of :meth:`listing`."""
        root = self._scratch / shipping.checked_name(attempt)
        return shipping.read_piece(root, name, offset)

    def forget(self, attempt: str) -> None:
        """Delete an attempt's scratch folder: it is whole at the controller."""
        shutil.rmtree(self._scratch / shipping.checked_name(attempt), ignore_errors=True)

    def forget_all(self) -> None:
        """Delete the scratch folder, manifests included, unless an attempt still lies in it."""
        if not self.kept():
            shutil.rmtree(self._scratch, ignore_errors=True)

    # --------------------------------------------------------------------------- processes

    def end(self, run: str | None, grace_s: float) -> list[Ended]:
        """End everything on this machine that is the campaign's; return what was met."""
        met = asyncio.run(end_marked(ProcessTable(), self._campaign, run=run, grace_s=grace_s))
        return ended(met, f"{self._name}: ")


class Bridge:
    """Starts an attempt's worker process and carries frames between it and the controller."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._reader = self._writer = -1
        self._start: frames.Start | None = None
        self._log = Path()

    def open(self, start: bytes, log: str) -> bytes:
        """Start the worker; return its first frame (its greeting, or why there is none)."""
        frame = frames.decode_down(start)
        assert isinstance(frame, frames.Start)
        self._start, self._log = frame, Path(log)
        try:
            self._launch(frame)
        except (OSError, KeyError) as error:
            reason = f"cannot start the worker: {error}"
            return frames.encode(frames.Broke("EnvironmentFailure", reason))
        return self._read()

    def next(self) -> bytes:
        """Acknowledge the last frame and wait for the next; the last one of all is not followed."""
        self._send(frames.Ack())
        return self._read()

    def tell(self, frame: bytes) -> None:
        """Hand the worker a frame that answers none: :class:`frames.Cancel`, :class:`frames.Go`."""
        self._send(frames.decode_down(frame))

    def finish(self) -> None:
        """Acknowledge the last frame of all and wait until the worker is gone."""
        self._send(frames.Ack())
        frames.read_frame(self._reader)  # The pipe's end.
        with contextlib.suppress(OSError):
            if self._log.stat().st_size == 0:
                self._log.unlink()

    def _launch(self, frame: frames.Start) -> None:
        spec, raylet = frame.spec, os.environ[RAYLET_VARIABLE]
        environment = node_environment(os.environ, Path(f"/proc/{raylet}/environ").read_bytes())
        environment |= {
            RAYLET_VARIABLE: raylet,
            CAMPAIGN_VARIABLE: spec.campaign.id,
            RUN_VARIABLE: spec.run,
            ATTEMPT_VARIABLE: str(spec.number),
            "OPPROF_ROLE": "worker",
        }
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", _WORKER_MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        assert process.stdin is not None and process.stdout is not None
        self._writer, self._reader = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
        process.stdin.close()
        process.stdout.close()
        process.wait()  # It forks and leaves at once; the worker proper is nobody's child.
        self._send(frame)

    def _send(self, frame: frames.Down) -> None:
        with self._writing:
            try:
                frames.write_frame(self._writer, frames.encode(frame))
            except OSError:
                return  # It is gone; the next read says so.

    def _read(self) -> bytes:
        data = frames.read_frame(self._reader)
        if data is None:
            return frames.encode(self._gone())
        return data

    def _gone(self) -> frames.Gone:
        """The worker died: end what it left, and tell."""
        assert self._start is not None
        spec = self._start.spec
        met = asyncio.run(end_marked(ProcessTable(), spec.campaign.id, run=spec.run, grace_s=0.0))
        return frames.Gone([f"pid {seen.pid}" for seen in met], _tail(self._log))


def _same(path: Path, sent: Sent) -> bool:
    try:
        return path.stat().st_size == sent.size and sha256_file(path) == sent.sha256
    except (OSError, InputError):
        return False


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return "(no log)"
    return " | ".join(text.strip().splitlines()[-5:]) or "(empty log)"
