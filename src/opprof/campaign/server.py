"""The server of one attempt: its command from the protocol, its health, its port.

The protocol's ``[server].command`` is a template of words; ``${NAME}`` inside a word that begins
with ``{`` is a JSON string's content and is escaped as such. The campaign adds what the
protocol leaves to it: the configuration's flags, address, ``--shutdown-timeout``.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof.artifacts.campaign import EngineKind
from opprof.campaign.frozen import frozen_of
from opprof.campaign.listener import holder, listens
from opprof.campaign.options import Options, clean_environment, own_environment
from opprof.campaign.processes import Child
from opprof.client.endpoint import parse_endpoint
from opprof.client.http import fetch
from opprof.client.response import BadResponse
from opprof.engines.sim.flags import read_flags
from opprof.errors import EnvironmentFailure, InputError
from opprof.files import read_bytes
from opprof.host.procfs import ProcFs
from opprof.protocol import Protocol, expand
from opprof.protocol.check_commands import GPU_IDS, RUN_VARIABLES, variables_of
from opprof.protocol.model import Config

HOST = "127.0.0.1"
_TAIL_BYTES = 2000
_VLLM_MODULE = ("-m", "vllm.entrypoints.openai.api_server", "--model")


@dataclass(frozen=True)
class RunPlace:
    """What is filled into a launch for one attempt (``check_commands.RUN_VARIABLES``)."""

    run: str
    folder: Path
    """The run directory."""
    port: int
    devices: str | None
    """As ``CUDA_VISIBLE_DEVICES`` lists them; None on a host without GPUs."""

    @property
    def values(self) -> dict[str, str]:
        """Variables of a template to their values."""
        return {
            "TRACE_TMP": str(self.folder / "traces"),
            "PORT": str(self.port),
            GPU_IDS: self.devices or "",
            "RUN": self.run,
            "RUN_DIR": str(self.folder),
        }


@dataclass(frozen=True)
class Launch:
    """How one configuration's server is started; what belongs to one run is still open."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Added to the campaign's own environment."""

    def command(self, place: RunPlace) -> list[str]:
        """Return the exact command of one attempt."""
        return [_fill(word, place.values) for word in self.words]

    def variables(self, place: RunPlace) -> dict[str, str]:
        """Return the server's own variables; without GPUs none that lists them."""
        return {
            name: expand(text, place.values)
            for name, text in self.environment.items()
            if place.devices is not None or GPU_IDS not in variables_of(text)
        }


def launch_of(
    protocol: Protocol,
    config: Config,
    engine: EngineKind,
    variables: Mapping[str, str],
    options: Options,
    *,
    python: str,
    time_scale: float,
    seed: int,
) -> Launch:
    """Return the launch configuration of a server configuration.

    Args:
        protocol: in force.
        config: the configuration's row.
        engine: ``vllm`` or an embedded one.
        variables: values of the protocol's variables.
        options: of the campaign.
        python: interpreter that has this package, for an embedded engine.
        time_scale: the embedded engine runs faster by it.
        seed: of the embedded engine.

    Raises:
        InputError: the template has an open variable or is no vLLM command, or the protocol
            leaves out the shutdown timeout.
    """
    template = options.server_command or protocol.file.server.command
    values = {name: f"${{{name}}}" for name in RUN_VARIABLES}
    values |= {**variables, "TP": str(config.tensor_parallel_size)}
    words = [_fill(word, values) for word in template.split()]
    if not words:
        raise InputError("the protocol's [server].command is empty")
    if engine == "vllm":
        words = _with_python(words, options.python)
        # A template that names a setting wins over the row's flag, which would come second.
        words += _missing(words, config.flags)
    else:
        words = _embedded(words, protocol, config, python, seed)
        # Virtual time is as fast as it can be; real time runs faster by the declared scale.
        pace = ["--time-factor", repr(1.0 / time_scale)]
        words += ["--virtual"] if engine == "sim-virtual" else pace
    timeout = f"{frozen_of(protocol.file).shutdown_timeout_s:g}"
    words += ["--host", HOST, "--port", "${PORT}", "--shutdown-timeout", timeout]
    return Launch(tuple(words), _environment(protocol, options, values))


def _environment(protocol: Protocol, options: Options, values: Mapping[str, str]) -> dict[str, str]:
    """Return the protocol's variables of the server and the campaign's further ones.

    Raises:
        InputError: the campaign would change one that the protocol freezes.
    """
    frozen = protocol.file.server.environment
    changed = sorted(set(frozen) & set(options.engine_environment))
    if changed:
        raise InputError(
            f"--engine-env {changed[0]}: the protocol's [server.environment] freezes it"
        )
    own = {name: expand(text, values) for name, text in frozen.items()}
    return own | dict(options.engine_environment)


def _with_python(words: Sequence[str], python: str) -> list[str]:
    """Run ``vllm serve MODEL`` by the module of a given interpreter."""
    if not python:
        return list(words)
    if list(words[:2]) != ["vllm", "serve"] or len(words) < 3:
        raise InputError("--python needs a server command that begins with `vllm serve MODEL`")
    return [python, *_VLLM_MODULE, *words[2:]]


