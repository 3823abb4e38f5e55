"""A-P3-1: schedule of the check, its decision at the borders, what a gate authorises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from campaign_builders import PACE, host, phase3
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.plan import ColocationGate
from opprof.campaign.colocation import (
    PlaceBinding,
    authorised_width,
    needs_gate,
    next_regime,
    placeable,
    rounds,
)
from opprof.campaign.colocation_gate import (
    BackgroundFact,
    GateContext,
    RegimeFacts,
    TargetRun,
    TargetWindow,
    decide_colocation,
    top_families,
)
from opprof.campaign.naming import round_of
from opprof.errors import InputError, StateConflict
from opprof.protocol.model import ProtocolFile

SHA, OWN = "a" * 64, "b" * 64
SHARES = {"moe_gemm": 0.5, "attention": 0.3, "norm_elementwise": 0.1, "sampler": 0.05}


def run(rps: float | None = 10.0, **changes: Any) -> TargetRun:
    fields: dict[str, Any] = {
        "accepted": True,
        "reasons": (),
        "completed_rps": rps,
        "manifest_sha256": SHA,
        "result_sha256": OWN,
        "rate_source_sha256": OWN,
        "needed_ns": (100, 900),
        **changes,
    }
    return TargetRun(**fields)


def window(shares: dict[str, float] | None = None, **changes: Any) -> TargetWindow:
    fields: dict[str, Any] = {
        "accepted": True,
        "reasons": (),
        "classified_fraction": 0.95,
        "shares": SHARES if shares is None else shares,
        **changes,
    }
    return TargetWindow(**fields)


def backgrounds(regime: str, **changes: Any) -> tuple[BackgroundFact, ...]:
    rule = phase3().colocation
    assert rule is not None
    names = rule.backgrounds_eight if regime == "eight" else rule.backgrounds_four
    return tuple(
        BackgroundFact(name, load, **{"active_ns": (50, 950), **changes})
        for load in ("saturation", "moderate")
        for name in names
    )


def facts(regime: str, **changes: Any) -> RegimeFacts:
    fields: dict[str, Any] = {
        "regime": regime,
        "saturation": run(20.0),
        "moderate": run(),
        "windows": (window(),),
        "backgrounds": () if regime == "solo" else backgrounds(regime),
        "inputs": {f"colocation/{regime}/result.json": SHA},
        **changes,
    }
    for name in ("saturation", "moderate"):
        fields[name] = named(fields[name], regime, name)
    return RegimeFacts(**fields)


def named(target: TargetRun | None, regime: str, name: str) -> TargetRun | None:
    """Give a target's result, and the one behind its rate, the hashes of their own files."""
    if target is None or target.result_sha256 != OWN:
        return target
    source = target.rate_source_sha256
    return replace(
        target,
        result_sha256=f"{regime} {name}",
        rate_source_sha256=f"{regime} saturation" if source == OWN else source,
    )


def decide(*measured: RegimeFacts, gpus: int = 8) -> ColocationGate:
    context = GateContext(
        protocol_sha256=SHA,
        host=host(gpus=gpus),
        engine="vllm",
        engine_version="0.24.0",
        time_scale=1.0,
        mapping_version="v2",
        mapping_sha256=SHA,
        code_version="1",
        code_sha256=SHA,
        wall_ns=1,
    )
    return decide_colocation(phase3(), measured, context)


