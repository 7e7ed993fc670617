"""How well a figure of a run is known: batches of requests in order of sending, resampled.

Requests of one run share steps and queues, so they are no independent draws. What is drawn instead is a batch of
contiguous requests, in order of sending: as many batches as there are times the requests in flight, at most `MOST`.
Percentiles and means: bootstrap over batches, its standard error widened by sqrt(k / (k - 1)) for k batches (Efron and
Tibshirani 1993, 5.6) and read with Student's t. Token rates: the means of k equal spans of the steady part, each at
least a mean E2E long (batch means; Law 2015, 9.5.3). Figures other than shares are taken as logarithms, so that an
interval is of their ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.records.metrics import PerRequest, Summary, output_rates
from inferometer.records.run import OWN_CLOCK, Run

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST, LEAST = 10, 5
"""Batches of a run: never more, and with fewer nothing is said."""
RESAMPLES = 1000
"""A standard error from so many is known to 2 %."""
SEED = 20150101
GRID = 4096
"""Percentiles of more values are resampled on so many quantiles of theirs."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure (in log for all but shares), its standard error and the degrees of freedom of that."""

    centre: float
    stderr: float
    freedom: float


class Batches(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The runs of one point on one side, and their requests in batches."""

    runs: tuple[Run, ...]
    summaries: tuple[Summary, ...]
    each: tuple[PerRequest, ...]
    batch: tuple[Ints, ...]
    """By run, the batch of each request, numbered over all runs; -1: not measured."""
    count: int
    fault: str = ""
    """Why there are none."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Batches:
        """The batches of these runs of one load."""
        summaries, each = tuple(run.summary() for run in runs), tuple(PerRequest(run) for run in runs)
        batch, count, fault = [], 0, ""
        for run, summary, requests in zip(runs, summaries, each, strict=True):
            found, number = _batched(run, summary, requests)
            fault = fault or _fault(run, requests, number)
            batch.append(np.where(found >= 0, found + count, -1))
            count += number
        return cls(
            runs=tuple(runs),
            summaries=summaries,
            each=each,
            batch=tuple(batch),
            count=0 if fault else count,
            fault=fault,
        )

    def values(self, of: Callable[[PerRequest], Floats]) -> tuple[Floats, Ints]:
        """One value a request (or a gap, where ``of`` gives one) that is known, and the batch of each."""
        found, batches = [], []
        for each, batch in zip(self.each, self.batch, strict=True):
            raw = of(each)
            own = batch[each.itl_request] if raw is each.itl else batch
            known = ~np.isnan(raw) & (own >= 0)
            found.append(raw[known])
            batches.append(own[known])
        return np.concatenate(found), np.concatenate(batches)


def _batched(run: Run, summary: Summary, each: PerRequest) -> tuple[Ints, int]:
    """The batch of each request, and how many there are: each holds as many requests as are in flight, or more."""
    rows = np.flatnonzero(each.measured)
    if run.meta.clock != OWN_CLOCK:
        rows = rows[np.argsort(each.scheduled[rows], kind="stable")]
    held = summary.mean_in_flight if run.meta.request_rate_per_s is not None else run.meta.concurrency
    count = min(MOST, rows.size // max(1, round(held or summary.mean_in_flight or 1)))
    batch = np.full(each.measured.size, -1, dtype=np.int64)
    for number, part in enumerate(np.array_split(rows, count) if count else []):
        batch[part] = number
    return batch, count


def _fault(run: Run, each: PerRequest, batches: int) -> str:
    if not each.measured.size:
        return "only aggregates are stated"
    if batches < LEAST:
        return f"too few requests: {int(each.measured.sum())} make {batches} batches of what is in flight, of {LEAST}"
    return ""


def least_values(quantile: float, confidence: float) -> int:
    """How many values an interval of a quantile needs: with fewer, the largest seen may lie below it by chance.

    >>> least_values(0.99, 0.95), least_values(0.5, 0.95)
    (368, 6)
    """
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(quantile, 1 - quantile)))


