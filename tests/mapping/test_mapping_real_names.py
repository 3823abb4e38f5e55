"""Every kernel name of the real traces has the family that the protocol's words give it."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.mapping import MappingTable, load_table

GOLDEN = json.loads((Path(__file__).parent / "data" / "h200_kernels.json").read_text())
CASES = [
    (GOLDEN["names"][case["name"]], tuple(case["scopes"]), case["v1"], case["v2"])
    for case in GOLDEN["cases"]
]
SHARED = [parent / "shared" / "h200-runs" for parent in Path(__file__).parents]
SHARED_RUNS = next((folder for folder in SHARED if folder.is_dir()), None)
V1 = load_table("v1")
V2 = load_table("v2")


def test_the_golden_file_is_whole() -> None:
    assert len(GOLDEN["names"]) == len(set(GOLDEN["names"])) == 71
    assert {case["name"] for case in GOLDEN["cases"]} == set(range(71))


@pytest.mark.parametrize(
    ("name", "scopes", "v1", "v2"), CASES, ids=[f"{i}-{c[0][:40]}" for i, c in enumerate(CASES)]
)
def test_family(name: str, scopes: tuple[str, ...], v1: str, v2: str) -> None:
    assert (V1.classify(name, scopes), V2.classify(name, scopes)) == (v1, v2)


def test_annotations_around_a_launch_change_nothing() -> None:
    around = ("ProfilerStep#4", "execute_context_2(8107)_generation_85(85)")
    for name, scopes, v1, v2 in CASES:
        assert V1.classify(name, around + scopes) == v1
        assert V2.classify(name, around + scopes) == v2


def test_python_frames_and_model_classes_are_no_scope() -> None:
    """``qwen3_moe.py`` encloses every launch of these traces; it must decide nothing."""
    frames = (
        "vllm/model_executor/models/qwen3_moe.py(415): forward",
        "vllm/model_executor/layers/fused_moe/layer.py(1800): forward",
        "nn.Module: Qwen3MoeForCausalLM_0",
        "nn.Module: Qwen3MoeDecoderLayer_7",
        "nn.Module: Qwen3MoeAttention_7",
    )
    for name, scopes, v1, v2 in CASES:
        assert V1.classify(name, frames + scopes) == v1
        assert V2.classify(name, frames + scopes) == v2


def test_the_tables_differ_on_nvjet_only() -> None:
    for name, scopes, _, _ in CASES:
        first, second = V1.classify(name, scopes), V2.classify(name, scopes)
        assert first == second or (name.startswith("nvjet"), first, second) == (
            True,
            "moe_gemm",
            "dense_gemm",
        )


def test_a_table_survives_the_way_to_another_process() -> None:
    copy: MappingTable = pickle.loads(pickle.dumps(V2))
    assert (copy.version, copy.sha256) == (V2.version, V2.sha256)
    assert [copy.classify(c[0], c[1]) for c in CASES] == [c[3] for c in CASES]


@given(case=st.sampled_from(CASES), data=st.data())
def test_neither_case_of_letters_nor_order_of_scopes_matters(
    case: tuple[str, tuple[str, ...], str, str], data: st.DataObject
) -> None:
    name, scopes, v1, v2 = case
    shuffled = tuple(data.draw(st.permutations(scopes)))
    assert V1.classify(name.upper(), shuffled) == v1
    assert V2.classify(name.lower(), shuffled) == v2


@given(case=st.sampled_from(CASES))
def test_explain_agrees_with_classify(case: tuple[str, tuple[str, ...], str, str]) -> None:
    name, scopes, _, v2 = case
    hit = V2.explain(name, scopes)
    assert hit.family == v2
    assert (hit.rule is None) == (v2 == "other")
    if hit.rule is not None:
        assert hit.rule.startswith(f"{hit.family}.")
        assert hit.name_match is not None and hit.name_match in name


@pytest.mark.shared
@pytest.mark.skipif(SHARED_RUNS is None, reason="needs ../shared")
def test_no_real_trace_has_a_name_that_the_golden_file_lacks() -> None:
    from isal import igzip

    assert SHARED_RUNS is not None
    pattern = re.compile(rb'"cat": "kernel", "name": ("(?:[^"\\]|\\.)*")')
    seen: set[str] = set()
    for path in sorted(SHARED_RUNS.glob("*/traces/*.gz")):
        text = igzip.decompress(path.read_bytes())
        seen |= {json.loads(found) for found in set(pattern.findall(text))}
    assert seen == set(GOLDEN["names"])
