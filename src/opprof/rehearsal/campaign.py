"""The whole campaign of a protocol in virtual time: which runs, in which order, at what cost.

Runs come in the protocol's execution order, each cell's saturation before its moderate load, whose
rate is derived from the saturation's accepted result by the client's own rule; confirmations last.
A cell whose saturation is not accepted has no moderate run, as in the real campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof.artifacts.run import LoadPoint, Result, Role
from opprof.client.options import RunOptions, build_plan, check_options
from opprof.client.saturation import DerivedRate, derive_rate
from opprof.engines.sim.config import DEFAULT_MAX_MODEL_LEN, SimConfig
from opprof.engines.sim.cost import CostFile, load_cost
from opprof.engines.sim.flags import ModelledFlags, read_flags
from opprof.engines.sim.seeds import run_seed
from opprof.errors import InputError
from opprof.protocol import Protocol
from opprof.protocol.design import execution_order
from opprof.protocol.load import parse_protocol
from opprof.protocol.model import Config, ProtocolFile
from opprof.rehearsal.run import START_NS, RehearsedRun, profiler_config, rehearse_run
from opprof.rehearsal.source import PlannedManifest, plan_manifest
from opprof.rehearsal.truth import Truth, planted_in
from opprof.workers import run_many


@dataclass(frozen=True)
class RunReport:
    """How one run of the campaign went."""

    folder: Path
    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    accepted: bool
    reasons: tuple[str, ...]
    completed_rps: float | None
    offered_rps: float | None
    virtual_s: float
    """From the server's readiness to the end of the drain."""
    gpus: int
    drain_quarantined: bool


@dataclass(frozen=True)
class Skipped:
    """A run that could not be made, with the reason."""

    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    reason: str


@dataclass(frozen=True)
class CampaignReport:
    """All runs of a rehearsed campaign."""

    runs: tuple[RunReport, ...]
    skipped: tuple[Skipped, ...]
    gpu_hours: float
    """Start-up, run, shutdown and burn-ins, as the protocol's budget counts them."""
    wall_hours: float
    """One run after the other."""


@dataclass(frozen=True)
class Cell:
    """What one worker process needs to rehearse a cell."""

    protocol_bytes: bytes
    protocol_source: str
    pattern: str
    config: str
    load_points: tuple[LoadPoint, ...]
    role: Role
    truth: Truth
    seed: int
    out: Path
    saturation: Path | None
    """Result of the saturation run that a confirmation's rate comes from."""


def rehearse_campaign(
    protocol: Protocol,
    protocol_bytes: bytes,
    truth: Truth,
    out: Path,
    *,
    seed: int,
    jobs: int = 1,
    advance: Callable[[str], None] = lambda _line: None,
) -> CampaignReport:
    """Rehearse every run of the protocol into folders below ``out``.

    ``jobs``: worker processes; results do not depend on it. ``advance`` is told of each cell.

    Raises:
        InputError: the protocol names configurations or patterns that cannot be rehearsed.
        StateConflict: a run folder exists already.
    """
    source = protocol.source
    both: tuple[LoadPoint, ...] = ("saturation", "moderate")
    cells = [
        Cell(protocol_bytes, source, pattern, config, both, "primary", truth, seed, out, None)
        for pattern, config in execution_order(protocol.file)
    ]

    def tell(found: Sequence[RunReport | Skipped]) -> None:
        advance(_line(found))

    done = run_many(rehearse_cell, cells, jobs=jobs, done=tell)
    rule = protocol.file.confirmations
    results = {
        (run.pattern, run.config): run.folder / "client" / "result.json"
        for cell in done
        for run in cell
        if isinstance(run, RunReport) and run.load_point == "saturation"
    }
    confirmations = [
        Cell(
            protocol_bytes,
            source,
            pattern,
            rule.config,
            (rule.load_point,),
            "confirmation",
            truth,
            seed,
            out,
            results.get((pattern, rule.config)),
        )
        for pattern in rule.patterns
    ]
    done += run_many(rehearse_cell, confirmations, jobs=jobs, done=tell)
    runs = tuple(item for cell in done for item in cell if isinstance(item, RunReport))
    skipped = tuple(item for cell in done for item in cell if isinstance(item, Skipped))
    gpu_s, wall_s = _cost(protocol, runs)
    return CampaignReport(runs, skipped, gpu_s / 3600, wall_s / 3600)


