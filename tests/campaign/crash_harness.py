"""Kill a small simulated campaign wherever it can be killed, resume it, and compare its results.

usage: python tests/campaign/crash_harness.py [--work DIR] [--kills N] [--seed N] [--points-only N]

Virtual time in lock step, so the disturbed campaign must end with the bytes of the undisturbed one
in every client file, step stream and trace, and with the same analysis and decision once the hashes
of files with process ids and wall times are left out. Two kinds of campaigns:

points    the controller dies (SIGKILL) at every crash point of every run: around the write of each
          state, after a child was recorded, between the renaming of a folder and its record
random    controller, server, client and the whole group (everything that the campaign started, the
          controller too: a machine that goes down) are killed equally often, each at a random time
          of its life in a run

A random kill counts only where it ended a living victim: the controller's exit status, or the one
that the controller has recorded for its server or client, must be that of SIGKILL.

Every server leaves an orphan of its own session with no parent, environment, folder or open file.
After each kill: what was complete is still the same folder with the same attempt, and nothing that
belongs to the campaign, orphans included, outlives the next life. Prints one line a kill and a
table; exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from crash_random import KINDS, die_at_random, life_spans
from crash_site import Site, Tally, Watch, digest, settle

POINTS = (
    "starting.before",
    "starting.after",
    "server.recorded",
    "serving.before",
    "serving.after",
    "loading.before",
    "client.recorded",
    "draining.before",
    "draining.after",
    "cleaning.after",
    "checking.before",
    "checking.after",
    "analysis.recorded",
    "judged",
    "hashed",
    "complete.before",
    "complete.after",
)
"""In the order in which an attempt meets them; a burn-in is not analysed."""
AFTER_A_BREAK = ("interrupted.before", "interrupted.after", "moved", "attempt.recorded")
"""Met by the life after a break-off, while it puts the broken attempt aside."""


def crash_points(site: Site, runs: list[str]) -> Iterator[str]:
    """Every crash point of every run, in an order in which one campaign can meet them all."""
    for run in runs:
        burnin = site.records()[run]["role"] == "burnin" if site.folder.is_dir() else False
        for point in POINTS:
            if burnin and point == "analysis.recorded":
                continue
            yield f"{run}:{point}"
            if point in ("serving.after", "client.recorded"):
                yield from (f"{run}:{later}" for later in AFTER_A_BREAK)


def die_at_every_point(
    site: Site, tally: Tally, wanted: dict[str, str], runs: list[str], most: int
) -> None:
    """One campaign whose controller dies at each crash point."""
    watch, first = Watch(site, tally), True
    for number, point in enumerate(crash_points(site, runs)):
        if number >= most:
            break
        status = site.start(point) if first else site.resume(point)
        first = False
        if status == -signal.SIGKILL:
            tally.kills["controller at a point"] += 1
            print(f"{tally.total:4d} controller at {point}", flush=True)
        else:
            # Not met: the run was complete before, or this life had nothing to put aside.
            print(f"     {point} was not met (status {status})", flush=True)
        watch.look(point)
    settle(site, tally, "every point", wanted)


def main() -> int:
    """Run the campaigns until enough was killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, help="work here and keep everything")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--points-only", type=int, default=10_000, help="at most so many points")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="opprof-crash-"))
    begun, tally = time.monotonic(), Tally()
    try:
        site = Site(work.absolute())
        if site.start() != 0:
            print(f"the undisturbed campaign failed; see {site.work / 'lives.log'}")
            return 1
        wanted = digest(site.folder)
        lives = life_spans(site)
        runs = sorted(site.records(), key=lambda name: site.records()[name]["order"])
        took = time.monotonic() - begun
        print(f"undisturbed: {len(runs)} runs, {len(wanted)} files, {took:.0f} s", flush=True)
        most = min(options.kills, options.points_only)
        if most:
            die_at_every_point(site, tally, wanted, runs, most)
        chance = random.Random(options.seed)
        while tally.total < options.kills and len(tally.problems) < 10:
            die_at_random(site, tally, wanted, chance, options.kills - tally.total, lives)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{'victim':24}{'killed':>8}{'missed':>8}")
    for name in ("controller at a point", *KINDS):
        print(f"{name:24}{tally.kills[name]:8}{tally.missed[name]:8}")
    print(f"{tally.total} kills in {time.monotonic() - begun:.0f} s")
    print(f"{tally.orphans} kills of a controller left an orphan of its server")
    print(f"{len(tally.problems)} problems")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
