"""Whose process it is, without ever keeping a user's name.

User names and numbers are personal data and are not recorded at all: a number of a small machine
could be found from any hash of it. What a campaign needs is whether a process is its own, the same
user's, or somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from opprof.artifacts.environment import Owner
from opprof.host.ports import Process


def _no_groups() -> Collection[int]:
    return ()


@dataclass(frozen=True)
class Ownership:
    """How the campaign's own processes are known."""

    campaign: str | None = None
    """Value of ``OPPROF_CAMPAIGN`` in their environment."""
    groups: Callable[[], Collection[int]] = _no_groups
    """Process groups that the controller has recorded; asked anew at every look."""

    def of(self, process: Process | None) -> Owner:
        """Return whose it is; ``unknown`` for a process that the table does not show."""
        if process is None:
            return "unknown"
        if self.campaign is not None and process.campaign == self.campaign:
            return "campaign"
        if process.pgid in self.groups():
            return "campaign"
        if process.same_user is None:
            return "unknown"
        return "same_user" if process.same_user else "other_user"
