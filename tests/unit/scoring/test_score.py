"""Scores: errors and verdicts, how points are matched, and the founding sweep's own figures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.errors import InputError
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.likeness import same_model
from inferometer.scoring.score import figures, score
from shared import shared

FIGURE = st.floats(1e-3, 1e6)


def stated(concurrency: int | None = None, rate: float | None = None, **meta: Any) -> Run:
    """A run that states a figure or several: those of ``meta`` whose name has a dot written as two underscores."""
    names = set(RunMeta.__struct_fields__)
    told = {key.replace("__", "."): value for key, value in meta.items() if key not in names}
    kept = {key: value for key, value in meta.items() if key in names}
    return make_run(RunMeta(kind="imported", concurrency=concurrency, request_rate_per_s=rate, stated=told, **kept))


@given(predicted=FIGURE, measured=FIGURE, tolerance=st.floats(0, 2))
def test_error_and_verdict(predicted: float, measured: float, tolerance: float):
    card = score(stated(output_tok_per_s=predicted), stated(output_tok_per_s=measured), tolerance)
    (row,) = card.rows
    assert row.error_pct == pytest.approx((predicted - measured) / measured * 100)
    assert (row.error_pct > 0) == (predicted > measured)
    if abs(abs(predicted - measured) - tolerance * measured) > 1e-9 * measured:
        assert (row.verdict == "ok") == (abs(predicted - measured) < tolerance * measured)
    assert card.passed == (row.verdict == "ok")


def test_a_prediction_at_the_edge_of_the_tolerance_is_within():
    assert score(stated(output_tok_per_s=110.0), stated(output_tok_per_s=100.0), 0.1).passed
    assert not score(stated(output_tok_per_s=110.1), stated(output_tok_per_s=100.0), 0.1).passed


def test_nothing_measured_as_nothing():
    assert score(stated(ttft_s__p50=0.0), stated(ttft_s__p50=0.0)).rows[0].error_pct == 0
    row = score(stated(ttft_s__p50=0.1), stated(ttft_s__p50=0.0)).rows[0]
    assert (row.error_pct, row.verdict) == (None, "miss")


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_tolerance_is_a_share(tolerance: Any):
    with pytest.raises(InputError, match="tolerance"):
        score(stated(output_tok_per_s=1.0), stated(output_tok_per_s=1.0), tolerance)


def test_nothing_to_compare():
    with pytest.raises(InputError, match="nothing is measured"):
        score(stated(output_tok_per_s=1.0), [])
    with pytest.raises(InputError, match="nothing is predicted"):
        score([], stated(output_tok_per_s=1.0))
    empty = score(stated(output_tok_per_s=1.0), stated(ttft_s__p50=1.0))
    assert (empty.rows, empty.passed) == ((), False)


def test_only_figures_that_both_sides_know_are_rows():
    card = score(stated(output_tok_per_s=1.0, ttft_s__p50=0.1), stated(output_tok_per_s=1.0, tpot_s__p99=0.2))
    assert [row.metric for row in card.rows] == ["output_tok_per_s"]


def test_points_are_matched_by_load():
    predicted = [
        stated(1, output_tok_per_s=10.0),
        stated(2, output_tok_per_s=20.0),
        stated(rate=2.0, output_tok_per_s=30),
    ]
    measured = [stated(2, output_tok_per_s=20.0), stated(rate=2.0, output_tok_per_s=30.0), stated(4, name="four")]
    card = score(predicted, measured)
    rows = [row for row in card.rows if row.metric == "output_tok_per_s"]
    assert [(row.concurrency, row.request_rate, row.measured) for row in rows] == [(2, None, 20), (None, 2.0, 30)]
    assert card.unmatched == ("four: no point at C=4 is predicted",)


def test_a_rate_is_not_a_concurrency():
    # the client's cap beside a rate is not the load
    card = score(
        [stated(8, output_tok_per_s=1.0), stated(4, output_tok_per_s=1.0)], stated(8, 2.0, output_tok_per_s=1.0)
    )
    assert card.rows == ()
    assert "no point at 2/s" in card.unmatched[0]


def test_one_beside_one_is_compared_whatever_their_loads():
    assert score(stated(8, output_tok_per_s=5.0), stated(output_tok_per_s=5.0)).passed


def test_arms_are_matched_by_name_and_the_base_by_default():
    predicted = [
        stated(1, arm="base", output_tok_per_s=1.0),
        stated(1, arm="long", output_tok_per_s=2.0),
        stated(4, arm="long", output_tok_per_s=3.0),
    ]
    measured = [stated(1, output_tok_per_s=1.0), stated(1, arm="long", output_tok_per_s=2.0), stated(4, name="four")]
    card = score(predicted, measured)
    rows = [row for row in card.rows if row.metric == "output_tok_per_s"]
    assert [(row.arm, row.predicted) for row in rows] == [("base", 1.0), ("long", 2.0)]
    assert [arm.name for arm in card.arms] == ["base", "long"]
    assert card.unmatched == ("four: no point at C=4 is predicted",)


def test_of_several_models_only_the_predicted_one_is_compared():
    measured = [
        stated(1, model="Qwen/Qwen3-8B", output_tok_per_s=1.0),
        stated(1, model="meta-llama/Llama-3.1-8B", name="other", output_tok_per_s=9.0),
    ]
    card = score([stated(c, model="qwen3-8b", output_tok_per_s=1.0) for c in (1, 2)], measured)
    assert {row.measured for row in card.rows} == {1.0}
    assert "Llama-3.1-8B" in card.unmatched[0]


def test_another_model_is_compared_but_told():
    predicted = stated(model="Qwen/Qwen3-8B", output_tok_per_s=1.0)
    assert "served-name" in score(predicted, stated(model="served-name", output_tok_per_s=1.0)).notes[0]
    assert score(predicted, stated(model="qwen3_8B", output_tok_per_s=1.0)).notes == ()


def test_an_arm_that_is_not_predicted_is_not_the_base():
    predicted = [stated(1, arm="base", output_tok_per_s=1.0), stated(1, arm="long", output_tok_per_s=2.0)]
    measured = [stated(1, arm="base", output_tok_per_s=1.0), stated(1, arm="fp8", name="eight", output_tok_per_s=9.0)]
    card = score(predicted, measured)
    assert {row.measured for row in card.rows} == {1.0}
    assert card.unmatched == ("eight: of arm fp8, which is not predicted",)
    # one name for all that was measured is a name for the base
    assert score(predicted, [stated(1, arm="mine", output_tok_per_s=1.0)]).passed


def test_what_was_not_measured_is_named():
    predicted = [stated(c, arm=arm, output_tok_per_s=1.0) for arm in ("base", "long", "fp8") for c in (1, 2, 4)]
    measured = [stated(1, arm="base", output_tok_per_s=1.0), stated(2, arm="long", output_tok_per_s=1.0)]
    assert score(predicted, measured).missing == ("base: C=2, 4", "long: C=1, 4", "arm fp8")
    assert score(predicted[:3], measured[:1]).missing == ("C=2, 4",)
    assert score(predicted[:1], measured[:1]).missing == ()


def test_a_run_that_is_not_whole_is_scored_and_said():
    measured = [
        stated(1, output_tok_per_s=1.0, partial="killed"),
        stated(2, output_tok_per_s=1.0, unfit=["slow client"]),
    ]
    card = score([stated(c, output_tok_per_s=1.0) for c in (1, 2)], measured)
    assert card.partial == ("C=1 is not whole: killed", "C=2 is not fit: slow client")
    assert card.passed
    assert card.to_dict()["partial"] == list(card.partial)


def test_output_per_user_of_a_closed_loop_is_counted_once():
    card = score([stated(2, output_tok_per_s=10.0)] * 2, stated(2, output_tok_per_s=20.0))
    assert [row.metric for row in card.rows] == ["output_tok_per_s", "per_user_tok_per_s"]
    assert [row.metric for row in card.counted] == ["output_tok_per_s"]
    rate = score(stated(rate=1.0, per_user_tok_per_s=5.0), stated(rate=1.0, per_user_tok_per_s=5.0))
    assert [row.metric for row in rate.counted] == ["per_user_tok_per_s"]


def test_same_model():
    assert same_model("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b")
    assert not same_model("Qwen/Qwen3-8B", "Qwen/Qwen3-14B")
    assert not same_model(None, "Qwen/Qwen3-8B")


@pytest.fixture(scope="module")
def prediction() -> im.Prediction:
    return im.predict("a100-qwen3-8b", overrides={"arm": []})


@pytest.fixture(scope="module")
def card(prediction: im.Prediction) -> im.Score:
    return score(prediction, founding_sweep.runs())


def test_a_prediction_is_right_about_itself(prediction: im.Prediction):
    card = score(prediction, prediction.runs, tolerance=0)
    assert card.passed
    assert {row.error_pct for row in card.rows} == {0}
    assert {row.inside for row in card.rows} == {True, None}
    assert len([row for row in card.rows if row.concurrency == 8]) == 4 + 4 * 4


def test_rows_of_the_sweep_are_predicted_beside_stated(prediction: im.Prediction, card: im.Score):
    for point in prediction.points:
        rows = {row.metric: row for row in card.rows if row.concurrency == point.concurrency}
        tok_per_s, ttft_p50, *_ = founding_sweep.SWEEP[point.concurrency]
        assert rows["output_tok_per_s"].measured == tok_per_s
        assert rows["output_tok_per_s"].predicted == point.summary.output_tok_per_s
        assert rows["ttft_ms.p50"].measured == pytest.approx(ttft_p50 * 1000)
        low, high = point.intervals["ttft_ms.p50"]
        assert (rows["ttft_ms.p50"].low, rows["ttft_ms.p50"].high) == (low, high)
        assert rows["ttft_ms.p50"].inside == (low <= ttft_p50 * 1000 <= high)
        assert ("itl_ms.p99" in rows) == (point.concurrency in (64, 128))


def test_goodput_gap_and_knee_of_the_founding_sweep(card: im.Score):
    measured = card.goodput["measured"]
    assert (measured["p99"]["concurrency"], measured["p99"]["output_tok_per_s"]) == (8, 639.5)
    assert (measured["p50"]["concurrency"], measured["p50"]["output_tok_per_s"]) == (32, 1763.3)
    assert measured["raw_max"]["output_tok_per_s"] == 3088.2
    assert measured["gap_p50"] == pytest.approx(1.75, abs=0.005)
    assert measured["gap_p99"] == pytest.approx(4.8, abs=0.05)
    assert card.arms[0].measured_ttft_knee == 2
    assert {row.metric for row in card.rows if not row.of_point} == {
        *("ttft_knee_concurrency", "throughput_knee_concurrency", "goodput.p50", "goodput.p99"),
        *("memory.kv_cache_tokens", "memory.num_gpu_blocks"),
    }
    blocks = next(row for row in card.rows if row.metric == "memory.num_gpu_blocks")
    assert blocks.measured == 25640


def test_share_of_the_ceiling_is_the_founding_documents(prediction: im.Prediction):
    share = score(prediction, stated(1, output_tok_per_s=88.4)).share_of_ceiling
    assert share is not None
    assert share.ceiling_tok_per_s == pytest.approx(124.5, abs=0.05)
    assert share.share == pytest.approx(0.710, abs=0.0005)
    assert score(stated(1, output_tok_per_s=1.0), stated(1, output_tok_per_s=1.0)).share_of_ceiling is None


def test_throughput_and_tpot_of_the_founding_sweep_are_predicted(card: im.Score):
    # the constants of this chip's family were fitted to this sweep, so this is no claim of accuracy; TTFT is
    # left out because the measurement's prefix cache hit
    for metric in card.by_metric:
        if metric.metric in ("output_tok_per_s", "tpot_ms.p50", "tpot_ms.p99"):
            assert metric.within == metric.points == 8


def test_by_metric_sums_up_its_rows(card: im.Score):
    for metric in card.by_metric:
        rows = [row for row in card.rows if row.metric == metric.metric]
        assert metric.points == len(rows)
        assert metric.mean_abs_error_pct == pytest.approx(sum(abs(row.error_pct) for row in rows) / len(rows))
        assert abs(metric.worst.error_pct) == max(abs(row.error_pct) for row in rows)
        assert metric.within == sum(row.verdict == "ok" for row in rows)


def test_sweep_is_side_by_side(card: im.Score):
    table = card.sweep
    assert [point["concurrency"] for point in table] == list(founding_sweep.SWEEP)
    assert table[3]["ttft_ms.p99"]["measured"] == 263
    assert set(table[7]) == {"arm", "concurrency", "request_rate", "output_tok_per_s", "ttft_ms.p50", "ttft_ms.p99",
                             "tpot_ms.p50", "tpot_ms.p99", "itl_ms.p99"}  # fmt: skip


def test_json(card: im.Score):
    document = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    assert document["schema"] == "inferometer/score/1"
    assert document["passed"] is False
    assert len(document["rows"]) == len(card.rows)
    assert set(document["rows"][0]) == {
        *("metric", "unit", "predicted", "measured", "error_pct", "low", "high", "inside", "verdict", "arm"),
        *("concurrency", "request_rate", "fitted"),
    }
    assert document["arms"][0]["ttft_knee_concurrency"]["measured"] == 2
    assert document["seal"]["state"] == "unsealed"
    assert document["coverage"]["inside"] <= document["coverage"]["with_interval"]
    assert document["of"]["study"] == "a100-qwen3-8b"
    assert len(document["of"]["runs"]) == 8


def test_figures_are_in_milliseconds():
    found = figures(stated(ttft_s__p99=0.25, output_tok_per_s=7.0).summary())
    assert found == {"ttft_ms.p99": 250.0, "output_tok_per_s": 7.0}


def test_the_stated_sweep_is_the_shared_one():
    truth = json.loads(shared("vectors/seeds.json").read_text())["benchmark"]["sweep_measured"]
    for run, point in zip(founding_sweep.runs(), truth, strict=True):
        told = {**run.meta.stated, "concurrency": run.meta.concurrency}
        assert told["concurrency"] == point["concurrency"]
        assert told["output_tok_per_s"] == point["output_tok_per_s"]
        for key, value in point.items():
            name, _, part = key.rpartition("_")
            if name.endswith("_ms"):
                assert told[f"{name.removesuffix('_ms')}_s.{part}"] == pytest.approx(value / 1000)
