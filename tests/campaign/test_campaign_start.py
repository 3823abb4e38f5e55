"""What ``opprof campaign start`` refuses before it makes a folder, and what ``status`` says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from campaign_builders import ended as completed
from campaign_small import small_manifests, small_protocol
from click.testing import CliRunner, Result

from opprof.artifacts.campaign import ControllerRecord, Slot
from opprof.artifacts.provenance import CampaignProvenance
from opprof.campaign.begin import Request, create_campaign
from opprof.campaign.binding import bind
from opprof.campaign.detach import Starter
from opprof.campaign.life import Life, live
from opprof.campaign.options import make_sources
from opprof.campaign.processes import ProcessTable, own_record
from opprof.campaign.state import begin_attempt
from opprof.campaign.store import Store, campaign_lock, pretty
from opprof.campaign.withdraw import remember, withdraw
from opprof.cli.campaign import group
from opprof.errors import EnvironmentFailure, InputError, StateConflict
from opprof.files import write_atomic
from opprof.integrity import provenance
from opprof.integrity.closing import close
from opprof.protocol import load_protocol
from opprof.protocol.amend import Request as Amending
from opprof.protocol.amend import amend_protocol

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


@pytest.mark.parametrize("text", ["a\nb", "a\udcff"])
@pytest.mark.parametrize("flag", ["--ray-address", "--ray-node"])
def test_a_ray_option_is_a_text_that_a_record_can_hold(
    tmp_path: Path, flag: str, text: str
) -> None:
    found = start(tmp_path, "--executor", "ray", flag, text).exception
    assert isinstance(found, InputError)
    assert flag in found.reason and "which no record can hold" in found.reason
    assert not (tmp_path / "c").exists()


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
    monkeypatch.setattr("opprof.cli.campaign._launch", lambda *_, **__: None)
    private = small_manifests(tmp_path / "private")
    flags = ["--virtual", "--no-cpu-masks", "--gpus", "0-1"]
    assert start(tmp_path, *flags, private=private).exit_code == 0
    return Store(tmp_path / "c", wall_ns=time.time_ns)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A start whose manifest becomes another one between its own look and the controller's."""
    private = small_manifests(tmp_path / "private")
    manifest = private / "P01.jsonl"
    before = manifest.read_bytes()

    def change(request: Request, say: Callable[[str], None]) -> Store:
        made = create_campaign(request, say)
        manifest.write_bytes(before + b"\n")
        return made

    def run(*more: str) -> Result:
        with monkeypatch.context() as patch:
            patch.setattr("opprof.campaign.begin.create_campaign", change)
            found = start(tmp_path, "--virtual", "--no-cpu-masks", *more, private=private)
        manifest.write_bytes(before)
        return found

    return run


