"""A person's claims: which figure is measured beside each, and who was closer."""

from __future__ import annotations

import msgspec
import pytest

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.claimed import ClaimRow
from inferometer.scoring.score import score

INK = {
    "output_tok_per_s@1": 123.4,
    "output_tok_per_s@16": 1742,
    "output_tok_per_s@64": 5060,
    "output_tok_per_s@128": 7415,
    "memory.num_gpu_blocks": 22959,
    "ttft_knee_concurrency": 4,
}


@pytest.fixture(scope="module")
def prediction() -> im.Prediction:
    claims = [f"{name}={value}" for name, value in INK.items()]
    more = ["roofline_tok_per_s@64=5060", "goodput.p99.output_tok_per_s=700", "goodput.p99.concurrency=8",
            "roofline.knee_batch_naive=161", "server_knee_concurrency=none", "ttft_ms.p99@8=300",
            "memory.kv_cache_tokens=367000", "waiting@8=0"]  # fmt: skip
    return im.predict("a100-qwen3-8b", overrides={"arm": []}, claims=[*claims, *more])


@pytest.fixture(scope="module")
def rows(prediction: im.Prediction) -> dict[str, ClaimRow]:
    return {row.claim: row for row in score(prediction, measured()).claims}


def measured() -> list[Run]:
    runs = founding_sweep.runs()
    server = {"num_gpu_blocks": 25640, "kv_cache_tokens": 410240}
    return [msgspec.structs.replace(run, meta=msgspec.structs.replace(run.meta, server=server)) for run in runs]


def test_the_founding_ink(rows: dict[str, ClaimRow]):
    truth = {"@1": 88.8, "@16": 1139.6, "@64": 2504.6, "@128": 3088.2}
    for at, value in truth.items():
        row = rows[f"output_tok_per_s{at}"]
        assert (row.measured, row.known, row.closer) == (value, True, "model")
        assert row.error_pct == pytest.approx((INK[row.claim] - value) / value * 100)
    blocks = rows["memory.num_gpu_blocks"]
    assert (blocks.measured, blocks.error_pct) == (25640, pytest.approx(-10.46, abs=0.01))
    knee = rows["ttft_knee_concurrency"]
    assert (knee.measured, knee.error_pct, knee.model_error_pct, knee.closer) == (2, 100.0, 300.0, "claim")


def test_a_ceiling_is_claimed_of_what_is_reached(rows: dict[str, ClaimRow], prediction: im.Prediction):
    row = rows["roofline_tok_per_s@64"]
    point = next(point for point in prediction.points if point.concurrency == 64)
    assert (row.measured, row.predicted) == (2504.6, point.roofline_tok_per_s)


def test_goodput_and_points(rows: dict[str, ClaimRow]):
    assert rows["goodput.p99.output_tok_per_s"].measured == 639.5
    assert rows["goodput.p99.concurrency"].measured == 8
    assert rows["ttft_ms.p99@8"].measured == pytest.approx(263)
    assert rows["memory.kv_cache_tokens"].measured == 410240


@pytest.mark.parametrize("name", ["roofline.knee_batch_naive", "server_knee_concurrency", "waiting@8"])
def test_what_no_measurement_says_is_listed_with_the_reason(rows: dict[str, ClaimRow], name: str):
    row = rows[name]
    assert (row.measured, row.known, row.error_pct, row.closer) == (None, False, None, None)
    assert row.reason


def test_that_there_is_none_can_be_right_or_wrong():
    flat = [
        make_run(RunMeta(kind="imported", concurrency=c, stated={"ttft_s.p50": 0.1, "ttft_s.p99": 0.1})) for c in (1, 2)
    ]
    study = {"arm": [], "workload.concurrency": [1, 2], "workload.output_tokens": 8}
    right = im.predict("a100-qwen3-8b", overrides=study, claims=["ttft_knee_concurrency=none"])
    row = next(row for row in score(right, flat).claims if row.claim == "ttft_knee_concurrency")
    assert (row.claimed, row.measured, row.known, row.error_pct) == (None, None, True, 0.0)
    wrong = im.predict("a100-qwen3-8b", overrides=study, claims=["ttft_knee_concurrency=2"])
    row = next(row for row in score(wrong, flat).claims if row.claim == "ttft_knee_concurrency")
    assert (row.claimed, row.error_pct, row.closer) == (2.0, None, "model")


def test_claims_are_read_from_a_sealed_file(prediction: im.Prediction, tmp_path: object):
    sealed = score(prediction.seal(str(tmp_path)), measured())
    assert [row.to_dict() for row in sealed.claims] == [row.to_dict() for row in score(prediction, measured()).claims]


def test_a_partial_sweep(prediction: im.Prediction):
    rows = {row.claim: row for row in score(prediction, measured()[:3]).claims}
    assert rows["output_tok_per_s@64"].reason == "that point was not measured"


def test_who_was_closer_to_a_measured_0():
    row = ClaimRow(
        claim="preemptions@64",
        claimed=3.0,
        predicted=500.0,
        measured=0.0,
        known=True,
        error_pct=None,
        model_error_pct=None,
    )
    assert row.closer == "claim"
    assert msgspec.structs.replace(row, claimed=600.0).closer == "model"
