"""Writes the packaged catalog of models: one TOML file a model, holding only the figures that the reader uses.

    python scripts/make_models.py [SHARED_FOLDER]

Figures come from the shared folder's ``data/model_configs`` (its SOURCES.csv says where each is from), and from
`BY_HAND`, shapes that are public knowledge; each of those states the parameters its publisher counts, and the script
fails where the shape does not add up to them.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from inferometer.specs.hf_config import read_config  # noqa: E402
from inferometer.steptime.weights import parameters  # noqa: E402

CHECKED = "2026-11-29"
OUT = ROOT / "src" / "inferometer" / "specs" / "data" / "models"

FROM_FILES = {
    "codellama-34b-instruct": "blis--CodeLlama-34b-Instruct-hf",
    "deepseek-r1": "deepseek-ai--DeepSeek-R1",
    "deepseek-v2-lite": "blis--deepseek-v2-lite",
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
    "deepseek-v3.2": "deepseek-ai--DeepSeek-V3.2",
    "falcon-180b": "tiiuae--falcon-180b",
    "gemma-2-2b": "google--gemma-2-2b",
    "gemma-2-9b": "google--gemma-2-9b",
    "gemma-3-12b": "google--gemma-3-12b",
    "gemma-3-27b": "google--gemma-3-27b",
    "gemma-4-26b-a4b": "google--gemma-4-26B-A4B",
    "gemma-4-26b-a4b-nvfp4": "nvidia--Gemma-4-26B-A4B-NVFP4",
    "gemma-4-31b-it-nvfp4": "nvidia--Gemma-4-31B-IT-NVFP4",
    "glm-5": "zai-org--GLM-5",
    "glm-5-fp8": "zai-org--GLM-5-FP8",
    "glm-5.1": "zai-org--GLM-5.1",
    "glm-5.1-nvfp4": "nvidia--GLM-5.1-NVFP4",
    "glm-5.2": "zai-org--GLM-5.2",
    "glm-5.2-fp8": "zai-org--GLM-5.2-FP8",
    "gpt-oss-120b": "openai--gpt-oss-120b",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "kimi-k2": "moonshotai--Kimi-K2-Instruct",
    "kimi-k2.5": "moonshotai--Kimi-K2.5",
    "kimi-k2.5-nvfp4": "nvidia--Kimi-K2.5-NVFP4",
    "kimi-k2.6-nvfp4": "nvidia--Kimi-K2.6-NVFP4",
    "llama-2-70b": "blis--Llama-2-70b-hf",
    "llama-2-7b": "blis--Llama-2-7b-hf",
    "llama-3.1-405b": "meta-llama--Meta-Llama-3.1-405B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-3.2-3b": "meta-llama--Llama-3.2-3B",
    "llama-3.3-nemotron-super-49b-v1": "nvidia--Llama-3_3-Nemotron-Super-49B-v1",
    "llama-4-maverick-17b-128e": "meta-llama--Llama-4-Maverick-17B-128E-Instruct",
    "llama-4-scout-17b-16e": "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "llama-4-scout-17b-16e-instruct-fp8-dynamic": "blis--llama-4-scout-17b-16e-instruct-fp8-dynamic",
    "mimo-7b": "XiaomiMiMo--MiMo-7B-Base",
    "mimo-v2-flash": "XiaomiMiMo--MiMo-V2-Flash",
    "minimax-m2.5": "MiniMaxAI--MiniMax-M2.5",
    "minimax-m2.5-nvfp4": "nvidia--MiniMax-M2.5-NVFP4",
    "minimax-m2.7": "MiniMaxAI--MiniMax-M2.7",
    "mistral-7b-v0.1": "mistralai--Mistral-7B-v0.1",
    "mistral-nemo": "blis--mistral-nemo-instruct-2407",
    "mixtral-8x22b-v0.1": "mistralai--Mixtral-8x22B-v0.1",
    "mixtral-8x7b-v0.1": "mistralai--Mixtral-8x7B-v0.1",
    "nemotron-h-56b-base-8k": "nvidia--Nemotron-H-56B-Base-8K",
    "nvidia-nemotron-3-nano-30b-a3b": "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nvidia-nemotron-3-super-120b-a12b": "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "nvidia-nemotron-3-ultra-550b-a55b": "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "phi-3-mini-4k": "microsoft--Phi-3-mini-4k-instruct",
    "phi-4": "microsoft--phi-4",
    "phi-mini-moe": "microsoft--Phi-mini-MoE-instruct",
    "qwen2.5-14b": "Qwen--Qwen2.5-14B",
    "qwen2.5-32b": "Qwen--Qwen2.5-32B",
    "qwen2.5-3b": "Qwen--Qwen2.5-3B",
    "qwen2.5-72b": "Qwen--Qwen2.5-72B-Instruct",
    "qwen2.5-7b": "blis--qwen2.5-7b-instruct",
    "qwen3-0.6b": "Qwen--Qwen3-0.6B",
    "qwen3-1.7b": "Qwen--Qwen3-1.7B",
    "qwen3-14b": "Qwen--Qwen3-14B",
    "qwen3-235b-a22b": "Qwen--Qwen3-235B-A22B",
    "qwen3-235b-a22b-fp8": "Qwen--Qwen3-235B-A22B-FP8",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "qwen3-30b-a3b-fp8": "Qwen--Qwen3-30B-A3B-FP8",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-32b-fp8": "Qwen--Qwen3-32B-FP8",
    "qwen3-4b": "Qwen--Qwen3-4B",
    "qwen3-8b": "Qwen--Qwen3-8B",
    "qwen3-coder-480b-a35b": "Qwen--Qwen3-Coder-480B-A35B-Instruct",
    "qwen3-next-80b-a3b": "Qwen--Qwen3-Next-80B-A3B",
    "qwen3-vl-235b-a22b": "Qwen--Qwen3-VL-235B-A22B-Instruct",
    "qwen3-vl-2b": "Qwen--Qwen3-VL-2B-Instruct",
    "qwen3-vl-30b-a3b": "Qwen--Qwen3-VL-30B-A3B-Instruct",
    "qwen3-vl-32b": "Qwen--Qwen3-VL-32B-Instruct",
    "qwen3-vl-4b": "Qwen--Qwen3-VL-4B-Instruct",
    "qwen3-vl-8b": "Qwen--Qwen3-VL-8B-Instruct",
    "qwen3.5-122b-a10b": "Qwen--Qwen3.5-122B-A10B",
    "qwen3.5-122b-a10b-nvfp4": "nvidia--Qwen3.5-122B-A10B-NVFP4",
    "qwen3.5-27b": "Qwen--Qwen3.5-27B",
    "qwen3.5-35b-a3b": "Qwen--Qwen3.5-35B-A3B",
    "qwen3.5-397b-a17b": "Qwen--Qwen3.5-397B-A17B",
    "qwen3.5-397b-a17b-nvfp4": "nvidia--Qwen3.5-397B-A17B-NVFP4",
    "yi-34b": "blis--yi-34b",
}
"""Catalog id and the config file (without .json) it is read from."""

UNQUANTISED = {
    "gemma-4-31b": "nvidia--Gemma-4-31B-IT-NVFP4",
    "kimi-k2.6": "nvidia--Kimi-K2.6-NVFP4",
    "qwen3.6-27b": "nvidia--Qwen3.6-27B-NVFP4",
    "qwen3.6-35b-a3b": "nvidia--Qwen3.6-35B-A3B-NVFP4",
}
"""Shapes known only from a quantised checkpoint's config; the entry leaves its quantisation out."""