def _missing(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the configuration's flags.

    Raises:
        InputError: the template sets one of them as well, so that two values would compete.
    """
    twice = next((flag for flag in flags if flag.startswith("--") and flag in words), None)
    if twice is not None:
        raise InputError(f"the server command and the configuration both set {twice}")
    return list(flags)


def _embedded(
    words: Sequence[str],
    protocol: Protocol,
    config: Config,
    python: str,
    seed: int,
) -> list[str]:
    """The same configuration on the embedded engine, which has vLLM's flags but not all of them."""
    settings = protocol.file.server
    command = [python, "-m", "opprof", "serve-sim", _model(words)]
    command += ["--tensor-parallel-size", str(config.tensor_parallel_size)]
    command += ["--max-num-seqs", str(config.max_num_seqs)]
    command += ["--max-num-batched-tokens", str(config.max_num_batched_tokens)]
    for name, on in (
        ("enable-chunked-prefill", settings.chunked_prefill),
        ("enable-prefix-caching", settings.prefix_caching),
    ):
        command.append(f"--{name}" if on else f"--no-{name}")
    for flag in ("--profiler-config", "--served-model-name"):
        if flag in words:
            command += words[words.index(flag) : words.index(flag) + 2]
    command += read_flags([*words, *config.flags]).words
    # A run that is made again, after a crash or as its exact rerun, meets its own numbers again.
    return [*command, "--seed", str(seed), "--stream", "${RUN}"]


def _model(words: Sequence[str]) -> str:
    if list(words[:2]) == ["vllm", "serve"] and len(words) > 2:
        return words[2]
    if "--model" in words[:-1]:
        return words[words.index("--model") + 1]
    raise InputError("the server command names no model (`vllm serve MODEL ...`)")


def served_model(launch: Launch) -> str:
    """Return the model's name as the server knows it."""
    words = launch.words
    if "--served-model-name" in words:
        return words[words.index("--served-model-name") + 1]
    if "--model" in words:
        return words[words.index("--model") + 1]
    return words[words.index("serve-sim" if "serve-sim" in words else "serve") + 1]


def server_environment(
    launch: Launch,
    marks: Mapping[str, str],
    place: RunPlace,
    *,
    own: bool,
) -> dict[str, str]:
    """Return the whole environment of a server; ``own``: it runs this package."""
    environment = own_environment() if own else clean_environment()
    environment |= launch.variables(place) | dict(marks)
    environment["VLLM_OPPROF_DIR"] = str(place.folder / "opprof")
    # vLLM's engine and workers set their process titles; without this the title overwrites the
    # environment that /proc shows, and with it the campaign's mark.
    environment["SPT_NOENV"] = "1"
    if place.devices is not None:
        # Indices are the driver's, and CUDA's own default order is another one.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = place.devices
    return environment


def _fill(word: str, values: Mapping[str, str]) -> str:
    if word.startswith("{"):
        values = {k: msgspec.json.encode(v).decode()[1:-1] for k, v in values.items()}
    return expand(word, values)


def free_port(preferred: int) -> int:
    """Return ``preferred``, or a port that is free now for 0.

    Raises:
        EnvironmentFailure: something listens there already: it would be measured instead.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, preferred))
        except OSError as error:
            by = holder(preferred)
            reason = f"by {by}" if by else error.strerror or str(error)
            raise EnvironmentFailure(f"port {preferred} is in use: {reason}") from error
        port: int = probe.getsockname()[1]
        return port


async def wait_healthy(child: Child, port: int, options: Options, log: Path) -> None:
    """Wait until ``/health`` answers 200, and see to it that this server answered.

    Raises:
        EnvironmentFailure: the server ended, or was not healthy in time, or another process'
            server answers on its port.
    """
    limits, endpoint = options.limits, parse_endpoint(f"http://{HOST}:{port}", ())
    loop = asyncio.get_running_loop()
    give_up = loop.time() + limits.ready_s
    while loop.time() < give_up:
        if child.process.returncode is not None:
            code = child.process.returncode
            raise EnvironmentFailure(f"the server ended with {code} at its start: {tail(log)}")
        try:
            async with asyncio.timeout(limits.probe_s):
                status, _ = await fetch(endpoint, "GET", "/health")
            if status == 200:
                # A server that has just ended cannot be the one that answered.
                if child.process.returncode is None and not _is_ours(child, port):
                    raise EnvironmentFailure(
                        f"port {port} answers, but another process listens there: the server of "
                        "this run would not have been measured"
                    )
                return
        except (OSError, BadResponse, TimeoutError):
            pass  # Not yet: the loop's deadline decides.
        await asyncio.sleep(limits.look_s)
    raise EnvironmentFailure(f"the server was not healthy in {limits.ready_s:g} s: {tail(log)}")


def _is_ours(child: Child, port: int) -> bool:
    group = ProcFs().group(child.record.pgid)
    return listens(port, [process.pid for process in group])


def tail(log: Path) -> str:
    """Return the last words of a log as one line."""
    try:
        size = log.stat().st_size
        data = read_bytes(log) if size <= _TAIL_BYTES else _last_bytes(log)
    except (InputError, OSError):
        return "(no log)"
    lines = data.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-5:]) or "(empty log)"


def _last_bytes(log: Path) -> bytes:
    with log.open("rb") as stream:
        stream.seek(-_TAIL_BYTES, os.SEEK_END)
        return stream.read()
