"""Do a profiler window's steps look like the clean segment beside it, and how often would any?

The gate compares six features of the window's steps with the last clean segment before it by the
standardised mean difference. The null rate asks the gate about windows that are clean by
construction: eight consecutive steps drawn at random from the same segment. Where it fails nearly
all of them, the verdict says little about the profiler.

Source: protocol, "Layer 2: sampled Kineto windows"; protocol file, ``[representativeness]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opprof.artifacts.common import Outcome
from opprof.artifacts.kernels import NullRate, SmdFeature, WindowRepresentativeness
from opprof.protocol.model import Feature, RepresentativenessRule
from opprof.telemetry.columns import MODE_NAMES, StepColumns

if TYPE_CHECKING:
    from opprof.telemetry.columns import Bool, Float64, Int64

_STEPS_MIN = 2
"""A variance needs two steps."""


def usable_rows(columns: StepColumns, rows: Int64) -> Int64:
    """Rows that the gate may look at: model executed, graph mode valid, at least one token."""
    keep = columns.counted[rows] & (columns.scheduled_tokens[rows] > 0)
    found: Int64 = rows[keep]
    return found


def feature_values(columns: StepColumns, rows: Int64, features: Sequence[Feature]) -> Float64:
    """Return the features of each step: float64[rows, features].

    ``scheduled_tokens`` and ``decode_batch`` (decode requests) per step, ``prefill_fraction`` =
    prefill tokens / scheduled tokens, and ``share_FULL`` … as 0 or 1 per step, so that their mean
    is the share.
    """
    import numpy as np

    tokens = columns.scheduled_tokens[rows].astype(np.float64)
    values = np.empty((len(rows), len(features)), np.float64)
    for position, feature in enumerate(features):
        if feature == "scheduled_tokens":
            values[:, position] = tokens
        elif feature == "prefill_fraction":
            values[:, position] = columns.prefill_tokens[rows] / tokens
        elif feature == "decode_batch":
            values[:, position] = columns.decode_requests[rows]
        else:
            code = MODE_NAMES.index(feature.removeprefix("share_"))
            values[:, position] = columns.mode[rows] == code
    return values


def judge_window(
    columns: StepColumns,
    window_rows: Int64,
    clean_rows: Int64 | None,
    rule: RepresentativenessRule,
    *,
    window: int,
    clean_segment: int | None,
) -> WindowRepresentativeness:
    """Compare one window's joined steps with its adjacent clean segment.

    ``window_rows``: rows of the window's active steps; ``clean_rows``: member rows of the segment,
    null when no clean segment ends before the window.
    """
    import numpy as np

    profile = usable_rows(columns, window_rows)
    clean = usable_rows(columns, np.zeros(0, np.int64) if clean_rows is None else clean_rows)
    reason = _why_not(clean_rows is not None, len(profile), len(clean))
    features: list[SmdFeature] = []
    outcome: Outcome = "not_evaluable"
    if reason is None:
        features = compare_features(
            feature_values(columns, profile, rule.features),
            feature_values(columns, clean, rule.features),
            rule,
        )
        failing = [_shown(feature) for feature in features if feature.outcome == "fail"]
        outcome = "fail" if failing else "pass"
        reason = (
            f"|SMD| over {rule.smd_max:g}: {', '.join(failing)}"
            if failing
            else f"every |SMD| is at most {rule.smd_max:g}"
        )
    return WindowRepresentativeness(
        window=window,
        clean_segment=clean_segment,
        profile_steps=len(profile),
        clean_steps=len(clean),
        features=features,
        outcome=outcome,
        reason=reason,
    )


def _why_not(has_segment: bool, profile_steps: int, clean_steps: int) -> str | None:
    if not has_segment:
        return "no clean segment ends before the window"
    if profile_steps < _STEPS_MIN:
        return f"the window has {profile_steps} joined steps with tokens, two are needed"
    if clean_steps < _STEPS_MIN:
        return f"the clean segment has {clean_steps} steps with tokens, two are needed"
    return None


def _shown(feature: SmdFeature) -> str:
    if feature.smd is None:
        return f"{feature.feature} differs from a constant"
    return f"{feature.feature} {feature.smd:+.2f}"


def compare_features(
    profile: Float64, clean: Float64, rule: RepresentativenessRule
) -> list[SmdFeature]:
    """``SMD = (mean_profile - mean_clean) / sqrt((s_profile^2 + s_clean^2) / 2)`` per feature.

    ``profile``: float64[n, features], ``clean``: float64[m, features], n and m at least 2. A
    feature that is constant on both sides has no deviation and is judged by exact equality.
    """
    import numpy as np

    found = []
    for position, name in enumerate(rule.features):
        ours, theirs = profile[:, position], clean[:, position]
        sd_ours, sd_theirs = (float(np.std(side, ddof=rule.ddof)) for side in (ours, theirs))
        constant = bool(ours.min() == ours.max() and theirs.min() == theirs.max())
        mean_ours, mean_theirs = float(ours.mean()), float(theirs.mean())
        pooled = 0.0 if constant else float(np.sqrt((sd_ours**2 + sd_theirs**2) / 2))
        smd = None if constant else (mean_ours - mean_theirs) / pooled
        good = bool(ours[0] == theirs[0]) if smd is None else abs(smd) <= rule.smd_max
        found.append(
            SmdFeature(
                feature=name,
                mean_profile=mean_ours,
                mean_clean=mean_theirs,
                sd_profile=sd_ours,
                sd_clean=sd_theirs,
                pooled_sd=pooled,
                smd=smd,
                constant=constant,
                outcome="pass" if good else "fail",
            )
        )
    return found


def null_rate(
    columns: StepColumns,
    clean_rows: Int64,
    rule: RepresentativenessRule,
    *,
    steps_per_window: int,
    windows: int,
    seed: int,
) -> tuple[NullRate | None, str | None]:
    """How often the gate fails when nothing changed: windows drawn from the clean segment itself.

    Each of ``rule.null_draws`` draws takes ``windows`` stretches of ``steps_per_window``
    consecutive usable steps at uniformly random starts of the segment (generator
    ``numpy.random.default_rng(seed)``) and asks the gate about each against the whole segment.
    Returns the rates, or null and the reason.
    """
    import numpy as np

    clean = usable_rows(columns, clean_rows)
    if rule.null_draws < 1 or windows < 1:
        return None, "no draws or no windows asked for"
    if len(clean) < steps_per_window or steps_per_window < _STEPS_MIN:
        return None, f"the clean segment has {len(clean)} usable steps, fewer than one window"
    values = feature_values(columns, clean, rule.features)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(clean) - steps_per_window + 1, size=(rule.null_draws, windows))
    unique, back = np.unique(starts, return_inverse=True)
    failing = _failing(values, unique, steps_per_window, rule)
    # bool[draws, windows, features]: the verdicts of all drawn windows.
    verdicts = failing[back.reshape(starts.shape)]
    any_feature = np.logical_or.reduce(verdicts, axis=2)
    rates = NullRate(
        draws=rule.null_draws,
        seed=seed,
        steps_per_window=steps_per_window,
        any_feature_failure_rate=float(any_feature.mean()),
        load_point_failure_rate=float(any_feature.any(axis=1).mean()),
        by_feature={
            name: float(verdicts[:, :, position].mean())
            for position, name in enumerate(rule.features)
        },
    )
    return rates, None


def _failing(values: Float64, starts: Int64, length: int, rule: RepresentativenessRule) -> Bool:
    """The gate's verdicts on stretches of ``values``: true where a feature fails.

    ``values``: float64[steps, features]; returns bool[starts, features].
    """
    import numpy as np

    stretches = values[starts[:, None] + np.arange(length)]
    means = stretches.mean(axis=1)
    variances = stretches.var(axis=1, ddof=rule.ddof)
    pooled = np.sqrt((variances + values.var(axis=0, ddof=rule.ddof)) / 2)
    constant = (values.min(axis=0) == values.max(axis=0))[None, :]
    # A stretch of a constant feature equals it: such a feature cannot fail.
    difference = np.abs(means - values.mean(axis=0))
    failing: Bool = (difference > rule.smd_max * pooled) & ~constant
    return failing
