"""Keys that may hold no text and no token ids in anything that leaves the private folder.

The one list (protocol, "Artifact, privacy, and reproducibility contract": a scanner must reject any
artifact containing a prompt, messages, content, or generated-text field). A key counts where it
stands as a key with a non-empty string or array as its value: ``"prompt": "…"`` in JSON, also
escaped or with a Python literal's quotes, ``prompt: '…'`` and ``text='…'`` as vLLM logs its
requests; in YAML also ``prompt: …`` without quotes, or a block. A word in a sentence, a function
named ``content``, a schema's ``"prompt": {…}`` and numbers under such a key do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from opprof.integrity.stretches import MIN_CHARS, SEPARATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    UInt64 = NDArray[Any]

_WORDS = (
    "prompt",
    "prompts",
    "prompt_text",
    "prompt_token_ids",
    "prompt_ids",
    "prompt_tokens_ids",
    "input_ids",
    "input_text",
    "token_ids",
    "output_ids",
    "output_token_ids",
    "output_text",
    "messages",
    "content",
    "contents",
    "reasoning_content",
    "reasoning_text",
    "text",
    "texts",
    "generated_text",
    "generated_texts",
    "generated_token_ids",
    "completion",
    "completions",
    "choices",
    "echo_text",
    "request_body",
    "response_body",
    "response_text",
)
FORBIDDEN_KEYS = tuple(
    dict.fromkeys(key.replace("_", joint) for joint in ("_", "-", "") for key in _WORDS)
)
"""Request and answer bodies of OpenAI's interface, vLLM's request log and its offline outputs; in
lower case, for capitals make no difference: ``generated_text``, ``generated-text`` (as the protocol
spells it) and ``generatedText``."""

CHART_LABEL = "text"
"""In a page, Plotly's labels stand under this key: there only strings of 32 characters or more,
what the specification calls a private substring, count."""

CONFIG_PROSE = "text"
"""In a protocol, what a stop or an open decision says."""

_BEFORE = 48
"""Bytes before a colon that hold any key with what stands around it."""
_LABELS_BYTES = 8 << 10
_SLOTS_LOG2 = 14
_VALUE = rb"(?P<value>[bfru]{0,2}[\"'](?![\"'])|\[ ?(?!\])|\((?=[\"']))"
_VALUE_BEGINS = b"bfruBFRU\"'[("
_STRING = re.compile(rb"\"((?:[^\"\\]|\\.)*)\"")
_ITEM = re.compile(rb"\"((?:[^\"\\]|\\.)*)\"|[\[\]]")


def forbidden_keys(
    text: bytes, *, page: bool = False, config: bool = False, yaml: bool = False
) -> Iterator[str]:
    """Yield every forbidden key of collapsed text, each occurrence.

    ``page`` is HTML, where ``content="…"`` is an attribute and charts carry their labels: only
    ``"key": …`` counts. ``config`` is TOML, where a protocol tells its stops as ``text = "…"``. In
    ``yaml`` a value needs no quotes.
    """
    if yaml:
        yield from (match["key"].decode().lower() for match in _plain_yaml().finditer(text))
    before, after = _patterns(quoted=page)
    for at in _candidates(text):
        named = before.match(text[max(0, at - _BEFORE) : at][::-1])
        value = after.match(text, at) if named is not None else None
        if named is None or value is None:
            continue
        key = named.group("key")[::-1].decode().lower()
        if config and key == CONFIG_PROSE and text[at : at + 1] == b"=":
            continue
        if page and key == CHART_LABEL and _only_labels(text, value.start("value")):
            continue
        yield key


def _only_labels(text: bytes, start: int) -> bool:
    """Tell whether the string or the array of strings at ``start`` holds short ones only.

    A view may be windows set apart by ``SEPARATOR``: a string ends at such a border, for
    the stretch itself, of which they are windows, holds it whole.
    """
    end = text.find(SEPARATOR, start)
    end = len(text) if end < 0 else end
    if text[start : start + 1] != b"[":
        match = _STRING.match(text, start, end)
        if match is None and text[start : start + 1] == b'"':
            # Cut by the end of this stretch; the next one begins before it and holds it whole.
            return _is_short(text[start + 1 : end])
        return match is not None and _is_short(match.group(1))
    depth = 0
    for match in _ITEM.finditer(text, start, min(end, start + _LABELS_BYTES)):
        if match.group(1) is None:
            depth += 1 if match.group() == b"[" else -1
            if not depth:
                break
        elif not _is_short(match.group(1)):
            return False
    return True


def _is_short(string: bytes) -> bool:
    return len(string.decode("utf-8", "replace")) < MIN_CHARS


@cache
def _plain_yaml() -> re.Pattern[bytes]:
    """Return a key of YAML with a plain value or a block: no number, collection or further key."""
    keys = "|".join(sorted(FORBIDDEN_KEYS, key=len, reverse=True)).encode()
    before = rb"(?:^|(?<=[ {,\x00]))[\"']?(?P<key>" + keys + rb")[\"']? ?: "
    nothing = rb"(?:null|true|false|yes|no|on|off|[0-9.+-]+)(?=[ ,}\x00]|$)"
    return re.compile(
        before + rb"(?!" + nothing + rb"|[^ ]+:(?: |$))(?=[^ \"'\[\]{}&*!#%@`,~\x00])",
        re.IGNORECASE,
    )


@cache
def _patterns(*, quoted: bool) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return what stands before a key's colon, read backwards, and what follows from it on."""
    keys = "|".join(key[::-1] for key in sorted(FORBIDDEN_KEYS, key=len, reverse=True)).encode()
    if quoted:
        before = rb" ?[\"'](?P<key>" + keys + rb")[\"']"
    else:
        before = rb" ?[\"']?(?P<key>" + keys + rb")(?![A-Za-z0-9_.\-])"
    after = (b": ?" if quoted else b"[:=] ?") + _VALUE
    return re.compile(before, re.IGNORECASE), re.compile(after, re.IGNORECASE)


