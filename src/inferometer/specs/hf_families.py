"""How each family of models builds its layers from its config.

One small function a family. Defaults of missing keys are those of the family's own configuration class in
``transformers`` 4.57, given where they are read. `FAMILIES` is a plug point: add an entry of one function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferometer.specs.hf_fields import Fields, Shape
from inferometer.specs.model import Attention, Block, Mla, Mlp, Moe, Recurrent

Family = Callable[[Fields], Shape]

REFUSED = {
    "DeepseekV4ForCausalLM": "its compressed sparse attention has no public description to count its cache from",
    "KimiK3ForConditionalGeneration": "its mixture of attention kinds has no public description to count from",
    "MiniMaxM3ForCausalLM": "its sparse attention has no public description to count from",
    "MiniMaxM3SparseForConditionalGeneration": "its sparse attention has no public description to count from",
    "Step3p7FlashForCausalLM": "its per-layer head counts and sparse layers have no public description to count from",
    "Gemma3nForConditionalGeneration": "its MobileNet vision tower cannot be counted from the config; "
    "give its text_config with architectures ['Gemma3nForCausalLM']",
}
"""Architectures known by name and not modelled, each with the reason."""


# ---------------------------------------------------------------- pieces that families share


def _heads(c: Fields) -> int:
    return c.whole("num_attention_heads")


def kv_heads_of(c: Fields) -> int:
    """``num_key_value_heads``; as many as query heads where it is missing."""
    return c.whole("num_key_value_heads", default=_heads(c))


def head_dim_of(c: Fields) -> int:
    """``head_dim``, else the width over the heads; an error where that leaves a rest."""
    stated = c.whole("head_dim", "attention_head_dim", default=0)
    if stated:
        return stated
    hidden, heads = c.whole("hidden_size"), _heads(c)
    if heads == 0 or hidden % heads:
        raise c.error(f"head_dim is missing and hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    return hidden // heads


def rotary_dim_of(c: Fields, head_dim: int) -> int:
    """The part of a head that is rotated: ``partial_rotary_factor`` of it, else all."""
    parameters = c.get("rope_parameters")
    nested = parameters.get("partial_rotary_factor") if isinstance(parameters, Mapping) else None
    share = c.get("partial_rotary_factor", nested)
    return int(head_dim * float(share)) if share is not None else head_dim


def _attention(c: Fields, **different: Any) -> Attention:
    """The plain attention layer of ``c``, with what a family does differently."""
    head_dim = different.pop("head_dim", None) or head_dim_of(c)
    plain: dict[str, Any] = {
        "heads": _heads(c),
        "kv_heads": kv_heads_of(c),
        "head_dim": head_dim,
        "v_head_dim": head_dim,
        **different,
    }
    if plain["kv_heads"] == 0 or plain["heads"] % plain["kv_heads"]:
        raise c.error(f"num_attention_heads {plain['heads']} is no multiple of num_key_value_heads {plain['kv_heads']}")
    return Attention(**plain)


def _layers(c: Fields) -> int:
    return c.whole("num_hidden_layers")


def _block(mixer: Attention | Mla | Recurrent | None, mlp: Mlp | Moe | None, **more: Any) -> Block:
    return Block(count=1, mixer=mixer, mlp=mlp, **more)


def _windows(c: Fields, layers: int, default: Callable[[int], bool]) -> list[bool]:
    """Which layers slide: ``layer_types`` where stated, else the family's rule by index."""
    types = c.list("layer_types", layers)
    if types is None:
        return [default(i) for i in range(layers)]
    known = {"sliding_attention", "full_attention", "chunked_attention"}
    if set(types) - known:
        raise c.error(f"layer_types holds {sorted(set(types) - known)}; known: {', '.join(sorted(known))}")
    return [t != "full_attention" for t in types]


# ---------------------------------------------------------------- dense families


