"""Scheduling policies by name: compiled functions of one signature (`core`), each with its twin in `reference`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UnknownNameError
from inferometer.sim import core
from inferometer.sim.rules import SAMPLE_INTERVAL, SAMPLES, Rules
from inferometer.steptime.costs import StepCosts

Ints = NDArray[np.int64]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler: its compiled loop and what it presumes."""

    kernel: Callable[..., None]
    """Signature of `core.vllm_v1`."""
    reserves_output: bool = False
    """Reserves prompt + output at admission; knows no token budget, chunks, watermark or asynchronous lag."""


POLICIES: dict[str, Policy] = {
    "vllm-v1": Policy(kernel=core.vllm_v1),
    "static": Policy(kernel=core.static, reserves_output=True),
    "continuous": Policy(kernel=core.continuous, reserves_output=True),
}
ENGINE_POLICY = {"vllm": "vllm-v1"}
"""The policy that an engine runs by default."""


def policy_named(name: str) -> Policy:
    """The policy of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in POLICIES:
        raise UnknownNameError("policy", name, POLICIES)
    return POLICIES[name]


class Trace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a kernel leaves, in recorded ticks (2**-40 s), -1 where nothing happened."""

    arrive: Ints
    admitted: Ints
    first: Ints
    last: Ints
    preempted: Ints
    token_ticks: Ints
    samples: Ints
    """(5, samples): time, running, waiting, used blocks, preemptions so far."""
    steps: int
    preemptions: int


def run_kernel(
    policy: Policy, rules: Rules, costs: StepCosts, arrive: Ints, asked: Ints, token_times: bool = False
) -> Trace:
    """Run one engine over its requests.

    Args:
        policy: which scheduler.
        rules: its limits.
        costs: what a step costs.
        arrive: (n,) recorded ticks, rising; in a closed loop only the first ``rules.concurrency`` count.
        asked: (3, n) prompt, output and cached tokens.
        token_times: whether to keep each token's time.
    """
    n = len(arrive)
    arrive = arrive.copy()
    told = np.full((4, n), -1, np.int64)
    told[core.PREEMPTED] = 0
    offsets = np.concatenate(([0], np.cumsum(asked[core.OUTPUT])))
    token_ticks = np.empty(int(offsets[-1]) if token_times else 0, np.int64)
    samples = np.empty((5, SAMPLES), np.int64)
    meter = np.array([0, 0, SAMPLE_INTERVAL, 0], np.int64)
    state = np.zeros(core.N_STATE, np.int64)
    state[core.FREE] = rules.blocks
    state[core.LEAST] = 1 << 62
    state[core.ISSUED] = min(rules.concurrency, n) if rules.concurrency else n
    slots = np.zeros((7, rules.max_num_seqs), np.int64)
    stack = np.empty((2, max(n, rules.max_num_seqs)), np.int64)
    kinds = np.stack([costs.window, costs.decode_kv, costs.mixed_kv, costs.pair, costs.chunk_kv])
    tables = (costs.decode, costs.mixed, costs.rows, costs.sequence, kinds)
    policy.kernel(
        arrive, asked, rules.vector(), *tables, told, token_ticks, offsets, samples, meter, state, slots, stack
    )
    return Trace(
        arrive=arrive,
        admitted=told[core.ADMITTED],
        first=told[core.FIRST],
        last=told[core.LAST],
        preempted=told[core.PREEMPTED],
        token_ticks=token_ticks,
        samples=samples[:, : meter[core.SAMPLE_COUNT]],
        steps=int(state[core.STEPS]),
        preemptions=int(state[core.PREEMPTIONS]),
    )


def rules_for(policy: Policy, rules: Rules) -> Rules:
    """The rules as this policy sees them.

    The founding batchers have neither token budget nor lag. A real engine's client answers after the instant at which
    its request ended, when the next step has been scheduled: by one recorded tick at least.
    """
    if not policy.reserves_output:
        return msgspec.structs.replace(rules, think=max(1, rules.think))
    return msgspec.structs.replace(
        rules,
        max_num_batched_tokens=1 << 40,
        long_prefill_token_threshold=0,
        watermark_blocks=0,
        async_scheduling=False,
        enable_chunked_prefill=True,
    )


def held_tokens(policy: Policy, prompt: Ints, output: Ints) -> Ints:
    """Tokens that a request caches in the end: the last one's keys and values are never needed, unless reserved."""
    return prompt + (output if policy.reserves_output else np.maximum(output - 1, 0))
