"""Commands against tables, the stop list, the small example, and what `show` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from opprof.cli import main
from opprof.protocol import Protocol
from opprof.protocol.check import check_protocol
from opprof.protocol.design import cells, design
from opprof.protocol.freeze import Approvals, freeze_protocol, require_frozen
from opprof.protocol.load import packaged_path, parse_protocol

ROOT = Path(__file__).parents[2]
TEXT = packaged_path().read_text()
SMALL = (ROOT / "protocols" / "small.toml").read_text()


def edited(old: str, new: str, text: str = TEXT) -> Protocol:
    assert old in text, f"{old!r} is not in the protocol"
    return parse_protocol(text.replace(old, new, 1).encode(), source="edited.toml")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            '"warmup_iterations":2',
            '"warmup_iterations":3',
            "server.command: the profiler's warmup_iterations is 3, [layer2] has 2",
        ),
        (
            "active_iterations = 8",
            "active_iterations = 9",
            "server.command: the profiler's active_iterations is 8, [layer2] has 9",
        ),
        (
            '"wait_iterations":0,',
            "",
            "server.command: the profiler's wait_iterations is None, [layer2] has 0",
        ),
        (
            'CUDA_VISIBLE_DEVICES = "${GPU_IDS}"',
            'CUDA_VISIBLE_DEVICES = "0"',
            "server.environment.CUDA_VISIBLE_DEVICES: '0', a campaign sets '${GPU_IDS}'",
        ),
        ('"profiler":"torch"', '"profiler":"cuda"', "needs the torch profiler"),
        ('{"profiler"', '{ "profiler"', "--profiler-config is no JSON without blanks"),
        ("--profiler-config ", "--profile ", "profile windows need a --profiler-config"),
        (
            "--enable-prefix-caching",
            "--no-enable-prefix-caching",
            "server.command: sets --no-enable-prefix-caching, server.prefix_caching is true",
        ),
        (
            "--tensor-parallel-size ${TP}",
            "--tensor-parallel-size 1",
            "a configuration has several ranks, but ${TP} is not used",
        ),
        (
            'flags = ["--max-num-seqs", "64"]',
            'flags = ["--max-num-seqs", "65"]',
            "configs.C10.flags: --max-num-seqs 65, but max_num_seqs is 64",
        ),
        (
            'flags = ["--max-num-seqs", "64"]',
            'flags = ["--enable-prefix-caching"]',
            "configs.C10.flags: --enable-prefix-caching stands in server.command as well",
        ),
        (
            'VLLM_OPPROF_DIR = "${RUN_DIR}/opprof"',
            'VLLM_OPPROF_DIR = "${RUNS}/opprof"',
            "server.environment.VLLM_OPPROF_DIR: ${RUNS} is neither declared",
        ),
        (
            "materialize --id P01",
            "materialize --id P02",
            "patterns.P01.manifest: --id P02, the protocol has P01",
        ),
        (
            "workload = 20260712",
            "workload = 20260711",
            "patterns.P01.manifest: --workload-seed 20260712, the protocol has 20260711",
        ),
        (
            'input = "uniform:128:512"',
            'input = "uniform:128:511"',
            "patterns.P01.input: uniform:128:511, its manifest's command makes uniform:128:512",
        ),
        (
            "--input-uniform 4096:8192 ",
            "",
            "patterns.P03.input: uniform:4096:8192, its manifest's command makes uniform:?",
        ),
        (
            'prefix = "high"',
            'prefix = "none"',
            "patterns.P08.prefix: none, its manifest's command makes high",
        ),
        (
            "--suffix-fixed 256",
            "--suffix-fixed 128",
            "patterns.P08.input: prefix-pool:8:1024+256, its manifest's command makes "
            "prefix-pool:8:1024+128",
        ),
        (
            '"uniform:4096:8192":0.5}',
            '"uniform:4096:8192":0.4,"fixed:9":0.1}',
            "patterns.P05.input: mixture:uniform:128:512=0.5,uniform:4096:8192=0.5, its manifest's "
            "command makes mixture:uniform:128:512=0.5,uniform:4096:8192=0.4,fixed:9=0.1",
        ),
        (
            "--output-cap 256",
            "--output-cap 128",
            "patterns.P10.output: trace-capped:256, its manifest's command makes trace-capped:128",
        ),
        (
            "num_requests = 32768",
            "num_requests = 9",
            "manifest: --num-requests 32768, the",
        ),
        ("materialize --id P01", "materialise --id P01", "P01.manifest: is no materialize or"),
        ('\'{"uniform:128:512":0.5', '{"uniform:128:512":0.5', "manifest: No closing quotation"),
        ("[[stops]]\nnumber = 10\n", "[[stops]]\nnumber = 9\n", "does not rise from condition"),
    ],
)
def test_a_command_that_says_something_else_than_its_table(
    old: str, new: str, problem: str
) -> None:
    assert any(problem in text for text in check_protocol(edited(old, new).file))


def test_without_profile_windows_no_profiler_is_needed() -> None:
    command = SMALL.index("--profiler-config"), SMALL.index("}'''", SMALL.index("--profiler"))
    text = SMALL[: command[0]] + SMALL[command[1] + 1 :]
    assert check_protocol(parse_protocol(text.encode(), source="x.toml").file) == []


def test_phase3_says_all_ten_stops_and_the_reruns() -> None:
    file = parse_protocol(TEXT.encode(), source="x.toml").file
    assert [row.number for row in file.stops] == list(range(1, 11))
    assert [row.number for row in file.stops if row.superseded] == [3, 9]
    assert file.reruns is not None
    assert (file.reruns.infrastructure_max, file.reruns.unrepresentative_max) == (1, 1)
    assert file.colocation is not None and file.colocation.profile_windows == 1
    assert file.server.shutdown_timeout_s is not None and file.server.shutdown_timeout_s > 0
    budget = file.budget
    assert (budget.gpu_hours_max, budget.gpu_hours_used) == (16.0, 3.964)
    assert budget.parallel_wall_hours_estimate == (1.5, 2.0)
    assert (budget.public_bytes_estimate, budget.public_bytes_max) == (4 * 10**9, 8 * 10**9)
    assert (budget.private_bytes_max, budget.free_space_bytes_min) == (2 * 10**9, 10**11)


def test_the_cost_is_the_sum_of_the_specifications_numbers() -> None:
    numbers = design(parse_protocol(TEXT.encode(), source="x.toml").file)
    run, burnin = 70 + 60 + 240 + 2 * (24 + 30) + 10, 70 + 60 + 10
    assert (numbers.primary_run_s, numbers.burnin_run_s) == (run, burnin) == (488, 140)
    assert numbers.wall_hours == pytest.approx((48 * run + 4 * 380 + 5 * burnin) / 3600)
    assert numbers.gpu_hours == pytest.approx((50 * run + 4 * 380 + 6 * burnin) / 3600)


@pytest.mark.parametrize("frozen", [False, True])
def test_show_says_the_specifications_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frozen: bool
) -> None:
    path, draft = tmp_path / "p.toml", parse_protocol(TEXT.encode(), source="x.toml")
    data = freeze_protocol(draft, Approvals(), date="2026-11-30") if frozen else draft.data
    path.write_bytes(data)
    _run("show", str(path))
    text = capsys.readouterr().out
    for line in (
        "patterns            11",
        "configurations      5",
        "cells               24 (23 on one GPU)",
        "48 + 4 confirmations = 52, and 5 burn-ins",
        "96, 768 active iterations, 100 trace files",
        "240 a run (3 x 80)",
        "one primary run     488 s",
        "one confirmation    380 s; one burn-in 140 s",
        "about 7.1 h",
        "8 at a time about 1.5 to 2 h",
        "about 7.5 GPU-hours",
        "16 GPU-hours, 3.964 used before",
        "public at most 8 GB (4 GB expected), private 2 GB, free at least 100 GB",
        "120 s P01 P02 P03 P05 P09; 240 s P04 P06 P07 P08 P11; 600 s P10",
        "above 20% or clean-window failures above 5%",
        "  10. A data-sanity red flag appears.",
        "supersedes 8.0 H20-hour hard stop",
    ):
        assert line in text
    assert draft.sha256 in text
    assert ("frozen    2026-11-30, from draft" in text) is frozen


def _run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["protocol", *arguments])
    assert ended.value.code == 0


def test_the_small_example_is_sound_and_can_be_frozen() -> None:
    draft = parse_protocol(SMALL.encode(), source="small.toml")
    assert check_protocol(draft.file) == []
    assert sorted(cells(draft.file)) == [
        ("burst", "narrow"),
        ("burst", "wide"),
        ("chat", "narrow"),
        ("chat", "wide"),
    ]
    data = freeze_protocol(draft, Approvals(rest="2026-11-30", by="A. User"), date="2026-11-30")
    require_frozen(parse_protocol(data, source="frozen.toml"))
