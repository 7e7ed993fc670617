"""A workload: how long requests are and when they come. A description; `workload.generate` draws it."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np


class Lognormal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts with this mean whose logarithm has standard deviation ``sigma``."""

    mean: float
    sigma: float


class Normal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts of this mean and standard deviation, cut at 1."""

    mean: float
    std: float


class Uniform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts equally likely from ``low`` to ``high``, both included."""

    low: int
    high: int


Length = int | Lognormal | Normal | Uniform


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests are and when they come: closed loop, open loop, or given one by one."""

    kind: Literal["closed", "open", "requests"]
    requests: int
    prompt_tokens: Length | np.ndarray
    output_tokens: Length | np.ndarray
    cached_tokens: int | np.ndarray = 0
    """Prompt tokens that a prefix cache is said to hold: skipped in prefill."""
    concurrency: int | None = None
    think_time_s: float = 0.0
    rate_per_s: float | None = None
    arrivals: Literal["poisson", "constant"] = "poisson"
    arrival_s: np.ndarray | None = None
    name: str = ""
