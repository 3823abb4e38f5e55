"""From the command line's values to a checked plan: what may be combined, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opprof.artifacts.run import LoadPoint, Role
from opprof.client.plan import DrainBudget, Load, RunPlan, Windows
from opprof.client.saturation import DerivedRate
from opprof.client.schedule import burst_size
from opprof.errors import InputError
from opprof.protocol import Protocol
from opprof.protocol.base import CONCURRENCY_MAX, PARTS_MAX
from opprof.rules.durations import scaled_ns, seconds_to_ns

_EXTRA_CALLS = 1
"""The profiler writes its trace in the call after its last active step."""
_SECONDS_MAX = 1e7
"""Beyond it a value is a slip of the keyboard: over 100 days."""


@dataclass(frozen=True)
class RunOptions:
    """``opprof run``'s arguments, one field a flag."""

    manifest: Path
    base_url: str
    model: str
    load_point: LoadPoint
    request_rate: str | None
    saturation_result: Path | None
    rate_fraction: float | None
    max_concurrency: int
    temperature: float
    warmup_seconds: float
    clean_segment_seconds: float
    num_clean_segments: int
    profile_after_clean: bool
    num_profile_windows: int
    profile_warmup_iterations: int
    profile_active_iterations: int
    profile_window_seconds: float | None
    recovery_seconds: float
    drain_timeout_seconds: float
    workload_seed: int | None
    result_dir: Path
    config: str
    role: Role
    opprof_dir: Path | None = None
    time_scale: float = 1.0
    headers: Sequence[str] = field(default=(), repr=False)
    until_signal: bool = False
    progress: bool = True


def check_options(options: RunOptions) -> None:
    """Refuse values and combinations that have no meaning.

    Raises:
        InputError: names the flag and the reason.
    """
    finite = {
        "--warmup-seconds": (options.warmup_seconds, 0.0),
        "--recovery-seconds": (options.recovery_seconds, 0.0),
        "--drain-timeout-seconds": (options.drain_timeout_seconds, 0.0),
        "--clean-segment-seconds": (options.clean_segment_seconds, None),
        "--time-scale": (options.time_scale, None),
    }
    for flag, (value, allowed) in finite.items():
        if not math.isfinite(value) or value < 0 or (value == 0 and allowed is None):
            raise InputError(f"{flag} {value:g} must be a positive number")
        if value > _SECONDS_MAX:
            raise InputError(f"{flag} {value:g} is over {_SECONDS_MAX:g}")
    segments_min = 0 if _unmeasured(options) else 1
    counts = {
        "--max-concurrency": (options.max_concurrency, 1, CONCURRENCY_MAX),
        "--num-clean-segments": (options.num_clean_segments, segments_min, PARTS_MAX),
        "--num-profile-windows": (options.num_profile_windows, 0, PARTS_MAX),
        "--profile-warmup-iterations": (options.profile_warmup_iterations, 0, PARTS_MAX),
        "--profile-active-iterations": (options.profile_active_iterations, 1, PARTS_MAX),
    }
    for flag, (count, least, most) in counts.items():
        if count < least:
            raise InputError(f"{flag} {count} must be at least {least}")
        if count > most:
            raise InputError(f"{flag} {count} is over {most}")
    if options.temperature != 0:
        raise InputError("--temperature must be 0: output work is exact only for greedy decoding")
    if options.num_profile_windows and not options.profile_after_clean:
        raise InputError("profile windows lie after the clean interval: add --profile-after-clean")
    _check_load(options)
    _check_role(options)


def _check_load(options: RunOptions) -> None:
    rate = options.request_rate
    if rate is not None and rate != "inf":
        raise InputError(
            f"--request-rate {rate} is refused: a finite rate comes from an accepted saturation "
            "result only (--load-point moderate --saturation-result FILE --rate-fraction F)"
        )
    if options.load_point == "saturation":
        if options.saturation_result is not None or options.rate_fraction is not None:
            raise InputError(
                "--saturation-result and --rate-fraction belong to the moderate load point;"
                " saturation has no rate"
            )
        return
    if rate is not None:
        raise InputError("--request-rate inf is the saturation load point, not moderate")
    if options.saturation_result is None or options.rate_fraction is None:
        raise InputError("moderate needs --saturation-result FILE and --rate-fraction F")
    if not 0 < options.rate_fraction <= 1:
        raise InputError(f"--rate-fraction {options.rate_fraction:g} must lie in (0, 1]")


