"""Which kernels carry a part's time, under which names and scopes, as the real traces have them.

Names, scopes, order within a layer and each kernel's fraction of its part are those of vLLM 0.24.0
with Qwen3-30B-A3B on an H200 (``examples/h200-runs``): graphs from decode steps of P03 and P01,
launched kernels from the eager steps of P03 at saturation. Inside graphs kernels have no scope.
"""

from __future__ import annotations

from typing import NamedTuple

_MOE = ("## Call CompiledFxGraph", "vllm::moe_forward")
_COMPILED = "## Call CompiledFxGraph"
_ALIGN = (*_MOE, "_moe_C::moe_align_block_size")
_ATTENTION = ("vllm::unified_attention_with_output", "_vllm_fa3_C::fwd")
_CACHE = ("vllm::unified_kv_cache_update", "_C_cache_ops::reshape_and_cache_flash")
_LINEAR = ("aten::linear", "aten::matmul", "aten::mm")

_FLASH = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
    "cutlass::bfloat16_t> > > >(flash::Params)"
)
_COMBINE = (
    "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, "
    "cute::C<128> >, 5, 256, 1, false, true, cutlass::bfloat16_t, float, cutlass::arch::Sm90> >"
    "(flash::Params)"
)
_WRITE = (
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "
    "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, __nv_bfloat16 const*)"
)
_GATING = (
    "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16, "
    "(vllm::moe::ScoringFunc)0>(__nv_bfloat16 const*, bool const*, float*, int)"
)
_ALIGN_KERNEL = (
    "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int*, int, "
    "int, int, int, unsigned long, int*, int, int, bool)"
)
_SORT = (
    "void vllm::moe::count_and_sort_expert_tokens_kernel<int>(int const*, int*, int*, int*, "
    "unsigned long, int, int, int, bool)"
)
_ACTIVATION = (
    "void vllm::act_and_mul_kernel<c10::BFloat16, __nv_bfloat162>(c10::BFloat16*, "
    "c10::BFloat16 const*, int)"
)
_MOE_SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, "
    "at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, "
    "c10::BFloat16>>, unsigned int, c10::BFloat16, 4, 8> >()"
)
_ALL_REDUCE = (
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, "
    "vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)"
)
_ARGMAX = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
    "at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >(at::native::ReduceOp<float>)"
)
_GATHER = (
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, "
    "long, long, bool)"
)


class KernelRow(NamedTuple):
    """One kernel of a layer (or of the step) and its fraction of its part's time."""

    part: str
    name: str
    scopes: tuple[str, ...]
    graph: float
    """Fraction inside graphs; 0 leaves the kernel out."""
    eager: float
    """Fraction outside."""


BEFORE: tuple[KernelRow, ...] = (KernelRow("other", "_compute_slot_mapping_kernel", (), 0.04, 0.8),)
"""Launched one by one at the head of every step."""

BEFORE_ATTENTION: tuple[KernelRow, ...] = (
    KernelRow("norm", "triton_red_fused_fused_add_rms_norm_1", (_COMPILED,), 0.16, 0.13),
    KernelRow(
        "dense_gemm",
        "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT",
        (_COMPILED, "aten::mm"),
        0.56,
        0.56,
    ),
    KernelRow("norm", "triton_red_fused_2", (_COMPILED,), 0.09, 0.06),
    KernelRow("norm", "triton_poi_fused_3", (_COMPILED,), 0.12, 0.12),
)
ATTENTION: tuple[KernelRow, ...] = (
    KernelRow("attention", _WRITE, _CACHE, 0.08, 0.055),
    KernelRow("attention", _FLASH, _ATTENTION, 0.79, 0.945),
    KernelRow("attention", _COMBINE, _ATTENTION, 0.13, 0.0),
)
AFTER_ATTENTION: tuple[KernelRow, ...] = (
    KernelRow(
        "dense_gemm",
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
        (_COMPILED, "aten::mm"),
        0.44,
        0.44,
    ),
    KernelRow("collective", _ALL_REDUCE, ("vllm::all_reduce",), 0.5, 0.5),
    KernelRow(
        "norm", "triton_red_fused_fused_add_rms_norm_moe_forward_0", (_COMPILED,), 0.15, 0.10
    ),
    KernelRow("moe_gate", "nvjet_sm90_tst_64x128_64x8_2x1_v_bz_TNN", (*_MOE, *_LINEAR), 1.0, 1.0),
    KernelRow("moe_router", _GATING, (*_MOE, "_moe_C::topk_softmax"), 0.51, 0.28),
    KernelRow("moe_router", _ALIGN_KERNEL, _ALIGN, 0.34, 0.41),
    KernelRow("moe_router", _SORT, _ALIGN, 0.15, 0.31),
    KernelRow("moe_gemm", "fused_moe_kernel", _MOE, 0.62, 0.62),
    KernelRow("norm", _ACTIVATION, (*_MOE, "_C::silu_and_mul"), 0.14, 0.24),
    KernelRow("moe_gemm", "fused_moe_kernel", _MOE, 0.38, 0.38),
    KernelRow("norm", _MOE_SUM, (*_MOE, "_moe_C::moe_sum", "aten::sum"), 0.34, 0.35),
    KernelRow("collective", _ALL_REDUCE, ("vllm::all_reduce",), 0.5, 0.5),
    KernelRow("other", "memcpy32_post", (), 0.92, 0.0),
)
AFTER: tuple[KernelRow, ...] = (
    KernelRow("other", _GATHER, ("aten::index",), 0.04, 0.2),
    KernelRow("lm_head", "nvjet_sm90_tst_384x8_64x4_2x1_v_bz_TNT", _LINEAR, 1.0, 1.0),
    KernelRow("sampler", _ARGMAX, ("aten::argmax",), 1.0, 1.0),
)
"""Launched one by one at the end of every step."""

GRAPH_RECORD = "cuda graph replay"
"""Device record of a replay whose kernels are not seen (planted)."""
