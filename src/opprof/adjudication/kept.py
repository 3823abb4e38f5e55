"""A run's facts as the client had them, from the files that it left behind.

Only three things are not in raw files and come from ``client/sanity.json`` and ``result.json``: how
many requests were outstanding at most, the client's own processor share, and the quantile of its
event loop's delay. The windows' planned number and steps are those of the stored gates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from opprof.artifacts.common import Gate
from opprof.artifacts.run import Interval, RequestRecord, Result, Timeline
from opprof.artifacts.sanity import Sanity
from opprof.client.facts import Health, RunFacts
from opprof.client.journal import Failure
from opprof.client.plan import DrainBudget, Load, RunPlan, Windows
from opprof.client.ports import ControlReply
from opprof.client.profiler import read_events
from opprof.client.steps import STREAM_NAME, read_stream
from opprof.client.timeline import Ending, WindowRecord
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_file
from opprof.protocol import Protocol
from opprof.rules.durations import scaled_ns, seconds_to_ns

_LIMIT_BYTES = 4 << 30


class Kept(msgspec.Struct, frozen=True):
    """The client's files of one completed run."""

    timeline: Timeline
    result: Result
    sanity: Sanity
    records: list[RequestRecord]
    changed: list[str]
    """Files of the client whose recorded hash they do not have any more."""


def read_kept(root: Path) -> Kept:
    """Read the client's files of a run directory.

    Raises:
        InputError: a file is missing, or the run did not end.
        SchemaError: a file does not fit its schema (with its line for the request records).
    """
    client = root / "client"
    timeline = _decode(client / "timeline.json", Timeline)
    if timeline.state not in ("complete", "failed"):
        state = timeline.state or "of another client"
        raise InputError(f"the run is {state}, not complete", path=client / "timeline.json")
    sanity = _decode(client / "sanity.json", Sanity)
    changed = [
        name
        for name, digest in sanity.provenance.inputs.items()
        if name.startswith("client/") and sha256_file(root / name) != digest
    ]
    return Kept(
        timeline,
        _decode(client / "result.json", Result),
        sanity,
        _records(client / "requests.jsonl"),
        changed,
    )


def facts_of(kept: Kept, root: Path, protocol: Protocol) -> RunFacts:
    """Return what a protocol's client would have judged: the same facts, its drain budget."""
    timeline = kept.timeline
    intervals = timeline.intervals
    if not intervals:
        raise InputError("the timeline has no interval", path=root / "client" / "timeline.json")
    plan = _plan(kept, protocol)
    end_ns = intervals[-1].end_mono_ns
    drained_ns = sum(i.end_mono_ns - i.start_mono_ns for i in intervals if i.kind == "drain")
    stream_file = root / "opprof" / STREAM_NAME
    has_stream = stream_file.is_file()
    return RunFacts(
        plan=plan,
        t0_ns=intervals[0].start_mono_ns,
        intervals=list(intervals),
        windows=[_window(i, kept) for i in intervals if i.kind == "profile"],
        ending=Ending(
            abort_reason=timeline.state_reason if timeline.state == "failed" else None,
            drain_over_budget=drained_ns > plan.drain.budget_ns,
            drain_given_up=any(record.error == "unfinished" for record in kept.records),
            end_ns=end_ns,
        ),
        records=kept.records,
        failures=_failures(kept.records, end_ns),
        unsent=sum(record.error == "never_admitted" for record in kept.records),
        finish_reasons=dict(kept.result.metrics.get("finish_reasons", {})),
        outstanding_max=int(_number(_gate(kept.sanity, "concurrency_cap"), "outstanding_max")),
        stream=read_stream(stream_file) if has_stream else None,
        health=_health(kept.sanity),
        window_source=timeline.profile_window_source,
        profiler_events=read_events(root / "opprof") if has_stream else [],
    )


