"""The co-location check of A-P3-1: its schedule, and which width a gate authorises.

Solo: the target alone on the first GPU, saturation calibration, then its moderate run. Eight-way:
both again while the backgrounds run closed-loop saturation on the next GPUs. Four-way, only after
an eight-way failure, with its own list. Every round (one target run) starts its own fresh servers,
backgrounds included: a background that went through both rounds would either run out of requests
or send the same ones twice, which a prefix cache answers without work. One profile window in each
moderate target; only targets are profiled.

The names ``eight`` and ``four`` are the protocol's; a protocol for a smaller host lists as many
backgrounds as it has GPUs to spare.

Everything here is about one host. What a check finds is a property of the machine that it was made
on (buses, memory, clocks, cooling), so a campaign on many hosts makes it on each, and a gate
authorises a width on its own host and GPUs only; no class of equal hosts is ever assumed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from opprof.artifacts.campaign import EngineKind, Slot
from opprof.artifacts.environment import Topology
from opprof.artifacts.plan import ColocationGate, Regime
from opprof.artifacts.run import LoadPoint
from opprof.campaign.costs import Pace, RunCost, config_row, cost_of, pattern_row
from opprof.campaign.naming import colocation_folder, colocation_run, run_name
from opprof.campaign.places import mask_of
from opprof.errors import InputError, StateConflict
from opprof.protocol.model import Colocation, ProtocolFile

TARGET_WINDOWS = 1
"""A-P3-1, 4: exactly one 2+8 window per moderate target."""

REGIMES: tuple[Regime, ...] = ("solo", "eight", "four")


@dataclass(frozen=True)
class ColocationRun:
    """One server and client of a round."""

    run: str
    """Unique in the campaign: state file and ledger use it."""
    folder: str
    """Relative to the campaign; its base name is the timeline's run name."""
    pattern: str
    config: str
    load_point: LoadPoint
    slot: Slot
    background: bool
    """Runs closed-loop saturation from before the target's warm-up until it is told to stop."""
    windows: int


@dataclass(frozen=True)
class Round:
    """One target run with its backgrounds: fresh servers, started together.

    The target's client starts when every background's client has completed a request; backgrounds
    are told to stop when the target's client has ended.
    """

    regime: Regime
    load_point: LoadPoint
    target: ColocationRun
    backgrounds: tuple[ColocationRun, ...]
    saturation_run: str
    """Moderate: the run that the rate comes from, of the same regime; empty for a calibration."""
    saturation_folder: str
    """Its folder, relative to the campaign; empty for a calibration."""
    cost: RunCost
    """Of the whole round: its GPUs for as long as the target takes."""


def backgrounds_of(rule: Colocation, regime: Regime) -> list[str]:
    """Return the background patterns of a regime, in the order of their GPUs."""
    if regime == "eight":
        return rule.backgrounds_eight
    return rule.backgrounds_four if regime == "four" else []


def regime_width(rule: Colocation, regime: Regime) -> int:
    """Return the GPU slots that a regime uses."""
    return 1 + len(backgrounds_of(rule, regime))


def placeable(protocol: ProtocolFile, host: Topology) -> list[Regime]:
    """Return the co-located regimes that the host can hold, widest first.

    A host too small for eight-way begins with four-way; one too small for both can only run one
    cell at a time.
    """
    rule = protocol.colocation
    if rule is None:
        return []
    found: list[Regime] = []
    for regime in REGIMES[1:]:
        width = regime_width(rule, regime)
        narrower = not found or width < regime_width(rule, found[-1])
        if 1 < width <= len(host.gpus) and narrower:
            found.append(regime)
    return found


def rounds(
    protocol: ProtocolFile,
    host: Topology,
    regime: Regime,
    pace: Pace,
    *,
    port_base: int,
) -> tuple[Round, Round]:
    """Return a regime's calibration and its moderate run.

    Raises:
        InputError: the protocol has no check, its target spans GPUs, or the host has too few.
    """
    rule = protocol.colocation
    if rule is None:
        raise InputError(f"{protocol.id} has no [colocation] table, so no check is defined")
    width = regime_width(rule, regime)
    if config_row(protocol, rule.config).tensor_parallel_size != 1:
        raise InputError(f"colocation.config {rule.config!r} spans GPUs; the check places one each")
    if len(host.gpus) < width:
        raise InputError(
            f"{host.host} has {len(host.gpus)} GPUs, the {regime}-way check needs {width}"
        )
    builder = _Builder(protocol, rule, host, regime, pace, port_base)
    return builder.round("saturation"), builder.round("moderate")


