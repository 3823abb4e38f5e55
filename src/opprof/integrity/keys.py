"""Keys that may hold no text and no token ids in anything that leaves the private folder.

The one list (protocol, "Artifact, privacy, and reproducibility contract": a scanner must reject any
artifact containing a prompt, messages, content, or generated-text field). A key counts where it
stands as a key with a non-empty string or array as its value: ``"prompt": "…"`` in JSON, also
escaped or with a Python literal's quotes, ``prompt: '…'`` and ``text='…'`` as vLLM logs its
requests. A word in a sentence, a function named ``content``, a schema's ``"prompt": {…}`` and
numbers under such a key do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from opprof.integrity.normalize import MIN_CHARS

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORBIDDEN_KEYS = (
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
    "generatedtext",
    "outputtext",
    "prompttext",
    "prompttokenids",
    "tokenids",
)
"""Request and answer bodies of OpenAI's interface, vLLM's request log and its offline outputs; in
lower case, for capitals make no difference."""

CHART_LABEL = b"text"
"""In a page, Plotly's labels stand under this key: there only strings of 32 characters or more,
what the specification calls a private substring, count."""

_TERMINATORS = b"\"'=: "
_BEFORE = 48
_PAD = 8
_AFTER = 8 << 10
_STRING = re.compile(rb"\"((?:[^\"\\]|\\.)*)\"")


def forbidden_keys(text: bytes, *, page: bool = False, config: bool = False) -> Iterator[str]:
    """Yield every forbidden key of collapsed text, each occurrence.

    ``page`` is HTML, where ``content="…"`` is an attribute and charts carry their labels;
    ``config`` is TOML. In both only ``"key": …`` counts.
    """
    pattern = _pattern(quoted=page or config)
    text = text.lower()
    told = -1
    for at in _candidates(text):
        if at < told:
            continue
        match = pattern.search(text, max(0, at - _BEFORE), at + _BEFORE)
        if match is None or match.start() < told:
            continue
        told = match.end()
        key = match.group("key")
        if page and key == CHART_LABEL and _only_labels(text, match.end() - 1):
            continue
        yield key.decode()


def _only_labels(text: bytes, start: int) -> bool:
    """Tell whether the string or the array of strings at ``start`` holds short ones only."""
    end = text.find(b"]", start) if text[start : start + 1] == b"[" else start + 1
    stop = end if end > start + 1 else start + _AFTER
    for match in _STRING.finditer(text, start, min(stop, start + _AFTER)):
        if len(match.group(1).decode("utf-8", "replace")) >= MIN_CHARS:
            return False
        if text[start : start + 1] != b"[":
            return True
    return text[start : start + 1] == b"["


@cache
def _pattern(*, quoted: bool) -> re.Pattern[bytes]:
    keys = "|".join(sorted(FORBIDDEN_KEYS, key=len, reverse=True))
    value = r" ?(?:[bfruBFRU]{0,2}[\"'](?![\"'])|\[ ?(?!\])|\((?=[\"']))"
    if quoted:
        return re.compile(rf"[\"'](?P<key>{keys})[\"'] ?:{value}".encode())
    return re.compile(rf"(?<![A-Za-z0-9_.\-])[\"']?(?P<key>{keys})[\"']? ?[:=]{value}".encode())


def _candidates(text: bytes) -> list[int]:
    """Positions of the last letter of what may be a key: cheap, for all of a stream."""
    import numpy as np

    # A key may stand at the very beginning; seven bytes before it are looked at.
    text = b" " * _PAD + text + b"  "
    values = np.frombuffer(text, np.uint8)
    pairs, endings = _tables()
    found: list[NDArray[Any]] = []
    for phase in (0, 1):
        words = np.frombuffer(text, np.uint16, (len(text) - phase) // 2, phase)
        found.append(np.flatnonzero(pairs[words]) * 2 + phase)
    at = np.sort(np.concatenate(found))
    at = at[at >= 7]
    last = _letters(values, at)
    some = np.isin(last, [ending for ending, _, _ in endings])
    at, last = at[some], last[some]
    before = _letters(values, at - 4)
    kept = np.zeros(len(at), bool)
    for ending, mask, letters in endings:
        kept |= (last == ending) & ((before & mask) == letters)
    return [position - _PAD for position in at[kept].tolist()]


def _letters(values: NDArray[Any], at: NDArray[Any]) -> NDArray[Any]:
    """The four bytes that end at each position, the last one lowest."""
    import numpy as np

    four = np.zeros(len(at), np.uint32)
    for back in range(4):
        four |= values[at - back].astype(np.uint32) << np.uint32(8 * back)
    return four


@cache
def _tables() -> tuple[NDArray[Any], list[tuple[int, int, int]]]:
    """Return (bool[65536] by last letter and terminator, the last letters of every key).

    The letters are (last four, mask and value of the four before them).
    """
    import numpy as np

    pairs = np.zeros(1 << 16, bool)
    endings = set()
    for key in FORBIDDEN_KEYS:
        for terminator in _TERMINATORS:
            pairs[ord(key[-1]) | terminator << 8] = True
        earlier = key[-8:-4].encode()
        mask = (1 << 8 * len(earlier)) - 1
        last = int.from_bytes(key[-4:].encode(), "big")
        endings.add((last, mask, int.from_bytes(earlier, "big")))
    return pairs, sorted(endings)
