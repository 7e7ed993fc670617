"""An explanation in words: a note for each step of a waterfall, and findings with their figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from inferometer.scoring import explanation as ex
from inferometer.scoring.counterfactuals import ALL, PROMPTS, RATES, STEPS, Counterfactuals
from inferometer.scoring.explanation import Explanation, Hypothesis
from inferometer.scoring.hypotheses import Case, below_floor
from inferometer.steptime.ops import rank_ops
from inferometer.steptime.roofline import roofline

LEAST_SHARE = 0.03
"""Of a user's token time: a smaller effect is not told in the headline."""
MOST_EFFECTS = 5
LARGE_PCT = 10.0
"""More unexplained than this is said to be much."""
_ON_OFF = {"async_scheduling": " on nor off"}
SETTINGS = {"max_num_batched_tokens": "a token budget of", "async_scheduling": "asynchronous scheduling"}


# ---------------------------------------------------------------- notes of steps


def step_notes(servers: Counterfactuals) -> dict[str, str]:
    """One sentence for each effect, with the figures that it was switched on with."""
    load, real, flags = servers.load, servers.real, servers.dep.resolved()
    roof, step_s, sequence_s = roofline(servers.dep, 0), *_overheads(servers)
    read = f"{roof.read_bytes(load.users) / 1e9:.1f} GB of weights"
    lag = ", scheduled asynchronously" if flags.async_scheduling else ""
    return {
        ex.IDEAL: f"{read} at {roof.bandwidth_bytes_per_s / 1e9:,.0f} GB/s, a token for each of {load.users:,}",
        ex.KV_PROMPT: f"each user's cache read every step, {float(load.prompt.mean()):,.0f} tokens of prompt",
        ex.KV_OUTPUT: f"with half its output a context of {load.context:,} tokens",
        ex.DECODE: _decode(servers),
        ex.LOAD: "simulated from here on: the lengths as sent, prompts still free",
        ex.PREFILL: "each prompt's products at peak FLOP/s, in steps of any size",
        ex.MIXED: f"the engine's scheduler: {flags.max_num_batched_tokens:,} tokens a step at most{lag}",
        ex.HITS: _hits(load.hits),
        ex.RATES: f"weights at {_pct(real.weight_read)}, KV cache at {_pct(real.kv_read)} of bandwidth "
        f"({_pct(real.kv_read_mixed)} in mixed steps), products at {_pct(real.mfu)} of peak",
        ex.STEP: f"{_ms(step_s)} ms a decode step whatever the batch; more where it carries prompts",
        ex.SEQUENCE: f"{_ms(sequence_s)} ms a sequence and step, the sampler included",
        ex.QUEUEING: _queueing(servers),
        ex.CLIENT: _client(servers),
        ex.UNEXPLAINED: "measured, less all of the above",
    }


def _overheads(servers: Counterfactuals) -> tuple[float, float]:
    """Seconds of overhead of a decode step, and of each of its sequences."""
    batch, dep = servers.each, servers.budgeted
    batch = min(batch, dep.resolved().max_num_seqs)
    without = servers.costs(dep, PROMPTS, RATES).decode_step_s(batch, 0)
    with_step = servers.costs(dep, PROMPTS, RATES, STEPS).decode_step_s(batch, 0)
    full = servers.costs(dep, *ALL).decode_step_s(batch, 0)
    return with_step - without, (full - with_step) / batch


def _decode(servers: Counterfactuals) -> str:
    """What of the weights is looked up, not read; that the stages of a pipeline follow one another."""
    ops, roof, stages = rank_ops(servers.dep), roofline(servers.dep, 0), servers.dep.pipeline_parallel_size
    read = servers.dep.tensor_parallel_size * (ops.dense_weight_bytes + ops.head_weight_bytes) + roof.expert_bytes
    parts = ["products where they take longer than reads"]
    if stages > 1:
        parts.insert(0, f"a step passes {stages} stages one after another")
    if roof.weight_bytes - read > 0.01 * roof.weight_bytes:
        parts.insert(0, f"{(roof.weight_bytes - read) / 1e9:.1f} GB of weights are looked up, not read")
    return "; ".join(parts)


def _hits(hits: float | None) -> str:
    return "not known, taken for 0" if hits is None else f"{_pct(hits)} of the prompts' tokens are not computed"


def _queueing(servers: Counterfactuals) -> str:
    seqs = servers.dep.resolved().max_num_seqs
    limits = f"at most {seqs:,} sequences at once, and the KV pool as it is"
    return (
        limits if servers.load.closed else f"requests as they come, not {servers.load.users:,} at all times; {limits}"
    )


