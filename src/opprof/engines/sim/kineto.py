"""Profiler windows as Kineto traces, one a rank, in libkineto's own layout.

What the analysis needs of a real trace is here by the same rules: ``ProfilerStep#n`` and
``execute_*`` annotations, launches with correlation ids below their op scopes, one graph launch
with all its kernels, kernels of the step before the window without a launch (prologue), ranks that
wait for each other in collectives. What a real trace has besides (python frames, flow arrows) is
not. Every file says that it is simulated, in its head and in its device's name.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opprof._version import __version__
from opprof.engines.sim import kernels
from opprof.engines.sim.cost import CostFile
from opprof.engines.sim.kernels import KernelRow
from opprof.engines.sim.profiler import CapturedStep, EmptyStep, WindowCapture

MS = 1_000_000
_STREAM = 7
_PID = 4242
_HEAD_NS = 300_000
"""From a step's submission to its first launch."""
_LAUNCH_NS = 4_000
"""CPU time of one launch call."""
_MARGIN_NS = 10_000
"""Between the edges of nested annotations."""
_LAYER_SIGMA = 0.03
"""Spread of a kernel between layers (logarithm)."""
_SKEW_MS = 0.05
"""Mean lateness of a rank at a step's collectives, on the GPU alone."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """One launch call: its kernels with their durations, or a graph's."""

    scopes: tuple[str, ...]
    is_graph: bool
    kernels: list[tuple[str, int]]


