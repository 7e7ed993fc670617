"""Reports of inference-perf: ``{stage_N,summary,per_request}_lifecycle_metrics.json``.

Everything is in seconds; the median is called ``median``. The stage and summary files hold aggregates. The per-request
file holds each request's start and end, the prompt and reply as sent, and when its chunks came: a chunk that carries
text is a token event (so a one-token reply has a TTFT, which the aggregates leave out), and the server's ``usage`` is
the count of tokens where it is there, else the tool's own tokenizer's.

Of a folder, the requests are divided among the stages in order of time where the counts and each stage's mean E2E
agree; the summary, and a stage whose requests are there, make no further run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from inferometer.records.importers.files import (
    decode_json,
    in_file,
    is_json_with,
    is_number,
    last_line,
    mapping,
    not_read,
    numbers,
    only_numbers,
    read_documents,
    read_object,
    refuse,
    shaped,
    source_fields,
    stated_stat,
)
from inferometer.records.importers.stream import chunk_kind, token_times, usage
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "a report of inference-perf (stage_N_, summary_ or per_request_lifecycle_metrics.json)"

PARTS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}

LATENCIES = {
    "time_to_first_token": "ttft_s",
    "time_per_output_token": "tpot_s",
    "inter_token_latency": "itl_s",
    "request_latency": "e2e_s",
    "normalized_time_per_output_token": "normalized_latency_s",
}
"""The tool's latencies and ours."""

RATES = {
    "requests_per_sec": "request_per_s",
    "output_tokens_per_sec": "output_tok_per_s",
    "total_tokens_per_sec": "total_tok_per_s",
}

REPORT_KEYS = ("benchmark_time_seconds", "load_summary", "successes", "failures", "goodput", "slo")
STAGE = re.compile(r"stage_(\d+)_lifecycle_metrics")


class Report(msgspec.Struct, kw_only=True):
    """A stage's file, or the summary."""

    load_summary: dict[str, Any]
    successes: dict[str, Any]
    failures: dict[str, Any] = {}
    benchmark_time_seconds: float | None = None


class Entry(msgspec.Struct, kw_only=True):
    """One request of the per-request file; seconds of a monotonic clock."""

    start_time: float
    end_time: float | None = None
    scheduled_time: float | None = None
    request: Any = None
    info: dict[str, Any] | None = None
    error: Any = None


def sniff(path: Path) -> bool:
    """Whether the file is one of the three that this tool writes."""
    return _is_per_request(path) or is_json_with(path, b'"load_summary"', b'"successes"')


def _is_per_request(path: Path) -> bool:
    return is_json_with(path, b'"start_time"', b'"end_time"', b'"request"') and (
        is_json_with(path, b'"response_metrics"') or is_json_with(path, b'"output_token_times"') or _names_it(path)
    )


def _names_it(path: Path) -> bool:
    """Whether the file has this tool's name, for requests whose first ones are long or all failed."""
    return "per_request_lifecycle_metrics" in path.name


def read(path: Path) -> list[Run]:
    """The run of one file alone. Raises `FormatError` for a truncated file or a missing section."""
    if _is_per_request(path):
        return [_requests(path, _entries(path), RunMeta(kind="imported", name=path.stem, tool="inference-perf"))]
    return [in_file(path, lambda: make_run(_aggregates(path)))]


def read_together(paths: Sequence[Path]) -> list[Run]:
    """One run a stage: its requests where they are there, with what its file states; see the module."""
    requests = [path for path in paths if _is_per_request(path)]
    stages = sorted((p for p in paths if STAGE.search(p.stem)), key=lambda p: int(_stage_number(p)))
    others = [path for path in paths if path not in requests and path not in stages]
    metas = [in_file(path, lambda path=path: _aggregates(path)) for path in stages or others]  # type: ignore[misc]
    for meta in metas:
        _add_config(paths[0].parent, meta)
    if len(requests) == 1:
        return _divided(requests[0], metas) or [*read(requests[0]), *map(make_run, metas)]
    return [*map(make_run, metas), *(run for path in requests for run in read(path))]


def _stage_number(path: Path) -> str:
    found = STAGE.search(path.stem)
    return found[1] if found else "0"


def _divided(path: Path, metas: list[RunMeta]) -> list[Run]:
    """A run a stage with its requests; none where counts or means do not bear out whose each request is."""
    entries = sorted(_entries(path), key=lambda entry: entry.start_time)
    counts = [int(meta.stated.get("requests", -1)) for meta in metas]
    if not metas or sum(counts) != len(entries) or min(counts) < 1:
        return []
    starts = np.concatenate(([0], np.cumsum(counts))).tolist()
    runs = [_requests(path, entries[a:b], meta) for a, b, meta in zip(starts, starts[1:], metas, strict=False)]
    for run in runs:
        told, found = run.meta.stated.get("e2e_s.mean"), run.summary().e2e_s.mean
        if told is not None and (found is None or abs(found - told) > 1e-6 * told):
            return []
    return runs


