#!/usr/bin/env python3
"""The specification's helper: ``materialize``, ``materialize-private`` and ``run``.

A thin wrapper over the ``opprof`` commands of the same names; flags and exit codes are theirs.
"""

from __future__ import annotations

import sys
from pathlib import Path

COMMANDS = ("materialize", "materialize-private", "run")
USAGE = "usage: opprof_phase3_client.py {materialize,materialize-private,run} [FLAGS]\n"


def main(arguments: list[str]) -> None:
    """Hand the three commands to ``opprof``; anything else is refused."""
    sources = Path(__file__).resolve().parents[1] / "src"
    if sources.is_dir():
        # In a checkout the wrapper runs the sources beside it, whatever else is installed.
        sys.path.insert(0, str(sources))
    from opprof.cli import main as opprof

    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help"):
        sys.stderr.write(USAGE)
        raise SystemExit(2)
    if arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        raise SystemExit(0)
    opprof(arguments)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        # Before the command itself listens: nothing has begun.
        raise SystemExit(130) from None
