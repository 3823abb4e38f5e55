"""What every table of a protocol file is built from: number types and the strict base."""

from __future__ import annotations

import datetime
from typing import Annotated

from msgspec import Meta, Struct

Fraction = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
CountInt = Annotated[int, Meta(ge=0)]
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
