"""Exports of AIPerf: ``profile_export_aiperf.json`` or ``.csv`` (aggregates) and ``profile_export.jsonl`` (requests).

Each metric names its unit, and the unit is read; the JSON lines' ``metadata`` is in nanoseconds since 1970. A request's
first token comes ``time_to_first_token`` after its start, each further token event after the next of
``inter_chunk_latency``. Those gaps are the ITL; what AIPerf calls ``inter_token_latency`` is (E2E - TTFT) / (n - 1),
our TPOT. When the credit to send was issued is the time a request was meant to be sent. Token counts are the server's
``usage`` where it is there, else the tool's own. Requests of the warm-up are left out. The tool's rates are over
``end_time`` - ``start_time``, which is therefore the duration; ``benchmark_duration`` (first sent to last end) is kept.

Of a folder, the files of one export make one run: the requests of the JSON lines with what the JSON states.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import FormatError
from inferometer.records.importers.files import (
    head,
    in_file,
    is_json_with,
    is_number,
    last_line,
    mapping,
    not_read,
    numbers,
    only_numbers,
    read_bytes,
    read_documents,
    read_object,
    refuse,
    seconds_in,
    shaped,
    source_fields,
    stated_stat,
    version_notes,
)
from inferometer.records.importers.stream import token_times
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "an AIPerf export (profile_export_aiperf.json or .csv, profile_export.jsonl)"

KNOWN_VERSION = "1.4"

PARTS = {"mean": "avg", "std": "std", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "n": "count"}

LATENCIES = {
    "time_to_first_token": "ttft_s",
    "request_latency": "e2e_s",
    "inter_token_latency": "tpot_s",
    "inter_chunk_latency": "itl_s",
    "effective_latency": "e2e_from_scheduled_s",
    "credit_to_start_latency": "client_queue_s",
}
"""The tool's latencies and ours."""

RATES = {
    "output_token_throughput": ("output_tok_per_s", "tokens/sec"),
    "total_token_throughput": ("total_tok_per_s", "tokens/sec"),
    "request_throughput": ("request_per_s", "requests/sec"),
    "effective_concurrency": ("effective_concurrency", "requests"),
}
"""The tool's rates, our paths, and the unit each has to have."""

TOTALS = {
    "prompt_tokens": ("total_usage_prompt_tokens", "total_isl", "total_input_sequence_length"),
    "output_tokens": ("total_usage_completion_tokens", "total_osl", "total_output_sequence_length"),
}
"""Our totals and the tool's, the first that is there."""

OTHER_KEYS = (
    "schema_version", "aiperf_version", "benchmark_id", "input_config", "run_info", "was_cancelled", "is_complete",
    "error_summary", "start_time", "end_time", "telemetry_data", "telemetry_stats", "server_metrics_data",
    "branch_stats", "warmup_metrics", "metadata",
)  # fmt: skip
"""Keys of the JSON that are no metrics."""


class Metric(msgspec.Struct, kw_only=True):
    """One metric of the aggregates."""

    unit: str
    avg: float | None = None
    std: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    count: int | None = None
    sum: float | None = None


class Value(msgspec.Struct):
    """One metric of one request."""

    value: float | list[float] | None
    unit: str


class Metadata(msgspec.Struct, kw_only=True):
    """When a request ran; nanoseconds since 1970."""

    request_start_ns: int
    request_end_ns: int | None = None
    credit_issued_ns: int | None = None
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False
    conversation_id: str | None = None


class Record(msgspec.Struct, kw_only=True):
    """One line of the JSON lines."""

    metadata: Metadata
    metrics: dict[str, Value] = {}
    error: Any = None


def sniff(path: Path) -> bool:
    """Whether the file is one of the three that this tool writes."""
    return _is_summary(path) or _is_lines(path) or _is_csv(path)


def _is_summary(path: Path) -> bool:
    # its export of the server's metrics has units too, and no request's latency
    return is_json_with(path, b'"aiperf_version"', b'"unit"', b'"request_latency"')


def _is_lines(path: Path) -> bool:
    return is_json_with(path, b'"request_start_ns"', b'"metrics"')


def _is_csv(path: Path) -> bool:
    return head(path, 64).startswith(b"Metric,avg,")


