"""Fit the embedded engine's cost model to real runs and write its data file.

    python scripts/fit_cost_model.py examples/h200-runs \\
        examples/h200-plugin-runs/P01-C00-TP2-saturation --out h200.json

Arguments are run directories or folders of them. The held-out run (``--held-out``) enters no
coefficient; its errors stand in ``residuals`` beside those of the fitted runs. With ``--cross``
each run is held out in turn and only the errors are printed.

Device parts are fitted to the operator families of the profiled steps (relative least squares,
coefficients not negative), the host's times and the gaps between kernels to the unprofiled
Layer-1 steps, where submission and completion tell them apart, the API server's by replay
(docs/simulation.md).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
from cost_model.device import bare, fit_parts
from cost_model.frontend import WIRE_MS, fit_frontend
from cost_model.host import fit_host, fit_noise, fit_profiler
from cost_model.samples import Run, Sample, find_runs, read_run

from opprof.engines.sim.cost import CostFile, CostModel, FrontendTimes, families_of, load_cost
from opprof.mapping import FAMILIES
from opprof.protocol import load_protocol


def residuals(samples: list[Sample], file: CostFile) -> dict[str, dict[str, float]]:
    """Return run to family to (summed model / summed measurement - 1) over the profiled steps."""
    result: dict[str, dict[str, float]] = {}
    for name in sorted({s.run for s in samples}):
        chosen = [s for s in samples if s.run == name]
        model = CostModel(file, chosen[0].ranks)
        made = [families_of(model.part_ms(s.shape), s.shape.mode) for s in chosen]
        result[name] = {}
        for family in FAMILIES:
            seen = sum(s.family_ms.get(family, 0.0) for s in chosen)
            if seen > 0:
                result[name][family] = round(sum(m[family] for m in made) / seen - 1, 4)
        total = sum(sum(s.family_ms.values()) for s in chosen)
        result[name]["kernel_time"] = round(sum(sum(m.values()) for m in made) / total - 1, 4)
    return result


def fit(runs: list[Run], held_out: str, *, frontend: FrontendTimes | None = None) -> CostFile:
    """Fit everything to the runs but ``held_out``; ``frontend`` spares its replay."""
    used = [run for run in runs if run.name != held_out]
    samples = [sample for run in used for sample in run.samples]
    parts = fit_parts(samples)
    file = msgspec.structs.replace(
        bare(parts),
        fitted_runs=[run.name for run in used],
        held_out_run=held_out,
        host=fit_host(used, parts),
        frontend=frontend or fit_frontend(used),
        profiler=fit_profiler(used),
        noise=fit_noise(samples, parts),
        assumed=[
            "host.launch_ms FULL and first_kernel_ms: 1.5 ms, hidden behind the step before",
            "profiler.start_ms, host_factor, stop_ms: typical of the runs' windows",
            f"frontend.wire_ms: {WIRE_MS} ms, what lone answers leave",
            "noise.drift_s: two windows a run cannot tell it",
        ],
    )
    everything = [sample for run in runs for sample in run.samples]
    return msgspec.structs.replace(file, residuals=residuals(everything, file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--held-out", default="h200-runs/P03-C00-saturation")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cross", action="store_true")
    arguments = parser.parse_args()
    protocol = load_protocol()
    assert protocol is not None
    runs = [read_run(root, protocol) for root in find_runs(arguments.runs)]
    names = [run.name for run in runs] if arguments.cross else [arguments.held_out]
    for name in names:
        # The API server's times enter no residual.
        spared = load_cost().frontend if arguments.cross else None
        file = fit(runs, name, frontend=spared)
        print(f"held out {name}:")
        for run, errors in file.residuals.items():
            mark = "*" if run == name else " "
            print(f" {mark}{run:36s}", "  ".join(f"{k} {v:+.1%}" for k, v in errors.items()))
        if arguments.out is not None and not arguments.cross:
            text = msgspec.json.format(msgspec.json.encode(_rounded(file)), indent=1)
            arguments.out.write_bytes(text + b"\n")
    return 0


def _rounded(value: Any) -> Any:
    """Six significant digits: what the data can bear, and stable between machines."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return _rounded(msgspec.to_builtins(value))
    return value


if __name__ == "__main__":
    sys.exit(main())
