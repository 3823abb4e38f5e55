"""Random kills of a campaign's controller, server, client and whole group, equally often."""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from crash_site import LIFE_S, TABLE, Site, Tally, Watch, orphans, settle

from opprof.artifacts.campaign import Attempt, ProcessRecord, RunRecord
from opprof.campaign.store import Store

POLL_S = 0.05
KINDS = ("controller", "server", "client", "whole group")
_FAULTS = ("server", "client")
"""An infrastructure fault of their run; the protocol allows each run one exact rerun for it."""
_GONE_S = 300.0
_ACTIVE = ("starting", "serving", "loading", "draining", "cleaning", "checking")


def life_spans(site: Site) -> dict[str, float]:
    """Return the median life of each kind of victim within a run of the campaign, in seconds."""
    attempts = [a for record in _runs(site) for a in record.attempts]
    spans = {
        role: statistics.median(
            (process.ended_wall_ns - process.started_wall_ns) / 1e9
            for attempt in attempts
            for process in attempt.processes
            if process.role == role and process.ended_wall_ns is not None
        )
        for role in _FAULTS
    }
    run_s = statistics.median(
        (a.transitions[-1].wall_ns - a.transitions[0].wall_ns) / 1e9 for a in attempts
    )
    return spans | {"controller": run_s, "whole group": spans["server"]}


def planned(
    runs: list[str], done: Counter[str], chance: random.Random, most: int
) -> dict[str, list[str]]:
    """Return the kills of one campaign by run: at most one fault and one crash a run.

    The kind that has been killed least so far comes next, so that all four come out equal.
    """
    free = {kind: chance.sample(runs, len(runs)) for kind in ("fault", "crash")}
    plan: dict[str, list[str]] = {run: [] for run in runs}
    counts = Counter(done)
    for _ in range(most):
        can = [kind for kind in KINDS if free[_pool(kind)]]
        if not can:
            break
        kind = min(can, key=lambda each: (counts[each], chance.random()))
        counts[kind] += 1
        plan[free[_pool(kind)].pop()].append(kind)
    for kinds in plan.values():
        chance.shuffle(kinds)
    return plan


def _pool(kind: str) -> str:
    return "fault" if kind in _FAULTS else "crash"


def die_at_random(
    site: Site,
    tally: Tally,
    wanted: dict[str, str],
    chance: random.Random,
    most: int,
    spans: dict[str, float],
) -> None:
    """One campaign with up to two random kills a run, ``most`` in all; then its results."""
    watch = Watch(site, tally)
    plan = planned([record.run for record in _runs(site)], tally.kills, chance, most)
    life = site.life(site.start_flags())
    for number in itertools.count(1):
        _disturb(Blow(site, tally, chance, spans, life), plan)
        site.wait(life)
        watch.look(f"kill {tally.total}")
        complete = {record.run for record in _runs(site) if record.state == "complete"}
        for run in complete:
            # It was faster than what was planned for it.
            tally.missed.update(plan[run])
            plan[run] = []
        if complete == set(plan):
            break
        if number > 4 * len(KINDS) * len(plan):
            tally.wrong(f"the campaign does not end in {number} lives")
            break
        life = site.life(site.resume_flags())
    settle(site, tally, f"random kills up to {tally.total}", wanted)


def _disturb(blow: Blow, plan: dict[str, list[str]]) -> None:
    """Kill what is planned while this life lasts."""
    while blow.life.poll() is None and any(plan.values()):
        record = _under_way(blow.site, blow.begun_ns)
        if record is None or not plan[record.run]:
            time.sleep(POLL_S)
            continue
        kind = plan[record.run][0]
        if blow.strike(record, kind):
            plan[record.run].pop(0)


