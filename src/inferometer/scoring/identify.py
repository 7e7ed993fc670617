"""Which constants of the step-time model a set of runs can tell, which it lumps together, and which it cannot.

Rules of the engines study (section 6.1 and 6.2), before any figure is looked at: the floor of a decode step is one
constant unless models of two sizes ran on the chip; what a sequence adds is one unless contexts differ; and so on.
`calibrate` checks the outcome by the numbers too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferometer.errors import UnknownNameError
from inferometer.scoring.points import Measured
from inferometer.specs.chip import Chip
from inferometer.specs.model import Mla, Moe
from inferometer.steptime.efficiencies import Efficiencies, efficiencies
from inferometer.steptime.ops import rank_ops

FITTABLE = ("weight_read", "kv_read", "mfu", "step_s", "sequence_s", "prefill_step_s", "mfu_attention", "kv_read_mixed")
"""The constants that a fit can find, the surest first: of two that cannot be told apart the later one is lumped."""
TWICE = 2.0
"""Concurrencies, and contexts, that differ by less do not tell a slope from a floor, nor its parts from each other."""
SIZES_APART = 1.5
"""Weight bytes of two models that tell reading weights from the time of a step."""
PREFILLS_APART = 4.0
"""Prompts, or steps of prefill, that differ by less do not tell what a token costs from what a step or a pair does."""
LEAST_UNCACHED = 32
"""Prompts with fewer tokens to compute say nothing of prefill."""
LEAST_ATTENTION = 0.1
"""Share of a prompt's FLOPs below which its attention is not seen."""


class Plan(msgspec.Struct, kw_only=True):
    """What is fitted, what each also carries, what follows it, and what is refused."""

    fitted: list[str]
    lumped: dict[str, list[str]]
    refused: dict[str, str]
    ties: dict[str, str]
    """By constant: the fitted one that it follows at the family's ratio."""

    def drop(self, name: str, why: str, into: str | None = None) -> None:
        """Fit a constant no more: lumped into another, or refused."""
        self.fitted.remove(name)
        carried = self.lumped.pop(name, [])
        if into is None:
            self.refused[name] = why
        else:
            self.lumped[into] = list(dict.fromkeys([*self.lumped.get(into, []), name, *carried]))


def plan(points: Sequence[Measured], fit: Sequence[str] | None = None) -> Plan:
    """The rules' verdict on these points; ``fit`` names what is wanted, None: all that can be told.

    Raises:
        UnknownNameError: ``fit`` names what is no constant of a fit.
    """
    for name in fit or ():
        if name not in FITTABLE:
            raise UnknownNameError("constant to fit", name, FITTABLE)
    found = Plan(fitted=[], lumped={}, refused={}, ties={})
    for rule in (_floor, _slope, _prefill, _prefill_parts, _mixed):
        rule(points, found, fit or ())
    for name in [name for name in found.fitted if fit is not None and name not in fit]:
        found.fitted.remove(name)
        found.lumped.pop(name, None)
        found.refused[name] = "not among the constants asked for: kept at the family's value"
    _ties(points, found)
    found.fitted.sort(key=FITTABLE.index)
    return found


def _floor(points: Sequence[Measured], found: Plan, _: Sequence[str]) -> None:
    """The decode step of few sequences: reading the weights, and the time of a step whatever is in it."""
    if not any(p.has("tpot") for p in points):
        found.refused["weight_read"] = "no run states a TPOT or ITL"
        found.refused["step_s"] = "no run states a TPOT or ITL"
        return
    found.fitted.append("weight_read")
    sizes = [rank_ops(p.deployment).dense_weight_bytes for p in points if p.has("tpot")]
    moe = any(isinstance(block.mlp, Moe) for p in points for block in p.deployment.model.blocks)
    if max(sizes) >= SIZES_APART * min(sizes):
        found.fitted.append("step_s")
        found.lumped["step_s"] = ["layer_s"]
        found.lumped["weight_read"] = ["expert_read"] if moe else []
        return
    found.lumped["weight_read"] = ["step_s", "layer_s", *(["expert_read", "moe_layer_s"] if moe else [])]
    found.refused["step_s"] = (
        "lumped into weight_read: only runs of two models of different size on this chip tell the time of a step from "
        "that of reading the weights"
    )


def _slope(points: Sequence[Measured], found: Plan, _: Sequence[str]) -> None:
    """What a sequence adds to a decode step: its KV cache read, and the engine's time for it."""
    several = [p for p in points if p.has("tpot") and p.in_flight >= TWICE]
    flights = [p.in_flight for p in points if p.has("tpot")]
    if not several or max(flights) < TWICE * min(flights):
        seen = " and ".join(sorted({f"{each:.3g}" for each in flights})) or "none"
        why = f"the runs with a TPOT have concurrency {seen}: two that differ by {TWICE:g} times are needed"
        found.refused |= {"kv_read": why, "sequence_s": why}
        if several and "weight_read" in found.fitted:
            found.lumped["weight_read"] += ["kv_read", "sequence_s"]
        return
    contexts = [p.mean_context for p in several]
    if max(contexts) >= TWICE * min(contexts):
        found.fitted += ["kv_read", "sequence_s"]
        return
    keeps, gives = ("kv_read", "sequence_s") if _kv_dominates(several) else ("sequence_s", "kv_read")
    found.fitted.append(keeps)
    found.lumped[keeps] = [gives]
    found.refused[gives] = f"lumped into {keeps}: the runs' mean contexts differ by less than {TWICE:g} times"


