"""Every figure that the product and the oracle both give, paired: (where, product's, oracle's).

The product is read from its JSON artefacts only. Exact figures (counts, nanoseconds, names) must be
equal; ratios and means may differ by rounding (`RELATIVE`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

from plain_families import FAMILIES
from plain_layer1 import MODES
from plain_stats import tau_b, tie_ranks

Pair = tuple[str, object, object]
RELATIVE = 1e-9
MS = 1_000_000
OPAQUE = "graph_replay_opaque"
FEATURES = {
    "scheduled_tokens": "scheduled_tokens",
    "prefill_fraction": "prefill_fraction",
    "decode_batch": "decode_batch",
    **{f"share_{mode}": f"mode_{mode}" for mode in MODES},
}


def agree(product: object, oracle: object) -> bool:
    if isinstance(product, float) or isinstance(oracle, float):
        if product is None or oracle is None:
            return False
        return math.isclose(float(product), float(oracle), rel_tol=RELATIVE, abs_tol=1e-15)
    return type(product) is type(oracle) and product == oracle


def in_ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / MS


def layer1_pairs(product: dict[str, Any], oracle: dict[str, Any]) -> Iterator[Pair]:
    told, own = product["accounting"], oracle["accounting"]
    yield "accounting.valid", told["valid"], all(own[n] for n in ("balanced", "contiguous"))
    yield "accounting.step_lines", told["step_lines"], own["steps"]
    yield "accounting.footer_in_stream", told["footer_in_stream"], own["footer"]
    yield "accounting.sidecar_final", told["sidecar_final"], own["final"]
    yield "accounting.last_step", told["last_step"], own["last_step_index"]
    for name in ("encoded_records", "written_records", "dropped_records"):
        yield f"accounting.{name}", told[name], own[name]
    parts = {"clean_union": product["clean_union"]}
    for group, kind in (("segments", "clean"), ("profile", "profile"), ("recovery", "recovery")):
        parts |= {f"{kind}_{part['index']}": part for part in product[group]}
    yield "intervals", sorted(parts), sorted(oracle["composition"])
    for name, part in parts.items():
        for where, left, right in composition_pairs(part, oracle["composition"][name]):
            yield f"{name}.{where}", left, right
    yield from end_to_end_pairs(product["end_to_end"], oracle["end_to_end"])
    if len(product["segments"]) == 1:  # then the segment is the union
        yield from end_to_end_pairs(product["end_to_end_segments"][0], oracle["end_to_end"])


def composition_pairs(told: dict[str, Any], own: dict[str, Any]) -> Iterator[Pair]:
    yield "steps", told["steps"], own["executed_steps"]
    yield "steps_no_model", told["steps_no_model"], own["not_executed_steps"]
    yield "steps_border", told["steps_border"], own["border_steps"]
    yield "scheduled_tokens", told["scheduled_tokens"], own["tokens"]
    same = ("prefill_tokens", "decode_tokens", "scheduled_requests", "preemptions")
    for name in (*same, "prefix_queries", "prefix_hits", "prefix_hit_ratio"):
        yield name, told[name], own[name]
    per_step = {
        "tokens_per_step": "tokens",
        "requests_per_step": "scheduled_requests",
        "prefill_tokens_per_step": "prefill_tokens",
        "decode_tokens_per_step": "decode_tokens",
        "prefill_batch": "prefill_requests",
        "decode_batch": "decode_requests",
    }
    for left, right in per_step.items():
        yield f"{left}.mean", told[left]["mean"], own["per_executed_step"][right]
    for queue in ("waiting", "running", "deferred"):
        yield f"{queue}.mean", told[queue]["mean"], own["queues"][queue]["mean_executed"]
        yield f"{queue}.max", told[queue]["max"], float(own["queues"][queue]["max"])
    for name in ("mean", "min", "max"):
        # README, "Open readings": gauges over the steps that ran a model.
        yield f"kv_usage.{name}", told["kv_usage"][name], own["kv_usage"]["executed"][name]
    yield "prefill_chunk_hist", told["prefill_chunk_hist"], own["prefill_chunks"]["histogram"]
    yield "context_len_hist", told["context_len_hist"], own["context_len_hist"]
    yield "step_duration_sum_ms", told["step_duration_sum_ms"], own["duration_ns"] / MS
    latency = told["step_latency_ms"]["sum"]
    yield "step_latency_ms.sum", latency, own["submit_to_complete_ns"] / MS
    yield "e_token_per_ms", told["e_token_per_ms"], own["E_token_per_ms"]
    for mode in MODES:
        mine = own["by_mode"][mode]
        spent = told["step_duration_ms_by_mode"][mode]
        yield f"mode_steps.{mode}", told["mode_steps"][mode], mine["steps"]
        yield f"mode_shares.{mode}", told["mode_shares"][mode], mine["share"]
        yield f"duration.{mode}.n", spent["n"], mine["steps"]
        yield f"duration.{mode}.mean", spent["mean"], in_ms(mine["duration_mean_ns"])
        yield f"duration.{mode}.p50", spent["p50"], in_ms(mine["duration_p50_ns"])


def end_to_end_pairs(told: dict[str, Any], own: dict[str, Any]) -> Iterator[Pair]:
    yield "end_to_end.seconds", told["seconds"], own["clean_ns"] / 10**9
    yield "end_to_end.admitted_rps", told["admitted_rps"], own["offered_rps"]
    rates = ("input_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s", "completed_rps")
    for name in ("completed", "failed", "admitted", *rates):
        yield f"end_to_end.{name}", told[name], own[name]
    for origin in ("from_scheduled", "from_admitted"):
        mine = {**own[origin], "tpot_ns": own["tpot_ns"]}
        for measure in ("ttft", "tpot", "latency"):
            left, right = told[origin][f"{measure}_ms"], mine[f"{measure}_ns"]
            where = f"end_to_end.{origin}.{measure}"
            yield f"{where}.n", left["n"], right["n"]
            for name in ("mean", "p50", "p95", "p99", "min", "max"):
                yield f"{where}.{name}", left[name], in_ms(right[name])


def waste_pairs(product: dict[str, Any], oracle: dict[str, Any]) -> Iterator[Pair]:
    rates = (
        "padding_fraction",
        "padded_tokens_per_useful_token",
        "graph_miss_rate",
        "eligible_miss_rate",
        "overflow_rate",
        "bucket_slack",
        "E_token_per_ms",
    )
    own = oracle["waste"]
    for name in rates:
        yield name, product[name], own[name]
    other = "padded_tokens_per_useful_token_of_all_steps"
    yield other, product["padded_tokens_per_scheduled_token"], own[other]
    yield "padded_tokens_hist", product["padded_tokens_hist"], own["padding_distribution"]
    for name in ("executed_steps", "hit_steps", "padded_tokens"):
        yield f"counts.{name}", product["counts"][name], own[name]
    modes = [mode for mode in MODES if own["by_mode"][mode]["executed_steps"]]
    told_modes = [mode for mode in MODES if product["by_mode"].get(mode, {}).get("steps")]
    yield "modes", told_modes, modes
    for mode in modes:
        told, mine = product["by_mode"][mode], own["by_mode"][mode]
        yield f"{mode}.steps", told["steps"], mine["executed_steps"]
        yield f"{mode}.hist", told["padded_tokens_hist"], mine["padding_distribution"]
        for name in rates:
            yield f"{mode}.{name}", told[name], mine[name]
    moe = oracle["cv_moe"]["v2"]
    enough = moe["scoped_fraction"] is not None and moe["scoped_fraction"] >= 0.80
    yield "CV_moe", product["CV_moe"], moe["mean"] if enough else None
    yield "CV_moe.reason", "CV_moe" in product["not_available"], not enough
    for name in ("R32", "R64", "R128"):
        yield name, (product[name], name in product["not_available"]), (None, True)


def mapping_pairs(told: dict[str, Any], own: dict[str, Any], version: str) -> Iterator[Pair]:
    mine = own["mapping"][version]
    yield "profiler_steps", told["profiler_steps"], own["profiler_steps"]
    yield "annotations", told["annotations"], own["execute_annotations"]
    for name in ("prologue_events", "prologue_ns", "outside_events", "outside_ns"):
        yield name, told[name], own[name]
    for name in ("kernel_events", "kernel_ns", "classified_fraction", "attention"):
        yield name, told[name], mine[name]
    yield "accepted", told["accepted"], own["lost_events"] == 0
    yield "classifiable", told["classifiable"], mine["classified_fraction"] >= 0.70
    yield from family_pairs("", told["families"], mine["families"])
    modes = {mode: part for mode, part in told["by_mode"].items() if part["active_steps"]}
    yield "modes", sorted(modes), sorted(mine["by_mode"])
    for mode, part in modes.items():
        right = mine["by_mode"][mode]
        yield f"{mode}.active_steps", part["active_steps"], right["steps"]
        yield f"{mode}.kernel_ns", part["kernel_ns"], right["kernel_ns"]
        yield from family_pairs(f"{mode}.", part["families"], right["families"])
    unmatched = [{"name": e["name"], "ns": e["ns"]} for e in told["top_unmatched"]]
    yield "top_unmatched", unmatched, mine["top_unmatched"]


def family_pairs(prefix: str, told: dict[str, Any], own: dict[str, Any]) -> Iterator[Pair]:
    absent = {"ns": 0, "share": 0.0, "events": 0}
    yield f"{prefix}families", sorted({*told, *FAMILIES}), sorted(FAMILIES)
    for name in FAMILIES:
        for figure in absent:
            left = told.get(name, absent)[figure]
            yield f"{prefix}{name}.{figure}", left, own[name][figure]


def window_pairs(told: dict[str, Any], own: dict[str, Any]) -> Iterator[Pair]:
    yield from mapping_pairs(told, own, "v2")
    for where, left, right in mapping_pairs(told["alternatives"]["v1"], own, "v1"):
        yield f"v1.{where}", left, right
    device, mine = told["device"], own["times"]
    yield "launch_cpu_ns", device["launch_cpu_ns"], mine["launch_ns"]
    yield "launch_events", device["launch_events"], mine["launch_calls"]
    yield "cuda_runtime_ns", device["cuda_runtime_ns"], mine["runtime_ns"] + mine["driver_ns"]
    for name in ("memcpy_ns", "memcpy_events", "memset_ns", "memset_events"):
        yield name, device[name], mine[name]
    # README, "Open readings": the union with copies and memsets, and of kernels alone beside it.
    yield "busy_union_ns", device["busy_union_ns"], mine["busy_ns"]
    yield "kernel_union_ns", device["kernel_union_ns"], mine["busy_kernels_ns"]
    yield "steps", len(told["steps"]), len(own["steps"])
    for left, right in zip(told["steps"], own["steps"], strict=False):
        where = f"step{right['profiler_step']}"
        for name in ("profiler_step", "layer1_step", "mode", "kernel_ns", "kernel_events"):
            yield f"{where}.{name}", left[name], right[name]
        yield f"{where}.attention_kind", left["attention_kind"], right["phase"]
        yield f"{where}.moe_layer_cv", left["moe_layer_cv"], right["cv_moe"]["v2"]["cv"]
        yield f"{where}.moe_layers", left["moe_layers"] or 0, right["cv_moe"]["v2"]["layers"]
        for name in FAMILIES:
            spent = left["families"].get(name, 0)
            yield f"{where}.{name}", spent, right["families"]["v2"][name]


def kernels_pairs(product: dict[str, Any], oracle: dict[str, Any]) -> Iterator[Pair]:
    own = {(w["window"], w["rank"]): w for w in oracle["windows"]}
    told = {(w["window"], w["rank"]): w for w in product["windows"]}
    yield "windows", sorted(told), sorted(own)
    for key in sorted(told.keys() & own.keys()):
        for where, left, right in window_pairs(told[key], own[key]):
            yield f"w{key[0]}r{key[1]}.{where}", left, right
    for verdict in product["representativeness"]["windows"]:
        mine = own[verdict["window"], 0]["representativeness"]
        where = f"w{verdict['window']}.representativeness"
        passes = verdict["outcome"] == "pass"
        yield f"{where}.passes", passes, mine["passes"]
        yield f"{where}.profile_steps", verdict["profile_steps"], mine["n_profile"]
        yield f"{where}.clean_steps", verdict["clean_steps"], mine["n_clean"]
        rows = {row["feature"]: row for row in verdict["features"]}
        yield f"{where}.features", sorted(rows), sorted(FEATURES)
        for name, row in rows.items():
            right = mine["features"][FEATURES[name]]
            yield f"{where}.{name}.passes", row["outcome"] == "pass", right["passes"]
            for figure in (
                "smd",
                "constant",
                "mean_profile",
                "mean_clean",
                "sd_profile",
                "sd_clean",
                "pooled_sd",
            ):
                yield f"{where}.{name}.{figure}", row[figure], right[figure]
    valid = all(w["representativeness"]["passes"] for w in oracle["windows"])
    yield "breakdown_valid", product["breakdown_valid"], valid


Shares = dict[tuple[str, int, int], dict[str, Fraction]]


def shares_by_window(oracles: dict[str, dict[str, Any]], version: str) -> Shares:
    """Exact family shares by (pattern config load, window, rank)."""
    found: Shares = {}
    for own in oracles.values():
        cell = f"{own['pattern']} {own['config']} {own['load_point']}"
        for window in own["windows"]:
            table = window["mapping"][version]
            assert window["opaque_replays"] == 0
            found[cell, window["window"], window["rank"]] = {
                OPAQUE: Fraction(0),
                **{
                    name: Fraction(table["families"][name]["ns"], table["kernel_ns"])
                    for name in FAMILIES
                },
            }
    return found


def compare_pairs(
    told: dict[str, Any], oracles: dict[str, dict[str, Any]], version: str
) -> Iterator[Pair]:
    """`told` is the comparison under one table: windows, rank spreads, taus, inversions."""
    shares = shares_by_window(oracles, version)
    places = {
        key: tie_ranks({f: row[f] for f in FAMILIES}, Fraction(1, 100))
        for key, row in shares.items()
    }
    windows = {
        (f"{w['pattern']} {w['config']} {w['load_point']}", w["window"], w["rank"]): w["families"]
        for w in told["windows"]
    }
    yield "windows", sorted(windows), sorted(shares)
    for key, families in windows.items():
        for name in FAMILIES:
            yield f"{key}.{name}.share", families[name]["share"], float(shares[key][name])
            yield f"{key}.{name}.place", families[name]["place"], places[key][name]
    names = {f"{o['pattern']} {o['config']} {o['load_point']}": run for run, o in oracles.items()}
    for row in told["rank_spreads"]:
        own = [
            s[row["family"]]
            for (cell, window, _), s in shares.items()
            if names[cell] == row["run"] and window == row["window"]
        ]
        where = f"spread.{row['run']}.{row['window']}.{row['family']}"
        yield f"{where}.mean", row["mean_share"], float(sum(own) / len(own))
        yield f"{where}.min", row["min_share"], float(min(own))
        yield f"{where}.max", row["max_share"], float(max(own))
    for row in told["tau"]:
        ends = [
            places[f"{row[p]} {row['config']} {row['load_point']}", row[w], row["rank"]]
            for p, w in (("pattern_p", "window_p"), ("pattern_q", "window_q"))
        ]
        value = tau_b([ends[0][f] for f in FAMILIES], [ends[1][f] for f in FAMILIES])
        yield f"tau.{row}", row["tau_b"], value
    yield from inversion_pairs(told["inversions"], shares)


def inversion_pairs(rows: list[dict[str, Any]], shares: Shares) -> Iterator[Pair]:
    seen = []
    for row in rows:
        a, b = row["family_a"], row["family_b"]
        cells = [
            f"{row[p]} {row['config']} {row['load_point']}" for p in ("pattern_p", "pattern_q")
        ]
        p, q = ([s for key, s in sorted(shares.items()) if key[0] == cell] for cell in cells)
        gaps_p, gaps_q = [s[a] - s[b] for s in p], [s[b] - s[a] for s in q]
        seen.append((*sorted(cells), *sorted((a, b))))
        where = f"inversion.{cells}.{a}.{b}"
        for name, mine in (("gaps_p", gaps_p), ("gaps_q", gaps_q)):
            for index, (left, right) in enumerate(zip(row[name], mine, strict=True)):
                yield f"{where}.{name}.{index}", left, float(right)
        met = all(gap >= Fraction(5, 100) for gap in gaps_p + gaps_q)
        yield f"{where}.met", row["gap_criteria_met"], met
        known = all(s["other"] <= Fraction(30, 100) for s in p + q)
        yield f"{where}.classifiable", row["classifiable"], known
    cells_of_load: dict[str, set[str]] = {}
    for cell, _, _ in shares:
        cells_of_load.setdefault(cell.split(" ", 1)[1], set()).add(cell)
    wanted = [
        (*pair, *sorted(families))
        for cells in cells_of_load.values()
        for pair in combinations(sorted(cells), 2)
        for families in combinations(FAMILIES, 2)
    ]
    yield "inversions", sorted(seen), sorted(wanted)


def null_rate_within_noise(product: dict[str, Any], oracle: dict[str, Any]) -> bool:
    """The product draws starts at random; the oracle counts them all: six standard errors apart."""
    drawn, whole = product["representativeness"]["null_rate"], oracle["null_failure_rate"]
    rate = Fraction(whole["failures"], whole["draws"])
    error = math.sqrt(rate * (1 - rate) / drawn["draws"])
    return abs(drawn["any_feature_failure_rate"] - float(rate)) <= 6 * error


def differences(pairs: Iterator[Pair]) -> list[Pair]:
    return [pair for pair in pairs if not agree(pair[1], pair[2])]
