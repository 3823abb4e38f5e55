"""What each gate of a run means for the campaign: a hard-stop condition, and a class of fault.

Sources: protocol, "Budget and hard stop conditions" (the ten conditions; "one exact rerun is
allowed only for an infrastructure/profile-artifact failure … a semantic workload/config failure
requires a reviewed protocol amendment"), "Data sanity block contract" (its list of checks is
condition 10), A-P3-5 (drain), A-P3-6 (warm-up).

This table is data. Every gate that client, analysis or controller can write stands in it; a test
proves it, so a new gate cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from opprof.artifacts.common import Gate

FaultClass = Literal["", "infrastructure", "semantic"]
"""``infrastructure`` holds profile artefacts too: both allow the one exact rerun. Empty: the gate
takes nothing away from the run."""

SANITY = 10
_ROOTS = frozenset({"server_health", "gpu_idle", "gpu_contamination"})
"""Causes outside the experiment that may bring down any request."""
_CLIENT_BUSY = frozenset({"client_cpu", "client_loop_delay"})


@dataclass(frozen=True, slots=True)
class GateRule:
    """One gate's row."""

    condition: int | None
    """Number in the protocol's list of ten; None where a failure is no hard stop by itself."""
    fault: FaultClass
    explained_by: frozenset[str] = frozenset()
    """A semantic failure counts as infrastructure when one of these gates failed beside it."""


def _infrastructure(condition: int | None) -> GateRule:
    return GateRule(condition, "infrastructure")


def _semantic(condition: int | None, explained_by: Collection[str] = ()) -> GateRule:
    return GateRule(condition, "semantic", frozenset(explained_by))


RULES: Mapping[str, GateRule] = {
    # 1: what runs is not what was frozen.
    "hashes": _semantic(1),
    "effective_config": _semantic(1),
    "compile_cache_key": _semantic(1),
    "engine_config_effective": _semantic(1),
    "engine_tested": _semantic(1),
    "manifest_hash": _semantic(1),
    # 2: the GPU or the server.
    "gpu_idle": _infrastructure(2),
    "gpu_contamination": _infrastructure(2),
    "server_health": _infrastructure(2),
    "gpu_memory": _infrastructure(2),
    "timeline": _infrastructure(2),
    "drain": _infrastructure(2),
    # 3: clean requests, their tokens, the offered rate. Drain left this list with A-P3-5.
    "clean_requests": _semantic(3, _ROOTS),
    "request_failures": _semantic(3, _ROOTS),
    "token_counts": _semantic(3),
    "output_tokens_exact": _semantic(3),
    "offered_rate": _semantic(3, _ROOTS | _CLIENT_BUSY),
    # 4: Layer 1.
    "layer1_accounting": _infrastructure(4),
    "sidecar_age": _infrastructure(4),
    "profile_leak": _semantic(4),
    "graph_mode_valid": _semantic(4),
    # 5: traces. Representativeness stops only the second time (see opprof.campaign.stops).
    "profile_windows": _infrastructure(5),
    "profile_window": _infrastructure(5),
    "rank_completeness": _infrastructure(5),
    "window_integrity": _infrastructure(5),
    "join": _infrastructure(5),
    "representativeness": _infrastructure(5),
    # 6: recovery after a profile window.
    "recovery": _infrastructure(6),
    # 7: kernel time that nobody can name.
    "classifiable": _semantic(7),
    "mode_segment_steps": _semantic(7),
    # 8: privacy.
    # A trace that was cut cannot be looked at either, and may have the rerun of a profile artefact.
    "privacy": _semantic(8, {"window_integrity"}),
    # 10: the sanity block's list of checks.
    "clean_duration": _semantic(SANITY),
    "clean_segments": _semantic(SANITY),
    "clean_contiguous": _semantic(SANITY),
    "warmup_recorded": _semantic(SANITY),
    "load_point": _semantic(SANITY),
    "manifest_lengths": _semantic(SANITY),
    "concurrency_cap": _semantic(SANITY),
    "prefix_sharing": _semantic(SANITY),
    "request_accounting": _infrastructure(SANITY),
    "clock_load": _infrastructure(SANITY),
    # No hard stop: the run is invalid, and the matrix goes on.
    "privacy_scan": _infrastructure(None),
    "warmup": _semantic(None, _ROOTS),
    "warmup_completions": _semantic(None, _ROOTS),
    "client_lag": _infrastructure(None),
    "client_cpu": _infrastructure(None),
    "client_loop_delay": _infrastructure(None),
    # Nothing by themselves: A-P3-5 counts quarantined runs; the others are declared.
    "drain_quarantine": GateRule(None, ""),
    "simulated": GateRule(None, ""),
    "time_scale": GateRule(None, ""),
}

_TIMELINE_REASONS = (
    # What the client writes when a run ended before its plan (opprof.client).
    ("interrupted", _infrastructure(None)),
    ("the manifest ran out", _semantic(SANITY)),
    ("profile window", _infrastructure(5)),
)


def failed(gates: Iterable[Gate]) -> list[Gate]:
    """Return the gates whose outcome is ``fail``."""
    return [gate for gate in gates if gate.outcome == "fail"]


def rule_of(gate: Gate) -> GateRule:
    """Return a gate's row; a gate that nobody knows is judged as a semantic sanity failure.

    An unknown gate comes from artefacts of a newer release: the careful reading is that somebody
    must look.
    """
    if gate.name == "timeline":
        for beginning, rule in _TIMELINE_REASONS:
            if gate.reason.startswith(beginning):
                return rule
    return RULES.get(gate.name, GateRule(SANITY, "semantic"))


def fault_of(gates: Iterable[Gate]) -> FaultClass:
    """Return the class of a run's fault; empty when nothing that matters failed.

    Infrastructure only when every failed gate is, or is explained by one that is: one semantic
    failure forbids the rerun.
    """
    bad = failed(gates)
    names = {gate.name for gate in bad}
    classes = set()
    for gate in bad:
        rule = rule_of(gate)
        explained = bool(rule.explained_by & names)
        classes.add("infrastructure" if explained and rule.fault == "semantic" else rule.fault)
    if "semantic" in classes:
        return "semantic"
    return "infrastructure" if "infrastructure" in classes else ""
