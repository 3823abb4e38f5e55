"""Request records: verified, written as whole lines during the run, and kept for the summary.

``requests.jsonl`` appears under its final name at once and grows by whole lines: an interrupted or
killed run leaves every request that had ended up to then. No record holds text of a prompt or an
answer; errors are reason codes.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof.artifacts.run import RequestRecord
from opprof.client.admission import Flight
from opprof.client.ports import Outcome, RequestSpec
from opprof.errors import EnvironmentFailure, StateConflict

_FLUSH_BYTES = 32_768

_FINISH_REASONS = frozenset({"length", "stop", "abort", "none"})

COUNT_ERRORS = frozenset({"input_count", "output_count"})
"""The answer was whole, but not the work that was asked for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed, with the time at which it did."""

    admitted_ns: int
    ended_ns: int
    code: str


def verdict(spec: RequestSpec, outcome: Outcome) -> str | None:
    """Return why a request failed, or None: exact output and input counts by the server's usage."""
    if outcome.error is not None:
        return outcome.error
    if outcome.output_tokens != spec.output_tokens:
        return "output_count"
    if outcome.prompt_tokens != spec.input_tokens:
        return "input_count"
    return None


class Journal:
    """Collects records in order of completion and writes them."""

    def __init__(self, path: Path | None) -> None:
        self.records: list[RequestRecord] = []
        self.failures: list[Failure] = []
        self.ok = 0
        self.unsent = 0
        self.finish_reasons: Counter[str] = Counter()
        """How the server said that whole answers ended; ``length`` under ``ignore_eos``."""
        self.write_error: EnvironmentFailure | None = None
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        self._buffer = bytearray()
        self._descriptor: int | None = None
        self._written = 0

    def open(self) -> None:
        """Create the file.

        Raises:
            StateConflict: it exists already.
            EnvironmentFailure: it cannot be created.
        """
        if self._path is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._path, flags, 0o644)
        except FileExistsError as error:
            raise StateConflict("an earlier run wrote this file", path=self._path) from error
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write: {error.strerror or error}", path=self._path
            ) from error

    def ended(self, flight: Flight, outcome: Outcome) -> str | None:
        """Record a request's end; return its reason code when it failed."""
        spec = flight.spec
        code = verdict(spec, outcome)
        whole = code is None or code in COUNT_ERRORS
        admitted_ns = flight.admitted_ns
        assert admitted_ns is not None
        self._add(
            RequestRecord(
                spec.request_id,
                flight.scheduled_ns,
                admitted_ns,
                outcome.first_token_ns,
                outcome.ended_ns if whole else None,
                outcome.prompt_tokens,
                spec.output_tokens,
                outcome.output_tokens,
                outcome.http_status,
                code,
                None if whole else outcome.ended_ns,
            )
        )
        if whole:
            reason = outcome.finish_reason or "none"
            self.finish_reasons[reason if reason in _FINISH_REASONS else "other"] += 1
        if code is None:
            self.ok += 1
        else:
            self.failures.append(Failure(admitted_ns, outcome.ended_ns, code))
        return code

    def never_ended(self, flight: Flight, code: str) -> None:
        """Record a request that was still running, or was never sent, when the run ended."""
        spec = flight.spec
        self.unsent += flight.admitted_ns is None
        self._add(
            RequestRecord(
                spec.request_id,
                flight.scheduled_ns,
                flight.admitted_ns,
                None,
                None,
                None,
                spec.output_tokens,
                None,
                None,
                code,
            )
        )

    def flush(self) -> None:
        """Write what is pending; a failed write is kept in ``write_error`` and ends the run."""
        if self._descriptor is None or not self._buffer or self.write_error is not None:
            self._buffer.clear()
            return
        data = bytes(self._buffer)
        self._buffer.clear()
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                # The disk is full: leave whole lines only.
                whole = data[:written].rfind(b"\n") + 1
                os.ftruncate(self._descriptor, self._written + whole)
                raise OSError(28, "no space left on device")
            self._written += written
        except OSError as error:
            self.write_error = EnvironmentFailure(
                f"cannot write: {error.strerror or error}", path=self._path
            )

    def close(self) -> None:
        """Write the rest, flush it to disk and close.

        Raises:
            EnvironmentFailure: a write failed, now or before.
        """
        self.flush()
        descriptor, self._descriptor = self._descriptor, None
        try:
            if descriptor is not None:
                os.fsync(descriptor)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write: {error.strerror or error}", path=self._path
            ) from error
        finally:
            if descriptor is not None:
                os.close(descriptor)
        if self.write_error is not None:
            raise self.write_error

    def _add(self, record: RequestRecord) -> None:
        self.records.append(record)
        if self._descriptor is not None:
            self._buffer += self._encode(record) + b"\n"
            if len(self._buffer) >= _FLUSH_BYTES:
                self.flush()
