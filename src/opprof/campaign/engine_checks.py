"""What the server of an attempt really runs, compared before any load is offered (hard stop 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opprof.artifacts.common import Gate
from opprof.artifacts.engine import EngineReport
from opprof.campaign.attempt import AttemptSpec, Facts
from opprof.campaign.effective import (
    Expected,
    cache_key,
    compile_cache_gate,
    effective_config,
    engine_tested,
    observed,
    server_health,
)
from opprof.campaign.server_log import ServerLog, read_server_log
from opprof.campaign.source_checks import sources_before
from opprof.campaign.surroundings import engine_report
from opprof.errors import InputError
from opprof.protocol import Protocol


@dataclass(frozen=True)
class EngineCheck:
    """The gates over a healthy server, and what ``environment.json`` keeps of it."""

    gates: list[Gate]
    fields: Mapping[str, Any]

    @property
    def refusal(self) -> str:
        """Why no load may be offered; empty when it may."""
        failed = [gate for gate in self.gates if gate.outcome == "fail"]
        return "; ".join(f"{gate.name}: {gate.reason}" for gate in failed)


def check_engine(spec: AttemptSpec, protocol: Protocol, run: Path) -> EngineCheck:
    """Compare a healthy server with the protocol and with the configuration's first server."""
    report = engine_report(run)
    if report is None:
        gate = Gate("effective_config", "fail", "the engine left no readable engine-config.json")
        return EngineCheck([gate], {})
    config = protocol.config(spec.config)
    assert config is not None
    file = protocol.file
    expected = Expected(config, file.server, file.pinned, file.layer2)
    log = _log(run)
    key = cache_key(report, log)
    # The embedded engine compiles nothing, and then tells no key.
    compiled = key is not None or not (report.simulated or (log is not None and log.enforce_eager))
    gates = [
        effective_config(expected, report, log, spec.first_engine),
        compile_cache_gate(key, spec.first_cache_key, compiled=compiled),
        engine_tested(report),
        sources_before(spec),
    ]
    found = {"compile_cache_key": key, "effective_config": observed(expected, report, log)}
    return EngineCheck(gates, found)


def health_gate(facts: Facts, run: Path, oom_kills: tuple[int | None, int | None]) -> Gate:
    """Return ``server_health``: it came up and ran without error until told to end."""
    gate = server_health(
        _log(run, facts.log_bytes_at_kill),
        exit_status=facts.server_exit,
        signalled=facts.signal_wall_ns is not None,
        oom_kills=oom_kills,
    )
    if facts.server_failed and gate.outcome != "fail":
        return Gate("server_health", "fail", facts.fault or "it never became healthy", gate.numbers)
    return gate


def _log(run: Path, upto_bytes: int | None = None) -> ServerLog | None:
    try:
        return read_server_log(run / "server.log", upto_bytes=upto_bytes)
    except InputError:
        return None


def first_engine(folder: Path) -> tuple[EngineReport | None, str | None]:
    """Return what a complete run says of its engine: its report and compile-cache key."""
    report = engine_report(folder)
    if report is None:
        return None, None
    return report, cache_key(report, _log(folder))
