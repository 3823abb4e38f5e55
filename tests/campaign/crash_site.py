"""The small campaign that the crash harness kills: how it is begun, and what may not change."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign_small import small_manifests, small_protocol

from opprof.campaign.naming import is_of_host
from opprof.campaign.processes import ProcessTable
from opprof.campaign.review import standing
from opprof.campaign.store import Store

SOURCE = Path(__file__).parents[2] / "src"
TABLE = ProcessTable()
DURATIONS = {"warmup_s": "3", "clean_segment_s": "3", "recovery_s": "3"}
"""Virtual seconds; the manifests of the small campaign last for them."""
LIFE_S = 600.0
_ORPHAN = """\
import os
if os.environ.get("OPPROF_ROLE") == "server":
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 1024)
            os.execve("/bin/sleep", ["{name}", "100000"], {{}})
        os._exit(0)
    os.wait()
"""
"""Every server leaves an orphan: own session, no parent, no environment, no file, no folder."""


@dataclass
class Tally:
    """What was killed and what was found."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills that ended a living victim."""
    missed: Counter[str] = field(default_factory=Counter)
    """Victims that ended by themselves before their time came; no kills."""
    orphans: int = 0
    """Kills after which an orphan of the server lived on."""
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
        self.orphan = f"orphan-{secrets.token_hex(8)}"
        engine = work / "engine"
        engine.mkdir(exist_ok=True)
        (engine / "sitecustomize.py").write_text(_ORPHAN.format(name=self.orphan))
        self._path = os.pathsep.join([str(SOURCE), str(engine)])

    def start(self, crash_at: str = "") -> int:
        """Start the campaign in the foreground and return the controller's exit status."""
        return self.wait(self.life(self.start_flags(), crash_at))

    def start_flags(self) -> list[str]:
        """Return the arguments of a start, where nothing is left of an earlier campaign."""
        shutil.rmtree(self.folder, ignore_errors=True)
        flags = ["start", str(self.protocol), "--out", str(self.folder), "--engine", "sim"]
        flags += ["--virtual", "--private", str(self.private), "--serial", "--foreground"]
        flags += ["--no-cpu-masks", "--engine-env", f"PYTHONPATH={self._path}"]
        return flags + variables(self.protocol)

    def resume(self, crash_at: str = "") -> int:
        """Resume it in the foreground and return the controller's exit status."""
        return self.wait(self.life(self.resume_flags(), crash_at))

    def resume_flags(self) -> list[str]:
        """Return the arguments of a resume; a server that was killed is a stop to be released."""
        flags = ["resume", str(self.folder), "--foreground"]
        if standing(Store(self.folder, wall_ns=time.time_ns)) is not None:
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
        if is_of_host(run.name):
            # A further host's own burn-in.
            continue
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


def orphans(site: Site) -> list[int]:
    """Return the living orphans of the site's servers, told by nothing but their command."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if site.orphan.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):
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
    left = {seen.pid for seen in TABLE.marked(site.identity())} | {*orphans(site)}
    if left:
        tally.wrong(f"{when}: processes {sorted(left)} were left behind")
    for name, record in site.records().items():
        done = [a for a in record["attempts"] if a["phase"] == "complete"]
        if len(done) != 1 or record["attempts"][-1]["phase"] != "complete":
            tally.wrong(f"{when}: {name} has {len(done)} complete attempts")
