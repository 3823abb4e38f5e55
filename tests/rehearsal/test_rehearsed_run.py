"""One run through the whole ordinary path: client session, engine, stream, traces, analysis."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from opprof.analysis.run import analyze_run
from opprof.artifacts.run import Result
from opprof.client.plan import DrainBudget, Load, RunPlan, Windows
from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.cost import load_cost
from opprof.engines.sim.effects import Effects
from opprof.protocol import Protocol, load_protocol
from opprof.rehearsal.run import RehearsedRun, profiler_config, rehearse_run
from opprof.rehearsal.source import plan_manifest

S = 1_000_000_000


def protocol() -> Protocol:
    found = load_protocol("phase3")
    assert found is not None
    return found


def rehearse(
    folder: Path,
    *,
    pattern: str = "P01",
    rate: float | None = 20.0,
    seed: int = 7,
    effects: Effects | None = None,
    drain_hang_s: float = 0.0,
    ranks: int = 1,
) -> Result:
    bound = protocol()
    manifest = plan_manifest(bound.file, pattern, workload_seed=bound.file.seeds.workload)
    plan = RunPlan(
        pattern=pattern,
        config="C00" if ranks == 1 else "C00-TP2",
        load_point="saturation" if rate is None else "moderate",
        role="primary",
        load=Load(256, rate, 1),
        warmup_ns=6 * S,
        segment_ns=4 * S,
        segments=3,
        windows=Windows(2, 11, 6 * S, 180 * S),
        drain=DrainBudget(120 * S, 120 * S, 1800 * S),
        time_scale=0.1,
    )
    config = SimConfig(
        model="m", tensor_parallel_size=ranks, profiler=profiler_config(bound, folder)
    )
    run = RehearsedRun(
        plan, manifest, config, bound, seed, effects or Effects(), drain_hang_s=drain_hang_s
    )
    return rehearse_run(run, load_cost(), folder)


def digest(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "engine-config.json"
    }


def test_the_ordinary_analysis_takes_it(tmp_path: Path) -> None:
    result = rehearse(tmp_path / "run")
    assert result.simulated and result.metrics["simulated"]
    analysis = analyze_run(tmp_path / "run", protocol())
    assert analysis.unusable == ()
    assert analysis.layer1.run.simulated
    windows = analysis.kernels.windows
    assert len(windows) == 2 and all(window.accepted for window in windows)
    assert all(window.classified_fraction > 0.95 for window in windows)
    gates = {(gate.name, gate.scope): gate for gate in analysis.sanity.gates}
    assert gates["simulated", "run"].outcome == "fail"
    assert gates["engine_config_effective", "run"].outcome == "pass"
    failed = {name for (name, _), gate in gates.items() if gate.outcome == "fail"}
    # The run is short on purpose; everything about its integrity is in order.
    assert failed <= {
        "simulated",
        "time_scale",
        "warmup_recorded",
        "clean_duration",
        "clean_segments",
        "representativeness",
        "recovery",
        "load_point",
    }, failed


def test_equal_seeds_give_equal_runs(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        rehearse(tmp_path / name, seed=seed)
    first, same, other = (digest(tmp_path / name) for name in "abc")
    assert first == same
    assert first["opprof/engine-0.jsonl"] != other["opprof/engine-0.jsonl"]


def test_saturation_keeps_the_cap_and_shared_prefixes_hit(tmp_path: Path) -> None:
    result = rehearse(tmp_path / "run", pattern="P08", rate=None)
    assert result.completed_rps is not None
    layer1 = analyze_run(tmp_path / "run", protocol()).layer1
    assert layer1.clean_union is not None
    assert result.metrics["simulated"]


@pytest.mark.parametrize(
    ("effects", "reason"),
    [
        (Effects(oom_step=60), "timeline"),
        (Effects(dropped_steps=frozenset({100})), None),
    ],
)
def test_planted_faults_reach_the_client(
    tmp_path: Path, effects: Effects, reason: str | None
) -> None:
    result = rehearse(tmp_path / "run", effects=effects)
    if reason is not None:
        assert not result.accepted and any(reason in text for text in result.reasons)
    analysis = analyze_run(tmp_path / "run", protocol())
    failed = {gate.name for gate in analysis.sanity.gates if gate.outcome == "fail"}
    assert failed & {"layer1_accounting", "accounting", "stream_accounting"}, failed


def test_a_hang_in_the_drain_is_quarantined(tmp_path: Path) -> None:
    result = rehearse(tmp_path / "run", drain_hang_s=130.0)
    assert result.drain_quarantined
