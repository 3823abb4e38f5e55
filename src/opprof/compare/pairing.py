"""Which runs may be compared: same config, load point, role and kind of clock; others are said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from opprof.artifacts.common import RunIdentity
from opprof.artifacts.comparison import ComparisonRule, PatternPair, Unpaired
from opprof.compare.values import RunInput, RunShares
from opprof.errors import InputError

Key = tuple[str, str, str, bool, float]


@dataclass(frozen=True)
class Group:
    """Runs of different patterns under the same conditions, by pattern."""

    config: str
    load_point: str
    role: str
    simulated: bool
    time_scale: float
    runs: tuple[RunShares, ...]

    @property
    def pairs(self) -> list[tuple[RunShares, RunShares]]:
        """Every pair of patterns, the lesser id first."""
        return list(combinations(self.runs, 2))

    def is_primary(self, rule: ComparisonRule | None) -> bool:
        """Whether the protocol's primary comparison lives here."""
        return (
            rule is not None
            and (self.config, self.load_point) == (rule.primary_config, rule.primary_load_point)
            and self.role == "primary"
        )


def check_identities(entries: Sequence[RunInput]) -> None:
    """Two runs with one identity are an error, never a choice.

    Raises:
        InputError: pattern, config, load point and role of two runs are equal; names both sources.
    """
    seen: dict[tuple[str, str, str, str], RunInput] = {}
    for entry in entries:
        run = entry.kernels.run
        other = seen.setdefault((run.pattern, run.config, run.load_point, run.role), entry)
        if other is not entry:
            raise InputError(
                f"{entry.source} and {other.source} are both {describe(run)}; compare one of them"
            )


def group_runs(runs: Sequence[RunShares]) -> list[Group]:
    """Return the runs by conditions, in order of config, load point and role."""
    found: dict[Key, list[RunShares]] = {}
    for entry in runs:
        run = entry.run
        key = (run.config, run.load_point, run.role, run.simulated, run.time_scale)
        found.setdefault(key, []).append(entry)
    return [
        Group(*key, runs=tuple(sorted(found[key], key=lambda entry: entry.run.pattern)))
        for key in sorted(found)
    ]


def unpaired_runs(groups: Sequence[Group]) -> list[Unpaired]:
    """Return the runs that stand alone, with the conditions that nobody shares."""
    result = []
    for group in groups:
        if len(group.runs) > 1:
            continue
        run = group.runs[0].run
        kind = "simulated " if group.simulated else ""
        scale = "" if group.time_scale == 1.0 else f" at time scale {group.time_scale:g}"
        reason = (
            f"no other {kind}run at config {group.config}, load point {group.load_point},"
            f" role {group.role}{scale}"
        )
        result.append(Unpaired(run=run.name, reason=reason))
    return result


def obstacles(entry: RunShares, rule: ComparisonRule | None) -> list[str]:
    """Return what keeps a run out of the inversion rule; empty when nothing does."""
    pattern = entry.run.pattern
    found = []
    if rule is None:
        found.append("no protocol judges this comparison")
    elif len(entry.window_ids) != rule.windows:
        found.append(f"{pattern} has {len(entry.window_ids)} of {rule.windows} windows")
    found += [f"{pattern} has a red flag: {flag}" for flag in entry.red_flags]
    for window in entry.window_ids:
        present = tuple(item.rank for item in entry.of_window(window))
        lacking = sorted(set(entry.ranks) - set(present))
        if lacking:
            found.append(f"{pattern} window {window} lacks rank {lacking[0]}")
    for item in entry.windows:
        where = f"{pattern} window {item.window} rank {item.rank}"
        if not item.accepted:
            cause = item.reasons[0] if item.reasons else "no reason given"
            found.append(f"{where} is not accepted: {cause}")
        elif not item.kernel_ns:
            found.append(f"{where} has no kernel time")
    return found


def pattern_pair(
    group: Group, p: RunShares, q: RunShares, rule: ComparisonRule | None
) -> PatternPair:
    """Return the pair with everything that stands in its way, and the marks it carries."""
    reasons = list(dict.fromkeys(obstacles(p, rule) + obstacles(q, rule)))
    marks = [f"{entry.run.pattern}: {mark}" for entry in (p, q) for mark in entry.marks]
    return PatternPair(
        config=group.config,
        load_point=group.load_point,
        role=group.role,
        primary=group.is_primary(rule),
        pattern_p=p.run.pattern,
        pattern_q=q.run.pattern,
        evaluable=not reasons,
        reasons=reasons,
        marks=marks,
    )


def describe(run: RunIdentity) -> str:
    """Return a run's identity in words."""
    return f"{run.pattern} under {run.config} at {run.load_point}, role {run.role}"
