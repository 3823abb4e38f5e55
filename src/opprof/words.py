"""Words for people: what several commands and artefacts write alike."""

from __future__ import annotations

from opprof.errors import InputError


def plural(count: int, one: str, many: str = "") -> str:
    """Return ``3 runs``, ``1 run`` or, with ``many`` given, ``2 classes``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def check_text(what: str, *texts: str) -> None:
    """Refuse what cannot stand in a record: one line each, everything as UTF-8.

    Raises:
        InputError: a text holds a line break or another character that shows nothing, or is no
            UTF-8.
    """
    for text in texts:
        bad = next((char for char in text if not char.isprintable()), None)
        if bad is not None:
            kind = "is no UTF-8 text" if "\ud800" <= bad <= "\udfff" else f"holds {bad!r}"
            raise InputError(f"{what} {text!r} {kind}, which no record can hold")
