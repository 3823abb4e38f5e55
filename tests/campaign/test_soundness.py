"""A folder that was edited, cut or copied is refused before anything is done in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from campaign_small import small_protocol
from test_store import record as begun

from opprof.artifacts.campaign import Campaign, RunRecord, Stop
from opprof.campaign import state
from opprof.campaign.commands import CommandLog
from opprof.campaign.ledger_file import open_ledger
from opprof.campaign.plan import planned_runs
from opprof.campaign.soundness import check_contents, check_records
from opprof.campaign.store import Store, campaign_lock, is_locked, machine_lock, pretty
from opprof.cli import main
from opprof.errors import EnvironmentFailure, InputError, SchemaError, StateConflict
from opprof.files import sha256_file
from opprof.integrity.ledger import NAME
from opprof.integrity.provenance import record_campaign
from opprof.protocol import load_protocol
from opprof.protocol.model import ProtocolFile

RUN = "P01-C00-saturation"


@pytest.fixture
def protocol(tmp_path: Path) -> ProtocolFile:
    found = load_protocol(small_protocol(tmp_path / "protocol.toml"))
    assert found is not None
    return found.file


@pytest.fixture
def store(tmp_path: Path, protocol: ProtocolFile) -> Store:
    made = Store(tmp_path / "c", wall_ns=lambda: 5)
    made.folder.mkdir()
    for record in planned_runs(protocol):
        made.save(record)
    return made


def completed(store: Store) -> Path:
    """Give the run a complete attempt with one recorded file, and return that file."""
    planned = store.run(RUN)
    record_campaign(
        store.folder,
        campaign_id="c",
        protocol=store.folder.parent / "protocol.toml",
        mappings=["v1"],
        launches={},
        wall_ns=1,
    )
    run = store.run_folder(RUN)
    run.mkdir(parents=True)
    (run / "server.log").write_text("ready\n")
    record = msgspec.structs.replace(planned, attempts=begun(RUN).attempts, state="starting")
    state.complete(store, record, "0" * 64)
    return run / "server.log"


def test_a_sound_folder_passes(store: Store, protocol: ProtocolFile) -> None:
    completed(store)
    check_records(store, protocol, [])


@pytest.mark.parametrize("text", ["ready!", "Ready\n", None])
def test_nothing_is_judged_by_what_a_run_did_not_leave(store: Store, text: str | None) -> None:
    file = completed(store)
    check_contents(store, store.run(RUN))
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(StateConflict, match=r"server\.log"):
        check_contents(store, store.run(RUN))


def test_a_lost_state_file_is_no_smaller_plan(store: Store, protocol: ProtocolFile) -> None:
    (store.folder / "state" / "P09-C00-moderate.json").unlink()
    with pytest.raises(StateConflict, match=r"P09-C00-moderate.json: is missing"):
        check_records(store, protocol, [])


@pytest.mark.parametrize(
    "change", [{"order": 40}, {"needs": []}, {"pattern": "P01"}, {"role": "burnin"}]
)
def test_a_state_file_is_the_plans(
    store: Store, protocol: ProtocolFile, change: dict[str, object]
) -> None:
    store.save(msgspec.structs.replace(store.run("P09-C00-moderate"), **change))
    with pytest.raises(StateConflict, match=f"P09-C00-moderate.json: {next(iter(change))} is"):
        check_records(store, protocol, [])


def test_a_run_that_nobody_planned_is_named(store: Store, protocol: ProtocolFile) -> None:
    stranger = msgspec.structs.replace(store.run(RUN), run="P77-C00-saturation")
    store.save(stranger)
    with pytest.raises(StateConflict, match="plans no such run"):
        check_records(store, protocol, [])


def test_a_complete_run_has_its_files(store: Store, protocol: ProtocolFile) -> None:
    log = completed(store)
    log.write_text("ready, and more\n")
    with pytest.raises(StateConflict, match=r"server.log: .* has 16 bytes, not 6"):
        check_records(store, protocol, [])
    log.unlink()
    with pytest.raises(StateConflict, match=r"server.log: .* gone"):
        check_records(store, protocol, [])
    (store.folder / "provenance" / "runs" / f"{RUN}.json").unlink()
    with pytest.raises(StateConflict, match="holds the hashes"):
        check_records(store, protocol, [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "../evil"}, "is of another run"),
        ({"state": "complete"}, "says complete, but it has no attempt"),
        ({"attempts": [{"number": 3}]}, "numbered"),
    ],
)
def test_a_state_file_does_not_contradict_itself(
    store: Store, change: dict[str, object], reason: str
) -> None:
    path = store.folder / "state" / f"{RUN}.json"
    if "attempts" in change:
        first = msgspec.structs.replace(begun(RUN).attempts[0], number=3)
        made: RunRecord = msgspec.structs.replace(begun(RUN), attempts=[first])
        path.write_bytes(msgspec.json.encode(made))
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SchemaError, match=reason):
        store.runs()
    with pytest.raises(SchemaError, match=reason):
        store.run(RUN)


def test_gpu_time_beyond_counting_has_its_line(tmp_path: Path) -> None:
    line = {
        "schema": 1,
        "kind": "prior",
        "run": "",
        "attempt": 0,
        "gpus": 0,
        "gpu_seconds": 0.0,
        "wall_ns": 1,
    }
    huge = line | {"kind": "run", "gpu_seconds": 1e300}
    path = tmp_path / NAME
    path.write_text(json.dumps(line) + "\n" + json.dumps(huge) + "\n")
    with pytest.raises(SchemaError, match=r"ledger.jsonl:2: 1e\+300 GPU-s cannot be counted"):
        open_ledger(path, wall_ns=2)


def test_a_ledger_is_never_made_beside_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "c" / NAME
    path.parent.mkdir()
    line = {"schema": 1, "kind": "prior", "run": "", "attempt": 0, "gpus": 0}
    path.write_text(json.dumps(line | {"gpu_seconds": 0.0, "wall_ns": 1}) + "\n")
    ledger = open_ledger(path, wall_ns=2)
    path.unlink()
    with pytest.raises(EnvironmentFailure, match="cannot write"):
        ledger.append([msgspec.structs.replace(ledger.charges[0], kind="note")])
    assert not path.exists()


def test_a_folder_that_was_moved_away_is_not_made_anew(store: Store) -> None:
    record = store.run(RUN)
    store.folder.rename(store.folder.with_name("moved"))
    with pytest.raises(EnvironmentFailure, match="folder is gone"):
        store.save(record)
    assert not store.folder.exists()
    store.folder.mkdir()
    with pytest.raises(EnvironmentFailure, match="another stands in its place"):
        store.save(record)
    assert list(store.folder.iterdir()) == []


def test_two_copies_of_a_campaign_have_one_controller(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from opprof.campaign.store import machine_lock\n"
        f"with machine_lock({tmp_path.name!r}, Path('c')): print('held', flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with (
            pytest.raises(StateConflict, match="another copy of this folder"),
            machine_lock(tmp_path.name, tmp_path),
        ):
            pass
        other.communicate(b"\n")
    with machine_lock(tmp_path.name, tmp_path):
        pass


def test_a_look_at_the_lock_writes_nothing_and_owns_nothing(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert not (tmp_path / "controller.lock").exists()
    with campaign_lock(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_a_folder_in_the_locks_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "controller.lock").mkdir()
    with (
        pytest.raises(EnvironmentFailure, match=r"controller.lock: cannot lock"),
        campaign_lock(tmp_path),
    ):
        pass


def test_a_refused_resume_leaves_everything_as_it_was(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next resume finds the private folder of the last one that was not refused."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "P01.jsonl").write_text("{}\n")
    (store.folder / "campaign.json").write_bytes(pretty(bound_to(private / "P01.jsonl")))
    log = CommandLog(store.commands, lambda: 1)
    log.add("controller", ["opprof", "--private", str(private)], {})
    store.write_stop(Stop(1, 3, "clean", "a request failed", "r", 1))
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}
    other = tmp_path / "other"
    other.mkdir()
    words = ["campaign", "resume", str(store.folder), "--private", str(other)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--protocol", str(tmp_path / "x.toml"), "--reviewed", "Ann"])
    assert ended.value.code == 2
    assert "no manifest for P01 here" in capsys.readouterr().err
    after = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}
    assert after == before


def bound_to(manifest: Path) -> Campaign:
    return Campaign(
        schema=1,
        id="small-1",
        protocol_id="small",
        protocol_sha256="0" * 64,
        engine="sim",
        variables={},
        manifests={"P01": sha256_file(manifest)},
        time_scale=1.0,
        seed=0,
        hosts=["a"],
        executor="local",
        options={},
        code_version="1",
        code_sha256="0" * 64,
        created_wall_ns=1,
        simulated=True,
    )


@pytest.mark.parametrize("name", ["../campaign", "x/y", "", ".."])
def test_a_run_is_a_name_and_no_path(store: Store, name: str) -> None:
    (store.folder / "campaign.json").write_text("{}")
    with pytest.raises(InputError, match="the campaign has no run"):
        store.run(name)


def test_before_an_amendment_each_record_is_of_the_old_plan_or_the_new(
    store: Store, protocol: ProtocolFile
) -> None:
    """One that was broken off has planned some runs anew and forgotten others already."""
    seeds = msgspec.structs.replace(protocol.seeds, execution_order=2)
    fewer = msgspec.structs.replace(
        protocol, seeds=seeds, patterns=[row for row in protocol.patterns if row.id == "P01"]
    )
    after = {record.run: record for record in planned_runs(fewer)}
    changed = next(run for run in store.runs() if run.run in after and run != after[run.run])
    store.save(after[changed.run])
    store.forget("P09-C00-moderate")
    with pytest.raises(StateConflict):
        check_records(store, protocol, [])
    check_records(store, protocol, [], amended=fewer)
    store.save(msgspec.structs.replace(after[changed.run], order=40))
    with pytest.raises(StateConflict, match="order is 40"):
        check_records(store, protocol, [], amended=fewer)
    store.save(after[changed.run])
    store.forget(changed.run)
    with pytest.raises(StateConflict, match=f"{changed.run}.json: is missing"):
        check_records(store, protocol, [], amended=fewer)
