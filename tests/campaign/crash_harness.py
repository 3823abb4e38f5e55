"""Kill a small simulated campaign wherever it can be killed, resume it, and compare its results.

usage: python tests/campaign/crash_harness.py [--work DIR] [--kills N] [--seed N] [--points-only N]

Virtual time in lock step, so the disturbed campaign must end with the bytes of the undisturbed one
in every client file, step stream and trace, and with the same analysis and decision once the hashes
of files with process ids and wall times are left out. Three kinds of campaigns:

points    the controller dies (SIGKILL) at every crash point of every run: around the write of each
          state, after a child was recorded, between the renaming of a folder and its record
mixed     at random times the server, the client, the controller, or everything at once
          (controller, server and client: a machine that goes down) is killed

After each kill: what was complete is still the same folder with the same attempt, and nothing that
belongs to the campaign outlives the next life. Prints one line a kill and a summary; exit code 1
where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from campaign_small import small_manifests, small_protocol

SOURCE = Path(__file__).parents[2] / "src"
POLL_S = 0.05
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
DURATIONS = {"warmup_s": "3", "clean_segment_s": "3", "recovery_s": "3"}
"""Virtual seconds; the manifests of the small campaign last for them."""
LIFE_S = 240.0


@dataclass
class Tally:
    """What was killed and what was found."""

    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All kills."""
        return sum(self.kills.values())

    def wrong(self, text: str) -> None:
        """Note and print a problem."""
        self.problems.append(text)
        print(f"PROBLEM {text}", flush=True)


class Site:
    """Protocol, manifests, and the one path at which every campaign is made."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        self.protocol = small_protocol(work / "small.toml", changes=DURATIONS)
        self.private = small_manifests(work / "private")
        self.folder = work / "campaign"

    def start(self, crash_at: str = "") -> int:
        """Start the campaign in the foreground and return the controller's exit status."""
        shutil.rmtree(self.folder, ignore_errors=True)
        flags = ["start", str(self.protocol), "--out", str(self.folder), "--engine", "sim"]
        flags += [
            "--virtual",
            "--private",
            str(self.private),
            "--serial",
            "--foreground",
            "--no-cpu-masks",
        ]
        return self.wait(self.life(flags + variables(self.protocol), crash_at))

    def resume(self, crash_at: str = "") -> int:
        """Resume it in the foreground and return the controller's exit status."""
        return self.wait(self.life(self.resume_flags(), crash_at))

    def resume_flags(self) -> list[str]:
        """Return the arguments of a resume; a server that was killed is a stop to be released."""
        flags = ["resume", str(self.folder), "--foreground"]
        if (self.folder / "stop.json").is_file():
            flags += ["--reviewed", "the crash harness killed the server"]
        return flags

    def life(self, flags: list[str], crash_at: str = "") -> subprocess.Popen[bytes]:
        """Start a controller in a session of its own."""
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OPPROF_CRASH_AT": crash_at}
        log = (self.work / "lives.log").open("ab")
        return subprocess.Popen(
            [sys.executable, "-m", "opprof", "campaign", *flags],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, life: subprocess.Popen[bytes]) -> int:
        """Wait for a controller's end."""
        try:
            return life.wait(LIFE_S)
        except subprocess.TimeoutExpired:
            life.kill()
            raise RuntimeError(f"a controller hangs; see {self.work / 'lives.log'}") from None

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the state files by run."""
        folder = self.folder / "state"
        return {path.stem: json.loads(path.read_bytes()) for path in folder.glob("*.json")}

    def identity(self) -> str:
        """Return the campaign's marker."""
        text: str = json.loads((self.folder / "campaign.json").read_bytes())["id"]
        return text


def variables(protocol: Path) -> list[str]:
    """Return a value for every variable that the protocol declares."""
    declared = "MODEL" if "[variables]\nMODEL" in protocol.read_text() else ""
    return ["--var", "MODEL=tiny"] if declared else []


# ------------------------------------------------------------------------ what must be equal


def digest(folder: Path) -> dict[str, str]:
    """Return name to hash of everything that may not depend on what happened on the way."""
    found: dict[str, str] = {}
    for run in sorted((folder / "runs").iterdir()):
        for part in ("client", "traces"):
            for path in sorted((run / part).glob("*")):
                found[f"{run.name}/{part}/{path.name}"] = sha256(path.read_bytes())
        stream = run / "opprof" / "engine-0.jsonl"
        found[f"{run.name}/opprof/{stream.name}"] = sha256(stream.read_bytes())
        for path in sorted((run / "analysis").glob("*.json")):
            found[f"{run.name}/analysis/{path.name}"] = sha256(normalised(path))
    if (folder / "decision.json").is_file():
        # Its rows also tell of each run's earlier attempts, as they should.
        decision = json.loads((folder / "decision.json").read_bytes())
        outcomes = {name: decision[name]["outcome"] for name in ("H1a", "H1b", "compound")}
        found["decision.json"] = sha256(json.dumps(outcomes).encode())
    return found


def normalised(path: Path) -> bytes:
    """Return a JSON artefact without its provenance, which hashes files with wall times."""
    return json.dumps(stripped(json.loads(path.read_bytes())), sort_keys=True).encode()


def stripped(value: Any) -> Any:
    """Return the value without provenance, hashes of inputs, wall times and marks of reruns.

    A decision says of each run which attempts came before the one that counts; that is what a kill
    adds to it, and all that it may add.
    """
    if isinstance(value, dict):
        left_out = ("provenance", "inputs", "signal_wall_ns")
        return {k: stripped(v) for k, v in value.items() if k not in left_out}
    if isinstance(value, list):
        return [
            stripped(item)
            for item in value
            if not (isinstance(item, str) and item.startswith("rerun, "))
        ]
    return value


