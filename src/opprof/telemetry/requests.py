"""``client/requests.jsonl`` as columns: who was scheduled, sent, answered when, and with how much.

Times are int64 nanoseconds of CLOCK_MONOTONIC, ``ABSENT`` where the record holds null. As in a
Layer-1 stream a file that does not fit its schema is an error, while a torn last line or a request
that occurs twice makes the run invalid with a reason.

Source: contract, section 1; protocol, "Required fixed-duration client", item 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opprof.artifacts.run import RequestRecord
from opprof.errors import InputError, SchemaError
from opprof.telemetry.lines import decode_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opprof.telemetry.columns import Bool, Int64

ABSENT = -1
"""Stands for null in a column of times or counts."""
HTTP_OK = 200

_NUMBERS = (
    "scheduled_mono_ns",
    "admitted_mono_ns",
    "first_token_mono_ns",
    "completed_mono_ns",
    "ended_mono_ns",
    "prompt_tokens",
    "requested_output_tokens",
    "output_tokens",
    "http_status",
)
_TIME_MAX = 1 << 62


class _UncollectedRecord(RequestRecord, frozen=True, forbid_unknown_fields=True, gc=False):
    """A record that the garbage collector need not track."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """All request records of one run, one entry per line."""

    scheduled_mono_ns: Int64
    admitted_mono_ns: Int64
    first_token_mono_ns: Int64
    completed_mono_ns: Int64
    ended_mono_ns: Int64
    """End of a request that got no whole answer, where the client knew it."""
    prompt_tokens: Int64
    requested_output_tokens: Int64
    output_tokens: Int64
    http_status: Int64
    errored: Bool
    """The client gave an error code."""
    errors: dict[str, int]
    """Error code to number of requests."""
    torn_line: int | None
    duplicate_ids: int
    """Lines beyond the first of each request id."""

    def __len__(self) -> int:
        return len(self.scheduled_mono_ns)

    @property
    def failed(self) -> Bool:
        """Requests that ended without being right.

        A wrong status, an error code, or an answer that is whole but has not exactly the requested
        number of output tokens. A request still open at the end (no error, no completion) is none.
        """
        status = self.http_status
        answered = self.completed_mono_ns != ABSENT
        wrong_status = (status != HTTP_OK) & ((status != ABSENT) | answered)
        wrong_count = answered & (self.output_tokens != self.requested_output_tokens)
        wrong: Bool = self.errored | wrong_status | wrong_count
        return wrong

    @property
    def completed(self) -> Bool:
        """Requests with a whole, right answer."""
        whole: Bool = (self.completed_mono_ns != ABSENT) & ~self.failed
        return whole

    @property
    def open(self) -> Bool:
        """Requests that were sent and neither completed nor failed: legal after the drain."""
        sent = self.admitted_mono_ns != ABSENT
        still: Bool = sent & (self.completed_mono_ns == ABSENT) & ~self.failed
        return still

    @property
    def last_known_mono_ns(self) -> Int64:
        """When a request ended; where the client did not know, the last moment it was seen at."""
        import numpy as np

        known = self.scheduled_mono_ns.copy()
        for times in (self.admitted_mono_ns, self.first_token_mono_ns, self.ended_mono_ns):
            known = np.where(times != ABSENT, times, known)
        return np.where(self.completed_mono_ns != ABSENT, self.completed_mono_ns, known)

    def reasons(self) -> list[str]:
        """What makes the file incomplete, each with its code; empty for a sound file."""
        found = []
        if self.torn_line is not None:
            found.append(f"partial_last_line: line {self.torn_line} is no whole JSON text")
        if self.duplicate_ids:
            found.append(f"duplicate_request: {self.duplicate_ids} lines repeat a request id")
        return found

    def disorder(self) -> int:
        """Requests whose known times go backwards (scheduled, admitted, first token, completed)."""
        import numpy as np

        wrong = np.zeros(len(self), np.bool_)
        latest = self.scheduled_mono_ns
        for times in (self.admitted_mono_ns, self.first_token_mono_ns, self.completed_mono_ns):
            known = times != ABSENT
            wrong |= known & (times < latest)
            latest = np.where(known, np.maximum(latest, times), latest)
        return int(wrong.sum())


def read_requests(path: Path) -> RequestColumns:
    """Read and decode all request records; memory beside the columns is one block and the ids.

    Raises:
        InputError: the file cannot be read.
        SchemaError: a line does not fit the schema; names file and line.
    """
    decoder = msgspec.json.Decoder(_UncollectedRecord)
    collected = _Collector(path)
    try:
        with path.open("rb") as stream:
            for block in decode_blocks(stream, path, decoder):
                collected.add(block.records, block.first_line)
                collected.torn_line = block.torn_line
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error
    return collected.finish()


class _Collector:
    def __init__(self, path: Path) -> None:
        self.torn_line: int | None = None
        self._path = path
        self._tables: list[NDArray[Any]] = []
        self._ids: set[int | str] = set()
        self._lines = 0
        self._errors: dict[str, int] = {}
        self._errored: list[NDArray[Any]] = []

    def add(self, records: Sequence[RequestRecord], first_line: int) -> None:
        import numpy as np

        if not records:
            return
        numbers: Callable[[RequestRecord], tuple[int | None, ...]] = attrgetter(*_NUMBERS)
        flat = [
            ABSENT if value is None else value for record in records for value in numbers(record)
        ]
        if max(flat) > _TIME_MAX:
            row = next(
                row for row, r in enumerate(records) if max(v or 0 for v in numbers(r)) > _TIME_MAX
            )
            raise SchemaError("number out of range", path=self._path, line=first_line + row)
        self._tables.append(np.array(flat, np.int64).reshape(len(records), len(_NUMBERS)))
        self._ids.update(record.request_id for record in records)
        self._lines += len(records)
        errors = [record.error for record in records]
        self._errored.append(np.array([error is not None for error in errors], np.bool_))
        for error in errors:
            if error is not None:
                self._errors[error] = self._errors.get(error, 0) + 1

    def finish(self) -> RequestColumns:
        import numpy as np

        tables = self._tables or [np.zeros((0, len(_NUMBERS)), np.int64)]
        columns = np.ascontiguousarray(np.concatenate(tables).T)
        return RequestColumns(
            **dict(zip(_NUMBERS, columns, strict=True)),
            errored=np.concatenate(self._errored) if self._errored else np.zeros(0, np.bool_),
            errors=self._errors,
            torn_line=self.torn_line,
            duplicate_ids=self._lines - len(self._ids),
        )
