"""How much of a clean step the kernels take: the one place where both layers meet on the page.

The profiler slows the host, so its own steps cannot tell; kernel times are hardly touched by it.
Clean durations are of steps among their like (``Composition.step_duration_ms_among_like``): where a
step is submitted while another one is in flight, its launch holds back that one's completion, so an
eager step between replayed ones seems to last 2 ms, and the step before it 90 ms longer (seen on an
H200 as in the embedded engine).
"""

from __future__ import annotations

import statistics

from msgspec import Struct

from opprof.artifacts.composition import Composition
from opprof.report.inputs import RunView
from opprof.report.palette import mode_order
from opprof.words import plural


class Fill(Struct, frozen=True):
    """Kernel time per active step and clean step duration of one graph mode on one rank."""

    mode: str
    rank: int
    reported: bool
    """True where the mode has enough active steps (``ModeTime.reported``)."""
    kernel_ms: tuple[float, ...]
    """Per active step of the accepted windows, ascending; never empty."""
    clean_steps: int
    """Clean steps of this mode among their like."""
    clean_median_ms: float | None
    """null without one."""
    why_not: str = ""
    """Why there is no median."""

    @property
    def kernel_median_ms(self) -> float:
        """Median kernel time of an active step."""
        return statistics.median(self.kernel_ms)

    @property
    def fraction(self) -> float | None:
        """Median kernel time over median clean step duration; above 1 where batches differ."""
        return self.kernel_median_ms / self.clean_median_ms if self.clean_median_ms else None


def fills(run: RunView) -> list[Fill]:
    """Return one row a graph mode and rank, in drawing order."""
    union = None if run.layer1 is None else run.layer1.clean_union
    found: dict[tuple[str, int], list[int]] = {}
    reported: set[tuple[str, int]] = set()
    for window in run.windows:
        if not window.accepted:
            continue
        for step in window.steps:
            if step.mode is not None:
                found.setdefault((step.mode, window.rank), []).append(step.kernel_ns)
        reported.update((name, window.rank) for name, m in window.by_mode.items() if m.reported)
    rows = []
    for mode in mode_order({mode for mode, _ in found}):
        clean = None if union is None else union.step_duration_ms_among_like.get(mode)
        for rank in sorted(rank for name, rank in found if name == mode):
            rows.append(
                Fill(
                    mode=mode,
                    rank=rank,
                    reported=(mode, rank) in reported,
                    kernel_ms=tuple(ns / 1e6 for ns in sorted(found[mode, rank])),
                    clean_steps=0 if clean is None else clean.n,
                    clean_median_ms=None if clean is None else clean.p50,
                    why_not=_why_not(union, mode),
                )
            )
    return rows


def _why_not(union: Composition | None, mode: str) -> str:
    """Say why a mode has no clean steps among their like; empty where it has."""
    if union is None:
        return "there is no clean interval"
    clean = union.step_duration_ms_among_like.get(mode)
    if clean is None:
        return "the analysis is of before this figure; analyse the run again"
    if clean.n:
        return ""
    steps = union.mode_steps.get(mode, 0)
    if not steps:
        return f"no clean step ran in {mode}"
    return f"none of {plural(steps, f'clean {mode} step')} ran between two of its mode"
