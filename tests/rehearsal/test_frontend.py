"""The API server's loop: what is ready runs in one round, what follows from it in the next."""

from __future__ import annotations

from opprof.client.virtual import VirtualClock
from opprof.engines.sim.cost import FrontendTimes
from opprof.rehearsal.frontend import MS, Frontend

TIMES = FrontendTimes(
    rounds=2,
    wire_ms=1.0,
    take_ms=0.5,
    stream_ms=1.0,
    finish_ms=2.0,
    request_ms=3.0,
    prompt_token_ms=0.01,
    submit_ms=4.0,
)
END_NS = 10_000 * MS


def loop() -> tuple[VirtualClock, Frontend, list[float]]:
    clock = VirtualClock(0)
    return clock, Frontend(clock, TIMES), []


def test_a_lone_request_is_parsed_and_submitted() -> None:
    clock, frontend, at_ms = loop()
    frontend.add(100, lambda: at_ms.append(clock.now_ns() / MS))
    clock.run(until_ns=END_NS)
    # Wire, parsing with its prompt, submission, wire.
    assert at_ms == [1 + 3 + 1 + 4 + 1]


def test_requests_that_come_together_arrive_together_and_late() -> None:
    clock, frontend, at_ms = loop()
    for _ in range(10):
        frontend.add(0, lambda: at_ms.append(clock.now_ns() / MS))
    clock.run(until_ns=END_NS)
    assert at_ms[0] == 1 + 10 * 3 + 4 + 1, "all are parsed before the first is submitted"
    assert at_ms == [at_ms[0] + 4 * n for n in range(10)]


def test_a_step_gives_its_oldest_the_end_and_its_newest_the_first_token() -> None:
    clock, frontend, ends_ms = loop()
    first_ms: list[float] = []
    frontend.step(
        8,
        [lambda at_ns: first_ms.append(at_ns / MS)],
        [lambda: ends_ms.append(clock.now_ns() / MS)],
    )
    clock.run(until_ns=END_NS)
    assert ends_ms == [1 + 8 * 0.5 + 1 + 2]
    assert first_ms == [1 + 8 * 0.5 + 8 * 1 + 2]


def test_tokens_that_nobody_waits_for_keep_the_loop_busy() -> None:
    clock, frontend, at_ms = loop()
    frontend.step(100, [], [])
    frontend.add(0, lambda: at_ms.append(clock.now_ns() / MS))
    clock.run(until_ns=END_NS)
    assert at_ms == [1 + 100 * 1.5 + 3 + 4 + 1]


def test_a_busy_loop_makes_a_request_wait_a_round_for_each_turn() -> None:
    clock, frontend, at_ms = loop()
    for n in range(20):
        clock.call_at(n * 20 * MS, lambda: frontend.step(12, [], []))
    clock.call_at(100 * MS, lambda: frontend.add(0, lambda: at_ms.append(clock.now_ns() / MS)))
    clock.run(until_ns=END_NS)
    assert 130 < at_ms[0] < 170, "18 of each 20 ms go to tokens"
