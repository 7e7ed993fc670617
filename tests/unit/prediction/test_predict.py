"""Predictions: the JSON contract, limits and knees, intervals, warm-up, what does not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.prediction.predict import figures, finite, point_name, point_run, predict, steady
from inferometer.records.run import RunMeta, TokenTimes, make_run

POINT_KEYS = {
    *("concurrency", "request_rate", "roofline_tok_per_s", "output_tok_per_s", "per_user_tok_per_s", "ttft_ms"),
    *("tpot_ms", "itl_ms", "e2e_ms", "running", "waiting", "kv_usage", "preemptions", "prefix_hit_rate", "intervals"),
}
MEMORY_KEYS = {
    *("fits", "weight_bytes", "kv_bytes_per_token", "kv_pool_bytes", "num_gpu_blocks", "kv_cache_tokens"),
    *("max_concurrency", "terms"),
}
ROOFLINE_KEYS = {
    *("ridge_flops_per_byte", "knee_batch_naive", "knee_batch", "intensity_asymptote_flops_per_byte"),
    *("half_saturation_batch", "throughput_asymptote_tok_per_s", "compute_roof_tok_per_s", "prefill_floor_s"),
    *("decode_floor_s", "limits"),
}
TOP_KEYS = {
    *("schema", "study", "sealed", "arms", "memory", "roofline", "points", "ttft_knee_concurrency"),
    *("ttft_knee_closed_form", "goodput"),
}


def study(**changes: Any) -> im.Study:
    """A small study; ``changes`` by dotted key with ``__`` for the dot."""
    table: dict[str, Any] = {
        "model": "Qwen/Qwen3-8B",
        "chip": "a100-sxm4-80gb",
        "deployment": {"engine_version": "0.26.0", "enable_prefix_caching": False},
        "workload": {"prompt_tokens": 1024, "output_tokens": 32, "concurrency": [1, 8]},
        "slo": {"ttft_ms": 500, "tpot_ms": 50},
    }
    return im.load_study(table, {key.replace("__", "."): value for key, value in changes.items()})


@pytest.fixture(scope="module")
def small() -> im.Prediction:
    return im.predict(study())


def test_json_has_the_keys_of_the_contract(small: im.Prediction):
    document = json.loads(json.dumps(small.to_dict(), allow_nan=False))
    assert set(document) >= TOP_KEYS
    assert document["schema"] == "inferometer/prediction/1"
    assert document["sealed"] is None
    assert set(document["memory"]) >= MEMORY_KEYS
    assert set(document["roofline"]) >= ROOFLINE_KEYS
    assert set(document["roofline"]["limits"]) == {"max_num_seqs", "preemption_concurrency", "first_to_bind"}
    assert [point["concurrency"] for point in document["points"]] == [1, 8]
    for point in document["points"]:
        assert set(point) >= POINT_KEYS
        for latency in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            assert set(point[latency]) == {"mean", "p50", "p90", "p99"}
            assert None not in point[latency].values()
    assert set(document["memory"]["terms"][0]) >= {"name", "bytes", "origin", "low_bytes", "high_bytes"}


def test_top_level_is_the_base():
    document = im.predict(
        im.load_study(
            {**study(workload__concurrency=[2]).table, "arm": [{"name": "long", "workload": {"prompt_tokens": 2048}}]}
        )
    ).to_dict()
    base, long = document["arms"]
    assert (base["name"], long["name"]) == ("base", "long")
    for key in ("memory", "roofline", "points", "goodput", "ttft_knee_concurrency", "ttft_knee_closed_form"):
        assert document[key] == base[key]
    assert long["study"]["workload"]["prompt_tokens"] == 2048
    assert long["points"] != base["points"]


def test_figures_are_those_of_the_run(small: im.Prediction):
    for point, shown in zip(small.points, small.to_dict()["points"], strict=True):
        summary = point.run.summary()
        assert shown["output_tok_per_s"] == summary.output_tok_per_s
        assert shown["ttft_ms"]["p99"] == pytest.approx(summary.ttft_s.p99 * 1000)
        assert shown["requests"] == 10 * point.concurrency == point.run.requests.height
        assert shown["preemptions"] == 0
        assert shown["prefix_hit_rate"] == 0
        assert 0 < shown["kv_usage"] < 1
        assert 0 < shown["running"] <= point.concurrency
        assert shown["output_tok_per_s"] < shown["roofline_tok_per_s"]


def test_intervals_hold_the_estimate_and_are_not_empty(small: im.Prediction):
    for point in small.points:
        values = figures(point.summary)
        assert set(point.intervals) == set(values)
        assert len(values) == 2 + 4 * 4
        for path, (low, high) in point.intervals.items():
            assert low <= values[path] <= high
        low, high = point.intervals["output_tok_per_s"]
        assert low < values["output_tok_per_s"] < high


def test_roofline_is_at_the_prompt_and_half_the_output(small: im.Prediction):
    assert small.to_dict()["roofline"]["context_tokens"] == 1024 + 16
    dep = small.study.base.deployment
    assert small.points[1].roofline_tok_per_s == im.roofline(dep, context_tokens=1040).decode_tok_per_s(8)
    assert small.to_dict()["roofline"]["prefill_floor_s"] == im.roofline(dep, 1040).prefill_floor_s(1024)


def test_replicas_share_the_users_of_the_roofline():
    prediction = im.predict(study(deployment__data_parallel_size=2, workload__concurrency=[1, 8]))
    roof = im.roofline(prediction.study.base.deployment, context_tokens=1040)
    assert prediction.points[0].roofline_tok_per_s == roof.decode_tok_per_s(1)
    assert prediction.points[1].roofline_tok_per_s == 2 * roof.decode_tok_per_s(4)


@pytest.mark.parametrize("replicas", [1, 2])
def test_limits(replicas: int):
    found = im.predict(study(deployment__data_parallel_size=replicas, workload__concurrency=[2]))
    limits = found.base.limits
    assert limits.preemption_concurrency == replicas * (found.memory.kv_cache_tokens // (1024 + 32))
    assert limits.max_num_seqs == replicas * found.study.base.deployment.resolved().max_num_seqs
    assert limits.first_to_bind == "max_num_seqs"
    longer = im.predict(study(workload__prompt_tokens=8192, workload__concurrency=[1])).base.limits
    assert longer.first_to_bind == "preemption_concurrency"


@pytest.mark.parametrize(("prompt", "model"), [(1024, "Qwen/Qwen3-8B"), (100, "Qwen/Qwen3-8B"), (16, "Qwen/Qwen3-14B")])
def test_closed_form_of_the_knee_is_the_least_concurrency(prompt: int, model: str):
    arm = im.predict(study(model=model, workload__prompt_tokens=prompt, workload__concurrency=[1])).base
    prefill, decode = arm.roofline.prefill_floor_s(prompt), arm.roofline.decode_floor_s
    beyond = next(c for c in range(1, 10_000) if (c - 1) * prefill > 2 * (prefill + decode))
    assert arm.ttft_knee_closed_form == beyond


def test_closed_form_is_the_founding_sweeps():
    arm = im.predict("a100-qwen3-8b", overrides={"workload.concurrency": [1], "arm": []}).base
    assert arm.ttft_knee_closed_form == 4
    assert arm.roofline.prefill_floor_s(1024) == pytest.approx(0.0538, rel=0.01)


def test_an_open_loop_has_no_closed_form_and_no_concurrency():
    prediction = im.predict(study(workload__request_rate=[2.0, 4.0], workload__requests_per_point=40))
    assert prediction.base.ttft_knee_closed_form is None
    assert prediction.base.ttft_knee_concurrency is None
    assert [(p.concurrency, p.request_rate) for p in prediction.points] == [(None, 2.0), (None, 4.0)]
    assert [point_name(p) for p in prediction.points] == ["2/s", "4/s"]


def test_knee_and_goodput_follow_from_the_points():
    prediction = im.predict(study(workload__concurrency=[1, 2, 8, 32, 64], workload__output_tokens=128))
    points = prediction.to_dict()["points"]
    knee = next((p["concurrency"] for p in points if p["ttft_ms"]["p99"] > 2 * p["ttft_ms"]["p50"]), None)
    assert prediction.base.ttft_knee_concurrency == knee is not None
    for percentile in ("p50", "p99"):
        meet = [p for p in points if p["ttft_ms"][percentile] <= 500 and p["tpot_ms"][percentile] <= 50]
        best = max(meet, key=lambda p: p["output_tok_per_s"])
        found = prediction.to_dict()["goodput"][percentile]
        assert (found["concurrency"], found["output_tok_per_s"]) == (best["concurrency"], best["output_tok_per_s"])
    raw = max(point["output_tok_per_s"] for point in points)
    goodput = prediction.to_dict()["goodput"]
    assert goodput["raw_max"]["output_tok_per_s"] == raw
    assert goodput["gap_p99"] == pytest.approx(raw / goodput["p99"]["output_tok_per_s"])


def test_without_limits_there_is_no_goodput():
    table = study().table
    del table["slo"]
    assert im.predict(table).to_dict()["goodput"] == {
        "p50": None, "p99": None, "raw_max": None, "gap_p50": None, "gap_p99": None,
    }  # fmt: skip


def test_a_model_that_does_not_fit_is_a_result():
    ticks: list[tuple[int, int]] = []
    prediction = predict(
        study(model="meta-llama/Llama-3.1-70B"), progress=lambda done, total: ticks.append((done, total))
    )
    document = prediction.to_dict()
    assert not prediction.fits
    assert document["memory"]["fits"] is False
    assert document["memory"]["kv_pool_bytes"] == 0
    assert document["memory"]["shortfall_bytes"] > 0
    assert document["points"] == []
    assert "tensor_parallel_size=4" in document["memory"]["would_fit"]
    assert document["roofline"]["limits"]["preemption_concurrency"] == 0
    assert ticks[-1] == (2, 2)


def test_one_arm_that_does_not_fit_leaves_the_other():
    table = {**study(workload__concurrency=[1]).table, "arm": [{"name": "big", "model": "meta-llama/Llama-3.1-70B"}]}
    prediction = im.predict(table)
    assert [arm.fits for arm in prediction.arms] == [True, False]
    assert not prediction.fits
    assert len(prediction.points) == 1


def test_a_model_of_few_figures_has_memory_and_roofline_only():
    lab = {"name": "lab-8b", "weight_bytes": 16_000_000_000, "layers": 32, "kv_heads": 8, "head_dim": 128}
    prediction = im.predict({"model": lab, "chip": "a100-sxm4-80gb", "workload": {"concurrency": [1]}})
    assert prediction.fits
    assert prediction.points == ()
    assert "few figures" in prediction.base.note
    assert prediction.to_dict()["roofline"]["knee_batch_naive"] > 0


def test_one_seed_gives_one_prediction():
    varied = study(workload__prompt_tokens={"lognormal": {"mean": 500, "sigma": 0.5}}, workload__concurrency=[4])
    first, again, other = im.predict(varied, seed=3), im.predict(varied, seed=3), im.predict(varied, seed=4)
    assert json.dumps(first.to_dict()) == json.dumps(again.to_dict())
    assert first.to_dict()["seed"] == 3
    assert first.points[0].summary != other.points[0].summary
    assert im.predict(varied).points[0].run.meta.seed == 0
    with pytest.raises(InputError, match="seed"):
        im.predict(varied, seed=-1)


def test_overrides_go_with_a_table_and_not_with_a_study():
    assert im.predict(study().table, overrides=["workload.concurrency=[3]"]).points[0].concurrency == 3
    with pytest.raises(InputError, match="overrides"):
        im.predict(study(), overrides=["workload.concurrency=[3]"])


def test_runs_are_named_after_study_arm_and_point(small: im.Prediction):
    run = small.runs[1]
    assert run.meta.name == "study:base:C=8"
    assert run.meta.arm == "base"
    assert run.meta.slo == {"ttft_s": 0.5, "tpot_s": 0.05}
    assert point_run(small.study, small.study.base, small.study.base.points[1]).id == run.id


def test_a_request_of_no_output_has_no_first_token_and_no_goodput():
    prediction = im.predict(study(workload__output_tokens=0, workload__concurrency=[2]))
    document = prediction.to_dict()
    assert document["points"][0]["ttft_ms"]["p50"] is None
    assert "ttft_ms.p50" not in document["points"][0]["intervals"]
    assert document["goodput"]["p99"] is None


def test_a_point_of_very_many_tokens_has_no_token_times(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inferometer.prediction.predict.MOST_TOKEN_TIMES", 1000)
    one, eight = im.predict(study()).points  # 320 and 2,560 output tokens
    assert one.run.token_times is not None
    assert eight.run.token_times is None
    assert eight.to_dict()["itl_ms"]["p99"] is None
    assert "itl_ms.p99" not in eight.intervals


def test_a_replay_is_one_point_without_a_load(tmp_path: Path):
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n0.5,300,30\n")
    changed = study(workload__requests=str(tmp_path / "trace.csv"))
    (point,) = im.predict(changed).points
    assert (point.concurrency, point.request_rate, point_name(point)) == (None, None, "replay")
    assert im.predict(changed).to_dict()["roofline"]["context_tokens"] == 200 + 10
    assert im.predict(changed).base.ttft_knee_closed_form is None


def test_warm_up_requests_are_left_out():
    whole = im.predict(study(workload__concurrency=[4])).points[0]
    less = im.predict(study(workload__concurrency=[4], workload__warmup_requests=4)).points[0]
    assert (whole.summary.requests, less.summary.requests) == (40, 36)
    # the first four wait for each other's prefill, the later ones come one by one or in the same waves
    assert less.run.requests["sent_s"].min() > 0
    assert less.run.server["time_s"].min() >= less.run.requests["sent_s"].min()
    assert "warm-up" in less.run.meta.notes[-1]


def test_steady_keeps_each_requests_own_tokens():
    times = TokenTimes(np.array([0, 2, 3, 6]), np.array([5.0, 6.0, 1.5, 3.0, 3.1, 3.2]))
    columns = {"sent_s": [4.0, 1.0, 2.0], "end_s": [6.0, 1.5, 3.2], "output_tokens": [2, 1, 3]}
    run = make_run(RunMeta(kind="simulated"), columns, {"time_s": [0.0, 1.9, 2.0], "running": [0, 1, 1]}, times)
    kept = steady(run, 1)
    assert kept.requests["sent_s"].to_list() == [4.0, 2.0]
    assert kept.token_times == TokenTimes(np.array([0, 2, 5]), np.array([5.0, 6.0, 3.0, 3.1, 3.2]))
    assert kept.server["time_s"].to_list() == [2.0]
    assert steady(run, 0) is run
    assert kept.id != run.id


def test_infinite_figures_are_null():
    assert finite({"a": math.inf, "b": [math.nan, 1.0], "c": (2, {"d": -math.inf})}) == {
        "a": None, "b": [None, 1.0], "c": [2, {"d": None}],
    }  # fmt: skip


# ---------------------------------------------------------------- with a calibration
PROFILE = im.Profile(
    name="mine",
    chip="a100-sxm4-80gb",
    model="Qwen/Qwen3-8B",
    engine="vllm 0.26.0",
    params={"weight_read": 0.6, "sequence_s": 2e-4},
    stderr={"weight_read": 0.006, "sequence_s": 1e-5},
)
"""Slower than the family's constants."""


