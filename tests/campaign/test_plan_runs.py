"""Which runs are planned, in which order, and where they stand."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from campaign_builders import ended, phase3

from opprof.artifacts.campaign import Adjudication, RunRecord
from opprof.artifacts.common import Gate
from opprof.artifacts.run import Timeline
from opprof.campaign.naming import run_name
from opprof.campaign.plan import planned_runs, standings
from opprof.errors import InputError
from opprof.protocol.model import Reruns


def _by_name(records: list[RunRecord]) -> dict[str, RunRecord]:
    return {record.run: record for record in records}


def test_full_matrix_has_the_specifications_counts() -> None:
    records = planned_runs(phase3())
    roles = [record.role for record in records]
    assert (roles.count("burnin"), roles.count("primary"), roles.count("confirmation")) == (
        5,
        48,
        4,
    )
    assert len({record.run for record in records}) == 57
    assert [record.order for record in records] == list(range(57))
    assert all(record.state == "pending" and not record.attempts for record in records)


def test_burnins_come_first_one_a_configuration() -> None:
    assert [record.run for record in planned_runs(phase3())[:5]] == [
        "P06-C00-saturation-burnin",
        "P06-C10-saturation-burnin",
        "P06-C01-saturation-burnin",
        "P06-C11-saturation-burnin",
        "P06-C00-TP2-saturation-burnin",
    ]


def test_cells_follow_the_hash_order_with_saturation_and_moderate_contiguous() -> None:
    primary = [record for record in planned_runs(phase3()) if record.role == "primary"]
    cells = [(record.pattern, record.config) for record in primary[::2]]
    digests = [
        hashlib.sha256(f"20260713:{pattern}:{config}".encode()).hexdigest()
        for pattern, config in cells
    ]
    assert digests == sorted(digests)
    assert len(set(cells)) == 24
    for saturation, moderate in zip(primary[::2], primary[1::2], strict=True):
        assert (saturation.load_point, moderate.load_point) == ("saturation", "moderate")
        assert moderate.needs == [saturation.run]
        assert len(saturation.needs) == 5


def test_confirmations_keep_their_order_and_need_the_saturation_of_their_pattern() -> None:
    last = planned_runs(phase3())[-4:]
    assert [record.run for record in last] == [
        f"{pattern}-C00-moderate-confirmation" for pattern in ("P10", "P06", "P03", "P01")
    ]
    assert [record.needs for record in last] == [
        [f"{pattern}-C00-saturation"] for pattern in ("P10", "P06", "P03", "P01")
    ]


def test_names_are_the_timelines() -> None:
    for record in planned_runs(phase3()):
        timeline = Timeline(
            schema=1,
            pattern=record.pattern,
            config=record.config,
            load_point=record.load_point,
            max_concurrency=1,
            rate_rps=None,
            clock="test",
            intervals=[],
            role=record.role,
        )
        assert record.run == timeline.run_name


def test_a_subset_plans_only_the_burnins_and_confirmations_it_needs() -> None:
    records = planned_runs(phase3(), ["P01/C10", "P03/C00"])
    assert [record.run for record in records] == [
        "P06-C00-saturation-burnin",
        "P06-C10-saturation-burnin",
        *sorted(
            (
                name
                for name in _by_name(planned_runs(phase3()))
                if name.startswith(("P01-C10", "P03-C00-s", "P03-C00-moderate"))
                and "confirmation" not in name
            ),
            key=lambda name: _by_name(planned_runs(phase3()))[name].order,
        ),
        "P03-C00-moderate-confirmation",
    ]


def test_a_pattern_alone_selects_all_its_cells() -> None:
    records = planned_runs(phase3(), ["P10"])
    assert {r.config for r in records if r.role == "primary"} == {
        "C00",
        "C10",
        "C01",
        "C11",
        "C00-TP2",
    }


@pytest.mark.parametrize("name", ["P99", "P01/C99", "P01/", "", "/C00", "P02/C10"])
def test_an_unknown_cell_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no cell of phase3"):
        planned_runs(phase3(), [name])


def test_a_protocol_without_sentinels_extras_or_confirmations_works() -> None:
    file = phase3()
    small = msgspec.structs.replace(
        file,
        cells=msgspec.structs.replace(
            file.cells, sentinel_patterns=[], sentinel_configs=[], extra=[]
        ),
        confirmations=msgspec.structs.replace(file.confirmations, patterns=[]),
    )
    roles = [record.role for record in planned_runs(small)]
    assert (roles.count("burnin"), roles.count("primary"), roles.count("confirmation")) == (
        1,
        22,
        0,
    )


def test_saturation_confirmations_need_no_rate() -> None:
    file = phase3()
    rule = msgspec.structs.replace(file.confirmations, load_point="saturation")
    last = planned_runs(msgspec.structs.replace(file, confirmations=rule))[-1]
    assert last.run == "P01-C00-saturation-confirmation"
    assert len(last.needs) == 5


def _with(records: list[RunRecord], *changed: RunRecord) -> list[RunRecord]:
    new = _by_name(list(changed))
    return [new.get(record.run, record) for record in records]


def _small() -> list[RunRecord]:
    return planned_runs(phase3(), ["P01/C00"])


def test_standings_of_a_small_campaign_step_by_step() -> None:
    records = _small()
    burnin, saturation, moderate, confirmation = records
    states = {name: s.state for name, s in standings(records, phase3()).items()}
    assert list(states.values()) == ["runnable", "waiting", "waiting", "waiting"]
    records = _with(records, ended(burnin, "complete"))
    assert standings(records, phase3())[saturation.run].state == "runnable"
    records = _with(records, ended(saturation, "complete"))
    found = standings(records, phase3())
    assert found[moderate.run].state == "runnable"
    assert found[confirmation.run].state == "waiting"
    assert "follow the matrix" in found[confirmation.run].reason
    records = _with(records, ended(moderate, "complete"))
    assert standings(records, phase3())[confirmation.run].state == "runnable"


def test_a_saturation_that_was_not_accepted_blocks_what_takes_its_rate() -> None:
    burnin, saturation, moderate, confirmation = _small()
    records = [
        ended(burnin, "complete"),
        ended(saturation, "complete", accepted=False),
        moderate,
        confirmation,
    ]
    found = standings(records, phase3())
    assert found[moderate.run].state == found[confirmation.run].state == "blocked"
    assert "was not accepted" in found[moderate.run].reason


def test_a_later_adjudication_unblocks_it() -> None:
    burnin, saturation, moderate, confirmation = _small()
    again = Adjudication("0" * 64, "A-P3-6", True, [], "adjudications/x.json")
    judged = msgspec.structs.replace(
        ended(saturation, "complete", accepted=False), adjudications=[again]
    )
    records = [ended(burnin, "complete"), judged, moderate, confirmation]
    assert standings(records, phase3())[moderate.run].state == "runnable"


def test_an_infrastructure_fault_gets_one_exact_rerun() -> None:
    burnin, *rest = _small()
    once = ended(burnin, "failed", fault="infrastructure")
    assert standings([once, *rest], phase3())[burnin.run].state == "runnable"
    twice = ended(once, "failed", fault="infrastructure")
    found = standings([twice, *rest], phase3())
    assert {standing.state for standing in found.values()} == {"blocked"}
    assert "after its exact rerun" in found[rest[0].run].reason


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_protocol_says_how_many_exact_reruns_a_fault_has(number: int) -> None:
    record, *rest = _small()
    for _ in range(number):
        record = ended(record, "failed", fault="infrastructure")
        assert _standing_with([record, *rest], Reruns(number, 0)) == "runnable"
    record = ended(record, "failed", fault="infrastructure")
    assert _standing_with([record, *rest], Reruns(number, 5)) == "blocked"


def test_windows_that_are_not_representative_have_their_own_retry() -> None:
    burnin, saturation, *rest = _small()

    def failed(record: RunRecord, *checks: str) -> RunRecord:
        record = ended(record, "failed", fault="infrastructure")
        assert record.attempt is not None
        found = {name: Gate(name, "fail", "", {"unrepresentative": True}) for name in checks}
        attempt = msgspec.structs.replace(record.attempt, checks=found)
        return msgspec.structs.replace(record, attempts=[*record.attempts[:-1], attempt])

    def standing(record: RunRecord, rule: Reruns) -> str:
        records = [ended(burnin, "complete"), record, *rest]
        return _standing_with(records, rule, record.run)

    once = failed(saturation, "layer2")
    assert standing(once, Reruns(0, 1)) == "runnable"
    assert standing(once, Reruns(5, 0)) == "blocked"
    assert standing(failed(once, "layer2"), Reruns(5, 1)) == "blocked"
    # What failed beside them is the machinery's, and so is the rerun.
    assert standing(failed(saturation, "layer2", "gpu_memory"), Reruns(0, 5)) == "blocked"
    assert standing(failed(once, "gpu_memory"), Reruns(1, 1)) == "runnable"


def test_a_protocol_without_the_rule_is_refused() -> None:
    file = msgspec.structs.replace(phase3(), reruns=None)
    with pytest.raises(InputError, match=r"leaves out \[reruns\]"):
        standings(_small(), file)


def _standing_with(records: list[RunRecord], rule: Reruns, run: str = "") -> str:
    file = msgspec.structs.replace(phase3(), reruns=rule)
    return standings(records, file)[run or records[0].run].state


def test_interruptions_use_up_no_rerun() -> None:
    burnin, *rest = _small()
    record = burnin
    for _ in range(5):
        record = ended(record, "interrupted", fault="interrupted")
    record = ended(record, "failed", fault="infrastructure")
    assert standings([record, *rest], phase3())[burnin.run].state == "runnable"


def test_a_semantic_failure_blocks() -> None:
    burnin, *rest = _small()
    found = standings([ended(burnin, "failed", fault="semantic"), *rest], phase3())
    assert found[burnin.run].state == "blocked"
    assert "amendment" in found[burnin.run].reason


def test_contradicting_records_are_refused() -> None:
    records = _small()
    with pytest.raises(InputError, match="two records"):
        standings([*records, records[0]], phase3())
    circle = msgspec.structs.replace(records[0], needs=[records[1].run])
    with pytest.raises(InputError, match="circle"):
        standings([circle, *records[1:]], phase3())
    orphan = msgspec.structs.replace(records[0], needs=["P77-C00-saturation"])
    assert "not planned" in standings([orphan, *records[1:]], phase3())[orphan.run].reason


def test_run_name_of_every_role() -> None:
    assert run_name("P10", "C00-TP2", "moderate") == "P10-C00-TP2-moderate"
    assert run_name("P06", "C10", "saturation", "burnin") == "P06-C10-saturation-burnin"
