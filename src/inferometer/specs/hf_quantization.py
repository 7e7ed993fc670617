"""Reads ``quantization_config``: in which format the matrices lie, with which scales, and what was left alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from inferometer.specs.hf_fields import Fields
from inferometer.specs.model import Quantization, WeightFormat

Activations = Literal["bf16", "fp8", "int8", "fp4"]

# which part of a model a pattern of an ignore list speaks of; the first that matches counts
_PARTS: tuple[tuple[str, str], ...] = (
    (r"vision|visual|image|mtp|embed|patch|projector|audio|norm|indexer", ""),
    (r"router|(^|[.])(shared_expert_)?gate(\*|[.]weight)?$", ""),
    (r"shared_expert", "shared_experts"),
    (r"linear_attn|mixer|mamba|conv1d", "mixers"),
    (r"self_attn|attention", "attention"),
    (r"experts", "experts"),
    (r"mlp\*?$|mlp\.\(|mlp\.(gate|up|gate_up|down)_proj", "dense_mlp"),
)


def read_quantization(outer: Fields, text: Fields) -> Quantization | None:
    """The quantisation that a config states, or None.

    Raises:
        ConfigError: a method, or a combination of formats, that is not modelled.
    """
    config = outer.sub("quantization_config") or (None if text is outer else text.sub("quantization_config"))
    if config is None:
        return None
    method = str(config.get("quant_method", ""))
    producer = config.get("producer")
    if not method and isinstance(producer, Mapping):
        method = str(producer.get("name", ""))
    readers = {
        "fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "gptq": _packed,
        "awq": _packed,
        "compressed-tensors": _groups,
        "modelopt": _modelopt,
        "mxfp4": _mxfp4,
    }
    if method not in readers:
        raise outer.error(f"quant_method {method!r} is not modelled; known: {', '.join(readers)}")
    return readers[method](config, method, _left_alone(config, text))


def _left_alone(config: Fields, text: Fields) -> dict[str, Any]:
    """`Quantization`'s flags from an ignore list: a part counts as left alone where at least half of its layers are."""
    layers = text.whole("num_hidden_layers", default=1)
    linear = (text.list("layer_types") or []).count("linear_attention")
    having = {"attention": layers - linear, "mixers": linear or layers}
    ignored = config.list("ignore") or config.list("modules_to_not_convert") or []
    seen: dict[str, set[str]] = {}
    for pattern in map(str, ignored):
        part = next((p for rule, p in _PARTS if re.search(rule, pattern)), "")
        index = re.search(r"layers\.(\d+)", pattern)
        seen.setdefault(part, set()).add(index.group(1) if index else "all")
    left = {p for p, where in seen.items() if p and ("all" in where or len(where) * 2 >= having.get(p, layers))}
    if "experts" in left:
        raise config.error("the ignore list leaves the experts unquantised, which is not modelled")
    flags: dict[str, Any] = {p: False for p in ("attention", "shared_experts", "dense_mlp", "mixers") if p in left}
    return flags


def _fp8(config: Fields, method: str, left: dict[str, Any]) -> Quantization:
    block = config.list("weight_block_size", 2)
    tile = (int(block[0]), int(block[1])) if block else None
    return Quantization(method=method, weights="fp8", block=tile, activations="fp8", **left)


def _mxfp4(config: Fields, method: str, left: dict[str, Any]) -> Quantization:
    """gpt-oss: only the experts, in groups of 32 with one byte of scale (OCP MX)."""
    return Quantization(method=method, weights="mxfp4", group_size=32, scale_bytes=1, experts_only=True)


def _packed(config: Fields, method: str, left: dict[str, Any]) -> Quantization:
    bits, group = (
        config.whole("bits", "w_bit", default=4),
        int(config.get("group_size", config.get("q_group_size", 128))),
    )
    formats: dict[int, WeightFormat] = {4: "int4", 8: "int8"}
    if bits not in formats:
        raise config.error(f"bits is {bits}; 4 and 8 are modelled")
    return Quantization(
        method=method,
        weights=formats[bits],
        group_size=group if group > 0 else None,
        scale_bytes=2,
        zero_points=method == "awq" or not config.flag("sym", True),
        **left,
    )


def _groups(config: Fields, method: str, left: dict[str, Any]) -> Quantization:
    """compressed-tensors: one group of targets, whose weights and activations say all."""
    weights, inputs = _only_group(config)
    kind, bits = str(weights.get("type", "int")), int(weights.get("num_bits", 8))
    size = weights.get("group_size")
    group = int(size) if size and int(size) > 0 else None
    formats: dict[tuple[str, int], WeightFormat] = {
        ("float", 8): "fp8",
        ("int", 8): "int8",
        ("int", 4): "int4",
        ("float", 4): "nvfp4",
    }
    if (kind, bits) not in formats:
        raise config.error(f"weights of type {kind} and {bits} bits are not modelled")
    weight_format = formats[kind, bits]
    if weight_format == "nvfp4" and group == 32:
        weight_format = "mxfp4"
    shape = weights.get("block_structure")
    tile = (int(shape[0]), int(shape[1])) if isinstance(shape, list) and len(shape) == 2 else None
    scale_bytes = {"nvfp4": 1, "mxfp4": 1, "int4": 2}.get(weight_format, 4)
    return Quantization(
        method=method,
        weights=weight_format,
        group_size=group,
        block=tile,
        scale_bytes=scale_bytes,
        zero_points=weights.get("symmetric") is False,
        activations=_activations(inputs),
        **left,
    )


def _modelopt(config: Fields, method: str, left: dict[str, Any]) -> Quantization:
    algorithm = str(config.get("quant_algo", ""))
    known: dict[str, WeightFormat] = {"FP8": "fp8", "NVFP4": "nvfp4"}
    if algorithm not in known:
        raise config.error(f"quant_algo {algorithm!r} of modelopt is not modelled; known: {', '.join(known)}")
    weights = known[algorithm]
    if weights == "fp8":
        return Quantization(method=method, weights="fp8", activations="fp8", **left)
    return Quantization(method="modelopt_fp4", weights="nvfp4", group_size=16, scale_bytes=1, activations="fp4", **left)


def _only_group(config: Fields) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise config.error("config_groups must hold one group; mixed formats are not modelled")
    group = next(iter(groups.values()))
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise config.error("config_groups has a group without weights")
    return weights, group.get("input_activations")


def _activations(inputs: Mapping[str, Any] | None) -> Activations:
    if not inputs:
        return "bf16"
    kinds: dict[tuple[str, int], Activations] = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "fp4"}
    return kinds.get((str(inputs.get("type", "int")), int(inputs.get("num_bits", 8))), "bf16")
