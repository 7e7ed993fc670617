"""Whether a measured run is of what was predicted: the model, chip, engine and its settings, the load and lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from inferometer.errors import InputError
from inferometer.records.run import Run
from inferometer.scoring.loads import hit_rate
from inferometer.specs.catalog import fold
from inferometer.specs.chip import chip
from inferometer.specs.model_names import candidates

ALIKE = 0.05
"""Share by which mean lengths may differ: tokenizers and random draws do as much."""
SERVERS = ("vllm", "sglang", "tgi", "tensorrt-llm", "lmdeploy", "llama.cpp", "scalellm")
"""What a benchmark client calls its backend where it names an engine, not only a protocol."""

SETTINGS = {
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "max_num_seqs": ("max_num_seqs",),
    "enable_prefix_caching": ("prefix_caching", "enable_prefix_caching"),
    "enable_chunked_prefill": ("chunked_prefill", "enable_chunked_prefill"),
    "async_scheduling": ("async_scheduling",),
}
"""Flags that change which tokens are in which step: what a server's log and its ``/metrics`` page call them."""
EMULATED = "emulated_by"
"""Label of the emulator's ``vllm:cache_config_info`` (`emulator.server.cache_config`), which no engine has."""

_Pairs = Sequence[tuple[Run, Run]]


def unlike(pairs: _Pairs, sides: tuple[str, str] = ("predicted", "measured")) -> Iterator[str]:
    """Of the runs predicted and measured that are compared: a sentence for each thing in which they differ.

    What one of the sides does not say is no difference. ``sides``: what the two are called.
    """
    for said in _differences(pairs):
        yield said.format(*sides)


def _differences(pairs: _Pairs) -> Iterator[str]:
    yield from _names("model", pairs, lambda run: run.meta.model, same_model)
    yield from _names("chip", pairs, lambda run: run.meta.chip, same_chip)
    yield from _names("engine", pairs, engine, _same_engine)
    for flag in SETTINGS:
        yield from _settings(flag, pairs)
    yield from _names("load", pairs, _load, str.__eq__)
    for name in ("prompt_tokens", "output_tokens"):
        yield from _lengths(name, pairs)


def same_model(one: str | None, other: str | None) -> bool:
    """Whether two names mean one shape: organisation, case, tuning suffixes and aliases ignored.

    >>> same_model("meta-llama/Llama-3.1-8B-Instruct", "llama_3.1-8b")
    True
    """
    if not one or not other:
        return False
    return bool({name for name, _ in candidates(one)} & {name for name, _ in candidates(other)})


def same_chip(one: str, other: str) -> bool:
    """Whether two names mean one chip of the catalog, or are the same but for case and punctuation.

    >>> same_chip("NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"), same_chip("h100", "a100")
    (True, False)
    """
    return _chip_id(one) == _chip_id(other)


def _chip_id(name: str) -> str:
    try:
        return chip(name).id
    except (InputError, OSError):
        return fold(name)


def engine(run: Run) -> str | None:
    """The engine that served a run, with its version where it is known; None where the run does not say."""
    named, version = run.meta.deployment.get("engine"), run.meta.deployment.get("engine_version")
    if named:
        return f"{named} {version}" if version else str(named)
    backend = str(run.meta.workload.get("backend", "")).removesuffix("-oai").removesuffix("-native")
    return backend if backend in SERVERS else None


def _same_engine(one: str, other: str) -> bool:
    """Versions count where both sides state one."""
    (name, *version), (named, *versioned) = one.split(), other.split()
    return name == named and (not version or not versioned or version == versioned)


def simulated(run: Run) -> bool:
    """Whether no chip served the run: it is of the simulator, or of Inferometer's emulator by its ``/metrics`` page.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> simulated(make_run(RunMeta(kind="simulated"))), simulated(make_run(RunMeta(kind="measured")))
    (True, False)
    """
    return run.meta.kind == "simulated" or any(EMULATED in table for table in _tables(run))


