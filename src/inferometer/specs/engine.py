"""Engines, their flags by their own names, and what each version's defaults are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from inferometer import units
from inferometer.errors import InputError, UnknownNameError
from inferometer.specs import catalog
from inferometer.specs.chip import Chip
from inferometer.specs.model import Model, Recurrent

FALLBACK_MAX_MODEL_LEN = 8192
"""For a model whose longest context is not stated; vLLM's own SchedulerConfig falls back on the same figure."""


class EngineFlags(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every flag resolved to a value: the user's, else the version preset's for this chip and model.

    Names are vLLM's own. Source of the defaults: ``vllm/engine/arg_utils.py`` and ``vllm/config/*.py`` of each release.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = True
    watermark: float = 0.0
    enforce_eager: bool = False
    max_cudagraph_capture_size: int = 512
    """Largest token count with a captured CUDA graph; 0 when eager."""
    subtract_cudagraph_memory: bool = True
    """Whether this version takes the CUDA graphs' memory off the KV cache."""
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"


def engines() -> list[str]:
    """Names of the engines that have presets, sorted.

    >>> engines()
    ['vllm']
    """
    folder = resources.files("inferometer.specs") / "data" / "engines"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def resolve_version(engine: str, version: str = "") -> str:
    """``version`` if its release lies in the range whose defaults are known; the newest preset's for "".

    Raises:
        UnknownNameError: no such engine.
        InputError: not a version, or outside the known range.

    >>> resolve_version("vllm")
    '0.32.0'
    """
    preset = _preset(engine)
    if version == "":
        return str(preset["newest"])
    if not _release(preset["first"]) <= _release(version) <= _release(preset["last"]):
        raise InputError("engine_version", version, f"a {engine} release from {preset['first']} to {preset['last']}")
    return version


def resolve_flags(engine: str, version: str, chip: Chip, model: Model, flags: Mapping[str, Any]) -> EngineFlags:
    """Every flag's value for this chip and model: the user's, else this version's default.

    The order is vLLM's (``EngineArgs._set_default_max_num_seqs_and_batched_tokens_args``): without chunked prefill a
    default token budget grows to ``max_model_len``; it is capped at ``max_num_seqs x max_model_len``; a default
    ``max_num_seqs`` is capped at the budget. Both ``max_num_seqs`` and ``max-num-seqs`` are understood.

    Raises:
        UnknownNameError: no such engine.
        InputError: a flag that is unknown, of the wrong type or out of range, or two that contradict each other.
    """
    version = resolve_version(engine, version)
    given = _checked(engine, version, flags)
    values = _defaults(engine, version, chip, model) | given
    _set_batch(values, given)
    _set_cudagraphs(values, given)
    _refuse_contradictions(values, given)
    return msgspec.convert(values, EngineFlags)


def cudagraph_sizes(flags: EngineFlags) -> tuple[int, ...]:
    """Token counts with a captured CUDA graph: 1, 2, 4, 8..248 step 8, 256.. step 16, up to the largest.

    Source: ``vllm/config/vllm.py:_set_cudagraph_sizes``. Empty when eager.

    >>> cudagraph_sizes(EngineFlags(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64,
    ...                             max_cudagraph_capture_size=16))
    (1, 2, 4, 8, 16)
    """
    return _graph_sizes(0 if flags.enforce_eager else flags.max_cudagraph_capture_size)


@cache
def _graph_sizes(largest: int) -> tuple[int, ...]:
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


@cache
def _preset(engine: str) -> dict[str, Any]:
    if engine not in engines():
        raise UnknownNameError("engine", engine, engines())
    return catalog.read_table(resources.files("inferometer.specs") / "data" / "engines" / f"{engine}.toml")


def _release(version: str) -> tuple[int, int]:
    """Major and minor number, so that 0.10.1.1, v0.11.0rc2 and 0.19.0+cu128 all have one; (-1, -1) for none."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:[.\-+a-z][\w.+\-]*)?", version) if isinstance(version, str) else None
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def _since(entries: list[dict[str, Any]], version: str) -> list[dict[str, Any]]:
    """The entries that hold in this version, in the file's order."""
    return [entry for entry in entries if _release(entry["since"]) <= _release(version)]


def _defaults(engine: str, version: str, chip: Chip, model: Model) -> dict[str, Any]:
    preset = _preset(engine)
    values: dict[str, Any] = {entry["flag"]: entry["value"] for entry in _since(preset["default"], version)}
    batch = next(row for row in _since(preset["batch"], version) if _fits(row, chip))
    graphs = next(row for row in _since(preset["cudagraph"], version) if row.get("family", chip.family) == chip.family)
    values["max_num_seqs"] = batch["max_num_seqs"]
    values["max_num_batched_tokens"] = batch["max_num_batched_tokens"]
    values["max_cudagraph_capture_size"] = graphs["max_tokens"]
    values["max_model_len"] = model.max_position_embeddings or FALLBACK_MAX_MODEL_LEN
    if any(isinstance(block.mixer, Recurrent) for block in model.blocks):
        # ModelConfig.is_prefix_caching_supported: off by default for hybrid models
        values["enable_prefix_caching"] = False
    return values


def _fits(row: dict[str, Any], chip: Chip) -> bool:
    large_enough = chip.total_memory_bytes >= row["min_total_gib"] * units.GIB
    return large_enough and ("name_lacks" not in row or row["name_lacks"] not in chip.name.lower())


def _set_batch(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    if "max_num_batched_tokens" not in given:
        budget = values["max_num_batched_tokens"]
        if not values["enable_chunked_prefill"]:
            budget = max(budget, values["max_model_len"])
        values["max_num_batched_tokens"] = min(budget, values["max_num_seqs"] * values["max_model_len"])
    if "max_num_seqs" not in given:
        values["max_num_seqs"] = min(values["max_num_seqs"], values["max_num_batched_tokens"])


def _set_cudagraphs(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    largest = values["max_cudagraph_capture_size"]
    if "max_cudagraph_capture_size" not in given:
        largest = min(2 * values["max_num_seqs"], largest)
    largest = 0 if values["enforce_eager"] else min(largest, values["max_num_batched_tokens"])
    # the engine takes the largest size that it does capture
    values["max_cudagraph_capture_size"] = max(_graph_sizes(largest), default=0)


def _refuse_contradictions(values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    budget, seqs, length = (values[k] for k in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"))
    said = "" if "max_num_batched_tokens" in given else " (the default for this chip)"
    if budget < seqs:
        raise InputError.because(
            f"max_num_batched_tokens {budget}{said} is below max_num_seqs {seqs}; every running sequence needs a token "
            "of the step's budget: raise the one or lower the other"
        )
    if not values["enable_chunked_prefill"] and budget < length:
        raise InputError.because(
            f"max_num_batched_tokens {budget}{said} is below max_model_len {length} with enable_chunked_prefill off; "
            "a whole prompt must fit in one step: raise the budget or lower max_model_len"
        )


def _checked(engine: str, version: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The user's flags under our spelling, each value of its type and in its range."""
    checked: dict[str, Any] = {}
    for key, value in flags.items():
        flag = str(key).removeprefix("--").replace("-", "_")
        if flag not in _CHECKS:
            raise _unknown_flag(engine, str(key), flag)
        if flag in checked:
            raise InputError.because(f"{flag} is given twice, once as {key!r}")
        introduced = _preset(engine).get("introduced", {}).get(flag)
        if introduced and _release(version) < _release(introduced):
            raise InputError.because(f"{flag}: {engine} {version} has no such flag; it came with {introduced}")
        checked[flag] = _CHECKS[flag](flag, value)
    return {flag: value for flag, value in checked.items() if value is not None}


_DEPLOYMENT_FIELDS = {
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "dtype",
    "quantization", "kv_cache_dtype", "model",
}  # fmt: skip


def _unknown_flag(engine: str, key: str, flag: str) -> InputError:
    close = difflib.get_close_matches(flag, sorted({*_CHECKS, *_DEPLOYMENT_FIELDS}), n=1, cutoff=0.6)
    if flag in _DEPLOYMENT_FIELDS:
        hint = f"it is an argument of the deployment itself: {flag}=..."
    else:
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(_CHECKS))}"
    error = InputError.because(f"{key}: {engine} has no such flag that we model; {hint}")
    error.field, error.value, error.allowed = key, flag, hint
    return error


Check = Callable[[str, Any], Any]


def _whole(least: int) -> Check:
    def check(flag: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(flag, value, f"a whole number of at least {least}")
        return int(value)

    return check


def _share(flag: str, value: Any, above_zero: bool) -> float:
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not 0 <= value <= 1 or (above_zero and value == 0):
        raise InputError(flag, value, "a share above 0, at most 1" if above_zero else "a share from 0 to 1")
    return float(value)


def _switch(flag: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(flag, value, "true or false")
    return value


def _bytes(flag: str, value: Any) -> int:
    size = units.parse_bytes(value, flag)
    if size < 1:
        raise InputError(flag, value, "a size of at least 1 byte")
    return size


def _optional(check: Check) -> Check:
    return lambda flag, value: None if value is None else check(flag, value)


def _state_dtype(flag: str, value: Any) -> str:
    allowed = ("auto", "float32", "float16", "bfloat16")
    if value not in allowed:
        raise InputError(flag, value, f"one of {', '.join(allowed)}")
    return str(value)


_CHECKS: dict[str, Check] = {
    "max_num_seqs": _optional(_whole(1)),
    "max_num_batched_tokens": _optional(_whole(1)),
    "max_model_len": _optional(_whole(1)),
    "gpu_memory_utilization": lambda flag, value: _share(flag, value, above_zero=True),
    "block_size": _optional(_whole(1)),
    "num_gpu_blocks_override": _optional(_whole(1)),
    "kv_cache_memory_bytes": _optional(_bytes),
    "enable_prefix_caching": _optional(_switch),
    "enable_chunked_prefill": _optional(_switch),
    "long_prefill_token_threshold": _whole(0),
    "scheduler_reserve_full_isl": _switch,
    "async_scheduling": _optional(_switch),
    "watermark": lambda flag, value: _share(flag, value, above_zero=False),
    "enforce_eager": _switch,
    "max_cudagraph_capture_size": _optional(_whole(0)),
    "subtract_cudagraph_memory": _switch,
    "mamba_cache_dtype": _state_dtype,
    "mamba_ssm_cache_dtype": _state_dtype,
}
