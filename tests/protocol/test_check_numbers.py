"""Every number of a protocol has its domain, and numbers that exclude each other are named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from opprof.errors import SchemaError
from opprof.protocol.amend import Request, amend_protocol
from opprof.protocol.check import check_protocol
from opprof.protocol.freeze import Approvals, freeze_protocol
from opprof.protocol.load import packaged_path, parse_protocol
from opprof.protocol.model import ProtocolFile

TEXT = packaged_path().read_text()
FILE = parse_protocol(TEXT.encode(), source="phase3").file
Path = tuple[str | int, ...]
LIMITED_BY_NO_MORE_THAN_2_TO_THE_53 = {
    ("seeds", "workload"),
    ("seeds", "execution_order"),
    ("seeds", "statistics"),
    ("private_source", "bytes"),
    ("private_source", "input_tokens_sum"),
    ("private_source", "output_tokens_sum"),
    ("placement", "idle_gpu_bytes_max"),
    ("budget", "public_bytes_max"),
    ("budget", "private_bytes_max"),
    ("budget", "free_space_bytes_min"),
}


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of all numbers in a tree."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, held in items:
            yield from leaves(held, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


TREE = msgspec.to_builtins(FILE)
NUMBERS = [path for path in leaves(TREE) if path[0] != "amendments"]


def problems(path: Path, number: float) -> list[str]:
    """What is said of the protocol with another number at ``path``."""
    tree = msgspec.to_builtins(FILE)
    held: Any = tree
    for key in path[:-1]:
        held = held[key]
    held[path[-1]] = number
    try:
        return check_protocol(msgspec.convert(tree, ProtocolFile))
    except msgspec.ValidationError as error:
        return [str(error)]


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_every_number_has_a_domain(path: Path) -> None:
    assert problems(path, -1)
    if path not in LIMITED_BY_NO_MORE_THAN_2_TO_THE_53:
        # 10^13 is a whole number and a float.
        assert problems(path, 10**13)


@pytest.mark.parametrize(
    ("key", "literal", "reason"),
    [
        ("saturation_max_concurrency", "64513", "with a port and a file"),
        # Why nothing is larger is no reason against what is too small.
        ("saturation_max_concurrency", "0", r"`int` >= 1 - at `\$.load.\w+`$"),
        ("smd_max", "-1.0", r"`float` >= 0.0 - at `\$.representativeness.smd_max`$"),
        ("smd_max", "1e7", "differs a millionfold"),
        ("classifiable_min", "-0.1", "it is a share"),
        ("temperature", "0.7", "greedy decoding"),
        ("clean_segment_s", "0", "whole nanoseconds"),
        ("drain_watchdog_s", "1e9", "longer than a week"),
        ("flush_interval_s", "1e-12", "whole nanoseconds"),
        ("active_iterations", "65537", "no run has more"),
        ("warmup_completions_min", "1000000000", "a million"),
        ("permutations", "1000000000000", "machine's memory"),
        ("bootstrap_resamples", "1000000000000", "machine's memory"),
        ("infrastructure_max", "1000", "no accident"),
        ("bin_s", "1e-300", "whole nanoseconds"),
        ("moderate_rate_fraction", "1.0", "neither none nor all"),
        ("numa_nodes", "[0, 0, 0, 0, 0, 0, 0, 5000]", "1024 NUMA nodes"),
        ("R64", "1e9", r"`float` <= 1000000.0 - at `\$.h1b.thresholds"),
        *(
            (key, literal, "no finite number")
            for key in ("saturation_max_concurrency", "warmup_s", "workload")
            for literal in ("nan", "inf", "-inf")
        ),
    ],
)
def test_a_number_outside_has_file_line_key_and_reason(key: str, literal: str, reason: str) -> None:
    text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {literal}", TEXT, count=1)
    assert count == 1
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.startswith(f"{key} = "))
    with pytest.raises(SchemaError, match=reason) as caught:
        parse_protocol(text.encode(), source="odd.toml")
    assert caught.value.path == "odd.toml"
    assert key in str(caught.value) or key == "R64"
    if key != "R64":
        assert caught.value.line == line


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("statistics = 20260714", "statistics = 20260712", "seed of seeds.workload as well"),
        ("max_concurrency = 256", "max_concurrency = 40000", "has 32768 requests"),
        ("max_concurrency = 256", "max_concurrency = 4", r"P07.arrival: 8 at once|arrival: \d+ at"),
        ("[32, 64, 128]", "[32, 64, 40000]", "waste.raggedness_cohorts: 40000 of the 32768"),
        ("warmup_completions_min = 32", "warmup_completions_min = 40000", "has 32768 requests"),
        ("drain_watchdog_s = 1800", "drain_watchdog_s = 599", "P10.drain_budget_s: 600, but"),
        ("tensor_parallel_size = 2", "tensor_parallel_size = 9", "there are 8 GPUs"),
        ("max_num_batched_tokens = 8192", "max_num_batched_tokens = 9", "vLLM refuses"),
        ('"20-39", ', '"19-38", ', "'0-19' and '19-38' share CPU 19"),
        ("permutations = 100000", "permutations = 18", "no p-value of 18 permutations"),
        ("tokens_basis = 8", "tokens_basis = 2", "interference.tokens_basis: 2"),
        ("top_families = 3", "top_families = 10", "10 of 9 families"),
        ("[1.5, 2.0]", "[2.5, 2.0]", "from 2.5 to 2"),
        ("bytes_estimate = 4_000_000_000", "bytes_estimate = 9_000_000_000", "above public_bytes"),
        ("selected_rows = 4011", "selected_rows = 40110", "40110 of 32606 rows"),
        ("confirmation_s = 380", "confirmation_s = 379", "shutdown take 380 s"),
        ("confirmation_s = 380", "confirmation_s = 1", "budget.confirmation_s: 1, but start"),
        ("hours_max = 16.0", "hours_max = 4.0", "130 GPU seconds are left, .* less than 488"),
        ("hours_used = 3.964", "hours_used = 16.0", "gpu_hours_max: 16, of which 16 are used"),
        ("stabilized_completions_min = 16", "stabilized_completions_min = 33", "more than the 32"),
        ("block_s = 5.0", "block_s = 240.0", "240 clean seconds: of a single block"),
        ("block_s = 5.0", "block_s = 121.0", "of a single block"),
        ("output_tokens_sum = 878291", "output_tokens_sum = 4010", "less than a token for each"),
    ],
)
def test_numbers_that_exclude_each_other(old: str, new: str, problem: str) -> None:
    assert TEXT.count(old) >= 1
    found = check_protocol(parse_protocol(TEXT.replace(old, new, 1).encode(), source="x").file)
    assert any(re.search(problem, each) for each in found), found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("confirmation_s = 380", "confirmation_s = 400"),
        ("hours_max = 16.0", "hours_max = 4.1"),
        ("stabilized_completions_min = 16", "stabilized_completions_min = 32"),
        ("block_s = 5.0", "block_s = 120.0"),
    ],
)
def test_the_border_itself_is_allowed(old: str, new: str) -> None:
    text = TEXT.replace(old, new, 1)
    found = check_protocol(parse_protocol(text.encode(), source="x").file)
    assert [each for each in found if "estimate" not in each] == []


def test_an_amendment_may_declare_that_nothing_is_left() -> None:
    draft = parse_protocol(TEXT.encode(), source="x")
    approvals = Approvals(numbers={}, rest="2026-07-12", by="reviewer")
    frozen = parse_protocol(freeze_protocol(draft, approvals, date="2026-07-12"), source="x")
    settings = [("budget.gpu_hours_used", "15.99")]
    request = Request("A-X-1", "prior use", "recounted", "2026-07-13", settings)
    made = parse_protocol(amend_protocol(frozen, request), source="x").file
    assert made.budget.gpu_hours_used == 15.99


@pytest.mark.parametrize("key", ["recovery_s = 30", "clean_segment_s = 80"])
def test_a_recovery_that_no_run_could_judge(key: str) -> None:
    name, _, _ = key.partition(" ")
    text = TEXT.replace(key, f"{name} = 9")
    reason = f"timeline.{name}: 9, shorter than gates.recovery_rolling_s 10"
    found = check_protocol(parse_protocol(text.encode(), source="x").file)
    assert any(each.startswith(reason) for each in found), found
    text = text.replace("profile_windows = 2", "profile_windows = 0")
    found = check_protocol(parse_protocol(text.encode(), source="x").file)
    assert not any(each.startswith(reason) for each in found), found


def test_a_required_mode_that_no_window_can_show() -> None:
    text = TEXT.replace(
        "mode_active_steps_min = 8", 'mode_active_steps_min = 17\nmodes_required = ["FULL"]'
    )
    found = check_protocol(parse_protocol(text.encode(), source="x").file)
    assert any("windows have 16 active steps" in each for each in found), found
