"""A campaign's arithmetic once more, from the protocol's text alone: order, counts, hours, waves.

It reads a protocol file (TOML) and, for a plan to be checked, the JSON of `opprof campaign plan`.
It imports nothing from `opprof`. All times are exact fractions of seconds.

Readings, where the text leaves room:
- A primary run is budgeted by the protocol's own formula (startup, warm-up, clean, windows with
  their recovery, shutdown), a burn-in as startup, its seconds and shutdown, a confirmation as the
  protocol says.
- A reservation is startup, load, the pattern's drain allowance and the server's shutdown time-out,
  on every GPU.
- A confirmation's load is its budgeted seconds without startup and shutdown.
- A wave is the longest beginning of the order that has a place: a cell on N GPUs needs N
  neighbours of one NUMA node. Without a co-location check cells run one at a time.
"""

import hashlib
import itertools
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Cell = tuple[str, str]
HOUR = 3600


def exact(value: float | int) -> Fraction:
    """The number as it is written: 0.1 is a tenth."""
    return Fraction(str(value))


@dataclass(frozen=True)
class Job:
    """What occupies one slot from the start of a wave: runs one after the other."""

    group: str
    runs: tuple[str, ...]
    gpus: int
    expected_s: tuple[Fraction, ...]
    reserved_s: tuple[Fraction, ...]