def statistic(values: Floats, batch: Ints, count: int, part: str) -> Estimate:
    """A mean or percentile of positive values, in log."""
    weights = _weights(count)
    if part == "mean":
        centre, drawn = float(values.mean()), _means(values, batch, count, weights)
    else:
        centre = float(np.quantile(values, QUANTILES[part]))
        drawn = _percentiles(values, batch, count, weights, QUANTILES[part])
    stderr = _stderr(np.log(drawn), count) * _dependence(values, batch, count)
    return Estimate(centre=math.log(centre), stderr=stderr, freedom=count - 1)


def ratio(values: Floats, batch: Ints, count: int, over: str, under: str) -> Estimate:
    """One percentile of positive values over another, in log."""
    weights = _weights(count)
    one, two = (_percentiles(values, batch, count, weights, QUANTILES[part]) for part in (over, under))
    centre = float(np.log(np.quantile(values, QUANTILES[over]) / np.quantile(values, QUANTILES[under])))
    stderr = _stderr(np.log(one / two), count) * _dependence(values, batch, count)
    return Estimate(centre=centre, stderr=stderr, freedom=count - 1)


def share(hits: Floats, batch: Ints, count: int) -> Estimate:
    """A share, as it is: its standard error is at least that of as many independent draws, one of each kind added."""
    drawn = _means(hits, batch, count, _weights(count))
    likely = (hits.sum() + 1) / (hits.size + 2)
    least = math.sqrt(likely * (1 - likely) / hits.size)
    stderr = max(_stderr(drawn, count) * _dependence(hits, batch, count), least)
    return Estimate(centre=float(hits.mean()), stderr=stderr, freedom=count - 1)


@cache
def _weights(count: int) -> Floats:
    """How often each resample has each batch."""
    drawn = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return np.asarray(drawn, dtype=np.float64)


def _stderr(drawn: Floats, count: int) -> float:
    known = drawn[np.isfinite(drawn)]
    return float(known.std() * math.sqrt(count / (count - 1))) if known.size > 1 else math.inf


def _dependence(values: Floats, batch: Ints, count: int) -> float:
    """By what a standard error grows as neighbouring batches resemble each other, by their means."""
    sizes = np.bincount(batch, minlength=count)
    return dependence(np.bincount(batch, values, count)[sizes > 0] / sizes[sizes > 0])


def dependence(means: Floats) -> float:
    """``sqrt((1 + r) / (1 - r))`` for the correlation r of neighbours, of an AR(1) series; never below 1.

    The correlation seen in k values is too low by about 1 / k (Kendall 1954), which is added.

    >>> dependence(np.array([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])), round(dependence(np.arange(10.0)), 2)
    (1.0, 3.0)
    """
    off = means - means.mean()
    spread = float(off @ off)
    if not spread > 0:
        return 1.0
    near = float(off[1:] @ off[:-1]) / spread + 1 / means.size
    return math.sqrt((1 + near) / (1 - near)) if 0 < near < 1 else 1.0


def _means(values: Floats, batch: Ints, count: int, weights: Floats) -> Floats:
    sums, sizes = np.bincount(batch, values, count), np.bincount(batch, minlength=count)
    with np.errstate(invalid="ignore"):
        return np.asarray((weights @ sums) / (weights @ sizes))


def _percentiles(values: Floats, batch: Ints, count: int, weights: Floats, quantile: float) -> Floats:
    """The percentile of each resample: by halving, from the counts of each batch up to each value of a grid."""
    grid = np.unique(values)
    if grid.size > GRID:
        grid = np.unique(np.quantile(values, np.linspace(0, 1, GRID)))
    order = np.argsort(batch, kind="stable")
    parts = np.split(values[order], np.cumsum(np.bincount(batch, minlength=count))[:-1])
    below = np.stack([np.searchsorted(np.sort(part), grid, side="right") for part in parts], axis=1)
    wanted = quantile * (weights * below[-1]).sum(axis=1)
    first, last = np.zeros(len(weights), dtype=np.int64), np.full(len(weights), grid.size - 1)
    for _ in range(int(grid.size).bit_length()):
        middle = (first + last) // 2
        short = (weights * below[middle]).sum(axis=1) < wanted
        first, last = np.where(short, np.minimum(middle + 1, last), first), np.where(short, last, middle)
    return np.asarray(np.where(wanted > 0, grid[last], np.nan))


