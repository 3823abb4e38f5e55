"""The inversion table of the collected H200 runs under both mapping tables, as Markdown.

    PYTHONPATH=src python bench/h200_inversions.py > docs/evidence/h200-inversions.md

The runs are short collections, so every one fails the protocol's durations: the table is
exploratory, and nothing in it is accepted. Every number comes from ``opprof decide``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pathlib import Path

from opprof.artifacts.decision import DecidedComparison, Decision
from opprof.decision.load import decide_paths
from opprof.protocol import load_protocol

RUNS = Path("examples") / "h200-runs"
HEAD = (
    "patterns | leads in the first / reversed in the second | lead in first, points |"
    " reversed in second, points | p | exact p | Holm p | step pairs | windows"
)


def main() -> None:
    """Print the whole document."""
    protocol = load_protocol("phase3")
    assert protocol is not None
    decision = decide_paths([RUNS], protocol, exploratory=True, jobs=2).decision
    print("# Inversions between the real H200 runs, both mapping tables\n")
    print("Made by `PYTHONPATH=src python bench/h200_inversions.py`; exploratory, as the runs are")
    print(f"short collections. The decision says: {decision.compound.outcome}.\n")
    summary(decision)
    for version, items in decision.explored.items():
        turned = [item for item in items if every_window(item)]
        timed = [i for i in items if not every_window(i) and any((*i.gaps_p, *i.gaps_q))]
        near = sorted(timed, key=depth, reverse=True)[:10]
        print(f"\n## {version}: the order turns over in every window ({len(turned)})\n")
        table(turned)
        print(f"\n## {version}: closest to turning over ({len(near)} of {len(items)})\n")
        table(near)
    print("\n## Where the tables disagree\n")
    for sentence in decision.disagreements or ["Nowhere on an inversion."]:
        print(f"- {sentence}")
    ranks(decision)


def summary(decision: Decision) -> None:
    """Tests, gaps and small p-values by table."""
    print("| table | comparisons | gap rule met | turned in every window | Holm p at most 0.05 |")
    print("| --- | --- | --- | --- | --- |")
    for version, items in decision.explored.items():
        tested = [item for item in items if item.holm_p is not None]
        met = sum(1 for item in items if item.gap_criteria_met)
        small = sum(1 for item in tested if (item.holm_p or 1.0) <= 0.05)
        turned = sum(1 for item in items if every_window(item))
        print(f"| {version} | {len(items)} | {met} | {turned} | {small} of {len(tested)} |")


def every_window(item: DecidedComparison) -> bool:
    """Whether the lead changes sides in every window, however small it is."""
    gaps = [*item.gaps_p, *item.gaps_q]
    return bool(gaps) and all(gap is not None and gap > 0 for gap in gaps)


def depth(item: DecidedComparison) -> float:
    """The least lead of the four; negative where the order holds somewhere."""
    return min((gap for gap in (*item.gaps_p, *item.gaps_q) if gap is not None), default=-1.0)


def table(items: list[DecidedComparison]) -> None:
    """One row a comparison."""
    print(f"| {HEAD} |")
    print("|" + " --- |" * (HEAD.count("|") + 1))
    for item in items:
        cells = (
            f"{item.pattern_p} / {item.pattern_q} ({item.config} {item.load_point})",
            f"{item.family_a} / {item.family_b}",
            points(item.gaps_p),
            points(item.gaps_q),
            *(small(p) for p in (item.permutation_p, item.exact_p, item.holm_p)),
            *(small(p) for p in (item.blocked_p, item.windows_p)),
        )
        print("| " + " | ".join(cells) + " |")


def points(gaps: list[float | None]) -> str:
    """Leads of both windows in percentage points."""
    return " / ".join("n/a" if gap is None else f"{100 * gap:+.2f}" for gap in gaps)


def small(p: float | None) -> str:
    """A p-value."""
    return "n/a" if p is None else f"{p:.2g}"


def ranks(decision: Decision) -> None:
    """The tensor-parallel run: mean and range over ranks, never a sum."""
    print("\n## Tensor parallelism: families over the ranks of one window (descriptive)\n")
    print("| run | window | family | mean share | least | most |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in decision.rank_spreads:
        if row.mean_share >= 0.01:
            spread = f"{row.mean_share:.1%} | {row.min_share:.1%} | {row.max_share:.1%}"
            print(f"| {row.run} | {row.window} | {row.family} | {spread} |")


if __name__ == "__main__":
    main()
