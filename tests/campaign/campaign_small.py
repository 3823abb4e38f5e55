"""A protocol of one or two small patterns that a simulated campaign runs through in seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from opprof.protocol.design import design
from opprof.protocol.freeze import Approvals, freeze_protocol
from opprof.protocol.load import parse_protocol
from opprof.workload.materialize import materialize_synthetic
from opprof.workload.parameters import build_spec
from opprof.workload.tiny_tokenizer import write_tiny_tokenizer
from opprof.workload.tokenizer import load_vocabulary

SOURCE = Path(__file__).parents[2] / "examples" / "rehearsal" / "three-patterns.toml"
SEED = 20260712
# Gates that would judge this machine or the shortened time are opened; every other one is kept.
VALUES = {
    "id": '"small"',
    "num_requests": "4096",
    "saturation_max_concurrency": "8",
    "warmup_completions_min": "1",
    "offered_rate_error_max": "1.0",
    "client_cpu_share_max": "100.0",
    "client_loop_delay_p99_max_ms": "100000.0",
    "client_lag_sustained_max_s": "1000.0",
    "recovery_tolerance": "1000.0",
    "recovery_zero_median_waiting_max": "65536",
    "smd_max": "1000.0",
    "free_space_bytes_min": "0",
    "warmup_s": "10",
    "clean_segment_s": "10",
    "recovery_s": "10",
    "recovery_rolling_s": "3",
    "block_s": "1.0",
    "bootstrap_resamples": "100",
    "permutations": "100",
    "null_draws": "10",
    "irregular": '["P09"]',
    "contrasts": '[["P09", "P01"]]',
}


def small_protocol(
    path: Path,
    patterns: tuple[str, ...] = ("P01", "P09"),
    changes: Mapping[str, str] | None = None,
) -> Path:
    """Write the protocol, with further changed values, and return its path."""
    values = VALUES | dict(changes or {})
    blocks = re.split(r"(?m)^(?=\[)", SOURCE.read_text())
    kept = []
    for block in blocks:
        row = re.search(r'(?m)^id = "([^"]+)"', block)
        if block.startswith("[[patterns]]") and row and row.group(1) not in patterns:
            continue
        kept.append(block)
    text = re.sub(
        r"(?m)^(\w+) = [^\n]*$",
        lambda m: f"{m.group(1)} = {values[m.group(1)]}" if m.group(1) in values else m.group(0),
        "".join(kept[:1]) + "".join(kept[1:]),
    )
    text = re.sub(r"--num-requests \d+", f"--num-requests {values['num_requests']}", text)
    # Only the file's own id and title change, not those of its rows.
    text = re.sub(r'(?m)^id = "small"$', "id = @", text)
    names = iter(["small", *patterns, "C00"])
    text = re.sub(r"(?m)^id = @$", lambda _m: f'id = "{next(names)}"', text)
    counted = msgspec.to_builtins(design(parse_protocol(text.encode(), source="small").file))
    counted["gpu_hours_estimate"] = round(counted["gpu_hours"], 3)
    counted["wall_hours_estimate"] = round(counted["wall_hours"], 3)
    head, *rest = re.split(r"(?m)^(?=\[budget\])", text)
    tail = re.sub(
        r"(?m)^(\w+) = (\S+)$",
        lambda m: f"{m.group(1)} = {counted[m.group(1)]}" if m.group(1) in counted else m.group(0),
        "".join(rest),
    )
    draft = parse_protocol((head + tail).encode(), source="small")
    path.write_bytes(freeze_protocol(draft, Approvals(), date="2026-11-30"))
    return path


def small_manifests(
    private: Path, patterns: tuple[str, ...] = ("P01", "P09"), *, num_requests: int = 4096
) -> Path:
    """Write short-lined manifests for the patterns into a private folder and return it."""
    private.mkdir(mode=0o700, exist_ok=True)
    vocabulary = load_vocabulary(write_tiny_tokenizer(private / "tokenizer").parent)
    for pattern in patterns:
        spec = build_spec(
            pattern=pattern,
            kind="synthetic",
            input_uniform="16:64" if pattern == "P01" else "32:128",
            input_fixed=None,
            input_mixture=None,
            num_prefixes=None,
            prefix_len=None,
            suffix_fixed=None,
            output_fixed=8,
            prefix="none",
            arrival="steady",
            num_requests=num_requests,
            seed=SEED,
            max_common_prefix_tokens=16,
        )
        materialize_synthetic(spec, vocabulary, private / f"{pattern}.jsonl", provenance={})
    return private
