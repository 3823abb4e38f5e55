"""The grammar of the step annotations in a trace, each under a real example line.

``ProfilerStep#2``
    torch.profiler's step counter; the active steps of the protocol are 2 to 9.
``execute_context_2(8107)_generation_85(85)``
    vLLM 0.24.0's annotation of one engine step: requests and (tokens) of prefill and of decode.
``execute_8192_context_2(sq8107sk9001sqsq33sqsk44)_generation_85(sq85sk60000sqsq85sqsk60000)``
    The same with vLLM 0.32.0's ``detailed_trace_annotation``: ``sq`` are the tokens of the phase.
``opprof_step_1234``
    OpProf's plugin: the step's index in the Layer-1 stream (exact join).
"""

from __future__ import annotations

import re

from msgspec import Struct

PROFILER_STEP = re.compile(r"ProfilerStep#([0-9]{1,9})")
EXECUTE = re.compile(
    r"execute_(?:[0-9]{1,12}_)?context_"
    r"([0-9]{1,9})\((?:sq)?([0-9]{1,12})(?:sk[0-9]+sqsq[0-9]+sqsk[0-9]+)?\)_generation_"
    r"([0-9]{1,9})\((?:sq)?([0-9]{1,12})(?:sk[0-9]+sqsq[0-9]+sqsk[0-9]+)?\)"
)
OPPROF_STEP = re.compile(r"opprof_step_([0-9]{1,15})")

is_step_annotation = re.compile(r"ProfilerStep#|execute_|opprof_step_").match
"""True for the names of annotations that span whole steps and are therefore never op scopes."""


class Counts(Struct, frozen=True, forbid_unknown_fields=True):
    """What an execute annotation says of its step."""

    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int


def parse_execute(name: str) -> Counts | None:
    """Return the counts of an execute annotation; None when the name is none."""
    match = EXECUTE.fullmatch(name)
    return Counts(*map(int, match.groups())) if match else None


def parse_profiler_step(name: str) -> int | None:
    """Return the number of a ``ProfilerStep#n``; None when the name is none."""
    match = PROFILER_STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def parse_opprof_step(name: str) -> int | None:
    """Return the Layer-1 index of an ``opprof_step_<i>``; None when the name is none."""
    match = OPPROF_STEP.fullmatch(name)
    return int(match.group(1)) if match else None
