"""One Kineto trace by hand: attribution, join, families, times beside the composition.

The whole document is parsed with `json` (decimals kept as text), so this is slow and large.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from plain_families import FAMILIES, family
from plain_layer1 import MODES, Interval, Step
from plain_stats import ratio, real, variance

VERSIONS = ("v1", "v2")
EXECUTE = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
LAYER_OP = "vllm::moe_forward"
Event = dict[str, Any]


def to_ns(microseconds: object) -> int:
    value = Fraction(str(microseconds)) * 1000
    assert value.denominator == 1, f"{microseconds} us is finer than a nanosecond"
    return int(value)


def read_events(path: Path) -> dict[str, list[Event]]:
    """Return the complete events by category, with integer `t` (start) and `d` (duration)."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        document = json.load(stream, parse_float=str)
    events: dict[str, list[Event]] = defaultdict(list)
    for event in document["traceEvents"]:
        category = event.get("cat")
        if event.get("ph") != "X" or category == "python_function":
            continue
        event["t"], event["d"] = to_ns(event["ts"]), to_ns(event["dur"])
        assert event["d"] >= 0
        events[category].append(event)
    return events


def correlation(event: Event) -> int:
    return int(event["args"]["correlation"])


def enclosing_ops(launches: list[Event], ops: list[Event]) -> dict[int, list[Event]]:
    """Map each launch's correlation to the CPU operators around its start on its thread."""
    by_thread: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for op in sorted(ops, key=lambda e: (e["t"], -e["d"])):
        by_thread[op["pid"], op["tid"]].append(op)
    found: dict[int, list[Event]] = {}
    for thread in {(e["pid"], e["tid"]) for e in launches}:
        waiting = by_thread[thread]
        opened: list[Event] = []
        position = 0
        own = [e for e in launches if (e["pid"], e["tid"]) == thread]
        for launch in sorted(own, key=lambda e: e["t"]):
            while position < len(waiting) and waiting[position]["t"] <= launch["t"]:
                opened.append(waiting[position])
                position += 1
            opened = [op for op in opened if op["t"] + op["d"] > launch["t"]]
            found[correlation(launch)] = list(opened)
    return found


def union_ns(spans: list[tuple[int, int]]) -> int:
    total, reached = 0, None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


def join(annotations: list[Event], steps: list[Step], profile: Interval) -> dict[str, Any]:
    """Find the eight consecutive Layer-1 steps that the execute annotations stand for.

    Compatible are runs of consecutive steps submitted inside the profile interval whose requests
    and tokens equal the annotations'. Annotation starts minus submits must be one clock offset:
    the candidate with the smallest scatter (root mean square about the mean) is taken.
    """
    wanted = [tuple(int(n) for n in EXECUTE.fullmatch(a["name"]).groups()) for a in annotations]
    names = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
    candidates = []
    anywhere = 0
    for first in range(len(steps) - len(wanted) + 1):
        chosen = steps[first : first + len(wanted)]
        if [tuple(s[n] for n in names) for s in chosen] != wanted:
            continue
        anywhere += 1
        if not all(profile[0] <= s["submit_mono_ns"] < profile[1] for s in chosen):
            continue
        offsets = [a["t"] - s["submit_mono_ns"] for a, s in zip(annotations, chosen, strict=True)]
        scatter = math.sqrt(variance(offsets, 0) or 0)
        candidates.append((scatter, chosen[0]["step"], min(offsets)))
    candidates.sort()
    return {
        "annotations": [a["name"] for a in annotations],
        "candidates_in_stream": anywhere,
        "candidates_in_interval": len(candidates),
        "first_step": candidates[0][1] if candidates else None,
        "smallest_offset_ns": candidates[0][2] if candidates else None,
        "scatter_ns": candidates[0][0] if candidates else None,
        "next_scatter_ns": candidates[1][0] if len(candidates) > 1 else None,
    }


def phase(step: Step) -> str:
    if step["prefill_tokens"] and step["decode_tokens"]:
        return "mixed"
    return "prefill" if step["prefill_tokens"] else "decode"


def shares_of(kernels: list[Event], version: str) -> dict[str, Any]:
    """Sum kernels by family; shares are of all kernels given (no opaque replay adds to it)."""
    total = sum(k["d"] for k in kernels)
    families = {}
    for name in FAMILIES:
        own = [k for k in kernels if k[version] == name]
        spent = sum(k["d"] for k in own)
        families[name] = {"ns": spent, "share": ratio(spent, total), "events": len(own)}
    other = families["other"]["ns"]
    return {
        "kernel_ns": total,
        "kernel_events": len(kernels),
        "families": families,
        "classified_fraction": ratio(total - other, total),
    }