def test_the_schedule_is_the_specifications() -> None:
    calibration, moderate = rounds(phase3(), host(), "eight", PACE, port_base=18000)
    for each in (calibration, moderate):
        assert (each.target.pattern, each.target.config, each.target.slot.gpus) == (
            "P05",
            "C00",
            [0],
        )
        assert [b.pattern for b in each.backgrounds] == [
            "P01",
            "P02",
            "P03",
            "P04",
            "P06",
            "P07",
            "P08",
        ]
        assert [b.slot.gpus for b in each.backgrounds] == [[i] for i in range(1, 8)]
        assert {b.load_point for b in each.backgrounds} == {"saturation"}
        runs = [each.target, *each.backgrounds]
        assert len({r.slot.port for r in runs}) == 8
        assert len({r.slot.cpus for r in runs}) == 8
        # Only the target is profiled.
        assert sum(b.windows for b in each.backgrounds) == 0
    assert (calibration.target.windows, moderate.target.windows) == (0, 1)
    assert moderate.saturation_run == calibration.target.run
    assert moderate.saturation_folder == calibration.target.folder
    assert calibration.saturation_run == calibration.saturation_folder == ""
    # The target's time and drain, then the longest drain of a background.
    assert (calibration.cost.gpus, calibration.cost.expected_s) == (8, 380.0)
    assert calibration.cost.reserved_s == 380.0 + 120.0 + 240.0


def test_every_run_of_the_check_has_a_name_and_a_folder_of_its_own() -> None:
    every = [
        each
        for regime in ("solo", "eight", "four")
        for both in rounds(phase3(), host(), regime, PACE, port_base=0)  # type: ignore[arg-type]
        for each in (both.target, *both.backgrounds)
    ]
    assert len(every) == 2 * (1 + 8 + 4)
    assert len({each.run for each in every}) == len({each.folder for each in every}) == len(every)


def test_solo_and_four_way_have_their_own_neighbours() -> None:
    solo = rounds(phase3(), host(), "solo", PACE, port_base=0)
    four = rounds(phase3(), host(), "four", PACE, port_base=0)
    assert [len(each.backgrounds) for each in solo] == [0, 0]
    assert [b.pattern for b in four[0].backgrounds] == ["P01", "P03", "P06"]
    assert [b.slot.gpus for b in four[0].backgrounds] == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("gpus", "found"),
    [(1, []), (3, []), (4, ["four"]), (7, ["four"]), (8, ["eight", "four"])],
)
def test_hosts_hold_the_regimes_they_have_gpus_for(gpus: int, found: list[str]) -> None:
    assert placeable(phase3(), host(gpus=gpus)) == found


def test_agreement_authorises_eight() -> None:
    gate = decide(facts("solo"), facts("eight"))
    assert (gate.outcome, gate.authorised_width) == ("eight", 8)
    assert gate.top_families == ["moe_gemm", "attention", "norm_elementwise"]
    assert (gate.solo_throughput_rps, gate.solo_saturation_rps) == (10.0, 20.0)
    verdict = gate.regimes[0]
    assert (verdict.outcome, verdict.ratio, verdict.reasons) == ("pass", 1.0, [])
    assert set(gate.inputs) == {"colocation/solo/result.json", "colocation/eight/result.json"}
    assert gate.sanity.red_flags == []
    assert len(gate.gpu_uuids) == 8


@pytest.mark.parametrize(
    ("rps", "passes"),
    [(10.3, False), (9.7, False), (10.2999999, True), (9.7000001, True), (10.31, False)],
)
def test_throughput_at_the_border(rps: float, passes: bool) -> None:
    gate = decide(facts("solo"), facts("eight", moderate=run(rps)))
    assert (gate.outcome == "eight") == passes
    assert (gate.regimes[0].outcome == "pass") == passes


@pytest.mark.parametrize(("share", "passes"), [(0.53, False), (0.47, False), (0.5299999, True)])
def test_family_share_at_the_border(share: float, passes: bool) -> None:
    here = window({**SHARES, "moe_gemm": share})
    gate = decide(facts("solo"), facts("eight", windows=(here,)))
    assert (gate.regimes[0].outcome == "pass") == passes
    row = gate.regimes[0].families[0]
    assert (row.family, row.passed, row.limit) == ("moe_gemm", passes, 0.03)


def test_only_the_solo_windows_three_largest_families_count() -> None:
    # The fourth family moves by five points: not of F3.
    here = window({**SHARES, "sampler": 0.10})
    assert decide(facts("solo"), facts("eight", windows=(here,))).outcome == "eight"
    # A family without any kernels beside the others has a share of zero.
    gone = window({"moe_gemm": 0.5, "attention": 0.3})
    gate = decide(facts("solo"), facts("eight", windows=(gone,)))
    assert [row.passed for row in gate.regimes[0].families] == [True, True, False]
    assert gate.regimes[0].families[2].share_colocated == 0.0