def _candidates(text: bytes) -> list[int]:
    """Positions of the colons and equal signs that may end a key: cheap, for all of a stream."""
    import numpy as np

    if not text:
        return []
    values = np.frombuffer(text, np.uint8)
    at = np.flatnonzero((values == 0x3A) | (values == 0x3D))
    after = np.take(values, at + 1, mode="clip")
    begins = np.where(after == 0x20, np.take(values, at + 2, mode="clip"), after)
    at = at[_value_begins()[begins]]
    # The eight bytes before each, the nearest one uppermost; a key may stand at the beginning.
    words = np.frombuffer(b" " * 8 + text + b" " * 8, np.uint64, len(text) // 8 + 2)
    word, shift = at >> 3, (at & 7).astype(np.uint64) << np.uint64(3)
    before = words[word] >> shift
    before |= words[word + 1] << (np.uint64(64) - shift)
    top = before >> np.uint64(56)
    before <<= (top == 0x20).astype(np.uint64) << np.uint64(3)
    top = before >> np.uint64(56)
    before <<= ((top == 0x22) | (top == 0x27)).astype(np.uint64) << np.uint64(3)
    kept = _endings()[_ending_slot(before >> np.uint64(32))]
    found: list[int] = at[kept].tolist()
    return found


def _ending_slot(letters: UInt64) -> NDArray[Any]:
    """Return a slot for each uint32 of four letters, whatever their case."""
    import numpy as np

    mixed = (letters | np.uint64(0x20202020)) * np.uint64(0x9E3779B1)
    return ((mixed & np.uint64(0xFFFFFFFF)) >> np.uint64(32 - _SLOTS_LOG2)).view(np.int64)


@cache
def _value_begins() -> NDArray[Any]:
    """Return bool[256]: the bytes that a value begins with."""
    import numpy as np

    members = np.zeros(256, bool)
    members[list(_VALUE_BEGINS)] = True
    return members


@cache
def _endings() -> NDArray[Any]:
    """Return bool[slots]: the last four letters of some key."""
    import numpy as np

    last = sorted({int.from_bytes(key[-4:].encode(), "little") for key in FORBIDDEN_KEYS})
    slots = np.zeros(1 << _SLOTS_LOG2, bool)
    slots[_ending_slot(np.array(last, np.uint64))] = True
    return slots
