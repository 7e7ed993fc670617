"""Explanations of runs that were simulated: nothing may be left unexplained, and each effect is what was changed."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring import explanation as ex
from inferometer.scoring.counterfactuals import ALL, PROMPTS, Counterfactuals, measured_pool, real_efficiencies
from inferometer.scoring.loads import hit_rate, idle_s, rebuild
from inferometer.steptime.costs import sheet_costs
from shared import shared

DEP = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
CLOSED = im.Workload.closed_loop(8, 40, {"uniform": {"low": 100, "high": 900}}, {"uniform": {"low": 20, "high": 60}})
OPEN = im.Workload.open_loop(3.0, 40, {"uniform": {"low": 100, "high": 900}}, {"uniform": {"low": 20, "high": 60}})


def with_flags(**flags: Any) -> im.Deployment:
    return msgspec.structs.replace(DEP, flags=flags)


def changed(run: Run, *columns: pl.Expr, **meta: Any) -> Run:
    """A copy with other columns or other meta."""
    return make_run(
        msgspec.structs.replace(run.meta, id="", **meta),
        run.requests.with_columns(*columns),
        run.server,
        run.token_times,
    )


@pytest.fixture(scope="module")
def simulated() -> Run:
    return im.simulate(DEP, CLOSED, seed=3, token_times=True)


@pytest.mark.parametrize(
    ("dep", "workload"),
    [
        (DEP, CLOSED),
        (DEP, OPEN),
        (DEP, im.Workload.closed_loop(8, 40, 500, 40, think_time_s=0.2)),
        (DEP, im.Workload.closed_loop(4, 16, 500, 40, cached_tokens=320)),
        (with_flags(max_num_seqs=4), CLOSED),
        (with_flags(num_gpu_blocks_override=120), CLOSED),
        (with_flags(max_num_batched_tokens=256, async_scheduling=False, enforce_eager=True), CLOSED),
        (msgspec.structs.replace(DEP, data_parallel_size=2), CLOSED),
        (msgspec.structs.replace(DEP, tensor_parallel_size=2), OPEN),
        (im.Deployment(model=im.model("Qwen/Qwen3-30B-A3B"), chip=im.chip("h100")), CLOSED),
    ],
)
def test_nothing_is_left_of_a_run_that_was_simulated(dep: im.Deployment, workload: im.Workload) -> None:
    found = im.explain(dep, im.simulate(dep, workload, seed=3, token_times=True))
    assert found.unexplained_pct == pytest.approx(0, abs=1e-6)
    assert [effect for effect, _ in found] == list(ex.EFFECTS)


def test_changes_and_seconds_add_up(simulated: Run) -> None:
    found = im.explain(DEP, simulated)
    first, last = found.steps[0], found.steps[-1]
    assert first.tok_per_s + sum(step.change for step in found.steps) == pytest.approx(last.tok_per_s, rel=1e-12)
    assert last.tok_per_s == simulated.summary().output_tok_per_s
    assert found.change_s(*ex.EFFECTS) == pytest.approx(8 / last.tok_per_s, rel=1e-12)
    for before, after in pairwise(found.steps):
        assert after.change == after.tok_per_s - before.tok_per_s


def test_the_first_steps_are_the_roofline_in_closed_form() -> None:
    work = im.Workload.closed_loop(64, 64, 1024, 64)
    found = im.explain(DEP, im.simulate(DEP, work))
    # Qwen3-8B: 8,190,735,360 parameters of 2 bytes; 147,456 bytes of KV cache a token; 2,039 GB/s
    weights, kv, rate = 2 * 8_190_735_360, 147_456, 2.039e12
    want = [64 * rate / (weights + 64 * kv * context) for context in (0, 1024, 1024 + 32)]
    assert [found.steps[i].tok_per_s for i in range(3)] == pytest.approx(want, rel=1e-6)
    # the embedding table of 151,936 x 4,096 is not read
    assert found.step(ex.DECODE).tok_per_s == pytest.approx(
        64 * rate / (weights - 2 * 151_936 * 4096 + 64 * kv * 1056), rel=1e-3
    )


def test_everything_on_is_the_step_model_itself(simulated: Run) -> None:
    load = rebuild(simulated, simulated.summary(), None, 0)
    servers = Counterfactuals(DEP, load, real_efficiencies(DEP, None), simulated)
    ours, theirs = servers.costs(DEP, *ALL), sheet_costs(DEP)
    for name in ("decode", "mixed", "rows", "decode_kv", "mixed_kv", "pair", "chunk_kv"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.sequence == theirs.sequence


def test_prompts_at_peak_cost_their_flops_and_free_ones_nothing(simulated: Run) -> None:
    load = rebuild(simulated, simulated.summary(), None, 0)
    servers = Counterfactuals(DEP, load, real_efficiencies(DEP, None), simulated)
    free, priced = servers.costs(servers.unlimited), servers.costs(servers.unlimited, PROMPTS)
    assert free.prefill_step_s(1000) == pytest.approx(free.decode_step_s(1, 0), rel=1e-6)
    # 2 FLOPs for each of the 6.95e9 parameters of the layers, and attention: 36 x 4 x 4096 x 1000 x 1001 / 2
    flops = 2 * (8_190_735_360 - 2 * 151_936 * 4096) * 1000 + 36 * 4 * 4096 * 1000 * 1001 / 2
    lm_head_s = 2 * 151_936 * 4096 / 2.039e12
    assert priced.prefill_step_s(1000) == pytest.approx(flops / 312e12 + lm_head_s, rel=5e-3)


def test_a_limit_on_sequences_is_found_in_queueing() -> None:
    dep = with_flags(max_num_seqs=2)
    found = im.explain(dep, im.simulate(dep, im.Workload.closed_loop(8, 40, 300, 60)))
    assert found.step(ex.QUEUEING).change < -0.5 * found.step(ex.SEQUENCE).tok_per_s
    free = im.explain(DEP, im.simulate(DEP, im.Workload.closed_loop(8, 40, 300, 60)))
    assert abs(free.step(ex.QUEUEING).change) < 1e-6 * free.measured_tok_per_s


def test_prefix_hits_gain_and_are_found_in_counters_too() -> None:
    work = im.Workload.closed_loop(4, 16, 1000, 20, cached_tokens=800)
    run = im.simulate(DEP, work)
    known = im.explain(DEP, run)
    assert known.step(ex.HITS).change > 0.1 * known.measured_tok_per_s
    assert known.prefix_hit_rate == pytest.approx(0.8)
    hidden = changed(run, pl.lit(None, dtype=pl.Int64).alias("cached_tokens"))
    unknown = im.explain(DEP, hidden)
    assert unknown.prefix_hit_rate is None
    assert unknown.unexplained_pct > 10
    assert any("hit rate" in note for note in unknown.notes)
    counted = changed(hidden, counters={"prefix_cache_queries": 16000.0, "prefix_cache_hits": 12800.0})
    assert im.explain(DEP, counted).unexplained_pct == pytest.approx(0, abs=1e-6)


def test_a_slow_client_is_told_from_the_server(simulated: Run) -> None:
    """The same requests with pauses that nobody asked for: 0.2 s after each answer."""
    slow = im.simulate(DEP, msgspec.structs.replace(CLOSED, think_time_s=0.2), seed=3)
    workload = {**slow.meta.workload, "think_time_s": 0.0}
    run = changed(slow, workload=workload)
    assert idle_s(run, 8) == pytest.approx(0.2, rel=1e-6)
    found = im.explain(DEP, run)
    assert found.step(ex.CLIENT).change < -0.05 * found.measured_tok_per_s
    assert abs(found.unexplained_pct) < 1e-6


def test_an_open_loop_sent_late_is_the_clients() -> None:
    run = im.simulate(DEP, OPEN, seed=3)
    early = changed(run, (pl.col("sent_s") * 0.5).alias("scheduled_s"))
    found = im.explain(DEP, early)
    assert found.step(ex.CLIENT).change < 0
    assert found.unexplained_pct == pytest.approx(0, abs=1e-6)
    assert "late" in found.step(ex.CLIENT).note


def test_failed_requests_are_left_out_and_said_to_be(simulated: Run) -> None:
    failed = pl.when(pl.int_range(pl.len()) < 3).then(pl.lit("reset")).otherwise(None).alias("error")
    run = make_run(simulated.meta, simulated.requests.with_columns(failed))
    found = im.explain(DEP, run)
    assert any("3 of 40 requests failed" in note for note in found.notes)
    assert math.isfinite(found.unexplained_pct)


def test_runs_that_lack_something_are_explained_as_far_as_they_go(simulated: Run) -> None:
    none = pl.lit(None, dtype=pl.Float64)
    silent = make_run(
        msgspec.structs.replace(simulated.meta, partial="interrupted"),
        simulated.requests.with_columns(none.alias("first_token_s"), none.alias("last_token_s")),
    )
    found = im.explain(DEP, silent)
    assert found.measured_tpot_s is None
    assert found.hypotheses == ()
    assert any("interrupted" in note for note in found.notes)
    assert found.unexplained_pct == pytest.approx(0, abs=1e-6)


def test_a_window_is_measured_in_the_simulation_too(simulated: Run) -> None:
    sent = simulated.requests["sent_s"].sort().to_list()
    run = changed(simulated, window_s=(sent[12], sent[35]))
    found = im.explain(DEP, run)
    assert found.measured_tok_per_s > 1.05 * simulated.summary().output_tok_per_s  # type: ignore[operator]
    assert found.unexplained_pct == pytest.approx(0, abs=0.5)


def test_aggregates_alone_need_the_workload() -> None:
    stated = make_run(RunMeta(kind="imported", name="mine", concurrency=8, stated={"output_tok_per_s": 500.0}))
    with pytest.raises(InputError, match="mine: holds no requests"):
        im.explain(DEP, stated)
    found = im.explain(DEP, stated, workload=im.Workload.closed_loop(4, 16, 500, 40))
    assert found.users == 8
    assert found.measured_tok_per_s == 500.0
    assert "not known" in found.step(ex.CLIENT).note


def test_a_run_without_a_rate_is_refused_alone_and_left_out_of_a_sweep(simulated: Run) -> None:
    empty = make_run(RunMeta(kind="measured", name="metrics only"))
    with pytest.raises(InputError, match="no output token rate"):
        im.explain(DEP, empty)
    with pytest.raises(InputError, match="no output token rate"):
        im.explain_sweep(DEP, [empty])
    with pytest.raises(InputError, match="workloads"):
        im.explain_sweep(DEP, [simulated], workloads=[])
    sweep = im.explain_sweep(DEP, [empty, simulated])
    assert [point.concurrency for point in sweep] == [8]
    assert any("left out: metrics only" in note for note in sweep.notes)


def test_a_model_of_few_figures_cannot_be_priced(simulated: Run) -> None:
    few = im.Model(name="lab", weight_bytes=16_000_000_000, layers=36, kv_heads=8, head_dim=128)
    with pytest.raises(InputError, match="few figures"):
        im.explain(im.Deployment(model=few, chip=DEP.chip), simulated)


def test_a_profile_of_the_costs_that_made_the_run_explains_it() -> None:
    profile = im.Profile(
        name="slow",
        chip="a100-sxm4-80gb",
        model="m",
        engine="vllm",
        params={"weight_read": 0.5},
        stderr={"weight_read": 0.01},
    )
    run = im.simulate(DEP, CLOSED, costs=im.calibrated_costs(DEP, profile), seed=3)
    assert im.explain(DEP, run, profile=profile).unexplained_pct == pytest.approx(0, abs=1e-6)
    off = im.explain(DEP, run)
    assert off.unexplained_pct < -10
    assert any("unexplained, less" in found for found in off.findings)


def test_the_pool_that_the_log_states_is_the_one_simulated(simulated: Run) -> None:
    logged = changed(simulated, server={"kv_cache_tokens": 1600})
    assert measured_pool(DEP, logged).flags == {"num_gpu_blocks_override": 101}
    assert im.explain(DEP, logged).step(ex.QUEUEING).change < 0


def test_flags_that_the_log_states_otherwise_are_told(simulated: Run) -> None:
    found = im.explain(DEP, changed(simulated, server={"max_num_batched_tokens": 8192, "max_num_seqs": 256}))
    said = [note for note in found.notes if "served with" in note]
    assert len(said) == 1
    assert "served with max_num_batched_tokens 8192, taken instead of the study's" in said[0]
    stated = [each.value for each in found.hypotheses if each.setting == "max_num_batched_tokens" and each.stated]
    assert stated == [8192]
    assert "8,192 tokens a step" in found.step(ex.MIXED).note


def test_prefix_caching_is_as_the_server_had_it(simulated: Run) -> None:
    found = im.explain(DEP, changed(simulated, server={"prefix_caching": False}))
    assert any("served with enable_prefix_caching False" in note for note in found.notes)
    same = im.explain(DEP, changed(simulated, server={"prefix_caching": True}))
    assert not any("enable_prefix_caching" in note for note in same.notes)


def test_servers_of_two_budgets_are_each_simulated_with_theirs() -> None:
    work = im.Workload.closed_loop(16, 64, 800, 60)
    runs = [im.simulate(with_flags(max_num_batched_tokens=n), work, token_times=True) for n in (512, 4096)]
    sweep = im.explain_sweep(DEP, runs)
    assert [point.unexplained_pct for point in sweep] == pytest.approx([0, 0], abs=1e-6)
    tried = [each for each in sweep.hypotheses if each.setting == "max_num_batched_tokens"]
    assert {512, 4096} <= {each.value for each in tried}
    assert not any(each.stated for each in tried)


def test_a_real_servers_own_budget_is_tried_and_called_stated() -> None:
    folder = shared("data/cpu_engine")
    result = folder / "chunk256" / "chunk256_in512_c8.json"
    (run,) = im.load(result, metrics="auto", server_log=folder / "chunk256.server.log")
    found = im.explain(cpu_engine(), run)
    tried = [each for each in found.hypotheses if each.setting == "max_num_batched_tokens"]
    assert [(each.name, each.value) for each in tried if each.stated] == [("max_num_batched_tokens=256", 256)]
    assert any("served with max_num_batched_tokens 256" in note for note in found.notes)


def test_a_cache_that_was_off_had_no_hits(simulated: Run) -> None:
    hidden = changed(simulated, pl.lit(None, dtype=pl.Int64).alias("cached_tokens"), server={"prefix_caching": False})
    assert im.explain(DEP, hidden).prefix_hit_rate == 0.0


@pytest.mark.parametrize("budget", [1024, 2048, 8192])
def test_the_tails_name_the_budget_that_a_run_was_simulated_with(budget: int) -> None:
    served = with_flags(max_num_batched_tokens=budget)
    runs = [im.simulate(served, im.Workload.closed_loop(c, 4 * c, 800, 60), token_times=True) for c in (16, 32)]
    sweep = im.explain_sweep(DEP, [changed(run, deployment={}) for run in runs])  # as of a server that says nothing
    tried = {each.value: each for each in sweep.hypotheses if each.setting == "max_num_batched_tokens"}
    assert tried[budget].error == pytest.approx(0, abs=1e-9)
    assert tried[budget].supported
    assert [value for value, each in tried.items() if each.supported] == [budget]
    assert [each.stated for each in tried.values()] == [value == 2048 for value in tried]
    assert any(f"fit a token budget of {budget:,}" in found for found in sweep.findings)


def test_a_budget_that_no_tail_can_tell_is_not_told() -> None:
    run = im.simulate(DEP, im.Workload.closed_loop(1, 4, 800, 60), token_times=True)
    found = im.explain(DEP, run)
    assert all(each.supported for each in found.hypotheses if each.setting == "max_num_batched_tokens")
    assert any("do not tell a token budget" in sentence for sentence in found.findings)


def test_a_sweep_names_points_by_their_load(simulated: Run) -> None:
    sweep = im.explain_sweep(DEP, [im.simulate(DEP, OPEN, seed=3), simulated])
    assert [point.load for point in sweep] == ["3/s", "C=8"]
    assert sweep.at(8).concurrency == 8
    with pytest.raises(InputError, match="one of the points measured: 8"):
        sweep.at(9)
    assert set(sweep.to_dict()) == {"points", "hypotheses", "findings", "notes"}


def cpu_engine() -> im.Deployment:
    """A real engine on one CPU thread: its measured ceilings, and constants of no family."""
    chip = {
        "id": "cpu-1t", "name": "one thread", "memory_bytes": 24e9, "bandwidth_bytes_per_s": 35.9e9,
        "flops_per_s": {"bf16": 485e9},
    }  # fmt: skip
    flags = {"max_model_len": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "block_size": 128}
    model = im.model(str(shared("data/cpu_engine/model/config.json")))
    return im.Deployment(
        model=model, chip=im.chip(chip), engine_version="0.32.0", flags={**flags, "kv_cache_memory_bytes": 2 << 30}
    )


def test_a_real_engine_is_explained_within_ten_per_cent() -> None:
    folder = shared("data/cpu_engine")
    files = [folder / "main_clean" / f"c{n}.json" for n in (1, 2, 4, 8)] + [folder / "main_rerun" / "c32b.json"]
    sweep = im.explain_sweep(cpu_engine(), [run for file in files for run in im.load(file)])
    assert [point.concurrency for point in sweep] == [1, 2, 4, 8, 32]
    assert all(abs(point.unexplained_pct) < 10 for point in sweep)
    largest = sweep.at(32)
    # 256-token prompts for 128-token answers on a core of 485 GFLOP/s: compute, not bandwidth
    assert largest.change_s(ex.DECODE, ex.PREFILL, ex.RATES) > 0.7 * (largest.steps[-1].seconds or 0)
    assert 0 < rebuilt_idle(sweep) < 0.005


def rebuilt_idle(sweep: ex.SweepExplanation) -> float:
    """Seconds that the client left a slot empty, of the largest point, from its note."""
    return float(sweep.at(32).step(ex.CLIENT).note.split("empty ")[1].split(" ms")[0]) / 1e3


def test_the_hit_rate_of_a_server_that_counts_cached_prompt_tokens():
    counters = {"prompt_tokens": 200.0, "cached_prompt_tokens": 50.0}
    run = make_run(RunMeta(kind="measured", counters=counters))
    assert hit_rate(run, run.summary()) == 0.25
