"""Expected against effective: what the server really runs, before any load is offered.

A changed default "is a stop condition, not permission to edit the protocol" (protocol, "Server
configuration axes"). Three sources are compared: the frozen protocol, ``engine-config.json`` (read
by the plugin from the engine's objects) and the server's log. Which differences stop:

- every value the protocol fixes: engine and its version, dtype, tensor-parallel size, MNS, MBT,
  chunked prefill, prefix caching, the profiler's schedule, a positive shutdown timeout (A-P3-5);
- pipeline or data parallelism above 1, which no configuration of the protocol has;
- the log and the engine's objects contradicting each other;
- anything that differs from the campaign's first server of the same configuration (graph mode and
  capture sizes, back ends, model length, runner, plugin and hooked functions, Python, torch).

The MoE back end is an expectation that every run records ("Primary backend expectation"): another
one than expected is told and stops nothing; a change between runs of one configuration stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from opprof.artifacts.common import Gate, Value
from opprof.artifacts.engine import EngineReport
from opprof.campaign.server_log import ServerLog
from opprof.protocol.model import Config, Layer2, Pinned, Server


class Difference(Struct, frozen=True):
    """One value that is not what it should be."""

    field: str
    expected: Any
    seen: Any
    against: str
    """What it was compared with: ``protocol``, ``log`` or ``first run``."""

    def __str__(self) -> str:
        return f"{self.field} {self.seen}, {self.against}: {self.expected}"


class Expected(Struct, frozen=True):
    """What the protocol says of one configuration."""

    config: Config
    server: Server
    pinned: Pinned
    layer2: Layer2


def effective_config(
    expected: Expected,
    report: EngineReport,
    log: ServerLog | None = None,
    first: EngineReport | None = None,
) -> Gate:
    """Return the gate ``effective_config``.

    Args:
        expected: The protocol's words on the configuration.
        report: ``engine-config.json`` of the server that runs now.
        log: Its log; None where the engine writes none.
        first: ``engine-config.json`` of the campaign's first server of this configuration.
    """
    found = differences(expected, report, log, first)
    pinned = expected.pinned
    numbers: dict[str, Value] = {
        "differences": len(found),
        "moe_backend": report.config.moe_backend,
        "moe_backend_expected": pinned.moe_backend_expected,
        "moe_backend_as_expected": report.config.moe_backend == pinned.moe_backend_expected,
        "attention_backend": report.config.attention_backend,
        "cudagraph_mode": report.config.cudagraph_mode,
        "compile_cache_key": cache_key(report, log),
        "simulated": report.simulated,
    }
    for each in found:
        numbers[f"{each.field}.seen ({each.against})"] = _value(each.seen)
        numbers[f"{each.field}.expected ({each.against})"] = _value(each.expected)
    if log is not None:
        numbers["not_in_log"] = ", ".join(_silent(log)) or None
    reason = "; ".join(map(str, found)) or "as declared"
    return Gate(
        name="effective_config",
        outcome="fail" if found else "pass",
        reason=reason,
        numbers=numbers,
        meaning="The server runs with other settings than the frozen configuration.",
        action="Find the changed default or flag; a deviation needs a dated amendment.",
    )


def differences(
    expected: Expected,
    report: EngineReport,
    log: ServerLog | None = None,
    first: EngineReport | None = None,
) -> list[Difference]:
    """Return everything that is not as it should be, with what was expected and what was seen."""
    found = _compare(protocol_values(expected, report.simulated), _seen(report), "protocol")
    if log is not None:
        # Where the log is silent nothing is compared: vLLM logs MNS only where it was given.
        told = {name: value for name, value in _log_values(log).items() if value is not None}
        found += _compare(told, _seen(report), "log")
    if first is not None:
        found += _compare(_fingerprint(first), _fingerprint(report), "first run")
    return found


def protocol_values(expected: Expected, simulated: bool) -> dict[str, Any]:
    """Return the values that the protocol fixes, by field.

    An embedded engine says so of itself, so its name is not compared.
    """
    config, server, layer2 = expected.config, expected.server, expected.layer2
    values: dict[str, Any] = {
        "engine": expected.pinned.engine,
        "engine_version": expected.pinned.engine_version,
        "dtype": expected.pinned.dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "chunked_prefill": server.chunked_prefill,
        "prefix_caching": server.prefix_caching,
        "profiler_schedule": {
            "wait": layer2.wait_iterations,
            "warmup": layer2.warmup_iterations,
            "active": layer2.active_iterations,
        },
        "workers": config.tensor_parallel_size,
        "workers_error": None,
        "prefix_counters": True,
        "shutdown_timeout_s": server.shutdown_timeout_s,
    }
    if simulated:
        # It drains by its server's flag, which no report tells.
        del values["engine"], values["shutdown_timeout_s"]
    return values


def cache_key(report: EngineReport, log: ServerLog | None = None) -> str | None:
    """Return the compile-cache key: folder names under ``torch_compile_cache``, joined by ``+``.

    All ranks of one server share a key. Null where nothing was compiled (``--enforce-eager``, an
    embedded engine) or nothing told it.
    """
    keys = {worker.compile_cache_key for worker in report.workers} - {None}
    if not keys and log is not None:
        keys = set(log.compile_cache_keys)
    return "+".join(sorted(filter(None, keys))) or None


def compile_cache_gate(seen: str | None, first: str | None, *, compiled: bool) -> Gate:
    """Return the gate ``compile_cache_key`` (hard stop 1: a run's folder must not change the key).

    Args:
        seen: :func:`cache_key` of this server.
        first: Of the campaign's first server of the configuration (its burn-in); null for that one.
        compiled: Whether this engine compiles at all.
    """
    numbers: dict[str, Value] = {"key": seen, "first_key": first}
    meaning = "Another key compiles again: time and kernels differ from the other runs."
    if not compiled:
        outcome, reason = "not_evaluable", "this engine compiles nothing"
    elif seen is None:
        outcome, reason = "fail", "neither the engine nor its log tells a compile-cache key"
    elif first is not None and seen != first:
        outcome, reason = "fail", f"{seen}, the first server of this configuration had {first}"
    else:
        outcome, reason = "pass", f"{seen}"
    return Gate(
        name="compile_cache_key",
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        numbers=numbers,
        meaning=meaning,
        action="Take what differs per run (a folder, a port) out of what the engine hashes.",
    )


def hash_gate(expected: Mapping[str, str], seen: Mapping[str, str | None]) -> Gate:
    """Return the gate ``hashes``: everything frozen is what is there now (hard stop 1, A-P3-2).

    A hash that is expected and was not found counts as a difference; further ones are ignored.
    """
    wrong = {name: seen.get(name) for name in expected if seen.get(name) != expected[name]}
    reasons = [
        f"{name} is {'absent' if found is None else found[:12]}, frozen as {expected[name][:12]}"
        for name, found in sorted(wrong.items())
    ]
    numbers: dict[str, Value] = {"compared": len(expected), "different": len(wrong)}
    numbers |= {f"{name}.expected": expected[name] for name in sorted(wrong)}
    numbers |= {f"{name}.seen": found for name, found in sorted(wrong.items())}
    return Gate(
        name="hashes",
        outcome="fail" if wrong else "pass",
        reason="; ".join(reasons) or f"{len(expected)} hashes as frozen",
        numbers=numbers,
        meaning="What is there now is not what the campaign is bound to.",
        action="Restore the frozen file, or amend the protocol for runs that are still to come.",
    )


def engine_tested(report: EngineReport) -> Gate:
    """Return the gate ``engine_tested``: hooked functions are those that the plugin was tested on.

    Their hashes stand where the protocol names patch checksums (hard stop 1).
    """
    origin = report.provenance
    numbers: dict[str, Value] = {
        "engine_version": origin.engine_version,
        "hooked": len(origin.hooked),
        "differences": len(origin.differences),
    }
    return Gate(
        name="engine_tested",
        outcome="pass" if origin.tested else "fail",
        reason="; ".join(origin.differences) or ("as tested" if origin.tested else "untested"),
        numbers=numbers,
        meaning="The recorder runs inside an engine version it was not tested with.",
        action="Record with the pinned engine, or check the listed differences.",
    )


def server_health(
    log: ServerLog | None,
    *,
    exit_status: int | None,
    signalled: bool,
    oom_kills: tuple[int | None, int | None] = (None, None),
) -> Gate:
    """Return the gate ``server_health`` (hard stop 2: GPU out of memory, server error).

    Args:
        log: The server's log until it was told to end; None where it has none.
        exit_status: As ``subprocess`` gives it; null while it runs or when nobody saw the end.
        signalled: Whether the controller told it to end; without that every end is a fault.
        oom_kills: The kernel's counter before and after the run (``HostState.oom_kills``).
    """
    faults = []
    counts = {} if log is None else log.incident_counts
    for kind, count in counts.items():
        assert log is not None
        first = next(each for each in log.incidents if each.kind == kind)
        where = f" [{first.where}]" if first.where else ""
        faults.append(f"{kind} x{count}, first at server.log:{first.line}{where}")
    if not signalled and exit_status is not None:
        faults.append(f"the server ended by itself with {exit_status}")
    before, after = oom_kills
    killed = None if before is None or after is None else after - before
    if killed:
        faults.append(f"the kernel killed {killed} processes for want of memory")
    numbers: dict[str, Value] = {"exit_status": exit_status, "oom_kills": killed}
    numbers |= {f"log.{kind}": count for kind, count in counts.items()}
    if log is not None:
        numbers["log.after_shutdown"] = log.incidents_after_shutdown
    return Gate(
        name="server_health",
        outcome="fail" if faults else "pass",
        reason="; ".join(faults) or "no error before it was told to end",
        numbers=numbers,
        meaning="The server failed while it was measured.",
        action="Read server.log at the named line; one exact rerun is allowed after review.",
    )


def observed(expected: Expected, report: EngineReport, log: ServerLog | None) -> dict[str, Any]:
    """Return ``Environment.effective_config``: expected, seen by the engine, seen in the log."""
    return {
        "expected": protocol_values(expected, report.simulated),
        "engine": _seen(report) | _fingerprint(report),
        "log": {} if log is None else {k: v for k, v in _log_values(log).items() if v is not None},
        "moe_backend_expected": expected.pinned.moe_backend_expected,
    }


def _seen(report: EngineReport) -> dict[str, Any]:
    """What the engine's objects say, by the same names as the protocol's and the log's values."""
    config = report.config
    return {
        "engine": report.engine,
        "engine_version": report.provenance.engine_version,
        "dtype": config.dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": report.pipeline_parallel_size,
        "data_parallel_size": report.data_parallel_size,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "chunked_prefill": config.chunked_prefill,
        "prefix_caching": config.prefix_caching,
        "profiler_schedule": dict(report.profiler_schedule),
        "workers": len(report.workers),
        "workers_error": report.workers_error,
        "prefix_counters": report.prefix_counters,
        "shutdown_timeout_s": report.shutdown_timeout_s,
        "max_model_len": report.max_model_len,
        "cudagraph_mode": config.cudagraph_mode,
        "cudagraph_capture_sizes": list(config.cudagraph_capture_sizes),
        "async_scheduling": config.async_scheduling,
    }


def _log_values(log: ServerLog) -> dict[str, Any]:
    return {
        "engine_version": log.engine_version,
        "dtype": log.dtype,
        "tensor_parallel_size": log.tensor_parallel_size,
        "pipeline_parallel_size": log.pipeline_parallel_size,
        "data_parallel_size": log.data_parallel_size,
        "max_num_seqs": log.max_num_seqs,
        "max_num_batched_tokens": log.max_num_batched_tokens,
        "chunked_prefill": log.chunked_prefill,
        "prefix_caching": log.prefix_caching,
        "max_model_len": log.max_model_len,
        "cudagraph_mode": log.cudagraph_mode,
        "cudagraph_capture_sizes": log.cudagraph_capture_sizes,
        "async_scheduling": log.async_scheduling,
    }


def _silent(log: ServerLog) -> list[str]:
    return [name for name, value in _log_values(log).items() if value is None]


def _fingerprint(report: EngineReport) -> dict[str, Any]:
    """What must not change between the servers of one configuration within a campaign."""
    origin = report.provenance
    return {
        "cudagraph_mode": report.config.cudagraph_mode,
        "cudagraph_capture_sizes": list(report.config.cudagraph_capture_sizes),
        "attention_backend": report.config.attention_backend,
        "moe_backend": report.config.moe_backend,
        "async_scheduling": report.config.async_scheduling,
        "max_model_len": report.max_model_len,
        "kv_cache_dtype": report.kv_cache_dtype,
        "kv_block_tokens": report.kv_block_tokens,
        "scheduler_class": report.scheduler_class,
        "step_function": report.step_function,
        "v2_model_runner": report.v2_model_runner,
        "model_runners": sorted({worker.model_runner for worker in report.workers}),
        "plugin_sha256": origin.plugin_sha256,
        "hooked": dict(origin.hooked),
        "python": origin.python,
        "torch": origin.torch,
    }


def _compare(
    expected: Mapping[str, Any], seen: Mapping[str, Any], against: str
) -> list[Difference]:
    return [
        Difference(name, _short(value, seen[name]), _short(seen[name], value), against)
        for name, value in expected.items()
        if seen[name] != value
    ]


def _short(value: Any, other: Any) -> Any:
    """Of two mappings keep only the entries that differ: hooked functions are many."""
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: item for key, item in value.items() if other.get(key) != item}
    return value


def _value(value: Any) -> Value:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list) and all(isinstance(item, int | float | str) for item in value):
        return value
    return str(value)