_MINE = "public config.json on the Hugging Face hub; recalled, not re-read; adds up to the published parameters"

ADDED: dict[str, tuple[dict[str, Any], str]] = {
    "gemma-2-2b": ({"torch_dtype": "bfloat16"}, _MINE),
    "gemma-3-12b": ({"max_position_embeddings": 131072}, "transformers 4.57 Gemma3TextConfig default"),
    "qwen2.5-72b": ({"max_position_embeddings": 32768}, _MINE),
}
"""Keys that a file lacks, with their own source."""

MAVERICK_TOWER = "blis--llama-4-scout-17b-16e-instruct-fp8-dynamic"
"""Whose vision_config the two Llama 4 files without one are given: both models share the tower."""

SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14, "image_size": 896}
PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 16}


def dense(architecture: str, shape: str, dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    """A config from one line: layers, width, heads, KV heads, intermediate, vocabulary, positions."""
    layers, hidden, heads, kv, inner, vocab, positions = map(int, shape.split())
    plain = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "torch_dtype": dtype,
    }
    return {"architectures": [architecture], **plain, **more}


LLAMA, QWEN2, MISTRAL = "LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"

BY_HAND: dict[str, tuple[dict[str, Any], float]] = {
    "deepseek-coder-33b": (dense(LLAMA, "62 7168 56 8 19200 32256 16384"), 33.34),
    "deepseek-coder-6.7b": (dense(LLAMA, "32 4096 32 32 11008 32256 16384"), 6.740),
    "deepseek-llm-67b": (dense(LLAMA, "95 8192 64 8 22016 102400 4096"), 67.42),
    "deepseek-v2": (
        dense(
            "DeepseekV2ForCausalLM", "60 5120 128 128 12288 102400 163840",
            q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
            n_routed_experts=160, n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1536,
            first_k_dense_replace=1, moe_layer_freq=1,
        ),
        235.7,
    ),
    "gemma-2-27b": (
        dense("Gemma2ForCausalLM", "46 4608 32 16 36864 256000 8192", head_dim=128, sliding_window=4096), 27.227,
    ),
    "gemma-2b": (dense("GemmaForCausalLM", "18 2048 8 1 16384 256000 8192", head_dim=256), 2.506),
    "gemma-3-1b": (
        dense("Gemma3ForCausalLM", "26 1152 4 1 6912 262144 32768", head_dim=256, sliding_window=512,
              sliding_window_pattern=6),
        1.000,
    ),
    "gemma-3-4b": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": dense("", "34 2560 8 4 10240 262208 131072", head_dim=256, sliding_window=1024,
                                 sliding_window_pattern=6),
            "vision_config": SIGLIP,
        },
        3.880,
    ),
    "gemma-7b": (dense("GemmaForCausalLM", "28 3072 16 16 24576 256000 8192", head_dim=256), 8.538),
    "glm-4.5": (
        dense("Glm4MoeForCausalLM", "92 5120 96 8 12288 151552 131072", head_dim=128, attention_bias=True,
              use_qk_norm=True, partial_rotary_factor=0.5, n_routed_experts=160, n_shared_experts=1,
              num_experts_per_tok=8, moe_intermediate_size=1536, first_k_dense_replace=3),
        352.8,
    ),
    "glm-4.5-air": (
        dense("Glm4MoeForCausalLM", "46 4096 96 8 10944 151552 131072", head_dim=128, attention_bias=True,
              use_qk_norm=False, partial_rotary_factor=0.5, n_routed_experts=128, n_shared_experts=1,
              num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1),
        106.85,
    ),
    "granite-3.1-2b": (
        dense("GraniteForCausalLM", "40 2048 32 8 8192 49155 131072", tie_word_embeddings=True), 2.534,
    ),
    "granite-3.1-8b": (
        dense("GraniteForCausalLM", "40 4096 32 8 12800 49155 131072", tie_word_embeddings=True), 8.171,
    ),
    "kimi-linear-48b-a3b": (
        dense("KimiLinearForCausalLM", "27 2304 32 32 9216 163840 1048576",
              kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
              num_experts=256, num_shared_experts=1, num_experts_per_token=8, moe_intermediate_size=1024,
              first_k_dense_replace=1,
              linear_attn_config={"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                                  "short_conv_kernel_size": 4}),
        49.12,
    ),
    "llama-2-13b": (dense(LLAMA, "40 5120 40 40 13824 32000 4096", "float16"), 13.016),
    "llama-3-70b": (dense(LLAMA, "80 8192 64 8 28672 128256 8192"), 70.55),
    "llama-3-8b": (dense(LLAMA, "32 4096 32 8 14336 128256 8192"), 8.030),
    "llama-3.2-1b": (
        dense(LLAMA, "16 2048 32 8 8192 128256 131072", head_dim=64, tie_word_embeddings=True), 1.236,
    ),
    "minimax-text-01": (
        dense("MiniMaxText01ForCausalLM", "80 6144 64 8 9216 200064 10240000", head_dim=128, rotary_dim=64,
              num_local_experts=32, num_experts_per_tok=2,
              attn_type_list=[1 if (i + 1) % 8 == 0 else 0 for i in range(80)]),
        456.1,
    ),
    "mistral-7b-v0.3": (dense(MISTRAL, "32 4096 32 8 14336 32768 32768"), 7.248),
    "mistral-large-2407": (dense(MISTRAL, "88 12288 96 8 28672 32768 131072", head_dim=128), 122.61),
    "mistral-small-3.1-24b": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "spatial_merge_size": 2,
            "text_config": dense("", "40 5120 32 8 32768 131072 131072", head_dim=128),
            "vision_config": PIXTRAL,
        },
        23.572,
    ),
    "opt-125m": (dense("OPTForCausalLM", "12 768 12 12 3072 50272 2048", "float16"), 0.1252),
    "opt-6.7b": (dense("OPTForCausalLM", "32 4096 32 32 16384 50272 2048", "float16"), 6.658),
    "phi-2": (dense("PhiForCausalLM", "32 2560 32 32 10240 51200 2048", "float16", partial_rotary_factor=0.4), 2.780),
    "phi-4-mini": (
        dense("Phi3ForCausalLM", "32 3072 24 8 8192 200064 131072", tie_word_embeddings=True,
              partial_rotary_factor=0.75),
        3.836,
    ),
    "qwen1.5-moe-a2.7b": (
        dense("Qwen2MoeForCausalLM", "24 2048 16 16 5632 151936 8192", num_experts=60, num_experts_per_tok=4,
              moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1),
        14.316,
    ),
    "qwen2-57b-a14b": (
        dense("Qwen2MoeForCausalLM", "28 3584 28 4 18944 151936 131072", num_experts=64, num_experts_per_tok=8,
              moe_intermediate_size=2560, shared_expert_intermediate_size=20480, decoder_sparse_step=1),
        57.41,
    ),
    "qwen2-72b": (dense(QWEN2, "80 8192 64 8 29568 152064 32768"), 72.706),
    "qwen2-7b": (dense(QWEN2, "28 3584 28 4 18944 152064 32768"), 7.616),
    "qwen2.5-0.5b": (dense(QWEN2, "24 896 14 2 4864 151936 32768", tie_word_embeddings=True), 0.494),
    "qwen2.5-1.5b": (dense(QWEN2, "28 1536 12 2 8960 151936 32768", tie_word_embeddings=True), 1.544),
    "smollm2-1.7b": (dense(LLAMA, "24 2048 32 32 8192 49152 8192", tie_word_embeddings=True), 1.711),
    "smollm2-135m": (dense(LLAMA, "30 576 9 3 1536 49152 8192", tie_word_embeddings=True), 0.1345),
    "tinyllama-1.1b": (dense(LLAMA, "22 2048 32 4 5632 32000 2048"), 1.100),
    "yi-6b": (dense(LLAMA, "32 4096 32 4 11008 64000 4096"), 6.061),
}  # fmt: skip
"""Public shapes that the shared folder lacks: the config, and the publisher's count of the text model in billions."""


