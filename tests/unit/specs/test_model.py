"""Reading a model: names, configs, quantisation, and what is refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shared import shared

from inferometer.errors import ConfigError, InputError, UnknownNameError
from inferometer.specs import catalog
from inferometer.specs.model import Attention, Mla, Mlp, Model, Moe, Recurrent, model
from inferometer.steptime.ops import kv_bytes_per_token
from inferometer.steptime.weights import active_parameters, parameters, weight_bytes

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in LLAMA.items() if k != key}


# ---------------------------------------------------------------- known totals (engines.md section 5, model cards)


@pytest.mark.parametrize(
    ("name", "billions", "gigabytes"),
    [
        ("Qwen/Qwen3-8B", 8.191, 16.38),
        ("meta-llama/Llama-3.1-8B", 8.030, 16.06),
        ("meta-llama/Llama-3.1-70B", 70.55, 141.1),
        ("meta-llama/Llama-3.1-70B-Instruct-FP8-dynamic", 70.55, 72.7),
        ("meta-llama/Llama-3.1-70B-Instruct-AWQ", 70.55, 39.8),
        ("mistralai/Mixtral-8x7B-v0.1", 46.70, 93.4),
        ("deepseek-ai/DeepSeek-V3", 671.0, 673.0),
        ("google/gemma-3-27b", 27.01, 54.0),
        ("openai/gpt-oss-120b", 116.8, 65.2),
        ("google/gemma-2-2b", 2.614, 5.23),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", 31.58, 63.2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79.67, 159.3),
        ("moonshotai/Kimi-K2-Instruct", 1026.0, 1029.0),
    ],
)
def test_parameters_and_bytes_of_known_models(name: str, billions: float, gigabytes: float) -> None:
    found = model(name)
    assert parameters(found) / 1e9 == pytest.approx(billions, rel=1e-3)
    assert weight_bytes(found) / 1e9 == pytest.approx(gigabytes, rel=4e-3)


def test_qwen3_8b_weighs_what_the_founding_document_says() -> None:
    assert weight_bytes(model("Qwen/Qwen3-8B")) == pytest.approx(16.38e9, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "billions_with_embedding"),
    [("mistralai/Mixtral-8x7B-v0.1", 12.88), ("deepseek-ai/DeepSeek-V3", 37.55), ("openai/gpt-oss-120b", 5.71 + 0.04)],
)
def test_active_parameters(name: str, billions_with_embedding: float) -> None:
    found = model(name)
    embedding = found.vocab_size * found.hidden_size
    assert (active_parameters(found) + embedding) / 1e9 == pytest.approx(billions_with_embedding, rel=3e-3)


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("Qwen/Qwen3-8B", 147_456),
        ("meta-llama/Llama-3.1-70B", 327_680),
        ("mistralai/Mixtral-8x7B-v0.1", 131_072),
        ("deepseek-ai/DeepSeek-V3", 70_272),
        ("google/gemma-3-27b", 507_904),
        ("openai/gpt-oss-120b", 73_728),
    ],
)
def test_kv_bytes_per_token(name: str, bytes_per_token: int) -> None:
    assert kv_bytes_per_token(model(name)) == bytes_per_token


# ---------------------------------------------------------------- the catalog and its names


def test_every_entry_reads_and_states_its_source() -> None:
    ids = catalog.names("models")
    assert len(ids) >= 60
    for id in ids:
        found = model(id)
        assert found.name == id
        assert sum(b.count for b in found.blocks) == found.layers > 0, id
        assert found.sources[""].source, id
        assert found.sources[""].checked == "2026-11-29", id


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("moonshotai/Kimi-Dev-72B", "qwen2.5-72b"),
        ("google/gemma-2-27b-it", "gemma-2-27b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("QWEN3_8b", "qwen3-8b"),
    ],
)
def test_names_that_are_one_shape(name: str, same: str) -> None:
    found, base = model(name), model(same)
    assert found.name == name
    assert (found.blocks, found.vocab_size, found.quantization) == (base.blocks, base.vocab_size, base.quantization)


@pytest.mark.parametrize(
    ("name", "weights", "activations"),
    [
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "fp8", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "int8", "int8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "int4", "bf16"),
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", "int4", "bf16"),
        ("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4", "int4", "bf16"),
        ("nvidia/Llama-3.1-70B-Instruct-NVFP4", "nvfp4", "fp4"),
        ("Qwen/Qwen3-8B-FP8", "fp8", "fp8"),
    ],
)
def test_a_suffix_is_the_base_in_that_format(name: str, weights: str, activations: str) -> None:
    quantization = model(name).quantization
    assert quantization is not None
    assert (quantization.weights, quantization.activations) == (weights, activations)


def test_nvfp4_leaves_a_mixtures_attention_alone_and_a_dense_models_not() -> None:
    mixture, plain = model("nvidia/Qwen3-235B-A22B-NVFP4").quantization, model("nvidia/Qwen3-32B-NVFP4").quantization
    assert mixture is not None
    assert plain is not None
    assert (mixture.attention, plain.attention) == (False, True)


def test_an_unknown_name_suggests_close_ones() -> None:
    with pytest.raises(UnknownNameError, match="qwen3-8b"):
        model("Qwen3-8")


def test_without_a_hub_library_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UnknownNameError, match="huggingface_hub is not installed"):
        model("nobody/unheard-of-9b")


def test_the_hub_comes_after_the_catalog_and_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def hf_hub_download(name: str, file: str) -> str:
            raise OSError("no network\nsecond line")

    monkeypatch.setattr(importlib, "import_module", lambda name: Hub)
    assert model("Qwen/Qwen3-8B").layers == 36
    with pytest.raises(UnknownNameError, match="no network") as error:
        model("nobody/unheard-of-9b")
    assert "second line" not in str(error.value)


def test_the_users_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "qwen3-8b.json").write_text(json.dumps(LLAMA))
    (tmp_path / "models" / "lab.toml").write_text(
        "weight_bytes = 140000000000\nlayers = 80\nkv_heads = 8\nhead_dim = 128\n"
    )
    monkeypatch.setenv("INFEROMETER_CATALOG", str(tmp_path))
    assert model("Qwen/Qwen3-8B").layers == 2
    assert model("lab").weight_bytes == 140_000_000_000


# ---------------------------------------------------------------- files and dicts


def test_a_path_a_folder_and_a_dict_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file, by_dict = model(str(folder)), model(folder / "config.json"), model(LLAMA)
    assert by_folder == by_file
    assert by_folder.name == "my-llama"
    assert by_folder.blocks == by_dict.blocks


def test_a_path_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json that exists"):
        model(tmp_path / "config.json")


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "torch_dtype"]
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        model(without(key))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "compressed sparse attention"),
        ({"architectures": None, "model_type": "mystery"}, "mystery"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"num_attention_heads": 5}, "no multiple"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"torch_dtype": "float8"}, "float8"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits is 3"),
        ({"architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "layer_types": ["full_attention"]}, "layer_types"),
        ({"vision_config": {}}, "vision_config"),
    ],
)
def test_what_is_not_modelled_or_contradicts_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model({**LLAMA, **changed})


def test_the_shared_configs_either_read_or_say_why_not() -> None:
    refused = {}
    for file in sorted(shared("data/model_configs").glob("*.json")):
        try:
            assert parameters(model(file)) > 0
        except ConfigError as error:
            refused[file.stem] = str(error)
    assert all("not modelled" in why or "torch_dtype is missing" in why for why in refused.values()), refused
    expected = ("MiniMax-M3", "DeepSeek-V4", "Kimi-K3", "Step-3.7", "Qwen3.6", "gemma-2-2b")
    assert all(any(e in name for e in expected) for name in refused), refused


# ---------------------------------------------------------------- layers by architecture


def test_gemma_3_has_five_windows_to_one() -> None:
    found = model("gemma-3-27b")
    windows = [b.mixer.window for b in found.blocks for _ in range(b.count) if isinstance(b.mixer, Attention)]
    assert len(windows) == 62
    assert windows.count(None) == 10
    assert windows[:6] == [1024] * 5 + [None]


def test_llama_4_attends_in_chunks_and_alternates_experts() -> None:
    found = model("llama-4-maverick-17b-128e")
    layers = [b for b in found.blocks for _ in range(b.count)]
    assert [isinstance(b.mixer, Attention) and b.mixer.window for b in layers[:4]] == [8192] * 3 + [None]
    assert [isinstance(b.mlp, Moe) for b in layers[:2]] == [False, True]
    assert found.extra_parameters["vision_tower"] > 8e8


def test_deepseek_has_latents_dense_layers_first_and_an_indexer_in_3_2() -> None:
    found = model("deepseek-v3.2")
    first, rest = found.blocks
    assert isinstance(first.mlp, Mlp)
    assert first.count == 3
    assert isinstance(rest.mlp, Moe)
    assert rest.mlp.shared_intermediate_size == 2048
    assert isinstance(rest.mixer, Mla)
    assert (rest.mixer.index_heads, rest.mixer.index_topk) == (64, 2048)


def test_recurrent_layers_have_fixed_state() -> None:
    for name, kind, count in (
        ("qwen3-next-80b-a3b", "gated-delta", 36),
        ("nvidia-nemotron-3-nano-30b-a3b", "mamba2", 23),
        ("minimax-text-01", "lightning", 70),
        ("kimi-linear-48b-a3b", "kda", 20),
    ):
        mixers = [(b.count, b.mixer) for b in model(name).blocks if isinstance(b.mixer, Recurrent)]
        assert sum(n for n, _ in mixers) == count, name
        assert {m.kind for _, m in mixers} == {kind}
        assert all(m.ssm_state_elements > 0 for _, m in mixers)


def test_gemma_3n_shares_the_cache_of_earlier_layers() -> None:
    config = {
        **LLAMA,
        "architectures": ["Gemma3nForCausalLM"],
        "num_hidden_layers": 10,
        "head_dim": 16,
        "sliding_window": 512,
        "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 4,
        "laurel_rank": 4,
        "vocab_size_per_layer_input": 900,
    }
    found = model(config)
    shared_layers = sum(b.count for b in found.blocks if isinstance(b.mixer, Attention) and b.mixer.kv_shared)
    assert shared_layers == 4
    assert kv_bytes_per_token(found) == 6 * 2 * 2 * 16 * 2
    assert found.extra_parameters["per_layer_embeddings"] == 900 * 10 * 8


def test_nemotron_h_refuses_a_pattern_that_contradicts_the_count() -> None:
    config = {**LLAMA, "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M*-"}
    with pytest.raises(ConfigError, match="pattern has 3 layers"):
        model(config)


def test_quantization_reads_ignore_lists_by_part() -> None:
    kimi, gpt = model("kimi-k2.5").quantization, model("gpt-oss-20b").quantization
    assert kimi is not None
    assert gpt is not None
    assert (kimi.weights, kimi.group_size, kimi.attention, kimi.shared_experts) == ("int4", 32, False, False)
    assert (gpt.weights, gpt.group_size, gpt.scale_bytes, gpt.experts_only) == ("mxfp4", 32, 1, True)


def test_norms_in_an_ignore_list_leave_attention_quantised() -> None:
    found = model("qwen3-235b-a22b-fp8").quantization
    assert found is not None
    assert (found.attention, found.block) == (True, (128, 128))


@given(
    layers=st.integers(1, 6),
    heads=st.sampled_from([2, 4, 8]),
    ratio=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([8, 16]),
    inner=st.integers(1, 300),
    vocab=st.integers(1, 5000),
    tied=st.booleans(),
)
def test_a_dense_model_counts_as_the_formula_says(
    layers: int, heads: int, ratio: int, head_dim: int, inner: int, vocab: int, tied: bool
) -> None:
    hidden, kv = 96, heads // ratio
    config = {
        **LLAMA,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    per_layer = 2 * hidden * heads * head_dim + 2 * hidden * kv * head_dim + 3 * hidden * inner + 2 * hidden
    expected = layers * per_layer + vocab * hidden * (1 if tied else 2) + hidden
    found = model(config)
    assert parameters(found) == expected
    assert weight_bytes(found) == 2 * expected
    assert kv_bytes_per_token(found) == layers * 2 * kv * head_dim * 2


def test_a_model_by_its_few_figures_has_no_parameters_to_count() -> None:
    lab = Model(name="lab", weight_bytes=10, layers=2, kv_heads=1, head_dim=8)
    assert weight_bytes(lab) == 10
    with pytest.raises(InputError, match="few figures"):
        parameters(lab)
    with pytest.raises(InputError, match="weight_bytes"):
        weight_bytes(Model(name="lab", layers=2))