def test_ties_of_families_go_by_the_protocols_order_and_opaque_time_is_none() -> None:
    tied = window({"sampler": 0.3, "attention": 0.3, "dense_gemm": 0.3, "graph_replay_opaque": 0.9})
    assert top_families(phase3(), tied) == ["attention", "sampler", "dense_gemm"]


def test_a_failed_eight_way_leads_to_four_way_and_its_failure_to_a_stop() -> None:
    bad = facts("eight", moderate=run(5.0))
    gate = decide(facts("solo"), bad)
    assert (gate.outcome, gate.authorised_width) == ("stop", 1)
    assert "four-way has not been compared" in gate.reason
    assert next_regime(phase3(), host(), gate) == "four"
    good = decide(facts("solo"), bad, facts("four"))
    assert (good.outcome, good.authorised_width) == ("four", 4)
    assert next_regime(phase3(), host(), good) == "done"
    worse = decide(facts("solo"), bad, facts("four", moderate=run(5.0)))
    assert (worse.outcome, worse.authorised_width) == ("stop", 1)
    assert "no smaller regime is authorised" in worse.reason
    assert next_regime(phase3(), host(), worse) == "done"


def test_the_order_of_the_check() -> None:
    assert next_regime(phase3(), host(), None) == "solo"
    assert next_regime(phase3(), host(), decide(facts("solo"))) == "eight"
    assert next_regime(phase3(), host(), decide(facts("solo"), facts("eight"))) == "done"
    assert next_regime(phase3(), host(gpus=6), decide(facts("solo"), gpus=6)) == "four"
    assert next_regime(phase3(), host(gpus=2), None) == "done"


BROKEN: list[dict[str, Any]] = [
    {"saturation": None},
    {"moderate": None},
    {"moderate": run(accepted=False, reasons=("clean_requests: 3 failed",))},
    {"saturation": run(20.0, accepted=False)},
    {"moderate": run(None)},
    {"moderate": run(0.0)},
    {"moderate": run(rate_source_sha256="c" * 64)},
    {"moderate": run(rate_source_sha256=None)},
    {"windows": ()},
    {"windows": (window(), window())},
    {"windows": (window(accepted=False, reasons=("join",)),)},
    {"windows": (window(classified_fraction=0.6999),)},
]


@pytest.mark.parametrize("broken", BROKEN)
def test_without_its_prerequisites_nothing_is_compared(broken: dict[str, Any]) -> None:
    gate = decide(facts("solo"), facts("eight", **broken))
    assert (gate.outcome, gate.regimes[0].outcome) == ("stop", "not_evaluable")
    assert gate.regimes[0].reasons and gate.regimes[0].families == []
    # Not a failed regime: it leads to no fallback.
    assert next_regime(phase3(), host(), gate) == "done"


@pytest.mark.parametrize("broken", BROKEN)
def test_a_solo_run_that_cannot_be_used_stops_the_check(broken: dict[str, Any]) -> None:
    gate = decide(facts("solo", **broken), facts("eight"))
    assert gate.outcome == "stop" and gate.reason.startswith("solo: ")
    assert gate.top_families == []
    assert gate.regimes[0].outcome == "not_evaluable"
    assert next_regime(phase3(), host(), decide(facts("solo", **broken))) == "done"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"active_ns": (101, 950)}, "was not active throughout"),
        ({"active_ns": (50, 899)}, "was not active throughout"),
        ({"active_ns": None}, "was not seen"),
        ({"problem": "2 requests failed"}, "2 requests failed"),
    ],
)
def test_backgrounds_must_load_the_host_all_the_time(changes: Any, reason: str) -> None:
    gate = decide(facts("solo"), facts("eight", backgrounds=backgrounds("eight", **changes)))
    assert gate.regimes[0].outcome == "not_evaluable"
    assert any(reason in each for each in gate.regimes[0].reasons)


