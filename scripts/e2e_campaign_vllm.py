"""A small campaign on real vLLM (CPU build): detached, killed once, resumed, decided, packed.

usage: python scripts/e2e_campaign_vllm.py --env FOLDER [--keep DIR] [--time-scale 0.1]

``FOLDER`` comes from ``scripts/vllm_cpu_env.sh``. Two patterns under two configurations, both load
points, a burn-in each: ten fresh servers. The controller is started detached and killed with
SIGKILL while a client loads; the resumed campaign must end with every run complete, each exactly
once, nothing left behind, and verify, scan, decide and pack must agree. Run it with the Python that
has ``opprof``. The last line is ``N passed, M failed``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from e2e_checks import Checks
from vllm_cpu_server import CHECKOUT, MODEL_NAME, plugin_path

LIMIT_S = 45 * 60
KILL_IN_RUN = 4
"""The controller dies while the run at this place of the order is loaded."""


def opprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command and show what it says when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "opprof", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        print(f"opprof {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def prepare(work: Path, env: Path) -> tuple[Path, Path]:
    """Write protocol and manifests; return the frozen protocol and the private folder."""
    private = work / "private"
    private.mkdir(parents=True, mode=0o700)
    draft, frozen = work / "cpu.toml", work / "cpu-frozen.toml"
    script = CHECKOUT / "scripts" / "machine_protocol.py"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    subprocess.run([sys.executable, str(script), "cpu", str(draft)], check=True, env=environment)
    opprof("protocol", "freeze", str(draft), "--out", str(frozen))
    show = json.loads(opprof("protocol", "show", str(frozen), "--json").stdout)
    for row in show["protocol"]["patterns"]:
        words = row["manifest"].replace('"', "").replace("${PRIVATE}", str(private)).split()
        opprof(*words, "--tokenizer", str(env / MODEL_NAME))
    return frozen, private


def engine_flags(env: Path, work: Path) -> list[str]:
    """What the engine's environment needs on two cores."""
    values = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONPATH": plugin_path(work / "plugin"),
    }
    flags = ["--python", str(env / "bin" / "python"), "--var", f"MODEL={env / MODEL_NAME}"]
    for name, value in values.items():
        flags += ["--engine-env", f"{name}={value}"]
    return flags


def records(campaign: Path) -> list[dict[str, Any]]:
    """State files in the order of execution."""
    found = [json.loads(path.read_bytes()) for path in (campaign / "state").glob("*.json")]
    return sorted(found, key=lambda record: record["order"])


