"""Reports of GuideLLM (``--output json``), versions 1 and 2: one run a benchmark.

Times are seconds since 1970. A request is meant to be sent at ``targeted_start`` and sent at ``request_start``; its
first and last token are ``first_token_iteration`` and ``last_token_iteration``, so TPOT is (last - first) / (n - 1)
here too. The tool's own ``time_per_output_token_ms`` is (last token - sent) / n, and its ``inter_token_latency_ms`` a
mean a request: no gap is in the file, and no ITL is made of them. Both are kept in ``meta.stated`` as ``guidellm.*``.
Its percentiles are values of the sample, not interpolated.

A report that lists fewer requests than it counts in its figures holds a sample of them: it gives the figures alone. One
that lists fewer than were processed, outside any warm-up, is named partial: what became of the others is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferometer.records.importers.files import (
    in_file,
    is_json_with,
    is_number,
    iso_utc,
    last_line,
    mapping,
    not_read,
    only_numbers,
    read_object,
    refuse,
    shaped,
    source_fields,
    stated_stat,
    version_notes,
)
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "a GuideLLM report (JSON with metadata, benchmarks[].metrics and benchmarks[].requests)"

KNOWN_VERSION = "2"

REPORT_KEYS = ("metadata", "config", "args", "benchmarks", "conclusions")
BENCHMARK_KEYS = (
    "type_", "config", "scheduler_state", "scheduler_metrics", "metrics", "requests", "warnings", "start_time",
    "end_time", "duration", "warmup_duration", "cooldown_duration", "id_", "run_id", "run_index", "run_stats", "args",
    "benchmarker", "environment", "scheduler", "request_loader", "extras", "worker", "env_args", "backend", "profile",
)  # fmt: skip

LATENCIES = {
    "time_to_first_token_ms": ("ttft_s", 1e-3),
    "request_latency": ("e2e_s", 1.0),
    "request_scheduled_latency": ("e2e_from_scheduled_s", 1.0),
    "request_dispatch_delay": ("client_queue_s", 1.0),
}
"""The tool's latencies over requests, ours, and seconds in one."""

WEIGHTED = ("time_per_output_token_ms", "inter_token_latency_ms")
"""Means a request that the tool weighs by tokens; the second is our TPOT where every reply is of one length."""

RATES = {
    "requests_per_second": "request_per_s",
    "output_tokens_per_second": "output_tok_per_s",
    "tokens_per_second": "total_tok_per_s",
    "request_concurrency": "mean_in_flight",
}
TOTALS = {"prompt_token_count": "prompt_tokens", "output_token_count": "output_tokens"}

GROUPS = ("successful", "incomplete", "errored")


class Benchmark(msgspec.Struct, kw_only=True):
    """What is read of one benchmark."""

    metrics: dict[str, Any]
    requests: dict[str, list[dict[str, Any]] | None] | None = None
    config: dict[str, Any] = {}
    scheduler_state: dict[str, Any] | None = None
    start_time: float | None = None
    duration: float | None = None
    warmup_duration: float | None = None
    cooldown_duration: float | None = None
    args: dict[str, Any] | None = None


def sniff(path: Path) -> bool:
    """Whether the file names the tool's version and benchmarks, or its scheduler's strategy (older versions)."""
    return is_json_with(path, b'"guidellm_version"') or is_json_with(path, b'"benchmarks"', b'"scheduler_')


def read(path: Path) -> list[Run]:
    """One run a benchmark. Raises `FormatError` for a truncated file or one without benchmarks."""
    report = read_object(path, EXPECTED)
    benchmarks = report.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        refuse(path, "no benchmarks", EXPECTED)
    several = len(benchmarks) > 1
    return [
        _run(path, report, raw, f"{path.stem}-{i}" if several else path.stem) for i, raw in enumerate(benchmarks, 1)
    ]


def _run(path: Path, report: dict[str, Any], raw: Any, name: str) -> Run:
    benchmark = shaped(path, raw, Benchmark, EXPECTED)
    meta = in_file(path, lambda: _meta(path, report, raw, benchmark, name))
    listed = [(group, request) for group in GROUPS for request in (benchmark.requests or {}).get(group) or []]
    total = meta.stated.get("requests")
    if not listed or (total is not None and len(listed) < total):
        meta.notes.append(f"{len(listed)} of {total or 0:g} requests are listed: the figures are those the tool states")
        return make_run(meta)
    _say_what_is_missing(benchmark, meta, len(listed))
    return in_file(path, lambda: _detailed(benchmark, meta, listed))