def _llama(c: Fields, qkv_bias: bool | None = None, qk_norm: bool = False) -> Shape:
    """Llama, Mistral, Yi, Granite, and with a bias or a norm on q and k: Qwen2, Qwen3, MiMo."""
    bias = c.flag("attention_bias", False)
    mixer = _attention(
        c, qkv_bias=bias if qkv_bias is None else qkv_bias, o_bias=bias and qkv_bias is None, qk_norm=qk_norm
    )
    mlp = Mlp(intermediate_size=c.whole("intermediate_size"), bias=c.flag("mlp_bias", False))
    if c.get("use_sliding_window") is True:
        raise c.error("use_sliding_window is true: Qwen's mixed windows are not modelled")
    return Shape(layers=[_block(mixer, mlp)] * _layers(c))


def _mistral(c: Fields) -> Shape:
    """Llama with, in the first Mistral 7B and Mixtral only, a window on every layer."""
    mixer = _attention(c, window=c.get("sliding_window"))
    return Shape(layers=[_block(mixer, Mlp(intermediate_size=c.whole("intermediate_size")))] * _layers(c))


def _qwen2(c: Fields) -> Shape:
    return _llama(c, qkv_bias=True)


def _qwen3(c: Fields) -> Shape:
    return _llama(c, qk_norm=True)


def _phi3(c: Fields) -> Shape:
    """Phi-3 and phi-4. The window of Phi-3-mini-4k covers 2047 of its 4096 positions; engines apply it."""
    return _mistral(c)


def _phi(c: Fields) -> Shape:
    """Phi-1.5 and Phi-2: one LayerNorm feeds attention and MLP, biases everywhere (PhiConfig)."""
    mixer = _attention(c, qkv_bias=True, o_bias=True)
    mlp = Mlp(intermediate_size=c.whole("intermediate_size"), gated=False, bias=True)
    rotary = int(head_dim_of(c) * float(c.get("partial_rotary_factor", 0.5)))
    return Shape(
        layers=[_block(mixer, mlp, parallel=True)] * _layers(c), norm_bias=True, lm_head_bias=True, rotary_dim=rotary
    )


def _falcon(c: Fields) -> Shape:
    """Falcon 40B and 180B: parallel attention and MLP with a norm each, four times the width, tied head."""
    hidden = c.whole("hidden_size")
    kv = c.whole("num_kv_heads", "num_key_value_heads")
    width = c.whole("ffn_hidden_size", "intermediate_size", default=4 * hidden)
    bias = c.flag("bias", False)
    mixer = _attention(c, kv_heads=kv, qkv_bias=bias, o_bias=bias)
    mlp = Mlp(intermediate_size=width, gated=False, bias=bias)
    return Shape(layers=[_block(mixer, mlp)] * _layers(c), norm_bias=True, tie_default=True, kv_heads=kv)


def _opt(c: Fields) -> Shape:
    """OPT: learned positions, ungated MLP, biases everywhere, tied head (OPTConfig; word_embed_proj_dim = hidden)."""
    if c.whole("word_embed_proj_dim", default=c.whole("hidden_size")) != c.whole("hidden_size"):
        raise c.error("word_embed_proj_dim differs from hidden_size: OPT-350M's projection is not modelled")
    mixer = _attention(c, qkv_bias=True, o_bias=True)
    mlp = Mlp(intermediate_size=c.whole("ffn_dim", "intermediate_size"), gated=False, bias=True)
    positions = c.whole("max_position_embeddings") + 2
    shape = Shape(layers=[_block(mixer, mlp)] * _layers(c), norm_bias=True, tie_default=True, rotary_dim=0)
    return msgspec.structs.replace(shape, learned_positions=positions)


def _gemma(c: Fields) -> Shape:
    """Gemma: heads of 256 whatever the width, tied (GemmaConfig)."""
    shape = _llama(c)
    return msgspec.structs.replace(shape, tie_default=True)


def _gemma2(c: Fields) -> Shape:
    """Gemma 2: every other layer slides, from the first (Gemma2Config: window 4096); four norms a layer."""
    count = _layers(c)
    windows = _windows(c, count, lambda i: i % 2 == 0)
    return _sliding(c, windows, c.whole("sliding_window", default=4096), qk_norm=False)


