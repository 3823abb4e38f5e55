"""scripts/trim_runs.py: nothing that a figure needs is lost, and the examples are what it makes."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "trim_runs.py"
EXAMPLES = REPOSITORY / "examples" / "h200-runs"
RUN = "P03-C00-moderate"
KEPT_WHOLE = {
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "gpu_user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "user_annotation",
}

SMALL_TRACE = """
  {
    "schemaVersion": 1,
  "displayTimeUnit": "ms",
  "traceEvents": [
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 7, "tid": 7,
    "ts": 5140006196517.706, "dur": 184867.698,
    "args": {
      "External id": 1,"Record function id": 0, "Ev Idx": 0
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7,
    "ts": 5140006196600.100, "dur": 20.000,
    "args": {
      "External id": 2,"Concrete Inputs": ["", "0"], "Input Dims": [[8192, 2048], []], "Ev Idx": 1
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8,
    "ts": 5140006196600.100, "dur": 20.000,
    "args": {
      "External id": 3,"Ev Idx": 2
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "vllm::moe_forward", "pid": 7, "tid": 7,
    "ts": 5140006196700.000, "dur": 1.000,
    "args": {
      "External id": 4,"Concrete Inputs": ["", "layers.3"], "Ev Idx": 3
    }
  },
  {
    "ph": "X", "cat": "python_function", "name": "a.py(1): \\"f\\"", "pid": 7, "tid": 7,
    "ts": 5140006196600.000, "dur": 9.000,
    "args": {
      "Python parent id": null, "Python id": 1, "Ev Idx": 4
    }
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7,
    "ts": 5140006196605.25, "dur": 3.1,
    "args": {
      "External id": 2,      "cbid": 211, "correlation": 44
    }
  },
  {
    "ph": "s", "id": 44, "pid": 7, "tid": 7, "ts": 5140006196605.25,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "kernel", "name": "nvjet<\\"q\\">", "pid": 0, "tid": 13,
    "ts": 5140006196610.007, "dur": 100.7,
    "args": {
            "External id": 2, "queued": 0, "device": 0, "context": 1,      "stream": 13,
      "correlation": 44,      "grid": [32, 1, 1]
    }
  },
  {
    "name": "process_name", "ph": "M", "ts": 5140006195953.864, "pid": 7, "tid": 0,
    "args": {
      "name": "VLLM::EngineCore"
    }
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 5139936261778.521
  }
  ],
  "traceName": "/somewhere/deep/tmp1.json"
}"""


def trim(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(source), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def inflated(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return json.load(stream, parse_float=str)


def identity(event: dict[str, Any]) -> tuple[Any, ...]:
    args = event.get("args", {})
    where = (event["cat"], event["name"], event["pid"], event["tid"], event["ts"], event["dur"])
    return (*where, args.get("correlation"), args.get("device"), args.get("bytes"))


def test_what_stays_of_a_small_trace(tmp_path: Path) -> None:
    source = tmp_path / "in" / "run"
    (source / "client").mkdir(parents=True)
    (source / "traces").mkdir()
    (source / "client" / "timeline.json").write_bytes(b"{ \n}")
    name = "window0-rank0.pt.trace.json.gz"
    (source / "traces" / name).write_bytes(gzip.compress(SMALL_TRACE.encode()))

    done = trim(tmp_path / "in", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/run/client/timeline.json").read_bytes() == b"{ \n}"
    packed = (tmp_path / "out/run/traces" / name).read_bytes()
    assert packed[3] == 0 and packed[4:8] == bytes(4)  # no file name, no time
    text = gzip.decompress(packed).decode()
    head = SMALL_TRACE[: SMALL_TRACE.index('"traceEvents"')]
    assert text.startswith(head + '"traceEvents": [\n  {\n    "ph": "X"')
    trace = json.loads(text, parse_float=str)
    assert trace["traceName"] == "tmp1.json"
    events = trace["traceEvents"]
    assert [e["name"] for e in events] == [
        "ProfilerStep#2",
        "aten::mm",
        "vllm::moe_forward",
        "cudaLaunchKernel",
        'nvjet<"q">',
        "process_name",
        "Record Window End",
    ]
    assert events[1]["tid"] == 7  # the other one encloses no launch of its own thread
    assert events[2]["args"] == {"External id": 4, "Concrete Inputs": ["", "layers.3"]}
    assert events[3]["args"] == {"External id": 2, "correlation": 44}
    assert (events[3]["ts"], events[4]["ts"], events[4]["dur"]) == (
        "5140006196605.25",
        "5140006196610.007",
        "100.7",
    )
    assert events[4]["args"] == {"External id": 2, "device": 0, "stream": 13, "correlation": 44}


def test_a_trace_in_another_layout_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "in" / "run"
    (source / "client").mkdir(parents=True)
    (source / "client" / "timeline.json").write_bytes(b"{}")
    trace = source / "window0-rank0.pt.trace.json.gz"
    trace.write_bytes(gzip.compress(b'{"traceEvents":[]}'))
    done = trim(tmp_path / "in", tmp_path / "out")
    assert done.returncode != 0
    assert "no event list in libkineto's layout" in done.stderr


def shared_run() -> Path:
    for folder in REPOSITORY.parents:
        run = folder / "shared" / "h200-runs" / RUN
        if run.is_dir():
            return run
    pytest.skip("no shared/h200-runs beside the repository")


@pytest.mark.shared
def test_the_examples_are_what_the_script_makes(tmp_path: Path) -> None:
    original = shared_run()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / RUN).symlink_to(original)
    done = trim(tmp_path / "in", tmp_path / "out")
    assert done.returncode == 0, done.stderr

    paths = sorted(p.relative_to(original) for p in original.rglob("*") if p.is_file())
    copies = sorted(
        p.relative_to(EXAMPLES / RUN) for p in (EXAMPLES / RUN).rglob("*") if p.is_file()
    )
    assert copies == paths
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in paths:
        made, bundled = (tmp_path / "out" / RUN / path), (EXAMPLES / RUN / path)
        if path.parts[0] != "traces":
            assert bundled.read_bytes() == (original / path).read_bytes() == made.read_bytes()
            continue
        assert hashlib.sha256((original / path).read_bytes()).hexdigest() in readme
        assert gzip.decompress(made.read_bytes()) == gzip.decompress(bundled.read_bytes())
        if "ng" not in zlib.ZLIB_RUNTIME_VERSION:  # zlib-ng packs the same text differently
            assert made.read_bytes() == bundled.read_bytes()


@pytest.mark.shared
def test_no_event_that_counts_is_lost_or_changed() -> None:
    name = "traces/window0-rank0.pt.trace.json.gz"
    before = inflated(shared_run() / name)
    after = inflated(EXAMPLES / RUN / name)
    lists = [
        [identity(e) for e in trace["traceEvents"] if e.get("cat") in KEPT_WHOLE]
        for trace in (before, after)
    ]
    assert lists[0] == lists[1]
    assert len(lists[0]) > 8000
    others = [
        {k: v for k, v in t.items() if k not in ("traceEvents", "traceName")}
        for t in (before, after)
    ]
    assert others[0] == others[1]
