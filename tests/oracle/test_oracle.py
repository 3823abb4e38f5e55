"""The oracle agrees with figures worked out on paper; its goldens hold on the trimmed copies."""

from __future__ import annotations

import ast
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from plain_families import family
from plain_layer1 import composition, members, outer_borders, read_stream, waste
from plain_stats import percentile, smd, tau_b, tie_ranks
from plain_trace import join, union_ns

from oracle import analyse, compare, dump, failure_rate_under_no_change

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
EXAMPLES = REPOSITORY / "examples" / "h200-runs"
EXPECTED = HERE / "expected"
RUNS = sorted(p.stem for p in EXPECTED.glob("P*.json"))
QUICK = "P01-C00-saturation"


NUMERICAL = {"plain_decision": {"numpy", "scipy"}}
"""What a part of the oracle may use besides the standard library; never the package itself."""


def test_the_oracle_imports_nothing_of_the_package() -> None:
    own = {p.stem for p in HERE.glob("*.py")}
    for path in (HERE / "oracle.py", *HERE.glob("plain_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.split(".")[0] for name in names} - own
            allowed = set(sys.stdlib_module_names) | NUMERICAL.get(path.stem, set())
            assert roots <= allowed, (path.name, roots)


def test_statistics_on_paper() -> None:
    assert percentile([4, 1, 3, 2], 50) == Fraction(5, 2)
    assert percentile(list(range(101)), 95) == 95
    assert percentile([10, 20], 99) == Fraction(199, 10)
    # means 2 and 4, sample variances 1 and 4: -2 / sqrt(2.5)
    assert smd([1, 2, 3], [2, 4, 6])["smd"] == pytest.approx(-1.2649110640673518)
    assert smd([8, 8], [8, 8, 8]) == smd([8, 8], [8, 8, 8]) | {"constant": True, "passes": True}
    assert smd([8, 8], [9, 9])["passes"] is False
    shares = {"a": Fraction(50, 100), "b": Fraction(494, 1000), "c": Fraction(488, 1000)}
    assert tie_ranks({**shares, "d": Fraction(0)}, Fraction(1, 100)) == {
        "a": 1,
        "b": 1,
        "c": 3,  # within a point of b, but not of a, the first of the group
        "d": 4,
    }
    assert tau_b([1, 2, 3], [1, 2, 3]) == 1
    assert tau_b([1, 2, 3, 4], [1, 2, 2, 4]) == pytest.approx(5 / 30**0.5)
    assert union_ns([(0, 10), (5, 12), (20, 21), (6, 8)]) == 13


def step(index: int, submit: int, complete: int, **changes: Any) -> dict[str, Any]:
    base = {
        "type": "step",
        "step": index,
        "submit_mono_ns": submit,
        "complete_mono_ns": complete,
        "model_executed": True,
        "scheduled_requests": 3,
        "prefill_requests": 1,
        "prefill_tokens": 10,
        "decode_requests": 2,
        "decode_tokens": 2,
        "prefill_chunks": [10],
        "context_len_hist": None,
        "waiting": 0,
        "running": 3,
        "deferred": 0,
        "preemptions": 0,
        "kv_usage": 0.5,
        "prefix_queries": 10,
        "prefix_hits": 0,
        "graph": {"mode": "FULL", "hit": True, "unpadded_tokens": 12, "bucket_tokens": 16},
    }
    return {**base, **changes}


def stream(folder: Path, steps: list[dict[str, Any]]) -> Path:
    path = folder / "engine-0.jsonl"
    counters = {
        "encoded_records": len(steps),
        "written_records": len(steps),
        "dropped_records": 0,
        "last_step_index": len(steps) - 1,
        "final": True,
    }
    lines = [{"type": "header"}, *steps, {"type": "footer", **counters}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    Path(f"{path}.footer.json").write_text(json.dumps(counters), encoding="utf-8")
    return path


def test_steps_on_paper(tmp_path: Path) -> None:
    eager = {"mode": "NONE", "hit": False, "unpadded_tokens": 12, "bucket_tokens": 0}
    idle = {"model_executed": False, "prefill_tokens": 0, "decode_tokens": 0, "graph": None}
    path = stream(
        tmp_path,
        [
            step(0, 0, 10_000_000),
            step(1, 4_000_000, 16_000_000, graph=eager),  # waits for step 0: lasts 6 ms
            step(2, 12_000_000, 20_000_000),  # lies over the border at 18 ms
            step(3, 20_000_000, 20_000_000, **idle),
            step(4, 21_000_000, 24_000_000),
        ],
    )
    _, steps, accounting = read_stream(path)
    assert accounting["balanced"] and accounting["contiguous"] and accounting["footer_agrees"]
    assert [s["duration"] for s in steps] == [10_000_000, 6_000_000, 4_000_000, 0, 3_000_000]
    halves = [(10_000_000, 18_000_000), (18_000_000, 24_000_000)]
    found = [[s["step"] for s in members(steps, half)[0]] for half in halves]
    assert (found, [members(steps, half)[1] for half in halves]) == ([[1], [3, 4]], [1, 1])
    assert outer_borders(halves) == [(10_000_000, 24_000_000)]
    whole = members(steps, (10_000_000, 24_000_000))
    assert ([s["step"] for s in whole[0]], whole[1]) == ([1, 2, 3, 4], 0)
    told = composition(*whole)
    assert told["executed_steps"] == 3 and told["not_executed_steps"] == 1
    assert told["E_token_per_ms"] == pytest.approx(36 / 13)
    wasted = waste(whole[0], [8, 16])
    assert wasted["padding_fraction"] == 8 / 32
    assert wasted["graph_miss_rate"] == wasted["eligible_miss_rate"] == pytest.approx(1 / 3)
    assert wasted["overflow_rate"] == 0
    assert wasted["bucket_slack"] == pytest.approx(12 / 48)
    assert waste(whole[0], [8])["overflow_rate"] == pytest.approx(1 / 3)


def test_a_join_is_decided_by_times_where_counts_are_equal(tmp_path: Path) -> None:
    submits = [0, 10, 25, 30, 52, 60, 75, 81, 99, 110, 125]
    steps = [step(i, 1000 * t, 1000 * t + 500) for i, t in enumerate(submits)]
    _, steps, _ = read_stream(stream(tmp_path, steps))
    starts = [1000 * t + 700_003 for t in submits[2:10]]
    annotations = [{"name": "execute_context_1(10)_generation_2(2)", "t": t} for t in starts]
    found = join(annotations, steps, (0, 10**9))
    assert found["candidates_in_interval"] == 4
    assert (found["first_step"], found["scatter_ns"]) == (2, 0)
    assert found["next_scatter_ns"] > 1000
    assert join(annotations, steps, (26_000, 10**9))["first_step"] == 3


def test_names_and_scopes_on_paper() -> None:
    moe, mm = ("vllm::moe_forward",), ("aten::mm",)
    triton = ("triton_red_fused_fused_add_rms_norm_moe_forward_0",)
    cases = [
        ("nvjet_sm90_tst_64x8", (), "moe_gemm", "dense_gemm"),
        ("nvjet_sm90_tst_64x8", mm, "moe_gemm", "dense_gemm"),
        ("nvjet_sm90_tst_64x8", (*moe, *mm), "moe_gemm", "moe_gemm"),
        ("nvjet_sm90_tst_64x8", triton, "moe_gemm", "dense_gemm"),
        (triton[0], triton, "norm_elementwise", "norm_elementwise"),
        ("fused_moe_kernel", (), "moe_gemm", "moe_gemm"),
        ("void vllm::moe::topkGating<8>", (), "moe_router", "moe_router"),
        (
            "void vllm::moe::count_and_sort_expert_tokens_kernel<int>",
            (),
            "moe_router",
            "moe_router",
        ),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90>", (), "attention", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel", (), "attention", "attention"),
        ("void vllm::cross_device_reduce_1stage", (), "collective", "collective"),
        ("ncclDevKernel_AllGather_RING_LL", (), "collective", "collective"),
        ("at::native::reduce_kernel<ArgMaxOps<float> >", (), "sampler", "sampler"),
        ("at::native::reduce_kernel<sum_functor>", moe, "norm_elementwise", "norm_elementwise"),
        ("void cublasLt::splitKreduce_kernel<32>", (), "dense_gemm", "dense_gemm"),
        ("memcpy32_post", (), "other", "other"),
    ]
    for name, scopes, first, second in cases:
        assert (family(name, scopes, "v1"), family(name, scopes, "v2")) == (first, second), name


def test_unchanged_data_fail_the_gate_as_counted_on_paper() -> None:
    rows = [{"tokens": 8, "prefill_tokens": 0, "decode_requests": 8, "graph": {"mode": "FULL"}}]
    assert failure_rate_under_no_change(rows * 12)["rate"] == 0
    other = [{**rows[0], "tokens": 4, "decode_requests": 4}]
    found = failure_rate_under_no_change(rows * 8 + other * 8)
    # Nine draws with 0 to 8 small steps; the segment has mean 6 and variance 4.267. Four small ones
    # hit the mean; three or five are off by 0.5 with variance 4.286: 0.5 / 2.068 = 0.242 passes.
    # Two or six are off by 1: 1 / 1.95 fails, and so do the rest, six in all.
    assert found == {"draws": 9, "failures": 6, "rate": 2 / 3, "rate_of_two_windows": 8 / 9}


def same_as_golden(name: str, value: object, tmp_path: Path) -> None:
    dump(value, tmp_path / f"{name}.json")
    assert (tmp_path / f"{name}.json").read_bytes() == (EXPECTED / f"{name}.json").read_bytes()


def test_golden_of_one_trimmed_run(tmp_path: Path) -> None:
    same_as_golden(QUICK, analyse(EXAMPLES / QUICK), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if name != QUICK])
def test_goldens_of_the_other_trimmed_runs(name: str, tmp_path: Path) -> None:
    same_as_golden(name, analyse(EXAMPLES / name), tmp_path)


def test_golden_comparison(tmp_path: Path) -> None:
    assert len(RUNS) == 5
    runs = {n: json.loads((EXPECTED / f"{n}.json").read_text(encoding="utf-8")) for n in RUNS}
    same_as_golden("compare", compare(runs), tmp_path)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", RUNS)
def test_goldens_of_the_originals(name: str, tmp_path: Path) -> None:
    for folder in REPOSITORY.parents:
        run = folder / "shared" / "h200-runs" / name
        if run.is_dir():
            same_as_golden(name, analyse(run), tmp_path)
            return
    pytest.skip("no shared/h200-runs beside the repository")


@pytest.mark.parametrize(
    "host", [("P01-C00-saturation", "P03-C00-saturation", "P08-C00-saturation"), *zip(RUNS)]
)
def test_all_joins_of_one_host_imply_one_clock_offset(host: tuple[str, ...]) -> None:
    """An annotation never starts before its submit, so the least difference is the clocks' offset.

    It is no input of the join. A join shifted by one step would move it by a step (6 to 60 ms).
    """
    offsets = [
        window["join"]["smallest_offset_ns"]
        for name in host
        for window in json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))["windows"]
    ]
    assert len(offsets) >= 2
    assert max(offsets) - min(offsets) < 1_000_000
