"""Kernel name (and scopes) to operator family: the protocol's table, written out a second time.

The protocol's words stand above each rule; the contract's section 4 is the whole of v2.
"""

from __future__ import annotations

import re

FAMILIES = (
    "moe_router",
    "collective",
    "attention",
    "moe_gemm",
    "sampler",
    "dense_gemm",
    "norm_elementwise",
    "kv_memory",
    "other",
)


def has(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def in_moe(scopes: tuple[str, ...]) -> bool:
    """A FusedMoE/MoE scope: the MoE operators. A compiled kernel's own name is no such scope."""
    return any(has(r"FusedMoE|::moe_forward|::fused_moe|^_moe_C::", s) for s in scopes)


def in_attention(scopes: tuple[str, ...]) -> bool:
    return any(
        has(r"unified_attention|flash_attn|^_vllm_fa\d_C::|paged_attention", s) for s in scopes
    )


def family(name: str, scopes: tuple[str, ...], version: str) -> str:
    moe = in_moe(scopes) or has(r"vllm::moe::", name)
    # 1: topkGating, moe_align, select_expert, or MoE-scoped routing/top-k kernels
    if has(r"topkGating|moe_align|select_expert", name):
        return "moe_router"
    if moe and has(r"top_?k|rout(e|ing)|gating|expert", name):
        return "moe_router"
    # 2: nccl, all_reduce, allreduce, reduce_scatter, all_gather, or vLLM custom-all-reduce names
    if has(r"nccl|all_?reduce|reduce_scatter|all_gather|cross_device_reduce", name):
        return "collective"
    # 3: flash, fmha, paged_attention, unified_attention, attention-scoped CUTLASS kernels,
    #    or attention KV/cache reshape kernels
    if has(r"flash|fmha|paged_attention|unified_attention|reshape_and_cache", name):
        return "attention"
    if in_attention(scopes) and has(r"cutlass|gemm", name):  # rule 6 is "outside attention scopes"
        return "attention"
    # 4: fused_moe, moe.*gemm, nvjet, or CUTLASS/Triton GEMM whose parent scope is FusedMoE/MoE
    if has(r"fused_moe|moe.*gemm", name):
        return "moe_gemm"
    if has(r"nvjet", name):
        return "moe_gemm" if version == "v1" or moe else "dense_gemm"
    if moe and has(r"cutlass|gemm|splitKreduce", name):
        return "moe_gemm"
    # 5: non-MoE sampling, topk, topp, argmax, multinomial, logits-processor, or penalty kernels
    if has(r"sampl|top_?k|top_?p|argmax|multinomial|logits|penalt", name):
        return "sampler"
    # 6: GEMM/matmul/CUTLASS kernels outside attention and MoE scopes; a split-K GEMM ends in a
    #    cublasLt reduction, which is part of that GEMM
    if has(r"gemm|matmul|cutlass|cublas.*splitKreduce", name):
        return "dense_gemm"
    # 7: RMS/layer norm, activation, residual/add, reduction, fill, vectorized elementwise kernels.
    #    Inductor writes triton_red_ and triton_per_ for reductions, triton_poi_ for pointwise ones.
    if has(
        r"rms_?norm|layer_?norm|act_and_mul|silu|gelu|relu|activation|residual|_add|reduce", name
    ):
        return "norm_elementwise"
    if has(r"elementwise|fill|^triton_(red|per|poi)_", name):
        return "norm_elementwise"
    # 8: cache copy/swap kernels and KV movement not already attributed to attention
    if has(
        r"swap_blocks|copy_blocks|cache_(copy|swap)|(copy|swap|gather|concat).*cache|kv_cache", name
    ):
        return "kv_memory"
    # 9: every unmatched kernel
    return "other"
