"""What each flag does to a schedule, worked out by hand on an engine whose every step takes one second."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

import inferometer as im
from inferometer.sim import core
from inferometer.sim.policies import POLICIES, Trace, held_tokens, rules_for, run_kernel
from inferometer.sim.rules import Rules
from inferometer.sim.simulate import Engine, check_clock, deal, engine_rules, fitting_memory, refusals
from inferometer.specs.engine import EngineFlags
from inferometer.steptime.costs import NO_WINDOW, StepCosts
from inferometer.steptime.memory import pool_blocks
from inferometer.workload import generate

VLLM, STATIC, CONTINUOUS = (POLICIES[name] for name in ("vllm-v1", "static", "continuous"))
SECOND = 2**40
"""In recorded ticks."""
FLAGS = EngineFlags(max_num_seqs=8, max_num_batched_tokens=100, max_model_len=4096, async_scheduling=False)


def step_costs(mixed: int = 2**54, pair: tuple[int, ...] = (0,), entries: int = 101) -> StepCosts:
    """Steps that cost ``mixed`` ticks of 2**-54 s, one second by default, whatever is in them."""
    zeros = np.zeros(len(pair), np.int64)
    return StepCosts(
        decode=np.full(entries, 2**54),
        mixed=np.full(entries, mixed),
        rows=np.zeros(entries, np.int64),
        sequence=0,
        window=np.full(len(pair), NO_WINDOW),
        decode_kv=zeros,
        mixed_kv=zeros,
        pair=np.array(pair),
        chunk_kv=zeros,
    )


def run(
    prompts: list[int],
    outputs: list[int],
    at_s: list[float] | None = None,
    blocks: int = 1001,
    policy: str = "vllm-v1",
    users: int = 0,
    think_s: float = 0.0,
    **flags: Any,
) -> Trace:
    chosen = msgspec.structs.replace(FLAGS, **flags)
    rules = rules_for(POLICIES[policy], Rules.from_flags(chosen, blocks, users, think_s))
    arrive = np.array(at_s or [0.0] * len(prompts)) * SECOND
    asked = np.array([prompts, outputs, [0] * len(prompts)], np.int64)
    return run_kernel(POLICIES[policy], rules, step_costs(), arrive.astype(np.int64), asked)


def admitted_s(trace: Trace) -> list[float]:
    return (trace.admitted / SECOND).tolist()


def first_token_s(trace: Trace) -> list[float]:
    return (trace.first / SECOND).tolist()


# ---------------------------------------------------------------- from flags to rules
GIVEN = [
    (
        {
            "max_num_seqs": 7, "max_num_batched_tokens": 70, "max_model_len": 50, "block_size": 32, "watermark": 0.3,
            "long_prefill_token_threshold": 9, "scheduler_reserve_full_isl": True, "enable_chunked_prefill": False,
            "async_scheduling": True,
        },
        (100, 5, 0.25),
        [7, 70, 99, 32, 9, 1, 30, 0, 1, 5, SECOND // 4, 0],
    ),
    (
        {
            "max_num_seqs": 3, "max_num_batched_tokens": 30, "max_model_len": 20, "block_size": 8, "watermark": 0.02995,
            "long_prefill_token_threshold": 4, "scheduler_reserve_full_isl": False, "enable_chunked_prefill": True,
            "async_scheduling": False,
        },
        (2000, 0, 2.0),
        [3, 30, 1999, 8, 4, 0, 59, 1, 0, 0, 2 * SECOND, 0],
    ),
]  # fmt: skip
LAYOUT = [
    core.MAX_SEQS, core.BUDGET, core.BLOCKS, core.BLOCK, core.THRESHOLD, core.RESERVE, core.WATERMARK, core.CHUNKED,
    core.LAG, core.CONCURRENCY, core.THINK, core.LONE,
]  # fmt: skip


@pytest.mark.parametrize(("flags", "engine", "expected"), GIVEN)
def test_every_flag_reaches_the_cores_vector(
    flags: dict[str, Any], engine: tuple[int, int, float], expected: list[int]
) -> None:
    """The null block is taken off the pool, not off what the watermark is a share of."""
    vector = Rules.from_flags(EngineFlags(**flags), *engine).vector()
    assert vector[LAYOUT].tolist() == expected
    assert len(vector) == len(LAYOUT)


def test_what_is_not_given_is_an_open_loop() -> None:
    rules = Rules.from_flags(FLAGS, 11)
    assert (rules.concurrency, rules.think, rules.uncapped_lone_prefill) == (0, 0, False)


# ---------------------------------------------------------------- from rules to schedules
ADMISSIONS = [
    ("all at once", {}, [16, 16], [2, 2], [0, 0]),
    ("one slot", {"max_num_seqs": 1}, [16, 16], [2, 2], [0, 2]),
    ("two slots", {"max_num_seqs": 2}, [16, 16, 16], [2, 9, 1], [0, 0, 2]),
    ("a slot is held until its results are processed", {"max_num_seqs": 2, "async_scheduling": True},
     [16, 16, 16], [2, 9, 1], [0, 0, 3]),
    ("the budget is spent by the first", {"max_num_batched_tokens": 16}, [16, 16], [2, 2], [0, 1]),
    ("a whole prompt waits for budget", {"max_num_batched_tokens": 20, "enable_chunked_prefill": False},
     [16, 16], [1, 1], [0, 1]),
    ("a piece of it does not", {"max_num_batched_tokens": 20}, [16, 16], [1, 1], [0, 0]),
    ("a full pool", {"blocks": 4}, [17, 17], [3, 3], [0, 3]),
    ("larger blocks hold more", {"blocks": 4, "block_size": 32}, [17, 17], [3, 3], [0, 0]),
    ("the null block holds nobody", {"blocks": 5}, [17, 17], [3, 3], [0, 0]),
    ("the whole prompt must fit", {"blocks": 7, "max_num_batched_tokens": 32}, [16, 96], [3, 1], [0, 3]),
    ("or only its first chunk", {"blocks": 7, "max_num_batched_tokens": 32, "scheduler_reserve_full_isl": False},
     [16, 96], [3, 1], [0, 0]),
    ("no watermark", {"blocks": 11}, [16, 80], [3, 1], [0, 0]),
    ("a watermark keeps blocks free", {"blocks": 11, "watermark": 0.5}, [16, 80], [3, 1], [0, 3]),
    ("that the prompt itself leaves free", {"blocks": 11, "watermark": 0.4}, [16, 80], [3, 1], [0, 0]),
    ("but not for a lone request", {"blocks": 11, "watermark": 0.5}, [160], [1], [0]),
    ("over the first chunk too", {"blocks": 11, "watermark": 0.5, "scheduler_reserve_full_isl": False},
     [16, 80], [3, 1], [0, 3]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "prompts", "outputs", "expected"), [pytest.param(*case, id=name) for name, *case in ADMISSIONS]
)
def test_admission(flags: dict[str, Any], prompts: list[int], outputs: list[int], expected: list[float]) -> None:
    assert admitted_s(run(prompts, outputs, **flags)) == expected


def test_a_prompt_takes_as_many_steps_as_it_has_budgets() -> None:
    assert first_token_s(run([250], [1])) == [3]
    assert first_token_s(run([250], [1], max_num_batched_tokens=50)) == [5]


def test_the_threshold_caps_each_chunk() -> None:
    assert first_token_s(run([50, 50], [1, 1])) == [1, 1]
    assert first_token_s(run([50, 50], [1, 1], long_prefill_token_threshold=10)) == [5, 5]


def test_an_arrival_during_a_step_runs_in_the_next_or_the_one_after() -> None:
    for lag, expected in ((False, 1), (True, 2)):
        trace = run([16, 16], [9, 1], at_s=[0, 0.5], async_scheduling=lag)
        assert admitted_s(trace) == [0, expected]


@pytest.mark.parametrize(("policy", "third"), [("vllm-v1", 2), ("static", 5), ("continuous", 1)])
def test_a_client_answers_after_the_next_step_was_scheduled(policy: str, third: float) -> None:
    """Two users; the first is done at 1 s. The founding batchers take its next request at that very instant."""
    trace = run([16, 16, 16], [1, 5, 1], users=2, policy=policy)
    assert admitted_s(trace) == [0, 0, third]
    assert trace.arrive[2] == {"vllm-v1": SECOND + 1, "static": SECOND * 5, "continuous": SECOND}[policy]


def test_a_pause_is_counted_from_the_end() -> None:
    trace = run([16, 16], [2, 1], users=1, think_s=1.5)
    assert trace.arrive.tolist() == [0, SECOND * 2 + SECOND * 3 // 2]


# ---------------------------------------------------------------- from a policy to its rules
RULES = Rules.from_flags(EngineFlags(**GIVEN[0][0]), *GIVEN[0][1])


def test_vllms_client_pauses_a_tick_at_least() -> None:
    at_once = msgspec.structs.replace(RULES, think=0)
    assert rules_for(VLLM, at_once) == msgspec.structs.replace(RULES, think=1)
    assert rules_for(VLLM, RULES) == RULES


@pytest.mark.parametrize("policy", [STATIC, CONTINUOUS])
@pytest.mark.parametrize("think", [0, 7])
def test_the_founding_batchers_know_slots_blocks_and_users_only(policy: Any, think: int) -> None:
    """Prompts of any length in one step, as soon as they fit."""
    found = rules_for(policy, msgspec.structs.replace(RULES, think=think))
    assert found.max_num_batched_tokens == 2**40
    assert found == Rules(
        max_num_seqs=7,
        max_num_batched_tokens=found.max_num_batched_tokens,
        blocks=99,
        block_size=32,
        async_scheduling=False,
        concurrency=5,
        think=think,
    )


def test_only_reserving_policies_cache_the_last_token() -> None:
    prompt, output = np.array([10, 10, 10]), np.array([5, 1, 0])
    assert held_tokens(VLLM, prompt, output).tolist() == [14, 10, 10]
    assert held_tokens(STATIC, prompt, output).tolist() == [15, 11, 10]


# ---------------------------------------------------------------- from a deployment to its rules
def deployment(model: str = "Qwen/Qwen3-8B", version: str = "", **flags: Any) -> im.Deployment:
    return im.Deployment(model=im.model(model), chip=im.chip("h200-sxm-141gb"), engine_version=version, flags=flags)


def rules_of(
    dep: im.Deployment, load: im.Workload, policy: str = "vllm-v1", servable: list[int] | None = None
) -> Rules:
    requests = generate(load)
    chosen = np.arange(len(requests)) if servable is None else np.array(servable, np.int64)
    return engine_rules(dep, fitting_memory(dep), POLICIES[policy], requests, chosen)


def test_the_pool_flags_and_users_make_the_rules() -> None:
    dep = deployment(num_gpu_blocks_override=501, max_num_seqs=9, max_num_batched_tokens=99, watermark=0.1)
    load = im.Workload.closed_loop(concurrency=3, requests=6, prompt_tokens=10, output_tokens=4, think_time_s=0.5)
    expected = Rules(
        max_num_seqs=9,
        max_num_batched_tokens=99,
        blocks=500,
        watermark_blocks=50,
        concurrency=3,
        think=SECOND // 2,
        uncapped_lone_prefill=True,
    )
    assert rules_of(dep, load) == expected
    assert rules_of(dep, load, "static") == rules_for(STATIC, expected)


@pytest.mark.parametrize(("version", "uncapped"), [("0.26.0", False), ("0.32.0", True), ("", True)])
def test_a_lone_prefill_is_spared_from_0_32(version: str, uncapped: bool) -> None:
    rules = rules_of(deployment(version=version), im.Workload.from_requests([0.0], [10], [2]))
    assert rules.uncapped_lone_prefill is uncapped


GEMMA = {"max_model_len": 8192, "max_num_batched_tokens": 2048, "num_gpu_blocks_override": 4000}


def gemma_blocks(tokens: int) -> int:
    """A group of full and six of sliding layers: in decode a window of 1,024, which may begin inside a block."""
    return math.ceil(tokens / 16) + 6 * (math.ceil(min(1024, tokens) / 16) + 1)


@pytest.mark.parametrize(("tokens", "counted"), [(1000, 1000), (6000, 6000), (50_000, 8192), (0, 1)])
def test_a_pool_of_several_kinds_is_counted_in_blocks_of_a_request_that_can_be(tokens: int, counted: int) -> None:
    dep = deployment("google/gemma-3-27b", **GEMMA)
    expected = int(4000 / gemma_blocks(counted) * math.ceil(counted / 16))
    assert pool_blocks(dep, fitting_memory(dep), tokens) == expected


def test_a_pool_of_windows_only_is_counted_so_too_and_a_plain_one_as_it_is() -> None:
    windows = deployment("mistralai/Mistral-7B-v0.1", num_gpu_blocks_override=4000)
    assert pool_blocks(windows, fitting_memory(windows), 8192) == int(4000 / (4096 / 16 + 1) * 512)
    plain = deployment(num_gpu_blocks_override=4000)
    assert pool_blocks(plain, fitting_memory(plain), 8192) == 4000


def test_the_mean_is_that_of_the_requests_that_are_served() -> None:
    dep = deployment("google/gemma-3-27b", **GEMMA)
    load = im.Workload.from_requests([0.0] * 3, [900, 100, 1900], [100, 100, 100])
    assert rules_of(dep, load, servable=[0, 2]).blocks == int(4000 / gemma_blocks(1500) * 94) - 1
    assert rules_of(dep, load, servable=[]).blocks == int(4000 / gemma_blocks(1)) - 1


def test_a_pool_counted_in_short_requests_still_holds_the_longest() -> None:
    dep = deployment("google/gemma-3-27b", **GEMMA)
    load = im.Workload.from_requests([0.0] * 1000, [15] * 999 + [8000], [1] * 999 + [192])
    assert int(4000 / gemma_blocks(24) * 2) < 8192 / 16
    assert rules_of(dep, load).blocks == 8192 / 16


@pytest.mark.parametrize(
    ("policy", "prompt", "output", "refused"),
    [
        (VLLM, 2390, 11, None),
        (VLLM, 2390, 12, "KV pool of 151 blocks"),
        (STATIC, 2390, 10, None),
        (STATIC, 2390, 11, "KV pool of 151 blocks"),
        (VLLM, 2500, 500, "max_model_len 2999"),
    ],
)
def test_a_request_is_refused_that_not_even_the_empty_pool_holds(
    policy: Any, prompt: int, output: int, refused: str | None
) -> None:
    """150 blocks of 16 tokens hold 2,400; the last output's keys and values are never needed."""
    dep = deployment(num_gpu_blocks_override=151, max_model_len=2999)
    requests = generate(im.Workload.from_requests([0.0], [prompt], [output]))
    why = refusals(dep, fitting_memory(dep), policy, requests)
    assert (why is None) if refused is None else (why is not None and refused in why[0])


