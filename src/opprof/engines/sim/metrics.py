"""``/metrics`` in Prometheus text form, under the vLLM names that matter."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from opprof.engines.sim.engine import SimEngine

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
           10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_LATENCY_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
              120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip


class Histogram:
    """Counts by upper bound, in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def lines(self, name: str, label: str) -> Iterator[str]:
        """Yield the exposition lines."""
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}",{label}}} {total}'
        yield f"{name}_count{{{label}}} {total}"
        yield f"{name}_sum{{{label}}} {self.sum:.9g}"


class Metrics:
    """What the server counts beside the engine."""

    def __init__(self, model: str) -> None:
        name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        # A label, not a comment alone: whoever scrapes the page keeps it.
        self._label = f'model_name="{name}",engine="0",simulated="true"'
        self.first_token = Histogram(_TTFT_S)
        self.latency = Histogram(_LATENCY_S)

    def text(self, engine: SimEngine) -> bytes:
        """Return the page."""
        counters, scheduler, label = engine.counters, engine.scheduler, self._label
        gauges = {
            "num_requests_running": (len(scheduler.running), "Requests in execution batches."),
            "num_requests_waiting": (len(scheduler.waiting), "Requests waiting to be processed."),
            "kv_cache_usage_perc": (engine.pool.usage, "KV-cache usage, 1 is 100 percent."),
        }
        totals = {
            "num_preemptions": (counters.preemptions, "Preemptions."),
            "prompt_tokens": (counters.prompt_tokens, "Prefill tokens processed."),
            "generation_tokens": (counters.generation_tokens, "Generation tokens processed."),
            "prefix_cache_queries": (counters.prefix_queries, "Tokens looked up in the cache."),
            "prefix_cache_hits": (counters.prefix_hits, "Tokens found in the cache."),
        }
        lines = ["# SIMULATED: opprof-sim, no measurement"]
        for name, (value, text) in gauges.items():
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} gauge"]
            lines.append(f"vllm:{name}{{{label}}} {value:.9g}")
        for name, (value, text) in totals.items():
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} counter"]
            lines.append(f"vllm:{name}_total{{{label}}} {value}")
        lines += ["# HELP vllm:request_success Finished requests."]
        lines += ["# TYPE vllm:request_success counter"]
        done = f'vllm:request_success_total{{{label},finished_reason="length"}}'
        lines.append(f"{done} {counters.finished}")
        for name, histogram in (
            ("vllm:time_to_first_token_seconds", self.first_token),
            ("vllm:e2e_request_latency_seconds", self.latency),
        ):
            lines += [f"# HELP {name} Histogram in seconds.", f"# TYPE {name} histogram"]
            lines += histogram.lines(name, label)
        return ("\n".join(lines) + "\n").encode()
