"""What ``opprof campaign start`` refuses before it makes a folder, and what ``status`` says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from campaign_small import small_manifests, small_protocol
from click.testing import CliRunner, Result

from opprof.artifacts.campaign import ControllerRecord
from opprof.campaign.detach import Starter
from opprof.campaign.life import Life, live
from opprof.campaign.options import make_sources
from opprof.campaign.processes import ProcessTable, own_record
from opprof.campaign.store import Store, campaign_lock
from opprof.cli.campaign import group
from opprof.errors import InputError, StateConflict

MACHINE = Path(__file__).parents[2] / "src" / "opprof" / "host" / "machines" / "dash0.toml"


def start(folder: Path, *more: str, private: Path | None = None) -> Result:
    protocol = small_protocol(folder / "small.toml")
    flags = ["start", str(protocol), "--out", str(folder / "c"), "--engine", "sim"]
    flags += ["--private", str(private or folder / "private"), "--var", "MODEL=tiny"]
    return CliRunner().invoke(group, [*flags, *more])


def test_a_host_that_is_not_the_maps_refuses_the_start(tmp_path: Path) -> None:
    machine = tmp_path / "odd.toml"
    machine.write_text(MACHINE.read_text().replace("numa_node = 0 }", "numa_node = 1 }", 1))
    found = start(tmp_path, "--host-file", str(machine)).exception
    assert isinstance(found, StateConflict)
    assert "GPU 0 is local to NUMA node 1, the protocol's map says 0" in found.reason
    assert "--no-cpu-masks" in found.reason
    assert not (tmp_path / "c").exists()


def test_a_run_without_a_place_refuses_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "opprof.campaign.begin.held_runs",
        lambda *_: {"P01-C00-saturation": "needs 2 GPUs side by side, which no host has"},
    )
    found = start(tmp_path, "--no-cpu-masks").exception
    assert isinstance(found, StateConflict)
    assert "P01-C00-saturation needs 2 GPUs side by side" in found.reason
    assert "--only" in found.reason
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("command", ["start", "plan"])
def test_gpus_are_a_list_with_ranges(tmp_path: Path, command: str) -> None:
    if command == "start":
        found = start(tmp_path, "--gpus", "0-x").exception
    else:
        found = CliRunner().invoke(group, ["plan", "phase3", "--gpus", "0-x"]).exception
    assert isinstance(found, InputError)
    assert found.reason == "--gpus '0-x': not a list of GPU indices such as 0,2-3"


def ended(store: Store, phase: str, message: str) -> None:
    """Leave what a controller leaves that has ended."""
    store.write_controller(
        ControllerRecord(
            schema=1,
            campaign=store.campaign().id,
            process=own_record(ProcessTable(), ["x"], wall_ns=time.time_ns()),
            session=os.getsid(0),
            phase=phase,
            heartbeat_wall_ns=time.time_ns(),
            resumed=0,
            message=message,
        )
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A campaign's folder that no controller has taken over."""
    monkeypatch.setattr("opprof.cli.campaign._launch", lambda *_: None)
    private = small_manifests(tmp_path / "private")
    flags = ["--virtual", "--no-cpu-masks", "--gpus", "0-1"]
    assert start(tmp_path, *flags, private=private).exit_code == 0
    return Store(tmp_path / "c", wall_ns=time.time_ns)


def test_a_second_controller_is_no_error_of_the_first(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with campaign_lock(store.folder):
        assert live(Life(store.folder, make_sources(None, ()), Starter(None))) == 2
    assert "another start or resume was refused: error [E-STATE]" in capsys.readouterr().err


def test_status_says_why_nothing_runs(store: Store) -> None:
    assert store.campaign().options["gpus"] == [0, 1]
    ended(store, "stopped", "told to end")
    found = CliRunner().invoke(group, ["status", str(store.folder)])
    assert found.exit_code == 0
    assert "told to end" in found.output
    assert "h of virtual time, one cell after the other" in found.output
    assert f"go on: opprof campaign resume {store.folder}" in found.output.replace("\n", "")
    # A controller that finished and left runs out is no success.
    ended(store, "finished", "0 of 5 runs complete")
    found = CliRunner().invoke(group, ["status", str(store.folder)])
    assert found.exit_code == 1
    assert "0 of 5 runs complete" in found.output
    assert "go on:" not in found.output
    for record in store.runs():
        assert record.run in found.output
