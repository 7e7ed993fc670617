"""What a point's step time is mostly made of: one phrase, and the shares it is chosen from.

An estimate, not a trace of the run: the terms of `SheetModel` at the point's mean batch, times the steps that were
simulated. The phrase is chosen by the first rule that holds:

1. ``KV memory (preemptions)``: some request was preempted.
2. ``KV memory (requests wait)``: the pool was at least 80 % full on average while 5 % or more of the requests waited.
3. ``max_num_seqs``: at least 80 % of the slots were busy on average while 5 % or more of the requests waited, and in a
   closed loop there are more users than slots.
4. ``arrivals``: an open loop with less than one request in flight on average.
5. the largest of `time_shares`.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from inferometer.records.metrics import Summary
from inferometer.records.run import Run
from inferometer.specs.deployment import Deployment
from inferometer.steptime.costs import TICKS_PER_S as TICKS
from inferometer.steptime.costs import SheetModel, StepCosts
from inferometer.steptime.efficiencies import Efficiencies, efficiencies

Floats = NDArray[np.float64]

FULL = 0.8
"""A pool or a set of slots this full on average counts as full: filling and draining take the rest."""
WAITING = 0.05
"""Share of the requests in flight that must wait before a queue is what limits."""

WEIGHTS, COMPUTE, KV, PREFILL = "weight reads", "compute in decode", "KV reads", "prefill in mixed steps"
FIXED, COMMUNICATION = "fixed overhead", "communication"


def limited_by(deployment: Deployment, run: Run, summary: Summary, shares: dict[str, float]) -> str:
    """The phrase for one simulated point, by the rules above; empty where nothing was served."""
    queue = _queue(deployment, run, summary)
    if queue:
        return queue
    if run.meta.request_rate_per_s is not None and (summary.mean_in_flight or 1.0) < 1:
        return "arrivals"
    return max(shares, key=lambda name: shares[name], default="")


def _queue(deployment: Deployment, run: Run, summary: Summary) -> str:
    if summary.preemptions:
        return "KV memory (preemptions)"
    running, waiting = summary.running or 0.0, summary.waiting or 0.0
    if waiting < WAITING * (running + waiting) or not waiting:
        return ""
    if (summary.kv_usage or 0.0) >= FULL:
        return "KV memory (requests wait)"
    slots = deployment.resolved().max_num_seqs * deployment.data_parallel_size
    closed = run.meta.request_rate_per_s is None and run.meta.concurrency is not None
    enough = closed and (run.meta.concurrency or 0) <= slots
    return "max_num_seqs" if running >= FULL * slots and not enough else ""


def time_shares(
    deployment: Deployment, run: Run, costs: StepCosts, constants: Efficiencies | None = None
) -> dict[str, float]:
    """Shares of the engine's time by cause, summing to 1; empty where nothing was served.

    ``constants`` are those that the costs were made from; None: the chip family's.

    Decode steps at the mean batch pay for weights, fixed overhead and communication; each decoded token pays for its
    context's KV reads and its sequence; each prompt token pays what it adds to a full mixed step, and its attention.
    """
    served = run.requests.filter(pl.col("error").is_null())
    steps = run.meta.counters.get("steps", 0.0)
    if not served.height or not steps:
        return {}
    prompt, output, cached = (
        served[name].fill_null(0).to_numpy().astype(np.float64)
        for name in ("prompt_tokens", "output_tokens", "cached_tokens")
    )
    seconds = cause_seconds(deployment, costs, steps, prompt, output, cached, constants)
    total = sum(seconds.values())
    return {cause: spent / total for cause, spent in seconds.items() if spent > 0} if total else {}


def cause_seconds(
    deployment: Deployment,
    costs: StepCosts,
    steps: float,
    prompt: Floats,
    output: Floats,
    cached: Floats,
    constants: Efficiencies | None = None,
) -> dict[str, float]:
    """Engine seconds over a run of so many steps, by cause; summed over replicas. ``constants`` as in `time_shares`."""
    model, decoded = SheetModel(deployment, constants or efficiencies(deployment.chip)), np.maximum(output - 1, 0)
    rows = np.array([max(1, round(float(decoded.sum()) / steps))])
    seconds = _decode_seconds(model, costs, steps, rows, prompt, decoded)
    for cause, spent in _prefill_seconds(model, costs, steps, rows, prompt, cached).items():
        seconds[cause] = seconds.get(cause, 0.0) + spent
    return seconds


def _decode_seconds(
    model: SheetModel, costs: StepCosts, steps: float, rows: NDArray[np.int64], prompt: Floats, decoded: Floats
) -> dict[str, float]:
    """What the steps cost but for the prompts in them, at the mean number of decoding sequences."""
    one, batch = model.padded(np.array([1])), model.padded(rows)
    alone = float((model.dense_s(one) + model.head_s(np.array([1])))[0])
    together = float((model.dense_s(batch) + model.head_s(rows))[0])
    context = prompt + (decoded + 1) / 2
    kv_ticks = sum(
        float(price) * float((decoded * np.minimum(context, window)).sum())
        for price, window in zip(costs.decode_kv, costs.window, strict=True)
    )
    return {
        WEIGHTS: steps * (alone + float(model.experts_s(batch)[0])),
        COMPUTE: steps * (together - alone),
        KV: kv_ticks / TICKS,
        FIXED: steps * float(model.fixed_s(batch)[0]) + float(decoded.sum()) * model.sequence_s(),
        COMMUNICATION: steps * float(model.communication_s(batch)[0]),
    }


def _prefill_seconds(
    model: SheetModel, costs: StepCosts, steps: float, rows: NDArray[np.int64], prompt: Floats, cached: Floats
) -> dict[str, float]:
    """What the prompts add to the steps that carry them."""
    budget = len(costs.mixed) - 1
    batch, full, computed = model.padded(rows), model.padded(np.array([budget])), prompt - cached
    added = model.dense_s(full) + model.experts_s(full) - model.dense_s(batch) - model.experts_s(batch)
    products = max(0.0, float(added[0]))
    messages = max(0.0, float((model.communication_s(full) - model.communication_s(batch))[0]))
    pairs = sum(
        float(price) * float((2 * computed * np.minimum((prompt + cached) / 2, window)).sum())
        for price, window in zip(costs.pair, costs.window, strict=True)
    )
    chunks = min(steps, float(np.ceil(computed / budget).sum()))
    chunks_of_budget = float(computed.sum()) / budget
    return {
        PREFILL: chunks_of_budget * products + pairs / TICKS + chunks * model.prefill_overhead_s(),
        COMMUNICATION: chunks_of_budget * messages,
    }
