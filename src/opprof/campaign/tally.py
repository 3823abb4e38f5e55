"""Counts over a campaign's runs, for the stops that speak of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opprof.artifacts.campaign import Attempt, RunRecord
from opprof.campaign.checks import CLEAN_FAILURE
from opprof.campaign.facts import MatrixFacts
from opprof.campaign.reruns import unrepresentative
from opprof.host.ports import Host

_MEASURED = ("primary", "confirmation")


def matrix_facts(
    records: Sequence[RunRecord],
    *,
    finished: bool,
    host: Host,
    folder: Path,
    private: Path | None,
    gpu_seconds: float,
) -> MatrixFacts:
    """Return where the campaign stands, with what its folders take on disk."""
    counted = [record for record in records if record.role in _MEASURED]
    measured = [record for record in counted if record.accepted is not None]
    return MatrixFacts(
        planned=len(counted),
        measured=len(measured),
        quarantined=sum(record.drain_quarantined is True for record in measured),
        clean_failed=sum(
            any(_clean_window_failed(attempt) for attempt in record.attempts) for record in counted
        ),
        finished=finished,
        public_bytes=host.tree_bytes(folder),
        private_bytes=None if private is None else host.tree_bytes(private),
        free_bytes=host.free_bytes(folder),
        gpu_seconds=gpu_seconds,
    )


def unrepresentative_before(record: RunRecord) -> int:
    """Return how many earlier attempts of the run were not representative in their windows."""
    return sum(map(unrepresentative, record.attempts))


def _clean_window_failed(attempt: Attempt) -> bool:
    """Machinery that broke has its exact rerun; the share is about windows that were measured."""
    gate = attempt.checks.get("client")
    failed = gate is not None and bool(gate.numbers.get(CLEAN_FAILURE))
    return failed and attempt.fault != "infrastructure"
