"""A server as it would be without some of its costs: the same scheduler and requests, priced by a step model of which
only some effects are switched on.

With nothing on, a step costs reading the weights and the KV cache at full bandwidth, and prompts are free. Everything
on is `SheetModel` itself, so that the last counterfactual is the prediction.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records.metrics import Summary
from inferometer.records.run import Run
from inferometer.scoring.loads import Load
from inferometer.sim.simulate import simulate
from inferometer.specs.deployment import Deployment
from inferometer.specs.workload import Workload
from inferometer.steptime.costs import SheetModel, StepCosts, ticks
from inferometer.steptime.efficiencies import Efficiencies, efficiencies
from inferometer.steptime.profile import Profile, calibrated_efficiencies, load_profile
from inferometer.steptime.roofline import roofline

Floats = NDArray[np.float64]

PROMPTS, RATES, STEPS, SEQUENCES = "prompts", "rates", "steps", "sequences"
"""The groups of costs that can be on."""
ALL = (PROMPTS, RATES, STEPS, SEQUENCES)
OF_STEPS = (
    *("layer_s", "moe_layer_s", "mla_layer_s", "sparse_layer_s", "recurrent_layer_s", "prefill_layer_s"),
    *("prefill_step_s", "step_s", "allreduce_s", "allreduce_pcie_s", "alltoall_s", "hop_s"),
)
OF_SEQUENCES = ("sequence_s",)
IDEAL = {"activation_traffic": 0.0, "mixed_query_rows": 0.0}
"""What a share would be 1 for, and these are not shares."""
LEAST_STEP_S = 1e-6
"""Even an ideal engine's empty step takes time, or its clock would stand still."""
MOST_BUDGET = 1 << 20
"""Tokens a step where there is no budget: so many at most, and no step longer than ..."""
LONGEST_STEP_S = 60.0
POOL_FLAGS = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
UNLIMITED_BYTES = 10**15
"""Memory of a chip whose KV pool never binds."""


def real_efficiencies(dep: Deployment, profile: Profile | str | Path | None) -> Efficiencies:
    """The constants of the chip's family, or of the profile (a file's name or a Profile)."""
    if profile is None:
        return efficiencies(dep.chip)
    found = profile if isinstance(profile, Profile) else load_profile(profile)
    return calibrated_efficiencies(dep.chip, found)


def mixed_efficiencies(real: Efficiencies, on: frozenset[str]) -> Efficiencies:
    """The real constants of the groups that are on; of the others shares of 1 and times of 0."""
    values = {}
    for name in real.__struct_fields__:
        group = STEPS if name in OF_STEPS else SEQUENCES if name in OF_SEQUENCES else RATES
        ideal = 0.0 if name.endswith("_s") else IDEAL.get(name, 1.0)
        values[name] = getattr(real, name) if group in on else ideal
    return Efficiencies(**values)