def main() -> None:
    shared = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT.parent / "shared")
    folder = shared / "data" / "model_configs"
    with (folder / "SOURCES.csv").open() as file:
        sources = {row["file"].removesuffix(".json"): row["source"] for row in csv.DictReader(file)}
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.toml"):
        old.unlink()
    for id, file in sorted({**FROM_FILES, **UNQUANTISED}.items()):
        config = from_file(folder, id, file)
        write(id, config, sources[file], exceptions(id, file, sources))
    for id, (config, billions) in sorted(BY_HAND.items()):
        counted = parameters(read_config(config, id)) / 1e9
        if abs(counted / billions - 1) > 2e-3:
            raise SystemExit(f"{id}: the shape adds up to {counted:.4f} billion parameters, {billions} are published")
        write(id, config, _MINE, {})
    print(f"{len(list(OUT.glob('*.toml')))} models in {OUT}")


def from_file(folder: Path, id: str, file: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / f"{file}.json").read_text())
    if id in UNQUANTISED:
        config.pop("quantization_config", None)
    if config["architectures"] == ["Llama4ForConditionalGeneration"] and "vision_config" not in config:
        config["vision_config"] = json.loads((folder / f"{MAVERICK_TOWER}.json").read_text())["vision_config"]
    if id in ADDED:
        config |= ADDED[id][0]
    return config


