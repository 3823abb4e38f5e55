"""Kernels artefacts as exact values: nanoseconds by family, window and rank under one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from opprof.artifacts.common import RunIdentity
from opprof.artifacts.kernels import Kernels, WindowFamilies
from opprof.errors import InputError
from opprof.mapping.families import FAMILIES, UNCLASSIFIED


@dataclass(frozen=True)
class RunInput:
    """One analysed run as the caller has it."""

    kernels: Kernels
    source: str
    """Named in messages."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Run-level metrics, unit last in the name; shown with their ratios to the baseline config."""
    failed_gates: Sequence[str] = ()
    """Failed gates that invalidate the run's figures: a mark on everything it takes part in."""
    red_flags: Sequence[str] = ()
    """Data that contradict themselves: the run is shown, and no inversion is built on it."""


@dataclass(frozen=True)
class WindowShares:
    """One window on one rank: integer nanoseconds, so that borders are judged exactly."""

    window: int
    rank: int
    accepted: bool
    reasons: tuple[str, ...]
    kernel_ns: int
    steps: int
    family_ns: Mapping[str, int]

    def ns(self, family: str) -> int:
        """Nanoseconds of a family; 0 when the window lacks it."""
        return self.family_ns.get(family, 0)

    def share(self, family: str) -> Fraction | None:
        """``ns / kernel_ns``; None without kernel time."""
        return Fraction(self.ns(family), self.kernel_ns) if self.kernel_ns else None

    def lead(self, family_a: str, family_b: str) -> Fraction | None:
        """Share of ``family_a`` less share of ``family_b``; None without kernel time."""
        if not self.kernel_ns:
            return None
        return Fraction(self.ns(family_a) - self.ns(family_b), self.kernel_ns)

    @property
    def classified(self) -> Fraction | None:
        """1 less the shares of ``other`` and opaque replays; None without kernel time."""
        if not self.kernel_ns:
            return None
        return 1 - Fraction(sum(self.ns(name) for name in UNCLASSIFIED), self.kernel_ns)


@dataclass(frozen=True)
class RunShares:
    """One run under one mapping table."""

    run: RunIdentity
    source: str
    windows: tuple[WindowShares, ...]
    """By window, then rank."""
    breakdown_valid: bool | None
    failed_gates: tuple[str, ...] = ()
    red_flags: tuple[str, ...] = ()

    @cached_property
    def window_ids(self) -> tuple[int, ...]:
        """The windows there are, ascending."""
        return tuple(sorted({window.window for window in self.windows}))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that any window has, ascending."""
        return tuple(sorted({window.rank for window in self.windows}))

    @cached_property
    def _by_window(self) -> dict[int, tuple[WindowShares, ...]]:
        return {
            window: tuple(entry for entry in self.windows if entry.window == window)
            for window in self.window_ids
        }

    @cached_property
    def _mean_shares(self) -> dict[str, Fraction]:
        known = [entry for entry in self.windows if entry.kernel_ns]
        return {
            name: sum((Fraction(entry.ns(name), entry.kernel_ns) for entry in known), Fraction(0))
            / max(len(known), 1)
            for name in FAMILIES
        }

    def of_window(self, window: int) -> tuple[WindowShares, ...]:
        """All ranks of one window; empty when the run lacks it."""
        return self._by_window.get(window, ())

    def lead(self, window: int, family_a: str, family_b: str) -> Fraction | None:
        """The least lead of ``family_a`` over ``family_b`` on any rank of a window.

        A tensor-parallel run leads only where it leads on every rank (see ``README.md``). None when
        a rank is missing or has no kernel time.
        """
        entries = self.of_window(window)
        if tuple(entry.rank for entry in entries) != self.ranks:
            return None
        leads = [entry.lead(family_a, family_b) for entry in entries]
        known = [lead for lead in leads if lead is not None]
        return min(known) if known and len(known) == len(leads) else None

    def mean_share(self, family: str) -> Fraction:
        """Mean over windows and ranks with kernel time; 0 when there are none."""
        return self._mean_shares[family]

    @property
    def marks(self) -> tuple[str, ...]:
        """Failed gates and declared departures that the figures carry along."""
        found = [f"red flag {flag}" for flag in self.red_flags]
        if self.failed_gates:
            found.append(f"run invalid by {', '.join(self.failed_gates)}")
        if self.breakdown_valid is False:
            found.append("windows are not representative of the clean steps (breakdown invalid)")
        if self.run.drain_quarantined:
            found.append("drain quarantined")
        if self.run.simulated:
            found.append("simulated, no measurement")
        if self.run.time_scale != 1.0:
            found.append(f"durations scaled by {self.run.time_scale:g}")
        return tuple(found)


def exact(threshold: float) -> Fraction:
    """Return the decimal that a threshold was written as: 0.05 is 1/20, no binary neighbour."""
    return Fraction(repr(threshold))


def table_hash(kernels: Kernels, version: str) -> str | None:
    """SHA-256 of a table that an artefact has results under; None when it has none."""
    if kernels.mapping_version == version:
        return kernels.mapping_sha256
    alternative = kernels.alternatives.get(version)
    return None if alternative is None else alternative.mapping_sha256


def run_shares(entry: RunInput, version: str) -> RunShares:
    """Return a run's windows under one table.

    Raises:
        InputError: the artefact has no such table, a window twice, an unknown family, or families
            that do not sum to the window's kernel time (invariant K3).
    """
    kernels = entry.kernels
    windows: Sequence[WindowFamilies]
    if kernels.mapping_version == version:
        windows = kernels.windows
    elif version in kernels.alternatives:
        windows = kernels.alternatives[version].windows
    else:
        raise InputError(f"has no results under mapping table {version!r}", path=entry.source)
    found: dict[tuple[int, int], WindowShares] = {}
    for window in windows:
        key = (window.window, window.rank)
        if key in found:
            raise InputError(f"window {key[0]} rank {key[1]} occurs twice", path=entry.source)
        found[key] = _window_shares(window, entry.source)
    return RunShares(
        run=kernels.run,
        source=entry.source,
        windows=tuple(found[key] for key in sorted(found)),
        breakdown_valid=kernels.breakdown_valid,
        failed_gates=tuple(entry.failed_gates),
        red_flags=tuple(entry.red_flags),
    )


def _window_shares(window: WindowFamilies, source: str) -> WindowShares:
    where = f"window {window.window} rank {window.rank} ({window.mapping_version})"
    unknown = sorted(set(window.families) - set(FAMILIES))
    if unknown:
        raise InputError(f"{where}: unknown family {unknown[0]!r}", path=source)
    family_ns = {name: window.families[name].ns for name in FAMILIES if name in window.families}
    if any(ns < 0 for ns in family_ns.values()):
        raise InputError(f"{where}: a family has negative time", path=source)
    total = sum(family_ns.values())
    if total != window.kernel_ns:
        raise InputError(
            f"{where}: families sum to {total} ns, kernel_ns is {window.kernel_ns}", path=source
        )
    return WindowShares(
        window=window.window,
        rank=window.rank,
        accepted=window.accepted,
        reasons=tuple(window.reasons),
        kernel_ns=window.kernel_ns,
        steps=len(window.profiler_steps),
        family_ns=family_ns,
    )
