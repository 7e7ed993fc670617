"""Whether enough was measured, of a server that was as it is when it is busy: counts, edges, waves, drift."""

from __future__ import annotations

import numpy as np

from inferometer.benchmark.fitness import FEW_PER_USER
from inferometer.records.metrics import Bools, percentile_bounds
from inferometer.records.overload import overloaded
from inferometer.scoring.auditing.finding import Finding, seconds
from inferometer.scoring.auditing.point import Point

P99_REQUESTS = 299
"""Least requests whose largest value lies above the true p99 with 95 % confidence: 1 - 0.99^n."""
EDGE = 0.05
"""Share of the requests (start) or of the time (end) from which an edge of the run shows in its figures."""
EQUAL = 0.01
"""Lengths that differ by less, relative to their mean, keep users in step."""
BATCHES = 8
"""Of consecutive requests, whose median TPOT is looked at for a trend ..."""
LEAST_A_BATCH = 3
"""... of at least so many requests each."""
DRIFT = 0.10
"""From the first half to the second: more than this share of TPOT is drift ..."""
CHANCE = 0.01
"""... where a trend so clear over the batches (Spearman) comes by chance less often than this."""


def few_requests(point: Point) -> Finding | None:
    """Too few for a p99 with an upper bound."""
    n = point.summary.ttft_s.n or point.summary.completed or point.requests
    if n is None or not 0 < n < P99_REQUESTS or point.summary.ttft_s.p99 is None:
        return None
    what = "the p99 is nearly the largest" if n < 100 else "the p99's interval has no upper bound"
    text = f"{n} requests: {what}"
    if point.has_rows:
        low, _ = percentile_bounds(point.each.ttft, "p99")
        bound = "unknown" if low is None else f"{seconds(low)} or more"
        text += f"; TTFT p99 {seconds(point.summary.ttft_s.p99)}, with 95 % confidence {bound}"
    return point.finding("few_requests", text, n, P99_REQUESTS)


def few_per_user(point: Point) -> Finding | None:
    """Fewer requests than measure more than start and end."""
    users, sent = point.users, point.requests
    if users is None or sent is None or sent >= FEW_PER_USER * users:
        return None
    return point.finding("few_per_user", f"{sent} requests of {users} users", sent, FEW_PER_USER * users)


def warmup(point: Point) -> Finding | None:
    """The first request of each user, sent at once to an empty server, among those measured."""
    users, sent = point.users, point.requests
    if not users or not sent or point.meta.window_s is not None or users < EDGE * sent:
        return None
    text = f"the first request of each user is {users / sent:.0%} of all"
    if point.has_rows:
        first = point.each.sent <= np.sort(point.each.sent)[min(users, sent) - 1] if point.one_clock else None
        text += _compared(point, first) if first is not None else ""
    return point.finding("warmup_in_window", text, users / sent, EDGE)


def _compared(point: Point, first: Bools) -> str:
    burst, rest = point.each.ttft[first], point.each.ttft[~first]
    if np.isnan(burst).all() or np.isnan(rest).all():
        return ""
    return f": TTFT p50 {seconds(float(np.nanmedian(burst)))}, of the others {seconds(float(np.nanmedian(rest)))}"


def ramp_down(point: Point) -> Finding | None:
    """The time after the last send in which ever fewer requests are in flight, as a share of the measured time."""
    sent, end = point.each.occupied
    duration = point.summary.duration_s
    ends_itself = point.meta.window_s is not None and point.meta.window_s[1] is not None
    if not point.one_clock or not sent.size or not duration or ends_itself:
        return None
    after = end[end > sent[-1]]
    began = float(after[0] if point.users and after.size else sent[-1])
    share = (float(end[-1]) - began) / duration
    if share <= EDGE:
        return None
    held = point.each.mean_in_flight(began, float(end[-1]))
    left_s = float(end[-1]) - began
    text = f"for the last {seconds(left_s)}, {share:.0%} of the time, nothing is sent, {held:.1f} in flight on average"
    return point.finding("ramp_down_in_window", text, share, EDGE)


def lockstep(point: Point) -> Finding | None:
    """A closed loop of equal lengths: users end together and send together."""
    users = point.users
    if not users or users < 2 or not (_equal(point, "prompt_tokens") and _equal(point, "output_tokens")):
        return None
    stat = point.summary.ttft_s
    if stat.p50 is None or stat.p99 is None:
        return None
    lengths = (point.tokens("prompt_tokens"), point.tokens("output_tokens"))
    text = (
        f"every request is of {lengths[0]:,.0f} + {lengths[1]:,.0f} tokens: {users} users tend to end and send together"
    )
    if point.has_rows:
        least = float(np.nanmin(point.each.ttft))
        text += f"; TTFT {seconds(least)} for the first of a wave, p50 {seconds(stat.p50)}, p99 {seconds(stat.p99)}"
    else:
        text += f"; TTFT p50 {seconds(stat.p50)}, p99 {seconds(stat.p99)}"
    return point.finding("lockstep", text, stat.p99, stat.p50)


def _equal(point: Point, name: str) -> bool:
    if not point.has_rows:
        return point.asked(name) is not None
    known = point.run.requests[name].drop_nulls().to_numpy()
    return bool(known.size and known.mean() > 0 and known.std() <= EQUAL * known.mean())


def drift(point: Point) -> Finding | None:
    """TPOT that rises or falls over the run, by the medians of batches in order of sending."""
    if not point.one_clock or overloaded(point.run, point.summary):
        return None
    _, tpot = point.trend
    batches = min(BATCHES, tpot.size // LEAST_A_BATCH)
    if batches < BATCHES:
        return None
    half = tpot.size // 2
    early, late = float(np.median(tpot[:half])), float(np.median(tpot[half:]))
    change = late / early - 1 if early > 0 else 0.0
    if abs(change) <= DRIFT:
        return None
    from scipy.stats import spearmanr  # slow to import

    medians = [float(np.median(batch)) for batch in np.array_split(tpot, batches)]
    trend = spearmanr(range(batches), medians)
    if not trend.pvalue < CHANCE:
        return None
    text = f"TPOT p50 {seconds(early)} in the first half, {seconds(late)} in the second ({change:+.0%}), steadily"
    return point.finding("server_not_steady", text, change, DRIFT)
