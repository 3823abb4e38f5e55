"""The executor that a campaign was started with, open while its controller lives."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from opprof.artifacts.campaign import Campaign
from opprof.artifacts.environment import Topology
from opprof.campaign.attempt import RunExecutor
from opprof.campaign.executors.local import LocalExecutor
from opprof.campaign.options import Options
from opprof.campaign.processes import ProcessTable
from opprof.host.ports import Host

RAY_VARIABLE = "RAY_ADDRESS"


@asynccontextmanager
async def open_executor(
    campaign: Campaign, folder: Path, options: Options, host: Host, say: Callable[[str], None]
) -> AsyncIterator[tuple[RunExecutor, tuple[Topology, ...]]]:
    """Yield the executor and the topology of every host that it places runs on.

    Args:
        campaign: says which executor, and on which hosts.
        folder: of the campaign, absolute.
        options: of the campaign.
        host: this one, for the local executor.
        say: takes log lines.

    Raises:
        InputError: the Ray head's address is none.
        EnvironmentFailure: Ray is not installed, or its cluster cannot be used.
    """
    grace_s = options.limits.grace_s
    if campaign.executor == "local":
        yield (
            LocalExecutor(ProcessTable(), host, grace_s=grace_s),
            (host.topology(),),
        )
        return
    from opprof.campaign.executors.ray import RayExecutor, RaySettings

    settings = RaySettings(ray_address(options), options.ray_scratch, options.ray_ship)
    executor = await RayExecutor.open(
        campaign, folder, settings, grace_s=grace_s, say=say, wanted=tuple(campaign.hosts)
    )
    try:
        yield executor, executor.hosts()
    finally:
        await executor.close()


def ray_address(options: Options, environment: Mapping[str, str] = os.environ) -> str:
    """Return the head's address of this start or resume; empty when nobody gave one."""
    return options.ray_address or environment.get(RAY_VARIABLE, "")


def check_executor(executor: str, options: Options) -> None:
    """Refuse, before a campaign's folder is made, an executor that cannot be opened here.

    Raises:
        InputError: the Ray head's address is none.
        EnvironmentFailure: Ray is not installed, or nobody answers at the address.
    """
    if executor == "ray":
        from opprof.campaign.executors.ray_cluster import RayLimits, knock

        knock(ray_address(options), RayLimits())
