from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import inferometer as im
from inferometer.errors import DoesNotFitError, UnknownNameError
from inferometer.records.run import REQUEST_SCHEMA, SERVER_SCHEMA
from inferometer.steptime.costs import sheet_costs


def dep(model: str = "Qwen/Qwen3-8B", chip: str = "a100-sxm4-80gb", **kwargs: object) -> im.Deployment:
    return im.Deployment(model=im.model(model), chip=im.chip(chip), **kwargs)


def closed(**kwargs: object) -> im.Workload:
    return im.Workload.closed_loop(
        **{"concurrency": 4, "requests": 20, "prompt_tokens": 300, "output_tokens": 20, **kwargs}
    )


def test_a_run_has_the_contract_columns_and_says_what_it_was() -> None:
    run = im.simulate(dep(), closed())
    assert dict(run.requests.schema) == REQUEST_SCHEMA
    assert {name: run.server.schema[name] for name in SERVER_SCHEMA} == SERVER_SCHEMA
    assert run.meta.kind == "simulated"
    assert (run.meta.policy, run.meta.concurrency, run.meta.model) == ("vllm-v1", 4, "Qwen/Qwen3-8B")
    assert run.meta.deployment["flags"]["max_num_batched_tokens"] == 2048
    assert run.requests["replica"].unique().to_list() == [0]


def test_one_request_alone_costs_its_steps() -> None:
    d = dep(flags={"max_num_batched_tokens": 2048})
    costs = sheet_costs(d)
    run = im.simulate(d, closed(concurrency=1, requests=1, output_tokens=3))
    prefill = costs.prefill_step_s(300)
    decodes = costs.decode_step_s(1, 301) + costs.decode_step_s(1, 302)
    row = run.requests.row(0, named=True)
    assert row["first_token_s"] == pytest.approx(prefill, abs=1e-11)
    assert row["last_token_s"] == pytest.approx(prefill + decodes, abs=1e-11)
    assert row["end_s"] == row["last_token_s"]


def test_a_prompt_over_the_budget_is_computed_in_chunks() -> None:
    d = dep(flags={"max_num_batched_tokens": 512, "max_num_seqs": 64})
    costs = sheet_costs(d)
    run = im.simulate(d, closed(concurrency=1, requests=1, prompt_tokens=1200, output_tokens=1))
    chunks = [(512, 0), (512, 512), (176, 1024)]
    sampled_once = costs.rows[1] - costs.rows[0]
    expected = sum(costs.prefill_step_s(n, s) for n, s in chunks) - 2 * sampled_once / 2**54
    assert run.requests["first_token_s"][0] == pytest.approx(expected, abs=1e-11)


def test_cached_tokens_are_skipped_in_prefill() -> None:
    cold, warm = (im.simulate(dep(), closed(prompt_tokens=2000, cached_tokens=n)).summary() for n in (0, 1500))
    assert warm.ttft_s.mean < 0.6 * cold.ttft_s.mean


def test_requests_without_output_finish_after_prefill_without_a_first_token() -> None:
    load = im.Workload.from_requests(arrival_s=[0, 0, 1], prompt_tokens=[100, 100, 50], output_tokens=[0, 1, 0])
    requests = im.simulate(dep(), load).requests
    assert requests["first_token_s"].is_null().to_list() == [True, False, True]
    assert requests["last_token_s"].is_null().to_list() == [True, False, True]
    assert requests["end_s"].is_null().sum() == 0
    assert requests["end_s"][0] == requests["end_s"][1], "same prefill step"


def test_token_times_are_first_to_last() -> None:
    load = im.Workload.open_loop(rate_per_s=5, requests=50, prompt_tokens=200, output_tokens=17)
    run = im.simulate(dep(), load, token_times=True)
    times = run.token_times
    assert times is not None
    grid = times.times_s.reshape(50, 17)
    assert (np.diff(grid, axis=1) > 0).all()
    assert grid[:, 0].tolist() == run.requests["first_token_s"].to_list()
    assert grid[:, -1].tolist() == run.requests["last_token_s"].to_list()
    assert run.summary().itl_s.n == 50 * 16


