"""One rehearsed run: the real client's session against the engine in virtual time.

Everything lands in a run directory as a real run's would, and everything in it is labelled
simulated. The seconds of the run are those of the clock that is passed around, so neither figures
nor bytes depend on how fast this machine is.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from opprof._version import __version__
from opprof.artifacts.run import Result
from opprof.client.journal import Journal
from opprof.client.output import OutputFolder
from opprof.client.plan import RunPlan
from opprof.client.ports import WindowWatch
from opprof.client.results import Binding, artefacts_of, timeline_of
from opprof.client.session import Session
from opprof.client.steps import StepWindow, read_stream
from opprof.client.timeline import Progress
from opprof.client.virtual import FixedWindow, VirtualClock
from opprof.code_hash import code_sha256
from opprof.engines.sim.blocks import BlockPool
from opprof.engines.sim.config import ProfilerConfig, SimConfig
from opprof.engines.sim.cost import CostFile
from opprof.engines.sim.effects import Effects
from opprof.engines.sim.engine import SimEngine
from opprof.engines.sim.kineto import TraceWriter
from opprof.engines.sim.layer1 import StepRecorder
from opprof.engines.sim.profiler import Profiler
from opprof.errors import EnvironmentFailure
from opprof.files import write_atomic
from opprof.protocol import Protocol
from opprof.rehearsal.source import PlannedManifest
from opprof.rehearsal.transport import EngineTransport

START_NS = 1_000_000_000_000
"""Where the virtual clock stands when the server is up."""
WALL_NS = 1_790_000_000_000_000_000
"""Virtual wall clock of the same moment; a constant, so that equal seeds give equal bytes."""
_LEAD_NS = 20_000_000
_SLICE_NS = 60_000_000_000
_LIMIT_NS = 200_000 * 1_000_000_000


@dataclass(frozen=True)
class RehearsedRun:
    """What one rehearsed run is made of."""

    plan: RunPlan
    manifest: PlannedManifest
    config: SimConfig
    protocol: Protocol
    seed: int
    effects: Effects
    drain_hang_s: float = 0.0
    """Planted: the engine hangs this long when the drain begins."""
    stale_cache: bool = False
    """Planted: an earlier load left every prompt in the prefix cache (FIELD-CASES 15)."""
    fixed_window_s: float | None = None
    """Length of a profile window; None ends it when its iterations are over."""
    extra: dict[str, Any] | None = None
    """Further entries of ``result.metrics``."""


class _Stage:
    """The engine and the client of one run on one clock."""

    def __init__(self, run: RehearsedRun, cost: CostFile, folder: Path) -> None:
        self.run = run
        self.clock = VirtualClock(START_NS)
        self.output = OutputFolder(folder / "client")
        self.output.check()
        self.output.create(run.manifest.summary)
        self.stream = folder / "opprof" / "engine-0.jsonl"
        self.raw_traces = folder / "traces"
        config, ranks = run.config, run.config.tensor_parallel_size
        self.recorder = StepRecorder(
            self.stream,
            config.header(),
            now_ns=self.clock.now_ns,
            wall_ns=self._wall_ns,
            drop=run.effects.dropped_steps,
        )
        profiler = None
        if config.profiler is not None:
            writer = TraceWriter(
                self.raw_traces,
                cost,
                ranks,
                seed=run.seed + 1,
                wall_ns=self._wall_ns,
                mono_ns=self.clock.now_ns,
                step_annotations=config.step_annotations,
            )
            events = self.stream.with_name("engine-0.profiler.ndjson")
            profiler = Profiler(config.profiler, cost.profiler, ranks, writer.write, events)
        self.engine = SimEngine(
            config,
            cost,
            self.clock,
            seed=run.seed,
            recorder=self.recorder,
            profiler=profiler,
            effects=run.effects,
        )
        run.manifest.source.named_blocks = run.stale_cache
        if run.stale_cache:
            _fill_cache(self.engine.pool, run.manifest)
        self.journal = Journal(self.output.requests)
        self.journal.open()
        watch: WindowWatch | None = None
        if run.fixed_window_s is not None:
            watch = FixedWindow(round(run.fixed_window_s * 1e9))
        elif run.plan.windows.count:
            watch = StepWindow(self.stream, run.plan.windows.steps)
        transport = EngineTransport(self.clock, self.engine)
        self.session = Session(
            run.plan, self.clock, transport, run.manifest.source, watch, self.journal
        )
        self.session.simulated = True

    def _wall_ns(self) -> int:
        return WALL_NS + self.clock.now_ns() - START_NS

    def go(self) -> None:
        """Run from the first request to the end of the drain.

        Raises:
            EnvironmentFailure: the session never ended, which is a defect.
        """
        ended: list[bool] = []
        self.session.on_finished = lambda: ended.append(True)
        self.session.machine.on_phase = self._entered
        self.session.admission.warm()
        self.session.start(self.clock.now_ns() + _LEAD_NS)
        until_ns = START_NS
        with _uncollected():
            while not ended:
                until_ns += _SLICE_NS
                if until_ns > START_NS + _LIMIT_NS:
                    raise EnvironmentFailure("the rehearsed run never ended")
                self.clock.run(until_ns=until_ns)
        self.journal.close()
        self.engine.stop()

    def _entered(self, progress: Progress) -> None:
        if progress.kind == "drain" and self.run.drain_hang_s:
            self.engine.stall(round(self.run.drain_hang_s * 1e9))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Search for no reference cycles while a run goes.

    Nearly all that it makes lives to its end; looking through it takes up to a third of the time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def rehearse_run(run: RehearsedRun, cost: CostFile, folder: Path) -> Result:
    """Rehearse one run into ``folder`` (a run directory) and return the client's verdict.

    Raises:
        StateConflict: the folder holds a run already.
        EnvironmentFailure: a file cannot be written.
    """
    stage = _Stage(run, cost, folder)
    report = msgspec.json.format(msgspec.json.encode(run.config.report(cost)), indent=1)
    write_atomic(stage.stream.with_name("engine-config.json"), report + b"\n")
    stage.go()
    names = _collect_traces(stage.raw_traces, run.config.tensor_parallel_size)
    stream = read_stream(stage.stream)
    facts = stage.session.facts(stream, None)
    binding = _binding(run)
    artefacts = artefacts_of(facts, stage.clock.name, binding)
    stage.output.write_timeline(timeline_of(facts, stage.clock.name, "running", None))
    stage.output.write_all(artefacts, facts, binding)
    _write_records(run, folder, names)
    return artefacts.result


def _fill_cache(pool: BlockPool, manifest: PlannedManifest) -> None:
    """Leave the first requests' blocks in the prefix cache, as an earlier load would."""
    for index in range(len(manifest.source)):
        contents = manifest.source[index].contents
        # Half of the blocks: a full pool would evict each prompt just before it is sent.
        if pool.cached + len(contents) > pool.count // 2:
            return
        blocks = pool.allocate(len(contents))
        assert blocks is not None
        pool.cache(blocks, 0, contents)
        pool.release(blocks)