class PartialModel(SheetModel):
    """`SheetModel` with only the groups of costs that are ``on``."""

    def __init__(self, dep: Deployment, real: Efficiencies, on: frozenset[str], users: int) -> None:
        super().__init__(dep, mixed_efficiencies(real, on))
        self.on, self.users = on, users

    def costs(self) -> StepCosts:
        """Tabulated; prompts that are free leave a step with the cost of its decoding sequences."""
        costs = super().costs()
        costs.decode[0] = max(int(costs.decode[0]), ticks(LEAST_STEP_S))
        if PROMPTS in self.on:
            return costs
        none = np.zeros_like(costs.pair)
        return msgspec.structs.replace(costs, mixed=self.decode_only(len(costs.mixed)), pair=none, chunk_kv=none)

    def decode_only(self, size: int) -> NDArray[np.int64]:
        """What mixed steps cost if only their decoding sequences counted: as many as there are users, or tokens."""
        tokens = np.minimum(np.arange(size), self.users)
        by_users = [ticks(float(s)) for s in self.layers_s(self.padded(np.arange(self.users + 1)))]
        return np.asarray(by_users, dtype=np.int64)[tokens]

    def padded(self, tokens: NDArray[np.int64]) -> Floats:
        """To a captured CUDA graph only where achieved rates count."""
        return super().padded(tokens) if RATES in self.on else np.ceil(tokens / self.pp)

    def communication_s(self, tokens: Floats) -> Floats:
        """Part of the overhead of a step."""
        return super().communication_s(tokens) if STEPS in self.on else np.zeros_like(tokens)

    def head_s(self, sampled: NDArray[np.int64]) -> Floats:
        """lm_head; the sampler's passes over the logits are overhead of a sequence."""
        if SEQUENCES in self.on:
            return super().head_s(sampled)
        rows = np.ceil(sampled / self.pp)
        read = self.ops.head_weight_bytes / (self.chip.bandwidth_bytes_per_s * self.eff.weight_read)
        flops = rows * self.ops.head_flops_per_row / (self.rate(self.ops.head_format) * self.eff.mfu)
        return np.where(rows > 0, self.smooth_max(read, flops), 0.0)

    def smooth_max(self, read: object, flops: object) -> Floats:
        """The larger of the two where rates are ideal: reads and products overlap entirely."""
        if RATES in self.on:
            return super().smooth_max(read, flops)
        return np.asarray(np.maximum(np.asarray(read), np.asarray(flops)), dtype=np.float64)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one counterfactual came to."""

    tok_per_s: float
    summary: Summary


class Counterfactuals:
    """The counterfactual servers of one deployment under one load."""

    def __init__(self, dep: Deployment, load: Load, real: Efficiencies, run: Run, seed: int = 0) -> None:
        self.dep, self.load, self.real, self.seed = measured_pool(dep, run), load, real, seed
        # what was done within a window is counted by token times where the run has them: so here too
        self.by_token = load.window is not None and run.token_times is not None
        self.replicas = min(dep.data_parallel_size, load.users)

    def costs(self, dep: Deployment, *on: str) -> StepCosts:
        """Prices with these groups on."""
        return PartialModel(dep, self.real, frozenset(on), min(self.each, dep.resolved().max_num_seqs)).costs()

    @property
    def each(self) -> int:
        """Users of the busiest replica."""
        return -(-self.load.users // self.replicas)

    @property
    def prompt_floor_s(self) -> float:
        """The least time of a prompt of mean length: its products at the chips' peak."""
        tokens = round(float(self.load.prompt.mean()))
        return roofline(self.dep, tokens).prefill_floor_s(tokens)

    @cached_property
    def unlimited(self) -> Deployment:
        """No limit on sequences, no token budget, no lag, and memory for everything."""
        return self._roomy(
            max_num_batched_tokens=self._endless_budget(), async_scheduling=False, long_prefill_token_threshold=0
        )

    @cached_property
    def budgeted(self) -> Deployment:
        """The engine's own scheduler with its token budget, but memory and slots for everyone."""
        return self._roomy()

    def decode_step_s(self) -> float:
        """A decode step of the ideal server at the users of a replica and their mean context: in closed form."""
        return self.costs(self.unlimited).decode_step_s(self.each, self.load.context)

    def run(self, dep: Deployment, workload: Workload, *on: str, token_times: bool = False) -> Outcome:
        """Simulate a workload on a server with these groups of costs on."""
        times = token_times or self.by_token
        found = simulate(dep, workload, costs=self.costs(dep, *on), seed=self.seed, token_times=times)
        summary = windowed(found, self.load.window).summary()
        return Outcome(tok_per_s=summary.output_tok_per_s or 0.0, summary=summary)

    def _roomy(self, **changed: int | bool) -> Deployment:
        """With memory and slots for everyone; flags that an old release may not know only where they differ."""
        resolved = self.dep.resolved()
        own = {name: value for name, value in plain_flags(self.dep).items() if name not in POOL_FLAGS}
        differing = {name: value for name, value in changed.items() if value != getattr(resolved, name)}
        budget = int(changed.get("max_num_batched_tokens", resolved.max_num_batched_tokens))
        pinned = {
            "max_num_seqs": min(max(resolved.max_num_seqs, self.each), budget),
            "max_num_batched_tokens": budget,
            "max_model_len": resolved.max_model_len,
        }
        chip = msgspec.structs.replace(self.dep.chip, memory_bytes=UNLIMITED_BYTES, reported_memory_bytes=None)
        return msgspec.structs.replace(self.dep, chip=chip, flags={**own, **differing, **pinned})

    def _endless_budget(self) -> int:
        """Tokens a step that hold every user's prompt at once, as far as tables and clock allow."""
        model = PartialModel(self.dep, self.real, frozenset((PROMPTS,)), 1)
        a_token = sum(flops / model.rate(name) for name, flops in model.ops.dense_flops_by_format)
        allowed = min(MOST_BUDGET, int(LONGEST_STEP_S / a_token) if a_token else MOST_BUDGET)
        wanted = self.each * (int(self.load.prompt.max()) + 1)
        return max(self.dep.resolved().max_num_batched_tokens, min(wanted, allowed), self.each)


def measured_pool(dep: Deployment, run: Run) -> Deployment:
    """The deployment with the KV pool that the server's log states, where it states one."""
    tokens = run.meta.server.get("kv_cache_tokens")
    if not isinstance(tokens, int | float) or tokens <= 0 or "num_gpu_blocks_override" in plain_flags(dep):
        return dep
    blocks = int(tokens) // dep.resolved().block_size + 1
    return msgspec.structs.replace(dep, flags={**dep.flags, "num_gpu_blocks_override": blocks})


def plain_flags(dep: Deployment) -> dict[str, Any]:
    """The flags that the deployment states, under our spelling."""
    return {str(name).removeprefix("--").replace("-", "_"): value for name, value in dep.flags.items()}


def windowed(run: Run, window: tuple[int, int] | None) -> Run:
    """The simulated run measured over the same requests as the real one: from the first's sending to the last's."""
    if window is None:
        return run
    sent = run.requests["sent_s"].to_numpy()
    first, last = (min(i, len(sent) - 1) for i in window)
    meta = msgspec.structs.replace(run.meta, id="", window_s=(float(sent[first]), float(sent[last])))
    return msgspec.structs.replace(run, meta=meta)
