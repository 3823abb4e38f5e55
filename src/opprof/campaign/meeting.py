"""How the runs of one co-location round wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from opprof.errors import EnvironmentFailure


class RoundMeeting:
    """Backgrounds load before the target does, and stop after it.

    One event loop only; whoever waits is let go when another run of the round has broken off.
    """

    def __init__(self, target: str, backgrounds: Sequence[str]) -> None:
        self._target = target
        self._quiet = set(backgrounds)
        """Backgrounds that have completed no request yet."""
        self._gone: list[str] = []
        self._changed = asyncio.Condition()

    async def may_load(self, run: str) -> None:
        """Return when the run's client may start.

        Raises:
            EnvironmentFailure: a background broke off.
        """
        if run != self._target:
            return
        async with self._changed:
            await self._changed.wait_for(lambda: not self._quiet or bool(self._gone))
            if self._gone:
                raise EnvironmentFailure(f"the background {self._gone[0]} broke off")

    async def loads(self, run: str) -> None:
        """A run's client has completed a request."""
        async with self._changed:
            self._quiet.discard(run)
            self._changed.notify_all()

    async def until_over(self) -> None:
        """Return when a background has to stop: the target has ended, however it did."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._target in self._gone)

    async def leave(self, run: str) -> None:
        """A run's load has ended."""
        async with self._changed:
            self._gone.append(run)
            self._changed.notify_all()
