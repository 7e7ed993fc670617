"""Whether a server kept up with the rate it was offered."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from inferometer.records.metrics import Summary
from inferometer.records.run import Run

Floats = NDArray[np.float64]

KEPT_UP = 0.95
"""Serving less than this share of the offered rate is not keeping up, if the queue also grew."""
GREW = 1.25
"""From the second quarter of the arrivals to the last: growth beyond what chance does to a queue that is steady."""
QUEUED = 0.05
"""Share of all requests that wait, on average, in the last quarter of the arrivals where a queue matters."""
LEAST_REQUESTS = 20
"""Fewer say nothing of a trend."""


def offered_per_s(run: Run) -> float | None:
    """Requests per second that were offered in an open loop, by when they were to be sent; None for a closed loop."""
    meant = _meant(run.requests).drop_nulls().to_numpy()
    if _closed(run) or len(meant) < 2:
        return None
    span_s = float(np.ptp(meant))
    return (len(meant) - 1) / span_s if span_s > 0 else None


def overloaded(run: Run, summary: Summary) -> bool:
    """Whether an open loop offers more than is served: the rate served is below it, and requests pile up.

    The rate over the run alone would not do: a run ends with its last answer, so a short one serves less than it is
    offered on any server. Piling up is that more and more wait for admission, or, where the engine still admits all,
    that more are in flight and each token takes longer, although requests at first came and went within a quarter of
    the run.
    """
    offered, served = offered_per_s(run), summary.request_per_s
    if offered is None or served is None or served >= KEPT_UP * offered:
        return False
    answered = run.requests.filter(pl.col("error").is_null() & pl.col("end_s").is_not_null()).sort("sent_s")
    answered = answered.with_columns(_meant(answered).alias("sent_s"))
    if answered.height < LEAST_REQUESTS:
        return False
    sent, end = (answered[name].to_numpy().astype(np.float64) for name in ("sent_s", "end_s"))
    in_flight = np.arange(1.0, len(sent) + 1) - np.searchsorted(np.sort(end), sent, side="right")
    waiting = _waiting(run, sent)
    if _last(waiting) >= QUEUED * answered.height and _grew(waiting):
        return True
    per_token = (end - sent) / np.maximum(answered["output_tokens"].to_numpy(), 1)
    settled = float(np.median((end - sent)[: len(sent) // 4])) <= (sent[-1] - sent[0]) / 4
    return settled and _grew(in_flight) and _grew(per_token)


def _meant(requests: pl.DataFrame) -> pl.Series:
    """When each was to be sent: under a client's cap that is not when it was."""
    return requests.select(pl.coalesce("scheduled_s", "sent_s")).to_series()


def _closed(run: Run) -> bool:
    return run.meta.request_rate_per_s is None and run.meta.concurrency is not None


def _waiting(run: Run, times_s: Floats) -> Floats:
    """How many wait for admission at these times, preempted ones too: the server's samples, over all replicas."""
    known = run.server.filter(pl.col("waiting").is_not_null()).sort("time_s")
    parts = known.partition_by("replica") if known.height else []
    return sum((np.interp(times_s, part["time_s"], part["waiting"]) for part in parts), np.zeros(len(times_s)))


def _last(values: Floats) -> float:
    return float(np.mean(values[3 * len(values) // 4 :]))


def _grew(values: Floats) -> bool:
    """By the means of the second and the last quarter."""
    quarter = len(values) // 4
    return _last(values) > GREW * float(np.mean(values[quarter : 2 * quarter]))
