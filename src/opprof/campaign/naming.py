"""Names of runs and folders in a campaign: one rule, the timeline's (contract, section 8).

``P01-C00-moderate``, ``P06-C10-saturation-burnin``, ``P10-C00-moderate-confirmation``. A pattern's
name holds no hyphen and the load point is one of two words, so that no two runs share a name.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from opprof.artifacts.run import LoadPoint, Role

RUNS = PurePosixPath("runs")
ATTEMPTS = PurePosixPath("attempts")
COLOCATION = PurePosixPath("colocation")


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


def colocation_folder(regime: str, load_point: LoadPoint, run: str) -> str:
    """Return the folder of one run of the co-location check, relative to the campaign.

    ``regime``: ``solo``, ``eight`` or ``four``; ``load_point``: the target's, since the backgrounds
    run once beside the target's calibration and once beside its moderate run.
    """
    return str(COLOCATION / f"{regime}-{load_point}" / run)
