"""What a rehearsal costs: one cell at full length, a whole campaign, repeats.

    python bench/rehearse.py cell [P03 C00]      two full-length runs of the packaged protocol
    python bench/rehearse.py campaign [--jobs N] the packaged protocol's whole campaign
    python bench/rehearse.py repeats N [FILE]    N repeats of protocols/small.toml or FILE

Prints virtual seconds, wall seconds, processor seconds of this process (not of workers), and limits
beside them: 30 s a run, 60 s a cell, 60 minutes a campaign, 10 minutes for 200 repeats.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opprof.protocol import Protocol, load_protocol
from opprof.protocol.load import packaged_path
from opprof.rehearsal.campaign import Cell, rehearse_campaign, rehearse_cell
from opprof.rehearsal.rehearse import rehearse
from opprof.rehearsal.truth import NOTHING

SMALL = Path(__file__).parents[1] / "protocols" / "small.toml"


def measured(work: Callable[[], str], limit_s: float) -> None:
    """Run, and print what it took."""
    wall, before = time.perf_counter(), os.times()
    text = work()
    took, after = time.perf_counter() - wall, os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    print(
        f"{text}\n  wall {took:.1f} s (limit {limit_s:g} s), this process {cpu:.1f} s of processor"
    )


def cell(protocol: Protocol, pattern: str, config: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        found = rehearse_cell(
            Cell(
                packaged_path().read_bytes(),
                protocol.source,
                pattern,
                config,
                ("saturation", "moderate"),
                "primary",
                NOTHING,
                1,
                Path(folder),
                None,
            )
        )
    virtual = [getattr(run, "virtual_s", 0.0) for run in found]
    return f"{pattern}/{config}: " + " + ".join(f"{s:.0f}" for s in virtual) + " virtual seconds"


def campaign(protocol: Protocol, jobs: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = rehearse_campaign(
            protocol,
            packaged_path().read_bytes(),
            NOTHING,
            Path(folder),
            seed=1,
            jobs=jobs,
            advance=lambda line: print("  " + line, flush=True),
        )
    accepted = sum(run.accepted for run in done.runs)
    virtual = sum(run.virtual_s for run in done.runs)
    return (
        f"campaign: {len(done.runs)} runs, {accepted} accepted, {len(done.skipped)} skipped, "
        f"{virtual:.0f} virtual seconds, {done.gpu_hours:.2f} GPU hours"
    )


def repeats(count: int, source: str, jobs: int) -> str:
    protocol = load_protocol(source)
    assert protocol is not None
    with tempfile.TemporaryDirectory() as folder:
        done = rehearse(
            protocol,
            NOTHING,
            Path(folder),
            seed=1,
            repeats=count,
            jobs=jobs,
            advance=lambda line: print("  " + line, flush=True),
        )
    found = done.report.repeats
    assert found is not None
    shares = {
        part: {name: f"{rate.count}/{rate.trials}" for name, rate in rates.items()}
        for part, rates in found.outcomes.items()
    }
    return f"{protocol.file.id}, rehearsal and {count} repeats, {jobs} processes: {shares}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cell", "campaign", "repeats"])
    parser.add_argument("values", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    protocol = load_protocol("phase3")
    assert protocol is not None
    values = arguments.values
    if arguments.what == "cell":
        pattern, config = values or ["P03", "C00"]
        measured(lambda: cell(protocol, pattern, config), 60)
    elif arguments.what == "campaign":
        measured(lambda: campaign(protocol, arguments.jobs), 3600)
    else:
        count = int(values[0]) if values else 200
        source = values[1] if len(values) > 1 else str(SMALL)
        measured(lambda: repeats(count, source, arguments.jobs), 600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
