"""Every matrix of a model: how many parameters, how many bytes, and which share of them one rank holds.

`block_tensors` lists the tensors of one layer as an engine lays them out (q, k and v in one, gate and up in one,
the experts of a layer in one), for any tensor- and expert-parallel split. All counting of `ops` and `memory` goes
through it. Formulas: engines.md section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from inferometer.errors import InputError
from inferometer.specs.deployment import Deployment
from inferometer.specs.model import Attention, Block, Mla, Mlp, Model, Moe, Quantization, Recurrent

Kind = Literal["attention", "mixer", "mlp", "shared", "router", "expert", "other", "vector", "embedding", "head"]

BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "mxfp4": 4, "nvfp4": 4}
"""Bits of one stored weight, scales apart."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: ``copies`` matrices of ``outputs x inputs``."""

    kind: Kind
    outputs: int
    inputs: int
    copies: int = 1
    active: float = 1.0
    """Share of it that one token visits (experts: activated over all)."""

    @property
    def elements(self) -> int:
        """Parameters in it."""
        return self.copies * self.outputs * self.inputs


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """How many ranks share the matrices (``tp``); the experts are cut over ``moe_tp``, or dealt whole to ``ep``."""

    tp: int = 1
    moe_tp: int = 1
    ep: int = 1

    @classmethod
    def of(cls, deployment: Deployment) -> Split:
        """The split of a deployment: tensor x data ranks share the experts, with expert parallelism as whole ones.

        Source: ``vllm/model_executor/layers/fused_moe/config.py:FusedMoEParallelConfig.make``.
        """
        tp = deployment.tensor_parallel_size
        ranks = tp * deployment.data_parallel_size
        whole = deployment.enable_expert_parallel
        return cls(tp=tp, moe_tp=1 if whole else ranks, ep=ranks if whole else 1)


WHOLE = Split()


def parameters(model: Model) -> int:
    """Parameters of the language model, embedding and head included; towers of other modalities left out.

    Raises:
        InputError: a model given by its few figures has no shape to count from.

    >>> import inferometer as im
    >>> round(parameters(im.model("Qwen/Qwen3-8B")) / 1e9, 3)
    8.191
    """
    return sum(t.elements for t in model_tensors(model))


def active_parameters(model: Model) -> int:
    """Parameters that one token visits: without the embedding (unless tied), with the head."""
    return round(sum(t.elements * t.active for t in model_tensors(model) if t.kind != "embedding")) + (
        model.vocab_size * model.hidden_size if model.tie_word_embeddings else 0
    )


def visited_parameters(model: Model) -> int:
    """Parameters less the routed experts that a token is not sent to; of a dense model all of them."""
    return round(sum(t.elements * t.active for t in model_tensors(model)))


def expert_bytes(model: Model, deployment: Deployment | None = None) -> int:
    """Bytes of all routed experts, as `weight_bytes` counts them."""
    quantization, element = stored_quantization(model, deployment), unquantized_bytes(model, deployment)
    return sum(tensor_bytes(t, quantization, element) for t in model_tensors(model) if t.kind == "expert")


def weight_bytes(model: Model, deployment: Deployment | None = None) -> int:
    """Bytes of all weights: as stated, else counted from the shape in the checkpoint's or the deployment's format.

    Towers and projectors of a multimodal model are included: the engine loads them too.
    """
    if not model.blocks:
        return _stated(model)
    quantization = stored_quantization(model, deployment)
    element = unquantized_bytes(model, deployment)
    text = sum(tensor_bytes(t, quantization, element) for t in model_tensors(model))
    return text + sum(model.extra_parameters.values()) * element


def _stated(model: Model) -> int:
    if model.weight_bytes is None:
        raise InputError("weight_bytes", None, f"the bytes of the weights of {model.name}, which has no config")
    return model.weight_bytes


def stored_quantization(model: Model, deployment: Deployment | None = None) -> Quantization | None:
    """The format that the matrices lie in: the checkpoint's, or ``quantization="fp8"`` done while loading."""
    asked = None if deployment is None else deployment.quantization
    if model.quantization is not None or asked is None:
        return model.quantization
    if asked == "fp8":
        return Quantization(method="fp8", weights="fp8", activations="fp8")
    allowed = f"fp8, which is done while loading, or a checkpoint of {model.name} stored as {asked}"
    raise InputError("quantization", asked, allowed)


