"""Names of runs and folders in a campaign: one rule, the timeline's (contract, section 8).

``P01-C00-moderate``, ``P06-C10-saturation-burnin``, ``P10-C00-moderate-confirmation``. A pattern's
name holds no hyphen and the load point is one of two words, so that no two runs share a name.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from opprof.artifacts.run import LoadPoint, Role

RUNS = PurePosixPath("runs")
ATTEMPTS = PurePosixPath("attempts")
COLOCATION = PurePosixPath("colocation")
GATE = "gate.json"
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of hosts that may stand in the name of a run and of a folder."""


def run_name(pattern: str, config: str, load_point: LoadPoint, role: Role = "primary") -> str:
    """Return the run's name, as ``Timeline.run_name`` gives it."""
    suffix = "" if role == "primary" else f"-{role}"
    return f"{pattern}-{config}-{load_point}{suffix}"


def run_folder(run: str) -> str:
    """Return the folder of a run's current attempt, relative to the campaign."""
    return str(RUNS / run)


def attempt_folder(run: str, number: int) -> str:
    """Return where a failed or broken-off attempt is kept, relative to the campaign."""
    return str(ATTEMPTS / f"{run}.{number}")


def colocation_run(host: str, regime: str, load_point: LoadPoint, run: str) -> str:
    """Return the campaign-wide name of one run of the co-location check on a host.

    ``load_point``: the target's, since the backgrounds run once beside the target's calibration and
    once beside its moderate run.
    """
    return f"{round_prefix(regime, load_point)}-{run}@{host}"


def round_of(run: str) -> tuple[str, str]:
    """Return what the runs of one round share: regime and load point, and the host."""
    words, _, host = run.partition("@")
    return "-".join(words.split("-")[:2]), host


def is_of_host(run: str) -> bool:
    """Whether a run is made for one host alone: of its co-location check, or its own burn-in."""
    return "@" in run


def round_prefix(regime: str, load_point: LoadPoint) -> str:
    """Return the name of a round: ``solo-saturation``, ``eight-moderate``."""
    return f"{regime}-{load_point}"


def colocation_folder(host: str, regime: str, load_point: LoadPoint, run: str) -> str:
    """Return the folder of one run of the co-location check, relative to the campaign."""
    return str(COLOCATION / host / round_prefix(regime, load_point) / run)


def gate_file(host: str) -> str:
    """Return where the gate of a host lies, relative to the campaign."""
    return str(COLOCATION / host / GATE)
