"""Each term of a step priced alone: all other constants are made free, and the seconds are computed by hand.

Shapes are those of the models' config.json, rates those of the data sheets, formulas the step-time study's.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
import pytest

import inferometer as im
from inferometer.steptime.costs import TICKS_PER_S, SheetModel, StepCosts, peak_flops_per_s, sheet_costs
from inferometer.steptime.efficiencies import Bound, Efficiencies, efficiencies

Step = Callable[[StepCosts], float]

SHARES = {
    "weight_read", "mfu", "expert_read", "mfu_expert", "kv_read", "kv_read_mixed", "chunk_kv_read", "mla_read",
    "mfu_mla", "mfu_attention", "link_share",
}  # fmt: skip
FACTORS = {"smooth_max": 3.0, "routing_skew": 1.0, "expert_imbalance": 1.0, "fp4_on_hopper": 1.0}
FREE = Efficiencies(**{n: math.inf if n in SHARES else FACTORS.get(n, 0.0) for n in Efficiencies.__struct_fields__})
"""A chip that reaches infinitely more than its peak, under an engine that takes no time."""


def on(model: str, chip: str, flags: dict[str, Any] | None = None, **parallel: Any) -> im.Deployment:
    chosen = flags if flags is not None else {"enforce_eager": True, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    return im.Deployment(model=im.model(model), chip=im.chip(chip), flags=chosen, **parallel)


def qwen8(**more: Any) -> im.Deployment:
    return on("Qwen/Qwen3-8B", "a100-sxm4-80gb", **more)


def qwen30(**more: Any) -> im.Deployment:
    return on("Qwen/Qwen3-30B-A3B", "h100-sxm-80gb", **more)


def llama70(**more: Any) -> im.Deployment:
    return on("meta-llama/Llama-3.1-70B", "h100-sxm-80gb", **more)


def oss20(chip: str = "h100-sxm-80gb", **more: Any) -> im.Deployment:
    return on("openai/gpt-oss-20b", chip, **more)


def next80(**more: Any) -> im.Deployment:
    return on("Qwen/Qwen3-Next-80B-A3B", "h100-sxm-80gb", tensor_parallel_size=2, **more)


def v3(**more: Any) -> im.Deployment:
    return on("deepseek-ai/DeepSeek-V3", "h200-sxm-141gb", tensor_parallel_size=8, **more)


def v32(**more: Any) -> im.Deployment:
    return on("deepseek-ai/DeepSeek-V3.2", "h200-sxm-141gb", tensor_parallel_size=8, **more)


def with_chip(deployment: im.Deployment, **figures: Any) -> im.Deployment:
    return msgspec.structs.replace(deployment, chip=msgspec.structs.replace(deployment.chip, **figures))


def decode(sequences: int, context: int = 0) -> Step:
    return lambda costs: costs.decode_step_s(sequences, context)


def prefill(tokens: int, start: int = 0) -> Step:
    return lambda costs: costs.prefill_step_s(tokens, start)


def mixed_context(costs: StepCosts) -> float:
    """A token of a decoding sequence's context in a step that carries prefill."""
    return float(costs.mixed_kv.sum()) / TICKS_PER_S


def seconds(deployment: im.Deployment, step: Step, **constants: float) -> float:
    return step(SheetModel(deployment, msgspec.structs.replace(FREE, **constants)).costs())


# ---------------------------------------------------------------- figures of the data sheets and of config.json
A100_BW, A100 = 2.039e12, 312e12
H100_BW, H100, H100_FP8, H100_LINK = 3.35e12, 989e12, 1978e12, 450e9
H200_BW, H200, H200_FP8 = 4.8e12, 989e12, 1978e12
B200_BW, B200, B200_FP4 = 7.7e12, 2250e12, 9000e12

QWEN8 = 36 * 4096 * ((32 + 2 * 8) * 128 + 32 * 128 + 3 * 12288)
QWEN8_NORMS = 36 * (2 * 4096 + 2 * 128) + 4096
QWEN8_HEAD = 151_936 * 4096
QWEN8_KV = 36 * 2 * 8 * 128 * 2
QWEN8_PAIR = 36 * 4 * 32 * 128
LLAMA8 = 32 * 4096 * ((32 + 2 * 8) * 128 + 32 * 128 + 3 * 14336)
LLAMA8_HEAD = 128_256 * 4096
EXPERT = 3 * 2048 * 768
"""One of Qwen3-30B's 128 experts, 8 of which a token visits, in each of 48 layers."""
OSS_EXPERT_BYTES = 3 * 2880 * 2880 * 4.25 / 8
LATENT = 61 * (512 + 64) * 2
INDEX_KEY = 61 * (128 + 4)
ABSORBED = 61 * 2 * (128 / 8) * (2 * 512 + 64)
MLA_RANK = 7168 * (1536 + 512 + 64) + 1536 * 16 * 192 + 512 * 16 * 256 + 16 * 128 * 7168
"""DeepSeek-V3's attention on one of 8 ranks."""
STATE = 36 * (3 * 8192 + 32 * 128 * 128) * 2 / 2
"""Qwen3-Next's on one of 2 ranks, in 16 bits."""


