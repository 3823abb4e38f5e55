"""``opprof run``: the fixed-duration load client, with the specification's flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opprof.cli.options import required_protocol_option


@click.command("run")
@click.option(
    "--manifest", type=click.Path(path_type=Path), required=True, help="Request manifest."
)
@click.option("--base-url", required=True, help="Server, for instance http://127.0.0.1:8000.")
@click.option("--model", required=True, help="Model name as the server knows it.")
@click.option(
    "--load-point", type=click.Choice(["saturation", "moderate"]), required=True, help="Load point."
)
@click.option(
    "--request-rate", metavar="inf", help="Saturation only: inf. A finite rate is refused."
)
@click.option(
    "--saturation-result",
    type=click.Path(path_type=Path),
    help="Moderate: result.json of the accepted saturation run.",
)
@click.option("--rate-fraction", type=float, help="Moderate: rate = fraction * saturation rate.")
@click.option("--max-concurrency", type=int, help="Most requests outstanding [protocol: 256].")
@click.option("--ignore-eos", is_flag=True, help="Always on: output work is exact.")
@click.option("--temperature", type=float, default=0.0, help="Must be 0.")
@click.option("--warmup-seconds", type=float, help="[protocol: 60]")
@click.option("--clean-segment-seconds", type=float, help="[protocol: 80]")
@click.option("--num-clean-segments", type=int, help="[protocol: 3]")
@click.option(
    "--profile-after-clean", is_flag=True, help="Profile windows after the clean interval."
)
@click.option(
    "--num-profile-windows", type=int, help="[protocol: 2 with --profile-after-clean, else 0]"
)
@click.option("--profile-warmup-iterations", type=int, help="[protocol: 2]")
@click.option("--profile-active-iterations", type=int, help="[protocol: 8]")
@click.option(
    "--profile-window-seconds",
    type=float,
    help="Window length where no --opprof-dir shows the iterations [protocol: 5].",
)
@click.option("--recovery-seconds", type=float, help="[protocol: 30]")
@click.option(
    "--drain-timeout-seconds",
    type=float,
    help="Recorded; the protocol's class budget wins where it names the pattern.",
)
@click.option("--workload-seed", type=int, help="Checked against the manifest's seed.")
@click.option(
    "--result-dir", type=click.Path(path_type=Path), required=True, help="RUN/client; must be new."
)
@click.option("--config", default=None, help="Server configuration [protocol: C00].")
@click.option(
    "--role",
    type=click.Choice(["primary", "confirmation", "burnin", "colocation"]),
    default="primary",
    help="burnin: warm-up only, never pooled.",
)
@click.option(
    "--opprof-dir",
    type=click.Path(path_type=Path),
    help="The server's VLLM_OPPROF_DIR: its step stream tells when a profile window is over.",
)
@click.option(
    "--time-scale", type=float, default=1.0, help="Declared factor on every duration; recorded."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Extra header, repeatable; also $OPPROF_HEADERS. Never logged.",
)
@click.option(
    "--until-signal",
    is_flag=True,
    help="Co-location background: load until SIGTERM or SIGINT, at most --warmup-seconds; then "
    "drain. A second signal interrupts.",
)
@click.option("--no-progress", is_flag=True, help="No live line on a terminal.")
@required_protocol_option
def run(protocol_source: str | None, **flags: Any) -> None:
    """Run one load point against a server and write RUN/client.

    The API key is read from $OPPROF_API_KEY or $OPENAI_API_KEY and never logged. Exit code 0: the
    run is accepted; 1: it is not (result.json says why) or the server failed; 2: unusable
    arguments; 130: interrupted, what was complete is kept.
    """
    from opprof.client.run import run_client
    from opprof.errors import InputError
    from opprof.protocol import load_protocol

    protocol = load_protocol(protocol_source)
    if protocol is None:
        raise InputError("a run needs a protocol: its gates decide whether it is accepted")
    report = run_client(_options(flags, protocol), protocol)
    if report.result is None:
        click.echo(f"interrupted; what was complete is in {report.folder}", err=True)
        raise SystemExit(130)
    for line in _summary(report.result):
        click.echo(line)
    raise SystemExit(0 if report.result.accepted else 1)


def _options(flags: dict[str, Any], protocol: Any) -> Any:
    """Fill what was left out from the protocol."""
    from opprof.client.options import RunOptions
    from opprof.errors import InputError

    timeline, layer2 = protocol.file.timeline, protocol.file.layer2
    burnin = flags["role"] == "burnin"
    unmeasured = burnin or flags["until_signal"]
    windows = timeline.profile_windows if flags["profile_after_clean"] else 0
    if flags["until_signal"] and flags["warmup_seconds"] is None:
        raise InputError("--until-signal needs --warmup-seconds: the longest that it may take")
    defaults = {
        "max_concurrency": protocol.file.load.saturation_max_concurrency,
        "warmup_seconds": protocol.file.burnin.seconds if burnin else timeline.warmup_s,
        "clean_segment_seconds": timeline.clean_segment_s,
        "num_clean_segments": 0 if unmeasured else timeline.clean_segments,
        "num_profile_windows": 0 if burnin else windows,
        "profile_warmup_iterations": layer2.warmup_iterations,
        "profile_active_iterations": layer2.active_iterations,
        "recovery_seconds": timeline.recovery_s,
        "drain_timeout_seconds": min(row.drain_budget_s for row in protocol.file.patterns),
        "config": protocol.file.cells.baseline_config,
    }
    values: dict[str, Any] = {
        name: defaults.get(name) if value is None else value for name, value in flags.items()
    }
    values["progress"] = not values.pop("no_progress")
    values.pop("ignore_eos")
    return RunOptions(**values)


def _summary(result: Any) -> list[str]:
    clean = result.metrics["clean"]
    lines = [
        f"{result.pattern}/{result.config} {result.load_point} ({result.role}): "
        + ("accepted" if result.accepted else "NOT accepted")
    ]
    if clean is not None:
        offered, completed = clean["offered_rps"], clean["completed_rps"]
        lines.append(
            f"  {clean['completed']} completed in {clean['seconds']:g} clean seconds: "
            f"{completed:.4f} requests/s, {offered:.4f} offered, {clean['failed']} failed"
        )
    lines += [f"  {reason}" for reason in result.reasons]
    if result.drain_quarantined:
        lines.append("  drain-quarantined: the drain went over its budget")
    return lines
