"""The front door of the simulator: a deployment and a workload in, a Run out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from inferometer.errors import DoesNotFitError, InputError
from inferometer.records.run import REQUEST_SCHEMA, SERVER_SCHEMA, Run, RunMeta, TokenTimes
from inferometer.sim.policies import ENGINE_POLICY, Policy, Trace, held_tokens, policy_named, rules_for, run_kernel
from inferometer.sim.rules import RECORD_S, Rules
from inferometer.specs.deployment import Deployment
from inferometer.specs.model import Moe
from inferometer.specs.workload import Workload
from inferometer.steptime.costs import StepCosts, sheet_costs
from inferometer.steptime.kv_layout import release
from inferometer.steptime.memory import Memory, holds, memory, pool_blocks, what_would_fit
from inferometer.workload import Requests, generate

Ints = NDArray[np.int64]

LONGEST_RUN_S = 2.0**62 * RECORD_S
"""Arrivals beyond this (48 days) could overflow the clock."""
LONE_PREFILL_UNCAPPED = (0, 32)
"""The release from which ``long_prefill_token_threshold`` spares a request that is alone."""


def simulate(
    deployment: Deployment,
    workload: Workload,
    policy: str | None = None,
    costs: StepCosts | None = None,
    seed: int = 0,
    token_times: bool = False,
) -> Run:
    """Run a workload through the engine's scheduler.

    Data-parallel replicas are independent engines fed round-robin; a closed loop's users are divided among them.
    A request that exceeds ``max_model_len`` or the whole KV pool is refused at once (its ``error`` says so).

    Args:
        deployment: model, chips, engine and flags.
        workload: lengths and arrivals; the same seed draws the same requests.
        policy: a scheduler's name (``vllm-v1``, ``static``, ``continuous``); None: the engine's own.
        costs: what a step costs; None: from the specification sheet (`sheet_costs`).
        seed: of the workload's random streams. The scheduler itself draws nothing.
        token_times: keep each token's time (inter-token latencies need it).

    Returns:
        A Run whose times are seconds from the first possible arrival, exact to 2**-40 s.

    Raises:
        DoesNotFitError: the weights leave no room for a KV cache.
        UnknownNameError: no such policy.
        InputError: a model given by its few figures and no costs; costs for fewer sequences or tokens than the flags
            allow; times or prompts that the integer clock could not count; sessions of several turns.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> run = im.simulate(dep, im.Workload.closed_loop(concurrency=2, requests=4, prompt_tokens=64, output_tokens=8))
    >>> run.requests["output_tokens"].sum()
    32
    """
    if workload.kind == "sessions":
        raise InputError("workload", "sessions", "a workload of single requests: turns are measured, not simulated")
    name = policy or ENGINE_POLICY[deployment.engine]
    chosen, found, requests = policy_named(name), fitting_memory(deployment), generate(workload, seed)
    errors = refusals(deployment, found, chosen, requests)
    parts = deal(requests, errors, deployment.data_parallel_size)
    rules = engine_rules(deployment, found, chosen, requests, np.concatenate(parts))
    engine = Engine(chosen, rules, costs or sheet_costs(deployment))
    replicas = [engine.run(requests, parts, i, token_times) for i in range(len(parts))]
    return Run(
        meta=_meta(deployment, workload, name, seed, engine, replicas),
        requests=_request_table(requests, errors, replicas),
        server=_server_table(rules, replicas),
        token_times=_token_times(requests, replicas) if token_times else None,
    )


def fitting_memory(deployment: Deployment) -> Memory:
    """The deployment's memory budget.

    Raises:
        DoesNotFitError: there is no KV pool; says by how much and what would fit.
    """
    found = memory(deployment)
    if not found.fits:
        short = found.shortfall_bytes / 2**30
        advice = "; ".join(what_would_fit(deployment)) or "a smaller model"
        raise DoesNotFitError.because(
            f"{deployment.model.name} does not fit on {deployment.chips} x {deployment.chip.name}: "
            f"{short:.1f} GiB short on each; would fit: {advice}"
        )
    return found


def refusals(deployment: Deployment, found: Memory, policy: Policy, requests: Requests) -> NDArray[np.object_] | None:
    """By request, why the engine refuses it: its length, or that even the empty pool could not hold it; None: none."""
    prompt, output = requests.prompt_tokens, requests.output_tokens
    long = prompt + output > found.max_model_len
    large = ~holds(deployment, found, held_tokens(policy, prompt, output))
    if not (long.any() or large.any()):
        return None
    why = np.full(len(requests), None, np.object_)
    why[large] = f"larger than the KV pool of {found.num_gpu_blocks} blocks"
    why[long] = f"longer than max_model_len {found.max_model_len}"
    return why


def deal(requests: Requests, errors: NDArray[np.object_] | None, dp: int) -> list[Ints]:
    """The requests that are not refused, dealt round-robin to the replicas; no more replicas than users."""
    servable = np.arange(len(requests)) if errors is None else np.flatnonzero([e is None for e in errors])
    replicas = min(dp, requests.concurrency or dp)
    return [servable[i::replicas] for i in range(replicas)]


def engine_rules(deployment: Deployment, found: Memory, policy: Policy, requests: Requests, servable: Ints) -> Rules:
    """The scheduler's limits: the flags, and the KV pool as the engine finds it.

    The scheduler knows one kind of block. For a model of several (windows, recurrent state) the pool is stated in
    blocks of the mean request, and holds at least the longest one.
    """
    flags, prompt, output = deployment.resolved(), requests.prompt_tokens[servable], requests.output_tokens[servable]
    blocks = pool_blocks(deployment, found, int((prompt + output).mean()) if len(servable) else 1)
    longest = -(-int(held_tokens(policy, prompt, output).max(initial=0)) // flags.block_size)
    rules = Rules.from_flags(flags, max(blocks, longest + 1), requests.concurrency, requests.think_time_s)
    lone = release(deployment) >= LONE_PREFILL_UNCAPPED
    return rules_for(policy, msgspec.structs.replace(rules, uncapped_lone_prefill=lone))


class Replica(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One engine's part of the requests (their indices) and what became of them."""

    part: Ints
    trace: Trace


