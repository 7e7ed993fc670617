from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from inferometer.errors import InputError, UnknownNameError
from inferometer.specs.chip import chip
from inferometer.specs.deployment import Deployment
from inferometer.specs.model import Attention, Block, Mla, Mlp, Model, Moe, Quantization, Recurrent

A100 = chip("a100-sxm4-80gb")
MLP = Mlp(intermediate_size=17408)
MOE = Moe(experts=8, experts_per_token=2, expert_intermediate_size=64)
QWEN3_14B = Model(
    name="Qwen/Qwen3-14B",
    layers=40,
    max_position_embeddings=40960,
    blocks=(Block(count=40, mixer=Attention(heads=40, kv_heads=8, head_dim=128, v_head_dim=128), mlp=MLP),),
)
LAB = Model(name="lab-70b", weight_bytes=140_000_000_000, layers=80, kv_heads=8, head_dim=128)


def deploy(model: Model = QWEN3_14B, **fields: Any) -> Deployment:
    return Deployment(**{"model": model, "chip": A100} | fields)


def shaped(mixer: Attention | Mla | Recurrent, mlp: Mlp | Moe = MLP) -> Model:
    return Model(name="shaped", layers=1, blocks=(Block(count=1, mixer=mixer, mlp=mlp),))


def test_defaults():
    deployment = deploy()
    assert deployment.resolved().max_num_batched_tokens == 2048
    assert deployment.resolved().gpu_memory_utilization == 0.92
    assert deployment.chips == 1
    assert deployment.name == "Qwen/Qwen3-14B bf16 on 1 x A100-SXM4-80GB"


def test_the_contracts_example():
    deployment = deploy(
        tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=3, enable_expert_parallel=False,
        dtype="bfloat16", quantization=None, kv_cache_dtype="auto", engine="vllm", engine_version="0.26.0",
        flags={"max_num_seqs": 256, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.92,
               "max_model_len": 8192, "enable_prefix_caching": False, "num_gpu_blocks_override": None},
    )  # fmt: skip
    assert deployment.chips == 6
    assert not deployment.resolved().enable_prefix_caching
    assert deployment.resolved().max_model_len == 8192


def test_keywords_only():
    with pytest.raises(TypeError):
        Deployment(QWEN3_14B, A100)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"flags": {"max_num_sequences": 4}}, "max_num_sequences.*did you mean max_num_seqs"),
        ({"flags": {"gpu_memory_utilization": 2}}, "gpu_memory_utilization: 2"),
        ({"flags": [1]}, "flags: "),
        ({"engine_version": "9.9"}, "engine_version: '9.9'"),
        ({"dtype": "bf16"}, "dtype: 'bf16'.*bfloat16"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype: 'int4'.*fp8"),
        ({"quantization": "bitsandbytes"}, "quantization: 'bitsandbytes'.*awq"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size: 0"),
        ({"pipeline_parallel_size": True}, "pipeline_parallel_size: True"),
        ({"data_parallel_size": 1.0}, r"data_parallel_size: 1\.0"),
        ({"pipeline_parallel_size": 41}, "pipeline_parallel_size: 41.*at most 40"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel.*no experts"),
        ({"enable_expert_parallel": "no"}, "enable_expert_parallel: 'no'"),
        ({"model": "Qwen/Qwen3-14B"}, r"model: 'Qwen/Qwen3-14B'.*inferometer\.model"),
        ({"chip": "a100"}, r"chip: 'a100'.*inferometer\.chip"),
    ],
)
def test_refused_when_made(fields: dict[str, Any], says: str):
    with pytest.raises(InputError, match=says):
        deploy(**fields)


def test_unknown_engine():
    with pytest.raises(UnknownNameError, match="unknown engine 'sglang'; known: vllm"):
        deploy(engine="sglang")


def test_qwen3_14b_over_five_ranks_is_refused_for_its_kv_heads():
    with pytest.raises(
        InputError, match=r"tensor_parallel_size 5 .*8 KV heads can be neither split nor replicated"
    ) as caught:
        deploy(tensor_parallel_size=5)
    assert caught.value.field == "tensor_parallel_size"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 40])
def test_ranks_that_split_or_replicate_the_kv_heads(ranks: int):
    assert deploy(tensor_parallel_size=ranks).chips == ranks