def distinct(tokens: float, experts: int = 128, each: int = 8) -> float:
    return experts * (1 - (1 - each / experts) ** tokens)


LINEAR = [
    ("weights are read once", qwen8(), {"weight_read": 0.5}, decode(4),
     2 * (QWEN8 + QWEN8_NORMS + QWEN8_HEAD) / (A100_BW * 0.5)),
    ("FLOPs of each token, head included", qwen8(), {"mfu": 0.5}, decode(4),
     4 * 2 * (QWEN8 + QWEN8_HEAD) / (A100 * 0.5)),
    ("a prefill samples one row", qwen8(), {"mfu": 0.5}, prefill(1000),
     2 * (1000 * QWEN8 + QWEN8_HEAD) / (A100 * 0.5)),
    ("reading and FLOPs meet in a smooth maximum", qwen8(), {"weight_read": 0.5, "mfu": 0.5}, prefill(100),
     ((2 * (QWEN8 + QWEN8_NORMS) / (A100_BW * 0.5)) ** 3 + (200 * QWEN8 / (A100 * 0.5)) ** 3) ** (1 / 3)
     + ((2 * QWEN8_HEAD / (A100_BW * 0.5)) ** 3 + (2 * QWEN8_HEAD / (A100 * 0.5)) ** 3) ** (1 / 3)),
    ("the head stays in 16 bits", on("Llama-3.1-8B-FP8", "h100-sxm-80gb"), {"mfu": 1}, decode(4),
     4 * 2 * (LLAMA8 / H100_FP8 + LLAMA8_HEAD / H100)),
    ("a head's format where all is fp4", on("Llama-3.1-8B-NVFP4", "b200-sxm-180gb"), {"mfu": 1}, decode(4),
     4 * 2 * (LLAMA8 / B200_FP4 + LLAMA8_HEAD / B200)),
    ("each matrix in its own format", on("nvidia/DeepSeek-V3.1-NVFP4", "b200-sxm-180gb", tensor_parallel_size=8),
     {"mfu": 1}, decode(1),
     2 * (61 * MLA_RANK + 58 * 7168 * (256 + 3 * 2048 / 8)) / B200 + 2 * 3 * 3 * 7168 * 18432 / 8 / B200_FP4
     + 2 * 129_280 / 8 * 7168 / B200),
    ("fp32 by its own rate", qwen8(dtype="float32"), {"mfu": 1}, decode(1), 2 * (QWEN8 + QWEN8_HEAD) / 19.5e12),
]  # fmt: skip

