"""What ``opprof campaign start`` was told, as values: recorded in ``campaign.json``, never guessed.

Private paths are no part of a campaign's artefacts: :class:`Sources` holds them, comes with the
controller's command line, and stands in ``commands.log`` only.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from opprof.artifacts.campaign import Campaign
from opprof.campaign.commands import last_command
from opprof.code_hash import PACKAGE
from opprof.errors import InputError, SchemaError
from opprof.protocol.check_commands import RUN_VARIABLES, usable_environment
from opprof.words import check_text

Positive = Annotated[float, Meta(gt=0)]

RESERVED_VARIABLES = RUN_VARIABLES | {"PRIVATE"}
"""Filled in by the controller for each run; ``PRIVATE`` comes from ``--private``."""
_SCALE_MAX = 1e6
"""Of hours: microseconds and centuries are no time that a wait can have."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_OFTEN_ENOUGH = {
    "sample_s": (60.0, "so often the GPUs are searched for foreign processes while a load runs"),
    "look_s": (10.0, "so often a server's health and the GPUs' memory are looked at"),
    "heartbeat_s": (10.0, "so often running attempts are held against the budget (hard stop 9)"),
}
"""Limit to its highest value, and to the watch that a longer wait would switch off."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the controller waits for machinery, in seconds; no measured time depends on them.

    They bound faults and decide nothing about a measurement; the times of the load itself are the
    protocol's. None of them is stretched by the time scale.
    """

    ready_s: Positive = 900.0
    """From the server's start to its first healthy answer; compiling a model takes minutes."""
    exit_s: Positive = 120.0
    """Beyond the server's shutdown timeout, until it is killed; a trace may still be written."""
    grace_s: Positive = 10.0
    """Between SIGTERM and SIGKILL of what the server left behind."""
    memory_s: Positive = 60.0
    """Until the GPUs' memory must be back at zero."""
    client_margin_s: Positive = 300.0
    """Beyond the client's own watchdogs, until it is stopped."""
    analysis_s: Positive = 3600.0
    """For the analysis of one run."""
    probe_s: Positive = 5.0
    """For one answer of ``/health``."""
    sample_s: Positive = 15.0
    """Between two looks at the GPUs' processes while the load runs; 60 at most."""
    look_s: Positive = 0.25
    """Between two looks at the same thing; 10 at most."""
    heartbeat_s: Positive = 5.0
    """Between two writes of ``controller.json``, and two looks at the budget; 10 at most."""

    def __post_init__(self) -> None:
        for name, (most_s, watch) in _OFTEN_ENOUGH.items():
            if getattr(self, name) > most_s:
                raise ValueError(f"{name} is at most {most_s:g} s: {watch}")


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything else that was chosen at the start; ``Campaign.options``."""

    limits: Limits = Limits()
    server_command: str = ""
    """Template instead of the protocol's ``[server].command``; empty for the protocol's."""
    python: str = ""
    """Interpreter of the engine's environment; empty runs the template's own program."""
    engine_environment: dict[str, str] = {}
    """Further variables of the server; none of those that the protocol freezes."""
    base_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port of the first slot, the others follow; 0 takes a free port for every attempt."""
    only: list[str] = []
    """Cells or patterns; empty for the whole protocol."""
    gpus: list[Annotated[int, Meta(ge=0)]] = []
    """Physical GPUs that may be used; empty for the protocol's."""
    serial: bool = False
    """One run at a time, whatever the co-location gate allows."""
    host_file: str = ""
    """Description of a host instead of the real one (tests, plans)."""
    bind_cpus: bool = True
    """Bind server and client to the protocol's CPU masks."""
    ray_address: str = ""
    """``HOST:PORT`` of the Ray head; empty for ``RAY_ADDRESS`` at every start and resume."""
    ray_scratch: str = ""
    """Folder on Ray nodes that do not see the campaign's; empty for their temporary folder."""
    ray_ship: bool = False
    """Send files to every Ray node, also to one that sees the campaign's folder."""


@dataclass(frozen=True)
class Sources:
    """Where the manifests lie; private, and no part of any artefact but a command log."""

    private: Path | None
    manifests: Mapping[str, Path]
    """Pattern to manifest, where it does not lie in the private folder under its usual name."""

    def manifest(self, pattern: str) -> Path:
        """Return the pattern's manifest.

        Raises:
            InputError: neither ``--manifest`` nor ``--private`` says where it is.
        """
        if pattern in self.manifests:
            return self.manifests[pattern]
        if self.private is None:
            raise InputError(
                f"no manifest for {pattern}: give --private DIR or --manifest {pattern}=FILE"
            )
        return self.private / f"{pattern}.jsonl"

    def names(self) -> dict[str, str]:
        """Return each private path with the name that stands for it in records."""
        found = {str(path): f"${{MANIFEST_{name}}}" for name, path in self.manifests.items()}
        if self.private is not None:
            found[str(self.private)] = "${PRIVATE}"
        return found

    def redact(self, text: str) -> str:
        """Replace private paths by the names of what they are."""
        for path, name in self.names().items():
            text = text.replace(path, name)
        return text

    def flags(self) -> list[str]:
        """Return the flags that hand these places to a controller."""
        flags = [] if self.private is None else ["--private", str(self.private)]
        for pattern, path in sorted(self.manifests.items()):
            flags += ["--manifest", f"{pattern}={path}"]
        return flags


