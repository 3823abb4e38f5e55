"""Builders for the embedded engine's tests."""

from __future__ import annotations

from pathlib import Path

from opprof.client.virtual import VirtualClock
from opprof.engines.sim.batch import SimRequest
from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.cost import load_cost
from opprof.engines.sim.effects import Effects
from opprof.engines.sim.engine import SimEngine
from opprof.engines.sim.layer1 import StepRecorder

S = 1_000_000_000


class Ends:
    """A sink that keeps times."""

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.end_ns: int | None = None
        self.failed_ns: int | None = None

    def first(self, at_ns: int) -> None:
        assert self.first_ns is None
        self.first_ns = at_ns

    def finished(self, at_ns: int) -> None:
        assert self.end_ns is None
        self.end_ns = at_ns

    def failed(self, at_ns: int) -> None:
        self.failed_ns = at_ns


class Bench:
    """An engine on a virtual clock with its stream."""

    def __init__(self, folder: Path, config: SimConfig, effects: Effects, seed: int) -> None:
        self.clock = VirtualClock(S)
        self.path = folder / "engine-0.jsonl"
        recorder = StepRecorder(
            self.path,
            config.header(),
            now_ns=self.clock.now_ns,
            wall_ns=self.clock.now_ns,
            drop=effects.dropped_steps,
        )
        self.engine = SimEngine(
            config, load_cost(), self.clock, seed=seed, recorder=recorder, effects=effects
        )

    def add(self, prompt: int, output: int, contents: tuple[object, ...] = ()) -> Ends:
        ends = Ends()
        self.engine.add(SimRequest(None, prompt, output, contents, ends))
        return ends

    def run(self, seconds: float = 1000.0) -> None:
        self.clock.run(until_ns=self.clock.now_ns() + round(seconds * S))