def _add_config(folder: Path, meta: RunMeta) -> None:
    """The model and kind of load of the tool's ``config.yaml``, where it lies beside the reports."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return
    server = config.get("server") if isinstance(config, dict) else None
    if isinstance(server, dict) and isinstance(server.get("model_name"), str):
        meta.model = server["model_name"]
        load = config.get("load")
        if isinstance(load, dict) and isinstance(load.get("type"), str):
            meta.workload["load_type"] = load["type"]


def _aggregates(path: Path) -> RunMeta:
    """What a stage's file or the summary says."""
    raw = read_object(path, EXPECTED)
    report = shaped(path, raw, Report, EXPECTED)
    load, rate = report.load_summary, report.load_summary.get("requested_rate")
    held = load.get("concurrency")
    concurrency = int(held) if is_number(held) else None
    stated = _stated(report)
    if concurrency is not None:
        # a closed loop has a rate in the file too, of no meaning, and its delays count from that rate's schedule
        stated = {path: value for path, value in stated.items() if not path.startswith("client_queue_s")}
    return RunMeta(
        kind="imported",
        name=path.stem.removesuffix("_lifecycle_metrics"),
        tool="inference-perf",
        concurrency=concurrency,
        request_rate_per_s=float(rate) if concurrency is None and is_number(rate) else None,
        duration_s=report.benchmark_time_seconds,
        workload={"load_summary": {key: v for key, v in load.items() if is_number(v)}},
        stated=stated,
        notes=_notes(raw, report),
        **source_fields(path),
    )


def _notes(raw: Mapping[str, Any], report: Report) -> list[str]:
    notes = not_read(raw, REPORT_KEYS)
    mismatches = report.successes.get("token_count_mismatches")
    if mismatches:
        notes.append(f"{mismatches} requests whose token counts by the tool and by the server differ")
    errors = mapping(report.failures, "by_label")
    return [*notes, f"failures by kind: {', '.join(map(str, errors))}"] if errors else notes


def _stated(report: Report) -> dict[str, float]:
    successes, load = report.successes, report.load_summary
    stated: dict[str, float] = {}
    for name, ours in LATENCIES.items():
        stated |= stated_stat(ours, mapping(successes, "latency", name), keys=PARTS)
    stated |= stated_stat("client_queue_s", mapping(load, "schedule_delay"), keys=PARTS)
    rates = mapping(successes, "throughput")
    counts = {
        "requests": load.get("count"),
        "completed": successes.get("count"),
        "failed": report.failures.get("count"),
        "duration_s": report.benchmark_time_seconds,
        "prompt_tokens": mapping(successes, "prompt_tokens").get("total"),
        "output_tokens": mapping(successes, "output_tokens").get("total"),
    }
    return stated | only_numbers({**counts, **{ours: rates.get(name) for name, ours in RATES.items()}})


def _entries(path: Path) -> list[Entry]:
    documents = read_documents(path, EXPECTED)
    rows = [row for document in documents for row in (document if isinstance(document, list) else [document])]
    if not rows:
        refuse(path, "no request", EXPECTED)
    return [shaped(path, row, Entry, EXPECTED) for row in rows]


def _requests(path: Path, entries: Sequence[Entry], meta: RunMeta) -> Run:
    if meta.source is None:
        meta = msgspec.structs.replace(meta, **source_fields(path))
    else:
        meta.notes.append(f"requests from {path.name}")
    meta.model = meta.model or _model(entries[0])
    origin = min(entry.start_time for entry in entries)
    rows = in_file(path, lambda: [_row(entry, origin) for entry in entries])
    events = [row.pop("events") for row in rows]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return in_file(path, lambda: make_run(meta, columns, token_times=token_times(events)))


def _model(entry: Entry) -> str | None:
    try:
        body = decode_json(entry.request.encode()) if isinstance(entry.request, str) else entry.request
    except ValueError:
        return None
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else None


def _row(entry: Entry, origin: float) -> dict[str, Any]:
    """One request's columns, and its token events under ``events``."""
    info = entry.info or {}
    response = mapping(info, "response_metrics") or info
    counts = mapping(response, "server_usage") or _last_usage(response)
    events, content = _events(response, origin)
    last = events[-1] if events else None
    end = None if entry.end_time is None else entry.end_time - origin
    return {
        "scheduled_s": None if entry.scheduled_time is None else entry.scheduled_time - origin,
        "sent_s": entry.start_time - origin,
        "first_token_s": events[0] if events else None,
        "first_content_s": content,
        "last_token_s": last,
        "end_s": end if end is None or last is None else max(end, last),
        "prompt_tokens": counts.get("prompt_tokens", info.get("input_tokens")),
        "output_tokens": counts.get("completion_tokens", response.get("output_tokens")),
        "cached_tokens": mapping(counts, "prompt_tokens_details").get("cached_tokens"),
        "reasoning_tokens": mapping(counts, "completion_tokens_details").get("reasoning_tokens"),
        "token_events": len(events) or None,
        "error": _error(entry.error),
        "events": events,
    }


def _last_usage(response: Mapping[str, Any]) -> dict[str, Any]:
    chunks = response.get("response_chunks")
    texts = [text for text in chunks if isinstance(text, str)] if isinstance(chunks, list) else []
    return next((found for text in reversed(texts) if (found := usage(text))), {})


def _events(response: Mapping[str, Any], origin: float) -> tuple[list[float], float | None]:
    """Token events, and the first that is not reasoning: by the chunks' text where kept, else as the tool has them."""
    chunks, came = response.get("response_chunks"), response.get("chunk_times")
    if isinstance(chunks, list) and isinstance(came, list) and chunks and len(chunks) == len(came):
        kinds, times = [chunk_kind(str(chunk)) for chunk in chunks], numbers(came, "chunk_times")
        events = [t - origin for t, kind in zip(times, kinds, strict=True) if kind is not None]
        content = [t - origin for t, kind in zip(times, kinds, strict=True) if kind == "content"]
        return events, content[0] if content else None
    listed = response.get("output_token_times")
    return [] if listed is None else [t - origin for t in numbers(listed, "output_token_times")], None


def _error(error: Any) -> str | None:
    if isinstance(error, dict):
        return last_line(f"{error.get('error_type') or 'error'}: {error.get('error_msg') or ''}")
    return last_line(error)