def test_backgrounds_of_another_list_do_not_count() -> None:
    gate = decide(facts("solo"), facts("eight", backgrounds=backgrounds("four")))
    assert "P02 was not seen" in gate.regimes[0].reasons[0]
    gate = decide(
        facts("solo"),
        facts("eight", moderate=run(5.0)),
        facts("four", backgrounds=backgrounds("eight")),
    )
    assert "ran beside it" in gate.regimes[1].reasons[0]


def test_other_manifests_and_simulated_runs_are_not_compared() -> None:
    gate = decide(facts("solo"), facts("eight", moderate=run(manifest_sha256="d" * 64)))
    assert "manifests differ" in gate.regimes[0].reasons[0]
    gate = decide(facts("solo"), facts("eight", simulated=True))
    assert "simulated run beside a real one" in gate.regimes[0].reasons[0]
    assert gate.simulated
    assert decide(facts("solo", simulated=True), facts("eight", simulated=True)).simulated


def test_a_gate_survives_its_file() -> None:
    gate = decide(facts("solo"), facts("eight"))
    assert msgspec.json.decode(msgspec.json.encode(gate), type=ColocationGate) == gate


def binding(**changes: Any) -> PlaceBinding:
    fields: dict[str, Any] = {
        "protocol_sha256s": {SHA},
        "host": host(),
        "engine": "vllm",
        "engine_version": "0.24.0",
        "time_scale": 1.0,
        **changes,
    }
    return PlaceBinding(**fields)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"windows": (window({**SHARES, "sampler": -0.01}),)}, "negative: family_share"),
        ({"windows": (window({**SHARES, "sampler": 1.5}),)}, "ratio_out_of_bounds: family_share"),
        ({"moderate": run(result_sha256="c", rate_source_sha256="eight saturation")}, "identical"),
    ],
)
def test_a_red_flag_authorises_nothing(changes: dict[str, Any], flag: str) -> None:
    solo = facts("solo", moderate=run(result_sha256="c", rate_source_sha256="solo saturation"))
    found = decide(solo, facts("eight", **changes))
    assert found.outcome == "stop" and found.authorised_width == 1
    assert found.reason.startswith("red flag: ") and flag in found.reason
    assert next_regime(phase3(), host(), found) == "done"
    # Neither does a gate that somebody edited to say otherwise.
    edited = msgspec.structs.replace(found, outcome="eight", authorised_width=8)
    with pytest.raises(StateConflict, match="has a red flag"):
        authorised_width(edited, phase3(), binding())


def test_a_simulated_engine_may_measure_the_same_twice() -> None:
    same = {"moderate": run(result_sha256="c", rate_source_sha256="x"), "simulated": True}
    assert decide(facts("solo", **same), facts("eight", **same)).sanity.red_flags == []


def test_what_a_gate_authorises() -> None:
    eight = decide(facts("solo"), facts("eight"))
    four = decide(facts("solo"), facts("eight", moderate=run(5.0)), facts("four"))
    assert authorised_width(eight, phase3(), binding()) == 8
    assert authorised_width(four, phase3(), binding()) == 4
    # Fewer GPUs of the same host than were checked are no more than was authorised.
    assert authorised_width(four, phase3(), binding(protocol_sha256s={"f" * 64, SHA})) == 4


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"protocol_sha256s": {"f" * 64}}, "protocol"),
        ({"host": host("dash1")}, "host"),
        ({"engine": "sim"}, "engine"),
        ({"engine_version": "0.25.0"}, "engine version"),
        ({"time_scale": 0.1}, "time scale"),
    ],
)
def test_a_gate_of_something_else_authorises_nothing(changes: Any, what: str) -> None:
    gate = decide(facts("solo"), facts("eight"))
    with pytest.raises(StateConflict, match=f"another {what}"):
        authorised_width(gate, phase3(), binding(**changes))


