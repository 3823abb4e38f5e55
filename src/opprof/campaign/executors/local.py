"""Runs attempts on this host."""

from __future__ import annotations

import time
from pathlib import Path

from opprof.campaign.attempt import AttemptSpec, Halt, Journal, Meeting, Outcome
from opprof.campaign.processes import ProcessTable, end_marked
from opprof.campaign.run_attempt import Attempt
from opprof.campaign.store import Store
from opprof.host.ports import Host


class LocalExecutor:
    """The default: servers and clients are children of the controller."""

    def __init__(
        self, table: ProcessTable, host: Host, *, grace_s: float, folder: Path | None = None
    ) -> None:
        self._table, self._host = table, host
        self._grace_s, self._folder = grace_s, folder

    async def execute(
        self, spec: AttemptSpec, journal: Journal, halt: Halt, meeting: Meeting | None = None
    ) -> Outcome:
        """Run the attempt to its end."""
        return await Attempt(spec, journal, halt, self._table, self._host, meeting).run()

    async def clean_up(self, campaign: str) -> list[str]:
        """End what an earlier controller left behind."""
        folder = self._folder
        records = [] if folder is None else Store(folder, wall_ns=time.time_ns).runs()
        met = await end_marked(
            self._table,
            campaign,
            run=None,
            grace_s=self._grace_s,
            records=[p for each in records for a in each.attempts for p in a.processes],
            folder=folder,
        )
        return [f"ended pid {seen.pid} of group {seen.pgid}" for seen in met]
