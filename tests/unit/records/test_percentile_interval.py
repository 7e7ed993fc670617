"""A percentile's interval by order statistics: the binomial's ranks, and none where too few values bound it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from inferometer.records.metrics import Percentile, percentile_interval
from inferometer.records.run import Run, RunMeta, make_run


def run_of(e2e_s: list[float]) -> Run:
    return make_run(RunMeta(kind="measured"), {"sent_s": [0.0] * len(e2e_s), "end_s": e2e_s})


@pytest.mark.parametrize(("n", "percentile", "q"), [(100, "p50", 0.5), (37, "p50", 0.5), (500, "p90", 0.9)])
def test_ranks_are_those_of_the_binomial(n: int, percentile: Percentile, q: float):
    found = percentile_interval(run_of([float(i) for i in range(1, n + 1)]), "e2e_s", percentile)
    assert found is not None
    low, high = (int(value) for value in found)  # the values are their own ranks
    assert binom.cdf(low - 1, n, q) <= 0.025 < binom.cdf(low, n, q)
    assert binom.cdf(high - 2, n, q) < 0.975 <= binom.cdf(high - 1, n, q)


def test_it_covers_the_true_percentile_in_at_least_95_of_100_draws():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        found = percentile_interval(run_of(rng.exponential(1.0, 60).tolist()), "e2e_s", "p50")
        assert found is not None
        hits += found[0] <= np.log(2) <= found[1]
    assert hits >= 0.93 * 400


def test_a_p99_needs_368_values():
    assert percentile_interval(run_of([float(i) for i in range(1, 368)]), "e2e_s", "p99") is None
    assert percentile_interval(run_of([float(i) for i in range(1, 369)]), "e2e_s", "p99") is not None


def test_nothing_is_known_of_no_requests():
    assert percentile_interval(make_run(RunMeta(kind="imported", stated={"ttft_s.p50": 1.0})), "ttft_s", "p50") is None
