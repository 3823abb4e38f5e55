"""What every table of a protocol file is built from: number types and the strict base."""

from __future__ import annotations

import datetime
from typing import Annotated

from msgspec import Meta, Struct

CONCURRENCY_MAX = 65_535 - 1_023
"""Ports of one address that a process without privileges may have."""
PARTS_MAX = 65_536
"""Segments, windows and iterations of one run."""
_WEEK_S = 7 * 86_400
_CLOCK = "times are whole nanoseconds, and nothing of a run lasts longer than a week"
_SIZE = "a million is beyond any run"
_RATIO = "what differs a millionfold is not compared any more"
_TOKENS = "engines count tokens and sequences in 32 bits"
_FIT = "a least-squares fit tells apart no other numbers"
_SHARE = "it is a share"
_INSIDE = "it is a share, and neither none nor all"
BOTH_ENDS = frozenset({_CLOCK, _FIT, _SHARE, _INSIDE})
"""Reasons of a lower bound as well; every other one says why nothing is larger."""

Fraction = Annotated[float, Meta(ge=0, le=1, description=_SHARE)]
Inside = Annotated[float, Meta(gt=0, lt=1, description=_INSIDE)]
Seconds = Annotated[float, Meta(ge=1e-9, le=_WEEK_S, description=_CLOCK)]
SecondsOrZero = Annotated[float, Meta(ge=0, le=_WEEK_S, description=_CLOCK)]
Milliseconds = Annotated[float, Meta(ge=1e-6, le=1000 * _WEEK_S, description=_CLOCK)]
MillisecondsOrNone = Annotated[float, Meta(ge=0, le=1000 * _WEEK_S, description=_CLOCK)]
Hours = Annotated[float, Meta(ge=0, le=1e6, description="a million hours are a century")]
Ratio = Annotated[float, Meta(ge=0, le=1e6, description=_RATIO)]
PositiveRatio = Annotated[float, Meta(gt=0, le=1e6, description=_RATIO)]
Factor = Annotated[float, Meta(ge=1, le=1e6, description=_RATIO)]
FitNumber = Annotated[float, Meta(ge=1e-12, le=1e12, description=_FIT)]
CountInt = Annotated[int, Meta(ge=0, le=1_000_000, description=_SIZE)]
PositiveInt = Annotated[int, Meta(ge=1, le=1_000_000, description=_SIZE)]
Parts = Annotated[int, Meta(ge=1, le=PARTS_MAX, description="no run has more of them")]
PartsOrZero = Annotated[int, Meta(ge=0, le=PARTS_MAX, description="no run has more of them")]
TokensOrZero = Annotated[int, Meta(ge=0, lt=1 << 31, description=_TOKENS)]
Tokens = Annotated[int, Meta(ge=1, lt=1 << 31, description=_TOKENS)]
Draws = Annotated[
    int, Meta(ge=1, le=10_000_000, description="more resamples fit into no machine's memory")
]
Large = Annotated[int, Meta(ge=1)]
"""Bytes and sums; no record holds a number from 2^53 on, whatever it counts."""
LargeOrZero = Annotated[int, Meta(ge=0)]
Date = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every table: unknown keys are refused."""


def is_date(text: str) -> bool:
    """Tell whether a text is a day of the calendar, written ``YYYY-MM-DD``."""
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
