"""``opprof serve-sim``: the embedded engine behind vLLM's HTTP interface and flags."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from opprof.cli.options import SEED
from opprof.engines.sim import DIRECTORY_VARIABLE
from opprof.errors import EnvironmentFailure, InputError

_PROFILER_KEYS = frozenset(
    {
        "profiler",
        "torch_profiler_dir",
        "torch_profiler_with_stack",
        "torch_profiler_record_shapes",
        "torch_profiler_with_memory",
        "torch_profiler_with_flops",
        "torch_profiler_use_gzip",
        "torch_profiler_dump_cuda_time_total",
        "ignore_frontend",
        "delay_iterations",
        "max_iterations",
        "wait_iterations",
        "warmup_iterations",
        "active_iterations",
    }
)
"""vLLM 0.24.0's profiler configuration; what only changes a real trace's size is accepted."""


@click.command("serve-sim")
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0: a free one, which is printed.",
)
@click.option("--served-model-name", help="Name in the API [the model argument].")
@click.option(
    "--tensor-parallel-size", "-tp", type=int, default=1, show_default=True, help="Ranks: 1 or 2."
)
@click.option(
    "--max-num-seqs",
    type=int,
    help="Sequences at once [1024, as vLLM on a device of 70 GiB or more]",
)
@click.option("--max-num-batched-tokens", type=int, help="Tokens of a step [8192, likewise].")
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    default=40960,
    show_default=True,
    help="Most tokens of a request, prompt and answer.",
)
@click.option("--enforce-eager", is_flag=True, help="No graphs: every kernel is launched.")
@click.option(
    "--enable-chunked-prefill/--no-enable-chunked-prefill",
    default=True,
    help="Prefill a prompt over several steps (default: on).",
)
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=True,
    help="Keep prompts' blocks for later requests (default: on).",
)
@click.option(
    "--async-scheduling/--no-async-scheduling",
    default=True,
    help="Two steps in flight (default: on).",
)
@click.option("--num-gpu-blocks-override", type=click.IntRange(min=1), help="KV blocks.")
@click.option(
    "--profiler-config",
    help='JSON as vLLM\'s, for instance {"profiler": "torch", "torch_profiler_dir": "RUN/traces", '
    '"warmup_iterations": 2, "active_iterations": 8}; without it there are no profile routes.',
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds that SIGTERM leaves running requests; 0 ends at once, as vLLM's default does.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the noise.")
@click.option(
    "--stream",
    default="",
    metavar="NAME",
    help="The seed's stream of this name: every run of a campaign has its own.",
)
@click.option(
    "--time-factor",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="The engine is this much faster; declare 1/FACTOR as the client's --time-scale.",
)
@click.option(
    "--virtual",
    is_flag=True,
    help="Virtual time, in lock step with `opprof run --base-url lockstep://HOST:PORT`: nothing "
    "depends on this machine's speed.",
)
def serve_sim(**options: Any) -> None:
    """Serve MODEL (any name) on the embedded engine: simulated, no measurement.

    The folder in $VLLM_OPPROF_DIR gets the Layer-1 stream, as from the plugin.
    """
    if options["virtual"]:
        if options["time_factor"] != 1:
            raise InputError("--virtual has no --time-factor: virtual time is as fast as it can be")
        _serve_virtual(options)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _in_loop(_serve(options))


def _in_loop(coroutine: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)


async def _serve(options: dict[str, Any]) -> None:
    from opprof.engines.sim.server import RealClock, SimServer

    loop = asyncio.get_running_loop()
    engine, _ = _engine(options, RealClock(loop), time.time_ns)
    server = SimServer(engine, options["served_model_name"] or options["model"])
    try:
        listener = await loop.create_server(
            server.connection, options["host"], options["port"], backlog=4096
        )
    except OSError as error:
        raise EnvironmentFailure(f"cannot listen: {error.strerror or error}") from error
    _say_listening(listener.sockets[0].getsockname()[1])
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    await signals.get()
    listener.close()
    await _drain(server, options["shutdown_timeout"], signals)


def _say_listening(port: int) -> None:
    click.echo("SIMULATED: opprof-sim, no measurement comes out of this server", err=True)
    click.echo(f"listening on {port}")


def _serve_virtual(options: dict[str, Any]) -> None:
    import socket

    from opprof.rehearsal.lockstep import LockstepServer, RemoteClock

    clock = RemoteClock()
    engine, recorder = _engine(options, clock, clock.wall_ns)
    name = options["served_model_name"] or options["model"]
    server = LockstepServer(
        engine, clock, recorder, name, shutdown_timeout_s=options["shutdown_timeout"]
    )
    try:
        listener = socket.create_server((options["host"], options["port"]), backlog=64)
    except OSError as error:
        raise EnvironmentFailure(f"cannot listen: {error.strerror or error}") from error
    with listener:
        _say_listening(listener.getsockname()[1])
        server.serve(listener)


async def _drain(server: Any, timeout_s: float, signals: asyncio.Queue[int]) -> None:
    """Let running requests end, at most ``timeout_s`` or until a second signal."""
    idle = asyncio.Event()
    server.on_idle = idle.set
    server.draining = True
    if server.outstanding and timeout_s > 0:
        waits = [asyncio.ensure_future(idle.wait()), asyncio.ensure_future(signals.get())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    if server.outstanding:
        click.echo(f"{server.outstanding} requests were still running", err=True)
        server.engine.kill("killed: requests were still running")
        return
    while not server.engine.is_idle:
        await asyncio.sleep(0.01)
    server.engine.stop()


def _engine(options: dict[str, Any], clock: Any, wall_ns: Callable[[], int]) -> tuple[Any, Any]:
    """Return the engine and its recorder (None without $VLLM_OPPROF_DIR)."""
    from opprof.engines.sim.config import (
        DEFAULT_MAX_NUM_BATCHED_TOKENS,
        DEFAULT_MAX_NUM_SEQS,
        SimConfig,
    )
    from opprof.engines.sim.cost import load_cost
    from opprof.engines.sim.engine import SimEngine
    from opprof.engines.sim.kineto import TraceWriter
    from opprof.engines.sim.profiler import Profiler
    from opprof.engines.sim.seeds import run_seed
    from opprof.engines.sim.server import faster

    seed = run_seed(options["seed"], options["stream"]) if options["stream"] else options["seed"]
    cost = faster(load_cost(), options["time_factor"])
    profiler_config = _profiler_config(options["profiler_config"])
    config = SimConfig(
        model=options["model"],
        tensor_parallel_size=options["tensor_parallel_size"],
        max_num_seqs=options["max_num_seqs"] or DEFAULT_MAX_NUM_SEQS,
        max_num_batched_tokens=options["max_num_batched_tokens"] or DEFAULT_MAX_NUM_BATCHED_TOKENS,
        chunked_prefill=options["enable_chunked_prefill"],
        prefix_caching=options["enable_prefix_caching"],
        async_scheduling=options["async_scheduling"],
        max_model_len=options["max_model_len"],
        kv_blocks=options["num_gpu_blocks_override"],
        enforce_eager=options["enforce_eager"],
        profiler=profiler_config,
    )
    config.check(cost)
    folder = os.environ.get(DIRECTORY_VARIABLE)
    recorder = None if not folder else _recorder(Path(folder), config, cost, clock, wall_ns)
    profiler = None
    if profiler_config is not None:
        writer = TraceWriter(
            profiler_config.trace_dir,
            cost,
            config.tensor_parallel_size,
            seed=seed + 1,
            wall_ns=wall_ns,
            mono_ns=clock.now_ns,
            step_annotations=recorder is not None,
        )
        events = None if not folder else Path(folder) / "engine-0.profiler.ndjson"
        profiler = Profiler(
            profiler_config, cost.profiler, config.tensor_parallel_size, writer.write, events
        )
    engine = SimEngine(config, cost, clock, seed=seed, recorder=recorder, profiler=profiler)
    return engine, recorder


def _recorder(folder: Path, config: Any, cost: Any, clock: Any, wall_ns: Callable[[], int]) -> Any:
    from opprof.engines.recorder.stream import set_aside
    from opprof.engines.sim.layer1 import StepRecorder
    from opprof.files import write_atomic

    try:
        recorder = StepRecorder(
            folder / "engine-0.jsonl",
            config.header(),
            now_ns=clock.now_ns,
            wall_ns=wall_ns,
        )
        set_aside(folder / "engine-0.profiler.ndjson")
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write the stream: {error.strerror or error}", path=folder
        ) from error
    report = msgspec.json.format(msgspec.json.encode(config.report(cost)), indent=1)
    write_atomic(folder / "engine-config.json", report + b"\n")
    return recorder


def _profiler_config(text: str | None) -> Any:
    from opprof.engines.sim.config import ProfilerConfig

    if text is None:
        return None
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(f"--profiler-config is no JSON object: {error}") from error
    unknown = sorted(set(values) - _PROFILER_KEYS)
    if unknown:
        raise InputError(f"--profiler-config: unknown key {unknown[0]!r}")
    if values.get("profiler") != "torch" or not isinstance(values.get("torch_profiler_dir"), str):
        raise InputError("--profiler-config needs profiler 'torch' and a torch_profiler_dir")
    counts = {}
    for key, least in (("wait_iterations", 0), ("warmup_iterations", 0), ("active_iterations", 1)):
        value = values.get(key, least)
        if not isinstance(value, int) or value < least:
            raise InputError(f"--profiler-config: {key} must be an integer of at least {least}")
        counts[key] = value
    if counts["wait_iterations"]:
        raise InputError("--profiler-config: the embedded engine has wait_iterations 0 only")
    folder = Path(values["torch_profiler_dir"])
    return ProfilerConfig(folder, counts["warmup_iterations"], counts["active_iterations"])
