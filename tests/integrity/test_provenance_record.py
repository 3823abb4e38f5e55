"""A campaign's provenance: immutable copies, idempotent records, refusal of what differs."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opprof import code_hash
from opprof.artifacts.provenance import CampaignProvenance
from opprof.errors import InputError, IntegrityError, StateConflict
from opprof.files import sha256_bytes, sha256_file
from opprof.integrity import provenance
from opprof.protocol.load import packaged_path

LAUNCHES = {"C00": {"command": ["vllm", "serve", "MODEL"], "expected": {"max_num_seqs": 1024}}}


def record(campaign: Path, **changes: Any) -> CampaignProvenance:
    arguments: dict[str, Any] = {
        "campaign_id": "c1",
        "protocol": packaged_path(),
        "mappings": ["v2", "v1"],
        "launches": LAUNCHES,
        "wall_ns": 7,
    }
    return provenance.record_campaign(campaign, **(arguments | changes))


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    record(tmp_path)
    run = tmp_path / "runs" / "P01-C00-saturation"
    (run / "client").mkdir(parents=True)
    (run / "traces").mkdir()
    traces = [
        {"name": "window0-rank0.pt.trace.json.gz", "original_name": "dp0.pt", "sha256": "0" * 64}
    ]
    (run / "client" / "result.json").write_bytes(
        msgspec.json.encode({"metrics": {"traces": traces}})
    )
    (run / "traces" / "window0-rank0.pt.trace.json.gz").write_bytes(b"trace")
    return tmp_path


def run_record(campaign: Path, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"attempt": 1, "protocol_sha256": None, "wall_ns": 9}
    return provenance.record_run(campaign, "P01-C00-saturation", **(arguments | changes))


def test_every_copy_is_there_read_only_and_has_its_hash(tmp_path: Path) -> None:
    made = record(tmp_path)
    kinds = {copy.kind for copy in made.copies}
    assert kinds == {"client", "controller", "mapping", "protocol", "launch", "hooks"}
    for copy in made.copies:
        path = tmp_path / "provenance" / copy.path
        assert sha256_file(path) == copy.sha256
        assert path.stat().st_size == copy.bytes
        assert path.stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "provenance/provenance.json").stat().st_mode & 0o777 == 0o444
    assert made.protocols == [sha256_file(packaged_path())]
    assert set(made.mappings) == {"v1", "v2"}
    assert made.client_sha256 == code_hash.client_sha256()


@pytest.mark.parametrize(
    ("tar", "recorded"),
    [(provenance.SOURCES_TAR, "code_sha256"), (provenance.CLIENT_TAR, "client_sha256")],
)
def test_the_recorded_sources_are_the_recorded_hash(
    tmp_path: Path, tar: str, recorded: str
) -> None:
    made = record(tmp_path)
    data = (tmp_path / "provenance" / tar).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = [
            (m.name.removeprefix("opprof/"), archive.extractfile(m).read())  # type: ignore[union-attr]
            for m in archive.getmembers()
        ]
    assert code_hash.hash_sources(sorted(files)) == getattr(made, recorded)


def test_recording_again_changes_nothing(tmp_path: Path) -> None:
    first = record(tmp_path)
    assert record(tmp_path, wall_ns=99) == first


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"campaign_id": "c2"}, "campaign is c2 now"),
        ({"mappings": ["v2"]}, "mappings: v1"),
        ({"launches": {"C00": {"command": ["other"]}}}, "launches: C00"),
        ({"launches": LAUNCHES | {"C10": {}}}, "launches: C10"),
    ],
)
def test_a_resume_with_other_sources_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    record(tmp_path)
    with pytest.raises(StateConflict, match=reason):
        record(tmp_path, **changes)


def test_another_protocol_is_refused_until_it_is_recorded_as_an_amendment(tmp_path: Path) -> None:
    record(tmp_path)
    amended = tmp_path / "amended.toml"
    amended.write_bytes(packaged_path().read_bytes() + b"# amended\n")
    with pytest.raises(StateConflict, match="none of the campaign's"):
        record(tmp_path, protocol=amended)
    grown = provenance.record_protocol(tmp_path, amended)
    assert grown.protocols[1] == sha256_bytes(amended.read_bytes())
    assert provenance.record_protocol(tmp_path, amended) == grown
    assert record(tmp_path, protocol=amended) == grown
    copy = tmp_path / "provenance" / grown.copies[-1].path
    assert copy.name.startswith("01-")
    assert copy.read_bytes() == amended.read_bytes()


def test_broken_off_recording_is_finished(tmp_path: Path) -> None:
    made = record(tmp_path)
    (tmp_path / "provenance/provenance.json").unlink()
    assert record(tmp_path) == made


def test_a_run_is_recorded_with_every_file_and_the_original_trace_names(campaign: Path) -> None:
    made = run_record(campaign)
    assert [item.path for item in made.files] == [
        "client/result.json",
        "traces/window0-rank0.pt.trace.json.gz",
    ]
    assert made.files[1].sha256 == sha256_bytes(b"trace")
    assert made.traces[0].original_name == "dp0.pt"
    assert provenance.record_path(campaign, made.folder).stat().st_mode & 0o777 == 0o444
    assert run_record(campaign, wall_ns=10) == made


def test_a_recorded_run_that_changed_is_refused(campaign: Path) -> None:
    run_record(campaign)
    (campaign / "runs/P01-C00-saturation/late.log").write_text("late")
    with pytest.raises(StateConflict, match="recorded before with other contents"):
        run_record(campaign)


def test_links_pipes_and_odd_names_are_no_part_of_a_finished_folder(campaign: Path) -> None:
    run = campaign / "runs/P01-C00-saturation"
    (run / "link").symlink_to("client/result.json")
    with pytest.raises(IntegrityError, match="holds a link"):
        run_record(campaign)
    (run / "link").unlink()
    os.mkfifo(run / "pipe")
    with pytest.raises(IntegrityError, match="holds a special"):
        run_record(campaign)
    (run / "pipe").unlink()
    (Path(os.fsdecode(os.fsencode(run) + b"/\xff"))).write_bytes(b"")
    with pytest.raises(IntegrityError, match="no UTF-8"):
        run_record(campaign)


@pytest.mark.parametrize("folder", ["../x", "/x", "provenance/client", ""])
def test_only_folders_of_the_campaign_are_recorded(campaign: Path, folder: str) -> None:
    with pytest.raises(InputError, match="no finished folder"):
        provenance.record_folder(campaign, folder, attempt=1, protocol_sha256=None, wall_ns=1)


def test_without_provenance_nothing_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "runs/x").mkdir(parents=True)
    with pytest.raises(StateConflict, match="no provenance"):
        provenance.record_run(tmp_path, "x", attempt=1, protocol_sha256=None, wall_ns=1)