def _line(found: Sequence[RunReport | Skipped]) -> str:
    parts = []
    for item in found:
        name = f"{item.pattern}/{item.config} {item.load_point}"
        if isinstance(item, Skipped):
            parts.append(f"{name} skipped: {item.reason}")
        else:
            parts.append(f"{name} {'accepted' if item.accepted else 'NOT accepted'}")
    return ", ".join(parts)


def rehearse_cell(cell: Cell) -> list[RunReport | Skipped]:
    """Rehearse the runs of one cell, in order."""
    protocol = parse_protocol(cell.protocol_bytes, source=cell.protocol_source)
    cost = load_cost()
    seed = protocol.file.seeds.workload
    manifest = plan_manifest(protocol.file, cell.pattern, workload_seed=seed)
    done: list[RunReport | Skipped] = []
    saturation = cell.saturation
    for load_point in cell.load_points:
        rate = None
        if load_point == "moderate":
            rate = _moderate_rate(cell, protocol, manifest, saturation)
        if isinstance(rate, str):
            done.append(Skipped(cell.pattern, cell.config, load_point, cell.role, rate))
            continue
        report = _rehearse(cell, protocol, cost, manifest, load_point, rate)
        done.append(report)
        if load_point == "saturation":
            saturation = report.folder / "client" / "result.json"
    return done


def _moderate_rate(
    cell: Cell, protocol: Protocol, manifest: PlannedManifest, saturation: Path | None
) -> DerivedRate | str:
    """Derive the moderate rate as the client does; a text says why there is none."""
    if saturation is None:
        return "its cell has no saturation run"
    try:
        return derive_rate(
            saturation,
            protocol.file.load.moderate_rate_fraction,
            manifest_sha256=manifest.summary.sha256,
            pattern=cell.pattern,
            config=cell.config,
            role=cell.role,
        )
    except InputError as error:
        return error.reason


def _rehearse(
    cell: Cell,
    protocol: Protocol,
    cost: CostFile,
    manifest: PlannedManifest,
    load_point: LoadPoint,
    rate: DerivedRate | None,
) -> RunReport:
    suffix = "" if cell.role == "primary" else f"-{cell.role}"
    folder = cell.out / f"{cell.pattern}-{cell.config}-{load_point}{suffix}"
    run = _planned_run(protocol, cell, manifest, load_point, rate, folder)
    result = rehearse_run(run, cost, folder)
    return _report(folder, result, run.config.tensor_parallel_size)


def _planned_run(
    protocol: Protocol,
    cell: Cell,
    manifest: PlannedManifest,
    load_point: LoadPoint,
    rate: DerivedRate | None,
    folder: Path,
) -> RehearsedRun:
    """Return one run as the protocol and the truth want it.

    Raises:
        InputError: the protocol has no such configuration, or options that do not go together.
    """
    row = protocol.config(cell.config)
    if row is None:
        raise InputError(f"the protocol has no configuration {cell.config}")
    options = run_options(protocol, cell.config, load_point, cell.role, folder)
    check_options(options)
    plan = build_plan(
        options,
        pattern=cell.pattern,
        arrival=manifest.summary.arrival,
        rate=rate,
        protocol=protocol,
    )
    planted = planted_in(cell.truth, cell.pattern, cell.config, load_point, START_NS)
    flags = server_flags(protocol.file, row)
    config = SimConfig(
        model=protocol.file.pinned.model,
        tensor_parallel_size=row.tensor_parallel_size,
        max_num_seqs=row.max_num_seqs,
        max_num_batched_tokens=row.max_num_batched_tokens,
        chunked_prefill=protocol.file.server.chunked_prefill,
        prefix_caching=protocol.file.server.prefix_caching,
        async_scheduling=flags.async_scheduling is not False,
        max_model_len=flags.max_model_len or DEFAULT_MAX_MODEL_LEN,
        kv_blocks=flags.kv_blocks,
        enforce_eager=flags.enforce_eager,
        profiler=profiler_config(protocol, folder),
    )
    extra = {"truth": cell.truth.file.name, "truth_sha256": cell.truth.sha256}
    return RehearsedRun(
        plan=plan,
        manifest=manifest,
        config=config,
        protocol=protocol,
        seed=run_seed(cell.seed, folder.name),
        effects=planted.effects,
        drain_hang_s=planted.drain_hang_s,
        stale_cache=planted.stale_cache,
        extra=extra,
    )