@pytest.mark.parametrize("how", [(), ("--foreground",)], ids=["detached", "foreground"])
def test_a_start_that_its_controller_refuses_leaves_its_place_free(
    tmp_path: Path,
    refused: Callable[..., Result],
    how: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sorted(tmp_path.iterdir())
    found = refused(*how)
    assert found.exit_code != 0
    assert "manifest of P01" in found.output + str(found.exception)
    left = [path for path in tmp_path.iterdir() if path not in before]
    assert left == [tmp_path / "small.toml"]
    monkeypatch.setattr("opprof.cli.campaign._launch", lambda *_, **__: None)
    flags = ["--virtual", "--no-cpu-masks"]
    assert start(tmp_path, *flags, private=tmp_path / "private").exit_code == 0


def test_nothing_that_a_start_did_not_make_is_taken_back(tmp_path: Path, store: Store) -> None:
    made = remember(store)
    note = store.folder / "state" / "note.txt"
    note.write_text("mine")
    assert withdraw(made).endswith("stays: it holds state/note.txt, which no start makes")
    note.unlink()
    link = store.folder / "campaign.log"
    link.symlink_to(tmp_path)
    assert "it holds campaign.log" in withdraw(made)
    link.unlink()
    with campaign_lock(store.folder):
        assert "a controller owns this campaign" in withdraw(made)
    first = store.runs()[0]
    begin_attempt(store, first, Slot("h", [0], [], 0, "", 1), {}, folder="runs/x")
    assert withdraw(made).endswith(f"stays: {first.run} has begun")
    store.save(first)
    other = tmp_path / "other"
    shutil.copytree(store.folder, other)
    store.folder.rename(tmp_path / "moved")
    other.rename(store.folder)
    assert "another folder stands in its place" in withdraw(made)
    assert sorted(path.name for path in store.folder.iterdir()) == sorted(
        path.name for path in (tmp_path / "moved").iterdir()
    )
    shutil.rmtree(store.folder)
    (tmp_path / "moved").rename(store.folder)
    assert withdraw(made) == ""
    assert not store.folder.exists()
    assert not list(tmp_path.glob(".c.*"))


@pytest.mark.parametrize("room", [0, 1, 4, 100])
def test_provenance_that_a_full_disk_cut_is_taken_back(
    tmp_path: Path, store: Store, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, left = remember(store), [room]

    def write(path: Path, data: bytes, mode: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise EnvironmentFailure("No space left on device", path=path)
        write_atomic(path, data, mode=mode)

    monkeypatch.setattr(provenance, "write_atomic", write)
    with contextlib.suppress(EnvironmentFailure):
        bind(store, store.campaign(), make_sources(tmp_path / "private", ()))
    assert (store.folder / "provenance").exists() == bool(room)
    finished = store.folder / "provenance" / "runs" / "x.json"
    finished.parent.mkdir(parents=True)
    finished.write_text("{}")
    assert "it holds provenance/runs, which no start makes" in withdraw(made)
    shutil.rmtree(finished.parent)
    assert withdraw(made) == ""
    assert not store.folder.exists()
    assert not list(tmp_path.glob(".c.*"))


def test_a_resume_under_the_protocol_in_force_says_that_nothing_changes(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frozen or amended: the campaign's copy, or another file of the same bytes."""
    bind(store, store.campaign(), make_sources(tmp_path / "private", ()))
    again = tmp_path / "again.toml"
    again.write_bytes(store.protocol.read_bytes())

    def resumed_under(path: Path) -> str:
        flags = ["resume", str(store.folder), "--private", str(tmp_path / "private")]
        found = CliRunner().invoke(group, [*flags, "--protocol", str(path)])
        assert found.exit_code == 0, found.output
        return found.stderr

    for path in (again, store.protocol):
        before = contents(store.folder)
        [line] = resumed_under(path).splitlines()
        assert re.search(r" protocol [0-9a-f]{12} is in force already: nothing changes$", line)
        assert contents(store.folder) == before
    frozen = load_protocol(again)
    assert frozen is not None
    settings = [("budget.gpu_hours_max", "20.0")]
    asked = Amending("A-X-1", "more hours", "there are more", "2026-11-30", settings)
    amended = tmp_path / "amended.toml"
    amended.write_bytes(amend_protocol(frozen, asked))
    assert "is in force: A-X-1\n" in resumed_under(amended)
    assert "is in force already: nothing changes\n" in resumed_under(amended)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, which is opened."""
    files = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"
    ]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("how", [(), ("--foreground",)], ids=["detached", "foreground"])
def test_a_refused_resume_leaves_all_as_it_was_but_a_line_of_its_log(
    tmp_path: Path, how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("opprof.cli.campaign._launch", lambda *_, **__: None)
        flags = ["--virtual", "--no-cpu-masks", "--gpus", "0-1"]
        private = small_manifests(tmp_path / "private")
        assert start(tmp_path, *flags, private=private).exit_code == 0
    folder = tmp_path / "c"
    here = Store(folder, wall_ns=time.time_ns)
    bind(here, here.campaign(), make_sources(private, ()))
    (folder / "commands.log").write_text("2026-11-30T00:00:00.000000000Z controller x\n")
    (folder / "controller.log").write_text("")
    # Other code than the campaign was started with.
    index = folder / "provenance" / "provenance.json"
    other = msgspec.json.decode(index.read_bytes(), type=CampaignProvenance)
    index.chmod(0o644)
    index.write_bytes(pretty(msgspec.structs.replace(other, code_sha256="0" * 64)))
    close(folder, wall_ns=1)
    before = contents(folder)
    flags = ["resume", str(folder), "--private", str(private)]
    found = CliRunner().invoke(group, [*flags, *how])
    assert found.exit_code != 0
    assert "code_sha256 is" in found.output + str(found.exception)
    after = contents(folder)
    del before["controller.log"], after["controller.log"]
    assert after == before


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
    # Runs are left, and nobody works on them.
    assert found.exit_code == 1
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


@pytest.mark.parametrize("phase", ["running", "stopped", "failed", "finished"])
def test_status_exits_with_1_while_runs_are_left_and_nobody_works_on_them(
    store: Store, phase: str
) -> None:
    """A record that still says ``running`` under a free lock is of a dead controller."""

    def code() -> int:
        return CliRunner().invoke(group, ["status", str(store.folder)]).exit_code

    assert code() == 1, "no controller was ever started"
    ended(store, phase, "")
    assert code() == 1
    with campaign_lock(store.folder):
        assert code() == 0
    for record in store.runs():
        store.save(completed(record, "complete"))
    assert code() == 0


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (["infrastructure"], "an exact rerun (infrastructure) is left, made when the campaign"),
        (["infrastructure"] * 2, "failed again after its exact rerun: no exact rerun is left"),
        (["semantic"], "failed, and needs a reviewed amendment: no exact rerun is left"),
    ],
)
def test_status_says_what_a_failed_run_still_may(
    store: Store, faults: list[str], said: str
) -> None:
    record = store.runs()[0]
    for fault in faults:
        record = completed(record, "failed", fault=fault)
    assert record.attempt is not None
    attempt = msgspec.structs.replace(record.attempt, reason="it broke [early]")
    store.save(msgspec.structs.replace(record, attempts=[*record.attempts[:-1], attempt]))
    found = CliRunner().invoke(group, ["status", "--watch", str(store.folder)])
    assert f"{record.run}: it broke [early]; {said}" in found.output.replace("\n", " ")
    assert found.output.endswith("\n")
    found = CliRunner().invoke(group, ["status", "--json", str(store.folder)])
    told = {each["run"]: each["next"] for each in json.loads(found.output)["runs"]}
    assert told.pop(record.run).startswith(said)
    assert set(told.values()) == {""}


@pytest.mark.parametrize("words", [["logs", "--follow"], ["status", "--watch"]])
def test_who_stops_looking_has_broken_nothing_off(
    store: Store, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def ended_by_signal(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("opprof.campaign.watch.log_lines", ended_by_signal)
    monkeypatch.setattr("opprof.cli.campaign_tables.show_status", ended_by_signal)
    found = CliRunner().invoke(group, [*words, str(store.folder)])
    assert found.exit_code == 130
    assert found.stderr == "opprof: no longer watching; the campaign is as it was\n"
