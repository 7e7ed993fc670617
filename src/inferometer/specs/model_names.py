"""What a model's name says: which entry of the catalog it is, and in which number format."""

from __future__ import annotations

import re
from typing import Any, Literal

from inferometer.specs.catalog import fold
from inferometer.specs.model import Quantization

Suffix = Quantization | None | Literal["keep"]
"""The format that a name asks for: a quantisation, None for plain bf16, or ``keep`` for the entry's own."""

_INT4_GROUPS: dict[str, Any] = {"group_size": 128, "scale_bytes": 2}

SUFFIXES: tuple[tuple[str, Suffix], ...] = (
    (r"fp8[-_]dynamic", Quantization(method="compressed-tensors", weights="fp8", activations="fp8")),
    (r"fp8[-_]block", Quantization(method="fp8", weights="fp8", activations="fp8", block=(128, 128))),
    (r"fp8[-_]static[-_]pertensor|fp8", Quantization(method="fp8", weights="fp8", activations="fp8")),
    (
        r"quantized\.w8a8|w8a8|int8[-_]w8a8",
        Quantization(method="compressed-tensors", weights="int8", activations="int8"),
    ),
    (r"quantized\.w8a16|w8a16", Quantization(method="compressed-tensors", weights="int8")),
    (r"quantized\.w4a16|w4a16", Quantization(method="compressed-tensors", weights="int4", **_INT4_GROUPS)),
    (
        r"nvfp4|fp4",
        Quantization(method="modelopt_fp4", weights="nvfp4", group_size=16, scale_bytes=1, activations="fp4"),
    ),
    (r"mxfp4", Quantization(method="mxfp4", weights="mxfp4", group_size=32, scale_bytes=1, experts_only=True)),
    (r"awq(?:[-_]int4|[-_]4bit)?", Quantization(method="awq", weights="int4", zero_points=True, **_INT4_GROUPS)),
    (r"gptq[-_]int8|gptq[-_]8bit", Quantization(method="gptq", weights="int8", **_INT4_GROUPS)),
    (r"gptq(?:[-_]int4|[-_]4bit)?", Quantization(method="gptq", weights="int4", zero_points=True, **_INT4_GROUPS)),
    (r"bf16|fp16", None),
)
"""Name endings and the checkpoint formats they stand for; int4 in groups of 128."""

_VARIANT = re.compile(r"-(instruct|it|chat|hf|base|pt|thinking|\d{4})(?=-|$)")
"""Parts of a name that do not change the shape: tuning, packaging, and a date as month and year."""

ALIASES = {
    "codellama-34b": "codellama-34b-instruct",
    "deepseek-coder-v2-lite": "deepseek-v2-lite",
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.1-terminus": "deepseek-v3",
    "gemma-3-27b-text": "gemma-3-27b",
    "kimi-dev-72b": "qwen2.5-72b",
    "kimi-k2-0905": "kimi-k2",
    "llama-3.3-70b": "llama-3.1-70b",
    "minimax-m1-80k": "minimax-text-01",
    "mistral-small-3.2-24b": "mistral-small-3.1-24b",
    "mixtral-8x22b": "mixtral-8x22b-v0.1",
    "mixtral-8x7b": "mixtral-8x7b-v0.1",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "qwq-32b": "qwen2.5-32b",
}
"""Names whose shape is another entry's."""


def bare(name: str) -> str:
    """``name`` in lower case without its organisation and ``Meta-``.

    >>> bare("meta-llama/Meta-Llama-3.1-8B")
    'llama-3.1-8b'
    """
    return name.rsplit("/", 1)[-1].strip().lower().replace("_", "-").removeprefix("meta-")


def base(name: str) -> str:
    """A bare name without the parts that do not change the shape, followed through `ALIASES`.

    >>> base("llama-3.3-70b-instruct")
    'llama-3.1-70b'
    """
    plain = re.sub(r"^qwen([\d.]+)-coder-(?=[\d.]+b$)", r"qwen\1-", _VARIANT.sub("", name))
    return ALIASES.get(plain, plain)


def split_suffix(name: str) -> tuple[str, Suffix]:
    """A bare name without its quantisation ending, and what that ending means.

    >>> split_suffix("qwen3-8b-fp8")[0]
    'qwen3-8b'
    """
    for pattern, quantization in SUFFIXES:
        match = re.search(rf"[-.](?:{pattern})$", name)
        if match:
            return name[: match.start()], quantization
    return name, "keep"


def candidates(name: str) -> list[tuple[str, Suffix]]:
    """The catalog ids that ``name`` may be, folded, most exact first, each with the format asked for."""
    whole = bare(name)
    plain, suffix = split_suffix(whole)
    tries: list[tuple[str, Suffix]] = [(whole, "keep"), (base(whole), "keep")]
    if suffix != "keep":
        # a date or "-Instruct" may stand behind or before the format: Qwen3-8B-FP8, Scout-Instruct-FP8-dynamic
        tries += [(plain, suffix), (base(plain), suffix)]
    else:
        plain, suffix = split_suffix(_VARIANT.sub("", whole))
        tries += [(plain, suffix), (base(plain), suffix)] if suffix != "keep" else []
    unique = dict.fromkeys((fold(id), asked) for id, asked in tries)
    return list(unique)
