"""One trace file to a :class:`WindowTrace`, and the conditions under which it is a valid window.

Acceptance (protocol, "Layer 2"; contract, section 3): gzip and JSON are whole, the profiler steps
are exactly the expected ones, each once, each holds one execute annotation of category
``user_annotation`` and there are no others, there are kernels, and none of them is lost. A file
that cannot be read raises; every other failure is a reason in the result.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from opprof.trace.annotations import (
    Counts,
    is_step_annotation,
    parse_execute,
    parse_opprof_step,
    parse_profiler_step,
)
from opprof.trace.attribution import DROPPED, Attribution, StepClock, StepSums, Sum, attribute
from opprof.trace.columns import Annotation, TraceColumns, read_columns
from opprof.trace.model import (
    ExecuteAnnotation,
    Reason,
    Tally,
    TraceLimits,
    TraceStep,
    WindowTrace,
)
from opprof.trace.scan import JSON_BUDGET_BYTES
from opprof.trace.scopes import call_scopes
from opprof.trace.streams import Overruns, busy_ns, overruns, streams_of

_T = TypeVar("_T")


def read_window(
    path: Path,
    *,
    expected_steps: Sequence[int],
    limits: TraceLimits,
    layer_scope: re.Pattern[str] | None = None,
    json_budget_bytes: int | None = JSON_BUDGET_BYTES,
) -> WindowTrace:
    """Read one rank's trace of one profiler window.

    ``expected_steps``: the active ``ProfilerStep`` numbers (protocol: 2 to 9). ``layer_scope``:
    finds the op names whose occurrences number the layers (``TraceStep.layers``).
    ``json_budget_bytes``: how much ``python_function`` text is parsed as JSON before searching it
    suffices, None for all (see :mod:`opprof.trace.scan`); no figure depends on it.

    Raises:
        InputError: the file is unreadable, damaged or no trace; with the byte in the inflated text.
        SchemaError: an event has an impossible field (negative or missing duration and the like).
    """
    columns = read_columns(
        path, is_step_annotation=is_step_annotation, json_budget_bytes=json_budget_bytes
    )
    plan = _Plan(columns.annotations, expected_steps)
    clock = StepClock([(step.start_ns, step.end_ns) for step in plan.active])
    scopes = call_scopes(columns.ops, columns.calls, layer_scope=layer_scope, step_of=clock)
    sums = attribute(columns, clock, len(plan.active), scopes, limits)
    kept = _indices(sums.place, lambda place: place != DROPPED)
    overrun = overruns(columns.kernels, kept, limits.overrun_factor, latest_ns=sums.latest_ns)
    active = _indices(sums.place, lambda place: place >= 0)
    return WindowTrace(
        path=str(path),
        rank=columns.rank,
        names=list(sums.names),
        scopes=scopes.chains.names(),
        steps=[
            _step(number, step, execute, step_sums)
            for number, step, execute, step_sums in zip(
                plan.numbers, plan.active, plan.executes, sums.steps, strict=True
            )
        ],
        profiler_steps=plan.all_numbers,
        annotations=plan.execute_count,
        opprof_annotations=plan.opprof_count,
        all_kernels=_tally(sums.all_kernels),
        prologue=_tally(sums.prologue),
        outside=_tally(sums.outside),
        unlaunched=_tally(sums.unlaunched),
        dropped=_tally(sums.dropped),
        overruns=overrun.kernels,
        copies_outside=_tally(sums.copies_outside),
        lost_launches=sums.lost_launches,
        busy_ns=busy_ns([(columns.kernels, active), *sums.active_copies]),
        kernel_busy_ns=busy_ns([(columns.kernels, active)]),
        streams=streams_of(columns.kernels, active),
        gpu_annotations=columns.gpu_annotations,
        base_wall_ns=columns.base_wall_ns,
        inflated_bytes=columns.inflated_bytes,
        gzip_members=columns.gzip_members,
        searched_bytes=columns.searched_bytes,
        reasons=[*plan.reasons(), *_kernel_reasons(sums, overrun)],
        warnings=list(_warnings(sums, columns)),
    )


def _indices(places: Sequence[int], wanted: Callable[[int], bool]) -> Sequence[int]:
    """Return the indices of the wanted places: a range, not a list, where all are."""
    if all(map(wanted, set(places))):
        return range(len(places))
    return array("I", (index for index, place in enumerate(places) if wanted(place)))


class _Plan:
    """The active steps of a trace and their annotations."""

    def __init__(self, annotations: Sequence[Annotation], expected: Sequence[int]) -> None:
        self.expected = list(expected)
        in_order = sorted(annotations, key=lambda annotation: annotation.start_ns)
        steps = _parsed(in_order, parse_profiler_step)
        self.all_numbers = [number for number, _ in steps]
        self.active: list[Annotation] = []
        self.numbers: list[int] = []
        self.overlapping: list[int] = []
        for number, step in steps:
            if number not in self.expected:
                continue
            if self.active and step.start_ns < self.active[-1].end_ns:
                self.overlapping.append(number)
                continue
            self.active.append(step)
            self.numbers.append(number)
        executes = _parsed(in_order, parse_execute)
        marks = _parsed(in_order, parse_opprof_step)
        self.execute_count = len(executes)
        self.opprof_count = len(marks)
        self.inside: list[int] = []
        self.executes: list[ExecuteAnnotation | None] = []
        for step in self.active:
            found = [(c, e) for c, e in executes if step.start_ns <= e.start_ns < step.end_ns]
            self.inside.append(len(found))
            self.executes.append(_execute(*found[0], marks) if len(found) == 1 else None)

    def reasons(self) -> Iterator[Reason]:
        """Yield what the steps and annotations fail."""
        seen = Counter(self.all_numbers)
        missing = [number for number in self.expected if number not in seen]
        extra = sorted(number for number in seen if number not in self.expected)
        twice = sorted(number for number in seen if seen[number] > 1)
        want = _numbers(self.expected)
        if missing:
            text = f"ProfilerStep {_numbers(missing)} missing; exactly {want} are expected"
            yield Reason("profiler_step_missing", text)
        if extra:
            text = f"ProfilerStep {_numbers(extra)} besides the expected {want}"
            yield Reason("profiler_step_unexpected", text)
        if twice:
            yield Reason(
                "profiler_step_duplicate", f"ProfilerStep {_numbers(twice)} more than once"
            )
        if self.overlapping:
            text = (
                f"ProfilerStep {_numbers(self.overlapping)} begins before the step before it ends"
            )
            yield Reason("profiler_step_overlap", text)
        count = len(self.expected)
        if self.execute_count != count:
            text = f"{self.execute_count} execute annotations, exactly {count} are expected"
            yield Reason("execute_annotation_count", text)
        off = [n for n, inside in zip(self.numbers, self.inside, strict=True) if inside != 1]
        if off:
            text = f"ProfilerStep {_numbers(off)} does not hold exactly one execute annotation"
            yield Reason("execute_annotation_place", text)


def _parsed(
    annotations: Sequence[Annotation], parse: Callable[[str], _T | None]
) -> list[tuple[_T, Annotation]]:
    pairs = ((parse(annotation.name), annotation) for annotation in annotations)
    return [(value, annotation) for value, annotation in pairs if value is not None]


def _execute(
    counts: Counts, annotation: Annotation, marks: Sequence[tuple[int, Annotation]]
) -> ExecuteAnnotation:
    inside = [i for i, m in marks if annotation.start_ns <= m.start_ns < annotation.end_ns]
    return ExecuteAnnotation(
        name=annotation.name,
        start_ns=annotation.start_ns,
        end_ns=annotation.end_ns,
        counts=counts,
        opprof_step=inside[0] if len(inside) == 1 else None,
    )


def _kernel_reasons(sums: Attribution, overrun: Overruns) -> Iterator[Reason]:
    kernels = sums.all_kernels.events
    opaque = sum(step.opaque.events for step in sums.steps)
    untimed = sum(step.opaque_untimed for step in sums.steps)
    if not kernels:
        yield Reason("no_kernels", "the trace holds no kernel event")
    elif not opaque and not any(step.kernel.events for step in sums.steps):
        text = f"none of the {kernels} kernels was launched in an active step"
        yield Reason("no_active_kernels", text)
    lost, uncorrelated = sums.unlaunched, sums.uncorrelated
    if uncorrelated.events:
        text = f"{uncorrelated.events} kernels ({_ms(uncorrelated.ns)}) carry no correlation id"
        yield Reason("kernel_without_correlation", text)
    if lost.events > uncorrelated.events:
        text = (
            f"{lost.events - uncorrelated.events} kernels ({_ms(lost.ns - uncorrelated.ns)}) "
            "without a launch event run after launched ones: records were lost"
        )
        yield Reason("kernel_without_launch", text)
    if sums.calls.ambiguous:
        text = f"{len(sums.calls.ambiguous)} correlation ids belong to calls of different steps"
        yield Reason("correlation_ambiguous", text)
    if overrun.kernels:
        text = (
            f"{overrun.kernels} kernels run far into the next launch on their stream or past the "
            f"trace's end, the worst by {_ms(overrun.worst_ns)} ({overrun.worst_name[:80]})"
        )
        yield Reason("kernel_overrun", text)
    if untimed:
        text = (
            f"{untimed} of {opaque} graph launches without child kernels have no device time: "
            "shares cannot be computed"
        )
        yield Reason("opaque_replay_untimed", text)


def _warnings(sums: Attribution, columns: TraceColumns) -> Iterator[Reason]:
    if sums.dropped.events:
        text = (
            f"{sums.dropped.events} kernels ({_ms(sums.dropped.ns)}) begin far before their own "
            "launch or far outside the trace: dropped"
        )
        yield Reason("kernel_time_impossible", text)
    if sums.dropped_copies.events:
        text = (
            f"{sums.dropped_copies.events} copies or memsets ({_ms(sums.dropped_copies.ns)}) begin "
            "far before their own launch or far outside the trace: dropped"
        )
        yield Reason("copy_time_impossible", text)
    if sums.lost_launches:
        text = f"{sums.lost_launches} launches of active steps have no kernel record"
        yield Reason("launch_without_kernel", text)
    if sums.late_prologue:
        text = (
            f"{sums.late_prologue} prologue kernels have correlation ids as large as recorded "
            "launches: launch records may be missing at the head"
        )
        yield Reason("prologue_correlation", text)
    if sums.outside.events:
        text = (
            f"{sums.outside.events} kernels ({_ms(sums.outside.ns)}) were launched outside "
            "every active step: left out"
        )
        yield Reason("kernel_outside", text)
    if columns.gzip_members > 1:
        text = f"the gzip file has {columns.gzip_members} members; all were read"
        yield Reason("gzip_members", text)


def _step(
    number: int, step: Annotation, execute: ExecuteAnnotation | None, sums: StepSums
) -> TraceStep:
    return TraceStep(
        number=number,
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        execute=execute,
        kernels={key: _tally(value) for key, value in sums.kernels.items()},
        layers=sums.layers,
        kernel=_tally(sums.kernel),
        last_kernel_end_ns=sums.last_end_ns,
        launch=_tally(sums.launch),
        runtime=_tally(sums.runtime),
        memcpy=_tally(sums.memcpy),
        memset=_tally(sums.memset),
        opaque=_tally(sums.opaque),
        opaque_untimed=sums.opaque_untimed,
    )


def _tally(value: Sum) -> Tally:
    return Tally(value.events, value.ns)


def _numbers(values: Sequence[int]) -> str:
    values = list(values)
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}..{values[-1]}"
    return ", ".join(map(str, values[:12])) + (" …" if len(values) > 12 else "")


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"
