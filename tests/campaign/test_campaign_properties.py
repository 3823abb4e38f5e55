"""Random protocols, hosts and failures: what always holds of a campaign's schedule and ledger."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
from campaign_builders import PACE, host, phase3
from hypothesis import given, settings
from hypothesis import strategies as st

from opprof.artifacts.campaign import RunRecord
from opprof.campaign.forecast import Forecast, Outcome, play
from opprof.campaign.ledger import (
    CONSUMED,
    balance,
    hours_ns,
    ledger_problems,
    open_reservations,
    settle,
)
from opprof.campaign.places import placement_problems, split_cpus
from opprof.campaign.plan import gives_rate, group_of, planned_runs, verdict
from opprof.campaign.waves import Done, Where
from opprof.host.cpus import parse_cpus
from opprof.protocol.model import ProtocolFile

BASE = phase3()
CPUS = 4


@dataclass(frozen=True)
class Case:
    protocol: ProtocolFile
    where: Where
    seed: int
    trouble: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    patterns = BASE.patterns[: draw(st.integers(1, 6))]
    names = [row.id for row in patterns]
    configs = [
        msgspec.structs.replace(row, tensor_parallel_size=draw(st.sampled_from([1, 1, 2, 4])))
        for row in BASE.configs[: draw(st.integers(1, 5))]
    ]
    config_names = [row.id for row in configs]
    sentinels = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
    per_node = draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    hosts = [
        host(f"h{index}", count, per_node=per_node, cpus_per_gpu=CPUS)
        for index, count in enumerate(counts)
    ]
    masks = [f"{CPUS * i}-{CPUS * i + CPUS - 1}" for i in range(8)] if draw(st.booleans()) else []
    protocol = msgspec.structs.replace(
        BASE,
        patterns=patterns,
        configs=configs,
        cells=msgspec.structs.replace(
            BASE.cells,
            baseline_config=config_names[0],
            sentinel_patterns=sentinels,
            sentinel_configs=config_names[1:],
            extra=[],
        ),
        seeds=msgspec.structs.replace(BASE.seeds, execution_order=draw(st.integers(0, 10**6))),
        confirmations=msgspec.structs.replace(
            BASE.confirmations,
            patterns=draw(st.lists(st.sampled_from(names), unique=True, max_size=2)),
            config=config_names[0],
            load_point=draw(st.sampled_from(["saturation", "moderate"])),
        ),
        burnin=msgspec.structs.replace(BASE.burnin, pattern=names[0]),
        placement=msgspec.structs.replace(
            BASE.placement, cpu_map=masks, numa_nodes=[i // per_node for i in range(8)]
        ),
        budget=msgspec.structs.replace(
            BASE.budget, gpu_hours_max=draw(st.sampled_from([4.5, 8.0, 16.0, 100.0]))
        ),
    )
    widths = {each.host: draw(st.integers(1, 8)) for each in hosts}
    return Case(
        protocol,
        Where(tuple(hosts), widths, 20000),
        draw(st.integers(0, 10**6)),
        draw(st.sampled_from([0.0, 0.1, 0.5])),
    )


def played(case: Case, **how: object) -> Forecast:
    def outcome(record: RunRecord, number: int) -> Outcome:
        draw = random.Random(f"{case.seed}:{record.run}:{number}")
        seconds = draw.uniform(1.0, 900.0)
        if draw.random() >= case.trouble:
            return Outcome(seconds, draw.uniform(0, 30), accepted=draw.random() >= case.trouble / 2)
        # Nothing is interrupted for ever.
        faults = ["infrastructure", "semantic"] + ["interrupted"] * (number < 4)
        fault = draw.choice(faults)
        phase = "interrupted" if fault == "interrupted" else "failed"
        return Outcome(seconds, draw.uniform(0, 30), phase=phase, fault=fault)  # type: ignore[arg-type]

    arguments: dict[str, object] = {"records": planned_runs(case.protocol), **how}
    return play(
        where=case.where,
        protocol=case.protocol,
        pace=PACE,
        outcomes=outcome,
        **arguments,  # type: ignore[arg-type]
    )


def spans(forecast: Forecast) -> list[tuple[int, int, str, str, list[int], str]]:
    """Start, end, run, host, GPUs and mask of every attempt."""
    return [
        (
            attempt.transitions[0].wall_ns,
            attempt.transitions[-1].wall_ns,
            record.run,
            attempt.slot.host,
            attempt.slot.gpus,
            attempt.slot.cpus,
        )
        for record in forecast.records
        for attempt in record.attempts
        if attempt.slot is not None
    ]


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_gpu_is_booked_twice_and_no_cpu_stands_in_two_masks(case: Case) -> None:
    found = spans(played(case))
    for index, (start, end, run, name, gpus, cpus) in enumerate(found):
        for other_start, other_end, other, other_name, other_gpus, other_cpus in found[:index]:
            if name != other_name or start >= other_end or other_start >= end:
                continue
            assert not set(gpus) & set(other_gpus), (run, other)
            assert not set(parse_cpus(cpus)) & set(parse_cpus(other_cpus)), (run, other)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_map_made_for_a_host_fits_it(case: Case) -> None:
    for each in case.where.hosts:
        masks, nodes = split_cpus(each)
        placement = msgspec.structs.replace(
            case.protocol.placement, gpus=len(masks), cpu_map=masks, numa_nodes=nodes
        )
        assert placement_problems(placement, each) == []
        sizes = {len(parse_cpus(mask)) for mask in masks}
        assert min(sizes) >= 1


@given(cases())
def test_waves_respect_widths_nodes_and_ports(case: Case) -> None:
    for played_wave in played(case).waves:
        lanes = played_wave.wave.lanes
        assert len({lane.slot.port for lane in lanes}) == len(lanes)
        for each in case.where.hosts:
            mine = [lane.slot for lane in lanes if lane.slot.host == each.host]
            used = sum(len(slot.gpus) for slot in mine)
            # Wider than authorised only where a single cell needs it.
            assert used <= case.where.widths[each.host] or len(lanes) == 1
            nodes = {gpu.index: gpu.numa_node for gpu in each.gpus}
            sizes = [list(nodes.values()).count(node) for node in set(nodes.values())]
            for slot in mine:
                assert slot.gpus == list(range(slot.gpus[0], slot.gpus[0] + len(slot.gpus)))
                if len(slot.gpus) <= max(sizes):
                    assert len({nodes[index] for index in slot.gpus}) == 1


@settings(max_examples=60, deadline=None)
@given(cases())
def test_needs_come_first(case: Case) -> None:
    forecast = played(case)
    by_name = {record.run: record for record in forecast.records}
    matrix_ends = [
        attempt.transitions[-1].wall_ns
        for record in forecast.records
        if group_of(record) == "matrix"
        for attempt in record.attempts
    ]
    for record in forecast.records:
        for attempt in record.attempts:
            start = attempt.transitions[0].wall_ns
            for need in (by_name[name] for name in record.needs):
                assert (
                    need.state == "complete" and need.attempts[-1].transitions[-1].wall_ns <= start
                )
                if gives_rate(need, record):
                    assert verdict(need) is True
                    slot = need.attempts[-1].slot
                    assert slot is not None and attempt.slot is not None
                    assert slot.width == attempt.slot.width == case.where.widths[slot.host]
            if record.role == "confirmation":
                assert start >= max(matrix_ends)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_every_run_is_complete_once_or_has_a_reason(case: Case) -> None:
    forecast = played(case)
    for record in forecast.records:
        phases = [attempt.phase for attempt in record.attempts]
        assert phases.count("complete") == (record.state == "complete")
        assert "complete" not in phases[:-1]
        assert sum(a.fault == "infrastructure" for a in record.attempts) <= 2
        waves = [a.slot.wave for a in record.attempts if a.slot is not None]
        assert waves == sorted(set(waves))
    if isinstance(forecast.ending, Done):
        open_runs = {r.run for r in forecast.records if r.state != "complete"}
        assert set(forecast.ending.blocked) == open_runs
        assert all(forecast.ending.blocked.values())
    else:
        assert forecast.ending.kind in ("budget", "stop")
        assert forecast.ending.reason


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_ledger_grows_balances_and_keeps_within_its_cap(case: Case) -> None:
    forecast = played(case)
    before = 0
    for index, charge in enumerate(forecast.charges):
        assert charge.gpu_seconds >= 0 or charge.kind == "release"
        if charge.kind in CONSUMED:
            now = balance(forecast.charges[: index + 1]).consumed_ns
            assert now >= before
            before = now
    assert open_reservations(forecast.charges) == {}
    assert balance(forecast.charges).reserved_ns == 0
    assert ledger_problems(forecast.charges, forecast.records) == []
    cap = hours_ns(case.protocol.budget.gpu_hours_max)
    for played_wave in forecast.waves:
        launched = played_wave.consumed_ns - round(played_wave.gpu_s * 1e9)
        assert launched + round(played_wave.wave.reserved_gpu_s * 1e9) <= cap + 1


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(0, 6))
def test_resuming_between_waves_changes_nothing(case: Case, waves: int) -> None:
    whole = played(case)
    first = played(case, waves_max=waves)
    rest = played(
        case,
        records=list(first.records),
        charges=first.charges,
        start_ns=first.waves[-1].end_ns if first.waves else 0,
    )
    if first.stop is None:
        assert rest.records == whole.records
        assert rest.charges == whole.charges


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_matrix_is_launched_in_the_protocols_order(case: Case) -> None:
    if case.trouble:
        return
    order = [r.run for r in planned_runs(case.protocol) if group_of(r) == "matrix"]
    launched = [run for w in played(case).waves if w.wave.group == "matrix" for run in w.wave.runs]
    assert launched == [run for run in order if run in set(launched)]


@settings(max_examples=60, deadline=None)
@given(cases(), st.floats(0, 1))
def test_a_ledger_cut_anywhere_is_settled_from_the_state_files(case: Case, part: float) -> None:
    forecast = played(case)
    kept = list(forecast.charges[: 1 + round(part * (len(forecast.charges) - 1))])
    added = settle(kept, forecast.records, wall_ns=10**18, simulated=True)
    assert ledger_problems([*kept, *added], forecast.records) == []
    assert open_reservations([*kept, *added]) == {}
    whole, mended = balance(forecast.charges), balance([*kept, *added])
    assert abs(mended.consumed_ns - whole.consumed_ns) <= 1_000_000 * len(forecast.charges)
    assert settle([*kept, *added], forecast.records, wall_ns=10**18, simulated=True) == []
