from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import InputError, UnitError, UnknownNameError
from inferometer.specs.chip import chip
from inferometer.specs.engine import (
    EngineFlags,
    cudagraph_sizes,
    engines,
    resolve_flags,
    resolve_version,
)
from inferometer.specs.model import Block, Mlp, Model, Recurrent

MODEL = Model(name="m", layers=32, kv_heads=8, head_dim=128, max_position_embeddings=40960)
A100, H100 = chip("a100-sxm4-80gb"), chip("h100-sxm-80gb")
OTHER = {
    "block_size", "num_gpu_blocks_override", "kv_cache_memory_bytes", "long_prefill_token_threshold", "enforce_eager",
    "mamba_cache_dtype", "mamba_ssm_cache_dtype",
}  # fmt: skip


def resolve(version: str = "", on: str = "a100-sxm4-80gb", model: Model = MODEL, **flags: Any) -> EngineFlags:
    return resolve_flags("vllm", version, chip(on), model, flags)


def graphs(largest: int, eager: bool = False) -> EngineFlags:
    return EngineFlags(
        max_num_seqs=1,
        max_num_batched_tokens=1,
        max_model_len=1,
        max_cudagraph_capture_size=largest,
        enforce_eager=eager,
    )


@pytest.mark.parametrize(
    ("id", "version", "tokens", "seqs"),
    [
        ("a100-sxm4-80gb", "0.32.0", 2048, 256),
        ("a100-pcie-80gb", "0.19.0", 2048, 256),
        ("h100-sxm-80gb", "0.32.0", 8192, 1024),
        ("h200-sxm-141gb", "0.32.0", 8192, 1024),
        ("rtx-pro-6000", "0.19.0", 8192, 1024),
        ("l40s", "0.32.0", 2048, 256),
        ("rtx-4090", "0.32.0", 2048, 256),
        ("b200-sxm-180gb", "0.32.0", 16384, 1024),
        ("b200-sxm-180gb", "0.26.0", 8192, 1024),
        ("mi300x", "0.32.0", 16384, 1024),
        ("mi300x", "0.31.2", 8192, 1024),
    ],
)
def test_batch_defaults_follow_memory_name_and_version(id: str, version: str, tokens: int, seqs: int):
    flags = resolve(version, id)
    assert (flags.max_num_batched_tokens, flags.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("version", "utilization", "subtract", "reserve", "asynchronous"),
    [
        ("0.8.5", 0.9, False, False, False),
        ("0.12.0", 0.9, False, False, False),
        ("0.14.0", 0.9, False, False, True),
        ("0.18.0", 0.9, False, False, True),
        ("0.19.0", 0.9, False, True, True),
        ("0.20.0", 0.92, True, True, True),
        ("0.26.0", 0.92, True, True, True),
        ("", 0.92, True, True, True),
    ],
)
def test_defaults_by_version(version: str, utilization: float, subtract: bool, reserve: bool, asynchronous: bool):
    flags = resolve(version)
    assert flags.gpu_memory_utilization == utilization
    assert flags.subtract_cudagraph_memory is subtract
    assert flags.scheduler_reserve_full_isl is reserve
    assert flags.async_scheduling is asynchronous
    assert flags.enable_prefix_caching
    assert flags.enable_chunked_prefill
    assert flags.block_size == 16
    assert flags.watermark == 0


def test_a_preset_sets_every_default_of_the_newest_version_as_the_struct_does():
    # EngineFlags' own defaults are the newest preset's, so that a hand-made one is not of another version.
    bare = EngineFlags(max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=40960)
    assert resolve() == bare


def test_the_users_flags_win():
    given_flags = {
        "max_num_seqs": 64, "max_num_batched_tokens": 512, "max_model_len": 8192, "gpu_memory_utilization": 0.5,
        "block_size": 32, "num_gpu_blocks_override": 1000, "kv_cache_memory_bytes": 2**30,
        "enable_prefix_caching": False, "enable_chunked_prefill": True, "long_prefill_token_threshold": 100,
        "scheduler_reserve_full_isl": False, "async_scheduling": False, "watermark": 0.01, "enforce_eager": False,
        "max_cudagraph_capture_size": 64, "subtract_cudagraph_memory": False, "mamba_cache_dtype": "float32",
        "mamba_ssm_cache_dtype": "float32",
    }  # fmt: skip
    flags = resolve(**given_flags)
    assert {key: getattr(flags, key) for key in given_flags} == given_flags
    assert set(given_flags) == set(EngineFlags.__struct_fields__)


