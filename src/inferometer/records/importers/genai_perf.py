"""Exports of GenAI-Perf: ``profile_export_genai_perf.json`` (aggregates) and ``profile_export.json`` (requests).

The aggregates are AIPerf's without ``schema_version``; ``inter_token_latency`` is (E2E - TTFT) / (n - 1), our TPOT. The
requests are perf_analyzer's: in nanoseconds when each was sent and when each piece of its reply came, with the pieces
themselves. A piece is a token event where it carries text; a role, an empty delta or the usage is none. Only the
server's ``usage`` says how many tokens a reply has: without it the count is not known, and neither is the TPOT.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer.records.importers.aiperf import json_metrics, load_of, model_of, stated_figures
from inferometer.records.importers.files import (
    decode_json,
    in_file,
    is_json_with,
    mapping,
    not_read,
    read_object,
    refuse,
    shaped,
    source_fields,
)
from inferometer.records.importers.stream import chunk_kind, token_times, usage
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "a GenAI-Perf export (profile_export_genai_perf.json or profile_export.json)"

OTHER_KEYS = ("input_config", "telemetry_stats")


class Reply(msgspec.Struct):
    """One piece of a reply."""

    response: str = ""


class Request(msgspec.Struct, kw_only=True):
    """One request; nanoseconds."""

    timestamp: int
    response_timestamps: list[int] = []
    response_outputs: list[Reply] = []
    success: bool = True


class Load(msgspec.Struct):
    """What was held constant."""

    mode: str
    value: float


class Experiment(msgspec.Struct, kw_only=True):
    """One point."""

    experiment: Load
    requests: list[Request]


class Profile(msgspec.Struct, kw_only=True):
    """perf_analyzer's file."""

    experiments: list[Experiment]
    version: str = ""


def sniff(path: Path) -> bool:
    """Whether the file is one of the two that this tool writes."""
    return _is_profile(path) or is_json_with(path, b'"request_latency"', b'"unit"', b'"avg"')


def _is_profile(path: Path) -> bool:
    return is_json_with(path, b'"experiments"', b'"response_timestamps"')


def read(path: Path) -> list[Run]:
    """One run an export, or one an experiment. Raises `FormatError` for a truncated file or a wrong unit."""
    raw = read_object(path, EXPECTED)
    if not _is_profile(path):
        return [in_file(path, lambda: make_run(_summary(path, raw)))]
    profile = shaped(path, raw, Profile, EXPECTED)
    several = len(profile.experiments) > 1
    names = [f"{path.stem}-{i}" if several else path.stem for i in range(1, len(profile.experiments) + 1)]
    return [_run(path, each, name) for each, name in zip(profile.experiments, names, strict=True)]


def read_together(paths: Sequence[Path]) -> list[Run]:
    """The runs of a folder: the requests of an export of one experiment with its aggregates."""
    profiles, summaries = [p for p in paths if _is_profile(p)], [p for p in paths if not _is_profile(p)]
    runs = {path: read(path) for path in profiles}
    if len(summaries) != 1 or sum(map(len, runs.values())) != 1:
        return [run for path in paths for run in runs.get(path) or read(path)]
    ((run,),) = runs.values()
    summary = read(summaries[0])[0].meta
    run.meta.stated, run.meta.model = summary.stated, summary.model
    run.meta.notes.append(f"aggregates from {summaries[0].name}")
    return [run]


def _summary(path: Path, raw: dict[str, Any]) -> RunMeta:
    stated = stated_figures(json_metrics(path, raw, EXPECTED))
    if not stated:
        refuse(path, "no metric that is known", EXPECTED)
    config = mapping(raw, "input_config")
    others = [key for key, value in raw.items() if not (isinstance(value, dict) and "unit" in value)]
    concurrency, rate = load_of(config)
    return RunMeta(
        kind="imported",
        name=path.stem,
        tool="GenAI-Perf",
        model=model_of(config),
        concurrency=concurrency,
        request_rate_per_s=rate,
        duration_s=stated.get("duration_s"),
        workload={"input_config": config} if config else {},
        stated=stated,
        notes=not_read(others, OTHER_KEYS),
        **source_fields(path),
    )


def _run(path: Path, point: Experiment, name: str) -> Run:
    if not point.requests:
        refuse(path, "an experiment without requests", EXPECTED)
    load, origin = point.experiment, min(request.timestamp for request in point.requests)
    meta = RunMeta(
        kind="imported",
        name=name,
        tool="GenAI-Perf",
        concurrency=int(load.value) if load.mode == "concurrency" else None,
        request_rate_per_s=load.value if load.mode == "request_rate" else None,
        started_unix_s=origin / 1e9,
        **source_fields(path),
    )
    rows, events = zip(*(_row(request, origin) for request in point.requests), strict=True)
    if all(row["output_tokens"] is None for row in rows):
        meta.notes.append("no usage in the replies: their lengths in tokens, and so the TPOT, are not known")
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return in_file(path, lambda: make_run(meta, columns, token_times=token_times(list(events))))


def _row(request: Request, origin_ns: int) -> tuple[dict[str, Any], list[float]]:
    """One request's columns and its token events."""
    came = [(ns - origin_ns) / 1e9 for ns in request.response_timestamps]
    pieces = [reply.response for reply in request.response_outputs]
    kinds = [chunk_kind(piece) for piece in pieces]
    events = [t for t, kind in zip(came, kinds, strict=False) if kind is not None]
    content = [t for t, kind in zip(came, kinds, strict=False) if kind == "content"]
    counts = next((found for piece in reversed(pieces) if (found := usage(piece))), {})
    row = {
        "sent_s": (request.timestamp - origin_ns) / 1e9,
        "first_byte_s": came[0] if came else None,
        "first_token_s": events[0] if events else None,
        "first_content_s": content[0] if content else None,
        "last_token_s": events[-1] if events else None,
        "end_s": came[-1] if came else None,
        "prompt_tokens": counts.get("prompt_tokens"),
        "output_tokens": counts.get("completion_tokens"),
        "token_events": len(events) or None,
        "error": _error(request, pieces),
    }
    return row, events


def _error(request: Request, pieces: list[str]) -> str | None:
    for piece in pieces:
        try:
            value = decode_json(piece.removeprefix("data:").strip().encode())
        except ValueError:
            continue
        if isinstance(value, dict) and value.get("error"):
            return str(value["error"])[:300]
    return None if request.success else "failed"