def exceptions(id: str, file: str, sources: dict[str, str]) -> dict[str, str]:
    found = {}
    if id in ADDED:
        found |= dict.fromkeys(ADDED[id][0], ADDED[id][1])
    if id.startswith("llama-4") and file != MAVERICK_TOWER:
        found["vision_config"] = sources[MAVERICK_TOWER]
    if id in UNQUANTISED:
        found["quantization_config"] = "left out: this is the base of the quantised checkpoint named as source"
    return found


def write(id: str, config: dict[str, Any], source: str, figure_sources: dict[str, str]) -> None:
    read: set[str] = set()
    model = read_config(config, id, read)
    kept = trim(keep(config, read))
    again = read_config(kept, id)
    if msgspec.structs.replace(again, sources={}) != msgspec.structs.replace(model, sources={}):
        raise SystemExit(f"{id}: the trimmed entry reads otherwise than its config")
    head = {"source": source, "checked": CHECKED}
    tables = {"figure_sources": figure_sources} if figure_sources else {}
    (OUT / f"{id}.toml").write_text("\n".join(lines({**head, **kept, **tables})) + "\n")


def keep(config: dict[str, Any], read: set[str], path: str = "") -> dict[str, Any]:
    """The keys that the reader looked at, where they hold something."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if path + key not in read or value is None:
            continue
        deeper = any(r.startswith(f"{path}{key}.") for r in read)
        kept[key] = keep(value, read, f"{path}{key}.") if isinstance(value, dict) and deeper else value
    return kept


def trim(config: dict[str, Any]) -> dict[str, Any]:
    """Long lists cut to what they say: Puzzle's blocks, ignore lists, rotary parameters."""
    for table in (config, config.get("text_config", {})):
        if "block_configs" in table:
            table["block_configs"] = [slim_block(b) for b in table["block_configs"]]
        if isinstance(table.get("rope_parameters"), dict):
            share = table["rope_parameters"].get("partial_rotary_factor")
            table.pop("rope_parameters")
            if share is not None:
                table["rope_parameters"] = {"partial_rotary_factor": share}
        quantization = table.get("quantization_config", {})
        for key in ("ignore", "modules_to_not_convert"):
            if key in quantization:
                quantization[key] = collapse(quantization[key])
        if "producer" in quantization:
            quantization["producer"] = {"name": quantization["producer"]["name"]}
        for group in quantization.get("config_groups", {}).values():
            group.pop("targets", None)
            for part in ("weights", "input_activations"):
                used = {"type", "num_bits", "group_size", "block_structure", "symmetric"}
                stated = group.get(part) or {}
                group[part] = {k: v for k, v in stated.items() if k in used and v is not None}
            group.pop("output_activations", None)
    return config