def _gemma3(c: Fields) -> Shape:
    """Gemma 3: five sliding layers, then a full one; two rotary tables (Gemma3TextConfig)."""
    count = _layers(c)
    step = c.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    windows = _windows(c, count, lambda i: (i + 1) % step != 0)
    return msgspec.structs.replace(_sliding(c, windows, c.whole("sliding_window"), qk_norm=True), rope_tables=2)


def _sliding(c: Fields, windows: list[bool], window: int, qk_norm: bool) -> Shape:
    mlp = Mlp(intermediate_size=c.whole("intermediate_size"))
    bias = c.flag("attention_bias", False)
    layers = [
        _block(_attention(c, window=window if slides else None, qk_norm=qk_norm, qkv_bias=bias, o_bias=bias), mlp)
        for slides in windows
    ]
    return Shape(layers=layers, norms_per_block=4, tie_default=True)


def _gemma3n(c: Fields) -> Shape:
    """Gemma 3n: AltUp, LAuReL and per-layer inputs; the last ``num_kv_shared_layers`` reuse earlier keys and values."""
    count, hidden = _layers(c), c.whole("hidden_size")
    window, shared = c.whole("sliding_window"), c.whole("num_kv_shared_layers")
    inputs, streams = c.whole("hidden_size_per_layer_input"), c.whole("altup_num_inputs")
    width = c.get("intermediate_size")
    widths = width if isinstance(width, list) else [c.whole("intermediate_size")] * count
    windows = _windows(c, count, lambda i: (i + 1) % 5 != 0)
    laurel = 2 * hidden * c.whole("laurel_rank") + hidden
    altup = streams**2 * streams + streams**2 + hidden * streams + 2 * hidden
    other = laurel + altup + 2 * hidden * inputs + hidden
    layers = [
        _block(
            _attention(c, window=window if windows[i] else None, qk_norm=True, kv_shared=i >= count - shared),
            Mlp(intermediate_size=int(widths[i])),
            other_parameters=other,
        )
        for i in range(count)
    ]
    extra = {
        "per_layer_embeddings": c.whole("vocab_size_per_layer_input") * count * inputs,
        "per_layer_projection": hidden * count * inputs + inputs,
        "altup_projections": 2 * (streams - 1) * hidden * hidden,
    }
    return Shape(layers=layers, norms_per_block=4, tie_default=True, rope_tables=2, extra=extra)


def _gemma4(c: Fields) -> Shape:
    """Gemma 4: wider global heads whose keys serve as values; dense MLP and experts side by side in the MoE model."""
    count, hidden = _layers(c), c.whole("hidden_size")
    windows = _windows(c, count, lambda i: (i + 1) % 6 != 0)
    shared, inputs = c.whole("num_kv_shared_layers", default=0), c.whole("hidden_size_per_layer_input", default=0)
    if c.flag("use_double_wide_mlp", False):
        raise c.error("use_double_wide_mlp is true: which layers are double wide is not stated")
    mlp, beside = _gemma4_mlp(c)
    other = beside + (2 * hidden * inputs + hidden if inputs else 0)
    layers = [
        _block(_gemma4_attention(c, windows[i], i >= count - shared), mlp, other_parameters=other) for i in range(count)
    ]
    extra = {}
    if inputs:
        extra["per_layer_embeddings"] = c.whole("vocab_size_per_layer_input") * count * inputs
        extra["per_layer_projection"] = hidden * count * inputs + inputs
    norms = 4 if isinstance(mlp, Mlp) else 7
    return Shape(layers=layers, norms_per_block=norms, tie_default=True, rope_tables=2, extra=extra)


def _gemma4_attention(c: Fields, slides: bool, shared: bool) -> Attention:
    if slides:
        return _attention(c, window=c.whole("sliding_window"), qk_norm=True, kv_shared=shared)
    wide = c.whole("global_head_dim", default=head_dim_of(c))
    same = c.flag("attention_k_eq_v", False)
    kv = c.whole("num_global_key_value_heads", default=kv_heads_of(c)) if same else kv_heads_of(c)
    return _attention(c, head_dim=wide, kv_heads=kv, qk_norm=True, kv_shared=shared, k_is_v=same)


