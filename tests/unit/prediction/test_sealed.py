"""A prediction read back from its file: the same figures, as runs that state them, without simulating."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.prediction.seal import Sealed
from inferometer.records.metrics import sweep_goodput, ttft_knee

STUDY: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "chip": "a100-sxm4-80gb",
    "deployment": {"engine_version": "0.26.0"},
    "workload": {"prompt_tokens": 512, "output_tokens": 48, "concurrency": [1, 4, 64]},
    "slo": {"ttft_ms": 800, "tpot_ms": 50},
    "claims": {"output_tok_per_s@4": 300, "ttft_knee_concurrency": "none"},
    "arm": [
        {"name": "open", "workload": {"request_rate": [2], "requests_per_point": 20}},
        {"name": "big", "model": "meta-llama/Llama-3.1-70B"},
    ],
}


@pytest.fixture(scope="module")
def prediction() -> im.Prediction:
    return im.predict(STUDY)


@pytest.fixture(scope="module")
def path(prediction: im.Prediction, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prediction.seal(tmp_path_factory.mktemp("store"))


@pytest.fixture
def sealed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Sealed:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("simulated")

    monkeypatch.setattr("inferometer.sim.simulate.simulate", forbidden)
    monkeypatch.setattr("inferometer.prediction.predict.simulate", forbidden)
    return im.read_sealed(path)


def test_every_figure_comes_back(prediction: im.Prediction, sealed: Sealed):
    assert [arm.name for arm in sealed.arms] == ["base", "open", "big"]
    for arm, was in zip(sealed.arms, prediction.arms, strict=True):
        assert (arm.roofline, arm.fits, arm.slo) == (was.roofline, was.fits, was.arm.slo.limits())
        assert (arm.prompt_tokens, arm.output_tokens) == (was.prompt_tokens, was.output_tokens)
        assert arm.table == was.arm.table
        assert arm.limits["first_to_bind"] == was.limits.first_to_bind
        assert len(arm.points) == len(was.points)
        for name in ("ttft_knee_concurrency", "ttft_knee_closed_form", "throughput_knee_concurrency"):
            assert getattr(arm, name) == getattr(was, name)
        assert arm.server_knee_concurrency == was.server_knee_concurrency
        for point, original in zip(arm.points, was.points, strict=True):
            assert (point.concurrency, point.request_rate) == (original.concurrency, original.request_rate)
            assert point.intervals == original.intervals
            assert (point.limited_by, point.time_shares) == (original.limited_by, original.time_shares)
            assert point.roofline_tok_per_s == original.roofline_tok_per_s
            mine, theirs = point.summary, original.summary
            for name in ("output_tok_per_s", "total_tok_per_s", "per_user_tok_per_s", "request_per_s", "duration_s"):
                assert getattr(mine, name) == getattr(theirs, name)
            for name in ("requests", "completed", "failed", "preemptions", "running", "waiting", "kv_usage"):
                assert getattr(mine, name) == getattr(theirs, name)
            for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
                for part in ("mean", "p50", "p90", "p99"):
                    assert getattr(getattr(mine, name), part) == pytest.approx(getattr(getattr(theirs, name), part))


def test_the_runs_say_what_they_are(prediction: im.Prediction, sealed: Sealed):
    assert [run.meta.name for run in sealed.runs] == [run.meta.name for run in prediction.runs]
    meta = sealed.base.points[1].run.meta
    assert (meta.kind, meta.arm, meta.concurrency, meta.model) == ("simulated", "base", 4, "Qwen/Qwen3-8B")
    assert meta.deployment == prediction.runs[1].meta.deployment
    assert meta.created == sealed.document["sealed"]["time"]
    assert sealed.base.points[1].run.requests.height == 0
    assert sealed.arms[1].points[0].run.meta.request_rate_per_s == 2


def test_knees_and_goodput_follow_from_the_stated_runs_alone(prediction: im.Prediction, sealed: Sealed):
    base = prediction.base
    assert base.ttft_knee_concurrency is not None
    assert ttft_knee(sealed.base.runs) == base.ttft_knee_concurrency
    found = sweep_goodput(sealed.base.runs, **sealed.base.slo)
    assert base.goodput is not None
    assert found.gap_p99 == base.goodput.gap_p99


def test_seal_and_claims(sealed: Sealed):
    assert sealed.verification
    assert sealed.sealed_unix_s is not None
    assert [str(claim) for claim in sealed.claims] == ["output_tok_per_s@4=300", "ttft_knee_concurrency=none"]


def test_the_json_of_predict_is_read_without_a_seal(prediction: im.Prediction, tmp_path: Path):
    file = tmp_path / "prediction.json"
    file.write_text(json.dumps(prediction.to_dict()))
    found = im.read_sealed(file)
    assert found.verification is None
    assert found.sealed_unix_s is None
    assert found.base.points[0].run.meta.created == ""
    assert len(found.arms) == 3


def test_a_file_that_was_changed_is_read_and_says_so(path: Path, tmp_path: Path):
    file = tmp_path / "changed.json"
    file.write_text(path.read_text().replace('"concurrency": 64', '"concurrency": 65'))
    found = im.read_sealed(file)
    assert found.verification is not None
    assert not found.verification.ok
    assert found.base.points[2].concurrency == 65


def test_what_nothing_can_be_made_of(path: Path, tmp_path: Path):
    file = tmp_path / "damaged.json"
    document = json.loads(path.read_text())
    for broken in ({**document, "arms": 3}, {**document, "arms": [{}]}, {**document, "arms": []}, {"schema": "x"}):
        file.write_text(json.dumps(broken))
        with pytest.raises(InputError, match=r"damaged\.json"):
            im.read_sealed(file)
    file.write_text(path.read_text()[:-50])
    with pytest.raises(InputError, match="not valid JSON"):
        im.read_sealed(file)
    old = {key: value for key, value in document.items() if key not in ("ink", "sealed")}
    del old["arms"][0]["resolved"]
    file.write_text(json.dumps(old))
    with pytest.raises(InputError, match="resolved"):
        im.read_sealed(file)