def unquantized_bytes(model: Model, deployment: Deployment | None = None) -> int:
    """Bytes of one weight that is not quantised."""
    return BITS[model.dtype if deployment is None else deployment.activation_dtype] // 8


def tensor_bytes(tensor: Tensor, quantization: Quantization | None, element_bytes: int) -> int:
    """Bytes of a tensor with its scales and zero points."""
    if quantization is None or not is_quantized(tensor.kind, quantization):
        return tensor.elements * element_bytes
    weights = -(-tensor.elements * BITS[quantization.weights] // 8)
    return weights + tensor.copies * _scale_bytes(tensor, quantization)


def _scale_bytes(tensor: Tensor, q: Quantization) -> int:
    """Scales of one matrix: by tile, by group along the inputs, or one an output channel."""
    if q.block:
        return math.ceil(tensor.outputs / q.block[0]) * math.ceil(tensor.inputs / q.block[1]) * q.scale_bytes
    if q.group_size:
        groups = tensor.outputs * math.ceil(tensor.inputs / q.group_size)
        zeros = -(-groups * BITS[q.weights] // 8) if q.zero_points else 0
        return groups * q.scale_bytes + zeros
    return tensor.outputs * q.scale_bytes


def is_quantized(kind: Kind, q: Quantization) -> bool:
    """Whether tensors of this kind are quantised: never embeddings, norms and routers."""
    if kind == "expert":
        return True
    if kind == "head":
        return q.lm_head
    flags = {"attention": q.attention, "mixer": q.mixers, "shared": q.shared_experts, "mlp": q.dense_mlp}
    return flags.get(kind, False) and not q.experts_only


def model_tensors(model: Model, split: Split = WHOLE) -> Iterator[Tensor]:
    """All tensors of the language model, as one rank holds them without pipeline stages."""
    if not model.blocks:
        raise InputError.because(f"{model.name} is given by its few figures: its parameters cannot be counted")
    for block in model.blocks:
        for _ in range(block.count):
            yield from block_tensors(block, model, split)
    yield from embedding_tensors(model, split)
    yield from head_tensors(model, split)


def embedding_tensors(model: Model, split: Split = WHOLE) -> Iterator[Tensor]:
    """The input embedding, its rows split over the ranks, and learned positions."""
    yield Tensor(kind="embedding", outputs=math.ceil(model.vocab_size / split.tp), inputs=model.hidden_size)
    if model.learned_positions:
        yield Tensor(kind="embedding", outputs=model.learned_positions, inputs=model.hidden_size)


def head_tensors(model: Model, split: Split = WHOLE) -> Iterator[Tensor]:
    """The last norm, and the output head where it is not the embedding."""
    yield _vector(model.hidden_size * (2 if model.norm_bias else 1))
    rows = math.ceil(model.vocab_size / split.tp)
    if not model.tie_word_embeddings:
        yield Tensor(kind="head", outputs=rows, inputs=model.hidden_size)
    if model.lm_head_bias:
        yield _vector(rows)


def block_tensors(block: Block, model: Model, split: Split = WHOLE) -> Iterator[Tensor]:
    """The tensors of one layer of ``block`` on one rank."""
    hidden = model.hidden_size
    if isinstance(block.mixer, Attention):
        yield from _attention(block.mixer, hidden, split.tp)
    elif isinstance(block.mixer, Mla):
        yield from _mla(block.mixer, hidden, split.tp)
    elif isinstance(block.mixer, Recurrent):
        rows, rest = divmod(math.ceil(block.mixer.parameters / split.tp), hidden)
        yield Tensor(kind="mixer", outputs=rows, inputs=hidden)
        yield _vector(rest)
    if isinstance(block.mlp, Mlp):
        yield from _mlp("mlp", block.mlp.intermediate_size, hidden, split.tp, block.mlp.gated, block.mlp.bias)
    elif isinstance(block.mlp, Moe):
        yield from _moe(block.mlp, hidden, split)
    if block.other_parameters:
        yield Tensor(kind="other", outputs=block.other_parameters, inputs=1)
    norms = 1 if block.parallel or block.mixer is None or block.mlp is None else model.norms_per_block
    yield _vector(norms * hidden * (2 if model.norm_bias else 1))


def _vector(elements: int) -> Tensor:
    return Tensor(kind="vector", outputs=elements, inputs=1)


def kv_heads_per_rank(mixer: Attention, tp: int) -> int:
    """KV heads that one rank holds: split, or replicated once there are more ranks than heads."""
    return max(1, mixer.kv_heads // tp)


def _attention(a: Attention, hidden: int, tp: int) -> Iterator[Tensor]:
    heads, kv = math.ceil(a.heads / tp), kv_heads_per_rank(a, tp)
    queries = heads * a.head_dim * (2 if a.output_gate else 1)
    keys = 0 if a.kv_shared else kv * a.head_dim
    values = 0 if a.kv_shared or a.k_is_v else kv * a.v_head_dim
    yield Tensor(kind="attention", outputs=queries + keys + values, inputs=hidden)
    yield Tensor(kind="attention", outputs=hidden, inputs=heads * a.v_head_dim)
    small = 2 * a.head_dim if a.qk_norm else 0
    small += (queries + keys + values) * a.qkv_bias + hidden * a.o_bias + heads * a.sinks
    if small:
        yield _vector(small)


def _mla(m: Mla, hidden: int, tp: int) -> Iterator[Tensor]:
    heads = math.ceil(m.heads / tp)
    queries = heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
    if m.q_lora_rank:
        yield Tensor(kind="attention", outputs=m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim, inputs=hidden)
        yield Tensor(kind="attention", outputs=queries, inputs=m.q_lora_rank)
    else:
        yield Tensor(kind="attention", outputs=queries, inputs=hidden)
        yield Tensor(kind="attention", outputs=m.kv_lora_rank + m.qk_rope_head_dim, inputs=hidden)
    yield Tensor(kind="attention", outputs=heads * (m.qk_nope_head_dim + m.v_head_dim), inputs=m.kv_lora_rank)
    yield Tensor(kind="attention", outputs=hidden, inputs=heads * m.v_head_dim)
    if m.index_heads:
        yield Tensor(kind="attention", outputs=m.index_heads * m.index_head_dim, inputs=m.q_lora_rank or hidden)
        yield Tensor(kind="attention", outputs=m.index_head_dim + m.index_heads, inputs=hidden)
    yield _vector((m.q_lora_rank or 0) + m.kv_lora_rank + (2 * m.index_head_dim if m.index_heads else 0))


def _mlp(kind: Kind, width: int, hidden: int, tp: int, gated: bool, bias: bool) -> Iterator[Tensor]:
    rank = math.ceil(width / tp)
    yield Tensor(kind=kind, outputs=rank * (2 if gated else 1), inputs=hidden)
    yield Tensor(kind=kind, outputs=hidden, inputs=rank)
    if bias:
        yield _vector(rank * (2 if gated else 1) + hidden)


def _moe(m: Moe, hidden: int, split: Split) -> Iterator[Tensor]:
    inside = m.latent_size or hidden
    experts = math.ceil(m.experts / split.ep)
    width = math.ceil(m.expert_intermediate_size / split.moe_tp)
    active = m.experts_per_token / m.experts
    rows = width * (2 if m.gated else 1)
    yield Tensor(kind="expert", outputs=rows, inputs=inside, copies=experts, active=active)
    yield Tensor(kind="expert", outputs=inside, inputs=width, copies=experts, active=active)
    if m.bias:
        yield _vector(m.experts + experts * (rows + inside))
    yield Tensor(kind="router", outputs=m.experts, inputs=hidden)
    if m.latent_size:
        yield Tensor(kind="shared", outputs=m.latent_size, inputs=hidden)
        yield Tensor(kind="shared", outputs=hidden, inputs=m.latent_size)
    if m.shared_intermediate_size:
        yield from _mlp("shared", m.shared_intermediate_size, hidden, split.tp, m.gated, False)
    if m.shared_gate:
        yield _vector(hidden)
