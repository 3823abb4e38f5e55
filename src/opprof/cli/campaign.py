"""``opprof campaign``: plan what a frozen protocol would launch."""

from __future__ import annotations

import click

from opprof.cli.campaign_plan import plan


@click.group("campaign")
def group() -> None:
    """Run a frozen protocol: plan, start, watch, stop, resume."""


group.add_command(plan)
