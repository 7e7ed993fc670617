"""llm-d benchmark reports, versions 0.1 and 0.2.x, in YAML or JSON: aggregates only.

Every figure names its unit, and the unit is read. What a report calls ``inter_token_latency`` depends on the tool it
was converted from: gaps between tokens (vLLM bench, inference-perf), AIPerf's (E2E - TTFT) / (n - 1), which is our
TPOT, or GuideLLM's mean a request weighed by tokens, which is our TPOT only where every reply is of one length and is
kept as ``guidellm.inter_token_latency_s`` otherwise.

A report of inference-perf that has a concurrency has a rate too, which has no meaning there. Token totals are given
where mean length x completed requests is whole. What `exporters.llmd_report` adds under ``scenario.load.native.config``
is read back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from inferometer.errors import FormatError
from inferometer.records.importers.files import (
    at,
    decode_json,
    head,
    in_file,
    is_number,
    mapping,
    not_read,
    only_numbers,
    read_bytes,
    refuse,
    seconds_in,
    source_fields,
    stated_stat,
    text,
    version_notes,
)
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "an llm-d benchmark report 0.1 or 0.2.x (YAML or JSON with version, run, results.request_performance)"

KNOWN_VERSION = "0.2.1"

PARTS = {"mean": "mean", "std": "stddev", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}

LATENCIES = {
    "time_to_first_token": "ttft_s",
    "time_per_output_token": "tpot_s",
    "inter_token_latency": "itl_s",
    "request_latency": "e2e_s",
    "normalized_time_per_output_token": "normalized_latency_s",
}
RATES = {
    "request_rate": ("request_per_s", "queries/s", "requests_per_sec"),
    "output_token_rate": ("output_tok_per_s", "tokens/s", "output_tokens_per_sec"),
    "total_token_rate": ("total_tok_per_s", "tokens/s", "total_tokens_per_sec"),
}
"""Of each rate our path, its unit, and its name in version 0.1, where it is a plain number."""

TOOLS = {"aiperf": "AIPerf", "guidellm": "GuideLLM", "vllm-benchmark": "vllm bench serve"}

OWN_KEY = "inferometer"
"""Under ``native.config``: what a run has that a report has no field for."""

SECTIONS = ("version", "run", "scenario", "results", "metrics")
DURATION = re.compile(r"P(?:(\d+)D)?T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")


def sniff(path: Path) -> bool:
    """Whether the file names a report's sections, in YAML or JSON."""
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return False
    data = head(path, 1 << 24)
    return b"request_performance" in data or (
        b"requests_per_sec" in data and b"scenario" in data and b"version" in data
    )


def read(path: Path) -> list[Run]:
    """The report's run. Raises `FormatError` for a truncated file, no results, or a unit of another kind."""
    report = _report(path)
    return [in_file(path, lambda: make_run(_meta(path, report)))]


def _report(path: Path) -> dict[str, Any]:
    data = read_bytes(path)
    try:
        is_json = data.lstrip().startswith(b"{")
        report = decode_json(data) if is_json else yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (ValueError, yaml.YAMLError) as why:
        refuse(path, f"not complete YAML or JSON ({' '.join(str(why).split())})", EXPECTED)
    if not isinstance(report, dict):
        refuse(path, "not one mapping", EXPECTED)
    missing = [key for key in ("version", "results") if key not in report and "metrics" not in report]
    if missing or "version" not in report:
        refuse(path, f"no {' and no '.join(missing or ['version'])}: not a report, or cut off", EXPECTED)
    return report


def _meta(path: Path, report: dict[str, Any]) -> RunMeta:
    figures = mapping(report, "results", "request_performance", "aggregate") or mapping(report, "metrics")
    if not mapping(figures, "latency") and not mapping(figures, "throughput"):
        refuse(path, "neither latency nor throughput in its aggregates", EXPECTED)
    load, native = (
        mapping(report, "scenario", "load", "standardized"),
        mapping(report, "scenario", "load", "native", "config"),
    )
    tool, own = str(load.get("tool") or at(report, "scenario", "load", "name") or ""), mapping(native, OWN_KEY)
    stated = _stated(figures, tool)
    when = mapping(report, "run", "time") or mapping(figures, "time")
    duration = _duration(when.get("duration"))
    concurrency, rate = _load(load, tool)
    return RunMeta(
        kind="imported",
        name=text(at(report, "run", "description")) or path.stem,
        tool=TOOLS.get(tool, tool) or "llm-d benchmark report",
        tool_version=str(load.get("tool_version") or ""),
        created=_created(when.get("start") or when.get("end")),
        concurrency=concurrency,
        request_rate_per_s=rate,
        duration_s=duration,
        workload=_workload(load, own),
        stated=stated | _own_stated(own) | only_numbers({"duration_s": duration}),
        notes=_notes(path, report, figures, own),
        **_own_fields(own),
        **_deployment(report, native, own),
        **source_fields(path),
    )


def _stated(figures: dict[str, Any], tool: str) -> dict[str, float]:
    requests = mapping(figures, "requests")
    stated: dict[str, float] = {}
    for name, path in LATENCIES.items():
        values = mapping(figures, "latency", name)
        scale = seconds_in(str(values.get("units")), name) if values else 1.0
        stated |= stated_stat(_named(name, path, tool, figures), values, scale, PARTS)
    for name, (path, unit, older) in RATES.items():
        values = mapping(figures, "throughput", name)
        if values and values.get("units") != unit:
            raise FormatError(f"{name}, units", values.get("units"), unit)
        stated |= only_numbers({path: values.get("mean", at(figures, "throughput", older))})
    return stated | _counts(requests)