BY_TP, BY_DP = {"tensor_parallel_size": 2}, {"data_parallel_size": 2}
WHOLE = {"enable_expert_parallel": True}
READ = 48 * EXPERT * 2 / H100_BW
COMPUTE = 48 * 8 * 2 * EXPERT / H100
EXPERTS = [
    ("distinct experts are read", qwen30(), {"expert_read": 0.5}, decode(4), READ * distinct(4) / 0.5),
    ("a skewed routing meets fewer", qwen30(), {"expert_read": 1, "routing_skew": 0.5}, decode(16), READ * distinct(8)),
    ("never fewer than a token visits", qwen30(), {"expert_read": 1, "routing_skew": 0.5}, decode(1), READ * 8),
    ("FLOPs of those that are visited", qwen30(), {"mfu_expert": 0.5}, decode(4), 4 * COMPUTE / 0.5),
    ("FLOPs in the experts' format", v3(), {"mfu_expert": 1}, decode(4),
     4 * 58 * 8 * 2 * 3 * 7168 * 2048 / 8 / H200_FP8),
    ("smooth maximum", qwen30(), {"expert_read": 1, "mfu_expert": 1}, prefill(1000),
     ((READ * distinct(1000)) ** 3 + (1000 * COMPUTE) ** 3) ** (1 / 3)),
    ("cut over tensor ranks", qwen30(**BY_TP), {"expert_read": 1}, decode(4), READ * distinct(4) / 2),
    ("FLOPs over tensor ranks", qwen30(**BY_TP), {"mfu_expert": 1}, decode(4), 4 * COMPUTE / 2),
    ("dealt whole over tensor ranks", qwen30(**BY_TP, **WHOLE), {"expert_read": 1}, decode(4), READ * distinct(4) / 2),
    ("replicas' tokens come too", qwen30(**BY_DP), {"expert_read": 1}, decode(4), READ * distinct(8) / 2),
    ("and their FLOPs", qwen30(**BY_DP, **BY_TP, **WHOLE), {"mfu_expert": 1}, decode(4), 8 * COMPUTE / 4),
    ("dealt whole over replicas", qwen30(**BY_DP, **WHOLE), {"expert_read": 1}, decode(4), READ * distinct(8) / 2),
    ("whole experts load ranks unevenly", qwen30(**BY_DP, **WHOLE), {"expert_read": 1, "expert_imbalance": 1.5},
     decode(4), READ * distinct(8) / 2 * 1.5),
    ("but not a single rank", qwen30(**WHOLE), {"expert_read": 1, "expert_imbalance": 1.5}, decode(4),
     READ * distinct(4)),
    ("nor are cut ones uneven", qwen30(**BY_DP), {"expert_read": 1, "expert_imbalance": 1.5}, decode(4),
     READ * distinct(8) / 2),
    ("Hopper unpacks mxfp4", oss20(), {"expert_read": 1, "fp4_on_hopper": 0.5}, decode(4),
     24 * distinct(4, 32, 4) * OSS_EXPERT_BYTES / H100_BW / 0.5),
    ("Blackwell need not", oss20("b200-sxm-180gb"), {"expert_read": 1, "fp4_on_hopper": 0.5}, decode(4),
     24 * distinct(4, 32, 4) * OSS_EXPERT_BYTES / B200_BW),
    ("Hopper unpacks int4", on("Qwen3-30B-A3B-quantized.w4a16", "h100-sxm-80gb"),
     {"expert_read": 1, "fp4_on_hopper": 0.5}, decode(4), READ * distinct(4) * (4 + 16 / 128) / 16 / 0.5),
    ("Hopper unpacks nvfp4", on("Qwen3-30B-A3B-NVFP4", "h100-sxm-80gb"),
     {"expert_read": 1, "fp4_on_hopper": 0.5}, decode(4), READ * distinct(4) * (4 + 8 / 16) / 16 / 0.5),
    ("bf16 is not unpacked", qwen30(), {"expert_read": 1, "fp4_on_hopper": 0.5}, decode(4), READ * distinct(4)),
]  # fmt: skip

PCIE = with_chip(llama70(tensor_parallel_size=4), link_kind="pcie")
NO_LINK = with_chip(llama70(tensor_parallel_size=4), link_kind="none", link_bytes_per_s=None)
NO_PCIE = with_chip(NO_LINK, pcie_bytes_per_s=None)
REDUCED = 2 * 80 * 8192 * 2 * 2 * 3 / 4
"""Bytes of a token's all-reduces in Llama-3.1-70B over 4 ranks."""
LOGITS = 128_256 * 2
COMMUNICATION = [
    ("two all-reduces a layer", llama70(tensor_parallel_size=2), {"allreduce_s": 1e-5}, decode(4), 160 * 1e-5),
    ("slower each time ranks double", llama70(tensor_parallel_size=8), {"allreduce_s": 1e-5, "allreduce_growth": 0.25},
     decode(4), 160 * 1e-5 * 1.5),
    ("PCIe has its own latency", PCIE, {"allreduce_pcie_s": 1e-5}, decode(4), 160 * 1e-5),
    ("not NVLink's", PCIE, {"allreduce_s": 1e-5}, decode(4), 0),
    ("nor the other way", llama70(tensor_parallel_size=4), {"allreduce_pcie_s": 1e-5}, decode(4), 0),
    ("no link is PCIe", NO_LINK, {"allreduce_pcie_s": 1e-5}, decode(4), 160 * 1e-5),
    ("one rank reduces nothing", qwen8(), {"allreduce_s": 1e-5, "link_share": 1e-3}, decode(4), 0),
    ("messages of a prefill and one row of logits", llama70(tensor_parallel_size=4), {"link_share": 0.5}, prefill(1000),
     (1000 * REDUCED + LOGITS) / (H100_LINK * 0.5)),
    ("messages of a decode and all rows", llama70(tensor_parallel_size=4), {"link_share": 0.5}, decode(4),
     4 * (REDUCED + LOGITS) / (H100_LINK * 0.5)),
    ("over the host link", NO_LINK, {"link_share": 1}, decode(4), 4 * (REDUCED + LOGITS) / 64e9),
    ("over PCIe 4 x16", NO_PCIE, {"link_share": 1}, decode(4), 4 * (REDUCED + LOGITS) / 32e9),
    ("two all-to-alls a MoE layer", qwen30(**BY_DP), {"alltoall_s": 1e-5}, decode(4), 2 * 48 * 1e-5),
    ("half of it in 8 bits", qwen30(**BY_DP), {"link_share": 0.5}, decode(4),
     2 * 48 * 8 * 2048 * 1.5 * 1 / 2 / (H100_LINK * 0.5)),
    ("none for a dense model", qwen8(**BY_DP), {"alltoall_s": 1e-5, "link_share": 1}, decode(4), 0),
    ("none without replicas", qwen30(**BY_TP, **WHOLE), {"alltoall_s": 1e-5}, decode(4), 0),
    ("a hop between stages", qwen8(pipeline_parallel_size=3), {"hop_s": 1e-5}, decode(4), 2 * 1e-5),
    ("that carries a micro-batch", qwen8(pipeline_parallel_size=3), {"link_share": 0.5}, decode(7),
     2 * 3 * 4096 * 2 / (300e9 * 0.5)),
]  # fmt: skip

