"""The privacy scan: speed and memory, against inflating and hashing the same files.

    python bench/scan.py [--runs DIR] [--prompts N] [--tokens N] [--rounds R] [--ids]
                         [--copies N] [--gigabytes N] [--jobs N] [--work DIR]

Ours: ``scan_tree`` over DIR, against a private manifest of N prompts of N tokens (four bytes a
token; with ``--ids`` arrays of token ids). The prompts are words of nine scripts and of code, drawn
by Zipf's law; a third begin with the same long system prompt, and tables and rulers stand between.
Half a percent of the words are names cut out of DIR's own traces, as in chats about code: grams
that both sides share must be compared, so text that shared nothing would flatter the scan. What is
found is printed: no prompt is in DIR, so that every finding is a false one. ``--copies`` scans so
many copies of DIR in which all digits are exchanged for others, so that no answer is remembered;
``--gigabytes`` goes on until so many are to be looked at, a quarter of them unpacked: request
lines, step lines, server logs with colours and escapes, traces as plain JSON. What is made lies
in ``--work``, and is used again there.

Floor: every file read, inflated and hashed (SHA-256 of the stored and of the inflated bytes), which
any check of these files costs. Peer: ``grep -F`` for a single 32-character string over the inflated
files, where GNU grep is there; it decodes nothing and looks for one string instead of all.

Each side is a process of its own and is measured by its CPU time, its workers' included; memory is
the peak of the tree's proportional set size (what processes share counts once), looked at four
times a second, and its growth is told: the least and the most after the index was made. A round
measures all of them, one after the other; figures are the medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from opprof.integrity.check import scan_folder

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = (
    "etaoinshrdlucmfwypvbgk",
    "enirstadhulcgmobwfkzäöüß",
    "оеаинтсрвлкмдпуяыьгзбчйхжш",
    "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可",
    "日本語のはにをたがでてとしれさいるならもっことよかうん",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "अआइईउऊएओकखगघचजटठडतथदनपफबभमयरलवशसह",
    "🙂😀🎉🚀🔥💡",
)
CODE = (
    "def", "return", "self.", "(x,", "import", "for i in range(", "):", "{", "}", "==", "0,", "1,",
    "true", "null,", '"type":', '"name":', "\n", "\n    ", "//", "#", "\\n", "<div>", "&amp;",
)  # fmt: skip
TABLE = "\n|---|---|---|\n" + "-" * 60 + "\n| 0 | 0 | 0 |\n"


def shared_names(runs: Path) -> list[bytes]:
    """Return names of a trace, each cut far below 32 characters."""
    import isal.igzip as igzip

    path = next(iter(sorted(runs.rglob("*.gz"))))
    with igzip.open(path) as stream:
        text = stream.read(8 << 20)
    names = {part.split(b'"')[0][:20] for part in text.split(b'"name": "')[1:]}
    return sorted(name for name in names if len(name) >= 16)


def vocabulary(random: np.random.Generator, names: list[str]) -> list[str]:
    """Return words, of which the names are half a percent however rare their rank is."""
    words = list(CODE)
    for number in range(30_000):
        letters = SCRIPTS[number % len(SCRIPTS)]
        size = int(random.integers(1, 4 if len(letters) < 10 else 9))
        words.append("".join(letters[at] for at in random.integers(0, len(letters), size)))
    return words + names


def write_manifest(path: Path, runs: Path, prompts: int, tokens: int, *, ids: bool) -> None:
    """Write a manifest of random prompts."""
    random = np.random.default_rng(1)
    names = [name.decode("utf-8", "ignore") for name in shared_names(runs)]
    words = vocabulary(random, names)
    ranks = np.arange(1, len(words) - len(names) + 1)
    chances = np.concatenate([1 / ranks, np.zeros(len(names))])
    chances *= 0.995 / chances.sum()
    chances[len(ranks) :] = 0.005 / max(1, len(names))
    sums = np.cumsum(chances / chances.sum())
    system = " ".join(words[at] for at in random.integers(0, len(words), 300))
    with path.open("wb") as out:
        for number in range(prompts):
            if ids:
                row = random.integers(0, 151_936, tokens).tolist()
                out.write(b'{"prompt_token_ids":' + json.dumps(row, separators=(",", ":")).encode())
            else:
                parts, size = [system] if number % 3 == 0 else [], 0
                while size < tokens * 4:
                    drawn = np.searchsorted(sums, random.random(2000)).tolist()
                    part = " ".join(map(words.__getitem__, drawn)) + TABLE
                    parts.append(part)
                    size += len(part.encode())
                text = "".join(parts).encode()[: tokens * 4].decode("utf-8", "ignore")
                out.write(b'{"prompt":' + json.dumps(text, ensure_ascii=False).encode())
            out.write(b"}\n")


def write_copies(runs: Path, folder: Path, copies: int) -> None:
    """Write copies of a folder whose digits are exchanged, packed files packed again."""
    import isal.igzip as igzip

    for number in range(1, copies + 1):
        digits = np.random.default_rng(number).permutation(10)
        table = bytes.maketrans(b"0123456789", bytes(0x30 + int(digit) for digit in digits))
        for path in sorted(p for p in runs.rglob("*") if p.is_file()):
            target = folder / str(number) / path.relative_to(runs)
            target.parent.mkdir(parents=True, exist_ok=True)
            packed = path.suffix == ".gz"
            opened: Any = igzip.open(path) if packed else path.open("rb")
            written: Any = (
                igzip.open(target, "wb", compresslevel=1) if packed else target.open("wb")
            )
            with opened as stream, written as out:
                while chunk := stream.read(1 << 20):
                    out.write(chunk.translate(table))


def write_plain(runs: Path, folder: Path, size: int) -> None:
    """Write files that are not packed, a quarter each of four kinds, ``size`` bytes in all."""
    import isal.igzip as igzip

    lines = b"".join(path.read_bytes() for path in sorted(runs.rglob("*.jsonl")))
    with igzip.open(max(runs.rglob("*.gz"), key=lambda path: path.stat().st_size)) as stream:
        trace = stream.read(64 << 20)
    logs = "".join(
        f"\x1b[36m(EngineCore_DP0 pid={n * 7})\x1b[0;0m INFO 07-1{n % 10} 12:0{n % 6}:{n % 60:02d} "
        f"[loggers.py:{n % 997}] Engine 000: Avg throughput: {n % 8191}.{n % 10} tokens/s, "
        f'"GET /metrics?run=P{n % 11:02d}%2DC00 HTTP/1.1" 200 C:\\tmp\\w{n} caf\u00e9\n'
        for n in range(100_000)
    ).encode()
    for number in range(4 * (1 + size // (1 << 30))):
        kind = number % 4
        source = (lines, lines, logs, trace)[kind]
        name = ("client/requests.jsonl", "opprof/engine-0.jsonl", "server.log", "plain.json")[kind]
        target = folder / f"plain{number}" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        left = size // (4 * (1 + size // (1 << 30)))
        random = np.random.default_rng(number)
        with target.open("wb") as out:
            while left > 0:
                digits = bytes(0x30 + int(digit) for digit in random.permutation(10))
                part = source.translate(bytes.maketrans(b"0123456789", digits))[:left]
                left -= out.write(part)


def write_campaign(runs: Path, folder: Path, size: int) -> None:
    """Write artefacts of which ``size`` bytes are looked at, three quarters of them packed."""
    import isal.igzip as igzip

    inflated = 0
    for path in (p for p in runs.rglob("*") if p.is_file()):
        if path.suffix != ".gz":
            inflated += path.stat().st_size
            continue
        with igzip.open(path) as stream:
            while chunk := stream.read(1 << 20):
                inflated += len(chunk)
    copies = max(1, size * 3 // 4 // inflated)
    write_copies(runs, folder, copies)
    write_plain(runs, folder, size - copies * inflated)


def cpu_seconds() -> float:
    """CPU time of this process and of all workers that have ended."""
    own, others = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def ours(runs: Path, manifest: Path, jobs: int) -> dict[str, float]:
    """Index the manifest and scan the folder in this process and its workers."""
    from opprof.integrity.scan import Scanner, scan_tree
    from opprof.integrity.source import read_private

    begin, began = cpu_seconds(), time.perf_counter()
    source = read_private([manifest])
    indexed, started = cpu_seconds(), time.perf_counter()
    print("indexed", file=sys.stderr, flush=True)
    report = scan_tree(runs, Scanner(source), private_dirs=0, jobs=jobs)
    done, wall = cpu_seconds(), time.perf_counter() - started
    return {
        "index_s": indexed - begin,
        "index_wall_s": started - began,
        "cpu_s": done - indexed,
        "wall_s": wall,
        "bytes": report.stream_bytes,
        "stored": report.file_bytes,
        "files": report.files,
        "findings": len(report.findings),
        "index_bytes": report.index_bytes,
    }


def floor(runs: Path) -> dict[str, float]:
    """Read, inflate and hash every file in this process."""
    from isal import isal_zlib

    begin, size = time.process_time(), 0
    for path in sorted(p for p in runs.rglob("*") if p.is_file()):
        stored, inflated = sha256(), sha256()
        engine = isal_zlib.decompressobj(31) if path.suffix == ".gz" else None
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 16):
                stored.update(chunk)
                text = chunk if engine is None else engine.decompress(chunk)
                if engine is not None:
                    inflated.update(text)
                size += len(text)
    return {"cpu_s": time.process_time() - begin, "bytes": size}


def grep(runs: Path) -> float | None:
    """CPU seconds of grep alone, looking for one string in the inflated files."""
    if shutil.which("grep") is None:
        return None
    import isal.igzip as igzip

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        ["grep", "-c", "-F", "a string of thirty-two characters"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        for path in sorted(p for p in runs.rglob("*") if p.is_file()):
            opened: Any = igzip.open(path) if path.suffix == ".gz" else path.open("rb")
            with opened as stream:
                shutil.copyfileobj(stream, process.stdin, 1 << 20)
        process.stdin.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tree_of(process: int) -> list[int]:
    """Return a process and all below it."""
    found = [process]
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for below in (task / "children").read_text().split():
                found += tree_of(int(below))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def memory(process: int) -> int:
    """Return a process's proportional set size; 0 when it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(row.split()[1]) * 1024 for row in text.splitlines() if row[:4] == "Pss:"), 0)


