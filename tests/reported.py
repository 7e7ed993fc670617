"""A small study and measurements of it, gathered once for the tests of the report."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import inferometer as im
from inferometer.prediction.predict import Prediction
from inferometer.records.run import Run, RunMeta, TokenTimes, make_run
from inferometer.report.material import Material, gather

STUDY: dict[str, Any] = {
    "name": "small",
    "model": "Qwen/Qwen3-8B",
    "chip": "a100-sxm4-80gb",
    "deployment": {"engine_version": "0.26.0"},
    "workload": {"prompt_tokens": 256, "output_tokens": 16, "concurrency": [1, 2, 8]},
    "slo": {"ttft_ms": 100, "tpot_ms": 50},
}
MEASURED = {1: (88.0, 0.030, 0.035), 2: (150.0, 0.040, 0.150), 8: (500.0, 0.120, 0.400)}
"""By users: output tok/s, TTFT p50 and p99."""


@cache
def predicted(claims: tuple[str, ...] = ()) -> Prediction:
    return im.predict(STUDY, claims=list(claims)) if claims else im.predict(STUDY)


def stated(users: int, **meta: Any) -> Run:
    rate, p50, p99 = MEASURED[users]
    figures = {
        "output_tok_per_s": rate,
        "ttft_s.p50": p50,
        "ttft_s.p99": p99,
        "tpot_s.p50": 0.0113,
        "tpot_s.p99": 0.012,
    }
    return make_run(RunMeta(kind="imported", tool="vllm bench serve", tool_version="0.26.0", concurrency=users,
                            model="Qwen/Qwen3-8B", stated=figures, **meta))  # fmt: skip


def raw(users: int, requests: int = 60, gap_s: float = 0.012) -> Run:
    """A run with its requests, token times and server samples."""
    sent = np.repeat(np.arange(requests // users) * 0.5, users).astype(float)
    times = [s + 0.05 + gap_s * np.arange(16) for s in sent]
    offsets = np.arange(len(times) + 1) * 16
    columns = {
        "sent_s": sent, "first_token_s": [t[0] for t in times], "last_token_s": [t[-1] for t in times],
        "end_s": [t[-1] for t in times], "prompt_tokens": [256] * len(times), "output_tokens": [16] * len(times),
    }  # fmt: skip
    looks = np.arange(0, sent[-1], 0.1)
    server = {"time_s": looks, "replica": [0] * looks.size, "running": [users] * looks.size,
              "waiting": [0] * looks.size, "kv_usage": [0.25] * looks.size}  # fmt: skip
    meta = RunMeta(kind="measured", tool="inferometer bench", concurrency=users, started_unix_s=1785456000.0)
    return make_run(meta, columns, server, TokenTimes(offsets=offsets, times_s=np.concatenate(times)))


@cache
def scored() -> Material:
    """The study against three stated points."""
    return gather(predicted(), [stated(users) for users in MEASURED])


@cache
def with_raw() -> Material:
    """The study against two points with requests, gaps and samples, one of them measured twice."""
    return gather(predicted(), [raw(1, 40), raw(8, 80), raw(8, 80, 0.014)])
