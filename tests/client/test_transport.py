"""Clock and HTTP transport on a real event loop: never early, one callback a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from opprof.client.endpoint import Endpoint
from opprof.client.http import HttpTransport
from opprof.client.ports import ControlReply, Outcome, RequestSpec
from opprof.client.realtime import LoopClock


@pytest.mark.parametrize("exact", [True, False])
def test_timers_are_never_early_and_keep_their_order(exact: bool) -> None:
    fired: list[tuple[int, int]] = []

    async def main() -> None:
        clock, done = LoopClock(asyncio.get_running_loop()), asyncio.Event()
        start = clock.now_ns()
        dues = [start - 5, start + 300_000, start + 2_000_000, start + 7_777_777]
        for due in dues:
            clock.call_at(
                due, lambda due=due: fired.append((due, time.monotonic_ns())), exact=exact
            )
        clock.call_at(start + 20_000_000, done.set, exact=exact)
        cancelled = clock.call_at(start + 1_000_000, lambda: fired.append((0, 0)), exact=exact)
        assert fired == [], "no callback from inside call_at"
        cancelled.cancel()
        await done.wait()

    asyncio.run(main())
    assert len(fired) == 4 and all(at >= due for due, at in fired)
    assert [due for due, _ in fired] == sorted(due for due, _ in fired)


SPEC = RequestSpec("r", b"[1,2,3]", 3, 4)


async def drive(
    server: Any, act: Callable[[HttpTransport, list[Any], asyncio.Event], None]
) -> tuple[HttpTransport, list[Any]]:
    loop = asyncio.get_running_loop()
    endpoint = Endpoint("127.0.0.1", server.port, False, "")
    transport = HttpTransport(loop, LoopClock(loop), endpoint, "mock")
    seen: list[Any] = []
    done = asyncio.Event()
    act(transport, seen, done)
    async with asyncio.timeout(300):
        await done.wait()
    transport.close()
    await asyncio.sleep(0.05)
    return transport, seen


def test_connections_are_kept_and_used_again(mock: Callable[..., Any]) -> None:
    def act(transport: HttpTransport, seen: list[Any], done: asyncio.Event) -> None:
        def ended(outcome: Outcome) -> None:
            seen.append(outcome)
            if len(seen) == 20:
                done.set()
            else:
                transport.send(transport.prepare(SPEC), ended)

        transport.send(transport.prepare(SPEC), ended)

    transport, seen = asyncio.run(drive(mock("--step-ms", "1"), act))
    assert transport.connections == 1
    assert all(o.error is None and (o.prompt_tokens, o.output_tokens) == (3, 4) for o in seen)
    assert all(o.first_token_ns is not None and o.first_token_ns <= o.ended_ns for o in seen)


def test_closing_ends_what_is_in_flight_exactly_once(mock: Callable[..., Any]) -> None:
    def act(transport: HttpTransport, seen: list[Any], done: asyncio.Event) -> None:
        for _ in range(5):
            transport.send(transport.prepare(SPEC), seen.append)
        asyncio.get_running_loop().call_later(0.3, done.set)

    _, seen = asyncio.run(drive(mock("--step-ms", "60000"), act))
    assert len(seen) in (0, 5) and {o.error for o in seen} <= {"cut_stream"}


def test_no_server_is_an_outcome_and_a_reply(mock: Callable[..., Any]) -> None:
    class Nobody:
        port = 9

    def act(transport: HttpTransport, seen: list[Any], done: asyncio.Event) -> None:
        def ended(value: Outcome | ControlReply) -> None:
            seen.append(value)
            if len(seen) == 2:
                done.set()

        transport.ready(3)
        transport.send(transport.prepare(SPEC), ended)
        transport.control("/start_profile", ended)
        assert seen == [], "never from inside the call"

    _, seen = asyncio.run(drive(Nobody(), act))
    outcome = next(value for value in seen if isinstance(value, Outcome))
    reply = next(value for value in seen if isinstance(value, ControlReply))
    assert outcome.error == "connect" and reply.status is None and reply.error