def _meta(path: Path, report: dict[str, Any], raw: dict[str, Any], benchmark: Benchmark, name: str) -> RunMeta:
    about = mapping(report, "metadata")
    skipped = [key for key in report if key not in REPORT_KEYS] + [key for key in raw if key not in BENCHMARK_KEYS]
    notes = version_notes(about.get("version", KNOWN_VERSION), KNOWN_VERSION, skipped) or not_read(skipped, ())
    concurrency, rate = _load(benchmark)
    backend = mapping(benchmark.config, "backend") or mapping(report, "config", "spec", "backend")
    model = backend.get("model") or mapping(report, "args").get("model")
    return RunMeta(
        kind="imported",
        name=name,
        tool="GuideLLM",
        tool_version=str(about.get("guidellm_version") or ""),
        created=iso_utc(benchmark.start_time, "start_time", "seconds"),
        model=str(model) if model else None,
        concurrency=concurrency,
        request_rate_per_s=rate,
        duration_s=benchmark.duration,
        workload=_workload(report, benchmark),
        stated=_stated(benchmark),
        notes=notes,
        **source_fields(path),
    )


def _strategy(benchmark: Benchmark) -> dict[str, Any]:
    return mapping(benchmark.config, "strategy") or mapping(benchmark.args or {}, "strategy")


def _load(benchmark: Benchmark) -> tuple[int | None, float | None]:
    """Concurrency, or cap, and request rate of the strategy that was run."""
    strategy = _strategy(benchmark)
    kind, rate = strategy.get("type_"), strategy.get("rate")
    if kind == "synchronous":
        return 1, None
    cap = strategy.get("streams") if kind == "concurrent" else strategy.get("max_concurrency")
    return (
        int(cap) if cap is not None and is_number(cap) else None,
        float(rate) if rate is not None and is_number(rate) and kind != "concurrent" else None,
    )


def _workload(report: dict[str, Any], benchmark: Benchmark) -> dict[str, Any]:
    spec = mapping(report, "config", "spec") or mapping(report, "args")
    known = {"strategy": _strategy(benchmark), "data": spec.get("data"), "seed": spec.get("seed")}
    return {key: value for key, value in known.items() if value}


def _stated(benchmark: Benchmark) -> dict[str, float]:
    """The tool's figures of the successful requests by `Summary` path; those of another meaning as ``guidellm.*``."""
    metrics = benchmark.metrics
    stated: dict[str, float] = {}
    for name, (path, scale) in LATENCIES.items():
        stated |= _distribution(metrics, name, path, scale)
    lengths = mapping(metrics, "output_token_count", "successful")
    of_one_length = lengths.get("count") and lengths.get("min") == lengths.get("max")
    for name in WEIGHTED:
        stated |= _distribution(metrics, name, f"guidellm.{name.removesuffix('_ms')}_s", 1e-3)
    if of_one_length:
        weighted = _distribution(metrics, "inter_token_latency_ms", "tpot_s", 1e-3)
        stated |= {path: value for path, value in weighted.items() if path != "tpot_s.n"}
    for name, path in RATES.items():
        stated |= only_numbers({path: mapping(metrics, name, "successful").get("mean")})
    for name, path in TOTALS.items():
        stated |= only_numbers({path: mapping(metrics, name, "successful").get("total_sum")})
    return stated | _counts(metrics) | only_numbers({"duration_s": benchmark.duration})


