"""The client of one attempt: ``opprof run`` with the protocol's flags, as a process of its own."""

from __future__ import annotations

from opprof.campaign.attempt import AttemptSpec
from opprof.campaign.options import Limits, options_of
from opprof.campaign.server import HOST
from opprof.errors import InputError
from opprof.protocol import Protocol


def client_command(spec: AttemptSpec, protocol: Protocol, python: str, port: int) -> list[str]:
    """Return the exact command of the client (protocol, "Required fixed-duration client")."""
    file = protocol.file
    burnin = spec.role == "burnin" or spec.background
    windows = profile_windows(spec, protocol)
    command = [python, "-m", "opprof", "run", "--protocol", spec.protocol]
    command += ["--manifest", spec.manifest, "--base-url", base_url(spec, port)]
    command += ["--model", spec.model, "--load-point", spec.load_point]
    if spec.load_point == "saturation":
        command += ["--request-rate", "inf"]
    else:
        if spec.saturation is None:
            raise InputError(f"{spec.run} has no saturation result to take its rate from")
        command += ["--saturation-result", spec.saturation]
        command += ["--rate-fraction", f"{file.load.moderate_rate_fraction:g}"]
    command += ["--max-concurrency", str(file.load.saturation_max_concurrency)]
    command += ["--ignore-eos", "--temperature", f"{file.workload.temperature:g}"]
    warmup_s = file.burnin.seconds if burnin else file.timeline.warmup_s
    if spec.background:
        command += ["--until-signal"]
        warmup_s = background_s(spec, protocol)
    command += ["--warmup-seconds", f"{warmup_s:g}"]
    command += ["--clean-segment-seconds", f"{file.timeline.clean_segment_s:g}"]
    command += ["--num-clean-segments", "0" if burnin else str(file.timeline.clean_segments)]
    if windows:
        command += ["--profile-after-clean"]
    command += ["--num-profile-windows", str(windows)]
    command += ["--profile-warmup-iterations", str(file.layer2.warmup_iterations)]
    command += ["--profile-active-iterations", str(file.layer2.active_iterations)]
    command += ["--recovery-seconds", f"{file.timeline.recovery_s:g}"]
    row = protocol.pattern(spec.pattern)
    if row is not None:
        command += ["--drain-timeout-seconds", f"{row.drain_budget_s:g}"]
    command += ["--workload-seed", str(file.seeds.workload)]
    command += ["--result-dir", f"{spec.folder}/client", "--opprof-dir", f"{spec.folder}/opprof"]
    command += ["--config", spec.config, "--role", spec.role]
    if spec.campaign.time_scale != 1.0:
        command += ["--time-scale", repr(spec.campaign.time_scale)]
    return [*command, "--no-progress"]


def base_url(spec: AttemptSpec, port: int) -> str:
    """Return the server's address as the client takes it."""
    scheme = "lockstep" if spec.campaign.engine == "sim-virtual" else "http"
    return f"{scheme}://{HOST}:{port}"


def profile_windows(spec: AttemptSpec, protocol: Protocol) -> int:
    """Return the number of Layer-2 windows of the attempt's role and load point.

    A co-location target has exactly one, in its moderate run (A-P3-1, 4).
    """
    if spec.role == "primary":
        return protocol.file.timeline.profile_windows
    return int(spec.role == "colocation" and spec.load_point == "moderate")


def background_s(spec: AttemptSpec, protocol: Protocol) -> float:
    """Return the longest that a background loads, in the protocol's seconds: beside a whole target.

    Watchdogs are not stretched by the time scale, the client's flag is.
    """
    file = protocol.file
    load_s = file.timeline.warmup_s + file.timeline.clean_s + file.timeline.recovery_s
    watchdogs_s = file.gates.profile_window_watchdog_s + options_of(spec.campaign).limits.ready_s
    return load_s + file.gates.drain_watchdog_s + watchdogs_s / spec.campaign.time_scale


def client_deadline_s(spec: AttemptSpec, protocol: Protocol, limits: Limits) -> float:
    """Return after how many seconds the client must have ended by its own watchdogs."""
    file, scale = protocol.file, spec.campaign.time_scale
    windows = profile_windows(spec, protocol)
    if spec.role == "burnin":
        load_s = file.burnin.seconds
    elif spec.background:
        load_s = background_s(spec, protocol)
    else:
        load_s = file.timeline.warmup_s + file.timeline.clean_s
        load_s += windows * file.timeline.recovery_s
    watchdogs_s = windows * file.gates.profile_window_watchdog_s
    return (load_s + file.gates.drain_watchdog_s) * scale + watchdogs_s + limits.client_margin_s
