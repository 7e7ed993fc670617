"""A deployment: a model on some chips under an engine's flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from inferometer.errors import InputError
from inferometer.specs.chip import Chip
from inferometer.specs.engine import EngineFlags, resolve_flags, resolve_version
from inferometer.specs.model import Attention, Mla, Model, Moe, Recurrent

DTYPES = ("auto", "bfloat16", "float16", "half", "float32", "float")
KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
QUANTIZATIONS = (
    "awq", "awq_marlin", "compressed-tensors", "fp8", "gptq", "gptq_marlin", "int8", "modelopt", "modelopt_fp4",
    "mxfp4", "nvfp4", "w8a8",
)  # fmt: skip

_ACTIVATIONS: dict[str, Literal["bf16", "fp16", "fp32"]] = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
}  # fmt: skip


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on ``tensor x pipeline x data`` chips under an engine's flags.

    ``flags`` holds only what the user set, by the engine's own names; `resolved` fills in the version's defaults
    for this chip and model. ``engine_version`` "" is the newest preset.

    Raises:
        UnknownNameError: an unknown engine.
        InputError: a flag that the engine does not know or of a value that it refuses, a size below 1, an unknown
            version, dtype or quantization, a tensor-parallel size that does not divide the attention heads (or
            neither divides nor is divided by the KV heads), more pipeline stages than layers, expert parallelism
            without experts.

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
        """Refuse what the engine would refuse at start-up."""
        _check_types(self)
        _check_names(self)
        _check_tensor_parallel(self)
        _check_stages_and_experts(self)
        self.resolved()

    @property
    def chips(self) -> int:
        """Chips in all: tensor x pipeline x data."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def name(self) -> str:
        """A line that says what runs where, such as ``Qwen/Qwen3-8B bf16 on 1 x A100-SXM4-80GB``."""
        stored = self.model.quantization.weights if self.model.quantization else self.activation_dtype
        return f"{self.model.name} {self.quantization or stored} on {self.chips} x {self.chip.name}"

    @property
    def activation_dtype(self) -> Literal["bf16", "fp16", "fp32"]:
        """Number format of activations and of weights that are not quantised.

        "auto" is the checkpoint's own, except that the engine turns fp32 checkpoints into bf16, and bf16 into fp16 on
        a chip without bf16 units (``vllm/config/model.py:_resolve_auto_dtype``).
        """
        if self.dtype != "auto":
            return _ACTIVATIONS[self.dtype]
        return "fp16" if self.model.dtype == "fp16" or _lacks_bf16(self.chip) else "bf16"

    def kv_dtype_bytes(self) -> int:
        """Bytes of one cached number: 1 for an fp8 cache, else those of `activation_dtype` (2, or 4 for fp32)."""
        if self.kv_cache_dtype.startswith("fp8"):
            return 1
        return 4 if self.kv_cache_dtype == "auto" and self.activation_dtype == "fp32" else 2

    def describe(self) -> dict[str, Any]:
        """What is served on what, as plain values: names, sizes and every flag resolved."""
        kept = [f for f in self.__struct_fields__ if f not in ("model", "chip", "flags", "engine_version")]
        return {
            "model": self.model.name,
            "chip": self.chip.id,
            "engine_version": resolve_version(self.engine, self.engine_version),
            **{name: getattr(self, name) for name in kept},
            "flags": msgspec.to_builtins(self.resolved()),
        }

    def resolved(self) -> EngineFlags:
        """Every flag's value: the user's, else the version's default for this chip and model."""
        return resolve_flags(self.engine, self.engine_version, self.chip, self.model, self.flags)


def _lacks_bf16(chip: Chip) -> bool:
    return "fp16" in chip.flops_per_s and "bf16" not in chip.flops_per_s


def _check_types(deployment: Deployment) -> None:
    for field, kind in (("model", Model), ("chip", Chip)):
        value = getattr(deployment, field)
        if not isinstance(value, kind):
            raise InputError(field, value, f"a {kind.__name__}; inferometer.{field}(...) reads one by its name")
    for field in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        value = getattr(deployment, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(field, value, "a whole number of at least 1")
    if not isinstance(deployment.enable_expert_parallel, bool):
        raise InputError("enable_expert_parallel", deployment.enable_expert_parallel, "true or false")
    if not isinstance(deployment.flags, Mapping):
        raise InputError("flags", deployment.flags, "a table of the engine's flags")


def _check_names(deployment: Deployment) -> None:
    allowed = {"dtype": DTYPES, "kv_cache_dtype": KV_CACHE_DTYPES, "quantization": (None, *QUANTIZATIONS)}
    for field, names in allowed.items():
        value = getattr(deployment, field)
        if value not in names:
            raise InputError(field, value, f"one of {', '.join(name for name in names if name)}")
    if deployment.dtype == "bfloat16" and _lacks_bf16(deployment.chip):
        raise InputError("dtype", "bfloat16", f"float16: {deployment.chip.name} has no bf16 units")


def _check_tensor_parallel(deployment: Deployment) -> None:
    model, ranks = deployment.model, deployment.tensor_parallel_size
    for block in model.blocks:
        if isinstance(block.mixer, Attention | Mla | Recurrent) and block.mixer.heads % ranks:
            kind = "linear-attention" if isinstance(block.mixer, Recurrent) else "attention"
            raise _does_not_split(deployment, f"{block.mixer.heads} {kind} heads do not divide by {ranks}")
    counts = {block.mixer.kv_heads for block in model.blocks if isinstance(block.mixer, Attention)}
    for kv_heads in counts if model.blocks else {model.kv_heads} - {0}:
        if kv_heads % ranks and ranks % kv_heads:
            reason = f"{kv_heads} KV heads can be neither split nor replicated evenly over {ranks} ranks"
            raise _does_not_split(deployment, reason)


def _does_not_split(deployment: Deployment, reason: str) -> InputError:
    ranks = deployment.tensor_parallel_size
    error = InputError.because(f"tensor_parallel_size {ranks} does not suit {deployment.model.name}: its {reason}")
    error.field, error.value = "tensor_parallel_size", ranks
    return error


def _check_stages_and_experts(deployment: Deployment) -> None:
    model, stages = deployment.model, deployment.pipeline_parallel_size
    if stages > model.layers:
        raise InputError("pipeline_parallel_size", stages, f"at most {model.layers}, the layers of {model.name}")
    experts = any(isinstance(block.mlp, Moe) for block in model.blocks)
    if deployment.enable_expert_parallel and model.blocks and not experts:
        raise InputError("enable_expert_parallel", True, f"false: {model.name} has no experts")