ACTIVATION_8B = 2 * (10 * 36 * 4096 + 4 * 36 * 12288 + 3 * 36 * 32 * 128) + QWEN8_KV
ACTIVATION_30B = 2 * (10 * 48 * 2048 + 48 * 8 * (4 * 2048 + 4 * 768) / 2 + 3 * 48 * 32 * 128 / 2) + 48 * 2 * 2 * 128 * 2
ACTIVATION_V3 = (
    2 * (10 * 61 * 7168 + 4 * 3 * 18432 / 8 + 4 * 58 * 2048 / 8 + 58 * 8 * (4 * 7168 + 4 * 2048 / 8))
    + 2 * 3 * 61 * 128 * 192 / 8
    + LATENT
)  # fmt: skip
FIXED = [
    ("a layer", qwen8(), {"layer_s": 1e-5}, decode(4), 36e-5),
    ("a MoE layer", v3(), {"moe_layer_s": 1e-5}, decode(4), 58e-5),
    ("an MLA layer", v3(), {"mla_layer_s": 1e-5}, decode(4), 61e-5),
    ("a sparse layer", v32(), {"sparse_layer_s": 1e-5}, decode(4), 61e-5),
    ("MLA is not sparse", v3(), {"sparse_layer_s": 1e-5}, decode(4), 0),
    ("a recurrent layer", next80(), {"recurrent_layer_s": 1e-5}, decode(4), 36e-5),
    ("layers in a prefill too", v32(), {"layer_s": 1e-5, "sparse_layer_s": 1e-5}, prefill(4), 122e-5),
    ("a step", qwen8(), {"step_s": 1e-3}, decode(4), 1e-3),
    ("an idle step", qwen8(), {"step_s": 1e-3}, decode(0), 1e-3),
    ("an idle step does nothing else", qwen8(), {"weight_read": 1, "layer_s": 1e-5}, decode(0), 0),
    ("each sequence", qwen8(), {"sequence_s": 1e-5}, decode(4), 4e-5),
    ("the prefill's sequence", qwen8(), {"sequence_s": 1e-5}, prefill(500), 1e-5),
    ("recurrent state, read and written", next80(), {"kv_read": 0.5}, decode(4), 4 * 2 * STATE / (H100_BW * 0.5)),
    ("recurrent state of the prefill's", next80(), {"kv_read": 0.5}, prefill(500), 2 * STATE / (H100_BW * 0.5)),
    ("carrying prefill", qwen8(), {"prefill_step_s": 1e-3, "prefill_layer_s": 1e-5}, prefill(4), 1e-3 + 36e-5),
    ("not carrying any", qwen8(), {"prefill_step_s": 1e-3, "prefill_layer_s": 1e-5}, decode(4), 0),
    ("activations and KV written", qwen8(), {"activation_traffic": 1.5}, prefill(500),
     500 * 1.5 * ACTIVATION_8B / A100_BW),
    ("activations of dealt experts", qwen30(**BY_TP, **WHOLE), {"activation_traffic": 1}, decode(4),
     4 * ACTIVATION_30B / H100_BW),
    ("activations of MLA and cut experts", v3(), {"activation_traffic": 1}, decode(4), 4 * ACTIVATION_V3 / H200_BW),
]  # fmt: skip

