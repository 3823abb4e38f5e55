"""What a rehearsal costs: one cell at full length, a whole campaign, repeats on the fast path.

    python bench/rehearse.py cell [P03 C00]      two full-length runs of the packaged protocol
    python bench/rehearse.py campaign [--jobs N] the packaged protocol's whole campaign
    python bench/rehearse.py repeats N           N repeats of examples/rehearsal/twins.toml
    python bench/rehearse.py agree N             N whole rehearsals, 100 or more repeats of one

Prints virtual seconds, wall and processor seconds (children included), and their limits from the
issue beside them: 30 s a run, 60 s a cell, 60 minutes a campaign, 10 minutes for 200 repeats.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from opprof.protocol import Protocol, load_protocol
from opprof.protocol.load import packaged_path
from opprof.rehearsal.campaign import Cell, rehearse_campaign, rehearse_cell
from opprof.rehearsal.rehearse import rehearse
from opprof.rehearsal.truth import NOTHING, load_truth

EXAMPLES = Path(__file__).parents[1] / "examples" / "rehearsal"
TWINS, TRUTHS = EXAMPLES / "twins.toml", EXAMPLES / "truths"


def measured(work: Callable[[], str], limit_s: float) -> None:
    """Run, and print what it took."""
    wall, before = time.perf_counter(), os.times()
    text = work()
    took, after = time.perf_counter() - wall, os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    print(f"{text}\n  wall {took:.1f} s (limit {limit_s:g} s), processor {cpu:.1f} s")


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


def repeats(count: int, jobs: int) -> str:
    protocol = load_protocol(TWINS)
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
    assert done.report.repeats is not None
    found = {
        part: {name: f"{rate.count}/{rate.trials}" for name, rate in outcomes.items()}
        for part, outcomes in done.report.repeats.outcomes.items()
    }
    return f"twins, whole rehearsal and {count} repeats: {found}"


def agree(count: int, jobs: int) -> str:
    """Outcomes and window leads of whole rehearsals under other seeds, and of the fast path."""
    protocol = load_protocol(TWINS)
    assert protocol is not None
    truth = load_truth(TRUTHS / "near-threshold.toml", [row.id for row in protocol.file.patterns])
    whole: Counter[str] = Counter()
    leads: list[float] = []
    fast = None
    for seed in range(count):
        with tempfile.TemporaryDirectory() as folder:
            done = rehearse(
                protocol,
                truth,
                Path(folder),
                seed=seed,
                repeats=max(100, count) if seed == 0 else 0,
                jobs=jobs,
                advance=lambda _line: None,
            )
        fast = fast or done.report.repeats
        assert done.decision is not None
        whole[done.report.verdicts["H1a"].outcome] += 1
        for item in done.decision.inversions:
            planted = {item.pattern_p, item.pattern_q} == {"P01", "P09"}
            if planted and {item.family_a, item.family_b} == {"attention", "moe_gemm"}:
                leads += [gap for gap in (*item.gaps_p, *item.gaps_q) if gap is not None]
    assert fast is not None
    drawn = {name: f"{r.count}/{r.trials}" for name, r in fast.outcomes["H1a"].items()}
    spread = f"{statistics.fmean(leads):+.4f}, standard deviation {statistics.stdev(leads):.4f}"
    return f"H1a over {count} whole rehearsals {dict(whole)}, fast path {drawn}; leads {spread}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cell", "campaign", "repeats", "agree"])
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
    elif arguments.what == "agree":
        measured(lambda: agree(int(values[0]) if values else 20, arguments.jobs), 3600)
    else:
        count = int(values[0]) if values else 200
        measured(lambda: repeats(count, arguments.jobs), 600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
