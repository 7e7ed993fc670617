"""FLOPs and bytes of each operation, by architecture: what one rank does in one engine step."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from inferometer.errors import InputError
from inferometer.specs.deployment import Deployment
from inferometer.specs.model import Attention, Block, Mla, Mlp, Model, Moe, Quantization, Recurrent
from inferometer.steptime.weights import (
    Kind,
    Split,
    Tensor,
    block_tensors,
    is_quantized,
    kv_heads_per_rank,
    model_tensors,
    stored_quantization,
    tensor_bytes,
    unquantized_bytes,
)

INDEXER_BYTES_PER_KEY = 4
"""The sparse-attention indexer caches one fp8 key and one fp32 scale a token (vLLM's DeepseekV32IndexerCache)."""


class KvRead(msgspec.Struct, frozen=True, kw_only=True):
    """KV bytes that one decoding sequence reads a step, a token of context, on one rank, over all layers of a kind."""

    bytes_per_token: float
    window: int | None = None
    """Context is capped at this many tokens (sliding layers); None: the whole context."""


class RankOps(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share of the model's work (all layers, whatever the pipeline; TP and EP divided out).

    Bytes follow the weight formats (scales included), FLOPs count 2 a multiply-add.
    """

    # linear layers every token visits: attention projections, dense MLPs, shared experts, routers, mixers
    dense_weight_bytes: float
    dense_flops_by_format: tuple[tuple[str, float], ...]
    """2 x the dense parameters of a rank, without embedding and lm_head, by the number format that the products run
    in: a checkpoint may quantise some layers only."""
    compute_format: str
    """The format of most of them: bf16, fp16, fp8, int8, fp4, fp32."""
    # lm_head, on sampled rows only
    head_weight_bytes: float
    head_flops_per_row: float
    head_format: str
    """Number format that its products run in."""
    # routed experts
    moe_layers: int
    experts: int
    experts_per_token: int
    expert_weight_bytes: float
    """One expert of one layer, the rank's share (cut over tensor x data ranks, or whole with expert parallelism)."""
    expert_flops_per_token: float
    """2 x activated expert parameters of one token over all layers, whole model."""
    expert_format: str
    expert_weight_format: str
    experts_ranks: int
    """Ranks among which the experts' work is divided (tensor x data; `Split`)."""
    # attention
    kv_reads: tuple[KvRead, ...]
    """Softmax attention layers (not MLA), by window; of sparse MLA layers the latents that are chosen."""
    mla_read_bytes_per_token: float
    """Latent bytes a token of context over all MLA layers, whole latent on each rank; of sparse ones indexer keys."""
    mla_flops_per_token: float
    """Absorbed decode FLOPs a token of context: 2 n_q/tp (2 kv_lora + rope), over all MLA layers; of sparse ones the
    indexer's scores."""
    attention_flops_per_pair: float
    """Prefill FLOPs a (query, key) pair over all layers: 4 n_q d / tp, MLA 2 n_q (nope + rope + v) / tp."""
    window_flops_per_pair: float
    """The part of ``attention_flops_per_pair`` in windowed layers."""
    state_bytes_per_sequence: float
    """Size of the recurrent state that is read and written a sequence and step, on one rank (traffic is twice that)."""
    kv_write_bytes_per_token: float
    activation_bytes_per_token: float
    """step-time.md's activation_bytes a token and rank, bf16."""
    # counts
    layers: int
    mla_layers: int
    sparse_layers: int
    recurrent_layers: int
    hidden_size: int
    hidden_bytes: int
    """Bytes of one token's hidden vector (an all-reduce message a token)."""


def rank_ops(deployment: Deployment) -> RankOps:
    """What one rank does in a step of `deployment`; see engines.md section 5 and step-time.md.

    Raises:
        InputError: the model is given by its few figures, so its layers are not known.

    >>> import inferometer as im
    >>> ops = rank_ops(im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb")))
    >>> ops.kv_write_bytes_per_token
    147456.0
    """
    model = deployment.model
    if not model.blocks:
        raise InputError.because(
            f"{model.name} is given by its few figures: step costs need its config.json (memory and roofline do not)"
        )
    return RankOps(**_linear(deployment), **_experts(deployment), **_attention(deployment), **_counts(deployment))


def _linear(deployment: Deployment) -> dict[str, Any]:
    model, split = deployment.model, Split.of(deployment)
    quantization, element = stored_quantization(model, deployment), unquantized_bytes(model, deployment)
    tensors = list(model_tensors(model, split))
    dense = [t for t in tensors if t.kind not in ("embedding", "head", "expert")]
    head = Tensor(kind="head", outputs=math.ceil(model.vocab_size / split.tp), inputs=model.hidden_size)
    by_format = _flops_by_format(deployment, dense)
    return {
        "dense_weight_bytes": float(sum(tensor_bytes(t, quantization, element) for t in dense)),
        "dense_flops_by_format": tuple(sorted(by_format.items())),
        "compute_format": max(by_format, key=lambda name: by_format[name]),
        "head_weight_bytes": float(tensor_bytes(head, quantization, element)),
        "head_flops_per_row": 2.0 * head.elements,
        "head_format": _formats(deployment, quantization, "head")[1],
    }


def _flops_by_format(deployment: Deployment, dense: list[Tensor]) -> dict[str, float]:
    """FLOPs a token of the dense matrices, by the format their products run in; recurrences in 16 bits."""
    quantization = stored_quantization(deployment.model, deployment)
    plain: str = deployment.activation_dtype
    flops = {plain: _recurrence(deployment.model, deployment.tensor_parallel_size)}
    for tensor in dense:
        if tensor.kind != "vector":
            runs = _formats(deployment, quantization, tensor.kind)[1]
            flops[runs] = flops.get(runs, 0.0) + 2.0 * tensor.elements
    return {name: value for name, value in flops.items() if value} or {plain: 0.0}


def _recurrence(model: Model, tp: int) -> float:
    mixers = ((b.count, b.mixer) for b in model.blocks if isinstance(b.mixer, Recurrent))
    return sum(count * mixer.flops_per_token for count, mixer in mixers) / tp


def _formats(deployment: Deployment, q: Quantization | None, kind: Kind) -> tuple[str, str]:
    """How matrices of a kind are stored, and the format their products run in on this chip."""
    plain = deployment.activation_dtype
    if q is None or not is_quantized(kind, q):
        return plain, plain
    # a chip without units for the activations' format runs the products in 16 bits (weight-only kernels)
    runs = q.activations if q.activations != "bf16" and q.activations in deployment.chip.flops_per_s else plain
    return q.weights, runs


def _experts(deployment: Deployment) -> dict[str, Any]:
    model, split = deployment.model, Split.of(deployment)
    quantization, element = stored_quantization(model, deployment), unquantized_bytes(model, deployment)
    blocks = [b for b in model.blocks if isinstance(b.mlp, Moe)]
    weights, compute = _formats(deployment, quantization, "expert")
    moe = blocks[0].mlp if blocks else None
    one = 0.0
    if blocks and isinstance(moe, Moe):
        held = [t for t in block_tensors(blocks[0], model, split) if t.kind == "expert"]
        one = sum(tensor_bytes(t, quantization, element) / t.copies for t in held)
    activated = sum(t.elements * t.active for t in model_tensors(model) if t.kind == "expert")
    return {
        "moe_layers": sum(b.count for b in blocks),
        "experts": moe.experts if isinstance(moe, Moe) else 0,
        "experts_per_token": moe.experts_per_token if isinstance(moe, Moe) else 0,
        "expert_weight_bytes": one,
        "expert_flops_per_token": 2.0 * activated,
        "expert_format": compute,
        "expert_weight_format": weights,
        "experts_ranks": split.ep * split.moe_tp,
    }


def _attention(deployment: Deployment) -> dict[str, Any]:
    model, tp = deployment.model, deployment.tensor_parallel_size
    kv = deployment.kv_dtype_bytes()
    mla = [(b.count, b.mixer) for b in model.blocks if isinstance(b.mixer, Mla)]
    pairs, windowed = _pair_flops(model, tp)
    return {
        "kv_reads": _kv_reads(model, tp, kv),
        "mla_read_bytes_per_token": float(sum(n * (_indexer_bytes(m) or _latent(m) * kv) for n, m in mla)),
        "mla_flops_per_token": sum(n * _mla_decode_flops(m, tp) for n, m in mla),
        "attention_flops_per_pair": pairs,
        "window_flops_per_pair": windowed,
        "state_bytes_per_sequence": state_bytes_per_sequence(deployment) / tp,
        "kv_write_bytes_per_token": float(kv_bytes_per_token(model, kv, tp)),
        "activation_bytes_per_token": _activation_bytes(model, Split.of(deployment)),
    }


def _latent(m: Mla) -> int:
    return m.kv_lora_rank + m.qk_rope_head_dim


def _indexer_bytes(m: Mla) -> int:
    return m.index_head_dim + INDEXER_BYTES_PER_KEY if m.index_heads else 0


def _absorbed_flops(m: Mla, tp: int) -> float:
    """A (query, latent) pair with the up-projections absorbed into query and output."""
    return 2.0 * m.heads * (2 * m.kv_lora_rank + m.qk_rope_head_dim) / tp


def _mla_decode_flops(m: Mla, tp: int) -> float:
    """A token of context: the absorbed product, or where attention is sparse the indexer's, whole on each rank."""
    return 2.0 * m.index_heads * m.index_head_dim if m.index_topk else _absorbed_flops(m, tp)


def _pair_flops(model: Model, tp: int) -> tuple[float, float]:
    """FLOPs a (query, key) pair over all layers, and the part in windowed layers (for sparse ones: the chosen keys)."""
    total = windowed = 0.0
    for block in model.blocks:
        m = block.mixer
        if isinstance(m, Attention):
            flops = 2.0 * block.count * m.heads * (m.head_dim + m.v_head_dim) / tp
            windowed += flops if m.window else 0.0
        elif isinstance(m, Mla) and m.index_topk:
            chosen = block.count * _absorbed_flops(m, tp)
            flops = chosen + block.count * _mla_decode_flops(m, tp)
            windowed += chosen
        elif isinstance(m, Mla):
            flops = 2.0 * block.count * m.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim) / tp
        else:
            continue
        total += flops
    return total, windowed


def _kv_reads(model: Model, tp: int, kv_bytes: int) -> tuple[KvRead, ...]:
    """Bytes by window; a layer that shares another's cache owns none of it, but reads it."""
    by_window: dict[int | None, float] = {}
    for block in model.blocks:
        m = block.mixer
        if isinstance(m, Attention):
            read = kv_heads_per_rank(m, tp) * (m.head_dim + m.v_head_dim) * kv_bytes
            by_window[m.window] = by_window.get(m.window, 0.0) + block.count * read
        elif isinstance(m, Mla) and m.index_topk:
            by_window[m.index_topk] = by_window.get(m.index_topk, 0.0) + block.count * _latent(m) * kv_bytes
    order = sorted(by_window, key=lambda w: math.inf if w is None else w, reverse=True)
    return tuple(KvRead(bytes_per_token=by_window[w], window=w) for w in order)


def block_kv_bytes(block: Block, kv_bytes: int, tp: int = 1) -> int:
    """KV bytes that one layer of ``block`` keeps a token, on one of ``tp`` ranks; windows not applied."""
    m = block.mixer
    if isinstance(m, Attention) and not m.kv_shared:
        return kv_heads_per_rank(m, tp) * (m.head_dim + m.v_head_dim) * kv_bytes
    if isinstance(m, Mla):
        return _latent(m) * kv_bytes + _indexer_bytes(m)
    return 0


def kv_bytes_per_token(model: Model, kv_bytes: int = 2, tp: int = 1) -> int:
    """KV bytes a token over all layers that own a cache, on one of ``tp`` ranks; windows not applied.

    Formula: engines.md section 5. ``kv_bytes`` is the bytes of one cached number.

    >>> import inferometer as im
    >>> kv_bytes_per_token(im.model("deepseek-ai/DeepSeek-V3"))
    70272
    """
    if not model.blocks:
        for name in ("kv_heads", "head_dim"):
            if getattr(model, name) < 1:
                raise InputError(name, getattr(model, name), f"a whole number of at least 1 for {model.name}")
        return model.layers * 2 * max(1, model.kv_heads // tp) * model.head_dim * kv_bytes
    return sum(b.count * block_kv_bytes(b, kv_bytes, tp) for b in model.blocks)


def state_bytes_per_sequence(deployment: Deployment) -> int:
    """Bytes of recurrent state a sequence keeps over all linear-attention and Mamba layers, whole model."""
    mixers = ((b.count, b.mixer) for b in deployment.model.blocks if isinstance(b.mixer, Recurrent))
    return sum(count * mixer_state_bytes(m, deployment) for count, m in mixers)


def mixer_state_bytes(mixer: Recurrent, deployment: Deployment) -> int:
    """Bytes of one recurrent layer's state, in the dtypes that the flags or the checkpoint ask for."""
    flags, model = deployment.resolved(), deployment.model
    conv = _state_dtype_bytes(flags.mamba_cache_dtype, unquantized_bytes(model, deployment))
    ssm = _state_dtype_bytes(flags.mamba_ssm_cache_dtype, model.recurrent_state_dtype_bytes)
    return mixer.conv_state_elements * conv + mixer.ssm_state_elements * ssm


def _state_dtype_bytes(name: str, auto: int) -> int:
    return {"auto": auto, "float32": 4, "float16": 2, "bfloat16": 2}.get(name, auto)


def _activation_bytes(model: Model, split: Split) -> float:
    """step-time.md's activation_bytes: 2 x [10 L H + MLPs + shared and routed experts + 3 L n_q d / tp]."""
    hidden, elements = model.hidden_size, 0.0
    for block in model.blocks:
        elements += block.count * (10 * hidden + _mlp_activations(block.mlp, hidden, split))
        if isinstance(block.mixer, Attention):
            elements += block.count * 3 * block.mixer.heads * block.mixer.head_dim / split.tp
        elif isinstance(block.mixer, Mla):
            width = block.mixer.qk_nope_head_dim + block.mixer.qk_rope_head_dim
            elements += block.count * 3 * block.mixer.heads * width / split.tp
    return 2.0 * elements


def _mlp_activations(mlp: Mlp | Moe | None, hidden: int, split: Split) -> float:
    if isinstance(mlp, Mlp):
        return 4 * mlp.intermediate_size / split.tp
    if isinstance(mlp, Moe):
        width = mlp.expert_intermediate_size / split.moe_tp
        replicas = split.ep * split.moe_tp / split.tp  # each brings its tokens to the experts
        routed = replicas * mlp.experts_per_token * (4 * hidden + 4 * width) / split.ep
        return 4 * mlp.shared_intermediate_size / split.tp + routed
    return 0.0


def _counts(deployment: Deployment) -> dict[str, Any]:
    model = deployment.model

    def layers(kind: type) -> int:
        return sum(b.count for b in model.blocks if isinstance(b.mixer, kind))

    return {
        "layers": model.layers,
        "mla_layers": layers(Mla),
        "sparse_layers": sum(b.count for b in model.blocks if isinstance(b.mixer, Mla) and b.mixer.index_topk),
        "recurrent_layers": layers(Recurrent),
        "hidden_size": model.hidden_size,
        "hidden_bytes": model.hidden_size * unquantized_bytes(model, deployment),
    }
