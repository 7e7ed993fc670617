"""Results of ``vllm bench serve --save-result``, with or without ``--save-detailed``, also appended one a line.

With the detail arrays a run has its requests: a request is sent at its ``start_times`` (from the first), its first
token comes ``ttfts`` later, each further token event after the next of ``itls``, and it ends after ``latencies`` (older
files: at its last token). Without, it has the aggregates alone. Either way what the file states is kept in
``meta.stated`` by `Summary` path, in seconds.

Missing is not zero: a request without a first token (``ttfts`` 0) has a null one. In a file older than ``start_times``
each request is on its own clock (`OWN_CLOCK`). The gaps of versions that list the TTFT among them (vllm#7242) are put
right. ``max_concurrent_requests`` counts by buckets of a second (vllm#56653) and is kept under that name only.

What our own exporter adds is read back: ``exported_by``, and null for a count that is not known.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.errors import FormatError
from inferometer.records.importers.files import (
    in_file,
    is_number,
    last_line,
    read_documents,
    refuse,
    shaped,
    source_fields,
)
from inferometer.records.run import OWN_CLOCK, Run, RunMeta, TokenTimes, make_run

EXPECTED = "the result of `vllm bench serve --save-result` (JSON, or one object a line)"

MARKS = (b'"num_prompts"', b'"request_throughput"', b'"output_throughput"', b'"total_token_throughput"')
"""Keys that together only this format has."""

STATS = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "itl": "itl_s",
    "e2el": "e2e_s",
    "client_queue_time": "client_queue_s",
    "e2el_including_client_queue": "e2e_from_scheduled_s",
}
"""The format's metrics, in milliseconds, and ours."""

STAT_KEY = re.compile(r"(mean|median|std|p\d+(?:\.\d+)?)_(\w+)_ms")

STATED = {
    "num_prompts": "requests",
    "completed": "completed",
    "failed": "failed",
    "total_input_tokens": "prompt_tokens",
    "total_output_tokens": "output_tokens",
    "duration": "duration_s",
    "request_throughput": "request_per_s",
    "output_throughput": "output_tok_per_s",
    "total_token_throughput": "total_tok_per_s",
    "request_goodput": "goodput.request_per_s",
    "max_output_tokens_per_s": "max_output_tokens_per_s",
    "max_concurrent_requests": "max_concurrent_requests",
}
"""The format's totals and their paths in ``meta.stated``."""

WORKLOAD = (
    *("endpoint_type", "backend", "label", "tokenizer_id", "num_prompts", "burstiness"),
    *("dataset_name", "dataset_path", "seed"),
)
"""What is kept as it is; the last three are there where they were given with ``--metadata``, as nothing else tells
which prompts were sent."""

Times = npt.NDArray[np.float64]


class Result(msgspec.Struct, kw_only=True):
    """The keys that are read, but for the statistics; all others are the user's metadata."""

    duration: float | None
    completed: int | None
    total_input_tokens: int | None
    total_output_tokens: int | None
    request_throughput: float | None
    output_throughput: float | None
    total_token_throughput: float | None
    num_prompts: int | None
    date: str = ""
    model_id: str | None = None
    request_rate: float | str | None = None
    max_concurrency: int | None = None
    input_lens: list[int | None] | None = None
    output_lens: list[int | None] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    start_times: list[float] | None = None
    latencies: list[float] | None = None
    queue_times: list[float | None] | None = None
    errors: list[str | None] | None = None
    generated_texts: list[Any] | None = None
    rtfx: float | None = None
    exported_by: str | None = None


