"""The exact reruns that a protocol's ``[reruns]`` allows, counted over a run's attempts.

Source: protocol, "Budget and hard stop conditions" ("one exact rerun is allowed only for an
infrastructure/profile-artifact failure") and "Layer 2" ("one complete run may be retried with the
same command" where its windows were not representative). The two have their own numbers.
"""

from __future__ import annotations

from typing import Literal

from opprof.artifacts.campaign import Attempt, RunRecord
from opprof.protocol.model import Reruns

UNREPRESENTATIVE = "unrepresentative"
"""Number of the check ``layer2``: a profile window was not representative."""

RerunClass = Literal["", "infrastructure", "unrepresentative"]
"""Empty: the attempt did not fail, or needs a reviewed amendment."""


def unrepresentative(attempt: Attempt) -> bool:
    """Whether a profile window of the attempt was not representative."""
    gate = attempt.checks.get("layer2")
    return gate is not None and bool(gate.numbers.get(UNREPRESENTATIVE))


def class_of(attempt: Attempt) -> RerunClass:
    """Return which allowance a failed attempt's rerun comes from.

    Machinery that broke is an infrastructure fault whatever its windows look like; the retry of
    windows is for an attempt with nothing else against it.
    """
    if attempt.fault != "infrastructure":
        return ""
    failed = {name for name, gate in attempt.checks.items() if gate.outcome == "fail"}
    alone = failed == {"layer2"} and unrepresentative(attempt)
    return "unrepresentative" if alone else "infrastructure"


def allowed(rule: Reruns, kind: RerunClass) -> int:
    """Return how many reruns of a class the protocol allows a run."""
    if kind == "unrepresentative":
        return rule.unrepresentative_max
    return rule.infrastructure_max if kind == "infrastructure" else 0


def left_of(record: RunRecord, rule: Reruns) -> tuple[bool, str]:
    """Return whether a failed run has an exact rerun left, and where it stands in words."""
    if record.attempt is None or record.attempt.fault != "infrastructure":
        return False, "failed, and needs a reviewed amendment"
    kind = class_of(record.attempt)
    if may_rerun(record, rule):
        return True, f"exact rerun ({kind})"
    if allowed(rule, kind) == 0:
        return False, f"failed, and the protocol allows no rerun ({kind})"
    return False, "failed again after its exact rerun"


def may_rerun(record: RunRecord, rule: Reruns) -> bool:
    """Whether the protocol allows another attempt after the last one failed."""
    if record.attempt is None:
        return True
    kind = class_of(record.attempt)
    used = sum(class_of(each) == kind for each in record.attempts)
    return kind != "" and used <= allowed(rule, kind)
