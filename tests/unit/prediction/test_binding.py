"""What limits a point: the rules, on points made to obey each."""

from __future__ import annotations

from typing import Any

import pytest

import inferometer as im
from inferometer.prediction.binding import cause_seconds, limited_by, time_shares
from inferometer.records.metrics import Summary
from inferometer.records.run import RunMeta, make_run
from inferometer.steptime.costs import sheet_costs


def point(
    model: str = "Qwen/Qwen3-8B", chip: str = "a100-sxm4-80gb", deployment: dict[str, Any] | None = None, **load: Any
):
    table = {"model": model, "chip": chip, "deployment": {"engine_version": "0.26.0", **(deployment or {})}}
    return im.predict({**table, "workload": {"prompt_tokens": 256, "output_tokens": 256, **load}}).points[0]


def test_a_single_user_waits_for_weights():
    found = point(concurrency=[1])
    assert found.limited_by == "weight reads"
    assert found.time_shares["weight reads"] > 0.7


def test_long_contexts_wait_for_the_cache():
    found = point(concurrency=[64], prompt_tokens=2048, output_tokens=1024, requests_per_point=64)
    assert found.limited_by == "KV reads"


def test_long_prompts_with_short_answers_are_prefill():
    found = point(concurrency=[16], prompt_tokens=2048, output_tokens=4)
    assert found.limited_by == "prefill in mixed steps"


def test_a_small_pool_preempts():
    found = point(concurrency=[16], deployment={"num_gpu_blocks_override": 200, "max_model_len": 1024})
    assert found.summary.preemptions > 0
    assert found.limited_by == "KV memory (preemptions)"


def test_few_slots():
    found = point(concurrency=[16], deployment={"max_num_seqs": 4})
    assert found.limited_by == "max_num_seqs"


def test_a_trickle_of_arrivals():
    assert point(request_rate=[0.05], requests_per_point=20).limited_by == "arrivals"


def test_tensor_parallelism_over_pcie_communicates():
    shares = point(chip="rtx-pro-6000", deployment={"tensor_parallel_size": 2}, concurrency=[8]).time_shares
    assert shares["communication"] > 0
    assert "communication" not in point(concurrency=[8]).time_shares


@pytest.mark.parametrize("users", [1, 8, 64])
def test_shares_add_up(users: int):
    shares = point(concurrency=[users], requests_per_point=users).time_shares
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) > 0


@pytest.mark.parametrize(
    ("model", "chip", "deployment"),
    [
        ("Qwen/Qwen3-8B", "a100-sxm4-80gb", {}),
        ("meta-llama/Llama-3.1-70B", "h100-sxm-80gb", {"tensor_parallel_size": 8}),
        ("Qwen/Qwen3-32B", "rtx-pro-6000", {"tensor_parallel_size": 2}),
        ("Qwen/Qwen3-30B-A3B", "rtx-pro-6000", {"data_parallel_size": 2, "enable_expert_parallel": True}),
    ],
)
def test_the_estimate_accounts_for_most_of_the_time(model: str, chip: str, deployment: dict[str, Any]):
    # what the shares are of, in seconds, must come near what was simulated: a closed loop's engine never idles
    table = {"model": model, "chip": chip, "deployment": deployment}
    load = {"prompt_tokens": 1024, "output_tokens": 256, "concurrency": [32], "requests_per_point": 320}
    found = im.predict({**table, "workload": load})
    dep, run = found.study.base.deployment, found.points[0].run
    names = ("prompt_tokens", "output_tokens", "cached_tokens")
    lengths = (run.requests[name].to_numpy().astype(float) for name in names)
    spent = cause_seconds(dep, sheet_costs(dep), run.meta.counters["steps"], *lengths)
    busy = found.points[0].summary.duration_s * dep.data_parallel_size
    assert sum(spent.values()) == pytest.approx(busy, rel=0.2)


def test_nothing_served_is_limited_by_nothing():
    dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    run = make_run(RunMeta(kind="simulated", counters={"steps": 0.0}))
    assert time_shares(dep, run, sheet_costs(dep)) == {}
    assert limited_by(dep, run, Summary(), {}) == ""


def test_queue_rules_need_a_queue():
    dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"), flags={"max_num_seqs": 10})
    run = make_run(RunMeta(kind="simulated", concurrency=20))
    shares = {"weight reads": 1.0}
    full = {"running": 10.0, "kv_usage": 0.95}
    assert limited_by(dep, run, Summary(**full, waiting=0.1), shares) == "weight reads"
    assert limited_by(dep, run, Summary(**full, waiting=5.0), shares) == "KV memory (requests wait)"
    assert limited_by(dep, run, Summary(running=9.0, kv_usage=0.2, waiting=5.0), shares) == "max_num_seqs"
    assert limited_by(dep, run, Summary(running=5.0, kv_usage=0.2, waiting=5.0), shares) == "weight reads"
    # ten users have ten slots: who waits then waits for the token budget
    ten = make_run(RunMeta(kind="simulated", concurrency=10))
    assert limited_by(dep, ten, Summary(running=9.0, kv_usage=0.2, waiting=1.0), shares) == "weight reads"