def slim_block(block: dict[str, Any]) -> dict[str, Any]:
    attention, ffn = block["attention"], block["ffn"]
    slim: dict[str, Any] = {"attention": {"no_op": attention["no_op"]}, "ffn": {"no_op": ffn["no_op"]}}
    if not attention["no_op"]:
        slim["attention"]["n_heads_in_group"] = attention["n_heads_in_group"]
    if not ffn["no_op"]:
        slim["ffn"]["ffn_mult"] = ffn["ffn_mult"]
    return slim


def collapse(patterns: list[str]) -> list[str]:
    """Patterns that differ in the layer alone, as one, where there are more than 20 of them; other towers dropped."""
    alike: dict[str, list[str]] = defaultdict(list)
    for pattern in patterns:
        if not re.search(r"vision|visual|mtp", pattern):
            alike[re.sub(r"layers\.\d+", "layers.*", pattern)].append(pattern)
    return [p for star, same in alike.items() for p in ([star] if len(same) > 20 else same)]


def lines(table: dict[str, Any], path: str = "") -> list[str]:
    """TOML: scalars first, then sub-tables."""
    plain = [f"{key_of(k)} = {literal(v)}" for k, v in table.items() if not isinstance(v, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            plain += ["", f"[{path}{key_of(key)}]", *lines(value, f"{path}{key_of(key)}.")]
    return plain


def key_of(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key_of(k)} = {literal(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    main()
