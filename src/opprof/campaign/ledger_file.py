"""``ledger.jsonl``: appended in whole batches and synced; a crash loses at most the last ones.

A last line without its end is what a crash may leave: if it still reads as a charge it was whole
but for the line feed, else it is cut off, and a note says so. Any other damage is refused, since
GPU time that nobody can read cannot be counted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from opprof.artifacts.campaign import Charge
from opprof.campaign.ledger import Balance, balance
from opprof.errors import EnvironmentFailure, SchemaError, StateConflict
from opprof.files import read_bytes, sync_folder, write_atomic

_LIMIT_BYTES = 256 << 20
_decode = msgspec.json.Decoder(Charge).decode


class Ledger:
    """The open ledger of one campaign; one writer (the controller that owns the campaign)."""

    def __init__(self, path: Path, charges: list[Charge]) -> None:
        self.path = path
        self._charges = charges

    @property
    def charges(self) -> Sequence[Charge]:
        """Every line, in order."""
        return tuple(self._charges)

    @property
    def simulated(self) -> bool:
        """Whether its GPU time was spent by no GPU."""
        return self._charges[0].simulated

    @property
    def balance(self) -> Balance:
        """The sums now."""
        return balance(self._charges)

    def append(self, lines: Sequence[Charge]) -> None:
        """Write lines in one piece and sync them; nothing for an empty sequence.

        Raises:
            StateConflict: a line's label (simulated or not) is not the ledger's.
            EnvironmentFailure: the file cannot be written; the lines do not count then.
        """
        if not lines:
            return
        for line in lines:
            _check_line(line, self.simulated, self.path)
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        size: int | None = None
        try:
            # Never made anew: where its folder was moved away, nothing is counted beside it.
            with self.path.open("r+b") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            if size is not None:
                # A full disk may have taken half of a line; the next append must not continue it.
                _truncate(self.path, size)
            reason = f"cannot write: {error.strerror or error}"
            raise EnvironmentFailure(reason, path=self.path) from error
        self._charges += lines


def create_ledger(path: Path, first: Charge) -> Ledger:
    """Begin a ledger with its opening line (see :func:`opprof.campaign.ledger.opening`).

    Raises:
        StateConflict: a ledger is there already.
        EnvironmentFailure: it cannot be written.
    """
    if path.exists():
        raise StateConflict("a ledger is there already; resume the campaign", path=path)
    if first.kind != "prior":
        raise StateConflict("a ledger opens with the declared prior use", path=path)
    write_atomic(path, msgspec.json.encode(first) + b"\n")
    return Ledger(path, [first])


def open_ledger(path: Path, *, wall_ns: int) -> Ledger:
    """Read a ledger for writing and mend a cut last line, with a note of ``wall_ns``.

    Raises:
        InputError: it cannot be read.
        SchemaError: any other damage, with its line.
    """
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    whole, rest = _split(data)
    ledger = Ledger(path, _parse(whole, path))
    if not rest:
        return ledger
    simulated = ledger.simulated
    try:
        last = _decode(rest)
        _check_line(last, simulated, path)
    except (msgspec.MsgspecError, StateConflict):
        note = f"mended: a cut last line of {len(rest)} bytes was dropped"
        _truncate(path, len(whole))
    else:
        note = "mended: the last line had lost its end"
        _finish_line(path)
        ledger = Ledger(path, [*ledger.charges, last])
    ledger.append([_note(note, wall_ns, simulated=simulated)])
    return ledger


def read_ledger(path: Path) -> list[Charge]:
    """Read a ledger without touching it; a line that is being written is left out.

    Raises:
        InputError: it cannot be read.
        SchemaError: a whole line is no charge, or the first is no opening.
    """
    return _parse(_split(read_bytes(path, limit_bytes=_LIMIT_BYTES))[0], path)


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Return the whole lines and what follows the last line feed."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _parse(data: bytes, path: Path) -> list[Charge]:
    charges: list[Charge] = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            charge = _decode(line)
        except msgspec.MsgspecError as error:
            raise SchemaError(f"is no charge: {error}", path=path, line=number) from error
        if (number == 1) != _is_opening(charge):
            what = "opens with something else than" if number == 1 else "declares once more"
            raise SchemaError(f"the ledger {what} the prior use", path=path, line=number)
        if charges:
            try:
                _check_line(charge, charges[0].simulated, path)
            except StateConflict as error:
                raise SchemaError(error.reason, path=path, line=number) from error
        charges.append(charge)
    if not charges:
        raise SchemaError("an empty ledger: its opening line is missing", path=path)
    return charges


def _is_opening(charge: Charge) -> bool:
    return charge.kind == "prior" and charge.protocol_sha256 is None


def _check_line(charge: Charge, simulated: bool, path: Path) -> None:
    if charge.simulated != simulated:
        kinds = ("measured", "simulated")
        reason = f"{kinds[charge.simulated]} GPU time in a {kinds[simulated]} ledger"
        raise StateConflict(reason, path=path)
    if not math.isfinite(charge.gpu_seconds * 1e9):
        raise StateConflict(f"{charge.gpu_seconds:g} GPU-s cannot be counted", path=path)
    signed = charge.kind == "prior" and not _is_opening(charge)
    wanted = charge.kind == "release" and charge.gpu_seconds != 0
    if not signed and (charge.gpu_seconds < 0) != wanted:
        raise StateConflict(
            f"{charge.gpu_seconds:g} GPU-s of kind {charge.kind!r} has the wrong sign", path=path
        )


def _truncate(path: Path, size: int) -> None:
    try:
        with path.open("r+b") as stream:
            stream.truncate(size)
            os.fsync(stream.fileno())
        sync_folder(path.parent)
    except OSError as error:
        raise EnvironmentFailure(f"cannot mend: {error.strerror or error}", path=path) from error


def _finish_line(path: Path) -> None:
    try:
        with path.open("ab") as stream:
            stream.write(b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise EnvironmentFailure(f"cannot mend: {error.strerror or error}", path=path) from error


def _note(text: str, wall_ns: int, *, simulated: bool) -> Charge:
    return Charge(
        schema=1,
        kind="note",
        run="",
        attempt=0,
        gpus=0,
        gpu_seconds=0.0,
        wall_ns=wall_ns,
        note=text,
        simulated=simulated,
    )
