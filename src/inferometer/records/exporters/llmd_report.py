"""Runs as llm-d benchmark reports, version 0.2.1: aggregates in seconds, each with its unit, as YAML.

The format has no requests. What of a run it has no field for (policy, seed, limits, latencies from the scheduled time,
counters) stands under ``scenario.load.native.config.inferometer``, where the schema allows anything and our importer
looks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from inferometer import __version__
from inferometer.errors import InputError
from inferometer.records.metrics import STAT_NAMES, PerRequest, Stat, Summary
from inferometer.records.run import Run, RunMeta

VERSION = "0.2.1"
"""The schema's."""

LATENCIES = {
    "time_to_first_token": ("ttft_s", "s"),
    "time_per_output_token": ("tpot_s", "s/token"),
    "inter_token_latency": ("itl_s", "s/token"),
    "normalized_time_per_output_token": ("normalized_latency_s", "s/token"),
    "request_latency": ("e2e_s", "s"),
}
"""The format's latencies, ours, and the unit."""

RATES = {
    "output_token_rate": ("output_tok_per_s", "tokens/s"),
    "total_token_rate": ("total_tok_per_s", "tokens/s"),
    "request_rate": ("request_per_s", "queries/s"),
}

PARTS = {"mean": "mean", "std": "stddev", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}

HELD = {"requests", "duration_s", "concurrency", "request_rate_per_s", *(ours for ours, _ in RATES.values())}
"""Figures of the summary that the format has a field for, besides the latencies."""


def to_llmd_report(run: Run) -> dict[str, Any]:
    """The report of a run. Raises `InputError` for a run that states no latency and no rate.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> run = make_run(RunMeta(kind="measured", concurrency=1), {"sent_s": [0.0], "first_token_s": [0.5],
    ...     "last_token_s": [1.5], "end_s": [1.5], "prompt_tokens": [8], "output_tokens": [11]})
    >>> report = to_llmd_report(run)
    >>> report["results"]["request_performance"]["aggregate"]["latency"]["time_per_output_token"]["mean"]
    0.1
    """
    summary = run.summary()
    latency = {name: _statistics(getattr(summary, ours), unit) for name, (ours, unit) in LATENCIES.items()}
    rates = {name: _mean(getattr(summary, ours), unit) for name, (ours, unit) in RATES.items()}
    if not any((*latency.values(), *rates.values())):
        raise InputError.because("llm-d report: this run states no latency and no rate")
    aggregate = {"requests": _requests(run, summary), "latency": latency, "throughput": rates}
    report = {
        "version": VERSION,
        "run": _run(run, summary),
        "scenario": _scenario(run, summary),
        "results": {"request_performance": {"aggregate": aggregate}},
    }
    kept: dict[str, Any] = _without_nothing(report)
    return kept


def text(run: Run) -> str:
    """The report as YAML."""
    return yaml.safe_dump(to_llmd_report(run), sort_keys=False, allow_unicode=True)


def write(run: Run, path: Path) -> None:
    """Write the report of a run as YAML."""
    path.write_text(text(run), encoding="utf-8")


def _statistics(stat: Stat, unit: str) -> dict[str, Any] | None:
    """A distribution; None without a mean, which the schema wants."""
    if stat.mean is None:
        return None
    return {"units": unit, **{name: getattr(stat, part) for part, name in PARTS.items()}}


def _mean(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if value is None else {"units": unit, "mean": value}


def _requests(run: Run, summary: Summary) -> dict[str, Any] | None:
    if summary.requests is None:
        return None
    lengths = _lengths(run, summary)
    return {
        "total": summary.requests,
        "failures": summary.failed,
        "input_length": _statistics(lengths["prompt"], "count"),
        "output_length": _statistics(lengths["output"], "count"),
    }


def _lengths(run: Run, summary: Summary) -> dict[str, Stat]:
    """Tokens of the completed requests; of a run without requests only the means, where the totals are stated."""
    if run.requests.height:
        each = PerRequest(run)
        return {"prompt": Stat.of(each.of_completed(each.prompt)), "output": Stat.of(each.of_completed(each.output))}
    n = summary.completed
    totals = {"prompt": summary.prompt_tokens, "output": summary.output_tokens}
    return {name: Stat(mean=total / n) if total is not None and n else Stat() for name, total in totals.items()}


def _run(run: Run, summary: Summary) -> dict[str, Any]:
    start = run.meta.started_unix_s
    began = None if start is None else datetime.fromtimestamp(start, UTC).isoformat()
    duration = None if summary.duration_s is None else f"PT{summary.duration_s:.9f}S"
    return {
        "uid": run.id,
        "time": {"start": began or run.meta.created or None, "duration": duration},
        "description": run.meta.name or None,
    }


def _scenario(run: Run, summary: Summary) -> dict[str, Any] | None:
    """The load. The schema wants the prompts' length: without one there is no room for the load."""
    length = _lengths(run, summary)["prompt"].mean
    if length is None:
        return None
    meta, output = run.meta, _lengths(run, summary)["output"].mean
    load = {
        "tool": "inferometer",
        "tool_version": __version__,
        "source": "unknown",
        "input_seq_len": {"distribution": "other", "value": length},
        "output_seq_len": None if output is None else {"distribution": "other", "value": output},
        "rate_qps": meta.request_rate_per_s,
        "concurrency": meta.concurrency,
    }
    own = {"inferometer": _own(meta, summary)}
    return {"load": {"metadata": {"schema_version": "0.0.1"}, "standardized": load, "native": {"config": own}}}


def _own(meta: RunMeta, summary: Summary) -> dict[str, Any]:
    """What the report has no field for, as plain values."""
    stated: dict[str, Any] = {}
    distributions = {ours for ours, _ in LATENCIES.values()}
    for name, value in summary.to_dict().items():
        if name in STAT_NAMES:
            # without a mean the schema takes no distribution: all of it stands here
            whole = name not in distributions or value["mean"] is None
            stated |= {f"{name}.{part}": v for part, v in value.items() if whole or part == "n"}
        elif name not in HELD and isinstance(value, int | float):
            stated[name] = value
    kept = {
        name: getattr(meta, name)
        for name in ("kind", "tool", "tool_version", "model", "chip", "arm", "policy", "seed", "deployment", "workload",
                     "slo", "notes", "partial", "unfit", "counters", "clock")
    }  # fmt: skip
    known = {path: value for path, value in stated.items() if value is not None}
    plain: dict[str, Any] = msgspec.to_builtins({**kept, "stated": known})
    return {name: value for name, value in plain.items() if value not in (None, {}, [], "")}


def _without_nothing(value: Any) -> Any:
    """Without None and what is empty for lack of anything but None, all through but in what is kept as it is."""
    if isinstance(value, dict):
        present = {key: item for key, item in value.items() if item is not None}
        kept = {key: item if key == "native" else _without_nothing(item) for key, item in present.items()}
        return {key: item for key, item in kept.items() if item not in ({}, [], "")}
    return value
