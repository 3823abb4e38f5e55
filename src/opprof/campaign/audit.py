"""The sanity block of a run's state: its own numbers, checked before the attempt ends.

Source: protocol, "Data sanity block contract" (every raw-run summary ends with a checked block).
The state is what the ledger, the decision and every later controller go by.
"""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import msgspec

from opprof.artifacts.campaign import Attempt, CheckName
from opprof.artifacts.common import Gate, SanityBlock
from opprof.campaign.attempt import Outcome
from opprof.campaign.stops import red_flag_stop
from opprof.protocol.model import ProtocolFile
from opprof.rules.sanity import block, family

_NS = 1_000_000_000


def state_sanity(attempt: Attempt, outcome: Outcome) -> SanityBlock:
    """Summarise an executed attempt's state and flag what cannot be true.

    Phases and processes that end before they begin (a clock that was set back) are negative times.
    """
    steps = [step.wall_ns for step in attempt.transitions]
    ended = [
        (process.ended_wall_ns - process.started_wall_ns) / _NS
        for process in attempt.processes
        # A Ray worker is timed by two clocks.
        if process.ended_wall_ns is not None and process.role != "worker"
    ]
    families = [
        family("phase_s", [(after - before) / _NS for before, after in pairwise(steps)], unit="s"),
        family("process_s", ended, unit="s"),
        family("gpu_seconds", [outcome.gpu_seconds], unit="s"),
    ]
    return block(families, _flags(attempt, outcome))


def _flags(attempt: Attempt, outcome: Outcome) -> list[str]:
    missing = sorted(set(get_args(CheckName)) - set(outcome.checks))
    failed = sorted(name for name, gate in outcome.checks.items() if gate.outcome == "fail")
    running = [process.role for process in attempt.processes if process.ended_wall_ns is None]
    flags = [f"checks: no {name}" for name in missing]
    if failed and not outcome.reason:
        flags.append(f"checks: {', '.join(failed)} failed, and no reason is given")
    flags += [f"processes: nobody saw the {role} end" for role in running if role != "worker"]
    return flags


def audited(
    run: str, attempt: Attempt, outcome: Outcome, protocol: ProtocolFile, *, wall_ns: int
) -> Outcome:
    """Return the outcome with the state's sanity block; a red flag fails it (hard stop 10)."""
    found = state_sanity(attempt, outcome)
    outcome = msgspec.structs.replace(outcome, sanity=found)
    if not found.red_flags:
        return outcome
    flags = [f"state: {flag}" for flag in found.red_flags]
    reason = "; ".join(flags)
    gate = Gate("sanity", "fail", reason, {"red_flags": len(flags)})
    return msgspec.structs.replace(
        outcome,
        checks=outcome.checks | {"sanity": gate},
        reason="; ".join(filter(None, [outcome.reason, f"sanity: {reason}"])),
        fault="semantic",
        stops=[*outcome.stops, *red_flag_stop(run, flags, protocol, wall_ns=wall_ns)],
    )
