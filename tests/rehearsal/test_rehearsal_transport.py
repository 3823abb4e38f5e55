"""The modelled API server: requests that come together arrive together, tokens hold them up."""

from __future__ import annotations

from opprof.client.virtual import VirtualClock
from opprof.rehearsal.transport import Frontend

MS = 1_000_000


def arrivals(sent_ms: list[int], *, tokens: list[tuple[int, int]] | None = None) -> list[float]:
    clock = VirtualClock()
    front = Frontend(clock, 2 * MS, MS // 100)
    found: list[float] = []
    for at in sent_ms:
        clock.call_at(at * MS, lambda: front.add(lambda: found.append(clock.now_ns() / MS)))
    for at, count in tokens or []:
        clock.call_at(at * MS, lambda count=count: front.tokens(count))
    clock.run(until_ns=10_000 * MS)
    assert len(found) == len(sent_ms)
    return found


def test_one_request_takes_its_own_time() -> None:
    assert [round(t, 3) for t in arrivals([0, 100])] == [2.0, 102.0]


def test_requests_that_come_together_share_the_processor() -> None:
    together = arrivals([0] * 50)
    assert min(together) > 99.9 and max(together) < 100.1
    # A trickle: the first is slowed by those that come before it is done.
    assert [round(t, 2) for t in arrivals([0, 1, 2])] == [3.5, 5.5, 6.0]


def test_tokens_come_first() -> None:
    assert [round(t, 2) for t in arrivals([0], tokens=[(1, 300)])] == [5.0]
    assert [round(t, 2) for t in arrivals([5], tokens=[(1, 300)])] == [7.0]