def test_too_long_and_too_large_requests_are_refused_and_block_nobody() -> None:
    load = im.Workload.from_requests(
        arrival_s=[0.0, 0.1, 0.2, 0.3], prompt_tokens=[100, 9000, 3000, 100], output_tokens=[5, 5, 5, 5]
    )
    run = im.simulate(dep(flags={"max_model_len": 8192, "num_gpu_blocks_override": 151}), load)
    errors = run.requests["error"].to_list()
    assert errors[0] is None
    assert errors[3] is None
    assert "max_model_len 8192" in errors[1]
    assert "KV pool of 151 blocks" in errors[2]
    summary = run.summary()
    assert (summary.requests, summary.failed) == (4, 2)


def test_a_model_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(DoesNotFitError, match=r"does not fit.*GiB short"):
        im.simulate(dep("meta-llama/Llama-3.1-70B"), closed())


def test_unknown_policy_names_the_known() -> None:
    with pytest.raises(UnknownNameError, match="vllm-v1"):
        im.simulate(dep(), closed(), policy="vllm-v11")


def test_data_parallel_replicas_share_the_requests() -> None:
    load = im.Workload.open_loop(rate_per_s=20, requests=101, prompt_tokens=400, output_tokens=30)
    run = im.simulate(dep(data_parallel_size=2), load, token_times=True)
    assert run.requests["replica"].value_counts().sort("replica")["count"].to_list() == [51, 50]
    assert run.requests["end_s"].is_null().sum() == 0
    assert set(run.server["replica"].unique()) == {0, 1}
    one = im.simulate(dep(), load)
    assert run.summary().tpot_s.mean < one.summary().tpot_s.mean
    times = run.token_times
    assert times is not None
    assert times.times_s[times.offsets[1:] - 1].tolist() == run.requests["last_token_s"].to_list()


def test_a_closed_loop_divides_its_users_among_replicas() -> None:
    run = im.simulate(dep(data_parallel_size=2), closed(concurrency=5, requests=40))
    in_flight = run.server.group_by("replica").agg(pl.col("running").max()).sort("replica")["running"].to_list()
    assert in_flight == [3, 2]
    few = im.simulate(dep(data_parallel_size=4), closed(concurrency=2, requests=10))
    assert few.requests["replica"].n_unique() == 2


def test_a_closed_loop_keeps_its_concurrency() -> None:
    run = im.simulate(dep(), closed(concurrency=7, requests=70))
    starts, ends = run.requests["sent_s"].to_numpy(), run.requests["end_s"].to_numpy()
    changes = np.concatenate([np.stack([starts, np.ones(70)], 1), np.stack([ends, -np.ones(70)], 1)])
    changes = changes[np.lexsort((changes[:, 1], changes[:, 0]))]
    assert changes[:, 1].cumsum().max() == 7


def test_a_pool_too_small_for_all_preempts_and_still_ends() -> None:
    d = dep(flags={"num_gpu_blocks_override": 100, "scheduler_reserve_full_isl": False})
    run = im.simulate(d, closed(concurrency=8, requests=40, prompt_tokens=200, output_tokens=400))
    assert run.meta.counters["preemptions"] > 0
    assert run.requests["preemptions"].sum() == run.meta.counters["preemptions"]
    assert run.requests["end_s"].is_null().sum() == 0
    assert run.server["kv_usage"].max() <= 1
    roomy = im.simulate(dep(), closed(concurrency=8, requests=40, prompt_tokens=200, output_tokens=400))
    assert roomy.meta.counters["preemptions"] == 0
    assert roomy.summary().output_tok_per_s > run.summary().output_tok_per_s


