"""The whole protocol against a fake server in virtual time: minutes of load in milliseconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from opprof.artifacts.run import LoadPoint, Role
from opprof.client.facts import RunFacts
from opprof.client.journal import Journal
from opprof.client.plan import DrainBudget, Load, RunPlan, Windows
from opprof.client.ports import ControlReply, Outcome, RequestSpec, WindowState, WindowWatch
from opprof.client.session import Session
from opprof.client.virtual import FakeServer, FixedWindow, VirtualClock, uniform_source
from opprof.errors import EnvironmentFailure, InputError

S = 1_000_000_000
T0 = 5 * S


def make_plan(
    *,
    rate: float | None = None,
    burst: int = 1,
    cap: int = 256,
    windows: int = 2,
    segments: int = 3,
    role: Role = "primary",
    load_point: LoadPoint = "saturation",
    budget_s: int = 120,
) -> RunPlan:
    return RunPlan(
        pattern="P03",
        config="C00",
        load_point=load_point,
        role=role,
        load=Load(max_concurrency=cap, rate_rps=rate, burst=burst),
        warmup_ns=60 * S,
        segment_ns=80 * S,
        segments=segments,
        windows=Windows(count=windows, steps=11, recovery_ns=30 * S, watchdog_ns=180 * S),
        drain=DrainBudget(budget_ns=budget_s * S, requested_ns=120 * S, watchdog_ns=1800 * S),
        time_scale=1.0,
    )


def simulate(
    plan: RunPlan,
    *,
    slots: int = 64,
    first_token_ns: int = S,
    token_ns: int = S // 10,
    source: Sequence[RequestSpec] | None = None,
    setup: Callable[[FakeServer], None] = lambda _server: None,
    hook: Callable[[VirtualClock, Session], None] = lambda _clock, _session: None,
    watch: WindowWatch | None = None,
    until_s: int = 4000,
) -> tuple[RunFacts, FakeServer, Session]:
    clock = VirtualClock()
    server = FakeServer(clock, slots=slots, first_token_ns=first_token_ns, token_ns=token_ns)
    setup(server)
    source = source or uniform_source(32_768, input_tokens=100, output_tokens=64)
    session = Session(plan, clock, server, source, watch or FixedWindow(5 * S), Journal(None))
    session.admission.warm()
    hook(clock, session)
    session.start(T0)
    clock.run(until_ns=until_s * S)
    return session.facts(None, None), server, session


def borders(facts: RunFacts) -> list[tuple[str, int, int, int]]:
    return [(i.kind, i.index, i.start_mono_ns - T0, i.end_mono_ns - T0) for i in facts.intervals]


def test_the_timeline_is_the_protocols() -> None:
    facts, server, _ = simulate(make_plan())
    call, window = 1_000_000, 5 * S
    first_end = 300 * S + 2 * call + window
    second_end = first_end + 30 * S + 2 * call + window
    assert borders(facts)[:-1] == [
        ("warmup", 0, 0, 60 * S),
        ("clean", 0, 60 * S, 140 * S),
        ("clean", 1, 140 * S, 220 * S),
        ("clean", 2, 220 * S, 300 * S),
        ("profile", 0, 300 * S, first_end),
        ("recovery", 0, first_end, first_end + 30 * S),
        ("profile", 1, first_end + 30 * S, second_end),
        ("recovery", 1, second_end, second_end + 30 * S),
    ]
    kind, _, start, end = borders(facts)[-1]
    assert (kind, start) == ("drain", second_end + 30 * S) and end > start
    assert [path for _, path in server.calls] == ["/start_profile", "/stop_profile"] * 2
    profile = facts.kind("profile")[0]
    assert profile.start_call_mono_ns == (T0 + 300 * S, T0 + 300 * S + call)
    assert profile.http_status == (200, 200)
    assert facts.ending.abort_reason is None and not facts.ending.drain_over_budget


def test_saturation_keeps_exactly_the_cap_outstanding() -> None:
    facts, server, session = simulate(make_plan(cap=256))
    assert session.admission.outstanding_max == 256
    # All 256 leave at t0; from then on one leaves exactly when one ends.
    assert [t for t, _ in server.arrivals[:256]] == [T0] * 256
    ends = sorted(r.completed_mono_ns for r in facts.records if r.completed_mono_ns)
    later = [t for t, _ in server.arrivals[256:]]
    assert later == ends[: len(later)]


def test_admission_goes_on_through_profile_and_recovery_and_stops_at_the_last_border() -> None:
    facts, server, _ = simulate(make_plan(rate=4.0, load_point="moderate"))
    times = [t for t, _ in server.arrivals]
    for kind in ("profile", "recovery"):
        for interval in facts.kind(kind):
            inside = [t for t in times if interval.start_mono_ns <= t < interval.end_mono_ns]
            seconds = (interval.end_mono_ns - interval.start_mono_ns) / S
            assert abs(len(inside) - 4 * seconds) <= 1
    drain = facts.kind("drain")[0]
    assert max(times) < drain.start_mono_ns


@pytest.mark.parametrize("rate", [4.7, 0.6 * 7.123456789, 1 / 3])
def test_steady_arrivals_are_absolute(rate: float) -> None:
    _, server, _ = simulate(make_plan(rate=rate, load_point="moderate"))
    for k, (time, request) in enumerate(server.arrivals):
        assert request == k
        assert abs(time - (T0 + k * S / rate)) <= 1 + 1e-6 * k


def test_bursts_of_eight_are_simultaneous() -> None:
    _, server, _ = simulate(make_plan(rate=4.0, burst=8, load_point="moderate"), slots=256)
    for k, (time, _) in enumerate(server.arrivals):
        assert time == T0 + (k // 8) * 2 * S
    assert len(server.arrivals) % 8 == 0


def test_a_reached_cap_delays_and_keeps_the_scheduled_time() -> None:
    facts, _, session = simulate(
        make_plan(rate=10.0, cap=4, load_point="moderate"),
        slots=4,
        first_token_ns=0,
        token_ns=S // 64,
    )  # serves 4 requests/s, 10 are scheduled
    assert session.admission.outstanding_max == 4
    for k, record in enumerate(sorted(facts.records, key=lambda r: int(r.request_id))):
        assert abs(record.scheduled_mono_ns - (T0 + k * S // 10)) <= 1
        assert record.admitted_mono_ns is None or (
            record.admitted_mono_ns >= record.scheduled_mono_ns
        )
    never = [r for r in facts.records if r.admitted_mono_ns is None]
    assert never and {r.error for r in never} == {"never_admitted"}
    assert facts.unsent == len(never)


def test_the_manifest_never_wraps() -> None:
    source = uniform_source(500, input_tokens=10, output_tokens=64)
    facts, server, _ = simulate(make_plan(), source=source)
    assert [request for _, request in server.arrivals] == list(range(500))
    assert "ran out" in (facts.ending.abort_reason or "")
    assert len(facts.records) == 500 and not facts.failures
    assert facts.intervals[-1].kind == "drain"


def test_a_manifest_of_just_enough_requests_is_no_failure() -> None:
    plan = make_plan(rate=1.0, windows=0, load_point="moderate")
    source = uniform_source(300, input_tokens=10, output_tokens=4)
    facts, server, _ = simulate(plan, source=source)
    assert facts.ending.abort_reason is None and len(server.arrivals) == 300


def test_a_confirmation_has_no_profile_call() -> None:
    plan = make_plan(windows=0, role="confirmation")
    facts, server, _ = simulate(plan)
    assert server.calls == []
    assert [kind for kind, *_ in borders(facts)] == ["warmup", "clean", "clean", "clean", "drain"]


def test_a_burn_in_is_warm_up_only() -> None:
    facts, _, _ = simulate(make_plan(windows=0, segments=0, role="burnin"))
    assert [(kind, a, b) for kind, _, a, b in borders(facts)][:1] == [("warmup", 0, 60 * S)]
    assert [kind for kind, *_ in borders(facts)] == ["warmup", "drain"]


def test_a_slow_drain_is_quarantined_and_never_cancelled() -> None:
    # 40 s a request: whatever was admitted last needs 80 s and more behind the others.
    facts, _, _ = simulate(
        make_plan(cap=128, budget_s=20), slots=64, first_token_ns=0, token_ns=40 * S // 63
    )
    drain = facts.kind("drain")[0]
    assert facts.ending.drain_over_budget and not facts.ending.drain_given_up
    assert drain.end_mono_ns - drain.start_mono_ns > 20 * S
    assert not facts.failures
    assert all(record.completed_mono_ns is not None for record in facts.records)


def test_a_hang_ends_at_the_watchdog() -> None:
    def hang(server: FakeServer) -> None:
        server.slots = 1

    facts, _, _ = simulate(
        make_plan(cap=64), setup=hang, first_token_ns=0, token_ns=S // 2, until_s=10_000
    )
    drain = facts.kind("drain")[0]
    assert facts.ending.drain_given_up and facts.ending.drain_over_budget
    assert drain.end_mono_ns - drain.start_mono_ns == 1800 * S
    left = [record for record in facts.records if record.error == "unfinished"]
    assert left and len(facts.failures) == len(left)


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
@pytest.mark.parametrize("status", [404, 500])
def test_a_failed_profile_call_ends_the_run(path: str, status: int) -> None:
    def refuse(server: FakeServer) -> None:
        server.control_status[path] = status

    facts, _, _ = simulate(make_plan(), setup=refuse)
    assert facts.ending.abort_reason == f"profile window 0: {path} answered {status}"
    assert [kind for kind, *_ in borders(facts)][-2:] == ["profile", "drain"]
    assert len(facts.kind("clean")) == 3


class NeverOver(FixedWindow):
    source = "layer1"

    def __init__(self) -> None:
        super().__init__(10**18)


def test_a_window_whose_iterations_do_not_end_is_given_up() -> None:
    facts, server, _ = simulate(make_plan(), watch=NeverOver())
    assert facts.ending.abort_reason == "profile window 0: its iterations did not end"
    assert [path for _, path in server.calls] == ["/start_profile", "/stop_profile"]


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_a_profile_call_that_is_never_answered_ends_the_run(path: str) -> None:
    def swallow(server: FakeServer) -> None:
        answer = server.control

        def control(called: str, done: Callable[[ControlReply], None]) -> None:
            if called != path:
                answer(called, done)

        server.control = control  # type: ignore[method-assign]

    facts, _, _ = simulate(make_plan(), setup=swallow)
    assert facts.ending.abort_reason == f"profile window 0: {path} was not answered"
    profile = facts.kind("profile")[0]
    assert profile.end_mono_ns - profile.start_mono_ns >= 180 * S
    assert facts.intervals[-1].kind == "drain" and len(facts.kind("clean")) == 3


class LostStream(FixedWindow):
    source = "layer1"

    def poll(self, now_ns: int) -> WindowState:
        raise EnvironmentFailure("cannot read: it is gone")


def test_a_step_stream_that_disappears_ends_the_run_with_its_reason() -> None:
    facts, _, _ = simulate(make_plan(), watch=LostStream(S))
    assert facts.ending.abort_reason == "cannot read: it is gone"
    assert facts.intervals[-1].kind == "drain" and not facts.failures


class Cut(Sequence[RequestSpec]):
    """A manifest that turns out to be changed in the middle of the run."""

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> RequestSpec:  # type: ignore[override]
        if index >= 900:
            raise InputError("the manifest was changed while it was in use")
        return RequestSpec(index, b"[1]", 100, 64)


@pytest.mark.parametrize("rate", [None, 9.0])
def test_a_manifest_that_changes_under_the_run_ends_it_with_its_reason(rate: float | None) -> None:
    facts, server, _ = simulate(make_plan(rate=rate), source=Cut())
    assert facts.ending.abort_reason == "the manifest was changed while it was in use"
    assert len(facts.records) == len(server.arrivals) <= 900
    assert all(record.completed_mono_ns is not None for record in facts.records)
    assert facts.intervals[-1].kind == "drain"


def test_a_dead_server_ends_the_run_at_once() -> None:
    def die(server: FakeServer) -> None:
        def fault(index: int, outcome: Outcome) -> Outcome:
            code = None if index < 1000 else "connect"
            return dataclasses.replace(outcome, error=code)

        server.fault = fault

    facts, server, _ = simulate(make_plan(), setup=die)
    assert facts.ending.abort_reason == "the server does not accept connections any more"
    assert len(server.arrivals) <= 1000 + 2 * 256


def test_failures_without_end_stop_the_run() -> None:
    def break_all(server: FakeServer) -> None:
        server.fault = lambda _i, outcome: dataclasses.replace(outcome, error="http_500")

    facts, server, _ = simulate(make_plan(), setup=break_all)
    assert "256 requests in a row failed" in (facts.ending.abort_reason or "")
    assert len(server.arrivals) < 3 * 256


def test_an_interrupt_records_what_was_outstanding() -> None:
    def stop(clock: VirtualClock, session: Session) -> None:
        clock.call_at(T0 + 100 * S, session.interrupt)

    facts, _, _ = simulate(make_plan(), hook=stop)
    assert facts.ending.abort_reason == "interrupted"
    assert borders(facts) == [("warmup", 0, 0, 60 * S), ("clean", 0, 60 * S, 100 * S)]
    assert sum(r.error == "interrupted" for r in facts.records) == 256


def test_the_same_run_twice_gives_the_same_records() -> None:
    plan = make_plan(rate=3.3, burst=8, load_point="moderate")
    first, second = simulate(plan)[0], simulate(plan)[0]
    assert first.records == second.records and first.intervals == second.intervals