FIVE_TO_SEVEN = (5 + 1) + (5 + 2) + (5 + 3)
"""Keys that a chunk of 3 after 5 sees."""
OSS_KV = 12 * 2 * 8 * 64 * 2
OSS_PAIR = 12 * 4 * 64 * 64
INDEX_PAIR = 61 * 2 * 64 * 128
BIG = on("deepseek-ai/DeepSeek-V3.2", "h200-sxm-141gb", tensor_parallel_size=8, flags={"max_num_batched_tokens": 8192})
ATTENTION = [
    ("KV of all contexts", qwen8(), {"kv_read": 0.5}, decode(4, 1000), 4000 * QWEN8_KV / (A100_BW * 0.5)),
    ("a window ends a context", oss20(), {"kv_read": 1}, decode(4, 1000), 4 * (1000 + 128) * OSS_KV / H100_BW),
    ("stages share it", qwen8(pipeline_parallel_size=2), {"kv_read": 1}, decode(4, 1000), 2000 * QWEN8_KV / A100_BW),
    ("KV heads are replicated", llama70(tensor_parallel_size=16), {"kv_read": 1}, decode(4, 1000),
     4000 * 80 * 2 * 128 * 2 / H100_BW),
    ("an fp8 cache", qwen8(kv_cache_dtype="fp8"), {"kv_read": 1}, decode(4, 1000), 2000 * QWEN8_KV / A100_BW),
    ("latents whole on every rank", v3(), {"mla_read": 0.5}, decode(4, 1000), 4000 * LATENT / (H200_BW * 0.5)),
    ("latents are no KV", v3(), {"kv_read": 0.5}, decode(4, 1000), 0),
    ("absorbed products in 16 bits", v3(), {"mfu_mla": 0.5}, decode(4, 1000), 4000 * ABSORBED / (H200 * 0.5)),
    ("latents and products meet", v3(), {"mla_read": 0.5, "mfu_mla": 0.5}, decode(4, 1000),
     4000 * ((LATENT / (H200_BW * 0.5)) ** 3 + (ABSORBED / (H200 * 0.5)) ** 3) ** (1 / 3)),
    ("chosen latents", v32(), {"kv_read": 1}, decode(4, 5000), 4 * 2048 * LATENT / H200_BW),
    ("indexer's keys", v32(), {"mla_read": 1}, decode(4, 5000), 4 * 5000 * INDEX_KEY / H200_BW),
    ("indexer's scores", v32(), {"mfu_mla": 1}, decode(4, 5000), 4 * 5000 * INDEX_PAIR / H200),
    ("KV in a mixed step", qwen8(), {"kv_read_mixed": 0.25}, mixed_context, QWEN8_KV / (A100_BW * 0.25)),
    ("not in one of decodes", qwen8(), {"kv_read_mixed": 0.25}, decode(4, 1000), 0),
    ("nor decodes' in it", qwen8(), {"kv_read": 0.25}, mixed_context, 0),
    ("stages share a mixed step", qwen8(pipeline_parallel_size=2), {"kv_read_mixed": 1}, mixed_context,
     QWEN8_KV / A100_BW / 2),
    ("a query fills rows of a tile", qwen8(), {"mixed_query_rows": 80, "mfu_attention": 0.5}, mixed_context,
     80 * QWEN8_PAIR / (A100 * 0.5)),
    ("or its read takes longer", qwen8(), {"mixed_query_rows": 8, "mfu_attention": 0.5, "kv_read_mixed": 0.25},
     mixed_context, QWEN8_KV / (A100_BW * 0.25)),
    ("no tile for latents", v32(), {"mixed_query_rows": 80, "mfu_attention": 0.5}, mixed_context, 0),
    ("latents and products in a mixed step", v3(), {"mla_read": 0.5, "mfu_mla": 0.5}, mixed_context,
     ((LATENT / (H200_BW * 0.5)) ** 3 + (ABSORBED / (H200 * 0.5)) ** 3) ** (1 / 3)),
    ("pairs of a chunk", qwen8(), {"mfu_attention": 0.5}, prefill(3, 5), FIVE_TO_SEVEN * QWEN8_PAIR / (A100 * 0.5)),
    ("pairs that stages share", qwen8(pipeline_parallel_size=2), {"mfu_attention": 1}, prefill(3, 5),
     FIVE_TO_SEVEN * QWEN8_PAIR / A100 / 2),
    ("pairs in a window and out of it", oss20(), {"mfu_attention": 1}, prefill(2, 1000),
     (1001 + 1002 + 2 * 128) * OSS_PAIR / H100),
    ("pairs of MLA, not absorbed", v3(), {"mfu_attention": 1}, prefill(3, 5),
     FIVE_TO_SEVEN * 61 * 2 * 128 / 8 * (128 + 64 + 128) / H200),
    ("pairs of the indexer and of what it chose", v32(), {"mfu_attention": 1}, prefill(2, 5000),
     ((5001 + 5002) * INDEX_PAIR + 2 * 2048 * ABSORBED) / H200),
    ("KV before a chunk", qwen8(), {"chunk_kv_read": 0.5}, prefill(10, 1000), 1000 * QWEN8_KV / (A100_BW * 0.5)),
    ("none before the first", qwen8(), {"chunk_kv_read": 0.5}, prefill(10), 0),
    ("KV before a chunk, stages", qwen8(pipeline_parallel_size=2), {"chunk_kv_read": 1}, prefill(10, 1000),
     500 * QWEN8_KV / A100_BW),
    ("a window's before a chunk", oss20(), {"chunk_kv_read": 1}, prefill(10, 1000), (1000 + 128) * OSS_KV / H100_BW),
    ("latents before a chunk", v3(), {"mla_read": 0.5}, prefill(10, 1000), 1000 * LATENT / (H200_BW * 0.5)),
    ("chosen ones and the indexer's", BIG, {"chunk_kv_read": 0.5, "mla_read": 0.25}, prefill(10, 5000),
     2048 * LATENT / (H200_BW * 0.5) + 5000 * INDEX_KEY / (H200_BW * 0.25)),
]  # fmt: skip

