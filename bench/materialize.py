"""Time and peak memory of the pattern table's manifests at full size.

    PYTHONPATH=src python bench/materialize.py --tokenizer DIR [--patterns P03,P08] [--folder DIR]

Runs the very commands of the protocol (all patterns but the private P10), each in a process of its
own, and prints seconds, CPU seconds, peak memory, bytes and the time to hash the file alone, which
is the floor of anything that must read it. Without ``--tokenizer`` a vocabulary of Qwen's size is
made first (ids 0 … 151,642 under synthetic names), which costs the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from opprof.files import sha256_file
from opprof.protocol import expand, load_protocol

QWEN_TOKENS = 151_643
RUN = "from opprof.cli.materialize import materialize; materialize()"


def main() -> None:
    """Print one line a pattern and the total."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--patterns", default="")
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder")
    options = parser.parse_args()
    wanted = set(filter(None, options.patterns.split(",")))
    protocol = load_protocol()
    assert protocol is not None
    total = 0.0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        tokenizer = options.tokenizer or make_vocabulary(folder / "tokenizer")
        for row in protocol.file.patterns:
            command, *flags = shlex.split(expand(row.manifest, {"PRIVATE": name}))
            if command == "materialize" and (not wanted or row.id in wanted):
                total += measure(row.id, [*flags, "--tokenizer", str(tokenizer)], folder)
    print(f"total {total:.1f} s")


def measure(pattern: str, flags: list[str], folder: Path) -> float:
    """Run one generator, print its figures, delete its manifest, and return its seconds."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", RUN, *flags], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    if status:
        raise SystemExit(f"{pattern}: exit status {status}")
    manifest = folder / f"{pattern}.jsonl"
    started = time.monotonic()
    digest = sha256_file(manifest)
    hashing = time.monotonic() - started
    size = manifest.stat().st_size
    cpu = usage.ru_utime + usage.ru_stime
    print(
        f"{pattern}  {seconds:6.1f} s  {cpu:6.1f} CPU s  {usage.ru_maxrss / 1024:5.0f} MB peak"
        f"  {size / 1e6:7.1f} MB  {seconds / hashing:4.1f} x hashing alone ({hashing:.1f} s)"
        f"  {digest[:16]}",
        flush=True,
    )
    for path in folder.glob(f"{pattern}.*"):
        path.unlink()
    return seconds


def make_vocabulary(folder: Path) -> Path:
    """Write a tokenizer.json whose ordinary ids are those of Qwen's base vocabulary."""
    folder.mkdir()
    vocab = {f"t{index}": index for index in range(QWEN_TOKENS)}
    content = {"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


if __name__ == "__main__":
    main()