def read(path: Path) -> list[Run]:
    """The run of one file alone. Raises `FormatError` for a truncated file or a unit that is not what it must be."""
    if _is_lines(path):
        return [_requests(path, RunMeta(kind="imported", name=path.stem, tool="AIPerf", **source_fields(path)))]
    return [in_file(path, lambda: make_run(_summary(path)))]


def read_together(paths: Sequence[Path]) -> list[Run]:
    """One run an export: its JSON lines' requests with the aggregates of the JSON (else the CSV) beside them."""
    exports: dict[str, list[Path]] = {}
    for path in paths:
        exports.setdefault(path.stem.removesuffix("_aiperf"), []).append(path)
    return [_export(files) for files in exports.values()]


def _export(files: Sequence[Path]) -> Run:
    lines = next((path for path in files if _is_lines(path)), None)
    summary = next((path for path in files if _is_summary(path)), None)
    source = summary or next((path for path in files if _is_csv(path)), None)
    if lines is None or source is None:
        return read(source or files[0])[0]
    meta = in_file(source, lambda: _summary(source))
    run = _requests(lines, meta)
    meta.notes.append(f"requests from {lines.name}")
    told, listed = meta.stated.get("requests"), run.requests.height
    if told is not None and listed < told:
        meta.partial = f"{lines.name} lists {listed} of {told:g} requests"
    return run


def _summary(path: Path) -> RunMeta:
    """What the aggregates say, JSON or CSV."""
    if _is_csv(path):
        meta = RunMeta(kind="imported", name=path.stem, tool="AIPerf or GenAI-Perf", **source_fields(path))
        meta.stated = stated_figures(_csv_metrics(path))
        meta.notes = ["the CSV's figures are rounded to two decimals, and it does not say what load they are of"]
    else:
        raw = read_object(path, EXPECTED)
        meta = _json_meta(path, raw, stated_figures(json_metrics(path, raw, EXPECTED)))
    if not meta.stated:
        refuse(path, "no metric that is known", EXPECTED)
    meta.duration_s = meta.stated.get("duration_s")
    return meta


def json_metrics(path: Path, raw: dict[str, Any], expected: str) -> dict[str, Metric]:
    """The metrics among an object's values. Raises `FormatError` for one whose figures are no numbers."""
    found = {key: value for key, value in raw.items() if isinstance(value, dict) and "unit" in value}
    return {key: shaped(path, value, Metric, expected) for key, value in found.items()}


def _csv_metrics(path: Path) -> dict[str, Metric]:
    """The rows of the CSV's two tables, by the JSON's names."""
    try:
        rows = list(csv.reader(io.StringIO(read_bytes(path).decode())))
        return dict(_csv_rows(path, rows))
    except (UnicodeDecodeError, csv.Error, ValueError) as why:
        refuse(path, f"not a sound table ({why})", EXPECTED)


def _csv_rows(path: Path, rows: list[list[str]]) -> list[tuple[str, Metric]]:
    header: list[str] = []
    metrics = []
    for row in (row for row in rows if row):
        if row[0] == "Metric":
            header = ["avg" if name == "Value" else name for name in row[1:]]
            continue
        if len(row) != len(header) + 1:
            refuse(path, f"row {row[0]!r} is not complete", EXPECTED)
        values = {name: float(cell) for name, cell in zip(header, row[1:], strict=True) if cell}
        name, unit = _csv_name(row[0])
        metrics.append((name, Metric(unit=unit, **_parts(values))))
    return metrics


def _parts(values: dict[str, float]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in PARTS.values()}


def _csv_name(label: str) -> tuple[str, str]:
    """``Time to First Token (ms)`` as the JSON's name and the unit."""
    words, _, unit = label.rpartition(" (") if label.endswith(")") else (label, "", "")
    name = words.partition(" (")[0].lower().replace(" ", "_").replace("-", "_")
    return {"completed_requests": "completed_request_count"}.get(name, name), unit.removesuffix(")")


