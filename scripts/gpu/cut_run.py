"""Copy recorded runs, their streams cut at the end of their timelines, for golden data.

usage: PYTHONPATH=src python scripts/gpu/cut_run.py DST RUN...

A server that was used for more than one run (overhead pairs, drain and kill tests) has a longer
stream than its run. The copy keeps the step lines up to the drain's end byte for byte, and gets a
footer and a sidecar that count them, as the writer would have left at that moment. ``traces`` and
``client`` are copied; logs stay behind; the engine's configuration loses the folder of its traces.
``scripts/trim_runs.py`` then trims the traces.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

STREAM = "engine-0.jsonl"


def cut_stream(source: Path, target: Path, end_ns: int) -> int:
    """Write the stream up to the last step submitted before ``end_ns``; return its steps."""
    kept, count = [], 0
    for line in source.read_bytes().splitlines(keepends=True):
        value = json.loads(line)
        if value["type"] == "header":
            kept.append(line)
        elif value["type"] == "step" and value["submit_mono_ns"] < end_ns:
            kept.append(line)
            count += 1
    side: dict[str, Any] = json.loads(source.with_name(f"{STREAM}.footer.json").read_bytes())
    counters = {
        "encoded_records": count,
        "written_records": count,
        "dropped_records": 0,
        "last_step_index": count - 1,
        "final": True,
        "reason": None,
        "open_steps": 0,
        "pauses": 0,
    }
    if side["dropped_records"]:
        raise SystemExit(f"{source}: records were dropped")
    kept.append(json.dumps({"type": "footer"} | counters, separators=(",", ":")).encode() + b"\n")
    target.write_bytes(b"".join(kept))
    # The clocks' tie is of the original's end; it holds for the whole run.
    side |= counters
    text = json.dumps(side, separators=(",", ":"))
    target.with_name(f"{STREAM}.footer.json").write_text(text + "\n")
    return count


def cut(run: Path, target: Path) -> str:
    """Copy one run."""
    timeline = json.loads((run / "client" / "timeline.json").read_bytes())
    end_ns = max(part["end_mono_ns"] for part in timeline["intervals"])
    (target / "opprof").mkdir(parents=True)
    (target / "traces").mkdir()
    shutil.copytree(run / "client", target / "client")
    shutil.copy(run / "manifest.sha256", target)
    for trace in sorted((run / "traces").glob("window*.pt.trace.json.gz")):
        shutil.copy(trace, target / "traces")
    count = cut_stream(run / "opprof" / STREAM, target / "opprof" / STREAM, end_ns)
    shutil.copy(run / "opprof" / "engine-0.profiler.ndjson", target / "opprof")
    config = json.loads((run / "opprof" / "engine-config.json").read_bytes())
    config["profiler_dir"] = "traces"
    (target / "opprof" / "engine-config.json").write_text(json.dumps(config, indent=1) + "\n")
    return f"{run.name}: {count} steps"


def main() -> None:
    """Cut every run named on the command line."""
    for run in map(Path, sys.argv[2:]):
        print(cut(run, Path(sys.argv[1]) / run.name))


if __name__ == "__main__":
    main()