def test_flags_may_be_written_with_dashes():
    assert resolve_flags("vllm", "", A100, MODEL, {"max-num-seqs": 8}).max_num_seqs == 8
    assert resolve_flags("vllm", "", A100, MODEL, {"--max-num-seqs": 8}).max_num_seqs == 8
    with pytest.raises(InputError, match="max_num_seqs is given twice"):
        resolve_flags("vllm", "", A100, MODEL, {"max-num-seqs": 8, "max_num_seqs": 9})


def test_none_means_the_default():
    assert resolve(num_gpu_blocks_override=None, max_num_seqs=None, max_model_len=None) == resolve()


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("max_num_sequences", "did you mean max_num_seqs"),
        ("gpu_memory_utilisation", "did you mean gpu_memory_utilization"),
        ("tensor_parallel_size", "argument of the deployment"),
        ("tensor-parallel-sizes", "did you mean tensor_parallel_size"),
        ("zzz", "known: async_scheduling"),
    ],
)
def test_unknown_flag_is_named_with_the_closest(flag: str, hint: str):
    with pytest.raises(InputError, match=f"{flag}.*{hint}") as caught:
        resolve_flags("vllm", "", A100, MODEL, {flag: 4})
    assert caught.value.field == flag


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", 2.5),
        ("max_num_seqs", True),
        ("max_num_seqs", "many"),
        ("max_num_batched_tokens", -1),
        ("max_model_len", 0),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", None),
        ("gpu_memory_utilization", "0.9"),
        ("gpu_memory_utilization", float("nan")),
        ("block_size", 0),
        ("num_gpu_blocks_override", 0),
        ("kv_cache_memory_bytes", 0),
        ("enable_prefix_caching", 1),
        ("enforce_eager", "yes"),
        ("watermark", -0.1),
        ("long_prefill_token_threshold", -1),
        ("mamba_cache_dtype", "fp8"),
    ],
)
def test_wrong_value_is_refused_by_name(flag: str, value: object):
    with pytest.raises(InputError, match=f"^{flag}: ") as caught:
        resolve(**{flag: value})
    assert caught.value.field == flag


def test_kv_cache_memory_takes_units():
    assert resolve(kv_cache_memory_bytes="20 GiB").kv_cache_memory_bytes == 20 * 2**30
    with pytest.raises(UnitError, match="kv_cache_memory_bytes"):
        resolve(kv_cache_memory_bytes="20G")


def test_a_flag_is_refused_before_its_release():
    assert resolve("0.24.0", watermark=0.02).watermark == 0.02
    with pytest.raises(InputError, match=r"watermark: vllm 0\.22\.0 has no such flag; it came with 0\.24"):
        resolve("0.22.0", watermark=0.02)
    with pytest.raises(InputError, match=r"came with 0\.19"):
        resolve("0.18.0", scheduler_reserve_full_isl=True)


# --- how vLLM reconciles the two batch limits ------------------------------------------------------------------------


def test_a_small_budget_lowers_a_default_number_of_sequences():
    assert resolve(max_num_batched_tokens=64).max_num_seqs == 64


def test_a_default_budget_is_capped_at_what_the_sequences_can_hold():
    assert resolve(max_num_seqs=1, max_model_len=1000).max_num_batched_tokens == 1000


def test_contradicting_limits_are_refused():
    with pytest.raises(InputError, match="max_num_batched_tokens 64 is below max_num_seqs 128"):
        resolve(max_num_seqs=128, max_num_batched_tokens=64)
    with pytest.raises(InputError, match=r"2048 \(the default for this chip\) is below max_num_seqs 4096"):
        resolve(max_num_seqs=4096)


def test_without_chunks_a_whole_prompt_must_fit():
    assert resolve(enable_chunked_prefill=False).max_num_batched_tokens == 40960
    assert resolve(enable_chunked_prefill=False, max_model_len=1024).max_num_batched_tokens == 2048
    with pytest.raises(InputError, match="4096 is below max_model_len 40960 with enable_chunked_prefill off"):
        resolve(enable_chunked_prefill=False, max_num_batched_tokens=4096)


def test_longest_context_is_the_models_or_a_fallback():
    assert resolve().max_model_len == 40960
    assert resolve(model=Model(name="lab", layers=80)).max_model_len == 8192
    assert resolve(max_model_len=100).max_model_len == 100


