"""A window's active steps to their Layer-1 records (protocol, "Layer 2"; contract, section 3).

With ``opprof_step_<i>`` annotations the join is exact and only checked. Without them the window is
a run of consecutive Layer-1 steps that were submitted inside the profile interval and whose
requests and tokens equal the execute annotations', step for step. Where several runs fit the
counts, time decides: the trace's clock and the engine's differ by a constant, so for the true run
the differences

- execute annotation's start minus submission, and
- completion minus the end of the step's last kernel

are each nearly constant, and a run's residual is their mean absolute deviation from the median.
Among the runs whose counts fit, the submissions decide. Completions do not: in pure decode the
engine sees a step's end a whole step late or early, evenly, and the wrong neighbour can be the more
even one (seen: 57 µs against 205 µs for the true run). The second best run's residual over the
best's is the margin; below the protocol's minimum the join is ambiguous, and an ambiguous join is
invalid. So is one whose counts fit while a run of other counts fits the times, by the better of
both differences, that much better. On 23 real traces the submissions were right or refused (with
two ranks the workers start unevenly), never wrong.

Where the stream ties CLOCK_MONOTONIC to the wall clock (``clock_offset_ns``), cause and effect
decide too: no step is executed before it was submitted, none is complete before its last kernel
has ended. By how much a run breaks that is added to its residual: nothing for the true run, most of
a step for its neighbours (seen: 15 ms and more). A tie that is far off makes every join ambiguous;
the two clocks must agree to well under half a step (seen: 0.14 ms or better).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from opprof.trace.annotations import Counts
from opprof.trace.model import ExecuteAnnotation, Reason, TraceStep, WindowTrace

ANNOTATION = "annotation"
ORDER = "order"


class JoinStep(Protocol):
    """What the join reads of a Layer-1 step; ``opprof.artifacts.layer1.Step`` has it all."""

    @property
    def step(self) -> int: ...
    @property
    def submit_mono_ns(self) -> int: ...
    @property
    def complete_mono_ns(self) -> int: ...
    @property
    def prefill_requests(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_requests(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...


class Join(Struct, frozen=True, forbid_unknown_fields=True):
    """Which Layer-1 step each active profiler step was; a verdict with its numbers."""

    method: str | None
    """``annotation`` or ``order``; None when the join is invalid."""
    steps: list[int] | None
    """Layer-1 step of each active profiler step, in order; None when the join is invalid."""
    candidates: int
    """Runs of consecutive steps inside the profile interval whose counts fit."""
    residual_ns: int | None
    """Mean absolute deviation of the best run's times, plus what it breaks of cause and effect
    where the clocks are tied; None for an exact join."""
    clock: str | None
    """Which time the residual is of: ``submit`` or ``complete``."""
    margin: float | None
    """Second best residual over the best, among runs whose counts fit; None where only one fits."""
    margin_any: float | None
    """The same among all runs of the interval, whatever their counts; None where there is no other
    run, or for an exact join."""
    reasons: list[Reason]

    @property
    def valid(self) -> bool:
        """True when every active step has its record."""
        return self.steps is not None


class _Run(NamedTuple):
    """One run of consecutive Layer-1 steps, by the position of its first."""

    submit_ns: int
    """Residual of the submissions alone: tells apart the runs whose counts fit."""
    residual_ns: int
    """The smaller of both residuals: tells whether a run of other counts fits the times better."""
    clock: str
    position: int
    fits: bool


def join_window(
    window: WindowTrace,
    steps: Sequence[JoinStep],
    *,
    start_mono_ns: int,
    end_mono_ns: int,
    margin_min: float,
    clock_offset_ns: int | None = None,
) -> Join:
    """Join one rank's window to the Layer-1 stream.

    ``steps``: the stream's steps in order. ``start_mono_ns``, ``end_mono_ns``: the profile
    interval, from before the start call to after the stop call. ``margin_min``: protocol,
    ``join_margin_min``. ``clock_offset_ns``: wall clock minus CLOCK_MONOTONIC, from the sidecar
    (``wall_time_ns - mono_time_ns``); None where the stream does not tie them.
    """
    executes = [step.execute for step in window.steps]
    whole = [execute for execute in executes if execute is not None]
    if not whole or len(whole) < len(executes):
        text = f"{len(executes) - len(whole)} of {len(executes)} active steps have no annotation"
        return _invalid("join_no_annotation", text)
    submits = _Submits(steps)
    first = bisect_left(submits, start_mono_ns)
    last = bisect_left(submits, end_mono_ns)
    if window.opprof_annotations:
        return _exact(whole, window.steps, steps, first, last)
    to_mono_ns = None
    if clock_offset_ns is not None and window.base_wall_ns is not None:
        to_mono_ns = window.base_wall_ns - clock_offset_ns
    return _by_order(whole, window.steps, steps[first:last], margin_min, to_mono_ns)


class _Submits(Sequence[int]):
    """The submission times, without a copy of a million of them."""

    def __init__(self, steps: Sequence[JoinStep]) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> int:  # type: ignore[override]  # no slices are asked for
        return self._steps[index].submit_mono_ns


def ranks_agree(joins: Sequence[Join]) -> Reason | None:
    """Return why the ranks of one window cannot all be right; None when they agree."""
    found = {tuple(join.steps) for join in joins if join.steps is not None}
    if len(found) <= 1:
        return None
    spans = ", ".join(f"{run[0]}..{run[-1]}" for run in sorted(found))
    return Reason("join_ranks_disagree", f"ranks of one window join to different steps: {spans}")


# ------------------------------------------------------------------------- exact


def _exact(
    executes: Sequence[ExecuteAnnotation],
    trace_steps: Sequence[TraceStep],
    steps: Sequence[JoinStep],
    first: int,
    last: int,
) -> Join:
    found = [execute.opprof_step for execute in executes]
    known = [step for step in found if step is not None]
    if len(known) < len(found):
        text = f"{len(found) - len(known)} execute annotations hold no single opprof_step"
        return _invalid("join_annotation_missing", text)
    if known != list(range(known[0], known[0] + len(known))):
        return _invalid("join_not_consecutive", f"opprof_step {known} are not consecutive")
    inside = {step.step: step for step in steps[first:last]}
    absent = [number for number in known if number not in inside]
    if absent:
        text = f"opprof_step {absent} are no Layer-1 steps submitted inside the profile interval"
        return _invalid("join_step_absent", text)
    for number, execute, trace_step in zip(known, executes, trace_steps, strict=True):
        if not _fits(inside[number], execute.counts):
            return _invalid("join_totals_disagree", _disagreement(trace_step, inside[number]))
    return Join(
        method=ANNOTATION,
        steps=known,
        candidates=1,
        residual_ns=None,
        clock=None,
        margin=None,
        margin_any=None,
        reasons=[],
    )


# ------------------------------------------------------------------------- by order and time


def _by_order(
    executes: Sequence[ExecuteAnnotation],
    trace_steps: Sequence[TraceStep],
    steps: Sequence[JoinStep],
    margin_min: float,
    to_mono_ns: int | None,
) -> Join:
    count = len(executes)
    if len(steps) < count:
        text = f"{len(steps)} Layer-1 steps inside the profile interval, {count} are needed"
        return _invalid("join_no_candidate", text)
    runs = [
        _run(position, steps[position : position + count], executes, trace_steps, to_mono_ns)
        for position in range(len(steps) - count + 1)
    ]
    runs.sort(key=lambda run: (run.residual_ns, run.position))
    fitting = sorted((run for run in runs if run.fits), key=lambda run: run.submit_ns)
    if not fitting:
        return _no_candidate(runs[0], steps, trace_steps)
    best = fitting[0]
    margin = _ratio(fitting[1].submit_ns, best.submit_ns) if len(fitting) > 1 else None
    others = [run for run in runs if not run.fits]
    margin_any = _ratio(others[0].residual_ns, best.residual_ns) if others else None
    reasons = []
    if margin is not None and margin < margin_min:
        text = (
            f"{len(fitting)} runs of Layer-1 steps fit the counts; the best two (from step "
            f"{steps[best.position].step} and {steps[fitting[1].position].step}) differ in time by "
            f"a factor of {margin:.2f}, at least {margin_min:g} is needed"
        )
        reasons.append(Reason("join_ambiguous", text))
    elif margin_any is not None and margin_any * margin_min < 1:
        text = (
            f"the counts fit the steps from {steps[best.position].step} on, but the times fit "
            f"those from {steps[others[0].position].step} on better by {1 / margin_any:.1f} times"
        )
        reasons.append(Reason("join_totals_disagree", text))
    numbers = [step.step for step in steps[best.position : best.position + count]]
    return Join(
        method=None if reasons else ORDER,
        steps=None if reasons else numbers,
        candidates=len(fitting),
        residual_ns=best.residual_ns,
        clock=best.clock,
        margin=margin,
        margin_any=margin_any,
        reasons=reasons,
    )


def _run(
    position: int,
    steps: Sequence[JoinStep],
    executes: Sequence[ExecuteAnnotation],
    trace_steps: Sequence[TraceStep],
    to_mono_ns: int | None,
) -> _Run:
    pairs = list(zip(steps, executes, strict=True))
    submit, clock = _scatter([e.start_ns - s.submit_mono_ns for s, e in pairs]), "submit"
    residual = submit
    ends = [step.last_kernel_end_ns for step in trace_steps]
    waits = [s.complete_mono_ns - e for s, e in zip(steps, ends, strict=True) if e is not None]
    if len(waits) == len(steps) and _scatter(waits) < residual:
        residual, clock = _scatter(waits), "complete"
    if to_mono_ns is not None:
        early = [s.submit_mono_ns - e.start_ns - to_mono_ns for s, e in pairs]
        broken = max(0, *early, *(to_mono_ns - wait for wait in waits))
        submit, residual = submit + broken, residual + broken
    return _Run(submit, residual, clock, position, all(_fits(s, e.counts) for s, e in pairs))


def _scatter(values: Sequence[int]) -> int:
    """Return the mean absolute deviation from the (lower) median, in whole nanoseconds."""
    median = sorted(values)[(len(values) - 1) // 2]
    return sum(abs(value - median) for value in values) // len(values)


def _ratio(other_ns: int, best_ns: int) -> float:
    return max(other_ns, 1) / max(best_ns, 1)


def _fits(step: JoinStep, counts: Counts) -> bool:
    return (
        step.prefill_requests == counts.prefill_requests
        and step.prefill_tokens == counts.prefill_tokens
        and step.decode_requests == counts.decode_requests
        and step.decode_tokens == counts.decode_tokens
    )


def _no_candidate(
    nearest: _Run, steps: Sequence[JoinStep], trace_steps: Sequence[TraceStep]
) -> Join:
    """Say where the run that fits best in time disagrees in its counts."""
    run = steps[nearest.position : nearest.position + len(trace_steps)]
    wrong = [
        (trace_step, step)
        for trace_step, step in zip(trace_steps, run, strict=True)
        if trace_step.execute is not None and not _fits(step, trace_step.execute.counts)
    ]
    text = (
        f"no {len(trace_steps)} consecutive Layer-1 steps inside the profile interval have the "
        f"annotations' requests and tokens; the nearest in time differ in {len(wrong)} steps: "
        f"{_disagreement(*wrong[0])}"
    )
    return _invalid("join_totals_disagree", text)


def _disagreement(trace_step: TraceStep, step: JoinStep) -> str:
    said = trace_step.execute.name if trace_step.execute is not None else "no annotation"
    return (
        f"ProfilerStep#{trace_step.number} is annotated {said}, Layer-1 step {step.step} has "
        f"{step.prefill_requests}({step.prefill_tokens}) prefill and "
        f"{step.decode_requests}({step.decode_tokens}) decode"
    )


def _invalid(code: str, text: str) -> Join:
    return Join(
        method=None,
        steps=None,
        candidates=0,
        residual_ns=None,
        clock=None,
        margin=None,
        margin_any=None,
        reasons=[Reason(code, text)],
    )
