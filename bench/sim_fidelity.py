"""The embedded engine beside real runs: fitted, held out, and independent ones.

    python bench/sim_fidelity.py examples/h200-runs examples/h200-plugin-runs

Each real run is rehearsed with its own request lengths, in its own order, at its own load, with the
same seconds before, inside and after the clean interval; both run directories then go through the
same analysis. Prints real, simulated and relative error of throughput, useful-token efficiency,
mode shares, step times, and family shares of the profiled steps of each mode (which modes the
windows meet is chance; modes of fewer than eight profiled steps are left out). ``--seeds N``
repeats with other noise, ``--cost FILE`` takes another cost file than the packaged one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from cost_model.samples import find_runs

from opprof.analysis.run import analyze_run
from opprof.artifacts.run import RequestRecord, Timeline
from opprof.client.plan import DrainBudget, Load, RunPlan, Windows
from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.cost import CostFile, load_cost
from opprof.engines.sim.effects import Effects
from opprof.protocol import Protocol, load_protocol
from opprof.rehearsal.run import RehearsedRun, profiler_config, rehearse_run
from opprof.rehearsal.source import PlannedManifest, PlannedSource
from opprof.telemetry import find_stream, read_stream
from opprof.workload.summary import summarize

S = 1_000_000_000
STALL_NS = S
STEPS_MIN = 8
"""One window's."""
FAMILIES = ("moe_gemm", "attention", "dense_gemm", "norm_elementwise", "moe_router", "collective")


def manifest_of(timeline: Timeline, records: list[RequestRecord]) -> PlannedManifest:
    """The run's own lengths, then the same again for what the simulation may send beyond them."""
    records = sorted(records, key=lambda record: record.scheduled_mono_ns)
    inputs = np.array([r.prompt_tokens for r in records if r.prompt_tokens] * 4, dtype=np.int64)
    outputs = np.array([r.requested_output_tokens for r in records if r.prompt_tokens] * 4)
    pools, blocks = None, 0
    if timeline.pattern == "P08":
        # The manifest's assignment is not in the run; eight balanced prefixes of 1,024 tokens are.
        pools, blocks = np.arange(len(inputs)) % 8, 64
    source = PlannedSource(timeline.pattern, inputs, outputs.astype(np.int64), pools, blocks)
    summary = summarize(
        sha256="0" * 64,
        pattern=timeline.pattern,
        arrival="steady",
        prefix="high" if pools is not None else "none",
        input_tokens=inputs,
        output_tokens=outputs,
        generator={"simulated": True},
        tokenizer_sha256=None,
        private=False,
    )
    return PlannedManifest(source, summary)


def simulate(root: Path, out: Path, cost: CostFile, protocol: Protocol, seed: int) -> None:
    """Rehearse a real run into ``out``."""
    data = (root / "client" / "timeline.json").read_bytes()
    timeline = msgspec.json.decode(data, type=Timeline)
    lines = (root / "client" / "requests.jsonl").read_bytes().splitlines()
    records = [msgspec.json.decode(line, type=RequestRecord) for line in lines]
    start_ns = min(record.scheduled_mono_ns for record in records)
    clean = [i for i in timeline.intervals if i.kind == "clean"]
    profiles = [i for i in timeline.intervals if i.kind == "profile"]
    first = profiles[0]
    ranks = read_stream(find_stream(root)).header.config.tensor_parallel_size
    plan = RunPlan(
        pattern=timeline.pattern,
        config=timeline.config,
        load_point=timeline.load_point,
        role="primary",
        load=Load(timeline.max_concurrency, timeline.rate_rps, 1),
        warmup_ns=clean[0].start_mono_ns - start_ns,
        segment_ns=(clean[-1].end_mono_ns - clean[0].start_mono_ns) // len(clean),
        segments=len(clean),
        windows=Windows(len(profiles), 11, profiles[1].start_mono_ns - first.end_mono_ns, 180 * S),
        drain=DrainBudget(120 * S, 120 * S, 1800 * S),
        time_scale=1.0,
    )
    assert first.start_call_mono_ns is not None and first.stop_call_mono_ns is not None
    window_s = (first.stop_call_mono_ns[0] - first.start_call_mono_ns[1]) / S
    config = SimConfig(
        model="m", tensor_parallel_size=ranks, profiler=profiler_config(protocol, out)
    )
    manifest = manifest_of(timeline, records)
    run = RehearsedRun(
        plan,
        manifest,
        config,
        protocol,
        seed,
        Effects(),
        # This run's prompts were in the prefix cache (contract, section 8).
        stale_cache=timeline.config == "C00-TP2",
        fixed_window_s=window_s,
    )
    rehearse_run(run, cost, out)


