"""Consistency of a protocol beyond its types: references, domains and its own arithmetic."""

from __future__ import annotations

import msgspec

from opprof.artifacts.kernels import FAMILIES
from opprof.protocol.base import is_date
from opprof.protocol.check_commands import check_commands, variables_of
from opprof.protocol.check_numbers import check_numbers
from opprof.protocol.design import cells, design
from opprof.protocol.model import ProtocolFile

WASTE_METRICS = (
    "padding_fraction",
    "graph_miss_rate",
    "overflow_rate",
    "R64",
    "I_mix",
    "CV_moe",
)
_ESTIMATE_TOLERANCE_HOURS = 0.1


def check_protocol(protocol: ProtocolFile) -> list[str]:
    """Return every problem as one sentence that names the key; empty when the protocol is sound."""
    problems = [
        *_duplicates(protocol),
        *_references(protocol),
        *_domains(protocol),
        *_dates(protocol),
        *_empty(protocol),
        *_status(protocol),
        *_stops(protocol),
        *check_numbers(protocol),
        *check_commands(protocol),
    ]
    if problems:
        # Arithmetic over dangling references would only repeat the complaint.
        return problems
    return _arithmetic(protocol)


def _duplicates(protocol: ProtocolFile) -> list[str]:
    lists: dict[str, list[str]] = {
        "patterns.id": [row.id for row in protocol.patterns],
        "configs.id": [row.id for row in protocol.configs],
        "cells": [f"{p}/{c}" for p, c in cells(protocol)],
        "h1b.contrasts": [f"{a} vs {b}" for a, b in protocol.h1b.contrasts],
        "amendments (id and title)": [f"{a.id} {a.title}" for a in protocol.amendments],
        "open_decisions.number": [str(row.number) for row in protocol.open_decisions],
        "ranking.families": list(protocol.ranking.families),
        "representativeness.features": list(protocol.representativeness.features),
        "confirmations.patterns": protocol.confirmations.patterns,
        "mapping.alternatives": protocol.mapping.alternatives,
        **_regimes(protocol),
        "waste.raggedness_cohorts": [str(n) for n in protocol.waste.raggedness_cohorts],
        "statistics.percentiles": [str(n) for n in protocol.statistics.percentiles],
    }
    return [
        f"{key}: {value!r} occurs twice"
        for key, values in lists.items()
        for value in sorted({v for v in values if values.count(v) > 1})
    ]


def _regimes(protocol: ProtocolFile) -> dict[str, list[str]]:
    """Patterns side by side in a regime: run and folder of each have the pattern's name."""
    rule = protocol.colocation
    if rule is None:
        return {}
    return {
        f"colocation.backgrounds_{name} with colocation.pattern": [rule.pattern, *patterns]
        for name, patterns in (("eight", rule.backgrounds_eight), ("four", rule.backgrounds_four))
    }


def _references(protocol: ProtocolFile) -> list[str]:
    patterns = {row.id for row in protocol.patterns}
    configs = {row.id for row in protocol.configs}
    partial, colocation = protocol.partial_matrix, protocol.colocation
    used_patterns: dict[str, list[str]] = {
        "cells.sentinel_patterns": protocol.cells.sentinel_patterns,
        "cells.extra": [p for p, _ in protocol.cells.extra],
        "h1b.irregular": protocol.h1b.irregular,
        "h1b.contrasts": [p for pair in protocol.h1b.contrasts for p in pair],
        "confirmations.patterns": protocol.confirmations.patterns,
        "burnin.pattern": [protocol.burnin.pattern],
    }
    used_configs: dict[str, list[str]] = {
        "cells.baseline_config": [protocol.cells.baseline_config],
        "cells.sentinel_configs": protocol.cells.sentinel_configs,
        "cells.extra": [c for _, c in protocol.cells.extra],
        "load.primary_config": [protocol.load.primary_config],
        "confirmations.config": [protocol.confirmations.config],
    }
    if colocation is not None:
        names = [colocation.pattern, *colocation.backgrounds_eight, *colocation.backgrounds_four]
        used_patterns["colocation"] = names
        used_configs["colocation.config"] = [colocation.config]
    if partial is not None:
        used_patterns["partial_matrix.h1a_patterns"] = partial.h1a_patterns
        used_patterns["partial_matrix.incomplete_cells"] = [p for p, _ in partial.incomplete_cells]
        contrasts = [p for pair in partial.not_evaluable_contrasts for p in pair]
        used_patterns["partial_matrix.not_evaluable_contrasts"] = contrasts
        used_configs["partial_matrix.incomplete_cells"] = [c for _, c in partial.incomplete_cells]
    return [
        *_unknown("pattern", used_patterns, patterns),
        *_unknown("config", used_configs, configs),
        *_unknown("family", {"ranking.families": protocol.ranking.families}, set(FAMILIES)),
        *_unknown("metric", {"h1b.thresholds": list(protocol.h1b.thresholds)}, set(WASTE_METRICS)),
    ]