def sha256(data: bytes) -> str:
    """Return the hash as text."""
    return hashlib.sha256(data).hexdigest()


def marked(identity: str) -> list[int]:
    """Return the processes that carry the campaign's marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"OPPROF_CAMPAIGN={identity}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Watch:
    """Remembers what was complete and finds what has changed of it."""

    def __init__(self, site: Site, tally: Tally) -> None:
        self._site, self._tally = site, tally
        self._complete: dict[str, tuple[int, int]] = {}

    def look(self, when: str) -> None:
        """Compare with the last look."""
        for name, record in self._site.records().items():
            if record["state"] != "complete":
                if name in self._complete:
                    self._tally.wrong(f"{when}: {name} was complete and is {record['state']}")
                continue
            last = record["attempts"][-1]
            result = self._site.folder / last["folder"] / "client" / "timeline.json"
            seen = (last["number"], result.stat().st_mtime_ns if result.is_file() else 0)
            if self._complete.setdefault(name, seen) != seen:
                self._tally.wrong(f"{when}: {name} was executed again after it was complete")


def settle(site: Site, tally: Tally, when: str, wanted: dict[str, str]) -> None:
    """Let the campaign finish undisturbed; compare results and look for what was left behind."""
    status = site.resume()
    if status != 0:
        tally.wrong(f"{when}: the last life ended with {status}")
    found = digest(site.folder)
    for name in sorted(set(wanted) | set(found)):
        if wanted.get(name) != found.get(name):
            tally.wrong(f"{when}: {name} differs from the undisturbed campaign")
    left = marked(site.identity())
    if left:
        tally.wrong(f"{when}: processes {left} were left behind")
    for name, record in site.records().items():
        done = [a for a in record["attempts"] if a["phase"] == "complete"]
        if len(done) != 1 or record["attempts"][-1]["phase"] != "complete":
            tally.wrong(f"{when}: {name} has {len(done)} complete attempts")


# ------------------------------------------------------------------------ the ways to die


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


def under_way(site: Site) -> str:
    """Return the run that an attempt is under way of; empty for none."""
    active = ("starting", "serving", "loading", "draining", "cleaning", "checking")
    if not (site.folder / "campaign.json").is_file():
        return ""
    return next((n for n, r in site.records().items() if r["state"] in active), "")


def victims(site: Site, life: int) -> dict[str, list[int]]:
    """Return the living processes of the campaign by role."""
    found: dict[str, list[int]] = {"controller": [life], "server": [], "client": []}
    for pid in marked(site.identity()):
        try:
            role = (Path("/proc") / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        for name in ("server", "client"):
            if f"OPPROF_ROLE={name}".encode() in role:
                found[name].append(pid)
    found["everything"] = [life, *found["server"], *found["client"]]
    return found


def die_at_random(
    site: Site,
    tally: Tally,
    wanted: dict[str, str],
    chance: random.Random,
    most: int,
    run_s: float,
) -> None:
    """One campaign that loses server, client, controller or all at random times.

    The next kill comes within two undisturbed runs (``run_s`` each), so that a campaign gets on.

    Server and client of a run are killed once at most: their loss is an infrastructure fault, for
    which the protocol allows one exact rerun.
    """
    watch, first, spent = Watch(site, tally), True, set()
    done = 0
    while done < most:
        if first:
            shutil.rmtree(site.folder, ignore_errors=True)
            start = ["start", str(site.protocol), "--out", str(site.folder), "--engine", "sim"]
            start += [
                "--virtual",
                "--private",
                str(site.private),
                "--serial",
                "--foreground",
                "--no-cpu-masks",
            ]
            life = site.life(start + variables(site.protocol))
        else:
            life = site.life(site.resume_flags())
        first, ended = False, False
        while not ended and done < most:
            until = time.monotonic() + chance.uniform(0.0, 2 * run_s)
            while time.monotonic() < until and life.poll() is None:
                if not under_way(site):
                    # A life that has not begun a run yet: its time does not count.
                    until += POLL_S
                time.sleep(POLL_S)
            if life.poll() is not None:
                ended = True
                continue
            if not (site.folder / "campaign.json").is_file():
                continue
            role = chance.choice(["server", "client", "controller", "everything"])
            pids = victims(site, life.pid)[role]
            active = next(
                (n for n, r in site.records().items() if r["state"] in ("serving", "loading")), ""
            )
            if role in ("server", "client"):
                if not pids or not active or active in spent:
                    continue
                spent.add(active)
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            done += 1
            tally.kills[role] += 1
            print(f"{tally.total:4d} {role} in {under_way(site) or 'between runs'}", flush=True)
            ended = role in ("controller", "everything")
        site.wait(life)
        watch.look(f"kill {tally.total}")
        states = {record["state"] for record in site.records().values()}
        if states == {"complete"}:
            break
    settle(site, tally, f"random kills up to {tally.total}", wanted)


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
        runs = sorted(site.records(), key=lambda name: site.records()[name]["order"])
        took = time.monotonic() - begun
        print(f"undisturbed: {len(runs)} runs, {len(wanted)} files, {took:.0f} s", flush=True)
        most = min(options.kills, options.points_only)
        die_at_every_point(site, tally, wanted, runs, most)
        chance = random.Random(options.seed)
        while tally.total < options.kills and len(tally.problems) < 10:
            most = options.kills - tally.total
            die_at_random(site, tally, wanted, chance, most, took / len(runs))
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(tally.kills.items()))
    print(f"{tally.total} kills ({kinds}) in {time.monotonic() - begun:.0f} s")
    print(f"{len(tally.problems)} problems")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
