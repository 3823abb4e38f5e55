"""The private real-trace anchor: selection, parity precheck and manifest (protocol, same section).

The source is streamed once: lines are hashed, selected, counted by the tokenizer in small batches
and written, so that what was hashed is what was used. Prompts are carried as the very bytes of the
source's JSON strings; they are decoded only to be counted. No message holds any part of one, and
exceptions of decoders, which may, are not chained.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from opprof.artifacts.run import LengthSummary, ManifestSummary
from opprof.errors import InputError, IntegrityError, SchemaError
from opprof.workload.arrival import parse_arrival
from opprof.workload.parameters import check_pattern, check_tokens
from opprof.workload.privacy import private_folder
from opprof.workload.scan import bounded_lines
from opprof.workload.summary import summarize, summarize_lengths
from opprof.workload.tokenizer import TokenCounter
from opprof.workload.write import LineWriter, Written, write_manifest

ALGORITHM = "opprof-private/1"
_BATCH_ROWS = 64
_BATCH_BYTES = 4 << 20

_text = msgspec.json.Decoder(str)


class _SourceRow(msgspec.Struct):
    """What is read of a source line; whatever else it holds stays there."""

    sampling_u: float
    input_length: Annotated[int, Meta(ge=0)]
    output_length: Annotated[int, Meta(ge=0)]
    prompt: Raw = Raw()
    messages: Raw = Raw()


_row = msgspec.json.Decoder(_SourceRow)


@dataclass(frozen=True)
class PrivateSpec:
    """The selection and its checks; thresholds come from the protocol."""

    pattern: str
    sampling_u_max: float
    max_input_tokens: int
    output_cap: int
    arrival: str
    tokenizer_exact_min: float
    """Least fraction of rows whose token count equals the source's ``input_length``."""
    tokenizer_error_max_tokens: int
    """Largest difference of any row."""
    expect_sha256: str | None = None
    """Of the source's bytes."""
    expect_rows: int | None = None
    """Lines of the source, selected or not."""

    def check(self) -> None:
        """Raise :class:`InputError` for a value outside its domain."""
        check_pattern(self.pattern)
        parse_arrival(self.arrival)
        check_tokens(self.max_input_tokens, flag="--max-input-tokens")
        check_tokens(self.output_cap, flag="--output-cap")
        if not 0 <= self.sampling_u_max <= 1:
            raise InputError(f"--sampling-u-max {self.sampling_u_max} is outside 0 … 1")
        expected = self.expect_sha256
        if expected is not None and not _is_sha256(expected):
            raise InputError("--expect-sha256 takes 64 hex digits")
        if self.expect_rows is not None and self.expect_rows < 1:
            raise InputError(f"--expect-rows {self.expect_rows} is below 1")


@dataclass(frozen=True)
class Parity:
    """How the pinned tokenizer's counts compare with the lengths that the source observed."""

    rows: int
    exact: int
    within_limit: int
    """Rows that differ, but not by more than the limit."""
    beyond_limit: int
    max_error_tokens: int

    def reasons(self, *, exact_min: float, error_max_tokens: int) -> list[str]:
        """Return why the precheck fails, with the counts; empty when it passes."""
        reasons = []
        if self.exact < exact_min * self.rows:
            reasons.append(
                f"{self.exact} of {self.rows} rows have the exact length, {exact_min:.2%} must"
            )
        if self.beyond_limit:
            reasons.append(
                f"{self.beyond_limit} of {self.rows} rows differ by more than"
                f" {error_max_tokens} tokens (largest difference {self.max_error_tokens})"
            )
        return reasons


@dataclass
class _Progress:
    """What the single pass over the source has found so far."""

    rows: int = 0
    observed: array[int] = field(default_factory=lambda: array("q"))
    counted: array[int] = field(default_factory=lambda: array("q"))
    sha256: str = ""


@dataclass(frozen=True)
class _Selected:
    prompt: bytes
    """JSON string literal, as in the source."""
    text: str
    input_length: int
    output_tokens: int


