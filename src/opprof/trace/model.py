"""What one trace says, as values: :class:`WindowTrace` and its parts.

All times are integer nanoseconds on the trace's own clock, all sums are summed durations. Ranks are
separate windows and are never added up (invariant K4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from opprof.trace.annotations import Counts

KernelKey = tuple[int, int]
"""``(name_id, scope_id)``: index into ``WindowTrace.names`` and ``WindowTrace.scopes``."""

LayerKey = tuple[int, int, int]
"""``(name_id, scope_id, layer)``: a kernel key below the ``layer``-th layer scope of its step."""

NO_SCOPE = 0
"""The scope id of ``()``: kernels of graph replays and kernels launched below no op."""


class TraceLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What cannot be true of a kernel record; the values come from the protocol."""

    early_ns: int
    """A kernel that starts more than this before its own launch is dropped and counted."""
    horizon_ns: int
    """A record that begins more than this outside the trace's CPU events is dropped and counted; a
    kernel that begins inside and ends beyond has an impossible duration: the window is invalid."""
    overrun_factor: float
    """A kernel that runs into the next launch's kernel on its stream by more than this many times
    that kernel's duration (at least 1 µs) has an impossible duration: the window is invalid."""


class Reason(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a window must not be believed, or (as a warning) what its reader should know."""

    code: str
    """Stable."""
    text: str
    """One sentence with the numbers."""

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Tally(Struct, frozen=True, forbid_unknown_fields=True):
    """A number of events and the sum of their durations."""

    events: int = 0
    ns: int = 0


class ExecuteAnnotation(Struct, frozen=True, forbid_unknown_fields=True):
    """One ``execute_context_R(T)_generation_R(T)``."""

    name: str
    start_ns: int
    end_ns: int
    counts: Counts
    opprof_step: int | None
    """Layer-1 index of the ``opprof_step_<i>`` inside it; None where the trace has none."""


class TraceStep(Struct, frozen=True, forbid_unknown_fields=True):
    """One active profiler step: what was launched inside ``ProfilerStep#number`` on the CPU."""

    number: int
    start_ns: int
    end_ns: int
    execute: ExecuteAnnotation | None
    """The step's annotation; None when it has none or more than one."""
    kernels: dict[KernelKey, Tally]
    layers: dict[LayerKey, int]
    """Nanoseconds of the kernels below a layer scope."""
    kernel: Tally
    last_kernel_end_ns: int | None
    """When the last of the step's kernels ended on the device; None without kernels."""
    launch: Tally
    """Launch calls (``cudaLaunchKernel`` and its kin, graph launches) on the CPU."""
    runtime: Tally
    """All CUDA runtime and driver calls on the CPU, launches included; nested calls count each."""
    memcpy: Tally
    memset: Tally
    opaque: Tally
    """Graph launches without any child activity; ``ns`` is what a graph-level record says of them
    (0 where nothing does)."""
    opaque_untimed: int
    """Opaque launches of which no record says how long they ran."""


class WindowTrace(Struct, frozen=True, forbid_unknown_fields=True):
    """One profiler window on one rank."""

    path: str
    rank: int | None
    """As the trace says it; None where it does not."""
    names: list[str]
    """Distinct kernel names."""
    scopes: list[tuple[str, ...]]
    """Distinct scope chains, outermost first; ``scopes[0] == ()``."""
    steps: list[TraceStep]
    """The active steps in time order."""
    profiler_steps: list[int]
    """Numbers of every ``ProfilerStep`` in the trace, in time order."""
    annotations: int
    """Execute annotations of the trace (category ``user_annotation`` only)."""
    opprof_annotations: int
    """``opprof_step_<i>`` annotations of the trace."""
    all_kernels: Tally
    """Every kernel record of the trace, dropped ones included."""
    prologue: Tally
    """Kernels of earlier steps that were still running (contract, section 3)."""
    outside: Tally
    """Kernels launched outside every active step."""
    unlaunched: Tally
    """Kernels without a launch that are no prologue: lost records."""
    dropped: Tally
    """Kernel records with impossible times (FIELD-CASES 3)."""
    overruns: int
    """Kernels whose duration runs far into the next launch's kernel (FIELD-CASES 8)."""
    copies_outside: Tally
    """Copies and memsets launched outside the active steps or without a launch."""
    lost_launches: int
    """Launch calls in the active steps, graph launches apart, without any activity."""
    busy_ns: int
    """Union over streams of the active steps' kernels, copies and memsets: device-busy time."""
    kernel_busy_ns: int
    """The same union of the kernels alone."""
    streams: int
    """Streams that the active steps' kernels ran on."""
    gpu_annotations: int
    base_wall_ns: int | None
    """Wall clock of the trace's zero (Kineto's ``baseTimeNanoseconds``)."""
    inflated_bytes: int
    gzip_members: int
    searched_bytes: int
    """``python_function`` text that was searched and not parsed as JSON."""
    reasons: list[Reason]
    """Empty for an accepted window."""
    warnings: list[Reason]

    @property
    def accepted(self) -> bool:
        """True when nothing speaks against the window's integrity."""
        return not self.reasons

    @property
    def kernel(self) -> Tally:
        """Kernels of the active steps: the denominator of every share, opaque replays included."""
        return total(tally for step in self.steps for tally in (step.kernel, step.opaque))

    def families(self, classify: Callable[[str, tuple[str, ...]], str]) -> list[dict[str, Tally]]:
        """Return the tallies by family of each step; opaque replays are in no family.

        ``classify``: kernel name and scope chain to family; asked once for each distinct pair.
        """
        family: dict[KernelKey, str] = {}
        result = []
        for step in self.steps:
            sums: dict[str, list[int]] = {}
            for key, tally in step.kernels.items():
                if key not in family:
                    family[key] = classify(self.names[key[0]], self.scopes[key[1]])
                entry = sums.setdefault(family[key], [0, 0])
                entry[0] += tally.events
                entry[1] += tally.ns
            result.append({name: Tally(*entry) for name, entry in sums.items()})
        return result


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    events = ns = 0
    for tally in tallies:
        events += tally.events
        ns += tally.ns
    return Tally(events, ns)
