"""What the scan must not trip over, what it refuses, and what it says when it cannot look."""

from __future__ import annotations

import errno
import gzip
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from integrity_tree import LOG, SECRET, kinds, scan, tar_of, write_manifest

from opprof.artifacts import catalogue
from opprof.cli import main
from opprof.errors import InputError, SchemaError
from opprof.integrity.check import scan_folder
from opprof.integrity.containers import Damaged, PlainFile, Unlooked, streams
from opprof.integrity.keys import FORBIDDEN_KEYS, forbidden_keys
from opprof.integrity.provenance import record_campaign
from opprof.integrity.source import read_private
from opprof.protocol.load import packaged_path

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["examples", "schemas", "docs", "protocols"])
def test_what_is_public_scans_clean(manifest: Path, folder: str) -> None:
    report = scan(ROOT / folder, manifest)
    assert report.findings == []
    assert report.outcome == "pass"
    assert report.stream_bytes >= report.files


@pytest.mark.shared
def test_the_real_runs_scan_clean(manifest: Path) -> None:
    folders = (ROOT.parent / "shared", ROOT.parents[1] / "shared")
    runs = next((f / "h200-runs" for f in folders if f.is_dir()), ROOT / "none")
    if not runs.is_dir():
        pytest.skip("no shared runs here")
    assert scan(runs / "P03-C00-moderate", manifest).findings == []


def test_recorded_sources_of_this_program_scan_clean_and_altered_ones_do_not(
    tmp_path: Path, manifest: Path
) -> None:
    campaign = tmp_path / "c"
    record_campaign(
        campaign,
        campaign_id="c",
        protocol=packaged_path(),
        mappings=["v1"],
        launches={},
        wall_ns=1,
    )
    assert scan(campaign, manifest).findings == []
    added = campaign / "provenance/controller/opprof-sources.tar"
    added.chmod(0o644)
    added.write_bytes(tar_of({"opprof/a.py": b'body = {"prompt": "tell me"}\n'}))
    assert kinds(scan(campaign, manifest)) == {"forbidden_key"}


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": "x"}',
        '{"prompt":"x"}',
        '{"prompt" :\n  "x"}',
        "{'content': 'x'}",
        '{"messages": [{"role": 1}]}',
        '{"prompt_token_ids": [1]}',
        "prompt: 'Hello', params: SamplingParams()",
        "CompletionOutput(index=0, text=' a', token_ids=[1])",
        'x = dict(generated_text="a")',
        "content: b'raw'",
        '{"choices": [{"index": 0}]}',
        'text: "a"',
        '{"Prompt": "x"}',
        '{"generatedText": "x"}',
        '{"generated-text": "x"}',
        '{"response-body": "x", "responseBody": ""}',
    ],
)
def test_a_key_with_a_value_is_found(tree: Path, manifest: Path, text: str) -> None:
    (tree / LOG).write_text(text)
    assert kinds(scan(tree, manifest)) == {"forbidden_key"}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "content"}',
        '{"name": "serving.py(12): prompt"}',
        '{"prompt": {"type": "string"}}',
        '{"required": ["prompt", "messages"]}',
        '{"prompt": null, "text": "", "content": [], "messages": []}',
        '{"prompt_tokens": 3, "completion_tokens": "x", "content-type": "a"}',
        '{"context": "a", "max_context": ["a"]}',
        '{"user_annotation": "tion", "python_function": [1]}',
        "the prompt: nobody knows",
        '{"completion": 3.5, "text": 1}',
    ],
)
def test_a_word_is_no_key(tree: Path, manifest: Path, text: str) -> None:
    (tree / LOG).write_text(text)
    assert scan(tree, manifest).findings == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("prompt: hello there world\n", True),
        ("id: 3\nmessages: |\n  hello\n", True),
        ("- content: >-\n    hello\n", True),
        ("{id: 1, generated_text: so be it}\n", True),
        ("prompt:\n  tokens: 3\n", False),
        ("prompt: 3\ntext: null\ncontent: {a: 1}\nmessages: []\nchoices: ~\n", False),
        ("prompt: -1.5\ncompletion: true\nprompts: &a [3]\n", False),
        ("prompt_tokens: many\nmax_content: some\n", False),
        ("prompt:\n", False),
    ],
)
def test_yaml_needs_no_quotes(tree: Path, manifest: Path, text: str, found: bool) -> None:
    (tree / "values.yaml").write_text(text)
    assert kinds(scan(tree, manifest)) == ({"forbidden_key"} if found else set())


