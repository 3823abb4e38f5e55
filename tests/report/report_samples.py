"""Made-up runs for the report's tests: every Struct filled, no randomness."""

from __future__ import annotations

from typing import Any

import msgspec

from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock, SanityFamily, Series
from opprof.artifacts.comparison import Comparison
from opprof.artifacts.composition import (
    Composition,
    EndToEnd,
    LatencySummary,
    Layer1Summary,
    StreamAccounting,
)
from opprof.artifacts.kernels import (
    ActiveStep,
    Alternative,
    AttentionSplit,
    DeviceTime,
    FamilyTime,
    Kernels,
    ModeTime,
    NullRate,
    Representativeness,
    SmdFeature,
    UnmatchedKernel,
    Window,
    WindowFamilies,
    WindowRepresentativeness,
)
from opprof.artifacts.run import Interval
from opprof.artifacts.sanity import Sanity
from opprof.artifacts.waste import Waste, WasteByMode, WasteCounts
from opprof.compare import RunInput, compare_runs, comparison_rule
from opprof.protocol import load_protocol
from opprof.report.downsample import StepSeries
from opprof.report.inputs import ReportInput, RunView
from opprof.telemetry.series import EMPTY

NS = 1_000_000_000

PREFILL = {
    "attention": 0.31,
    "moe_gemm": 0.38,
    "dense_gemm": 0.12,
    "norm_elementwise": 0.11,
    "moe_router": 0.05,
    "sampler": 0.01,
    "other": 0.02,
}
DECODE = {
    "attention": 0.18,
    "moe_gemm": 0.47,
    "dense_gemm": 0.08,
    "norm_elementwise": 0.14,
    "moe_router": 0.07,
    "sampler": 0.03,
    "kv_memory": 0.004,
    "other": 0.026,
}
LONG_DECODE = {"attention": 0.46, "moe_gemm": 0.29, "dense_gemm": 0.2, "other": 0.05}
TWO_RANKS = DECODE | {"moe_gemm": 0.29, "collective": 0.18}


def series(mean: float, n: int = 400, spread: float = 0.4) -> Series:
    """Return a plausible distribution around ``mean``."""
    return Series(
        n=n,
        mean=mean,
        sd=mean * spread,
        min=mean * (1 - spread),
        p50=mean * 0.95,
        p95=mean * (1 + spread),
        p99=mean * (1 + 2 * spread),
        max=mean * (1 + 4 * spread),
        sum=mean * n,
    )


def identity(
    pattern: str, config: str = "C00", load: str = "saturation", **more: Any
) -> RunIdentity:
    """Return an identity whose name follows from its parts."""
    role = more.pop("role", "primary")
    name = more.pop("name", f"{pattern}-{config}-{load}")
    return RunIdentity(name, pattern, config, load, role, **more)


def provenance() -> Provenance:
    """Return hashes of a bound protocol."""
    return Provenance(
        inputs={"client/timeline.json": "a" * 64, "opprof/engine-0.jsonl": "b" * 64},
        protocol_id="opprof-phase3",
        protocol_sha256="c" * 64,
        mapping_version="v2",
        mapping_sha256="d" * 64,
        code_version="0.1.0",
        code_sha256="e" * 64,
    )


def block(prefix: str, *red_flags: str) -> SanityBlock:
    """Return two families and the given red flags."""
    return SanityBlock(
        families=[
            SanityFamily(f"{prefix}.tokens", 400, 400, 0, 1, 8192, 318, "tokens"),
            SanityFamily(f"{prefix}.seconds", 3, 3, 0, 80.0, 80.0, 1, "s", expected_constant=True),
        ],
        red_flags=list(red_flags),
    )


def gates(*failed: str) -> list[Gate]:
    """Return a passed, an unevaluable and the given failed gates."""
    passed = "2,000 steps from 0 without a gap"
    return [
        Gate("steps_contiguous", "pass", passed, {"steps": 2000}, "layer1"),
        Gate(
            "drain",
            "not_evaluable",
            "client/result.json is absent",
            {},
            meaning="Whether the drain kept its allowance is not known.",
            action="Give the run's result.json.",
        ),
        *(
            Gate(
                name,
                "fail",
                f"{name} is beyond its limit",
                {"seen": 0.99, "limit": 0.01, "windows": [0, 1, None]},
                meaning="The figures of this run may measure the cache and not the model.",
                action="Start a fresh server and run again.",
            )
            for name in failed
        ),
    ]


