"""The journal of a point becomes a Run that knows how it was measured, and whether it can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from inferometer.benchmark import fitness
from inferometer.benchmark.job import Report
from inferometer.benchmark.preparation import Prepared
from inferometer.benchmark.target import public
from inferometer.journal import Journal, read_journal
from inferometer.records import prometheus
from inferometer.records.device_memory import Device
from inferometer.records.engine_log import read_log, server_columns
from inferometer.records.metrics import Stat, summarize
from inferometer.records.run import Run, RunMeta

if TYPE_CHECKING:
    from inferometer.benchmark.point import Point


class Seen(msgspec.Struct, kw_only=True):
    """What the coordinator has seen beside the journal."""

    reports: list[Report]
    partial: str
    start_perf_s: float
    started_unix_s: float
    scrape_notes: list[str] = []
    devices: list[list[Device] | None] = []
    """The GPUs of this machine before and after."""


def assembled(point: Point, journal: Journal, prepared: Prepared, seen: Seen) -> Run:
    """The run of a point, its meta complete."""
    meta = msgspec.structs.replace(
        point.meta,
        started_unix_s=seen.started_unix_s,
        partial=seen.partial,
        client={"started_perf_counter_s": seen.start_perf_s, **_client(seen.reports)},
        server=_server(point, seen),
        notes=[*point.server.notes, *prepared.notes, *seen.scrape_notes],
    )
    run = read_journal(journal.folder, meta)
    run.requests = _with_asked(run.requests, run.meta)
    run.meta.window_s = _window(run, point)
    if point.server_log is not None:
        _add_log(run, Path(point.server_log))
    return _judged(run)


def _client(reports: list[Report]) -> dict[str, float]:
    """The workers' own figures over all of them."""
    if not reports:
        return {}
    lags = np.concatenate([report.loop_lag_s for report in reports])
    shares = [report.cpu_s / report.wall_s for report in reports if report.wall_s > 0]
    found = {
        "workers": len(reports),
        "cpu_share": max(shares, default=None),
        "reconnects": sum(report.reconnects for report in reports),
    }
    return {name: float(value) for name, value in found.items() if value is not None} | _delays("loop_lag_s", lags)


def _delays(name: str, delays_s: npt.NDArray[np.float64]) -> dict[str, float]:
    """Median and 99th percentile, and the third highest: of few values the percentile is a single one's chance."""
    known = np.sort(delays_s[~np.isnan(delays_s)])
    stat = Stat.of(known)
    if stat.p50 is None or stat.p99 is None:
        return {}
    return {
        f"{name}.p50": stat.p50,
        f"{name}.p99": stat.p99,
        f"{name}.third_highest": float(known[-min(3, known.size)]),
    }


def _server(point: Point, seen: Seen) -> dict[str, Any]:
    server = point.server
    found: dict[str, Any] = {
        "engine": server.engine,
        "version": server.version,
        "max_model_len": server.max_model_len,
        "flags": dict(server.flags),
        "connection": public(point.connection),
        "metrics_urls": server.metrics_urls,
    }
    memory = [[device._asdict() for device in devices] for devices in seen.devices if devices]
    if memory:
        found["device_memory"] = dict(zip(("before", "after"), memory, strict=False))
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def _with_asked(requests: pl.DataFrame, meta: RunMeta) -> pl.DataFrame:
    """The prompt lengths asked for stand in for the server's counts where it gave none at all."""
    answered = requests.filter(pl.col("error").is_null())
    known = "asked_prompt_tokens" in requests.columns
    if known and answered.height and answered["prompt_tokens"].null_count() == answered.height:
        meta.notes.append("the server gave no usage: prompt tokens are those asked for")
        requests = requests.with_columns(pl.col("asked_prompt_tokens").alias("prompt_tokens"))
    return requests


def _window(run: Run, point: Point) -> tuple[float, float | None] | None:
    """From the end of the warm-up to the last send: the drain is left out where the warm-up is."""
    options, sent = point.options, run.requests["sent_s"].drop_nulls().sort()
    if not (options.warmup_requests or options.warmup_s) or not sent.len():
        return None
    start = options.warmup_s
    if options.warmup_requests:
        if options.warmup_requests >= sent.len():
            run.meta.notes.append("the warm-up took all requests: nothing is left out")
            return None
        start = float(sent[options.warmup_requests])
    last = float(sent[-1])
    return (start, last) if last > start else None


def _add_log(run: Run, path: Path) -> None:
    """What the server's log says: of its start in ``meta.server``, while running in the server table."""
    log = read_log(path)
    run.meta.server["log"] = log.facts()
    start, end = run.meta.started_unix_s, run.requests["end_s"].max()
    if start is None or not isinstance(end, float):
        return
    rows = pl.DataFrame(server_columns(log, start, start + end), infer_schema_length=None)
    if not rows.height:
        return
    sampled = run.server["running"].null_count() < run.server.height
    # a step's or a second page's word on what runs must not be averaged with the samples'
    apart = (pl.col(name).alias(f"log_{name}") for name in ("running", "waiting", "kv_usage"))
    rows = rows.with_columns(*apart)
    keep = pl.lit(False) if sampled else pl.col("line") == "interval"
    gauges = (pl.when(keep).then(pl.col(name)).alias(name) for name in ("running", "waiting", "kv_usage"))
    run.server = pl.concat([run.server, rows.with_columns(*gauges)], how="diagonal_relaxed").sort("time_s")


def _lateness(run: Run) -> npt.NDArray[np.float64]:
    """Scheduled to sent. The users of a closed loop all start at once, which no client can: not counted."""
    requests = run.requests
    if run.meta.request_rate_per_s is None and run.meta.concurrency is not None:
        requests = requests.filter(pl.col("scheduled_s") > 0)
    return (requests["sent_s"] - requests["scheduled_s"]).to_numpy().astype(np.float64)


def _judged(run: Run) -> Run:
    """The run with its lateness, and with what its reader must know."""
    meta = run.meta
    summary = summarize(run)
    meta.client |= _delays("lateness_s", _lateness(run))
    if summary.peak_in_flight is not None:
        meta.client["peak_in_flight"] = float(summary.peak_in_flight)
    meta.server["means"] = prometheus.means(meta.counters)
    meta.unfit = fitness.unfit(run, summary)
    meta.notes += fitness.remarks(run, summary)
    return run