def stated_figures(metrics: dict[str, Metric]) -> dict[str, float]:
    """Aggregates by `Summary` path, in seconds and per second. Raises `FormatError` for a unit of another kind."""
    stated: dict[str, float] = {}
    for name, path in LATENCIES.items():
        if (metric := metrics.get(name)) is not None:
            scale = seconds_in(metric.unit, name)
            stated |= stated_stat(path, msgspec.structs.asdict(metric), scale, PARTS)
    for name, (path, unit) in RATES.items():
        if (metric := metrics.get(name)) is not None and metric.avg is not None:
            if metric.unit not in (unit, ""):
                raise FormatError(f"{name}, unit", metric.unit, unit)
            stated[path] = metric.avg
    if (metric := metrics.get("benchmark_duration")) is not None and metric.avg is not None:
        stated["duration_s"] = metric.avg * seconds_in(metric.unit, "benchmark_duration")
    return stated | _stated_counts(metrics)


def _stated_counts(metrics: dict[str, Metric]) -> dict[str, float]:
    """Requests and token totals."""
    counts = {name: metric.avg for name, metric in metrics.items() if metric.avg is not None}
    stated: dict[str, float] = {}
    for path, names in TOTALS.items():
        total = next((counts[name] for name in names if name in counts), None)
        stated |= only_numbers({path: total})
    completed, ended = counts.get("request_count"), counts.get("completed_request_count")
    failed = counts.get("error_request_count")
    if failed is None and ended is not None and completed is not None:
        failed = ended - completed
    requests = completed + failed if completed is not None and failed is not None else None
    return stated | only_numbers({"completed": completed, "failed": failed, "requests": requests})


def _json_meta(path: Path, raw: dict[str, Any], stated: dict[str, float]) -> RunMeta:
    config = mapping(raw, "input_config")
    others = {key: value for key, value in raw.items() if not (isinstance(value, dict) and "unit" in value)}
    skipped = [key for key in others if key not in OTHER_KEYS]
    version = raw.get("schema_version", "")
    notes = version_notes(version, KNOWN_VERSION, skipped) or not_read(others, OTHER_KEYS)
    errors = raw.get("error_summary")
    if isinstance(errors, list) and errors:
        notes.append(f"errors: {msgspec.json.encode(errors).decode()[:300]}")
    concurrency, rate = load_of(config)
    if "duration_s" in stated and (phase := _phase_s(raw)) is not None:
        stated |= {"benchmark_duration_s": stated["duration_s"], "duration_s": phase}
    return RunMeta(
        kind="imported",
        name=path.stem,
        tool="AIPerf",
        tool_version=str(raw.get("aiperf_version") or ""),
        created=str(raw.get("start_time") or ""),
        model=model_of(config),
        concurrency=concurrency,
        request_rate_per_s=rate,
        workload={"input_config": config} if config else {},
        stated=stated,
        notes=notes,
        partial=_partial(raw),
        **source_fields(path),
    )


def _phase_s(raw: dict[str, Any]) -> float | None:
    """From ``start_time`` to ``end_time``; None where they are no times."""
    try:
        start, end = (datetime.fromisoformat(str(raw.get(key))) for key in ("start_time", "end_time"))
        seconds = (end - start).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if seconds > 0 else None


def _partial(raw: dict[str, Any]) -> str:
    if raw.get("was_cancelled"):
        return "cancelled"
    return "not complete" if raw.get("is_complete") is False else ""


def load_of(config: dict[str, Any]) -> tuple[int | None, float | None]:
    """Concurrency and request rate as configured: of the profiling phase, or of the older ``loadgen``."""
    phases = config.get("phases")
    listed = [phase for phase in phases if isinstance(phase, dict)] if isinstance(phases, list) else []
    phase = next((each for each in reversed(listed) if each.get("kind", "profiling") == "profiling"), None)
    load = phase or mapping(config, "loadgen") or mapping(config, "perf_analyzer")
    values = {**mapping(load, "stimulus"), **load}
    concurrency, rate = values.get("concurrency"), values.get("request_rate", values.get("rate"))
    return (
        int(concurrency) if is_number(concurrency) else None,
        float(rate) if is_number(rate) and rate > 0 else None,
    )


def model_of(config: dict[str, Any]) -> str | None:
    """The first model's name, wherever this version keeps it."""
    models, endpoint = config.get("models"), config.get("endpoint")
    items = models.get("items") if isinstance(models, dict) else models
    names = items or (endpoint.get("model_names") if isinstance(endpoint, dict) else None) or config.get("model_names")
    first = names[0] if isinstance(names, list) and names else names
    name = first.get("name") if isinstance(first, dict) else first
    return name if isinstance(name, str) else None


