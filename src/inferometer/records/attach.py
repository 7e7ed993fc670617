"""A run read from a client's file, joined with what its server said: pages of ``/metrics``, and its log.

A benchmark's result knows nothing of the server. `with_server` puts beside it the server's load over time, what its
counters counted meanwhile, and what its log says of memory, limits and flags. Both sides are laid on one clock first:
by the time of day that the result states, else by what both count (`records.alignment`), which a note says.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from inferometer.errors import InferometerWarning, InputError
from inferometer.records.alignment import ZONE_STEP_S, Alignment, Floats, align, log_seen, pages_seen
from inferometer.records.engine_log import EngineLog, read_log, server_columns
from inferometer.records.metrics import PerRequest
from inferometer.records.prometheus import ENGINES, GPU, Page, Replica, deltas, means
from inferometer.records.run import OWN_CLOCK, Run
from inferometer.specs.model_names import candidates

NEAR_S = 5.0
"""Samples so long before the first request or after the last are not of the run, though counters may need them."""
LOG_SLACK_S = 3.0
"""A log's times are to the second; closer than this to whole quarters of an hour its clock is off by a time zone."""

GAUGES = frozenset(
    [metric.ours for _, metrics, *_ in ENGINES.values() for metric in metrics if metric.kind in ("sum", "max")]
    + [name for name, _ in GPU.values()]
)
"""Columns of a server table that are levels; all others but times and texts only grow."""

CACHE_FACTS = {
    "num_gpu_blocks": "num_gpu_blocks",
    "kv_cache_size_tokens": "kv_cache_tokens",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enable_prefix_caching": "prefix_caching",
}
"""What vLLM's ``cache_config_info`` calls the facts of a log."""


def with_server(run: Run, pages: Run | str | Path | None = None, log: str | Path | None = None) -> Run:
    """The run with its server's samples, counters and facts; the run given stays as it is.

    ``pages``: saved pages of ``/metrics``, a file or the run that an importer made of it; ``log``: the engine's log.
    Either may span many runs, of which only this one's time is taken. What is added:

    - ``run.server``: the pages from the last before the first request to the first after the last end, and the log's
      interval and step lines between, in seconds on the run's clock;
    - ``meta.counters``: what was counted between those two pages (``meta.server["counted_s"]``: their times);
    - ``meta.server``: what the log says (`EngineLog.facts`) and the pages' cache settings, under the same names;
    - ``meta.started_unix_s``, where the result did not have it.

    Warns (`InferometerWarning`) of a log that has no line of the run's time: it may be the start-up's part only.

    Raises `InputError` where neither is given, for pages that show other requests than the run's or lie at another
    time, and for a log of another model; `FormatError` for a file that cannot be read.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> run = make_run(RunMeta(kind="imported", started_unix_s=100.0), {"sent_s": [0.0], "end_s": [2.0]})
    >>> busy = {"time_s": [0.0, 1.0, 3.0], "running": [0, 1, 0], "generation_tokens": [5.0, 9.0, 25.0]}
    >>> joined = with_server(run, make_run(RunMeta(kind="imported", started_unix_s=99.5), server=busy))
    >>> joined.server["time_s"].to_list(), joined.meta.counters
    ([-0.5, 0.5, 2.5], {'generation_tokens': 20.0})
    """
    if pages is None and log is None:
        raise InputError.because("nothing to join to the run: give the server's pages, its log, or both")
    seen = None if pages is None else _Pages(pages if isinstance(pages, Run) else _page_run(Path(pages)))
    known = (seen.run.meta.started_unix_s if seen else None) or run.meta.started_unix_s
    read = None if log is None else _read(Path(log), known)
    joined = _copy(run)
    start = _start(joined, seen, read)
    if seen is not None:
        _join_pages(joined, seen, start)
    if read is not None and log is not None:
        if start.log_unix_s is None:
            _refuse_other_model(run, read, Path(log))
        joined.meta.server |= read.facts()
        _join_log(joined, read, start, Path(log))
    if joined.meta.counters:
        joined.meta.server["means"] = means(joined.meta.counters)
    return joined


