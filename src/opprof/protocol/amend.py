"""Amendments of a frozen protocol: each can be undone to the byte, back to the draft."""

from __future__ import annotations

from opprof.errors import InputError
from opprof.files import sha256_bytes
from opprof.protocol import edit
from opprof.protocol.load import Protocol


def chain_problems(protocol: Protocol) -> list[str]:
    """Return why a frozen file is not what freezing and amending made of its draft."""
    from opprof.protocol.freeze import undo_freeze

    freeze, text = protocol.file.freeze, protocol.data.decode()
    if freeze is None:
        return []
    try:
        carried, right = edit.seal_of(text)
        if carried != right:
            return ["the file was changed after it was frozen (its seal does not fit its bytes)"]
        if sha256_bytes(undo_freeze(text.encode())) != freeze.draft_sha256:
            return ["without its freeze it is not the draft whose hash it names"]
    except InputError as error:
        return [f"not written by `opprof protocol freeze`: {error.reason}"]
    return []
