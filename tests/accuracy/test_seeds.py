"""Every fact of the founding documents that concerns prediction and simulation, through the public API."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

import inferometer as im
from shared import shared


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return json.loads(shared("vectors/seeds.json").read_text())


@pytest.fixture(scope="module")
def a100() -> im.Deployment:
    flags = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
    return im.Deployment(
        model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"), engine_version="0.26.0", flags=flags
    )


def lab(facts: dict[str, Any], chips: int) -> im.Deployment:
    figures = facts["capacity_model"]["model_70b"]
    model = im.Model(name="lab-70b", **{k: figures[k] for k in ("weight_bytes", "layers", "kv_heads", "head_dim")})
    return im.Deployment(model=model, chip=im.chip("a100-sxm4-80gb"), tensor_parallel_size=chips)


def traced(count: int = 24) -> list[dict[str, Any]]:
    return [
        {"id": f"r{i:02d}", "arrival_tick": i // 4, "prompt_tokens": 512, "output_tokens": 400 if i % 8 == 0 else 20}
        for i in range(count)
    ]


# ---------------------------------------------------------------- the capacity model
def test_70b_does_not_fit_one_card_and_fits_eight(facts: dict[str, Any]) -> None:
    one = im.memory(lab(facts, 1), overhead_fraction=0.1)
    assert (one.fits, one.kv_pool_bytes) == (False, 0)
    assert one.shortfall_bytes > 0
    assert one.kv_bytes_per_token == facts["capacity_model"]["model_70b"]["kv_bytes_per_token"]
    eight = im.memory(lab(facts, 8), overhead_fraction=0.1)
    assert eight.kv_pool_bytes == facts["capacity_model"]["node_8x80"]["kv_budget_bytes"]


def test_crossover_batches(facts: dict[str, Any]) -> None:
    for row in facts["capacity_model"]["crossover_batch"]:
        roof = im.roofline(lab(facts, 8), context_tokens=row["context_tokens"])
        assert roof.crossover_batch == pytest.approx(row["batch"], abs=0.05)


def test_zero_context_halves_exactly(facts: dict[str, Any]) -> None:
    node = lab(facts, 8)
    empty, long = im.roofline(node, context_tokens=0), im.roofline(node, context_tokens=200_000)
    per_token = [1 / empty.decode_tok_per_s(b) for b in (1, 2, 4, 8)]
    assert per_token == [per_token[0] / b for b in (1, 2, 4, 8)]
    assert long.decode_tok_per_s(1) / long.decode_tok_per_s(2) > 0.6, "per token: nowhere near half"


def test_traced_workload(facts: dict[str, Any]) -> None:
    known = facts["capacity_model"]["traced_workload"]
    budget = facts["capacity_model"]["node_8x80"]["kv_budget_bytes"]
    out = {
        policy: im.simulate_ticks(traced(), policy, max_batch=8, kv_budget_bytes=budget, kv_bytes_per_token=327680)
        for policy in ("static", "continuous")
    }
    for policy, result in out.items():
        assert result.total_ticks == known[policy]["total_ticks"]
        assert result.mean_service_ticks == pytest.approx(known[policy]["mean_service_latency_ticks"])
        assert result.mean_from_arrival_ticks == pytest.approx(known[policy]["mean_latency_from_arrival_ticks"])
        assert result.peak_kv_bytes <= budget
    static, continuous = out["static"], out["continuous"]
    assert continuous.peak_kv_bytes == known["continuous"]["peak_kv_bytes"]
    assert static.total_ticks / continuous.total_ticks == pytest.approx(known["throughput_ratio"])
    assert static.mean_service_ticks / continuous.mean_service_ticks == pytest.approx(known["service_latency_ratio"])
    assert static.mean_from_arrival_ticks / continuous.mean_from_arrival_ticks == pytest.approx(10.5, abs=0.01)
    assert set(static.results) == set(continuous.results)


def test_static_batches_end_together_and_continuous_does_not() -> None:
    few = traced(8)
    ends = {
        policy: {
            r.finished_tick
            for r in im.simulate_ticks(few, policy, kv_budget_bytes=2**40, kv_bytes_per_token=1).results.values()
            if r.arrival_tick == 0
        }
        for policy in ("static", "continuous")
    }
    assert len(ends["static"]) == 1
    assert len(ends["continuous"]) == 2


def test_never_fitting_request_is_refused_and_blocks_nobody() -> None:
    jobs = [
        {"id": "ok-1", "arrival_tick": 0, "prompt_tokens": 10, "output_tokens": 5},
        {"id": "too-big", "arrival_tick": 0, "prompt_tokens": 1000, "output_tokens": 1},
        {"id": "ok-2", "arrival_tick": 0, "prompt_tokens": 10, "output_tokens": 5},
    ]
    for policy in ("static", "continuous"):
        out = im.simulate_ticks(jobs, policy, kv_budget_bytes=100, kv_bytes_per_token=1)
        assert out.rejected == ["too-big"]
        assert sorted(out.results) == ["ok-1", "ok-2"]


@pytest.mark.parametrize(("count", "waves"), [(10, 1), (12, 2)])
def test_admission_reserves_prompt_and_output(facts: dict[str, Any], count: int, waves: int) -> None:
    """Ten requests fill the budget when grown; of twelve, whose prompts alone would fit, two have to wait."""
    case = facts["capacity_model"]["over_admission"]
    jobs = [
        {
            "id": f"r{i}",
            "arrival_tick": 0,
            "prompt_tokens": case["prompt_tokens"],
            "output_tokens": case["output_tokens"],
        }
        for i in range(count)
    ]
    budget, per_token = case["budget_bytes"], case["kv_bytes_per_token"]
    assert count * case["prompt_tokens"] * per_token <= budget
    out = im.simulate_ticks(jobs, "continuous", max_batch=16, kv_budget_bytes=budget, kv_bytes_per_token=per_token)
    assert out.peak_kv_bytes <= budget
    assert out.total_ticks == waves * case["output_tokens"]
    assert not out.rejected


def test_two_identical_simulations_are_identical(a100: im.Deployment) -> None:
    assert im.simulate_ticks(traced(), kv_budget_bytes=2**40, kv_bytes_per_token=1) == im.simulate_ticks(
        traced(), kv_budget_bytes=2**40, kv_bytes_per_token=1
    )
    load = im.Workload.open_loop(rate_per_s=3, requests=200, prompt_tokens=700, output_tokens=90)
    first, second = (im.simulate(a100, load, seed=5) for _ in range(2))
    assert first.requests.equals(second.requests)
    assert first.server.equals(second.server)
    assert first.id == second.id
    assert im.simulate(a100, load, seed=6).id != first.id


# ---------------------------------------------------------------- the benchmark
def test_roofline_of_the_a100(a100: im.Deployment, facts: dict[str, Any]) -> None:
    known = facts["benchmark"]
    roof = im.roofline(a100, context_tokens=1000)
    for batch, tok_per_s in known["curve_1k_sxm"]:
        assert roof.decode_tok_per_s(batch) == pytest.approx(tok_per_s, rel=0.005)
    assert roof.half_saturation_batch == pytest.approx(known["half_saturation_batch_1k"], rel=0.005)
    assert roof.throughput_asymptote_tok_per_s == pytest.approx(known["throughput_asymptote_1k_sxm"], rel=0.005)
    assert roof.intensity_asymptote_flops_per_byte == pytest.approx(known["intensity_asymptote_1k"], rel=0.005)
    assert roof.intensity_asymptote_flops_per_byte < roof.ridge_flops_per_byte
    assert roof.knee_batch is None
    assert roof.compute_roof_tok_per_s == pytest.approx(19_000, rel=0.005)
    assert roof.prefill_floor_s(1024) == pytest.approx(known["prefill_floor_s_1k"], rel=0.005)
    assert roof.share_of_ceiling(known["batch1_measured_tok_per_s"]) == pytest.approx(0.710, abs=0.0005)


def test_roofline_of_the_pcie_card(facts: dict[str, Any]) -> None:
    dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-pcie-80gb"))
    roof = im.roofline(dep, context_tokens=1000)
    assert roof.ridge_flops_per_byte == pytest.approx(facts["benchmark"]["ridge_flops_per_byte_pcie"], rel=1e-9)
    assert roof.knee_batch_naive == pytest.approx(161.2, rel=0.002)
    for batch, tok_per_s in facts["benchmark"]["curve_1k_pcie"]:
        assert roof.decode_tok_per_s(batch) == pytest.approx(tok_per_s, rel=0.005)


def test_measured_pool_is_consistent_and_predicted(a100: im.Deployment, facts: dict[str, Any]) -> None:
    pool = facts["benchmark"]["kv_pool_measured"]
    mem = im.memory(a100)
    assert mem.kv_bytes_per_token == facts["benchmark"]["model"]["kv_bytes_per_token"]
    assert pool["tokens"] == pool["blocks"] * pool["block_size"]
    assert pool["gib"] * 2**30 / mem.kv_bytes_per_token == pytest.approx(pool["tokens"], rel=1e-4)
    assert mem.kv_cache_tokens == pytest.approx(pool["tokens"], rel=0.01)
    assert mem.num_gpu_blocks == pytest.approx(pool["blocks"], rel=0.01)
    assert mem.kv_pool_bytes / 2**30 == pytest.approx(pool["gib"], rel=0.01)


def test_the_documents_utilisation_of_90_percent_could_not_hold_the_measured_pool(facts: dict[str, Any]) -> None:
    dep = im.Deployment(
        model=im.model("Qwen/Qwen3-8B"),
        chip=im.chip("a100-sxm4-80gb"),
        engine_version="0.26.0",
        flags={"gpu_memory_utilization": 0.9},
    )
    total, weights = dep.chip.total_memory_bytes / 2**30, im.memory(dep).weight_bytes / 2**30
    assert total * 0.9 - weights < facts["benchmark"]["kv_pool_measured"]["gib"] < total * 0.92 - weights


@pytest.fixture
def sweep(facts: dict[str, Any], tmp_path: Path) -> list[im.Run]:
    rows = facts["benchmark"]["sweep_measured"]
    path = tmp_path / "sweep.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[-1]))
        writer.writeheader()
        writer.writerows(rows)
    return im.load(path)


def test_sweep_goodput_gap_and_knee(sweep: list[im.Run], facts: dict[str, Any]) -> None:
    from inferometer.records.metrics import ttft_knee

    known = facts["benchmark"]["goodput"]
    good = im.sweep_goodput(sweep, ttft_s=0.5, tpot_s=0.05)
    assert good.p99 is not None
    assert good.p50 is not None
    assert (good.p99.concurrency, good.p99.output_tok_per_s) == (8, known["at_p99"]["tok_per_s"])
    assert (good.p50.concurrency, good.p50.output_tok_per_s) == (32, known["at_p50"]["tok_per_s"])
    assert good.raw_max.output_tok_per_s == known["raw_max"]
    gaps = [known["raw_max"] / good.p50.output_tok_per_s, known["raw_max"] / good.p99.output_tok_per_s]
    assert gaps == [pytest.approx(gap, abs=0.03) for gap in known["gap"]]
    assert ttft_knee(sweep) == facts["benchmark"]["ttft_knee"]["concurrency"]


def test_littles_law_of_the_measured_sweep(sweep: list[im.Run], facts: dict[str, Any]) -> None:
    for run, row in zip(sweep, facts["benchmark"]["sweep_measured"], strict=True):
        law = run.summary().littles_law
        assert law is not None
        assert math.isclose(law * row["concurrency"], row["littles_law_concurrency"], rel_tol=1e-9)
