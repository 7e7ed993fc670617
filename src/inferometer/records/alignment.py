"""When a run began by a server's clock: what the client received, laid over what the server counted.

A result file often knows its times only from its first request on. The server's pages (or the step lines of its log)
have the time of day and cumulative counts. The start is the shift of the client's own cumulative count at which the
two agree: for every page, tokens counted by the server less tokens received by the client is one constant, what had
been counted before. The misfit of a shift is the mean of those differences from their median, in steps' worth of
tokens and cut off at `CUT`, so that a page in which something else was served (a warm-up) does not decide. Tokens that
no page covers count as `CUT` too: else a shift to where there are no pages would fit best.

A first search goes over all shifts a quarter of a page's interval apart, a second over milliseconds around the best.
The uncertainty is twice the spread of the best shift over redraws of the pages with replacement (Efron's bootstrap),
and never below `LATENCY_S`: a page's time is that of asking for it, a token's that of its arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferometer.records.engine_log import EngineLog
from inferometer.records.metrics import PerRequest
from inferometer.records.run import OWN_CLOCK, Run

Floats = npt.NDArray[np.float64]

CUT = 5.0
"""Steps' worth of tokens (or requests) by which a page may disagree at most."""
POOR = 2.5
"""A misfit above this is no fit: genuine pairs of result and pages lie below 2, those of other runs above 3."""
LATENCY_S = 0.02
LEAST_PAGES = 5
MOST_PAGES = 400
REDRAWS = 200
ZONE_STEP_S = 900.0
"""Time zones are whole quarters of an hour apart."""
BEFORE_WRITTEN_S, AFTER_WRITTEN_S = 6.0, 2.0
"""A result is stamped, to the second, so long after its run's end at most; and so long before it by rounding."""


class Signal(NamedTuple):
    """One thing that both sides count."""

    seen: Floats
    """What the server had counted, at each of its times."""
    expected: Callable[[Floats], Floats]
    """What the client had by so many seconds from its start."""
    total: float
    quantum: float
    """As much as one step of the server adds at most."""


class Seen(NamedTuple):
    """What the server saw of a run: times in seconds since 1970, and what was counted by then, the finest first."""

    times: Floats
    signals: list[Signal]


class Alignment(NamedTuple):
    """When a run's clock read 0."""

    started_unix_s: float
    uncertainty_s: float
    misfit: float

    @property
    def good(self) -> bool:
        """Whether the two sides are of one run at all."""
        return self.misfit <= POOR


def pages_seen(run: Run, times: Floats, counted: dict[str, Floats], engine: str | None) -> Seen | None:
    """What pages show of a run; None where run or pages lack what is needed. ``counted`` by our counters' names.

    Tokens as they come are counted by vLLM only: other engines count them when a request ends.
    """
    each = PerRequest(run)
    signals: list[Signal] = []
    if engine == "vllm" and each.token_events is not None and "generation_tokens" in counted:
        events, tokens = each.token_events
        if events.size:
            signals.append(_signal(counted["generation_tokens"], events, tokens, _most_at_once(each)))
    ends = each.occupied[1]
    if "requests_finished" in counted and ends.size:
        signals.append(_signal(counted["requests_finished"], ends, np.ones(ends.size), 1.0))
    return Seen(times, signals) if signals and times.size > 1 else None


def log_seen(run: Run, log: EngineLog) -> Seen | None:
    """What a log's step lines show: the decoded tokens up to each second, the resolution of its times.

    A request's first token is the end of its prompt's step, which the lines do not count as generation.
    """
    each = PerRequest(run)
    stamps, tokens = (log.iterations.get(name, []) for name in ("time_unix_s", "generation_tokens"))
    known = [(at, n) for at, n in zip(stamps, tokens, strict=True) if at is not None]
    if run.token_times is None or len(known) < LEAST_PAGES or not each.occupied[0].size:
        return None
    at, n = np.array(known, dtype=np.float64).T
    order = np.argsort(at, kind="stable")
    seconds = np.arange(at.min(), at.max() + 2)
    up_to = np.concatenate(([0.0], np.cumsum(n[order])))[np.searchsorted(at[order], seconds)]
    later = np.ones(run.token_times.times_s.size, dtype=bool)
    later[run.token_times.offsets[:-1][np.diff(run.token_times.offsets) > 0]] = False
    events = run.token_times.times_s[later]
    return Seen(seconds, [_signal(up_to, events, np.ones(events.size), _most_at_once(each))]) if events.size else None


def _most_at_once(each: PerRequest) -> float:
    return float(max(each.in_flight_at_send.max(), 1)) if each.occupied[0].size else 1.0


def _signal(seen: Floats, events: Floats, weights: Floats, quantum: float) -> Signal:
    order = np.argsort(events, kind="stable")
    times, sums = events[order], np.concatenate(([0.0], np.cumsum(weights[order])))

    def expected(at: Floats) -> Floats:
        return np.asarray(sums[np.searchsorted(times, at, side="right")])

    return Signal(seen, expected, float(sums[-1]), quantum)


def align(run: Run, seen: Seen) -> Alignment | None:
    """When the run began; None where its requests have no common clock. See `Alignment.good` for other runs' pages."""
    ends = PerRequest(run).occupied[1]
    if run.meta.clock == OWN_CLOCK or not ends.size:
        return None
    fit = _Fit(seen, float(ends[-1]))
    coarse = fit.best(_among(_candidates(fit), run, fit.span_s), seen.signals)
    return fit.refined(coarse)