def cv_moe(kernels: list[Event], version: str) -> dict[str, Any]:
    """Scatter of MoE GEMM time over one step's layers (population sd over mean)."""
    gemms = [k for k in kernels if k[version] == "moe_gemm"]
    total = sum(k["d"] for k in gemms)
    layers: Counter[int] = Counter()
    for kernel in gemms:
        if kernel["layer"] is not None:
            layers[kernel["layer"]] += kernel["d"]
    values = list(layers.values())
    scoped = sum(values)
    enough = total > 0 and Fraction(scoped, total) >= Fraction(80, 100)
    cv = None
    if enough:
        cv = math.sqrt(variance(values, 0) or 0) / (sum(values) / len(values))
    return {
        "moe_gemm_ns": total,
        "scoped_ns": scoped,
        "scoped_fraction": ratio(scoped, total),
        "layers": len(layers),
        "cv": cv,
    }


def window(path: Path, steps: list[Step], profile: Interval) -> dict[str, Any]:
    events = read_events(path)
    kernels = events["kernel"]
    copies, fills = events["gpu_memcpy"], events["gpu_memset"]
    calls = events["cuda_runtime"] + events["cuda_driver"]
    call_of = {correlation(c): c for c in calls}
    annotated = sorted(events["user_annotation"], key=lambda e: e["t"])
    marks = [e for e in annotated if re.fullmatch(r"ProfilerStep#\d+", e["name"])]
    executes = [e for e in annotated if EXECUTE.fullmatch(e["name"])]

    def active_number(moment: int) -> int | None:
        for mark in marks:
            if mark["t"] <= moment < mark["t"] + mark["d"]:
                return int(mark["name"].split("#")[1])
        return None

    carrying = {correlation(k) for k in kernels}
    ops_around = enclosing_ops([c for c in calls if correlation(c) in carrying], events["cpu_op"])
    first_launched: dict[Any, int] = {}
    for kernel in kernels:
        launch = call_of.get(correlation(kernel))
        kernel["step"] = None if launch is None else active_number(launch["t"])
        kernel["launched"] = launch is not None
        # Kernels inside graph replays have no operator scope (contract, section 3).
        replayed = launch is not None and "GraphLaunch" in launch["name"]
        around = [] if launch is None or replayed else ops_around[correlation(kernel)]
        scopes = tuple(op["name"] for op in around)
        layers = [op["t"] for op in around if op["name"] == LAYER_OP]
        kernel["layer"] = layers[-1] if layers else None
        for version in VERSIONS:
            kernel[version] = family(kernel["name"], scopes, version)
        if launch is not None:
            stream = kernel["args"]["stream"]
            first_launched[stream] = min(first_launched.get(stream, kernel["t"]), kernel["t"])

    unlaunched = [k for k in kernels if not k["launched"]]
    anywhere = min(first_launched.values(), default=None)
    prologue = [
        k
        for k in unlaunched
        if anywhere is None or k["t"] < first_launched.get(k["args"]["stream"], anywhere)
    ]
    outside = [k for k in kernels if k["launched"] and k["step"] is None]
    active = [k for k in kernels if k["step"] is not None]
    replays = [c for c in calls if "GraphLaunch" in c["name"]]
    joined = join(executes, steps, profile)
    first = joined["first_step"]
    by_number = {
        number: None if first is None else steps[first + index]
        for index, number in enumerate(sorted(int(m["name"].split("#")[1]) for m in marks))
    }
    return {
        "profiler_steps": [int(m["name"].split("#")[1]) for m in marks],
        "execute_annotations": len(executes),
        "join": joined,
        "all_kernel_events": len(kernels),
        "all_kernel_ns": sum(k["d"] for k in kernels),
        "prologue_events": len(prologue),
        "prologue_ns": sum(k["d"] for k in prologue),
        "lost_events": len(unlaunched) - len(prologue),
        "outside_events": len(outside),
        "outside_ns": sum(k["d"] for k in outside),
        "opaque_replays": len([c for c in replays if correlation(c) not in carrying]),
        "graph_launches": len(replays),
        "steps": [step_of(n, by_number[n], active) for n in sorted(by_number)],
        "mapping": {v: mapped(active, by_number, v) for v in VERSIONS},
        "times": times(active, kernels, copies, fills, calls, call_of, active_number),
    }


