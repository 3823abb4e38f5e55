"""``opprof verify``: recompute every hash that a campaign, a run or an analysis names.

Source: protocol, A-P3-2; "Artifact, privacy, and reproducibility contract"; hard stop 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opprof.artifacts.verification import VerifyReport
from opprof.code_hash import code_sha256
from opprof.errors import InputError
from opprof.files import sha256_bytes
from opprof.integrity.checks import Checks
from opprof.integrity.derived import (
    ANALYSIS,
    TIMELINE,
    Again,
    Analyses,
    Known,
    check_derived,
    check_page,
    check_run,
    find,
    installed,
)
from opprof.integrity.provenance import FOLDER, INDEX
from opprof.integrity.reanalysis import Reanalysis
from opprof.integrity.tree import Entry, Unreadable, walk
from opprof.integrity.verify_campaign import check_campaign

OVER_RUNS = ("decision.json", "comparison.json")
"""Artefacts of several runs."""


def verify(
    folder: Path, *, runs: Sequence[Path] = (), protocols: frozenset[str] = frozenset()
) -> VerifyReport:
    """Verify a campaign, a run directory, or a folder of analyses and what was made from them.

    Args:
        folder: what to verify.
        runs: where the run directories of analyses lie that were written elsewhere.
        protocols: SHA-256 of further protocols that artefacts may name.

    Raises:
        InputError: the folder is missing, or holds nothing that names a hash.
    """
    if not folder.is_dir():
        raise InputError("no such folder", path=folder)
    checks = Checks(folder)
    _refuse_links(checks)
    if (folder / FOLDER / INDEX).is_file() or (folder / "campaign.json").is_file():
        known = check_campaign(checks, installed(protocols))
        places = find([folder / name for name in ("runs", "attempts") if (folder / name).is_dir()])
        # A decision may be made again, by a later version, from the same recorded runs.
        later = replace(known, codes=known.codes | {code_sha256()}, binding=False)
        _check_over_runs(checks, folder, later, places, again=Reanalysis(folder))
        return checks.report("campaign", _root_hash(folder, checks))
    known = installed(protocols)
    if (folder / TIMELINE).is_file():
        check_run(checks, folder, known)
        return checks.report("run", None)
    _check_analyses(checks, folder, known, runs)
    return checks.report("analyses", None)


def _refuse_links(checks: Checks) -> None:
    for entry in walk(checks.root):
        if isinstance(entry, Unreadable):
            checks.add("tree", entry.name, "fail", entry.reason)
        elif entry.kind in ("link", "special"):
            checks.add("tree", entry.name, "fail", f"is a {entry.kind}, not a regular file")


def _check_analyses(checks: Checks, folder: Path, known: Known, runs: Sequence[Path]) -> None:
    for extra in runs:
        if not extra.is_dir():
            raise InputError("no such folder", path=extra)
    places = find([folder, *runs])
    over = [name for name in OVER_RUNS if (folder / name).is_file()]
    pages = sorted(folder.glob("*.html"))
    inside = {place for found in places.runs.values() for place in found}
    inside = {place for place in inside if place.is_relative_to(folder)}
    analyses = [(n, p) for n, found in places.analyses.items() for p in found]
    analyses = [(n, p) for n, p in analyses if p.is_relative_to(folder) and p.parent not in inside]
    if not (over or pages or inside or analyses):
        reason = "holds no campaign, run or analysis: there is no hash to recompute"
        raise InputError(reason, path=folder)
    for run in sorted(inside):
        check_run(checks, run, known)
    for name, place in analyses:
        _check_apart(checks, name, place, known, places.runs.get(name, []))
    _check_over_runs(checks, folder, known, places)


def _check_apart(checks: Checks, name: str, place: Path, known: Known, runs: list[Path]) -> None:
    """Check an analysis that was written away from its run."""
    if not runs:
        subject = checks.subject(place)
        reason = f"its run {name} is not here (--runs DIR): inputs cannot be recomputed"
        checks.add("input", subject, "not_evaluable", reason)
        return
    # Runs may share a name (two attempts); the folder's own name tells which one it was.
    run = next((run for run in runs if run.name == place.name), runs[0])
    for artefact in ANALYSIS:
        if (place / artefact).is_file():
            check_derived(checks, place / artefact, known, run=run)
        else:
            checks.add("analysis", checks.subject(place / artefact), "fail", "is missing")


def _check_over_runs(
    checks: Checks, folder: Path, known: Known, places: Analyses, again: Again | None = None
) -> None:
    for name in OVER_RUNS:
        if (folder / name).is_file():
            check_derived(checks, folder / name, known, places=places, again=again)
    for page in sorted(folder.glob("*.html")):
        check_page(checks, page, known)


def _root_hash(folder: Path, checks: Checks) -> str:
    """Return one hash over everything recorded: path and SHA-256 of each file, sorted."""
    lines = []
    for entry in walk(folder / FOLDER) if (folder / FOLDER).is_dir() else ():
        if isinstance(entry, Entry) and entry.kind == "file":
            lines.append(f"{checks.hash(entry.path)}  {entry.name}\n")
    return sha256_bytes("".join(sorted(lines)).encode())
