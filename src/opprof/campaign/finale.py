"""The end of a campaign: ``decision.json`` and ``report.html`` over its complete runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from opprof.artifacts.campaign import Campaign
from opprof.campaign.options import Limits, own_environment
from opprof.campaign.processes import CAMPAIGN_VARIABLE, ProcessTable, end_marked, spawn
from opprof.campaign.store import Store
from opprof.errors import EnvironmentFailure

_WRITTEN = ("decision.json", "report.html")


async def conclude(
    store: Store, campaign: Campaign, limits: Limits, say: Callable[[str], None]
) -> list[str]:
    """Decide and report; return why something was not written, one line each.

    The command is a child of this process: a fault of its own cannot take the campaign with it.
    """
    measured = [record for record in store.runs() if record.role in ("primary", "confirmation")]
    if not any(record.state == "complete" for record in measured):
        return ["no decision and no report: no measured run is complete"]
    before = {name: _changed_ns(store.folder / name) for name in _WRITTEN}
    # Exit code 1 says that the decision is INVALID; it is written all the same.
    await _run(store, campaign, limits, ["decide", str(store.folder)])
    missing = [
        f"no {name}: see logs/finale.log"
        for name in _WRITTEN
        if _changed_ns(store.folder / name) == before[name]
    ]
    if not missing:
        say("wrote decision.json and report.html")
    return missing


def _changed_ns(path: Path) -> int | None:
    """Return when a file was written last; None without one."""
    return path.stat().st_mtime_ns if path.is_file() else None


async def _run(store: Store, campaign: Campaign, limits: Limits, words: Sequence[str]) -> None:
    """Run one command of this package to its end, within the limit."""
    log = store.folder / "logs" / "finale.log"
    log.parent.mkdir(exist_ok=True)
    table = ProcessTable()
    environment = own_environment() | {CAMPAIGN_VARIABLE: campaign.id, "OPPROF_ROLE": "analysis"}
    with log.open("ab") as stream:
        child = await spawn(
            table,
            "analysis",
            [sys.executable, "-m", "opprof", *words],
            campaign=campaign.id,
            run="",
            environment=environment,
            log=stream,
            cwd=store.folder,
        )
    child.go()
    try:
        if await child.wait(limits.analysis_s) is None:
            raise EnvironmentFailure(f"{words[0]} took over {limits.analysis_s:g} s")
    finally:
        await end_marked(table, campaign.id, run="", grace_s=limits.grace_s)
        await child.wait(limits.grace_s)
