"""The front door of the simulator: a deployment and a workload in, a Run out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from inferometer.errors import DoesNotFitError, InputError
from inferometer.records.run import REQUEST_SCHEMA, SERVER_SCHEMA, Run, RunMeta, TokenTimes
from inferometer.sim.policies import ENGINE_POLICY, Policy, Trace, fits, policy_named, rules_for, run_kernel
from inferometer.sim.rules import RECORD_S, Rules
from inferometer.specs.deployment import Deployment
from inferometer.specs.workload import Workload
from inferometer.steptime.costs import TICKS_PER_S, StepCosts, sheet_costs
from inferometer.steptime.memory import Memory, memory, pool_blocks, what_would_fit
from inferometer.workload import Requests, generate

Ints = NDArray[np.int64]

LONGEST_RUN_S = 2.0**62 * RECORD_S
"""Arrivals beyond this would overflow the clock."""


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

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> run = im.simulate(dep, im.Workload.closed_loop(concurrency=2, requests=4, prompt_tokens=64, output_tokens=8))
    >>> run.requests["output_tokens"].sum()
    32
    """
    chosen_name = policy or ENGINE_POLICY[deployment.engine]
    chosen = policy_named(chosen_name)
    requests = generate(workload, seed)
    found = fitting_memory(deployment)
    rules = rules_for(chosen, engine_rules(deployment, found, requests))
    engine = Engine(chosen, rules, costs or sheet_costs(deployment), found.max_model_len)
    engine.check(requests)
    parts = engine.parts(requests, deployment)
    replicas = [engine.run(requests, parts, i, token_times) for i in range(len(parts))]
    return Run(
        meta=_meta(deployment, workload, chosen_name, seed, rules, replicas),
        requests=_request_table(requests, engine.errors(requests), replicas),
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


def engine_rules(deployment: Deployment, found: Memory, requests: Requests) -> Rules:
    """The scheduler's limits: the flags, and the KV pool as the engine finds it."""
    typical = int(np.mean(requests.prompt_tokens + requests.output_tokens))
    blocks = pool_blocks(deployment, found, typical)
    return Rules.from_flags(deployment.resolved(), blocks, requests.concurrency, requests.think_time_s)


class Replica(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One engine's part of the requests (their indices) and what became of them."""

    part: Ints
    trace: Trace


class Engine:
    """One engine, ready to run any part of the requests."""

    def __init__(self, policy: Policy, rules: Rules, costs: StepCosts, max_model_len: int) -> None:
        self.policy, self.rules, self.costs, self.max_model_len = policy, rules, costs, max_model_len

    def too_long(self, requests: Requests) -> NDArray[np.bool_]:
        """Requests that the engine refuses for their length."""
        return np.asarray(requests.prompt_tokens + requests.output_tokens > self.max_model_len)

    def too_large(self, requests: Requests) -> NDArray[np.bool_]:
        """Requests that even the empty KV pool could not hold."""
        return ~fits(self.policy, self.rules, requests.prompt_tokens, requests.output_tokens)

    def errors(self, requests: Requests) -> list[str | None] | None:
        """By request, why it was refused; None: none was."""
        long, large = self.too_long(requests), self.too_large(requests)
        if not (long.any() or large.any()):
            return None
        pool = self.rules.blocks * self.rules.block_size
        why_long = f"longer than max_model_len {self.max_model_len}"
        why_large = f"larger than the KV pool of {pool} tokens"
        return [why_long if a else why_large if b else None for a, b in zip(long, large, strict=True)]

    def parts(self, requests: Requests, deployment: Deployment) -> list[Ints]:
        """The servable requests, dealt round-robin to the data-parallel replicas."""
        servable = np.flatnonzero(~(self.too_long(requests) | self.too_large(requests)))
        replicas = min(deployment.data_parallel_size, requests.concurrency or deployment.data_parallel_size)
        return [servable[i::replicas] for i in range(replicas)]

    def check(self, requests: Requests) -> None:
        """Refuse what the integer clock could not count."""
        last = np.nanmax(requests.arrival_s, initial=0.0)
        if last >= LONGEST_RUN_S:
            raise InputError("arrival_s", float(last), f"times below {LONGEST_RUN_S:.0f} s")
        if self.policy.reserves_output:
            slots = min(self.rules.max_num_seqs, len(requests))
            passes = slots * int(requests.prompt_tokens.max(initial=0)) / (len(self.costs.mixed) - 1)
            if (passes + 1) * int(self.costs.mixed[-1]) >= 2.0**62:
                raise InputError(
                    "max_num_seqs", slots, f"fewer slots: one prefill would last over {2**62 / TICKS_PER_S:.0f} s"
                )

    def run(self, requests: Requests, parts: list[Ints], i: int, token_times: bool) -> Replica:
        """Simulate replica ``i`` on its part of the requests, with its part of the users of a closed loop."""
        each, rest = divmod(requests.concurrency, len(parts))
        rules, part = msgspec.structs.replace(self.rules, concurrency=each + (i < rest)), parts[i]
        arrive = np.rint(np.nan_to_num(requests.arrival_s[part]) / RECORD_S).astype(np.int64)
        asked = np.stack([requests.prompt_tokens[part], requests.output_tokens[part], requests.cached_tokens[part]])
        return Replica(part=part, trace=run_kernel(self.policy, rules, self.costs, arrive, asked, token_times))


def _seconds(replicas: list[Replica], n: int, ticks_of: str) -> NDArray[np.float64]:
    """One column of times over all replicas, nan where nothing happened."""
    column = np.full(n, np.nan)
    for replica in replicas:
        recorded: Ints = getattr(replica.trace, ticks_of)
        column[replica.part] = np.where(recorded >= 0, recorded * RECORD_S, np.nan)
    return column


def _request_table(requests: Requests, errors: list[str | None] | None, replicas: list[Replica]) -> pl.DataFrame:
    n = len(requests)
    sent = _seconds(replicas, n, "arrive")
    sent = np.where(np.isnan(sent), requests.arrival_s, sent)
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
        "error": errors,
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
    deployment: Deployment, workload: Workload, policy: str, seed: int, rules: Rules, replicas: list[Replica]
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
        counters={
            "steps": float(sum(r.trace.steps for r in replicas)),
            "preemptions": float(sum(r.trace.preemptions for r in replicas)),
            "kv_blocks": float(rules.blocks),
        },
    )