GRAPHS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
PADDED = [
    ("to the next graph, the head not", qwen8(flags=GRAPHS), decode(9), 16 * QWEN8 + 9 * QWEN8_HEAD),
    ("a graph's own size", qwen8(flags=GRAPHS), decode(16), 16 * (QWEN8 + QWEN8_HEAD)),
    ("a small prefill too", qwen8(flags=GRAPHS), prefill(121), 128 * QWEN8 + QWEN8_HEAD),
    ("nothing beyond the largest", qwen8(flags=GRAPHS), prefill(129), 129 * QWEN8 + QWEN8_HEAD),
    ("nothing when eager", qwen8(), decode(9), 9 * (QWEN8 + QWEN8_HEAD)),
    ("then dealt to stages", qwen8(flags=GRAPHS, pipeline_parallel_size=2), decode(9), 8 * QWEN8 + 5 * QWEN8_HEAD),
    ("rounded up", qwen8(pipeline_parallel_size=2), decode(9), 5 * (QWEN8 + QWEN8_HEAD)),
]

TERMS = [*LINEAR, *EXPERTS, *COMMUNICATION, *FIXED, *ATTENTION]


def by_name(cases: list[Any]) -> list[Any]:
    return [pytest.param(*case, id=name) for name, *case in cases]


@pytest.mark.parametrize(("deployment", "constants", "step", "expected_s"), by_name(TERMS))
def test_a_term_alone(deployment: im.Deployment, constants: dict[str, float], step: Step, expected_s: float) -> None:
    found_s = seconds(deployment, step, **constants) - seconds(deployment, step)
    assert found_s == pytest.approx(expected_s, rel=1e-6, abs=1e-14)


@pytest.mark.parametrize(("deployment", "step", "products"), by_name(PADDED))
def test_tokens_are_padded_to_a_graph(deployment: im.Deployment, step: Step, products: float) -> None:
    found_s = seconds(deployment, step, mfu=1.0) - seconds(deployment, step)
    assert found_s == pytest.approx(2 * products / A100, rel=1e-6)


@pytest.mark.parametrize(
    ("deployment", "step", "rows"),
    [(qwen8(), decode(3), 3), (qwen8(), prefill(500), 1), (qwen8(), decode(0), 0),
     (qwen8(pipeline_parallel_size=2), decode(3), 2)],
)  # fmt: skip
def test_logits_are_written_and_read_whatever_else_is_free(deployment: im.Deployment, step: Step, rows: int) -> None:
    assert seconds(deployment, step) == pytest.approx(rows * 151_936 * (4 + 4) / A100_BW, rel=1e-6)


