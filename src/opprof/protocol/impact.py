"""Which runs a change of the protocol touches, and whether kept raw data can answer it.

An amendment touches only cells that have not been run, unless it judges completed runs again from
kept raw data, as A-P3-5 (drain quarantine) and A-P3-6 (warm-up) did: both verdicts are then kept
and nothing is rerun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

from opprof.artifacts.run import LoadPoint, Role
from opprof.protocol.design import cells
from opprof.protocol.diff import Change, diff
from opprof.protocol.load import Protocol
from opprof.protocol.model import ProtocolFile

Cell = tuple[str, str]
"""Pattern and configuration."""

ROLES: tuple[Role, ...] = ("primary", "confirmation", "burnin", "colocation")
_REJUDGED_PATTERN_FIELDS = frozenset({"drain_budget_s", "warmup_rule"})
_EXECUTED_GATES = frozenset({"drain_watchdog_s", "profile_window_watchdog_s"})
"""They end a run; no kept data say how it would have gone on."""
_REJUDGED_KINDS = frozenset({"gate", "threshold", "mapping"})
_NAMED_RUNS = 3
"""Of the runs that stand in an amendment's way, how many a message names."""
_UNTOUCHING = frozenset({"seeds.execution_order", "partial_matrix"})
"""Order, and what a matrix that ended early may support: no run's own verdict depends on them."""


_ROLE_TABLES: Mapping[str, Role] = {
    "confirmations": "confirmation",
    "burnin": "burnin",
    "colocation": "colocation",
}
_WINDOW_TABLES = frozenset({"layer2", "representativeness", "mapping"})
_WINDOW_KEYS = frozenset(
    {"timeline.profile_windows", "timeline.profile_window_fallback_s", "timeline.recovery_s"}
)
_MEASURED_TABLES = frozenset(
    {"timeline", "gates", "ranking", "waste", "statistics", "null", "interference", "h1b"}
)


class StartedRun(Interface):
    """What is needed of a run; ``artifacts.campaign.RunRecord`` has it."""

    @property
    def run(self) -> str:
        """The run's name."""

    @property
    def pattern(self) -> str:
        """Pattern id."""

    @property
    def config(self) -> str:
        """Configuration id."""

    @property
    def load_point(self) -> LoadPoint:
        """Saturation or moderate."""

    @property
    def role(self) -> Role:
        """What it is in the matrix."""


@dataclass(frozen=True)
class Touch:
    """One change and the runs whose making or verdict depends on it."""

    change: Change
    cells: frozenset[Cell]
    roles: frozenset[Role]
    rejudgeable: bool
    """The verdict can be computed from kept raw data; nothing would have been run differently."""

    load_points: frozenset[LoadPoint]

    def touches(self, run: StartedRun) -> bool:
        """Tell whether a run depends on the change."""
        return (
            run.role in self.roles
            and run.load_point in self.load_points
            and (run.pattern, run.config) in self.cells
        )


@dataclass(frozen=True)
class Impact:
    """All touches of one change of the protocol."""

    touches: tuple[Touch, ...]

    @property
    def cells(self) -> frozenset[Cell]:
        """Every touched pair of pattern and configuration, burn-ins included."""
        return frozenset(cell for touch in self.touches for cell in touch.cells)

    @property
    def roles(self) -> frozenset[Role]:
        """Every touched kind of run."""
        return frozenset(role for touch in self.touches if touch.cells for role in touch.roles)

    @property
    def rejudgeable(self) -> bool:
        """Whether every touched run can be judged again from kept raw data."""
        return all(touch.rejudgeable for touch in self.touches if touch.cells)

    def on(self, run: StartedRun) -> list[Touch]:
        """Return the touches of one run."""
        return [touch for touch in self.touches if touch.touches(run)]


def impact(old: ProtocolFile, new: ProtocolFile) -> Impact:
    """Return which cells and kinds of run depend on what differs."""
    return Impact(tuple(_touch(change, old, new) for change in diff(old, new)))


