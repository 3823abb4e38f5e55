"""The comparison of the runs on the page, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.common import Provenance
from opprof.artifacts.comparison import Comparison
from opprof.errors import InputError
from opprof.protocol import Protocol
from opprof.report.inputs import RunView


def compare_views(
    runs: Sequence[RunView], protocol: Protocol | None
) -> tuple[Comparison | None, str]:
    """Compare the runs that have kernel families; a refusal becomes the page's reason.

    A report on runs that cannot be compared (two attempts at one cell, say) is still a report.
    """
    from opprof.compare import RunInput, compare_runs, comparison_rule

    entries = [
        RunInput(run.kernels, run.label, metrics_of(run))
        for run in runs
        if run.kernels is not None and run.kernels.windows
    ]
    if not entries:
        return None, "no run has a profile window"
    rule = None if protocol is None else comparison_rule(protocol.file)
    try:
        return compare_runs(entries, rule, _provenance(runs, protocol)), ""
    except InputError as error:
        return None, str(error)


def metrics_of(run: RunView) -> dict[str, float | None]:
    """Return the run-level metrics whose ratios to the baseline config are shown."""
    layer1 = run.layer1
    if layer1 is None:
        return {}
    union, client = layer1.clean_union, layer1.end_to_end
    return {
        "e_token_per_ms": None if union is None else union.e_token_per_ms,
        "completed_rps": None if client is None else client.completed_rps,
        "input_tokens_per_s": None if client is None else client.input_tokens_per_s,
        "output_tokens_per_s": None if client is None else client.output_tokens_per_s,
        "ttft_scheduled_p50_ms": None if client is None else client.from_scheduled.ttft_ms.p50,
        "tpot_p50_ms": None if client is None else client.from_admitted.tpot_ms.p50,
        "latency_scheduled_p95_ms": (
            None if client is None else client.from_scheduled.latency_ms.p95
        ),
    }


def _provenance(runs: Sequence[RunView], protocol: Protocol | None) -> Provenance:
    first = runs[0].artefacts[0].provenance
    inputs = {
        f"{run.identity.name}/{name}": digest
        for run in runs
        for _, origin in run.provenances()
        for name, digest in origin.inputs.items()
    }
    return Provenance(
        inputs=inputs,
        protocol_id=None if protocol is None else protocol.file.id,
        protocol_sha256=None if protocol is None else protocol.sha256,
        mapping_version=None,
        mapping_sha256=None,
        code_version=first.code_version,
        code_sha256=first.code_sha256,
    )