def _plan(kept: Kept, protocol: Protocol) -> RunPlan:
    timeline, metrics = kept.timeline, kept.result.metrics
    clean = [i for i in timeline.intervals if i.kind == "clean"]
    warmup = timeline.intervals[0]
    windows = [gate for gate in kept.sanity.gates if gate.name == "profile_window"]
    recovery = next((i for i in timeline.intervals if i.kind == "recovery"), None)
    row, gates, scale = protocol.pattern(timeline.pattern), protocol.file.gates, timeline.time_scale
    requested_s = float(metrics.get("drain_timeout_requested_s", 0.0))
    budget_ns = seconds_to_ns(requested_s)
    if row is not None:
        budget_ns = scaled_ns(row.drain_budget_s, scale)
    return RunPlan(
        pattern=timeline.pattern,
        config=timeline.config,
        load_point=timeline.load_point,
        role=timeline.role,
        load=Load(timeline.max_concurrency, timeline.rate_rps, 1),
        warmup_ns=_length(warmup) if warmup.kind == "warmup" else 0,
        segment_ns=_length(clean[0]) if clean else 0,
        segments=len(clean),
        windows=Windows(
            count=len(windows),
            steps=int(_number(windows[0], "steps_wanted")) if windows else 0,
            recovery_ns=0 if recovery is None else _length(recovery),
            watchdog_ns=seconds_to_ns(gates.profile_window_watchdog_s),
        ),
        drain=DrainBudget(
            budget_ns=budget_ns,
            requested_ns=seconds_to_ns(requested_s),
            watchdog_ns=scaled_ns(gates.drain_watchdog_s, scale),
        ),
        time_scale=scale,
    )


def _window(interval: Interval, kept: Kept) -> WindowRecord:
    """Return a profile window's calls; what its watch saw stands in the result's metrics."""
    seen: dict[str, Any] = next(
        (
            window
            for window in kept.result.metrics.get("profile_windows", [])
            if window["index"] == interval.index
        ),
        {},
    )
    start, stop = interval.http_status or (None, None)
    return WindowRecord(
        index=interval.index,
        start=_reply(interval.start_call_mono_ns, start),
        stop=_reply(interval.stop_call_mono_ns, stop),
        iterations_over_ns=seen.get("iterations_over_mono_ns"),
        steps=seen.get("steps_seen"),
        timed_out=bool(seen.get("timed_out", False)),
    )


def _reply(call: tuple[int, int] | None, status: int | None) -> ControlReply | None:
    return None if call is None else ControlReply(call[0], call[1], status)


def _failures(records: list[RequestRecord], end_ns: int) -> list[Failure]:
    """Return the requests that were sent and failed; those without an end failed at the run's."""
    return [
        Failure(
            record.admitted_mono_ns,
            record.ended_mono_ns or record.completed_mono_ns or end_ns,
            record.error,
        )
        for record in records
        if record.error is not None and record.admitted_mono_ns is not None
    ]


def _health(sanity: Sanity) -> Health | None:
    """Return a health whose share and 99th percentile are the stored ones."""
    share = _gate(sanity, "client_cpu").numbers.get("cpu_share")
    delay = _gate(sanity, "client_loop_delay").numbers.get("p99_ms")
    if not isinstance(share, int | float):
        return None
    delays = [float(delay)] if isinstance(delay, int | float) else []
    return Health(cpu_s=float(share), wall_s=1.0, loop_delays_ms=delays)


def _gate(sanity: Sanity, name: str) -> Gate:
    found = next((gate for gate in sanity.gates if gate.name == name), None)
    if found is None:
        raise SchemaError(f"client/sanity.json has no gate {name!r}")
    return found


def _number(gate: Gate, name: str) -> float:
    value = gate.numbers.get(name)
    if not isinstance(value, int | float):
        raise SchemaError(f"client/sanity.json: gate {gate.name!r} has no number {name!r}")
    return value


def _length(interval: Interval) -> int:
    return interval.end_mono_ns - interval.start_mono_ns


def _decode(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error


def _records(path: Path) -> list[RequestRecord]:
    decode = msgspec.json.Decoder(RequestRecord).decode
    found = []
    for number, line in enumerate(read_bytes(path, limit_bytes=_LIMIT_BYTES).splitlines(), start=1):
        try:
            found.append(decode(line))
        except msgspec.DecodeError as error:
            raise SchemaError(f"is no request record: {error}", path=path, line=number) from error
    return found