def materialize_trace(
    spec: PrivateSpec,
    source: Path,
    count_tokens: TokenCounter,
    tokenizer_sha256: str,
    out: Path,
    *,
    provenance: dict[str, Any] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ManifestSummary:
    """Write a private manifest (mode 0600, in a folder of mode 0700) and return its summary.

    A line holds the prompt to the letter, ``min(observed, cap)`` output tokens, and the prompt
    tokens that the pinned tokenizer counts, for that is what the server must report; they equal
    the observed length but for the few rows that the parity rule allows. The order is kept.

    Args:
        spec: selection, cap and thresholds.
        source: JSONL with ``sampling_u``, ``input_length``, ``output_length`` and ``prompt``.
        count_tokens: the pinned tokenizer.
        tokenizer_sha256: of its ``tokenizer.json``.
        out: final name of the manifest.
        provenance: added to the summary's ``generator``.
        on_progress: called with the rows read and the rows selected so far.

    Raises:
        InputError: an unusable flag, folder or source line, a source with another hash or number
            of rows, or nothing selected.
        IntegrityError: the tokenizer parity precheck fails.
        StateConflict: ``out`` exists with other contents.
        EnvironmentFailure: the folder cannot be written or the disk is full.
    """
    spec.check()
    target = private_folder(out.parent) / out.name
    progress = _Progress()

    def fill(writer: LineWriter) -> None:
        for batch in _batches(_select(spec, source, progress)):
            counts = count_tokens([row.text for row in batch])
            progress.observed.extend(row.input_length for row in batch)
            progress.counted.extend(counts)
            # A count of zero cannot be a request; parity reports it, for the source said more.
            expected = [max(1, count) for count in counts]
            writer.append([r.prompt for r in batch], expected, [r.output_tokens for r in batch])
            if on_progress is not None:
                on_progress(progress.rows, len(progress.counted))
        _check_source(spec, source, progress)

    def describe(written: Written) -> ManifestSummary:
        parity = measure_parity(
            progress.observed, progress.counted, limit=spec.tokenizer_error_max_tokens
        )
        _check_parity(spec, source, parity)
        return _summarize(spec, written, progress, parity, tokenizer_sha256, provenance)

    return write_manifest(
        target,
        key="prompt",
        pattern=spec.pattern,
        arrival=spec.arrival,
        private=True,
        fill=fill,
        describe=describe,
    )


def measure_parity(observed: array[int], counted: array[int], *, limit: int) -> Parity:
    """Compare observed and counted lengths, row by row."""
    errors = [abs(a - b) for a, b in zip(observed, counted, strict=True)]
    return Parity(
        rows=len(errors),
        exact=sum(error == 0 for error in errors),
        within_limit=sum(0 < error <= limit for error in errors),
        beyond_limit=sum(error > limit for error in errors),
        max_error_tokens=max(errors, default=0),
    )


def _select(spec: PrivateSpec, source: Path, progress: _Progress) -> Iterator[_Selected]:
    """Yield the selected rows in the source's order, hashing and counting all of it."""
    digest = sha256()
    try:
        stream = source.open("rb")
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=source) from error
    with stream:
        for number, line in bounded_lines(stream, source):
            digest.update(line)
            progress.rows = number
            row = _decode_row(line, source, number)
            if row.sampling_u <= spec.sampling_u_max and row.input_length <= spec.max_input_tokens:
                yield _selected(row, spec, source, number)
    progress.sha256 = digest.hexdigest()


def _decode_row(line: bytes, source: Path, number: int) -> _SourceRow:
    try:
        row = _row.decode(line)
    except msgspec.ValidationError as error:
        raise SchemaError(f"no source row: {error}", path=source, line=number) from None
    except msgspec.DecodeError as error:
        cut = "" if line.endswith(b"\n") else "the line is cut short: "
        raise InputError(f"{cut}{error}", path=source, line=number) from None
    except RecursionError:
        raise InputError("nested too deeply", path=source, line=number) from None
    if not 0 <= row.sampling_u <= 1:
        raise InputError("sampling_u is outside 0 … 1", path=source, line=number)
    first = bytes(row.prompt).lstrip()[:1]
    if first != b'"':
        form = "messages" if first == b"[" or bytes(row.messages) else "no text"
        raise SchemaError(
            f"prompt is not a string ({form}): a chat template would rewrite the prompt, and"
            " prompts are kept to the letter",
            path=source,
            line=number,
        )
    return row


def _selected(row: _SourceRow, spec: PrivateSpec, source: Path, number: int) -> _Selected:
    if row.input_length < 1 or row.output_length < 1:
        reason = f"input_length {row.input_length}, output_length {row.output_length}: below 1"
        raise InputError(reason, path=source, line=number)
    literal = bytes(row.prompt).strip()
    try:
        text = _text.decode(literal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError("the prompt is no valid text", path=source, line=number) from None
    if not text:
        raise InputError("the prompt is empty: no server takes it", path=source, line=number)
    return _Selected(literal, text, row.input_length, min(row.output_length, spec.output_cap))


def _batches(rows: Iterator[_Selected]) -> Iterator[list[_Selected]]:
    batch: list[_Selected] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row.prompt)
        if len(batch) == _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_source(spec: PrivateSpec, source: Path, progress: _Progress) -> None:
    if spec.expect_sha256 not in (None, progress.sha256):
        raise InputError(
            f"the source has SHA-256 {progress.sha256}, expected is {spec.expect_sha256}",
            path=source,
        )
    if spec.expect_rows not in (None, progress.rows):
        reason = f"the source has {progress.rows} rows, expected are {spec.expect_rows}"
        raise InputError(reason, path=source)
    if not progress.observed:
        raise InputError(f"none of {progress.rows} rows is selected", path=source)


def _check_parity(spec: PrivateSpec, source: Path, parity: Parity) -> None:
    reasons = parity.reasons(
        exact_min=spec.tokenizer_exact_min, error_max_tokens=spec.tokenizer_error_max_tokens
    )
    if reasons:
        reason = f"tokenizer parity precheck failed: {'; '.join(reasons)}; nothing was written"
        raise IntegrityError(reason, path=source)


def _summarize(
    spec: PrivateSpec,
    written: Written,
    progress: _Progress,
    parity: Parity,
    tokenizer_sha256: str,
    provenance: dict[str, Any] | None,
) -> ManifestSummary:
    observed: LengthSummary = summarize_lengths(progress.observed)
    return summarize(
        sha256=written.sha256,
        pattern=spec.pattern,
        arrival=spec.arrival,
        prefix="natural",
        input_tokens=written.input_tokens,
        output_tokens=written.output_tokens,
        generator={
            "algorithm": ALGORITHM,
            "kind": "private-trace",
            "sampling_u_max": spec.sampling_u_max,
            "max_input_tokens": spec.max_input_tokens,
            "output_cap": spec.output_cap,
            "source_sha256": progress.sha256,
            "source_rows": progress.rows,
            "selected_rows": parity.rows,
            "observed_input_tokens": msgspec.to_builtins(observed),
            "tokenizer_exact_rows": parity.exact,
            "tokenizer_inexact_rows": parity.within_limit,
            "tokenizer_error_max_tokens": parity.max_error_tokens,
            **(provenance or {}),
        },
        tokenizer_sha256=tokenizer_sha256,
        private=True,
    )


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