def step_of(number: int, step: Step | None, active: list[Event]) -> dict[str, Any]:
    own = [k for k in active if k["step"] == number]
    out: dict[str, Any] = {
        "profiler_step": number,
        "layer1_step": None if step is None else step["step"],
        "mode": None if step is None else step["graph"]["mode"],
        "phase": None if step is None else phase(step),
        "kernel_ns": sum(k["d"] for k in own),
        "kernel_events": len(own),
        "families": {},
        "cv_moe": {version: cv_moe(own, version) for version in VERSIONS},
    }
    for version in VERSIONS:
        sums: Counter[str] = Counter()
        for kernel in own:
            sums[kernel[version]] += kernel["d"]
        out["families"][version] = {name: sums[name] for name in FAMILIES}
    return out


def mapped(active: list[Event], by_number: dict[int, Step | None], version: str) -> dict[str, Any]:
    out = shares_of(active, version)
    attention = dict.fromkeys(("prefill", "decode", "mixed"), 0)
    of_mode: dict[str, list[Event]] = {mode: [] for mode in MODES}
    unmatched: Counter[str] = Counter()
    for kernel in active:
        step = by_number[kernel["step"]]
        if step is not None:
            of_mode[step["graph"]["mode"]].append(kernel)
            if kernel[version] == "attention":
                attention[phase(step)] += kernel["d"]
        if kernel[version] == "other":
            unmatched[kernel["name"]] += kernel["d"]
    out["attention"] = attention
    out["by_mode"] = {
        mode: {
            "steps": len({k["step"] for k in of_mode[mode]}),
            **shares_of(of_mode[mode], version),
        }
        for mode in MODES
        if of_mode[mode]
    }
    out["top_unmatched"] = [
        {"name": name, "ns": spent}
        for name, spent in sorted(unmatched.items(), key=lambda item: (-item[1], item[0]))[:20]
    ]
    return out


def times(
    active: list[Event],
    kernels: list[Event],
    copies: list[Event],
    fills: list[Event],
    calls: list[Event],
    call_of: dict[int, Event],
    active_number: Any,
) -> dict[str, Any]:
    """What stands beside the composition: host calls, copies, and the union of device-busy time."""

    def launched_inside(event: Event) -> bool:
        call = call_of.get(correlation(event))
        return call is not None and active_number(call["t"]) is not None

    def spans(events: list[Event]) -> list[tuple[int, int]]:
        return [(e["t"], e["t"] + e["d"]) for e in events]

    def spent(events: list[Event]) -> int:
        return sum(e["d"] for e in events)

    inside = [c for c in calls if active_number(c["t"]) is not None]
    carrying = {correlation(k) for k in kernels}
    moved = [e for e in copies + fills if launched_inside(e)]
    launches = [c for c in inside if correlation(c) in carrying]
    return {
        "launch_calls": len(launches),
        "launch_ns": spent(launches),
        "launch_named_ns": spent([c for c in inside if "Launch" in c["name"]]),
        "runtime_ns": spent([c for c in inside if c["cat"] == "cuda_runtime"]),
        "driver_ns": spent([c for c in inside if c["cat"] == "cuda_driver"]),
        "all_runtime_ns": spent([c for c in calls if c["cat"] == "cuda_runtime"]),
        "all_driver_ns": spent([c for c in calls if c["cat"] == "cuda_driver"]),
        "memcpy_ns": spent([e for e in copies if launched_inside(e)]),
        "memcpy_events": len([e for e in copies if launched_inside(e)]),
        "memset_ns": spent([e for e in fills if launched_inside(e)]),
        "memset_events": len([e for e in fills if launched_inside(e)]),
        "all_memcpy_ns": spent(copies),
        "all_memset_ns": spent(fills),
        "busy_kernels_ns": union_ns(spans(active)),
        "busy_ns": union_ns(spans(active + moved)),
        "all_busy_kernels_ns": union_ns(spans(kernels)),
        "all_busy_ns": union_ns(spans(kernels + copies + fills)),
        "span_ns": max(k["t"] + k["d"] for k in active) - min(k["t"] for k in active),
        "overlap_ratio": real(Fraction(spent(active), union_ns(spans(active))) if active else None),
    }
