"""Runs as ``vllm bench serve --save-result --save-detailed`` writes them.

Times of requests are in seconds, statistics in milliseconds, percentiles by linear interpolation. What is not known is
left out, or null in an array; a request without a first token has the format's own 0 for its TTFT. A request that
neither ended nor has an error is given the error ``no end``, for the format knows no other sign of one.
``max_concurrent_requests`` is exact here, where the tool counts by buckets of a second; ``exported_by`` marks the file.

Of a run with a measured window the requests sent in it are written, for the format has no warm-up, and every figure is
of these requests: the duration from the first sent to the last end, the rates over it.

The format cannot hold: when the server admitted a request, first bytes, cached tokens, preemptions, replicas, sessions,
reasoning, and the last token of a request whose token events are not known.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferometer import __version__
from inferometer.records.metrics import PerRequest, Stat, Summary
from inferometer.records.run import OWN_CLOCK, Run, TokenTimes

STATS = {
    "ttft_s": "ttft",
    "tpot_s": "tpot",
    "itl_s": "itl",
    "e2e_s": "e2el",
    "client_queue_s": "client_queue_time",
    "e2e_from_scheduled_s": "e2el_including_client_queue",
}
"""Our metrics and the format's."""

PARTS = {"mean": "mean", "p50": "median", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}

NO_END = "no end"


def to_vllm_bench(run: Run) -> dict[str, Any]:
    """The result file of a run as one object, with detail arrays where the run has requests.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> run = make_run(RunMeta(kind="measured", concurrency=1), {"sent_s": [0.0], "first_token_s": [0.5],
    ...     "last_token_s": [1.5], "end_s": [1.5], "prompt_tokens": [8], "output_tokens": [11]})
    >>> result = to_vllm_bench(run)
    >>> result["request_rate"], result["mean_tpot_ms"], result["ttfts"]
    ('inf', 100.0, [0.5])
    """
    run = _measured(run)
    summary = run.summary()
    return {**_head(run), **_totals(run, summary), **_detail(run), **_statistics(summary)}


def _measured(run: Run) -> Run:
    """A run with a window as the run of the requests sent in it alone; any other as it is."""
    measured = PerRequest(run).measured
    if run.meta.window_s is None or not measured.any():
        return run
    times = None
    if run.token_times is not None:
        offsets = run.token_times.offsets
        counts, kept = np.diff(offsets), np.repeat(measured, np.diff(offsets))
        times = TokenTimes(np.concatenate(([0], np.cumsum(counts[measured]))), run.token_times.times_s[kept])
    meta = msgspec.structs.replace(run.meta, window_s=None, duration_s=None)
    return Run(meta=meta, requests=run.requests.filter(measured), server=run.server, token_times=times)


def text(run: Run) -> str:
    """The result file's content."""
    return json.dumps(to_vllm_bench(run)) + "\n"


def write(run: Run, path: Path) -> None:
    """Write the result file of a run."""
    path.write_text(text(run), encoding="utf-8")


def _head(run: Run) -> dict[str, Any]:
    meta = run.meta
    return {
        "date": _date(run),
        "endpoint_type": meta.workload.get("endpoint_type"),
        "backend": meta.workload.get("backend") or meta.server.get("engine"),
        "label": meta.name or None,
        "model_id": meta.model,
        "tokenizer_id": meta.workload.get("tokenizer_id"),
        "request_rate": "inf" if meta.request_rate_per_s is None else meta.request_rate_per_s,
        "burstiness": meta.workload.get("burstiness", 1.0),
        "max_concurrency": meta.concurrency,
        "exported_by": f"inferometer {__version__}",
    }


def _date(run: Run) -> str:
    """``20261129-121710``, by the run's first instant or by when it was made; empty where neither is known."""
    if run.meta.started_unix_s is not None:
        return datetime.fromtimestamp(run.meta.started_unix_s, UTC).strftime("%Y%m%d-%H%M%S")
    try:
        return datetime.fromisoformat(run.meta.created).strftime("%Y%m%d-%H%M%S")
    except ValueError:
        return run.meta.created


def _totals(run: Run, summary: Summary) -> dict[str, Any]:
    return {
        "num_prompts": summary.requests,
        "duration": summary.duration_s,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.prompt_tokens,
        "total_output_tokens": summary.output_tokens,
        "request_throughput": summary.request_per_s,
        "request_goodput": run.meta.stated.get("goodput.request_per_s"),
        "output_throughput": summary.output_tok_per_s,
        "total_token_throughput": summary.total_tok_per_s,
        "max_output_tokens_per_s": summary.peak_output_tok_per_s,
        "max_concurrent_requests": summary.peak_in_flight,
    }


def _statistics(summary: Summary) -> dict[str, float]:
    statistics: dict[str, float] = {}
    for ours, theirs in STATS.items():
        stat: Stat = getattr(summary, ours)
        known = {name: value for part, name in PARTS.items() if (value := getattr(stat, part)) is not None}
        statistics |= {f"{name}_{theirs}_ms": value * 1000 for name, value in known.items()}
    return statistics


def _detail(run: Run) -> dict[str, Any]:
    """The arrays, one value a measured request in the run's order; none without requests."""
    each = PerRequest(run)
    measured = each.measured
    if not measured.any():
        return {}
    frame = run.requests.filter(measured)
    sent, end, scheduled = (each.column(name)[measured] for name in ("sent_s", "end_s", "scheduled_s"))
    ttft, latency = each.first[measured] - sent, end - sent
    errors = [e or ("" if ended else NO_END) for e, ended in zip(frame["error"], ~np.isnan(end), strict=True)]
    detail: dict[str, Any] = {
        "input_lens": frame["prompt_tokens"].to_list(),
        "output_lens": frame["output_tokens"].to_list(),
        "ttfts": np.nan_to_num(ttft).tolist(),
        "latencies": np.nan_to_num(latency).tolist(),
        "errors": errors,
    }
    if run.meta.clock != OWN_CLOCK and not np.isnan(sent).any():
        detail["start_times"] = sent.tolist()
    if not np.isnan(scheduled).all():
        detail["queue_times"] = [None if queued != queued else queued for queued in (sent - scheduled).tolist()]
    if run.token_times is not None:
        times, spans = run.token_times.times_s, pairwise(run.token_times.offsets)
        detail["itls"] = [np.diff(times[a:b]).tolist() for (a, b), kept in zip(spans, measured, strict=True) if kept]
    return detail
