"""Counts what a multimodal model loads beside its language model: the vision tower and the projector."""

from __future__ import annotations

from collections.abc import Callable

from inferometer.specs.hf_fields import Fields


def vision_parameters(architecture: str, outer: Fields, hidden: int) -> dict[str, int]:
    """Parameters of ``vision_tower`` and ``projector``, by name; empty for a model without a vision_config.

    Raises:
        ConfigError: a vision_config of an architecture whose tower is not known.
    """
    vision = outer.sub("vision_config")
    if vision is None:
        return {}
    if architecture not in _TOWERS:
        raise outer.error(f"vision_config of {architecture} cannot be counted; leave it out to model the text alone")
    tower, projector = _TOWERS[architecture](vision, hidden, outer)
    return {"vision_tower": tower, "projector": projector}


def _qwen3_vl(v: Fields, hidden: int, outer: Fields) -> tuple[int, int]:
    """Qwen3-VL and 3.5: LayerNorms and biases, an ungated MLP, learned positions, deep-stack mergers."""
    width, depth, inner = v.whole("hidden_size"), v.whole("depth"), v.whole("intermediate_size")
    patch = v.whole("in_channels", default=3) * v.whole("temporal_patch_size") * v.whole("patch_size") ** 2
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    tower = patch * width + width + v.whole("num_position_embeddings") * width + depth * layer
    merged = width * v.whole("spatial_merge_size") ** 2
    out = v.whole("out_hidden_size")
    merger = merged * merged + merged + merged * out + out
    deep = len(v.list("deepstack_visual_indexes") or [])
    return tower, merger + 2 * width + deep * (merger + 2 * merged)


def _pixtral(v: Fields, hidden: int, outer: Fields) -> tuple[int, int]:
    """Pixtral under Mistral 3: Llama-like layers, a patch merger and a two-layer projector without biases."""
    width, inner = v.whole("hidden_size"), v.whole("intermediate_size")
    patch = v.whole("num_channels", default=3) * v.whole("patch_size") ** 2
    layer = 4 * width * width + 3 * width * inner + 2 * width
    tower = patch * width + width + v.whole("num_hidden_layers") * layer
    merge = outer.whole("spatial_merge_size", default=2) ** 2
    return tower, merge * width * width + width + width * hidden + hidden * hidden


def _siglip(v: Fields, hidden: int, outer: Fields) -> tuple[int, int]:
    """Gemma 3: SigLIP with learned positions, then one projection."""
    width, inner = v.whole("hidden_size"), v.whole("intermediate_size")
    size = v.whole("patch_size")
    positions = (v.whole("image_size") // size) ** 2
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    tower = 3 * size * size * width + width + positions * width + v.whole("num_hidden_layers") * layer + 2 * width
    return tower, width * hidden + width


def _gemma4(v: Fields, hidden: int, outer: Fields) -> tuple[int, int]:
    """Gemma 4: gated MLPs, four norms a layer, learned row and column positions, one projection."""
    width, inner, size = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("patch_size")
    heads = v.whole("num_attention_heads") * v.whole("head_dim")
    layer = 4 * width * heads + 3 * width * inner + 4 * width + 2 * v.whole("head_dim")
    tower = 3 * size * size * width + 2 * v.whole("position_embedding_size") * width
    return tower + v.whole("num_hidden_layers") * layer, width * hidden


def _llama4(v: Fields, hidden: int, outer: Fields) -> tuple[int, int]:
    """Llama 4: a linear patch embedding, biased layers, a pixel-shuffle MLP and one projection."""
    width, inner, size = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("patch_size")
    positions = (v.whole("image_size") // size) ** 2 + 1
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    tower = 3 * size * size * width + (positions + 1) * width + 4 * width + v.whole("num_hidden_layers") * layer
    mlp = inner * v.whole("projector_input_dim") + v.whole("projector_input_dim") * v.whole("projector_output_dim")
    return tower + mlp, v.whole("vision_output_dim") * hidden


def _moonvit(v: Fields, hidden: int, outer: Fields) -> tuple[int, int]:
    """Kimi K2.5: MoonViT and a patch merger."""
    width, inner = v.whole("vt_hidden_size"), v.whole("vt_intermediate_size")
    size, depth = v.whole("patch_size"), v.whole("vt_num_hidden_layers")
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    positions = v.whole("init_pos_emb_height") * v.whole("init_pos_emb_width")
    tower = 3 * size * size * width + width + positions * width + depth * layer + 2 * width
    merged = 4 * width
    return tower, 2 * width + merged * merged + merged + merged * hidden + hidden


_TOWERS: dict[str, Callable[[Fields, int, Fields], tuple[int, int]]] = {
    "Gemma3ForConditionalGeneration": _siglip,
    "Gemma4ForConditionalGeneration": _gemma4,
    "KimiK25ForConditionalGeneration": _moonvit,
    "Llama4ForConditionalGeneration": _llama4,
    "Mistral3ForConditionalGeneration": _pixtral,
    "Qwen3VLForConditionalGeneration": _qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": _qwen3_vl,
    "Qwen3_5ForConditionalGeneration": _qwen3_vl,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_vl,
}
