"""Each metric on requests small enough to reckon by hand, and the faults of benchmarking.md that concern them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from inferometer.errors import InputError
from inferometer.records.metrics import STAT_NAMES, Stat, Summary, summarize
from inferometer.records.run import OWN_CLOCK, Run, RunMeta, TokenTimes, make_run


def run_of(columns: dict[str, object], *, tokens: list[list[float]] | None = None, **meta: object) -> Run:
    times = None
    if tokens is not None:
        flat = np.array([t for request in tokens for t in request])
        times = TokenTimes(np.concatenate(([0], np.cumsum([len(r) for r in tokens]))), flat)
    return make_run(RunMeta(kind="measured", **meta), columns, token_times=times)  # type: ignore[arg-type]


THREE = {
    "scheduled_s": [0.0, 0.5, 2.0],
    "sent_s": [0.0, 1.0, 2.0],
    "admitted_s": [0.1, 1.3, 2.0],
    "first_token_s": [0.5, 2.0, 2.25],
    "last_token_s": [2.5, 4.0, 2.25],
    "end_s": [2.5, 4.5, 2.5],
    "prompt_tokens": [10, 20, 30],
    "output_tokens": [5, 11, 1],
    "cached_tokens": [0, 16, 14],
    "preemptions": [0, 2, 1],
}


def test_each_metric_by_hand() -> None:
    s = run_of(THREE).summary()
    assert s.ttft_s.mean == pytest.approx((0.5 + 1.0 + 0.25) / 3)
    assert s.ttft_from_scheduled_s.p50 == 0.5
    assert s.ttft_from_scheduled_s.mean == pytest.approx((0.5 + 1.5 + 0.25) / 3)
    assert (s.tpot_s.n, s.tpot_s.mean) == (2, pytest.approx((2 / 4 + 2 / 10) / 2))
    assert s.e2e_s.mean == pytest.approx((2.5 + 3.5 + 0.5) / 3)
    assert s.e2e_from_scheduled_s.mean == pytest.approx((2.5 + 4.0 + 0.5) / 3)
    assert s.queue_s.mean == pytest.approx((0.1 + 0.3 + 0.0) / 3)
    assert s.client_queue_s.mean == pytest.approx(0.5 / 3)
    assert s.normalized_latency_s.mean == pytest.approx((2.5 / 5 + 3.5 / 11 + 0.5) / 3)
    assert s.per_request_tok_per_s.mean == pytest.approx((5 / 2.5 + 11 / 3.5 + 1 / 0.5) / 3)
    assert (s.requests, s.completed, s.failed, s.prompt_tokens, s.output_tokens) == (3, 3, 0, 60, 17)
    assert (s.duration_s, s.output_tok_per_s, s.total_tok_per_s) == (4.5, 17 / 4.5, 77 / 4.5)
    assert (s.request_per_s, s.mean_in_flight) == (3 / 4.5, pytest.approx(6.5 / 4.5))
    assert (s.preemptions, s.prefix_hit_rate) == (3, 0.5)


def test_stated_duration_goes_before_the_events() -> None:
    s = run_of(THREE, duration_s=10.0).summary()
    assert (s.duration_s, s.output_tok_per_s) == (10.0, 1.7)


def test_per_user_rate_is_over_the_concurrency_or_the_mean_in_flight() -> None:
    assert run_of(THREE, concurrency=2).summary().per_user_tok_per_s == pytest.approx(17 / 4.5 / 2)
    assert run_of(THREE, request_rate_per_s=1.0).summary().per_user_tok_per_s == pytest.approx(17 / 6.5)


def test_percentiles_interpolate_linearly_on_raw_values() -> None:
    stat = Stat.of([0.01, 0.02, 0.03, 0.04])
    assert (stat.n, stat.p50, stat.p90, stat.p99) == (4, 0.025, pytest.approx(0.037), pytest.approx(0.0397))
    assert stat.std == pytest.approx(np.std([0.01, 0.02, 0.03, 0.04]))


def test_no_values_are_missing_not_zero() -> None:
    assert Stat.of([]) == Stat.of([np.nan]) == Stat(n=0)
    assert Stat.of([]).mean is None


def test_stat_in_milliseconds() -> None:
    assert Stat(n=2, p50=0.5).to_dict(1000) == {
        "n": 2,
        "mean": None,
        "std": None,
        "p50": 500,
        "p90": None,
        "p95": None,
        "p99": None,
    }


def test_itl_has_n_minus_1_gaps_a_request_and_none_between_requests() -> None:
    s = run_of(
        {"sent_s": [0.0] * 4, "end_s": [9.0] * 4, "output_tokens": [3, 0, 1, 2]},
        tokens=[[1.0, 2.0, 4.0], [], [5.0], [6.0, 9.0]],
    ).summary()
    assert (s.itl_s.n, s.itl_s.mean, s.itl_s.p50) == (3, 2.0, 2.0)
    assert s.itl_name == "token gap"


def test_gaps_of_a_chunk_of_several_tokens_are_named_so_and_tpot_goes_by_tokens() -> None:
    columns = {"sent_s": [0.0], "first_token_s": [1.0], "last_token_s": [3.0], "end_s": [3.0], "output_tokens": [9]}
    s = run_of(columns, tokens=[[1.0, 2.0, 3.0]]).summary()
    assert (s.itl_name, s.itl_s.mean, s.tpot_s.mean) == ("chunk gap", 1.0, 0.25)


def test_without_token_times_itl_is_unknown() -> None:
    s = run_of(THREE).summary()
    assert (s.itl_s, s.itl_name) == (Stat(n=0), None)


def test_fault_3_an_empty_reply_has_no_ttft() -> None:
    s = run_of(
        {"sent_s": [0.0, 0.0], "first_token_s": [None, 0.2], "end_s": [1.0, 1.0], "output_tokens": [0, 2]}
    ).summary()
    assert (s.completed, s.ttft_s.n, s.ttft_s.mean) == (2, 1, 0.2)


def test_fault_8_zero_and_one_token_divide_nothing() -> None:
    columns = {"sent_s": [0.0] * 2, "first_token_s": [0.1] * 2, "last_token_s": [0.1] * 2, "end_s": [0.1] * 2}
    with np.errstate(all="raise"):
        s = run_of({**columns, "output_tokens": [0, 1]}).summary()
    assert (s.tpot_s, s.normalized_latency_s.n) == (Stat(n=0), 1)


def test_fault_11_peak_concurrency_is_exact_by_events() -> None:
    # four slots refilled within every second: buckets of a second would count eight
    sent = [0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.5]
    s = run_of({"sent_s": sent, "end_s": [t + 0.5 for t in sent]}, concurrency=4).summary()
    assert s.peak_in_flight == 4


def test_fault_12_a_clients_queue_counts_in_the_goodput_of_an_open_loop() -> None:
    columns = {
        "scheduled_s": [0.0, 0.0],
        "sent_s": [0.0, 0.3],
        "first_token_s": [0.1, 0.4],
        "last_token_s": [0.2, 0.5],
        "end_s": [0.2, 0.5],
        "prompt_tokens": [1, 1],
        "output_tokens": [2, 2],
    }
    s = run_of(columns, request_rate_per_s=20.0, concurrency=1).summary()
    assert s.goodput(ttft_s=0.2).attainment == 0.5
    assert s.goodput(e2e_s=0.3).attainment == 0.5
    assert s.goodput(ttft_s=0.2, from_scheduled=False).attainment == 1.0
    assert run_of(columns, concurrency=1).summary().goodput(ttft_s=0.2).attainment == 1.0


def test_fault_31_nothing_completed() -> None:
    s = run_of({"sent_s": [0.0, 1.0], "error": ["refused", "refused"], "output_tokens": [0, 0]}).summary()
    assert (s.requests, s.completed, s.failed) == (2, 0, 2)
    assert all(getattr(s, name) == Stat(n=0) for name in STAT_NAMES)
    assert (s.output_tokens, s.output_tok_per_s, s.littles_law, s.peak_in_flight) == (0, None, None, None)
    assert s.goodput(ttft_s=1.0).attainment == 0.0


def test_fault_32_measured_in_flight_beside_the_configured() -> None:
    s = run_of({"sent_s": [0.0, 0.0, 1.0, 1.0], "end_s": [1.0, 1.0, 2.0, 2.0]}, concurrency=4).summary()
    assert (s.concurrency, s.mean_in_flight, s.peak_in_flight) == (4, 2.0, 2)


def test_a_failed_request_counts_as_sent_and_in_no_latency() -> None:
    columns = {**THREE, "error": [None, "reset", None]}
    s = run_of(columns).summary()
    assert (s.requests, s.completed, s.failed, s.output_tokens, s.ttft_s.n, s.tpot_s.n) == (3, 2, 1, 6, 2, 1)
    assert s.goodput(e2e_s=100).attainment == pytest.approx(2 / 3)


def test_failed_requests_gaps_are_left_out() -> None:
    s = run_of(
        {"sent_s": [0.0, 0.0], "end_s": [9.0, 9.0], "output_tokens": [2, 3], "error": ["reset", None]},
        tokens=[[1.0, 9.0], [1.0, 2.0, 3.0]],
    ).summary()
    assert (s.itl_s.n, s.itl_s.mean) == (2, 1.0)
    assert s.goodput(itl_s=1.0).attainment == 0.5


def test_a_request_without_an_end_is_failed() -> None:
    s = run_of({"sent_s": [0.0, 0.0], "end_s": [1.0, None]}).summary()
    assert (s.completed, s.failed) == (1, 1)


def test_an_empty_run() -> None:
    s = summarize(run_of({}))
    assert (s.requests, s.completed, s.output_tokens, s.output_tok_per_s) == (0, 0, 0, None)
    assert s.goodput(ttft_s=1.0).attainment is None


def test_unknown_token_counts_are_unknown_not_zero() -> None:
    s = run_of({"sent_s": [0.0], "end_s": [1.0]}).summary()
    assert (s.output_tokens, s.output_tok_per_s, s.total_tok_per_s, s.request_per_s) == (None, None, None, 1.0)


def test_goodput_by_hand() -> None:
    g = run_of(THREE).summary().goodput(ttft_s=0.5, tpot_s=0.5)
    assert (g.n, g.attainment, g.name) == (3, pytest.approx(2 / 3), "joint attainment")
    assert (g.request_per_s, g.output_tok_per_s, g.total_tok_per_s) == (2 / 4.5, 6 / 4.5, 46 / 4.5)


def test_goodput_is_joint_not_marginal() -> None:
    columns = {
        "sent_s": [0.0, 0.0],
        "first_token_s": [0.1, 0.9],
        "last_token_s": [1.1, 1.0],
        "end_s": [1.1, 1.0],
        "output_tokens": [2, 2],
    }
    s = run_of(columns).summary()
    assert s.goodput(ttft_s=0.5).attainment == s.goodput(tpot_s=0.5).attainment == 0.5
    assert s.goodput(ttft_s=0.5, tpot_s=0.5).attainment == 0.0


def test_one_token_meets_a_tpot_limit_and_no_token_misses_a_ttft_limit() -> None:
    columns = {"sent_s": [0.0, 0.0], "first_token_s": [0.1, None], "end_s": [0.1, 0.1], "output_tokens": [1, 0]}
    s = run_of(columns).summary()
    assert s.goodput(tpot_s=1e-9).attainment == 1.0
    assert s.goodput(ttft_s=1.0).attainment == 0.5


def test_goodput_by_the_longest_gap() -> None:
    s = run_of(
        {"sent_s": [0.0] * 3, "end_s": [9.0] * 3, "output_tokens": [3, 3, 1]},
        tokens=[[1.0, 2.0, 3.0], [1.0, 1.5, 3.5], [1.0]],
    ).summary()
    assert s.goodput(itl_s=1.0).attainment == pytest.approx(2 / 3)


@pytest.mark.parametrize("limits", [{}, {"ttft_s": 0}, {"tpot_s": -1.0}])
def test_goodput_needs_a_limit_above_zero(limits: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"limits|above 0"):
        run_of(THREE).summary().goodput(**limits)


@pytest.mark.parametrize("limit", ["ttft_s", "tpot_s", "itl_s"])
def test_goodput_refuses_a_limit_on_what_the_run_does_not_hold(limit: str) -> None:
    s = run_of({"sent_s": [0.0], "end_s": [1.0], "output_tokens": [5]}).summary()
    with pytest.raises(InputError, match=limit):
        s.goodput(**{limit: 1.0})


def test_times_on_each_requests_own_clock_say_nothing_across_requests() -> None:
    columns = {**THREE, "sent_s": [0.0] * 3, "scheduled_s": [None] * 3, "admitted_s": [None] * 3}
    s = run_of(columns, clock=OWN_CLOCK, concurrency=1, duration_s=4.0).summary()
    assert (s.peak_in_flight, s.mean_in_flight, s.littles_law) == (None, None, None)
    assert (s.output_tok_per_s, s.e2e_s.n) == (17 / 4, 3)


def test_server_samples_are_averaged_over_time_and_summed_over_replicas() -> None:
    server = {
        "time_s": [0.0, 1.0, 3.0, 0.0, 3.0],
        "replica": [0, 0, 0, 1, 1],
        "running": [2, 2, 2, 5, 5],
        "waiting": [0, 2, 0, 0, 0],
        "kv_usage": [0.2, 0.2, 0.2, 0.4, 0.4],
    }
    s = make_run(RunMeta(kind="measured"), {"sent_s": [0.0], "end_s": [3.0]}, server).summary()
    assert (s.running, s.waiting, s.server_in_flight) == (pytest.approx(7), pytest.approx(1), pytest.approx(8))
    assert s.kv_usage == pytest.approx(0.3)


def test_stated_aggregates_come_back_by_path() -> None:
    stated = {"ttft_s.p99": 0.5, "ttft_s.n": 7.0, "ttft_s.p75": 0.3, "requests": 7.0, "output_tok_per_s": 64.0}
    run = make_run(RunMeta(kind="imported", concurrency=4, stated=stated))
    s = run.summary()
    assert s.ttft_s == Stat(n=7, p99=0.5)
    assert (s.requests, s.output_tok_per_s, s.per_user_tok_per_s) == (7, 64.0, 16.0)
    assert (s.tpot_s, s.failed, s.littles_law) == (Stat(), None, None)
    with pytest.raises(InputError, match="aggregates"):
        s.goodput(ttft_s=0.5)


def test_raw_values_go_before_stated_ones() -> None:
    assert run_of(THREE, stated={"ttft_s.mean": 99.0}).summary().ttft_s.mean < 1


def test_a_summary_compares_pickles_and_lists_its_public_fields() -> None:
    s = run_of(THREE).summary()
    assert pickle.loads(pickle.dumps(s)) == s == run_of(THREE).summary()
    assert s != run_of(THREE, duration_s=9.0).summary()
    assert set(s.to_dict()) == {name for name in Summary.__struct_fields__ if not name.startswith("_")}
    assert s.to_dict()["ttft_s"]["n"] == 3
