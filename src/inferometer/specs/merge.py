"""How the tables of a study are laid over each other: arms over the base, overrides over the file."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from inferometer.errors import InputError

LOOPS = ("concurrency", "request_rate", "requests", "trace")
"""Keys of ``[workload]`` that say when requests come; a workload has exactly one of them."""

_LENGTHS = ("prompt_tokens", "output_tokens")
_SIZES = {*_LENGTHS, "cached_tokens", "requests_per_point"}
_OWN = {
    "concurrency": {*_SIZES, "think_time_s"},
    "request_rate": {*_SIZES, "arrivals", "burstiness", "duration_s"},
    "requests": set[str](),
    "trace": set[str](),
}
"""Keys of ``[workload]`` that only some loops have: replacing the loop drops those that the new one has not."""
_ALL_OWN = set[str]().union(*_OWN.values())
_ALTERNATIVES = (*_LENGTHS, "requests_per_point")
"""Keys of ``[workload]`` whose table has one entry, that names its kind: another kind replaces it whole."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, table by table; lists and other values replace. Neither argument is changed.

    In ``workload``, another loop (closed, open, replay) replaces the base's together with what belongs to that loop
    only, and another kind of length distribution replaces the base's.

    >>> merge({"a": {"x": 1, "y": [1, 2]}}, {"a": {"y": [3]}})
    {'a': {'x': 1, 'y': [3]}}
    >>> merge({"workload": {"concurrency": [1], "seed": 3}}, {"workload": {"request_rate": [2.0]}})
    {'workload': {'seed': 3, 'request_rate': [2.0]}}
    """
    below = dict(base)
    ours, theirs = below.get("workload"), over.get("workload")
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        below["workload"] = _without_replaced(ours, theirs)
    return _deep(below, over)


def _deep(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: copy.deepcopy(value) for key, value in base.items()}
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _deep(below, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return merged


def _without_replaced(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(base)
    loop = next((key for key in LOOPS if key in over), None)
    if loop is not None and loop not in base:
        dropped = {*LOOPS, *(_ALL_OWN - _OWN[loop])}
        kept = {key: value for key, value in base.items() if key not in dropped}
        if isinstance(kept.get("requests_per_point"), Mapping):
            del kept["requests_per_point"]
    if "duration_s" in over:
        kept.pop("requests_per_point", None)
    if "requests_per_point" in over:
        kept.pop("duration_s", None)
    for key in _ALTERNATIVES:
        below, above = kept.get(key), over.get(key)
        if isinstance(below, Mapping) and isinstance(above, Mapping) and below.keys() != above.keys():
            del kept[key]
    return kept


def overrides(given: Mapping[str, Any] | Iterable[str]) -> dict[str, Any]:
    """Overrides as one nested table, from dotted keys with values or from texts ``a.b=value``.

    A text's value is read as TOML; what is not TOML is taken as the text itself.

    Raises:
        InputError: a text without ``=``, or an empty key.

    >>> overrides(["deployment.max_num_batched_tokens=8192", "chip=h100-sxm-80gb"])
    {'deployment': {'max_num_batched_tokens': 8192}, 'chip': 'h100-sxm-80gb'}
    """
    nested: dict[str, Any] = {}
    for key, value in given.items() if isinstance(given, Mapping) else map(_split, given):
        nested = merge(nested, _nest(key, value))
    return nested


def _nest(key: str, value: Any) -> dict[str, Any]:
    parts = key.split(".")
    if not all(part.strip() for part in parts):
        raise InputError("override", key, "a dotted key, such as deployment.max_num_seqs")
    for part in reversed(parts):
        value = {part.strip(): value}
    return dict(value)


def _split(given: str) -> tuple[str, Any]:
    key, equals, value = given.partition("=")
    if not equals or not key.strip():
        raise InputError("override", given, "KEY=VALUE, such as deployment.max_num_batched_tokens=8192")
    return key.strip(), _value(value.strip())


def _value(written: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    return parsed["value"] if len(parsed) == 1 else written
