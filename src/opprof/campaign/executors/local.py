"""Runs attempts on this host."""

from __future__ import annotations

from opprof.campaign.attempt import AttemptSpec, CleanedUp, Halt, Journal, Meeting, Outcome
from opprof.campaign.processes import ProcessTable, end_marked, ended
from opprof.campaign.run_attempt import Attempt
from opprof.host.ports import Host


class LocalExecutor:
    """The default: servers and clients are children of the controller."""

    def __init__(self, table: ProcessTable, host: Host, *, grace_s: float) -> None:
        self._table, self._host, self._grace_s = table, host, grace_s

    async def execute(
        self, spec: AttemptSpec, journal: Journal, halt: Halt, meeting: Meeting | None = None
    ) -> Outcome:
        """Run the attempt to its end."""
        return await Attempt(spec, journal, halt, self._table, self._host, meeting).run()

    async def clean_up(self, campaign: str) -> CleanedUp:
        """End what an earlier controller left behind."""
        met = await end_marked(self._table, campaign, run=None, grace_s=self._grace_s)
        return CleanedUp(ended(met), [])
