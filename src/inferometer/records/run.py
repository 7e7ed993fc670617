"""A Run: one record of requests, however it came to be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import polars as pl

from inferometer.errors import InputError

if TYPE_CHECKING:
    from inferometer.records.metrics import Summary

Kind = Literal["simulated", "measured", "imported"]

REQUEST_SCHEMA: dict[str, Any] = {
    "scheduled_s": pl.Float64,
    "sent_s": pl.Float64,
    "admitted_s": pl.Float64,
    "first_byte_s": pl.Float64,
    "first_token_s": pl.Float64,
    "last_token_s": pl.Float64,
    "end_s": pl.Float64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "preemptions": pl.Int32,
    "replica": pl.Int32,
    "session": pl.Int64,
    "error": pl.String,
}
"""Columns of `Run.requests`, one row a request, seconds from the run's start, null where unknown."""

MEASURED_SCHEMA: dict[str, Any] = {
    "first_content_s": pl.Float64,
    "reasoning_tokens": pl.Int64,
    "asked_prompt_tokens": pl.Int64,
    "asked_output_tokens": pl.Int64,
    "output_counted_by": pl.String,
    "token_events": pl.Int64,
    "finish_reason": pl.String,
    "http_status": pl.Int32,
    "worker": pl.Int32,
}
"""Columns of `Run.requests` that only a measurement has; each is there only where it is known.

``first_content_s`` is the first token that is not reasoning; ``token_events`` counts the stream's chunks that carried
tokens, which is fewer than ``output_tokens`` where a chunk holds several; ``output_counted_by`` says whether
``output_tokens`` is the server's ``usage`` or the number of ``events``; ``worker`` is the client process.
"""

SERVER_SCHEMA: dict[str, Any] = {
    "time_s": pl.Float64,
    "replica": pl.Int32,
    "running": pl.Int64,
    "waiting": pl.Int64,
    "kv_usage": pl.Float64,
    "preemptions": pl.Int64,
}
"""Columns of `Run.server` that are always there; a scrape may add more."""

OWN_CLOCK = "own"
"""`RunMeta.clock` of a source without start times: every request is sent at 0 on its own clock."""

CLOCK_SLACK_S = 1e-6
"""Two times of one request may be this much out of order: sums of rounded gaps, not a fault of the record."""


class TokenTimes(msgspec.Struct, frozen=True, eq=False):
    """When each token came: request i's are ``times_s[offsets[i]:offsets[i + 1]]``, seconds from the run's start."""

    offsets: np.ndarray
    times_s: np.ndarray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTimes):
            return NotImplemented
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.times_s, other.times_s)


