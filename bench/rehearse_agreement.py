"""Do repeats of a rehearsal say what whole rehearsals say? Both, seed by seed, number by number.

    python bench/rehearse_agreement.py N [PROTOCOL [TRUTH]] [--jobs N] [--all]

Makes N repeats as ``opprof rehearse --repeat`` does, and for each one's seed the whole path as a
user has it: ``opprof rehearse --seed SEED --out DIR`` in a process of its own, whose run
directories are then analysed once more. Prints for each run (cell and load point) and quantity that
the decision uses the two means over the seeds, their difference, the noise (standard error of the
whole path's mean), and the greatest difference of any one seed; likewise for every gate's and
outcome's share. Exits with 1 when any difference of one seed exceeds 1e-9 of the value.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof.analysis.load import load_runs
from opprof.artifacts.rehearsal import Rehearsal
from opprof.protocol import Protocol, load_protocol
from opprof.rehearsal.measures import Measures
from opprof.rehearsal.once import gates_of
from opprof.rehearsal.repeats import Made, make_repeats
from opprof.rehearsal.truth import load_truth

SMALL = Path(__file__).parents[1] / "protocols" / "small.toml"
MAIN = (
    "completed_rps",
    "step_duration_mean_ms",
    "E_token_per_ms",
    "padding_fraction",
    "graph_miss_rate",
    "I_mix",
    "CV_moe",
)
"""What the printed table keeps without ``--all``, beside shares; all are compared."""
TOLERANCE = 1e-9

Key = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """One quantity over the seeds."""

    key: Key
    whole: float
    repeats: float
    noise: float
    """Standard error of the whole path's mean."""
    worst: float
    """Greatest difference of one seed, relative to its value where that is not 0."""


def numbers(
    measures: Measures, failed: dict[str, list[str]], outcomes: dict[str, str]
) -> dict[Key, float]:
    """Everything of one rehearsal as numbers: gates and outcomes count as 0 or 1."""
    found = {
        (run, name): value for run, values in measures.items() for name, value in values.items()
    }
    found |= {(run, f"gate {name} fails"): 1.0 for run, names in failed.items() for name in names}
    return found | dict.fromkeys(outcomes.items(), 1.0)


def of_repeat(made: Made) -> dict[Key, float]:
    return numbers(made.measures, made.row.failed_gates, made.row.outcomes)


def of_whole(protocol: Protocol, command: Sequence[str], seed: int) -> dict[Key, float]:
    """Rehearse by the command line and read what it wrote."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        done = subprocess.run(
            [*command, "--seed", str(seed), "--out", str(out)], capture_output=True, check=False
        )
        # 1: the decision is INVALID or a truth's expectation was missed, which is no matter here.
        assert done.returncode in (0, 1), done.stderr.decode()
        report = msgspec.json.decode((out / "rehearsal.json").read_bytes(), type=Rehearsal)
        analysed = load_runs([out / "runs"], protocol, jobs=1)
        failed = {
            item.source.name: sorted(
                {gate.name for gate in gates if gate.outcome == "fail"} - {"simulated"}
            )
            for item, gates in zip(analysed, gates_of(analysed), strict=True)
        }
    outcomes = {part: row.outcome for part, row in report.verdicts.items()}
    return numbers(report.measures, failed, outcomes)


def compare(whole: Sequence[dict[Key, float]], repeats: Sequence[dict[Key, float]]) -> list[Row]:
    """One row a quantity; a gate or outcome that a rehearsal lacks counts as 0 there."""
    rows = []
    for key in sorted({key for side in (*whole, *repeats) for key in side}):
        lacks = 0.0 if "gate " in key[1] or key[0] in ("H1a", "H1b", "compound") else math.nan
        ones, others = ([side.get(key, lacks) for side in sides] for sides in (whole, repeats))
        pairs = [
            (a, b)
            for a, b in zip(ones, others, strict=True)
            if not (math.isnan(a) and math.isnan(b))
        ]
        known = [a for a, _ in pairs]
        rows.append(
            Row(
                key,
                statistics.fmean(known),
                statistics.fmean(b for _, b in pairs),
                statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else math.nan,
                max(
                    math.inf if math.isnan(a - b) else abs(a - b) / (abs(a) or 1.0)
                    for a, b in pairs
                ),
            )
        )
    return rows


def show(rows: Sequence[Row], *, everything: bool) -> None:
    print("| run | quantity | whole | repeats | difference | noise | worst seed |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for row in rows:
        run, name = row.key
        plain = "." not in name and "gate " not in name and run not in ("H1a", "H1b", "compound")
        if plain and name not in MAIN and not everything:
            continue
        means = f"{row.whole:.6g} | {row.repeats:.6g} | {row.repeats - row.whole:.2g}"
        print(f"| {run} | {name} | {means} | {row.noise:.2g} | {row.worst:.2g} |")
    worst = max(row.worst for row in rows)
    print(f"\n{len(rows)} quantities compared; greatest difference of one seed: {worst:g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("protocol", nargs="?", default=str(SMALL))
    parser.add_argument("truth", nargs="?")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    protocol = load_protocol(arguments.protocol)
    assert protocol is not None
    truth = load_truth(
        None if arguments.truth is None else Path(arguments.truth),
        [row.id for row in protocol.file.patterns],
        [row.id for row in protocol.file.configs],
    )

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    made = make_repeats(
        protocol,
        Path(arguments.protocol).read_bytes(),
        truth,
        seed=1,
        repeats=arguments.count,
        jobs=arguments.jobs,
        each_bytes=100 << 20,
        advance=tell,
    )
    command = [sys.executable, "-m", "opprof", "rehearse", arguments.protocol, "--json"]
    command += ["--jobs", str(arguments.jobs)]
    command += [] if arguments.truth is None else ["--truth", arguments.truth]
    whole = []
    for item in made:
        whole.append(of_whole(protocol, command, item.row.seed))
        tell(f"{len(whole)} of {len(made)} whole rehearsals")
    rows = compare(whole, [of_repeat(item) for item in made])
    show(rows, everything=arguments.all)
    return int(any(row.worst > TOLERANCE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
