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
    """Whether for a third of the warm-up nothing was sent, or nothing answered, in a run."""
    intervals = json.loads((client / "timeline.json").read_text())["intervals"]
    records = [json.loads(line) for line in (client / "requests.jsonl").read_text().splitlines()]
    if not intervals:
        return False
    start, end = intervals[0]["start_mono_ns"], intervals[-1]["end_mono_ns"]
    least = (intervals[0]["end_mono_ns"] - start) / 3
    last = intervals[-1]["start_mono_ns"] if intervals[-1]["kind"] == "drain" else end
    answers = ("first_token_mono_ns", "completed_mono_ns", "ended_mono_ns")
    for names, until in ((("admitted_mono_ns",), last), (answers, end)):
        moments = [at for each in records for name in names if (at := each.get(name))]
        if any(b - a > least for a, b in pairwise(sorted([start, *moments, until]))):
            return True
    return False
