"""Is the stream complete? Footer, sidecar and step lines against each other (A-P3-5).

Pure: the stream, the sidecar, the protocol's numbers and the signal time in, one
:class:`~opprof.artifacts.composition.StreamAccounting` out. Every cause of invalidity is a reason
``code: text`` with one of the codes of ``REASON_CODES``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opprof.artifacts.composition import StreamAccounting
from opprof.artifacts.layer1 import Footer, Sidecar
from opprof.artifacts.run import Timeline
from opprof.protocol.model import Layer1
from opprof.telemetry.stream import SidecarFile, Stream

if TYPE_CHECKING:
    from opprof.telemetry.columns import Int64

REASON_CODES = (
    "partial_last_line",
    "no_steps",
    "gap",
    "duplicate",
    "out_of_order",
    "sidecar_missing",
    "sidecar_invalid",
    "sidecar_not_final",
    "sidecar_disagrees",
    "footer_missing",
    "footer_not_final",
    "recording_ended_early",
    "encoded_imbalance",
    "dropped",
    "count_mismatch",
    "last_step_mismatch",
    "flush_interval_disagrees",
    "checkpoint_old",
    "signal_time_unknown",
    "checkpoint_rule_unbound",
)
"""Stable codes of :attr:`StreamAccounting.reasons`."""

UNPROVEN_CODES = ("signal_time_unknown", "checkpoint_rule_unbound")
"""Codes that say "could not be judged": the stream is not shown valid, and no fault was found."""

_FIRST_LINE_OF_STEPS = 2


def account(
    stream: Stream,
    sidecar: SidecarFile,
    *,
    rule: Layer1 | None,
    signal_wall_ns: int | None,
) -> StreamAccounting:
    """Judge the completeness of a stream.

    With an in-stream footer the final sidecar must agree with it in every counter. Without one the
    latest sidecar is authoritative: its counters must equal the step lines, and its age at
    ``signal_wall_ns`` (when the engine was told to end, on the wall clock of its checkpoints: see
    :func:`signal_on_stream_clock`) must be at most the flush interval,
    with ``rule.checkpoint_tolerance_ms`` reported apart. A writer that outlives the engine writes
    its last checkpoint after the signal: the age is negative, and nothing older is missing.

    ``rule`` is null when no protocol is bound; then the age of a checkpoint cannot be judged.
    """
    reasons = _step_faults(stream)
    if sidecar.fault is not None:
        reasons.append(sidecar.fault)
    age_ms: float | None = None
    tolerance_ms: float | None = None
    if stream.footer is not None:
        reasons += _clean_close_faults(stream, stream.footer, sidecar.sidecar)
    elif sidecar.sidecar is not None:
        found = sidecar.sidecar
        reasons += _counter_faults("sidecar", found, stream)
        if found.final:
            reasons.append("footer_missing: the sidecar is final, but the stream has no footer")
        else:
            age_ms = _age_ms(found, signal_wall_ns)
            reasons += _age_faults(age_ms, rule)
            tolerance_ms = _tolerance_used_ms(age_ms, rule)
    if sidecar.sidecar is not None:
        reasons += _interval_faults(stream, sidecar.sidecar)
    return _summary(stream, sidecar.sidecar, signal_wall_ns, age_ms, tolerance_ms, reasons)


def signal_on_stream_clock(
    signal_wall_ns: int | None, timeline: Timeline, sidecar: Sidecar | None
) -> int | None:
    """Return when the engine was told to end, on the wall clock that its checkpoints are told by.

    A controller's clock is that of its machine (``signal_wall_ns``, nanoseconds, None where no
    signal was recorded), and so is a real engine's. An embedded engine in virtual time has the
    client's clock, which stands still from the end of the timeline on, whatever time it is when
    somebody ends the process; the checkpoint ties that clock to the engine's wall clock.
    """
    if signal_wall_ns is None or not timeline.virtual:
        return signal_wall_ns
    if sidecar is None or sidecar.mono_time_ns is None or not timeline.intervals:
        return None
    stood_still_ns = max(interval.end_mono_ns for interval in timeline.intervals)
    return sidecar.wall_time_ns + stood_still_ns - sidecar.mono_time_ns


def _summary(
    stream: Stream,
    sidecar: Sidecar | None,
    signal_wall_ns: int | None,
    age_ms: float | None,
    tolerance_ms: float | None,
    reasons: list[str],
) -> StreamAccounting:
    steps = stream.columns.step
    counters: Footer | Sidecar | None = stream.footer or sidecar
    return StreamAccounting(
        stream=stream.path.name,
        step_lines=len(steps),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        footer_in_stream=stream.footer is not None,
        encoded_records=None if counters is None else counters.encoded_records,
        written_records=None if counters is None else counters.written_records,
        dropped_records=None if counters is None else counters.dropped_records,
        sidecar_final=None if sidecar is None else sidecar.final,
        checkpoint_wall_ns=None if sidecar is None else sidecar.wall_time_ns,
        signal_wall_ns=signal_wall_ns,
        checkpoint_age_ms=age_ms,
        flush_interval_s=stream.header.flush_interval_s,
        valid=not reasons,
        reasons=reasons,
        tolerance_used_ms=tolerance_ms,
        open_steps=None if counters is None else counters.open_steps,
    )


def _step_faults(stream: Stream) -> list[str]:
    """Torn line, and anything but 0, 1, 2 … in file order."""
    faults = []
    if stream.torn_line is not None:
        faults.append(
            f"partial_last_line: line {stream.torn_line} of {stream.path.name} "
            "is no whole JSON text"
        )
    if not len(stream.columns):
        faults.append("no_steps: the stream has no step line")
    return faults + step_order_faults(stream.columns.step)


def step_order_faults(steps: Int64) -> list[str]:
    """Name what breaks ``0, 1, 2 …``: ``gap``, ``duplicate``, ``out_of_order``, each at most once.

    ``steps``: int64[lines], step indices in file order. A gap counts the indices that are missing
    from 0 to the largest; a duplicate counts the lines beyond the first of each index; out of order
    are indices that come after a larger one without being duplicates.
    """
    import numpy as np

    if not len(steps) or bool((steps == np.arange(len(steps))).all()):
        return []
    faults = []
    unique, first_rows = np.unique(steps, return_index=True)
    missing = int(unique[-1]) + 1 - len(unique)
    if missing:
        holes = np.flatnonzero(unique != np.arange(len(unique)))
        expected = int(holes[0])
        row = int(first_rows[holes[0]])
        faults.append(
            f"gap: {missing} missing, the first is step {expected}: "
            f"line {row + _FIRST_LINE_OF_STEPS} holds step {int(steps[row])}"
        )
    repeated = np.ones(len(steps), np.bool_)
    repeated[first_rows] = False
    if repeated.any():
        row = int(np.flatnonzero(repeated)[0])
        faults.append(
            f"duplicate: {int(repeated.sum())} repeated, the first is step {int(steps[row])} "
            f"on line {row + _FIRST_LINE_OF_STEPS}"
        )
    late = ~repeated & (steps < np.maximum.accumulate(steps))
    if late.any():
        row = int(np.flatnonzero(late)[0])
        faults.append(
            f"out_of_order: {int(late.sum())} after a later one, the first is step "
            f"{int(steps[row])} on line {row + _FIRST_LINE_OF_STEPS}"
        )
    return faults


def _clean_close_faults(stream: Stream, footer: Footer, sidecar: Sidecar | None) -> list[str]:
    faults = _counter_faults("footer", footer, stream)
    if not footer.final:
        faults.append("footer_not_final: the in-stream footer does not say final")
    if sidecar is None:
        return faults
    if not sidecar.final:
        faults.append("sidecar_not_final: the stream has a footer, the sidecar is no final one")
    names = ("encoded_records", "written_records", "dropped_records", "last_step_index")
    differing = [
        f"{name} {getattr(sidecar, name)} against {getattr(footer, name)}"
        for name in names
        if getattr(sidecar, name) != getattr(footer, name)
    ]
    if differing:
        faults.append(f"sidecar_disagrees: sidecar against footer: {', '.join(differing)}")
    return faults


def _counter_faults(name: str, counters: Footer | Sidecar, stream: Stream) -> list[str]:
    """Balance, drops, and agreement with the step lines on disk."""
    faults = []
    encoded, written = counters.encoded_records, counters.written_records
    dropped = counters.dropped_records
    if counters.reason is not None:
        faults.append(f"recording_ended_early: the {name} says {counters.reason[:200]!r}")
    if encoded != written + dropped:
        faults.append(
            f"encoded_imbalance: {name}: encoded {encoded} is not written {written} "
            f"+ dropped {dropped}"
        )
    if dropped:
        faults.append(f"dropped: {name}: {dropped} records were dropped")
    steps = stream.columns.step
    if written != len(steps):
        faults.append(f"count_mismatch: {name}: {written} records written, {len(steps)} step lines")
    last = int(steps[-1]) if len(steps) else -1
    if counters.last_step_index != last:
        faults.append(
            f"last_step_mismatch: {name}: last step {counters.last_step_index}, "
            f"the last step line holds {last}"
        )
    return faults


def _interval_faults(stream: Stream, sidecar: Sidecar) -> list[str]:
    if sidecar.flush_interval_s == stream.header.flush_interval_s:
        return []
    return [
        f"flush_interval_disagrees: header {stream.header.flush_interval_s} s, "
        f"sidecar {sidecar.flush_interval_s} s"
    ]


def _age_ms(sidecar: Sidecar, signal_wall_ns: int | None) -> float | None:
    if signal_wall_ns is None:
        return None
    return (signal_wall_ns - sidecar.wall_time_ns) / 1e6


def _age_faults(age_ms: float | None, rule: Layer1 | None) -> list[str]:
    if age_ms is None:
        return ["signal_time_unknown: no footer, and the time of the kill was not recorded"]
    if rule is None:
        return ["checkpoint_rule_unbound: no protocol is bound to judge the checkpoint's age"]
    limit_ms = rule.flush_interval_s * 1e3
    if age_ms <= limit_ms + rule.checkpoint_tolerance_ms:
        return []
    return [
        f"checkpoint_old: {age_ms:.3f} ms before the kill, over {limit_ms:g} ms "
        f"and {rule.checkpoint_tolerance_ms:g} ms tolerance"
    ]


def _tolerance_used_ms(age_ms: float | None, rule: Layer1 | None) -> float | None:
    """How much of the tolerance a checkpoint needed: 0 within the flush interval."""
    if age_ms is None or rule is None:
        return None
    over_ms = max(0.0, age_ms - rule.flush_interval_s * 1e3)
    return min(over_ms, rule.checkpoint_tolerance_ms)