def test_nothing_is_co_located_without_an_authorisation() -> None:
    with pytest.raises(StateConflict, match="no co-location gate"):
        authorised_width(None, phase3(), binding())
    stop = decide(facts("solo"), facts("eight", windows=()))
    with pytest.raises(StateConflict, match="stops the campaign for review"):
        authorised_width(stop, phase3(), binding())
    free = msgspec.structs.replace(phase3(), colocation=None)
    with pytest.raises(StateConflict, match="has no \\[colocation\\] table"):
        authorised_width(None, free, binding())


def test_one_slot_or_serial_needs_no_gate() -> None:
    assert authorised_width(None, phase3(), binding(), serial=True) == 1
    assert authorised_width(None, phase3(), binding(host=host(gpus=1))) == 1
    assert not needs_gate(phase3(), host(gpus=1), serial=False)
    assert needs_gate(phase3(), host(gpus=2), serial=False)


def test_a_smaller_protocol_has_a_check_of_its_own_size() -> None:
    file = phase3()
    assert file.colocation is not None
    small = msgspec.structs.replace(
        file,
        colocation=msgspec.structs.replace(
            file.colocation, backgrounds_eight=["P01"], backgrounds_four=[]
        ),
    )
    assert placeable(small, host(gpus=2)) == ["eight"]
    assert len(rounds(small, host(gpus=2), "eight", PACE, port_base=0)[0].backgrounds) == 1


def test_impossible_checks_are_refused() -> None:
    with pytest.raises(InputError, match="needs 8"):
        rounds(phase3(), host(gpus=7), "eight", PACE, port_base=0)
    file = phase3()
    assert file.colocation is not None
    wide: ProtocolFile = msgspec.structs.replace(
        file, colocation=msgspec.structs.replace(file.colocation, config="C00-TP2")
    )
    with pytest.raises(InputError, match="spans GPUs"):
        rounds(wide, host(), "solo", PACE, port_base=0)
    none = msgspec.structs.replace(file, colocation=None)
    with pytest.raises(InputError, match="no check is defined"):
        rounds(none, host(), "solo", PACE, port_base=0)
    with pytest.raises(InputError, match="needs its solo regime"):
        decide(facts("eight"))


@given(
    st.floats(0.1, 1000),
    st.floats(0.9, 1.1),
    st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=3),
)
def test_eight_is_authorised_exactly_when_every_difference_is_below_its_limit(
    solo_rps: float, factor: float, moves: list[float]
) -> None:
    from fractions import Fraction

    here_rps = solo_rps * factor
    shares = dict(zip(("moe_gemm", "attention", "norm_elementwise"), moves, strict=True))
    here = {name: SHARES[name] + move for name, move in shares.items()}
    gate = decide(
        facts("solo", moderate=run(solo_rps)),
        facts("eight", moderate=run(here_rps), windows=(window({**SHARES, **here}),)),
    )
    limit = Fraction(3, 100)
    error = Fraction(repr(here_rps)) / Fraction(repr(solo_rps)) - 1
    close = abs(error) < limit and all(
        abs(Fraction(repr(here[name])) - Fraction(repr(SHARES[name]))) < limit for name in here
    )
    assert (gate.outcome == "eight") == close


def test_a_gate_of_other_gpus_of_the_host_authorises_nothing() -> None:
    gate = decide(facts("solo"), facts("eight"))
    place = host()
    swapped = [
        msgspec.structs.replace(place.gpus[3], uuid="GPU-new") if g.index == 3 else g
        for g in place.gpus
    ]
    other = msgspec.structs.replace(place, gpus=swapped)
    with pytest.raises(StateConflict, match="another set of GPUs"):
        authorised_width(gate, phase3(), binding(host=other))


def test_every_host_has_its_own_names_and_folders() -> None:
    every = [
        each
        for name in ("dash0", "dash1")
        for both in rounds(phase3(), host(name), "eight", PACE, port_base=0)
        for each in (both.target, *both.backgrounds)
    ]
    assert len({each.run for each in every}) == len({each.folder for each in every}) == 2 * 2 * 8
    assert {round_of(each.run) for each in every} == {
        (f"eight-{load}", name)
        for load in ("saturation", "moderate")
        for name in ("dash0", "dash1")
    }
