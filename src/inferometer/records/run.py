"""A Run: one record of requests, however it came to be."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import polars as pl

Kind = Literal["simulated", "measured", "imported"]

REQUEST_SCHEMA: dict[str, Any] = {
    "scheduled_s": pl.Float64,
    "sent_s": pl.Float64,
    "admitted_s": pl.Float64,
    "first_byte_s": pl.Float64,
    "first_token_s": pl.Float64,
    "last_token_s": pl.Float64,
    "end_s": pl.Float64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "preemptions": pl.Int32,
    "replica": pl.Int32,
    "session": pl.Int64,
    "error": pl.String,
}
"""Columns of `Run.requests`, one row a request, seconds from the run's start, null where unknown."""

SERVER_SCHEMA: dict[str, Any] = {
    "time_s": pl.Float64,
    "replica": pl.Int32,
    "running": pl.Int64,
    "waiting": pl.Int64,
    "kv_usage": pl.Float64,
    "preemptions": pl.Int64,
}
"""Columns of `Run.server` that are always there; a scrape may add more."""


class TokenTimes(msgspec.Struct, frozen=True):
    """When each token came: request i's are ``times_s[offsets[i]:offsets[i + 1]]``, seconds from the run's start."""

    offsets: np.ndarray
    times_s: np.ndarray


class RunMeta(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a run was: enough to judge it, and to make it again where it was simulated."""

    kind: Kind
    id: str = ""
    """Of a simulated run: the first 16 hex digits of the SHA-256 of its content, so equal runs have equal ids."""
    name: str = ""
    tool: str = ""
    tool_version: str = ""
    created: str = ""
    """ISO 8601 time, empty for a simulated run (no wall clock inside the simulator)."""
    seed: int | None = None
    model: str | None = None
    chip: str | None = None
    arm: str | None = None
    policy: str | None = None
    deployment: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    slo: dict[str, float] = {}
    concurrency: int | None = None
    """Configured closed-loop concurrency, or cap."""
    request_rate_per_s: float | None = None
    duration_s: float | None = None
    """As the source states it; None: first sent to last end."""
    source: str | None = None
    source_sha256: str | None = None
    clock: str = ""
    stated: dict[str, float] = {}
    """Aggregates that the source states where it holds no requests, by `Summary` path: ``ttft_s.p99``."""
    notes: list[str] = []
    counters: dict[str, float] = {}
    """Server counters over the run: ``preemptions``, ``steps``, ``prefix_cache_hits``, ..."""


class Run(msgspec.Struct, kw_only=True):
    """One record of requests: simulated, measured or imported.

    ``requests`` has the columns of `REQUEST_SCHEMA`, ``server`` those of `SERVER_SCHEMA`.
    """

    meta: RunMeta
    requests: pl.DataFrame
    server: pl.DataFrame
    token_times: TokenTimes | None = None