@dataclass(frozen=True)
class _Builder:
    protocol: ProtocolFile
    rule: Colocation
    host: Topology
    regime: Regime
    pace: Pace
    port_base: int

    def round(self, load_point: LoadPoint) -> Round:
        names = backgrounds_of(self.rule, self.regime)
        target = self._run(self.rule.pattern, load_point, load_point, 0)
        moderate = load_point == "moderate"
        calibration = self._run(self.rule.pattern, "saturation", "saturation", 0)
        one = cost_of(
            self.protocol, self.rule.pattern, self.rule.config, load_point, "colocation", self.pace
        )
        return Round(
            regime=self.regime,
            load_point=load_point,
            target=target,
            backgrounds=tuple(
                self._run(name, "saturation", load_point, index)
                for index, name in enumerate(names, start=1)
            ),
            saturation_run=calibration.run if moderate else "",
            saturation_folder=calibration.folder if moderate else "",
            cost=RunCost(1 + len(names), one.expected_s, self._reserved_s(names, one)),
        )

    def _reserved_s(self, names: list[str], target: RunCost) -> float:
        """The target with its drain, then the backgrounds' own drain within their allowance."""
        drains_s = [pattern_row(self.protocol, name).drain_budget_s for name in names]
        return target.reserved_s + max(drains_s, default=0.0) * self.pace.time_scale

    def _run(
        self, pattern: str, load_point: LoadPoint, round_load: LoadPoint, place: int
    ) -> ColocationRun:
        base = run_name(pattern, self.rule.config, load_point, "colocation")
        gpu = self.host.gpus[place]
        moderate = load_point == "moderate"
        return ColocationRun(
            run=colocation_run(self.host.host, self.regime, round_load, base),
            folder=colocation_folder(self.host.host, self.regime, round_load, base),
            pattern=pattern,
            config=self.rule.config,
            load_point=load_point,
            slot=Slot(
                host=self.host.host,
                gpus=[gpu.index],
                gpu_uuids=[gpu.uuid],
                port=self.port_base and self.port_base + place,
                cpus=mask_of(self.protocol.placement, [gpu.index]),
                wave=0,
                width=regime_width(self.rule, self.regime),
            ),
            background=place > 0,
            windows=TARGET_WINDOWS if moderate and place == 0 else 0,
        )


def next_regime(
    protocol: ProtocolFile, host: Topology, gate: ColocationGate | None
) -> Regime | Literal["done"]:
    """Return what the check measures next: solo, then eight-way, then four-way after a failure.

    ``gate``: the decision over what was measured so far, None before the solo run. A regime that
    could not be evaluated ends the check, as a stop: it did not fail.
    """
    regimes = placeable(protocol, host)
    if not regimes:
        return "done"
    if gate is None:
        return "solo"
    solo_bad = any(each.outcome != "pass" for each in gate.solo_gates) or gate.sanity.red_flags
    if solo_bad or any(each.outcome != "fail" for each in gate.regimes):
        return "done"
    measured = {each.regime for each in gate.regimes}
    return next((regime for regime in regimes if regime not in measured), "done")


@dataclass(frozen=True)
class PlaceBinding:
    """What a gate must have been made with to authorise a campaign on a host."""

    protocol_sha256s: Collection[str]
    """Of the protocol in force and of those it was amended from without touching the check."""
    host: Topology
    engine: EngineKind
    engine_version: str
    time_scale: float


def needs_gate(protocol: ProtocolFile, host: Topology, *, serial: bool) -> bool:
    """Whether running on this host needs an authorisation: more than one cell at once."""
    return not serial and min(len(host.gpus), protocol.placement.gpus) > 1


def authorised_width(
    gate: ColocationGate | None,
    protocol: ProtocolFile,
    binding: PlaceBinding,
    *,
    serial: bool = False,
) -> int:
    """Return how many GPU slots of the host may be used at once.

    One slot, or ``serial``, needs no gate. Nothing is co-located without one: neither where the
    check has not been made, nor where the protocol defines none.

    Raises:
        StateConflict: there is no gate, it says stop, has a red flag, or belongs to another
            protocol, host, engine or time scale.
    """
    if not needs_gate(protocol, binding.host, serial=serial):
        return 1
    if protocol.colocation is None:
        raise StateConflict(
            f"{protocol.id} has no [colocation] table, so nothing authorises several cells at once"
            " on one host: run one at a time (--serial)"
        )
    if gate is None:
        raise StateConflict(
            f"no co-location gate for {binding.host.host}: several cells at once need the check of"
            " the protocol first, or run one at a time (--serial)"
        )
    differences = _differences(gate, binding)
    if differences:
        raise StateConflict(f"the co-location gate is of another {', another '.join(differences)}")
    if gate.sanity.red_flags:
        raise StateConflict(f"the co-location gate has a red flag: {gate.sanity.red_flags[0]}")
    if gate.outcome == "stop":
        raise StateConflict(f"the co-location gate stops the campaign for review: {gate.reason}")
    return min(gate.authorised_width, len(binding.host.gpus), protocol.placement.gpus)


def _differences(gate: ColocationGate, binding: PlaceBinding) -> list[str]:
    here = binding.host.gpus[: len(gate.gpus)]
    pairs = {
        "protocol": gate.protocol_sha256 in binding.protocol_sha256s,
        "host": gate.host == binding.host.host,
        "set of GPUs": (gate.gpus, gate.gpu_uuids)
        == ([gpu.index for gpu in here], [gpu.uuid for gpu in here]),
        "engine": gate.engine == binding.engine,
        "engine version": gate.engine_version == binding.engine_version,
        "time scale": gate.time_scale == binding.time_scale,
    }
    return [name for name, same in pairs.items() if not same]