def test_a_toml_file_has_prose_but_no_text(tree: Path, manifest: Path) -> None:
    path = tree / "protocol.toml"
    path.write_text('[[stops]]\ntext = "A hash differs from what was frozen."\n')
    assert scan(tree, manifest).findings == []
    for line in ('prompt = "tell me"', "messages = ['a']", """note = '{"text": "a"}'"""):
        path.write_text(line)
        assert kinds(scan(tree, manifest)) == {"forbidden_key"}, line


def test_a_page_may_have_chart_labels_and_attributes_but_no_text(
    tree: Path, manifest: Path
) -> None:
    page = tree / "report.html"
    page.write_text(
        '<!doctype html><meta content="width=device-width"><script>'
        '{"title":{"text":"share of summed kernel time"},"text":["5.2 %","",""]}</script>'
    )
    assert scan(tree, manifest).findings == []
    page.write_text('<script>{"text":["5.2 %","and then she told him about it all"]}</script>')
    assert kinds(scan(tree, manifest)) == {"forbidden_key"}
    page.write_text("<script>{&quot;prompt&quot;: &quot;x&quot;}</script>")
    assert kinds(scan(tree, manifest)) == {"forbidden_key"}


def test_a_chart_label_that_a_chunk_cuts_is_a_label(
    tree: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opprof.integrity.scan.CHUNK_BYTES", 512)
    monkeypatch.setattr("opprof.integrity.scan.OVERLAP_BYTES", 128)
    page = tree / "report.html"
    for at in range(470, 512):
        head = "<script>".ljust(at, "-")
        page.write_text(head + '{"title":{"text":"ms, logarithmic"}}' + "-" * 600)
        assert scan(tree, manifest).findings == [], at
        page.write_text(head + '{"text":"and then she told him about it all"}' + "-" * 600)
        assert kinds(scan(tree, manifest)) == {"forbidden_key"}, at


@pytest.mark.parametrize("cut", [b'["8.4 %","8', b'["8.4 %","', b'"8', b'"'])
def test_a_chart_label_that_a_window_of_a_view_cuts_is_a_label(cut: bytes) -> None:
    """A view joins windows around what it decoded: seen on a page whose labels had blanks."""
    after = b"[4.829442,1152],[4.386719,1152],[4.326871,1152]" + b'],"hovertemplate":"%{x}"'
    assert list(forbidden_keys(b'{"text":' + cut + b"\0" + after, page=True)) == []
    long = b"and then she told him about it all"
    assert list(forbidden_keys(b'{"text":' + cut + long + b'"\0' + after, page=True)) == ["text"]


def test_no_artefact_has_a_forbidden_field() -> None:
    import msgspec

    def names(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = set(value.get("properties", {}))
            return own.union(*(names(item) for item in value.values()), set())
        if isinstance(value, list):
            return set().union(*(names(item) for item in value), set())
        return set()

    for name, kind in catalogue().items():
        if name != "manifest-line":
            assert not names(msgspec.json.schema(kind)) & set(FORBIDDEN_KEYS), name


def test_keys_are_found_at_both_ends() -> None:
    assert list(forbidden_keys(b'text:"a"')) == ["text"]
    assert list(forbidden_keys(b"x" * 99 + b' "prompt": "')) == ["prompt"]
    assert list(forbidden_keys(b"")) == []


def test_rulers_and_zeros_are_nobodys_prompt(tree: Path, tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "p", ["-" * 80 + " | --- | --- | --- | --- | --- | --- |"])
    (tree / LOG).write_text("-" * 99 + "\n| --- | --- | --- | --- | --- | --- |\n")
    assert scan(tree, manifest).findings == []


def test_31_characters_are_no_finding_32_are(tree: Path, manifest: Path) -> None:
    (tree / LOG).write_text(f"#{SECRET[3:34]}#")
    assert scan(tree, manifest).findings == []
    (tree / LOG).write_text(f"#{SECRET[3:35]}#")
    assert kinds(scan(tree, manifest)) == {"prompt_text"}


def test_chinese_counts_by_characters_and_not_by_bytes(tree: Path, tmp_path: Path) -> None:
    text = "我昨天在医院遇见了一位老朋友他告诉我他的病已经好了但是我不相信他说的话因为他看起来很累"
    manifest = write_manifest(tmp_path / "p", [text])
    (tree / LOG).write_text(text[5:36], encoding="utf-8")
    assert scan(tree, manifest).findings == []
    (tree / LOG).write_text(text[5:37], encoding="utf-8")
    assert kinds(scan(tree, manifest)) == {"prompt_text"}


def test_private_paths_stand_in_the_command_log_only(tree: Path, manifest: Path) -> None:
    run = tree / "runs/P01-C00-saturation"
    line = f"opprof run --manifest {manifest}\n"
    (run / "commands.log").write_text(line)
    assert scan(tree, manifest).findings == []
    for text in (line, json.dumps({"command": line}), line.replace("/", "\\/")):
        (run / "environment.json").write_text(text)
        assert kinds(scan(tree, manifest)) == {"private_path"}
    (run / "environment.json").write_text("{}")
    (tree / "commands.log.txt").write_text(line)
    assert kinds(scan(tree, manifest)) == {"private_path"}


def test_further_private_folders_count(tree: Path, manifest: Path, tmp_path: Path) -> None:
    other = tmp_path / "trace_windows"
    other.mkdir()
    (tree / LOG).write_text(f"source {other}/chat.jsonl")
    assert scan(tree, manifest).findings == []
    assert kinds(scan(tree, manifest, private_dirs=[other])) == {"private_path"}
    with pytest.raises(InputError, match="is no folder"):
        scan(tree, manifest, private_dirs=[tmp_path / "none"])
    with pytest.raises(InputError, match="holds the folder"):
        scan(tree, manifest, private_dirs=[tree])


def test_public_text_is_counted_and_no_finding(tree: Path, manifest: Path, tmp_path: Path) -> None:
    (tree / LOG).write_text(SECRET[3:40])
    public = tmp_path / "public.txt"
    public.write_text(SECRET[:50])
    report = scan(tree, manifest, public=[public])
    assert (report.outcome, report.public_matches) == ("pass", 1)
    (tree / LOG).write_text(SECRET[3:70])
    assert kinds(scan(tree, manifest, public=[public])) == {"prompt_text"}


def test_the_manifest_itself_and_a_hard_link_to_it_are_found(tree: Path, manifest: Path) -> None:
    os.link(manifest, tree / "harmless.bin")
    assert {"private_file", "forbidden_key", "prompt_text"} <= kinds(scan(tree, manifest))


def test_links_pipes_and_sockets_are_findings_and_block_nothing(
    tree: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "out").symlink_to(manifest)
    (tree / "loop").symlink_to(tree)
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    monkeypatch.chdir(tree)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        report = scan(tree, manifest)
    found = {(finding.file, finding.kind) for finding in report.findings}
    assert found == {
        ("out", "link"),
        ("loop", "link"),
        ("dangling", "link"),
        ("pipe", "special_file"),
        ("sock", "special_file"),
    }


def test_what_cannot_be_read_is_a_finding(
    tree: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refuse(path: Path, *arguments: int, **keys: int) -> int:
        # Root may read a file of mode 0, so the system's answer is given here.
        if Path(path) == tree / LOG:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path, *arguments, **keys)

    monkeypatch.setattr("opprof.integrity.tree.os.open", refuse)
    assert kinds(scan(tree, manifest)) == {"not_looked_at"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (gzip.compress(b"x" * 9999)[:-6], "cut short"),
        (gzip.compress(b"x" * 9999)[:12], "cut short"),
        (gzip.compress(b"")[:10] + b"\xff" * 60, "damaged"),
        (b"\x28\xb5\x2f\xfd....", "Zstandard"),
        (b"PK\x03\x04....", "zip"),
        (b"", "named like a compressed file"),
        (b"plain", "named like a compressed file"),
        (gzip.compress(tar_of({"a": b"x" * 5000})[:2000]), "damaged or cut tar"),
    ],
    # Names of our own: a gzip member holds the time, and two workers must collect the same tests.
    ids=["cut", "cut head", "damaged", "zstandard", "zip", "empty", "plain", "cut tar"],
)
def test_damaged_packed_files_are_findings(
    tree: Path, manifest: Path, data: bytes, reason: str
) -> None:
    (tree / "w.json.gz").write_bytes(data)
    report = scan(tree, manifest)
    assert report.outcome == "not_evaluable"
    assert any(f.kind == "not_looked_at" and reason in f.detail for f in report.findings)


def test_a_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"\0" * (64 << 20), 9), 9))
    with path.open("rb") as stream:
        seen, reasons = 0, []
        for part in streams(PlainFile(stream), name="bomb.gz", limit_bytes=4 << 20):
            if isinstance(part, Unlooked):
                reasons.append(part.reason)
                continue
            try:
                while chunk := part.reader.read(1 << 20):
                    seen += len(chunk)
            except Damaged as error:
                reasons.append(str(error))
    assert seen <= 5 << 20
    assert any("beyond the limit" in reason for reason in reasons)