def composition(
    kind: str, index: int, start_s: float, seconds: float, decode: float
) -> Composition:
    """Return an interval with prefill and decode work in three graph modes."""
    start = int(start_s * NS)
    return Composition(
        kind=kind,
        index=index,
        start_mono_ns=start,
        end_mono_ns=start + int(seconds * NS),
        seconds=seconds,
        steps=400,
        steps_no_model=1,
        steps_border=2,
        steps_invalid_graph=0,
        scheduled_tokens=900_000,
        prefill_tokens=820_000,
        decode_tokens=80_000,
        scheduled_requests=80_400,
        tokens_per_step=series(2250.0),
        requests_per_step=series(201.0),
        prefill_tokens_per_step=series(2050.0),
        decode_tokens_per_step=series(decode),
        prefill_batch=series(1.6),
        decode_batch=series(decode),
        prefill_chunk_hist={"1024": 3, "8192": 380},
        context_len_hist=None,
        context_len_hist_missing=400,
        context_len_mean=3120.5,
        context_len_max=8190,
        waiting=series(12.0),
        running=series(244.0),
        deferred=series(0.0),
        preemptions=3,
        kv_usage=series(0.41, spread=0.2),
        prefix_queries=820_000,
        prefix_hits=410,
        prefix_hit_ratio=0.0005,
        mode_steps={"FULL": 150, "PIECEWISE": 40, "NONE": 210},
        mode_shares={"FULL": 0.375, "PIECEWISE": 0.1, "NONE": 0.525},
        mode_time_shares={"FULL": 0.2, "PIECEWISE": 0.07, "NONE": 0.73},
        step_duration_ms=series(96.0),
        step_duration_ms_by_mode={
            "FULL": series(24.0, 150),
            "PIECEWISE": series(38.0, 40),
            "NONE": series(160.0, 210),
        },
        step_duration_ms_among_like={
            "FULL": series(24.0, 120),
            "PIECEWISE": EMPTY,
            "NONE": series(160.0, 180),
        },
        step_latency_ms=series(180.0),
        step_duration_sum_ms=38_400.0,
        e_token_per_ms=23.4,
    )


def end_to_end(kind: str, index: int, seconds: float, rps: float) -> EndToEnd:
    """Return client metrics at ``rps`` completions per second."""
    return EndToEnd(
        kind=kind,
        index=index,
        seconds=seconds,
        completed=int(rps * seconds),
        failed=0,
        admitted=int(rps * seconds),
        scheduled=int(rps * seconds),
        completed_rps=rps,
        admitted_rps=rps * 1.004,
        scheduled_rps=rps * 1.005,
        input_tokens_per_s=rps * 6144,
        output_tokens_per_s=rps * 64,
        total_tokens_per_s=rps * 6208,
        from_scheduled=LatencySummary(series(1290.0), series(42.0), series(4040.0)),
        from_admitted=LatencySummary(series(850.0), series(42.0), series(3600.0)),
        client_lag_ms=series(3.0),
    )


def layer1(run: RunIdentity, rps: float, failed: tuple[str, ...]) -> Layer1Summary:
    """Return three clean segments, two windows and their recoveries."""
    stream = "opprof/engine-0.jsonl"
    return Layer1Summary(
        schema=1,
        run=run,
        engine="vllm",
        engine_version="0.24.0",
        engine_config={"max_num_seqs": 1024},
        accounting=StreamAccounting(
            stream, 2000, 0, 1999, True, 2000, 2000, 0, True, None, None, None, 1.0, True, []
        ),
        clean_union=composition("clean_union", 0, 60, 240, 40.0),
        segments=[composition("clean", k, 60 + 80 * k, 80, 39.0 + k) for k in range(3)],
        profile=[composition("profile", k, 300 + 54 * k, 24, 55.0) for k in range(2)],
        recovery=[composition("recovery", k, 324 + 54 * k, 30, 40.0) for k in range(2)],
        warmup=[composition("warmup", 0, 0, 60, 30.0)],
        end_to_end=end_to_end("clean_union", 0, 240, rps),
        end_to_end_segments=[end_to_end("clean", k, 80, rps + k / 10) for k in range(3)],
        gates=gates(*failed),
        sanity=block("layer1"),
        provenance=provenance(),
    )


