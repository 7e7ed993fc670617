"""A model's shape: which layers, how wide, in what number format."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from inferometer.specs.chip import Source

WeightFormat = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]


class Attention(msgspec.Struct, frozen=True, kw_only=True, tag="attention"):
    """Softmax attention with a KV cache: MHA, GQA or MQA; with a window where it slides (or is chunked)."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    """Tokens kept by a sliding or chunked layer; None: all."""
    kv_shared: bool = False
    """Reads another layer's keys and values, so owns no KV cache and no k/v projections."""
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    """The q projection is twice as wide: half of it gates the output (Qwen3-Next)."""
    k_is_v: bool = False
    """Keys serve as values: one projection (Gemma 4's global layers)."""


class Mla(msgspec.Struct, frozen=True, kw_only=True, tag="mla"):
    """Multi-head latent attention (DeepSeek-V2): one latent vector a token is cached."""

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_heads: int = 0
    """Sparse-attention indexer (DeepSeek-V3.2): its heads, 0 for none."""
    index_head_dim: int = 0
    index_topk: int = 0


class Recurrent(msgspec.Struct, frozen=True, kw_only=True, tag="recurrent"):
    """Linear attention or Mamba: a state of fixed size a sequence."""

    kind: Literal["mamba2", "mamba", "gated-delta", "lightning", "kda"]
    parameters: int
    """Weights of the mixer of one layer."""
    conv_state_elements: int
    ssm_state_elements: int
    """Elements of state a sequence and layer; bytes follow the state dtypes."""
    heads: int
    flops_per_token: int
    """Of the recurrence itself, beyond 2 x parameters."""


class Mlp(msgspec.Struct, frozen=True, kw_only=True, tag="mlp"):
    """A dense feed-forward layer; gated (SwiGLU) has three matrices, otherwise two."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False


class Moe(msgspec.Struct, frozen=True, kw_only=True, tag="moe"):
    """Routed experts, and shared experts that every token visits (as one MLP of their summed width)."""

    experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    latent_size: int | None = None
    """Experts work in this width instead of the hidden size (Nemotron-3 Super)."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """``count`` equal layers: a token mixer and a feed-forward part, either of which may be missing."""

    count: int
    mixer: Attention | Mla | Recurrent | None
    mlp: Mlp | Moe | None
    parallel: bool = False
    """One norm feeds mixer and MLP (Phi-2, Falcon); affects norms only."""


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """How the checkpoint's matrices are stored; embeddings, head and norms stay in ``dtype`` unless said."""

    method: str
    """As in config.json or the engine's flag: ``fp8``, ``gptq``, ``awq``, ``compressed-tensors``, ``mxfp4``, ``modelopt_fp4``..."""
    weights: WeightFormat
    group_size: int | None = None
    """Weights that share a scale along the input dimension; None: one scale a channel or tensor."""
    block: tuple[int, int] | None = None
    """Tile that shares a scale (DeepSeek fp8: 128 x 128)."""
    scale_bytes: int = 4
    zero_points: bool = False
    activations: Literal["bf16", "fp8", "int8", "fp4"] = "bf16"
    """Number format the matrix product runs in."""
    experts_only: bool = False
    attention: bool = True
    """Whether the attention projections are quantised (many NVFP4 checkpoints leave them in bf16)."""
    lm_head: bool = False


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A language model as far as serving costs go.

    Either read from a ``config.json`` (`inferometer.model`), or given by its few figures, in which case
    ``blocks`` is empty and only memory and roofline figures can be had:

    >>> import inferometer as im
    >>> im.Model(name="lab-70b", weight_bytes=140_000_000_000, layers=80, kv_heads=8, head_dim=128).kv_heads
    8
    """

    name: str
    layers: int
    kv_heads: int = 0
    """KV heads of a plain attention layer (for models given by their few figures)."""
    head_dim: int = 0
    weight_bytes: int | None = None
    """Bytes of all weights, where stated; None: counted from the shape."""
    architecture: str = ""
    dtype: WeightFormat = "bf16"
    hidden_size: int = 0
    vocab_size: int = 0
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    blocks: tuple[Block, ...] = ()
    """Runs of equal layers, in order."""
    quantization: Quantization | None = None
    norms_per_block: int = 2
    norm_bias: bool = False
    learned_positions: int = 0
    lm_head_bias: bool = False
    extra_parameters: dict[str, int] = {}
    """Loaded beside the text model, by name: ``vision_tower``, ``projector``, ...; not read in decode."""
    recurrent_state_dtype_bytes: int = 4
    sources: dict[str, Source] = {}


def model(source: str | dict[str, Any]) -> Model:
    """Placeholder until the reader lands."""
    raise NotImplementedError
