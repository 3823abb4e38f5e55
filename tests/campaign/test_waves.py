"""Waves: slots, masks, ports, order, refusals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from campaign_builders import PACE, attempt, ended, host, phase3, where

from opprof.artifacts.campaign import RunRecord, Stop
from opprof.artifacts.environment import Topology
from opprof.campaign.ledger import Balance, balance, hours_ns, opening
from opprof.campaign.plan import planned_runs
from opprof.campaign.waves import Done, Refusal, Wave, Where, next_in_lane, next_wave
from opprof.errors import InputError
from opprof.host.cpus import parse_cpus

BALANCE = balance([opening(phase3().budget, wall_ns=0, simulated=True)])


def wave_of(
    records: Sequence[RunRecord], place: Where | None = None, now: Balance = BALANCE
) -> Wave:
    found = next_wave(records, place or where(), phase3(), now, PACE)
    assert isinstance(found, Wave), found
    return found


def complete(records: Sequence[RunRecord], wave: Wave) -> list[RunRecord]:
    slots = {run: lane.slot for lane in wave.lanes for run in lane.runs}
    return [
        ended(record, "complete", slots[record.run]) if record.run in slots else record
        for record in records
    ]


def burned(only: Sequence[str] = ()) -> list[RunRecord]:
    return [
        ended(record, "complete") if record.role == "burnin" else record
        for record in planned_runs(phase3(), only)
    ]


def test_the_burnins_are_one_wave_of_their_own() -> None:
    wave = wave_of(planned_runs(phase3()))
    assert (wave.number, wave.group) == (1, "burnin")
    assert [(lane.runs, lane.slot.gpus) for lane in wave.lanes] == [
        (("P06-C00-saturation-burnin",), [2]),
        (("P06-C10-saturation-burnin",), [3]),
        (("P06-C01-saturation-burnin",), [4]),
        (("P06-C11-saturation-burnin",), [5]),
        (("P06-C00-TP2-saturation-burnin",), [0, 1]),
    ]


def test_the_first_matrix_wave_takes_the_first_cells_of_the_order() -> None:
    records = burned()
    wave = wave_of(records)
    primary = [record.run for record in records if record.role == "primary"]
    assert wave.group == "matrix"
    assert list(wave.runs) == primary[: len(wave.runs)]
    assert all(len(lane.runs) == 2 for lane in wave.lanes)
    assert sum(len(lane.slot.gpus) for lane in wave.lanes) == 8


def test_slots_have_the_protocols_masks_ports_and_devices() -> None:
    wave = wave_of(burned())
    for lane in wave.lanes:
        slot = lane.slot
        assert slot.port == 18000 + slot.gpus[0]
        assert slot.gpu_uuids == [f"GPU-dash0-{index}" for index in slot.gpus]
        assert parse_cpus(slot.cpus) == tuple(
            cpu for index in slot.gpus for cpu in range(20 * index, 20 * index + 20)
        )
        assert (slot.wave, slot.width) == (1, 8)


def test_tp2_takes_two_adjacent_gpus_of_one_node_and_the_union_of_their_masks() -> None:
    wave = wave_of(burned(["P10/C00-TP2", "P01/C00", "P02/C00", "P03/C00"]))
    lane = next(lane for lane in wave.lanes if "TP2" in lane.runs[0])
    assert (lane.slot.gpus, lane.slot.cpus) == ([0, 1], "0-39")
    assert sorted(gpu for lane in wave.lanes for gpu in lane.slot.gpus) == [0, 1, 2, 3, 4]


def test_a_cell_that_does_not_fit_ends_the_wave_and_begins_the_next() -> None:
    records = burned()
    while True:
        wave = wave_of(records)
        tp2 = [i for i, lane in enumerate(wave.lanes) if len(lane.slot.gpus) == 2]
        if tp2:
            break
        records = complete(records, wave)
    order = [r.run for r in records if r.role == "primary" and r.state == "pending"]
    assert list(wave.runs) == order[: len(wave.runs)]


def test_only_incomplete_cells_are_planned_again_in_the_same_order() -> None:
    records = burned()
    wave = wave_of(records)
    done = complete(records, wave)
    broken = wave.lanes[3].runs[1]
    records = [
        msgspec.structs.replace(
            record,
            state="interrupted",
            attempts=[attempt(1, "interrupted", wave.lanes[3].slot, end_s=3.0)],
        )
        if record.run == broken
        else record
        for record in done
    ]
    again = wave_of(records)
    assert again.number == 2
    assert again.lanes[0].runs == (broken,)
    assert not set(again.runs[1:]) & set(wave.runs)


@pytest.mark.parametrize("gpus", [1, 2, 3, 5, 8])
def test_smaller_hosts_fill_what_they_have(gpus: int) -> None:
    place = where([host(gpus=gpus)])
    found = wave_of(burned(["P01", "P03"]), place)
    used = [index for lane in found.lanes for index in lane.slot.gpus]
    assert used == list(range(gpus))


def test_four_wide_uses_the_gpus_that_the_check_looked_at() -> None:
    found = wave_of(burned(), where(width=4))
    assert {index for lane in found.lanes for index in lane.slot.gpus} == {0, 1, 2, 3}
    assert {lane.slot.width for lane in found.lanes} == {4}


def test_one_wide_runs_one_cell_and_lets_tp2_have_its_two_gpus() -> None:
    records = burned(["P10/C00-TP2", "P10/C00"])
    seen = []
    while isinstance(found := next_wave(records, where(width=1), phase3(), BALANCE, PACE), Wave):
        assert len(found.lanes) == 1
        seen.append((found.lanes[0].runs, found.lanes[0].slot.gpus))
        records = complete(records, found)
    assert sorted(seen) == [
        (("P10-C00-TP2-saturation", "P10-C00-TP2-moderate"), [0, 1]),
        (("P10-C00-moderate-confirmation",), [0]),
        (("P10-C00-saturation", "P10-C00-moderate"), [0]),
    ]


def test_two_hosts_share_a_wave_with_ports_of_their_own() -> None:
    place = where([host("one", 2), host("two", 3)])
    found = wave_of(burned(["P01", "P03"]), place)
    assert [(lane.slot.host, lane.slot.gpus) for lane in found.lanes] == [
        ("one", [0]),
        ("one", [1]),
        ("two", [0]),
        ("two", [1]),
        ("two", [2]),
    ]
    assert [lane.slot.port for lane in found.lanes] == [18000, 18001, 18002, 18003, 18004]


def test_ports_may_be_left_to_the_launch() -> None:
    place = Where((host(),), {"dash0": 8}, 0)
    assert {lane.slot.port for lane in wave_of(burned(), place).lanes} == {0}


def test_a_cell_larger_than_every_host_is_held_with_a_reason() -> None:
    place = where([host(gpus=1)])
    records = burned(["P10/C00-TP2"])
    found = next_wave(records, place, phase3(), BALANCE, PACE)
    assert isinstance(found, Done)
    assert "2 GPUs side by side" in found.blocked["P10-C00-TP2-saturation"]
    assert "needs P10-C00-TP2-saturation" in found.blocked["P10-C00-TP2-moderate"] or (
        "2 GPUs" in found.blocked["P10-C00-TP2-moderate"]
    )


def test_a_saturation_of_another_regime_gives_no_rate() -> None:
    records = burned(["P01/C00"])
    wide = wave_of(records, where(width=8))
    slot = wide.lanes[0].slot
    records = [ended(r, "complete", slot) if r.run == "P01-C00-saturation" else r for r in records]
    narrow = next_wave(records, where(width=4), phase3(), BALANCE, PACE)
    assert isinstance(narrow, Done)
    assert "calibrated 8 wide" in narrow.blocked["P01-C00-moderate"]
    assert wave_of(records, where(width=8)).runs == ("P01-C00-moderate",)


def test_a_stop_halts_further_waves_until_it_is_reviewed() -> None:
    stop = Stop(1, 2, "contamination", "another user's process on GPU 3", "P01-C00-moderate", 5)
    found = next_wave(burned(), where(), phase3(), BALANCE, PACE, stop=stop)
    assert isinstance(found, Refusal)
    assert (found.kind, "another user's process" in found.reason) == ("stop", True)
    reviewed = msgspec.structs.replace(stop, reviewed="operator: process has ended")
    assert isinstance(next_wave(burned(), where(), phase3(), BALANCE, PACE, stop=reviewed), Wave)


def test_no_wave_starts_beside_a_run_that_is_under_way() -> None:
    records = burned(["P01/C00"])
    records = [
        msgspec.structs.replace(r, state="loading") if r.run == "P01-C00-saturation" else r
        for r in records
    ]
    found = next_wave(records, where(), phase3(), BALANCE, PACE)
    assert isinstance(found, Refusal)
    assert found.kind == "active"


def test_the_budget_refuses_exactly_beyond_its_border() -> None:
    records = burned()
    wave = wave_of(records)
    cap, wanted = hours_ns(16.0), round(wave.reserved_gpu_s * 1e9)
    fitting = Balance(cap - wanted, 0, {})
    assert wave_of(records, now=fitting).runs == wave.runs
    found = next_wave(records, where(), phase3(), Balance(cap - wanted + 1, 0, {}), PACE)
    assert isinstance(found, Refusal)
    assert (found.kind, found.numbers["gpu_hours_max"]) == ("budget", 16.0)
    found = next_wave(records, where(), phase3(), Balance(cap - wanted, 1, {}), PACE)
    assert isinstance(found, Refusal)


def _moved(place: Topology, index: int, node: int) -> Topology:
    gpus = [
        msgspec.structs.replace(gpu, numa_node=node) if gpu.index == index else gpu
        for gpu in place.gpus
    ]
    return msgspec.structs.replace(place, gpus=gpus)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (_moved(host(), 3, 1), "GPU 3 is local to NUMA node 1, the protocol's map says 0"),
        (host(cpus_per_gpu=16), "CPUs 64-79 are not in NUMA node 0"),
        (msgspec.structs.replace(host(), cpus="0-99"), "CPUs 100-119 may not be used here"),
        (msgspec.structs.replace(host(), gpus=[]), "no host has a GPU slot"),
        (host(gpus=9), "no mask for GPU 8"),
        (
            msgspec.structs.replace(
                host(), gpus=[msgspec.structs.replace(host().gpus[0], mig_enabled=True)]
            ),
            "partitioned",
        ),
    ],
)
def test_a_host_that_differs_from_the_map_is_refused(place: Topology, reason: str) -> None:
    found = next_wave(burned(), where([place]), phase3(), BALANCE, PACE)
    assert isinstance(found, Refusal)
    assert found.kind == "placement"
    assert reason in found.reason


def test_masks_that_overlap_are_refused() -> None:
    file = phase3()
    placement = msgspec.structs.replace(
        file.placement, cpu_map=["0-20", *file.placement.cpu_map[1:]]
    )
    file = msgspec.structs.replace(file, placement=placement)
    found = next_wave(burned(), where(), file, BALANCE, PACE)
    assert isinstance(found, Refusal)
    assert "mask of GPU 1 shares CPU 20 with that of GPU 0" in found.reason


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="ports 65530 to 65537 do not exist"):
        next_wave(burned(), Where((host(),), {"dash0": 8}, 65530), phase3(), BALANCE, PACE)
    with pytest.raises(InputError, match="no width for host"):
        next_wave(burned(), Where((host(),), {}, 0), phase3(), BALANCE, PACE)
    with pytest.raises(InputError, match="one name"):
        next_wave(burned(), where([host(), host()]), phase3(), BALANCE, PACE)


def test_a_lane_goes_on_to_moderate_only_after_an_accepted_saturation() -> None:
    records = burned(["P01/C00"])
    lane = wave_of(records).lanes[0]
    assert next_in_lane(lane, records, phase3()) == "P01-C00-saturation"

    def after(**how: object) -> list[RunRecord]:
        phase = "failed" if "fault" in how else "complete"
        return [
            ended(r, phase, lane.slot, **how) if r.run == lane.runs[0] else r  # type: ignore[arg-type]
            for r in records
        ]

    assert next_in_lane(lane, after(), phase3()) == "P01-C00-moderate"
    assert next_in_lane(lane, after(accepted=False), phase3()) is None
    # Its exact rerun has no reservation in this wave.
    assert next_in_lane(lane, after(fault="infrastructure"), phase3()) is None
    assert wave_of(after(fault="infrastructure")).lanes[0].runs == lane.runs


def test_the_runs_of_the_check_are_no_part_of_the_matrix() -> None:
    records = burned(["P01/C00"])
    wave = wave_of(records)
    check = msgspec.structs.replace(
        records[0], run="solo-saturation-P05-C00-saturation-colocation", role="colocation", order=0
    )
    for state in ("pending", "loading", "failed"):
        other = msgspec.structs.replace(check, state=state)
        assert wave_of([other, *records]).runs == wave.runs
        assert next_in_lane(wave.lanes[0], [other, *records], phase3()) == "P01-C00-saturation"


def test_a_moderate_run_goes_to_a_host_of_its_saturations_regime() -> None:
    place = Where((host("one", 2), host("two", 4)), {"one": 2, "two": 4}, 18000)
    records = burned(["P01/C00"])
    lone = Where((host("two", 4),), {"two": 4}, 18000)
    slot = wave_of(records, lone).lanes[0].slot
    records = [ended(r, "complete", slot) if r.run == "P01-C00-saturation" else r for r in records]
    found = wave_of(records, place).lanes[0].slot
    assert (found.host, found.width) == ("two", 4)
    assert isinstance(next_wave(records, where([host("one", 2)], 2), phase3(), BALANCE, PACE), Done)
