"""Requests of a pattern as the protocol's manifest would hold them, without their tokens.

Lengths, order and shared prefixes are those of ``opprof materialize`` for the same row and seed;
token ids matter to the engine only as contents of KV blocks, so equal prefixes get equal contents
and everything else is unique. A private trace is not at hand in a rehearsal: its stand-in has the
row's bounds and a log-normal body, and says so in its summary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opprof.artifacts.run import ManifestSummary
from opprof.client.ports import RequestSpec
from opprof.errors import InputError
from opprof.files import sha256_bytes
from opprof.protocol.model import Pattern, ProtocolFile
from opprof.workload.parameters import ManifestSpec, build_spec
from opprof.workload.plan import plan_lengths
from opprof.workload.summary import summarize

BLOCK_TOKENS = 16
"""vLLM's KV block on a CUDA device."""
_TRACE_MEDIAN_TOKENS = 7009
_TRACE_SIGMA = 0.95
"""Protocol, "Private real-trace anchor": median 7,009 and 95 % quantile 25,629 tokens."""


@dataclass(frozen=True, slots=True)
class PlannedSpec(RequestSpec):
    """A request with the contents of its shared leading blocks."""

    contents: Sequence[object] = ()


class PlannedSource:
    """A request source of planned lengths; indexing makes the request."""

    def __init__(
        self,
        pattern: str,
        inputs: NDArray[np.int64],
        outputs: NDArray[np.int64],
        pool_index: NDArray[np.int64] | None,
        pool_blocks: int,
    ) -> None:
        self.pattern = pattern
        self.inputs = inputs
        self.outputs = outputs
        self._inputs = inputs.tolist()
        self._outputs = outputs.tolist()
        self._pools = None if pool_index is None else pool_index.tolist()
        pools = 0 if pool_index is None else int(pool_index.max()) + 1
        self._shared = [
            [("prefix", pool, block) for block in range(pool_blocks)] for pool in range(pools)
        ]
        self.named_blocks = False
        """Whether a request's own blocks can be found again when it is sent a second time."""

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> PlannedSpec:
        return PlannedSpec(
            request_id=f"{self.pattern}-{index:06d}",
            prompt_json=b"[]",
            input_tokens=self._inputs[index],
            output_tokens=self._outputs[index],
            contents=self._contents(index),
        )

    def _contents(self, index: int) -> Sequence[object]:
        shared: list[object] = [] if self._pools is None else list(self._shared[self._pools[index]])
        if self.named_blocks:
            whole = self._inputs[index] // BLOCK_TOKENS
            shared += [("own", index, block) for block in range(len(shared), whole)]
        return shared


@dataclass(frozen=True)
class PlannedManifest:
    """Source, summary and arrival class of one pattern."""

    source: PlannedSource
    summary: ManifestSummary


def plan_manifest(file: ProtocolFile, pattern: str, *, workload_seed: int) -> PlannedManifest:
    """Plan a pattern's requests.

    Raises:
        InputError: the protocol has no such pattern, or its row cannot be read.
    """
    row = next((row for row in file.patterns if row.id == pattern), None)
    if row is None:
        raise InputError(f"the protocol has no pattern {pattern}")
    if row.input.startswith("trace:"):
        return _trace(file, row, workload_seed)
    spec = spec_of(file, row, workload_seed)
    plan = plan_lengths(spec)
    outputs = np.full(spec.num_requests, spec.output_tokens, dtype=np.int64)
    shared = getattr(spec.input, "prefix_tokens", 0) // BLOCK_TOKENS
    source = PlannedSource(pattern, plan.input_tokens, outputs, plan.pool_index, shared)
    generator = {"algorithm": "opprof-rehearsal/1", "simulated": True, **spec.describe()}
    return PlannedManifest(source, _summary(source, row, spec.prefix, generator))


def spec_of(file: ProtocolFile, row: Pattern, workload_seed: int) -> ManifestSpec:
    """Return the manifest spec that a synthetic row stands for.

    Raises:
        InputError: the row's ``input`` or ``output`` is of no known form.
    """
    output = re.fullmatch(r"fixed:(\d+)", row.output)
    if output is None:
        raise InputError(f"pattern {row.id}: output {row.output!r} is not fixed:N")
    kind, _, rest = row.input.partition(":")
    pool = re.fullmatch(r"prefix-pool:(\d+):(\d+)\+(\d+)", row.input)
    mixture = None
    if kind == "mixture":
        modes = (part.rsplit("=", 1) for part in rest.split(","))
        mixture = "{" + ", ".join(f'"{mode}": {weight}' for mode, weight in modes) + "}"
    elif kind not in ("uniform", "fixed") and pool is None:
        raise InputError(f"pattern {row.id}: input {row.input!r} is of no known form")
    return build_spec(
        pattern=row.id,
        kind="synthetic" if pool is None else "prefix-pool",
        output_fixed=int(output.group(1)),
        arrival=row.arrival,
        num_requests=file.workload.num_requests,
        seed=workload_seed,
        max_common_prefix_tokens=file.workload.max_common_prefix_tokens,
        prefix="none" if pool is None else None,
        input_uniform=rest if kind == "uniform" else None,
        input_fixed=int(rest) if kind == "fixed" else None,
        input_mixture=mixture,
        num_prefixes=None if pool is None else int(pool.group(1)),
        prefix_len=None if pool is None else int(pool.group(2)),
        suffix_fixed=None if pool is None else int(pool.group(3)),
    )


def _trace(file: ProtocolFile, row: Pattern, workload_seed: int) -> PlannedManifest:
    bound = re.fullmatch(r"trace:max:(\d+)", row.input)
    cap = re.fullmatch(r"trace-capped:(\d+)", row.output)
    if bound is None or cap is None or file.private_source is None:
        raise InputError(f"pattern {row.id}: a trace row needs trace:max:N, trace-capped:N, source")
    count = file.private_source.selected_rows
    # The raw generator is named, so that results do not hang on NumPy's choice of a default.
    random = np.random.Generator(np.random.PCG64(workload_seed))
    body = np.exp(random.standard_normal(count) * _TRACE_SIGMA) * _TRACE_MEDIAN_TOKENS
    inputs = np.clip(body, 69, int(bound.group(1))).astype(np.int64)
    short = np.clip(random.integers(2, int(cap.group(1)) + 1, count), 2, None)
    outputs = np.where(random.random(count) < 0.7, int(cap.group(1)), short).astype(np.int64)
    source = PlannedSource(row.id, inputs, outputs, None, 0)
    generator = {
        "algorithm": "opprof-rehearsal/1",
        "simulated": True,
        "stand_in": "log-normal lengths in place of the private trace; no shared prefixes",
    }
    return PlannedManifest(source, _summary(source, row, row.prefix, generator))


def _summary(
    source: PlannedSource, row: Pattern, prefix: str, generator: dict[str, object]
) -> ManifestSummary:
    text = f"opprof-rehearsal {row.id} {row.arrival} {prefix}\n".encode()
    digest = sha256_bytes(text + source.inputs.tobytes() + source.outputs.tobytes())
    return summarize(
        sha256=digest,
        pattern=row.id,
        arrival=row.arrival,
        prefix=prefix,
        input_tokens=source.inputs,
        output_tokens=source.outputs,
        generator=generator,
        tokenizer_sha256=None,
        private=False,
    )
