"""The journal of a point becomes a Run that knows how it was measured, and whether it can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from inferometer.benchmark import fitness
from inferometer.benchmark.job import Report
from inferometer.benchmark.preparation import Prepared
from inferometer.benchmark.target import public
from inferometer.errors import InputError
from inferometer.journal import Journal, read_journal
from inferometer.records import prometheus
from inferometer.records.attach import add_log_lines
from inferometer.records.device_memory import Device
from inferometer.records.engine_log import read_log
from inferometer.records.metrics import delays, lateness_s, summarize
from inferometer.records.run import Run, RunMeta

if TYPE_CHECKING:
    from inferometer.benchmark.point import Point


class Seen(msgspec.Struct, kw_only=True):
    """What the coordinator has seen beside the journal."""

    reports: list[Report]
    partial: str
    confident: bool = False
    """Whether the target confidence was reached."""
    start_perf_s: float
    started_unix_s: float
    clock_step_s: float = 0.0
    """By how much the wall clock was set during the run: what it gained on the clock of the requests."""
    scrape_notes: list[str] = []
    devices: list[list[Device] | None] = []
    """The GPUs of this machine before and after."""


def assembled(point: Point, journal: Journal, prepared: Prepared, seen: Seen) -> Run:
    """The run of a point, its meta complete."""
    meta = msgspec.structs.replace(
        point.meta,
        started_unix_s=seen.started_unix_s,
        partial=seen.partial,
        client={
            "started_perf_counter_s": seen.start_perf_s,
            "clock_step_s": seen.clock_step_s,
            **_client(seen.reports),
        },
        server={**server_facts(point), **_devices(seen.devices)},
        notes=[*point.server.notes, *prepared.notes, *seen.scrape_notes, *_not_reached(point, seen)],
    )
    run = read_journal(journal.folder, meta)
    run.requests = _with_asked(run.requests, run.meta)
    if point.server_log is not None:
        try:
            _add_log(run, Path(point.server_log))
        except (OSError, ValueError, InputError) as why:  # what was measured is worth more than what the log says
            run.meta.notes.append(f"the server's log could not be read: {why}")
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
        "stale": sum(report.stale for report in reports),
    }
    return {name: float(value) for name, value in found.items() if value is not None} | delays("loop_lag_s", lags)


def _not_reached(point: Point, seen: Seen) -> list[str]:
    target = point.options.confidence
    if target is None or seen.confident or seen.partial:
        return []
    return [f"the target confidence of {target:.0%} was not reached: give it more requests or time"]


def _devices(seen: list[list[Device] | None]) -> dict[str, Any]:
    memory = [[device._asdict() for device in devices] for devices in seen if devices]
    return {"device_memory": dict(zip(("before", "after"), memory, strict=False))} if memory else {}


def server_facts(point: Point) -> dict[str, Any]:
    """What was found out about the server before the first request."""
    server = point.server
    found: dict[str, Any] = {
        "engine": server.engine,
        "version": server.version,
        "max_model_len": server.max_model_len,
        "flags": dict(server.flags),
        "connection": public(point.connection),
        "metrics_urls": server.metrics_urls,
    }
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def _with_asked(requests: pl.DataFrame, meta: RunMeta) -> pl.DataFrame:
    """The prompt lengths asked for stand in for the server's counts where it gave none at all."""
    answered = requests.filter(pl.col("error").is_null())
    known = "asked_prompt_tokens" in requests.columns
    if known and answered.height and answered["prompt_tokens"].null_count() == answered.height:
        meta.notes.append("the server gave no usage: prompt tokens are those asked for")
        requests = requests.with_columns(pl.col("asked_prompt_tokens").alias("prompt_tokens"))
    return requests


def _add_log(run: Run, path: Path) -> None:
    """What the server's log says: of its start in ``meta.server``, while running in the server table."""
    log = read_log(path)
    run.meta.server["log"] = log.facts()
    add_log_lines(run, log)


def _judged(run: Run) -> Run:
    """The run with its lateness, and with what its reader must know."""
    meta = run.meta
    summary = summarize(run)
    meta.client |= delays("lateness_s", lateness_s(run))
    if summary.peak_in_flight is not None:
        meta.client["peak_in_flight"] = float(summary.peak_in_flight)
    meta.server["means"] = prometheus.means(meta.counters)
    meta.unfit = fitness.unfit(run, summary)
    meta.notes += fitness.remarks(run, summary)
    return run