def test_static_batches_end_together_on_seconds_too() -> None:
    outputs = {"uniform": {"low": 10, "high": 400}}
    load = im.Workload.closed_loop(concurrency=8, requests=32, prompt_tokens=256, output_tokens=outputs)
    ends = {p: im.simulate(dep(), load, policy=p).requests["end_s"].n_unique() for p in ("static", "continuous")}
    assert ends["static"] == 4
    assert ends["continuous"] > 24


def test_continuous_beats_static_on_mixed_outputs() -> None:
    outputs = {"lognormal": {"mean": 200, "sigma": 1}}
    load = im.Workload.closed_loop(concurrency=16, requests=320, prompt_tokens=64, output_tokens=outputs)
    slow, fast = (im.simulate(dep(), load, policy=p).summary() for p in ("static", "continuous"))
    assert fast.output_tok_per_s > 2 * slow.output_tok_per_s
    assert fast.e2e_s.p50 < slow.e2e_s.p50


def test_the_async_lag_delays_an_arrival_by_a_step() -> None:
    load = im.Workload.from_requests(arrival_s=[0.0, 0.5], prompt_tokens=[100, 100], output_tokens=[200, 2])
    waits = [
        im.simulate(dep(flags={"async_scheduling": lag}), load).requests["admitted_s"][1] - 0.5 for lag in (False, True)
    ]
    step = sheet_costs(dep()).decode_step_s(1, 150)
    assert 0 <= waits[0] <= step
    assert waits[1] - waits[0] == pytest.approx(step, rel=0.01)


def test_arrivals_beyond_the_clock_are_refused() -> None:
    with pytest.raises(im.InputError, match="arrival_s"):
        im.simulate(dep(), im.Workload.from_requests(arrival_s=[1e12], prompt_tokens=[1], output_tokens=[1]))


@pytest.mark.parametrize("policy", ["vllm-v1", "static", "continuous"])
def test_server_samples_are_even_and_see_the_idle_time(policy: str) -> None:
    load = im.Workload.open_loop(rate_per_s=0.2, requests=200, prompt_tokens=300, output_tokens=40)
    run = im.simulate(dep(), load, policy=policy)
    times = run.server["time_s"].to_numpy()
    gaps = np.diff(times)
    assert np.allclose(gaps, gaps[0])
    assert 1000 < len(times) < 2048
    served_s = (run.requests["end_s"] - run.requests["admitted_s"]).sum()
    assert run.server["running"].mean() == pytest.approx(served_s / times[-1], rel=0.1)


def test_costs_of_a_smaller_engine_are_refused() -> None:
    """Their tables would be read beyond the end."""
    for flags, table in (({"max_num_seqs": 512}, "costs.decode"), ({"max_num_batched_tokens": 4096}, "costs.mixed")):
        with pytest.raises(im.InputError, match=table):
            im.simulate(dep(flags=flags), closed(), costs=sheet_costs(dep()))


def test_a_request_of_the_longest_length_is_served() -> None:
    for model, chip, flags in (
        ("Qwen/Qwen3-8B", "a100-sxm4-80gb", {"kv_cache_memory_bytes": "1 GiB"}),
        ("meta-llama/Llama-3.1-8B", "rtx-4090", {}),
        ("google/gemma-3-27b", "h100-sxm-80gb", {}),
    ):
        d = dep(model, chip, flags=flags)
        longest = im.memory(d).max_model_len
        load = im.Workload.from_requests([0.0], [longest - 10], [10])
        assert im.simulate(d, load).summary().failed == 0, model


@pytest.mark.parametrize("model", ["google/gemma-3-27b", "openai/gpt-oss-120b", "Qwen/Qwen3-Next-80B-A3B"])
def test_long_requests_among_short_ones_are_served_where_blocks_are_of_several_kinds(model: str) -> None:
    d = dep(model, "h200-sxm-141gb", tensor_parallel_size=2)
    prompts = [100] * 99 + [40_000]
    run = im.simulate(d, im.Workload.from_requests([0.0] * 100, prompts, [10] * 100))
    assert run.summary().failed == 0
    assert run.server["kv_usage"].max() <= 1


