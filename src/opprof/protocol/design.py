"""What a protocol implies: cells, runs, windows, order and cost (protocol, "Total run count").

Pure arithmetic over :class:`ProtocolFile`; all of ``opprof protocol show`` comes from here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from opprof.artifacts.run import LoadPoint, Role
from opprof.errors import InputError
from opprof.protocol.model import ProtocolFile


@dataclass(frozen=True)
class Design:
    """Counts and costs of a whole campaign; seconds and hours as the names say."""

    patterns: int
    configs: int
    cells: int
    tp1_cells: int
    primary_runs: int
    confirmation_runs: int
    measured_runs: int
    burnins: int
    windows: int
    active_iterations: int
    trace_files: int
    clean_s_per_run: float
    primary_run_s: float
    burnin_run_s: float
    wall_hours: float
    gpu_hours: float


def cells(protocol: ProtocolFile) -> list[tuple[str, str]]:
    """Return all (pattern, config) cells: the baseline for every pattern, sentinels, extras."""
    rule = protocol.cells
    result = [(row.id, rule.baseline_config) for row in protocol.patterns]
    result += [(p, c) for p in rule.sentinel_patterns for c in rule.sentinel_configs]
    return result + list(rule.extra)


@dataclass(frozen=True, order=True)
class RunKind:
    """What tells one planned run from every other."""

    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    has_windows: bool = field(default=False, compare=False)
    """Whether profile windows follow its clean segments."""


def run_kinds(protocol: ProtocolFile) -> frozenset[RunKind]:
    """Return every run that the protocol plans, those of the co-location check included.

    Its target runs at both load points, the backgrounds beside it at saturation, whichever regimes
    a host has room for.
    """
    loads: tuple[LoadPoint, ...] = ("saturation", "moderate")
    repeats, gate = protocol.confirmations, protocol.colocation
    found = [RunKind(p, c, load, "primary", True) for p, c in cells(protocol) for load in loads]
    found += [
        RunKind(pattern, repeats.config, repeats.load_point, "confirmation")
        for pattern in repeats.patterns
    ]
    found += [
        RunKind(protocol.burnin.pattern, row.id, "saturation", "burnin") for row in protocol.configs
    ]
    if gate is not None:
        names = [gate.pattern, *gate.backgrounds_eight, *gate.backgrounds_four]
        found += [RunKind(gate.pattern, gate.config, "moderate", "colocation", True)]
        found += [RunKind(name, gate.config, "saturation", "colocation") for name in names]
    return frozenset(found)


def execution_order(protocol: ProtocolFile) -> list[tuple[str, str]]:
    """Return the cells sorted by ``SHA256("seed:" + pattern + ":" + config)``, ascending."""
    seed = protocol.seeds.execution_order

    def key(cell: tuple[str, str]) -> str:
        return hashlib.sha256(f"{seed}:{cell[0]}:{cell[1]}".encode()).hexdigest()

    return sorted(cells(protocol), key=key)


def primary_run_s(protocol: ProtocolFile) -> float:
    """Return the expected seconds of a primary run, drain not included."""
    budget, timeline = protocol.budget, protocol.timeline
    return (
        budget.startup_s
        + timeline.warmup_s
        + timeline.clean_s
        + timeline.profile_windows * (budget.profile_window_s + timeline.recovery_s)
        + budget.shutdown_s
    )


def design(protocol: ProtocolFile) -> Design:
    """Compute every count and the expected cost of the campaign.

    Raises:
        InputError: a cell or the confirmations name a configuration that is not there.
    """
    parallel = {row.id: row.tensor_parallel_size for row in protocol.configs}
    all_cells = cells(protocol)
    used = [*(config for _, config in all_cells), protocol.confirmations.config]
    if unknown := [config for config in used if config not in parallel]:
        raise InputError(f"no configuration is called {unknown[0]!r}")
    gpus = [parallel[config] for _, config in all_cells]
    loads = 2
    windows_per_run = protocol.timeline.profile_windows
    budget, timeline = protocol.budget, protocol.timeline
    primary_s = primary_run_s(protocol)
    burnin_s = budget.startup_s + protocol.burnin.seconds + budget.shutdown_s
    confirmations = len(protocol.confirmations.patterns)
    confirmation_gpus = parallel[protocol.confirmations.config]
    primary_runs = loads * len(all_cells)
    wall_s = (
        primary_runs * primary_s
        + confirmations * budget.confirmation_s
        + len(protocol.configs) * burnin_s
    )
    gpu_s = (
        loads * primary_s * sum(gpus)
        + confirmations * budget.confirmation_s * confirmation_gpus
        + burnin_s * sum(parallel.values())
    )
    return Design(
        patterns=len(protocol.patterns),
        configs=len(protocol.configs),
        cells=len(all_cells),
        tp1_cells=sum(1 for n in gpus if n == 1),
        primary_runs=primary_runs,
        confirmation_runs=confirmations,
        measured_runs=primary_runs + confirmations,
        burnins=len(protocol.configs),
        windows=primary_runs * windows_per_run,
        active_iterations=primary_runs * windows_per_run * protocol.layer2.active_iterations,
        trace_files=loads * windows_per_run * sum(gpus),
        clean_s_per_run=timeline.clean_s,
        primary_run_s=primary_s,
        burnin_run_s=burnin_s,
        wall_hours=wall_s / 3600,
        gpu_hours=gpu_s / 3600,
    )
