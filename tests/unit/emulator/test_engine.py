"""The live engine gives the simulator's times to the tick, and lets requests go that nobody waits for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferometer as im
from inferometer.emulator.options import Options
from inferometer.emulator.server import live_rules
from inferometer.sim.policies import POLICIES, run_kernel
from inferometer.sim.rules import RECORD_S, Rules
from inferometer.sim.simulate import fitting_memory
from inferometer.steptime.costs import NO_WINDOW, StepCosts, sheet_costs
from live_engine import Bench, tiny_costs


def compare(rules: Rules, costs: StepCosts, arrive: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> Bench:
    """The live engine beside the compiled core, on the same arrivals."""
    bench = Bench(rules, costs)
    for key, row in enumerate(zip(arrive, prompt, output, strict=True)):
        tick, p, o = map(int, row)
        bench.at(tick, key, p, o)
    bench.clock.run()
    asked = np.stack([prompt, output, np.zeros_like(prompt)]).astype(np.int64)
    trace = run_kernel(POLICIES["vllm-v1"], rules, costs, arrive, asked, token_times=True)
    calls = [bench.calls[key] for key in range(len(arrive))]
    assert [c.admitted for c in calls] == trace.admitted.tolist()
    assert [c.first for c in calls] == trace.first.tolist()
    assert [c.last for c in calls] == trace.last.tolist()
    assert [c.preemptions for c in calls] == trace.preempted.tolist()
    assert [t for c in calls for t in c.tokens] == trace.token_ticks.tolist()
    assert (bench.scheduler.steps, bench.scheduler.preemptions) == (trace.steps, trace.preemptions)
    return bench


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32),
    seqs=st.integers(1, 8),
    budget=st.integers(8, 96),
    size=st.sampled_from([1, 4, 16]),
    slack=st.sampled_from([1, 1, 2, 8]),
    asynchronous=st.booleans(),
    threshold=st.sampled_from([0, 0, 5]),
    windows=st.sampled_from([(NO_WINDOW,), (64, NO_WINDOW)]),
)
def test_equals_the_core_to_the_tick(
    seed: int,
    seqs: int,
    budget: int,
    size: int,
    slack: int,
    asynchronous: bool,
    threshold: int,
    windows: tuple[int, ...],
):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    prompt, output = rng.integers(1, 100, n), rng.integers(1, 60, n)
    rules = Rules(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        blocks=slack * -(-160 // size),
        block_size=size,
        async_scheduling=asynchronous,
        long_prefill_token_threshold=threshold,
        uncapped_lone_prefill=bool(threshold and seed % 2),
    )
    gaps = rng.exponential(3e-2, n) * (rng.random(n) < 0.7)
    arrive = (np.cumsum(gaps) / RECORD_S).astype(np.int64)
    compare(rules, tiny_costs(seqs, budget, windows), arrive, prompt, output)


def test_the_pressure_above_is_real():
    rng = np.random.default_rng(1)
    rules = Rules(max_num_seqs=8, max_num_batched_tokens=64, blocks=10, block_size=16)
    arrive = np.zeros(30, np.int64)
    bench = compare(rules, tiny_costs(8, 64), arrive, rng.integers(1, 100, 30), rng.integers(1, 60, 30))
    assert bench.scheduler.preemptions > 5


def test_equals_im_simulate():
    dep = im.load_study("a100-qwen3-8b").base.deployment
    load = im.Workload.open_loop(rate_per_s=6, requests=120, prompt_tokens=700, output_tokens=60)
    run = im.simulate(dep, load, token_times=True)
    bench = Bench(live_rules(Options(deployment=dep), fitting_memory(dep)), sheet_costs(dep))
    for key, sent in enumerate(run.requests["sent_s"]):
        bench.at(round(sent / RECORD_S), key, 700, 60)
    bench.clock.run()
    calls = [bench.calls[key] for key in range(120)]
    for column, name in (("admitted_s", "admitted"), ("first_token_s", "first"), ("last_token_s", "last")):
        assert [getattr(c, name) * RECORD_S for c in calls] == run.requests[column].to_list()
    assert run.token_times is not None
    assert [t * RECORD_S for c in calls for t in c.tokens] == run.token_times.times_s.tolist()


def test_tokens_are_written_in_order_and_ended_once():
    bench = Bench(Rules(max_num_seqs=4, max_num_batched_tokens=32, blocks=40), tiny_costs(4, 32))
    bench.at(0, 0, 50, 3)
    bench.clock.run()
    assert bench.sinks[0].written == [b"0", b"1", b"2!"]
    assert bench.sinks[0].ended is bench.calls[0]


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("when", ["before the engine sees it", "queued", "prefill", "decode"])
def test_an_aborted_request_leaves_nothing_behind(asynchronous: bool, when: str):
    rules = Rules(max_num_seqs=2, max_num_batched_tokens=16, blocks=40, async_scheduling=asynchronous)
    bench = Bench(rules, tiny_costs(2, 16))
    second = round(1 / RECORD_S)
    bench.at(0, 0, 40, 200)
    bench.at(0, 1, 40, 200)
    bench.at(1, 2, 40, 10)
    victim, instant = {
        "before the engine sees it": (0, 0),
        "queued": (2, second // 1000),
        "prefill": (0, second // 1000),
        "decode": (0, second // 20),
    }[when]
    bench.abort_at(instant, victim)
    bench.clock.run()
    kept = [key for key in range(3) if key != victim]
    assert bench.sinks[victim].ended is None
    assert all(bench.sinks[key].ended for key in kept)
    assert bench.scheduler.free == rules.blocks
    assert (bench.scheduler.running, bench.scheduler.queued) == ([], 0)
    assert bench.meter.reasons == {"abort": 1, "length": 2}
    if when == "decode":
        assert 0 < len(bench.calls[0].tokens) < 200
    else:
        assert bench.calls[victim].tokens == []


def test_abort_after_the_end_counts_for_nothing():
    bench = Bench(Rules(max_num_seqs=2, max_num_batched_tokens=16, blocks=40), tiny_costs(2, 16))
    bench.at(0, 0, 4, 2)
    bench.clock.run()
    bench.engine.abort(bench.calls[0])
    assert bench.meter.reasons == {"length": 1}


def test_histograms_hold_what_was_simulated():
    rng = np.random.default_rng(3)
    rules = Rules(max_num_seqs=4, max_num_batched_tokens=64, blocks=10, block_size=16)
    arrive = (np.cumsum(rng.exponential(0.002, 25)) / RECORD_S).astype(np.int64)
    bench = compare(rules, tiny_costs(4, 64), arrive, rng.integers(1, 100, 25), rng.integers(1, 40, 25))
    calls, meter = list(bench.calls.values()), bench.meter
    gaps = [(b - a) * RECORD_S for c in calls for a, b in zip(c.tokens, c.tokens[1:], strict=False)]
    assert meter.itl.count == len(gaps)
    assert math.isclose(meter.itl.total, sum(gaps), rel_tol=1e-9)
    assert [sum(g <= bound for g in gaps) for bound in meter.itl.bounds] == np.cumsum(meter.itl.counts)[:-1].tolist()
    for histogram, values in (
        (meter.ttft, [(c.first - c.arrival) * RECORD_S for c in calls]),
        (meter.e2e, [(c.last - c.arrival) * RECORD_S for c in calls]),
        (meter.queue, [(c.admitted - c.arrival) * RECORD_S for c in calls]),
        (meter.prompt, [c.prompt for c in calls]),
        (meter.generation, [c.output for c in calls]),
        (meter.preempted, [c.preemptions for c in calls]),
    ):
        assert histogram.count == len(values)
        assert math.isclose(histogram.total, sum(values), rel_tol=1e-9, abs_tol=1e-12)
    assert meter.prompt_tokens == sum(c.prompt for c in calls)
    assert meter.generation_tokens == sum(c.output for c in calls)
    assert meter.iteration.total == meter.prompt_tokens + meter.generation_tokens
    assert meter.preemptions == bench.scheduler.preemptions > 0


def test_the_next_step_starts_when_a_late_one_should_have_ended():
    bench = Bench(Rules(max_num_seqs=2, max_num_batched_tokens=16, blocks=40), tiny_costs(2, 16))
    bench.at(0, 0, 4, 5)
    bench.clock.run()
    on_time = bench.calls[0].tokens
    late = Bench(Rules(max_num_seqs=2, max_num_batched_tokens=16, blocks=40), tiny_costs(2, 16))
    at = late.clock.at
    late.clock.at = lambda subticks, callback: at(subticks + (1 << 47), callback)  # type: ignore[method-assign]
    late.at(0, 0, 4, 5)
    late.clock.run()
    assert late.calls[0].tokens == on_time


def test_a_pool_of_several_kinds_of_blocks_holds_the_longest_request():
    dep = im.Deployment(model=im.model("google/gemma-3-27b"), chip=im.chip("a100-sxm4-80gb"))
    found = fitting_memory(dep)
    rules = live_rules(Options(deployment=dep), found)
    assert rules.blocks * rules.block_size >= found.max_model_len
    full = im.load_study("a100-qwen3-8b").base.deployment
    assert live_rules(Options(deployment=full), fitting_memory(full)).blocks == fitting_memory(full).num_gpu_blocks - 1
