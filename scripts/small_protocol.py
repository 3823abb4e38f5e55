"""Cut a protocol down to three patterns under one configuration, for rehearsals of a minute.

    python scripts/small_protocol.py protocols/phase3.toml examples/rehearsal/three-patterns.toml
    python scripts/small_protocol.py protocols/phase3.toml examples/rehearsal/twins.toml --twins
    python scripts/small_protocol.py protocols/phase3.toml \\
        examples/rehearsal/twins-captured.toml --captured

``--twins`` gives the irregular pattern the workload of its control: the two differ in nothing but
what a truth file plants, so a rehearsal shows which planted waste a design can find.
``--captured`` are twins of which every step fits a captured graph, in a window as well.

What is not cut keeps the original's text. Durations, the representativeness limit (eight steps
cannot meet the original's: see docs/simulation.md) and the numbers of resamples are the small
design's own; the arithmetic that ``opprof protocol check`` recomputes is written anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from opprof.protocol.design import design
from opprof.protocol.load import parse_protocol

PATTERNS = {False: ("P01", "P03", "P09"), True: ("P01", "P02", "P09")}
"""By whether the irregular pattern is its control's twin."""
TWIN_ROWS = {
    "P09": {"input": '"uniform:128:512"', "cell": '"twin of P01"'},
    # Steps of prefill alone, without which interference cannot be told from its parts.
    "P02": {"output": '"fixed:1"', "cell": '"prefill only"'},
}
TWIN_COMMANDS = {
    "P09": (r"--input-mixture '[^']*'", "--input-uniform 128:512"),
    "P02": (r"--output-fixed \d+", "--output-fixed 1"),
}
"""What the twins' manifest commands say otherwise, so that they make what the rows say."""
CAPTURED_ROWS = {
    "C00": {
        "max_num_seqs": "512",
        "max_num_batched_tokens": "512",
        "flags": '["--max-num-seqs", "512", "--max-num-batched-tokens", "512"]',
        "purpose": '"Every step fits a captured graph"',
    },
}
CAPTURED_VALUES = {
    "id": '"twins-captured"',
    "title": '"Twin patterns of which every step replays a graph, for rehearsals of opaque ones"',
}
TWIN_VALUES = {
    "id": '"twins"',
    "title": '"Twin patterns, which differ only in what is planted, for rehearsals"',
    # Where prompts of P02 come as fast as a captured step takes one, clean steps are captured and
    # eager ones. Fewer are all captured, and a window's slower launches make all of them eager.
    "moderate_rate_fraction": "0.25",
    "contrasts": '[["P09", "P01"]]',
}
DROPPED_TABLES = {"private_source", "colocation", "partial_matrix"}
DROPPED_LISTS = {"amendments", "open_decisions"}
VALUES = {
    "id": '"three-patterns"',
    "title": '"Three patterns of Phase 3, shortened, for rehearsals"',
    "num_requests": "65536",
    "warmup_s": "20",
    "clean_segment_s": "20",
    "recovery_s": "20",
    "moderate_rate_fraction": "0.30",
    "recovery_tolerance": "20.0",
    "recovery_zero_median_waiting_max": "64",
    "smd_max": "12.0",
    "null_draws": "200",
    "bootstrap_resamples": "2000",
    "permutations": "5000",
    "sentinel_patterns": "[]",
    "sentinel_configs": "[]",
    "extra": "[]",
    "irregular": '["P09"]',
    "contrasts": '[["P09", "P01"], ["P09", "P03"]]',
    "gpu_hours_used": "0.0",
}
IN_TABLE = {
    ("confirmations", "patterns"): "[]",
    ("burnin", "pattern"): '"P01"',
    ("burnin", "seconds"): "20",
}


def shrink(text: str, *, twins: bool = False, captured: bool = False) -> str:
    """Return the small protocol's text; ``captured`` ones are twins."""
    twins = twins or captured
    head, *blocks = re.split(r"(?m)^(?=\[)", text)
    kept = [block for block in blocks if _kept(block, twins)]
    values = {**VALUES, **(TWIN_VALUES if twins else {}), **(CAPTURED_VALUES if captured else {})}
    rows = {**(TWIN_ROWS if twins else {}), **(CAPTURED_ROWS if captured else {})}
    head = _set(head, "", values, rows) + "amendments = []\nopen_decisions = []\n\n"
    body = "".join(_set(block, _name(block), values, rows) for block in kept)
    body = re.sub(r"--num-requests \d+", f"--num-requests {values['num_requests']}", body)
    for pattern, (old, new) in TWIN_COMMANDS.items() if twins else ():
        body = re.sub(rf"(?m)^(manifest = .*--id {pattern} .*?){old}", rf"\1{new}", body)
    return _with_arithmetic(head + body)


def _name(block: str) -> str:
    match = re.match(r"\[+([\w.]+)\]+", block)
    assert match is not None
    return match.group(1)


def _kept(block: str, twins: bool) -> bool:
    name = _name(block)
    identity = re.search(r'(?m)^id = "([^"]+)"', block)
    if name == "patterns":
        return identity is not None and identity.group(1) in PATTERNS[twins]
    if name == "configs":
        return identity is not None and identity.group(1) == "C00"
    return name not in DROPPED_TABLES | DROPPED_LISTS


def _set(block: str, table: str, values: dict[str, str], rows: dict[str, dict[str, str]]) -> str:
    identity = re.search(r'(?m)^id = "([^"]+)"', block)
    row = {} if identity is None else rows.get(identity.group(1), {})

    def replace(match: re.Match[str]) -> str:
        key = match.group(1)
        if table in ("patterns", "configs"):
            value = row.get(key)
        else:
            value = IN_TABLE.get((table, key), values.get(key))
        return match.group(0) if value is None else f"{key} = {value}"

    return re.sub(r"(?m)^(\w+) = [^\n]*$", replace, block)


def _with_arithmetic(text: str) -> str:
    """Write what ``opprof protocol check`` computes into ``[expected]`` and the estimates."""
    counted = design(parse_protocol(text.encode(), source="small protocol").file)
    values = msgspec.to_builtins(counted)
    values["gpu_hours_estimate"] = round(counted.gpu_hours, 2)
    values["wall_hours_estimate"] = round(counted.wall_hours, 2)
    found = re.split(r"(?m)^(?=\[expected\])", text)
    budget = re.sub(
        r"(?m)^(gpu_hours_estimate|wall_hours_estimate) = .*$",
        lambda m: f"{m.group(1)} = {values[m.group(1)]}",
        found[0],
    )
    expected = re.sub(
        r"(?m)^(\w+) = (\S+)$",
        lambda m: f"{m.group(1)} = {values[m.group(1)]}" if m.group(1) in values else m.group(0),
        found[1],
    )
    return budget + expected


def main(arguments: list[str]) -> int:
    source, target = (Path(text) for text in arguments[:2])
    twins, captured = "--twins" in arguments, "--captured" in arguments
    target.write_text(shrink(source.read_text(), twins=twins, captured=captured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
