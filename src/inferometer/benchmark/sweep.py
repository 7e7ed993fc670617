"""Several points of load, one after the other: a sweep, refined around its bend, and stopped once overloaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from inferometer.benchmark.bench import Bench, level_of
from inferometer.benchmark.job import Endpoint
from inferometer.benchmark.progress import Watch
from inferometer.errors import InputError
from inferometer.records.metrics import throughput_knee
from inferometer.records.overload import overloaded
from inferometer.records.run import Run
from inferometer.specs.checks import positive, whole
from inferometer.specs.workload import Workload

LOST = 0.9
"""A closed loop is overloaded where more users get less than this share of the best output rate so far."""
FAILING = 0.5
"""Any loop is, where so many of its requests fail."""
CLOSEST = 1.1
"""No point is put between two that are less than this factor apart."""


def bench_sweep(
    url: str,
    workloads: Sequence[Workload],
    model: str | None = None,
    endpoint: Endpoint = "completions",
    metrics_url: str | None = None,
    server_log: str | None = None,
    *,
    repeats: int = 1,
    refine: int = 0,
    stop_when_overloaded: bool = True,
    resume: bool = False,
    watch: Watch | None = None,
    on_run: Callable[[Run], None] | None = None,
    **options: Any,
) -> list[Run]:
    """Measure each workload in turn, and return the runs in order of their load.

    The arguments that `bench` has are as there. A fresh seed is drawn for every point, so that no point finds the
    prompts of the one before in the server's cache; with ``seed`` point i has seed + i.

    Args:
        repeats: measure each point so often, each time with a seed of its own.
        refine: so many times, put points between the bend of the curve and its neighbours (geometric means).
        stop_when_overloaded: leave out the higher loads once one was too much: an open loop that was not kept up with
            (`records.overload.overloaded`), a closed loop that gave less than 0.9 of the best rate, half of the
            requests failed.
        resume: take points that the store already holds (same server, model, endpoint, workload and options, whole
            and not unfit) as they are.
        on_run: called with each run as it is done.

    Raises:
        InputError: as `bench`; no workloads; ``refine`` for workloads that have no level.

    >>> bench_sweep("http://127.0.0.1:8000", [])
    Traceback (most recent call last):
    inferometer.errors.InputError: workloads: 0 is not allowed; give at least one workload
    """
    if not workloads:
        raise InputError("workloads", 0, "at least one workload")
    whole("repeats", repeats, 1), whole("refine", refine)
    setup = Bench(url, model, endpoint, metrics_url, server_log, watch, options)
    return _Sweep(setup, repeats, stop_when_overloaded, resume, on_run).run(list(workloads), refine)


class _Sweep:
    def __init__(
        self, setup: Bench, repeats: int, stop: bool, resume: bool, on_run: Callable[[Run], None] | None
    ) -> None:
        self.setup, self.repeats, self.stop, self.resume, self.on_run = setup, repeats, stop, resume, on_run
        self.runs: list[Run] = []
        self.points = 0

    def run(self, workloads: list[Workload], refine: int) -> list[Run]:
        """All points, then those between, in order of load."""
        self.points = len(workloads) * self.repeats
        too_much = not self._all(workloads)
        for _ in range(refine):
            if self.interrupted:
                break
            between = list(self._between(workloads, too_much))
            self.points += len(between) * self.repeats
            self._all(between)
            workloads += between
        return sorted(self.runs, key=lambda run: level_of(run) or 0.0)

    def _all(self, workloads: list[Workload]) -> bool:
        """Measure them; False where one was too much and the rest was left out."""
        for workload in sorted(workloads, key=lambda w: w.concurrency or w.rate_per_s or 0.0):
            done = [self._point(workload, repeat) for repeat in range(self.repeats) if not self.interrupted]
            if self.interrupted:
                return True
            if self.stop and any(self.too_much(run) for run in done):
                return False
        return True

    def _point(self, workload: Workload, repeat: int) -> Run:
        number = len(self.runs)
        run = self.setup.kept(workload, repeat) if self.resume else None
        run = run or self.setup.point(workload, repeat=repeat, number=number, points=max(self.points, number + 1))
        self.runs.append(run)
        if self.on_run:
            self.on_run(run)
        return run

    @property
    def interrupted(self) -> bool:
        """Whether the last point was broken off: nothing is measured after it."""
        return bool(self.runs and self.runs[-1].meta.partial)

    def too_much(self, run: Run) -> bool:
        """Whether the server could not bear this load."""
        summary = run.summary()
        if summary.requests and (summary.failed or 0) > FAILING * summary.requests:
            return True
        if run.meta.request_rate_per_s is not None:
            return overloaded(run, summary)
        lighter = [each for each in self.runs if (level_of(each) or 0) < (level_of(run) or 0)]
        best = max((each.summary().output_tok_per_s or 0.0 for each in lighter), default=0.0)
        return (summary.output_tok_per_s or 0.0) < LOST * best

    def _between(self, workloads: list[Workload], too_much: bool) -> Iterator[Workload]:
        """Workloads halfway (by ratio) between the bend and its neighbours."""
        levels = sorted({level for run in self.runs if (level := level_of(run)) is not None})
        bend = self._bend(levels, too_much)
        if bend is None:
            return
        at = levels.index(bend)
        for low, high in zip(levels[max(at - 1, 0) : at + 1], levels[at : at + 2], strict=False):
            middle = math.sqrt(low * high)
            if low * CLOSEST < middle < high / CLOSEST and (new := at_level(workloads[0], middle)) not in workloads:
                yield new

    def _bend(self, levels: list[float], too_much: bool) -> float | None:
        """Where the curve bends: the knee of a closed loop, the last load of an open one that was borne."""
        knee = throughput_knee(self.runs)
        if knee is not None and knee in levels:
            return knee
        if not levels:
            return None
        return levels[-2] if too_much and len(levels) > 1 else levels[-1]


def at_level(workload: Workload, level: float) -> Workload:
    """The same workload at another concurrency (rounded) or rate: as many requests a user, or as long a time.

    Raises:
        InputError: a workload that has neither, or lengths listed one by one.

    >>> at_level(Workload.closed_loop(concurrency=8, requests=80), 16).requests
    160
    """
    changes: dict[str, Any]
    if workload.kind in ("closed", "sessions") and workload.concurrency:
        users = max(1, round(level))
        changes = {"concurrency": users, "requests": _scaled(workload, users / workload.concurrency)}
    elif workload.kind == "open" and workload.rate_per_s:
        rate = positive("request_rate", level)
        changes = {"rate_per_s": rate, "requests": _scaled(workload, rate / workload.rate_per_s)}
    else:
        raise InputError("workload", workload.kind, "a closed or an open loop: its level can be changed")
    for field in ("prompt_tokens", "output_tokens", "cached_tokens"):
        value = getattr(workload, field)
        if isinstance(value, np.ndarray):
            allowed = "one length or a distribution: another level has another number of requests"
            raise InputError(field, f"{len(value)} values", allowed)
    return msgspec.structs.replace(workload, **changes)


def _scaled(workload: Workload, factor: float) -> int:
    each = workload.turns or 1
    return max(1, round((workload.requests or 1) / each * factor)) * each


def geometric(low: float, high: float, points: int, *, whole_numbers: bool = True) -> list[float]:
    """Levels from ``low`` to ``high`` at equal ratios, rounded to whole numbers for a concurrency.

    >>> geometric(1, 64, 7)
    [1, 2, 4, 8, 16, 32, 64]
    """
    first, last = positive("from", low), positive("to", high)
    if last < first:
        raise InputError("to", high, f"at least where the sweep starts, {low:g}")
    count = whole("points", points, 1)
    ratio = (last / first) ** (1 / (count - 1)) if count > 1 else 1.0
    levels = [first * ratio**i for i in range(count)]
    return list(dict.fromkeys(round(level) if whole_numbers else float(f"{level:.6g}") for level in levels))
