"""The highest load that meets an SLO: doubled until it does not, then halved in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from inferometer.benchmark.bench import Bench
from inferometer.benchmark.job import Endpoint
from inferometer.benchmark.progress import Watch
from inferometer.benchmark.sweep import at_level
from inferometer.errors import InputError
from inferometer.records.metrics import wilson_interval
from inferometer.records.run import Run
from inferometer.specs.checks import complaint, positive, whole
from inferometer.specs.slo import Slo
from inferometer.specs.workload import Workload

IDLE = 0.5
"""With fewer requests in flight, on average, a server is idle most of the time: a lower load cannot fare better."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen at one level, over all its runs."""

    level: float
    requests: int
    met: int
    """Requests that met every limit."""
    low: float
    high: float
    """The 95 % Wilson interval of the attainment."""
    passed: bool
    resolved: bool
    """Whether the interval lies on one side of the attainment asked for; if not, ``passed`` goes by the share seen."""

    @property
    def attainment(self) -> float:
        """The share seen."""
        return self.met / self.requests if self.requests else 0.0


class Found(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The result of a search."""

    by: Literal["concurrency", "request_rate"]
    slo: Slo
    level: float | None
    """The highest that passed; None: not even the lowest one tried did."""
    beyond: float | None
    """The lowest that did not; None: none was found up to the highest allowed."""
    resolved: bool
    """Whether both were told by their intervals, not by chance."""
    trials: list[Trial]
    """In order of level."""
    runs: list[Run]
    """In the order measured."""


def bench_search(
    url: str,
    workload: Workload,
    slo: Slo,
    model: str | None = None,
    endpoint: Endpoint = "completions",
    metrics_url: str | None = None,
    server_log: str | None = None,
    *,
    highest: float | None = None,
    resolution: float = 0.05,
    most_runs: int = 3,
    watch: Watch | None = None,
    on_run: Callable[[Run], None] | None = None,
    **options: Any,
) -> Found:
    """Find the highest concurrency (closed loop) or request rate (open loop) whose attainment meets ``slo``.

    Starts at the workload's own level, doubles until the SLO is missed (or halves until it is met), then bisects. A
    level passes by the 95 % Wilson interval of the share of requests sent that met every limit (`Summary.goodput`):
    above ``slo.attainment`` it passed, below it did not; where the interval holds it, the level is measured again, up
    to ``most_runs`` times, and the share seen decides (``resolved`` is then False). A run that was broken off is no
    verdict, and ends the search.

    Args:
        highest: try no higher level.
        resolution: stop once the two levels are within this share of each other (a concurrency: or 1 apart).

    Raises:
        InputError: as `bench`; an SLO without limits; a workload without a level.

    >>> bench_search("http://127.0.0.1:8000", Workload.open_loop(rate_per_s=1, requests=100), Slo())
    Traceback (most recent call last):
    inferometer.errors.InputError: slo: no limit to search for; give ttft_s, tpot_s, itl_s or e2e_s
    """
    if not slo.limits():
        raise complaint("slo", "no limit to search for; give ttft_s, tpot_s, itl_s or e2e_s")
    positive("resolution", resolution), whole("most_runs", most_runs, 1)
    start = workload.concurrency or workload.rate_per_s or 1
    if highest is not None and positive("highest", highest) < start:
        raise InputError("highest", highest, f"at least where the search starts, {start:g}")
    at_level(workload, workload.concurrency or workload.rate_per_s or 1)
    setup = Bench(url, model, endpoint, metrics_url, server_log, watch, {**options, "slo": slo.table()})
    return _Search(setup, workload, slo, most_runs, on_run).run(highest or math.inf, resolution)


class _Search:
    def __init__(
        self, setup: Bench, workload: Workload, slo: Slo, most_runs: int, on_run: Callable[[Run], None] | None
    ) -> None:
        self.setup, self.workload, self.slo, self.most_runs, self.on_run = setup, workload, slo, most_runs, on_run
        self.counts = workload.kind != "open"
        self.runs: list[Run] = []
        self.trials: dict[float, Trial] = {}

    def run(self, highest: float, resolution: float) -> Found:
        """Bracket, then bisect."""
        start = self.workload.concurrency or self.workload.rate_per_s or 1
        good, bad = self._bracket(float(start), highest)
        while good is not None and bad is not None and not self.broken_off and self._apart(good, bad, resolution):
            middle = self._middle(good, bad)
            trial = self.trial(middle)
            if self.broken_off:
                break
            good, bad = (middle, bad) if trial.passed else (good, middle)
        edges = [self.trials[level] for level in (good, bad) if level is not None]
        return Found(
            by="concurrency" if self.counts else "request_rate",
            slo=self.slo,
            level=good,
            beyond=bad,
            resolved=bool(edges) and all(edge.resolved for edge in edges) and not self.broken_off,
            trials=[self.trials[level] for level in sorted(self.trials)],
            runs=self.runs,
        )

    def _bracket(self, level: float, highest: float) -> tuple[float | None, float | None]:
        """A level that passes and one that does not, as far as there are such: upwards, or down where the first fails.

        A level whose run was broken off is neither.
        """
        good: float | None = None
        bad: float | None = None
        while True:
            trial = self.trial(level)
            if self.broken_off:
                return good, bad
            good, bad = (level, bad) if trial.passed else (good, level)
            if (good and bad) or (good is None and self._lowest(level)) or (bad is None and level >= highest):
                return good, bad
            level = min(level * 2, highest) if bad is None else self._half(level)

    def _lowest(self, level: float) -> bool:
        """Whether no lower load is worth a try."""
        in_flight = self.runs[-1].summary().mean_in_flight
        return level <= 1 if self.counts else in_flight is None or in_flight < IDLE

    def _half(self, level: float) -> float:
        return float(level // 2) if self.counts else level / 2

    def _apart(self, good: float, bad: float, resolution: float) -> bool:
        return bad - good > max(1.0 if self.counts else 0.0, resolution * good)

    def _middle(self, good: float, bad: float) -> float:
        middle = math.sqrt(good * bad)
        return float(min(max(round(middle), good + 1), bad - 1)) if self.counts else middle

    def trial(self, level: float) -> Trial:
        """Measure a level until its interval decides or the runs are used up."""
        met = sent = 0
        for number in range(self.most_runs):
            run = self._measure(level, number)
            limits: dict[str, Any] = dict(self.slo.limits())
            good = run.summary().goodput(**limits)
            sent += good.n
            met += good.met
            trial = self._judged(level, met, sent)
            if trial.resolved or self.broken_off:
                break
        if not self.broken_off:
            self.trials[level] = trial
        return trial

    def _measure(self, level: float, repeat: int) -> Run:
        workload = at_level(self.workload, level)
        run = self.setup.point(workload, repeat=repeat, number=len(self.runs), points=None)
        self.runs.append(run)
        if self.on_run:
            self.on_run(run)
        return run

    def _judged(self, level: float, met: int, sent: int) -> Trial:
        low, high = wilson_interval(met, sent)
        target = self.slo.attainment
        # an interval below 1 cannot lie above an attainment of 1
        resolved = low >= target or high < target
        passed = low >= target or (high >= target and sent > 0 and met / sent >= target)
        return Trial(level=level, requests=sent, met=met, low=low, high=high, passed=passed, resolved=resolved)

    @property
    def broken_off(self) -> bool:
        """Whether the last run is not whole: it says nothing of its level, and nothing is measured after it."""
        return bool(self.runs and self.runs[-1].meta.partial)