def stalled(root: Path, timeline: Timeline) -> float:
    """Return the share of clean time in which a step held a working engine for over a second.

    A real server does so, mostly in its first half minute, for a reason that was not found; a
    rehearsal's never does.
    """
    columns, lost = read_stream(find_stream(root)).columns, 0
    clean = [i for i in timeline.intervals if i.kind == "clean"]
    low, high = clean[0].start_mono_ns, clean[-1].end_mono_ns
    before_ns = 0
    for submit_ns, complete_ns in zip(
        columns.submit_mono_ns.tolist(), columns.complete_mono_ns.tolist(), strict=True
    ):
        start_ns = max(submit_ns, before_ns)
        if complete_ns - start_ns > STALL_NS:
            lost += max(0, min(high, complete_ns) - max(low, start_ns))
        before_ns = complete_ns
    return lost / (high - low)


def figures(root: Path, protocol: Protocol) -> dict[str, float]:
    """The figures that are compared."""
    analysis = analyze_run(root, protocol)
    data = (root / "client" / "timeline.json").read_bytes()
    lost = stalled(root, msgspec.json.decode(data, type=Timeline))
    union, end = analysis.layer1.clean_union, analysis.layer1.end_to_end
    assert union is not None and end is not None
    e_token = analysis.waste.e_token_per_ms or 0.0
    found = {
        "stalled clean time": lost,
        "requests/s": end.completed_rps or 0.0,
        "requests/s unstalled": (end.completed_rps or 0.0) / (1.0 - lost),
        "E_token /ms": e_token,
        "E_token /ms unstalled": e_token / (1.0 - lost),
        "TTFT p50 ms": end.from_scheduled.ttft_ms.p50 or 0.0,
        "TPOT p50 ms": end.from_scheduled.tpot_ms.p50 or 0.0,
        "step p50 ms": union.step_duration_ms.p50 or 0.0,
        "decode batch": union.decode_batch.mean or 0.0,
    }
    found |= {f"mode {name}": share for name, share in union.mode_shares.items()}
    steps = [s for w in analysis.kernels.windows if w.accepted for s in w.steps]
    for mode in ("FULL", "PIECEWISE", "NONE"):
        chosen = [step.families for step in steps if step.mode == mode]
        total = sum(sum(families.values()) for families in chosen)
        for family in FAMILIES if len(chosen) >= STEPS_MIN else ():
            found[f"share {mode} {family}"] = sum(f.get(family, 0) for f in chosen) / total
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="Run directories, or folders of them.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cost", type=Path)
    arguments = parser.parse_args()
    protocol, cost = load_protocol(), load_cost()
    assert protocol is not None
    if arguments.cost is not None:
        cost = msgspec.json.decode(arguments.cost.read_bytes(), type=CostFile)
    for root in find_runs(arguments.runs):
        real = figures(root, protocol)
        made = []
        for seed in range(1, arguments.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                simulate(root, Path(folder) / "run", cost, protocol, seed)
                made.append(figures(Path(folder) / "run", protocol))
        name = f"{root.resolve().parent.name}/{root.name}"
        mark = "fitted" if name in cost.fitted_runs else "independent"
        print(f"{name} ({'held out' if name == cost.held_out_run else mark})")
        for name, value in real.items():
            values = [one[name] for one in made if name in one]
            if not values:
                continue
            mean = statistics.fmean(values)
            if not value and not mean:
                continue
            is_share = name.startswith(("share", "mode", "stalled"))
            error = (
                f"{(mean - value) * 100:+.1f} points"
                if is_share
                else (f"{mean / value - 1:+.1%}" if value else "-")
            )
            spread = f"{min(values):.4g} .. {max(values):.4g}"
            print(f"  {name:24s} real {value:10.4g}  simulated {mean:10.4g} ({spread})  {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
