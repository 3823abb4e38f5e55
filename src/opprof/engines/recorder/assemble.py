"""Raw records to :class:`opprof.artifacts.layer1.Step` lines, in the order of submission. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import add

from opprof.artifacts.layer1 import Graph, Step
from opprof.engines.recorder.records import (
    CHECK,
    CHECK_BODY,
    COMPLETE,
    PROFILE,
    PROFILE_BODY,
    SUBMIT,
    Completed,
    Submitted,
    decode_completed,
    decode_submitted,
)
from opprof.errors import IntegrityError

MAX_OPEN_STEPS = 4096
"""Steps in flight at once; an engine has a handful, so more means that completions are lost."""


class Assembler:
    """Pairs submissions with completions and builds the step lines."""

    def __init__(self) -> None:
        self._open: dict[int, Submitted] = {}
        self._done: dict[int, Completed] = {}
        self._windows: deque[list[int | None]] = deque(maxlen=64)

    @property
    def open_steps(self) -> int:
        """Steps submitted and not yet emitted."""
        return len(self._open)

    def feed(self, kind: int, payload: bytes) -> Iterator[Step]:
        """Take one raw record; yield the steps that became whole, in submission order.

        Raises:
            IntegrityError: a completion without its submission, too many open steps, or the
                engine's own prefill/decode split differs from the recorded one.
        """
        if kind == SUBMIT:
            submitted = decode_submitted(payload)
            self._open[submitted.step] = submitted
            if len(self._open) > MAX_OPEN_STEPS:
                raise IntegrityError(f"{len(self._open)} steps are open: completions are missing")
        elif kind == COMPLETE:
            completed = decode_completed(payload)
            if completed.step not in self._open:
                raise IntegrityError(f"step {completed.step} completed but was never submitted")
            self._done[completed.step] = completed
            yield from self._ready()
        elif kind == CHECK:
            self._check(payload)
        elif kind == PROFILE:
            is_start, at_ns = PROFILE_BODY.unpack(payload[: PROFILE_BODY.size])
            self._mark_window(bool(is_start), at_ns)

    def _ready(self) -> Iterator[Step]:
        while self._open:
            step = next(iter(self._open))
            completed = self._done.pop(step, None)
            if completed is None:
                return
            submitted = self._open.pop(step)
            profiled = self._profiled(submitted.submit_mono_ns, completed.complete_mono_ns)
            yield build_step(submitted, completed, profiled=profiled)

    def _mark_window(self, is_start: bool, at_ns: int) -> None:
        current = self._windows[-1] if self._windows else None
        is_open = current is not None and current[1] is None
        if is_start and not is_open:
            self._windows.append([at_ns, None])
        elif not is_start and is_open and current is not None:
            current[1] = at_ns

    def _profiled(self, start_ns: int, end_ns: int) -> bool:
        return any(
            first is not None and end_ns > first and (last is None or start_ns < last)
            for first, last in self._windows
        )

    def _check(self, payload: bytes) -> None:
        step, *engine = CHECK_BODY.unpack(payload[: CHECK_BODY.size])
        submitted = self._open.get(step)
        if submitted is not None and list(split(submitted)) != engine:
            raise IntegrityError(
                f"step {step}: the engine splits it as {engine} (prefill requests, tokens, decode "
                f"requests, tokens), the recorder as {list(split(submitted))}"
            )


def split(submitted: Submitted) -> tuple[int, int, int, int]:
    """Return prefill requests and tokens, decode requests and tokens, split as vLLM does."""
    chunks = prefill_chunks(submitted)
    tokens = sum(chunks)
    return (
        len(chunks),
        tokens,
        len(submitted.context) - len(chunks),
        sum(submitted.scheduled) - tokens,
    )


def prefill_chunks(submitted: Submitted) -> list[int]:
    """Return the tokens of each prefill chunk, cached requests first."""
    return list(compress(submitted.scheduled, submitted.context))


def context_histogram(lengths: Sequence[int]) -> dict[str, int]:
    """Return counts by upper bound, a power of two as text; "1" holds 0 and 1 (contract, 2).

    ``lengths``: int[requests], tokens. Bounds are in rising order, empty bins are left out.
    """
    # The bound of n > 1 is 2 ** bit_length(n - 1); 0 and 1 share exponent 0.
    below = [length - 1 if length else 0 for length in lengths]
    exponents = Counter(map(int.bit_length, below))
    return {str(1 << exponent): exponents[exponent] for exponent in sorted(exponents)}


def build_step(submitted: Submitted, completed: Completed, *, profiled: bool = False) -> Step:
    """Build the line of one step; a context length counts the tokens of this step.

    Raises:
        IntegrityError: the requests' tokens do not sum to the step's total.
    """
    prefill_requests, prefill_tokens, decode_requests, decode_tokens = split(submitted)
    if prefill_tokens + decode_tokens != submitted.total_tokens:
        raise IntegrityError(
            f"step {submitted.step}: requests sum to {prefill_tokens + decode_tokens} tokens, the "
            f"schedule says {submitted.total_tokens}"
        )
    lengths = list(map(add, submitted.computed, submitted.scheduled))
    ran = submitted.total_tokens > 0
    return Step(
        step=submitted.step,
        submit_mono_ns=submitted.submit_mono_ns,
        complete_mono_ns=completed.complete_mono_ns,
        model_executed=ran,
        scheduled_requests=len(lengths),
        prefill_requests=prefill_requests,
        prefill_tokens=prefill_tokens,
        decode_requests=decode_requests,
        decode_tokens=decode_tokens,
        prefill_chunks=prefill_chunks(submitted),
        context_len_hist=context_histogram(lengths),
        context_len_sum=sum(lengths),
        context_len_max=max(lengths, default=0),
        waiting=submitted.waiting,
        running=submitted.running,
        deferred=submitted.deferred,
        preemptions=submitted.preemptions,
        kv_usage=min(max(submitted.kv_usage, 0.0), 1.0),
        prefix_queries=submitted.prefix_queries,
        prefix_hits=submitted.prefix_hits,
        graph=_graph(completed) if ran else None,
        resumed_requests=submitted.resumed_requests,
        recomputed_tokens=submitted.recomputed_tokens,
        profiled=profiled,
    )


def _graph(completed: Completed) -> Graph | None:
    if completed.mode is None:
        return None
    replayed = completed.mode != "NONE"
    return Graph(
        mode=completed.mode,
        hit=replayed,
        unpadded_tokens=completed.unpadded_tokens,
        bucket_tokens=completed.padded_tokens if replayed else 0,
    )
