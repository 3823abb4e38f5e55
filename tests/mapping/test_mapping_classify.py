"""Names that the real traces lack and other backends, GPUs and versions emit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.mapping import FAMILIES, FAMILY_PRIORITY, MappingTable, classify, load_table
from opprof.mapping.classify import CompiledRule

V1 = load_table("v1")
V2 = load_table("v2")

COMMON: list[tuple[str, tuple[str, ...], str]] = [
    # moe_router
    ("void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>(float const*, bool*)", (), "moe_router"),
    (
        "void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>()",
        (),
        "moe_router",
    ),
    ("void vllm::moe::expandInputRowsKernel<float>(float const*)", (), "moe_router"),
    ("void vllm::moe::computeExpertFirstTokenOffset(int const*)", (), "moe_router"),
    ("void at::native::sbtopk::gatherTopK<float>()", ("nn.Module: FusedMoE_9",), "moe_router"),
    ("triton_per_fused_topk_0", ("vllm::moe_forward",), "moe_router"),
    # collective
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        (),
        "collective",
    ),
    ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", (), "collective"),
    ("ncclSymkDevKernel_AllReduce_AGxLLMC_R(ncclSymkDevWorkArgs)", (), "collective"),
    (
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>()",
        (),
        "collective",
    ),
    (
        "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8>()",
        (),
        "collective",
    ),
    (
        "void vllm::cross_device_reduce_1stage<half, 8>(RankData*)",
        ("vllm::moe_forward",),
        "collective",
    ),
    # attention
    ("void flash_fwd_splitkv_mla_fp8_sparse_kernel<cutlass::bfloat16_t>()", (), "attention"),
    (
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>()",
        (),
        "attention",
    ),
    (
        "void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop>()",
        (),
        "attention",
    ),
    (
        "fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvDenseP32VarSeqQ8Kv128Persistent",
        (),
        "attention",
    ),
    ("kernel_unified_attention_3d", (), "attention"),
    ("void vllm::paged_attention_v1_kernel<half, half, 128, 16, 128>()", (), "attention"),
    ("reshape_and_cache_kernel_flash", (), "attention"),
    # moe_gemm
    ("fused_moe_kernel", ("vllm::moe_forward_shared",), "moe_gemm"),
    ("_fused_moe_lora_kernel", (), "moe_gemm"),
    ("void marlin_moe_wna16::Marlin<half, 1125899906909960l, 128, 1, 8, 4>()", (), "moe_gemm"),
    ("void cutlass::device_kernel<GroupProblemShape>()", ("_C::cutlass_moe_mm",), "moe_gemm"),
    ("_p_matmul_ogs_NNT_bf16xbf16xmxfp4", ("vllm::moe_forward",), "moe_gemm"),
    ("triton_tem_fused_mm_1", ("nn.Module: MixtralMoE_2",), "moe_gemm"),
    # sampler
    ("void vllm::apply_repetition_penalties_kernel<float>()", (), "sampler"),
    ("void flashinfer::sampling::TopPSamplingFromProbKernel<1024u, float, int>()", (), "sampler"),
    ("void flashinfer::sampling::TopKMaskLogitsKernel<float>()", (), "sampler"),
    ("_topk_log_softmax_kernel", (), "sampler"),
    ("rejection_random_sample_kernel", (), "sampler"),
    ("triton_red_fused_argmax_0", (), "sampler"),
    ("void at::native::mbtopk::radixFindKthValues<float>()", (), "sampler"),
    # dense_gemm
    ("cublasGemmEx_kernel", (), "dense_gemm"),
    ("void gemv2T_kernel_val<int, int, __nv_bfloat16>()", (), "dense_gemm"),
    ("void dot_kernel<float, 128>(cublasDotParams)", (), "dense_gemm"),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<>>()", (), "dense_gemm"),
    ("void gptq_marlin::Marlin<half>()", (), "dense_gemm"),
    ("void machete::machete_kernel<half>()", (), "dense_gemm"),
    ("void awq_gemm_kernel<half>()", (), "dense_gemm"),
    ("void flashinfer::gemm::bf16_gemm_kernel<128>()", (), "dense_gemm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, half>()", ("aten::mm",), "dense_gemm"),
    # norm_elementwise
    ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>()", (), "norm_elementwise"),
    ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>()", (), "norm_elementwise"),
    (
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>()",
        (),
        "norm_elementwise",
    ),
    ("void vllm::rotary_embedding_kernel<half, true>()", (), "norm_elementwise"),
    ("void vllm::dynamic_per_token_scaled_fp8_quant_kernel<half>()", (), "norm_elementwise"),
    ("triton_poi_fused_moe_forward_7", (), "norm_elementwise"),
    ("triton_poi_fused_all_reduce_add_2", (), "norm_elementwise"),
    ("triton_red_fused__to_copy_add_all_reduce_mean_mul_pow_rsqrt_2", (), "norm_elementwise"),
    ("triton_per_fused_flash_attention_unified_attention_with_output_1", (), "norm_elementwise"),
    ("void at::native::elementwise_kernel<128, 2>()", ("vllm::moe_forward",), "norm_elementwise"),
    # kv_memory
    ("void vllm::copy_blocks_kernel<half>(long*, long*)", (), "kv_memory"),
    ("void vllm::copy_blocks_mla_kernel<half>(long*, long*)", (), "kv_memory"),
    ("swap_blocks_batch_kernel", (), "kv_memory"),
    ("void vllm::gather_and_maybe_dequant_cache<half>()", (), "kv_memory"),
    # other
    ("_compute_slot_mapping_kernel", (), "other"),
    ("Memcpy DtoD (Device -> Device)", (), "other"),
    ("a_kernel_of_nobody", ("vllm::moe_forward",), "other"),
    ("", (), "other"),
]


@pytest.mark.parametrize(("name", "scopes", "family"), COMMON, ids=[c[0][:50] for c in COMMON])
def test_common_names(name: str, scopes: tuple[str, ...], family: str) -> None:
    assert V1.classify(name, scopes) == family
    assert V2.classify(name, scopes) == family


@pytest.mark.parametrize(
    ("scopes", "v2"),
    [
        ((), "dense_gemm"),
        (("aten::linear", "aten::mm"), "dense_gemm"),
        (("vllm::unified_mla_attention", "aten::bmm"), "dense_gemm"),
        (("nn.Module: Qwen3MoeModel_0", "aten::mm"), "dense_gemm"),
        (("vllm::moe_forward", "aten::mm"), "moe_gemm"),
        (("nn.Module: Qwen3MoeModel_0", "nn.Module: Qwen3MoeSparseMoeBlock_3"), "moe_gemm"),
        (("FusedMoE",), "moe_gemm"),
        (("vllm::outplace_fused_experts", "aten::mm"), "moe_gemm"),
    ],
)
def test_nvjet(scopes: tuple[str, ...], v2: str) -> None:
    name = "nvjet_sm100_tst_128x64_64x4_2x1_v_bz_TNN"
    assert V1.classify(name, scopes) == "moe_gemm"
    assert V2.classify(name, scopes) == v2


@given(name=st.text(max_size=60), scopes=st.lists(st.text(max_size=20), max_size=4).map(tuple))
def test_any_text_has_exactly_one_family(name: str, scopes: tuple[str, ...]) -> None:
    family = V1.classify(name, scopes)
    assert family in FAMILY_PRIORITY and family in FAMILIES
    assert V1.classify(name, scopes) == family
    assert V1.explain(name, scopes).family == family


def reference(rules: tuple[CompiledRule, ...], name: str, scopes: tuple[str, ...]) -> str | None:
    """The plain meaning of a table: one search a pattern, case ignored, first rule wins."""

    def found(patterns: tuple[str, ...], texts: tuple[str, ...]) -> bool:
        return any(re.search(p, text, re.IGNORECASE) for p in patterns for text in texts)

    for rule in rules:
        wanted = (not rule.names or found(rule.names, (name,))) and (
            not rule.scopes or found(rule.scopes, scopes)
        )
        excepted = found(rule.except_names, (name,)) or found(rule.except_scopes, scopes)
        if wanted and not excepted:
            return rule.id
    return None


TEXT = """fused_moe nvjet GEMM cutlass flash triton_poi_ triton_red_fused_ TopK moe:: routing _norm
flashinfer::norm:: ArgMax all_reduce small_reduce relu prelu add load split_K_reduce kv_copy cache
gather_ min_p xmin_p _ :: < void softmax"""
WORDS = st.sampled_from(TEXT.split())
NAMES = st.lists(WORDS | st.text("aZ_:9<", max_size=3), max_size=6).map("".join)
SCOPES = st.lists(
    st.sampled_from(
        ["vllm::moe_forward", "vllm::unified_attention", "aten::mm", "qwen3_moe.py(1): forward",
         "nn.Module: DeepseekV2MoE_1", "triton_red_fused_moe_forward_0"]
    ),
    max_size=3,
).map(tuple)  # fmt: skip


@given(name=NAMES, scopes=SCOPES)
def test_the_fast_matcher_means_what_plain_searches_mean(
    name: str, scopes: tuple[str, ...]
) -> None:
    for table in (V1, V2):
        assert table.explain(name, scopes).rule == reference(table.rules, name, scopes)


def rule(names: tuple[str, ...], excepted: tuple[str, ...] = ()) -> CompiledRule:
    return CompiledRule(
        id="attention.x",
        family="attention",
        priority=3,
        names=names,
        scopes=(),
        except_names=excepted,
        except_scopes=("^quiet$",),
    )


@pytest.mark.parametrize("pattern", [r"^\w+A\W", r"[A-C]\Sx", r"\x41b", "PLAIN word", r"a\Db"])
@given(name=st.text("abcABCxX1 _:\x00", max_size=12))
def test_lowering_keeps_the_meaning_of_a_pattern(pattern: str, name: str) -> None:
    table = MappingTable("t", "0" * 64, "t", (rule((pattern,)),))
    assert table.explain(name).rule == reference(table.rules, name, ())


def test_exceptions() -> None:
    table = MappingTable("t", "0" * 64, "t", (rule(("flash",), ("norm",)),))
    assert table.classify("flash") == "attention"
    assert table.classify("flash_norm") == "other"
    assert table.classify("flash", ("loud", "quiet")) == "other"
    assert table.classify("flash", ("loud",)) == "attention"


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classify, "MEMO_LIMIT", 4)
    table = MappingTable("t", "0" * 64, "t", (rule(("flash",)),))
    for number in range(20):
        assert table.classify(f"flash{number}") == "attention"
        assert len(table._memo) <= 4 and len(table._candidates) <= 4
    assert table.memo_resets > 0
