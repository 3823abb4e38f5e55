"""``opprof campaign plan``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from opprof.artifacts.plan import CampaignPlan
from opprof.cli import root


def _plan(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["campaign", "plan", *arguments])


def _json(*arguments: str) -> CampaignPlan:
    result = _plan(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(result.stdout_bytes, type=CampaignPlan)


def test_the_full_matrix_has_the_specifications_numbers() -> None:
    plan = _json("phase3", "--host-file", "dash0")
    assert (plan.cells, plan.measured_runs, plan.burnins) == (24, 52, 5)
    assert (plan.gpu_hours_max, plan.prior_gpu_hours) == (16.0, 3.964)
    (host,) = plan.hosts
    assert (plan.widths, plan.needs_gate) == ({host: 8}, [host])
    assert [len(wave.lanes) for wave in plan.waves] == [5, 8, 8, 7, 1, 4]
    expected, shortest, whole, again = plan.outlooks
    assert 7.3 < expected.gpu_hours < 7.6
    assert expected.wall_hours == pytest.approx(1.229, abs=1e-3)
    assert 1.5 <= shortest.wall_hours <= 2.0
    assert "wave 6" in whole.refusal
    assert not expected.refusal and not shortest.refusal and not again.refusal
    assert again.consumed_gpu_hours == pytest.approx(expected.consumed_gpu_hours + 2.035, abs=1e-3)


def test_the_text_fits_a_terminal() -> None:
    result = _plan("phase3")
    assert result.exit_code == 0
    assert "P10-C00-TP2-saturation, then moderate" in result.output
    assert "GPU 0,1   CPUs 0-39" in result.output
    assert [line for line in result.output.splitlines() if len(line) > 80] == []


def test_serial_needs_no_gate_and_takes_the_serial_hours() -> None:
    plan = _json("phase3", "--serial", "--only", "P10/C00-TP2")
    assert (list(plan.widths.values()), plan.needs_gate, plan.colocation) == ([1], [], [])
    assert plan.waves[-1].lanes[0].slot.gpus == [0, 1]
    whole = _json("phase3", "--serial")
    assert whole.outlooks[0].wall_hours == pytest.approx(7.123, abs=1e-3)


def test_a_small_campaign_and_a_smaller_host() -> None:
    plan = _json(
        "phase3", "--only", "P01/C00", "--only", "P03", "--gpus", "0-3", "--time-scale", "0.1"
    )
    assert (plan.cells, list(plan.widths.values())) == (5, [4])
    assert {row.regime for row in plan.colocation} == {"solo", "four"}
    two = _json("phase3", "--only", "P01", "--gpus", "4,5")
    assert (list(two.widths.values()), two.needs_gate, two.colocation) == ([1], two.hosts, [])


def test_a_host_that_differs_from_the_map_is_refused(tmp_path: Path) -> None:
    from opprof.host.fake_file import MACHINES

    text = (MACHINES / "dash0.toml").read_text()
    other = tmp_path / "other.toml"
    other.write_text(text.replace('"0-79"', '"0-78"').replace('"80-159"', '"79-159"'))
    result = _plan("phase3", "--host-file", str(other))
    assert result.exit_code == 1
    assert "REFUSED" in result.output and "CPUs 79 are not in NUMA node 0" in result.output


def test_one_refusal_is_said_once(tmp_path: Path) -> None:
    from opprof.protocol.load import packaged_path

    text = packaged_path().read_text()
    poor = tmp_path / "poor.toml"
    poor.write_text(text.replace("gpu_hours_max = 16.0", "gpu_hours_max = 4.2"))
    result = _plan(str(poor))
    assert result.exit_code == 1
    assert result.output.count("REFUSED: wave 1 would reserve") == 1
    assert "outlook" not in result.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["phase3", "--only", "P99"], "is no cell"),
        (["phase3", "--gpus", "9"], "has no GPU 9"),
        (["phase3", "--gpus", "x"], "not a list of GPU indices"),
        (["phase3", "--time-scale", "nan"], "positive number"),
        (["none"], "no protocol"),
        (["absent.toml"], "not found"),
    ],
)
def test_bad_arguments_are_one_message(arguments: list[str], reason: str) -> None:
    result = _plan(*arguments)
    assert reason in str(result.exception)


def _campaign(folder: Path, *, waves: int) -> Path:
    """A campaign's folder after so many waves, as its controller would have left it."""
    from opprof.artifacts.campaign import Campaign
    from opprof.campaign.costs import Pace
    from opprof.campaign.forecast import expected_outcomes, play
    from opprof.campaign.ledger_file import create_ledger
    from opprof.campaign.plan import planned_runs
    from opprof.campaign.store import Store, pretty
    from opprof.campaign.waves import Where
    from opprof.files import write_atomic
    from opprof.host.fake import FakeHost
    from opprof.host.fake_file import load_machine
    from opprof.integrity.ledger import NAME
    from opprof.protocol import load_protocol
    from opprof.protocol.load import packaged_path

    protocol = load_protocol("phase3")
    assert protocol is not None
    pace, file = Pace(1.0, 60.0), protocol.file
    where = Where((FakeHost(load_machine("dash0")).topology(),), {"dash0": 8}, 18000)
    forecast = play(
        planned_runs(file),
        where,
        file,
        pace,
        expected_outcomes(file, pace, "none"),
        waves_max=waves,
    )
    store = Store(folder, wall_ns=lambda: 10**15)
    write_atomic(store.protocol, packaged_path().read_bytes())
    for record in forecast.records:
        store.save(record)
    create_ledger(folder / NAME, forecast.charges[0]).append(forecast.charges[1:])
    campaign = Campaign(
        schema=1,
        id="phase3-abc",
        protocol_id="phase3",
        protocol_sha256=protocol.sha256,
        engine="sim",
        variables={},
        manifests={},
        time_scale=1.0,
        seed=0,
        hosts=["dash0"],
        executor="local",
        options={"host_file": "dash0"},
        code_version="1",
        code_sha256="a" * 64,
        created_wall_ns=0,
        simulated=True,
    )
    write_atomic(folder / "campaign.json", pretty(campaign))
    return folder