class TraceWriter:
    """Writes a window's traces into vLLM's folder under vLLM's names."""

    def __init__(
        self,
        folder: Path,
        cost: CostFile,
        ranks: int,
        *,
        seed: int,
        wall_ns: Callable[[], int],
        mono_ns: Callable[[], int],
        step_annotations: bool,
    ) -> None:
        self._folder = folder
        self._cost = cost
        self._ranks = ranks
        self._random = random.Random(seed)
        self._wall_ns = wall_ns
        self._mono_ns = mono_ns
        self._annotate = step_annotations
        self._correlation = 100_000

    def write(self, window: WindowCapture) -> list[Path]:
        """Write one gzipped trace a rank and return their paths."""
        self._folder.mkdir(parents=True, exist_ok=True)
        wall_ns = self._wall_ns()
        slow = self._random.randrange(self._ranks)
        late = [self._waits(step, slow) for step in window.steps]
        paths = []
        for rank in range(self._ranks):
            name = f"dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{wall_ns}.pt.trace.json.gz"
            waits = [each[rank] for each in late]
            path = self._folder / name
            path.write_bytes(
                gzip.compress(self._text(window, rank, waits).encode(), compresslevel=1, mtime=0)
            )
            paths.append(path)
        return paths

    def _waits(self, step: CapturedStep, slow: int) -> list[float]:
        """Return how long each rank waits in the step's collectives, milliseconds.

        Where launches are slower than kernels the rank that launches last (``slow``, the same
        through a window, as seen) idles between its kernels, and all others wait for it.
        """
        if self._ranks == 1:
            return [0.0]
        skews = [self._random.expovariate(1.0 / _SKEW_MS) for _ in range(self._ranks)]
        waits = [max(skews) - skew for skew in skews]
        busy = sum(step.parts_ms.values()) + max(waits) + self._cost.host.gap_ms[step.dispatch.mode]
        idle = (step.end_ns - step.start_ns) / MS - busy
        if idle > 0:
            waits = [wait + (idle if rank != slow else 0.0) for rank, wait in enumerate(waits)]
        return waits

    def _text(self, window: WindowCapture, rank: int, waits: list[float]) -> str:
        events: list[str] = []
        first = window.first_number
        active = [step for step in window.steps if step.number >= first]
        opens_ns = min(
            [step.submit_ns for step in active] + [step.submit_ns for step in window.empty]
        )
        free_ns = 0
        for step, wait in zip(window.steps, waits, strict=True):
            launches = self._launches(step, wait)
            if step.number < first:
                free_ns = self._prologue(events, step, launches, opens_ns)
            else:
                free_ns = self._step(events, step, launches, free_ns)
        self._annotations(events, window, active)
        return self._document(rank, events)

    # ------------------------------------------------------------------ steps

    def _launches(self, step: CapturedStep, wait: float) -> list[_Launch]:
        """Return the step's launch calls in order, with the durations of their kernels.

        Ranks differ by ``wait`` (milliseconds in collectives) and by each kernel's spread.
        """
        mode = step.dispatch.mode
        parts = dict(step.parts_ms)
        if self._ranks > 1:
            parts["collective"] += wait
        launches = [
            _Launch(row.scopes, False, [self._kernel(row, parts, mode, 1)])
            for row in kernels.BEFORE
        ]
        launches += self._layers(parts, mode, opaque=step.opaque)
        launches += [
            _Launch(row.scopes, False, [self._kernel(row, parts, mode, 1)]) for row in kernels.AFTER
        ]
        return launches

    def _layers(self, parts: dict[str, float], mode: str, *, opaque: bool) -> list[_Launch]:
        layers = self._cost.layers
        if mode == "NONE":
            rows = [*kernels.BEFORE_ATTENTION, *kernels.ATTENTION, *kernels.AFTER_ATTENTION]
            return [
                _Launch(row.scopes, False, [self._kernel(row, parts, mode, layers)])
                for _ in range(layers)
                for row in self._used(rows, parts, mode)
            ]
        before = self._used(kernels.BEFORE_ATTENTION, parts, mode)
        middle = self._used(kernels.ATTENTION, parts, mode)
        after = self._used(kernels.AFTER_ATTENTION, parts, mode)
        launches, graph = [], []
        for _ in range(layers):
            graph += [self._kernel(row, parts, mode, layers) for row in before]
            if mode == "PIECEWISE":
                launches.append(_graph(graph, opaque=opaque))
                graph = []
                for row in middle:
                    kernel = self._kernel(row, parts, mode, layers)
                    launches.append(_Launch(row.scopes, False, [kernel]))
            else:
                graph += [self._kernel(row, parts, mode, layers) for row in middle]
            graph += [self._kernel(row, parts, mode, layers) for row in after]
        launches.append(_graph(graph, opaque=opaque))
        return launches

    def _used(
        self, rows: tuple[KernelRow, ...] | list[KernelRow], parts: dict[str, float], mode: str
    ) -> list[KernelRow]:
        return [row for row in rows if _fraction(row, mode) > 0 and parts[row.part] > 0]

    def _kernel(
        self, row: KernelRow, parts: dict[str, float], mode: str, layers: int
    ) -> tuple[str, int]:
        ns = parts[row.part] * _fraction(row, mode) * MS / layers
        return row.name, max(1, round(ns * (1.0 + self._random.gauss(0.0, _LAYER_SIGMA))))

    def _prologue(
        self, events: list[str], step: CapturedStep, launches: list[_Launch], opens_ns: int
    ) -> int:
        """Write the kernels that still ran when recording began: they have no launch."""
        at_ns, gap_ns = step.start_ns, _gap_ns(step, launches)
        for launch in launches:
            self._correlation += 1
            for name, ns in launch.kernels:
                if at_ns >= opens_ns:
                    events.append(_kernel_event(name, at_ns, ns, self._correlation))
                at_ns += ns + gap_ns
        self._correlation += 1000
        return at_ns

    def _step(
        self, events: list[str], step: CapturedStep, launches: list[_Launch], free_ns: int
    ) -> int:
        """Write one active step; return when its last kernel ended."""
        cpu_ns = step.submit_ns + _HEAD_NS
        spacing = max(_LAUNCH_NS + 1000, (step.launched_ns - cpu_ns) // (len(launches) + 1))
        scopes = _Scopes(events)
        gap_ns = _gap_ns(step, launches)
        at_ns = max(step.start_ns, free_ns)
        for launch in launches:
            self._correlation += 1
            scopes.move(launch.scopes, cpu_ns)
            events.append(_call_event(launch.is_graph, cpu_ns, self._correlation))
            at_ns = max(at_ns, cpu_ns + _LAUNCH_NS)
            for name, ns in launch.kernels:
                events.append(_kernel_event(name, at_ns, ns, self._correlation))
                at_ns += ns + gap_ns
            cpu_ns += spacing
        scopes.move((), cpu_ns)
        return at_ns

    def _annotations(
        self, events: list[str], window: WindowCapture, active: list[CapturedStep]
    ) -> None:
        steps: list[CapturedStep | EmptyStep] = sorted(
            [*active, *window.empty], key=lambda step: step.submit_ns
        )
        ends = [step.submit_ns for step in steps[1:]] + [window.end_ns]
        for step, end_ns in zip(steps, ends, strict=True):
            start_ns = step.submit_ns
            name = f"ProfilerStep#{step.number}"
            events.append(_span("user_annotation", name, start_ns, end_ns - start_ns))
            # Each lies inside the one before it, also where the next step was submitted at once.
            margin_ns = min(_MARGIN_NS, (end_ns - start_ns) // 8)
            launched_ns = getattr(step, "launched_ns", start_ns + _HEAD_NS)
            launched_ns = max(start_ns + 5 * margin_ns, min(launched_ns, end_ns - 2 * margin_ns))
            execute_ns = start_ns + 2 * margin_ns
            length_ns = launched_ns - execute_ns
            events.append(_span("user_annotation", _execute(step), execute_ns, length_ns))
            if self._annotate:
                index = step.step if isinstance(step, EmptyStep) else step.batch.step
                mark = f"opprof_step_{index}"
                mark_ns, mark_length_ns = execute_ns + margin_ns, length_ns - 2 * margin_ns
                events.append(_span("user_annotation", mark, mark_ns, mark_length_ns))

    def _document(self, rank: int, events: list[str]) -> str:
        head = {
            "schemaVersion": 1,
            "opprofSimulated": f"opprof-sim {__version__}: no measurement",
            "deviceProperties": [{"id": rank, "name": f"simulated {self._cost.device}"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self._ranks},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self._wall_ns() - self._mono_ns(),
        }
        lines = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in head.items())
        body = ",\n".join(events)
        return f'\n  {{\n{lines}  "traceEvents": [\n{body}\n  ],\n  "traceName": "simulated"\n}}\n'


class _Scopes:
    """Opens and closes the CPU ops around launches."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._open: list[tuple[str, int]] = []

    def move(self, scopes: tuple[str, ...], at_ns: int) -> None:
        """Make ``scopes`` the open chain at ``at_ns``; each level opens a little earlier."""
        same = 0
        for (name, _), wanted in zip(self._open, scopes, strict=False):
            if name != wanted:
                break
            same += 1
        while len(self._open) > same:
            name, start_ns = self._open.pop()
            end_ns = at_ns - 600 + 20 * (10 - len(self._open))
            end_ns = min(end_ns, at_ns - 400)
            self._events.append(_span("cpu_op", name, start_ns, end_ns - start_ns))
        for depth, name in enumerate(scopes[same:], start=same):
            self._open.append((name, at_ns - 300 + 20 * depth))


def _gap_ns(step: CapturedStep, launches: list[_Launch]) -> int:
    """Return the pause after each kernel with which the step ends when it did."""
    times = [ns for launch in launches for _, ns in launch.kernels]
    return max(0, step.end_ns - step.start_ns - sum(times)) // (len(times) + 1)


def _graph(rows: list[tuple[str, int]], *, opaque: bool) -> _Launch:
    if opaque:
        rows = [(kernels.GRAPH_RECORD, sum(ns for _, ns in rows))]
    return _Launch((), True, rows)


def _fraction(row: KernelRow, mode: str) -> float:
    return row.eager if mode == "NONE" else row.graph


def _execute(step: CapturedStep | EmptyStep) -> str:
    if isinstance(step, EmptyStep):
        return "execute_context_0(0)_generation_0(0)"
    batch = step.batch
    prefill = [chunk.tokens for chunk in batch.chunks if not chunk.resumed]
    decodes, tokens = batch.requests - len(prefill), batch.total_tokens - sum(prefill)
    return f"execute_context_{len(prefill)}({sum(prefill)})_generation_{decodes}({tokens})"


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _span(category: str, name: str, start_ns: int, length_ns: int) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {_PID}, '
        f'"tid": {_PID},\n    "ts": {_us(start_ns)}, "dur": {_us(max(length_ns, 0))},\n'
        f'    "args": {{\n      "External id": 1\n    }}\n  }}'
    )


def _call_event(is_graph: bool, start_ns: int, correlation: int) -> str:
    name, cbid = ("cudaGraphLaunch", 311) if is_graph else ("cudaLaunchKernel", 211)
    return (
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": {_PID}, '
        f'"tid": {_PID},\n    "ts": {_us(start_ns)}, "dur": {_us(_LAUNCH_NS)},\n'
        f'    "args": {{\n      "cbid": {cbid}, "correlation": {correlation}\n    }}\n  }}'
    )


def _kernel_event(name: str, start_ns: int, length_ns: int, correlation: int) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {_STREAM},\n'
        f'    "ts": {_us(start_ns)}, "dur": {_us(length_ns)},\n'
        f'    "args": {{\n      "device": 0, "stream": {_STREAM}, "correlation": {correlation}\n'
        f"    }}\n  }}"
    )
