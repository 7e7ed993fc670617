"""A model's shape: which layers, how wide, in what number format."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferometer.errors import ConfigError, InputError, UnknownNameError
from inferometer.specs import catalog
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
    chunked: bool = False
    """The window is a chunk of fixed bounds (Llama 4), not one that slides."""
    kv_shared: bool = False
    """Reads another layer's keys and values, so owns no KV cache and no k/v projections."""
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    """The q projection is twice as wide: half of it gates the output (Qwen3-Next)."""
    sinks: bool = False
    """One learned logit a head that takes attention nobody wants (gpt-oss)."""
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
    other_parameters: int = 0
    """Further weights of one layer that every token visits (per-layer inputs, AltUp and LAuReL of Gemma 3n)."""


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """How the checkpoint's matrices are stored; embeddings, head and norms stay in ``dtype`` unless said."""

    method: str
    """As in config.json or the engine's flag: ``fp8``, ``gptq``, ``awq``, ``compressed-tensors``, ``mxfp4``, ..."""
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
    shared_experts: bool = True
    """Whether shared experts are quantised (most NVFP4 checkpoints of mixture models leave them in bf16)."""
    dense_mlp: bool = True
    """Whether dense feed-forward layers are quantised."""
    mixers: bool = True
    """Whether linear-attention and Mamba projections are quantised."""


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
    rope_table_elements: int = 0
    """Elements of the cosine and sine tables that the engine keeps beside the weights (positions x rotary width)."""
    sources: dict[str, Source] = {}


def model(source: str | os.PathLike[str] | Mapping[str, Any]) -> Model:
    """The model of a catalog id, of a ``config.json`` (or the folder it lies in), of a dict, or of a hub id.

    Names are compared without organisation, ``Meta-``, case, dashes and what does not change the shape
    (``-Instruct``, ``-it``, ``-Chat``, ``-hf``, dates such as ``-2507``); a quantisation suffix (``-FP8-dynamic``,
    ``-quantized.w8a8``, ``-NVFP4``, ``-AWQ``, ...) is the base in that format. The name asked for is kept as ``name``.
    Catalog and disk come first; the hub is asked only where ``huggingface_hub`` is installed.

    Raises:
        UnknownNameError: in no catalog, on no disk and (where asked) not on the hub; close names are given.
        ConfigError: a configuration that lacks or contradicts what is needed, or an architecture not modelled.

    >>> import inferometer as im
    >>> im.model("Qwen/Qwen3-8B").kv_heads
    8
    """
    from inferometer.specs.hf_config import read_config  # it builds this module's structs

    if isinstance(source, Mapping):
        return read_config(source, str(source.get("_name_or_path") or source.get("model_type") or "config"))
    path = _config_file(source)
    if path is not None:
        return read_config(catalog.read_table(path), _name_of(path))
    name = os.fspath(source).strip()
    found = _from_catalog(name)
    if found is not None:
        return found
    return read_config(catalog.read_table(_hub_file(name)), name)


def with_quantization(base: Model, quantization: Quantization | None) -> Model:
    """``base`` as if its checkpoint were stored so; NVFP4 mixtures leave attention and shared experts in bf16."""
    if (
        quantization is not None
        and quantization.weights == "nvfp4"
        and any(isinstance(b.mlp, Moe) for b in base.blocks)
    ):
        quantization = msgspec.structs.replace(quantization, attention=False, shared_experts=False, mixers=False)
    return msgspec.structs.replace(base, quantization=quantization)


def _from_catalog(name: str) -> Model | None:
    from inferometer.specs.hf_config import read_config
    from inferometer.specs.model_names import candidates

    known = {catalog.fold(id): id for id in catalog.names("models")}
    for folded, suffix in candidates(name):
        table = catalog.read("models", known[folded]) if folded in known else None
        if table is not None:
            found = (
                _from_table(table, name)
                if "hidden_size" not in table and "layers" in table
                else read_config(table, name)
            )
            return found if suffix == "keep" else with_quantization(found, suffix)
    return None


def _from_table(table: Mapping[str, Any], name: str) -> Model:
    """An entry that gives a model's few figures under our own names."""
    try:
        return msgspec.convert({**table, "name": name}, Model)
    except msgspec.ValidationError as error:
        raise ConfigError.because(f"{name}: {error}") from error


def _config_file(source: str | os.PathLike[str]) -> Path | None:
    """The file meant by ``source`` where it is a path that exists; an error where it looks like a path and does not."""
    path = Path(source).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path / "config.json"
        # a folder that happens to have a catalog name is no mistake
        return None if not _is_path(source) else _missing(path / "config.json")
    if path.is_file():
        return path
    return _missing(path) if _is_path(source) and path.suffix == ".json" else None


def _is_path(source: str | os.PathLike[str]) -> bool:
    text = os.fspath(source)
    return not isinstance(source, str) or text.startswith((".", "/", "~")) or text.endswith(".json")


def _missing(path: Path) -> Path:
    raise InputError("model", str(path), "the path of a config.json that exists")


def _name_of(path: Path) -> str:
    return path.parent.resolve().name if path.name == "config.json" else path.stem.replace("--", "/")


def _hub_file(name: str) -> Path:
    """``config.json`` of a repository on the hub, from its local cache or downloaded."""
    if "/" not in name:
        raise UnknownNameError("model", name, catalog.names("models"))
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        hint = "the hub was not asked: huggingface_hub is not installed; give the path of a config.json"
        raise _unknown(name, hint) from None
    try:
        return Path(hub.hf_hub_download(name, "config.json"))
    except Exception as error:  # whatever the hub's client raises, the answer is the same
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _unknown(name, f"the hub gave no config.json: {reason}") from error


def _unknown(name: str, hint: str) -> UnknownNameError:
    error = UnknownNameError("model", name, catalog.names("models"))
    error.args = (f"{error} ({hint})",)
    return error