class _Pages:
    """A run of pages, with what is summed over replicas."""

    def __init__(self, run: Run) -> None:
        self.run, self.table = run, run.server.filter(pl.col("time_s").is_not_null())
        self.started = run.meta.started_unix_s
        self.columns = [name for name, kind in self.table.schema.items() if kind.is_numeric()]
        self.counters = [n for n in self.columns if n not in ("time_s", "replica") and n.split(".")[0] not in GAUGES]
        sums = self.table.group_by("time_s").agg(pl.col(*self.counters).sum()) if self.counters else self.table
        self.sums = sums.sort("time_s")

    @property
    def unix_s(self) -> Floats:
        """The time of each page."""
        return self.sums["time_s"].to_numpy() + (self.started or 0.0)

    def counted(self) -> dict[str, Floats]:
        """Counters by page."""
        return {name: self.sums[name].cast(pl.Float64).to_numpy() for name in self.counters}

    def page(self, unix_s: float) -> Page:
        """The counters of one page, as a page to take differences of."""
        rows = self.table.filter((pl.col("time_s") + (self.started or 0.0) - unix_s).abs() < 1e-6)
        replicas = {row["replica"] or 0: Replica(counters=_numbers(row, self.counters)) for row in rows.to_dicts()}
        return Page(engine=self.run.meta.server.get("engine"), replicas=replicas)


def _numbers(row: Mapping[str, Any], names: list[str]) -> dict[str, float]:
    return {name: float(row[name]) for name in names if row[name] is not None}


def _page_run(path: Path) -> Run:
    from inferometer.records.importers import metrics_pages  # the importers' registry joins files by this module

    if not path.is_file():
        raise InputError("metrics", str(path), "a file of saved /metrics pages that exists")
    (run,) = metrics_pages.read(path)
    return run


def _read(path: Path, near_unix_s: float | None) -> EngineLog:
    """The log at a path; its year, which the lines lack, is that of the run where it is known."""
    if not path.is_file():
        raise InputError("server_log", str(path), "a file with an engine's log that exists")
    year = None if near_unix_s is None else datetime.fromtimestamp(near_unix_s).year
    stat = path.stat()
    return _read_once(path, year, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=4)
def _read_once(path: Path, year: int | None, version: tuple[int, int]) -> EngineLog:
    """A log, which the runs of a sweep share."""
    log = read_log(path, year)
    if not log.facts():
        raise InputError.because(f"{path.name}: no line of a known engine; give the log of the server")
    return log


def _refuse_other_model(run: Run, log: EngineLog, path: Path) -> None:
    """A log whose steps are not the run's, and whose model has another name, is another server's."""
    named = list(dict.fromkeys(_served_names(log)))
    if not run.meta.model or not named or any(_same_model(run.meta.model, name) for name in named):
        return
    served = f"{named[0]} (served as {', '.join(named[1:])})" if named[1:] else named[0]
    raise InputError.because(
        f"{path.name}: the log is of a server of {served}, the run {_called(run)} is of {run.meta.model}; "
        "give the log of the run's server"
    )


def _served_names(log: EngineLog) -> Iterator[str]:
    """The model of a log as its server was given it, and the names under which that is asked for."""
    stated = [log.model, log.flags.get("served_model_name"), log.config.get("served_model_name")]
    for value in stated:
        yield from (str(name) for name in (value if isinstance(value, list | tuple) else [value]) if name)


def _same_model(one: str, other: str) -> bool:
    """Whether two names or paths mean one model: folder, organisation, case and tuning suffixes ignored."""
    names = [{name for name, _ in candidates(_plain_name(each))} for each in (one, other)]
    return bool(names[0] & names[1])


def _plain_name(given: str) -> str:
    """A name without its folder; of a Hugging Face cache's path the one that it was downloaded by."""
    cached = re.search(r"models--(?:[^/]+?--)?([^/]+)", given)
    return cached[1] if cached else given.rstrip("/")


def _called(run: Run) -> str:
    return run.meta.name or run.meta.source or run.id


def _copy(run: Run) -> Run:
    """The run with a meta of its own, and no id: what is joined changes its content."""
    old = run.meta
    fresh = {"notes": [*old.notes], "server": {**old.server}, "counters": {**old.counters}, "id": ""}
    return msgspec.structs.replace(run, meta=msgspec.structs.replace(old, **fresh))


class _Start(NamedTuple):
    """Where the run lies: None where that is not known, and everything is taken."""

    unix_s: float | None
    end_s: float = 0.0
    log_unix_s: float | None = None
    """The same by the log's clock."""


