"""Arguments that have no meaning are refused with one message and exit code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opprof.cli.run import run
from opprof.client.endpoint import RequestEncoder, parse_endpoint
from opprof.client.options import build_plan, deviations
from opprof.client.ports import Prepared, RequestSpec
from opprof.client.saturation import DerivedRate
from opprof.errors import InputError, OpprofError
from opprof.protocol import load_protocol

Flags = Callable[..., list[str]]
SPEC_TIMES = """
    --warmup-seconds 60 --clean-segment-seconds 80 --num-clean-segments 3 --profile-after-clean
    --num-profile-windows 2 --profile-warmup-iterations 2 --profile-active-iterations 8
    --recovery-seconds 30 --drain-timeout-seconds 120 --workload-seed 20260712
"""


def refusal(flags: list[str]) -> OpprofError:
    """Run the command and return the error that it ends with."""
    outcome = CliRunner().invoke(run, flags[1:])
    assert isinstance(outcome.exception, OpprofError), outcome
    assert outcome.exception.exit_code == 2
    return outcome.exception


def options_of(flags: list[str]) -> Any:
    """Parse flags into the options that a run gets, without running."""
    from opprof.cli.run import _options

    context = run.make_context("run", flags)
    values = dict(context.params)
    protocol = load_protocol(values.pop("protocol_source"))
    assert protocol is not None
    return _options(values, protocol), protocol


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"request_rate": "5"}, "--request-rate 5 is refused"),
        ({"request_rate": "5", "load_point": "moderate"}, "--request-rate 5 is refused"),
        ({"request_rate": "inf", "load_point": "moderate"}, "is the saturation load point"),
        ({"rate_fraction": 0.6}, "saturation has no rate"),
        ({"saturation_result": "x.json"}, "saturation has no rate"),
        ({"load_point": "moderate"}, "moderate needs --saturation-result"),
        (
            {"load_point": "moderate", "saturation_result": "x", "rate_fraction": 1.5},
            "must lie in (0, 1]",
        ),
        ({"max_concurrency": 0}, "--max-concurrency 0 must be at least 1"),
        ({"temperature": 0.7}, "--temperature must be 0"),
        ({"clean_segment_seconds": 0}, "--clean-segment-seconds 0 must be a positive number"),
        ({"warmup_seconds": -1}, "--warmup-seconds -1 must be a positive number"),
        ({"warmup_seconds": "nan"}, "--warmup-seconds nan"),
        ({"num_clean_segments": 0}, "--num-clean-segments 0 must be at least 1"),
        ({"profile_after_clean": False}, "add --profile-after-clean"),
        ({"role": "confirmation"}, "a confirmation has no profile windows"),
        ({"role": "burnin"}, "a burn-in has neither"),
        ({"time_scale": 0}, "--time-scale 0 must be a positive number"),
        ({"base_url": "localhost:8000"}, "--base-url must look like"),
        ({"base_url": "http://user:pw@h:1"}, "--base-url must not hold a secret"),
        ({"base_url": "http://[::1"}, "--base-url: host or port cannot be read"),
        ({"base_url": "http://h:0"}, "host, port or path cannot be used"),
        ({"base_url": "http://h:70000"}, "--base-url: host or port cannot be read"),
        ({"base_url": "http://h/a b"}, "host, port or path cannot be used"),
        ({"base_url": "http://a..b"}, "host, port or path cannot be used"),
        ({"base_url": "http://h\ufe47"}, "host, port or path cannot be used"),
        ({"base_url": "http://" + "a" * 70}, "host, port or path cannot be used"),
        ({"protocol": "none"}, "a run needs a protocol"),
        ({"max_concurrency": 10**9}, "--max-concurrency 1000000000 is over 64512"),
        ({"num_profile_windows": 10**9}, "--num-profile-windows 1000000000 is over 65536"),
        ({"warmup_seconds": 1e300}, "--warmup-seconds 1e+300 is over 1e+07"),
        ({"time_scale": 1e-300}, "a clean segment would last less than a nanosecond"),
        (
            {"load_point": "moderate", "saturation_result": "x", "rate_fraction": "nan"},
            "--rate-fraction nan must lie in (0, 1]",
        ),
    ],
)
def test_bad_arguments(
    changes: dict[str, Any], text: str, tmp_path: Path, manifest: Any, run_flags: Flags
) -> None:
    folder = tmp_path / "run" / "client"
    flags = run_flags(manifest(10), "http://127.0.0.1:9", folder, **changes)
    error = refusal(flags)
    assert text in str(error) and "pw" not in str(error)
    assert not folder.exists()


@pytest.mark.parametrize(
    "header", ["no colon", "Bad Name: x", "Host: x", "A: \x01", "Content-Length: 1"]
)
def test_headers_that_cannot_be_sent_are_refused_without_their_value(header: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_endpoint("http://h:1", [header + "secret"], {})
    assert "secret" not in str(caught.value)


def test_secrets_are_not_in_an_endpoints_repr() -> None:
    endpoint = parse_endpoint("https://h/v1", ["X-A: secret"], {"OPPROF_API_KEY": "secret"})
    assert "secret" not in repr(endpoint) and "secret" not in endpoint.url
    assert (endpoint.port, endpoint.tls, endpoint.prefix) == (443, True, "")
    assert b"Authorization: Bearer secret\r\n" in endpoint.head("GET", "/x")


def test_prompts_are_not_in_the_repr_of_what_a_log_could_show() -> None:
    spec = RequestSpec("r", b'"secret"', 1, 2)
    wire = RequestEncoder(parse_endpoint("http://h:1", [], {}), "m").encode(spec)
    assert b"secret" in wire
    assert "secret" not in repr(spec) + repr(Prepared(spec, wire))


def saturation(path: Path, **changes: Any) -> Path:
    value = {
        "schema": 1,
        "accepted": True,
        "reasons": [],
        "completed_rps": 8.0,
        "offered_rps": 8.0,
        "manifest_sha256": "0" * 64,
        "pattern": "P01",
        "config": "C00",
        "load_point": "saturation",
        "role": "primary",
        "drain_quarantined": False,
        "metrics": {},
        **changes,
    }
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"accepted": False, "reasons": ["warmup: cold"]}, "was not accepted: warmup: cold"),
        ({"manifest_sha256": "1" * 64}, "is of another manifest"),
        ({"pattern": "P02"}, "is of pattern P02, not P01"),
        ({"config": "C11"}, "is of config C11, not C00"),
        ({"load_point": "moderate"}, "is a moderate result"),
        ({"role": "burnin"}, "is a burnin run; primary is needed"),
        ({"completed_rps": None}, "no positive completed_rps"),
        ({"completed_rps": 0.0}, "no positive completed_rps"),
        ({"completed_rps": 1e-300}, "is no rate that a run measures"),
        ({"completed_rps": 1e308}, "is no rate that a run measures"),
        ({"surprise": 1}, "is no client result"),
    ],
)
def test_saturation_results_that_give_no_rate(
    changes: dict[str, Any], text: str, tmp_path: Path, manifest: Any, run_flags: Flags
) -> None:
    import hashlib

    requests = manifest(10)
    sha256 = hashlib.sha256(requests.read_bytes()).hexdigest()
    result = saturation(tmp_path / "s.json", **{"manifest_sha256": sha256, **changes})
    flags = run_flags(
        requests,
        "http://127.0.0.1:9",
        tmp_path / "run" / "client",
        load_point="moderate",
        saturation_result=result,
        rate_fraction=0.6,
    )
    error = refusal(flags)
    assert text in str(error) and str(result) in str(error)


def test_a_missing_or_empty_manifest(tmp_path: Path, run_flags: Flags) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for path in (tmp_path / "none.jsonl", empty):
        assert str(path) in str(refusal(run_flags(path, "http://127.0.0.1:9", tmp_path / "r")))


@pytest.mark.parametrize("name", ["result.json", "requests.jsonl", "timeline.json"])
def test_a_folder_with_an_earlier_run_is_left_alone(
    name: str, tmp_path: Path, manifest: Any, run_flags: Flags
) -> None:
    folder = tmp_path / "run" / "client"
    folder.mkdir(parents=True)
    (folder / name).write_text("old")
    error = refusal(run_flags(manifest(10), "http://127.0.0.1:9", folder))
    assert error.code == "E-STATE" and (folder / name).read_text() == "old"


def spec_flags(*more: str) -> list[str]:
    common = "--manifest m --base-url http://127.0.0.1:8000 --model /m --max-concurrency 256"
    return [
        *common.split(),
        "--ignore-eos",
        "--temperature",
        "0",
        "--result-dir",
        "r/client",
        *SPEC_TIMES.split(),
        *more,
    ]


def test_the_specifications_saturation_command_is_the_protocols_run() -> None:
    options, protocol = options_of(
        spec_flags("--load-point", "saturation", "--request-rate", "inf")
    )
    assert deviations(options, protocol) == {}
    plan = build_plan(options, pattern="P08", arrival="burst:8", rate=None, protocol=protocol)
    assert (plan.warmup_ns, plan.segment_ns, plan.segments) == (60 * 10**9, 80 * 10**9, 3)
    assert plan.windows.steps == 11 and plan.windows.count == 2
    assert plan.load.rate_rps is None and plan.load.max_concurrency == 256


def test_the_specifications_moderate_command_is_the_protocols_run() -> None:
    more = "--load-point moderate --saturation-result s.json --rate-fraction 0.60"
    options, protocol = options_of(spec_flags(*more.split()))
    assert deviations(options, protocol) == {}
    rate = DerivedRate(4.8, 0.6, 8.0, "0" * 64)
    plan = build_plan(options, pattern="P08", arrival="burst:8", rate=rate, protocol=protocol)
    assert (plan.load.rate_rps, plan.load.burst) == (4.8, 8)


def test_a_burst_that_does_not_fit_under_the_cap_is_refused() -> None:
    options, protocol = options_of(
        [*spec_flags("--load-point", "moderate"), "--max-concurrency", "7"]
    )
    rate = DerivedRate(4.8, 0.6, 8.0, "0" * 64)
    with pytest.raises(InputError, match="bursts of 8 cannot leave together"):
        build_plan(options, pattern="P08", arrival="burst:8", rate=rate, protocol=protocol)


@pytest.mark.parametrize(
    ("pattern", "budget"),
    [
        ("P01", 120),
        ("P02", 120),
        ("P04", 240),
        ("P06", 240),
        ("P07", 240),
        ("P08", 240),
        ("P10", 600),
        ("P11", 240),
        ("custom", 77),
    ],
)
def test_the_protocols_drain_budget_wins_over_the_flag(pattern: str, budget: int) -> None:
    options, protocol = options_of(
        [*spec_flags("--load-point", "saturation"), "--drain-timeout-seconds", "77"]
    )
    plan = build_plan(options, pattern=pattern, arrival="steady", rate=None, protocol=protocol)
    assert plan.drain.budget_ns == budget * 10**9
    assert plan.drain.requested_ns == 77 * 10**9


def test_deviations_from_the_protocol_are_named() -> None:
    flags = spec_flags("--load-point", "saturation", "--time-scale", "0.1")
    options, protocol = options_of([*flags, "--warmup-seconds", "10"])
    assert deviations(options, protocol) == {"warmup_s": [60, 10], "time_scale": [1.0, 0.1]}
    plan = build_plan(options, pattern="P01", arrival="steady", rate=None, protocol=protocol)
    assert (plan.warmup_ns, plan.segment_ns) == (10**9, 8 * 10**9)