@dataclass
class Blow:
    """Kills in one life of the controller."""

    site: Site
    tally: Tally
    chance: random.Random
    spans: dict[str, float]
    life: subprocess.Popen[bytes]
    begun_ns: int = field(default_factory=time.time_ns)

    def strike(self, record: RunRecord, kind: str) -> bool:
        """Kill a victim at a random time of its life in this attempt; tell whether that hit."""
        attempt = record.attempt
        assert attempt is not None
        role = {"whole group": "server"}.get(kind, kind)
        if not self._until(lambda: self._lives(record, role), record):
            return False
        then = time.monotonic() + self.chance.uniform(0.0, self.spans[kind])
        self._until(lambda: time.monotonic() >= then or not self._lives(record, role), record)
        victim = None if role == "controller" else self._victim(record, role)
        hit = self._lives(record, role) and self._kill(victim, kind)
        if hit and victim is not None and kind in _FAULTS:
            hit = self._confirmed(record, victim)
        phase = (self._now(record) or attempt).phase
        if not hit:
            self.tally.missed[kind] += 1
            print(f"     {kind} in {record.run} had ended by itself ({phase})", flush=True)
            return False
        self.tally.kills[kind] += 1
        self.tally.orphans += bool(orphans(self.site))
        print(f"{self.tally.total:4d} {kind} in {record.run}, {phase}", flush=True)
        return True

    def _kill(self, victim: ProcessRecord | None, kind: str) -> bool:
        if kind in _FAULTS:
            return victim is not None and TABLE.send(victim, signal.SIGKILL)
        group = TABLE.marked(self.site.identity()) if kind == "whole group" else []
        self.life.kill()
        for seen in group:
            TABLE.send_seen(seen, signal.SIGKILL)
        hit = self.life.wait(_GONE_S) == -signal.SIGKILL
        if victim is not None:
            self._wait(lambda: not TABLE.is_alive(victim), "the killed server")
        return hit

    def _confirmed(self, record: RunRecord, victim: ProcessRecord) -> bool:
        """Wait for the attempt's end; tell whether its controller saw the victim killed."""
        self._wait(
            lambda: (
                self.life.poll() is not None
                or (now := self._now(record)) is None
                or now.phase not in _ACTIVE
            ),
            f"the end of {record.run}",
        )
        number = len(record.attempts)
        after = Store(self.site.folder, wall_ns=time.time_ns).run(record.run)
        attempt = after.attempts[number - 1]
        (now,) = [p for p in attempt.processes if p.pid == victim.pid]
        if now.exit_status == -signal.SIGKILL and attempt.phase == "complete":
            self.tally.wrong(f"{record.run} is complete, but its {victim.role} was killed")
        return now.exit_status == -signal.SIGKILL

    def _now(self, record: RunRecord) -> Attempt | None:
        """Return the attempt as it is now; None once another one has begun."""
        now = next(each for each in _runs(self.site) if each.run == record.run)
        return now.attempt if len(now.attempts) == len(record.attempts) else None

    def _victim(self, record: RunRecord, role: str) -> ProcessRecord | None:
        attempt = self._now(record)
        found = [] if attempt is None else [p for p in attempt.processes if p.role == role]
        return next(iter(found), None)

    def _lives(self, record: RunRecord, role: str) -> bool:
        attempt = self._now(record)
        if self.life.poll() is not None or attempt is None or attempt.phase not in _ACTIVE:
            return False
        if role == "controller":
            return True
        victim = self._victim(record, role)
        return victim is not None and TABLE.is_alive(victim)

    def _until(self, holds: Callable[[], bool], record: RunRecord) -> bool:
        """Wait while the attempt lasts; tell whether it then holds."""
        while not (done := holds()) and self._lives(record, "controller"):
            time.sleep(POLL_S)
        return done

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + LIFE_S
        while not holds():
            if time.monotonic() > give_up:
                raise RuntimeError(f"{what} does not come; see {self.site.work / 'lives.log'}")
            time.sleep(POLL_S)


def _runs(site: Site) -> list[RunRecord]:
    if not (site.folder / "campaign.json").is_file():
        return []
    return Store(site.folder, wall_ns=time.time_ns).runs()


def _under_way(site: Site, since_ns: int) -> RunRecord | None:
    """Return the run with an attempt of this life, not one that an earlier life has left."""
    for record in _runs(site):
        attempt = record.attempt
        if attempt is not None and attempt.phase in _ACTIVE:
            return record if attempt.transitions[0].wall_ns >= since_ns else None
    return None
