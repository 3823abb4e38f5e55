"""Layer 1 and requests.jsonl by hand: accounting, membership, composition, waste, end-to-end."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from plain_stats import mean, percentile, ratio, real, summary

MODES = ("FULL", "PIECEWISE", "NONE")
Step = dict[str, Any]
Interval = tuple[int, int]


def read_stream(path: Path) -> tuple[dict[str, Any], list[Step], dict[str, Any]]:
    """Return the header, the steps (with `start`, `end`, `duration` added) and the accounting."""
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    header = records[0]
    footer = records[-1] if records[-1]["type"] == "footer" else None
    steps = [record for record in records if record["type"] == "step"]
    sidecar = json.loads(Path(f"{path}.footer.json").read_text(encoding="utf-8"))
    earlier = None  # the running maximum of earlier completions (contract, section 2)
    for step in steps:
        submit, complete = step["submit_mono_ns"], step["complete_mono_ns"]
        step["start"] = submit if earlier is None else max(submit, earlier)
        step["end"] = complete
        step["duration"] = max(0, complete - step["start"])
        step["tokens"] = step["prefill_tokens"] + step["decode_tokens"]
        earlier = complete if earlier is None else max(earlier, complete)
    counters = ("encoded_records", "written_records", "dropped_records", "last_step_index")
    accounting = {
        "steps": len(steps),
        "contiguous": [s["step"] for s in steps] == list(range(len(steps))),
        "footer": footer is not None,
        "final": bool(sidecar["final"]),
        **{name: sidecar[name] for name in counters},
        "footer_agrees": footer is None or all(footer[n] == sidecar[n] for n in counters),
        "balanced": sidecar["encoded_records"]
        == sidecar["written_records"] + sidecar["dropped_records"]
        and sidecar["dropped_records"] == 0
        and sidecar["written_records"] == len(steps)
        and sidecar["last_step_index"] == steps[-1]["step"],
        "executed_steps": sum(s["model_executed"] for s in steps),
        "graph_mode_invalid_steps": sum(not mode_is_valid(s) for s in steps),
        "overlapping_submits": sum(
            b["submit_mono_ns"] < a["complete_mono_ns"] for a, b in pairwise(steps)
        ),
    }
    return header, steps, accounting


def mode_is_valid(step: Step) -> bool:
    graph = step["graph"]
    if not step["model_executed"]:
        return graph is None
    if graph is None or graph["mode"] not in MODES:
        return False
    if graph["mode"] == "NONE":
        return not graph["hit"] and graph["bucket_tokens"] == 0
    return bool(graph["hit"]) and graph["bucket_tokens"] >= graph["unpadded_tokens"] > 0


def members(steps: list[Step], interval: Interval) -> tuple[list[Step], int]:
    """Return the steps whose span lies inside [a, b), and how many lie over a border of it."""
    a, b = interval
    inside = [s for s in steps if s["start"] >= a and s["end"] <= b]
    over = [s for s in steps if s["start"] < b and s["end"] > a]
    return inside, len([s for s in over if not (s["start"] >= a and s["end"] <= b)])


def outer_borders(intervals: list[Interval]) -> list[Interval]:
    """Merge touching intervals: the clean union is judged on its own outer borders."""
    merged: list[Interval] = []
    for a, b in sorted(intervals):
        if merged and merged[-1][1] == a:
            merged[-1] = (merged[-1][0], b)
        else:
            merged.append((a, b))
    return merged


def power_of_two_histogram(values: list[int]) -> dict[str, int]:
    counts: Counter[int] = Counter()
    for value in values:
        bound = 1
        while bound < value:
            bound *= 2
        counts[bound] += 1
    return {str(bound): counts[bound] for bound in sorted(counts)}


def extent(values: list[Fraction]) -> dict[str, float | None]:
    return {
        "mean": real(mean(values)),
        "min": real(min(values, default=None)),
        "max": real(max(values, default=None)),
    }


def composition(inside: list[Step], border: int) -> dict[str, Any]:
    ran = [s for s in inside if s["model_executed"]]
    total = {
        name: sum(s[name] for s in inside)
        for name in (
            "scheduled_requests",
            "prefill_requests",
            "prefill_tokens",
            "decode_requests",
            "decode_tokens",
            "preemptions",
            "prefix_queries",
            "prefix_hits",
        )
    }
    tokens = total["prefill_tokens"] + total["decode_tokens"]
    contexts: Counter[int] | None = Counter()
    for step in inside:
        if step["context_len_hist"] is None:
            contexts = None
            break
        contexts.update({int(k): v for k, v in step["context_len_hist"].items()})
    by_mode = {}
    for mode in MODES:
        of_mode = [s for s in ran if s["graph"] and s["graph"]["mode"] == mode]
        spent = sum(s["duration"] for s in of_mode)
        by_mode[mode] = {
            "steps": len(of_mode),
            "share": ratio(len(of_mode), len(ran)),
            "duration_ns": spent,
            "duration_mean_ns": real(mean([s["duration"] for s in of_mode])),
            "duration_p50_ns": real(percentile([s["duration"] for s in of_mode], 50)),
            "tokens": sum(s["tokens"] for s in of_mode),
            "E_token_per_ms": ratio(sum(s["tokens"] for s in of_mode) * 1_000_000, spent),
        }
    spent = sum(s["duration"] for s in ran)
    gauges = {
        name: {
            "mean_all": real(mean([s[name] for s in inside])),
            "mean_executed": real(mean([s[name] for s in ran])),
            "max": max((s[name] for s in inside), default=None),
        }
        for name in ("waiting", "running", "deferred")
    }
    usages = {"all": inside, "executed": ran}
    return {
        "steps": len(inside),
        "executed_steps": len(ran),
        "not_executed_steps": len(inside) - len(ran),
        "border_steps": border,
        "first_step": inside[0]["step"] if inside else None,
        "last_step": inside[-1]["step"] if inside else None,
        **total,
        "tokens": tokens,
        "prefill_fraction": ratio(total["prefill_tokens"], tokens),
        "per_executed_step": {
            name: ratio(sum(s[name] for s in ran), len(ran))
            for name in (
                "tokens",
                "scheduled_requests",
                "prefill_requests",
                "prefill_tokens",
                "decode_requests",
                "decode_tokens",
            )
        },
        "prefix_hit_ratio": ratio(total["prefix_hits"], total["prefix_queries"]),
        "prefill_chunks": {
            "count": sum(len(s["prefill_chunks"]) for s in inside),
            "tokens": sum(sum(s["prefill_chunks"]) for s in inside),
            "histogram": power_of_two_histogram([c for s in inside for c in s["prefill_chunks"]]),
        },
        "context_len_hist": None
        if contexts is None
        else {str(bound): contexts[bound] for bound in sorted(contexts)},
        "queues": gauges,
        "kv_usage": {
            which: extent([Fraction(s["kv_usage"]) for s in chosen])
            for which, chosen in usages.items()
        },
        "by_mode": by_mode,
        "duration_ns": spent,
        "submit_to_complete_ns": sum(s["complete_mono_ns"] - s["submit_mono_ns"] for s in ran),
        "E_token_per_ms": ratio(sum(s["tokens"] for s in ran) * 1_000_000, spent),
    }


def waste_of(ran: list[Step], captures: list[int]) -> dict[str, Any]:
    """The protocol's padding, miss, overflow and slack: ratios of sums over executed steps."""
    hits = [s["graph"] for s in ran if s["graph"]["hit"] and s["graph"]["bucket_tokens"] > 0]
    padded = [g["bucket_tokens"] - g["unpadded_tokens"] for g in hits]
    missed = [s["graph"] for s in ran if not s["graph"]["hit"]]
    largest = max(captures, default=0)
    fitting = [s["graph"]["unpadded_tokens"] for s in ran]
    slack = [
        (min(b for b in captures if b >= u), u) for u in fitting if any(b >= u for b in captures)
    ]
    spent = sum(s["duration"] for s in ran)
    return {
        "executed_steps": len(ran),
        "hit_steps": len(hits),
        "padding_fraction": ratio(sum(padded), sum(g["bucket_tokens"] for g in hits)),
        "padded_tokens": sum(padded),
        "padded_tokens_per_useful_token": ratio(
            sum(padded), sum(g["unpadded_tokens"] for g in hits)
        ),
        "padded_tokens_per_useful_token_of_all_steps": ratio(
            sum(padded), sum(s["tokens"] for s in ran)
        ),
        "padding_distribution": {str(k): v for k, v in sorted(Counter(padded).items())},
        "graph_miss_rate": ratio(len(missed), len(ran)),
        "eligible_miss_rate": ratio(
            len([g for g in missed if g["unpadded_tokens"] <= largest]), len(ran)
        ),
        "overflow_rate": ratio(
            len([g for g in missed if g["unpadded_tokens"] > largest]), len(ran)
        ),
        "bucket_slack": ratio(sum(b - u for b, u in slack), sum(b for b, _ in slack)),
        "E_token_per_ms": ratio(sum(s["tokens"] for s in ran) * 1_000_000, spent),
    }


