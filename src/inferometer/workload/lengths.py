"""How many tokens each request has."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from inferometer.errors import InputError
from inferometer.specs.workload import (
    MAX_TOKENS,
    Empirical,
    FloatArray,
    IntArray,
    Length,
    Lognormal,
    Normal,
    Uniform,
    Workload,
)
from inferometer.workload import traces
from inferometer.workload.streams import stream


def draw(length: Length | npt.NDArray[np.int64], requests: int, random: np.random.Generator) -> IntArray:
    """``requests`` lengths; drawn ones are rounded to whole tokens and at least 1.

    A lognormal's ``mean`` is that of the token count itself, so its logarithm has mean ln(mean) - sigma**2 / 2.
    """
    if isinstance(length, np.ndarray):
        return length
    if isinstance(length, Lognormal):
        location = math.log(length.mean) - length.sigma**2 / 2
        logarithms = _scaled(random, requests, location, length.sigma)
        return _tokens(np.exp(logarithms, out=logarithms))
    if isinstance(length, Normal):
        return _tokens(_scaled(random, requests, length.mean, length.std))
    if isinstance(length, Uniform):
        return random.integers(length.low, length.high, size=requests, endpoint=True, dtype=np.int64)
    if isinstance(length, Empirical):
        raise InputError("length", length, "draw_pair for lengths from a trace file")
    return np.full(requests, length, dtype=np.int64)


def draw_pair(workload: Workload, requests: int, seed: int) -> tuple[IntArray, IntArray]:
    """Prompt and output lengths, each from its own random stream; jointly where both come from one trace file."""
    prompt, output = workload.prompt_tokens, workload.output_tokens
    streams = {name: stream(seed, name) for name in ("prompt_tokens", "output_tokens")}
    if isinstance(prompt, Empirical) and prompt == output:
        table = traces.read(prompt.trace, prompt.model, with_arrivals=False)
        rows = streams["prompt_tokens"].integers(len(table), size=requests)
        return table.prompt_tokens[rows], table.output_tokens[rows]
    return (
        _draw_one(prompt, "prompt_tokens", requests, streams["prompt_tokens"]),
        _draw_one(output, "output_tokens", requests, streams["output_tokens"]),
    )


def _draw_one(length: Length | IntArray, column: str, requests: int, random: np.random.Generator) -> IntArray:
    if not isinstance(length, Empirical):
        return draw(length, requests, random)
    table = traces.read(length.trace, length.model, with_arrivals=False)
    values: IntArray = getattr(table, column)
    return values[random.integers(len(table), size=requests)]


def _scaled(random: np.random.Generator, count: int, mean: float, std: float) -> FloatArray:
    """Normal numbers, made in place: a million requests are drawn often."""
    values = random.standard_normal(count)
    values *= std
    values += mean
    return values


def _tokens(values: FloatArray) -> IntArray:
    np.rint(values, out=values)
    return np.clip(values, 1, MAX_TOKENS, out=values).astype(np.int64)
