"""Layer 1: one million steps read, checked and summarised, against msgspec decoding the same lines.

    python bench/layer1_read.py [--steps N] [--rounds R] [--stream FILE]

Floor: ``msgspec.json.Decoder`` of the schema's line type over every line of the file, nothing else.
Ours: stream and sidecar read, accounting, membership, the composition of three clean segments, of
their union and of two profile windows, and the waste ratios. CPU time of one process, imports left
out on both sides. A round measures both, one after the other, so that both see the same machine;
the ratio is the median of the rounds. Target (issue 2): at most 3.5.

The stream repeats the steps of a bundled real run with renumbered steps and shifted times.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from opprof.analysis.waste import step_waste
from opprof.artifacts.layer1 import Footer, Header, Line, Sidecar, Step
from opprof.artifacts.run import Interval
from opprof.protocol.load import load_protocol
from opprof.telemetry import (
    account,
    compose,
    members,
    read_sidecar,
    read_stream,
    union_members,
    union_pieces,
)

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_STREAM = ROOT / "examples" / "h200-runs" / "P03-C00-moderate" / "opprof" / "engine-0.jsonl"
TARGET = 3.5


def generate(source: Path, target: Path, steps: int) -> None:
    """Write ``steps`` step lines that repeat those of ``source``, with a footer and a sidecar."""
    decoder = msgspec.json.Decoder(Line)
    lines = [decoder.decode(line) for line in source.read_bytes().splitlines()]
    header = next(line for line in lines if isinstance(line, Header))
    real = [line for line in lines if isinstance(line, Step)]
    origin = real[0].submit_mono_ns
    period = max(step.complete_mono_ns for step in real) - origin + 1
    encode = msgspec.json.Encoder().encode
    with target.open("wb") as out:
        out.write(encode(header) + b"\n")
        for index in range(steps):
            step = real[index % len(real)]
            shift = index // len(real) * period - origin
            moved = msgspec.structs.replace(
                step,
                step=index,
                submit_mono_ns=step.submit_mono_ns + shift,
                complete_mono_ns=step.complete_mono_ns + shift,
            )
            out.write(encode(moved) + b"\n")
        out.write(encode(Footer(steps, steps, 0, steps - 1, True)) + b"\n")
    sidecar = Sidecar(1, steps, steps, 0, steps - 1, 1, header.flush_interval_s, True)
    target.with_name(target.name + ".footer.json").write_bytes(encode(sidecar))


def floor(path: Path) -> float:
    """CPU seconds that msgspec needs to decode every line, line splitting and reading left out."""
    decode = msgspec.json.Decoder(Line).decode
    spent = 0.0
    with path.open("rb") as stream:
        while lines := stream.readlines(1 << 20):
            begin = time.process_time()
            for line in lines:
                decode(line)
            spent += time.process_time() - begin
    return spent


def ours(path: Path) -> float:
    """CPU seconds to read, check and summarise the stream."""
    import numpy  # noqa: F401 - the packages import it late; its 0.2 s are no cost of a line

    protocol = load_protocol("phase3")
    assert protocol is not None
    begin = time.process_time()
    stream = read_stream(path)
    accounting = account(stream, read_sidecar(path), rule=protocol.file.layer1, signal_wall_ns=None)
    columns = stream.columns
    last = int(columns.complete_mono_ns[-1])
    cuts = [last * tenth // 10 for tenth in range(11)]
    segments = [Interval("clean", i, cuts[1 + 2 * i], cuts[3 + 2 * i]) for i in range(3)]
    windows = [Interval("profile", i, cuts[7 + i], cuts[8 + i]) for i in range(2)]
    for interval in segments + windows:
        compose(
            columns,
            members(columns, interval.start_mono_ns, interval.end_mono_ns),
            kind=interval.kind,
            index=interval.index,
            start_mono_ns=interval.start_mono_ns,
            end_mono_ns=interval.end_mono_ns,
        )
    union = union_members(columns, segments)
    start, end = union_pieces(segments)[0]
    summary = compose(
        columns, union, kind="clean_union", index=0, start_mono_ns=start, end_mono_ns=end
    )
    step_waste(columns, union.rows, stream.header.config.cudagraph_capture_sizes)
    spent = time.process_time() - begin
    assert accounting.valid, accounting.reasons
    assert summary.steps > 0
    return spent


def in_child(name: str, path: Path) -> tuple[float, float]:
    """CPU seconds and peak memory (MB) of one measurement in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", name, "--stream", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, peak = done.stdout.split()
    return float(seconds), float(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stream", type=Path, default=DEFAULT_STREAM)
    parser.add_argument("--measure", choices=("floor", "ours"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    measures: dict[str, Callable[[Path], float]] = {"floor": floor, "ours": ours}
    if arguments.measure:
        seconds = measures[arguments.measure](arguments.stream)
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine-0.jsonl"
        generate(arguments.stream, path, arguments.steps)
        size_mb = path.stat().st_size / 1e6
        rounds = [
            {name: in_child(name, path) for name in measures} for _ in range(arguments.rounds)
        ]
    per_line = 1e6 / arguments.steps
    ratios = [found["ours"][0] / found["floor"][0] for found in rounds]
    print(f"{arguments.steps} steps, {size_mb:.0f} MB, best of {arguments.rounds}, CPU time")
    for name in measures:
        seconds, peak = min(found[name] for found in rounds)
        print(
            f"  {name:6} {seconds:7.2f} s  {seconds * per_line:6.2f} us/line  peak {peak:6.0f} MB"
        )
    listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"  ratio  {median(ratios):7.2f}  median of rounds {listed} (target: at most {TARGET})")


if __name__ == "__main__":
    main()