def _unknown(kind: str, used: dict[str, list[str]], known: set[str]) -> list[str]:
    return [
        f"{key}: no {kind} is called {name!r}"
        for key, names in used.items()
        for name in dict.fromkeys(names)
        if name not in known
    ]


def _domains(protocol: ProtocolFile) -> list[str]:
    problems: list[str] = []
    mapping, waste = protocol.mapping, protocol.waste
    if mapping.pinned in mapping.alternatives:
        problems.append(f"mapping.alternatives: {mapping.pinned!r} is the pinned table itself")
    if waste.raggedness_primary not in waste.raggedness_cohorts:
        problems.append("waste.raggedness_primary: not one of waste.raggedness_cohorts")
    irregular = set(protocol.h1b.irregular)
    problems += [
        f"h1b.contrasts: {a!r} is not in h1b.irregular"
        for a, _ in protocol.h1b.contrasts
        if a not in irregular
    ]
    problems += [
        f"h1b.contrasts: {a!r} is compared with itself" for a, b in protocol.h1b.contrasts if a == b
    ]
    undeclared = sorted(
        {name for row in protocol.patterns for name in variables_of(row.manifest)}
        - set(protocol.variables)
    )
    return problems + [f"variables: ${{{name}}} is used but not declared" for name in undeclared]


def _dates(protocol: ProtocolFile) -> list[str]:
    dates = {"date": protocol.date}
    dates |= {f"amendments.{row.id}.date": row.date for row in protocol.amendments}
    dates |= {
        f"open_decisions.{row.number}.approved": row.approved
        for row in protocol.open_decisions
        if row.approved is not None
    }
    if protocol.freeze is not None:
        dates["freeze.date"] = protocol.freeze.date
    return [f"{key}: {text!r} is no day" for key, text in dates.items() if not is_date(text)]


def _status(protocol: ProtocolFile) -> list[str]:
    """A frozen protocol says what it was frozen with, and leaves no decision open."""
    if protocol.status == "draft":
        return [] if protocol.freeze is None else ["freeze: a draft has no [freeze] table"]
    problems = [] if protocol.freeze is not None else ["freeze: a frozen protocol needs the table"]
    return problems + [
        f"open_decisions.{row.number}: not approved in a frozen protocol"
        for row in protocol.open_decisions
        if row.approved is None
    ]


def _empty(protocol: ProtocolFile) -> list[str]:
    """What a decision cannot be made of: it would be found out after the last run."""
    return [
        f"{key}: empty, and something of it is needed for a decision"
        for key, values in (
            ("ranking.families", protocol.ranking.families),
            ("representativeness.features", protocol.representativeness.features),
        )
        if not values
    ]


def _stops(protocol: ProtocolFile) -> list[str]:
    numbers = [row.number for row in protocol.stops]
    if numbers == sorted(set(numbers)):
        return []
    return [f"stops.number: {numbers} does not rise from condition to condition"]


def _arithmetic(protocol: ProtocolFile) -> list[str]:
    computed = design(protocol)
    declared: dict[str, float] = msgspec.to_builtins(protocol.expected)
    problems = [
        f"expected.{key}: {value} declared, {getattr(computed, key)} computed"
        for key, value in declared.items()
        if getattr(computed, key) != value
    ]
    estimates = {
        "budget.wall_hours_estimate": (protocol.budget.wall_hours_estimate, computed.wall_hours),
        "budget.gpu_hours_estimate": (protocol.budget.gpu_hours_estimate, computed.gpu_hours),
    }
    return problems + [
        f"{key}: {value} declared, {actual:.2f} computed"
        for key, (value, actual) in estimates.items()
        if abs(value - actual) > _ESTIMATE_TOLERANCE_HOURS
    ]