class _Fit:
    """The misfit of shifts of one run against one server's times."""

    def __init__(self, seen: Seen, span_s: float) -> None:
        self.seen, self.span_s = seen, span_s
        self.interval_s = max(float(np.median(np.diff(seen.times))), 1e-3)

    def misfit(self, shifts: Floats, signals: Sequence[Signal]) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
        """Of each shift and page the disagreement, whether the page is of the run's time, and of each shift `CUT` times
        the share of the run that no page covers."""
        margin = self.interval_s
        near = _thinned(self.seen.times, shifts[0] - margin, shifts[-1] + self.span_s + margin)
        at = self.seen.times[near][None, :] - shifts[:, None]
        inside = (at > -margin) & (at < self.span_s + margin)
        total, uncovered = np.zeros(at.shape), np.zeros(shifts.size)
        for signal in signals:
            expected = signal.expected(at)
            apart = _from_median(signal.seen[near][None, :] - expected, inside)
            total += np.minimum(np.abs(apart) / signal.quantum, CUT)
            uncovered += 1 - _spread(expected, inside) / signal.total
        return np.where(inside, total, 0.0) / len(signals), inside, CUT * uncovered / len(signals)

    def best(self, shifts: Floats, signals: Sequence[Signal]) -> float:
        """The shift of least misfit, looked for piece by piece, so that few pages are looked at for each."""
        pieces = np.array_split(shifts, max(shifts.size // 256, 1))
        cost = np.concatenate([_mean(*self.misfit(piece, signals)) for piece in pieces])
        return float(shifts[int(np.argmin(cost))])

    def refined(self, coarse: float) -> Alignment:
        """The best shift near another by the finest signal, and how well it is known."""
        step = max(0.001, self.interval_s / 1000)
        shifts = np.arange(coarse - 2 * self.interval_s, coarse + 2 * self.interval_s, step)
        apart, inside, uncovered = self.misfit(shifts, self.seen.signals[:1])
        cost = _mean(apart, inside, uncovered)
        best = int(np.argmin(cost))
        pages = apart.shape[1]
        draws = np.random.default_rng(0).multinomial(pages, [1 / pages] * pages, size=REDRAWS).T.astype(np.float64)
        redrawn = apart @ draws / np.maximum(inside.astype(np.float64) @ draws, 1e-9) + uncovered[:, None]
        spread = 2 * float(shifts[np.argmin(redrawn, axis=0)].std())
        if inside[best].sum() < LEAST_PAGES:
            spread = max(spread, self.interval_s)
        return Alignment(float(shifts[best]), float(np.hypot(spread, LATENCY_S)), float(cost[best]))


def _thinned(times: Floats, start: float, stop: float) -> npt.NDArray[np.intp]:
    """Which times lie between two others: at most `MOST_PAGES`, evenly chosen."""
    near = np.flatnonzero((times >= start) & (times <= stop))
    return near if near.size <= MOST_PAGES else near[np.linspace(0, near.size - 1, MOST_PAGES).astype(np.intp)]


def _from_median(values: Floats, inside: npt.NDArray[np.bool_]) -> Floats:
    """Each row less the median of its values inside; 0 in a row that has none."""
    ordered = np.sort(np.where(inside, values, np.inf), axis=1)
    counts = inside.sum(axis=1)
    if not ordered.shape[1]:
        return values
    below, above = (np.take_along_axis(ordered, np.maximum(at, 0)[:, None], axis=1) for at in _middle(counts))
    return values - np.where(counts[:, None] > 0, (below + above) / 2, values)


def _middle(counts: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return (counts - 1) // 2, counts // 2 - (counts == 0)


def _spread(values: Floats, inside: npt.NDArray[np.bool_]) -> Floats:
    """The largest less the smallest value inside of each row; 0 where there is none."""
    if not values.shape[1]:
        return np.zeros(values.shape[0])
    found = np.where(inside, values, -np.inf).max(axis=1) - np.where(inside, values, np.inf).min(axis=1)
    return np.where(inside.any(axis=1), found, 0.0)


def _mean(apart: Floats, inside: npt.NDArray[np.bool_], uncovered: Floats) -> Floats:
    """The misfit of each shift; of one without any page, `CUT` for its pages too."""
    counts = inside.sum(axis=1)
    return np.where(counts > 0, apart.sum(axis=1) / np.maximum(counts, 1), CUT) + uncovered


def _candidates(fit: _Fit) -> Floats:
    times = fit.seen.times
    return np.arange(times[0] - fit.span_s, times[-1], fit.interval_s / 4)


def _among(shifts: Floats, run: Run, span_s: float) -> Floats:
    """Those shifts at which the run ends when its file was written, in some time zone; all where it does not say."""
    written = _written_s(run)
    if written is None:
        return shifts
    late = (written - (shifts + span_s) + AFTER_WRITTEN_S) % ZONE_STEP_S
    fitting = shifts[late <= AFTER_WRITTEN_S + BEFORE_WRITTEN_S]
    return fitting if fitting.size else shifts


def _written_s(run: Run) -> float | None:
    """When vllm bench serve wrote its result, as if its local time were UTC."""
    if run.meta.tool != "vllm bench serve":
        return None
    try:
        return datetime.fromisoformat(run.meta.created + "+00:00").timestamp()
    except ValueError:
        return None
