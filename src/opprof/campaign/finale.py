"""The end of a campaign: ``decision.json`` and ``report.html`` over its complete runs."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from opprof.artifacts.campaign import Campaign
from opprof.campaign.options import Limits, own_environment
from opprof.campaign.processes import CAMPAIGN_VARIABLE
from opprof.campaign.store import Store
from opprof.errors import EnvironmentFailure
from opprof.files import read_bytes, write_atomic

_DECISIONS = ("decision.json", "decision.md")


async def conclude(
    store: Store, campaign: Campaign, limits: Limits, say: Callable[[str], None]
) -> list[str]:
    """Decide and report; return why something was not written, one line each.

    Burn-ins are never pooled, and an attempt that failed is no run of the matrix. Both commands are
    children of this process: a fault of theirs cannot take the campaign with it.
    """
    runs = [
        str(store.run_folder(record.run))
        for record in store.runs()
        if record.state == "complete" and record.role in ("primary", "confirmation")
    ]
    if not runs:
        return ["no decision and no report: no measured run is complete"]
    missing = []
    protocol = ["--protocol", str(store.protocol)]
    with tempfile.TemporaryDirectory(prefix="opprof-finale-") as name:
        made = Path(name)
        flags = ["--registered", "--out", str(made)]
        if campaign.time_scale != 1.0:
            flags.append("--rehearsal")
        # Exit code 1 says that the decision is INVALID; it is written all the same.
        await _run(store, campaign, limits, ["decide", *runs, *protocol, *flags])
        for each in _DECISIONS:
            missing += _keep(made / each, store.folder / each)
        report = made / "report.html"
        await _run(store, campaign, limits, ["report", *runs, *protocol, "--out", str(report)])
        missing += _keep(report, store.folder / "report.html")
    if not missing:
        say("wrote decision.json and report.html")
    return missing


def _keep(made: Path, target: Path) -> list[str]:
    if not made.is_file():
        return [f"no {target.name}: see logs/finale.log"]
    write_atomic(target, read_bytes(made))
    return []


async def _run(store: Store, campaign: Campaign, limits: Limits, words: Sequence[str]) -> None:
    """Run one command of this package to its end, within the limit."""
    log = store.folder / "logs" / "finale.log"
    log.parent.mkdir(exist_ok=True)
    # The mark lets a resume end it, should the controller die meanwhile.
    environment = own_environment() | {CAMPAIGN_VARIABLE: campaign.id, "OPPROF_ROLE": "analysis"}
    with log.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "opprof", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stream,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(limits.analysis_s):
            await process.wait()
    except TimeoutError as error:
        raise EnvironmentFailure(f"{words[0]} took over {limits.analysis_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
