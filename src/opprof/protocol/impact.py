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
from opprof.protocol.design import RunKind, run_kinds
from opprof.protocol.diff import Change, diff
from opprof.protocol.load import Protocol
from opprof.protocol.model import ProtocolFile

Cell = tuple[str, str]
"""Pattern and configuration."""

_MEASURED: frozenset[Role] = frozenset({"primary", "confirmation", "colocation"})
_ALL: frozenset[Role] = _MEASURED | {"burnin"}
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
_MEASURED_KEYS = frozenset(
    {
        "load.moderate_rate_fraction",
        "load.primary_config",
        "load.primary_load_point",
        "seeds.statistics",
    }
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
    runs: frozenset[RunKind]
    """Of those that the old protocol or the new one plans."""
    rejudgeable: bool
    """The verdict can be computed from kept raw data; nothing would have been run differently."""

    @property
    def cells(self) -> frozenset[Cell]:
        """Their pairs of pattern and configuration, burn-ins included."""
        return frozenset((run.pattern, run.config) for run in self.runs)

    @property
    def roles(self) -> frozenset[Role]:
        """Their roles."""
        return frozenset(run.role for run in self.runs)

    @property
    def load_points(self) -> frozenset[LoadPoint]:
        """Their load points."""
        return frozenset(run.load_point for run in self.runs)

    def touches(self, run: StartedRun) -> bool:
        """Tell whether a run depends on the change."""
        return RunKind(run.pattern, run.config, run.load_point, run.role) in self.runs


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
        return frozenset(role for touch in self.touches for role in touch.roles)

    @property
    def rejudgeable(self) -> bool:
        """Whether every touched run can be judged again from kept raw data."""
        return all(touch.rejudgeable for touch in self.touches if touch.runs)

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
    return Touch(change, _reached(change, old, new), _rejudgeable(change))


def _reached(change: Change, old: ProtocolFile, new: ProtocolFile) -> frozenset[RunKind]:
    key, table = change.key, change.key.split(".", 1)[0]
    before, after = run_kinds(old), run_kinds(new)
    if not change.decides or key in _UNTOUCHING or table in _UNTOUCHING:
        return frozenset()
    if table == "cells" or key == "confirmations.patterns":
        # A list that only grew or shrank leaves the runs that stay in it alone.
        role = _ROLE_TABLES.get(table, "primary")
        return frozenset(run for run in before ^ after if run.role == role)
    runs = before | after
    if table in _ROLE_TABLES:
        return frozenset(run for run in runs if run.role == _ROLE_TABLES[table])
    if key == "load.moderate_rate_fraction":
        runs = frozenset(run for run in runs if run.load_point == "moderate")
    if table in _WINDOW_TABLES or key in _WINDOW_KEYS:
        return frozenset(run for run in runs if run.has_windows)
    measured = table in _MEASURED_TABLES or key in _MEASURED_KEYS
    roles = _MEASURED if measured else _ALL
    return _in_row(key, frozenset(run for run in runs if run.role in roles))


def _in_row(key: str, runs: frozenset[RunKind]) -> frozenset[RunKind]:
    """Keep the runs of the row that a key names; all for a key outside the rows."""
    table, _, rest = key.partition(".")
    if table not in ("patterns", "configs"):
        return runs
    names = {run: run.pattern if table == "patterns" else run.config for run in runs}
    # An id may hold dots, so that one may begin like another.
    named = {name for name in names.values() if f"{rest}.".startswith(f"{name}.")}
    row = max(named, key=len, default="")
    return frozenset(run for run, name in names.items() if name == row)


def _rejudgeable(change: Change) -> bool:
    """Tell whether the verdict is computed from kept data alone."""
    field = change.key.rsplit(".", 1)[-1]
    if change.kind == "pattern":
        return change.key.startswith("patterns.") and field in _REJUDGED_PATTERN_FIELDS
    if change.key == "seeds.statistics":
        return True
    return change.kind in _REJUDGED_KINDS and field not in _EXECUTED_GATES