def child(*arguments: str) -> dict[str, Any]:
    """Run one side in a process of its own; watch the memory of it and of its workers."""
    command = [sys.executable, __file__, "--child", *arguments]
    with (
        tempfile.TemporaryFile("w+") as told,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True) as process,
    ):
        samples, late, most = [0], [], 1
        while process.poll() is None:
            processes = tree_of(process.pid)
            samples.append(sum(map(memory, processes)))
            most = max(most, len(processes))
            told.seek(0, 2)
            if told.tell():
                late.append(samples[-1])
            time.sleep(0.25)
        told.seek(0)
        assert process.stdout is not None
        text = process.stdout.read()
        if process.returncode:
            raise SystemExit(told.read())
    result: dict[str, Any] = json.loads(text)
    # The last looks meet a tree that is going away.
    steady = late[4:-8] or late or samples
    low, high = min(steady), max(steady)
    return result | {"peak": max(samples), "low": low, "high": high, "processes": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "examples" / "h200-runs")
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=9000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ids", action="store_true")
    parser.add_argument("--copies", type=int, default=0)
    parser.add_argument("--gigabytes", type=float, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        side, runs, *rest = options.child
        if side == "ours":
            print(json.dumps(ours(Path(runs), Path(rest[0]), int(rest[1]))))
        else:
            print(json.dumps(floor(Path(runs))))
        return
    with ExitStack() as stack:
        work = options.work
        if work is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        manifest, runs = work / "private.jsonl", options.runs
        if not manifest.exists():
            write_manifest(manifest, runs, options.prompts, options.tokens, ids=options.ids)
        size = manifest.stat().st_size
        if options.copies or options.gigabytes:
            runs = work / "copies"
            if not runs.exists() and options.gigabytes:
                write_campaign(options.runs, runs, int(options.gigabytes * 1e9))
            elif not runs.exists():
                write_copies(options.runs, runs, options.copies)
        # A planted secret must be found, else the figures say nothing.
        canary = work / "canary"
        canary.mkdir(exist_ok=True)
        line = json.loads(manifest.open("rb").readline())
        planted = line["prompt"][1000:1400] if "prompt" in line else line["prompt_token_ids"][:40]
        (canary / "a.json").write_text(json.dumps({"x": planted}))
        if not options.ids and options.prompts * options.tokens < 10_000_000:
            assert scan_folder(canary, manifests=[manifest]).findings
        rounds = []
        for _ in range(options.rounds):
            rounds.append(
                (
                    child("ours", str(runs), str(manifest), str(options.jobs)),
                    child("floor", str(runs)),
                    grep(runs),
                )
            )
    scans, floors = [r[0] for r in rounds], [r[1] for r in rounds]
    volume = scans[0]["bytes"]
    spent = median(s["cpu_s"] for s in scans)
    base = median(f["cpu_s"] for f in floors)
    print(f"private   {options.prompts} prompts of {options.tokens} tokens, {size / 1e6:.0f} MB")
    first = scans[0]
    print(
        f"artefacts {first['files']} files, {first['stored'] / 1e6:.0f} MB stored, "
        f"{volume / 1e6:.0f} MB looked at, {first['findings']} findings"
    )
    print(
        f"index     {median(s['index_s'] for s in scans):.1f} s CPU, "
        f"{median(s['index_wall_s'] for s in scans):.1f} s wall, "
        f"{first['index_bytes'] / 1e6:.0f} MB with the text"
    )
    wall = median(s["wall_s"] for s in scans)
    print(f"scan      {spent:.2f} s CPU, {volume / 1e6 / spent:.0f} MB/s of CPU time")
    print(f"wall      {wall:.2f} s with {options.jobs} jobs, {volume / 1e6 / wall:.0f} MB/s")
    print(f"floor     {base:.2f} s CPU, {floors[0]['bytes'] / 1e6 / base:.0f} MB/s")
    print(f"ratio     {median(s['cpu_s'] / f['cpu_s'] for s, f, _ in rounds):.2f} of the floor")
    greps = [g for _, _, g in rounds if g is not None]
    if greps:
        print(f"grep -F   {volume / 1e6 / median(greps):.0f} MB/s for one string, nothing decoded")
    print(
        f"memory    {max(s['peak'] for s in scans) / 1e6:.0f} MB peak of {first['processes']} "
        f"processes; {min(s['low'] for s in scans) / 1e6:.0f} to "
        f"{max(s['high'] for s in scans) / 1e6:.0f} MB while it scanned"
    )
    load = os.getloadavg()
    print(f"machine   {os.cpu_count()} cores, load {load[0]:.1f} at the end, {load[2]:.1f} before")


if __name__ == "__main__":
    main()
