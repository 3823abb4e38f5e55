"""Capture sizes and dispatch as vLLM 0.24.0 has them, and the cost file's fit."""

from __future__ import annotations

import pytest

from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.cost import PARTS, CostModel, StepShape, families_of, load_cost
from opprof.engines.sim.effects import Effects, Lead
from opprof.engines.sim.graphs import Dispatch, Dispatcher, capture_sizes
from opprof.errors import InputError

H200_SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""From the header of every real run."""


def test_default_capture_sizes_are_the_real_runs() -> None:
    assert capture_sizes(1024, 8192) == H200_SIZES
    assert capture_sizes(64, 8192)[-3:] == [112, 120, 128]


@pytest.mark.parametrize(
    ("tokens", "uniform", "expected"),
    [
        (1, True, ("FULL", 1)),
        (9, True, ("FULL", 16)),
        (256, True, ("FULL", 256)),
        (512, True, ("FULL", 512)),
        (513, True, ("NONE", 0)),
        (18, False, ("PIECEWISE", 24)),
        (501, False, ("PIECEWISE", 512)),
        (513, False, ("NONE", 0)),
        (8192, False, ("NONE", 0)),
    ],
)
def test_dispatch(tokens: int, uniform: bool, expected: tuple[str, int]) -> None:
    assert Dispatcher(H200_SIZES, 1024)(tokens, uniform_decode=uniform) == expected


def test_buckets_above_the_sequence_limit_are_piecewise_only() -> None:
    dispatch = Dispatcher(capture_sizes(64, 8192), 64)
    assert dispatch(64, uniform_decode=True) == ("FULL", 64)
    assert dispatch(65, uniform_decode=True) == ("PIECEWISE", 72)


def test_the_fit_is_as_good_as_the_documentation_says() -> None:
    cost = load_cost()
    assert cost.held_out_run not in cost.fitted_runs and len(cost.fitted_runs) == 5
    for run, errors in cost.residuals.items():
        assert abs(errors["kernel_time"]) < 0.02, run
        for family in ("moe_gemm", "attention", "norm_elementwise", "moe_router", "collective"):
            assert abs(errors.get(family, 0.0)) < 0.07, (run, family)


def shape(mode: str = "FULL", tokens: int = 256, context: int = 100_000) -> StepShape:
    return StepShape(mode, tokens, tokens, tokens, context, context, 0.0)  # type: ignore[arg-type]


def test_cost_grows_with_tokens_and_context_and_falls_with_ranks() -> None:
    one, two = CostModel(load_cost(), 1), CostModel(load_cost(), 2)

    def total(model: CostModel, **changes: object) -> float:
        return sum(model.part_ms(shape(**changes)).values())  # type: ignore[arg-type]

    assert total(one, tokens=256) > total(one, tokens=8)
    assert total(one, context=400_000) > total(one, context=100_000)
    assert total(two) < total(one)
    assert one.part_ms(shape())["collective"] == 0.0 < two.part_ms(shape())["collective"]
    # One real step of P08: 256 decodes at 22.4 ms for P01's contexts and 26 to 27 ms for P08's.
    assert 21.0 < total(one, context=84_500) < 23.5


def test_a_planted_lead_is_exact_and_keeps_the_step() -> None:
    model = CostModel(load_cost(), 1)
    for mode in ("FULL", "NONE"):
        parts = model.part_ms(shape(mode))
        for gap in (0.05, 0.2):
            effects = Effects(lead=Lead("attention", "moe_gemm", gap))
            planted = effects.shares(parts, mode)  # type: ignore[arg-type]
            families = families_of(planted, mode)  # type: ignore[arg-type]
            total = sum(parts.values())
            assert set(planted) == set(PARTS)
            assert sum(planted.values()) == pytest.approx(total)
            assert families["attention"] - families["moe_gemm"] == pytest.approx(gap * total)


def test_planted_padding_and_misses_change_the_dispatch() -> None:
    plain = Dispatch("FULL", 8)
    assert Effects(padding=0.5).dispatch(plain, 8, 1.0, H200_SIZES) == ("FULL", 16)
    assert Effects(padding=0.2).dispatch(plain, 8, 1.0, H200_SIZES) == ("FULL", 16)
    # Above the last captured size there is nothing to pad to.
    last = Dispatch("FULL", 512)
    assert Effects(padding=0.5).dispatch(last, 500, 1.0, H200_SIZES) == last
    assert Effects(miss_rate=0.3).dispatch(plain, 8, 0.29, H200_SIZES) == ("NONE", 0)
    assert Effects(miss_rate=0.3).dispatch(plain, 8, 0.31, H200_SIZES) == plain


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 3},
        {"max_num_batched_tokens": 64},
        {"chunked_prefill": False},
        {"kv_blocks": 10},
    ],
)
def test_settings_that_vllm_refuses(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SimConfig(model="m", **settings).check(load_cost())  # type: ignore[arg-type]