def family_times(shares: dict[str, float], kernel_ns: int) -> dict[str, FamilyTime]:
    """Return integer times that sum to ``kernel_ns`` exactly."""
    total = sum(shares.values())
    times = {name: int(kernel_ns * share / total) for name, share in shares.items()}
    largest = max(times, key=lambda name: times[name])
    times[largest] += kernel_ns - sum(times.values())
    return {name: FamilyTime(ns, ns / kernel_ns, max(1, ns // 9000)) for name, ns in times.items()}


def window_families(
    window: int, rank: int, version: str, shares: dict[str, float], unmatched: str
) -> WindowFamilies:
    """Return a window whose steps ran mostly without graphs."""
    kernel_ns = 1_240_000_000 + 7_000_000 * window + 1_000_000 * rank
    families = family_times(shares, kernel_ns)
    attention, full = families["attention"].ns, kernel_ns // 5
    prefill, decode = attention // 2, attention // 5
    busy = kernel_ns - 3_000_000
    return WindowFamilies(
        window=window,
        rank=rank,
        mapping_version=version,
        trace=f"traces/window{window}-rank{rank}.pt.trace.json.gz",
        profiler_steps=list(range(2, 10)),
        annotations=8,
        kernel_events=11_204,
        kernel_ns=kernel_ns,
        prologue_events=214,
        prologue_ns=61_000_000,
        classified_fraction=1 - families["other"].share,
        families=families,
        attention=AttentionSplit(prefill, decode, attention - prefill - decode),
        by_mode={
            "FULL": ModeTime(2, False, full, family_times(DECODE, full)),
            "NONE": ModeTime(6, True, kernel_ns - full, family_times(shares, kernel_ns - full)),
        },
        top_unmatched=[UnmatchedKernel(unmatched, families["other"].ns, 96, ["vllm::mystery"])],
        accepted=True,
        reasons=[],
        classifiable=True,
        join_method="order",
        join_margin=4.2,
        device=DeviceTime(
            9_100_000, 11_300, 31_000_000, 14_000, 2_100_000, 310, 90_000, 16, busy, 2
        ),
    )


def windows(shares: list[dict[str, float]], ranks: int, unmatched: str) -> list[Window]:
    """Return a window per entry of ``shares`` and rank, also attributed under ``v2``."""
    found = []
    for number, base in enumerate(shares):
        for rank in range(ranks):
            mine = dict(base)
            if "collective" in mine:
                mine["collective"] += 0.06 * rank
            moved = mine | {
                "moe_gemm": mine["moe_gemm"] + 0.075,
                "dense_gemm": mine["dense_gemm"] - 0.075,
            }
            pinned = window_families(number, rank, "v2", mine, unmatched)
            other = window_families(number, rank, "v1", moved, unmatched)
            step = ActiveStep(2, 1000, "NONE", 150_000_000 + rank, {"attention": 100})
            fields = msgspec.structs.asdict(pinned)
            found.append(Window(**fields, steps=[step], alternatives={"v1": other}))
    return found


def representativeness(passes: bool) -> Representativeness:
    """Return two judged windows."""
    smd, word = (0.11, "pass") if passes else (1.37, "fail")
    features = [
        SmdFeature("scheduled_tokens", 2400.0, 2250.0, 2900.0, 3000.0, 2990.0, smd, False, word),
        SmdFeature("prefill_fraction", 0.61, 0.6, 0.48, 0.48, 0.48, 0.02, False, "pass"),
        SmdFeature("full_share", 0.0, 0.0, 0.0, 0.0, 0.0, None, True, "pass"),
    ]
    reason = f"scheduled_tokens: SMD {smd}"
    by_feature = {"scheduled_tokens": 0.81, "prefill_fraction": 0.7}
    return Representativeness(
        windows=[WindowRepresentativeness(k, 2, 8, 400, features, word, reason) for k in range(2)],
        null_rate=NullRate(2000, 20260714, 8, 0.97, 0.998, by_feature),
    )


def waste(run: RunIdentity) -> Waste:
    """Return waste with values that are not available."""
    reasons = {
        "I_mix": "2 supported mixed steps, 30 are needed",
        "R128": "no complete cohort of 128",
        "CV_moe": "no layer scope in the trace",
    }
    ratios: dict[str, Any] = {
        "padding_fraction": 0.0312,
        "padded_tokens_per_useful_token": 0.0322,
        "graph_miss_rate": 0.525,
        "eligible_miss_rate": 0.02,
        "overflow_rate": 0.505,
        "bucket_slack": 0.028,
        "e_token_per_ms": 23.4,
        "cv_moe": None,
        "i_mix": None,
        "padded_tokens_hist": {"0": 90, "3": 41, "12": 59},
        "not_available": reasons,
    }
    counts = WasteCounts(
        400, 190, 210, 8, 202, 6000, 5813, 187, 190, 6200, 900_000, 38_400_000_000, 0, 51, 512
    )
    return Waste(
        schema=1,
        run=run,
        r32=0.21,
        r64=0.24,
        r128=None,
        padded_tokens_per_scheduled_token=0.001,
        by_mode={"FULL": WasteByMode(steps=150, **ratios)},
        counts=counts,
        cv_moe_by_rank={},
        gates=[],
        sanity=block("waste"),
        provenance=provenance(),
        **ratios,
    )


def steps() -> StepSeries:
    """Return 2,000 steps over some 300 s with a stall of 9 s."""
    import numpy as np

    index = np.arange(2000)
    duration = ((90 + 70 * np.sin(index / 11) ** 2 + 300 * (index % 97 == 0)) * 1e6).astype("int64")
    stall = np.where(index == 1900, 9 * NS, 0)
    return StepSeries(
        complete_mono_ns=np.cumsum(duration + stall) + 60 * NS,
        duration_ns=duration,
        prefill_tokens=np.where(np.sin(index / 11) ** 2 > 0.5, 6100, 0),
        decode_tokens=40 + index % 7,
        running=240 + index % 16,
        waiting=12 + (8 * np.sin(index / 40)).astype("int64"),
    )


def intervals() -> tuple[Interval, ...]:
    """Return the protocol's timeline: 60 s, three times 80 s, and two windows."""
    marks: list[tuple[Any, int, int, int]] = [("warmup", 0, 0, 60)]
    marks += [("clean", k, 60 + 80 * k, 140 + 80 * k) for k in range(3)]
    marks += [("profile", 0, 300, 324), ("recovery", 0, 324, 354)]
    marks += [("profile", 1, 354, 378), ("recovery", 1, 378, 408)]
    return tuple(Interval(kind, k, start * NS, end * NS) for kind, k, start, end in marks)


def view(
    run: RunIdentity,
    shares: list[dict[str, float]],
    *,
    rps: float = 4.0,
    ranks: int = 1,
    failed: tuple[str, ...] = (),
    red_flags: tuple[str, ...] = (),
    representative: bool = True,
    unmatched: str = "void mystery<float, 4>(Tensor<const float*>)",
) -> RunView:
    """Return one whole run."""
    found = windows(shares, ranks, unmatched)
    summary = layer1(run, rps, failed)
    joined = Gate("window_accepted", "pass", "eight annotations", {"annotations": 8}, "window0")
    kernels = Kernels(
        schema=1,
        run=run,
        mapping_version="v2",
        mapping_sha256="d" * 64,
        windows=found,
        alternatives={"v1": Alternative("v1", "f" * 64, [w.alternatives["v1"] for w in found])},
        breakdown_valid=representative,
        breakdown_reasons=[] if representative else ["window 0: scheduled_tokens: SMD 1.37"],
        representativeness=representativeness(representative),
        gates=[joined],
        sanity=block("kernels"),
        provenance=provenance(),
        mapping_notes=["nvjet kernels are moe_gemm under v1 and dense_gemm under v2"],
    )
    outcome: Any = "fail" if failed or red_flags else "not_evaluable"
    verdict = Sanity(
        1,
        run,
        outcome,
        list(red_flags),
        [*summary.gates, joined],
        block("sanity", *red_flags),
        provenance(),
    )
    return RunView(summary, kernels, waste(run), verdict, intervals(), steps())


def sample() -> ReportInput:
    """Return sound runs, one with windows that disagree, C01, and an invalid one on two GPUs."""
    red = "clean prefix-hit ratio 0.99 in a pattern without shared prefixes"
    p03 = [PREFILL, PREFILL | {"attention": 0.45}]
    tp2 = identity("P09", "C00-TP2", "moderate", drain_quarantined=True)
    runs = (
        view(identity("P01"), [DECODE, DECODE | {"attention": 0.2}], rps=31.0),
        view(identity("P03"), p03, representative=False),
        view(identity("P03", "C01"), [PREFILL, PREFILL], rps=3.4),
        view(tp2, [TWO_RANKS, TWO_RANKS], ranks=2, failed=("prefix_hits",), red_flags=(red,)),
        view(identity("P08"), [LONG_DECODE, LONG_DECODE], rps=9.0),
    )
    return ReportInput(runs, "Sample of the report", compared(runs))


def compared(runs: tuple[RunView, ...]) -> Comparison:
    """Return the runs' comparison under the packaged protocol."""
    protocol = load_protocol("phase3")
    assert protocol is not None
    entries = [RunInput(run.kernels, run.label) for run in runs if run.kernels is not None]
    return compare_runs(entries, comparison_rule(protocol.file), provenance())
