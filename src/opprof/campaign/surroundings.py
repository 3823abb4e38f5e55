"""What is looked at around one attempt, the gates over it, and ``environment.json``.

::

    idle ── server starts ── before ── client (samples) ── after ── server ends ── cleanup

Source: protocol, "Compile warm-up and execution order", A-P3-1 (load average and clock snapshot
before and after the measured interval), hard stop 2. Throttle reasons and clocks are recorded; the
protocol has no threshold for them, so they are shown and judge nothing.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from opprof._version import __version__
from opprof.artifacts.common import Gate, Outcome, Value
from opprof.artifacts.engine import EngineReport
from opprof.artifacts.environment import (
    Environment,
    GpuProcess,
    GpuState,
    Snapshot,
    Topology,
    Versions,
)
from opprof.campaign.attempt import AttemptSpec, Facts
from opprof.campaign.hosts import beside, known_gpus
from opprof.campaign.options import Limits, options_of
from opprof.errors import EnvironmentFailure, InputError
from opprof.files import read_bytes, sha256_bytes, write_atomic
from opprof.host.nvml_fields import SLOWING
from opprof.host.ports import Host
from opprof.protocol import Protocol

Moment = Literal["idle", "before", "sample", "after", "cleanup"]
_PROTECTING = SLOWING - {"sw_power_cap", "sync_boost", "display_clock_setting"}
"""Clock events of a GPU that is too hot or short of power; power capping is its normal work."""
_NO_GPU = "no GPU is known on this host"
T = TypeVar("T")


class Surroundings:
    """The looks of one attempt."""

    def __init__(self, host: Host, spec: AttemptSpec, limits: Limits, *, idle_bytes: int) -> None:
        """``idle_bytes``: the protocol's ``placement.idle_gpu_bytes_max``."""
        self._host, self._spec, self._limits = host, spec, limits
        self._idle_bytes = idle_bytes
        self._gpus = known_gpus(host, spec.slot)
        self._regime: list[int] = []
        """Other GPUs of the placement regime, from the first look on."""
        self.looks: dict[Moment, Snapshot] = {}
        self.samples: list[Snapshot] = []
        self.memory_left: list[int] | None = None
        self._asked: set[Moment] = set()
        """The moments of :attr:`looks`, and those at which a look failed."""

    async def look(self, moment: Moment) -> Snapshot:
        """Take and keep a snapshot; it does not hold up the event loop."""
        self._asked.add(moment)
        label = f"{self._spec.run}/{self._spec.number}/{moment}"
        snapshot = await asyncio.to_thread(self._snapshot, label)
        if moment == "sample":
            self.samples.append(snapshot)
        else:
            self.looks[moment] = snapshot
        return snapshot

    async def watch(self) -> str:
        """Look again and again while the load runs; return what does not belong here."""
        while True:
            await asyncio.sleep(self._limits.sample_s)
            label = f"{self._spec.run}/{self._spec.number}/sample"
            found = await asyncio.to_thread(self._host.gpu_processes, self._gpus, label)
            strange = foreign(found)
            if self._regime and not strange:
                found = await asyncio.to_thread(self._host.gpu_processes, self._regime, label)
                strange = self._in_regime(found)
            if strange:
                await self.look("sample")
                return _names(strange)

    def _snapshot(self, label: str) -> Snapshot:
        """The run's GPUs, and whose processes are on the host's others."""
        snapshot = self._host.snapshot(self._gpus, label)
        options = options_of(self._spec.campaign)
        others, self._regime = beside(self._host, self._spec.slot, options)
        if not others:
            return snapshot
        try:
            found = self._host.gpu_processes(others, label)
        except EnvironmentFailure as error:
            # What cannot be asked about another GPU is no fault of this run's.
            missing = snapshot.not_available | {"elsewhere": str(error)}
            return msgspec.structs.replace(snapshot, not_available=missing)
        elsewhere = [process for process in found if process.owner != "campaign"]
        return msgspec.structs.replace(snapshot, elsewhere=elsewhere)

    def _in_regime(self, processes: Iterable[GpuProcess]) -> list[GpuProcess]:
        """Return who is known to be somebody else's on the other GPUs of the placement regime."""
        known = ("same_user", "other_user")
        return [each for each in processes if each.gpu in self._regime and each.owner in known]

    async def memory_back(self) -> None:
        """Wait until the GPUs hold no more memory than before the server, within the limit."""
        idle = self.looks.get("idle")
        if not self._gpus or idle is None:
            return
        allowed = [self._allowed(state.memory_used_bytes) for state in idle.gpus]
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._limits.memory_s
        label = f"{self._spec.run}/{self._spec.number}/cleanup"
        while True:
            used = await asyncio.to_thread(self._host.gpu_memory_used, self._gpus, label)
            self.memory_left = used
            if all(left <= limit for left, limit in zip(used, allowed, strict=True)):
                return
            if loop.time() > give_up:
                return
            await asyncio.sleep(self._limits.look_s)

    # ------------------------------------------------------------------------- gates

    def gates(self, facts: Facts) -> list[Gate]:
        """Judge what was seen (names as :mod:`opprof.campaign.gate_rules` knows them).

        An attempt that broke off has only the looks up to there. What was not to be looked at any
        more is no fault beside the one that broke it off.
        """
        return [
            self.idle(facts.fault),
            self._contamination(),
            self.memory(launched=facts.launched_mono_ns is not None),
            self.clock_load(facts),
        ]

    def idle(self, fault: str = "") -> Gate:
        """Nothing ran on the selected GPUs before the server was started."""
        look = self.looks.get("idle")
        if look is None:
            return _gate("gpu_idle", "fail", fault or "nobody looked before the launch")
        if not self._gpus:
            return _gate("gpu_idle", "not_evaluable", _NO_GPU)
        numbers: dict[str, Value] = {
            "processes": len(look.processes),
            "memory_bytes": [state.memory_used_bytes for state in look.gpus],
        }
        if look.processes:
            return _gate("gpu_idle", "fail", f"not idle: {_names(look.processes)}", numbers)
        used = [state for state in look.gpus if (state.memory_used_bytes or 0) > self._idle_bytes]
        if used:
            reason = f"GPU {used[0].index} holds {used[0].memory_used_bytes} bytes"
            return _gate("gpu_idle", "fail", reason, numbers)
        return _gate("gpu_idle", "pass", "no process, no memory in use", numbers)

    def _contamination(self) -> Gate:
        if not self._gpus:
            return _gate("gpu_contamination", "not_evaluable", _NO_GPU)
        looks = [*self.looks.values(), *self.samples]
        strange = {p.pid: p for look in looks for p in foreign(look.processes)}
        strange |= {p.pid: p for look in looks for p in self._in_regime(look.elsewhere)}
        numbers: dict[str, Value] = {"looks": len(looks), "foreign_processes": len(strange)}
        if strange:
            return _gate("gpu_contamination", "fail", _names(strange.values()), numbers)
        return _gate("gpu_contamination", "pass", "nobody else was seen on the GPUs", numbers)

    def memory(self, *, launched: bool) -> Gate:
        """GPU memory is back where it was before the server (A-P3-2)."""
        if not self._gpus:
            return _gate("gpu_memory", "not_evaluable", _NO_GPU)
        if not launched:
            return _gate("gpu_memory", "not_evaluable", "no server was launched")
        idle = self.looks.get("idle")
        if idle is None or self.memory_left is None:
            return _gate("gpu_memory", "fail", "nobody looked after the server's end")
        before = [state.memory_used_bytes for state in idle.gpus]
        numbers: dict[str, Value] = {"before": list(before), "after": list(self.memory_left)}
        for index, used, start in zip(self._gpus, self.memory_left, before, strict=True):
            if used > self._allowed(start):
                return _gate("gpu_memory", "fail", f"GPU {index} still holds {used} bytes", numbers)
        return _gate("gpu_memory", "pass", "back at its value before the server", numbers)

    def clock_load(self, facts: Facts) -> Gate:
        """Host load and full clock snapshots stand before and after the measured interval.

        The protocol has no numeric limit for them: clocks, power capping and load are recorded.
        What fails is what no measurement can have meant: another GPU, memory errors, a GPU that
        protected itself, other clock limits than at the start, foreign processes.
        """
        before, after = self.looks.get("before"), self.looks.get("after")
        why = f": {facts.fault}" if facts.fault else ""
        if not facts.load_begun and ("before" in self.looks or "before" not in self._asked):
            return _gate("clock_load", "not_evaluable", f"no load was offered{why}")
        if before is None or after is None:
            missing = " and ".join(n for n in ("before", "after") if n not in self.looks)
            return _gate("clock_load", "fail", f"no snapshot {missing} the load{why}")
        looks = [before, *self.samples, after]
        strange = {p.pid for look in looks for p in foreign(look.processes)}
        throttled = {r for look in looks for s in look.gpus for r in s.throttle_reasons or []}
        numbers: dict[str, Value] = {
            "load_1m": [before.host.load_1m, after.host.load_1m],
            "sm_clock_mhz": [state.sm_clock_mhz for state in (*before.gpus, *after.gpus)],
            "throttle_reasons": [*sorted(throttled)],
            "foreign_processes": len(strange),
        }
        faults = [f"{len(strange)} foreign processes"] if strange else []
        faults += [f"a GPU reports {name}" for name in sorted(throttled & _PROTECTING)]
        for first, last in zip(before.gpus, after.gpus, strict=True):
            faults += _changes(first, last)
        reason = "; ".join(faults) or "clocks and load stand before and after"
        return _gate("clock_load", "fail" if faults else "pass", reason, numbers)

    def oom_kills(self) -> tuple[int | None, int | None]:
        """Return the kernel's counter before the server and after it."""
        first, last = self.looks.get("idle"), self.looks.get("cleanup")
        return (
            None if first is None else first.host.oom_kills,
            None if last is None else last.host.oom_kills,
        )

    def _allowed(self, before: int | None) -> int:
        """Bytes that may be in use after the server, given those before it."""
        return max(before or 0, self._idle_bytes)

    # ------------------------------------------------------------------ environment.json

    def write(self, path: Path, protocol: Protocol, facts: Facts, more: Mapping[str, Any]) -> None:
        """Write ``environment.json``; ``more`` are fields that others found out."""
        spec, slot = self._spec, self._spec.slot
        report = engine_report(path.parent)
        found = Environment(
            schema=1,
            run=spec.run,
            attempt=spec.number,
            topology=self._topology(),
            gpus=list(slot.gpus),
            gpu_uuids=list(slot.gpu_uuids),
            cpus=slot.cpus,
            versions=self._versions(report),
            hashes=_hashes(spec, path.parent, report),
            hooked={} if report is None else report.provenance.hooked,
            expected_seconds=spec.expected_s,
            before=self.looks.get("before"),
            after=self.looks.get("after"),
            samples=[
                *(look for name, look in self.looks.items() if name in ("idle", "cleanup")),
                *self.samples,
            ],
            engine_config_sha256=_hash_or_none(path.parent / "opprof" / "engine-config.json"),
            moe_backend=_first(name for w in report.workers for name in w.moe_backends)
            if report is not None
            else None,
            attention_backend=_first(name for w in report.workers for name in w.attention_backends)
            if report is not None
            else None,
            seeds={
                "workload": protocol.file.seeds.workload,
                "execution_order": protocol.file.seeds.execution_order,
                "statistics": protocol.file.seeds.statistics,
            },
            signal_wall_ns=facts.signal_wall_ns,
            simulated=spec.campaign.simulated,
            not_available=dict(spec.not_available),
            model=spec.model_files,
        )
        found = msgspec.structs.replace(found, **more)
        write_atomic(path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")

    def _topology(self) -> Topology:
        return self._host.topology()

    def _versions(self, report: EngineReport | None) -> Versions:
        """What was asked once a campaign, else what the engine said of itself."""
        if self._spec.versions is not None:
            return self._spec.versions
        driver, cuda = self._host.driver()
        origin = None if report is None else report.provenance
        return Versions(
            opprof=__version__,
            python=(origin and origin.python) or platform.python_version(),
            msgspec=msgspec.__version__,
            vllm=None if origin is None else origin.engine_version,
            torch=None if origin is None else origin.torch,
            cuda_runtime=None,
            cuda_driver=cuda,
            driver=driver,
            nccl=None,
            kernel=platform.release(),
        )


def _changes(before: GpuState, after: GpuState) -> list[str]:
    """Return what of a GPU may not change over a measured interval, and did."""
    name, faults = f"GPU {before.index}", []
    for field in ("uuid", "sm_clock_max_mhz", "mem_clock_max_mhz", "sm_clock_application_mhz"):
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            faults.append(f"{name}: {field} was {old}, is {new}")
    if before.sm_clock_mhz is None or after.sm_clock_mhz is None:
        faults.append(f"{name} tells no clock")
    if (after.ecc_uncorrected or 0) > (before.ecc_uncorrected or 0):
        faults.append(f"{name}: uncorrected memory errors")
    return faults


def foreign(processes: Iterable[GpuProcess]) -> list[GpuProcess]:
    """Return the processes that are not the campaign's.

    In a container the driver shows processes by pids that cannot be looked up, the campaign's own
    included: one such process a GPU is its worker, a second one is somebody else.
    """
    found, hidden = [], set()
    for process in processes:
        if process.owner == "unknown" and process.gpu not in hidden:
            hidden.add(process.gpu)
        elif process.owner != "campaign":
            found.append(process)
    return found


def engine_report(run: Path) -> EngineReport | None:
    """Return what the engine said of itself; None where it said nothing that can be read."""
    try:
        data = read_bytes(run / "opprof" / "engine-config.json")
        return msgspec.json.decode(data, type=EngineReport)
    except (InputError, msgspec.MsgspecError):
        return None


def _hashes(spec: AttemptSpec, run: Path, report: EngineReport | None) -> dict[str, str]:
    found = dict(spec.source_hashes)
    if report is not None:
        found["plugin"] = report.provenance.plugin_sha256
    commands = _hash_or_none(run / "commands.log")
    return found if commands is None else found | {"commands": commands}


def _hash_or_none(path: Path) -> str | None:
    try:
        return sha256_bytes(read_bytes(path))
    except InputError:
        return None


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _names(processes: Iterable[GpuProcess]) -> str:
    return ", ".join(f"{p.name or 'process'} {p.pid} ({p.owner}) on GPU {p.gpu}" for p in processes)


def _gate(
    name: str, outcome: Outcome, reason: str, numbers: dict[str, Value] | None = None
) -> Gate:
    return Gate(name=name, outcome=outcome, reason=reason, numbers=numbers or {})
