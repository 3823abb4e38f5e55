"""Active steps of a run's windows as arrays: what the permutation test and the bounds read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opprof.artifacts.kernels import Kernels, WindowFamilies
from opprof.statistics.permutation import WindowSteps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]


def window_steps(
    kernels: Kernels, version: str, families: Sequence[str]
) -> list[WindowSteps] | str:
    """Return one entry a window under a mapping table, or the reason why there is none.

    A step's total holds everything of the step, opaque replays included. A step that launched no
    kernel (the scheduler had nothing to run) has no share and is left out, as it adds nothing to
    its window's. A tensor-parallel run has no single series of steps: ranks are never summed, so it
    has none here.
    """
    import numpy as np

    windows: Sequence[WindowFamilies]
    if kernels.mapping_version == version:
        windows = kernels.windows
    elif version in kernels.alternatives:
        windows = kernels.alternatives[version].windows
    else:
        return f"no results under mapping table {version}"
    if not windows:
        return "no profiler window"
    if len({window.rank for window in windows}) > 1:
        return "several ranks: descriptive only"
    found = []
    for window in sorted(windows, key=lambda item: item.window):
        steps = [step for step in window.step_family_ns if sum(step.values()) > 0]
        if not steps:
            return f"window {window.window} has no step times under mapping table {version}"
        rows = [[step.get(family, 0) for family in families] for step in steps]
        totals = [sum(step.values()) for step in steps]
        found.append(WindowSteps(np.asarray(rows, np.float64), np.asarray(totals, np.float64)))
    return found


def layer_variations(kernels: Kernels) -> list[Float64]:
    """Return each accepted window's ``CV_moe`` of its active steps, rank after rank."""
    import numpy as np

    groups = []
    for window in kernels.windows:
        values = [step.moe_layer_cv for step in window.steps if step.moe_layer_cv is not None]
        if window.accepted and values:
            groups.append(np.asarray(values, np.float64))
    return groups


def lead_correlation(windows: Sequence[WindowSteps], a: int, b: int) -> float | None:
    """Correlation of neighbouring steps' leads of family ``a`` over ``b``, mean over windows.

    The usual lag-one estimate around each window's own mean, which is biased downwards by about
    ``(1 + 3 r) / n`` for so few steps (Kendall 1954). None where no window's lead varies.
    """
    found = []
    for window in windows:
        lead = (window.family_ns[:, a] - window.family_ns[:, b]) / window.total_ns
        centred = lead - lead.mean()
        spread = float((centred**2).sum())
        if spread > 0:
            found.append(float((centred[1:] * centred[:-1]).sum()) / spread)
    return sum(found) / len(found) if found else None