def test_tables_reach_what_the_flags_allow_and_nothing_sampled_costs_nothing() -> None:
    costs = sheet_costs(qwen8())
    assert (len(costs.decode), len(costs.rows), len(costs.mixed)) == (65, 65, 4097)
    assert costs.rows[0] == 0 < costs.rows[1]


@pytest.mark.parametrize("exponent", [1.0, 2.0, 50.0])
def test_the_exponent_shapes_the_maximum(exponent: float) -> None:
    """1 is the sum; a large one the larger."""
    sampler_s = 151_936 * 8 / A100_BW
    found_s = seconds(qwen8(), prefill(100), weight_read=1.0, mfu=1.0, smooth_max=exponent) - sampler_s
    read, compute = 2 * (QWEN8 + QWEN8_NORMS) / A100_BW, 200 * QWEN8 / A100
    head_read, head = 2 * QWEN8_HEAD / A100_BW, 2 * QWEN8_HEAD / A100
    layers = read * (1 + (compute / read) ** exponent) ** (1 / exponent)
    both = layers + head_read * (1 + (head / head_read) ** exponent) ** (1 / exponent)
    assert found_s == pytest.approx(both, rel=1e-6)


def test_messages_between_replicas_grow_with_tokens_replicas_and_distant_ranks() -> None:
    def sent_s(tokens: int, **parallel: int) -> float:
        d = qwen30(**parallel)
        own = seconds(msgspec.structs.replace(d, data_parallel_size=1), decode(tokens), link_share=0.5)
        return seconds(d, decode(tokens), link_share=0.5) - own

    one = sent_s(4, data_parallel_size=2)
    assert one > 0
    assert sent_s(12, data_parallel_size=2) == pytest.approx(3 * one, rel=1e-6)
    assert sent_s(4, data_parallel_size=4) == pytest.approx(one * (4 / 2) * (3 / 4) / (1 / 2), rel=1e-6)
    assert sent_s(4, data_parallel_size=2, tensor_parallel_size=2) == pytest.approx(one * (3 / 4) / (1 / 2), rel=1e-6)


@pytest.mark.parametrize("bound", ["value", "slow", "fast"])
def test_a_decode_step_of_an_a100_by_hand(bound: Bound) -> None:
    eff = efficiencies(im.chip("a100-sxm4-80gb"), bound)
    p, reading, computing = eff.smooth_max, A100_BW * eff.weight_read, A100 * eff.mfu
    layers = ((2 * (QWEN8 + QWEN8_NORMS) / reading) ** p + (16 * 2 * QWEN8 / computing) ** p) ** (1 / p)
    head = ((2 * QWEN8_HEAD / reading) ** p + (16 * 2 * QWEN8_HEAD / computing) ** p) ** (1 / p)
    moved = 16 * 151_936 * 8 + 16_000 * QWEN8_KV / eff.kv_read + 16 * eff.activation_traffic * ACTIVATION_8B
    fixed = eff.step_s + 36 * eff.layer_s + 16 * eff.sequence_s
    by_hand = layers + head + moved / A100_BW + fixed
    assert sheet_costs(qwen8(), bound).decode_step_s(16, 1000) == pytest.approx(by_hand, rel=1e-6)


def test_a_prefill_step_over_four_h100_by_hand() -> None:
    eff = efficiencies(im.chip("h100-sxm-80gb"))
    layer, head = 8192 * ((64 + 2 * 8) * 128 + 64 * 128 + 3 * 28672) / 4, 128_256 / 4 * 8192
    p, reading, computing = eff.smooth_max, H100_BW * eff.weight_read, H100 * eff.mfu
    norms = 80 * 2 * 8192 + 8192
    linear = ((2 * (80 * layer + norms) / reading) ** p + (2000 * 2 * 80 * layer / computing) ** p) ** (1 / p)
    linear += ((2 * head / reading) ** p + (2 * head / computing) ** p) ** (1 / p)
    kv = 80 * 2 * 2 * 128 * 2
    activations = 2 * (10 * 80 * 8192 + 4 * 80 * 28672 / 4 + 3 * 80 * 64 * 128 / 4) + kv
    moved = 128_256 * 8 + 2000 * eff.activation_traffic * activations + 1000 * kv / eff.chunk_kv_read
    pairs = 2000 * 1000 + 2000 * 2001 / 2
    attention = pairs * 80 * 4 * 64 * 128 / 4 / (H100 * eff.mfu_attention)
    reduced = 160 * eff.allreduce_s * (1 + eff.allreduce_growth) + 2000 * REDUCED / (H100_LINK * eff.link_share)
    fixed = eff.step_s + eff.sequence_s + eff.prefill_step_s + 80 * (eff.layer_s + eff.prefill_layer_s)
    by_hand = linear + moved / H100_BW + attention + reduced + LOGITS / (H100_LINK * eff.link_share) + fixed
    found = sheet_costs(llama70(tensor_parallel_size=4)).prefill_step_s(2000, start=1000)
    assert found == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("bound", ["value", "slow", "fast"])