def _requests(path: Path, meta: RunMeta) -> Run:
    """The JSON lines' requests."""
    records = [shaped(path, value, Record, EXPECTED) for value in _lines(path)]
    warm_up = [record for record in records if record.metadata.benchmark_phase != "profiling"]
    if warm_up:
        meta.notes.append(f"{len(warm_up)} requests of the warm-up are left out")
        records = [record for record in records if record.metadata.benchmark_phase == "profiling"]
    if not records:
        refuse(path, "no request", EXPECTED)
    origin = min(record.metadata.request_start_ns for record in records)
    meta.started_unix_s = origin / 1e9
    rows = in_file(path, lambda: [_row(record, origin) for record in records])
    events = in_file(path, lambda: [_events(record, row) for record, row in zip(records, rows, strict=True)])
    for row, times in zip(rows, events, strict=True):
        _add_events(row, times)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["session"] = _sessions(records)
    return in_file(path, lambda: make_run(meta, columns, token_times=token_times(events)))


def _add_events(row: dict[str, Any], times: list[float]) -> None:
    """The last token is known where gaps are listed, and of a reply of one token; the end is not before it."""
    last = times[-1] if len(times) > 1 or (times and row["output_tokens"] == 1) else None
    row |= {"token_events": len(times) or None, "last_token_s": last}
    if last is not None and row["end_s"] is not None:
        row["end_s"] = max(row["end_s"], last)


def _lines(path: Path) -> list[Any]:
    """The values of the lines; one line alone is a line too."""
    documents = read_documents(path, EXPECTED)
    return documents[0] if len(documents) == 1 and isinstance(documents[0], list) else documents


def _row(record: Record, origin_ns: int) -> dict[str, Any]:
    """One request's columns, but for its token events."""
    when, sent = record.metadata, (record.metadata.request_start_ns - origin_ns) / 1e9
    ttft, content = _seconds(record, "time_to_first_token"), _seconds(record, "time_to_first_output_token")
    ended = None if when.request_end_ns is None else (when.request_end_ns - origin_ns) / 1e9
    return {
        "scheduled_s": None if when.credit_issued_ns is None else (when.credit_issued_ns - origin_ns) / 1e9,
        "sent_s": sent,
        "first_token_s": None if ttft is None else sent + ttft,
        "first_content_s": None if content is None else sent + content,
        "end_s": ended,
        "prompt_tokens": _count(record, "usage_prompt_tokens", "input_sequence_length"),
        "output_tokens": _count(record, "usage_completion_tokens", "output_sequence_length"),
        "reasoning_tokens": _count(record, "usage_reasoning_tokens", "reasoning_token_count"),
        "cached_tokens": _count(record, "usage_prompt_cache_read_tokens"),
        "error": _error(record),
    }


def _error(record: Record) -> str | None:
    if record.metadata.was_cancelled:
        return "cancelled"
    error = record.error
    if isinstance(error, dict):
        return last_line(f"{error.get('type') or error.get('code') or 'error'}: {error.get('message') or ''}")
    return last_line(error)


def _seconds(record: Record, name: str) -> float | None:
    metric = record.metrics.get(name)
    if metric is None or not is_number(metric.value):
        return None
    return metric.value * seconds_in(metric.unit, name)


def _count(record: Record, *names: str) -> int | None:
    found = (record.metrics[name].value for name in names if name in record.metrics)
    value = next((value for value in found if is_number(value)), None)
    return None if value is None else int(value)


def _events(record: Record, row: dict[str, Any]) -> list[float]:
    """When each chunk of tokens came."""
    if row["first_token_s"] is None:
        return []
    times, gaps = [row["first_token_s"]], record.metrics.get("inter_chunk_latency")
    if gaps is not None and isinstance(gaps.value, list):
        scale = seconds_in(gaps.unit, "inter_chunk_latency")
        for gap in numbers(gaps.value, "inter_chunk_latency"):
            times.append(times[-1] + gap * scale)
    return times


def _sessions(records: Sequence[Record]) -> list[int | None]:
    """Conversations as numbers, where some have several turns."""
    names = [record.metadata.conversation_id for record in records]
    if len(set(names)) == len(names):
        return [None] * len(names)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(name for name in names if name))}
    return [numbers.get(name) if name else None for name in names]