def output_rate(batches: Batches) -> Estimate | str:
    """Output tok/s in log, over all runs of the point; why not where it cannot be told."""
    rates = [summary.output_tok_per_s for summary in batches.summaries]
    sides = zip(batches.runs, batches.summaries, batches.each, strict=True)
    spreads = [_rate_spread(run, summary, each) for run, summary, each in sides]
    known = [spread for spread in spreads if not isinstance(spread, str)]
    if len(known) < len(spreads):
        return next(spread for spread in spreads if isinstance(spread, str))
    centre = float(np.mean([rate or 0.0 for rate in rates]))
    stderr = math.sqrt(sum(variance for variance, _ in known)) / len(known)
    freedom = float(sum(spans - 1 for _, spans in known))
    return Estimate(centre=math.log(centre), stderr=stderr, freedom=freedom) if centre > 0 else "no token came"


def _rate_spread(run: Run, summary: Summary, each: PerRequest) -> tuple[float, int] | str:
    """The relative variance of a run's rate, and the spans it comes from."""
    sent, end = each.occupied
    if not sent.size or not summary.e2e_s.mean:
        return "nothing is known of when requests were sent"
    span = each.window or (float(sent[0]), float(end[-1]))
    count = min(MOST, int((span[1] - span[0]) / summary.e2e_s.mean * (1 + 1e-9)))
    if count < LEAST:
        return f"too short: {count} mean E2E long, of {LEAST}"
    rates = output_rates(each, np.linspace(*span, count + 1))
    if rates is None or not rates.mean() > 0:
        return "no output tokens are known"
    return float(rates.var(ddof=1) / count / rates.mean() ** 2) * dependence(rates) ** 2, count


def repeats(values: Sequence[float], *, in_log: bool) -> Estimate:
    """Of one figure of several runs: mean and standard error of the mean."""
    raw = np.log(values) if in_log else np.asarray(values, dtype=np.float64)
    return Estimate(
        centre=float(raw.mean()), stderr=float(raw.std(ddof=1) / math.sqrt(raw.size)), freedom=float(raw.size - 1)
    )


def difference(a: Estimate, b: Estimate) -> Estimate:
    """b less a; degrees of freedom by Welch and Satterthwaite.

    >>> one = Estimate(centre=1.0, stderr=0.3, freedom=4)
    >>> two = Estimate(centre=1.5, stderr=0.4, freedom=4)
    >>> found = difference(one, two)
    >>> round(found.stderr, 3), round(found.freedom, 2)
    (0.5, 7.42)
    """
    va, vb = a.stderr**2, b.stderr**2
    spread = va * va / a.freedom + vb * vb / b.freedom
    freedom = (va + vb) ** 2 / spread if 0 < spread < math.inf else math.inf
    return Estimate(centre=b.centre - a.centre, stderr=math.sqrt(va + vb), freedom=freedom)


def half_width(found: Estimate, confidence: float) -> float:
    """Half the two-sided interval by Student's t."""
    from scipy import stats

    return found.stderr * float(stats.t.ppf((1 + confidence) / 2, found.freedom)) if found.stderr else 0.0


def chance(found: Estimate) -> float:
    """How likely so large a difference is where there is none (two-sided p)."""
    from scipy import stats

    if not found.stderr:
        return 1.0 if found.centre == 0 else 0.0
    return float(2 * stats.t.sf(abs(found.centre) / found.stderr, found.freedom))


def holm(chances: Sequence[float]) -> list[float]:
    """Each p adjusted for there being several (Holm 1979): below a level as often as one alone would be.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    adjusted, highest = [0.0] * len(chances), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, chances[at] * (len(chances) - rank)))
        adjusted[at] = highest
    return adjusted
