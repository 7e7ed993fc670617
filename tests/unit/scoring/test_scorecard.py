"""All scores of a store: what counts once, what is told apart, and how far to trust the next prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import inferometer as im
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.score import Row, Score, Subject, score
from inferometer.scoring.scorecard import scorecard
from inferometer.scoring.seals import SealStatus
from inferometer.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def stated(chip: str = "l4", concurrency: int | None = None, **figures: float) -> Run:
    told = {key.replace("__", "."): value for key, value in figures.items()}
    meta = RunMeta(kind="imported", stated=told, chip=chip, model="Qwen/Qwen3-8B", concurrency=concurrency)
    meta.deployment = {"engine": "vllm", "engine_version": "0.26.0"}
    return make_run(meta)


def keep(store: Store, card: Score, state: Any = "unsealed", **subject: Any) -> None:
    assert card.of is not None
    of: Subject = msgspec.structs.replace(card.of, **subject)
    card = msgspec.structs.replace(card, seal=SealStatus(state=state, sentence=""), of=of)
    store.save_score(card.to_dict())


def off_by(error: float, chip: str = "l4", measured: float = 100.0) -> Score:
    return score(stated(chip, ttft_s__p50=measured * (1 + error)), stated(chip, ttft_s__p50=measured))


def test_an_empty_store(store: Store):
    card = scorecard(store)
    assert (card.predictions, card.scores, card.by_chip, card.trust) == (0, 0, (), ())
    assert card.to_dict()["schema"] == "inferometer/scorecard/1"


def test_means_and_bias_by_chip(store: Store):
    for n, (error, chip) in enumerate([(0.1, "l4"), (-0.3, "l4"), (0.5, "t4")]):
        keep(store, off_by(error, chip), prediction=str(n))
    card = scorecard(store)
    l4, t4 = card.by_chip
    assert (l4.name, l4.predictions, l4.points) == ("l4", 2, 2)
    assert l4.mean_abs_error_pct == pytest.approx(20)
    assert l4.bias_pct == pytest.approx(-10)
    assert t4.bias_pct == pytest.approx(50)
    assert [tally.name for tally in (*card.by_model, *card.by_engine)] == ["Qwen/Qwen3-8B", "vllm 0.26.0"]


def test_the_latest_score_of_the_same_counts_once(store: Store):
    keep(store, off_by(0.5), prediction="a")
    keep(store, off_by(0.2), prediction="a")
    card = scorecard(store)
    assert (card.predictions, card.scores) == (1, 1)
    assert card.by_chip[0].bias_pct == pytest.approx(20)
    keep(store, off_by(0.2), prediction="a", runs=("another",))
    assert (scorecard(store).predictions, scorecard(store).scores) == (1, 2)


def test_sealed_ones_are_told_apart_and_trusted(store: Store):
    for n in range(10):
        keep(store, off_by(0.01 * n), "sealed", prediction=f"s{n}")
    for n, state in enumerate(["unsealed", "late", "broken", "undated"]):
        keep(store, off_by(3.0), state, prediction=f"o{n}")
    card = scorecard(store)
    assert [(tally.name, tally.points) for tally in card.by_seal] == [("sealed before", 10), ("all others", 3)]
    (trust,) = card.trust
    assert (trust.kind, trust.points, card.trusted) == ("TTFT", 10, "sealed before")
    assert (card.trusted_predictions, card.left_out) == (10, {"seal broken": 1})
    assert trust.p90_abs_error_pct == pytest.approx(np.percentile(np.arange(10.0), 90))


def test_too_few_points_say_nothing_of_the_next(store: Store):
    for n in range(9):
        keep(store, off_by(0.1), prediction=str(n))
    (trust,) = scorecard(store).trust
    assert (trust.points, trust.p90_abs_error_pct) == (9, None)
    assert scorecard(store).trusted == "all"


def test_coverage(store: Store):
    card = off_by(0.1)
    rows = [msgspec.structs.replace(card.rows[0], low=low, high=low + 2e4) for low in (9e4, 2e5, 95e3)]
    keep(store, msgspec.structs.replace(card, rows=tuple(rows)))
    (tally,) = scorecard(store).by_metric
    assert (tally.inside, tally.with_interval, tally.coverage) == (2, 3, pytest.approx(2 / 3))


def test_a_fit_is_no_test(store: Store):
    fit = off_by(0.0)
    keep(store, msgspec.structs.replace(fit, rows=(fitted(fit.rows[0]),)), prediction="fit", in_sample=True)
    keep(store, off_by(0.4), prediction="test")
    card = scorecard(store)
    assert (card.in_sample, card.predictions, card.scores) == (1, 1, 1)
    assert card.by_chip[0].bias_pct == pytest.approx(40)


def fitted(row: Row) -> Row:
    return msgspec.structs.replace(row, fitted=True)


def test_of_a_score_only_the_figures_that_were_fitted_are_left_out(store: Store):
    mine = [stated(concurrency=c, ttft_s__p50=p50_s) for c, p50_s in ((1, 0.1), (2, 0.12), (4, 0.13))]
    card = score(mine, [stated(concurrency=c, ttft_s__p50=0.1) for c in (1, 2, 4)])
    rows = [fitted(row) if row.concurrency == 1 else row for row in card.rows]
    keep(store, msgspec.structs.replace(card, rows=tuple(rows)), in_sample=True)
    found = scorecard(store)
    assert (found.in_sample, found.predictions, found.by_chip[0].points) == (1, 1, 2)
    assert found.by_chip[0].bias_pct == pytest.approx(25)


def test_a_score_from_before_rows_said_so_is_left_out_whole(store: Store):
    document = off_by(0.0).to_dict()
    document["of"]["in_sample"] = True
    for row in document["rows"]:
        del row["fitted"]
    store.save_score(document)
    found = scorecard(store)
    assert (found.in_sample, found.predictions, found.scores) == (1, 0, 0)


def test_scores_that_say_nothing_of_the_next_prediction_are_left_out(store: Store):
    keep(store, off_by(0.4), prediction="test")
    keep(store, off_by(3.0), "broken", prediction="broken")
    unlike = score(stated("l4", ttft_s__p50=0.4), stated("t4", ttft_s__p50=0.1))
    assert unlike.notes
    keep(store, unlike, prediction="unlike")
    served = {"flags": {"emulated_by": "inferometer 0.1.0"}}
    mock = make_run(RunMeta(kind="measured", stated={"ttft_s.p50": 0.1}, server=served))
    keep(store, score(stated(ttft_s__p50=0.4), mock), prediction="mock")
    card = scorecard(store)
    assert (card.predictions, card.by_chip[0].bias_pct) == (1, pytest.approx(40))
    assert card.left_out == {
        "seal broken": 1,
        "runs unlike what was predicted": 1,
        "of the emulator or the simulator, no chip": 1,
    }
    assert card.to_dict()["left_out"] == card.left_out


def test_knees_are_in_no_mean_but_their_own(store: Store):
    flat = [stated(concurrency=c, ttft_s__p50=0.1, ttft_s__p99=0.15) for c in (1, 2)]
    bent = [flat[0], stated(concurrency=2, ttft_s__p50=0.1, ttft_s__p99=0.3)]
    keep(store, score(flat, bent))
    card = scorecard(store)
    (knee,) = [tally for tally in card.by_metric if tally.name == "ttft_knee_concurrency"]
    assert (knee.points, knee.undefined, knee.mean_abs_error_pct) == (1, 1, None)
    assert card.by_chip[0].points == 4


def test_output_per_user_of_a_closed_loop_is_left_out(store: Store):
    keep(store, score(stated(concurrency=4, output_tok_per_s=9.0), stated(concurrency=4, output_tok_per_s=8.0)))
    assert [tally.name for tally in scorecard(store).by_metric] == ["output_tok_per_s"]


def test_sealed_predictions_that_were_never_scored_are_named(store: Store):
    study = {"arm": [], "workload.concurrency": [1], "workload.output_tokens": 8}
    prediction = im.predict("a100-qwen3-8b", overrides=study)
    path = prediction.seal(store)
    (named,) = scorecard(store).unscored
    assert named.startswith(f"a100-qwen3-8b {im.verify(path).sha256[:8]}")
    store.save_score(score(path, prediction.runs).to_dict())
    card = scorecard(store)
    assert (card.unscored, card.shares_of_ceiling) == ((), ())
    assert list(card.left_out.values()) == [1]
    copies = [msgspec.structs.replace(run.meta, kind="imported", id="") for run in prediction.runs]
    runs = [make_run(meta, run.requests) for meta, run in zip(copies, prediction.runs, strict=True)]
    store.save_score(score(path, runs).to_dict())
    card = scorecard(store)
    (share,) = card.shares_of_ceiling
    assert (share.chip, share.ceiling_tok_per_s) == ("a100-sxm4-80gb", pytest.approx(124.5, abs=0.05))


@pytest.mark.parametrize(
    ("fitted", "began_s", "made", "in_sample"),
    [
        ([], None, "", False),
        (["c8"], None, "", True),
        (["c1"], None, "", False),
        (["c8"], 2_000_000_000.0, "2026-01-01T00:00:00+00:00", False),  # another run of that name, later
        (["c8"], 1_000_000_000.0, "2026-01-01T00:00:00+00:00", True),
    ],
)
def test_runs_that_a_calibration_was_fitted_to(
    fitted: list[str], began_s: float | None, made: str, in_sample: bool, tmp_path: Path
):
    study = {"arm": [], "workload.concurrency": [1], "workload.output_tokens": 8}
    file = tmp_path / "prediction.json"
    profile = {"name": "mine", "runs": fitted, "created": made}
    document = im.predict("a100-qwen3-8b", overrides=study).to_dict() | {"profile": profile}
    file.write_bytes(msgspec.json.encode(document, enc_hook=str))
    run = make_run(RunMeta(kind="imported", name="c8", stated={"output_tok_per_s": 9.0}, started_unix_s=began_s))
    card = score(file, run)
    subject = card.of
    assert subject is not None
    assert (subject.in_sample, subject.profile) == (in_sample, "mine")
    assert {row.fitted for row in card.rows} == {in_sample}


def test_fitted_points_are_in_no_count_and_bend_the_sweeps_figures(tmp_path: Path):
    study = {"arm": [], "workload.concurrency": [1, 2, 4], "workload.output_tokens": 8, "slo": {"ttft_ms": 60_000}}
    prediction = im.predict("a100-qwen3-8b", overrides=study)
    file = tmp_path / "prediction.json"

    def scored(*fits: str) -> Score:
        profile = {"name": "mine", "runs": list(fits), "created": ""}
        file.write_bytes(msgspec.json.encode(prediction.to_dict() | {"profile": profile}, enc_hook=str))
        return score(file, runs)

    runs = []
    for run in prediction.runs:
        meta = msgspec.structs.replace(run.meta, kind="imported", name=f"c{run.meta.concurrency}", id="")
        runs.append(make_run(meta, run.requests))
    whole, part = scored(), scored("c2")
    assert not any(row.fitted for row in whole.rows)
    assert len(part.rows) == len(whole.rows)
    points = {row.concurrency for row in part.counted if row.of_point}
    assert points == {1, 4}
    sweeps = [row for row in part.rows if not row.of_point]
    assert sweeps
    assert all(row.fitted for row in sweeps)
    assert {metric.points for metric in part.by_metric} == {2}
    assert part.coverage["with_interval"] < whole.coverage["with_interval"]
    assert part.passed == whole.passed
    assert part.to_dict()["rows"][0]["fitted"] is False
