"""The compiled schedulers equal the plain reference, bit for bit, and keep what must be kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.sim.policies import POLICIES, Trace, held_tokens, rules_for, run_kernel
from inferometer.sim.reference import POLICIES as REFERENCE
from inferometer.sim.reference import Outcome, Request
from inferometer.sim.rules import RECORD_S, Rules
from inferometer.steptime.costs import NO_WINDOW, StepCosts

MS = 1 << 44  # about a millisecond in ticks of 2**-54 s


@st.composite
def step_costs(draw: st.DrawFn, max_num_seqs: int, budget: int) -> StepCosts:
    """Rising tables of a few milliseconds with every term there, one or two kinds of attention layer."""
    whole = st.integers(0, MS)
    kinds = draw(st.sampled_from([1, 2]))
    windows = [NO_WINDOW, draw(st.integers(1, 200))][:kinds]

    def row() -> np.ndarray:
        return np.array([draw(st.integers(0, MS // 500)) for _ in range(kinds)], np.int64)

    def table(size: int) -> np.ndarray:
        return draw(whole) + draw(st.integers(0, MS // 20)) * np.arange(size, dtype=np.int64) + draw(st.integers(0, 99))

    return StepCosts(
        decode=table(max_num_seqs + 1),
        mixed=table(min(budget, 4096) + 1),
        rows=table(max_num_seqs + 1),
        sequence=draw(whole),
        window=np.array(windows, np.int64),
        decode_kv=row(),
        mixed_kv=row(),
        pair=row(),
        chunk_kv=row(),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rules, StepCosts, np.ndarray, np.ndarray]:
    """A small engine under pressure: tiny pools, tiny budgets, simultaneous arrivals, no and one-token outputs."""
    seqs = draw(st.integers(1, 8))
    budget = draw(st.integers(seqs, 96))
    n = draw(st.integers(1, 40))
    longest = draw(st.sampled_from([20, 120, 400]))
    outputs = draw(st.sampled_from([2, 60, 60]))
    block_size = draw(st.sampled_from([1, 4, 16]))
    one = (longest + outputs) // block_size + 1
    rules = Rules(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        blocks=draw(st.integers(max(1, one // 2), 3 * one)),
        block_size=block_size,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5, 40])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark_blocks=draw(st.sampled_from([0, 0, 2])),
        enable_chunked_prefill=draw(st.sampled_from([True, True, False])),
        async_scheduling=draw(st.sampled_from([True, True, False])),
        concurrency=draw(st.sampled_from([0, 0, 1, 3, 9])),
        think=draw(st.sampled_from([0, 0, 1 << 31])),
        uncapped_lone_prefill=draw(st.booleans()),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    prompt = rng.integers(1, longest, n)
    output = rng.integers(0, outputs, n)
    cached = np.where(rng.random(n) < 0.3, rng.integers(0, longest, n), 0)
    gaps = rng.exponential(draw(st.sampled_from([0.0, 1e-3, 3e-2])), n) * (rng.random(n) < 0.7)
    arrive = (np.cumsum(gaps) / RECORD_S).astype(np.int64)
    if rules.concurrency:
        arrive[:] = 0
    return rules, draw(step_costs(seqs, budget)), arrive, np.stack([prompt, output, cached]).astype(np.int64)


def both(name: str, case: tuple[Rules, StepCosts, np.ndarray, np.ndarray]) -> tuple[Rules, np.ndarray, Trace, Outcome]:
    """The compiled and the plain run of one case, without requests that could never fit."""
    rules, costs, arrive, asked = case
    policy = POLICIES[name]
    rules = rules_for(policy, rules)
    held = held_tokens(policy, asked[0], asked[1])
    fitting = -(-held // rules.block_size) <= rules.blocks
    fitting &= (held <= rules.max_num_batched_tokens) | rules.enable_chunked_prefill
    arrive, asked = arrive[fitting], np.ascontiguousarray(asked[:, fitting])
    requests = [
        Request(i, int(p), int(o), int(c), int(a)) for i, (p, o, c, a) in enumerate(zip(*asked, arrive, strict=True))
    ]
    return (
        rules,
        asked,
        run_kernel(policy, rules, costs, arrive, asked, token_times=True),
        REFERENCE[name](requests, rules, costs),
    )


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=2000)
@given(case=cases())
def test_core_equals_reference(name: str, case: tuple[Rules, StepCosts, np.ndarray, np.ndarray]) -> None:
    _, _, trace, outcome = both(name, case)
    told = outcome.requests
    assert trace.arrive[: len(told)].tolist() == [r.arrival for r in told]
    assert trace.admitted.tolist() == [r.admitted for r in told]
    assert trace.first.tolist() == [r.first for r in told]
    assert trace.last.tolist() == [r.last for r in told]
    assert trace.preempted.tolist() == [r.preemptions for r in told]
    assert trace.token_ticks.tolist() == [t for r in told for t in r.tokens]
    assert trace.samples.T.tolist() == [list(s) for s in outcome.samples]
    assert (trace.steps, trace.preemptions) == (outcome.steps, outcome.preemptions)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=200)
@given(case=cases())
def test_conservation_and_causality(name: str, case: tuple[Rules, StepCosts, np.ndarray, np.ndarray]) -> None:
    rules, asked, trace, _ = both(name, case)
    prompt, output, _ = asked
    talks = output > 0
    assert (trace.last >= 0).all(), "every request ends"
    assert (trace.first[talks] >= 0).all()
    assert (trace.first[~talks] == -1).all()
    assert (trace.arrive <= trace.admitted).all()
    assert (trace.admitted <= trace.last).all()
    assert (trace.first[talks] >= trace.admitted[talks]).all()
    assert (trace.first[talks] <= trace.last[talks]).all()
    assert len(trace.token_ticks) == output.sum()
    ends = np.cumsum(output)
    for start, end in zip(ends - output, ends, strict=True):
        assert (np.diff(trace.token_ticks[start:end]) >= 0).all()
    _, running, waiting, used, _ = trace.samples
    assert (used <= rules.blocks).all()
    assert (used >= 0).all()
    assert (running <= rules.max_num_seqs).all()
    assert (running + waiting <= len(prompt)).all()


def test_the_cases_reach_every_corner() -> None:
    """The strategy above must produce what the equality is claimed for: otherwise it proves nothing."""
    seen: Counter[str] = Counter()

    @settings(max_examples=1000, derandomize=True, database=None)
    @given(case=cases())
    def collect(case: tuple[Rules, StepCosts, np.ndarray, np.ndarray]) -> None:
        rules, asked, trace, _ = both("vllm-v1", case)
        seen["preempted"] += trace.preemptions > 0
        seen["preempted under lag"] += trace.preemptions > 0 and rules.async_scheduling
        seen["preempted twice"] += bool((trace.preempted > 1).any())
        seen["chunked"] += bool((asked[0] > rules.max_num_batched_tokens).any())
        seen["no output"] += bool((asked[1] == 0).any())
        seen["one token"] += bool((asked[1] == 1).any())
        seen["together"] += bool((np.diff(trace.arrive) == 0).any())
        seen["closed loop"] += rules.concurrency > 0
        seen["cached"] += bool((asked[2] > 0).any())

    collect()
    assert min(seen.values()) >= 20, seen


@settings(max_examples=100)
@given(case=cases())
def test_admission_is_first_come_first_served(case: tuple[Rules, StepCosts, np.ndarray, np.ndarray]) -> None:
    _, _, trace, _ = both("vllm-v1", case)
    assert (np.diff(trace.admitted) >= 0).all()
