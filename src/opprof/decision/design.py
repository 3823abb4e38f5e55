"""What the protocol registers and what is there: groups of runs, patterns, cells, obstacles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opprof.artifacts.decision import RunStatus
from opprof.decision.facts import RunFacts, run_status
from opprof.errors import InputError
from opprof.protocol import Protocol
from opprof.protocol.design import cells as protocol_cells
from opprof.protocol.model import ProtocolFile

Key = tuple[str, str, str, str]
"""Pattern, config, load point, role."""


@dataclass(frozen=True)
class Matrix:
    """Every run that was given, by what it is."""

    protocol: Protocol
    facts: Mapping[Key, RunFacts]
    statuses: Mapping[Key, RunStatus]
    absent: Mapping[str, str] = field(default_factory=dict)
    """Planned run to why a campaign does not have it."""

    @property
    def file(self) -> ProtocolFile:
        """The protocol's content."""
        return self.protocol.file

    @property
    def seed(self) -> int:
        """Seed of every resampling stream."""
        return self.file.seeds.statistics

    @property
    def patterns(self) -> list[str]:
        """All registered patterns, in the order of their ids."""
        return sorted(row.id for row in self.file.patterns)

    def primary(self, pattern: str) -> Key:
        """The run that the primary comparison wants of a pattern."""
        load = self.file.load
        return (pattern, load.primary_config, load.primary_load_point, "primary")

    def fixed_as_missing(self, pattern: str, config: str) -> bool:
        """Whether an amendment froze the cell as missing (A-P3-7): never rerun, never replaced."""
        partial = self.file.partial_matrix
        return partial is not None and (pattern, config) in partial.incomplete_cells

    def run_reasons(self, key: Key) -> list[str]:
        """Why a run cannot be evaluated at all; empty when it can."""
        name = run_name(key)
        if self.fixed_as_missing(key[0], key[1]):
            return [f"{key[0]}/{key[1]} is frozen as missing (A-P3-7)"]
        if key not in self.facts:
            why = self.absent.get(name)
            return [f"{name} is missing" if why is None else f"{name} is missing: {why}"]
        return [f"{name}: {reason}" for reason in self.statuses[key].invalid_reasons]

    def breakdown_reasons(self, key: Key) -> list[str]:
        """Why a run's operator shares cannot be evaluated; empty when they can."""
        found = self.run_reasons(key)
        if found:
            return found
        return [f"{key[0]}: {reason}" for reason in self.statuses[key].breakdown_reasons]

    def h1a_reasons(self, pattern: str) -> list[str]:
        """Why a pattern takes no part in the formal comparison of H1a."""
        partial = self.file.partial_matrix
        if partial is not None and pattern not in partial.h1a_patterns:
            return [f"{pattern} is not in the frozen comparison (A-P3-7)"]
        return self.breakdown_reasons(self.primary(pattern))

    def apart(self, first: Key, second: Key) -> list[str]:
        """Why two given runs may not meet; empty when they may, or one is missing."""
        scales = [self.facts[key].run.time_scale for key in (first, second) if key in self.facts]
        if len(set(scales)) < 2:
            return []
        return [f"{run_name(first)} and {run_name(second)} ran on different time scales"]

    def marks(self, *keys: Key) -> list[str]:
        """Marks of runs, each with the run's pattern."""
        return [
            f"{key[0]}: {mark}"
            for key in keys
            if key in self.statuses
            for mark in self.statuses[key].marks
        ]

    def registered_keys(self) -> list[Key]:
        """Every measured run of the protocol: both load points of each cell, confirmations."""
        again = self.file.confirmations
        keys = [
            (pattern, config, load, "primary")
            for pattern, config in protocol_cells(self.file)
            for load in ("saturation", "moderate")
        ]
        return keys + [(p, again.config, again.load_point, "confirmation") for p in again.patterns]

    @property
    def missing_cells(self) -> list[str]:
        """Registered cells without two usable runs."""
        missing = []
        for pattern, config in protocol_cells(self.file):
            keys = [(pattern, config, load, "primary") for load in ("saturation", "moderate")]
            if any(self.run_reasons(key) for key in keys):
                missing.append(f"{pattern}/{config}")
        return missing


def build_matrix(
    protocol: Protocol,
    runs: Sequence[RunFacts],
    tolerated: frozenset[str],
    absent: Mapping[str, str],
) -> Matrix:
    """Sort the runs by identity and judge each.

    Raises:
        InputError: no run, two runs with one identity, or measured and simulated runs together.
            Runs on different time scales are kept, and never meet in a pair.
    """
    if not runs:
        raise InputError("no runs to decide on")
    facts: dict[Key, RunFacts] = {}
    for item in sorted(runs, key=lambda entry: entry.run.name):
        run = item.run
        key = (run.pattern, run.config, run.load_point, run.role)
        if key in facts:
            raise InputError(f"{facts[key].source} and {item.source} are both {run.name}")
        facts[key] = item
    if len({item.run.simulated for item in runs}) > 1:
        raise InputError("measured and simulated runs in one decision")
    statuses = {key: run_status(item, tolerated) for key, item in facts.items()}
    return Matrix(protocol, facts, statuses, absent)


def run_name(key: Key) -> str:
    """Return a run's name as its timeline would give it."""
    pattern, config, load_point, role = key
    suffix = "" if role == "primary" else f"-{role}"
    return f"{pattern}-{config}-{load_point}{suffix}"