def test_requests_are_dealt_round_robin_to_no_more_replicas_than_users() -> None:
    opened = generate(im.Workload.from_requests([0.0] * 5, [10] * 5, [1] * 5))
    closed = generate(im.Workload.closed_loop(concurrency=2, requests=5, prompt_tokens=10, output_tokens=1))
    errors = np.array([None, "too long", None, None, None], np.object_)
    assert [part.tolist() for part in deal(opened, errors, 3)] == [[0, 4], [2], [3]]
    assert [part.tolist() for part in deal(closed, None, 3)] == [[0, 2, 4], [1, 3]]


# ---------------------------------------------------------------- what the clock can count
POOL = Rules(max_num_seqs=8, max_num_batched_tokens=2, blocks=4, block_size=2**10)


@pytest.mark.parametrize(
    ("costs", "longest", "fits"),
    [
        # 4,096 tokens padded, 100 a pass: 41.96 passes, each of 2**62 / 41.96 at most
        (step_costs(mixed=int(2**62 / 41.96) - 2**20), 1, True),
        (step_costs(mixed=int(2**62 / 41.96) + 2**20), 1, False),
        # twice 4,096 keys for each query of the longest prompt
        (step_costs(mixed=0, pair=(2**40,)), 2**9 - 1, True),
        (step_costs(mixed=0, pair=(2**40,)), 2**9, False),
        (step_costs(mixed=0, pair=(2**40, 1)), 2**9, False),
        (step_costs(mixed=0, pair=(1, 2**40)), 2**9, False),
    ],
)
def test_whole_prompts_in_one_step_must_stay_below_the_clocks_end(costs: StepCosts, longest: int, fits: bool) -> None:
    engine = Engine(CONTINUOUS, POOL, costs)
    prompts = np.array([1, longest, 1])
    if fits:
        engine.check_prefill(prompts)
        return
    with pytest.raises(im.InputError, match=f"prompt_tokens: {longest} "):
        engine.check_prefill(prompts)


