"""A request manifest and its index (contract, section 1).

Format history
    line, schema 1      one JSON object a request, as the contract lists it.
    index, schema 1     msgpack of :class:`ManifestIndex`, then the 32 bytes of its SHA-256.

A manifest is JSONL, one request a line in arrival order. Beside ``P03.jsonl`` lie
``P03.manifest.sha256`` (:class:`opprof.artifacts.run.ManifestSummary`) and ``P03.manifest.index``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

TokenId = Annotated[int, Meta(ge=0)]
Tokens = Annotated[int, Meta(ge=1, lt=2**32)]
ArrivalClass = Annotated[str, Meta(pattern=r"^(steady|burst:[1-9][0-9]{0,5})$")]


class ManifestLine(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request; exactly one of ``prompt_token_ids`` and ``prompt`` is there."""

    id: str | int
    """Unique within the manifest."""
    input_tokens: Tokens
    """Prompt tokens that the server must report."""
    output_tokens: Tokens
    """Output tokens to ask for."""
    arrival: ArrivalClass
    """The same on every line."""
    pattern: str
    """The same on every line."""
    prompt_token_ids: list[TokenId] | None = None
    prompt: str | None = None
    """Text, of private manifests only; never in a message, a log or a run directory."""


class ManifestLineRaw(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """:class:`ManifestLine` with the prompt left as the bytes that the file holds (none: empty)."""

    id: str | int
    input_tokens: Tokens
    output_tokens: Tokens
    arrival: ArrivalClass
    pattern: str
    prompt_token_ids: Raw = Raw()
    prompt: Raw = Raw()


class ManifestIndex(Struct, frozen=True, forbid_unknown_fields=True):
    """Where each request's prompt lies in the manifest; a cache that may be deleted and rebuilt.

    The columns are little-endian integers, one a request in arrival order. A prompt's bytes
    ``[start, end)`` are a complete JSON value (array or string), ready for a request body.
    """

    schema: Literal[1]
    manifest_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    manifest_bytes: Annotated[int, Meta(ge=0)]
    ids: list[str]
    prompt_start: bytes
    """``uint64[n]``, bytes from the start of the manifest."""
    prompt_end: bytes
    """``uint64[n]``"""
    input_tokens: bytes
    """``uint32[n]``"""
    output_tokens: bytes
    """``uint32[n]``"""
