"""Operator families: by window and rank, over ranks, by graph mode, attention, device time."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.kernels import DeviceTime, FamilyTime, WindowFamilies
from opprof.report.blocks import Cell, Table
from opprof.report.fill import fills
from opprof.report.formats import NULL, milliseconds, percent
from opprof.report.inputs import ReportInput, RunView, flags_of
from opprof.report.palette import family, family_order, mode_order
from opprof.report.tables.cells import RUN, names, numbers, run_cell, share_cell, text, value_cell
from opprof.words import plural


def _families(report: ReportInput) -> list[str]:
    return family_order(
        {
            name
            for run in report.runs
            for window in run.windows
            for name, time in window.families.items()
            if time.ns
        }
    )


def _verdict(window: WindowFamilies) -> Cell:
    if not window.accepted:
        return Cell("✗ rejected", tone="fail", title="; ".join(window.reasons))
    if window.classifiable is False:
        return Cell("✗ not classifiable", tone="fail", title="; ".join(window.reasons))
    if window.classifiable is None:
        return Cell("accepted", tone="ne", sub="? classifiable", title="no protocol bound")
    return Cell("✓ accepted", tone="pass")


def by_window(ident: str, report: ReportInput, version: str | None) -> Table:
    """Return shares of every window and rank, under the deciding table or under ``version``."""
    listed = _families(report)
    rows = []
    for run in report.runs:
        windows: Sequence[WindowFamilies]
        windows = run.windows if version is None else run.windows_under(version)
        for window in windows:
            rows.append(
                (
                    run_cell(run),
                    text(str(window.window)),
                    text(str(window.rank)),
                    *(_family_cell(window.families.get(name), name) for name in listed),
                    value_cell(window.kernel_ns / 1e6),
                    value_cell(window.kernel_events),
                    Cell(percent(window.classified_fraction), sort=window.classified_fraction),
                    _verdict(window),
                )
            )
    return Table(
        ident=ident,
        caption="Share of summed kernel time by operator family",
        columns=(
            RUN,
            *numbers("window", "rank", *(family(name).label for name in listed)),
            *numbers("kernel time|ms", "kernels", "classified"),
            *names("window verdict"),
        ),
        rows=tuple(rows),
        notes=(
            "Kernel time is summed over streams: shares compose, they are not parts of wall time.",
        ),
        empty="No run has a profile window.",
    )


def _family_cell(time: FamilyTime | None, name: str) -> Cell:
    if time is None:
        return share_cell(0.0, family(name).colour)
    title = f"{milliseconds(time.ns)} ms in {plural(time.events, 'kernel')}"
    return share_cell(time.share, family(name).colour, title)


def over_ranks(ident: str, report: ReportInput) -> Table | None:
    """Return each family's mean and range over the ranks of a window, never their sum."""
    listed = _families(report)
    rows = []
    for run in report.runs:
        for number_ in sorted({window.window for window in run.windows}):
            ranks = [window for window in run.windows if window.window == number_]
            if len(ranks) < 2:
                continue
            cells = [_spread(ranks, name) for name in listed]
            rows.append((run_cell(run), text(str(number_)), text(str(len(ranks))), *cells))
    if not rows:
        return None
    return Table(
        ident=ident,
        caption="Tensor-parallel ranks: mean share with its range",
        columns=(RUN, *numbers("window", "ranks", *(family(name).label for name in listed))),
        rows=tuple(rows),
        notes=(
            "Ranks are never summed. A collective's kernel on one rank lasts while it waits for "
            "the other, so a wide range there speaks of imbalance and not of transfer time.",
        ),
    )


def _spread(ranks: Sequence[WindowFamilies], name: str) -> Cell:
    zero = FamilyTime(ns=0, share=0.0, events=0)
    shares = [window.families.get(name, zero).share for window in ranks]
    mean = sum(shares) / len(shares)
    low, high = f"{min(shares) * 100:.1f}", percent(max(shares))
    return Cell(percent(mean), sub=f"{low}–{high}", sort=mean)


def by_mode(ident: str, report: ReportInput) -> Table:
    """Return shares by graph mode; a mode with too few active steps is named and not shown."""
    listed = _families(report)
    rows = []
    for run in report.runs:
        for mode in mode_order({mode for w in run.windows for mode in w.by_mode}):
            for window in run.windows:
                part = window.by_mode.get(mode)
                if part is None:
                    continue
                shares = [
                    _family_cell(part.families.get(name), name)
                    if part.reported
                    else Cell("withheld", tone="muted", title="too few active steps in this mode")
                    for name in listed
                ]
                rows.append(
                    (
                        run_cell(run),
                        text(mode),
                        text(str(window.window)),
                        text(str(window.rank)),
                        value_cell(part.active_steps),
                        *shares,
                        value_cell(part.kernel_ns / 1e6),
                    )
                )
    return Table(
        ident=ident,
        caption="Share of kernel time by graph mode",
        columns=(
            RUN,
            *names("mode"),
            *numbers("window", "rank", "active steps", *(family(name).label for name in listed)),
            *numbers("kernel time|ms"),
        ),
        rows=tuple(rows),
        notes=(
            "A mode is reported apart when it has at least the protocol's number of active steps "
            "(eight) over the two windows of the load point; otherwise its shares are withheld.",
        ),
        empty="No run has a profile window.",
    )