class Plain:
    """One protocol file and what follows from it."""

    def __init__(self, text: str) -> None:
        self.data: dict[str, Any] = tomllib.loads(text)
        self.patterns = {row["id"]: row for row in self.data["patterns"]}
        self.configs = {row["id"]: row for row in self.data["configs"]}

    def cells(self) -> list[Cell]:
        """Every cell, in ascending order of the hash that the protocol names."""
        rule = self.data["cells"]
        found = {(pattern, rule["baseline_config"]) for pattern in self.patterns}
        found |= set(itertools.product(rule["sentinel_patterns"], rule["sentinel_configs"]))
        found |= {(pattern, config) for pattern, config in rule["extra"]}
        seed = self.data["seeds"]["execution_order"]
        return sorted(
            found,
            key=lambda cell: hashlib.sha256(f"{seed}:{cell[0]}:{cell[1]}".encode()).hexdigest(),
        )

    def gpus(self, config: str) -> int:
        return int(self.configs[config]["tensor_parallel_size"])

    def confirmations(self) -> list[Cell]:
        rule = self.data["confirmations"]
        return [(pattern, rule["config"]) for pattern in rule["patterns"]]

    def used_configs(self) -> list[str]:
        """Configurations with a cell, in the file's order: each has one burn-in."""
        used = {config for _, config in self.cells()}
        return [config for config in self.configs if config in used]

    def clean_s(self) -> Fraction:
        line = self.data["timeline"]
        return exact(line["clean_segment_s"]) * line["clean_segments"]

    def load_s(self, windows: int) -> Fraction:
        """Seconds of load: warm-up, clean interval, windows with their recovery."""
        line = self.data["timeline"]
        window = exact(self.data["budget"]["profile_window_s"]) + exact(line["recovery_s"])
        return exact(line["warmup_s"]) + self.clean_s() + windows * window

    def run_s(self, load_s: Fraction) -> Fraction:
        budget = self.data["budget"]
        return exact(budget["startup_s"]) + load_s + exact(budget["shutdown_s"])

    def reserved_s(self, pattern: str, load_s: Fraction) -> Fraction:
        drain = exact(self.patterns[pattern]["drain_budget_s"])
        return (
            exact(self.data["budget"]["startup_s"])
            + load_s
            + drain
            + exact(self.data["server"]["shutdown_timeout_s"])
        )

    def design(self) -> dict[str, Fraction | int]:
        """Counts and hours, named as `opprof protocol show --json` names them."""
        cells, confirmations, burnins = self.cells(), self.confirmations(), self.used_configs()
        windows = self.data["timeline"]["profile_windows"]
        primary = self.run_s(self.load_s(windows))
        burnin = self.run_s(exact(self.data["burnin"]["seconds"]))
        confirmation = exact(self.data["budget"]["confirmation_s"])
        # (seconds, GPUs) of each launch
        launches = [(primary, self.gpus(config)) for _, config in cells for _ in range(2)]
        launches += [(confirmation, self.gpus(config)) for _, config in confirmations]
        launches += [(burnin, self.gpus(config)) for config in burnins]
        return {
            "patterns": len(self.patterns),
            "configs": len(self.configs),
            "cells": len(cells),
            "tp1_cells": sum(self.gpus(config) == 1 for _, config in cells),
            "primary_runs": 2 * len(cells),
            "confirmation_runs": len(confirmations),
            "measured_runs": 2 * len(cells) + len(confirmations),
            "burnins": len(burnins),
            "windows": 2 * len(cells) * windows,
            "active_iterations": 2
            * len(cells)
            * windows
            * self.data["layer2"]["active_iterations"],
            "trace_files": sum(2 * windows * self.gpus(config) for _, config in cells),
            "clean_s_per_run": self.clean_s(),
            "primary_run_s": primary,
            "burnin_run_s": burnin,
            "wall_hours": sum((seconds for seconds, _ in launches), Fraction(0)) / HOUR,
            "gpu_hours": sum((seconds * gpus for seconds, gpus in launches), Fraction(0)) / HOUR,
        }

    def jobs(self) -> list[Job]:
        """Burn-ins, then cells in their order, then confirmations in theirs."""
        burnin, jobs = self.data["burnin"], []
        for config in self.used_configs():
            seconds = exact(burnin["seconds"])
            name = f"{burnin['pattern']}-{config}-saturation-burnin"
            jobs.append(
                self._job("burnin", [name], config, burnin["pattern"], self.run_s(seconds), seconds)
            )
        load = self.load_s(self.data["timeline"]["profile_windows"])
        for pattern, config in self.cells():
            names = [f"{pattern}-{config}-{point}" for point in ("saturation", "moderate")]
            jobs.append(self._job("matrix", names, config, pattern, self.run_s(load), load))
        for pattern, config in self.confirmations():
            point = self.data["confirmations"]["load_point"]
            name = f"{pattern}-{config}-{point}-confirmation"
            seconds = exact(self.data["budget"]["confirmation_s"])
            load = seconds - self.run_s(Fraction(0))
            jobs.append(self._job("confirmation", [name], config, pattern, seconds, load))
        return jobs

    def _job(
        self,
        group: str,
        names: list[str],
        config: str,
        pattern: str,
        expected: Fraction,
        load: Fraction,
    ) -> Job:
        count, reserved = len(names), self.reserved_s(pattern, load)
        return Job(group, tuple(names), self.gpus(config), (expected,) * count, (reserved,) * count)

    def waves(self, nodes: Sequence[int], *, serial: bool = False) -> list[list[Job]]:
        """Jobs by wave on GPUs whose NUMA nodes are given, all of them with a place."""
        waves: list[list[Job]] = []
        for job in self.jobs():
            wave = waves[-1] if waves else []
            same = bool(wave) and wave[-1].group == job.group and not serial
            if same and has_place([other.gpus for other in wave] + [job.gpus], nodes):
                wave.append(job)
            else:
                waves.append([job])
        return waves


def blocks(size: int, free: frozenset[int], nodes: Sequence[int]) -> Iterator[frozenset[int]]:
    """Runs of neighbouring free GPUs of one node."""
    for first in range(len(nodes) - size + 1):
        taken = range(first, first + size)
        if free.issuperset(taken) and len({nodes[gpu] for gpu in taken}) == 1:
            yield frozenset(taken)


def has_place(sizes: Sequence[int], nodes: Sequence[int]) -> bool:
    """Whether there is any way to place all of them at once (tries every way)."""

    def search(rest: tuple[int, ...], free: frozenset[int]) -> bool:
        if sum(rest) > len(free):
            return False
        if not rest or rest[0] == 1:
            return True
        return any(search(rest[1:], free - block) for block in blocks(rest[0], free, nodes))

    return search(tuple(sorted(sizes, reverse=True)), frozenset(range(len(nodes))))


