"""Words for people: what several commands and artefacts write alike."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """Return ``3 runs``, ``1 run`` or, with ``many`` given, ``2 classes``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
