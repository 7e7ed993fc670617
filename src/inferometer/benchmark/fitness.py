"""Whether a measurement can be trusted: was the client, or anything else but the server, what was measured?

`unfit` lists what spoils a measurement, `remarks` what its reader must know. Both only read the finished run.
The public predicates are shared with `scoring.audit`, which looks at runs of any origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from inferometer.records.metrics import Summary, in_flight
from inferometer.records.run import Run

BUSY = 0.9
"""A client process that uses more of a core than this has no time left to look at the clock."""
LATE_S = 0.005
"""A request sent, or a timer fired, later than this at the 99th percentile shows in a TTFT ..."""
LATE_SHARE = 0.1
"""... where it is also more than this share of the median TTFT."""
IN_FLIGHT_SHARE = 0.1
"""Client and server may differ by so much in how many requests they hold ..."""
IN_FLIGHT_LEAST = 2.0
"""... and by so many: a sample a second catches neither edge."""
FEW_PER_USER = 3
"""Fewer requests a user than this measure the start and the end of a run, not the server."""
CLOCK_STEP_S = 0.05
"""A wall clock that was set by more than this shows in what a server stamps with it."""
WARM = 0.01
"""Share of prompt tokens from the cache from which a run that did not ask for it says so (vllm PR#53920)."""


def unfit(run: Run, summary: Summary) -> list[str]:
    """Why this measurement should not be trusted; nothing where it can be."""
    return [found for check in (_nothing, _busy, _late, _lagging, _throttled) if (found := check(run, summary))]


def remarks(run: Run, summary: Summary) -> list[str]:
    """What whoever reads these figures must know."""
    return [found for check in _REMARKS if (found := check(run, summary))]


def _nothing(run: Run, summary: Summary) -> str | None:
    return None if run.requests.height else "no request was sent"


def _busy(run: Run, summary: Summary) -> str | None:
    share = run.meta.client.get("cpu_share", 0.0)
    if share <= BUSY:
        return None
    workers = int(run.meta.client.get("workers", 1))
    return (
        f"the client was the bottleneck: its busiest process used {share:.0%} of a core; give it more (workers above "
        f"{workers}, on cores of their own)"
    )


def _late(run: Run, summary: Summary) -> str | None:
    late = often(run.meta.client, "lateness_s")
    if late is None or is_capped(run) or not matters(late, summary):
        return None
    return f"the client was late: {SOME} of the requests were sent {late * 1000:.1f} ms or more after their time"


def _lagging(run: Run, summary: Summary) -> str | None:
    lag = often(run.meta.client, "loop_lag_s")
    if lag is None or not matters(lag, summary):
        return None
    return f"the client's clock stalled: {SOME} of its timers fired {lag * 1000:.1f} ms late or more"


SOME = "1 %, and at least three,"
"""Whom a delay from `often` concerns."""


def often(client: Mapping[str, float], name: str) -> float | None:
    """The delay in seconds that 1 % exceeded, and at least three did; ``client`` as in `RunMeta.client`."""
    p99 = client.get(f"{name}.p99")
    return None if p99 is None else min(p99, client.get(f"{name}.third_highest", p99))


def matters(delay_s: float, summary: Summary) -> bool:
    """Whether a client's delay shows in the TTFT (`LATE_S`, `LATE_SHARE`)."""
    ttft = summary.ttft_s.p50
    return delay_s > LATE_S and (ttft is None or delay_s > LATE_SHARE * ttft)


def is_capped(run: Run) -> bool:
    """An open loop with a cap is late on purpose."""
    return run.meta.request_rate_per_s is not None and run.meta.concurrency is not None


def _throttled(run: Run, summary: Summary) -> str | None:
    found = apart(run)
    if found is None:
        return None
    ours, theirs = found
    what = (
        "something between them holds requests back, or this client is behind"
        if theirs < ours
        else "others use the server too"
    )
    return f"client and server disagree: {ours:.1f} requests in flight, the server held {theirs:.1f}: {what}"


def apart(run: Run) -> tuple[float, float] | None:
    """Mean requests in flight by the client and by the server, where they disagree (`IN_FLIGHT_SHARE`)."""
    found = in_flight(run)
    if found is None or abs(found[0] - found[1]) <= max(IN_FLIGHT_LEAST, IN_FLIGHT_SHARE * found[0]):
        return None
    return found


def _few(run: Run, summary: Summary) -> str | None:
    users, sent = run.meta.concurrency, summary.requests
    if users is None or sent is None or sent >= FEW_PER_USER * users or run.meta.request_rate_per_s is not None:
        return None
    return (
        f"{sent} requests of {users} users measure the start and the end of a run: send at least {FEW_PER_USER} a user"
    )


def _failures(run: Run, summary: Summary) -> str | None:
    errors = run.requests["error"].drop_nulls()
    if not errors.len():
        return None
    kinds = errors.str.extract(r"^(http \d+|[a-z]+)", 1).value_counts(sort=True)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.iter_rows())
    return f"{errors.len()} of {run.requests.height} requests failed ({listed})"