def check_amendment(old: Protocol, new: Protocol, started_runs: Iterable[StartedRun]) -> list[str]:
    """Return every reason why ``new`` may not replace ``old`` in a campaign; empty when it may.

    Args:
        old: in force, with its bytes.
        new: meant to replace it, with its bytes.
        started_runs: every run that has begun or is complete; a run that has not is made under the
            new protocol anyway.
    """
    from opprof.protocol.amend import added_amendments
    from opprof.protocol.check import check_protocol

    if problems := check_protocol(new.file):
        return problems
    added, problems = added_amendments(old, new)
    if problems:
        return problems
    touched = impact(old.file, new.file)
    rejudged = {value.key for row in added if row.rejudge for value in row.values}
    started = list(started_runs)
    return [
        problem
        for touch in touched.touches
        for problem in _refusal([run.run for run in started if touch.touches(run)], touch, rejudged)
    ]


def _refusal(begun: Sequence[str], touch: Touch, rejudged: set[str]) -> Sequence[str]:
    """Say why a change may not be made; ``begun``: the runs it touches that have begun."""
    if not begun:
        return []
    key, named = touch.change.key, ", ".join(begun[:_NAMED_RUNS])
    if len(begun) > _NAMED_RUNS:
        named += f" and {len(begun) - _NAMED_RUNS} more"
    if not touch.rejudgeable:
        return [f"{key} touches what has begun ({named}), and kept data cannot answer it"]
    if not any(key == value or key.startswith(value + ".") for value in rejudged):
        return [f"{key} touches what has begun ({named}); amend with --rejudge to judge it again"]
    return []


def _touch(change: Change, old: ProtocolFile, new: ProtocolFile) -> Touch:
    table = change.key.split(".", 1)[0]
    reached, roles = frozenset[Cell](), frozenset[Role]()
    if not change.decides or change.key in _UNTOUCHING or table in _UNTOUCHING:
        pass
    elif table == "cells":
        reached, roles = frozenset({*cells(old)} ^ {*cells(new)}), frozenset({"primary"})
    elif table in _ROLE_TABLES:
        role = _ROLE_TABLES[table]
        before, after = _by_role(old)[role], _by_role(new)[role]
        # A list that only grew or shrank leaves the runs that stay in it alone.
        listed = change.key == "confirmations.patterns"
        reached, roles = frozenset(before ^ after if listed else before | after), frozenset({role})
    else:
        reached = _in_row(change.key, _pairs(old) | _pairs(new))
        roles = _roles(table, change.key)
    return Touch(change, reached, roles, _rejudgeable(change), _load_points(change.key))


def _in_row(key: str, reached: frozenset[Cell]) -> frozenset[Cell]:
    """Keep the cells of the row that a key names; all for a key outside the rows."""
    table, _, rest = key.partition(".")
    side = {"patterns": 0, "configs": 1}.get(table)
    if side is None:
        return reached
    named = {cell[side] for cell in reached if f"{rest}.".startswith(f"{cell[side]}.")}
    row = max(named, key=len, default="")
    return frozenset(cell for cell in reached if cell[side] == row)


def _roles(table: str, key: str) -> frozenset[Role]:
    """A burn-in is not measured; a confirmation has no profiler windows."""
    if table in _WINDOW_TABLES or key in _WINDOW_KEYS:
        return frozenset({"primary", "colocation"})
    if table in _MEASURED_TABLES or key == "load.moderate_rate_fraction":
        return frozenset({"primary", "confirmation", "colocation"})
    return frozenset(ROLES)


def _load_points(key: str) -> frozenset[LoadPoint]:
    if key == "load.moderate_rate_fraction":
        return frozenset({"moderate"})
    return frozenset({"saturation", "moderate"})


def _pairs(file: ProtocolFile) -> frozenset[Cell]:
    """Return every pair that any run of the protocol has."""
    return frozenset(cell for found in _by_role(file).values() for cell in found)


def _by_role(file: ProtocolFile) -> dict[Role, set[Cell]]:
    gate = file.colocation
    names = [] if gate is None else [gate.pattern, *gate.backgrounds_eight, *gate.backgrounds_four]
    return {
        "primary": set(cells(file)),
        "confirmation": {(p, file.confirmations.config) for p in file.confirmations.patterns},
        "burnin": {(file.burnin.pattern, row.id) for row in file.configs},
        "colocation": {(name, gate.config) for name in names if gate is not None},
    }


def _rejudgeable(change: Change) -> bool:
    """Tell whether the verdict is computed from kept data alone."""
    field = change.key.rsplit(".", 1)[-1]
    if change.kind == "pattern":
        return change.key.startswith("patterns.") and field in _REJUDGED_PATTERN_FIELDS
    if change.key == "seeds.statistics":
        return True
    return change.kind in _REJUDGED_KINDS and field not in _EXECUTED_GATES
