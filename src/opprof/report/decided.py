"""The report of a fresh decision, made from the analyses that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opprof.analysis.load import LoadedRun, compare_found
from opprof.artifacts.decision import Decision
from opprof.decision.campaign import both_verdicts
from opprof.protocol import Protocol
from opprof.report.inputs import ReportInput, RunView
from opprof.report.load import decision_trouble
from opprof.report.render import write_report

NAME = "report.html"


def write_decided(
    decision: Decision, runs: Sequence[LoadedRun], protocol: Protocol, folder: Path
) -> Path:
    """Write ``report.html`` beside the decision; step timelines are left to ``opprof report``.

    Raises:
        EnvironmentFailure: the extra ``report`` is missing, or the file cannot be written.
    """
    reason = "its steps are drawn by `opprof report` over the run's folder"
    views = tuple(
        RunView(
            a.layer1,
            a.kernels,
            a.waste,
            a.sanity,
            verdicts=both_verdicts(item.source),
            steps_reason=reason,
        )
        for item in runs
        for a in (item.analysis,)
    )
    with_windows = [item for item in runs if item.analysis.kernels.windows]
    page = ReportInput(
        views,
        f"OpProf decision under {protocol.file.id}",
        compare_found(with_windows, protocol) if with_windows else None,
        "" if with_windows else "no run has a profile window",
        decision,
        decision_trouble(decision, views),
    )
    write_report(page, folder / NAME)
    return folder / NAME
