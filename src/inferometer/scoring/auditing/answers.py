"""What came back: requests that failed, were cut or came short, and who counted which tokens."""

from __future__ import annotations

import numpy as np
import polars as pl

from inferometer.benchmark.fitness import counted_by_events, hidden_reasoning, short_answers
from inferometer.scoring.auditing.finding import Finding, Severity
from inferometer.scoring.auditing.point import Point

FAILED = 0.05
"""From this share of failed requests on, the load was another than the one asked for."""
COUNTS = 0.02
"""Client and server may differ by this share of the tokens ..."""
EXTRA_REQUESTS = 2
"""... or by so many requests' worth: a ready check and a warm-up are the client's too."""
LISTED = 3


def nothing(point: Point) -> Finding | None:
    """No request that completed, and nothing stated either."""
    if point.summary.completed or (point.meta.stated and not point.has_rows):
        return None
    text = (
        "the file lists no requests"
        if not point.has_rows
        else f"none of {point.run.requests.height} requests ended well"
    )
    return point.finding("nothing_measured", text, 0, 1)


def failed(point: Point) -> Finding | None:
    """Requests with an error."""
    if not point.has_rows:
        count, sent = point.summary.failed or 0, point.summary.requests or 0
        return _failed(point, count, max(sent, count), "") if count else None
    errors = point.run.requests["error"].drop_nulls().filter(~_is_cut(point.run.requests["error"].drop_nulls()))
    if not errors.len():
        return None
    kinds = errors.str.extract(r"^(http \d+|[a-z]+)", 1).fill_null("other").value_counts(sort=True, name="n")
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.head(LISTED).iter_rows())
    return _failed(point, errors.len(), point.run.requests.height, f" ({listed})")


def _failed(point: Point, count: int, sent: int, kinds: str) -> Finding:
    share = count / sent
    severity: Severity | None = "spoils" if share > FAILED else None
    return point.finding("failed_requests", f"{count:,} of {sent:,} failed{kinds}", share, 0, severity=severity)


def _is_cut(errors: pl.Series) -> pl.Series:
    return errors.str.contains(r"^(cut|cancelled)\b")


def cut(point: Point) -> Finding | None:
    """Answers without an end, and those that the server ended at a limit of its own."""
    requests = point.run.requests
    if not point.has_rows:
        return None
    broken = requests.filter(
        (pl.col("error").is_null() & pl.col("end_s").is_null())
        | pl.col("error").str.contains(r"^(cut|cancelled)\b").fill_null(False)
    ).height
    limited = 0
    if "finish_reason" in requests.columns:
        limited += requests.filter(pl.col("error").is_null() & (pl.col("finish_reason") == "abort")).height
        if "asked_output_tokens" in requests.columns:
            short = pl.col("output_tokens") < pl.col("asked_output_tokens")
            limited += requests.filter(pl.col("error").is_null() & (pl.col("finish_reason") == "length") & short).height
    if not broken + limited:
        return None
    parts = [f"{broken} did not end"] * bool(broken) + [f"{limited} were ended by a limit of the server"] * bool(
        limited
    )
    text = f"of {requests.height:,} requests {' and '.join(parts)}"
    return point.finding("cut_requests", text, (broken + limited) / requests.height, 0)


def partial(point: Point) -> Finding | None:
    """A run that was broken off."""
    if not point.meta.partial:
        return None
    done = point.summary.completed
    text = point.meta.partial + (f" after {done:,} completed requests" if done is not None else "")
    return point.finding("partial_run", text)


def short(point: Point) -> Finding | None:
    """Answers that ended before the length asked for."""
    count, known = short_answers(point.run)
    asked = point.asked("output_tokens")
    if not known and asked is not None and point.has_rows:
        output = point.each.output[point.each.completed]
        count, known = int((output < asked).sum()), int((~np.isnan(output)).sum())
    if not count:
        return None
    mean = point.tokens("output_tokens")
    told = f"; {mean:,.0f} tokens on average" if mean is not None else ""
    text = f"{count:,} of {known:,} answers ended before the length asked for{told}"
    return point.finding("short_outputs", text, count / known, 0)


def token_counts(point: Point) -> Finding | None:
    """The server's counters against the sums of the client's."""
    found = [_apart(point, ours, theirs) for ours, theirs in (("prompt", "prompt"), ("output", "generation"))]
    known = [each for each in found if each is not None]
    if not known:
        return None
    text = "; ".join(text for text, _, _ in known)
    return point.finding("token_counts_disagree", text, known[0][1], known[0][2])


def _apart(point: Point, ours: str, theirs: str) -> tuple[str, float, float] | None:
    counted = point.meta.counters.get(f"{theirs}_tokens")
    told, largest, failures = _told(point, f"{ours}_tokens")
    if counted is None or told is None:
        return None
    slack = max(COUNTS * told, (EXTRA_REQUESTS + failures) * largest)
    apart = counted - told
    if abs(apart) <= slack or (apart < 0 and not _covered(point)):
        return None
    return f"{counted:,.0f} {theirs} tokens by the server's counters, {told:,.0f} by the client's", counted, told


def _told(point: Point, name: str) -> tuple[float | None, float, int]:
    """The client's sum, the largest request, and how many requests failed with tokens that nobody told the client."""
    if not point.has_rows:
        total = getattr(point.summary, name)
        mean = point.tokens(name) or 0.0
        return (None if total is None else float(total)), mean, point.summary.failed or 0
    answered = point.run.requests.filter(pl.col("error").is_null())[name]
    if answered.null_count() or not answered.len():
        return None, 0.0, 0
    values = answered.to_numpy()
    return float(values.sum()), float(values.max()), point.run.requests.height - answered.len()


def _covered(point: Point) -> bool:
    """Whether the server was looked at before the first send and after the last end: else its counts fall short."""
    times = point.run.server["time_s"].drop_nulls()
    sent, end = point.each.occupied
    if not times.len() or not sent.size:
        return True
    return bool(times.min() <= sent[0] and times.max() >= end[-1])


def by_chunks(point: Point) -> Finding | None:
    """Output tokens that are the stream's chunks, for want of usage."""
    text = counted_by_events(point.run, point.summary)
    return point.finding("tokens_counted_by_chunks", text) if text else None


def chunks(point: Point) -> Finding | None:
    """Chunks that carry several tokens: gaps are not those between tokens."""
    if point.summary.itl_name != "chunk gap" or point.run.token_times is None:
        return None
    events = np.diff(point.run.token_times.offsets)
    known = point.each.completed & (events > 0) & ~np.isnan(point.each.output)
    each = float(point.each.output[known].sum() / events[known].sum())
    several, of = int((events < point.each.output)[known].sum()), int(known.sum())
    told = f"{several:,} of {of:,} answers have chunks of several tokens, {each:.4g} on average"
    return point.finding("chunk_gaps", f"{told}: gaps between chunks are not ITL", each, 1)


def reasoning(point: Point) -> Finding | None:
    """Reasoning tokens that are billed and not streamed."""
    text = hidden_reasoning(point.run, point.summary)
    return point.finding("hidden_reasoning", text) if text else None
