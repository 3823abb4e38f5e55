"""Everything of a run that is files: manifest, rate, the engine's folder, and what is written.

Shared by the run against a server (:mod:`opprof.client.run`) and the run in lock step with an
embedded engine (:mod:`opprof.client.lockstep_run`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opprof._version import __version__
from opprof.artifacts.run import Result, RunState
from opprof.client.facts import RunFacts
from opprof.client.options import RunOptions, build_plan, deviations
from opprof.client.output import OutputFolder
from opprof.client.plan import RunPlan
from opprof.client.ports import RequestSpec, WindowWatch
from opprof.client.profiler import (
    CollectedTrace,
    EngineProfiler,
    check_schedule,
    collect_traces,
    read_engine_profiler,
)
from opprof.client.results import Binding, artefacts_of, timeline_of
from opprof.client.saturation import DerivedRate, derive_rate
from opprof.client.session import Session
from opprof.client.steps import StepWindow, read_stream, stream_path
from opprof.client.virtual import FixedWindow
from opprof.errors import InputError, OpprofError
from opprof.protocol import Protocol
from opprof.rules.durations import seconds_to_ns
from opprof.workload.read import Manifest


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended."""

    result: Result | None
    """None when it was interrupted."""
    folder: Path


class ManifestSource:
    """The manifest as the client's request source."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def __len__(self) -> int:
        return len(self._manifest)

    def __getitem__(self, index: int) -> RequestSpec:
        request = self._manifest.request(index)
        return RequestSpec(
            request.id, request.prompt_json, request.input_tokens, request.output_tokens
        )


class RunFiles:
    """One run's options, plan and files.

    Raises:
        InputError: the manifest is of another seed, or the saturation result cannot be used.
    """

    def __init__(
        self, options: RunOptions, protocol: Protocol, manifest: Manifest, output: OutputFolder
    ) -> None:
        _check_seed(options, manifest)
        self.options = options
        self.protocol = protocol
        self.manifest = manifest
        self.output = output
        self.rate = _rate(options, manifest)
        self.plan: RunPlan = build_plan(
            options,
            pattern=manifest.pattern,
            arrival=manifest.arrival,
            rate=self.rate,
            protocol=protocol,
        )
        self._engine: EngineProfiler | None = None

    def check_kind(self, simulated: bool) -> None:
        """Refuse a rate of the other kind.

        Raises:
            InputError: the rate comes from a server of the other kind (real, simulated).
        """
        if self.rate is not None and self.rate.simulated != simulated:
            kinds = ("a real server", "a simulated one")
            raise InputError(
                f"is of {kinds[self.rate.simulated]}, this is {kinds[simulated]}",
                path=self.options.saturation_result,
            )

    def engine_files(self) -> Path | None:
        """Return the Layer-1 stream's path and check what the engine says of its profiler.

        Raises:
            InputError: the rate comes from a server of the other kind (real, simulated).
            EnvironmentFailure: the engine's profiler has another schedule.
        """
        options = self.options
        if options.opprof_dir is None:
            return None
        path = stream_path(options.opprof_dir)
        self.check_kind(read_stream(path).simulated)
        self._engine = read_engine_profiler(options.opprof_dir)
        if self._engine is not None and self.plan.windows.count:
            check_schedule(
                self._engine, options.profile_warmup_iterations, options.profile_active_iterations
            )
        return path

    def watch(self, stream_file: Path | None) -> WindowWatch:
        """Return what tells when a profile window is over."""
        plan, options = self.plan, self.options
        if stream_file is not None:
            return StepWindow(stream_file, plan.windows.steps)
        seconds = options.profile_window_seconds
        if seconds is None:
            seconds = self.protocol.file.timeline.profile_window_fallback_s
        # Not scaled: the engine's iterations take as long as ever.
        return FixedWindow(seconds_to_ns(seconds))

    def say(self, session: Session | None, state: RunState, reason: str | None) -> None:
        """Write the state of a run that has no result (yet)."""
        if session is not None:
            facts = session.facts(None, None)
            self.output.write_timeline(timeline_of(facts, session.clock.name, state, reason))

    def write(self, facts: RunFacts, clock: str, client: dict[str, Any]) -> Result:
        """Collect the traces and write every artefact, the result last.

        ``client``: what the client says of itself, for ``result.metrics``.

        Raises:
            EnvironmentFailure: a file cannot be written; no result appears.
        """
        from opprof.code_hash import code_sha256

        row = self.protocol.pattern(self.plan.pattern)
        traces = [asdict(trace) for trace in self._collect(facts)]
        binding = Binding(
            gates=self.protocol.file.gates,
            warmup_rule="completions" if row is None else row.warmup_rule,
            protocol_id=self.protocol.file.id,
            protocol_sha256=self.protocol.sha256,
            manifest_sha256=self.manifest.sha256,
            code_version=__version__,
            code_sha256=code_sha256(),
            extra={
                "traces": traces,
                "rate": self._rate_row(),
                "protocol_deviations": deviations(self.options, self.protocol),
                "client": client,
            },
        )
        artefacts = artefacts_of(facts, clock, binding)
        self.output.write_all(artefacts, facts, binding)
        return artefacts.result

    def _rate_row(self) -> dict[str, Any] | None:
        rate = self.rate
        if rate is None:
            return None
        return {
            "rate_rps": rate.rate_rps,
            "fraction": rate.fraction,
            "saturation_rps": rate.saturation_rps,
            "saturation_result_sha256": rate.saturation_sha256,
        }

    def _collect(self, facts: RunFacts) -> list[CollectedTrace]:
        """Put the windows' traces into the run directory, where the engine's folder is readable."""
        folder = None if self._engine is None else self._engine.profiler_dir
        target = self.output.traces
        if folder is None or target is None or not Path(folder).is_dir():
            return []
        try:
            return collect_traces(facts.profiler_events, facts.windows, Path(folder), target)
        except OpprofError as error:
            facts.faults.append(str(error))
            return []


def _check_seed(options: RunOptions, manifest: Manifest) -> None:
    seed = manifest.summary.generator.get("workload_seed")
    if options.workload_seed is not None and seed is not None and seed != options.workload_seed:
        raise InputError(
            f"--workload-seed {options.workload_seed} is not the manifest's seed {seed}",
            path=manifest.path,
        )


def _rate(options: RunOptions, manifest: Manifest) -> DerivedRate | None:
    if options.load_point == "saturation":
        return None
    assert options.saturation_result is not None and options.rate_fraction is not None
    return derive_rate(
        options.saturation_result,
        options.rate_fraction,
        manifest_sha256=manifest.sha256,
        pattern=manifest.pattern,
        config=options.config,
        role=options.role,
    )
