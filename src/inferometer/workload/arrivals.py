"""When requests come, in seconds from the start."""

from __future__ import annotations

import numpy as np

from inferometer.specs.workload import Arrivals, FloatArray


def open_loop(
    rate_per_s: float, requests: int, arrivals: Arrivals, random: np.random.Generator, burstiness: float = 1.0
) -> FloatArray:
    """Arrivals at ``rate_per_s``, whatever the server does.

    ``poisson``: the running sum of independent exponential gaps, the first of them before the first request.
    ``gamma``: the same with gaps of a gamma distribution of shape ``burstiness`` and mean 1 / rate.
    ``constant``: request i at i / rate, the first at 0.
    """
    if arrivals == "constant":
        return np.arange(requests, dtype=np.float64) / rate_per_s
    if arrivals == "gamma":
        return np.cumsum(random.standard_gamma(burstiness, requests)) / (rate_per_s * burstiness)
    return np.cumsum(random.standard_exponential(requests)) / rate_per_s


def closed_loop(concurrency: int, requests: int) -> FloatArray:
    """0 for the first request of each user; nan for the others, which come when one before them has ended."""
    times = np.full(requests, np.nan)
    times[:concurrency] = 0.0
    return times