def _check_role(options: RunOptions) -> None:
    if options.role == "confirmation" and options.num_profile_windows:
        raise InputError("a confirmation has no profile windows: --num-profile-windows 0")
    if options.until_signal:
        _check_background(options)
    if _burnin(options):
        if options.load_point != "saturation":
            raise InputError("a burn-in is saturation load")
        if options.num_profile_windows or options.num_clean_segments:
            raise InputError("a burn-in has neither clean segments nor profile windows")


def _check_background(options: RunOptions) -> None:
    if options.role != "colocation" or options.load_point != "saturation":
        raise InputError("--until-signal is a co-location background: saturation, role colocation")
    if options.num_profile_windows or options.num_clean_segments:
        raise InputError("a background has neither clean segments nor profile windows")
    if options.warmup_seconds <= 0:
        raise InputError("--until-signal needs --warmup-seconds: the longest that it may take")


def _unmeasured(options: RunOptions) -> bool:
    return _burnin(options) or options.until_signal


def _burnin(options: RunOptions) -> bool:
    return options.role == "burnin"


def build_plan(
    options: RunOptions,
    *,
    pattern: str,
    arrival: str,
    rate: DerivedRate | None,
    protocol: Protocol,
) -> RunPlan:
    """Return the plan; the declared time scale stretches every duration alike.

    Raises:
        InputError: a clean segment would have no length, or a burst does not fit under the cap.
    """
    gates = protocol.file.gates
    row = protocol.pattern(pattern)
    budget_s = options.drain_timeout_seconds if row is None else row.drain_budget_s

    def scaled(seconds: float) -> int:
        return scaled_ns(seconds, options.time_scale)

    if scaled(options.clean_segment_seconds) < 1:
        raise InputError("a clean segment would last less than a nanosecond")
    burst = burst_size(arrival)
    if rate is not None and burst > options.max_concurrency:
        raise InputError(
            f"bursts of {burst} cannot leave together under --max-concurrency "
            f"{options.max_concurrency}"
        )
    return RunPlan(
        pattern=pattern,
        config=options.config,
        load_point=options.load_point,
        role=options.role,
        load=Load(
            max_concurrency=options.max_concurrency,
            rate_rps=None if rate is None else rate.rate_rps,
            burst=burst,
        ),
        warmup_ns=scaled(options.warmup_seconds),
        segment_ns=scaled(options.clean_segment_seconds),
        segments=options.num_clean_segments,
        windows=Windows(
            count=options.num_profile_windows,
            steps=options.profile_warmup_iterations
            + options.profile_active_iterations
            + _EXTRA_CALLS,
            recovery_ns=scaled(options.recovery_seconds),
            watchdog_ns=seconds_to_ns(gates.profile_window_watchdog_s),
        ),
        drain=DrainBudget(
            budget_ns=scaled(budget_s),
            requested_ns=scaled(options.drain_timeout_seconds),
            watchdog_ns=scaled(gates.drain_watchdog_s),
        ),
        time_scale=options.time_scale,
        until_told=options.until_signal,
    )


def deviations(options: RunOptions, protocol: Protocol) -> dict[str, list[float]]:
    """Return every value that differs from the protocol's, as ``[protocol, used]``."""
    file = protocol.file
    timeline, layer2 = file.timeline, file.layer2
    pairs: dict[str, tuple[float, float]] = {
        "warmup_s": (timeline.warmup_s, options.warmup_seconds),
        "clean_segment_s": (timeline.clean_segment_s, options.clean_segment_seconds),
        "clean_segments": (timeline.clean_segments, options.num_clean_segments),
        "profile_windows": (timeline.profile_windows, options.num_profile_windows),
        "recovery_s": (timeline.recovery_s, options.recovery_seconds),
        "max_concurrency": (file.load.saturation_max_concurrency, options.max_concurrency),
        "warmup_iterations": (layer2.warmup_iterations, options.profile_warmup_iterations),
        "active_iterations": (layer2.active_iterations, options.profile_active_iterations),
        "time_scale": (1.0, options.time_scale),
    }
    if options.rate_fraction is not None:
        pairs["rate_fraction"] = (file.load.moderate_rate_fraction, options.rate_fraction)
    if options.role in ("confirmation", "colocation", "burnin"):
        del pairs["profile_windows"]
    if options.until_signal:
        del pairs["clean_segments"], pairs["warmup_s"]
    if options.role == "burnin":
        del pairs["clean_segments"]
        pairs["warmup_s"] = (file.burnin.seconds, options.warmup_seconds)
    return {name: [wanted, used] for name, (wanted, used) in pairs.items() if wanted != used}
