"""Settings that the server may have had, judged by its tails.

Throughput and TPOT identify no mechanism: what one setting costs can be hidden in another's constants. The tails can
(``docs/explanation/explaining-a-gap.md``): TTFT p50 and p99 say how prompts wait for each other, ITL p99 how long the
steps are that carry them. Each candidate is simulated in full; its error is the root mean square of the logarithms
ln(simulated / measured) over those figures of all points that can be trusted.

A point whose hit rate is not known, and whose median TTFT is far below what every token budget gives when no prompt is
cached, is set aside: prompts that were not computed say nothing of how they were packed into steps. Such points are
judged apart, by candidates for the hit rate; that they were cached remains a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from inferometer.errors import InputError
from inferometer.prediction.predict import MOST_TOKEN_TIMES
from inferometer.records.metrics import Summary
from inferometer.records.run import Run
from inferometer.scoring.counterfactuals import ALL, Counterfactuals, plain_flags
from inferometer.scoring.explanation import Hypothesis
from inferometer.specs.deployment import Deployment

BUDGETS = (1024, 2048, 4096, 8192)
"""Token budgets that engines ship with, tried beside the stated one."""
HIT_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
TAILS = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p99"))
CACHED = 0.75
"""A median TTFT below this share of the least that any budget gives sets the point aside."""
FITS = 0.2
"""A setting whose tails are further off (about 20 %) is not supported, however bad the others are."""
MUCH_BETTER = 1.25
"""Nor is one whose error is more than this many times the best one's."""


class Case(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One measured point: its counterfactual servers, and what was measured."""

    name: str
    """``C=64``."""
    servers: Counterfactuals
    measured: Summary
    run: Run
    notes: tuple[str, ...] = ()
    """Where its server was another than the deployment says."""

    @property
    def tails(self) -> dict[str, float]:
        """The measured figures of `TAILS` that are known and above 0, by ``METRIC.STATISTIC``."""
        values = {f"{m}.{p}": getattr(getattr(self.measured, m), p) for m, p in TAILS}
        return {path: value for path, value in values.items() if value}


def judge(cases: Sequence[Case]) -> tuple[list[Hypothesis], list[Case]]:
    """Every setting judged, and the cases that were set aside as cached ones of a rate that is not known."""
    cases = [case for case in cases if case.tails]
    if not cases:
        return [], []
    budgets = {n: found for n in _budgets(cases) if (found := _tails(cases, max_num_batched_tokens=n))}
    aside = [case for case in cases if _cached(case, list(budgets.values()))]
    clean = [case for case in cases if case not in aside]
    stated, budget = cases[0].servers.dep.resolved(), _stated_budget(cases)
    judged = _ranked([_judged("max_num_batched_tokens", n, budget, t, clean) for n, t in budgets.items()])
    if stated.async_scheduling:
        lagging = {on: _tails(clean, async_scheduling=on) for on in (True, False)} if clean else {}
        judged += _ranked([_judged("async_scheduling", on, True, found, clean) for on, found in lagging.items()])
    return judged + _hit_rates(aside), aside


def _budgets(cases: Sequence[Case]) -> list[int]:
    return sorted({*BUDGETS, *(case.servers.dep.resolved().max_num_batched_tokens for case in cases)})


def _stated_budget(cases: Sequence[Case]) -> int | None:
    """What all servers are said to have had; None where they differ."""
    said = {case.servers.dep.resolved().max_num_batched_tokens for case in cases}
    return said.pop() if len(said) == 1 else None


Tails = dict[str, dict[str, float]]
"""Simulated figures by case and path."""


def _tails(cases: Sequence[Case], **flags: int | bool) -> Tails:
    """The tails of every case under other flags; empty where the engine would refuse them or nothing fits."""
    try:
        return {case.name: _simulated(case.servers, _changed(case.servers.dep, flags), case) for case in cases}
    except InputError:  # DoesNotFitError is one
        return {}


def _changed(dep: Deployment, flags: dict[str, int | bool]) -> Deployment:
    return msgspec.structs.replace(dep, flags={**plain_flags(dep), **flags})


def _simulated(servers: Counterfactuals, dep: Deployment, case: Case) -> dict[str, float]:
    times = "itl_s.p99" in case.tails and int(servers.load.output.sum()) <= MOST_TOKEN_TIMES
    found = servers.run(dep, servers.load.as_sent(), *ALL, token_times=times).summary
    values = {f"{m}.{p}": getattr(getattr(found, m), p) for m, p in TAILS}
    return {path: value for path, value in values.items() if value}


def _cached(case: Case, budgets: list[Tails]) -> bool:
    """Whether the point's prompts were found in a cache that nobody stated: see the module."""
    p50 = "ttft_s.p50"
    least = min((tails[case.name].get(p50, math.inf) for tails in budgets), default=math.inf)
    unknown = case.servers.load.hits is None
    return unknown and p50 in case.tails and case.tails[p50] < CACHED * least < math.inf


def _judged(setting: str, value: float, stated: float | None, tails: Tails, cases: Sequence[Case]) -> Hypothesis:
    figures = {
        f"{case.name} {path}": (simulated, case.tails[path])
        for case in cases
        for path, simulated in tails.get(case.name, {}).items()
        if path in case.tails
    }
    squares = [math.log(simulated / measured) ** 2 for simulated, measured in figures.values()]
    return Hypothesis(
        name=f"{setting}={'on' if value is True else 'off' if value is False else format(value, 'g')}",
        setting=setting,
        value=float(value),
        stated=value == stated,
        error=math.sqrt(sum(squares) / len(squares)) if squares else math.inf,
        figures=figures,
        supported=False,
    )


def _ranked(judged: list[Hypothesis]) -> list[Hypothesis]:
    """Those with figures, each supported or not; where there is nothing to compare with, none."""
    known = [each for each in judged if each.figures]
    if len(known) < 2:
        return []
    most = min(FITS, MUCH_BETTER * min(each.error for each in known))
    return [msgspec.structs.replace(each, supported=each.error <= most) for each in known]


def _hit_rates(aside: Sequence[Case]) -> list[Hypothesis]:
    """One hit rate for all the points set aside, but for those that no computed prompt could reach."""
    cases = [case for case in aside if not below_floor(case)]
    if not cases:
        return []
    return _ranked(
        [_judged("prefix_hit_rate", share, None, dict(_with_hits(cases, share)), cases) for share in HIT_RATES]
    )


def _with_hits(cases: Sequence[Case], share: float) -> Iterator[tuple[str, dict[str, float]]]:
    for case in cases:
        old = case.servers
        load = old.load.with_hits(share)
        servers = Counterfactuals(old.dep, load, old.real, case.run, old.seed)
        yield case.name, _simulated(servers, servers.dep, case)


def below_floor(case: Case) -> bool:
    """Whether the median TTFT is below what the prompt's products alone take at peak."""
    return case.tails.get("ttft_s.p50", math.inf) < case.servers.prompt_floor_s