def test_pauses_beyond_the_clock_are_refused() -> None:
    with pytest.raises(im.InputError, match="think_time_s"):
        im.simulate(dep(), closed(concurrency=1, requests=100, think_time_s=1e5))


def test_a_long_padded_prefill_is_counted_in_full() -> None:
    """400 prompts padded to 40,000 tokens take minutes: more than one 64-bit sum holds."""
    d = dep(chip="h100-sxm-80gb", flags={"max_num_seqs": 400})
    load = im.Workload.from_requests([0.0] * 400, [40_000] + [100] * 399, [1] * 400)
    end = im.simulate(d, load, policy="static").requests["end_s"].max()
    costs = sheet_costs(d)
    passes = 400 * 40_000 / (len(costs.mixed) - 1)
    assert end > passes * costs.mixed[-1] / 2**54
    assert im.simulate(d, load, policy="continuous").summary().failed == 0


def test_prompts_whose_prefill_no_clock_could_count_are_refused() -> None:
    model = im.model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    d = im.Deployment(model=model, chip=im.chip("mi355x"), tensor_parallel_size=4)
    load = im.Workload.from_requests([0.0], [6_000_000], [1])
    with pytest.raises(im.InputError, match="prompt_tokens"):
        im.simulate(d, load, policy="continuous")
    assert im.simulate(d, load).requests["first_token_s"][0] > 100


def test_refused_requests_of_a_closed_loop_have_a_time() -> None:
    load = im.Workload.closed_loop(concurrency=2, prompt_tokens=[100, 9000] * 5, output_tokens=[5] * 10)
    requests = im.simulate(dep(flags={"max_model_len": 8192}), load).requests
    assert requests["error"].is_not_null().sum() == 5
    assert requests["sent_s"].is_null().sum() == 0
    assert requests["end_s"].is_null().sum() == 0
    nothing = im.simulate(dep(flags={"max_model_len": 64}), load)
    assert nothing.summary().failed == 10
    assert nothing.summary().completed == 0


def test_a_lone_prefill_is_not_capped_by_the_threshold_from_0_32() -> None:
    flags = {"long_prefill_token_threshold": 100, "max_num_batched_tokens": 2048}
    steps = {
        version: im.simulate(
            dep(engine_version=version, flags=flags), closed(concurrency=1, requests=1, prompt_tokens=1900)
        )
        for version in ("0.26.0", "0.32.0")
    }
    assert steps["0.26.0"].meta.counters["steps"] == 19 + 19
    assert steps["0.32.0"].meta.counters["steps"] == 2 + 19


def test_a_run_names_its_step_costs_and_what_it_leaves_out() -> None:
    notes = im.simulate(dep(pipeline_parallel_size=2, data_parallel_size=2), closed()).meta.notes
    assert "specification sheet" in notes[0]
    assert any("pipeline" in n for n in notes)
    assert not any("experts" in n for n in notes)
    mixture = im.simulate(dep("Qwen/Qwen3-30B-A3B", data_parallel_size=2), closed()).meta.notes
    assert any("experts" in n for n in mixture)


@pytest.mark.parametrize("policy", ["vllm-v1", "static", "continuous"])
def test_no_policy_crawls_on_a_long_queue(policy: str) -> None:
    """Every request of a burst of 20,000 is served; a scan of the whole queue at every step would not end here."""
    d = dep(flags={"num_gpu_blocks_override": 2001, "max_model_len": 8192})
    load = im.Workload.open_loop(rate_per_s=1e6, requests=20_000, prompt_tokens=500, output_tokens=20)
    assert im.simulate(d, load, policy=policy).summary().completed == 20_000