def _client(servers: Counterfactuals) -> str:
    load = servers.load
    if not load.idle_known:
        return "not known: the run does not say when requests were sent"
    if load.closed:
        return f"a slot stays empty {_ms(load.idle_s)} ms between two requests"
    late = 0.0
    if load.sent_s is not None and load.arrival_s is not None:
        late = float((load.sent_s - load.arrival_s).mean())
    return f"requests are sent {_ms(late)} ms late on average"


# ---------------------------------------------------------------- findings of a point


def headline(found: Explanation) -> str:
    """The answer in one sentence: roofline, measured, and what lies between by size.

    Costs are in tok/s and in milliseconds of a user's token, from the decode roofline at the prompt's context on.
    """
    total = found.steps[-1].seconds or 0.0
    told = ex.EFFECTS[ex.EFFECTS.index(ex.KV_OUTPUT) : -1]
    costs = {effect: found.change_s(effect) for effect in told}
    large = [e for e in sorted(told, key=lambda e: -abs(costs[e])) if abs(costs[e]) >= LEAST_SHARE * total]
    parts = [f"{effect} {_signed(found.step(effect).change)} ({costs[effect] * 1e3:+.1f} ms)" for effect in large]
    between = f": {', '.join(parts[:MOST_EFFECTS])}" if parts else ""
    roof = f"roofline at {found.prompt_tokens:,.0f} tokens of context {found.roofline_tok_per_s:,.0f} tok/s"
    return (
        f"{found.load}: {roof}, measured {found.measured_tok_per_s:,.1f}"
        f"{between}; unexplained {found.unexplained_pct:+.1f} %."
    )


def of_point(found: Explanation, judged: Iterable[Hypothesis]) -> list[str]:
    """The headline, what is left if it is much, and the settings that the tails speak for."""
    said = [headline(found)]
    if abs(found.unexplained_pct) > LARGE_PCT:
        side = "more than the model gives" if found.unexplained_pct > 0 else "less than the model gives"
        cached = found.prefix_hit_rate is None and found.unexplained_pct > 0
        hits = "prompts found in the prefix cache (the hit rate is not known), " if cached else ""
        said.append(
            f"At {found.load} {abs(found.unexplained_pct):.0f} % is unexplained, {side}: {hits}constants that are not "
            "this chip's, or an effect that is not modelled; calibrate on runs of it."
        )
    return said + settings(judged)


# ---------------------------------------------------------------- findings of a sweep


def of_sweep(points: Sequence[Explanation], judged: Sequence[Hypothesis], aside: Sequence[Case]) -> list[str]:
    """What the points say together."""
    largest = max(points, key=lambda point: point.users)
    said = [
        headline(largest),
        *_decode_only(largest),
        *_intercept(points),
        *settings(judged),
        *_set_aside(aside),
        *_hit_rate(judged),
    ]
    worst = max(points, key=lambda point: abs(point.unexplained_pct))
    least = sum(abs(point.unexplained_pct) for point in points) / len(points)
    said.append(f"Unexplained: {least:.1f} % on average, {worst.unexplained_pct:+.1f} % at worst ({worst.load}).")
    return said


def _decode_only(point: Explanation) -> list[str]:
    """The founding question: by how much decoding alone misses, and why."""
    roof_s, measured_s = point.step(ex.DECODE).seconds, point.measured_tpot_s
    if point.concurrency is None or not roof_s or not measured_s:
        return []
    context = point.prompt_tokens + point.output_tokens / 2
    prefill, rates, step, sequences = (
        _ms(point.change_s(*effects))
        for effects in ((ex.PREFILL, ex.MIXED, ex.HITS), (ex.RATES,), (ex.STEP,), (ex.SEQUENCE,))
    )
    return [
        f"The decode-only roofline at the mean context ({context:,.0f} tokens) says TPOT {_ms(roof_s)} ms at "
        f"{point.load}, measured {_ms(measured_s)}: {measured_s / roof_s:.1f}x. Prefill shares the steps ({prefill} ms "
        f"a token at peak FLOP/s), rates below their peaks take {rates} ms, and a fixed overhead of {step} ms a step "
        f"and {sequences} ms for its sequences does not amortise."
    ]


