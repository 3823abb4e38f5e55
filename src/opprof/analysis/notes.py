"""Plain sentences for a reader: where two mapping tables tell different stories of one run."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.kernels import Window, WindowFamilies


def mapping_notes(windows: Sequence[Window]) -> list[str]:
    """Name each window whose greatest family depends on the mapping table."""
    notes = []
    for window in windows:
        top = _top(window)
        for version, other in window.alternatives.items():
            if top is None or _top(other) in (None, top):
                continue
            notes.append(
                f"window {window.window} rank {window.rank}: {top} takes most kernel time under "
                f"{window.mapping_version} ({window.families[top].share:.1%}), "
                f"{_top(other)} under {version} ({other.families[_top(other) or top].share:.1%})"
            )
    return notes


def _top(window: WindowFamilies) -> str | None:
    """The family with the greatest time; None without kernel time. Ties go to the mapping order."""
    if not window.kernel_ns:
        return None
    return max(window.families, key=lambda name: window.families[name].ns)