def sniff(path: Path) -> bool:
    """Whether the file starts an object and names the keys that only this format has."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[") and all(mark in data for mark in MARKS)


def read(path: Path) -> list[Run]:
    """One run an object. Raises `FormatError` for a truncated file, a missing key, or arrays that do not match."""
    documents = read_documents(path, EXPECTED)
    results = [item for document in documents for item in (document if isinstance(document, list) else [document])]
    several = len(results) > 1
    return [_run(path, raw, f"{path.stem}-{i}" if several else path.stem) for i, raw in enumerate(results, 1)]


def _run(path: Path, raw: Any, name: str) -> Run:
    result = shaped(path, raw, Result, EXPECTED)
    meta = in_file(path, lambda: _meta(path, raw, result, name))
    if not (result.ttfts and result.output_lens):
        return make_run(meta)
    return in_file(path, lambda: detailed(path, result, meta))


def _meta(path: Path, raw: dict[str, Any], result: Result, name: str) -> RunMeta:
    return RunMeta(
        kind="imported",
        name=name,
        tool="vllm bench serve",
        created=iso(result.date),
        seed=_seed(raw.get("seed")),
        model=result.model_id,
        concurrency=result.max_concurrency,
        request_rate_per_s=rate(result.request_rate),
        duration_s=result.duration,
        workload=_workload(raw),
        stated=_stated(raw),
        **source_fields(path),
    )


def _seed(given: Any) -> int | None:
    """The seed of the prompts: ``--metadata seed=601`` writes it, as text."""
    text = str(given)
    return int(text) if text.isdecimal() and len(text) < 19 else None


def iso(date: str) -> str:
    """``20261129-121710`` in ISO 8601 (the client's local time, no zone stated); any other form as it is."""
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").isoformat()
    except ValueError:
        return date


def rate(given: float | str | None) -> float | None:
    """Requests per second, or None for "inf": as fast as the concurrency lets."""
    try:
        value = float(given) if given is not None else math.inf
    except (ValueError, TypeError):
        raise FormatError("request_rate", given, 'a number or "inf"') from None
    return value if math.isfinite(value) else None


def _workload(raw: dict[str, Any]) -> dict[str, Any]:
    known = {key: raw[key] for key in WORKLOAD if raw.get(key) is not None}
    ours = {*Result.__struct_fields__, *STATED, *WORKLOAD}
    scalars = {key: v for key, v in raw.items() if key not in ours and isinstance(v, str | int | float)}
    metadata = {key: v for key, v in scalars.items() if not STAT_KEY.fullmatch(key) and v == v}
    return {**known, "metadata": metadata} if metadata else known


def _stated(raw: dict[str, Any]) -> dict[str, float]:
    stated = {path: raw[key] for key, path in STATED.items() if is_number(raw.get(key))}
    for key, value in raw.items():
        match = STAT_KEY.fullmatch(key)
        if match and match[2] in STATS and is_number(value):
            stated[f"{STATS[match[2]]}.{'p50' if match[1] == 'median' else match[1]}"] = value / 1000
    return {path: float(value) for path, value in stated.items()}


def detailed(path: Path, result: Result, meta: RunMeta, expected: str = EXPECTED) -> Run:
    """The run with its requests. Raises `FormatError`, which names ``expected``, where the arrays do not match."""
    lengths = {name: len(v) for name in _ARRAYS if (v := getattr(result, name)) is not None}
    if len(set(lengths.values())) > 1:
        refuse(path, f"detail arrays of different lengths ({lengths})", expected)
    sent = _sent(result, meta)
    first, events, counts = _token_events(result, sent)
    last = _last(result, first, events, counts)
    columns = {
        "scheduled_s": _scheduled(result, meta, sent),
        "sent_s": sent,
        "first_token_s": first,
        "last_token_s": last,
        "end_s": _ends(result, sent, last),
        "prompt_tokens": result.input_lens,
        "output_tokens": result.output_lens,
        "error": _errors(result),
    }
    offsets = np.concatenate(([0], np.cumsum(counts)))
    times = TokenTimes(offsets, events) if result.itls else None
    return make_run(meta, {name: v for name, v in columns.items() if v is not None}, token_times=times)


_ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "latencies", "queue_times", "errors")


def _last(result: Result, first: Times, events: Times, counts: npt.NDArray[np.int64]) -> Times:
    """Each request's last token event; of a file without gaps only that of a single token is known."""
    if result.itls is None:
        return np.where(_lengths(result) == 1, first, np.nan)
    last = np.full(first.size, np.nan)
    last[counts > 0] = events[np.cumsum(counts)[counts > 0] - 1]
    return last


def _lengths(result: Result) -> Times:
    """Output tokens, NaN where unknown."""
    return np.array(result.output_lens, dtype=np.float64)


def _sent(result: Result, meta: RunMeta) -> Times:
    """Send times from the first; zeros, and the run marked so, where the file has no start times."""
    assert result.ttfts is not None
    if not result.start_times:
        meta.clock = OWN_CLOCK
        return np.zeros(len(result.ttfts))
    start = np.array(result.start_times)
    return np.asarray(start - start.min())


def _scheduled(result: Result, meta: RunMeta, sent: Times) -> Times | None:
    """When an open loop meant to send. A closed loop has no schedule: its queue times say nothing about a request."""
    told = meta.request_rate_per_s is not None or result.exported_by is not None
    if not (told and result.queue_times):
        return None
    return np.asarray(sent - np.array(result.queue_times, dtype=np.float64))


def _token_events(result: Result, sent: Times) -> tuple[Times, Times, npt.NDArray[np.int64]]:
    """First token (NaN where none came), the times of all token events in one array, and how many each request has."""
    ttft = np.array(result.ttfts)
    first = np.where((ttft > 0) & (_lengths(result) != 0), sent + ttft, np.nan)
    itls: list[list[float]] = result.itls or [[]] * ttft.size
    events = [
        first[i] + np.concatenate(([0.0], np.cumsum(_gaps(result, i, gaps)))) if first[i] == first[i] else np.empty(0)
        for i, gaps in enumerate(itls)
    ]
    return first, np.concatenate(events), np.array([e.size for e in events], dtype=np.int64)


def _gaps(result: Result, i: int, gaps: list[float]) -> list[float]:
    """The n - 1 gaps of a request, also where a version listed the TTFT as one more in front."""
    assert result.ttfts is not None
    assert result.output_lens is not None
    listed = len(gaps) == result.output_lens[i] and gaps[0] == result.ttfts[i]
    return gaps[1:] if listed else gaps


def _ends(result: Result, sent: Times, last: Times) -> Times:
    """Sent plus latency; the last token where the file has no latency; NaN where neither is known."""
    if not result.latencies:
        return last
    latency = np.array(result.latencies)
    return np.fmax(np.where(latency > 0, sent + latency, np.nan), last)


def _errors(result: Result) -> list[str | None]:
    """The last line of each error; a request without output that the file does not count as completed has one too."""
    assert result.output_lens is not None
    told = [last_line(error) for error in result.errors or [None] * len(result.output_lens)]
    silent = [i for i, n in enumerate(result.output_lens) if n == 0 and told[i] is None]
    completed = sum(error is None for error in told)
    if silent and result.completed is not None and completed - result.completed == len(silent):
        for i in silent:
            told[i] = "no output, not counted as completed"
    return told
