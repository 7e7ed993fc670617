"""A run as the checks of an audit look at it: its figures, what is known of its server, and what it is called."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from inferometer.benchmark.fitness import sharing_asked
from inferometer.records.metrics import Floats, PerRequest, Summary
from inferometer.records.run import OWN_CLOCK, Run
from inferometer.scoring.auditing.finding import KINDS, Finding, Severity
from inferometer.scoring.likeness import ALIKE, mean_tokens
from inferometer.specs.deployment import Deployment


class Point:
    """One run of the sweep; every figure is computed when first asked for."""

    def __init__(
        self,
        run: Run,
        dep: Deployment | None = None,
        prompt_tokens: float | None = None,
        output_tokens: float | None = None,
        where: str = "",
    ) -> None:
        self.run, self.meta, self.dep = run, run.meta, dep
        self._asked = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        self.where = where or load_name(run)
        self.knee: int | None = None
        """The throughput knee of the sweep that this is a point of."""

    def finding(
        self,
        code: str,
        evidence: str,
        value: float | None = None,
        limit: float | None = None,
        *,
        severity: Severity | None = None,
        advice: str | None = None,
    ) -> Finding:
        """A finding at this point, of its kind's severity and advice unless given."""
        kind = KINDS[code]
        return Finding(
            code=code,
            severity=severity or kind.severity,
            where=self.where,
            evidence=evidence,
            advice=kind.advice if advice is None else advice,
            value=None if value is None else float(value),
            limit=None if limit is None else float(limit),
        )

    @cached_property
    def summary(self) -> Summary:
        """Its metrics."""
        return self.run.summary()

    @cached_property
    def each(self) -> PerRequest:
        """Its metrics, request by request; empty arrays where only aggregates are stated."""
        return PerRequest(self.run)

    @property
    def has_rows(self) -> bool:
        """Whether its requests are known."""
        return bool(self.run.requests.height)

    @property
    def one_clock(self) -> bool:
        """Whether its requests are known on one clock."""
        return self.has_rows and self.meta.clock != OWN_CLOCK

    @property
    def users(self) -> int | None:
        """Users of a closed loop; None for an open one."""
        return self.meta.concurrency if self.meta.request_rate_per_s is None else None

    @property
    def requests(self) -> int | None:
        """Requests sent, else those that its load is of."""
        asked = self.meta.workload.get("num_prompts", self.meta.workload.get("requests"))
        return self.summary.requests or (asked if isinstance(asked, int) else None)

    @property
    def sharing_asked(self) -> bool:
        """Whether cached prompt tokens are part of the load: of a simulated run they always are."""
        return self.meta.kind == "simulated" or sharing_asked(self.run)

    def tokens(self, name: str) -> float | None:
        """The mean of ``prompt_tokens`` or ``output_tokens``: of its requests, else as asked for; None if not known."""
        known = mean_tokens(self.run, name)
        return known if known is not None else self.asked(name)

    def asked(self, name: str) -> float | None:
        """The length asked for where that is one number: by the run itself, else by whoever audits it."""
        own = self.meta.workload.get(name)
        return float(own) if isinstance(own, int | float) and not isinstance(own, bool) else self._asked[name]

    def fact(self, name: str) -> Any:
        """What is known of the server by a name of `EngineLog`: from its log, its flags, or the run's deployment."""
        log, deployment = self.meta.server.get("log") or {}, self.meta.deployment
        places = (self.meta.server, log, self.meta.server.get("flags"), log.get("flags"), deployment)
        tables = [table for table in (*places, deployment.get("flags")) if isinstance(table, dict)]
        return next((table[name] for table in tables if table.get(name) is not None), None)

    @cached_property
    def max_num_seqs(self) -> int | None:
        """Most requests that the server runs at once: as known of it, else by the deployment it is held against."""
        told = self.fact("max_num_seqs")
        if isinstance(told, int):
            return told
        return self.dep.resolved().max_num_seqs if self.dep else None

    @cached_property
    def hit_share(self) -> tuple[float, str] | None:
        """Share of the prompt tokens that came from the prefix cache, and how that is known."""
        from inferometer.benchmark.fitness import prompt_tokens_cached

        hits, queries = prompt_tokens_cached(self.run) or (0.0, 0.0)
        if queries:
            return hits / queries, f"{hits:,.0f} of {queries:,.0f} prompt tokens by the server's counters"
        rate = self.summary.prefix_hit_rate
        if rate is None:
            # a counter that is there and stands still says that nothing was even looked up
            return (0.0, "by the server's counters") if "prefix_cache_queries" in self.meta.counters else None
        return rate, "as the answers say" if self.has_rows else "as the source states it"

    @cached_property
    def trend(self) -> tuple[Floats, Floats]:
        """Send time and TPOT of the completed requests by order of sending, without the first and the last users'.

        A closed loop fills and empties the server, which is no trend.
        """
        known = ~np.isnan(self.each.tpot)
        order = np.argsort(self.each.sent[known], kind="stable")
        edge = self.users or 0
        kept = slice(edge, order.size - edge) if order.size > 2 * edge else slice(0, 0)
        return self.each.sent[known][order][kept], self.each.tpot[known][order][kept]


def other_load(run: Run, prompt_tokens: float | None) -> bool:
    """Whether the run's prompts are visibly (`ALIKE`) of another mean length than was asked for."""
    own = mean_tokens(run, "prompt_tokens")
    return own is not None and prompt_tokens is not None and not math.isclose(own, prompt_tokens, rel_tol=ALIKE)


def load_name(run: Run) -> str:
    """``C=8``, ``2/s``, else the run's name, else ``run``."""
    if run.meta.request_rate_per_s is not None:
        return f"{run.meta.request_rate_per_s:g}/s"
    return run.meta.name or "run" if run.meta.concurrency is None else f"C={run.meta.concurrency}"


def names(runs: Iterable[Run]) -> list[str]:
    """What each is called: its load, after its arm where there are several, with its name where two are alike."""
    runs = list(runs)
    arms = len({run.meta.arm for run in runs}) > 1
    plain = [f"{run.meta.arm or 'base'} {load_name(run)}" if arms else load_name(run) for run in runs]
    twice = {name for name in plain if plain.count(name) > 1}
    own = [run.meta.name or str(number) for number, run in enumerate(runs, 1)]
    return [f"{name} ({each})" if name in twice else name for name, each in zip(plain, own, strict=True)]
