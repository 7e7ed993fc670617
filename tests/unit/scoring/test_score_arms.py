"""What an arm's points say together: knees, Little's law, ceilings, preemptions, memory; and arms over the base."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl
import pytest

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.arms import ArmScore, Knee
from inferometer.scoring.score import score

STUDY = {"arm": [], "workload.concurrency": [1, 4, 16], "workload.output_tokens": 64}


def stated(concurrency: int, meta: dict[str, Any] | None = None, **figures: float) -> Run:
    told = {key.replace("__", "."): value for key, value in figures.items()}
    return make_run(RunMeta(kind="imported", concurrency=concurrency, stated=told, **(meta or {})))


def knee(card: im.Score, name: str) -> Knee:
    return next(each for each in card.arms[0].knees if each.name == name)


@pytest.fixture(scope="module")
def prediction() -> im.Prediction:
    return im.predict("a100-qwen3-8b", overrides=STUDY)


def with_server(run: Run, **server: Any) -> Run:
    return msgspec.structs.replace(run, meta=msgspec.structs.replace(run.meta, id="", server=server))


# --- knees


def test_a_knee_on_one_side_only_is_a_miss_without_an_error():
    flat = [stated(c, ttft_s__p50=0.1, ttft_s__p99=0.15) for c in (1, 2)]
    bent = [flat[0], stated(2, ttft_s__p50=0.1, ttft_s__p99=0.3)]
    (row,) = [row for row in score(bent, flat).rows if row.metric == "ttft_knee_concurrency"]
    assert (row.predicted, row.measured, row.error_pct, row.verdict, row.inside) == (2.0, None, None, "miss", None)
    (row,) = [row for row in score(flat, flat).rows if row.metric == "ttft_knee_concurrency"]
    assert (row.predicted, row.measured, row.error_pct, row.verdict) == (None, None, 0.0, "ok")


def test_that_there_is_no_knee_takes_more_than_one_point():
    flat = [stated(c, ttft_s__p50=0.1, ttft_s__p99=0.15, output_tok_per_s=float(c)) for c in (1, 2, 4)]
    assert not knee(score(flat, flat[:1]), "ttft").measured_known
    assert knee(score(flat, flat[:2]), "ttft").measured_known
    assert not knee(score(flat, flat[:2]), "throughput").measured_known
    assert knee(score(flat, flat), "throughput").measured_known


def test_the_server_and_its_client():
    clients = {1: (0.1, 0.15), 8: (0.1, 0.15), 16: (0.1, 0.3)}
    runs = [
        stated(c, ttft_s__p50=a, ttft_s__p99=b, waiting=w)
        for (c, (a, b)), w in zip(clients.items(), (0.0, 2.0, 9.0), strict=True)
    ]
    card = score(runs, runs)
    assert (knee(card, "server").measured, knee(card, "ttft").measured) == (8, 16)
    assert card.arms[0].server_before_client == {"predicted": True, "measured": True}
    assert card.arms[0].to_dict()["server_knee_concurrency"]["measured"] == 8


def test_a_server_that_was_not_looked_at_has_no_known_knee(prediction: im.Prediction):
    measured = [stated(p.concurrency or 0, output_tok_per_s=1.0) for p in prediction.points]
    card = score(prediction, measured)
    assert knee(card, "server").predicted_known
    assert not knee(card, "server").measured_known
    assert "server_knee_concurrency" not in {row.metric for row in card.rows}
    assert card.arms[0].server_before_client["measured"] is None
    # the point below was not seen, so the first one that queues may not be the first
    seen_late = [stated(1, ttft_s__p50=0.1), stated(4, waiting=9.0)]
    assert not knee(score(seen_late, seen_late), "server").measured_known


def test_the_closed_form_stands_beside_the_simulated_knee(prediction: im.Prediction):
    found = score(prediction, prediction.runs).arms[0].to_dict()
    assert found["ttft_knee_closed_form"] == prediction.base.ttft_knee_closed_form
    assert found["ttft_knee_concurrency"]["predicted"] == prediction.base.ttft_knee_concurrency


# --- Little's law


def law(run: Run) -> tuple[float, str, bool]:
    (point,) = score(run, run).arms[0].littles_law
    return point.ratio, point.basis, point.ok


def test_littles_law_by_what_there_is():
    assert law(stated(8, littles_law=0.99)) == (0.99, "stated", True)
    assert law(stated(8, littles_law=1.03)) == (1.03, "stated", False)
    assert law(stated(8, request_per_s=2.0, e2e_s__mean=3.0)) == (0.75, "whole run", False)
    whole = {"completed": 10.0, "output_tokens": 110.0}
    by_medians = law(stated(4, output_tok_per_s=44.0, ttft_s__p50=0.1, tpot_s__p50=0.09, **whole))
    assert by_medians == (pytest.approx(1.0), "medians", True)  # 44 / 11 x (0.1 + 10 x 0.09) / 4
    assert score(stated(4, output_tok_per_s=44.0), stated(4, output_tok_per_s=44.0)).arms[0].littles_law == ()


def test_littles_law_of_simulated_runs_is_over_the_steady_window(prediction: im.Prediction):
    laws = score(prediction, prediction.runs).arms[0].littles_law
    assert [(law.concurrency, law.basis, law.ok) for law in laws] == [(c, "steady window", True) for c in (1, 4, 16)]


# --- ceilings and preemptions


def test_shares_of_the_ceiling_at_every_point_of_the_founding_sweep():
    prediction = im.predict("a100-qwen3-8b", overrides={"arm": [], "workload.concurrency": [1, 64]})
    measured = [run for run in founding_sweep.runs() if run.meta.concurrency in (1, 64)]
    one, many = score(prediction, measured).arms[0].shares_of_ceiling
    # 2,039 GB/s over 16.38 GB: 124.5 tok/s a user, and no KV cache counted
    assert one.share == pytest.approx(88.8 / 124.5, abs=0.001)
    assert many.share == pytest.approx(2504.6 / (64 * 124.5), abs=0.001)
    assert many.of_roofline == pytest.approx(2504.6 / many.roofline_tok_per_s)
    assert many.of_roofline > many.share


def preemptions(counters: dict[str, float], server: dict[str, Any] | None = None) -> tuple[int | None, str]:
    run = make_run(
        RunMeta(kind="measured", concurrency=1, counters=counters, server={"engine": "vllm"}),
        {"sent_s": [0.0], "end_s": [1.0]},
        server,
    )
    found: ArmScore = score(run, run).arms[0]
    assert found.preemptions is not None
    return found.preemptions.measured, found.preemptions.mode


def test_preempted_requests_are_recomputed_or_swapped():
    assert preemptions({}) == (None, "not known")
    assert preemptions({"preemptions": 0.0}) == (0, "none seen")
    assert preemptions({"preemptions": 7.0}) == (7, "recomputed")
    swapped = {"time_s": [0.0, 1.0], "running": [1, 1], "waiting": [0, 0], "swapped": [0.0, 2.0]}
    assert preemptions({"preemptions": 7.0}, swapped) == (7, "swapped")


# --- goodput


def test_limits_that_bind_and_no_goodput_on_one_side():
    meta = {"slo": {"ttft_s": 0.5, "tpot_s": 0.05}}

    def sweep(ttft_s: float) -> list[Run]:
        told = {"ttft_s__p50": ttft_s, "ttft_s__p99": ttft_s, "tpot_s__p50": 0.01, "tpot_s__p99": 0.01}
        return [stated(c, meta, output_tok_per_s=10.0 * c, **told) for c in (1, 2)]

    card = score(sweep(0.1), sweep(0.9))
    assert card.arms[0].to_dict()["goodput"]["measured"]["binding_p99"] == ["ttft_s"]
    rows = {row.metric: row for row in card.rows}
    assert (rows["goodput.p99"].predicted, rows["goodput.p99"].measured, rows["goodput.p99"].verdict) == (
        20,
        None,
        "miss",
    )


def test_a_percentile_that_is_not_stated_is_no_miss():
    meta = {"slo": {"ttft_s": 0.5}}
    mine = [stated(c, meta, output_tok_per_s=1.0 * c, ttft_s__p50=0.1, ttft_s__p99=0.2) for c in (1, 2)]
    theirs = [stated(c, meta, output_tok_per_s=1.0 * c, ttft_s__p50=0.1) for c in (1, 2)]
    assert {row.metric for row in score(mine, theirs).rows if row.metric.startswith("goodput")} == {"goodput.p50"}


# --- memory


def test_memory_against_the_startup_log_once_an_arm(prediction: im.Prediction):
    facts = {"num_gpu_blocks": 25640, "kv_cache_tokens": 410240, "kv_cache_memory_bytes": 60494610432}
    runs = [with_server(run, **facts, weight_bytes=int(15.27 * 2**30)) for run in prediction.runs]
    rows = {row.metric: row for row in score(prediction, runs).rows if row.metric.startswith("memory.")}
    assert [rows[f"memory.{name}"].measured for name in ("num_gpu_blocks", "kv_cache_tokens", "kv_pool_bytes")] == [
        25640, 410240, 60494610432,
    ]  # fmt: skip
    blocks = rows["memory.num_gpu_blocks"]
    assert blocks.predicted == prediction.memory.num_gpu_blocks
    assert blocks.error_pct == pytest.approx((prediction.memory.num_gpu_blocks - 25640) / 25640 * 100)
    pool = next(term for term in prediction.memory.terms if term.name == "KV pool")
    assert blocks.low == pytest.approx(blocks.predicted * pool.low_bytes / pool.bytes)
    assert (rows["memory.kv_pool_bytes"].low, rows["memory.kv_pool_bytes"].high) == (pool.low_bytes, pool.high_bytes)
    assert all(row.inside and row.verdict == "ok" for row in rows.values())
    assert len([row for row in score(prediction, runs).rows if row.metric == "memory.num_gpu_blocks"]) == 1


def test_split_weights_are_compared_by_the_rank():
    prediction = im.predict(
        {
            "model": "Qwen/Qwen3-8B",
            "chip": "a100-sxm4-80gb",
            "deployment": {"tensor_parallel_size": 2},
            "workload": {"concurrency": [1], "prompt_tokens": 64, "output_tokens": 8},
        }
    )
    measured = with_server(prediction.runs[0], weight_bytes=prediction.memory.weight_bytes_per_rank)
    (row,) = [row for row in score(prediction, measured).rows if row.metric.startswith("memory.")]
    assert (row.metric, row.error_pct) == ("memory.weight_bytes_per_rank", 0.0)


# --- arms


def test_what_an_arm_buys_over_the_base():
    def at(users: int, arm: str, tok_per_s: float) -> Run:
        return stated(users, {"arm": arm}, output_tok_per_s=tok_per_s)

    predicted = [at(8, "base", 100.0), at(8, "fp8", 162.0), at(16, "fp8", 300.0)]
    measured = [at(8, "base", 200.0), at(8, "fp8", 310.0), at(16, "fp8", 300.0)]
    (ratio,) = score(predicted, measured).ratios
    assert (ratio.arm, ratio.base, ratio.concurrency) == ("fp8", "base", 8)
    assert (ratio.predicted, ratio.measured) == (1.62, 1.55)
    assert ratio.error_pct == pytest.approx(7 / 1.55)


def test_a_sealed_file_gives_the_same_rows(prediction: im.Prediction, tmp_path: Any):
    runs = [
        msgspec.structs.replace(run, requests=run.requests.with_columns(pl.col("end_s") * 1.0))
        for run in prediction.runs
    ]
    fresh, read = score(prediction, runs), score(prediction.seal(tmp_path), runs)
    mine = {(row.metric, row.concurrency): (row.predicted, row.low, row.high) for row in fresh.rows}
    theirs = {(row.metric, row.concurrency): (row.predicted, row.low, row.high) for row in read.rows}
    assert theirs == {key: pytest.approx(value) for key, value in mine.items()}


def test_littles_law_is_not_asked_of_users_who_pause():
    pausing = {"workload": {"think_time_s": 2.0}}
    assert score(stated(8, pausing, littles_law=0.4), stated(8, pausing, littles_law=0.4)).arms[0].littles_law == ()