class RunMeta(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a run was: enough to judge it, and to make it again where it was simulated."""

    kind: Kind
    id: str = ""
    """Of a simulated run: the first 16 hex digits of the SHA-256 of its content, so equal runs have equal ids."""
    name: str = ""
    tool: str = ""
    tool_version: str = ""
    created: str = ""
    """ISO 8601 time, empty for a simulated run (no wall clock inside the simulator)."""
    seed: int | None = None
    model: str | None = None
    chip: str | None = None
    arm: str | None = None
    policy: str | None = None
    deployment: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    slo: dict[str, float] = {}
    concurrency: int | None = None
    """Configured closed-loop concurrency, or cap."""
    request_rate_per_s: float | None = None
    duration_s: float | None = None
    """As the source states it; None: first sent to last end."""
    source: str | None = None
    source_sha256: str | None = None
    clock: str = ""
    """`OWN_CLOCK`: each request's times count from its own sending, so nothing is known across requests."""
    stated: dict[str, float] = {}
    """Aggregates that the source states where it holds no requests, by `Summary` path: ``ttft_s.p99``."""
    notes: list[str] = []
    counters: dict[str, float] = {}
    """Server counters over the run: ``preemptions``, ``steps``, ``prefix_cache_hits``, ...; of a histogram its
    ``NAME.sum`` and ``NAME.count`` (``ttft_s.sum``). See `records.prometheus` for the names."""
    partial: str = ""
    """Why this is not the whole run: ``interrupted``, ``server unreachable``, ...; empty for a whole one."""
    unfit: list[str] = []
    """Why this measurement should not be trusted: the client was the bottleneck, the server throttled, ..."""
    window_s: tuple[float, float | None] | None = None
    """The measured part, from the end of the warm-up to the drain (None: the end); None: all of it."""
    started_unix_s: float | None = None
    """When the run's clock read 0, in seconds since 1970."""
    client: dict[str, float] = {}
    """The client's own figures: ``workers``, ``cpu_share`` (busiest worker's CPU time over wall time),
    ``lateness_s`` and ``loop_lag_s`` each as ``.p50``, ``.p99`` and ``.third_highest``, ``peak_in_flight``,
    ``reconnects``."""
    server: dict[str, Any] = {}
    """What was found out about the server: ``engine``, ``version``, ``model``, ``max_model_len``, ``flags``, and what
    its log says (`records.engine_log`)."""


class Run(msgspec.Struct, kw_only=True, eq=False):
    """One record of requests: simulated, measured or imported.

    ``requests`` has the columns of `REQUEST_SCHEMA` (and of `MEASURED_SCHEMA`, where known), ``server`` those of
    `SERVER_SCHEMA`. Two runs are equal where
    `runs_equal` says so.

    >>> run = make_run(RunMeta(kind="measured"), {"sent_s": [0.0], "first_token_s": [0.5], "last_token_s": [1.5],
    ...     "end_s": [1.5], "prompt_tokens": [8], "output_tokens": [11]})
    >>> run.summary().tpot_s.mean
    0.1
    """

    meta: RunMeta
    requests: pl.DataFrame
    server: pl.DataFrame
    token_times: TokenTimes | None = None

    @property
    def id(self) -> str:
        """The run's id: ``meta.id``, or where that is empty `content_id`, which is then kept in ``meta.id``."""
        if not self.meta.id:
            self.meta.id = content_id(self)
        return self.meta.id

    def summary(self) -> Summary:
        """Every metric of this run (`records.metrics.summarize`)."""
        from inferometer.records.metrics import summarize  # metrics reads Runs, so it imports this module

        return summarize(self)

    def to_dict(self) -> dict[str, Any]:
        """``meta`` with its id, and how many requests there are, as plain values for JSON."""
        _ = self.id
        values: dict[str, Any] = msgspec.to_builtins(self.meta)
        return {**values, "requests": self.requests.height}

    def __eq__(self, other: object) -> bool:
        return runs_equal(self, other) if isinstance(other, Run) else NotImplemented


def make_run(
    meta: RunMeta,
    requests: pl.DataFrame | Mapping[str, Any] | None = None,
    server: pl.DataFrame | Mapping[str, Any] | None = None,
    token_times: TokenTimes | None = None,
) -> Run:
    """A Run from columns as they come: cast to the schemas, missing columns null, NaN null, and checked.

    Raises `InputError` for a column of `requests` that is in neither `REQUEST_SCHEMA` nor `MEASURED_SCHEMA`, for
    columns of different lengths or of values that do not cast, for an infinite time, a negative count, a request that
    ends before it begins, and for token times that do not fit the requests. ``server`` may hold columns beyond
    `SERVER_SCHEMA`.
    """
    frame = _conform(requests, REQUEST_SCHEMA, "requests", MEASURED_SCHEMA)
    _check_counts(frame)
    _check_times(frame)
    samples = _conform(server, SERVER_SCHEMA, "server")
    if token_times is not None:
        _check_token_times(token_times, frame.height)
    return Run(meta=meta, requests=frame, server=samples, token_times=token_times)


def runs_equal(a: Run, b: Run) -> bool:
    """Whether two runs hold the same content: meta but for id and creation time, both tables, and token times."""
    return (
        _canonical_meta(a.meta) == _canonical_meta(b.meta)
        and a.requests.equals(b.requests, null_equal=True)
        and a.server.equals(b.server, null_equal=True)
        and a.token_times == b.token_times
    )


def content_id(run: Run) -> str:
    """First 16 hex digits of the SHA-256 of the run's content: equal runs have equal ids.

    Covers ``meta`` (without ``id`` and ``created``), every column of both tables with its name and type, and the
    token times. Hashes the columns' buffers, so a million requests take about a tenth of a second.
    """
    digest = hashlib.sha256(_canonical_meta(run.meta))
    for frame in (run.requests, run.server):
        digest.update(b"table %d" % frame.height)
        for name in sorted(frame.columns):
            _hash_column(digest, frame[name])
    if run.token_times is not None:
        digest.update(np.ascontiguousarray(run.token_times.offsets, dtype=np.int64).data)
        digest.update(np.ascontiguousarray(run.token_times.times_s, dtype=np.float64).data)
    return digest.hexdigest()[:16]


_MEASURED = ("partial", "unfit", "window_s", "started_unix_s", "client", "server")
"""Fields that only a measurement fills: left out of the hash where empty, so that they change no simulated run's id."""


def _canonical_meta(meta: RunMeta) -> bytes:
    values = {name: v for name, v in msgspec.to_builtins(meta).items() if v or name not in _MEASURED}
    del values["id"], values["created"]
    return msgspec.json.encode(values, order="sorted")


def _hash_column(digest: Any, column: pl.Series) -> None:
    nulls = column.null_count()
    digest.update(f"\0{column.name}:{column.dtype}:{nulls}\0".encode())
    if nulls == column.len():
        return
    if nulls:
        digest.update(np.packbits(column.is_null().to_numpy()))
    if column.dtype.is_numeric():
        values = column.fill_null(0).to_numpy() if nulls else column.to_numpy()
        digest.update(np.ascontiguousarray(values))
    else:
        digest.update(msgspec.json.encode(column.drop_nulls().to_list()))


def _conform(
    data: pl.DataFrame | Mapping[str, Any] | None,
    schema: dict[str, Any],
    table: str,
    extra: dict[str, Any] | None = None,
) -> pl.DataFrame:
    """``data`` as a frame of the schema's columns in the schema's order, then those of ``extra`` that are there.

    Raises `InputError` for any other column, unless ``extra`` is None: then any others stand after.
    """
    known = {**schema, **(extra or {})}
    frame = data if isinstance(data, pl.DataFrame) else _frame(data or {}, known, table)
    unknown = [name for name in frame.columns if name not in known]
    if unknown and extra is not None:
        raise InputError(f"{table} column", unknown[0], f"one of {', '.join(known)}")
    wanted = {name: dtype for name, dtype in known.items() if name in schema or name in frame.columns}
    columns = [_cast(frame, name, dtype, table) for name, dtype in wanted.items()]
    return pl.DataFrame([*columns, *(frame[name] for name in unknown)])


def _frame(data: Mapping[str, Any], schema: dict[str, Any], table: str) -> pl.DataFrame:
    lengths = {name: len(values) for name, values in data.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{table} columns", lengths, "columns of one length")
    try:
        return pl.DataFrame([_series(name, values, schema.get(name)) for name, values in data.items()])
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as why:
        fault = str(why).splitlines()[0]
        raise InputError.because(f"{table}: a column holds values of different kinds ({fault})") from why


def _series(name: str, values: Any, dtype: Any) -> pl.Series:
    """Times from a list may mix whole numbers, NaN and None; all else must be of one kind."""
    mixed = isinstance(values, list | tuple) and dtype == pl.Float64
    return pl.Series(name, values, dtype=dtype if mixed else None, strict=True)


def _cast(frame: pl.DataFrame, name: str, dtype: Any, table: str) -> pl.Series:
    if name not in frame.columns:
        return pl.repeat(None, frame.height, dtype=dtype, eager=True).alias(name)
    column = frame[name]
    if column.dtype.is_float() and not dtype.is_float():
        column = _whole(column, name, table)
    if column.dtype != dtype:
        try:
            column = column.cast(dtype, strict=True)
        except pl.exceptions.PolarsError as why:
            raise InputError(f"{table}.{name}", column.drop_nulls().head(1).to_list(), f"values of {dtype}") from why
    return _finite(column, table) if dtype.is_float() else column


def _whole(column: pl.Series, name: str, table: str) -> pl.Series:
    """A float column that is to become counts: NaN is null, and a fraction is an error, not cut off."""
    column = column.fill_nan(None)
    fractions = column.filter(column != column.floor())
    if fractions.len():
        raise InputError(f"{table}.{name}", fractions[0], "whole numbers")
    return column


def _finite(column: pl.Series, table: str) -> pl.Series:
    if column.null_count() == column.len():
        return column
    if column.is_infinite().any():
        raise InputError(f"{table}.{column.name}", float("inf"), "finite numbers, or null where unknown")
    return column.fill_nan(None) if column.is_nan().any() else column


def _check_counts(frame: pl.DataFrame) -> None:
    for name in ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions"):
        least: Any = frame[name].min()
        if least is not None and least < 0:
            raise InputError(f"requests.{name}", least, "whole numbers of at least 0")


def _check_times(frame: pl.DataFrame) -> None:
    """Refuse a request whose later event comes before an earlier one. Queueing times may come from another clock."""
    for earlier, later in (
        ("sent_s", "first_token_s"),
        ("first_token_s", "last_token_s"),
        ("last_token_s", "end_s"),
        ("sent_s", "end_s"),
    ):
        wrong = ((frame[later] - frame[earlier]) < -CLOCK_SLACK_S).fill_null(False)
        if wrong.any():
            row = int(wrong.arg_true()[0])
            was = f"{frame[later][row]!r} before {earlier} {frame[earlier][row]!r}"
            raise InputError(f"requests.{later} of row {row}", was, f"a time at or after {earlier}")


def _check_token_times(token_times: TokenTimes, requests: int) -> None:
    offsets, times = token_times.offsets, token_times.times_s
    fits = (
        offsets.size == requests + 1
        and offsets[0] == 0
        and offsets[-1] == times.size
        and not np.any(np.diff(offsets) < 0)
    )
    if not fits:
        raise InputError("token_times.offsets", offsets.size, f"{requests + 1} rising offsets from 0 to {times.size}")
