"""Numbers as readers meet them: one rule per kind of quantity, no rounding to a false zero."""

from __future__ import annotations

import math

NULL = "n/a"
MINUS = "−"
NBSP = "\N{NO-BREAK SPACE}"


def number(value: float | int | None, digits: int = 4) -> str:
    """Return ``value`` with about ``digits`` significant digits and thousands separators.

    Integers are exact up to seven digits; null, NaN and infinities are words.
    """
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    if isinstance(value, int):
        return _signed(f"{value:,}")
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4 or magnitude >= 12:
        return _signed(f"{value:.{digits - 1}e}")
    decimals = min(max(digits - 1 - magnitude, 0), 9)
    text = f"{value:,.{decimals}f}"
    return _signed(text.rstrip("0").rstrip(".") if "." in text else text)


def percent(fraction: float | None, decimals: int = 1) -> str:
    """Return a fraction of 1 as percent; a positive value too small to show is ``<0.1 %``."""
    if fraction is None:
        return NULL
    scaled = fraction * 100
    smallest = 10.0**-decimals
    if 0 < scaled < smallest / 2:
        return f"<{smallest:.{decimals}f}{NBSP}%"
    return _signed(f"{scaled:.{decimals}f}{NBSP}%")


def points(fraction: float | None, decimals: int = 1) -> str:
    """Return a signed difference of shares in percentage points."""
    if fraction is None:
        return NULL
    size = abs(fraction) * 100
    decimals = decimals if size == 0 or size >= 0.5 * 10.0**-decimals else decimals + 1
    text = f"{size:.{decimals}f}"
    if float(text) == 0:
        return text
    return f"{'+' if fraction > 0 else MINUS}{text}"


def milliseconds(ns: int | None) -> str:
    """Return integer nanoseconds as milliseconds, for reading only."""
    return NULL if ns is None else number(ns / 1e6)


def ratio(value: float | None, reference: float | None) -> str | None:
    """Return ``×1.23`` of a reference, or null where it cannot be formed."""
    if value is None or reference is None or reference == 0:
        return None
    return f"×{value / reference:.3f}"


def span(low: float, high: float) -> str:
    """Return a range of fractions as percent, once when both ends read the same."""
    first, last = f"{low * 100:.1f}", f"{high * 100:.1f}"
    return f"{first}{NBSP}%" if first == last else f"{first} to {last}{NBSP}%"


def listing(items: list[str]) -> str:
    """Return ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def plot_text(text: str) -> str:
    """Escape ``text`` for plotly labels, which read a subset of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _signed(text: str) -> str:
    return MINUS + text[1:] if text.startswith("-") else text