@pytest.mark.parametrize("chip", ["a100-sxm4-80gb", "h100-sxm-80gb", "rtx-4090", "rtx-pro-6000"])
def test_a_family_overrides_the_defaults_one_by_one(chip: str, bound: Bound) -> None:
    table = tomllib.loads(files("inferometer.steptime").joinpath("data/efficiencies.toml").read_text())
    own, found = table.get(im.chip(chip).family, {}), efficiencies(im.chip(chip), bound)
    assert (chip == "h100-sxm-80gb") == (not own)
    for name, default in table["default"].items():
        assert getattr(found, name) == own.get(name, default)[bound], name


# ---------------------------------------------------------------- rates
@pytest.mark.parametrize(
    ("tflops", "number_format", "expected"),
    [
        ({"bf16": 100, "fp32": 7}, "fp32", 7),
        ({"bf16": 100}, "fp32", 50),
        ({"fp16": 100}, "fp32", 50),
        ({"bf16": 1, "fp8": 2, "fp4": 4}, "fp4", 4),
        ({"bf16": 1, "fp8": 2}, "fp4", 2),
        ({"bf16": 1, "fp16": 3}, "fp4", 1),
        ({"bf16": 1, "int8": 2}, "fp8", 1),
        ({"bf16": 1, "fp8": 2}, "int8", 1),
        ({"fp16": 3, "fp32": 1}, "bf16", 3),
        ({"bf16": 3, "fp32": 1}, "fp16", 3),
        ({"fp32": 5, "int8": 1}, "bf16", 5),
    ],
)
def test_a_format_without_a_unit_runs_in_a_wider_one(
    tflops: dict[str, float], number_format: str, expected: float
) -> None:
    rates = {name: rate * 1e12 for name, rate in tflops.items()}
    chip = msgspec.structs.replace(im.chip("h100-sxm-80gb"), flops_per_s=rates)
    assert peak_flops_per_s(chip, number_format) == expected * 1e12


# ---------------------------------------------------------------- roofline
@pytest.mark.parametrize(
    ("deployment", "context", "expected"),
    [
        (qwen8(), 1000, 1000 * QWEN8_KV),
        (qwen8(pipeline_parallel_size=2), 1000, 1000 * QWEN8_KV),
        (llama70(tensor_parallel_size=16), 1000, 16 * 1000 * 80 * 2 * 128 * 2),
        (oss20(), 1000, (1000 + 128) * OSS_KV),
        (oss20(), 100, 2 * 100 * OSS_KV),
        (v3(), 1000, 8 * 1000 * LATENT),
        (v32(), 5000, 8 * (2048 * LATENT + 5000 * INDEX_KEY)),
        (next80(), 1000, 1000 * 12 * 2 * 2 * 256 * 2 + 2 * STATE),
    ],
)
def test_the_roofline_reads_what_all_ranks_keep_of_a_sequence(
    deployment: im.Deployment, context: int, expected: float
) -> None:
    assert im.roofline(deployment, context).kv_bytes_per_sequence == expected


@pytest.mark.parametrize(("cache", "element_bytes"), [("auto", 2), ("fp8", 1)])
def test_the_roofline_of_a_model_known_by_its_few_figures(cache: str, element_bytes: int) -> None:
    lab = im.Model(name="lab", weight_bytes=10**10, layers=5, kv_heads=3, head_dim=7)
    dep = im.Deployment(model=lab, chip=im.chip("h100-sxm-80gb"), kv_cache_dtype=cache)
    assert im.roofline(dep, 1000).kv_bytes_per_sequence == 1000 * 5 * 2 * 3 * 7 * element_bytes


def test_the_roofline_of_a_pipeline_is_one_large_chip() -> None:
    roof = im.roofline(llama70(tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=2), 1000)
    assert roof.bandwidth_bytes_per_s == 6 * H100_BW
    assert roof.flops_per_s == 6 * H100
