"""The catalogue of one run's gates: what a failure means, what to do, and what it invalidates.

A gate function takes numbers and thresholds and returns a :class:`Gate`; thresholds come from the
protocol, never from here. An absent input gives ``not_evaluable`` with the reason.

Sources: protocol, "Budget and hard stop conditions" and "Data sanity block contract"; contract,
section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from opprof.artifacts.common import Gate, Outcome, Value

Reach = Literal["run", "breakdown", "window", "nothing"]
"""What a failure takes away: the run's figures, the load point's operator breakdown, one window, or
nothing (the run stays usable and is marked)."""


@dataclass(frozen=True, slots=True)
class GateText:
    """One line each."""

    meaning: str
    action: str
    reach: Reach


NO_PROTOCOL = "no protocol is bound"

CATALOGUE: Mapping[str, GateText] = {
    "load_point": GateText(
        "The run was not offered the load that its name says.",
        "Derive the moderate rate from the cell's accepted saturation result and run again.",
        "run",
    ),
    "engine_config_effective": GateText(
        "The server ran with other settings than the cell declares.",
        "Fix the server command; a changed default is a stop condition, not a reason to edit the "
        "protocol.",
        "run",
    ),
    "engine_tested": GateText(
        "The recorder ran inside an engine version it was not tested with.",
        "Check the listed differences, or record with the pinned engine.",
        "nothing",
    ),
    "simulated": GateText(
        "An embedded engine made these numbers: they rehearse the pipeline and measure nothing.",
        "Use the run to rehearse only.",
        "nothing",
    ),
    "time_scale": GateText(
        "Durations were scaled: the run is not the protocol to the letter.",
        "Run with a time scale of 1 before using the figures.",
        "run",
    ),
    "manifest_hash": GateText(
        "The requests sent are not those of the frozen manifest.",
        "Materialise the manifest again from its seed, compare the hash, and repeat the run.",
        "run",
    ),
    "manifest_lengths": GateText(
        "Prompt or output lengths lie outside the manifest's.",
        "Check the tokenizer and the manifest; repeat the run.",
        "run",
    ),
    "warmup_recorded": GateText(
        "The timeline does not show the warm-up that the protocol asks for.",
        "Run with the full warm-up and let the client record it.",
        "run",
    ),
    "warmup_completions": GateText(
        "Too few requests completed in the warm-up: service may not have been steady.",
        "Look for a slow start in the server log and repeat the run from a fresh server.",
        "run",
    ),
    "clean_duration": GateText(
        "The clean interval has not exactly the protocol's length, so rates are not comparable.",
        "Repeat the run with the protocol's durations.",
        "run",
    ),
    "clean_segments": GateText(
        "The clean interval is not cut into the protocol's segments.",
        "Repeat the run with the protocol's segments.",
        "run",
    ),
    "clean_contiguous": GateText(
        "There is a gap inside the clean interval.",
        "Repeat the run; clean segments must touch.",
        "run",
    ),
    "request_failures": GateText(
        "Requests failed during clean measurement.",
        "Read the error codes and the server log, remove the cause, repeat the run.",
        "run",
    ),
    "request_accounting": GateText(
        "The request records are incomplete or contradict themselves.",
        "Check the client's log for a kill or a full disk and repeat the run.",
        "run",
    ),
    "output_tokens_exact": GateText(
        "Answers do not have exactly the requested number of tokens.",
        "Check ignore_eos and the model's length limit; repeat the run.",
        "run",
    ),
    "offered_rate": GateText(
        "The achieved offered rate misses its target.",
        "Give the client its own cores or lower other load on the host; repeat the run.",
        "run",
    ),
    "client_lag": GateText(
        "The client fell behind its own schedule for a sustained time.",
        "Raise the concurrency cap's headroom or free the client's cores; repeat the run.",
        "run",
    ),
    "recovery": GateText(
        "Service had not returned to its clean level by the end of a recovery interval.",
        "The second window is not protected: repeat the run; recovery is never extended.",
        "run",
    ),
    "drain_quarantine": GateText(
        "The drain took longer than its class allows; the clean measurement stays usable.",
        "The run is marked in every table; look for stuck requests in the server log.",
        "nothing",
    ),
    "layer1_accounting": GateText(
        "The step stream is incomplete or disagrees with its footer or sidecar.",
        "Check disk space, shutdown timeout and kill time; repeat the run.",
        "run",
    ),
    "sidecar_age": GateText(
        "More than one flush interval of steps may be missing before the kill.",
        "Record the signal time, and prefer a drained shutdown.",
        "run",
    ),
    "profile_leak": GateText(
        "Profiled or recovering steps entered the clean summary.",
        "Check the timeline's borders against the endpoint calls; repeat the run.",
        "run",
    ),
    "graph_mode_valid": GateText(
        "Steps have a missing or contradictory graph mode; they are left out of every summary.",
        "Check the recorder's fit to the engine version with `opprof doctor`.",
        "run",
    ),
    "prefix_sharing": GateText(
        "Prompts of a pattern without shared prefixes were found in the prefix cache.",
        "Use a fresh server and a fresh manifest: an earlier load has filled the cache.",
        "run",
    ),
    "profile_windows": GateText(
        "The number of profiler windows is not the protocol's.",
        "Repeat the run; windows are placed by the protocol, never by what was seen.",
        "breakdown",
    ),
    "rank_completeness": GateText(
        "A rank's trace is missing.",
        "Check each rank's profiler folder; all ranks of a window are required.",
        "window",
    ),
    "window_integrity": GateText(
        "The trace does not hold one whole 2+8 window.",
        "Check endpoint status, disk space and the trace file; one exact rerun is allowed.",
        "window",
    ),
    "join": GateText(
        "The window's steps cannot be matched to exactly one step record each.",
        "Record with step annotations (`opprof_step_<i>`), which make the join exact.",
        "window",
    ),
    "classifiable": GateText(
        "Too much kernel time is other or opaque to rank the families.",
        "Read the list of unmatched kernels; amend the mapping for every trace, not for one.",
        "window",
    ),
    "mode_segment_steps": GateText(
        "A required graph mode has too few active steps to be reported apart.",
        "Report the load point without that mode; windows are not resampled.",
        "breakdown",
    ),
    "representativeness": GateText(
        "The profiled steps differ from the clean steps beside them by the registered measure.",
        "Read the gate's failure rate under no change first; one exact rerun is allowed.",
        "breakdown",
    ),
}
"""Gate name to its text, in the order in which a run's gates are listed."""


