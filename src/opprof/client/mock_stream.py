"""The mock's Layer-1 stream: one line a step, flushed once a second with its sidecar, as the
engine's recorder does (A-P3-5)."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from opprof.artifacts.layer1 import EngineConfig, Footer, Graph, Header, Sidecar, Step

_FLUSH_NS = 1_000_000_000


class MockStream:
    """Writes ``engine-0.jsonl`` and its sidecar."""

    def __init__(self, folder: str, model: str) -> None:
        self._path = Path(folder) / "engine-0.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._path.open("wb")
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._steps = 0
        self._last_flush_ns = time.monotonic_ns()
        self._last_complete_ns = 0
        config = EngineConfig(
            model=model,
            dtype="none",
            tensor_parallel_size=1,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            chunked_prefill=True,
            prefix_caching=True,
            async_scheduling=False,
            cudagraph_mode="NONE",
            cudagraph_capture_sizes=[],
            attention_backend=None,
            moe_backend=None,
        )
        header = Header(
            schema=1,
            engine="mock",
            engine_version="0",
            flush_interval_s=1.0,
            config=config,
            simulated=True,
        )
        self._lines.append(self._encode(header))
        self._flush(final=False)

    def step(self, submit_ns: int, decoding: int, prompts: list[int], waiting: int) -> None:
        """Record one step that decoded ``decoding`` requests and prefilled ``prompts`` tokens."""
        now_ns = time.monotonic_ns()
        tokens = decoding + sum(prompts)
        line = Step(
            step=self._steps,
            submit_mono_ns=submit_ns,
            complete_mono_ns=max(now_ns, submit_ns + 1),
            model_executed=tokens > 0,
            scheduled_requests=decoding + len(prompts),
            prefill_requests=len(prompts),
            prefill_tokens=sum(prompts),
            decode_requests=decoding,
            decode_tokens=decoding,
            prefill_chunks=prompts,
            context_len_hist=None,
            context_len_sum=0,
            context_len_max=0,
            waiting=waiting,
            running=decoding + len(prompts),
            deferred=0,
            preemptions=0,
            kv_usage=0.0,
            prefix_queries=sum(prompts),
            prefix_hits=0,
            graph=Graph("NONE", False, tokens, 0) if tokens else None,
        )
        self._lines.append(self._encode(line))
        self._steps += 1
        if now_ns - self._last_flush_ns >= _FLUSH_NS:
            self._flush(final=False)

    def flush(self) -> None:
        """Write what is pending, with its sidecar."""
        self._flush(final=False)

    def close(self) -> None:
        """Write the footer and the final sidecar."""
        self._lines.append(self._encode(Footer(self._steps, self._steps, 0, self._steps - 1, True)))
        self._flush(final=True)
        self._stream.close()

    def _flush(self, *, final: bool) -> None:
        self._last_flush_ns = time.monotonic_ns()
        self._stream.write(b"".join(line + b"\n" for line in self._lines))
        self._stream.flush()
        self._lines.clear()
        sidecar = Sidecar(
            schema=1,
            encoded_records=self._steps,
            written_records=self._steps,
            dropped_records=0,
            last_step_index=self._steps - 1,
            wall_time_ns=time.time_ns(),
            flush_interval_s=1.0,
            final=final,
            mono_time_ns=self._last_flush_ns,
        )
        target = self._path.with_name(self._path.name + ".footer.json")
        temporary = target.with_name(target.name + ".tmp")
        temporary.write_bytes(self._encode(sidecar))
        temporary.replace(target)
