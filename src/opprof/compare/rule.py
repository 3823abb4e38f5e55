"""The protocol's numbers that a comparison needs, taken out of the protocol file."""

from __future__ import annotations

from opprof.artifacts.comparison import ComparisonRule
from opprof.protocol.model import ProtocolFile


def comparison_rule(file: ProtocolFile) -> ComparisonRule:
    """Return the protocol's ranking and inversion rule."""
    return ComparisonRule(
        mapping_pinned=file.mapping.pinned,
        tie_share=file.ranking.tie_share,
        inversion_gap_share=file.ranking.inversion_gap_share,
        classifiable_min=file.gates.classifiable_min,
        families=list(file.ranking.families),
        windows=file.timeline.profile_windows,
        baseline_config=file.cells.baseline_config,
        primary_config=file.load.primary_config,
        primary_load_point=file.load.primary_load_point,
    )
