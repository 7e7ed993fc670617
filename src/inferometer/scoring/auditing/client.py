"""Whether the client did what it was asked: its loop, its punctuality, and what client and server say of each other."""

from __future__ import annotations

import numpy as np

from inferometer.benchmark.fitness import BUSY, LATE_S, SOME, apart, is_capped, matters, often
from inferometer.records.metrics import delays, lateness_s
from inferometer.records.overload import offered_per_s, overloaded
from inferometer.scoring.auditing.finding import Finding, seconds
from inferometer.scoring.auditing.point import Point

RESIDUAL = 0.02
"""Of Little's law: rate x latency over what should have been in flight, from 1."""
LEAST_SENDS = 20
"""Fewer sends after the first of each user do not show a loop."""
APART = 0.25
"""A send that comes later after the last answer than this share of the mean gap between sends, typically, did not wait
for it."""
TOGETHER = 0.02
"""One that always comes sooner did."""
CAPPED = 0.05
"""Share of the sends that found the cap full, from which the cap was the load."""


def littles_law(point: Point) -> Finding | None:
    """The steady window's request rate x mean E2E is not what should have been in flight."""
    ratio = point.summary.littles_law
    if ratio is None or abs(ratio - 1) <= RESIDUAL or point.meta.workload.get("think_time_s"):
        return None
    held = (
        f"{ratio * point.users:.3g} of {point.users} users" if point.users else f"{ratio:.3g} of what the server held"
    )
    text = f"request rate x mean E2E gives {held} ({ratio - 1:+.1%})"
    return point.finding("littles_law", text, ratio, 1.0)


def loop(point: Point) -> Finding | None:
    """An open loop that is called closed, the reverse, or a rate behind a cap that binds."""
    if is_capped(point.run):
        return _behind_a_cap(point)
    lag = _after_an_answer(point)
    if lag is None:
        return None
    if point.users and lag > APART and not point.meta.workload.get("think_time_s"):
        text = f"called a closed loop of {point.users} users, but sends do not follow answers: {_lag(lag)}"
        return point.finding("loop_mismatch", text, lag, APART)
    if point.meta.request_rate_per_s is not None and lag < TOGETHER and not _on_schedule(point):
        text = f"called an open loop of {point.where}, but sends wait for answers: {_lag(lag)}"
        return point.finding("loop_mismatch", text, lag, TOGETHER)
    return None


def _lag(share: float) -> str:
    return f"the median one comes {share:.1%} of the mean gap between sends after the last answer"


def _after_an_answer(point: Point) -> float | None:
    """Median time from the last answer to a send, over the mean gap between sends; of sends that follow an answer."""
    sent, end = point.each.occupied
    first = max(point.users or 1, int(np.searchsorted(sent, end[0])) if end.size else 0)
    later = sent[first:]
    if not point.one_clock or later.size < LEAST_SENDS or sent[-1] <= sent[0]:
        return None
    before = end[np.maximum(np.searchsorted(end, later, side="right") - 1, 0)]
    return float(np.median(later - before) / ((sent[-1] - sent[0]) / (sent.size - 1)))


def _on_schedule(point: Point) -> bool:
    """Whether it is known when requests were meant to be sent, and they were."""
    late = point.each.sent - point.each.column("scheduled_s")
    return bool((~np.isnan(late)).any() and np.nanmedian(np.abs(late)) < LATE_S)


def _behind_a_cap(point: Point) -> Finding | None:
    cap, rate = point.meta.concurrency, point.meta.request_rate_per_s
    assert cap is not None
    assert rate is not None
    if point.one_clock:
        full = float((point.each.in_flight_at_send >= cap).mean()) if point.each.occupied[0].size else 0.0
    else:
        held = point.summary.mean_in_flight
        full = 1.0 if held is not None and held >= (1 - CAPPED) * cap else 0.0
    if full <= CAPPED:
        return None
    done = point.summary.request_per_s
    did = f", did {done:.3g}/s" if done is not None else ""
    text = f"asked for {rate:g}/s{did}: the cap of {cap} was full at {full:.0%} of the sends, as in a closed loop"
    return point.finding("loop_mismatch", text, full, CAPPED)


def overload(point: Point) -> Finding | None:
    """An open loop that offers more than is served."""
    offered, served = offered_per_s(point.run), point.summary.request_per_s
    if offered is None or served is None or not overloaded(point.run, point.summary):
        return None
    text = f"{offered:.3g} requests a second offered, {served:.3g} served, and ever more wait"
    return point.finding("overloaded", text, served, offered)


def late(point: Point) -> Finding | None:
    """Requests sent, or timers fired, later than shows in no TTFT."""
    known = (
        {**delays("lateness_s", lateness_s(point.run)), **point.meta.client} if point.has_rows else point.meta.client
    )
    for name, text in (("lateness_s", "requests were sent"), ("loop_lag_s", "timers fired")):
        delay = often(known, name)
        skip = delay is None or (name == "lateness_s" and is_capped(point.run))
        if not skip and delay is not None and matters(delay, point.summary):
            told = f"{SOME} of the {text} {seconds(delay)} or more after their time; TTFT p50 {_p50(point)}"
            return point.finding("client_late", told, delay, LATE_S)
    return None


def _p50(point: Point) -> str:
    p50 = point.summary.ttft_s.p50
    return "unknown" if p50 is None else seconds(p50)


def busy(point: Point) -> Finding | None:
    """A client process that used a whole core."""
    share = point.meta.client.get("cpu_share")
    if share is None or share <= BUSY:
        return None
    workers = int(point.meta.client.get("workers", 1))
    text = f"its busiest process of {workers} used {share:.0%} of a core"
    return point.finding("client_cpu_bound", text, share, BUSY)


def disagreement(point: Point) -> Finding | None:
    """Client and server hold different numbers of requests, on average over the same time."""
    found = apart(point.run)
    if found is None:
        return None
    ours, theirs = found
    why = "something between them queues" if theirs < ours else "others use the server too"
    text = f"{ours:.1f} in flight by the client, {theirs:.1f} by the server: {why}"
    return point.finding("client_server_disagree", text, theirs, ours)


def clock(point: Point) -> Finding | None:
    """A source without send times."""
    if not point.has_rows or point.one_clock:
        return None
    return point.finding("clock_unknown", "no send times: nothing is known of how requests overlapped")
