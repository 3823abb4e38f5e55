"""The console that tables and messages are printed on."""

from __future__ import annotations

from rich.console import Console

_PIPE_COLUMNS = 140


def console() -> Console:
    """Return a console that is as wide as the terminal, or wide enough for a log."""
    plain = Console(highlight=False, soft_wrap=False)
    if plain.is_terminal:
        return plain
    return Console(highlight=False, soft_wrap=False, width=_PIPE_COLUMNS)