class Engine:
    """One engine, ready to run any part of the requests.

    Raises:
        InputError: step costs for fewer sequences or tokens than the engine may batch.
    """

    def __init__(self, policy: Policy, rules: Rules, costs: StepCosts) -> None:
        self.policy, self.rules, self.costs = policy, rules, costs
        wanted = [("decode", "max_num_seqs", rules.max_num_seqs), ("rows", "max_num_seqs", rules.max_num_seqs)]
        if not policy.reserves_output:
            wanted.append(("mixed", "max_num_batched_tokens", rules.max_num_batched_tokens))
        for table, flag, least in wanted:
            if (most := len(getattr(costs, table)) - 1) < least:
                raise InputError(f"costs.{table}", f"a table up to {most}", f"one up to {flag}, {least}")

    def run(self, requests: Requests, parts: list[Ints], i: int, token_times: bool) -> Replica:
        """Simulate replica ``i`` on its part of the requests, with its part of the users of a closed loop."""
        each, rest = divmod(requests.concurrency, len(parts))
        rules, part = msgspec.structs.replace(self.rules, concurrency=each + (i < rest)), parts[i]
        arrival_s = np.nan_to_num(requests.arrival_s[part])
        check_clock(arrival_s, rules)
        if self.policy.reserves_output:
            self.check_prefill(requests.prompt_tokens[part])
        arrive = np.rint(arrival_s / RECORD_S).astype(np.int64)
        asked = np.stack([requests.prompt_tokens[part], requests.output_tokens[part], requests.cached_tokens[part]])
        return Replica(part=part, trace=run_kernel(self.policy, rules, self.costs, arrive, asked, token_times))

    def check_prefill(self, prompt_tokens: Ints) -> None:
        """Refuse whole prompts whose prefill, in one step, the integer clock could not count."""
        longest, pool = int(prompt_tokens.max(initial=0)), self.rules.blocks * self.rules.block_size
        passes = pool / (len(self.costs.mixed) - 1) + 1
        worst = passes * float(self.costs.mixed[-1]) + 2.0 * pool * longest * float(self.costs.pair.max())
        if worst >= 2.0**62:
            raise InputError(
                "prompt_tokens", longest, "shorter prompts: this policy prefills them in one step of minutes"
            )


