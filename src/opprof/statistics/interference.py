"""Additive prediction of step times and the ratios built on it: ``I_mix`` and step-time residual.

Source: protocol, "Mixed-batch interference"::

    t_add    = F_p(P, N_p) + F_d(D, N_d) - alpha           mixed steps
    t_add    = F_p(P, N_p)  or  F_d(D, N_d)                pure steps
    I_mix    = sum(t - t_add) / sum(t_add)                 supported mixed steps
    residual = sum(t - t_add) / sum(t_add)                 all supported steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from opprof.statistics.splines import SplineRule, Surface, fit_surface
from opprof.statistics.support import convex_hull

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]
    Int64 = NDArray[np.int64]
    Bool = NDArray[np.bool_]

Part = Literal["prefill", "decode"]
Requests = Literal["component", "step"]
"""N of each surface: the component's own requests, or all requests of the step."""


@dataclass(frozen=True)
class StepTimes:
    """Clean steps of one run: work and duration; every array has one entry per step."""

    prefill_tokens: Int64
    prefill_requests: Int64
    decode_tokens: Int64
    decode_requests: Int64
    duration_ms: Float64

    @property
    def prefill_only(self) -> Bool:
        """Steps that only prefill."""
        found: Bool = (self.prefill_tokens > 0) & (self.decode_tokens == 0)
        return found

    @property
    def decode_only(self) -> Bool:
        """Steps that only decode."""
        found: Bool = (self.prefill_tokens == 0) & (self.decode_tokens > 0)
        return found

    @property
    def mixed(self) -> Bool:
        """Steps that do both."""
        return (self.prefill_tokens > 0) & (self.decode_tokens > 0)

    @property
    def empty(self) -> Bool:
        """Zero-token scheduler steps."""
        found: Bool = (self.prefill_tokens == 0) & (self.decode_tokens == 0)
        return found

    def requests(self, part: Part, rule: Requests) -> Int64:
        """N of one surface under the rule."""
        if rule == "step":
            return self.prefill_requests + self.decode_requests
        return self.prefill_requests if part == "prefill" else self.decode_requests


@dataclass(frozen=True)
class Fits:
    """What the other patterns' clean steps say of the reported one."""

    prefill: Surface | None
    decode: Surface | None
    alpha_ms: float | None
    """Median duration of zero-token steps; None without any."""
    prefill_steps: int
    decode_steps: int
    zero_token_steps: int


def fit_others(
    fitted: Sequence[StepTimes],
    zero_token: Sequence[StepTimes],
    rule: SplineRule,
    *,
    requests: Requests,
    pure_steps_min: int,
) -> Fits:
    """Fit both surfaces on ``fitted`` (every pattern but the reported one) and alpha.

    A surface with fewer than ``pure_steps_min`` steps is not fitted.
    """
    import numpy as np

    prefill = _gather(fitted, "prefill", requests)
    decode = _gather(fitted, "decode", requests)
    empty = [steps.duration_ms[steps.empty] for steps in zero_token]
    waits = np.concatenate(empty) if empty else np.zeros(0)
    return Fits(
        prefill=fit_surface(*prefill, rule) if _enough(prefill, pure_steps_min) else None,
        decode=fit_surface(*decode, rule) if _enough(decode, pure_steps_min) else None,
        alpha_ms=float(np.median(waits)) if len(waits) else None,
        prefill_steps=len(prefill[2]),
        decode_steps=len(decode[2]),
        zero_token_steps=len(waits),
    )


def _enough(part: tuple[Int64, Int64, Float64], least: int) -> bool:
    return len(part[2]) >= max(1, least)


def _gather(
    fitted: Sequence[StepTimes], part: Part, requests: Requests
) -> tuple[Int64, Int64, Float64]:
    import numpy as np

    tokens, counts, durations = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for steps in fitted:
        chosen = steps.prefill_only if part == "prefill" else steps.decode_only
        work = steps.prefill_tokens if part == "prefill" else steps.decode_tokens
        tokens.append(work[chosen])
        counts.append(steps.requests(part, requests)[chosen])
        durations.append(steps.duration_ms[chosen])
    return np.concatenate(tokens), np.concatenate(counts), np.concatenate(durations)


@dataclass(frozen=True)
class Prediction:
    """Additive step times of one run; NaN outside the support or where a part is missing."""

    t_add_ms: Float64
    mixed_supported: int
    mixed_unsupported: int
    pure_supported: int
    pure_unsupported: int
    reason: str | None
    """Why mixed steps have no prediction at all."""


def predict_steps(steps: StepTimes, fits: Fits, *, requests: Requests) -> Prediction:
    """Predict every step that both of its parts' supports hold."""
    import numpy as np

    prefill = _part(steps, fits.prefill, "prefill", requests)
    decode = _part(steps, fits.decode, "decode", requests)
    t_add = np.full(len(steps.duration_ms), np.nan)
    t_add[steps.prefill_only] = prefill[steps.prefill_only]
    t_add[steps.decode_only] = decode[steps.decode_only]
    mixed = steps.mixed
    if fits.alpha_ms is not None:
        t_add[mixed] = prefill[mixed] + decode[mixed] - fits.alpha_ms
    known = ~np.isnan(t_add)
    pure = steps.prefill_only | steps.decode_only
    return Prediction(
        t_add_ms=t_add,
        mixed_supported=int((known & mixed).sum()),
        mixed_unsupported=int((~known & mixed).sum()),
        pure_supported=int((known & pure).sum()),
        pure_unsupported=int((~known & pure).sum()),
        reason=_missing(fits),
    )


def _part(
    steps: StepTimes,
    surface: Surface | None,
    part: Part,
    requests: Requests,
) -> Float64:
    import numpy as np

    tokens = steps.prefill_tokens if part == "prefill" else steps.decode_tokens
    counts = steps.requests(part, requests)
    result = np.full(len(tokens), np.nan)
    if surface is None:
        return result
    inside = (tokens > 0) & surface.supports(tokens, counts)
    result[inside] = surface.predict(tokens[inside], counts[inside])
    return result


def _missing(fits: Fits) -> str | None:
    if fits.alpha_ms is None:
        return "no zero-token step, so alpha is not available"
    if fits.prefill is None:
        return f"only {fits.prefill_steps} pure-prefill steps of other patterns"
    if fits.decode is None:
        return f"only {fits.decode_steps} pure-decode steps of other patterns"
    return None


def supported_mixed(
    steps: StepTimes, fitted: Sequence[StepTimes], *, requests: Requests, pure_steps_min: int
) -> int:
    """Count the mixed steps that both supports would hold under a reading of N, without a fit."""
    mixed = steps.mixed
    inside = mixed.copy()
    sides: tuple[tuple[Part, Int64], ...] = (
        ("prefill", steps.prefill_tokens),
        ("decode", steps.decode_tokens),
    )
    for part, work in sides:
        gathered = _gather(fitted, part, requests)
        if not _enough(gathered, pure_steps_min):
            return 0
        inside &= convex_hull(*gathered[:2]).holds(work, steps.requests(part, requests))
    return int(inside.sum())