@pytest.fixture(scope="module")
def calibrated() -> im.Prediction:
    return im.predict(study(), profile=PROFILE)


def test_costs_come_from_the_profile(small: im.Prediction, calibrated: im.Prediction):
    dep = small.study.base.deployment
    for before, after in zip(small.points, calibrated.points, strict=True):
        assert after.summary.tpot_s.p50 > 1.1 * before.summary.tpot_s.p50
        low, high = after.intervals["output_tok_per_s"]
        assert low < after.summary.output_tok_per_s < high
        wide = before.intervals["output_tok_per_s"]
        assert high / low < wide[1] / wide[0]
        assert "mine" in after.run.meta.notes[0]
    costs = im.calibrated_costs(dep, PROFILE)
    run = point_run(small.study, small.study.base, small.study.base.points[0], costs=costs)
    assert run.summary().output_tok_per_s == calibrated.points[0].summary.output_tok_per_s


def test_shares_of_time_are_of_the_profiles_constants(small: im.Prediction, calibrated: im.Prediction):
    before, after = small.points[1].time_shares, calibrated.points[1].time_shares
    assert after["fixed overhead"] > 1.3 * before["fixed overhead"]  # 0.2 ms for each of eight sequences a step


def test_the_profile_is_recorded_with_what_was_used(calibrated: im.Prediction):
    document = json.loads(json.dumps(calibrated.to_dict(), allow_nan=False))
    assert document["profile"]["params"] == PROFILE.params
    used = document["arms"][0]["resolved"]["efficiencies"]
    assert used["weight_read"]["value"] == 0.6
    assert used["weight_read"]["slow"] < 0.6 < used["weight_read"]["fast"]
    assert used["sequence_s"]["slow"] > 2e-4 > used["sequence_s"]["fast"]
    assert used["mfu"]["slow"] == used["mfu"]["value"] == used["mfu"]["fast"]
    assert "mine" in used["weight_read"]["origin"]


def test_a_profile_from_a_file_and_one_of_another_chip(tmp_path: Path):
    path = PROFILE.save(tmp_path / "profile.toml")
    small = study(workload__concurrency=[1], workload__output_tokens=4)
    assert im.predict(small, profile=str(path)).profile == PROFILE
    ticks: list[int] = []
    with pytest.raises(InputError, match="a100-sxm4-80gb"):
        im.predict(study(chip="h100-sxm-80gb"), profile=PROFILE, progress=lambda done, _: ticks.append(done))
    assert ticks == []
    with pytest.raises(InputError, match="arm 'other'"):
        im.predict({**small.table, "arm": [{"name": "other", "chip": "h100-sxm-80gb"}]}, profile=PROFILE)


def test_a_profile_used_on_another_model_is_doubted():
    other = im.predict(study(model="Qwen/Qwen3-14B", workload__concurrency=[1]), profile=PROFILE)
    assert any("fitted on Qwen/Qwen3-8B" in caution for caution in other.base.cautions)
    assert im.predict(study(workload__concurrency=[1]), profile=PROFILE).base.cautions == []