def _tables(run: Run) -> Iterator[Mapping[str, Any]]:
    """What a server stated of itself, the surest first: of its log, then of its ``/metrics`` page."""
    told = run.meta.server
    for table in (told, told.get("log"), told.get("flags"), told.get("cache_config")):
        if isinstance(table, Mapping):
            yield table


def _settings(flag: str, pairs: _Pairs) -> Iterator[str]:
    """One sentence for a flag that the measured server states otherwise than the predicted deployment has it."""
    found = [(_predicted_flag(mine, flag), _stated_flag(theirs, flag), mine, theirs) for mine, theirs in pairs]
    apart = [(mine, theirs) for mine, theirs, *runs in found if _matters(flag, mine, theirs, *runs)]
    if apart:
        mine, theirs = (" and ".join(dict.fromkeys(map(_setting, side))) for side in zip(*apart, strict=True))
        points = f" ({len(apart)} of {len(pairs)} points)" if len(apart) < len(pairs) else ""
        yield f"{flag}: {{1}} {theirs}, {{0}} {mine}{points}"


def _predicted_flag(run: Run, flag: str) -> Any:
    flags = run.meta.deployment.get("flags")
    return flags.get(flag) if isinstance(flags, Mapping) else None


def _stated_flag(run: Run, flag: str) -> Any:
    stated = (table.get(name) for table in _tables(run) for name in SETTINGS[flag])
    return next((value for value in stated if isinstance(value, int)), None)


def _matters(flag: str, mine: Any, theirs: Any, predicted: Run, measured: Run) -> bool:
    """A cache of prefixes in which nothing was found changes no step."""
    if mine is None or theirs is None or mine == theirs:
        return False
    cached = predicted if mine else measured
    return flag != "enable_prefix_caching" or hit_rate(cached, cached.summary()) != 0


def _setting(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _load(run: Run) -> str | None:
    """``C=8`` or ``2/s``; None for a replay, whose load is the measured one."""
    if run.meta.request_rate_per_s is not None:
        return f"{run.meta.request_rate_per_s:g}/s"
    return None if run.meta.concurrency is None else f"C={run.meta.concurrency}"


def _names(
    what: str, pairs: _Pairs, of: Callable[[Run], str | None], same: Callable[[str, str], bool]
) -> Iterator[str]:
    named = dict.fromkeys((of(mine), of(theirs)) for mine, theirs in pairs)
    for mine, theirs in named:
        if mine and theirs and not same(mine, theirs):
            yield f"{what}: {{1}} {_plain(theirs)}, {{0}} {_plain(mine)}"


def _plain(name: str) -> str:
    """A name that is to stand in a format."""
    return name.replace("{", "{{").replace("}", "}}")


def _lengths(name: str, pairs: _Pairs) -> Iterator[str]:
    """One sentence for all points whose mean length differs, with the span of each side."""
    means = [(mean_tokens(mine, name), mean_tokens(theirs, name)) for mine, theirs in pairs]
    apart = [(mine, theirs) for mine, theirs in means if mine is not None and theirs is not None]
    apart = [(mine, theirs) for mine, theirs in apart if not math.isclose(mine, theirs, rel_tol=ALIKE)]
    if apart:
        mine, theirs = (_span(side) for side in zip(*apart, strict=True))
        points = f" ({len(apart)} of {len(pairs)} points)" if len(pairs) > 1 else ""
        yield f"mean {name}: {{1}} {theirs}, {{0}} {mine}{points}"


def mean_tokens(run: Run, name: str) -> float | None:
    """The mean of ``prompt_tokens`` or ``output_tokens`` over the requests that did not fail; None if not known."""
    if run.requests.height:
        mean = run.requests.filter(pl.col("error").is_null())[name].mean()
        return float(mean) if isinstance(mean, int | float) else None
    total = run.meta.stated.get(name)
    count = run.meta.stated.get("completed", run.meta.stated.get("requests"))
    return total / count if total is not None and count else None


def _span(values: Iterable[float]) -> str:
    low, high = min(each := list(values)), max(each)
    return f"{low:,.0f}" if round(low) == round(high) else f"{low:,.0f} to {high:,.0f}"
