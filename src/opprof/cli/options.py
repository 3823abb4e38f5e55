"""Options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])

SEED = click.IntRange(0, (1 << 62) - 1)
"""A seed as artefacts can hold it: integers in them have at most 62 bits."""


def required_protocol_option(function: F) -> F:
    """Add ``--protocol`` to a command that refuses to work without one."""
    return click.option(
        "--protocol",
        "protocol_source",
        metavar="FILE|phase3",
        default=None,
        help="Protocol to bind (default: $OPPROF_PROTOCOL, else the packaged phase3).",
    )(function)


def protocol_option(function: F) -> F:
    """Add ``--protocol``: a file, ``phase3`` (packaged, the default) or ``none``."""
    return click.option(
        "--protocol",
        "protocol_source",
        metavar="FILE|phase3|none",
        default=None,
        help="Protocol to bind (default: $OPPROF_PROTOCOL, else the packaged phase3). "
        "With 'none', gates that need a threshold are not evaluable.",
    )(function)


def runs_protocol_option(function: F) -> F:
    """Add ``--protocol`` for runs; what is left open is found by :mod:`opprof.analysis.bound`."""
    return click.option(
        "--protocol",
        "protocol_source",
        metavar="FILE|phase3|none",
        default=None,
        help="Protocol to bind (default: that of the campaign that the runs lie in, else "
        "$OPPROF_PROTOCOL, else the packaged phase3). With 'none', gates that need a threshold "
        "are not evaluable.",
    )(function)


def json_option(function: F) -> F:
    """Add ``--json``: machine-readable output on standard output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(
        function
    )


def gpu_indices(text: str) -> tuple[int, ...]:
    """Return the GPUs that ``--gpus`` names, ascending; empty for an empty text.

    Raises:
        InputError: no list of indices and ranges.
    """
    from opprof.errors import InputError
    from opprof.host.cpus import parse_cpus

    try:
        return parse_cpus(text)
    except InputError as error:
        raise InputError(f"--gpus {text!r}: not a list of GPU indices such as 0,2-3") from error


def scan_options(function: F) -> F:
    """Add what a privacy scan is given: manifests, private folders, public text, workers."""
    several: dict[str, Any] = {"multiple": True, "type": click.Path(path_type=Path)}
    options = (
        click.option(
            "--private",
            "manifests",
            metavar="MANIFEST",
            required=True,
            help="Manifest, or trace that one was made from, whose text may not be in DIR; at "
            "least one, repeatable. Name each that materialize-private made for DIR: pack refuses "
            "without. Those of materialize are drawn, and hold nothing private.",
            **several,
        ),
        click.option(
            "--private-dir",
            "private_dirs",
            metavar="PATH",
            help="Further private folder: its path may stand in commands.log only.",
            **several,
        ),
        click.option(
            "--public",
            metavar="FILE",
            help="Text that everybody may read; what it shares with a prompt is counted, not a "
            "finding.",
            **several,
        ),
        click.option(
            "--jobs",
            type=click.IntRange(1, 64),
            default=2,
            show_default=True,
            help="Worker processes, which share one index.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def print_json(value: object) -> None:
    """Print a Struct or plain value as indented JSON."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=1)
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()
