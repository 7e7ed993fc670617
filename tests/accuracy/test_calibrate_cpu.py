"""A real vLLM on one CPU core: calibrated on its lowest and highest concurrency, predicted in between and elsewhere."""

from __future__ import annotations

import msgspec
import pytest
from tests.shared import shared

import inferometer as im
from inferometer.records.run import Run

ERRORS = 0.10
"""On throughput and TPOT; measured: under 5 %."""


def run_of(name: str) -> Run:
    return im.load(shared(f"data/cpu_engine/{name}.json"))[0]


@pytest.fixture(scope="module")
def deployment() -> im.Deployment:
    return im.load_study("cpu-vllm-q3s").base.deployment


@pytest.fixture(scope="module")
def profile(deployment: im.Deployment) -> im.Profile:
    between = [run_of(f"main_clean/c{users}") for users in (2, 4, 8)]
    return im.calibrate([run_of("main_clean/c1"), run_of("main_rerun/c32b")], deployment, hold_out=between)


def test_the_study_serves_the_model_that_was_measured(deployment: im.Deployment):
    measured = im.model(shared("data/cpu_engine/model/config.json"))
    assert measured.blocks == deployment.model.blocks
    assert im.memory(deployment).num_gpu_blocks == 512
    # from the README of the data: 234,130,432 parameters in bf16
    assert {term.name: term.bytes for term in im.memory(deployment).terms}["weights"] == 468_260_864


def test_points_between_are_within_ten_per_cent_on_throughput_and_tpot(profile: im.Profile):
    wanted = [row for row in profile.held_out if row["metric"] in ("output_tok_per_s", "tpot_ms.mean", "tpot_ms.p50")]
    assert {row["concurrency"] for row in wanted} == {2, 4, 8}
    assert max(abs(row["error_pct"]) for row in wanted) < 100 * ERRORS


def test_so_are_their_first_tokens(profile: im.Profile):
    wanted = [row for row in profile.held_out if row["metric"] in ("ttft_ms.mean", "ttft_ms.p50")]
    assert len(wanted) == 6
    assert max(abs(row["error_pct"]) for row in wanted) < 5


def test_a_core_reads_weights_near_its_stream_rate_and_caches_far_below(profile: im.Profile):
    """468 MB in 17.4 ms are 27 GB/s of 35.9; 8 more sequences of 320 tokens of 32,768 bytes take 15 ms: 5.5 GB/s."""
    assert 0.75 < profile.params["weight_read"] < 1.0
    assert 0.12 < profile.params["kv_read"] < 0.25
    assert profile.lumped["weight_read"] == ["step_s", "layer_s"]


def test_another_budget_and_prompts_twice_as_long(profile: im.Profile, deployment: im.Deployment):
    flags = {**deployment.flags, "max_num_batched_tokens": 256}
    chunked = msgspec.structs.replace(deployment, flags=flags)
    load = im.Workload.closed_loop(8, 40, prompt_tokens=512, output_tokens=64)
    predicted = im.simulate(chunked, load, costs=im.calibrated_costs(chunked, profile), token_times=True).summary()
    measured = run_of("chunk256/chunk256_in512_c8").summary()
    for metric in ("tpot_s", "ttft_s"):
        assert getattr(predicted, metric).mean == pytest.approx(getattr(measured, metric).mean, rel=ERRORS)
    assert predicted.output_tok_per_s == pytest.approx(measured.output_tok_per_s, rel=ERRORS)
    assert predicted.itl_s.p99 == pytest.approx(measured.itl_s.p99, rel=ERRORS)


def test_all_points_together_predict_each_from_the_others(deployment: im.Deployment):
    runs = [run_of(f"main_clean/c{users}") for users in (1, 2, 4, 8)] + [run_of("main_rerun/c32b")]
    found = im.calibrate(runs, deployment)
    wanted = [row for row in found.held_out if row["metric"] in ("output_tok_per_s", "tpot_ms.mean")]
    assert len(wanted) == 10
    assert max(abs(row["error_pct"]) for row in wanted) < 100 * ERRORS
