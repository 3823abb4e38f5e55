"""Numbers of a protocol that each are possible and together are not.

What a single number may be is its type's (:mod:`opprof.protocol.base`), refused as it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from opprof.errors import InputError
from opprof.host.cpus import format_cpus, parse_cpus
from opprof.protocol.design import cells, primary_run_s
from opprof.protocol.model import ProtocolFile

_BINS_MAX = 1_000_000
"""What fits into the memory of one machine; no measurement is decided by it."""


def check_numbers(protocol: ProtocolFile) -> list[str]:
    """Return every impossible pair as one sentence that names the key."""
    return [
        *_seeds(protocol),
        *_load(protocol),
        *_gates(protocol),
        *_servers(protocol),
        *_places(protocol),
        *_statistics(protocol),
        *_budget(protocol),
        *_trace(protocol),
    ]


def _seeds(protocol: ProtocolFile) -> Iterator[str]:
    """Equal seeds of two generators of one kind make the same numbers, which are then no chance."""
    seeds = protocol.seeds
    named = [(key, getattr(seeds, key)) for key in seeds.__struct_fields__]
    for (first, one), (second, other) in combinations(named, 2):
        if one == other:
            yield f"seeds.{second}: {other} is the seed of seeds.{first} as well"


def _load(protocol: ProtocolFile) -> Iterator[str]:
    requests, cap = protocol.workload.num_requests, protocol.load.saturation_max_concurrency
    if cap > requests:
        yield (
            f"load.saturation_max_concurrency: {cap}, but a manifest has {requests} requests "
            "(workload.num_requests) and never wraps"
        )
    for row in protocol.patterns:
        kind, _, size = row.arrival.partition(":")
        if kind == "burst" and int(size) > cap:
            yield (
                f"patterns.{row.id}.arrival: {size} at once, but at most {cap} are ever "
                "outstanding (load.saturation_max_concurrency)"
            )
    for count in protocol.waste.raggedness_cohorts:
        if count > requests:
            yield f"waste.raggedness_cohorts: {count} of the {requests} requests of a manifest"


def _gates(protocol: ProtocolFile) -> Iterator[str]:
    gates, requests = protocol.gates, protocol.workload.num_requests
    for key in ("warmup_completions_min", "warmup_stabilized_completions_min"):
        if getattr(gates, key) > requests:
            yield f"gates.{key}: {getattr(gates, key)}, but a manifest has {requests} requests"
    plain, relaxed = gates.warmup_completions_min, gates.warmup_stabilized_completions_min
    branches = any(row.warmup_rule == "completions_or_stabilized" for row in protocol.patterns)
    if branches and relaxed > plain:
        yield (
            f"gates.warmup_stabilized_completions_min: {relaxed}, more than the {plain} that "
            "suffice without stabilization (gates.warmup_completions_min)"
        )
    for row in protocol.patterns:
        if row.drain_budget_s > gates.drain_watchdog_s:
            yield (
                f"patterns.{row.id}.drain_budget_s: {row.drain_budget_s:g}, but after "
                f"{gates.drain_watchdog_s:g} s (gates.drain_watchdog_s) nobody waits any more"
            )
    timeline = protocol.timeline
    for key in ("recovery_s", "clean_segment_s"):
        length = getattr(timeline, key)
        if timeline.profile_windows and length < gates.recovery_rolling_s:
            yield (
                f"timeline.{key}: {length:g}, shorter than gates.recovery_rolling_s "
                f"{gates.recovery_rolling_s:g}: no recovery can be judged"
            )
    active = timeline.profile_windows * protocol.layer2.active_iterations
    if gates.modes_required and gates.mode_active_steps_min > active:
        yield (
            f"gates.mode_active_steps_min: {gates.mode_active_steps_min}, but a load point's "
            f"windows have {active} active steps"
        )


def _servers(protocol: ProtocolFile) -> Iterator[str]:
    for row in protocol.configs:
        if row.tensor_parallel_size > protocol.placement.gpus:
            yield (
                f"configs.{row.id}.tensor_parallel_size: {row.tensor_parallel_size}, but there are "
                f"{protocol.placement.gpus} GPUs (placement.gpus)"
            )
        if row.max_num_batched_tokens < row.max_num_seqs:
            yield (
                f"configs.{row.id}.max_num_batched_tokens: {row.max_num_batched_tokens}, fewer "
                f"than its max_num_seqs {row.max_num_seqs}: vLLM refuses to start"
            )


def _places(protocol: ProtocolFile) -> Iterator[str]:
    placement, masks = protocol.placement, []
    for key, values in (("cpu_map", placement.cpu_map), ("numa_nodes", placement.numa_nodes)):
        if len(values) != placement.gpus:
            yield f"placement.{key}: {len(values)} entries for {placement.gpus} GPUs"
    for mask in placement.cpu_map:
        try:
            cpus = parse_cpus(mask)
        except InputError as error:
            yield f"placement.cpu_map: {error.reason}"
            continue
        masks.append((mask, set(cpus)))
        if not cpus:
            yield "placement.cpu_map: a mask without a CPU"
    for (first, one), (second, other) in combinations(masks, 2):
        if shared := one & other:
            yield (
                f"placement.cpu_map: {first!r} and {second!r} share CPU {format_cpus(shared)}; "
                "masks are disjoint"
            )


def _statistics(protocol: ProtocolFile) -> Iterator[str]:
    rule, fit = protocol.statistics, protocol.interference
    blocks = rule.block_s / rule.bin_s
    if blocks < 1 or blocks != round(blocks):
        yield "statistics.block_s: not a whole number of bins (statistics.bin_s)"
    if protocol.timeline.clean_s < 2 * rule.block_s:
        yield (
            f"statistics.block_s: {rule.block_s:g}, but a run has {protocol.timeline.clean_s:g} "
            "clean seconds: of a single block nothing can be drawn anew"
        )
    bins = protocol.timeline.clean_s / rule.bin_s
    if bins > _BINS_MAX:
        yield f"statistics.bin_s: {bins:.3g} bins in a run's clean seconds, {_BINS_MAX} at most"
    if rule.alpha * (rule.permutations + 1) < 1:
        yield (
            f"statistics.permutations: no p-value of {rule.permutations} permutations is as small "
            f"as statistics.alpha {rule.alpha:g}"
        )
    for key in ("tokens_basis", "requests_basis"):
        if getattr(fit, key) <= fit.degree:
            yield (
                f"interference.{key}: {getattr(fit, key)}, but a spline of degree {fit.degree} "
                "has more functions"
            )
    families = len(protocol.ranking.families)
    if protocol.colocation is not None and protocol.colocation.top_families > families:
        top = protocol.colocation.top_families
        yield f"colocation.top_families: {top} of {families} families (ranking.families)"


def _budget(protocol: ProtocolFile) -> Iterator[str]:
    budget = protocol.budget
    if budget.gpu_hours_used > budget.gpu_hours_max:
        yield "budget.gpu_hours_used: above gpu_hours_max before anything ran"
    elif protocol.status == "draft":
        # An amendment may declare so much that a campaign under way has to stop.
        yield from _no_run_fits(protocol)
    yield from _confirmation(protocol)
    if budget.parallel_wall_hours_estimate is not None:
        first, last = budget.parallel_wall_hours_estimate
        if first > last:
            yield f"budget.parallel_wall_hours_estimate: from {first:g} to {last:g}"
    if (budget.public_bytes_estimate or 0) > budget.public_bytes_max:
        yield "budget.public_bytes_estimate: above public_bytes_max, at which the matrix stops"


def _no_run_fits(protocol: ProtocolFile) -> Iterator[str]:
    budget = protocol.budget
    parallel = {row.id: row.tensor_parallel_size for row in protocol.configs}
    gpus = [parallel[config] for _, config in cells(protocol) if config in parallel]
    if not gpus:
        return
    left_s = (budget.gpu_hours_max - budget.gpu_hours_used) * 3600
    run_s = primary_run_s(protocol) * min(gpus)
    if left_s < run_s:
        yield (
            f"budget.gpu_hours_max: {budget.gpu_hours_max:g}, of which {budget.gpu_hours_used:g} "
            f"are used: {left_s:.0f} GPU seconds are left, and no run takes less than {run_s:.0f}"
        )


def _confirmation(protocol: ProtocolFile) -> Iterator[str]:
    budget, timeline = protocol.budget, protocol.timeline
    parts_s = budget.startup_s + timeline.warmup_s + timeline.clean_s + budget.shutdown_s
    if protocol.confirmations.patterns and budget.confirmation_s < parts_s:
        yield (
            f"budget.confirmation_s: {budget.confirmation_s:g}, but start, warm-up, clean segments "
            f"and shutdown take {parts_s:g} s"
        )


def _trace(protocol: ProtocolFile) -> Iterator[str]:
    source = protocol.private_source
    if source is None:
        return
    if source.rows > source.bytes:
        yield f"private_source.rows: {source.rows} in {source.bytes} bytes"
    if source.selected_rows > source.rows:
        yield f"private_source.selected_rows: {source.selected_rows} of {source.rows} rows"
    for key in ("input_tokens_sum", "output_tokens_sum"):
        if getattr(source, key) < source.selected_rows:
            yield (
                f"private_source.{key}: {getattr(source, key)}, less than a token for each of the "
                f"{source.selected_rows} selected rows"
            )
