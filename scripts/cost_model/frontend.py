"""The API server's times, fitted by replay.

The engine's real steps and the clients' real sends go through the embedded API server; its times
are those for which requests reach the engine, and first and last tokens the client, when they did.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from cost_model.samples import Run
from opprof.client.virtual import VirtualClock
from opprof.engines.sim.cost import FrontendTimes
from opprof.rehearsal.frontend import Frontend

START = (0.03, 0.05, 0.5, 0.4, 0.0002, 0.6)
WIRE_MS = 0.3
"""A socket and a pipe; lone answers of P09 leave no room for more."""
CAP_MS = 300.0
"""A larger error counts as this: a stalled engine tells nothing of the API server."""


@dataclass
class Replay:
    """One run as the API server saw it; requests are told apart by their order alone."""

    run: str
    sends: list[tuple[int, int]]
    """Time and prompt tokens."""
    steps: list[tuple[int, int, int, int]]
    """Completion, tokens, first tokens, ended answers."""
    arrived: list[tuple[int, int]]
    """By request: between which submissions it reached the engine."""
    first: list[int]
    last: list[int]


def replay_of(run: Run) -> Replay | None:
    """Read a run; None where requests of another load are in its stream."""
    requests = [r for r in run.requests if r.get("completed_mono_ns")]
    sends = sorted((r["admitted_mono_ns"], r["prompt_tokens"]) for r in run.requests)
    times = [at for at, _ in sends]
    steps = [s for s in run.steps if s["complete_mono_ns"] >= times[0]]
    completions = [s["complete_mono_ns"] for s in steps]
    firsts, lasts = [0] * len(steps), [0] * len(steps)
    arrived: list[tuple[int, int]] = []
    admitted = ended = answered = 0
    carried = False
    before_ns = times[0]
    for at, step in enumerate(steps):
        submit_ns, chunks = step["submit_mono_ns"], step["prefill_requests"]
        admitted += chunks - (carried and chunks > 0)
        carried = bool(chunks) and step["prefill_tokens"] + step["decode_tokens"] == 8192
        there = admitted + step["waiting"]
        if there > bisect_right(times, submit_ns) + 2:
            return None
        arrived += [(before_ns, submit_ns)] * (there - len(arrived))
        firsts[at] = admitted - carried - answered
        answered += firsts[at]
        done = admitted - step["running"]
        lasts[max(0, bisect_right(completions, submit_ns) - 1)] += done - ended
        ended = done
        before_ns = submit_ns
    return Replay(
        run=run.name,
        sends=sends,
        steps=[
            (s["complete_mono_ns"], s["decode_tokens"] + first, first, last)
            for s, first, last in zip(steps, firsts, lasts, strict=True)
        ],
        arrived=arrived,
        first=sorted(r["first_token_mono_ns"] for r in requests),
        last=sorted(r["completed_mono_ns"] for r in requests),
    )


def errors_ms(replay: Replay, times: FrontendTimes) -> dict[str, list[float]]:
    """Return by how much each event of a replay is off, milliseconds."""
    clock = VirtualClock(replay.sends[0][0] - 1)
    frontend = Frontend(clock, times)
    arrived: list[int] = []
    first: list[int] = []
    last: list[int] = []

    def arrive() -> None:
        arrived.append(clock.now_ns())

    def end() -> None:
        last.append(clock.now_ns())

    def step(tokens: int, firsts: int, lasts: int) -> None:
        frontend.step(tokens, [first.append] * firsts, [end] * lasts)

    for at_ns, tokens in replay.sends:
        clock.call_at(at_ns, lambda tokens=tokens: frontend.add(tokens, arrive))  # type: ignore[misc]
    for at_ns, tokens, firsts, lasts in replay.steps:
        clock.call_at(at_ns, lambda t=tokens, f=firsts, e=lasts: step(t, f, e))  # type: ignore[misc]
    clock.run(until_ns=replay.steps[-1][0] + 60_000_000_000)
    outside = [
        max(0, low - at, at - high) / 1e6
        for at, (low, high) in zip(arrived, replay.arrived, strict=False)
    ]
    pairs = ((sorted(first), replay.first), (last, replay.last))
    near, far = ([abs(a - b) / 1e6 for a, b in zip(*pair, strict=False)] for pair in pairs)
    return {"arrived": outside, "first": near, "last": far}


def _times(rounds: int, values: np.ndarray) -> FrontendTimes:
    take, stream, finish, request, prompt, submit = (float(v) for v in values)
    return FrontendTimes(rounds, WIRE_MS, take, stream, finish, request, prompt, submit)


def fit_frontend(runs: list[Run]) -> FrontendTimes:
    """Return the times with the least capped mean error over all runs' events."""
    replays = [replay for replay in map(replay_of, runs) if replay is not None]
    best: tuple[float, FrontendTimes] | None = None

    def loss(rounds: int, logs: np.ndarray) -> float:
        times = _times(rounds, np.exp(logs))
        means = []
        for replay in replays:
            for errors in errors_ms(replay, times).values():
                means.append(float(np.minimum(errors, CAP_MS).mean()))
        return sum(means) / len(means)

    for rounds in (2, 4, 6, 8):
        found = minimize(
            lambda logs, rounds=rounds: loss(rounds, logs),
            np.log(np.array(START)),
            method="Nelder-Mead",
            options={"maxfev": 150, "xatol": 0.05, "fatol": 0.05},
        )
        if best is None or found.fun < best[0]:
            best = (float(found.fun), _times(rounds, np.exp(found.x)))
    assert best is not None
    return best[1]