def _intercept(points: Sequence[Explanation]) -> list[str]:
    """What one user's step takes beyond reading the weights."""
    single = next((point for point in points if point.concurrency == 1), None)
    if single is None:
        return []
    ideal, measured = single.steps[0].seconds or 0.0, single.steps[-1].seconds or 0.0
    rates, engine = single.change_s(ex.RATES), single.change_s(ex.STEP, ex.SEQUENCE)
    return [
        f"At C=1 a token takes {_ms(measured)} ms, reading the weights once {_ms(ideal)}: "
        f"{(measured - ideal) * 1e3:.1f} ms a step beyond the ideal. The model's parts: rates below their peaks "
        f"{_ms(rates)} ms, the engine's own time {_ms(engine)} ms; one model size cannot tell the two apart."
    ]


def settings(judged: Iterable[Hypothesis]) -> list[str]:
    """What the tails say of each setting that was tried."""
    groups: dict[str, list[Hypothesis]] = {}
    for each in judged:
        groups.setdefault(each.setting, []).append(each)
    return [_setting(name, tried) for name, tried in groups.items() if name in SETTINGS]


def _setting(name: str, tried: list[Hypothesis]) -> str:
    where = _points({key.split()[0] for each in tried for key in each.figures})
    fits, others = ([each for each in tried if each.supported is side] for side in (True, False))
    what, said = SETTINGS[name], f"The tails at {where} (TTFT p50 and p99, ITL p99; RMS log error)"
    if not fits:
        best = min(tried, key=lambda each: each.error)
        none = "neither" if name == "async_scheduling" else "no value tried of"
        return f"{said} fit {none} {what.removesuffix(' of')}{_ON_OFF.get(name, '')}; nearest {_judged(best)}."
    if not others:
        return f"{said} do not tell {what.removesuffix(' of')}: {_all(tried, 'and')} fit alike."
    return f"{said} fit {what} {_all(fits, 'or')}, not {_all(others, 'or')}."


def _judged(each: Hypothesis) -> str:
    value = f"{each.value:,.0f}" if each.setting == "max_num_batched_tokens" else each.name.partition("=")[2]
    return f"{value} ({each.error:.2f})"


def _all(tried: Sequence[Hypothesis], joint: str) -> str:
    *first, last = [_judged(each) for each in tried]
    return f"{', '.join(first)} {joint} {last}" if first else last


def _set_aside(aside: Sequence[Case]) -> list[str]:
    said = []
    for case in aside:
        if below_floor(case):
            ttft, floor = case.tails["ttft_s.p50"], case.servers.prompt_floor_s
            said.append(
                f"{case.name}: the median TTFT of {_ms(ttft)} ms is below the {_ms(floor)} ms that its prompts take at "
                f"peak FLOP/s: at least {_pct(1 - ttft / floor)} of each was found in the prefix cache."
            )
    others = [case for case in aside if not below_floor(case)]
    if others:
        said.append(_cached_points(others))
    return said


def _cached_points(cases: Sequence[Case]) -> str:
    many = len(cases) > 1
    return (
        f"{_points([case.name for case in cases])} {'are' if many else 'is'} set aside from the settings: the median "
        "TTFT is far below what any token budget gives. Prompts found in the prefix cache do that (their rate is not "
        "stated), and so do prompts computed faster than by these constants."
    )


def _hit_rate(judged: Iterable[Hypothesis]) -> list[str]:
    """The hit rate that the points set aside speak for."""
    tried = [each for each in judged if each.setting == "prefix_hit_rate"]
    if not tried:
        return []
    best = min(tried, key=lambda each: each.error)
    none = next(each for each in tried if each.value == 0)
    where = _points({key.split()[0] for key in best.figures})
    return [
        f"If they were cached: at {where} TTFT is nearest to that of {_pct(best.value)} of the prompts found whole in "
        f"the prefix cache (error {best.error:.2f}; none found: {none.error:.2f})."
    ]


def _points(names: Iterable[str]) -> str:
    """``C=2, C=4 and C=8``, in order of load."""
    ordered = sorted(names, key=lambda name: float("".join(c for c in name if c.isdigit() or c == ".") or 0))
    return f"{', '.join(ordered[:-1])} and {ordered[-1]}" if len(ordered) > 1 else ordered[0]


def _ms(seconds: float) -> str:
    """Milliseconds to three significant digits, at most three decimals."""
    value = seconds * 1e3
    decimals = 3 if abs(value) < 0.1 else 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, min(3, decimals))}f}"


def _pct(share: float) -> str:
    return f"{share * 100:.0f} %"


def _signed(value: float) -> str:
    return f"{value:+,.0f}"