def test_the_rest_of_a_campaign_is_planned_from_its_folder(tmp_path: Path) -> None:
    folder = _campaign(tmp_path / "campaign", waves=3)
    whole, rest = _json("phase3", "--host-file", "dash0"), _json(str(folder))
    assert (rest.campaign, rest.complete, rest.notes) == ("phase3-abc", 5 + 32, [])
    assert [wave.number for wave in rest.waves] == [4, 5, 6]
    assert [wave.lanes for wave in rest.waves] == [
        [
            msgspec.structs.replace(lane, slot=msgspec.structs.replace(lane.slot, port=0))
            for lane in wave.lanes
        ]
        for wave in whole.waves[3:]
    ]
    assert rest.outlooks[0].consumed_gpu_hours == pytest.approx(
        whole.outlooks[0].consumed_gpu_hours
    )
    text = _plan(str(folder))
    assert "37 runs complete, this is what is left" in text.output


def test_a_further_hosts_own_burn_in_is_no_part_of_the_rest(tmp_path: Path) -> None:
    from opprof.campaign.store import Store

    folder = _campaign(tmp_path / "campaign", waves=1)
    before = _json(str(folder))
    store = Store(folder, wall_ns=lambda: 10**15)
    burnin = next(record for record in store.runs() if record.role == "burnin")
    own = f"{burnin.run}@dash1"
    store.save(msgspec.structs.replace(burnin, run=own, state="pending", attempts=[]))
    assert _json(str(folder)) == before


def test_a_ledger_that_disagrees_with_the_state_files_is_told(tmp_path: Path) -> None:
    folder = _campaign(tmp_path / "campaign", waves=1)
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(x for x in lines if b'"burnin"' not in x))
    rest = _json(str(folder))
    assert len(rest.notes) == 5
    assert "0.000 GPU-s in the ledger, 140.000 in its state file" in rest.notes[0]


def test_a_campaigns_own_options_hold(tmp_path: Path) -> None:
    folder = _campaign(tmp_path / "campaign", waves=1)
    assert "has its own" in str(_plan(str(folder), "--serial").exception)
    assert "no campaign folder" in str(_plan(str(tmp_path)).exception)


def test_several_hosts_share_the_waves(tmp_path: Path) -> None:
    second = tmp_path / "dash1.toml"
    text = (files("opprof.host") / "machines" / "dash0.toml").read_text()
    second.write_text(text.replace('"dash0"', '"dash1"').replace("GPU-fa4e0000", "GPU-fa4e0001"))
    alone = _json("phase3", "--host-file", "dash0")
    plan = _json("phase3", "--host-file", "dash0", "--host-file", str(second))
    assert plan.hosts == ["dash0", "dash1"]
    assert [len(wave.lanes) for wave in plan.waves] == [5, 16, 8, 4]
    # The burn-ins of the matrix all fit on the first host; the second one makes its own of each
    # configuration that it runs, 140 s of one GPU (specification, "Budget").
    ran = {
        lane.runs[0].run.split("-")[1]
        for wave in plan.waves
        for lane in wave.lanes
        if lane.slot.host == "dash1"
    }
    assert ran == {"C00", "C01", "C11"}
    expected, further = plan.outlooks[0], plan.outlooks[-1]
    assert further.assumption == "as estimated, with 3 burn-ins of more hosts"
    more = further.consumed_gpu_hours - expected.consumed_gpu_hours
    assert more == pytest.approx(3 * 140 / 3600)
    assert not any("burn-ins" in outlook.assumption for outlook in alone.outlooks)


def test_two_hosts_of_one_name_are_refused() -> None:
    twice = _plan("phase3", "--host-file", "dash0", "--host-file", "dash0")
    assert "one name" in str(twice.exception)


def test_some_gpus_of_a_host() -> None:
    plan = _json("phase3", "--host-file", "dash0", "--gpus", "0-3")
    assert plan.hosts == ["dash0"]
    assert {gpu for wave in plan.waves for lane in wave.lanes for gpu in lane.slot.gpus} == {
        0,
        1,
        2,
        3,
    }
