"""The load of a measured run, rebuilt so that the simulator can be given the same: lengths, arrivals, hits, pauses."""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from inferometer.errors import InputError
from inferometer.records.metrics import PerRequest, Summary
from inferometer.records.run import OWN_CLOCK, Run
from inferometer.specs.workload import FloatArray, IntArray, Workload
from inferometer.workload import generate

LEAST_PAUSE_S = 1e-9
"""A shorter pause between an answer and the next request is the simulator's own rounding."""


class Load(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a server was sent."""

    users: int
    """Users of a closed loop, else the mean in flight: the batch that the closed forms are taken at."""
    closed: bool
    prompt: IntArray
    output: IntArray
    cached: IntArray
    arrival_s: FloatArray | None = None
    """Open loop and replay: when each was meant to be sent."""
    sent_s: FloatArray | None = None
    """When each was sent; None where that is unknown."""
    think_time_s: float = 0.0
    """Closed loop: the pause that the load asks for ..."""
    idle_s: float = 0.0
    """... and the mean one beyond it that the client took."""
    idle_known: bool = False
    hits: float | None = None
    """Share of the prompts' tokens found in the cache; None: not known."""
    window: tuple[int, int] | None = None
    """First and last request sent in the measured window, in order of sending."""
    notes: tuple[str, ...] = ()

    @property
    def context(self) -> int:
        """Mean context of a decoding request."""
        return round(float(self.prompt.mean() + self.output.mean() / 2))

    def steady(self, *, cached: bool) -> Workload:
        """A closed loop of `users` with the same requests, whatever loop it was."""
        return self._closed(self.think_time_s, cached)

    def as_meant(self) -> Workload:
        """As the load was meant to be sent."""
        if self.closed:
            return self._closed(self.think_time_s, cached=True)
        assert self.arrival_s is not None
        return Workload.from_requests(self.arrival_s, self.prompt, self.output, self.cached)

    def as_sent(self) -> Workload:
        """As the client did send it: later than meant, or with pauses."""
        if self.closed:
            return self._closed(self.think_time_s + self.idle_s, cached=True)
        assert self.arrival_s is not None
        times = self.arrival_s if self.sent_s is None else self.sent_s
        return Workload.from_requests(times, self.prompt, self.output, self.cached)

    def with_hits(self, share: float) -> Load:
        """The same with this share of the prompts, picked at random, found whole in the cache: but for one token."""
        count = len(self.prompt)
        found = np.zeros(count, dtype=bool)
        found[np.random.default_rng(0).permutation(count)[: round(share * count)]] = True
        return msgspec.structs.replace(self, cached=np.where(found, self.prompt - 1, 0), hits=share)

    def _closed(self, think_time_s: float, cached: bool) -> Workload:
        return Workload.closed_loop(
            self.users,
            len(self.prompt),
            self.prompt,
            self.output,
            think_time_s,
            self.cached if cached else 0,
        )


def rebuild(run: Run, summary: Summary, workload: Workload | None, seed: int) -> Load:
    """The load of a run, from its requests; of one that states only aggregates, from the workload given.

    Raises:
        InputError: no output throughput; neither tells the requests' lengths; an open loop without send times.
    """
    if not summary.output_tok_per_s:
        raise InputError.because(f"{run_name(run)} has no output token rate, so there is no gap to explain")
    rows = _served(run)
    if rows is None:
        return _described(run, summary, workload, seed)
    users, closed = _users(run, summary, rows)
    prompt, output = (rows[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    cached, hits = _cached(run, summary, rows, prompt, workload)
    lost = run.requests.height - rows.height
    timed = _timed(run, rows)
    think = float(run.meta.workload.get("think_time_s") or 0.0)
    idle = idle_s(run, users) if closed and timed else None
    sent = rows["sent_s"].to_numpy() if timed else None
    if not closed and sent is None:
        raise InputError.because(f"{run_name(run)}: an open loop without send times cannot be sent again")
    meant = _meant(rows)
    start = min(float(each.min()) for each in (meant, sent) if each is not None)
    return Load(
        users=users,
        closed=closed,
        prompt=prompt,
        output=output,
        cached=cached,
        arrival_s=None if closed else meant - start,
        sent_s=None if sent is None or closed else sent - start,
        think_time_s=think,
        idle_s=max(0.0, (idle or 0.0) - think) if (idle or 0.0) - think > LEAST_PAUSE_S else 0.0,
        idle_known=timed,
        hits=hits,
        window=_window(run, sent),
        notes=(_lost(run, lost),) if lost else (),
    )


def _lost(run: Run, lost: int) -> str:
    return f"{run_name(run)}: {lost} of {run.requests.height} requests failed or have no counts, and are left out"


def run_name(run: Run) -> str:
    """The run's name, else its id."""
    return run.meta.name or run.id


def idle_s(run: Run, users: int) -> float | None:
    """Mean pause of a closed loop's slot from one request's end to its next one's start; None where not known.

    The k-th send after the first ``users`` fills the slot that the k-th end left.
    """
    each = PerRequest(run)
    sent, end = each.occupied
    if sent.size <= users:
        return None
    return float(np.clip(sent[users:] - end[: sent.size - users], 0, None).mean())


def cached_tokens(prompt: IntArray, share: float) -> IntArray:
    """That share of every prompt, in whole tokens; at least one token is always computed."""
    wanted = np.rint(prompt * min(max(share, 0.0), 1.0))
    return np.asarray(np.minimum(wanted, prompt - 1), dtype=np.int64)


def hit_rate(run: Run, summary: Summary) -> float | None:
    """The prefix cache's hit rate, as requests, the source or the server's counters state it; None: not known."""
    if summary.prefix_hit_rate is not None:
        return summary.prefix_hit_rate
    stated = run.meta.stated.get("prefix_hit_rate")
    if stated is not None:
        return float(stated)
    from inferometer.benchmark.fitness import prompt_tokens_cached  # with its client, so slow to import

    hits, queries = prompt_tokens_cached(run) or (0.0, 0.0)
    if queries:
        return hits / queries
    off = run.meta.server.get("prefix_caching") is False
    none_asked = run.meta.counters.get("prefix_cache_queries") == 0 and run.meta.counters.get("prompt_tokens")
    return 0.0 if off or none_asked else None


def _served(run: Run) -> pl.DataFrame | None:
    """The requests that were served and whose lengths are known, in order of sending; None: there is none."""
    known = run.requests.filter(
        pl.col("error").is_null()
        & pl.col("prompt_tokens").is_not_null()
        & (pl.col("output_tokens") > 0)
        & pl.col("end_s").is_not_null()
    )
    if not known.height:
        return None
    # where the replica of each is known, each replica has its own order: that of the rows
    return known.sort("sent_s", maintain_order=True) if known["replica"].null_count() else known


def _timed(run: Run, rows: pl.DataFrame) -> bool:
    return run.meta.clock != OWN_CLOCK and rows["sent_s"].null_count() == 0


def _users(run: Run, summary: Summary, rows: pl.DataFrame) -> tuple[int, bool]:
    if run.meta.request_rate_per_s is None and run.meta.concurrency:
        return min(run.meta.concurrency, rows.height), True
    return min(max(1, round(summary.mean_in_flight or 1.0)), rows.height), False


def _meant(rows: pl.DataFrame) -> FloatArray:
    return np.asarray(rows.select(pl.coalesce("scheduled_s", "sent_s")).to_series().to_numpy(), dtype=np.float64)


def _cached(
    run: Run, summary: Summary, rows: pl.DataFrame, prompt: IntArray, workload: Workload | None
) -> tuple[IntArray, float | None]:
    if rows["cached_tokens"].null_count() < rows.height:
        cached = np.minimum(rows["cached_tokens"].fill_null(0).to_numpy(), prompt - 1)
        return cached, float(cached.sum() / prompt.sum())
    hits = hit_rate(run, summary)
    if hits is None and workload is not None:
        hits = _stated_hits(workload)
    return cached_tokens(prompt, hits or 0.0), hits


def _stated_hits(workload: Workload) -> float | None:
    """What a study's workload says is cached; None where it says nothing (0)."""
    drawn = generate(workload)
    share = float(drawn.cached_tokens.sum() / drawn.prompt_tokens.sum())
    return share or None


def _window(run: Run, sent: FloatArray | None) -> tuple[int, int] | None:
    """The requests sent in the measured window; None where everything was measured."""
    if run.meta.window_s is None or sent is None:
        return None
    start, stop = run.meta.window_s
    inside = np.flatnonzero((sent >= start) & (sent <= (np.inf if stop is None else stop)))
    return (int(inside[0]), int(inside[-1])) if inside.size > 1 else None


def _described(run: Run, summary: Summary, workload: Workload | None, seed: int) -> Load:
    """The load of a run that states only aggregates: its own concurrency or rate, the lengths of the workload."""
    if workload is None:
        raise InputError.because(
            f"{run_name(run)}: holds no requests with their lengths; give the workload that it was (a study's point)"
        )
    drawn = generate(workload, seed)
    closed = workload.concurrency is not None
    users = (run.meta.concurrency or workload.concurrency or 1) if closed else round(summary.mean_in_flight or 1.0)
    hits = hit_rate(run, summary)
    known = hits if hits is not None else _stated_hits(workload)
    return Load(
        users=min(max(1, users), len(drawn)),
        closed=closed,
        prompt=drawn.prompt_tokens,
        output=drawn.output_tokens,
        cached=drawn.cached_tokens if hits is None else cached_tokens(drawn.prompt_tokens, hits),
        arrival_s=None if closed else drawn.arrival_s,
        think_time_s=workload.think_time_s,
        hits=known,
        notes=("the run states no requests: their lengths are the study's",),
    )
