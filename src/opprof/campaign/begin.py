"""From arguments to a campaign folder that a controller can take over; nothing is launched here."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof._version import __version__
from opprof.artifacts.campaign import Campaign, EngineKind
from opprof.artifacts.environment import Topology
from opprof.campaign.binding import launches_of, manifest_hashes
from opprof.campaign.executors.choose import check_executor
from opprof.campaign.frozen import frozen_of
from opprof.campaign.hosts import (
    hosts_to_check,
    is_free,
    open_host,
    place_of,
    placed,
    require_map,
)
from opprof.campaign.ledger import opening
from opprof.campaign.ledger_file import create_ledger
from opprof.campaign.manifests import check_places, make_missing
from opprof.campaign.options import (
    Options,
    Sources,
    check_environment,
    check_time_scale,
    check_variables,
)
from opprof.campaign.plan import planned_runs
from opprof.campaign.store import Store, pretty
from opprof.campaign.waves import Where, held_runs
from opprof.code_hash import code_sha256
from opprof.engines.sim.flags import not_modelled
from opprof.errors import InputError, StateConflict
from opprof.files import read_bytes, sync_folder, write_atomic
from opprof.integrity.ledger import NAME as LEDGER_NAME
from opprof.protocol import Protocol, load_protocol
from opprof.protocol.freeze import require_frozen
from opprof.words import check_text

_PROTOCOL_LIMIT_BYTES = 4 << 20
_ID_BYTES = 6


@dataclass(frozen=True)
class Request:
    """What ``opprof campaign start`` was asked for."""

    protocol: Path
    out: Path
    engine: EngineKind
    variables: Mapping[str, str]
    sources: Sources
    time_scale: float
    seed: int
    executor: str
    hosts: tuple[str, ...]
    options: Options
    tokenizer: Path | None = None
    """Makes the manifests that are missing in the private folder; None makes none."""


def create_campaign(request: Request, say: Callable[[str], None]) -> Store:
    """Check everything and make the campaign's folder, all runs pending.

    The folder appears whole: it is made beside its place under another name and then renamed.

    Raises:
        InputError: the protocol, a variable, a manifest or an option cannot be used.
        StateConflict: the folder exists, or the protocol is a draft.
        EnvironmentFailure: it cannot be written.
    """
    if request.out.exists() or request.out.is_symlink():
        raise StateConflict("exists: a campaign never goes into a folder", path=request.out)
    _check_texts(request)
    check_environment(request.options.engine_environment)
    check_executor(request.executor, request.options)
    check_time_scale(request.time_scale, request.engine)
    data = read_bytes(request.protocol, limit_bytes=_PROTOCOL_LIMIT_BYTES)
    protocol = frozen_protocol(request.protocol)
    frozen_of(protocol.file)
    check_variables(request.variables, protocol.file.variables)
    check_places(request.sources, request.out)
    # Many hosts are asked by their own executor, at every start and resume.
    host = None if request.executor == "ray" else _host(request, protocol)
    campaign = _campaign(request, protocol, host, say)
    launches_of(protocol, campaign)
    command = (request.options.server_command or protocol.file.server.command).split()
    flags = not_modelled(command, (row.flags for row in protocol.file.configs))
    if campaign.simulated and flags:
        say(f"the embedded engine does not model {', '.join(flags)}: left out")
    out = request.out.absolute()
    made = out.with_name(f".{out.name}.{campaign.id}.tmp")
    try:
        _fill(Store(made, wall_ns=time.time_ns), request, campaign, protocol, data)
        made.rename(out)
    except OSError as error:
        raise StateConflict(f"cannot be made: {error.strerror or error}", path=out) from error
    finally:
        # There no more unless something went wrong.
        shutil.rmtree(made, ignore_errors=True)
    sync_folder(out.parent)
    return Store(out, wall_ns=time.time_ns)


def _fill(
    store: Store, request: Request, campaign: Campaign, protocol: Protocol, data: bytes
) -> None:
    made = store.folder
    made.mkdir(parents=True)
    write_atomic(store.protocol, data)
    write_atomic(made / "protocols" / f"00-{protocol.sha256[:12]}.toml", data)
    for record in planned_runs(protocol.file, request.options.only):
        store.save(record)
    first = opening(
        protocol.file.budget, wall_ns=store.wall_ns(), simulated=request.engine != "vllm"
    )
    create_ledger(made / LEDGER_NAME, first)
    write_atomic(made / "campaign.json", pretty(campaign))


def _check_texts(request: Request) -> None:
    options = request.options
    check_text("--out", str(request.out.absolute()))
    check_text("--var", *itertools.chain(*request.variables.items()))
    check_text("--engine-env", *itertools.chain(*options.engine_environment.items()))
    check_text("--server-command", *options.server_command.split())
    check_text("--python", options.python)
    check_text("--host-file", options.host_file)
    check_text("--ray-scratch", options.ray_scratch)
    check_text("--ray-address", options.ray_address)
    check_text("--ray-node", *request.hosts)


def frozen_protocol(path: Path) -> Protocol:
    """Return a sound, frozen protocol.

    Raises:
        StateConflict: it is a draft, was changed, or does not fit this installation.
        InputError: it is unsound.
    """
    protocol = load_protocol(path)
    if protocol is None:
        raise InputError("'none' is no protocol")
    require_frozen(protocol)
    return protocol


def _host(request: Request, protocol: Protocol) -> Topology:
    """Return this host, on which every planned run can have its place."""
    options = request.options
    host = place_of(open_host(options, request.engine, "").topology(), options.gpus)
    file = placed(protocol.file, options)
    require_map(file, [host])
    records = planned_runs(file, options.only)
    held = held_runs(records, Where((host,), {host.host: 1}, 0), file)
    if held:
        run, reason = next(iter(held.items()))
        raise StateConflict(
            f"{run} {reason}: name GPUs with --gpus, or leave its cells out with --only"
        )
    return host


def _campaign(
    request: Request, protocol: Protocol, host: Topology | None, say: Callable[[str], None]
) -> Campaign:
    name = f"{protocol.file.id}-{secrets.token_hex(_ID_BYTES)}"
    patterns = _patterns(request, protocol, host)
    if request.tokenizer is not None:
        make_missing(protocol, patterns, request.sources, request.tokenizer, say)
    return Campaign(
        schema=1,
        id=name,
        protocol_id=protocol.file.id,
        protocol_sha256=protocol.sha256,
        engine=request.engine,
        variables=dict(request.variables),
        manifests=manifest_hashes(patterns, request.sources),
        time_scale=request.time_scale,
        seed=request.seed,
        # None given to an executor of many hosts means all that it finds at every start.
        hosts=list(request.hosts) or ([] if request.executor == "ray" else [os.uname().nodename]),
        executor="ray" if request.executor == "ray" else "local",
        options=msgspec.to_builtins(request.options),
        code_version=__version__,
        code_sha256=code_sha256(),
        created_wall_ns=time.time_ns(),
        simulated=request.engine != "vllm",
    )


def _patterns(request: Request, protocol: Protocol, host: Topology | None) -> list[str]:
    """Return the patterns that need a manifest: of the runs, and of the co-location check.

    Hosts that are not known before the controller asks them may need the check.
    """
    file, options = protocol.file, request.options
    found = {record.pattern for record in planned_runs(file, options.only)}
    rule = file.colocation
    checked = not options.serial and not is_free(request.engine, file)
    if host is not None:
        checked = bool(hosts_to_check(request.engine, options, file, [host]))
    if rule is not None and checked:
        found |= {rule.pattern, *rule.backgrounds_eight, *rule.backgrounds_four}
    return sorted(found)
