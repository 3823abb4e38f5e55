"""``opprof campaign``: a frozen protocol, run by a detached controller that survives anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from opprof.cli.campaign_plan import plan
from opprof.cli.options import SEED, gpu_indices, json_option

_folder = click.argument("folder", metavar="CAMPAIGN", type=click.Path(path_type=Path))
_private = click.option(
    "--private",
    type=click.Path(path_type=Path, file_okay=False),
    help="Mode-0700 folder of the manifests (PATTERN.jsonl).",
)
_manifests = click.option(
    "--manifest", "manifests", multiple=True, metavar="P01=FILE", help="One manifest; repeatable."
)
_READY_S = 600.0
"""A controller hashes every manifest before it takes over; 2 GB take seconds."""


@click.group("campaign")
def group() -> None:
    """Run a frozen protocol: plan, start, watch, stop, resume."""


group.add_command(plan)


@group.command("start", short_help="Start a campaign; a controller is detached.")
@click.argument("protocol", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="The campaign's folder; must be new.",
)
@click.option(
    "--engine",
    type=click.Choice(["vllm", "sim"]),
    required=True,
    help="Real vLLM, or the embedded engine (simulated).",
)
@_private
@_manifests
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Folder with tokenizer.json: manifests that are missing are made in --private.",
)
@click.option(
    "--var",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of a variable of the protocol, as MODEL=DIR.",
)
@click.option("--server-command", default="", help="Server template instead of the protocol's.")
@click.option("--python", default="", help="Interpreter of the engine's environment.")
@click.option(
    "--engine-env",
    "engine_environment",
    multiple=True,
    metavar="NAME=VALUE",
    help="Further environment of the server; repeatable.",
)
@click.option(
    "--time-scale", type=float, default=1.0, show_default=True, help="Declared factor on durations."
)
@click.option("--seed", type=SEED, default=0, help="Seed of the embedded engine.")
@click.option("--virtual", is_flag=True, help="Embedded engine in virtual time, in lock step.")
@click.option(
    "--only", multiple=True, metavar="PATTERN[/CONFIG]", help="These cells only; repeatable."
)
@click.option(
    "--gpus",
    default="",
    metavar="LIST",
    help="Physical GPUs that may be used, as 0-3 or 0,2; on a machine without GPUs its places.",
)
@click.option(
    "--host-file",
    default="",
    metavar="FILE|dash0",
    help="A fake host from a file, for the embedded engine.",
)
@click.option("--serial", is_flag=True, help="One cell at a time; needs no co-location gate.")
@click.option(
    "--base-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the first GPU; 0: free ports.",
)
@click.option("--no-cpu-masks", is_flag=True, help="Do not bind to the protocol's CPU map.")
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where runs execute: here, or on the nodes of a Ray cluster.",
)
@click.option(
    "--ray-address", default="", metavar="HOST:PORT", help="Ray cluster (default: $RAY_ADDRESS)."
)
@click.option(
    "--ray-node",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Node to use; repeatable (default: all).",
)
@click.option(
    "--ray-scratch", default="", metavar="DIR", help="Folder on nodes that do not see this one."
)
@click.option("--ray-ship", is_flag=True, help="Send files even to nodes that see this folder.")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=SECONDS", help="A wait's limit, e.g. ready_s."
)
@click.option("--foreground", is_flag=True, help="Do not detach; the log goes to this terminal.")
def start(foreground: bool, **flags: Any) -> None:
    """Start a campaign of PROTOCOL and return when its controller owns the folder.

    PROTOCOL is frozen. Nothing is made where the host does not fit its [placement] or has no place
    for a run. Exit code 0: the controller runs (with --foreground: every run is complete); 1: the
    surroundings failed; 2: refused.
    """
    from opprof.campaign.begin import create_campaign
    from opprof.campaign.withdraw import remember

    request = _request(flags)
    store = create_campaign(request, lambda line: click.echo(line, err=True))
    _launch(store.folder, request.sources, foreground, remember(store))


@group.command("resume", short_help="Go on with whatever is not complete.")
@_folder
@_private
@_manifests
@click.option("--foreground", is_flag=True, help="Do not detach.")
@click.option(
    "--protocol",
    "amended",
    type=click.Path(path_type=Path),
    help="An amendment of the protocol in force (`opprof protocol amend`) to go on under.",
)
@click.option("--reviewed", default="", metavar="TEXT", help="Release a hard stop: who, and why.")
@click.option(
    "--ray-address",
    default="",
    metavar="HOST:PORT",
    help="Ray cluster to go on with, where it is another one than before.",
)
def resume(
    folder: Path,
    private: Path | None,
    manifests: tuple[str, ...],
    foreground: bool,
    amended: Path | None,
    reviewed: str,
    ray_address: str,
) -> None:
    """Go on from the fresh-server boundary of whatever is not complete.

    Exit codes are those of start.
    """
    import time

    from opprof.campaign.life import amend, check_sources
    from opprof.campaign.options import make_sources, sources_from_log
    from opprof.campaign.review import check_review
    from opprof.campaign.store import Store
    from opprof.errors import InputError
    from opprof.words import check_text

    folder = folder.absolute()
    reviewed = " ".join(reviewed.split())
    check_text("the campaign's folder", str(folder))
    check_text("--reviewed", reviewed)
    check_text("--ray-address", ray_address)
    store = Store(folder, wall_ns=time.time_ns)
    campaign = store.campaign()
    if ray_address and campaign.executor != "ray":
        raise InputError("--ray-address: this campaign was started with --executor local")
    sources = make_sources(private, manifests)
    if private is None and not manifests:
        sources = sources_from_log(folder / "commands.log")
    check_review(store, reviewed)
    # Before anything is recorded: a refused resume leaves all as it was. The controller releases.
    check_sources(folder, sources)
    if amended is not None:
        amend(folder, amended.absolute(), sources)
    _launch(folder, sources, foreground, ray_address=ray_address, reviewed=reviewed)


@group.command("controller", hidden=True)
@_folder
@_private
@_manifests
@click.option("--ready-fd", type=int, default=None)
@click.option("--ray-address", default="")
@click.option("--reviewed", default="")
def controller(
    folder: Path,
    private: Path | None,
    manifests: tuple[str, ...],
    ready_fd: int | None,
    ray_address: str,
    reviewed: str,
) -> None:
    """Be the controller of CAMPAIGN (what start and resume detach)."""
    from opprof.campaign.detach import Starter
    from opprof.campaign.life import Life, live
    from opprof.campaign.options import make_sources

    sources = make_sources(private, manifests)
    life = Life(folder.absolute(), sources, Starter(ready_fd), ray_address, reviewed)
    raise SystemExit(live(life))


@group.command("stop", short_help="End the controller; what is complete stays.")
@_folder
@click.option("--now", is_flag=True, help="Do not let servers drain.")
def stop(folder: Path, now: bool) -> None:
    """End the controller; what is complete stays, everything else can be resumed."""
    from opprof.campaign.watch import stop_controller

    click.echo(
        stop_controller(folder.absolute(), now=now, say=lambda line: click.echo(line, err=True))
    )


@group.command("status", short_help="Show runs, budget, and whether the controller lives.")
@_folder
@click.option("--watch", is_flag=True, help="Until the controller ends.")
@json_option
def status(folder: Path, watch: bool, as_json: bool) -> None:
    """Show runs, phases, failed checks, budget, and whether the controller lives.

    Exit code 1 where it does not go on by itself: a hard stop waits for review, a run has failed,
    or runs are left and no controller works on them (it has ended, was stopped, or is dead).
    """
    from opprof.cli.campaign_tables import show_status

    with _looking(on=watch):
        raise SystemExit(show_status(folder.absolute(), watch=watch, as_json=as_json))


@group.command("logs", short_help="Print the controller's log, or a run's.")
@_folder
@click.argument("run", required=False)
@click.option("--follow", is_flag=True, help="Print what comes until the controller ends.")
def logs(folder: Path, run: str | None, follow: bool) -> None:
    """Print the controller's log, or the logs of RUN's last attempt."""
    from opprof.campaign.watch import log_lines

    with _looking(on=follow):
        for line in log_lines(folder.absolute(), run, follow=follow):
            click.echo(line)


@contextmanager
def _looking(*, on: bool) -> Iterator[None]:
    """Say what an end of looking means: nothing was begun that could have been broken off."""
    try:
        yield
    except KeyboardInterrupt:
        if not on:
            raise
        click.echo("opprof: no longer watching; the campaign is as it was", err=True)
        raise SystemExit(130) from None


def _request(flags: dict[str, Any]) -> Any:
    from opprof.campaign.begin import Request
    from opprof.campaign.options import Options, limits_of, make_sources, pairs
    from opprof.campaign.site import MODEL_VARIABLE
    from opprof.errors import InputError

    if flags["virtual"] and flags["engine"] != "sim":
        raise InputError("--virtual needs --engine sim: no real engine has a virtual clock")
    if flags["host_file"] and flags["engine"] != "sim":
        raise InputError("--host-file needs --engine sim: a real engine runs on the real host")
    local = flags["executor"] == "local"
    for name in ("hosts", "ray_address", "ray_scratch", "ray_ship") if local else ():
        if flags[name]:
            flag = "--ray-node" if name == "hosts" else f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} needs --executor ray: a local campaign has no other nodes")
    variables = pairs(flags["variables"], "--var")
    if MODEL_VARIABLE in variables:
        variables[MODEL_VARIABLE] = _whole_path(variables[MODEL_VARIABLE])
    options = Options(
        limits=limits_of(flags["limits"]),
        server_command=flags["server_command"],
        python=_program(flags["python"]) if local and flags["python"] else flags["python"],
        engine_environment=pairs(flags["engine_environment"], "--engine-env"),
        base_port=flags["base_port"],
        only=list(flags["only"]),
        gpus=list(gpu_indices(flags["gpus"])),
        host_file=_whole_path(flags["host_file"]),
        serial=flags["serial"],
        bind_cpus=not flags["no_cpu_masks"],
        ray_address=flags["ray_address"],
        ray_scratch=flags["ray_scratch"],
        ray_ship=flags["ray_ship"],
    )
    return Request(
        protocol=flags["protocol"],
        out=flags["out"],
        engine="sim-virtual" if flags["virtual"] else flags["engine"],
        variables=variables,
        sources=make_sources(flags["private"], flags["manifests"]),
        time_scale=flags["time_scale"],
        seed=flags["seed"],
        executor=flags["executor"],
        hosts=flags["hosts"],
        options=options,
        tokenizer=flags["tokenizer"],
    )


def _whole_path(text: str) -> str:
    """Servers and later controllers have other working folders; a name that is no path stays."""
    path = Path(text)
    return str(path.absolute()) if text and path.exists() else text


def _program(python: str) -> str:
    import shutil

    from opprof.errors import InputError

    found = shutil.which(python)
    if found is None:
        raise InputError(f"--python {python}: no such program here")
    return str(Path(found).absolute())


def _launch(
    folder: Path,
    sources: Any,
    foreground: bool,
    made: Any = None,
    *,
    ray_address: str = "",
    reviewed: str = "",
) -> None:
    """Start a controller; ``made``: what is taken back when it refuses."""
    import time

    from opprof.campaign.detach import ControllerLost, Starter, start_detached
    from opprof.campaign.life import Life, live
    from opprof.campaign.store import Store
    from opprof.errors import OpprofError

    store = Store(folder, wall_ns=time.time_ns)
    store.campaign()
    starter = Starter(None)
    life = Life(folder, sources, starter, ray_address, reviewed)
    if foreground:
        code = live(life)
        if not starter.let_go:
            _withdraw(made)
        raise SystemExit(code)
    try:
        identity = start_detached(life.command(), store.log, ready_s=_READY_S)
    except ControllerLost:
        # It may live, and its log is in the folder.
        raise
    except OpprofError:
        _withdraw(made)
        raise
    record = store.controller()
    pid = "" if record is None else f", pid {record.process.pid}"
    click.echo(f"{identity}: controller started{pid}")
    click.echo(f"  folder {folder}")
    click.echo(f"  watch  opprof campaign status --watch {folder}")
    click.echo(f"  log    {store.log}")


def _withdraw(made: Any) -> None:
    from opprof.campaign.withdraw import withdraw

    if made is not None and (kept := withdraw(made)):
        click.echo(kept, err=True)
