"""The specification's dry, CPU-only test, judged from the mock server's own arrival log.

Fixed segment duration, saturation concurrency, exact burst timing, no manifest wrap, exact
output-token requests, prompt-field redaction (protocol, "Required fixed-duration client", item 6).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opprof.artifacts.client import SegmentResult
from opprof.artifacts.run import ManifestSummary, RequestRecord, Result, Timeline
from opprof.artifacts.sanity import Sanity

Client = Callable[..., subprocess.CompletedProcess[str]]
Patient = Callable[[Callable[[float, Path], None]], None]
S = 1_000_000_000
ANSWER = " zyxwvut"


def read_run(folder: Path) -> dict[str, Any]:
    """Decode every artefact with its Struct; unknown or missing fields would fail here."""
    lines = (folder / "segments.jsonl").read_bytes().splitlines()
    records = (folder / "requests.jsonl").read_bytes().splitlines()
    return {
        "timeline": msgspec.json.decode((folder / "timeline.json").read_bytes(), type=Timeline),
        "segments": [msgspec.json.decode(line, type=SegmentResult) for line in lines],
        "records": [msgspec.json.decode(line, type=RequestRecord) for line in records],
        "result": msgspec.json.decode((folder / "result.json").read_bytes(), type=Result),
        "sanity": msgspec.json.decode((folder / "sanity.json").read_bytes(), type=Sanity),
        "summary": msgspec.json.decode(
            (folder.parent / "manifest.sha256").read_bytes(), type=ManifestSummary
        ),
    }


def test_saturation_then_moderate_bursts(
    mock: Callable[..., Any],
    manifest: Callable[..., Path],
    run_flags: Callable[..., list[str]],
    client: Client,
    patient: Patient,
) -> None:
    requests = manifest(pattern="P04", arrival="burst:8")

    def check(scale: float, folder: Path) -> None:
        opprof = folder / "opprof"
        server = mock(
            *("--step-ms", f"{1000 * scale:g}", "--token-text", ANSWER),
            *("--opprof-dir", str(opprof)),
        )
        shared = {"opprof_dir": opprof, "time_scale": scale}
        saturation = folder / "saturation" / "client"
        done = client(run_flags(requests, server.url, saturation, request_rate="inf", **shared))
        assert done.returncode == 0, done.stdout + done.stderr
        run = read_run(saturation)
        log = server.log()

        # Saturation concurrency, by the server: the cap is reached and never passed.
        assert max(row["outstanding"] for row in log["arrivals"]) == 16
        check_timeline(run["timeline"], scale)
        check_work(run, log, output=4)
        check_redaction(saturation.parent, done, "[0,1,7,8,9]", "[0, 1, 7, 8, 9]", ANSWER)
        calls = [call["path"] for call in log["calls"]]
        assert calls == ["/start_profile", "/stop_profile"] * 2
        result = run["result"]
        inside = [
            r
            for r in run["records"]
            if run["segments"][0].start_mono_ns
            <= (r.completed_mono_ns or 0)
            < run["segments"][-1].end_mono_ns
        ]
        assert result.completed_rps == pytest.approx(len(inside) / (3 * 80 * scale))

        urllib_clear(server.url)
        moderate = folder / "moderate" / "client"
        flags = {
            "load_point": "moderate",
            "saturation_result": saturation / "result.json",
            "rate_fraction": 0.6,
            "max_concurrency": 256,
        }
        done = client(run_flags(requests, server.url, moderate, **shared, **flags))
        assert done.returncode == 0, done.stdout + done.stderr
        run, log = read_run(moderate), server.log()
        timeline = run["timeline"]
        check_timeline(timeline, scale)
        check_work(run, log, output=4)
        assert timeline.rate_rps == 0.6 * result.completed_rps
        check_bursts(run, log)
        check_redaction(moderate.parent, done, "[0,1,7,8,9]", "[0, 1, 7, 8, 9]", ANSWER)

    patient(check)


def urllib_clear(url: str) -> None:
    import urllib.request

    with urllib.request.urlopen(f"{url}/_mock/clear"):
        pass


def check_timeline(timeline: Timeline, scale: float) -> None:
    """Segments are contiguous and of exactly the given length, from integer borders."""
    intervals = timeline.intervals
    assert [i.kind for i in intervals] == (
        ["warmup", "clean", "clean", "clean"] + ["profile", "recovery"] * 2 + ["drain"]
    )
    assert all(a.end_mono_ns == b.start_mono_ns for a, b in pairwise(intervals))
    lengths = {"warmup": 60, "clean": 80, "recovery": 30}
    for interval in intervals:
        if interval.kind in lengths:
            length = interval.end_mono_ns - interval.start_mono_ns
            assert length == round(lengths[interval.kind] * scale * S)
    for profile in (i for i in intervals if i.kind == "profile"):
        assert profile.start_call_mono_ns and profile.stop_call_mono_ns
        moments = [profile.start_mono_ns, *profile.start_call_mono_ns, *profile.stop_call_mono_ns]
        assert moments == sorted(moments) and moments[-1] == profile.end_mono_ns
    assert timeline.state == "complete" and timeline.time_scale == scale
    assert timeline.profile_window_source == "layer1"


def check_work(run: dict[str, Any], log: dict[str, Any], *, output: int) -> None:
    """No wrap, manifest order, exact work asked for and got, everything drained."""
    arrivals, records = log["arrivals"], run["records"]
    assert len(arrivals) == len(records)
    assert len({row["prompt_digest"] for row in arrivals}) == len(arrivals)
    assert {row["max_tokens"] for row in arrivals} == {output}
    assert all(row["greedy"] and row["ignore_eos"] and row["usage_asked"] for row in arrivals)
    assert not any(row["aborted"] for row in arrivals)
    assert {r.output_tokens for r in records} == {output}
    assert {r.prompt_tokens for r in records} == {5}
    assert all(r.error is None and r.completed_mono_ns is not None for r in records)
    for record in records:
        moments = [
            record.scheduled_mono_ns,
            record.admitted_mono_ns,
            record.first_token_mono_ns,
            record.completed_mono_ns,
        ]
        assert moments == sorted(moments)
    assert [segment.segment for segment in run["segments"]] == ["A", "B", "C"]
    assert run["sanity"].outcome == "pass"
    assert run["summary"].sha256 == run["result"].manifest_sha256


def check_bursts(run: dict[str, Any], log: dict[str, Any]) -> None:
    """By the server's log: no request of a burst arrives before the burst is due."""
    rate, t0 = run["timeline"].rate_rps, run["timeline"].intervals[0].start_mono_ns
    arrivals = log["arrivals"]
    by_id = {r.request_id: r for r in run["records"]}
    in_order = [by_id[f"P04-{k}"] for k in range(len(arrivals))]
    digests = [row["prompt_digest"] for row in arrivals]
    assert len(digests) % 8 == 0 and len(digests) >= 16
    for k, (record, row) in enumerate(zip(in_order, arrivals, strict=True)):
        due = t0 + (k // 8) * 8 * S / rate
        assert abs(record.scheduled_mono_ns - due) <= 1 + 1e-6 * k
        assert row["first_byte_ns"] >= record.scheduled_mono_ns
        assert record.admitted_mono_ns >= record.scheduled_mono_ns


def check_redaction(folder: Path, done: subprocess.CompletedProcess[str], *secrets: str) -> None:
    """No prompt, no generated text, no such field, anywhere in the run directory or the output."""
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    for text in [*texts, done.stdout, done.stderr]:
        for secret in secrets:
            assert secret not in text
        for field in ('"prompt"', '"messages"', '"content"', '"text"', '"prompt_token_ids"'):
            assert field not in text


def test_running_out_of_requests_ends_the_run_as_invalid(
    mock: Callable[..., Any],
    manifest: Callable[..., Path],
    run_flags: Callable[..., list[str]],
    client: Client,
    patient: Patient,
) -> None:
    def check(scale: float, folder: Path) -> None:
        server = mock("--step-ms", f"{500 * scale:g}")
        flags = run_flags(manifest(100), server.url, folder / "client", time_scale=scale)
        assert client(flags).returncode == 1
        run = read_run(folder / "client")
        assert not run["result"].accepted
        assert any("ran out" in reason for reason in run["result"].reasons)
        log = server.log()
        assert len(log["arrivals"]) == 100
        assert len({row["prompt_digest"] for row in log["arrivals"]}) == 100
        assert run["timeline"].state == "failed"

    patient(check)


def test_a_burn_in_run(
    tmp_path: Path,
    mock: Callable[..., Any],
    manifest: Callable[..., Path],
    run_flags: Callable[..., list[str]],
    client: Client,
) -> None:
    server = mock("--step-ms", "5")
    folder = tmp_path / "run" / "client"
    flags = run_flags(
        manifest(),
        server.url,
        folder,
        role="burnin",
        num_clean_segments=None,
        num_profile_windows=None,
        profile_after_clean=None,
        clean_segment_seconds=None,
    )
    done = client(flags)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert result["role"] == "burnin" and result["completed_rps"] is None
    assert result["metrics"]["pooled"] is False
    kinds = [i["kind"] for i in json.loads((folder / "timeline.json").read_text())["intervals"]]
    assert kinds == ["warmup", "drain"]
