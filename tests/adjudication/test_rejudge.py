"""The specification's two adjudications on made runs: P10's drain (A-P3-5) and warm-up (A-P3-6)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import layer1_samples as layer1
from opprof.adjudication import rejudge, write_adjudication
from opprof.analysis.run import analyze_run
from opprof.artifacts.adjudication import Adjudication
from opprof.artifacts.run import Interval, LengthSummary, ManifestSummary, RequestRecord, Role
from opprof.cli import main
from opprof.client.facts import Health, RunFacts
from opprof.client.output import OutputFolder
from opprof.client.plan import DrainBudget, Load, RunPlan, Windows
from opprof.client.results import Binding, artefacts_of
from opprof.client.saturation import derive_rate
from opprof.client.steps import read_stream
from opprof.client.timeline import Ending
from opprof.errors import InputError, SchemaError, StateConflict
from opprof.protocol import Protocol
from opprof.protocol.amend import Request, amend_protocol
from opprof.protocol.design import design
from opprof.protocol.freeze import Approvals, Installation, freeze_protocol
from opprof.protocol.load import packaged_path, parse_protocol
from opprof.rehearsal.campaign import Cell, RunReport, rehearse_cell
from opprof.rehearsal.truth import NOTHING

EXAMPLES = Path(__file__).parents[2] / "examples" / "rehearsal"
S = 1_000_000_000
T0 = 1000 * S
DRAIN_NS = 288_619_107_924
"""The drain of the preserved P10/C01 saturation run."""
STEP_NS = S // 10
HASH = "a" * 64
DATE = "2026-11-30"
HERE = Installation("1", "1" * 64, "2" * 64, "3" * 64, "4" * 64, {"v1": "5" * 64, "v2": "6" * 64})
Rates = tuple[int, int, int]


def frozen(**changes: str) -> Protocol:
    """Phase 3 as it was before A-P3-5 (drain quarantine) and A-P3-6, frozen."""
    text = packaged_path().read_text()
    old = {
        "drain_budget_s = 600   # A-P3-5, drain quarantine": "drain_budget_s = 240",
        'warmup_rule = "completions_or_stabilized"   # A-P3-6': 'warmup_rule = "completions"',
    }
    for before, after in old.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    draft = parse_protocol(text.encode(), source="draft.toml")
    data = freeze_protocol(draft, Approvals(), date=DATE, here=HERE)
    return parse_protocol(data, source="frozen.toml")


def amended(base: Protocol, title: str, *pairs: tuple[str, str]) -> Protocol:
    request = Request("A-X-1", title, "kept data", DATE, pairs, rejudge=True)
    return parse_protocol(amend_protocol(base, request, here=HERE), source="amended.toml")


@pytest.fixture(scope="module")
def old() -> Protocol:
    return frozen()


@pytest.fixture(scope="module")
def longer_drain(old: Protocol) -> Protocol:
    return amended(old, "drain quarantine", ("patterns.P10.drain_budget_s", "600"))


@pytest.fixture(scope="module")
def stabilized(old: Protocol) -> Protocol:
    return amended(old, "warm-up", ("patterns.P10.warmup_rule", "completions_or_stabilized"))


def record(k: int, admitted: int, took: int) -> RequestRecord:
    return RequestRecord(
        k, admitted, admitted, admitted + took // 2, admitted + took, 100, 4, 4, 200
    )


def records(warm: int) -> list[RequestRecord]:
    """``warm`` completions in the warm-up, then one a second to the end of the clean interval."""
    early = [record(k, T0, (k + 1) * S) for k in range(warm)]
    return early + [record(warm + k, T0 + 59 * S + k * S, 2 * S) for k in range(200)]


def steps(end_ns: int, rates: Rates) -> list[dict[str, Any]]:
    """A step each 100 ms; the last three 5-second bins of the warm-up have the given tokens/s."""
    found = []
    for index, at in enumerate(range(T0, end_ns, STEP_NS)):
        second = (at - T0) // S
        rate = rates[min((second - 45) // 5, 2)] if 45 <= second < 60 else rates[2]
        tokens = rate // 10
        graph = {"mode": "NONE", "hit": False, "unpadded_tokens": tokens, "bucket_tokens": 0}
        found.append(
            layer1.step(
                index,
                submit_mono_ns=at,
                complete_mono_ns=at + STEP_NS,
                scheduled_requests=5,
                prefill_requests=1,
                prefill_tokens=tokens - 4,
                prefill_chunks=[tokens - 4],
                graph=graph,
            )
        )
    return found


def make_run(
    root: Path,
    protocol: Protocol,
    *,
    role: Role = "confirmation",
    warm: int = 40,
    rates: Rates = (400, 400, 400),
    drain_ns: int = S,
) -> Path:
    """Write what the client and the recorder leave of a P10/C01 saturation run.

    As a confirmation it has no profile windows; those are judged by rehearsed runs below.
    """
    end = T0 + 300 * S + drain_ns
    (root / "opprof").mkdir(parents=True)
    lines = steps(end, rates)
    config = {"max_num_batched_tokens": 2048}
    whole = [layer1.header(config=config), *lines, layer1.footer(len(lines))]
    stream_file = layer1.write_stream(root / "opprof", whole, layer1.sidecar(len(lines)))
    row = protocol.pattern("P10")
    assert row is not None
    budget_ns = round(row.drain_budget_s * S)
    intervals = [Interval("warmup", 0, T0, T0 + 60 * S)]
    for k in range(3):
        start = T0 + (60 + 80 * k) * S
        intervals.append(Interval("clean", k, start, start + 80 * S))
    intervals.append(Interval("drain", 0, T0 + 300 * S, end))
    facts = RunFacts(
        plan=RunPlan(
            pattern="P10",
            config="C01",
            load_point="saturation",
            role=role,
            load=Load(256, None, 1),
            warmup_ns=60 * S,
            segment_ns=80 * S,
            segments=3,
            windows=Windows(0, 11, 30 * S, 180 * S),
            drain=DrainBudget(budget_ns, 120 * S, 1800 * S),
            time_scale=1.0,
        ),
        t0_ns=T0,
        intervals=intervals,
        windows=[],
        ending=Ending(drain_over_budget=drain_ns > budget_ns, end_ns=end),
        records=records(warm),
        failures=[],
        unsent=0,
        finish_reasons={"length": 240},
        outstanding_max=2,
        stream=read_stream(stream_file),
        health=Health(10.0, 240.0, [0.5] * 99 + [3.0]),
        window_source=None,
        profiler_events=[],
    )
    binding = Binding(
        protocol.file.gates, row.warmup_rule, "phase3", protocol.sha256, HASH, "1", "b" * 64, {}
    )
    artefacts = artefacts_of(facts, "CLOCK_MONOTONIC", binding)
    output = OutputFolder(root / "client")
    lengths = LengthSummary(n=999, min=100, median=100, p95=100, max=100, sum=99900, distinct=1)
    outputs = LengthSummary(n=999, min=4, median=4, p95=4, max=4, sum=3996, distinct=1)
    output.create(
        ManifestSummary(1, HASH, "P10", "steady", "natural", lengths, outputs, generator={})
    )
    encoded = b"".join(msgspec.json.encode(item) + b"\n" for item in facts.records)
    output.requests.write_bytes(encoded)
    output.write_all(artefacts, facts, binding)
    return root


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def gate(found: Adjudication, name: str) -> Any:
    return next(g for g in found.after.client_gates if g.name == name)


def test_the_preserved_drain_is_judged_at_240_and_then_at_600_seconds(
    tmp_path: Path, old: Protocol, longer_drain: Protocol
) -> None:
    root = make_run(tmp_path / "run", old, drain_ns=DRAIN_NS)
    before = digests(root)
    found = rejudge(root, old, longer_drain)
    assert digests(root) == before
    assert found.reproduced and found.sanity.red_flags == []
    assert found.before.drain_quarantined and not found.after.drain_quarantined
    assert gate(found, "drain").numbers["drain_s"] == pytest.approx(288.619107924, abs=1e-9)
    assert gate(found, "drain").numbers["budget_s"] == 600
    assert [(c.source, c.name, c.before, c.after) for c in found.changed] == [
        ("analysis", "drain_quarantine", "fail", "pass")
    ]
    assert found.run.drain_quarantined is False
    assert found.result.drain_quarantined is False
    assert [row.title for row in found.amendments] == ["drain quarantine"]
    assert (found.before.protocol_sha256, found.after.protocol_sha256) == (
        old.sha256,
        longer_drain.sha256,
    )
    # A quarantined run stays usable under both.
    assert found.before.accepted and found.after.accepted


def test_a_later_analysis_under_the_amended_protocol_agrees(
    tmp_path: Path, old: Protocol, longer_drain: Protocol
) -> None:
    root = make_run(tmp_path / "run", old, drain_ns=DRAIN_NS)
    assert analyze_run(root, old).layer1.run.drain_quarantined
    assert analyze_run(root, longer_drain).layer1.run.drain_quarantined is False


def test_a_drain_over_the_longer_budget_stays_quarantined(
    tmp_path: Path, old: Protocol, longer_drain: Protocol
) -> None:
    root = make_run(tmp_path / "run", old, drain_ns=601 * S)
    found = rejudge(root, old, longer_drain)
    assert found.after.drain_quarantined and found.changed == []


@pytest.mark.parametrize("completions", [16, 31])
def test_a_stabilised_warm_up_is_accepted_by_the_second_branch(
    tmp_path: Path, old: Protocol, stabilized: Protocol, completions: int
) -> None:
    root = make_run(tmp_path / "run", old, warm=completions, rates=(400, 420, 420))
    found = rejudge(root, old, stabilized)
    assert found.reproduced
    assert not found.before.accepted and found.after.accepted
    assert not found.stored_accepted
    assert found.stored_reasons == [f"warmup: {completions} completions, 32 are needed"]
    warmup = gate(found, "warmup").numbers
    assert warmup["completions"] == completions
    assert warmup["bin_steps"] == [50, 50, 50]
    assert warmup["bin_tokens_per_s"] == [400, 420, 420]
    assert warmup["mean_tokens_per_s"] == pytest.approx(1240 / 3)
    assert warmup["slope_tokens_per_s2"] == pytest.approx(2.0)
    assert warmup["normalized_drift"] == pytest.approx(2 * 15 / (1240 / 3))
    assert warmup["branch"] == "stabilized"
    assert {(c.source, c.name) for c in found.changed} == {
        ("client", "warmup"),
        ("analysis", "warmup_completions"),
    }
    # The clean measurement is the stored one.
    assert found.result.accepted and found.result.reasons == []
    assert found.result.completed_rps == pytest.approx(200 / 240, abs=0.01)
    assert found.result.metrics["measured_under_protocol_sha256"] == old.sha256


@pytest.mark.parametrize(
    ("completions", "rates", "reason"),
    [
        (20, (400, 420, 460), "drift 0.2109 is over 0.1"),
        (15, (400, 400, 400), "the stabilization branch needs 16"),
        (20, (400, 400, 100), "drift 1.5000 is over 0.1"),
    ],
)
def test_a_warm_up_that_is_not_stable_stays_refused(
    tmp_path: Path,
    old: Protocol,
    stabilized: Protocol,
    completions: int,
    rates: Rates,
    reason: str,
) -> None:
    root = make_run(tmp_path / "run", old, warm=completions, rates=rates)
    found = rejudge(root, old, stabilized)
    assert not found.before.accepted and not found.after.accepted
    assert not found.result.accepted
    assert any(reason in text for text in found.after.reasons)


def test_the_moderate_rate_comes_from_the_later_result(
    tmp_path: Path, old: Protocol, stabilized: Protocol
) -> None:
    root = make_run(tmp_path / "run", old, role="primary", warm=20)
    later, _ = write_adjudication(rejudge(root, old, stabilized), tmp_path / "out")

    def rate(path: Path) -> float:
        where = {"pattern": "P10", "config": "C01", "manifest_sha256": HASH}
        return derive_rate(path, 0.6, role="primary", **where).rate_rps

    with pytest.raises(InputError, match="the saturation run was not accepted: warmup"):
        rate(root / "client" / "result.json")
    assert rate(later) == pytest.approx(0.6 * 200 / 240, abs=0.01)


def test_a_run_without_its_profile_windows_is_not_accepted(
    tmp_path: Path, old: Protocol, longer_drain: Protocol
) -> None:
    """A-P3-5: only a run whose Layer-2 artefacts are otherwise valid stays usable."""
    root = make_run(tmp_path / "run", old, role="primary", drain_ns=DRAIN_NS)
    found = rejudge(root, old, longer_drain)
    assert not found.after.drain_quarantined and not found.after.accepted
    assert found.after.reasons == [
        "analysis: profile_windows: 0 windows, 2 expected of a primary run"
    ]


@pytest.mark.parametrize("damage", ["", "trace"])
def test_profile_windows_are_judged_again(tmp_path: Path, damage: str) -> None:
    """A bound that every window misses, opened later; and a trace that is lost in between."""
    first = rehearsed_protocol()
    (report,) = rehearse_cell(
        Cell(
            first.data,
            "first.toml",
            "P01",
            "C00",
            ("saturation",),
            "primary",
            NOTHING,
            3,
            tmp_path / "runs",
            None,
        )
    )
    assert isinstance(report, RunReport)
    root = report.folder
    if damage:
        next((root / "traces").glob("window0-*")).unlink()
    second = amended(first, "windows", ("representativeness.smd_max", "1000.0"))
    found = rejudge(root, first, second)
    assert found.reproduced and found.before.client_gates
    assert any("representativeness" in reason for reason in found.before.reasons)
    changed = {(c.source, c.name, c.before, c.after) for c in found.changed}
    assert ("analysis", "representativeness", "fail", "pass") in changed
    if damage:
        assert not found.after.accepted
        assert any("trace_missing" in reason for reason in found.after.reasons)
    else:
        assert found.after.reasons == []
        assert found.after.accepted


def rehearsed_protocol() -> Protocol:
    """One small pattern in seconds of virtual time, whose windows are never representative."""
    text = (EXAMPLES / "twins.toml").read_text()
    values = {
        "warmup_s": "4",
        "clean_segment_s": "4",
        "recovery_s": "4",
        "recovery_rolling_s": "4",
        "warmup_completions_min": "1",
        "smd_max": "0.0",
        "recovery_tolerance": "1000.0",
        "null_draws": "10",
    }
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    counted = msgspec.to_builtins(design(parse_protocol(text.encode(), source="x").file))
    counted["gpu_hours_estimate"] = round(counted["gpu_hours"], 3)
    counted["wall_hours_estimate"] = round(counted["wall_hours"], 3)
    head, tail = text.split("[budget]")
    for key, number in counted.items():
        tail = re.sub(rf"(?m)^{key} = .*$", f"{key} = {number}", tail)
    draft = parse_protocol(f"{head}[budget]{tail}".encode(), source="draft.toml")
    data = freeze_protocol(draft, Approvals(), date=DATE, here=HERE)
    return parse_protocol(data, source="frozen.toml")


def test_numbers_that_only_the_client_saw_stay(tmp_path: Path, old: Protocol) -> None:
    root = make_run(tmp_path / "run", old)
    stricter = amended(old, "loop", ("gates.client_loop_delay_p99_max_ms", "0.25"))
    found = rejudge(root, old, stricter)
    delay = gate(found, "client_loop_delay")
    assert delay.outcome == "fail"
    assert (delay.numbers["max_ms"], delay.numbers["samples"]) == (3.0, 100)
    assert not found.after.accepted


def test_a_stored_verdict_that_the_data_do_not_give_is_no_acceptance(
    tmp_path: Path, old: Protocol, stabilized: Protocol
) -> None:
    root = make_run(tmp_path / "run", old)
    path = root / "client" / "requests.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[20:]))
    found = rejudge(root, old, stabilized)
    assert not found.reproduced
    changed, *rest = found.sanity.red_flags
    assert changed == "client/requests.jsonl is not what the run's client left"
    assert rest and all("not reproduced" in flag for flag in rest)
    assert not found.after.accepted and not found.result.accepted


def test_changed_data_that_give_the_stored_verdict_are_no_acceptance(
    tmp_path: Path, old: Protocol, stabilized: Protocol
) -> None:
    root = make_run(tmp_path / "run", old)
    assert rejudge(root, old, stabilized).reproduced
    path = root / "client" / "requests.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    found = rejudge(root, old, stabilized)
    assert found.sanity.red_flags == ["client/requests.jsonl is not what the run's client left"]
    assert not found.reproduced
    assert not found.after.accepted and not found.result.accepted


def test_only_the_protocol_that_the_run_was_measured_under_is_the_first(
    tmp_path: Path, old: Protocol, longer_drain: Protocol
) -> None:
    root = make_run(tmp_path / "run", old)
    with pytest.raises(InputError, match="was measured under protocol"):
        rejudge(root, longer_drain, old)


def test_broken_and_unfinished_runs_are_one_error(
    tmp_path: Path, old: Protocol, longer_drain: Protocol
) -> None:
    root = make_run(tmp_path / "run", old)
    requests = root / "client" / "requests.jsonl"
    whole = requests.read_bytes()
    requests.write_bytes(whole + b'{"request_id": 1\n')
    with pytest.raises(SchemaError) as caught:
        rejudge(root, old, longer_drain)
    assert caught.value.line == len(whole.splitlines()) + 1
    requests.write_bytes(whole)
    timeline = root / "client" / "timeline.json"
    timeline.write_bytes(timeline.read_bytes().replace(b'"complete"', b'"running"'))
    with pytest.raises(InputError, match="the run is running, not complete"):
        rejudge(root, old, longer_drain)
    (root / "client" / "sanity.json").unlink()
    timeline.write_bytes(timeline.read_bytes().replace(b'"running"', b'"complete"'))
    with pytest.raises(InputError, match=r"sanity\.json: file not found"):
        rejudge(root, old, longer_drain)


def test_both_verdicts_are_written_beside_the_run_and_never_replaced(
    tmp_path: Path, old: Protocol, longer_drain: Protocol, stabilized: Protocol
) -> None:
    root = make_run(tmp_path / "run", old, drain_ns=DRAIN_NS)
    found = rejudge(root, old, longer_drain)
    paths = write_adjudication(found, tmp_path / "out")
    assert [path.name for path in paths] == ["result.json", "adjudication.json"]
    assert msgspec.json.decode(paths[1].read_bytes(), type=Adjudication) == found
    assert write_adjudication(found, tmp_path / "out") == paths
    with pytest.raises(StateConflict, match="another adjudication"):
        write_adjudication(rejudge(root, old, stabilized), tmp_path / "out")


def test_the_command_writes_both_verdicts(
    tmp_path: Path,
    old: Protocol,
    stabilized: Protocol,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = make_run(tmp_path / "run", old, warm=20)
    first, second = tmp_path / "old.toml", tmp_path / "new.toml"
    first.write_bytes(old.data)
    second.write_bytes(stabilized.data)

    def run(out: Path, new: Path = second) -> int:
        words = ["protocol", "rejudge", str(root), "--old", str(first), "--new", str(new)]
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", str(out)])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    assert run(tmp_path / "out") == 0
    assert "client warmup (run): fail -> pass" in capsys.readouterr().out
    assert (tmp_path / "out" / "adjudication.json").is_file()
    draft, other, silent = (tmp_path / f"{name}.toml" for name in ("draft", "other", "silent"))
    draft.write_bytes(packaged_path().read_bytes())
    other.write_bytes(amended(stabilized, "more", ("patterns.P10.drain_budget_s", "600")).data)
    request = Request("A-X-1", "silent", "no", DATE, [("patterns.P10.drain_budget_s", "600")])
    silent.write_bytes(amend_protocol(old, request, here=HERE))
    for new, reason in (
        (first, f"does not amend {old.sha256[:12]}, the protocol of --old"),
        (draft, "is a draft"),
        (silent, "has no amendment with --rejudge"),
    ):
        assert run(tmp_path / "refused", new) == 2
        assert f"{new}: {reason}" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()
    assert run(tmp_path / "two", other) == 0
    assert run(root / "analysis") == 2
    assert "choose another --out" in capsys.readouterr().err