def _kv_dominates(points: Sequence[Measured]) -> bool:
    """Whether by the family's values reading a sequence's KV cache takes longer than the engine's time for it."""
    dep, context = points[0].deployment, max(p.mean_context for p in points)
    family = efficiencies(dep.chip)
    read_bytes = sum(read.bytes_per_token * min(read.window or context, context) for read in rank_ops(dep).kv_reads)
    read_bytes += rank_ops(dep).mla_read_bytes_per_token * context
    return read_bytes / (dep.chip.bandwidth_bytes_per_s * family.kv_read) > family.sequence_s


def _prefill(points: Sequence[Measured], found: Plan, _: Sequence[str]) -> None:
    timed = [p for p in points if p.has("ttft") and p.uncached_tokens >= LEAST_UNCACHED]
    if not timed:
        waits = any(p.has("ttft") for p in points)
        few = f"all prompts have fewer than {LEAST_UNCACHED} tokens to compute"
        found.refused["mfu"] = few if waits else "no run states a TTFT"
        return
    found.fitted.append("mfu")
    found.lumped["mfu"] = ["activation_traffic"]


def _prefill_parts(points: Sequence[Measured], found: Plan, _: Sequence[str]) -> None:
    """What a step of prefill costs whatever its tokens, and attention within prompts."""
    timed = [p for p in points if p.has("ttft") and p.uncached_tokens >= LEAST_UNCACHED]
    steps = [_prefill_step_tokens(p) for p in timed]
    prompts = [p.uncached_tokens for p in timed]
    seen = max(map(_attention_share, timed), default=0.0) >= LEAST_ATTENTION
    rules: tuple[tuple[str, list[float], bool, list[str], str], ...] = (
        ("prefill_step_s", steps, True, ["prefill_layer_s"], "steps of prefill"),
        ("mfu_attention", prompts, seen, [], "prompts"),
    )
    for name, values, visible, carries, what in rules:
        if values and visible and max(values) >= PREFILLS_APART * min(values):
            found.fitted.append(name)
            found.lumped[name] = carries
        elif "mfu" in found.fitted:
            found.lumped["mfu"] += [name, *carries]
            found.refused[name] = (
                f"lumped into mfu: {what} that differ by {PREFILLS_APART:g} times are needed"
                if visible
                else f"lumped into mfu: in these prompts attention is under {LEAST_ATTENTION:.0%} of the FLOPs"
            )
        else:
            found.refused[name] = found.refused["mfu"]


def _prefill_step_tokens(point: Measured) -> float:
    """Prompt tokens that one prompt's step of prefill holds: at most the budget."""
    return min(point.uncached_tokens, float(point.deployment.resolved().max_num_batched_tokens))


def _attention_share(point: Measured) -> float:
    ops = rank_ops(point.deployment)
    pairs = point.uncached_tokens / 2 * ops.attention_flops_per_pair
    linear = sum(flops for _, flops in ops.dense_flops_by_format)
    return pairs / (pairs + linear) if pairs else 0.0


def _mixed(points: Sequence[Measured], found: Plan, fit: Sequence[str]) -> None:
    """Decodes in a step that carries prefill: seen in the longest gaps only."""
    seen = {round(p.in_flight) for p in points if p.has("shape") and p.in_flight >= TWICE}
    if len(seen) < 2:
        found.refused["kv_read_mixed"] = "follows kv_read: an ITL p99 of a mixed step at two concurrencies is needed"
    elif "kv_read_mixed" not in fit:
        found.refused["kv_read_mixed"] = "follows kv_read, unless asked for: only ITL p99 tells it, and p99 is rough"
    else:
        found.fitted.append("kv_read_mixed")


def _ties(points: Sequence[Measured], found: Plan) -> None:
    """Constants of the same hardware that move together: what no run tells apart keeps the family's ratio."""
    blocks = [block for p in points for block in p.deployment.model.blocks]
    moe, mla = any(isinstance(b.mlp, Moe) for b in blocks), any(isinstance(b.mixer, Mla) for b in blocks)
    pairs = [("kv_read_mixed", "kv_read", True), ("expert_read", "weight_read", moe), ("mfu_expert", "mfu", moe)]
    pairs += [("mla_read", "kv_read", mla), ("mfu_mla", "mfu", mla)]
    found.ties |= {name: to for name, to, wanted in pairs if wanted and to in found.fitted and name not in found.fitted}


def with_ties(chip: Chip, found: Plan, values: dict[str, float]) -> Efficiencies:
    """The family's constants with ``values`` over them, and those that follow them."""
    family = efficiencies(chip)
    told = {n: to for n, to in found.ties.items() if to in values}
    following = {n: getattr(family, n) * values[to] / getattr(family, to) for n, to in told.items()}
    return msgspec.structs.replace(family, **values, **following)