def make_gate(
    name: str,
    outcome: Outcome,
    reason: str,
    numbers: Mapping[str, Value] | None = None,
    *,
    scope: str = "run",
) -> Gate:
    """Build a gate with its catalogue text; an unknown name is a programming error (KeyError)."""
    text = CATALOGUE[name]
    return Gate(
        name=name,
        outcome=outcome,
        reason=reason,
        numbers=dict(numbers or {}),
        scope=scope,
        meaning=text.meaning,
        action=text.action,
    )


def verdict(
    name: str,
    good: bool,
    reason: str,
    numbers: Mapping[str, Value] | None = None,
    *,
    scope: str = "run",
) -> Gate:
    """A gate that passes or fails."""
    return make_gate(name, "pass" if good else "fail", reason, numbers, scope=scope)


def skipped(
    name: str,
    reason: str,
    numbers: Mapping[str, Value] | None = None,
    *,
    scope: str = "run",
) -> Gate:
    """A gate whose input is absent: neither pass nor fail."""
    return make_gate(name, "not_evaluable", reason, numbers, scope=scope)


def invalidates(gate: Gate) -> Reach:
    """What this gate takes away as it stands: ``nothing`` unless it failed."""
    return CATALOGUE[gate.name].reach if gate.outcome == "fail" else "nothing"
