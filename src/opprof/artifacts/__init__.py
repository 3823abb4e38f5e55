"""Every file OpProf reads or writes, as frozen msgspec Structs."""

from __future__ import annotations

from typing import Any


def catalogue() -> dict[str, Any]:
    """Return artefact name to its type; one JSON Schema each stands under ``schemas/``."""
    from opprof.artifacts import (
        adjudication,
        campaign,
        client,
        comparison,
        composition,
        decision,
        engine,
        environment,
        kernels,
        layer1,
        manifest,
        pack,
        plan,
        provenance,
        rehearsal,
        run,
        sanity,
        scan,
        verification,
        waste,
    )

    return {
        "timeline": run.Timeline,
        "request-record": run.RequestRecord,
        "result": run.Result,
        "segment-result": client.SegmentResult,
        "manifest-line": manifest.ManifestLine,
        "manifest-summary": run.ManifestSummary,
        "layer1-line": layer1.Line,
        "layer1-sidecar": layer1.Sidecar,
        "engine-config": engine.EngineReport,
        "profiler-event": engine.ProfilerEvent,
        "layer1": composition.Layer1Summary,
        "kernels": kernels.Kernels,
        "waste": waste.Waste,
        "sanity": sanity.Sanity,
        "comparison": comparison.Comparison,
        "decision": decision.Decision,
        "rehearsal": rehearsal.Rehearsal,
        "environment": environment.Environment,
        "snapshot": environment.Snapshot,
        "topology": environment.Topology,
        "adjudication": adjudication.Adjudication,
        "campaign": campaign.Campaign,
        "run-record": campaign.RunRecord,
        "charge": campaign.Charge,
        "controller-record": campaign.ControllerRecord,
        "stop": campaign.Stop,
        "campaign-plan": plan.CampaignPlan,
        "colocation-gate": plan.ColocationGate,
        "campaign-provenance": provenance.CampaignProvenance,
        "folder-provenance": provenance.FolderProvenance,
        "scan-report": scan.ScanReport,
        "verify-report": verification.VerifyReport,
        "pack": pack.Pack,
    }