def cpus(mask: str) -> set[int]:
    """The logical CPUs of `0-3,8`."""
    found: set[int] = set()
    for part in mask.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def close(seen: float, expected: Fraction | int) -> bool:
    return abs(seen - float(expected)) <= 1e-9 * max(1.0, abs(float(expected)))


def compare_design(plain: Plain, shown: dict[str, Any]) -> Iterator[str]:
    """What `protocol show --json` says otherwise."""
    for name, expected in plain.design().items():
        if not close(shown["design"][name], expected):
            yield f"{name}: {shown['design'][name]} instead of {float(expected)}"
    if [tuple(cell) for cell in shown["execution_order"]] != plain.cells():
        yield "execution order"


def compare_plan(plain: Plain, plan: dict[str, Any], *, serial: bool = False) -> Iterator[str]:
    """What `campaign plan --json` says otherwise, for the host of the protocol's own map."""
    place, budget = plain.data["placement"], plain.data["budget"]
    used, limit = exact(budget["gpu_hours_used"]), exact(budget["gpu_hours_max"])
    expected = plain.waves(place["numa_nodes"], serial=serial)
    consumed, shown = used, plan["waves"]
    for number, wave in enumerate(expected, 1):
        reserved = (
            sum((seconds * job.gpus for job in wave for seconds in job.reserved_s), Fraction(0))
            / HOUR
        )
        if consumed + reserved > limit:
            if len(shown) != number - 1:
                yield f"wave {number}: should be refused, {len(shown)} waves shown"
            return
        if len(shown) < number:
            yield f"wave {number}: missing"
            return
        seen = shown[number - 1]
        yield from (f"wave {number}: {text}" for text in _compare_wave(wave, seen, place))
        cost = (
            sum((seconds * job.gpus for job in wave for seconds in job.expected_s), Fraction(0))
            / HOUR
        )
        longest = max(sum(job.expected_s, Fraction(0)) for job in wave)
        for name, value in (
            ("reserved_gpu_hours", reserved),
            ("consumed_before_gpu_hours", consumed),
            ("expected_gpu_hours", cost),
            ("expected_s", longest),
        ):
            if not close(seen[name], value):
                yield f"wave {number}: {name} {seen[name]} instead of {float(value)}"
        consumed += cost
    if len(shown) != len(expected):
        yield f"{len(shown)} waves instead of {len(expected)}"


def _compare_wave(
    wave: Iterable[Job], seen: dict[str, Any], place: dict[str, Any]
) -> Iterator[str]:
    jobs = list(wave)
    lanes = [tuple(run["run"] for run in lane["runs"]) for lane in seen["lanes"]]
    if lanes != [job.runs for job in jobs]:
        yield f"lanes {lanes} instead of {[job.runs for job in jobs]}"
        return
    gpus: set[int] = set()
    taken: set[int] = set()
    ports: set[int] = set()
    for job, lane in zip(jobs, seen["lanes"], strict=True):
        slot, own = lane["slot"], lane["slot"]["gpus"]
        mask = cpus(slot["cpus"])
        if len(own) != job.gpus or sorted(own) != list(range(min(own), min(own) + job.gpus)):
            yield f"{job.runs[0]}: GPUs {own}"
        if len({place["numa_nodes"][gpu] for gpu in own}) != 1:
            yield f"{job.runs[0]}: GPUs of several nodes {own}"
        if mask != set().union(*(cpus(place["cpu_map"][gpu]) for gpu in own)):
            yield f"{job.runs[0]}: CPUs {slot['cpus']}"
        if gpus & set(own) or taken & mask or (slot["port"] and slot["port"] in ports):
            yield f"{job.runs[0]}: shares a GPU, a CPU or a port"
        gpus |= set(own)
        taken |= mask
        ports.add(slot["port"])
        for run, expected, reserved in zip(
            lane["runs"], job.expected_s, job.reserved_s, strict=True
        ):
            if not close(run["expected_s"], expected) or not close(run["reserved_s"], reserved):
                seen_s = f"{run['expected_s']}/{run['reserved_s']}"
                yield f"{run['run']}: {seen_s} s instead of {expected}/{reserved}"