def attention(ident: str, report: ReportInput) -> Table:
    """Return attention time by the serving phase of the joined step."""
    rows = []
    for run in report.runs:
        for window in run.windows:
            split = window.attention
            parts = (split.prefill, split.decode, split.mixed)
            cells = [
                Cell(
                    percent(ns / window.kernel_ns if window.kernel_ns else None),
                    sub=f"{milliseconds(ns)} ms",
                    sort=float(ns),
                )
                for ns in parts
            ]
            total = sum(parts) / window.kernel_ns if window.kernel_ns else None
            rows.append(
                (
                    run_cell(run),
                    text(str(window.window)),
                    text(str(window.rank)),
                    *cells,
                    share_cell(total, family("attention").colour),
                )
            )
    return Table(
        ident=ident,
        caption="Attention by the step that launched it",
        columns=(
            RUN,
            *numbers("window", "rank", "prefill-only steps", "decode-only steps", "mixed steps"),
            *numbers("attention, total"),
        ),
        rows=tuple(rows),
        notes=(
            "Mixed steps are never split in proportion to tokens. Shares are of all kernel time.",
        ),
        empty="No run has a profile window.",
    )


_DEVICE = (
    ("launch calls|ms|CPU time of kernel and graph launches", "launch_cpu_ns", "launch_events"),
    ("CUDA runtime|ms|all runtime and driver calls", "cuda_runtime_ns", "cuda_runtime_events"),
    ("memcpy|ms", "memcpy_ns", "memcpy_events"),
    ("memset|ms", "memset_ns", "memset_events"),
)


def device(ident: str, report: ReportInput) -> Table:
    """Return times that stand beside composition shares and never inside them."""
    rows = []
    for run in report.runs:
        for window in run.windows:
            cells = _device_cells(window.device, window.kernel_ns)
            left_out = (
                Cell(
                    milliseconds(window.prologue_ns), sub=plural(window.prologue_events, "kernel")
                ),
                Cell(milliseconds(window.outside_ns), sub=plural(window.outside_events, "kernel")),
                value_cell(window.dropped_events),
            )
            rows.append(
                (run_cell(run), text(str(window.window)), text(str(window.rank)), *cells, *left_out)
            )
    return Table(
        ident=ident,
        caption="Device and host time of the active steps, beside the shares",
        columns=(
            RUN,
            *numbers("window", "rank", *(label for label, _, _ in _DEVICE)),
            *numbers("device busy|ms|union over streams of kernels, copies and memsets", "streams"),
            *numbers("prologue|ms|kernels of earlier steps still running", "outside|ms"),
            *numbers("dropped records"),
        ),
        rows=tuple(rows),
        notes=(
            "Prologue: kernels launched before the first active step; outside: launched between "
            "or after the active steps. Neither is in any share.",
            "Overlap: summed kernel time over their union; 1.000 when no two kernels overlap.",
        ),
        empty="No run has a profile window.",
    )


def _device_cells(times: DeviceTime | None, kernel_ns: int) -> list[Cell]:
    if times is None:
        reason = "this window's artefact has no device times"
        return [Cell(NULL, tone="muted", title=reason)] * (len(_DEVICE) + 2)
    cells = []
    for _, ns, events in _DEVICE:
        cells.append(
            Cell(milliseconds(getattr(times, ns)), sub=f"{getattr(times, events):,} calls")
        )
    union_ns = times.kernel_union_ns
    overlap = f"overlap ×{kernel_ns / union_ns:.3f}" if union_ns else ""
    cells.append(Cell(milliseconds(times.busy_union_ns), sub=overlap))
    cells.append(value_cell(times.streams))
    return cells


def fill(ident: str, report: ReportInput) -> Table:
    """Return kernel time per active step beside the duration of clean steps of the same mode."""
    rows = [
        (
            run_cell(run),
            text(row.mode),
            text(str(row.rank)),
            value_cell(len(row.kernel_ms)),
            value_cell(row.kernel_ms[0]),
            value_cell(row.kernel_median_ms),
            value_cell(row.kernel_ms[-1]),
            value_cell(row.clean_steps),
            value_cell(row.clean_median_ms, row.why_not),
            Cell(percent(row.fraction), sort=row.fraction, tone="" if row.reported else "muted"),
        )
        for run in report.runs
        for row in fills(run)
    ]
    return Table(
        ident=ident,
        caption="Does the GPU fill the step? Kernel time per active step, clean step duration",
        columns=(
            RUN,
            *names("graph mode"),
            *numbers("rank", "active steps", "kernels min|ms", "kernels median|ms"),
            *numbers("kernels max|ms", "clean steps", "clean step median|ms", "of it in kernels"),
        ),
        rows=tuple(rows),
        notes=(
            "Near 100 %, kernels fill a step and the GPU limits it; far below, the host does. The "
            "two medians are of different steps: where their batches differ (see the composition), "
            "the ratio says nothing. Grey: too few active steps in this mode to report it apart.",
            "Clean steps are those between two of their own graph mode: with steps in flight the "
            "launch of an eager step holds back the completion of the step before, which then "
            "counts that time.",
        ),
        empty="No accepted window has joined steps.",
    )


def unmatched(ident: str, run: RunView) -> Table:
    """Return the top kernel names that no rule matched, by duration, for every window of a run."""
    rows = []
    for window in run.windows:
        for kernel in window.top_unmatched:
            share = kernel.ns / window.kernel_ns if window.kernel_ns else None
            rows.append(
                (
                    text(str(window.window)),
                    text(str(window.rank)),
                    Cell(kernel.name, mono=True, sub=", ".join(kernel.scopes)),
                    value_cell(kernel.ns / 1e6),
                    value_cell(kernel.events),
                    share_cell(share, family("other").colour),
                )
            )
    return Table(
        ident=ident,
        caption="Unmatched kernels, longest first",
        columns=(
            *numbers("window", "rank"),
            *names("kernel name"),
            *numbers("time|ms", "kernels", "share of kernel time"),
        ),
        rows=tuple(rows),
        empty="Every kernel of this run matched a rule.",
        flags=flags_of(run),
    )