def server_flags(file: ProtocolFile, row: Config) -> ModelledFlags:
    """Return what a configuration's server command says beyond the tables.

    Raises:
        InputError: a number that is none.
    """
    return read_flags([*file.server.command.split(), *row.flags])


def run_options(
    protocol: Protocol, config: str, load_point: LoadPoint, role: Role, folder: Path
) -> RunOptions:
    """Return ``opprof run``'s arguments for a run as the protocol wants it."""
    file = protocol.file
    windows = file.timeline.profile_windows if role == "primary" else 0
    moderate = load_point == "moderate"
    return RunOptions(
        manifest=Path("planned"),
        base_url="http://simulated",
        model=file.pinned.model,
        load_point=load_point,
        request_rate=None if moderate else "inf",
        saturation_result=Path("derived") if moderate else None,
        rate_fraction=file.load.moderate_rate_fraction if moderate else None,
        max_concurrency=file.load.saturation_max_concurrency,
        temperature=file.workload.temperature,
        warmup_seconds=file.timeline.warmup_s,
        clean_segment_seconds=file.timeline.clean_segment_s,
        num_clean_segments=file.timeline.clean_segments,
        profile_after_clean=windows > 0,
        num_profile_windows=windows,
        profile_warmup_iterations=file.layer2.warmup_iterations,
        profile_active_iterations=file.layer2.active_iterations,
        profile_window_seconds=None,
        recovery_seconds=file.timeline.recovery_s,
        drain_timeout_seconds=min(row.drain_budget_s for row in file.patterns),
        workload_seed=file.seeds.workload,
        result_dir=folder / "client",
        config=config,
        role=role,
        opprof_dir=folder / "opprof",
        progress=False,
    )


def _report(folder: Path, result: Result, gpus: int) -> RunReport:
    timeline = msgspec.json.decode((folder / "client" / "timeline.json").read_bytes())
    ends = [interval["end_mono_ns"] for interval in timeline["intervals"]]
    return RunReport(
        folder=folder,
        pattern=result.pattern,
        config=result.config,
        load_point=result.load_point,
        role=result.role,
        accepted=result.accepted,
        reasons=tuple(result.reasons),
        completed_rps=result.completed_rps,
        offered_rps=result.offered_rps,
        virtual_s=(max(ends, default=START_NS) - START_NS) / 1e9,
        gpus=gpus,
        drain_quarantined=result.drain_quarantined,
    )


def _cost(protocol: Protocol, runs: Sequence[RunReport]) -> tuple[float, float]:
    """Return GPU seconds and wall seconds, burn-ins included."""
    budget = protocol.file.budget
    around_s = budget.startup_s + budget.shutdown_s
    burnin_s = around_s + protocol.file.burnin.seconds
    gpu_s = sum((run.virtual_s + around_s) * run.gpus for run in runs)
    gpu_s += burnin_s * sum(config.tensor_parallel_size for config in protocol.file.configs)
    wall_s = sum(run.virtual_s + around_s for run in runs)
    return gpu_s, wall_s + burnin_s * len(protocol.file.configs)
