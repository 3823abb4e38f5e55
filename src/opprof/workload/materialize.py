"""From a spec and a vocabulary to a manifest on disk (protocol, client contract 1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opprof.artifacts.run import ManifestSummary
from opprof.errors import InputError
from opprof.workload.draw import RawStream
from opprof.workload.parameters import ManifestSpec, PrefixPool
from opprof.workload.plan import ALGORITHM, Plan, plan_lengths
from opprof.workload.prefixes import first_shared_pair
from opprof.workload.render import BLOCK_TOKENS, TokenText, blocks
from opprof.workload.summary import summarize
from opprof.workload.tokenizer import Vocabulary
from opprof.workload.write import LineWriter, Written, write_manifest


def materialize_synthetic(
    spec: ManifestSpec,
    vocabulary: Vocabulary,
    out: Path,
    *,
    block_tokens: int = BLOCK_TOKENS,
    provenance: dict[str, Any] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ManifestSummary:
    """Write a synthetic manifest with its index and summary, and return the summary.

    The bytes depend on the spec and the vocabulary's ids alone; memory is bounded by the block
    (60 MB in all for the default), not by the manifest.

    Args:
        spec: what to generate.
        vocabulary: the ids to draw from.
        out: final name of the manifest; companions lie beside it.
        block_tokens: tokens drawn at a time; no influence on the result.
        provenance: added to the summary's ``generator``, for instance the protocol's hash.
        on_progress: called with the requests written so far and all requests.

    Raises:
        InputError: two requests would share a longer prefix than the spec allows.
        StateConflict: ``out`` exists with other contents.
        EnvironmentFailure: the folder cannot be written or the disk is full.
    """
    plan = plan_lengths(spec)

    def fill(writer: LineWriter) -> None:
        _fill(writer, spec, plan, vocabulary, block_tokens, on_progress)

    def describe(written: Written) -> ManifestSummary:
        return summarize(
            sha256=written.sha256,
            pattern=spec.pattern,
            arrival=spec.arrival,
            prefix=spec.prefix,
            input_tokens=plan.input_tokens,
            output_tokens=np.full(spec.num_requests, spec.output_tokens),
            generator={
                "algorithm": ALGORITHM,
                **spec.describe(),
                "ordinary_tokens": int(vocabulary.token_ids.size),
                **(provenance or {}),
            },
            tokenizer_sha256=vocabulary.sha256,
            private=False,
        )

    return write_manifest(
        out,
        key="prompt_token_ids",
        pattern=spec.pattern,
        arrival=spec.arrival,
        private=False,
        fill=fill,
        describe=describe,
    )


def _fill(
    writer: LineWriter,
    spec: ManifestSpec,
    plan: Plan,
    vocabulary: Vocabulary,
    block_tokens: int,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    stream = RawStream(spec.seed)
    keep = _compared_tokens(spec, plan)
    text = TokenText(vocabulary.token_ids, keep_tokens=keep)
    opening = _openings(spec, plan, text, stream)
    first_ids = np.empty((spec.num_requests, keep), dtype=np.int64)
    position = plan.drawn_start
    for first, last in blocks(plan.drawn_tokens, block_tokens=block_tokens):
        lengths = plan.drawn_tokens[first:last]
        texts, first_ids[first:last] = text.requests(stream, position, lengths)
        position += int(lengths.sum())
        if plan.pool_index is None:
            prompts = [b"[" + body + b"]" for body in texts]
        else:
            pools = plan.pool_index[first:last].tolist()
            prompts = [opening[p] + body + b"]" for p, body in zip(pools, texts, strict=True)]
        outputs = [spec.output_tokens] * (last - first)
        writer.append(prompts, plan.input_tokens[first:last].tolist(), outputs)
        if on_progress is not None:
            on_progress(last, spec.num_requests)
    _refuse_shared(first_ids, spec, what="requests")


def _compared_tokens(spec: ManifestSpec, plan: Plan) -> int:
    """Return how many first ids decide the prefix rule; never more than the longest stretch has."""
    longest = int(plan.drawn_tokens.max())
    if isinstance(spec.input, PrefixPool):
        longest = max(longest, spec.input.prefix_tokens)
    return min(spec.max_common_prefix_tokens, longest) + 1


def _openings(spec: ManifestSpec, plan: Plan, text: TokenText, stream: RawStream) -> list[bytes]:
    """Render the shared prefixes of a pool as the openings of their requests' arrays."""
    if not isinstance(spec.input, PrefixPool):
        return []
    lengths = np.full(spec.input.prefixes, spec.input.prefix_tokens, dtype=np.int64)
    texts, first_ids = text.requests(stream, plan.pool_start, lengths)
    _refuse_shared(first_ids, spec, what="shared prefixes")
    return [b"[" + body + b"," for body in texts]


def _refuse_shared(first_ids: NDArray[np.int64], spec: ManifestSpec, *, what: str) -> None:
    pair = first_shared_pair(first_ids)
    if pair is None:
        return
    names = [
        f"{spec.pattern}-{index:06d}" if what == "requests" else f"number {index}" for index in pair
    ]
    stretch = "suffixes" if what == "requests" and spec.prefix == "high" else "prompts"
    raise InputError(
        f"{what} {names[0]} and {names[1]} share more than {spec.max_common_prefix_tokens}"
        f" leading tokens, or are equal: the vocabulary or the {stretch} are too small for"
        f" {spec.num_requests} unique ones"
    )
