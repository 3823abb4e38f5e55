"""Runs of seconds where the machine stands still for a second: made again, slower as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

Check = Callable[[float, Path], None]


def patiently(check: Check, folder: Path, scales: Sequence[float]) -> None:
    """Make whole runs and judge them, at the first of some time scales at which they hold.

    A machine that stands still for a second can leave a phase of tenths of a second without any
    answer. Only where the runs' own records show that are they made again, slower as a whole; the
    slowest ones count whatever the machine did. The check gets the time scale and a fresh folder.
    """
    for scale in scales:
        place = folder / f"scale-{scale}"
        try:
            check(scale, place)
        except AssertionError:
            runs = [path.parent for path in place.rglob("timeline.json")]
            if scale == scales[-1] or not any(map(was_held_up, runs)):
                raise
        else:
            return


def was_held_up(client: Path) -> bool:
    """Whether nothing happened to any request for a third of the warm-up, anywhere in a run."""
    intervals = json.loads((client / "timeline.json").read_text())["intervals"]
    moments = [each[name] for each in intervals for name in ("start_mono_ns", "end_mono_ns")]
    for line in (client / "requests.jsonl").read_text().splitlines():
        moments += [ns for name, ns in json.loads(line).items() if name.endswith("_mono_ns") and ns]
    moments.sort()
    least = (intervals[0]["end_mono_ns"] - intervals[0]["start_mono_ns"]) / 3 if intervals else 0
    return any(later - earlier > least for earlier, later in pairwise(moments))
