"""Every metric, defined once. All times in seconds, all rates per second, percentiles by linear interpolation.

Of one request (completed: it ended, without an error):

============================  ====================================================================================
``ttft_s``                    sent to first token; missing where no token came
``ttft_from_scheduled_s``     the same from when it was meant to be sent, so that a client's queue counts
``first_content_s``           sent to the first token that is not reasoning
``tpot_s``                    (last token - first token) / (n - 1), n output tokens; undefined for n < 2
``itl_s``                     gaps between token events, n - 1 a request (chunk gaps where a chunk holds several tokens)
``e2e_s``                     sent to end (``e2e_from_scheduled_s``: from when it was meant to be sent)
``queue_s``                   sent to admitted by the scheduler (``client_queue_s``: scheduled to sent)
``normalized_latency_s``      E2E / output tokens
``per_request_tok_per_s``     output tokens / E2E
============================  ====================================================================================

Of a run: token and request rates over the completed requests and the run's duration, `Summary.goodput` (joint
attainment), and Little's law (`littles_law`). Of a run with a measured window (``meta.window_s``, after a warm-up) the
distributions are those of the requests sent in it, and the rates count what happened in it: each token at its time,
prompts at their first token, requests at their end. Of a sweep, a list of runs: `sweep_goodput` (marginal percentile),
`ttft_knee`, `throughput_knee`, `server_knee`, `sweep_table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from inferometer.errors import InputError
from inferometer.records.run import OWN_CLOCK, Run, RunMeta

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Percentile = Literal["p50", "p90", "p95", "p99"]

PERCENTILES: dict[Percentile, float] = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
LIMITS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
"""The metrics an SLO can limit."""


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """How one metric is distributed over requests (or gaps): ``n`` values; None where there is none or none is stated.

    ``std`` is the population's (divided by n); percentiles interpolate linearly between raw values.
    """

    n: int | None = None
    mean: float | None = None
    std: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Stat:
        """The distribution of the values that are not NaN.

        >>> Stat.of([1.0, 2.0, 3.0, float("nan")]).p90
        2.8
        """
        raw = np.asarray(values, dtype=np.float64)
        known = raw[~np.isnan(raw)]
        if not known.size:
            return cls(n=0)
        mean, std = float(known.mean()), float(known.std())
        p50, p90, p95, p99 = np.percentile(known, list(PERCENTILES.values()), overwrite_input=True).tolist()
        return cls(n=int(known.size), mean=mean, std=std, p50=p50, p90=p90, p95=p95, p99=p99)

    def to_dict(self, scale: float = 1.0) -> dict[str, float | int | None]:
        """By name, each value but ``n`` times ``scale`` (1000 for milliseconds)."""
        values = {name: getattr(self, name) for name in ("mean", "std", *PERCENTILES)}
        return {"n": self.n, **{name: None if v is None else v * scale for name, v in values.items()}}


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """What was served within every limit: by joint attainment, request for request."""

    attainment: float | None
    """Share of the ``n`` requests sent that met every limit, ``met`` of them; None where none was sent."""
    request_per_s: float | None
    output_tok_per_s: float | None
    total_tok_per_s: float | None
    n: int
    met: int = 0
    name: str = "joint attainment"


class Point(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One point of a sweep, and the run it comes from."""

    concurrency: int | None
    request_rate_per_s: float | None
    output_tok_per_s: float
    run: Run


class SweepGoodput(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The points of highest output tok/s whose marginal percentile meets every limit, beside the raw maximum.

    A gap is the raw maximum over the goodput. ``binding_p50`` and ``binding_p99`` name the limits missed by the points
    with more tok/s than the goodput's: what stands between the goodput and the raw maximum.
    """

    p50: Point | None
    p99: Point | None
    raw_max: Point
    gap_p50: float | None
    gap_p99: float | None
    binding_p50: tuple[str, ...] = ()
    binding_p99: tuple[str, ...] = ()
    name: str = "marginal percentile"


class Summary(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Every metric of one run; None for what it cannot say. Token counts are those of completed requests.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> columns = {"sent_s": [0.0, 0.0], "first_token_s": [0.4, 0.6], "last_token_s": [1.4, 1.6], "end_s": [1.4, 1.6]}
    >>> counts = {"prompt_tokens": [100, 100], "output_tokens": [11, 11]}
    >>> summary = make_run(RunMeta(kind="measured"), columns | counts).summary()
    >>> summary.ttft_s.p50, summary.output_tok_per_s, summary.goodput(ttft_s=0.5).attainment
    (0.5, 13.75, 0.5)
    """

    requests: int | None = None
    """Requests sent."""
    completed: int | None = None
    failed: int | None = None
    """Requests with an error or without an end."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    duration_s: float | None = None
    """As the source states it, else first sent to last end."""
    concurrency: int | None = None
    """As configured. ``mean_in_flight`` is what the client held, ``server_in_flight`` what the server saw."""
    request_rate_per_s: float | None = None
    """As configured; ``request_per_s`` is what was done."""

    ttft_s: Stat = Stat()
    ttft_from_scheduled_s: Stat = Stat()
    first_content_s: Stat = Stat()
    tpot_s: Stat = Stat()
    itl_s: Stat = Stat()
    e2e_s: Stat = Stat()
    e2e_from_scheduled_s: Stat = Stat()
    queue_s: Stat = Stat()
    client_queue_s: Stat = Stat()
    normalized_latency_s: Stat = Stat()
    per_request_tok_per_s: Stat = Stat()
    itl_name: str | None = None
    """``token gap``, or ``chunk gap`` where some chunk held several tokens; None without token times."""

    output_tok_per_s: float | None = None
    total_tok_per_s: float | None = None
    request_per_s: float | None = None
    peak_output_tok_per_s: float | None = None
    """Most output tokens within one second (of a shorter run: within it, per second), counted in tokens, not chunks.
    None for a simulated run and without token times."""
    per_user_tok_per_s: float | None = None
    """Output tok/s over the concurrency (closed loop) or over the mean in flight (open loop)."""
    mean_in_flight: float | None = None
    """The client's own: sum of E2E over the duration."""
    peak_in_flight: int | None = None
    """Exact, from the events: an end at the instant of a send comes first."""
    littles_law: float | None = None
    """See `littles_law`; 1 where client, configuration and server agree."""
    server_in_flight: float | None = None
    """Time-averaged running + waiting over the server's samples, summed over replicas."""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """Time-averaged over the server's samples, mean of the replicas."""
    preemptions: int | None = None
    prefix_hit_rate: float | None = None
    """Cached prompt tokens over prompt tokens."""

    _requests: PerRequest | None = None

    @property
    def littles_law_concurrency(self) -> float | None:
        """The concurrency that Little's law gives in a closed loop: its ratio times the configured concurrency."""
        if self.littles_law is None or self.concurrency is None:
            return None
        return self.littles_law * self.concurrency

    def goodput(
        self,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        itl_s: float | None = None,
        e2e_s: float | None = None,
        *,
        from_scheduled: bool | None = None,
    ) -> Goodput:
        """Rates of the requests that meet every limit given (seconds), and their share of the requests sent.

        A failed request meets nothing. Without a first token a TTFT limit is missed; a request of fewer than two tokens
        has no TPOT and no gap, and meets those limits. ``itl_s`` limits each gap of a request, so its longest.
        ``from_scheduled`` times TTFT and E2E from when a request was meant to be sent; None: in an open loop, where
        known, so that a client's queue counts against the server that caused it.

        Raises `InputError` where no limit is given, or the run does not hold what a limit needs.
        """
        limits = _limits(ttft_s=ttft_s, tpot_s=tpot_s, itl_s=itl_s, e2e_s=e2e_s)
        if self._requests is None:
            raise InputError.because("goodput: this run states only aggregates; joint attainment needs its requests")
        if from_scheduled is None:
            from_scheduled = self.request_rate_per_s is not None or self.concurrency is None
        met = self._requests.meets(limits, from_scheduled=from_scheduled)
        return _goodput(self._requests, met, self.duration_s)

    def to_dict(self) -> dict[str, Any]:
        """Every public field as plain values, distributions as dictionaries."""
        names = (name for name in self.__struct_fields__ if not name.startswith("_"))
        values = {name: getattr(self, name) for name in names}
        return {name: v.to_dict() if isinstance(v, Stat) else v for name, v in values.items()}

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Summary) else NotImplemented


