"""Join every window of a recorded run twice: by its annotations, and as if it had none.

usage: PYTHONPATH=src python scripts/compare_joins.py [--untied] RUN...

One line a trace: the steps of both joins, and what decided the second. Exit code 1 when they differ
or one is invalid. ``--untied`` ignores the sidecar's pair of clocks, as older streams have none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from opprof.artifacts.layer1 import Line, Step
from opprof.artifacts.run import Timeline
from opprof.protocol import load_protocol
from opprof.telemetry.stream import read_sidecar
from opprof.trace.join import Join, join_window
from opprof.trace.model import TraceLimits
from opprof.trace.window import read_window


def read_steps(path: Path) -> list[Step]:
    """Return the step lines of a stream."""
    decoder = msgspec.json.Decoder(Line)
    lines = map(decoder.decode, path.read_bytes().splitlines())
    return [line for line in lines if isinstance(line, Step)]


def clock_offset_ns(stream: Path) -> int | None:
    """Return wall clock minus CLOCK_MONOTONIC as the sidecar ties them."""
    side = read_sidecar(stream).sidecar
    if side is None or side.mono_time_ns is None:
        return None
    return side.wall_time_ns - side.mono_time_ns


def joins_of(
    path: Path, steps: list[Step], timeline: Timeline, offset_ns: int | None
) -> tuple[Join, Join]:
    """Return a trace's join by annotation and its join by counts and times alone."""
    protocol = load_protocol("phase3")
    assert protocol is not None
    layer2 = protocol.file.layer2
    number = int(path.name.removeprefix("window").partition("-")[0])
    interval = [part for part in timeline.intervals if part.kind == "profile"][number]
    limits = TraceLimits(
        early_ns=round(layer2.kernel_early_max_ms * 1e6),
        horizon_ns=round(layer2.kernel_horizon_s * 1e9),
        overrun_factor=layer2.kernel_overrun_factor_max,
    )
    window = read_window(path, expected_steps=layer2.active_steps, limits=limits)
    blind = msgspec.structs.replace(
        window,
        opprof_annotations=0,
        steps=[
            msgspec.structs.replace(
                step, execute=msgspec.structs.replace(step.execute, opprof_step=None)
            )
            if step.execute is not None
            else step
            for step in window.steps
        ],
    )
    exact, ordered = (
        join_window(
            seen,
            steps,
            start_mono_ns=interval.start_mono_ns,
            end_mono_ns=interval.end_mono_ns,
            margin_min=layer2.join_margin_min,
            clock_offset_ns=offset_ns,
        )
        for seen in (window, blind)
    )
    return exact, ordered


def main() -> int:
    """Compare all traces of the runs."""
    differing = 0
    tied = "--untied" not in sys.argv[1:]
    for run in (Path(text) for text in sys.argv[1:] if text != "--untied"):
        stream = run / "opprof" / "engine-0.jsonl"
        steps = read_steps(stream)
        offset_ns = clock_offset_ns(stream) if tied else None
        timeline = msgspec.json.decode(
            (run / "client" / "timeline.json").read_bytes(), type=Timeline
        )
        for path in sorted((run / "traces").glob("window*.pt.trace.json.gz")):
            exact, ordered = joins_of(path, steps, timeline, offset_ns)
            same = exact.steps is not None and exact.steps == ordered.steps
            differing += not same
            span = None if exact.steps is None else (exact.steps[0], exact.steps[-1])
            print(
                f"{run.name} {path.name.partition('.')[0]}: {exact.method} {span}; without "
                f"{ordered.method}, {ordered.candidates} candidates, margin {ordered.margin}, "
                f"over any run {ordered.margin_any}, residual {ordered.residual_ns} ns, "
                f"clock {ordered.clock}: {'same' if same else 'DIFFERENT'} "
                f"{[str(reason) for reason in [*exact.reasons, *ordered.reasons]]}"
            )
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