def _start(run: Run, pages: _Pages | None, log: EngineLog | None) -> _Start:
    """When the run began, by its own word, by the pages, or by the log's steps; kept in its meta with a note."""
    ends = PerRequest(run).occupied[1]
    if run.meta.clock == OWN_CLOCK or not ends.size:
        run.meta.notes.append("the requests' times of day are not known: all of the server's pages are taken")
        return _Start(None)
    by_log = _aligned(run, None, log)
    started = run.meta.started_unix_s
    if started is None and pages is not None and pages.started is not None:
        by_pages = _aligned(run, pages, None)
        if by_pages is not None and by_pages.good:
            started = _settle(run, by_pages, "pages")
        elif by_log is None or not by_log.good:
            _refuse_pages(pages, by_pages)
    if started is None and by_log is not None and by_log.good:
        started = _settle(run, by_log, "log, whose times have no zone and are taken as this machine's")
    run.meta.started_unix_s = started
    return _Start(started, float(ends[-1]), by_log.started_unix_s if by_log is not None and by_log.good else None)


def _aligned(run: Run, pages: _Pages | None, log: EngineLog | None) -> Alignment | None:
    """By the pages, or by the log; None where there is too little to compare."""
    if pages is not None:
        seen = pages_seen(run, pages.unix_s, pages.counted(), pages.run.meta.server.get("engine"))
    else:
        seen = log_seen(run, log) if log is not None else None
    return align(run, seen) if seen is not None else None


def _settle(run: Run, found: Alignment, by: str) -> float:
    at = datetime.fromtimestamp(found.started_unix_s, UTC).isoformat(timespec="milliseconds")
    run.meta.notes.append(f"the run began at {at}, within {found.uncertainty_s:.2g} s, by the server's {by}")
    run.meta.server["clock_uncertainty_s"] = found.uncertainty_s
    return found.started_unix_s


def _refuse_pages(pages: _Pages, found: Alignment | None) -> None:
    name = pages.run.meta.source or pages.run.meta.name
    if found is None:
        what = "count neither tokens nor requests, so the run's time in them is not known"
        raise InputError.because(f"{name}: the pages {what}; give a result with the time of day, or the server's log")
    raise InputError.because(
        f"{name}: the pages do not show this run's requests: what they count differs from what the client received "
        f"by {found.misfit:.1f} steps' worth; give the pages that were taken during the run"
    )


def _join_pages(run: Run, pages: _Pages, start: _Start) -> None:
    """The pages of the run's time as samples and counters, and the server's settings."""
    run.meta.server |= _page_facts(pages)
    run.meta.notes += [note for note in pages.run.meta.notes if "no requests are known" not in note]
    if pages.started is None:
        run.meta.notes.append("a page without its time (`# ts`): what the server had counted by then is not the run's")
        return
    origin = pages.started if start.unix_s is None else start.unix_s
    run.meta.started_unix_s = run.meta.started_unix_s or origin
    times = pages.unix_s - origin
    before, after = _edges(times, start, pages)
    first, last = pages.page(times[before] + origin), pages.page(times[after] + origin)
    if after > before:
        run.meta.counters |= deltas(first, last)
        run.meta.server["counted_s"] = [float(times[before]), float(times[after])]
    run.meta.notes += [*last.notes, *_missed(times[before], times[after], start)]
    end_s = start.end_s if start.unix_s is not None else float(times[-1])
    low, high = max(times[before], -NEAR_S), min(times[after], end_s + NEAR_S)
    on_clock = pages.table.with_columns(time_s=pl.col("time_s") + (pages.started - origin))
    run.server = on_clock.filter(pl.col("time_s").is_between(low - 1e-6, high + 1e-6))


def _edges(times: Floats, start: _Start, pages: _Pages) -> tuple[int, int]:
    """The last page at or before the run's start and the first at or after its end; what is missing is as near."""
    if start.unix_s is None:
        return 0, times.size - 1
    if times[-1] <= 0 or times[0] >= start.end_s:
        name = pages.run.meta.source or pages.run.meta.name
        where = f"they are from {times[0]:,.0f} to {times[-1]:,.0f} s after its start, which took {start.end_s:,.0f} s"
        raise InputError.because(f"{name}: no page was taken during the run: {where}")
    before = max(int(np.searchsorted(times, 0.0, side="right")) - 1, 0)
    return before, min(int(np.searchsorted(times, start.end_s, side="left")), times.size - 1)


