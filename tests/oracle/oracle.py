"""Work out by hand what `opprof analyze` must find in a run directory.

usage: python oracle.py RUN... --out DIR       one DIR/<run>.json a run, and DIR/compare.json

Plain and slow: `json`, `gzip`, integers and fractions, straight from the protocol and the contract,
nothing from the product. README.md beside this file lists the readings where the text leaves room.
"""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

from plain_families import FAMILIES
from plain_layer1 import (
    MODES,
    Step,
    composition,
    end_to_end,
    members,
    outer_borders,
    read_stream,
    waste,
)
from plain_stats import mean, ratio, real, smd, tau_b, tie_ranks
from plain_trace import VERSIONS, window

TRACE = re.compile(r"window(\d+)-rank(\d+)\.pt\.trace\.json\.gz")
ACTIVE_STEPS = 8
FIVE_POINTS = Fraction(5, 100)
ONE_POINT = Fraction(1, 100)


def features(step: Step) -> dict[str, int | Fraction]:
    """The four kinds of features of the representativeness gate; modes as 0/1 indicators."""
    return {
        "scheduled_tokens": step["tokens"],
        "prefill_fraction": Fraction(step["prefill_tokens"], step["tokens"]),
        "decode_batch": step["decode_requests"],
        **{f"mode_{mode}": int(step["graph"]["mode"] == mode) for mode in MODES},
    }


def representativeness(joined: list[Step], clean: list[Step]) -> dict[str, Any]:
    first = [features(s) for s in joined if s["tokens"] > 0]
    second = [features(s) for s in clean if s["tokens"] > 0]
    names = list(second[0])
    compared = {n: smd([f[n] for f in first], [f[n] for f in second]) for n in names}
    return {
        "n_profile": len(first),
        "n_clean": len(second),
        "features": compared,
        "passes": all(c["passes"] for c in compared.values()),
    }


def failure_rate_under_no_change(clean: list[Step]) -> dict[str, Any]:
    """Judge every run of eight consecutive token-bearing clean steps against all of them."""
    rows = [features(s) for s in clean if s["tokens"] > 0]
    names = list(rows[0])
    columns = {n: [row[n] for row in rows] for n in names}
    draws = len(rows) - ACTIVE_STEPS + 1
    whole = {n: smd(columns[n], columns[n]) for n in names}
    failures = 0
    for first in range(draws):
        failures += any(
            not fast_passes(columns[n][first : first + ACTIVE_STEPS], whole[n]) for n in names
        )
    rate = Fraction(failures, draws)
    return {
        "draws": draws,
        "failures": failures,
        "rate": float(rate),
        "rate_of_two_windows": float(1 - (1 - rate) ** 2),
    }


def fast_passes(values: list[int | Fraction], whole: dict[str, Any]) -> bool:
    """The same rule in floats, for the many draws of the rate (which is no gate)."""
    floats = [float(v) for v in values]
    centre = sum(floats) / len(floats)
    spread = sum((v - centre) ** 2 for v in floats) / (len(floats) - 1)
    pooled = (spread + whole["sd_clean"] ** 2) / 2
    difference = centre - whole["mean_clean"]
    return difference == 0 if pooled == 0 else difference**2 <= pooled / 16


def analyse(run: Path) -> dict[str, Any]:
    timeline = json.loads((run / "client" / "timeline.json").read_text(encoding="utf-8"))
    header, steps, accounting = read_stream(run / "opprof" / "engine-0.jsonl")
    kinds: dict[str, list[dict[str, Any]]] = {}
    for interval in timeline["intervals"]:
        kinds.setdefault(interval["kind"], []).append(interval)

    def spans(kind: str) -> list[tuple[int, int]]:
        return [(i["start_mono_ns"], i["end_mono_ns"]) for i in kinds.get(kind, [])]

    clean = outer_borders(spans("clean"))
    parts = [members(steps, border) for border in clean]
    union = [s for inside, _ in parts for s in inside]
    windows = []
    for path in sorted((run / "traces").glob("*.gz")):
        number, rank = (int(n) for n in TRACE.fullmatch(path.name).groups())
        profile = next(i for i in kinds["profile"] if i["index"] == number)
        borders = (profile["start_mono_ns"], profile["end_mono_ns"])
        found = {"window": number, "rank": rank, **window(path, steps, borders)}
        first = found["join"]["first_step"]
        before = max(s for s in spans("clean") if s[1] <= borders[0])
        found["representativeness"] = representativeness(
            steps[first : first + ACTIVE_STEPS], members(steps, before)[0]
        )
        windows.append(found)
    return {
        "pattern": timeline["pattern"],
        "config": timeline["config"],
        "load_point": timeline["load_point"],
        "accounting": accounting,
        "composition": {
            "clean_union": composition(union, sum(border for _, border in parts)),
            **{
                f"{kind}_{i['index']}": composition(
                    *members(steps, (i["start_mono_ns"], i["end_mono_ns"]))
                )
                for kind in ("clean", "profile", "recovery")
                for i in kinds.get(kind, [])
            },
        },
        "end_to_end": end_to_end(run / "client" / "requests.jsonl", clean),
        "waste": waste(union, header["config"]["cudagraph_capture_sizes"]),
        "null_failure_rate": failure_rate_under_no_change(members(steps, spans("clean")[-1])[0]),
        "cv_moe": {version: run_cv(windows, version) for version in VERSIONS},
        "windows": windows,
    }