def test_a_huge_sparse_file_is_looked_at_where_it_has_data(tree: Path, manifest: Path) -> None:
    with (tree / "sparse").open("wb") as stream:
        stream.seek(200 << 30)
        stream.write(SECRET.encode())
        stream.truncate(400 << 30)
    report = scan(tree, manifest)
    assert kinds(report) == {"prompt_text"}


def test_bytes_that_are_no_text_and_odd_names_are_looked_at(tree: Path, manifest: Path) -> None:
    (tree / "raw").write_bytes(b"\xff\xfe\x00\xd8" + os.urandom(5000) + SECRET.encode())
    odd = Path(os.fsdecode(os.fsencode(tree) + b"/a\nb\xff"))
    odd.write_text(SECRET)
    report = scan(tree, manifest)
    assert {f.file for f in report.findings if f.kind == "prompt_text"} == {"raw", "a\nb\\xff"}


@pytest.mark.parametrize(
    ("lines", "error", "reason"),
    [
        ("", InputError, "holds no prompt"),
        ('{"id": 1}\n', InputError, "holds no prompt"),
        ('{"prompt": "abc"}\n{"prompt": "de', InputError, "2: the line is cut short"),
        ('{"prompt": "abc"}\n', InputError, "no prompt of 32 characters"),
        ("[1]\n", SchemaError, "1: no manifest line"),
        ('{"prompt_token_ids": ["a"]}\n', SchemaError, "no array of integers"),
        ("[" * 100000 + "\n", InputError, "1: "),
    ],
)
def test_unusable_manifests_are_refused(
    tree: Path, tmp_path: Path, lines: str, error: type[Exception], reason: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(lines)
    with pytest.raises(error, match=reason):
        scan(tree, path)


def test_a_folder_or_a_pipe_is_no_manifest(tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("campaign", "pipe"):
        with pytest.raises(InputError, match="is no regular file"):
            scan(tree, tmp_path / name)


def test_an_empty_or_missing_folder_is_refused(tmp_path: Path, manifest: Path) -> None:
    (tmp_path / "empty/sub").mkdir(parents=True)
    for name, reason in (("empty", "nothing to scan"), ("none", "no such"), ("link", "no folder")):
        if name == "link":
            (tmp_path / "link").symlink_to(tmp_path / "empty")
        with pytest.raises(InputError, match=reason):
            scan(tmp_path / name, manifest)
    with pytest.raises(InputError, match="nothing private"):
        scan_folder(tmp_path / "empty", manifests=[])


def test_chat_messages_and_ids_under_prompt_are_prompts(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(
        json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": SECRET}]}]})
        + "\n"
        + json.dumps({"prompt": [15339, 882, 77, 120034, 5, 99181, 4410, 31, 60007]})
        + "\n"
    )
    source = read_private([path])
    assert (source.manifests[0].text_prompts, source.manifests[0].id_prompts) == (1, 1)
    assert list(source.texts[0].index.find(SECRET[80:130].encode()))
    assert list(source.ids[0].index.find(b"15339,882,77,120034,5,99181,4410,31"))


def test_the_command_says_what_it_found_and_where(
    tree: Path, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        main(["scan", str(tree), "--private", str(manifest)])
    assert done.value.code == 0
    assert "pass: 0 findings" in capsys.readouterr().out
    (tree / LOG).write_text(SECRET)
    with pytest.raises(SystemExit) as done:
        main(["scan", str(tree), "--private", str(manifest), "--json"])
    assert done.value.code == 1
    report = json.loads(capsys.readouterr().out)
    assert report["findings"][0]["file"] == LOG
    assert report["findings"][0]["detail"].endswith(":1")
    with pytest.raises(SystemExit) as done:
        main(["scan", str(tree), "--private", str(tree / "none")])
    assert done.value.code == 2
    assert "E-INPUT" in capsys.readouterr().err
