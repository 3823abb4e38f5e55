"""Whose process it is, without ever keeping a user's name.

User names and numbers are personal data and are not recorded at all: a number of a small machine
could be found from any hash of it. What a campaign needs is whether a process is its own, the same
user's, or somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass

from opprof.artifacts.environment import Owner
from opprof.host.birthmark import is_born_of
from opprof.host.ports import Process


@dataclass(frozen=True)
class Ownership:
    """How the campaign's own processes are known."""

    campaign: str | None = None
    """The campaign that they were born of, or name as ``OPPROF_CAMPAIGN`` in the environment."""

    def of(self, process: Process | None) -> Owner:
        """Return whose it is; ``unknown`` for a process that the table does not show."""
        if process is None:
            return "unknown"
        if self.campaign is not None and (
            process.campaign == self.campaign or is_born_of(process.birthmark, self.campaign)
        ):
            return "campaign"
        if process.same_user is None:
            return "unknown"
        return "same_user" if process.same_user else "other_user"
