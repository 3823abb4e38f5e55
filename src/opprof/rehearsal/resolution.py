"""How small an effect each test of a design can see, given the noise of the rehearsed runs.

H1a: criteria 1 and 2 ask every window of both patterns for the gap. With ``s`` the standard
deviation of a window's lead, all ``n`` windows pass with probability ``POWER`` when the true gap is
``threshold + s * z(POWER^(1/n))``; the permutation test with Holm's correction must be able to
reach alpha besides. H1b: a difference whose interval has half width ``h`` at 95 % is seen with
probability ``POWER`` from ``h * (z(0.975) + z(POWER)) / z(0.975)`` on, and from the threshold on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from opprof.artifacts.decision import Contrast, Decision
from opprof.artifacts.rehearsal import ResolutionRow
from opprof.decision.facts import RunFacts
from opprof.decision.stepwise import window_steps
from opprof.protocol import Protocol
from opprof.statistics.distributions import normal_quantile

if TYPE_CHECKING:
    from opprof.statistics.permutation import WindowSteps

POWER = 0.8
_TOP = 3
"""Families that a gap is resolved for: the greatest of both patterns."""


def resolutions(
    decision: Decision, facts: Sequence[RunFacts], protocol: Protocol
) -> list[ResolutionRow]:
    """Return one row a test."""
    rows = list(_gaps(facts, protocol))
    for contrast in decision.h1b.evidence.contrasts:
        rows += _contrast(contrast)
    return rows


def _gaps(facts: Sequence[RunFacts], protocol: Protocol) -> Iterator[ResolutionRow]:
    file = protocol.file
    load = file.load
    primary = {
        item.run.pattern: item
        for item in facts
        if (item.run.config, item.run.load_point, item.run.role)
        == (load.primary_config, load.primary_load_point, "primary")
    }
    patterns = sorted(primary)
    families = file.ranking.families
    tests = math.comb(len(file.patterns), 2) * math.comb(len(families), 2)
    least_p = tests / (file.statistics.permutations + 1)
    for p, q in combinations(patterns, 2):
        sides = [
            window_steps(primary[name].kernels, file.mapping.pinned, families) for name in (p, q)
        ]
        test, threshold = f"gap {p}/{q}", file.ranking.inversion_gap_share
        missing = next((side for side in sides if isinstance(side, str)), None)
        if missing is not None:
            yield ResolutionRow(test, "share", threshold, None, missing)
        elif least_p > file.statistics.alpha:
            reason = (
                f"{tests} corrected tests with {file.statistics.permutations} permutations reach "
                f"p = {least_p:.3g} at best: alpha {file.statistics.alpha:g} is out of reach"
            )
            yield ResolutionRow(test, "share", threshold, None, reason)
        else:
            windows = [side for side in sides if not isinstance(side, str)]
            spread = max(map(_lead_sd, windows))
            count = sum(map(len, windows))
            margin = spread * normal_quantile(POWER ** (1 / count))
            reason = f"a window's lead varies by {spread:.4f} (standard deviation)"
            yield ResolutionRow(test, "share", threshold, threshold + margin, reason)


def _lead_sd(windows: Sequence[WindowSteps]) -> float:
    """Greatest standard deviation of a window's lead among the leading families.

    Within a window steps tell the noise of a mean over steps; between windows the leads themselves.
    """
    import numpy as np

    shares = np.array([w.family_ns.sum(axis=0) / w.total_ns.sum() for w in windows])
    top = np.argsort(shares.mean(axis=0))[::-1][:_TOP].tolist()
    greatest = 0.0
    for a, b in combinations(top, 2):
        leads = shares[:, a] - shares[:, b]
        between = float(leads.std(ddof=1)) if len(leads) > 1 else 0.0
        within = [
            ((w.family_ns[:, a] - w.family_ns[:, b]) / w.total_ns).std(ddof=1)
            / math.sqrt(len(w.total_ns))
            for w in windows
        ]
        greatest = max(greatest, between, float(np.mean(within)))
    return greatest


def _contrast(contrast: Contrast) -> Iterator[ResolutionRow]:
    name = f"{contrast.irregular} vs {contrast.control}"
    quantile = normal_quantile(0.975)
    for metric in contrast.metrics:
        test, threshold = f"{metric.metric} {name}", metric.threshold or 0.0
        if metric.deterministic:
            reason = "from the manifests alone: exact"
            yield ResolutionRow(test, "fraction", threshold, threshold, reason)
        elif metric.low is None or metric.high is None:
            reason = metric.reason or (contrast.reasons[0] if contrast.reasons else "no interval")
            yield ResolutionRow(test, "fraction", threshold, None, reason)
        else:
            half = (metric.high - metric.low) / 2
            seen = half * (quantile + normal_quantile(POWER)) / quantile
            limit = "the threshold" if seen <= threshold else "the interval's width"
            yield ResolutionRow(
                test, "fraction", threshold, max(seen, threshold), f"limited by {limit}"
            )