def _distribution(metrics: dict[str, Any], name: str, path: str, scale: float) -> dict[str, float]:
    values = mapping(metrics, name, "successful")
    if not values.get("count"):
        return {}
    flat = {**mapping(values, "percentiles"), **values}
    keys = {"mean": "mean", "std": "std_dev", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99", "n": "count"}
    return stated_stat(path, flat, scale, keys)


def _counts(metrics: dict[str, Any]) -> dict[str, float]:
    counts = only_numbers(mapping(metrics, "request_totals"))
    failed = counts.get("errored", 0.0) + counts.get("incomplete", 0.0)
    found = {"requests": counts.get("total"), "completed": counts.get("successful"), "failed": failed}
    return only_numbers(found) if counts else {}


def _say_what_is_missing(benchmark: Benchmark, meta: RunMeta, listed: int) -> None:
    """Name a run partial that processed more requests than it lists (seen: 1,981 of 2,000, with no error)."""
    processed = (benchmark.scheduler_state or {}).get("processed_requests")
    if not is_number(processed) or processed is None or processed <= listed:
        return
    missing = f"{listed:,} of {int(processed):,} requests processed are listed"
    if benchmark.warmup_duration or benchmark.cooldown_duration:
        meta.notes.append(f"{missing}; the others are of the warm-up or cool-down")
        return
    meta.partial = f"{missing}; what became of the others is unknown"
    meta.notes.append(f"{meta.partial}: they are in no count here")


def _detailed(benchmark: Benchmark, meta: RunMeta, listed: list[tuple[str, dict[str, Any]]]) -> Run:
    rows = [_row(group, request) for group, request in listed]
    origin = min((row["sent_s"] for row in rows if row["sent_s"] is not None), default=None)
    if origin is None:
        meta.notes.append("no request has a time of sending: the figures are those the tool states")
        return make_run(meta)
    meta.started_unix_s = origin
    times = [name for name in rows[0] if name.endswith("_s")]
    for row in rows:
        row |= {name: None if row[name] is None else row[name] - origin for name in times}
    rows.sort(key=lambda row: (row["sent_s"] is None, row["sent_s"]))
    _flag_lengths(rows, meta, _asked(meta))
    return make_run(meta, {name: [row[name] for row in rows] for name in rows[0]})


def _row(group: str, request: dict[str, Any]) -> dict[str, Any]:
    """One request's columns, in seconds since 1970."""
    info = mapping(request, "info") or mapping(request, "scheduler_info")
    timings = mapping(info, "timings") or mapping(info, "request_timings")
    sent = _first(timings, "request_start") or _first(request, "request_start_time", "start_time")
    ttft = _first(request, "time_to_first_token_ms")
    first = _first(timings, "first_token_iteration", "first_iteration") or _first(request, "first_token_time")
    if first is None and sent is not None and ttft:
        first = sent + ttft / 1e3
    return {
        "scheduled_s": _first(timings, "targeted_start"),
        "sent_s": sent,
        "first_byte_s": _first(timings, "first_request_iteration"),
        "first_token_s": first,
        "first_content_s": _first(timings, "first_output_token_iteration"),
        "last_token_s": _first(timings, "last_token_iteration", "last_iteration") or _first(request, "last_token_time"),
        "end_s": _first(timings, "request_end") or _first(request, "request_end_time", "end_time"),
        "prompt_tokens": _tokens(request, "prompt_tokens", "input_metrics"),
        "output_tokens": _tokens(request, "output_tokens", "output_metrics"),
        "cached_tokens": _cached(request),
        "token_events": _first(timings, "token_iterations"),
        "error": _error(group, request, info),
    }


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if is_number(values.get(name))), None)


def _cached(request: dict[str, Any]) -> Any:
    """A reported 0 says that nothing was cached; it is not missing."""
    found = _first(request, "cached_tokens")
    return _first(mapping(request, "input_metrics"), "cached_tokens") if found is None else found


def _tokens(request: dict[str, Any], name: str, metrics: str) -> Any:
    counts = mapping(request, metrics)
    found = _first(request, name)
    return _first(counts, "total_tokens", "text_tokens") if found is None else found


def _error(group: str, request: dict[str, Any], info: dict[str, Any]) -> str | None:
    if group == "successful":
        return None
    told = last_line(info.get("error") or request.get("error"))
    return told or ("cancelled at the end of the run" if group == "incomplete" else "error")


def _asked(meta: RunMeta) -> Any:
    """The length asked for, where the data were made for it."""
    data = meta.workload.get("data")
    first = data[0] if isinstance(data, list) and data else data
    return first.get("output_tokens") if isinstance(first, dict) else None


def _flag_lengths(rows: list[dict[str, Any]], meta: RunMeta, asked: Any) -> None:
    """Say where a reply's length may be the length asked for: without usage this tool reports that."""
    fewer = [
        row
        for row in rows
        if row["output_tokens"] and (row["token_events"] or row["output_tokens"]) < row["output_tokens"]
    ]
    same = [row for row in fewer if row["output_tokens"] == asked]
    if same:
        events = sum(row["token_events"] for row in same)
        listed = sum(row["output_tokens"] for row in same)
        meta.notes.append(
            f"{len(same)} replies are listed with the {asked} tokens asked for ({listed:,} in all) though {events:,} "
            "token events came: several tokens a chunk, or no usage from the server, and then this tool puts the "
            "length asked for"
        )
