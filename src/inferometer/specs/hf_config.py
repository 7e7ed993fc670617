"""Reads a Hugging Face ``config.json`` into a `Model`, and guesses nothing.

`read_config` looks the architecture up in `hf_families.FAMILIES`; each family says how its layers are built. A key
that a family needs and does not find, or finds contradicted, is a `ConfigError` that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from inferometer.specs.chip import Source
from inferometer.specs.hf_families import BY_TYPE, FAMILIES, REFUSED, Family, head_dim_of, kv_heads_of, rotary_dim_of
from inferometer.specs.hf_fields import Fields
from inferometer.specs.hf_quantization import read_quantization
from inferometer.specs.hf_vision import vision_parameters
from inferometer.specs.model import Block, Model, WeightFormat

DTYPES: dict[str, WeightFormat] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def read_config(config: Mapping[str, Any], name: str, read: set[str] | None = None) -> Model:
    """A `Model` from a ``config.json``'s table.

    Args:
        config: the table; multimodal models hold the language model in ``text_config``.
        name: what to call the model, in errors and in the result.
        read: where given, filled with the keys that were looked at.

    Raises:
        ConfigError: an architecture that is not modelled, a key that is missing, or keys that contradict each other.
    """
    outer = Fields(config, name, read=read)
    architecture, family = _family(outer)
    text = outer.sub("text_config") or outer.sub("llm_config") or outer
    hidden, vocab = text.whole("hidden_size"), text.whole("vocab_size")
    shape = family(text)
    positions = text.whole("max_position_embeddings", "n_positions", default=0)
    head_dim = shape.head_dim or head_dim_of(text)
    rotary = shape.rotary_dim if shape.rotary_dim is not None else rotary_dim_of(text, head_dim)
    return Model(
        name=name,
        layers=len(shape.layers),
        kv_heads=shape.kv_heads or kv_heads_of(text),
        head_dim=head_dim,
        architecture=architecture,
        dtype=_dtype(outer, text),
        hidden_size=hidden,
        vocab_size=vocab,
        max_position_embeddings=positions or None,
        tie_word_embeddings=_tied(outer, text, shape.tie_default),
        blocks=tuple(runs(shape.layers)),
        quantization=read_quantization(outer, text),
        norms_per_block=shape.norms_per_block,
        norm_bias=shape.norm_bias,
        learned_positions=shape.learned_positions,
        lm_head_bias=shape.lm_head_bias,
        extra_parameters={**shape.extra, **vision_parameters(architecture, outer, hidden)},
        recurrent_state_dtype_bytes=shape.state_bytes or _state_bytes(text),
        rope_table_elements=positions * rotary * shape.rope_tables,
        sources=_sources(config),
    )


def runs(layers: Iterable[Block]) -> Iterator[Block]:
    """Equal neighbours merged into one `Block` with their count."""
    for block, same in itertools.groupby(layers):
        yield msgspec.structs.replace(block, count=block.count * sum(1 for _ in same))


def _family(config: Fields) -> tuple[str, Family]:
    architectures = config.list("architectures") or []
    model_type = config.get("model_type", "")
    architecture = str(architectures[0]) if architectures else BY_TYPE.get(str(model_type), "")
    if architecture in REFUSED:
        raise config.error(f"architecture {architecture} is not modelled: {REFUSED[architecture]}")
    if not architecture:
        raise config.error(f"architectures is missing, and model_type {model_type!r} is not known")
    if architecture not in FAMILIES:
        raise config.error(
            f"architecture {architecture!r} is not modelled; known: {', '.join(sorted(FAMILIES))}. "
            "Give the model by its few figures instead: im.Model(name, weight_bytes, layers, kv_heads, head_dim)"
        )
    return architecture, FAMILIES[architecture]


def _dtype(outer: Fields, text: Fields) -> WeightFormat:
    for fields in (text, outer):
        value = fields.get("dtype", fields.get("torch_dtype"))
        if value is not None:
            value = str(value).removeprefix("torch.")
            if value not in DTYPES:
                raise fields.error(f"torch_dtype is {value!r}; give one of {', '.join(DTYPES)}")
            return DTYPES[value]
    if outer.get("quantization_config") or text.get("quantization_config"):
        return "bf16"  # engines run a quantised checkpoint that states no dtype in bf16
    raise outer.error("torch_dtype is missing")


def _tied(outer: Fields, text: Fields, default: bool) -> bool:
    stated = [f.get("tie_word_embeddings") for f in (text, outer)]
    return next((bool(v) for v in stated if v is not None), default)


def _state_bytes(text: Fields) -> int:
    stated = text.get("mamba_ssm_cache_dtype", text.get("mamba_ssm_dtype"))
    return 4 if stated == "float32" else 2


def _sources(config: Mapping[str, Any]) -> dict[str, Source]:
    """The ``source`` and ``checked`` of a catalog entry, and its exceptions by field."""
    if "source" not in config:
        return {}
    checked = str(config.get("checked", ""))
    exceptions = config.get("figure_sources") or {}
    return {
        "": Source(source=str(config["source"]), checked=checked),
        **{k: Source(source=str(v), checked=checked) for k, v in exceptions.items()},
    }