def make_sources(private: Path | None, manifests: Sequence[str]) -> Sources:
    """Return the places of ``--private`` and ``--manifest P01=FILE``, absolute.

    Raises:
        InputError: a text has no ``=``, names a pattern twice, or cannot stand in a record.
    """
    found = {key: Path(value).absolute() for key, value in pairs(manifests, "--manifest").items()}
    sources = Sources(None if private is None else private.absolute(), found)
    check_text("a private path", *sources.flags())
    return sources


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` texts as a mapping.

    Raises:
        InputError: a text has no ``=``, no name, or repeats a name.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InputError(f"{flag} {text!r} is not NAME=VALUE")
        if name in found:
            raise InputError(f"{flag} names {name} twice")
        found[name] = value
    return found


def limits_of(texts: Sequence[str]) -> Limits:
    """Return the limits with ``NAME=VALUE`` changes.

    Raises:
        InputError: no such limit, or a value that it cannot have.
    """
    try:
        limits = msgspec.convert(pairs(texts, "--limit"), Limits, strict=False)
    except msgspec.ValidationError as error:
        unknown = "unknown field" in str(error)
        known = f" (there are {', '.join(Limits.__struct_fields__)})" if unknown else ""
        raise InputError(f"--limit: {error}{known}") from error
    for name, seconds in msgspec.structs.asdict(limits).items():
        if not math.isfinite(seconds):
            raise InputError(f"--limit {name}={seconds:g} is no time that a wait can have")
    return limits


def check_environment(values: Mapping[str, str]) -> None:
    """Refuse variables of the server that no process can have, and the campaign's own.

    Raises:
        InputError: names the variable.
    """
    for name in values:
        if not usable_environment(name):
            raise InputError(f"--engine-env {name}: is no variable that a server can be given")


def check_variables(values: Mapping[str, str], declared: Mapping[str, str]) -> None:
    """Refuse values of unknown variables, and of those that the controller fills in.

    Raises:
        InputError: names the variable.
    """
    for name in values:
        if not _NAME.fullmatch(name) or name in RESERVED_VARIABLES:
            raise InputError(f"--var {name}: the controller fills this one in itself")
        if name not in declared:
            known = ", ".join(sorted(set(declared) - RESERVED_VARIABLES)) or "none"
            raise InputError(f"--var {name}: the protocol has no such variable; it has {known}")
    missing = sorted(set(declared) - RESERVED_VARIABLES - set(values))
    if missing:
        raise InputError(f"no value for the variable ${{{missing[0]}}}: --var {missing[0]}=VALUE")


def check_time_scale(scale: float, engine: Literal["vllm", "sim", "sim-virtual"]) -> None:
    """Refuse a factor without a meaning.

    Raises:
        InputError: none that a clock can follow, or other than 1 in virtual time.
    """
    if not 1 / _SCALE_MAX <= scale <= _SCALE_MAX:
        limits = f"a positive number between {1 / _SCALE_MAX:g} and {_SCALE_MAX:g}"
        raise InputError(f"--time-scale {scale:g} must be {limits}")
    if engine == "sim-virtual" and scale != 1.0:
        raise InputError("--time-scale has no meaning in virtual time, which costs no waiting")


def options_of(campaign: Campaign) -> Options:
    """Return a campaign's further options.

    Raises:
        SchemaError: they were written by another version.
    """
    try:
        return msgspec.convert(campaign.options, Options)
    except msgspec.ValidationError as error:
        raise SchemaError(f"campaign.json: options: {error}") from error


def clean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment without what would steer a run from outside."""
    steering = ("OPPROF_", "VLLM_OPPROF_")
    kept = {k: v for k, v in environment.items() if not k.startswith(steering)}
    for name in ("OPPROF_API_KEY",):
        if name in environment:
            kept[name] = environment[name]
    if places := environment.get("PYTHONPATH"):
        # Children have working folders of their own.
        kept["PYTHONPATH"] = os.pathsep.join(
            str(Path(place).absolute()) for place in places.split(os.pathsep) if place
        )
    return kept


def own_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment in which a child runs this very package, which was hashed."""
    kept = clean_environment(environment)
    places = [str(PACKAGE.parent), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))
    return kept


def sources_from_log(log: Path) -> Sources:
    """Return the private places that the last controller was started with.

    Raises:
        InputError: no command of a controller is recorded; give ``--private`` or ``--manifest``.
    """
    words = last_command(log, "controller")
    if words is None:
        raise InputError("records no controller: give --private DIR or --manifest", path=log)
    values: dict[str, list[str]] = {"--private": [], "--manifest": []}
    for flag, value in itertools.pairwise(words):
        if flag in values:
            values[flag].append(value)
    private = values["--private"]
    return make_sources(Path(private[-1]) if private else None, values["--manifest"])