def test_heads_must_divide():
    with pytest.raises(InputError, match="40 attention heads do not divide by 16"):
        deploy(tensor_parallel_size=16)


def test_a_latent_cache_is_on_every_rank():
    mla = Mla(heads=128, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    assert deploy(shaped(mla), tensor_parallel_size=16).chips == 16
    with pytest.raises(InputError, match="128 attention heads do not divide by 3"):
        deploy(shaped(mla), tensor_parallel_size=3)


def test_linear_attention_heads_must_divide():
    mixer = Recurrent(
        kind="mamba2", parameters=1, conv_state_elements=1, ssm_state_elements=1, heads=12, flops_per_token=1
    )
    assert deploy(shaped(mixer), tensor_parallel_size=4).chips == 4
    with pytest.raises(InputError, match="12 linear-attention heads do not divide by 8"):
        deploy(shaped(mixer), tensor_parallel_size=8)


def test_a_model_given_by_few_figures_is_checked_as_far_as_known():
    assert deploy(LAB, tensor_parallel_size=16).chips == 16
    assert deploy(LAB, enable_expert_parallel=True).enable_expert_parallel
    assert deploy(Model(name="x", layers=1), tensor_parallel_size=7).chips == 7
    with pytest.raises(InputError, match="8 KV heads"):
        deploy(LAB, tensor_parallel_size=3)


def test_expert_parallelism_needs_experts():
    attention = Attention(heads=8, kv_heads=8, head_dim=64, v_head_dim=64)
    assert deploy(shaped(attention, MOE), enable_expert_parallel=True).enable_expert_parallel


@pytest.mark.parametrize(
    ("model_dtype", "dtype", "cache", "width"),
    [
        ("bf16", "auto", "auto", 2),
        ("fp16", "auto", "auto", 2),
        ("bf16", "float32", "auto", 4),
        ("bf16", "float", "auto", 4),
        ("bf16", "half", "auto", 2),
        ("bf16", "float32", "bfloat16", 2),
        ("bf16", "auto", "fp8", 1),
        ("bf16", "float32", "fp8_e5m2", 1),
        # the engine serves an fp32 checkpoint in bf16 unless told otherwise
        ("fp32", "auto", "auto", 2),
        ("fp32", "float32", "auto", 4),
    ],
)
def test_width_of_a_cached_number(model_dtype: Any, dtype: str, cache: str, width: int):
    model = msgspec.structs.replace(LAB, dtype=model_dtype)
    assert deploy(model, dtype=dtype, kv_cache_dtype=cache).kv_dtype_bytes() == width


def test_a_chip_without_bf16_computes_in_fp16():
    t4 = chip("t4")
    assert deploy(LAB, chip=t4).activation_dtype == "fp16"
    assert deploy(LAB).activation_dtype == "bf16"
    with pytest.raises(InputError, match=r"dtype: 'bfloat16'.*T4 has no bf16 units"):
        deploy(LAB, chip=t4, dtype="bfloat16")


def test_name_tells_the_weights_format():
    stored = msgspec.structs.replace(LAB, quantization=Quantization(method="gptq", weights="int4"))
    assert deploy(stored).name == "lab-70b int4 on 1 x A100-SXM4-80GB"
    assert deploy(LAB, quantization="fp8", tensor_parallel_size=2).name == "lab-70b fp8 on 2 x A100-SXM4-80GB"
    assert deploy(LAB, dtype="half").name == "lab-70b fp16 on 1 x A100-SXM4-80GB"


def test_survives_json():
    deployment = deploy(tensor_parallel_size=2, flags={"max_num_seqs": 8})
    assert msgspec.json.decode(msgspec.json.encode(deployment), type=Deployment) == deployment


def test_json_is_checked_too():
    text = msgspec.json.encode(deploy()).replace(b'"tensor_parallel_size":1', b'"tensor_parallel_size":5')
    with pytest.raises((InputError, msgspec.ValidationError), match="8 KV heads"):
        msgspec.json.decode(text, type=Deployment)


def test_resolving_is_cheap():
    deployment = deploy()
    start = time.perf_counter()
    for _ in range(100):
        deployment.resolved()
    assert time.perf_counter() - start < 0.5