STAT_NAMES = tuple(name for name in Summary.__struct_fields__ if isinstance(getattr(Summary(), name), Stat))
"""The fields of `Summary` that are distributions."""


class PerRequest:
    """The values of each request as arrays, NaN where undefined, computed when first asked for."""

    def __init__(self, run: Run) -> None:
        self._frame = run.requests
        self._token_times = run.token_times
        self._one_clock = run.meta.clock != OWN_CLOCK
        self._window_s = run.meta.window_s

    def column(self, name: str) -> Floats:
        """A column as floats, null as NaN."""
        if name not in self._frame.columns:
            return np.full(self._frame.height, np.nan)
        return np.asarray(self._frame[name].cast(pl.Float64).to_numpy(), dtype=np.float64)

    @cached_property
    def sent(self) -> Floats:
        """When each was sent."""
        return self.column("sent_s")

    @cached_property
    def end(self) -> Floats:
        """When each ended."""
        return self.column("end_s")

    @cached_property
    def first(self) -> Floats:
        """When each one's first token came."""
        return self.column("first_token_s")

    @cached_property
    def output(self) -> Floats:
        """Output tokens."""
        return self.column("output_tokens")

    @cached_property
    def prompt(self) -> Floats:
        """Prompt tokens."""
        return self.column("prompt_tokens")

    @cached_property
    def scheduled(self) -> Floats:
        """When each was meant to be sent; when it was sent, where that is unknown."""
        scheduled = self.column("scheduled_s")
        return np.where(np.isnan(scheduled), self.sent, scheduled)

    @cached_property
    def delayed(self) -> bool:
        """Whether any request was sent at another time than meant."""
        return not np.array_equal(self.scheduled, self.sent, equal_nan=True)

    @cached_property
    def window(self) -> tuple[float, float] | None:
        """The measured part, where only a part is."""
        if self._window_s is None:
            return None
        start, stop = self._window_s
        return start, stop if stop is not None else float(np.nanmax(self.end, initial=start))

    @cached_property
    def measured(self) -> Bools:
        """Which were sent in the measured window; all of them where there is none."""
        if self.window is None:
            return np.ones(self._frame.height, dtype=bool)
        # one that could not be sent counts where it was meant to be
        began = np.where(np.isnan(self.sent), self.scheduled, self.sent)
        return np.asarray((began >= self.window[0]) & (began <= self.window[1]))

    @cached_property
    def succeeded(self) -> Bools:
        """Which ended without an error, in the measured window or not."""
        ended = ~np.isnan(self.end)
        if "error" in self._frame.columns and self._frame["error"].null_count() < self._frame.height:
            ended &= self._frame["error"].is_null().to_numpy()
        return ended

    @cached_property
    def completed(self) -> Bools:
        """Which of the measured ended without an error."""
        return self.succeeded & self.measured

    @cached_property
    def all_completed(self) -> bool:
        """Whether every request did."""
        return bool(self.completed.all())

    def of_completed(self, values: Floats) -> Floats:
        """The values, NaN for requests that did not complete."""
        return values if self.all_completed else np.where(self.completed, values, np.nan)

    @cached_property
    def ttft(self) -> Floats:
        """Sent to first token."""
        return self.of_completed(self.first - self.sent)

    @cached_property
    def ttft_from_scheduled(self) -> Floats:
        """Meant to be sent to first token."""
        return self.of_completed(self.first - self.scheduled) if self.delayed else self.ttft

    @cached_property
    def first_content(self) -> Floats:
        """Sent to the first token that is not reasoning."""
        return self.of_completed(self.column("first_content_s") - self.sent)

    @cached_property
    def e2e(self) -> Floats:
        """Sent to end."""
        return self.of_completed(self.end - self.sent)

    @cached_property
    def e2e_from_scheduled(self) -> Floats:
        """Meant to be sent to end."""
        return self.of_completed(self.end - self.scheduled) if self.delayed else self.e2e

    @cached_property
    def tpot(self) -> Floats:
        """(last - first) / (n - 1); where a source has no last token, its end stands for it."""
        last = self.column("last_token_s")
        last = np.where(np.isnan(last), self.end, last)
        gaps = np.where(self.output >= 2, self.output - 1, np.nan)
        return self.of_completed((last - self.first) / gaps)

    @cached_property
    def _gaps(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Gaps between token events in order of request, and how many each request has."""
        assert self._token_times is not None
        times, counts = self._token_times.times_s, np.diff(self._token_times.offsets)
        within = np.ones(max(times.size - 1, 0), dtype=bool)
        borders = self._token_times.offsets[1:-1]
        within[borders[(borders > 0) & (borders < times.size)] - 1] = False
        return np.diff(times)[within], np.maximum(counts - 1, 0).astype(np.int64)

    @cached_property
    def itl(self) -> Floats:
        """Every gap between two token events of one completed request."""
        if self._token_times is None:
            return np.empty(0)
        gaps, counts = self._gaps
        return gaps if self.all_completed else gaps[np.repeat(self.completed, counts)]

    @cached_property
    def itl_request(self) -> npt.NDArray[np.int64]:
        """The row of the request that each gap of `itl` belongs to."""
        if self._token_times is None:
            return np.empty(0, dtype=np.int64)
        rows = np.repeat(np.arange(self._frame.height), self._gaps[1])
        return rows if self.all_completed else rows[self.completed[rows]]

    @cached_property
    def itl_longest(self) -> Floats:
        """Each request's longest gap."""
        longest = np.full(self._frame.height, np.nan)
        if self._token_times is not None:
            gaps, counts = self._gaps
            has = counts > 0
            starts = (np.cumsum(counts) - counts)[has]
            longest[has] = np.maximum.reduceat(gaps, starts) if starts.size else np.nan
        return self.of_completed(longest)

    @cached_property
    def token_events(self) -> tuple[Floats, Floats] | None:
        """The time of each token event of all requests and how many tokens it stands for; None without token times.

        A request's output tokens are shared evenly among its events, so that chunks of several tokens count in full.
        """
        if self._token_times is None:
            return None
        counts = np.diff(self._token_times.offsets)
        tokens = np.where(np.isnan(self.output), counts, self.output)
        each = np.divide(tokens, counts, out=np.zeros(counts.size), where=counts > 0)
        return self._token_times.times_s, np.repeat(each, counts)

    @property
    def itl_name(self) -> str | None:
        """What a gap is: see `Summary.itl_name`."""
        if self._token_times is None:
            return None
        events = np.diff(self._token_times.offsets)
        several = self.completed & (events > 0) & (events < self.output)
        return "chunk gap" if several.any() else "token gap"

    def meets(self, limits: dict[str, float], *, from_scheduled: bool) -> Bools:
        """Which requests meet every limit (see `Summary.goodput`)."""
        by_name = {
            "ttft_s": (self.ttft_from_scheduled if from_scheduled else self.ttft, 1),
            "tpot_s": (self.tpot, 2),
            "itl_s": (self.itl_longest, 2),
            "e2e_s": (self.e2e_from_scheduled if from_scheduled else self.e2e, 0),
        }
        met = self.completed.copy()
        for name, limit in limits.items():
            values, least_tokens = by_name[name]
            # a TPOT or a gap needs two tokens; with fewer there is nothing to miss
            vacuous = (self.output < 2) if least_tokens == 2 else np.zeros_like(met)
            expected = self.completed & (self.output >= least_tokens)
            if expected.any() and not np.isfinite(values[expected]).any():
                raise InputError.because(f"goodput: this run does not hold what a limit on {name} needs")
            met &= (values <= limit) | vacuous
        return met

    @cached_property
    def occupied(self) -> tuple[Floats, Floats]:
        """Send and end times of the requests for which both are known, each sorted; none without a common clock."""
        known = ~(np.isnan(self.sent) | np.isnan(self.end)) & self._one_clock
        if known.all():
            return np.sort(self.sent), np.sort(self.end)
        return np.sort(self.sent[known]), np.sort(self.end[known])

    @cached_property
    def in_flight_at_send(self) -> npt.NDArray[np.int64]:
        """Requests in flight just after each send, in order of sending."""
        sent, end = self.occupied
        return np.arange(1, sent.size + 1) - np.searchsorted(end, sent, side="right")

    def mean_in_flight(self, start: float, stop: float) -> float:
        """Sum over requests of the part of their E2E within the window, over its length.

        ``sum of min(end, stop) - max(sent, start)`` over those that overlap, by the two sorted lists: the integral
        of (sent so far - ended so far).
        """
        sent, end = self.occupied
        area = (stop - np.clip(sent, start, stop)).sum() - (stop - np.clip(end, start, stop)).sum()
        return float(area / (stop - start))


def summarize(run: Run) -> Summary:
    """Every metric of one run, from its raw values; of a run without requests, what its source states.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> s = summarize(make_run(RunMeta(kind="measured"), {"sent_s": [0.0, 1.0], "end_s": [2.0, 3.0],
    ...     "first_token_s": [0.5, 1.5], "last_token_s": [2.0, 3.0], "prompt_tokens": [8, 8], "output_tokens": [4, 4]}))
    >>> s.ttft_s.mean, s.tpot_s.p50, s.peak_in_flight
    (0.5, 0.5, 2)
    """
    if not run.requests.height and run.meta.stated:
        return _stated_summary(run.meta)
    each = PerRequest(run)
    return Summary(
        **_configured(run.meta),
        **_counts(each),
        **_distributions(each),
        **_rates(each, run.meta),
        **_server(run, each),
        littles_law=littles_law(run, each),
        itl_name=each.itl_name,
        preemptions=_preemptions(run),
        prefix_hit_rate=_prefix_hit_rate(each),
        _requests=each,
    )


def littles_law(run: Run, each: PerRequest | None = None) -> float | None:
    """Request rate x mean E2E over the steady window, over what should have been in flight. 1 where all agree.

    Closed loop: the window runs from the first instant all slots are busy (where they never are: from the peak) to the
    last send, when the last slot is filled again; what should have been in flight is the configured concurrency. The
    next end leaves a slot empty, and nothing is known between the two. Needs two requests a slot.

    Open loop (a request rate): from the first end to the last send, as far as the server was sampled; what should have
    been in flight is the time-averaged running + waiting of the server, for E2E holds the wait in the server's queue.

    A request that straddles an edge counts for the share of its E2E inside, in the rate as in the mean. Counted whole
    or not at all, it would bias the ratio by up to one E2E in the window's length: a tenth at ten requests a slot. Over
    the whole run, and against the client's own in-flight, the ratio would be 1 by construction and say nothing.

    None where there is nothing to compare with: no concurrency and no server samples, no send times, too few requests;
    of a measured open loop also where the server's samples are too few or too uneven to know their mean to 5 %.
    """
    each = each or PerRequest(run)
    sent, end = each.occupied
    if not sent.size:
        return None
    if run.meta.request_rate_per_s is None and run.meta.concurrency:
        return _closed_loop_ratio(each, run.meta.concurrency)
    span = _sampled_span(run.server)
    if span is None:
        return None
    start, stop = max(float(end[0]), span[0]), min(float(sent[-1]), span[1])
    if run.meta.kind != "simulated" and not _well_sampled(run.server, start, stop):
        return None
    expected = _sampled_in_flight(run.server, start, stop) if stop > start else None
    return each.mean_in_flight(start, stop) / expected if expected else None


def _closed_loop_ratio(each: PerRequest, concurrency: int) -> float | None:
    sent, _ = each.occupied
    busy = each.in_flight_at_send
    start, stop = float(sent[int(np.argmax(busy >= min(concurrency, int(busy.max()))))]), float(sent[-1])
    if sent.size < 2 * concurrency or stop <= start:
        return None
    return each.mean_in_flight(start, stop) / concurrency


def _configured(meta: RunMeta) -> dict[str, Any]:
    return {"concurrency": meta.concurrency, "request_rate_per_s": meta.request_rate_per_s}


def _counts(each: PerRequest) -> dict[str, Any]:
    sent, completed = int(each.measured.sum()), int(each.completed.sum())
    return {
        "requests": sent,
        "completed": completed,
        "failed": sent - completed,
        "prompt_tokens": _total(each.prompt, each.completed),
        "output_tokens": _total(each.output, each.completed),
    }


def _total(values: Floats, of: Bools) -> int | None:
    """The sum of the known values of these requests; None where there are such requests and none is known."""
    known = of & ~np.isnan(values)
    return int(values[known].sum()) if known.any() or not of.any() else None


def _distributions(each: PerRequest) -> dict[str, Any]:
    ttft, e2e = Stat.of(each.ttft), Stat.of(each.e2e)
    with np.errstate(divide="ignore", invalid="ignore"):
        produced = np.where(each.output > 0, each.output, np.nan)
        normalized = each.e2e / produced
        speed = produced / np.where(each.e2e > 0, each.e2e, np.nan)
    return {
        "ttft_s": ttft,
        "ttft_from_scheduled_s": Stat.of(each.ttft_from_scheduled) if each.delayed else ttft,
        "first_content_s": Stat.of(each.first_content),
        "tpot_s": Stat.of(each.tpot),
        "itl_s": Stat.of(each.itl),
        "e2e_s": e2e,
        "e2e_from_scheduled_s": Stat.of(each.e2e_from_scheduled) if each.delayed else e2e,
        "queue_s": Stat.of(each.of_completed(each.column("admitted_s") - each.sent)),
        "client_queue_s": Stat.of(each.of_completed(each.sent - each.column("scheduled_s"))),
        "normalized_latency_s": Stat.of(normalized),
        "per_request_tok_per_s": Stat.of(speed),
    }


def _rates(each: PerRequest, meta: RunMeta) -> dict[str, Any]:
    sent, end = each.occupied
    span = (float(sent[0]), float(end[-1])) if sent.size else (0.0, 0.0)
    start, stop = each.window or span
    duration = meta.duration_s if meta.duration_s is not None and each.window is None else stop - start
    if not duration > 0:
        return {}
    output, prompt, ended = _done_in_window(each) if each.window else _done(each)
    rate = None if output is None else output / duration
    in_flight = each.mean_in_flight(start, stop) * (stop - start) / duration if sent.size and stop > start else None
    closed = meta.concurrency if meta.request_rate_per_s is None else None
    users = closed or in_flight
    return {
        "duration_s": duration,
        "output_tok_per_s": rate,
        "total_tok_per_s": None if output is None or prompt is None else (output + prompt) / duration,
        "request_per_s": ended / duration,
        "per_user_tok_per_s": rate / users if rate is not None and users else None,
        "peak_output_tok_per_s": None if meta.kind == "simulated" else _peak_output(each, duration),
        "mean_in_flight": in_flight,
        "peak_in_flight": int(each.in_flight_at_send.max()) if sent.size else None,
    }


def _done(each: PerRequest) -> tuple[float | None, float | None, int]:
    """Output tokens, prompt tokens and requests of those that completed."""
    return _total(each.output, each.completed), _total(each.prompt, each.completed), int(each.completed.sum())


def _done_in_window(each: PerRequest) -> tuple[float | None, float | None, int]:
    """Output tokens, prompt tokens and requests that were done inside the window, whoever's they are.

    A request that straddles an edge counts for its tokens inside: by its token times, else by the share of its decode.
    """
    assert each.window is not None
    start, stop = each.window
    output: float | None
    seen = np.where(np.isnan(each.first), each.end, each.first)  # an answer that came whole counts at its end
    if each.token_events is not None:
        times, tokens = each.token_events
        whole = np.isnan(each.first) & (each.end >= start) & (each.end <= stop) & ~np.isnan(each.output)
        output = float(tokens[(times >= start) & (times <= stop)].sum() + each.output[whole].sum())
    else:
        last = np.fmax(each.column("last_token_s"), each.first)
        inside = np.clip(last, start, stop) - np.clip(seen, start, stop)
        at_once = ((seen >= start) & (seen <= stop)).astype(np.float64)
        share = np.divide(inside, last - seen, out=at_once, where=last > seen)
        output = None if np.isnan(each.output).all() else float(np.nansum(share * each.output))
    began, ended = (seen >= start) & (seen <= stop), (each.end >= start) & (each.end <= stop)
    return output, _total(each.prompt, began), int((ended & each.succeeded).sum())


def _peak_output(each: PerRequest, duration_s: float) -> float | None:
    """Most output tokens of any second (or of the whole run, where that is shorter), per second."""
    if each.token_events is None or not each.token_events[0].size:
        return None
    times, tokens = each.token_events
    order = np.argsort(times, kind="stable")
    times, total = times[order], np.concatenate(([0.0], np.cumsum(tokens[order])))
    span = min(1.0, duration_s)
    until = np.searchsorted(times, times + span, side="right")
    return float((total[until] - total[:-1]).max() / span)


def _preemptions(run: Run) -> int | None:
    known = run.requests["preemptions"].drop_nulls() if "preemptions" in run.requests.columns else None
    if known is not None and known.len():
        return int(known.sum())
    counted = run.meta.counters.get("preemptions")
    return None if counted is None else int(counted)


def _prefix_hit_rate(each: PerRequest) -> float | None:
    cached = each.of_completed(each.column("cached_tokens"))
    known = ~np.isnan(cached) & ~np.isnan(each.prompt)
    total = each.prompt[known].sum()
    return float(cached[known].sum() / total) if total else None


def _sampled_span(server: pl.DataFrame) -> tuple[float, float] | None:
    """The interval over which every replica has samples of its running requests."""
    samples = _samples(server, "running")
    if not samples or min(times.size for times, _ in samples) < 2:
        return None
    start, stop = max(float(t[0]) for t, _ in samples), min(float(t[-1]) for t, _ in samples)
    return (start, stop) if stop > start else None


def _samples(server: pl.DataFrame, name: str) -> list[tuple[Floats, Floats]]:
    """Times and values of one column where both are known, in order of time, a pair a replica."""
    if name not in server.columns:
        return []
    known = server.filter(pl.col(name).is_not_null() & pl.col("time_s").is_not_null()).sort("time_s")
    parts = known.partition_by("replica", maintain_order=True) if known["replica"].n_unique() > 1 else [known]
    return [(p["time_s"].to_numpy(), p[name].cast(pl.Float64).to_numpy()) for p in parts if p.height]


def _time_averages(server: pl.DataFrame, name: str, start: float, stop: float) -> list[float]:
    """Each replica's time average over the window, the samples joined by straight lines."""
    averages = []
    for times, values in _samples(server, name):
        inside = (times > start) & (times < stop)
        t = np.concatenate(([start], times[inside], [stop]))
        v = np.concatenate((np.interp([start], times, values), values[inside], np.interp([stop], times, values)))
        averages.append(float(np.trapezoid(v, t) / (stop - start)))
    return averages


def _sampled_in_flight(server: pl.DataFrame, start: float, stop: float) -> float:
    return sum(_time_averages(server, "running", start, stop)) + sum(_time_averages(server, "waiting", start, stop))


def _server(run: Run, each: PerRequest) -> dict[str, Any]:
    span = _served_span(run, each)
    if span is None:
        return {}
    running, waiting, usage = (_time_averages(run.server, name, *span) for name in ("running", "waiting", "kv_usage"))
    return {
        "running": sum(running),
        "waiting": sum(waiting) if waiting else None,
        "kv_usage": sum(usage) / len(usage) if usage else None,
        "server_in_flight": sum(running) + sum(waiting),
    }


def in_flight(run: Run) -> tuple[float, float] | None:
    """Mean requests in flight as the client held them and as the server saw them, over the same time.

    The server's gauges are set at the end of a step, so where steps are long they lag behind, and show too few. So the
    server saw the mean of its gauges, or what Little's law gives of its own mean E2E, whichever is more: the client's
    figure times the server's mean E2E over the client's.

    None where the server was not sampled, or too seldom (`LEAST_SAMPLES`).
    """
    each, samples = PerRequest(run), _samples(run.server, "running")
    span = _served_span(run, each)
    if span is None or min(times.size for times, _ in samples) < LEAST_SAMPLES:
        return None
    ours, sampled = each.mean_in_flight(*span), _sampled_in_flight(run.server, *span)
    return ours, max(sampled, ours * _served_share(run, each))


def _served_share(run: Run, each: PerRequest) -> float:
    """The mean E2E by the server's histogram over the client's; 0 where either is unknown."""
    count, total = (run.meta.counters.get(f"e2e_s.{part}") for part in ("count", "sum"))
    mean = Stat.of(each.e2e).mean
    return total / count / mean if count and total is not None and mean else 0.0


def _well_sampled(server: pl.DataFrame, start: float, stop: float) -> bool:
    """Whether the mean of running + waiting between two times is known well from these looks at each replica."""
    known = server.filter(pl.col("time_s").is_between(start, stop) & pl.col("running").is_not_null())
    held = known.select(pl.col("running").cast(pl.Float64) + pl.col("waiting").cast(pl.Float64).fill_null(0.0))
    values = held.to_series().to_numpy()
    replicas = max(known["replica"].n_unique(), 1)
    if values.size < LEAST_SAMPLES * replicas or not values.mean() > 0:
        return False
    return float(values.std(ddof=1) / np.sqrt(values.size) / values.mean()) <= SAMPLING_ERROR


SAMPLING_ERROR = 0.05
"""Standard error of a sampled mean, over the mean, beyond which it says nothing of Little's law."""
LEAST_SAMPLES = 10
"""Fewer looks at a measured server say nothing of an average."""


def _served_span(run: Run, each: PerRequest) -> tuple[float, float] | None:
    """The time over which the server was sampled; of a measurement, only while requests were under way.

    Its scrapes begin before the first request and end after the last.
    """
    span = _sampled_span(run.server)
    sent, end = each.occupied
    if span is None or run.meta.kind == "simulated" or (run.meta.kind == "imported" and not sent.size):
        return span
    if not sent.size:
        return None
    start, stop = each.window or (float(sent[0]), float(end[-1]))
    start, stop = max(start, span[0]), min(stop, span[1])
    return (start, stop) if stop > start else None


def _stated_summary(meta: RunMeta) -> Summary:
    """What the source states, by path; paths that are no field of `Summary` stay in ``meta.stated`` alone."""
    stats: dict[str, dict[str, Any]] = {}
    plain: dict[str, Any] = {}
    for path, value in meta.stated.items():
        name, _, part = path.partition(".")
        if name in STAT_NAMES and part in Stat.__struct_fields__:
            stats.setdefault(name, {})[part] = int(value) if part == "n" else value
        elif not part and name in Summary.__struct_fields__ and name not in STAT_NAMES:
            plain[name] = int(value) if name in _WHOLE else value
    values: dict[str, Any] = {name: Stat(**parts) for name, parts in stats.items()}
    return _derived(Summary(**{**_configured(meta), "duration_s": meta.duration_s, **plain, **values}))


def _derived(stated: Summary) -> Summary:
    """What follows from stated aggregates: the mean in flight (request rate x mean E2E) and tok/s a user."""
    in_flight, per_user = stated.mean_in_flight, stated.per_user_tok_per_s
    if in_flight is None and stated.request_per_s is not None and stated.e2e_s.mean is not None:
        in_flight = stated.request_per_s * stated.e2e_s.mean
    users = stated.concurrency if stated.concurrency and stated.request_rate_per_s is None else in_flight
    if per_user is None and stated.output_tok_per_s is not None and users:
        per_user = stated.output_tok_per_s / users
    return msgspec.structs.replace(stated, mean_in_flight=in_flight, per_user_tok_per_s=per_user)


_WHOLE = ("requests", "completed", "failed", "prompt_tokens", "output_tokens", "peak_in_flight", "preemptions")


def _limits(**limits: float | None) -> dict[str, float]:
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given:
        raise InputError("limits", None, f"at least one of {', '.join(LIMITS)} in seconds")
    for name, limit in given.items():
        if not limit > 0:
            raise InputError(name, limit, "a time above 0 s")
    return given


def _goodput(each: PerRequest, met: Bools, duration_s: float | None) -> Goodput:
    output, prompt, sent = _total(each.output, met), _total(each.prompt, met), int(each.measured.sum())

    def rate(count: int | None) -> float | None:
        return count / duration_s if duration_s and count is not None else None

    return Goodput(
        attainment=float(met.sum() / sent) if sent else None,
        request_per_s=rate(int(met.sum())),
        output_tok_per_s=rate(output),
        total_tok_per_s=rate(None if output is None or prompt is None else output + prompt),
        n=sent,
        met=int(met.sum()),
    )


def delays(name: str, delays_s: npt.ArrayLike) -> dict[str, float]:
    """A client's delays by name: ``.p50``, ``.p99``, and ``.third_highest``, since of few values a p99 is one's chance.

    >>> delays("lateness_s", [0.001, 0.002, 0.003, 0.009])["lateness_s.third_highest"]
    0.002
    """
    raw = np.asarray(delays_s, dtype=np.float64)
    known = np.sort(raw[~np.isnan(raw)])
    stat = Stat.of(known)
    if stat.p50 is None or stat.p99 is None:
        return {}
    return {
        f"{name}.p50": stat.p50,
        f"{name}.p99": stat.p99,
        f"{name}.third_highest": float(known[-min(3, known.size)]),
    }


def lateness_s(run: Run) -> Floats:
    """Scheduled to sent of each request; not of the users of a closed loop that all start at second 0 at once."""
    each = PerRequest(run)
    late = each.sent - each.column("scheduled_s")
    closed = run.meta.request_rate_per_s is None and run.meta.concurrency is not None
    return np.where(each.column("scheduled_s") > 0, late, np.nan) if closed else late


BATCHES = 20
"""Batches that a mean's interval is taken from."""
STUDENT_T = 2.093
"""97.5 % quantile of Student's t for 19 degrees of freedom."""


def relative_half_width(run: Run, metric: str) -> float | None:
    """Half the 95 % interval of a metric's mean over the mean: how well it is known by now.

    By the means of 20 batches in order of sending: neighbouring requests share steps and queues, so their values are no
    independent draws, and the usual s / sqrt(n) would be too narrow. None below two values a batch.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> ends = [1.0 + 0.01 * (i % 7) for i in range(100)]
    >>> run = make_run(RunMeta(kind="measured"), {"sent_s": [0.0] * 100, "end_s": ends})
    >>> round(relative_half_width(run, "e2e_s"), 4)
    0.0028
    """
    each = PerRequest(run)
    values: Floats = getattr(each, metric.removesuffix("_s"))
    known = values[~np.isnan(values)]
    if known.size < 2 * BATCHES:
        return None
    means = np.array([batch.mean() for batch in np.array_split(known, BATCHES)])
    spread = STUDENT_T * float(means.std(ddof=1)) / np.sqrt(BATCHES)
    return float(spread / known.mean()) if known.mean() > 0 else None


def output_rates(each: PerRequest, edges_s: npt.ArrayLike) -> Floats | None:
    """Output tok/s between each two of these rising times; None where no request's output is known.

    Tokens count at their times; without those, evenly from a request's first to its last.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> columns = {"sent_s": [0.0], "first_token_s": [1.0], "last_token_s": [5.0], "end_s": [5.0]}
    >>> run = make_run(RunMeta(kind="measured"), columns | {"output_tokens": [8]})
    >>> output_rates(PerRequest(run), [0.0, 2.0, 4.0]).tolist()
    [1.0, 2.0]
    """
    edges = np.asarray(edges_s, dtype=np.float64)
    if each.token_events is not None:
        times, tokens = each.token_events
        order = np.argsort(times, kind="stable")
        total = np.concatenate(([0.0], np.cumsum(tokens[order])))
        done = total[np.searchsorted(times[order], edges, side="right")]
    else:
        last = np.fmax(each.column("last_token_s"), each.first)
        last = np.where(np.isnan(last), each.end, last)
        known = each.succeeded & ~np.isnan(each.output) & ~np.isnan(last)
        if not known.any():
            return None
        begun = np.where(np.isnan(each.first), last, each.first)
        span = np.maximum(last - begun, 1e-9)
        share = (np.clip((edge - begun) / span, 0.0, 1.0) for edge in edges)
        done = np.array([float((part * each.output)[known].sum()) for part in share])
    return np.asarray(np.diff(done) / np.diff(edges), dtype=np.float64)


def percentile_interval(run: Run, metric: str, percentile: Percentile) -> tuple[float, float] | None:
    """Bounds of a percentile of a request's metric (``ttft_s``, ``tpot_s``, ...), at least 95 %, by order statistics.

    The ranks are those of the binomial distribution: the k-th of n values lies above the q-quantile with the chance
    that fewer than k of n fall below it. None where too few values lie beyond to bound it: a p99 needs some 370. Values
    that share steps and queues are no independent draws, so the true interval is no narrower than this one.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> run = make_run(RunMeta(kind="measured"), {"sent_s": [0.0] * 100, "end_s": [float(i) for i in range(1, 101)]})
    >>> percentile_interval(run, "e2e_s", "p50"), percentile_interval(run, "e2e_s", "p99")
    ((40.0, 61.0), None)
    """
    values: Floats = getattr(PerRequest(run), metric.removesuffix("_s"))
    low, high = percentile_bounds(values, percentile, tail=0.025)
    return None if low is None or high is None else (low, high)


def percentile_bounds(
    values: npt.ArrayLike, percentile: Percentile, tail: float = 0.05
) -> tuple[float | None, float | None]:
    """A lower and an upper bound of the true percentile, each wrong with a chance of ``tail``, by order statistics.

    None for a bound that so few values do not give: the largest of n lies above the true p99 with the chance
    1 - 0.99^n, so an upper bound needs 299. Values that are NaN are left out. See also `percentile_interval`.

    >>> percentile_bounds(range(1, 101), "p50"), percentile_bounds(range(1, 101), "p99")
    ((42.0, 59.0), (97.0, None))
    """
    raw = np.asarray(values, dtype=np.float64)
    known = np.sort(raw[~np.isnan(raw)])
    if not known.size:
        return None, None
    below = _binomial_below(known.size, PERCENTILES[percentile] / 100)
    low, high = np.flatnonzero(below <= tail), np.flatnonzero(below >= 1 - tail)
    return (float(known[low[-1]]) if low.size else None, float(known[high[0]]) if high.size else None)


def _binomial_below(n: int, q: float) -> Floats:
    """The chance that fewer than k of n draws fall below the q-quantile, for k from 1 to n."""
    steps = np.arange(1, n)
    logs = np.concatenate(([0.0], np.cumsum(np.log((n - steps + 1) / steps) + np.log(q / (1 - q)))))
    return np.asarray(np.cumsum(np.exp(logs + n * np.log(1 - q))), dtype=np.float64)


def wilson_interval(met: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Bounds of a share of which ``met`` of ``n`` were seen (Wilson 1927; z 1.96: 95 %). (0, 1) for n = 0.

    >>> low, high = wilson_interval(99, 100)
    >>> round(low, 3), round(high, 3)
    (0.946, 0.998)
    """
    if not n:
        return 0.0, 1.0
    share, spread = met / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * float(np.sqrt(share * (1 - share) / n + spread / (4 * n)))
    return max(0.0, centre - half), min(1.0, centre + half)


def sweep_goodput(
    runs: Sequence[Run],
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    itl_s: float | None = None,
    e2e_s: float | None = None,
) -> SweepGoodput:
    """The point of highest output tok/s whose p50, and whose p99, of every limited metric meets its limit (seconds).

    By marginal percentile: each metric's percentile is held against its limit on its own, which is another number than
    the joint attainment of `Summary.goodput`. A point that does not state a percentile does not qualify by it.

    Raises `InputError` for no runs, no limit, no run with a token rate, or a limit on a metric that no run states.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> def point(users, tok_per_s, ttft_s):
    ...     stated = {"output_tok_per_s": tok_per_s, "ttft_s.p50": ttft_s, "ttft_s.p99": 2 * ttft_s}
    ...     return make_run(RunMeta(kind="imported", concurrency=users, stated=stated))
    >>> good = sweep_goodput([point(8, 640.0, 0.1), point(16, 1140.0, 0.3), point(64, 2505.0, 0.6)], ttft_s=0.5)
    >>> good.p50.concurrency, good.p99.concurrency, good.raw_max.concurrency
    (16, 8, 64)
    """
    limits = _limits(ttft_s=ttft_s, tpot_s=tpot_s, itl_s=itl_s, e2e_s=e2e_s)
    points = [(_point(run, s), s) for run in runs if (s := run.summary()).output_tok_per_s is not None]
    if not points:
        raise InputError("runs", len(runs), "at least one run with an output token rate")
    for name in limits:
        if all(_meets(s, name, q, 1.0) is None for _, s in points for q in ("p50", "p99")):
            raise InputError.because(f"sweep goodput: no run states {name} at p50 or p99, which its limit needs")
    raw_max = max((point for point, _ in points), key=lambda p: p.output_tok_per_s)
    best = {q: _best(points, limits, q) for q in ("p50", "p99")}
    return SweepGoodput(
        p50=best["p50"],
        p99=best["p99"],
        raw_max=raw_max,
        gap_p50=_gap(raw_max, best["p50"]),
        gap_p99=_gap(raw_max, best["p99"]),
        binding_p50=_binding(points, limits, "p50", best["p50"]),
        binding_p99=_binding(points, limits, "p99", best["p99"]),
    )


def _point(run: Run, summary: Summary) -> Point:
    return Point(
        concurrency=summary.concurrency,
        request_rate_per_s=summary.request_rate_per_s,
        output_tok_per_s=summary.output_tok_per_s or 0.0,
        run=run,
    )


def _meets(summary: Summary, name: str, percentile: str, limit: float) -> bool | None:
    """Whether a percentile meets its limit; None where it is not known."""
    stat: Stat = getattr(summary, name)
    value = getattr(stat, percentile)
    if value is not None:
        return bool(value <= limit)
    each = summary._requests
    single = each is not None and each.completed.any() and bool((each.output[each.completed] < 2).all())
    return True if single and name in ("tpot_s", "itl_s") else None


def _best(points: list[tuple[Point, Summary]], limits: dict[str, float], percentile: str) -> Point | None:
    meeting = [p for p, s in points if all(_meets(s, name, percentile, limit) for name, limit in limits.items())]
    return max(meeting, key=lambda p: p.output_tok_per_s, default=None)


def _gap(raw_max: Point, best: Point | None) -> float | None:
    return raw_max.output_tok_per_s / best.output_tok_per_s if best and best.output_tok_per_s else None


def _binding(
    points: list[tuple[Point, Summary]], limits: dict[str, float], percentile: str, best: Point | None
) -> tuple[str, ...]:
    floor = best.output_tok_per_s if best else -1.0
    above = [s for p, s in points if p.output_tok_per_s > floor]
    return tuple(n for n, limit in limits.items() if any(_meets(s, n, percentile, limit) is False for s in above))


def ttft_knee(runs: Sequence[Run]) -> int | None:
    """The lowest concurrency whose TTFT p99 is more than twice its p50; None where there is none."""
    return next((concurrency for concurrency, summary in _by_concurrency(runs) if past_ttft_knee(summary)), None)


TTFT_KNEE = 2.0
"""A TTFT p99 of more than so many times the p50 is past the knee."""


def past_ttft_knee(summary: Summary) -> bool:
    """Whether TTFT p99 is more than twice its p50; not where either is unknown."""
    p50, p99 = summary.ttft_s.p50, summary.ttft_s.p99
    return p50 is not None and p99 is not None and p99 > TTFT_KNEE * p50


def throughput_knee(runs: Sequence[Run]) -> int | None:
    """The concurrency farthest above the straight line from the first point of the sweep to the last.

    Output tok/s over concurrency, both scaled to 0..1 (Satopaa et al., "Finding a Kneedle in a Haystack", 2011). None
    for fewer than three points, or where none lies more than 0.1 above the line: a curve that has not bent yet.
    """
    curve = [(c, s.output_tok_per_s) for c, s in _by_concurrency(runs) if s.output_tok_per_s is not None]
    if len(curve) < 3:
        return None
    x, y = np.array(curve, dtype=np.float64).T
    if x[-1] == x[0] or y.max() == y.min():
        return None
    above = (y - y.min()) / (y.max() - y.min()) - (x - x[0]) / (x[-1] - x[0])
    knee = int(np.argmax(above))
    return curve[knee][0] if above[knee] > 0.1 else None


WAITING = 0.5
"""Mean number of requests waiting at the server from which on it is said to queue: one, half of the time."""
PINNED = 0.99
"""Share of the KV pool in use from which on it is full: the last blocks are too few for another request."""


def server_queues(run: Run) -> bool | None:
    """Whether the server queued: `WAITING` requests or more waited on average, or the KV pool was once `PINNED`.

    The mean is over the time that requests were under way, all replicas together, so that one sample during the first
    burst of a closed loop is no queue. A run that states only means is judged by its mean waiting and mean KV usage.
    None where neither is known: the server was not looked at.
    """
    summary, peak = run.summary(), _peak_usage(run)
    usage = summary.kv_usage if peak is None else peak
    if summary.waiting is None and usage is None:
        return None
    return (summary.waiting or 0.0) >= WAITING or (usage or 0.0) >= PINNED


def _peak_usage(run: Run) -> float | None:
    peaks = [float(values.max()) for _, values in _samples(run.server, "kv_usage")]
    return max(peaks, default=None)


def server_knee(runs: Sequence[Run]) -> int | None:
    """The lowest concurrency at which the server queued (`server_queues`); None where it never did or is not known to.

    Which of the two it is, `server_queues` of each run says.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> def point(users, waiting):
    ...     return make_run(RunMeta(kind="imported", concurrency=users, stated={"waiting": waiting}))
    >>> server_knee([point(1, 0.0), point(8, 0.2), point(32, 4.0), point(64, 30.0)])
    32
    """
    return min((run.meta.concurrency for run in runs if run.meta.concurrency and server_queues(run)), default=None)


def _by_concurrency(runs: Sequence[Run]) -> list[tuple[int, Summary]]:
    closed = [(run.meta.concurrency, run) for run in runs if run.meta.concurrency is not None]
    return [(c, run.summary()) for c, run in sorted(closed, key=lambda pair: pair[0])]


def sweep_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a run in the order given, in milliseconds, None where unknown: the columns that a sweep CSV may have.

    ``concurrency``, ``request_rate``, ``output_tok_per_s``, ``per_user_tok_per_s``, ``request_per_s``,
    ``{ttft,tpot,itl,e2e}_ms_{mean,p50,p90,p99}`` and ``littles_law_concurrency``.
    """
    return [_row(run.summary()) for run in runs]


def _row(summary: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {
        "concurrency": summary.concurrency,
        "request_rate": summary.request_rate_per_s,
        "output_tok_per_s": summary.output_tok_per_s,
        "per_user_tok_per_s": summary.per_user_tok_per_s,
        "request_per_s": summary.request_per_s,
    }
    for name in LIMITS:
        values = getattr(summary, name).to_dict(1000)
        row |= {f"{name.removesuffix('_s')}_ms_{part}": values[part] for part in ("mean", "p50", "p90", "p99")}
    return {**row, "littles_law_concurrency": summary.littles_law_concurrency}
