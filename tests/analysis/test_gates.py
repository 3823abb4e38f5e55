"""Every gate passes, fails and abstains for its own reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from layer1_samples import header
from opprof.analysis import gates_client, gates_layer1, gates_profile
from opprof.analysis.end_to_end import end_to_end
from opprof.analysis.gates import CATALOGUE, invalidates, make_gate, skipped, verdict
from opprof.artifacts.common import Gate
from opprof.artifacts.composition import Composition, StreamAccounting
from opprof.artifacts.kernels import NullRate, Representativeness, WindowRepresentativeness
from opprof.artifacts.layer1 import Header
from opprof.artifacts.run import Interval, ManifestSummary, Result, Timeline
from opprof.protocol.load import load_protocol
from opprof.protocol.model import Pattern, ProtocolFile
from opprof.rules.recovery import Recovery
from opprof.rules.stabilization import Stabilization
from opprof.telemetry.requests import RequestColumns, read_requests
from request_samples import record, write_requests

S = 1_000_000_000
HASH = "a" * 64


@pytest.fixture(scope="module")
def protocol() -> ProtocolFile:
    found = load_protocol("phase3")
    assert found is not None
    return found.file


def pattern_of(protocol: ProtocolFile, name: str) -> Pattern:
    return next(pattern for pattern in protocol.patterns if pattern.id == name)


def timeline(intervals: list[Interval] | None = None, **changes: Any) -> Timeline:
    fields: dict[str, Any] = {
        "schema": 1,
        "pattern": "P01",
        "config": "C00",
        "load_point": "moderate",
        "max_concurrency": 256,
        "rate_rps": 4.0,
        "clock": "CLOCK_MONOTONIC",
        "intervals": intervals or [],
    }
    return Timeline(**(fields | changes))


def whole_run() -> list[Interval]:
    clean = [Interval("clean", i, (60 + 80 * i) * S, (140 + 80 * i) * S) for i in range(3)]
    return [Interval("warmup", 0, 0, 60 * S), *clean]


def result(**changes: Any) -> Result:
    fields: dict[str, Any] = {
        "schema": 1,
        "accepted": True,
        "reasons": [],
        "completed_rps": 10.0,
        "offered_rps": None,
        "manifest_sha256": HASH,
        "pattern": "P01",
        "config": "C00",
        "load_point": "saturation",
        "role": "primary",
        "drain_quarantined": False,
        "metrics": {},
    }
    return Result(**(fields | changes))


def accounting(**changes: Any) -> StreamAccounting:
    fields: dict[str, Any] = {
        "stream": "engine-0.jsonl",
        "step_lines": 5,
        "first_step": 0,
        "last_step": 4,
        "footer_in_stream": True,
        "encoded_records": 5,
        "written_records": 5,
        "dropped_records": 0,
        "sidecar_final": True,
        "checkpoint_wall_ns": 1,
        "signal_wall_ns": None,
        "checkpoint_age_ms": None,
        "flush_interval_s": 1.0,
        "valid": True,
        "reasons": [],
    }
    return StreamAccounting(**(fields | changes))


def clean_union(**changes: Any) -> Composition:
    plain = {name: None for name in Composition.__struct_fields__ if name not in ("kind", "index")}
    counts = {"steps": 100, "steps_invalid_graph": 0, "prefix_queries": 1000, "prefix_hits": 0}
    return Composition(kind="clean_union", index=0, **(plain | counts | changes))  # type: ignore[arg-type]


def requests(folder: Path, records: list[dict[str, Any]]) -> RequestColumns:
    return read_requests(write_requests(folder, records))


def outcomes(gates: list[Gate]) -> list[str]:
    return [gate.outcome for gate in gates]


def test_every_gate_says_what_it_means_and_what_to_do() -> None:
    for name, text in CATALOGUE.items():
        gate = make_gate(name, "fail", "because")
        assert gate.meaning == text.meaning
        assert gate.action.endswith(".")
        assert "\n" not in gate.meaning + gate.action
        assert invalidates(gate) == text.reach
        assert invalidates(verdict(name, True, "fine")) == "nothing"
        assert invalidates(skipped(name, "absent")) == "nothing"
    with pytest.raises(KeyError):
        make_gate("unheard_of", "pass", "")


def test_gates_abstain_without_a_protocol(tmp_path: Path) -> None:
    found = timeline(whole_run())
    columns = requests(tmp_path, [record(0)])
    union = end_to_end(columns, [(0, S)], kind="clean_union", index=0)
    assert (
        outcomes(
            [
                gates_client.warmup_recorded(found, None),
                gates_client.warmup_completions(40, None, None, None),
                *gates_client.clean_interval(found, None)[:2],
                gates_client.load_point(found, None, None),
                gates_client.offered_rate(found, union, None),
                gates_client.client_lag(found, 0, None),
                *gates_client.recovery([], found, None),
                gates_client.drain_quarantine(timeline([Interval("drain", 0, 0, 1)]), None, None),
                gates_layer1.sidecar_age(accounting(footer_in_stream=False), None),
                gates_layer1.engine_config_effective(a_header(), None, None, None),
                gates_layer1.prefix_sharing(clean_union(), None, None),
                gates_profile.profile_windows(found, None),
                gates_profile.mode_segment_steps({"FULL": 8}, None),
                *gates_profile.representativeness(None, None),
            ]
        )
        == ["not_evaluable"] * 15
    )


def test_warm_up(protocol: ProtocolFile) -> None:
    plan, gates = protocol.timeline, protocol.gates
    assert gates_client.warmup_recorded(timeline(whole_run()), plan).outcome == "pass"
    missing = gates_client.warmup_recorded(timeline(), plan)
    assert (missing.outcome, missing.reason) == ("fail", "no warm-up interval is recorded")
    short = timeline([Interval("warmup", 0, 0, 59 * S)])
    assert gates_client.warmup_recorded(short, plan).outcome == "fail"
    scaled = timeline([Interval("warmup", 0, 0, 6 * S)], time_scale=0.1)
    assert gates_client.warmup_recorded(scaled, plan).outcome == "pass"
    synthetic, real = pattern_of(protocol, "P01"), pattern_of(protocol, "P10")
    stable = Stabilization((20,) * 3, (1.0,) * 3, 1.0, 0.0, 0.0, True, "fine")
    drifting = Stabilization((20,) * 3, (1.0,) * 3, 1.0, 0.1, 0.5, False, "far")
    cases = [
        (32, synthetic, None, "pass"),
        (31, synthetic, stable, "fail"),
        (31, real, stable, "pass"),
        (31, real, drifting, "fail"),
        (31, real, None, "not_evaluable"),
        (15, real, stable, "fail"),
        (None, real, stable, "not_evaluable"),
    ]
    for completed, pattern, test, expected in cases:
        gate = gates_client.warmup_completions(completed, gates, pattern, test)
        assert gate.outcome == expected, gate
    through = gates_client.warmup_completions(16, gates, real, stable)
    # A-P3-6: every number of the second branch is recorded.
    assert set(stable.numbers()) < set(through.numbers)


def test_the_clean_interval_is_exact(protocol: ProtocolFile) -> None:
    plan = protocol.timeline
    assert outcomes(gates_client.clean_interval(timeline(whole_run()), plan)) == ["pass"] * 3
    assert outcomes(gates_client.clean_interval(timeline(), plan)) == ["fail"] * 3
    one = [Interval("clean", 0, 0, 240 * S)]
    assert outcomes(gates_client.clean_interval(timeline(one), plan)) == ["pass", "fail", "pass"]
    late = [Interval("clean", i, 80 * i * S + (i == 2), 80 * (i + 1) * S) for i in range(3)]
    assert outcomes(gates_client.clean_interval(timeline(late), plan)) == ["fail"] * 3


def test_a_burn_in_has_no_clean_time_that_could_fail(protocol: ProtocolFile) -> None:
    """A campaign keeps it as complete; the page of its folder must not call it invalid."""
    plan = protocol.timeline
    burnin = timeline([Interval("warmup", 0, 0, 600 * S)], role="burnin")
    gates = [gates_client.warmup_recorded(burnin, plan), *gates_client.clean_interval(burnin, plan)]
    assert {(gate.outcome, gate.reason) for gate in gates} == {
        ("not_evaluable", "a burn-in is not measured: it has no clean time")
    }
    # One that was measured all the same is judged as it stands.
    measured = timeline(whole_run(), role="burnin")
    assert outcomes(gates_client.clean_interval(measured, plan)) == ["pass"] * 3


@pytest.mark.parametrize(
    ("changes", "saturation", "outcome"),
    [
        ({"load_point": "saturation", "rate_rps": None}, None, "pass"),
        ({"load_point": "saturation"}, None, "fail"),
        ({"rate_rps": None}, None, "fail"),
        ({"load_point": "saturation", "rate_rps": None, "max_concurrency": 64}, None, "fail"),
        ({}, None, "not_evaluable"),
        ({"rate_rps": 6.0}, 10.0, "pass"),
        ({"rate_rps": 6.01}, 10.0, "fail"),
    ],
)
def test_the_load_point_and_its_rate(
    protocol: ProtocolFile, changes: dict[str, Any], saturation: float | None, outcome: str
) -> None:
    accepted = None if saturation is None else result(completed_rps=saturation)
    gate = gates_client.load_point(timeline(**changes), protocol.load, accepted)
    assert gate.outcome == outcome, gate


def test_requests(tmp_path: Path, protocol: ProtocolFile) -> None:
    good = requests(tmp_path, [record(i) for i in range(4)])
    union = end_to_end(good, [(0, S)], kind="clean_union", index=0)
    assert gates_client.request_accounting(good).outcome == "pass"
    assert gates_client.request_failures(union, good).outcome == "pass"
    assert gates_client.output_tokens_exact(good).outcome == "pass"
    bad = requests(tmp_path, [record(0, output_tokens=3), record(0, error="x"), record(1)])
    union = end_to_end(bad, [(0, S)], kind="clean_union", index=0)
    failed = gates_client.request_failures(union, bad)
    assert failed.outcome == "fail"
    assert failed.numbers["failed_clean"] == 2
    assert failed.numbers["error_codes"] == "x: 1"
    assert gates_client.output_tokens_exact(bad).outcome == "fail"
    assert gates_client.request_accounting(bad).outcome == "fail"
    silent = end_to_end(good, [(5 * S, 6 * S)], kind="clean_union", index=0)
    assert gates_client.request_failures(silent, good).outcome == "fail"
    assert gates_client.request_failures(None, None).outcome == "not_evaluable"
    assert gates_client.request_accounting(None).outcome == "not_evaluable"
    assert gates_client.output_tokens_exact(None).outcome == "not_evaluable"


@pytest.mark.parametrize(
    ("admitted", "rate", "outcome"),
    [(100, 100.0, "pass"), (105, 100.0, "pass"), (106, 100.0, "fail"), (94, 100.0, "fail")],
)
def test_the_offered_rate(
    tmp_path: Path, protocol: ProtocolFile, admitted: int, rate: float, outcome: str
) -> None:
    found = requests(tmp_path, [record(i) for i in range(admitted)])
    union = end_to_end(found, [(0, S)], kind="clean_union", index=0)
    gate = gates_client.offered_rate(timeline(rate_rps=rate), union, protocol.gates)
    assert gate.outcome == outcome
    closed = timeline(load_point="saturation", rate_rps=None)
    assert gates_client.offered_rate(closed, union, protocol.gates).outcome == "not_evaluable"
    assert gates_client.client_lag(closed, 0, protocol.gates).outcome == "not_evaluable"


def test_client_lag_recovery_and_drain(protocol: ProtocolFile) -> None:
    gates = protocol.gates
    assert gates_client.client_lag(timeline(), S, gates).outcome == "pass"
    assert gates_client.client_lag(timeline(), S + 1, gates).outcome == "fail"
    assert gates_client.client_lag(timeline(), None, gates).outcome == "not_evaluable"
    interval = Interval("recovery", 1, 0, 1)
    checks = [
        (interval, Recovery(passed, "text", 1.0, 1.0, 0.0, 0.0)) for passed in (True, False, None)
    ]
    found = gates_client.recovery(checks, timeline(), gates)
    assert outcomes(found) == ["pass", "fail", "not_evaluable"]
    assert {gate.scope for gate in found} == {"window1"}
    steady, bursty = pattern_of(protocol, "P02"), pattern_of(protocol, "P04")
    long_drain = timeline([Interval("drain", 0, 0, 200 * S)])
    over = gates_client.drain_quarantine(long_drain, steady, None)
    assert over.outcome == "fail"
    assert invalidates(over) == "nothing"
    assert gates_client.drain_quarantine(long_drain, bursty, None).outcome == "pass"
    marked = result(drain_quarantined=True)
    assert gates_client.drain_quarantine(long_drain, bursty, marked).outcome == "fail"
    assert gates_client.drain_quarantine(timeline(), bursty, marked).outcome == "fail"
    assert gates_client.drain_quarantine(timeline(), bursty, None).outcome == "not_evaluable"


def test_the_manifest(tmp_path: Path) -> None:
    lengths = {"n": 3, "median": 1.0, "p95": 1.0, "sum": 9, "distinct": 1}
    manifest = msgspec.convert(
        {
            "schema": 1,
            "sha256": HASH,
            "pattern": "P01",
            "arrival": "steady",
            "prefix": "none",
            "input_tokens": lengths | {"min": 90, "max": 110},
            "output_tokens": lengths | {"min": 4, "max": 4},
            "generator": {},
        },
        ManifestSummary,
    )
    assert gates_client.manifest_hash(manifest, result()).outcome == "pass"
    other = result(manifest_sha256="b" * 64)
    assert gates_client.manifest_hash(manifest, other).outcome == "fail"
    assert gates_client.manifest_hash(None, other).outcome == "not_evaluable"
    cases = [
        ([record(0)], "pass"),
        ([record(0, prompt_tokens=111)], "fail"),
        ([record(0, requested_output_tokens=5)], "fail"),
        ([record(i) for i in range(4)], "fail"),
        ([], "not_evaluable"),
    ]
    for records, outcome in cases:
        found = requests(tmp_path, records)
        assert gates_client.manifest_lengths(manifest, found).outcome == outcome
    assert gates_client.time_scale(timeline()).outcome == "pass"
    assert gates_client.time_scale(timeline(time_scale=0.1)).outcome == "fail"


def a_header(**changes: Any) -> Header:
    plain = header(**changes)
    del plain["type"]
    return msgspec.convert(plain | {"type": "header"}, Header)


def test_the_engine(protocol: ProtocolFile) -> None:
    config = next(found for found in protocol.configs if found.id == "C00")
    server, pinned = protocol.server, protocol.pinned

    def judge(**changes: Any) -> Gate:
        return gates_layer1.engine_config_effective(a_header(**changes), config, server, pinned)

    assert judge().outcome == "pass"
    wrong = judge(config={"max_num_seqs": 256, "chunked_prefill": False})
    assert wrong.outcome == "fail"
    assert "max_num_seqs 256, declared 1024" in wrong.reason
    assert "chunked_prefill False, declared True" in wrong.reason
    assert judge(engine_version="0.25.0").outcome == "fail"
    # The back end is an expectation that is recorded, not a condition.
    assert judge(config={"moe_backend": "CUTLASS"}).outcome == "pass"
    unknown = gates_layer1.engine_config_effective(a_header(), None, server, pinned)
    assert unknown.outcome == "not_evaluable"
    assert gates_layer1.engine_tested(a_header()).outcome == "pass"
    assert gates_layer1.engine_tested(a_header(untested=["x"])).outcome == "fail"
    assert gates_layer1.simulated(a_header(), timeline()).outcome == "pass"
    assert gates_layer1.simulated(a_header(simulated=True), timeline()).outcome == "fail"
    assert gates_layer1.simulated(None, timeline(simulated=True)).outcome == "fail"


def test_layer1_accounting_and_the_checkpoint(protocol: ProtocolFile) -> None:
    rule = protocol.layer1
    assert gates_layer1.layer1_accounting(accounting()).outcome == "pass"
    gap = accounting(valid=False, reasons=["gap: 1 missing", "signal_time_unknown: x"])
    failed = gates_layer1.layer1_accounting(gap)
    assert (failed.outcome, failed.reason) == ("fail", "gap: 1 missing")
    unproven = accounting(valid=False, reasons=["signal_time_unknown: x"])
    assert gates_layer1.layer1_accounting(unproven).outcome == "not_evaluable"
    assert gates_layer1.sidecar_age(accounting(), rule).outcome == "not_evaluable"
    for age, outcome in ((1100.0, "pass"), (1100.1, "fail"), (None, "not_evaluable")):
        killed = accounting(footer_in_stream=False, checkpoint_age_ms=age)
        assert gates_layer1.sidecar_age(killed, rule).outcome == outcome


def test_leaks_graph_modes_and_prefix_sharing(protocol: ProtocolFile) -> None:
    assert gates_layer1.profile_leak({"profile0": 0}, 10).outcome == "pass"
    leak = gates_layer1.profile_leak({"profile0": 2, "recovery0": 0}, 10)
    assert (leak.outcome, leak.reason) == ("fail", "steps in the clean union: profile0: 2")
    assert gates_layer1.profile_leak({}, None).outcome == "not_evaluable"
    faults = {"graph_missing": 2}
    bad = gates_layer1.graph_mode_valid(faults, {}, clean_union(steps_invalid_graph=2))
    assert bad.outcome == "fail"
    assert "graph_missing: 2" in bad.reason
    assert gates_layer1.graph_mode_valid({}, {}, clean_union()).outcome == "pass"
    assert gates_layer1.graph_mode_valid({}, {}, None).outcome == "not_evaluable"
    none, high = pattern_of(protocol, "P01"), pattern_of(protocol, "P08")
    cases: list[tuple[Pattern, float | None, int | None, str]] = [
        (none, 0.0099, 1000, "pass"),
        (none, 0.01, 1000, "fail"),
        (none, None, 0, "not_evaluable"),
        (none, None, None, "not_evaluable"),
        (high, 0.8, 1000, "not_evaluable"),
    ]
    for pattern, ratio, queries, outcome in cases:
        union = clean_union(prefix_hit_ratio=ratio, prefix_queries=queries)
        gate = gates_layer1.prefix_sharing(union, pattern, protocol.gates)
        assert gate.outcome == outcome, gate


def test_windows_and_ranks(protocol: ProtocolFile) -> None:
    two = [Interval("profile", i, i, i) for i in range(2)]
    plan = protocol.timeline
    cases = [
        (two, "primary", "pass"),
        (two[:1], "primary", "fail"),
        ([], "confirmation", "pass"),
        (two[:1], "confirmation", "fail"),
        (two[:1], "colocation", "pass"),
        ([], "burnin", "pass"),
    ]
    for intervals, role, outcome in cases:
        gate = gates_profile.profile_windows(timeline(intervals, role=role), plan)
        assert gate.outcome == outcome
    # A-P3-1: exactly one window per moderate target of the co-location check.
    for intervals, outcome in ((two[:1], "fail"), ([], "pass")):
        found = timeline(intervals, role="colocation", load_point="saturation")
        assert gates_profile.profile_windows(found, plan).outcome == outcome
    ranks = gates_profile.rank_completeness({0: [0, 1], 1: [1], 2: [0, 1, 2], 3: [0, 0, 1]}, 2)
    assert outcomes(ranks) == ["pass", "fail", "fail", "fail"]
    assert ranks[1].reason == "no trace of rank 0"
    assert outcomes(gates_profile.rank_completeness({0: [0]}, None)) == ["not_evaluable"]
    assert outcomes(gates_profile.rank_completeness({}, 1)) == ["not_evaluable"]
    modes = {"FULL": 16, "NONE": 7}
    for required, outcome in (
        ([], "not_evaluable"),
        (["FULL"], "pass"),
        (["FULL", "NONE"], "fail"),
    ):
        gates = msgspec.structs.replace(protocol.gates, modes_required=required)
        assert gates_profile.mode_segment_steps(modes, gates).outcome == outcome


def test_representativeness_shows_its_rate_under_no_change(protocol: ProtocolFile) -> None:
    rule = protocol.representativeness
    windows = [
        WindowRepresentativeness(i, 2, 8, 50, [], outcome, "text")
        for i, outcome in enumerate(("pass", "fail", "not_evaluable"))
    ]
    rate = NullRate(2000, 1, 8, 0.875, 0.97, {})
    gates = gates_profile.representativeness(Representativeness(windows, rate), rule)
    assert outcomes(gates) == ["pass", "fail", "not_evaluable"]
    assert gates[1].reason == (
        "text (drawn from unprofiled steps, 88% of windows and 97% of load points fail)"
    )
    assert gates[1].numbers["null_load_point_failure_rate"] == 0.97
    assert invalidates(gates[1]) == "breakdown"
    assert outcomes(gates_profile.representativeness(None, rule)) == ["not_evaluable"]
