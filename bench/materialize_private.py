"""Time and peak memory of ``materialize-private`` on a made source of the protocol's size.

    PYTHONPATH=src python bench/materialize_private.py --tokenizer DIR [--rows 32606]

The source has 32,606 rows of which about one in eight is selected; its prompts are words of one
token each, so their lengths are known without counting. Printed beside the command's own figures:
the time to hash the source alone, and to count the selected prompts alone with the library, which
together are the floor. ``scripts/make_tokenizer.py`` makes a folder with Qwen's vocabulary.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from opprof.files import sha256_file
from opprof.workload.tokenizer import load_counter

RUN = "from opprof.cli.materialize import materialize_private; materialize_private()"
MEAN_TOKENS = 7_300
MAX_TOKENS = 32_704
BATCH = 64


def main() -> None:
    """Make the source, run the command, print what it took and what its parts take alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=32_606)
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        source = Path(name) / "source.jsonl"
        write_source(source, options.rows, words(options.tokenizer))
        print(f"source   {options.rows} rows, {source.stat().st_size / 1e6:.0f} MB", flush=True)
        measure(source, options.tokenizer)
        started = time.monotonic()
        sha256_file(source)
        print(f"floor    hashing the source {time.monotonic() - started:.1f} s", flush=True)
        count_alone(source, options.tokenizer)


def words(folder: Path) -> list[str]:
    """Return texts of one token each: a space and lower-case letters."""
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return [f" {token[1:]}" for token in vocab if re.fullmatch("Ġ[a-z]{2,7}", token)]


def write_source(path: Path, rows: int, vocabulary: list[str]) -> None:
    """Write the trace; long-tailed lengths, seed fixed."""
    draw = random.Random(20260712)
    with path.open("w") as stream:
        for _ in range(rows):
            length = min(MAX_TOKENS, 64 + int(draw.expovariate(1 / MEAN_TOKENS)))
            row = {
                "sampling_u": draw.random(),
                "input_length": length,
                "output_length": draw.randint(2, 900),
                "prompt": "".join(draw.choices(vocabulary, k=length)),
            }
            stream.write(json.dumps(row) + "\n")
    path.chmod(0o600)


def measure(source: Path, tokenizer: Path) -> None:
    """Run the protocol's command in a process of its own."""
    out = source.parent / "private" / "P10.jsonl"
    flags = [
        *("--id", "P10", "--source", str(source), "--sampling-u-max", "0.125"),
        *("--max-input-tokens", "32768", "--output-cap", "256", "--arrival", "steady"),
        *("--preserve-prompts", "--disable-shuffle"),
        *("--tokenizer", str(tokenizer), "--out", str(out)),
    ]
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", RUN, *flags])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    if status:
        raise SystemExit(f"exit status {status}")
    cpu = usage.ru_utime + usage.ru_stime
    print(f"command  {seconds:.1f} s, {cpu:.1f} CPU s, {usage.ru_maxrss / 1024:.0f} MB peak")


def count_alone(source: Path, tokenizer: Path) -> None:
    """Count the selected prompts with the library, in the batches that the command uses."""
    with source.open() as stream:
        texts = [r["prompt"] for r in map(json.loads, stream) if r["sampling_u"] <= 0.125]
    count = load_counter(tokenizer)
    started = time.monotonic()
    tokens = sum(sum(count(texts[i : i + BATCH])) for i in range(0, len(texts), BATCH))
    seconds = time.monotonic() - started
    print(f"floor    counting {len(texts)} prompts, {tokens:,} tokens, {seconds:.1f} s")


if __name__ == "__main__":
    main()
