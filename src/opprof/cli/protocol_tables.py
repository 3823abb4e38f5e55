"""What ``opprof protocol show`` prints, as lines."""

from __future__ import annotations

from opprof.protocol.design import Design, cells
from opprof.protocol.load import Protocol
from opprof.words import plural


def show_lines(protocol: Protocol, numbers: Design, order: list[tuple[str, str]]) -> list[str]:
    """Return the whole design as lines."""
    parts = [
        [*_head(protocol), *_freeze(protocol)],
        _matrix(protocol),
        _arithmetic(protocol, numbers),
        _gates(protocol),
        _stops(protocol),
        _order(order),
        _amendments(protocol),
    ]
    return [line for part in parts for line in [*part, ""]][:-1]


def _freeze(protocol: Protocol) -> list[str]:
    freeze = protocol.file.freeze
    if freeze is None:
        return []
    return [
        f"frozen    {freeze.date}, from draft {freeze.draft_sha256}",
        f"          client {freeze.client_sha256}",
        f"          plugin {freeze.plugin_sha256}",
        f"          hooked functions {freeze.hooks_sha256}",
        *(f"          mapping {name} {digest}" for name, digest in freeze.mappings.items()),
        f"          code {freeze.code_version} {freeze.code_sha256}",
    ]


def _head(protocol: Protocol) -> list[str]:
    file = protocol.file
    open_decisions = [row.number for row in file.open_decisions if row.approved is None]
    pinned = file.pinned
    return [
        f"{file.id}: {file.title}",
        f"status    {file.status}, dated {file.date}, {plural(len(file.amendments), 'amendment')}, "
        f"open decisions without approval: {open_decisions or 'none'}",
        f"sha256    {protocol.sha256}",
        f"system    {pinned.model} {pinned.dtype}, {pinned.engine} {pinned.engine_version}, "
        f"{pinned.hardware}",
        f"variables {', '.join('${' + name + '}' for name in file.variables)}",
        f"seeds     workload {file.seeds.workload}, order {file.seeds.execution_order}, "
        f"statistics {file.seeds.statistics}",
        f"mapping   {file.mapping.pinned} decides; also shown: "
        f"{', '.join(file.mapping.alternatives) or 'none'}",
    ]


def _matrix(protocol: Protocol) -> list[str]:
    chosen = cells(protocol.file)
    rows = ["pattern  configs" + " " * 25 + "cell"]
    for pattern in protocol.file.patterns:
        configs = " ".join(c for p, c in chosen if p == pattern.id)
        rows.append(f"{pattern.id:<8} {configs:<31} {pattern.cell}")
    return rows


def _arithmetic(protocol: Protocol, numbers: Design) -> list[str]:
    budget, timeline = protocol.file.budget, protocol.file.timeline
    return [
        f"patterns            {numbers.patterns}",
        f"configurations      {numbers.configs}",
        f"cells               {numbers.cells} ({numbers.tp1_cells} on one GPU)",
        f"measured runs       {numbers.primary_runs} + "
        f"{plural(numbers.confirmation_runs, 'confirmation')} = {numbers.measured_runs}, and "
        f"{plural(numbers.burnins, 'burn-in')}",
        f"profiler windows    {numbers.windows}, {numbers.active_iterations} active iterations, "
        f"{numbers.trace_files} trace files",
        f"clean seconds       {numbers.clean_s_per_run:g} a run "
        f"({timeline.clean_segments} x {timeline.clean_segment_s:g})",
        f"one primary run     {numbers.primary_run_s:g} s",
        f"one confirmation    {budget.confirmation_s:g} s; one burn-in {numbers.burnin_run_s:g} s",
        f"wall, one at a time about {budget.wall_hours_estimate:g} h "
        f"({numbers.wall_hours:.3f} computed)",
        *_parallel(protocol),
        f"GPU time            about {budget.gpu_hours_estimate:g} GPU-hours "
        f"({numbers.gpu_hours:.3f} computed)",
        f"budget              {budget.gpu_hours_max:g} GPU-hours, "
        f"{budget.gpu_hours_used:g} used before the campaign",
        f"disk                public at most {_gigabytes(budget.public_bytes_max)}"
        f"{_expected_size(protocol)}, private {_gigabytes(budget.private_bytes_max)}, "
        f"free at least {_gigabytes(budget.free_space_bytes_min)}",
        f"drain budgets       {_drains(protocol)}",
    ]


def _parallel(protocol: Protocol) -> list[str]:
    hours = protocol.file.budget.parallel_wall_hours_estimate
    if hours is None:
        return []
    gpus = protocol.file.placement.gpus
    return [f"wall, {gpus} at a time about {hours[0]:g} to {hours[1]:g} h"]


def _expected_size(protocol: Protocol) -> str:
    size = protocol.file.budget.public_bytes_estimate
    return "" if size is None else f" ({_gigabytes(size)} expected)"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:g} GB"


def _drains(protocol: Protocol) -> str:
    classes: dict[float, list[str]] = {}
    for row in protocol.file.patterns:
        classes.setdefault(row.drain_budget_s, []).append(row.id)
    return "; ".join(f"{seconds:g} s {' '.join(ids)}" for seconds, ids in sorted(classes.items()))


def _stops(protocol: Protocol) -> list[str]:
    gates = protocol.file.gates
    shares = (
        f"  quarantined drains above {gates.drain_quarantine_share_max:.0%} or clean-window "
        f"failures above {gates.clean_failure_share_max:.0%} of the measured runs"
    )
    rows = ["the matrix stops for review at", shares]
    for row in protocol.file.stops:
        rows.append(f"  {row.number}. {row.text}")
        if row.superseded:
            rows.append(f"     {row.superseded}")
    return rows


def _gates(protocol: Protocol) -> list[str]:
    rows = ["gates"]
    gates = protocol.file.gates
    for name in gates.__struct_fields__:
        value = getattr(gates, name)
        shown = (" ".join(value) or "none") if isinstance(value, list) else f"{value:g}"
        rows.append(f"  {name:<40} {shown}")
    rows.append(f"  {'smd_max':<40} {protocol.file.representativeness.smd_max:g}")
    rows.append(f"  {'inversion_gap_share':<40} {protocol.file.ranking.inversion_gap_share:g}")
    return rows


def _order(order: list[tuple[str, str]]) -> list[str]:
    names = [f"{pattern}/{config}" for pattern, config in order]
    lines = [" ".join(names[i : i + 8]) for i in range(0, len(names), 8)]
    return ["execution order", *(f"  {line}" for line in lines)]


def _amendments(protocol: Protocol) -> list[str]:
    if not protocol.file.amendments:
        return ["no amendments"]
    rows = ["amendments (later takes precedence)"]
    for amendment in protocol.file.amendments:
        rows.append(f"  {amendment.date} {amendment.id} - {amendment.title}: {amendment.summary}")
        if amendment.supersedes:
            rows.append(f"    supersedes {'; '.join(amendment.supersedes)}")
        if amendment.reason:
            rows.append(f"    reason: {amendment.reason}")
    return rows