def short_answers(run: Run) -> tuple[int, int]:
    """Answers shorter than asked for, and those of which it is known how much was asked."""
    if not _has(run, "asked_output_tokens"):
        return 0, 0
    known = _answered(run).filter(pl.col("asked_output_tokens").is_not_null())
    return known.filter(pl.col("output_tokens") < pl.col("asked_output_tokens")).height, known.height


def _short(run: Run, summary: Summary) -> str | None:
    short, known = short_answers(run)
    if not short:
        return None
    return f"{short} of {known} answers ended before the length asked for: counted as long as they were"


def counted_by_events(run: Run, summary: Summary) -> str | None:
    """Whether output tokens are chunks of the stream, for want of the server's usage."""
    if not _has(run, "output_counted_by") or not (_answered(run)["output_counted_by"] == "events").any():
        return None
    return "the server gave no usage: output tokens are the stream's chunks, which may hold several each"


def _chunks(run: Run, summary: Summary) -> str | None:
    if summary.itl_name != "chunk gap":
        return None
    return "some chunks hold several tokens: gaps are chunk gaps; TPOT counts tokens"


def _more_events(run: Run, summary: Summary) -> str | None:
    """A chunk is at least one token, so a usage below the number of chunks cannot be right."""
    if not _has(run, "token_events", "output_counted_by"):
        return None
    told = _answered(run).filter(pl.col("output_counted_by") == "usage")
    few = told.filter(pl.col("token_events") > pl.col("output_tokens")).height
    return f"{few} answers had more chunks of tokens than tokens by the server's usage" if few else None


def _stale(run: Run, summary: Summary) -> str | None:
    count = int(run.meta.client.get("stale", 0))
    if not count:
        return None
    return (
        f"{count} requests were sent twice: the server had closed the connection that they were first sent on, without "
        "saying so"
    )


def _clock_set(run: Run, summary: Summary) -> str | None:
    """The requests' times are on a clock that cannot be set; vLLM's latency histograms and all logs are not."""
    step_s = run.meta.client.get("clock_step_s", 0.0)
    if abs(step_s) <= CLOCK_STEP_S:
        return None
    return (
        f"the wall clock was set by {step_s:+.2f} s during the run: the requests' times do not use it, but a server's "
        "log and its own latencies may, and then do not compare with them"
    )


def hidden_reasoning(run: Run, summary: Summary) -> str | None:
    """Reasoning that is billed and not streamed: the first token seen is not the first token made."""
    if not _has(run, "reasoning_tokens"):
        return None
    answered = _answered(run).filter(pl.col("reasoning_tokens") > 0)
    hidden = answered.filter(
        pl.col("first_content_s").is_null() | (pl.col("first_content_s") == pl.col("first_token_s"))
    )
    if not hidden.height:
        return None
    return (
        f"{hidden.height} answers hide reasoning tokens: their TTFT is that of the first visible token, not the first"
    )


def prompt_tokens_cached(run: Run) -> tuple[float, float] | None:
    """Prompt tokens found in the server's prefix cache, and those looked for, by its counters; None without them."""
    counters = run.meta.counters
    queries, hits = (counters.get(f"prefix_cache_{name}") for name in ("queries", "hits"))
    if queries is None:  # SGLang and llama.cpp count the prompt tokens themselves
        queries, hits = counters.get("prompt_tokens"), counters.get("cached_prompt_tokens")
    return None if queries is None or hits is None else (hits, queries)


def sharing_asked(run: Run) -> bool:
    """Whether the load shares prompts on purpose: a common prefix, or turns of a session."""
    return bool(run.meta.workload.get("shared_prefix_len")) or run.meta.workload.get("kind") == "sessions"


def _warm(run: Run, summary: Summary) -> str | None:
    hits, queries = prompt_tokens_cached(run) or (0.0, 0.0)
    if sharing_asked(run) or not queries or hits / queries < WARM:
        return None
    share = f"{hits / queries:.0%}"
    return f"{share} of the prompt tokens came from the server's prefix cache, though no sharing was asked for"


def _token_counts(run: Run, summary: Summary) -> str | None:
    """The server's counters against the sums of what it told request by request."""
    found = []
    for ours, theirs in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "generation_tokens")):
        counted = run.meta.counters.get(theirs)
        told = run.requests[ours].sum() if run.requests[ours].null_count() == 0 else None
        if counted is not None and told is not None and int(counted) != int(told):
            found.append(f"{int(counted):,} {theirs.replace('_', ' ')} by its counters, {int(told):,} by its answers")
    return f"the server does not agree with itself, or others use it: {'; '.join(found)}" if found else None


def _has(run: Run, *names: str) -> bool:
    return all(name in run.requests.columns for name in names)


def _answered(run: Run) -> pl.DataFrame:
    return run.requests.filter(pl.col("error").is_null())


_REMARKS: tuple[Any, ...] = (
    _failures,
    _few,
    _short,
    counted_by_events,
    _more_events,
    _stale,
    _clock_set,
    _chunks,
    hidden_reasoning,
    _warm,
    _token_counts,
)
