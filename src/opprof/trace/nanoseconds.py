"""Kineto's decimal microseconds to integer nanoseconds, by text and never through a float.

``ts`` and ``dur`` are microseconds whatever ``displayTimeUnit`` says (FIELD-CASES 6). Kineto writes
three decimals; any other JSON number is read exactly too, and digits below a nanosecond are rounded
to the nearest one, ties to even.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Raw, json

_FIXED = re.compile(rb"(?:[0-9]{1,15}\.[0-9]{3},)*+")
_LEADING_ZEROS = re.compile(rb"\b0+(?=[0-9])")
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,4}))?")
_INTEGERS = json.Decoder(list[int])
_NS_MAX = 1 << 62
"""Twice this still fits a signed 64-bit integer, so an end (start + duration) always does."""
_DIGITS_MAX = 400


class NotATime(ValueError):
    """A value that is no usable time; ``index`` is its place in the sequence."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


def all_ns(texts: Sequence[Raw]) -> list[int]:
    """Return the nanoseconds of JSON values that should be decimal microseconds.

    Raises:
        NotATime: a value is no number, or beyond 62 bits of nanoseconds.
    """
    if not texts:
        return []
    joined = b",".join(texts)
    if _FIXED.fullmatch(joined + b","):
        # Without the point they are nanoseconds; a leading zero, as of 0.512, is no JSON integer.
        digits = _LEADING_ZEROS.sub(b"", joined.translate(None, b"."))
        return _INTEGERS.decode(b"[" + digits + b"]")
    return [
        _one_ns(index, bytes(text).decode("utf-8", "replace")) for index, text in enumerate(texts)
    ]


def _one_ns(index: int, text: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise NotATime(index, f"is {_kind(text)}, not a number")
    sign, whole, fraction, exponent = match.groups()
    # Digits that no time has are cut off: they change no nanosecond, and int() refuses thousands.
    fraction = (fraction or "")[:_DIGITS_MAX]
    if len(whole) > _DIGITS_MAX:
        raise NotATime(index, f"{text[:40]} is beyond 62 bits of nanoseconds")
    shift = int(exponent or 0) + 3 - len(fraction)
    digits = int(whole + fraction)
    if digits and len(str(digits)) + shift > len(str(_NS_MAX)):
        raise NotATime(index, f"{text[:40]} is beyond 62 bits of nanoseconds")
    value = digits * 10**shift if shift >= 0 else _half_even(digits, 10 ** min(-shift, 400))
    if value >= _NS_MAX:
        raise NotATime(index, f"{text[:40]} is beyond 62 bits of nanoseconds")
    return -value if sign else value


def _half_even(digits: int, divisor: int) -> int:
    quotient, remainder = divmod(digits, divisor)
    if 2 * remainder > divisor or (2 * remainder == divisor and quotient % 2):
        return quotient + 1
    return quotient


def _kind(text: str) -> str:
    kinds = {'"': "a string", "n": "null", "t": "a boolean", "f": "a boolean", "{": "an object"}
    return kinds.get(text[:1], "a list" if text[:1] == "[" else "unreadable")
