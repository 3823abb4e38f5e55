"""The API server in front of the engine: one asyncio loop that works in rounds.

vLLM's API server has one interpreter. Each turn of its loop runs all that is ready and finds what
became ready meanwhile in the next turn: tokens of the engine's steps are taken and then streamed,
a new request is parsed, passes some turns, and is submitted to the engine. So under load requests
that came together reach the engine together and late, answers end late, and a lone request waits a
round for each of its turns (docs/simulation.md; times from :class:`FrontendTimes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opprof.client.ports import Clock
from opprof.engines.sim.cost import FrontendTimes

MS = 1_000_000

Job = Callable[[int], int]
"""Runs at a time and returns when it has ended; may put jobs into the next round."""


class Frontend:
    """Orders and delays what passes between clients and engine."""

    def __init__(self, clock: Clock, times: FrontendTimes) -> None:
        self._clock = clock
        self._rounds = times.rounds
        self._wire_ns = round(times.wire_ms * MS)
        self._take_ns = round(times.take_ms * MS)
        self._stream_ns = round(times.stream_ms * MS)
        self._finish_ns = round(times.finish_ms * MS)
        self._request_ns = round(times.request_ms * MS)
        self._prompt_ns = times.prompt_token_ms * MS
        self._submit_ns = round(times.submit_ms * MS)
        self._ready: list[Job] = []
        self._is_planned = False
        self._busy_until_ns = 0

    def add(self, prompt_tokens: int, then: Callable[[], None]) -> None:
        """Take a request; ``then`` is called when it reaches the engine."""
        parse_ns = self._request_ns + round(self._prompt_ns * prompt_tokens)
        self._put(lambda at_ns: self._turn(at_ns + parse_ns, self._rounds, then))

    def step(
        self,
        tokens: int,
        first: Sequence[Callable[[int], None]],
        last: Sequence[Callable[[], None]],
    ) -> None:
        """Stream a step's tokens.

        ``first`` hear when a first token leaves; ``last`` are called when an answer ends. Running
        requests keep their order, so those that end lead a step and new ones close it.
        """
        if self._is_planned or first or last:
            self._put(lambda at_ns: self._take(at_ns, tokens, first, last))
        else:
            # Nobody waits for anything: the loop is busy, and nothing has to be called.
            start_ns = max(self._clock.now_ns() + self._wire_ns, self._busy_until_ns)
            self._busy_until_ns = start_ns + tokens * (self._take_ns + self._stream_ns)

    def _put(self, job: Job) -> None:
        self._ready.append(job)
        if not self._is_planned:
            self._is_planned = True
            start_ns = max(self._clock.now_ns() + self._wire_ns, self._busy_until_ns)
            self._clock.call_at(start_ns, self._round)

    def _round(self) -> None:
        jobs, self._ready = self._ready, []
        at_ns = self._clock.now_ns()
        for job in jobs:
            at_ns = job(at_ns)
        self._busy_until_ns = at_ns
        self._is_planned = bool(self._ready)
        if self._ready:
            self._clock.call_at(at_ns, self._round)

    def _turn(self, at_ns: int, left: int, then: Callable[[], None]) -> int:
        if left:
            self._ready.append(lambda later_ns: self._turn(later_ns, left - 1, then))
            return at_ns
        at_ns += self._submit_ns
        self._clock.call_at(at_ns + self._wire_ns, then)
        return at_ns

    def _take(
        self,
        at_ns: int,
        tokens: int,
        first: Sequence[Callable[[int], None]],
        last: Sequence[Callable[[], None]],
    ) -> int:
        self._ready.append(lambda later_ns: self._stream(later_ns, tokens, first, last))
        return at_ns + tokens * self._take_ns

    def _stream(
        self,
        at_ns: int,
        tokens: int,
        first: Sequence[Callable[[int], None]],
        last: Sequence[Callable[[], None]],
    ) -> int:
        for ended in last:
            at_ns += self._stream_ns + self._finish_ns
            self._clock.call_at(at_ns, ended)
        at_ns += max(0, tokens - len(first) - len(last)) * self._stream_ns
        for heard in first:
            at_ns += self._stream_ns
            heard(at_ns)
        return at_ns
