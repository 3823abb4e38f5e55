"""What a report is made of: values without markup, so that figures, tables and text test alone."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from opprof.artifacts.common import Gate

Tone = Literal["", "pass", "fail", "ne", "warn", "muted", "strong", "met"]


class Flag(Struct, frozen=True):
    """A mark that follows a run into every table and figure."""

    label: str
    tone: Tone
    meaning: str


class Cell(Struct, frozen=True):
    """One table cell. ``bar`` (0..1) draws a share behind the number."""

    text: str
    sub: str = ""
    """Smaller text below, such as the ratio to C00."""
    title: str = ""
    """Longer explanation on hover and focus."""
    tone: Tone = ""
    bar: float | None = None
    colour: str = ""
    flags: tuple[Flag, ...] = ()
    sort: float | None = None
    """Sort key where the text alone does not sort."""
    mono: bool = False
    href: str = ""
    """Anchor on this page (``#ident``) that the text leads to."""


class Column(Struct, frozen=True):
    """A table's column; numbers are set right and sort as numbers."""

    label: str
    unit: str = ""
    title: str = ""
    numeric: bool = True
    flags: tuple[Flag, ...] = ()


class Table(Struct, frozen=True):
    """A table; ``ident`` becomes its anchor and its name among the sanity families."""

    ident: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    empty: str = "Nothing to show."
    flags: tuple[Flag, ...] = ()
    """Marks of the one run that the whole table speaks of."""


class Figure(Struct, frozen=True):
    """A plotly figure as plain data, with the words that stand in for it."""

    ident: str
    title: str
    alt: str
    """What the figure shows, for a reader who does not see it."""
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    notes: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    table: Table | None = None
    """The same numbers; printed, and shown without scripts."""


class Text(Struct, frozen=True):
    """Paragraphs, or a list when ``bullets``."""

    sentences: tuple[str, ...]
    tone: Tone = ""
    bullets: bool = False
    heading: str = ""


class Gates(Struct, frozen=True):
    """All gates of one run, failures first."""

    ident: str
    run: Cell
    gates: tuple[Gate, ...]


class Fold(Struct, frozen=True):
    """Blocks behind a summary line; ``printed`` folds open on paper."""

    summary: str
    blocks: tuple[Block, ...]
    printed: bool = True
    open: bool = False


class Terms(Struct, frozen=True):
    """Terms with one line of meaning each."""

    terms: dict[str, str]


Block = Text | Table | Figure | Gates | Fold | Terms


class Section(Struct, frozen=True):
    """A numbered part of the page with an anchor in the contents."""

    ident: str
    title: str
    lead: str
    blocks: tuple[Block, ...]


def walk(blocks: tuple[Block, ...]) -> list[Block]:
    """Return every block in reading order, folded ones and figures' tables included."""
    found: list[Block] = []
    for block in blocks:
        found.append(block)
        if isinstance(block, Fold):
            found.extend(walk(block.blocks))
        elif isinstance(block, Figure) and block.table is not None:
            found.append(block.table)
    return found
