"""Reading TOML that somebody else wrote: every way in which it can be unusable is one error."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from opprof.errors import InputError

_DEEPEST = 64
"""Tables and lists inside one another; what is read here is written by hand and has five."""


_DIGITS = re.compile(r"[0-9][0-9_]{4000}")
"""What Python refuses to read as a number, without saying where it stands."""


def decode_toml(data: bytes | str, *, source: str | None = None) -> dict[str, Any]:
    """Return the tree of a TOML file.

    Args:
        data: the file's bytes or text.
        source: stands in messages for the file.

    Raises:
        InputError: it is no UTF-8 text (with the byte), begins with a byte order mark, is no TOML
            (with the line), holds a number of thousands of digits, or is nested too deeply.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", path=source, offset=error.start) from error
    if text.startswith("\ufeff"):
        raise InputError("begins with a byte order mark; save it without", path=source, offset=0)
    try:
        tree = tomllib.loads(text)
    except ValueError as error:
        # TOMLDecodeError, and Python's own refusal of an integer of thousands of digits.
        raise InputError(f"not TOML: {error}", path=source, line=_line(text, str(error))) from error
    except RecursionError as error:
        raise InputError(_too_deep(), path=source) from error
    _check_depth(tree, source)
    return tree


def _check_depth(tree: dict[str, Any], source: str | None) -> None:
    """Dotted keys nest without any bracket, so that the parser alone refuses none."""
    level: list[Any] = [tree]
    for _ in range(_DEEPEST):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [v for values in inside for v in values if isinstance(v, dict | list)]
        if not level:
            return
    raise InputError(_too_deep(), path=source)


def _too_deep() -> str:
    return f"not usable as TOML: more than {_DEEPEST} tables or lists inside one another"


def _line(text: str, message: str) -> int | None:
    if match := re.search(r"at line (\d+)", message):
        return int(match.group(1))
    digits = _DIGITS.search(text)
    return text.count("\n", 0, digits.start()) + 1 if digits else None
