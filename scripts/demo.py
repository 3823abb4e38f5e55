"""`make demo`: rehearse a small campaign, analyse the bundled real H200 runs, one HTML report.

The rehearsal runs three patterns on the embedded engine and is labelled simulated everywhere. The
real runs are short collections, so gates of the full protocol fail on them by design; the demo
shows the verdicts and ends with exit code 0 when every command did its work.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "examples" / "h200-runs"
PROTOCOL = ROOT / "examples" / "rehearsal" / "three-patterns.toml"
DONE = (0, 1)
"""Exit codes of a command that did its work: 1 says that a gate failed."""


def opprof(*arguments: object, accept: tuple[int, ...] = DONE) -> None:
    """Run the command and stop the demo when it did not do its work."""
    command = [sys.executable, "-m", "opprof", *map(str, arguments)]
    print(f"\n$ opprof {' '.join(map(str, arguments))}", flush=True)
    code = subprocess.run(command, check=False).returncode
    if code not in accept:
        raise SystemExit(f"demo: opprof {arguments[0]} ended with exit code {code}")


def _shown(path: Path) -> Path:
    """The path as a user would type it from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out: Path = parser.parse_args().out
    runs = sorted(_shown(path) for path in RUNS.iterdir() if path.is_dir())
    protocol, rehearsal = _shown(PROTOCOL), out / "rehearsal"
    # Neither a rehearsal nor an analysis of other files is overwritten; these are the demo's own.
    for own in (rehearsal, out / "simulated", out / "analysis"):
        shutil.rmtree(own, ignore_errors=True)
    opprof("rehearse", protocol, "--seed", 1, "--out", rehearsal)
    simulated = sorted((rehearsal / "runs").iterdir())
    opprof("analyze", *simulated, "--protocol", protocol, "--out", out / "simulated")
    opprof("analyze", *runs, "--out", out / "analysis")
    # Each kind is judged by the protocol that it was analysed under.
    opprof("compare", out / "simulated", "--protocol", protocol)
    opprof("compare", out / "analysis")
    report = out / "report.html"
    opprof("report", out / "simulated", out / "analysis", *simulated, *runs, "--out", report)
    print(f"\nThe report lies at {report}")
    print(
        "Its simulated runs are the embedded engine's and measure nothing; the H200 runs are\n"
        "real. It judges by the packaged protocol; what the rehearsal's own one says of the\n"
        f"simulated runs stands above and in {rehearsal / 'decision.md'}."
    )
    print(
        "The gates fail here by design: the bundled runs are short (8 to 15 s, not 240) and keep\n"
        "two faults that OpProf must find. examples/h200-runs/README.md tells their story."
    )


if __name__ == "__main__":
    main()