def profiler_config(protocol: Protocol, folder: Path) -> ProfilerConfig:
    """Return the protocol's profiler schedule, writing to a run directory's traces."""
    layer2 = protocol.file.layer2
    return ProfilerConfig(folder / "traces", layer2.warmup_iterations, layer2.active_iterations)


def _binding(run: RehearsedRun) -> Binding:
    row = run.protocol.pattern(run.plan.pattern)
    return Binding(
        gates=run.protocol.file.gates,
        warmup_rule="completions" if row is None else row.warmup_rule,
        protocol_id=run.protocol.file.id,
        protocol_sha256=run.protocol.sha256,
        manifest_sha256=run.manifest.summary.sha256,
        code_version=__version__,
        code_sha256=code_sha256(),
        extra={"simulated": True, "seed": run.seed, **(run.extra or {})},
    )


def _collect_traces(folder: Path, ranks: int) -> dict[str, str]:
    """Give the traces the contract's names; return new name to vLLM's."""
    if not folder.is_dir():
        return {}
    names = {}
    for rank in range(ranks):
        # The name ends in the time of writing, so the order of names is the order of windows.
        found = sorted(folder.glob(f"*_rank{rank}.*.pt.trace.json.gz"))
        for window, path in enumerate(found):
            target = folder / f"window{window}-rank{rank}.pt.trace.json.gz"
            path.rename(target)
            names[target.name] = path.name
    return names


def _write_records(run: RehearsedRun, folder: Path, traces: dict[str, str]) -> None:
    """Write what the controller of a real run records; all of it says that it is simulated."""
    environment = {
        "simulated": True,
        "note": "an embedded engine made this run: no measurement",
        "engine": f"opprof-sim {__version__}",
        "seed": run.seed,
        "traces": traces,
    }
    write_atomic(folder / "environment.json", json.dumps(environment, indent=1).encode() + b"\n")
    command = (
        f"# simulated: no command was run\nopprof rehearse: {run.plan.pattern}/{run.plan.config} "
        f"{run.plan.load_point} {run.plan.role}\n"
    )
    write_atomic(folder / "commands.log", command.encode())
    write_atomic(folder / "server.log", b"SIMULATED: opprof-sim has no server log in process\n")
