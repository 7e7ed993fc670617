"""Two sides compared: how often a difference is called where there is none, and where there is one."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.records.metrics import PerRequest
from inferometer.records.run import Run, RunMeta, TokenTimes, make_run
from inferometer.report.compare_view import answer
from inferometer.scoring import batches
from inferometer.scoring.compare import Change, Comparison, compare
from inferometer.specs.workload import Lognormal, Workload

DEP = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
SMALL_BUDGET = im.Deployment(
    model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"), flags={"max_num_batched_tokens": 256}
)


def chat(rate: float = 6.0, requests: int = 600) -> Workload:
    lengths: dict[str, Any] = {
        "prompt_tokens": Lognormal(mean=512, sigma=0.7),
        "output_tokens": Lognormal(mean=128, sigma=0.7),
    }
    return Workload.open_loop(rate_per_s=rate, requests=requests, **lengths)


def closed(users: int, requests: int) -> Workload:
    lengths: dict[str, Any] = {
        "prompt_tokens": Lognormal(mean=512, sigma=0.7),
        "output_tokens": Lognormal(mean=128, sigma=0.7),
    }
    return Workload.closed_loop(concurrency=users, requests=requests, **lengths)


def measured(ttft_s: float, tpot_s: float = 0.02, *, users: int = 8, seed: int = 0, n: int = 800, **meta: Any) -> Run:
    """A closed loop whose TTFT and TPOT vary by a tenth about these."""
    draw = np.random.default_rng(seed)
    ttft = ttft_s * np.exp(0.1 * draw.standard_normal(n))
    tpot = tpot_s * np.exp(0.1 * draw.standard_normal(n))
    took = ttft + 9 * tpot
    sent = np.zeros(n)
    for user in range(users):
        own = slice(user, n, users)
        sent[own] = np.concatenate(([0.0], np.cumsum(took[own])[:-1]))
    columns = {"sent_s": sent, "first_token_s": sent + ttft, "last_token_s": sent + took, "end_s": sent + took}
    counts = {"output_tokens": np.full(n, 10), "prompt_tokens": np.full(n, 100)}
    return make_run(RunMeta(kind="measured", concurrency=users, **meta), columns | counts)


def stated(tok_per_s: float, **meta: Any) -> Run:
    figures = {"output_tok_per_s": tok_per_s, "ttft_s.p99": 0.2, "tpot_s.p50": 0.02}
    return make_run(RunMeta(kind="imported", concurrency=8, stated=figures, **meta))


def row(found: Comparison, metric: str) -> Change:
    return next(each for each in found.rows if each.metric == metric)


@pytest.mark.parametrize("workload", [chat(), closed(16, 400)], ids=["open", "closed"])
def test_without_a_difference_one_is_seldom_called(workload: Workload) -> None:
    """50 pairs of runs that differ in nothing but the seed: at most 4 (8 %) are called better or worse."""
    runs = [im.simulate(DEP, workload, seed=seed) for seed in range(100)]
    verdicts = [compare(a, b).verdict for a, b in zip(runs[::2], runs[1::2], strict=True)]
    assert sum(verdict in ("better", "worse") for verdict in verdicts) <= 4


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """TTFT up by 5 % in 60 pairs: by the binomial, 95 % intervals miss at most 8 times (p = 0.998)."""
    missed = 0
    for seed in range(60):
        found = row(compare(measured(0.1, seed=2 * seed), measured(0.105, seed=2 * seed + 1)), "ttft_ms.mean")
        assert found.low_pct is not None
        assert found.high_pct is not None
        missed += not found.low_pct <= 5.0 <= found.high_pct
    assert missed <= 8


def test_a_worse_server_is_called_worse_and_the_other_way_round_better() -> None:
    before, after = measured(0.1, 0.020, seed=1), measured(0.1, 0.023, seed=2)
    found = compare(before, after)
    tpot = row(found, "tpot_ms.p50")
    assert (found.verdict, tpot.verdict, row(found, "output_tok_per_s").verdict) == ("worse", "worse", "worse")
    assert tpot.change_pct == pytest.approx(15, abs=2)
    assert compare(after, before).verdict == "better"
    assert answer(found).startswith("B is worse than A: ")
    assert "TPOT p50 +1" in answer(found)


def test_a_smaller_token_budget_shows_in_the_simulation() -> None:
    a, b = (im.simulate(dep, chat(), seed=seed, token_times=True) for dep, seed in ((DEP, 1), (SMALL_BUDGET, 2)))
    found = compare(a, b)
    assert row(found, "itl_ms.p99").verdict == "better"
    assert "max_num_batched_tokens: A 2048, B 256" in found.differs


def test_a_run_beside_itself_is_not_worse_and_said_to_be_the_same_run() -> None:
    run = measured(0.1)
    found = compare(run, run)
    assert found.verdict in ("same", "cannot tell")
    assert {each.change_pct for each in found.rows} == {0.0}
    assert "A and B hold the same run" in found.notes


def test_same_needs_the_whole_interval_within_the_margin() -> None:
    a, b = measured(0.1, seed=1, n=8000), measured(0.1, seed=2, n=8000)
    assert row(compare(a, b), "tpot_ms.p50").verdict == "same"
    assert row(compare(a, b, margin=0.0001), "tpot_ms.p50").verdict == "cannot tell"
    assert compare(a, b, margin=0.03).verdict == "same"


def test_a_clear_change_within_the_margin_is_the_same() -> None:
    found = row(compare(measured(0.1, 0.02, seed=1, n=20000), measured(0.1, 0.0203, seed=2, n=20000)), "tpot_ms.p50")
    assert found.low_pct is not None
    assert found.low_pct > 0
    assert found.verdict == "same"


def test_three_repeats_a_side_decide_by_welch() -> None:
    """By hand: logs of 100, 102, 104 and of 110, 111, 115, Welch's t with scipy's own test."""
    from scipy import stats

    rates = [[100.0, 102.0, 104.0], [110.0, 111.0, 115.0]]
    a, b = ([stated(rate, name=f"r{rate}") for rate in side] for side in rates)
    found = row(compare(a, b), "output_tok_per_s")
    test = stats.ttest_ind(np.log(rates[1]), np.log(rates[0]), equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert found.by == "repeats"
    assert (found.low_pct, found.high_pct) == pytest.approx((100 * math.expm1(low), 100 * math.expm1(high)))
    assert found.verdict == "better"
    assert found.change_pct == pytest.approx(9.78, abs=0.02)


def test_stated_aggregates_have_a_change_and_no_verdict() -> None:
    found = compare(stated(100.0), stated(200.0))
    rate = row(found, "output_tok_per_s")
    assert rate.change_pct == pytest.approx(100.0)
    assert (rate.low_pct, rate.verdict) == (None, "cannot tell")
    assert rate.reason == "both: only aggregates are stated"
    assert found.verdict == "cannot tell"
    assert answer(found) == (
        "Cannot tell A from B: no headline change has an interval; the largest is out tok/s +100 % at C=8."
    )


def test_too_few_requests_for_a_p99_are_said() -> None:
    found = row(compare(measured(0.1, n=80), measured(0.3, n=80, seed=1)), "ttft_ms.p99")
    assert (found.verdict, found.reason) == ("cannot tell", "both: 80 values, where p99 needs 368")


def test_sweeps_are_matched_by_load_and_what_is_left_over_is_named() -> None:
    a = [measured(0.1, users=users, seed=users) for users in (4, 8)]
    b = [measured(0.1, users=users, seed=100 + users) for users in (8, 16)]
    found = compare(a, b)
    assert {each.concurrency for each in found.rows} == {8}
    assert found.unmatched == ("only A has C=4", "only B has C=16")
    with pytest.raises(InputError, match="no load in common: A has C=4, B has C=16, C=32"):
        compare(a[0], [b[1], measured(0.1, users=32)])


def test_a_run_without_a_load_is_no_point_of_a_sweep() -> None:
    page = make_run(RunMeta(kind="imported", stated={"output_tok_per_s": 1.0}))
    a, b = [measured(0.1, seed=1), page], [measured(0.1, seed=2), measured(0.1, users=4), page]
    found = compare(a, b)
    assert {each.concurrency for each in found.rows} == {8}
    assert found.unmatched == ("only B has C=4",)


def test_one_arm_against_another_is_compared_by_load() -> None:
    a = [measured(0.1, users=users, seed=users, arm="base") for users in (4, 8)]
    b = [measured(0.1, users=users, seed=9 + users, arm="chunk-512") for users in (4, 8)]
    found = compare(a, b)
    assert {each.concurrency for each in found.rows} == {4, 8}
    assert found.differs == ("arm: A base, B chunk-512",)


def test_other_loads_and_lengths_are_noted() -> None:
    notes = compare(measured(0.1, users=4), measured(0.1, users=8)).notes
    assert "load: B C=8, A C=4" in notes


def test_failures_count_against_a_server() -> None:
    a, b = measured(0.1, seed=1), measured(0.1, seed=2)
    errors = pl.Series("error", ["500" if i % 5 == 0 else None for i in range(b.requests.height)])
    b.requests = b.requests.with_columns(errors)
    found = compare(a, b)
    failed = row(found, "failed")
    assert (failed.a, failed.b, failed.change_pct, failed.verdict) == (0.0, 20.0, 20.0, "worse")
    assert found.verdict == "worse"


def test_attainment_is_compared_in_points() -> None:
    found = row(compare(measured(0.1, seed=1), measured(0.13, seed=2), slo={"ttft_s": 0.13}), "attainment")
    assert found.a > 98
    assert 45 < found.b < 55
    assert found.change_pct == pytest.approx(found.b - found.a)
    assert found.verdict == "worse"


def test_many_rows_need_more_than_one_in_twenty() -> None:
    """Holm by hand: of 0.01, 0.04, 0.03 and 0.5 the adjusted are 0.04, 0.09, 0.09 and 0.5."""
    assert batches.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])


def test_resampled_percentiles_are_those_of_resampled_values() -> None:
    draw = np.random.default_rng(3)
    values, batch = draw.lognormal(size=200), np.arange(200) // 20
    weights = batches._weights(10)[:50]
    quick = batches._percentiles(values, batch, 10, weights, 0.9)
    for weight, found in zip(weights, quick, strict=True):
        whole = np.repeat(values, weight[batch].astype(int))
        assert found == pytest.approx(np.quantile(whole, 0.9, method="inverted_cdf"))


def test_gaps_belong_to_the_batch_of_their_request() -> None:
    columns = {"sent_s": [1.0, 0.0], "end_s": [3.0, 3.0], "first_token_s": [1.5, 0.5], "output_tokens": [2, 3]}
    times = TokenTimes(offsets=np.array([0, 2, 5]), times_s=np.array([1.5, 2.0, 0.5, 1.0, 3.0]))
    run = make_run(RunMeta(kind="measured"), columns, token_times=times)
    assert PerRequest(run).itl_request.tolist() == [0, 1, 1]


@pytest.mark.parametrize(("field", "value"), [("confidence", 1.0), ("confidence", 0.2), ("margin", -0.1)])
def test_what_is_not_allowed(field: str, value: float) -> None:
    run = measured(0.1, n=100)
    with pytest.raises(InputError, match=field):
        compare(run, run, **cast("dict[str, Any]", {field: value}))
    with pytest.raises(InputError, match="nothing is in A"):
        compare([], run)


def test_gaps_are_their_requests_where_there_are_as_many_gaps_as_requests():
    columns: dict[str, Any] = {"sent_s": [0.0, 2.0], "end_s": [1.0, 5.0], "output_tokens": [1, 3]}
    times = TokenTimes(offsets=np.array([0, 1, 4]), times_s=np.array([1.0, 3.0, 4.0, 5.0]))
    run = make_run(RunMeta(kind="measured", concurrency=1), columns, token_times=times)
    gaps, batch = batches.Batches.of([run]).values(lambda each: each.itl)
    assert (gaps.tolist(), batch.tolist()) == ([1.0, 1.0], [1, 1])


def test_where_a_repeat_has_a_0_the_interval_is_not_said_to_be_of_repeats():
    run = im.simulate(DEP, closed(2, 40))
    still = make_run(RunMeta(kind="imported", concurrency=2, stated={"ttft_s.mean": 0.0}))
    found = compare([run] * 3, [run, run, still])
    row = next(row for row in found.rows if row.metric == "ttft_ms.mean")
    assert (row.by, "B: only aggregates" in row.reason) == ("", True)