def waste(clean: list[Step], captures: list[int]) -> dict[str, Any]:
    ran = [s for s in clean if s["model_executed"] and mode_is_valid(s)]
    return {
        **waste_of(ran, captures),
        "by_mode": {
            mode: waste_of([s for s in ran if s["graph"]["mode"] == mode], captures)
            for mode in MODES
        },
    }


def end_to_end(path: Path, clean: list[Interval]) -> dict[str, Any]:
    requests = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def lies_in(moment: int | None) -> bool:
        return moment is not None and any(a <= moment < b for a, b in clean)

    def good(request: dict[str, Any]) -> bool:
        return (
            request["http_status"] == 200
            and request["output_tokens"] == request["requested_output_tokens"]
        )

    ended = [r for r in requests if lies_in(r["completed_mono_ns"])]
    done = [r for r in ended if good(r)]
    span_ns = sum(b - a for a, b in clean)
    out: dict[str, Any] = {
        "requests": len(requests),
        "clean_ns": span_ns,
        "completed": len(done),
        "failed": len(ended) - len(done),
        "admitted": len([r for r in requests if lies_in(r["admitted_mono_ns"])]),
        "completed_rps": ratio(len(done) * 10**9, span_ns),
        "input_tokens": sum(r["prompt_tokens"] for r in done),
        "output_tokens": sum(r["output_tokens"] for r in done),
    }
    out["offered_rps"] = ratio(out["admitted"] * 10**9, span_ns)
    out["input_tokens_per_s"] = ratio(out["input_tokens"] * 10**9, span_ns)
    out["output_tokens_per_s"] = ratio(out["output_tokens"] * 10**9, span_ns)
    total = out["input_tokens"] + out["output_tokens"]
    out["total_tokens_per_s"] = ratio(total * 10**9, span_ns)
    out["tpot_ns"] = summary(
        [
            Fraction(r["completed_mono_ns"] - r["first_token_mono_ns"], r["output_tokens"] - 1)
            for r in done
            if r["output_tokens"] > 1
        ]
    )
    for origin in ("scheduled", "admitted"):
        since = f"{origin}_mono_ns"
        out[f"from_{origin}"] = {
            "ttft_ns": summary([r["first_token_mono_ns"] - r[since] for r in done]),
            "latency_ns": summary([r["completed_mono_ns"] - r[since] for r in done]),
        }
    return out