def run_cv(windows: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """CV_moe of a run: the mean over the active steps that have one, and how many those are."""
    cells = [s["cv_moe"][version] for w in windows for s in w["steps"]]
    values = [Fraction(c["cv"]) for c in cells if c["cv"] is not None]
    return {
        "steps": len(cells),
        "steps_with_cv": len(values),
        "mean": real(mean(values)),
        "scoped_fraction": ratio(
            sum(c["scoped_ns"] for c in cells), sum(c["moe_gemm_ns"] for c in cells)
        ),
    }


def exact_shares(found: dict[str, Any], version: str) -> dict[str, Fraction]:
    table = found["mapping"][version]
    return {f: Fraction(table["families"][f]["ns"], table["kernel_ns"]) for f in FAMILIES}


def compare(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ranks per window, tau-b and inversion gaps for all pairs at the same config and load."""
    out: dict[str, Any] = {version: {} for version in VERSIONS}
    for version in VERSIONS:
        ranks = {
            name: {
                f"w{w['window']}r{w['rank']}": tie_ranks(exact_shares(w, version), ONE_POINT)
                for w in run["windows"]
            }
            for name, run in runs.items()
        }
        taus, inversions = {}, []
        for p, q in combinations(sorted(runs), 2):
            if any(runs[p][key] != runs[q][key] for key in ("config", "load_point")):
                continue
            for place in sorted(ranks[p].keys() & ranks[q].keys()):
                x, y = ranks[p][place], ranks[q][place]
                taus[f"{p} {q} {place}"] = tau_b([x[f] for f in FAMILIES], [y[f] for f in FAMILIES])
            inversions += pair_inversions(p, q, runs, version)
        out[version] = {"ranks": ranks, "tau_b": taus, "gaps": inversions}
    return out


def pair_inversions(
    p: str, q: str, runs: dict[str, dict[str, Any]], version: str
) -> list[dict[str, Any]]:
    """Family pairs whose order turns: a leads in both windows of p, b in both of q."""
    shares = {name: [exact_shares(w, version) for w in runs[name]["windows"]] for name in (p, q)}
    classifiable = all(s["other"] <= Fraction(30, 100) for name in (p, q) for s in shares[name])
    rows = []
    for first, second in combinations(FAMILIES, 2):
        for a, b in ((first, second), (second, first)):
            gaps_p = [s[a] - s[b] for s in shares[p]]
            gaps_q = [s[b] - s[a] for s in shares[q]]
            if not all(gap > 0 for gap in gaps_p + gaps_q):
                continue
            rows.append(
                {
                    "pattern_p": runs[p]["pattern"],
                    "pattern_q": runs[q]["pattern"],
                    "family_a": a,
                    "family_b": b,
                    "gaps_p": [float(gap) for gap in gaps_p],
                    "gaps_q": [float(gap) for gap in gaps_q],
                    "gap_criteria_met": all(gap >= FIVE_POINTS for gap in gaps_p + gaps_q),
                    "classifiable": classifiable,
                }
            )
    return rows


def dump(value: object, path: Path) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    if "--out" not in arguments:
        print(__doc__, file=sys.stderr)
        return 2
    at = arguments.index("--out")
    folder = Path(arguments[at + 1])
    folder.mkdir(parents=True, exist_ok=True)
    runs = {}
    for run in (Path(name) for name in arguments[:at]):
        runs[run.name] = analyse(run)
        dump(runs[run.name], folder / f"{run.name}.json")
        print(run.name)
    dump(compare(runs), folder / "compare.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