def _gemma4_mlp(c: Fields) -> tuple[Mlp | Moe, int]:
    """The feed-forward part, and the router's scales beside it."""
    if not c.flag("enable_moe_block", False):
        return Mlp(intermediate_size=c.whole("intermediate_size")), 0
    moe = Moe(
        experts=c.whole("num_experts"),
        experts_per_token=c.whole("top_k_experts"),
        expert_intermediate_size=c.whole("moe_intermediate_size", "expert_intermediate_size"),
        shared_intermediate_size=c.whole("intermediate_size"),
    )
    return moe, c.whole("hidden_size") + moe.experts


def _nemotron_nas(c: Fields) -> Shape:
    """Puzzle models (DeciLM): each layer has its own group size and MLP width, or none, as ``block_configs`` says."""
    count, hidden, heads = _layers(c), c.whole("hidden_size"), _heads(c)
    layers = [_nas_block(c, block, hidden, heads) for block in c.list("block_configs", count) or []]
    if not layers:
        raise c.error("block_configs is missing")
    kv = next(b.mixer.kv_heads for b in layers if isinstance(b.mixer, Attention))
    return Shape(layers=layers, kv_heads=kv)


def _nas_block(c: Fields, block: Mapping[str, Any], hidden: int, heads: int) -> Block:
    attention, ffn = block["attention"], block["ffn"]
    if attention.get("replace_with_linear") or ffn.get("replace_with_linear") or attention.get("window_length"):
        raise c.error("block_configs replaces a layer by a linear or a windowed one, which is not modelled")
    mixer = None if attention["no_op"] else _attention(c, kv_heads=heads // int(attention["n_heads_in_group"]))
    mlp = None
    if not ffn["no_op"]:
        # ffn_mult counts as Llama's: two thirds of the square, rounded up to 256
        width = -(-int(2 * float(ffn["ffn_mult"]) * hidden / 3) // 256) * 256
        mlp = Mlp(intermediate_size=width)
    return _block(mixer, mlp)


# ---------------------------------------------------------------- mixtures of experts


def _mixtral(c: Fields) -> Shape:
    moe = Moe(
        experts=c.whole("num_local_experts"),
        experts_per_token=c.whole("num_experts_per_tok"),
        expert_intermediate_size=c.whole("intermediate_size"),
    )
    return Shape(layers=[_block(_attention(c, window=c.get("sliding_window")), moe)] * _layers(c))


def _phimoe(c: Fields) -> Shape:
    """Mixtral with LayerNorms, biases on attention and head."""
    shape = _mixtral(c)
    bias = c.flag("attention_bias", False)
    mixer = _attention(c, window=c.get("sliding_window"), qkv_bias=bias, o_bias=bias)
    layers = [msgspec.structs.replace(b, mixer=mixer) for b in shape.layers]
    head = c.flag("lm_head_bias", False)
    return msgspec.structs.replace(shape, layers=layers, norm_bias=True, lm_head_bias=head)


def _qwen_moe(c: Fields, mixer: Attention, shared_gate: bool) -> Shape:
    """Qwen2-MoE and Qwen3-MoE: experts every ``decoder_sparse_step`` layers except ``mlp_only_layers``."""
    count = _layers(c)
    moe = _qwen_experts(c, shared_gate)
    step, dense_at = c.whole("decoder_sparse_step", default=1), set(c.list("mlp_only_layers") or [])
    sparse = [step > 0 and (i + 1) % step == 0 and i not in dense_at for i in range(count)]
    dense = None if all(sparse) else Mlp(intermediate_size=c.whole("intermediate_size"))
    return Shape(layers=[_block(mixer, moe if s else dense) for s in sparse])


def _qwen_experts(c: Fields, shared_gate: bool) -> Moe:
    shared = c.whole("shared_expert_intermediate_size") if shared_gate else 0
    return Moe(
        experts=c.whole("num_experts"),
        experts_per_token=c.whole("num_experts_per_tok"),
        expert_intermediate_size=c.whole("moe_intermediate_size"),
        shared_intermediate_size=shared,
        shared_gate=shared_gate and shared > 0,
    )


def _qwen2_moe(c: Fields) -> Shape:
    return _qwen_moe(c, _attention(c, qkv_bias=c.flag("qkv_bias", True)), shared_gate=True)


def _qwen3_moe(c: Fields) -> Shape:
    return _qwen_moe(c, _attention(c, qk_norm=True), shared_gate=False)


def _glm4_moe(c: Fields) -> Shape:
    """GLM-4.5: attention with a bias, the first layers dense, shared experts as DeepSeek counts them."""
    mixer = _attention(c, qkv_bias=c.flag("attention_bias", False), qk_norm=c.flag("use_qk_norm", False))
    return Shape(layers=[_block(mixer, mlp) for mlp in _deepseek_mlps(c)])


def _deepseek_mlps(c: Fields) -> list[Mlp | Moe]:
    """The first ``first_k_dense_replace`` layers are dense, then every ``moe_layer_freq``-th has experts."""
    count, first = _layers(c), c.whole("first_k_dense_replace", default=0)
    experts = c.whole("n_routed_experts", "num_experts")
    shared = c.whole("n_shared_experts", "num_shared_experts", default=0)
    width = c.whole("moe_intermediate_size")
    moe = Moe(
        experts=experts,
        experts_per_token=c.whole("num_experts_per_tok", "num_experts_per_token"),
        expert_intermediate_size=width,
        shared_intermediate_size=shared * width,
    )
    frequency = c.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        sparse = [bool(f) for f in c.list("moe_layer_freq", count) or []]
    else:
        sparse = [i >= first and i % int(frequency) == 0 for i in range(count)]
    stated = c.list("mlp_layer_types", count)
    if stated is not None and [t == "sparse" for t in stated] != sparse:
        raise c.error("mlp_layer_types contradicts first_k_dense_replace and moe_layer_freq")
    dense = None if all(sparse) else Mlp(intermediate_size=c.whole("intermediate_size"))
    return [moe if s or dense is None else dense for s in sparse]


def _deepseek(c: Fields) -> Shape:
    """DeepSeek-V2, V3, V3.2 (with its indexer), Kimi K2, GLM-5: latent attention and many small experts."""
    count = _layers(c)
    types = c.list("indexer_types", count) or ["full"] * count
    indexed = c.whole("index_n_heads", default=0) > 0
    full, shared = _mla(c, indexed), _mla(c, False)
    mixers = [full if t == "full" else shared for t in types]
    layers = [_block(mixer, mlp) for mixer, mlp in zip(mixers, _deepseek_mlps(c), strict=True)]
    return Shape(
        layers=layers, kv_heads=1, head_dim=full.kv_lora_rank + full.qk_rope_head_dim, rotary_dim=full.qk_rope_head_dim
    )


def _mla(c: Fields, indexed: bool) -> Mla:
    return Mla(
        heads=_heads(c),
        q_lora_rank=c.get("q_lora_rank"),
        kv_lora_rank=c.whole("kv_lora_rank"),
        qk_nope_head_dim=c.whole("qk_nope_head_dim"),
        qk_rope_head_dim=c.whole("qk_rope_head_dim"),
        v_head_dim=c.whole("v_head_dim"),
        index_heads=c.whole("index_n_heads") if indexed else 0,
        index_head_dim=c.whole("index_head_dim") if indexed else 0,
        index_topk=c.whole("index_topk", default=0),
    )


def _llama4(c: Fields) -> Shape:
    """Llama 4: three of four layers attend in chunks, the fourth to all; experts every layer (Scout) or every other."""
    count = _layers(c)
    windows = _windows(c, count, lambda i: (i + 1) % 4 != 0)
    chunk = c.whole("attention_chunk_size")
    step = c.whole("interleave_moe_layer_step")
    moe = Moe(
        experts=c.whole("num_local_experts"),
        experts_per_token=c.whole("num_experts_per_tok"),
        expert_intermediate_size=c.whole("intermediate_size"),
        shared_intermediate_size=c.whole("intermediate_size"),
    )
    dense = Mlp(intermediate_size=c.whole("intermediate_size_mlp"))
    sparse = [step > 0 and (i + 1) % step == 0 for i in range(count)]
    layers = [
        _block(_attention(c, window=chunk if w else None, chunked=w), moe if s else dense)
        for w, s in zip(windows, sparse, strict=True)
    ]
    return Shape(layers=layers)


def _gpt_oss(c: Fields) -> Shape:
    """gpt-oss: windows on every other layer from the first, sinks, biases on attention, router and experts."""
    count = _layers(c)
    windows = _windows(c, count, lambda i: i % 2 == 0)
    window = c.whole("sliding_window")
    moe = Moe(
        experts=c.whole("num_local_experts"),
        experts_per_token=c.whole("num_experts_per_tok", "experts_per_token"),
        expert_intermediate_size=c.whole("intermediate_size"),
        bias=True,
    )
    bias = c.flag("attention_bias", True)
    layers = [
        _block(_attention(c, window=window if w else None, qkv_bias=bias, o_bias=bias, sinks=True), moe)
        for w in windows
    ]
    return Shape(layers=layers)


def _minimax_m2(c: Fields) -> Shape:
    moe = Moe(
        experts=c.whole("num_local_experts"),
        experts_per_token=c.whole("num_experts_per_tok"),
        expert_intermediate_size=c.whole("intermediate_size"),
        shared_intermediate_size=c.whole("shared_intermediate_size", default=0),
    )
    rotary = c.whole("rotary_dim", default=head_dim_of(c))
    mixer = _attention(c, qk_norm=c.flag("use_qk_norm", False))
    return Shape(layers=[_block(mixer, moe)] * _layers(c), rotary_dim=rotary)


def _mimo_v2(c: Fields) -> Shape:
    """MiMo-V2-Flash: window layers with their own head counts; the pattern says 1 where a layer slides."""
    count = _layers(c)
    pattern = c.list("hybrid_layer_pattern", count)
    if pattern is None:
        raise c.error("hybrid_layer_pattern is missing")
    full = _attention(c, v_head_dim=c.whole("v_head_dim"))
    slides = Attention(
        heads=c.whole("swa_num_attention_heads"),
        kv_heads=c.whole("swa_num_key_value_heads"),
        head_dim=c.whole("swa_head_dim"),
        v_head_dim=c.whole("swa_v_head_dim"),
        window=c.whole("sliding_window", "sliding_window_size"),
        sinks=c.flag("add_swa_attention_sink_bias", False),
    )
    layers = [_block(slides if p else full, mlp) for p, mlp in zip(pattern, _deepseek_mlps(c), strict=True)]
    return Shape(layers=layers, rope_tables=2)


# ---------------------------------------------------------------- linear attention and Mamba


def _gated_delta(c: Fields) -> Recurrent:
    """Qwen3-Next's gated delta rule: parameters as in Qwen3NextGatedDeltaNet."""
    hidden, kernel = c.whole("hidden_size"), c.whole("linear_conv_kernel_dim")
    k_heads, v_heads = c.whole("linear_num_key_heads"), c.whole("linear_num_value_heads")
    k_dim, v_dim = c.whole("linear_key_head_dim"), c.whole("linear_value_head_dim")
    key, value = k_heads * k_dim, v_heads * v_dim
    channels = 2 * key + value
    projections = hidden * (2 * key + 2 * value) + 2 * hidden * v_heads + value * hidden
    return Recurrent(
        kind="gated-delta",
        parameters=projections + channels * kernel + 2 * v_heads + v_dim,
        conv_state_elements=(kernel - 1) * channels,
        ssm_state_elements=v_heads * k_dim * v_dim,
        heads=v_heads,
        flops_per_token=6 * v_heads * k_dim * v_dim,
    )


def _qwen3_next(c: Fields) -> Shape:
    """Qwen3-Next and 3.5: three gated-delta layers, then attention with an output gate."""
    count = _layers(c)
    interval = c.whole("full_attention_interval", default=4)
    types = c.list("layer_types", count)
    full = [t == "full_attention" for t in types] if types else [(i + 1) % interval == 0 for i in range(count)]
    if types and set(types) - {"full_attention", "linear_attention"}:
        raise c.error(f"layer_types holds {sorted(set(types))}; known: full_attention, linear_attention")
    attention = _attention(c, qk_norm=True, output_gate=c.flag("attn_output_gate", True))
    linear = _gated_delta(c)
    mlp: Mlp | Moe
    if c.get("num_experts"):
        mlp = _qwen_experts(c, shared_gate=True)
    else:
        mlp = Mlp(intermediate_size=c.whole("intermediate_size"))
    return Shape(layers=[_block(attention if f else linear, mlp) for f in full])


def _mamba2(c: Fields) -> Recurrent:
    hidden, heads, dim = c.whole("hidden_size"), c.whole("mamba_num_heads"), c.whole("mamba_head_dim")
    groups, state, kernel = c.whole("n_groups"), c.whole("ssm_state_size"), c.whole("conv_kernel")
    inner = heads * dim
    channels = inner + 2 * groups * state
    return Recurrent(
        kind="mamba2",
        parameters=hidden * (inner + channels + heads)
        + channels * (kernel + (1 if c.flag("use_conv_bias", True) else 0))
        + 3 * heads
        + inner
        + inner * hidden,
        conv_state_elements=(kernel - 1) * channels,
        ssm_state_elements=inner * state,
        heads=heads,
        flops_per_token=5 * inner * state,
    )


def _nemotron_h(c: Fields) -> Shape:
    """Nemotron-H: one mixer or one feed-forward part a layer, spelt M (mamba), * (attention), - (MLP), E (experts)."""
    spelled = c.get("hybrid_override_pattern")
    words = c.list("layers_block_type")
    if spelled is None and words is None:
        raise c.error("hybrid_override_pattern or layers_block_type is missing")
    letters = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
    if spelled is None:
        spelled = "".join(letters.get(str(w), "?") for w in words or [])
    stated = c.whole("num_hidden_layers", default=len(spelled))
    if stated != len(spelled) or set(spelled) - set("M*-E"):
        raise c.error(
            f"the layer pattern has {len(spelled)} layers of {sorted(set(spelled))}; num_hidden_layers is {stated}"
        )
    parts: dict[str, Block] = {}
    for letter in set(spelled):
        parts[letter] = _nemotron_part(c, letter)
    return Shape(layers=[parts[s] for s in spelled], norms_per_block=1, rotary_dim=0)


def _nemotron_part(c: Fields, letter: str) -> Block:
    if letter == "M":
        return _block(_mamba2(c), None)
    if letter == "*":
        return _block(_attention(c), None)
    if letter == "-":
        return _block(None, Mlp(intermediate_size=c.whole("intermediate_size"), gated=False))
    moe = Moe(
        experts=c.whole("n_routed_experts"),
        experts_per_token=c.whole("num_experts_per_tok"),
        expert_intermediate_size=c.whole("moe_intermediate_size"),
        shared_intermediate_size=c.whole("n_shared_experts", default=0)
        * c.whole("moe_shared_expert_intermediate_size"),
        gated=False,
        latent_size=c.get("moe_latent_size"),
    )
    return _block(None, moe)


def _minimax_text(c: Fields) -> Shape:
    """MiniMax-Text-01: lightning attention, with softmax attention where ``attn_type_list`` says 1."""
    count, hidden = _layers(c), c.whole("hidden_size")
    types = c.list("attn_type_list", count)
    if types is None:
        raise c.error("attn_type_list is missing")
    heads, dim = _heads(c), head_dim_of(c)
    lightning = Recurrent(
        kind="lightning",
        parameters=5 * hidden * heads * dim + heads * dim,
        conv_state_elements=0,
        ssm_state_elements=heads * dim * dim,
        heads=heads,
        flops_per_token=4 * heads * dim * dim,
    )
    moe = Moe(
        experts=c.whole("num_local_experts"),
        experts_per_token=c.whole("num_experts_per_tok"),
        expert_intermediate_size=c.whole("intermediate_size"),
    )
    return Shape(
        layers=[_block(_attention(c) if t == 1 else lightning, moe) for t in types],
        rotary_dim=c.whole("rotary_dim", default=dim),
    )


def _kimi_linear(c: Fields) -> Shape:
    """Kimi Linear: Kimi delta attention, with MLA at the layers that ``linear_attn_config`` lists (counted from 1)."""
    count = _layers(c)
    linear = c.sub("linear_attn_config")
    if linear is None:
        raise c.error("linear_attn_config is missing")
    full_at = set(linear.list("full_attn_layers") or [])
    kda = _kda(c.whole("hidden_size"), linear)
    mla = _mla(c, False)
    layers = [_block(mla if i + 1 in full_at else kda, mlp) for i, mlp in enumerate(_deepseek_mlps(c)) if i < count]
    return Shape(
        layers=layers, kv_heads=1, head_dim=mla.kv_lora_rank + mla.qk_rope_head_dim, rotary_dim=0, state_bytes=4
    )


def _kda(hidden: int, c: Fields) -> Recurrent:
    heads, dim, kernel = c.whole("num_heads"), c.whole("head_dim"), c.whole("short_conv_kernel_size")
    inner = heads * dim
    gates = 2 * (hidden * dim + dim * inner) + hidden * heads
    return Recurrent(
        kind="kda",
        parameters=4 * hidden * inner + gates + 3 * inner * kernel + heads + 2 * inner + dim,
        conv_state_elements=(kernel - 1) * 3 * inner,
        ssm_state_elements=heads * dim * dim,
        heads=heads,
        flops_per_token=6 * heads * dim * dim,
    )


FAMILIES: dict[str, Family] = {
    "DeciLMForCausalLM": _nemotron_nas,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV32ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "FalconForCausalLM": _falcon,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Gemma3nForCausalLM": _gemma3n,
    "Gemma4ForCausalLM": _gemma4,
    "Gemma4ForConditionalGeneration": _gemma4,
    "GemmaForCausalLM": _gemma,
    "Glm4MoeForCausalLM": _glm4_moe,
    "GlmMoeDsaForCausalLM": _deepseek,
    "GptOssForCausalLM": _gpt_oss,
    "GraniteForCausalLM": _llama,
    "KimiK25ForConditionalGeneration": _deepseek,
    "KimiLinearForCausalLM": _kimi_linear,
    "Llama4ForCausalLM": _llama4,
    "Llama4ForConditionalGeneration": _llama4,
    "LlamaForCausalLM": _llama,
    "MiMoForCausalLM": _qwen2,
    "MiMoV2FlashForCausalLM": _mimo_v2,
    "MiniMaxM2ForCausalLM": _minimax_m2,
    "MiniMaxText01ForCausalLM": _minimax_text,
    "Mistral3ForConditionalGeneration": _mistral,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "NemotronHForCausalLM": _nemotron_h,
    "OPTForCausalLM": _opt,
    "Phi3ForCausalLM": _phi3,
    "PhiForCausalLM": _phi,
    "PhiMoEForCausalLM": _phimoe,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3VLForConditionalGeneration": _qwen3,
    "Qwen3VLMoeForConditionalGeneration": _qwen3_moe,
    "Qwen3_5ForConditionalGeneration": _qwen3_next,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_next,
}
"""How each architecture's layers are read. A plug point: add an entry of one function."""

BY_TYPE = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "opt": "OPTForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}
"""The architecture of a ``model_type``, for configs that state no architecture."""