@pytest.mark.parametrize(("policy", "refused"), [(VLLM, False), (STATIC, True), (CONTINUOUS, True)])
def test_only_policies_of_whole_prompts_check_them(policy: Any, refused: bool) -> None:
    rules = msgspec.structs.replace(POOL, max_num_batched_tokens=100, concurrency=0)
    engine = Engine(policy, rules, step_costs(mixed=2**60))
    requests = generate(im.Workload.from_requests([0.0], [100], [1]))
    if not refused:
        assert engine.run(requests, [np.array([0])], 0, False).trace.last[0] == 2**60 >> 14
        return
    with pytest.raises(im.InputError, match="prompt_tokens"):
        engine.run(requests, [np.array([0])], 0, False)


@pytest.mark.parametrize(
    ("last_s", "users", "think", "refused"),
    [
        (2.0**22 - 1, 0, 1, None),
        (2.0**22, 0, 1, "arrival_s"),
        (0.0, 2, 2**60 - 2**10, None),
        (0.0, 2, 2**60, "think_time_s"),
        (0.0, 0, 2**61, None),
    ],
)
def test_arrivals_and_pauses_must_end_before_the_clock(
    last_s: float, users: int, think: int, refused: str | None
) -> None:
    """48.5 days; seven requests of two users are four turns."""
    rules = msgspec.structs.replace(POOL, concurrency=users, think=think)
    arrival_s = np.array([0.0] * 6 + [last_s])
    if refused is None:
        check_clock(arrival_s, rules)
        return
    with pytest.raises(im.InputError, match=refused):
        check_clock(arrival_s, rules)


@pytest.mark.parametrize(
    ("change", "table"),
    [({}, None), ({"max_num_seqs": 101}, "decode"), ({"max_num_batched_tokens": 101}, "mixed")],
)
def test_tables_must_reach_what_the_rules_allow(change: dict[str, int], table: str | None) -> None:
    rules = msgspec.structs.replace(POOL, **{"max_num_seqs": 100, "max_num_batched_tokens": 100, **change})
    if table is None:
        Engine(VLLM, rules, step_costs())
        return
    with pytest.raises(im.InputError, match=f"costs.{table}"):
        Engine(VLLM, rules, step_costs())


def test_the_last_token_takes_no_block() -> None:
    """2,400 of the 2,401 tokens are cached: 150 blocks, which the pool has beside its null block."""
    load = im.Workload.from_requests([0.0], [2390], [11])
    assert rules_of(deployment(num_gpu_blocks_override=151), load).blocks == 150
