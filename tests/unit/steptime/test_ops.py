"""FLOPs and bytes of one rank: formulas of engines.md section 5 by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import InputError
from inferometer.specs.chip import chip
from inferometer.specs.deployment import Deployment
from inferometer.specs.model import Model, model
from inferometer.steptime.ops import KvRead, RankOps, kv_bytes_per_token, rank_ops


def ops(name: str, card: str = "h100-sxm-80gb", **more: Any) -> RankOps:
    return rank_ops(Deployment(model=model(name), chip=chip(card), **more))


def test_qwen3_8b_by_hand() -> None:
    found = ops("Qwen/Qwen3-8B", "a100-sxm4-80gb")
    # engines.md: 13.89 + 1.24 GFLOP a token; decode reads 15.14 GB
    ((format_, flops),) = found.dense_flops_by_format
    assert (format_, flops) == ("bf16", pytest.approx(13.89e9, rel=1e-3))
    assert found.head_flops_per_row == pytest.approx(1.245e9, rel=1e-3)
    assert found.dense_weight_bytes + found.head_weight_bytes == pytest.approx(15.14e9, rel=1e-3)
    assert found.kv_reads == (KvRead(bytes_per_token=147_456.0),)
    assert found.kv_write_bytes_per_token == 147_456
    assert found.attention_flops_per_pair == 36 * 4 * 32 * 128
    assert found.window_flops_per_pair == 0
    assert found.hidden_bytes == 8192
    assert (found.compute_format, found.head_format) == ("bf16", "bf16")
    assert (found.moe_layers, found.experts_ranks, found.layers) == (0, 1, 36)
    expected = 2 * (10 * 36 * 4096 + 4 * 12288 * 36 + 3 * 36 * 32 * 128)
    assert found.activation_bytes_per_token == expected


def test_tensor_parallelism_splits_matrices_and_replicates_kv_heads() -> None:
    one, eight, sixteen = (ops("llama-3.1-70b", tensor_parallel_size=tp) for tp in (1, 8, 16))
    assert eight.dense_weight_bytes == pytest.approx(one.dense_weight_bytes / 8, rel=1e-3)
    assert eight.kv_write_bytes_per_token == 40_960
    assert sixteen.kv_write_bytes_per_token == 40_960
    assert sixteen.attention_flops_per_pair == one.attention_flops_per_pair / 16


def test_fp8_runs_in_fp8_where_the_chip_can_and_in_16_bits_elsewhere() -> None:
    hopper = ops("Llama-3.1-8B-FP8")
    ampere = ops("Llama-3.1-8B-FP8", "a100-sxm4-80gb")
    assert (hopper.compute_format, ampere.compute_format) == ("fp8", "bf16")
    assert hopper.head_format == "bf16"
    assert hopper.dense_weight_bytes == pytest.approx(ops("Llama-3.1-8B").dense_weight_bytes / 2, rel=2e-3)


def test_weight_only_int4_runs_in_16_bits() -> None:
    found = ops("Llama-3.1-8B-quantized.w4a16")
    assert found.compute_format == "bf16"
    assert found.dense_weight_bytes < 0.3 * ops("Llama-3.1-8B").dense_weight_bytes


def test_experts_divided_or_whole() -> None:
    tensor = ops("qwen3-30b-a3b", tensor_parallel_size=2)
    expert = ops("qwen3-30b-a3b", data_parallel_size=2, enable_expert_parallel=True)
    whole = 3 * 2048 * 768 * 2
    assert tensor.expert_weight_bytes == whole / 2
    assert expert.expert_weight_bytes == whole
    assert (tensor.experts_ranks, expert.experts_ranks) == (2, 2)
    assert tensor.expert_flops_per_token == expert.expert_flops_per_token == 2 * 48 * 8 * 3 * 2048 * 768
    assert (tensor.moe_layers, tensor.experts, tensor.experts_per_token) == (48, 128, 8)


def test_gpt_oss_quantises_experts_only() -> None:
    found = ops("openai/gpt-oss-120b")
    assert (found.compute_format, found.expert_weight_format, found.expert_format) == ("bf16", "mxfp4", "bf16")
    # gate and up, then down, in groups of 32 with a byte of scale
    assert found.expert_weight_bytes == 3 * 2880 * 2880 * 4.25 / 8
    assert found.kv_reads == (KvRead(bytes_per_token=36_864.0), KvRead(bytes_per_token=36_864.0, window=128))
    assert found.window_flops_per_pair == found.attention_flops_per_pair / 2


def test_mla_reads_latents_on_every_rank() -> None:
    one, eight = (ops("deepseek-ai/DeepSeek-V3", "h200-sxm-141gb", tensor_parallel_size=tp) for tp in (1, 8))
    assert one.mla_read_bytes_per_token == eight.mla_read_bytes_per_token == 70_272
    assert eight.mla_flops_per_token == 61 * 2 * 128 / 8 * (2 * 512 + 64)
    assert one.attention_flops_per_pair == 61 * 2 * 128 * (128 + 64 + 128)
    assert (one.mla_layers, one.sparse_layers, one.kv_reads) == (61, 0, ())


def test_sparse_mla_reads_chosen_latents_and_the_indexers_keys() -> None:
    found = ops("deepseek-ai/DeepSeek-V3.2", "h200-sxm-141gb")
    assert found.sparse_layers == 61
    assert found.kv_reads == (KvRead(bytes_per_token=70_272.0, window=2048),)
    assert found.mla_read_bytes_per_token == 61 * 132
    indexer, chosen = 61 * 2 * 64 * 128, 61 * 2 * 128 * (2 * 512 + 64)
    assert (found.mla_flops_per_token, found.window_flops_per_pair) == (indexer, chosen)
    assert found.attention_flops_per_pair == indexer + chosen


def test_formats_are_told_apart_layer_by_layer() -> None:
    """An NVFP4 checkpoint that leaves attention in bf16 runs only its three dense layers and shared experts in fp4."""
    found = dict(ops("nvidia/DeepSeek-V3.1-NVFP4", "b200-sxm-180gb").dense_flops_by_format)
    assert set(found) == {"bf16", "fp4"}
    assert found["bf16"] > found["fp4"] > 0


def test_gemma_3_reads_windows_apart() -> None:
    found = ops("google/gemma-3-27b")
    assert found.kv_reads == (KvRead(bytes_per_token=81_920.0), KvRead(bytes_per_token=425_984.0, window=1024))


def test_state_of_recurrent_layers_is_split() -> None:
    one, two = (ops("qwen3-next-80b-a3b", tensor_parallel_size=tp) for tp in (1, 2))
    # 36 layers: 3 of conv width x 8192 channels, and 32 heads of 128 x 128, in 16 bits
    assert one.state_bytes_per_sequence == 36 * (3 * 8192 + 32 * 128 * 128) * 2
    assert two.state_bytes_per_sequence == one.state_bytes_per_sequence / 2
    assert one.recurrent_layers == 36


def test_fp8_cache_halves_reads() -> None:
    half, full = ops("qwen3-8b", kv_cache_dtype="fp8"), ops("qwen3-8b")
    assert half.kv_write_bytes_per_token * 2 == full.kv_write_bytes_per_token
    assert half.kv_reads[0].bytes_per_token * 2 == full.kv_reads[0].bytes_per_token


def test_a_model_without_a_config_has_no_step_costs() -> None:
    lab = Model(name="lab", weight_bytes=10**9, layers=2, kv_heads=1, head_dim=8)
    with pytest.raises(InputError, match="lab"):
        rank_ops(Deployment(model=lab, chip=chip("a100-sxm4-80gb")))
    assert kv_bytes_per_token(lab) == 2 * 2 * 8 * 2


def test_an_unquantised_checkpoint_cannot_be_run_as_gptq() -> None:
    with pytest.raises(InputError, match="quantization"):
        ops("qwen3-8b", quantization="gptq")


@given(
    name=st.sampled_from(["qwen3-8b", "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "gemma-2-9b"]),
    tp=st.sampled_from([2, 4, 8]),
)
def test_ranks_together_hold_at_least_the_whole(name: str, tp: int) -> None:
    one, rank = ops(name, "b200-sxm-180gb"), ops(name, "b200-sxm-180gb", tensor_parallel_size=tp)
    assert rank.dense_weight_bytes * tp >= one.dense_weight_bytes * 0.999
    assert rank.dense_weight_bytes <= one.dense_weight_bytes
    assert rank.kv_write_bytes_per_token * tp >= one.kv_write_bytes_per_token
    assert rank.expert_flops_per_token == one.expert_flops_per_token, "of the whole model"