def _missed(first_s: float, last_s: float, start: _Start) -> list[str]:
    if start.unix_s is None:
        return []
    short = [f"{first_s:.1f} s after the first request"] if first_s > 0 else []
    short += [f"{start.end_s - last_s:.1f} s before the last end"] if last_s < start.end_s else []
    ends = ("begin", "end") if first_s > 0 else ("end",)
    told = " and ".join(f"{verb} {where}" for verb, where in zip(ends, short, strict=False))
    return [f"the server's pages {told}: its counters lack the rest"] if short else []


def _page_facts(pages: _Pages) -> dict[str, Any]:
    found = dict(pages.run.meta.server)
    cache = found.get("cache_config", {})
    typed = {ours: cache[theirs] for theirs, ours in CACHE_FACTS.items() if isinstance(cache.get(theirs), int | float)}
    return found | typed


def _join_log(run: Run, log: EngineLog, start: _Start, path: Path) -> None:
    """The log's lines of the run's time. Where its clock is another zone's, that is put right."""
    run.meta.notes += [note for note in log.notes if note not in run.meta.notes]
    if start.unix_s is None or run.meta.started_unix_s is None:
        _warn_of_another_time(run, log, path, *_dated(run))
        return
    off = 0.0 if start.log_unix_s is None else start.log_unix_s - start.unix_s
    if abs(off) > LOG_SLACK_S:
        zones = round(off / ZONE_STEP_S) * ZONE_STEP_S
        off = zones if abs(off - zones) < LOG_SLACK_S else off
        run.meta.notes.append(f"the log's clock reads {off:+,.0f} s from the run's: put right")
    if add_log_lines(run, log, off if abs(off) > LOG_SLACK_S else 0.0):
        return
    if log.periodic or log.iterations:
        run.meta.notes.append("the log has no line of the run's time: another run's, or written in another time zone")
    _warn_of_another_time(run, log, path, start.unix_s + off, start.unix_s + off + start.end_s)


def _dated(run: Run) -> tuple[float | None, float]:
    """From when to when the run may have lasted by the time that it states: that of its start, or of its end."""
    if ":" not in run.meta.created:
        return None, 0.0
    try:
        at = datetime.fromisoformat(run.meta.created).timestamp()
    except (ValueError, OverflowError, OSError):
        return None, 0.0
    lasted = run.summary().duration_s or 0.0
    return at - lasted, at + lasted


def _warn_of_another_time(run: Run, log: EngineLog, path: Path, start_unix_s: float | None, end_unix_s: float) -> None:
    """Say that no line of the log is of the run's time; not where either's is unknown."""
    first, last = log.first_unix_s, log.last_unix_s
    if start_unix_s is None or first is None or last is None:
        return
    if first <= end_unix_s + LOG_SLACK_S and last >= start_unix_s - LOG_SLACK_S:
        return
    ran, logged = (f"{_told(low)} to {_told(high)}" for low, high in ((start_unix_s, end_unix_s), (first, last)))
    warnings.warn(
        f"{path.name}: no line of the log is of the time of run {_called(run)}: the run {ran}, the log {logged}; "
        "it may be the start-up's part only, another start's, or written in another time zone",
        InferometerWarning,
        stacklevel=2,
    )


def _told(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


def add_log_lines(run: Run, log: EngineLog, clock_off_s: float = 0.0) -> bool:
    """Put a log's lines while the run lasted into its server table (`server_columns`); False where there is none.

    ``clock_off_s``: how far the log's clock is ahead of ``meta.started_unix_s``'s. Needs that start and ends of
    requests. Beside samples of ``/metrics``, what the lines say of running, waiting and KV usage stands in columns of
    its own (``log_running``, ...).
    """
    start, end = run.meta.started_unix_s, run.requests["end_s"].max()
    if start is None or not isinstance(end, float):
        return False
    start += clock_off_s
    rows = pl.DataFrame(server_columns(log, start, start + end), infer_schema_length=None)
    if not rows.height:
        return False
    sampled = run.server["running"].null_count() < run.server.height
    # a step's or a second page's word on what runs must not be averaged with the samples'
    apart = (pl.col(name).alias(f"log_{name}") for name in ("running", "waiting", "kv_usage"))
    rows = rows.with_columns(*apart)
    keep = pl.lit(False) if sampled else pl.col("line") == "interval"
    gauges = (pl.when(keep).then(pl.col(name)).alias(name) for name in ("running", "waiting", "kv_usage"))
    run.server = pl.concat([run.server, rows.with_columns(*gauges)], how="diagonal_relaxed").sort("time_s")
    return True