def controller(campaign: Path) -> dict[str, Any]:
    """The controller's own record."""
    found: dict[str, Any] = json.loads((campaign / "controller.json").read_bytes())
    return found


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs (not as a zombie)."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(campaign: Path, ready: Any, what: str) -> None:
    """Wait until ``ready`` holds of the records; the controller must live meanwhile."""
    deadline = time.monotonic() + LIMIT_S
    said = ""
    while not ready(records(campaign)):
        states = " ".join(f"{r['run']}:{r['state']}" for r in records(campaign))
        if states != said:
            print(f"     {time.strftime('%H:%M:%S')} {states}", flush=True)
            said = states
        if not is_alive(controller(campaign)["process"]["pid"]):
            time.sleep(1)
            if ready(records(campaign)):
                return
            raise RuntimeError(f"the controller ended before {what}: {log_end(campaign)}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(0.5)


def log_end(campaign: Path) -> str:
    """The end of the controller's log."""
    return (campaign / "controller.log").read_text(errors="replace")[-3000:]


def marked(campaign: Path) -> list[int]:
    """Processes that carry the campaign's marker."""
    mark = f"OPPROF_CAMPAIGN={json.loads((campaign / 'campaign.json').read_bytes())['id']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill_once(checks: Checks, campaign: Path) -> None:
    """SIGKILL the controller under load, and resume."""
    wait_for(campaign, lambda runs: runs[KILL_IN_RUN]["state"] == "loading", "the load")
    victim, run = controller(campaign)["process"]["pid"], records(campaign)[KILL_IN_RUN]["run"]
    complete = {r["run"]: r["attempts"] for r in records(campaign) if r["state"] == "complete"}
    os.kill(victim, signal.SIGKILL)
    time.sleep(2)
    checks.that(not is_alive(victim), f"the controller was killed while {run} was loaded")
    checks.that(bool(marked(campaign)), "its server and client outlived it")
    done = opprof("campaign", "status", str(campaign))
    checks.that("no" in done.stdout or "dead" in done.stdout, "status says that nobody controls it")
    checks.that(opprof("campaign", "resume", str(campaign)).returncode == 0, "resumed")
    wait_for(campaign, lambda runs: len(runs[KILL_IN_RUN]["attempts"]) == 2, "a second attempt")
    first = records(campaign)[KILL_IN_RUN]["attempts"][0]
    checks.that(first["phase"] == "interrupted", f"the first attempt is {first['phase']}")
    checks.that((campaign / first["folder"]).is_dir(), f"and is kept in {first['folder']}")
    now = {r["run"]: r["attempts"] for r in records(campaign) if r["run"] in complete}
    checks.that(now == complete, "what was complete was not touched")


def check_end(checks: Checks, campaign: Path) -> None:
    """Every run complete and accepted, once; nothing left behind."""
    for record in records(campaign):
        phases = [attempt["phase"] for attempt in record["attempts"]]
        good = record["state"] == "complete" and phases.count("complete") == 1
        verdict = "accepted" if record["accepted"] else "not accepted"
        checks.that(good, f"{record['run']}: {', '.join(phases)}; {verdict}")
        if not record["attempts"]:
            continue
        bad = {
            k: g["reason"]
            for k, g in record["attempts"][-1]["checks"].items()
            if g["outcome"] == "fail"
        }
        if bad:
            print(f"     {bad}")
    checks.that(not marked(campaign), "no process was left behind")
    for run in sorted((campaign / "runs").iterdir()):
        wanted = {"commands.log", "environment.json", "server.log", "client", "opprof"}
        there = {path.name for path in run.iterdir()}
        checks.that(wanted <= there, f"{run.name}: {sorted(there)}")


def check_products(checks: Checks, campaign: Path, private: Path, work: Path) -> None:
    """Decide, verify, scan, pack."""
    checks.that((campaign / "decision.json").is_file(), "the controller wrote decision.json")
    if (campaign / "decision.json").is_file():
        decision = json.loads((campaign / "decision.json").read_bytes())
        print(
            f"     H1a {decision['H1a']['outcome']}, H1b {decision['H1b']['outcome']}, "
            f"compound {decision['compound']['outcome']}"
        )
    checks.that(opprof("verify", str(campaign)).returncode == 0, "verify")
    manifests = [
        word for path in sorted(private.glob("P*.jsonl")) for word in ("--private", str(path))
    ]
    checks.that(opprof("scan", str(campaign), *manifests).returncode == 0, "scan")
    target = work / "campaign.tar.gz"
    packed = opprof("pack", str(campaign), "--out", str(target), *manifests)
    if checks.that(packed.returncode == 0 and target.is_file(), "pack"):
        with tarfile.open(target) as archive:
            names = archive.getnames()
        checks.that(not any("private" in name for name in names), f"{len(names)} entries, public")


def main() -> int:
    """Run the campaign and all checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="work here and keep everything")
    parser.add_argument("--time-scale", type=float, default=0.1)
    options = parser.parse_args()
    work = (options.keep or Path(tempfile.mkdtemp(prefix="opprof-e2e-"))).absolute()
    checks, begun = Checks(), time.monotonic()
    campaign = work / "campaign"
    try:
        frozen, private = prepare(work, options.env)
        started = opprof(
            *("campaign", "start", str(frozen), "--out", str(campaign), "--engine", "vllm"),
            *("--private", str(private), "--time-scale", str(options.time_scale), "--serial"),
            *engine_flags(options.env, work),
        )
        if checks.that(started.returncode == 0, "started, detached"):
            kill_once(checks, campaign)
            wait_for(
                campaign,
                lambda _runs: controller(campaign)["phase"] not in ("running", "stopping"),
                "the end",
            )
            check_end(checks, campaign)
            check_products(checks, campaign, private, work)
            print(log_end(campaign))
    finally:
        if (campaign / "controller.json").is_file():
            opprof("campaign", "stop", "--now", str(campaign))
        if options.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{checks.passed} passed, {checks.failed} failed in {time.monotonic() - begun:.0f} s")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
