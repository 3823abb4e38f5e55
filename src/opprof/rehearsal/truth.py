"""Planted truths: a small TOML file that says what is true in a rehearsal.

Example::

    schema = 1
    name = "inversion"
    description = "Attention leads in P03, expert GEMMs lead in P01, by ten points each."

    [[effects]]
    kind = "inversion"
    pattern_p = "P03"
    pattern_q = "P01"
    family_a = "attention"
    family_b = "moe_gemm"
    gap = 0.10

    [expect]
    H1a = "CONFIRMED"

``patterns``, ``configs`` and ``load_points`` say where an effect acts; left out, everywhere.
A waste with ``efficiency_loss`` slows every step so that useful tokens per millisecond fall by just
that fraction; with 0 the waste is counted and costs nothing. ``expect`` is compared with the
decision and decides the exit code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from opprof.analysis.gates import CATALOGUE
from opprof.artifacts.run import LoadPoint
from opprof.client.gates import NAMES as CLIENT_GATES
from opprof.engines.sim.effects import FAMILY_PARTS, Effects, Lead, Neighbour
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_bytes
from opprof.toml_file import decode_toml

_LIMIT_BYTES = 1 << 20

COLOCATION = "colocation"
"""The one gate that only a rehearsal has: it needs the same campaign without a neighbour."""

Family = Literal["moe_gemm", "attention", "dense_gemm", "norm_elementwise", "moe_router"]
Gap = Annotated[float, Meta(gt=0, lt=0.9)]
Size = Annotated[float, Meta(ge=0, lt=0.9)]
Outcome = Literal["CONFIRMED", "REFUTED / NULL SUPPORTED", "INCONCLUSIVE", "PARTIAL", "INVALID"]


class _Where(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", kw_only=True):
    """Where an effect acts; null is everywhere."""

    patterns: list[str] | None = None
    configs: list[str] | None = None
    load_points: list[LoadPoint] | None = None

    def acts(self, pattern: str, config: str, load_point: str) -> bool:
        """Whether the effect acts on a run."""
        return (
            (self.patterns is None or pattern in self.patterns)
            and (self.configs is None or config in self.configs)
            and (self.load_points is None or load_point in self.load_points)
        )


class Inversion(_Where, frozen=True, tag="inversion", kw_only=True):
    """``family_a`` leads by ``gap`` in ``pattern_p``, ``family_b`` by ``gap`` in ``pattern_q``."""

    pattern_p: str
    pattern_q: str
    family_a: Family
    family_b: Family
    gap: Gap


class SameShares(_Where, frozen=True, tag="same_shares", kw_only=True):
    """Every step has one composition: no inversion can be true."""


class Waste(_Where, frozen=True, tag="waste", kw_only=True):
    """A waste of a size, with or without a loss of useful tokens per millisecond."""

    waste: Literal["padding", "graph_miss", "interference"]
    size: Size
    efficiency_loss: Size


class Opaque(_Where, frozen=True, tag="opaque_replays", kw_only=True):
    """Graph replays leave no kernel records."""


class OddWindows(_Where, frozen=True, tag="unrepresentative_windows", kw_only=True):
    """Starting a profile window stalls the engine, so a backlog fills the window."""

    stall_s: Annotated[float, Meta(gt=0)]


class Drops(_Where, frozen=True, tag="dropped_records", kw_only=True):
    """The recorder drops these steps."""

    steps: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]


class Hang(_Where, frozen=True, tag="drain_hang", kw_only=True):
    """The engine hangs when the drain begins."""

    seconds: Annotated[float, Meta(gt=0)]


class StaleCache(_Where, frozen=True, tag="stale_prefix_cache", kw_only=True):
    """An earlier load of the same manifest has left its prompts in the prefix cache."""


class SlowNeighbour(_Where, frozen=True, tag="slow_neighbour", kw_only=True):
    """A co-located neighbour slows every step, from ``from_s`` to ``to_s`` of the run."""

    factor: Annotated[float, Meta(gt=1)]
    from_s: Annotated[float, Meta(ge=0)] = 0.0
    to_s: Annotated[float, Meta(gt=0)] = 1e6


class OutOfMemory(_Where, frozen=True, tag="out_of_memory", kw_only=True):
    """The engine dies at a step."""

    step: Annotated[int, Meta(ge=0)]


Effect = (
    Inversion
    | SameShares
    | Waste
    | Opaque
    | OddWindows
    | Drops
    | Hang
    | StaleCache
    | SlowNeighbour
    | OutOfMemory
)


class Expectation(Struct, frozen=True, forbid_unknown_fields=True):
    """What the decision must say when the truth is recovered; null says nothing."""

    H1a: Outcome | None = None
    H1b: Outcome | None = None
    compound: Outcome | None = None
    failed_gates: list[str] = []
    """Gates that some run must fail."""
    refused_runs: list[str] = []
    """Runs that the client must refuse."""
    quarantined_runs: list[str] = []
    """Runs whose drain must go over its budget, and that stay usable."""


class TruthFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    schema: Literal[1]
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    description: str = ""
    effects: list[Effect] = []
    expect: Expectation = Expectation()


@dataclass(frozen=True)
class Truth:
    """A truth bound to the bytes it was read from."""

    file: TruthFile
    sha256: str | None
    """None for the truth that nothing is planted."""


def without_effects(truth: Truth) -> Truth | None:
    """Return the truth of no effect that goes with ``truth``; None when it plants none itself.

    Equal shares stay: they are what an inversion or its absence is planted on.
    """
    kept: list[Effect] = [each for each in truth.file.effects if isinstance(each, SameShares)]
    if len(kept) == len(truth.file.effects):
        return None
    file = msgspec.structs.replace(
        truth.file, name=f"{truth.file.name}-no-effect", effects=kept, expect=Expectation()
    )
    return Truth(file, truth.sha256)


NOTHING = Truth(TruthFile(schema=1, name="nothing", description="Nothing is planted."), None)


def load_truth(path: Path | None, patterns: list[str], configs: list[str] | None = None) -> Truth:
    """Read a truth file; None plants nothing.

    ``patterns``, ``configs``: the protocol's, which effects may name (None: not checked).

    Raises:
        InputError: the file cannot be read, is no TOML, holds an infinite number, or names an
            unknown pattern, configuration, gate or run.
        SchemaError: a key is missing, unknown or of the wrong type.
    """
    if path is None:
        return NOTHING
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    tree = decode_toml(data, source=str(path))
    try:
        file = msgspec.convert(tree, TruthFile)
    except msgspec.ValidationError as error:
        raise SchemaError(f"does not fit the truth schema: {error}", path=path) from error
    for effect in file.effects:
        named = list(effect.patterns or [])
        if isinstance(effect, Inversion):
            named += [effect.pattern_p, effect.pattern_q]
            if effect.family_a == effect.family_b or effect.pattern_p == effect.pattern_q:
                raise InputError("an inversion needs two patterns and two families", path=path)
        unknown = sorted(set(named) - set(patterns))
        if unknown:
            raise InputError(f"names the pattern {unknown[0]}, which is not planned", path=path)
        odd = sorted(set(effect.configs or []) - set(configs or effect.configs or []))
        if odd:
            raise InputError(f"names the configuration {odd[0]}, which is not planned", path=path)
        for name in effect.__struct_fields__:
            value = getattr(effect, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{name} must be a finite number", path=path)
        if isinstance(effect, SlowNeighbour) and effect.to_s <= effect.from_s:
            raise InputError("a neighbour's to_s must be after its from_s", path=path)
    _check_expectation(file.expect, patterns, configs, path)
    return Truth(file, sha256_bytes(data))


def _check_expectation(
    expect: Expectation, patterns: list[str], configs: list[str] | None, path: Path
) -> None:
    """A gate or run that cannot exist would be missed by every rehearsal.

    Raises:
        InputError: it names one.
    """
    gates = {*CATALOGUE, *CLIENT_GATES, COLOCATION}
    unknown = sorted(set(expect.failed_gates) - gates)
    if unknown:
        near = get_close_matches(unknown[0], gates, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"expects the gate {unknown[0]!r}, which does not exist{hint}", path=path)
    if configs is None:
        return
    runs = {
        f"{pattern}-{config}-{load_point}{suffix}"
        for pattern in patterns
        for config in configs
        for load_point in get_args(LoadPoint)
        for suffix in ("", "-confirmation")
    }
    strange = sorted({*expect.refused_runs, *expect.quarantined_runs} - runs)
    if strange:
        raise InputError(f"expects the run {strange[0]!r}, which is not planned", path=path)


@dataclass(frozen=True)
class Planted:
    """What one run has planted."""

    effects: Effects
    drain_hang_s: float
    stale_cache: bool


def planted_in(
    truth: Truth, pattern: str, config: str, load_point: LoadPoint, start_ns: int
) -> Planted:
    """Return what is planted in one run; ``start_ns``: where its clock starts."""
    values: dict[str, object] = {}
    hang_s, stale = 0.0, False
    for effect in truth.file.effects:
        if not effect.acts(pattern, config, load_point):
            continue
        if isinstance(effect, Hang):
            hang_s += effect.seconds
        elif isinstance(effect, StaleCache):
            stale = True
        else:
            values |= _engine_values(effect, pattern, start_ns)
    return Planted(Effects(**values), hang_s, stale)  # type: ignore[arg-type]


def _engine_values(effect: Effect, pattern: str, start_ns: int) -> dict[str, object]:
    match effect:
        case Inversion():
            return _lead(effect, pattern)
        case SameShares():
            return {"same_shares": True}
        case Waste():
            return _waste(effect)
        case Opaque():
            return {"opaque": True}
        case OddWindows():
            return {"window_stall_ns": round(effect.stall_s * 1e9)}
        case Drops():
            return {"dropped_steps": frozenset(effect.steps)}
        case SlowNeighbour():
            first, last = (round(s * 1e9) for s in (effect.from_s, effect.to_s))
            return {"neighbour": Neighbour(effect.factor, start_ns + first, start_ns + last)}
        case OutOfMemory():
            return {"oom_step": effect.step}
        case _:
            raise AssertionError(effect)


def _lead(effect: Inversion, pattern: str) -> dict[str, object]:
    assert effect.family_a in FAMILY_PARTS and effect.family_b in FAMILY_PARTS
    if pattern == effect.pattern_p:
        return {"lead": Lead(effect.family_a, effect.family_b, effect.gap)}
    if pattern == effect.pattern_q:
        return {"lead": Lead(effect.family_b, effect.family_a, effect.gap)}
    return {}


def _waste(effect: Waste) -> dict[str, object]:
    """Only ``efficiency_loss`` costs time, so that a loss is exactly as large as it is planted."""
    values: dict[str, object] = {"slowdown": 1.0 / (1.0 - effect.efficiency_loss)}
    if effect.waste == "padding":
        return {**values, "padding": effect.size, "padding_costs": False}
    if effect.waste == "graph_miss":
        return {**values, "miss_rate": effect.size, "miss_costs": False}
    return {**values, "interference": effect.size, "interference_costs": False}
