"""A small campaign tree with every artefact kind, a private manifest, and ways to plant text."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

from opprof.artifacts.scan import ScanReport
from opprof.integrity.check import scan_folder

LOG = "runs/P01-C00-saturation/server.log"
SECRET = (
    'Dear doctor, my neighbour\'s name is Ægir Öztürk;\nhe said "the code is 4711" and\tlaughed. '
    "我昨天在医院遇见了一位老朋友他告诉我他的病已经好了但是我不相信他说的话因为他看起来很累 "
    "😀 Please <b>do not</b> tell & never repeat that he lives at 17 Rosewood Lane, apt. 4b."
)
IDS = [15339, 882, 77, 120034, 5, 99181, 4410, 31, 60007, 1203, 88, 7134, 21, 90909, 456]

JSON_FILES = (
    "campaign.json",
    "controller.json",
    "stop.json",
    "decision.json",
    "state/P01-C00-saturation.json",
    "colocation/dash0/gate.json",
    "provenance/provenance.json",
    "provenance/launch/C00.json",
    "provenance/runs/P01-C00-saturation.json",
    "runs/P01-C00-saturation/environment.json",
    "runs/P01-C00-saturation/manifest.sha256",
    "runs/P01-C00-saturation/client/timeline.json",
    "runs/P01-C00-saturation/client/result.json",
    "runs/P01-C00-saturation/client/sanity.json",
    "runs/P01-C00-saturation/opprof/engine-config.json",
    "runs/P01-C00-saturation/opprof/engine-0.jsonl.footer.json",
    "runs/P01-C00-saturation/analysis/layer1.json",
    "runs/P01-C00-saturation/analysis/kernels.json",
    "runs/P01-C00-saturation/analysis/waste.json",
    "runs/P01-C00-saturation/analysis/sanity.json",
    "attempts/P01-C00-saturation.1/client/result.json",
)
LINE_FILES = (
    "ledger.jsonl",
    "runs/P01-C00-saturation/client/requests.jsonl",
    "runs/P01-C00-saturation/client/segments.jsonl",
    "runs/P01-C00-saturation/opprof/engine-0.jsonl",
    "runs/P01-C00-saturation/opprof/engine-0.profiler.ndjson",
)
TEXT_FILES = (
    "controller.log",
    "protocol.toml",
    "provenance/protocol/00-abc.toml",
    "provenance/mapping/v2.toml",
    "runs/P01-C00-saturation/server.log",
    "runs/P01-C00-saturation/commands.log",
)
PACKED_FILES = (
    "runs/P01-C00-saturation/traces/window0-rank0.pt.trace.json.gz",
    "provenance/controller/opprof-sources.tar",
    "old.tar.gz",
)
EVERY_FILE = (*JSON_FILES, *LINE_FILES, *TEXT_FILES, "report.html", *PACKED_FILES)


def write_manifest(folder: Path, prompts: list[str], ids: list[list[int]] | None = None) -> Path:
    """Write a private manifest of text prompts, or of arrays of ids."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "P10.jsonl"
    common = {"input_tokens": 9, "output_tokens": 2, "arrival": "steady", "pattern": "P10"}
    if ids is not None:
        rows = [{"id": str(i), "prompt_token_ids": row} | common for i, row in enumerate(ids)]
    else:
        rows = [{"id": str(i), "prompt": text} | common for i, text in enumerate(prompts)]
    compact = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    path.write_text("".join(line + "\n" for line in compact), encoding="utf-8")
    return path


def filler(size: int) -> str:
    """Numbers that look like an artefact and hold nothing."""
    return "".join(f'{{"ts": {n * 7919}.{n % 997}, "dur": {n % 613}}}\n' for n in range(size // 30))


def plant(root: Path, name: str, text: str) -> None:
    """Write one artefact of the campaign with ``text`` in it, in the form of its kind."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name in JSON_FILES:
        path.write_text(json.dumps({"schema": 1, "reason": text}, indent=1))
    elif name in LINE_FILES:
        path.write_text('{"schema":1}\n' + json.dumps({"note": text}) + "\n")
    elif name.endswith(".html"):
        from html import escape

        path.write_text(f"<!doctype html><p>{escape(text)}</p>", encoding="utf-8")
    elif name.endswith(".json.gz"):
        event = {"traceEvents": [{"cat": "python_function", "name": text}]}
        path.write_bytes(gzip.compress(json.dumps(event).encode()))
    elif name.endswith((".tar", ".tar.gz")):
        data = tar_of({"opprof/a.py": b"pass\n", "opprof/b.py": text.encode()})
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    else:
        path.write_text(f"INFO 1 {text}\n", encoding="utf-8")


def tar_of(files: dict[str, bytes]) -> bytes:
    """Return an uncompressed tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def scan(root: Path, manifest: Path, **options: object) -> ScanReport:
    """Scan with one private manifest."""
    return scan_folder(root, manifests=[manifest], **options)  # type: ignore[arg-type]


def kinds(report: ScanReport) -> set[str]:
    """The kinds of what was found."""
    return {finding.kind for finding in report.findings}
