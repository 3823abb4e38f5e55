"""Several analysed runs side by side: shares, ranking, and the gap part of the inversion rule."""

from opprof.compare.build import compare_runs
from opprof.compare.ranking import kendall_tau_b, tie_places
from opprof.compare.ratios import geometric_mean
from opprof.compare.rule import comparison_rule
from opprof.compare.values import RunInput

__all__ = [
    "RunInput",
    "compare_runs",
    "comparison_rule",
    "geometric_mean",
    "kendall_tau_b",
    "tie_places",
]
