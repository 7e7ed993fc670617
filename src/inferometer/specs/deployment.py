"""A deployment: a model on some chips under an engine's flags."""

from __future__ import annotations

from typing import Any

import msgspec

from inferometer.errors import InputError
from inferometer.specs.chip import Chip
from inferometer.specs.model import Model


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on ``tensor x pipeline x data`` chips under an engine's flags.

    ``flags`` holds only what the user set, by the engine's own names; `resolved` fills in the version's defaults
    for this chip and model.

    Raises:
        InputError: a flag that the engine does not know, a size below 1, an unknown engine or version,
            a tensor-parallel size that does not divide the attention heads (or neither divides nor is divided
            by the KV heads).

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> dep.resolved().max_num_batched_tokens
    2048
    """

    model: Model
    chip: Chip
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    engine: str = "vllm"
    engine_version: str = ""
    flags: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(name, value, "a whole number of at least 1")

    @property
    def chips(self) -> int:
        """Chips in all: tensor x pipeline x data."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