def check_clock(arrival_s: NDArray[np.float64], rules: Rules) -> None:
    """Refuse what the integer clock could not count."""
    if (last := float(arrival_s.max(initial=0.0))) >= LONGEST_RUN_S:
        raise InputError("arrival_s", last, f"times below {LONGEST_RUN_S:.0f} s")
    turns = -(-len(arrival_s) // rules.concurrency) if rules.concurrency else 0
    if turns * rules.think * RECORD_S >= LONGEST_RUN_S:
        raise InputError(
            "think_time_s", rules.think * RECORD_S, f"pauses that add up to less than {LONGEST_RUN_S:.0f} s"
        )


def _seconds(replicas: list[Replica], n: int, ticks_of: str) -> NDArray[np.float64]:
    """One column of times over all replicas, nan where nothing happened."""
    column = np.full(n, np.nan)
    for replica in replicas:
        recorded: Ints = getattr(replica.trace, ticks_of)
        column[replica.part] = np.where(recorded >= 0, recorded * RECORD_S, np.nan)
    return column


def _request_table(requests: Requests, errors: NDArray[np.object_] | None, replicas: list[Replica]) -> pl.DataFrame:
    n = len(requests)
    sent = _seconds(replicas, n, "arrive")
    sent = _filled(np.where(np.isnan(sent), requests.arrival_s, sent))
    end = _seconds(replicas, n, "last")
    preemptions, replica_of = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    for i, replica in enumerate(replicas):
        preemptions[replica.part] = replica.trace.preempted
        replica_of[replica.part] = i
    columns: dict[str, Any] = {
        "scheduled_s": sent,
        "sent_s": sent,
        "admitted_s": _seconds(replicas, n, "admitted"),
        "first_byte_s": None,
        "first_token_s": _seconds(replicas, n, "first"),
        "last_token_s": np.where(requests.output_tokens > 0, end, np.nan),
        "end_s": np.where(np.isnan(end), sent, end),
        "prompt_tokens": requests.prompt_tokens,
        "output_tokens": requests.output_tokens,
        "cached_tokens": requests.cached_tokens,
        "preemptions": preemptions,
        "replica": replica_of,
        "session": None,
        "error": None if errors is None else errors.tolist(),
    }
    series = [_series(name, values, n) for name, values in columns.items()]
    table = pl.DataFrame(series)
    if errors is None:
        return table
    refused = pl.col("error").is_not_null()
    return table.with_columns(
        pl.when(refused).then(0).otherwise(pl.col("output_tokens")).alias("output_tokens"),
        pl.when(refused).then(None).otherwise(pl.col("replica")).alias("replica"),
    )


def _filled(sent: NDArray[np.float64]) -> NDArray[np.float64]:
    """A user whose request is refused sends the next at once: the refused one went when the next that is not did."""
    known = np.flatnonzero(~np.isnan(sent))
    if len(known) == len(sent):
        return sent
    if not len(known):
        return np.zeros_like(sent)
    following = np.searchsorted(known, np.arange(len(sent)))
    return sent[known[np.minimum(following, len(known) - 1)]]


def _series(name: str, values: Any, n: int) -> pl.Series:
    kind = REQUEST_SCHEMA[name]
    if values is None:
        return pl.Series(name, [None], dtype=kind).new_from_index(0, n)
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        return pl.Series(name, values, dtype=kind, nan_to_null=bool(np.isnan(values).any()))
    return pl.Series(name, values, dtype=kind)


def _server_table(rules: Rules, replicas: list[Replica]) -> pl.DataFrame:
    parts = []
    for i, replica in enumerate(replicas):
        time, running, waiting, used, preemptions = replica.trace.samples
        columns: dict[str, Any] = {
            "time_s": time * RECORD_S,
            "replica": np.full(len(time), i),
            "running": running,
            "waiting": waiting,
            "kv_usage": used / rules.blocks,
            "preemptions": preemptions,
        }
        parts.append(pl.DataFrame(columns, schema_overrides=SERVER_SCHEMA))
    return pl.concat(parts).sort("time_s", "replica", maintain_order=True)


def _token_times(requests: Requests, replicas: list[Replica]) -> TokenTimes:
    """Times by token; a refused request has none."""
    counts = np.zeros(len(requests), np.int64)
    for replica in replicas:
        counts[replica.part] = requests.output_tokens[replica.part]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    times = np.empty(offsets[-1])
    for replica in replicas:
        own = counts[replica.part]
        starts = np.repeat(offsets[replica.part] - (np.cumsum(own) - own), own)
        times[starts + np.arange(own.sum())] = replica.trace.token_ticks * RECORD_S
    return TokenTimes(offsets=offsets, times_s=times)


def _meta(
    deployment: Deployment, workload: Workload, policy: str, seed: int, engine: Engine, replicas: list[Replica]
) -> RunMeta:
    from inferometer import __version__

    return RunMeta(
        kind="simulated",
        tool="inferometer",
        tool_version=__version__,
        seed=seed,
        model=deployment.model.name,
        chip=deployment.chip.id,
        policy=policy,
        deployment=deployment.describe(),
        workload=workload.describe(),
        concurrency=workload.concurrency,
        request_rate_per_s=workload.rate_per_s,
        notes=[f"step costs: {engine.costs.origin or 'given'}", *simplifications(deployment, policy)],
        counters={
            "steps": float(sum(r.trace.steps for r in replicas)),
            "preemptions": float(sum(r.trace.preemptions for r in replicas)),
            "kv_blocks": float(engine.rules.blocks),
        },
    )


def simplifications(deployment: Deployment, policy: str) -> list[str]:
    """What this simulation leaves out that could matter for this deployment, a sentence each."""
    notes = []
    if deployment.pipeline_parallel_size > 1:
        notes.append("pipeline stages share each step's tokens: a prompt alone is up to pp times slower than said")
    if deployment.data_parallel_size > 1 and any(isinstance(b.mlp, Moe) for b in deployment.model.blocks):
        notes.append("replicas run apart: the experts they share are charged as if all had the same step")
    if deployment.resolved().enable_prefix_caching and policy == "vllm-v1":
        notes.append("no prefix is found in the cache but the cached_tokens that the workload states")
    return notes