def test_prefix_caching_is_off_by_default_with_recurrent_layers():
    mixer = Recurrent(
        kind="mamba2", parameters=1, conv_state_elements=1, ssm_state_elements=1, heads=8, flops_per_token=1
    )
    hybrid = Model(name="h", layers=1, blocks=(Block(count=1, mixer=mixer, mlp=Mlp(intermediate_size=8)),))
    assert not resolve(model=hybrid).enable_prefix_caching
    assert resolve(model=hybrid, enable_prefix_caching=True).enable_prefix_caching


# --- versions --------------------------------------------------------------------------------------------------------


def test_newest_version_is_the_default():
    assert resolve_version("vllm") == "0.32.0"
    assert resolve("0.32.0") == resolve("")


@pytest.mark.parametrize("version", ["0.8.5", "v0.11.0", "0.11.0rc2", "0.10.1.1", "0.19.0+cu128", "0.23", "0.32.1"])
def test_releases_between_first_and_last_are_known(version: str):
    assert resolve_version("vllm", version) == version


@pytest.mark.parametrize("version", ["0.1.0", "0.7.3", "9.9", "1.0.0", "latest", "0", "0.26.x0 beta", 0.26])
def test_other_versions_are_refused_with_the_range(version: Any):
    with pytest.raises(InputError, match=r"engine_version.*vllm release from 0\.8 to 0\.32"):
        resolve_version("vllm", version)


def test_ten_comes_after_nine():
    assert resolve("0.9.2") == resolve("0.10.0")


def test_unknown_engine_lists_the_known():
    assert engines() == ["vllm"]
    with pytest.raises(UnknownNameError, match="unknown engine 'vlm'; did you mean vllm"):
        resolve_flags("vlm", "", A100, MODEL, {})
    with pytest.raises(UnknownNameError, match="unknown engine 'static'; known: vllm"):
        resolve_version("static")


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "version", "flags", "largest"),
    [
        ("a100-sxm4-80gb", "0.32.0", {}, 512),
        ("a100-sxm4-80gb", "0.32.0", {"max_num_seqs": 64}, 128),
        ("a100-sxm4-80gb", "0.32.0", {"max_num_seqs": 5}, 8),
        ("a100-sxm4-80gb", "0.32.0", {"max_num_seqs": 1}, 2),
        ("a100-sxm4-80gb", "0.32.0", {"max_num_batched_tokens": 100}, 96),
        ("a100-sxm4-80gb", "0.32.0", {"enforce_eager": True}, 0),
        ("a100-sxm4-80gb", "0.32.0", {"max_cudagraph_capture_size": 2000}, 2000),
        ("b200-sxm-180gb", "0.32.0", {}, 1024),
        ("b200-sxm-180gb", "0.26.0", {}, 512),
        ("rtx-5090", "0.32.0", {}, 512),
        ("h100-sxm-80gb", "0.32.0", {}, 512),
    ],
)
def test_largest_graph(id: str, version: str, flags: dict[str, Any], largest: int):
    resolved = resolve(version, id, **flags)
    assert resolved.max_cudagraph_capture_size == largest
    assert max(cudagraph_sizes(resolved), default=0) == largest


def test_graph_sizes_are_the_engines():
    sizes = cudagraph_sizes(graphs(512))
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-1] == 512
    assert {240, 248, 256, 272} <= set(sizes)
    assert 264 not in sizes
    assert len(sizes) == 51
    assert cudagraph_sizes(graphs(512, eager=True)) == ()


@given(
    seqs=st.none() | st.integers(1, 5000),
    budget=st.none() | st.integers(1, 20_000),
    length=st.none() | st.integers(1, 50_000),
    chunks=st.booleans(),
    eager=st.booleans(),
    version=st.sampled_from(["0.8.5", "0.19.0", "0.26.0", "0.32.0"]),
    on=st.sampled_from(["a100-sxm4-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "t4"]),
)
def test_resolved_limits_never_contradict_each_other(seqs, budget, length, chunks, eager, version, on):
    try:
        flags = resolve(
            version, on, max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=length,
            enable_chunked_prefill=chunks, enforce_eager=eager,
        )  # fmt: skip
    except InputError:
        assert seqs or budget, "defaults alone never contradict each other"
        return
    assert flags.max_num_seqs <= flags.max_num_batched_tokens
    assert chunks or flags.max_model_len <= flags.max_num_batched_tokens
    assert flags.max_cudagraph_capture_size <= flags.max_num_batched_tokens
    assert flags.max_num_seqs == (seqs or flags.max_num_seqs)
    assert flags.max_num_batched_tokens == (budget or flags.max_num_batched_tokens)
    assert (flags.max_cudagraph_capture_size == 0) is eager