def _named(name: str, path: str, tool: str, figures: dict[str, Any]) -> str:
    """Where a tool's latency is kept: an average a request is no gap between tokens."""
    lengths = mapping(figures, "requests", "output_length")
    weighted = not lengths or lengths.get("min") != lengths.get("max")
    if tool == "guidellm" and (
        name == "normalized_time_per_output_token" or (name == "inter_token_latency" and weighted)
    ):
        return f"guidellm.{name}_s"
    if name == "inter_token_latency" and tool in ("aiperf", "guidellm"):
        return "tpot_s" if "time_per_output_token" not in mapping(figures, "latency") else f"{tool}.{name}_s"
    return path


def _counts(requests: dict[str, Any]) -> dict[str, float]:
    told = only_numbers(requests)
    if "total" not in told:
        return {}
    counts = {"requests": told["total"]}
    if "failures" in told:
        failed = told["failures"] + told.get("incomplete", 0.0)
        counts |= {"failed": failed, "completed": told["total"] - failed}
    for name, path in (("input_length", "prompt_tokens"), ("output_length", "output_tokens")):
        mean = at(requests, name, "mean")
        tokens = mean * counts.get("completed", math.nan) if is_number(mean) else math.nan
        if math.isfinite(tokens) and abs(tokens - round(tokens)) <= 1e-6:
            counts[path] = float(round(tokens))
    return counts


def _own_stated(own: dict[str, Any]) -> dict[str, float]:
    """What our exporter could not say in a field of the report."""
    return {str(path): value for path, value in only_numbers(mapping(own, "stated")).items()}


def _own_fields(own: dict[str, Any]) -> dict[str, Any]:
    """Fields of a run's meta that our exporter keeps as they are."""
    texts = {key: own[key] for key in ("arm", "policy", "partial", "clock") if isinstance(own.get(key), str)}
    seed, unfit = own.get("seed"), own.get("unfit")
    return {
        **texts,
        "slo": only_numbers(mapping(own, "slo")),
        "counters": only_numbers(mapping(own, "counters")),
        "seed": seed if isinstance(seed, int) else None,
        "unfit": [str(why) for why in unfit] if isinstance(unfit, list) else [],
    }


def _load(load: dict[str, Any], tool: str) -> tuple[int | None, float | None]:
    found, rate = load.get("concurrency"), load.get("rate_qps")
    concurrency = int(found) if is_number(found) else None
    if not is_number(rate) or (concurrency is not None and tool == "inference-perf"):
        return concurrency, None
    return concurrency, float(rate)


def _duration(told: Any) -> float | None:
    """An ISO 8601 duration, or a number of seconds (version 0.1)."""
    if told is None:
        return None
    if is_number(told):
        return float(told)
    match = DURATION.fullmatch(str(told))
    if not match:
        raise FormatError("run.time.duration", told, "an ISO 8601 duration such as PT12.5S")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _created(when: Any) -> str:
    return when.isoformat() if isinstance(when, datetime) else str(when or "")


def _workload(load: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        key: load[key] for key in ("source", "stage", "input_seq_len", "output_seq_len") if key in load
    }
    return mapping(own, "workload") or kept


def _deployment(report: dict[str, Any], native: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Model, chip and deployment of the first inference engine of the stack."""
    stack = at(report, "scenario", "stack")
    parts = [mapping(part, "standardized") for part in stack] if isinstance(stack, list) else []
    engine = next((part for part in parts if part.get("kind") == "inference_engine"), {})
    accelerator = mapping(engine, "accelerator")
    told = {
        "engine": engine.get("tool"),
        "engine_version": engine.get("tool_version"),
        "accelerators": accelerator.get("count"),
        "replicas": engine.get("replicas"),
        **mapping(accelerator, "parallelism"),
    }
    model = (
        at(engine, "model", "name")
        or _native_model(native)
        or own.get("model")
        or at(report, "scenario", "model", "name")
    )
    return {
        "model": text(model),
        "chip": text(accelerator.get("model"), own.get("chip")),
        "deployment": mapping(own, "deployment") or {key: value for key, value in told.items() if value is not None},
    }


def _native_model(native: dict[str, Any]) -> Any:
    """The model in the native configurations of AIPerf, GuideLLM and inference-perf."""
    items = at(native, "models", "items")
    first = items[0] if isinstance(items, list) and items else None
    return at(first, "name") or at(native, "spec", "backend", "model") or at(native, "server", "model_name")


def _notes(path: Path, report: dict[str, Any], figures: Mapping[str, Any], own: dict[str, Any]) -> list[str]:
    skipped = [key for key in report if key not in SECTIONS]
    notes = version_notes(report["version"], KNOWN_VERSION, skipped) or not_read(skipped, ())
    parts = [f"results.{key}" for key in mapping(report, "results") if key != "request_performance"]
    if "time_series" in mapping(report, "results", "request_performance"):
        parts.append("results.request_performance.time_series")
    notes += not_read(parts, (), "sections")
    wanted = [("requests", "total"), ("latency", "time_to_first_token"), ("latency", "request_latency")]
    missing = [".".join(keys) for keys in wanted if at(figures, *keys) is None]
    missing += [f"throughput.{name}" for name, (_, _, old) in RATES.items() if not _has_rate(figures, name, old)]
    # of our own, what the schema had no room for was read above
    notes += [f"not in this report: {', '.join(missing)}"] if missing and not own else []
    if not read_bytes(path).rstrip(b" ").endswith((b"\n", b"}")):
        notes.append("the file does not end with a line break: it may be cut off")
    return [*notes, *(str(note) for note in own.get("notes") or [])]


def _has_rate(figures: Mapping[str, Any], name: str, older: str) -> bool:
    return at(figures, "throughput", name) is not None or at(figures, "throughput", older) is not None
