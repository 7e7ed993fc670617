"""Sweep tables: CSV (or JSON objects) of one row a point, the way people keep results in notebooks.

Columns: ``concurrency`` (closed loop) or ``request_rate`` (open loop); ``output_tok_per_s``, ``total_tok_per_s``,
``request_per_s``, ``per_user_tok_per_s``, ``requests``, ``completed``, ``failed``, ``duration_s``;
``{ttft,tpot,itl,e2e,queue}_{ms,s}_{mean,std,p50,p90,p95,p99}``; ``littles_law_concurrency`` (request rate x mean E2E);
``model``, ``chip``, ``arm``, ``name``, ``tool``, ``tool_version``. What is known of the server: ``engine``,
``engine_version``, ``num_gpu_blocks``, ``kv_cache_tokens``, ``weight_gib``; ``running``, ``waiting`` (means),
``kv_usage`` and ``prefix_hit_rate`` (shares, 0 to 1; or ``prefix_hit_rate_pct``, 0 to 100), ``preemptions``.
``started``: when the point began, in ISO 8601. An empty cell is unknown. Each row gives a run without requests whose
summary is what the row states.
"""

from __future__ import annotations

import difflib
import math
import re
import warnings
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from inferometer.errors import FormatError, InferometerWarning
from inferometer.records.importers.files import in_file, read_table, short_rows, source_fields, table_columns
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.units import GIB

EXPECTED = (
    "a sweep table: one row a point, columns concurrency or request_rate, output_tok_per_s, ttft_ms_p50, ttft_ms_p99, "
    "tpot_ms_p50, ..., littles_law_concurrency"
)

TIMES = ("ttft", "tpot", "itl", "e2e", "queue", "client_queue", "normalized_latency")

STAT_COLUMN = re.compile(rf"({'|'.join(TIMES)})_(ms|s)_(mean|std|p\d+)")

PLAIN = (
    "output_tok_per_s",
    "total_tok_per_s",
    "request_per_s",
    "per_user_tok_per_s",
    "requests",
    "completed",
    "failed",
    "duration_s",
    "running",
    "waiting",
)
"""Columns stated under their own name."""

SHARES = {"prefix_hit_rate": 1.0, "prefix_hit_rate_pct": 100.0, "kv_usage": 1.0}
"""Columns of shares, and what all of it is in their unit."""

COUNTS = ("num_gpu_blocks", "kv_cache_tokens", "preemptions")
"""Columns of whole numbers."""

TEXTS = ("model", "chip", "arm", "tool", "tool_version")

KNOWN = {
    *("concurrency", "request_rate", "littles_law_concurrency", "name", "engine", "engine_version", "weight_gib"),
    *("started", *PLAIN, *SHARES, *COUNTS, *TEXTS),
}
"""Every column that is read, but for the times."""

ALIKE = 0.75
"""Share of letters in common (difflib) from which on a column's name is taken for a slip of a known one's."""


def sniff(path: Path) -> bool:
    """Whether the table has a column for the point and one for what was measured there."""
    names = table_columns(path)
    measured = any(STAT_COLUMN.fullmatch(name) for name in names) or "output_tok_per_s" in names
    return measured and bool({"concurrency", "request_rate"} & set(names))


def read(path: Path) -> list[Run]:
    """One run a row. Raises `FormatError` naming the row and column of a value that is not what it should be."""
    rows = read_table(path, EXPECTED).to_dicts()
    _warn(path, list(rows[0]))
    return in_file(path, lambda: [_run(path, number, row) for number, row in enumerate(rows, 1)])


def _warn(path: Path, columns: list[str]) -> None:
    """Of columns that are nearly known ones, and of rows that are cut short."""
    said = [
        f"{path}: column {column!r} is not read; did you mean {close}?"
        for column in columns
        if not _is_read(column) and (close := _close(column, columns))
    ]
    said += [
        f"{path}: row {number} has {cells} of {len(columns)} cells, the rest is taken for unknown; is the file whole?"
        for number, cells in short_rows(path)
    ]
    for text in said:
        warnings.warn(text, InferometerWarning, stacklevel=2)


def _is_read(column: str) -> bool:
    return column in KNOWN or STAT_COLUMN.fullmatch(column) is not None


def _close(column: str, others: list[str]) -> str | None:
    """The known column that this one is most like, if the table does not have that too: times in the unit it names."""
    unit = "s" if re.search(r"_s(ec\w*)?(_|$)", column) else "ms"
    times = [f"{name}_{unit}_{part}" for name in TIMES for part in ("mean", "std", "p50", "p90", "p95", "p99")]
    known = [name for name in (*times, *sorted(KNOWN)) if name not in others]
    plain = column.strip().lower().replace("-", "_").replace(" ", "_")
    turned = next((name for name in known if sorted(name.split("_")) == sorted(plain.split("_"))), None)
    return turned or next(iter(difflib.get_close_matches(plain, known, n=1, cutoff=ALIKE)), None)


def _run(path: Path, number: int, row: dict[str, Any]) -> Run:
    where = f"row {number}"
    concurrency, rate = _number(row, "concurrency", where), _number(row, "request_rate", where, infinite=True)
    if concurrency is None and rate is None:
        raise FormatError.because(f"{path.name}: {where} has neither concurrency nor request_rate; expected {EXPECTED}")
    if concurrency is not None and (concurrency < 1 or concurrency != int(concurrency)):
        raise FormatError(f"{path.name}: {where}, concurrency", concurrency, "a whole number of at least 1")
    stated = {p: v for column in row for p, v in _stated(row, column, where, concurrency)}
    created, started, remarks = _started(row, where)
    meta = RunMeta(
        kind="imported",
        name=str(row.get("name") or f"{path.stem}-{number}"),
        concurrency=None if concurrency is None else int(concurrency),
        request_rate_per_s=rate if rate is not None and math.isfinite(rate) else None,
        duration_s=stated.get("duration_s"),
        stated=stated,
        created=created,
        started_unix_s=started,
        deployment=_texts(row, ("engine", "engine_version")),
        server=_server(row, where),
        notes=[*_not_read(row), *remarks],
        **{"tool": "sweep table", **_texts(row, TEXTS), **source_fields(path)},
    )
    return make_run(meta)


def _texts(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: str(row[name]) for name in names if row.get(name) not in (None, "")}


def _server(row: dict[str, Any], where: str) -> dict[str, Any]:
    """What the row says of the server, under the names of `records.engine_log`."""
    found: dict[str, Any] = {name: _count(row, name, where) for name in ("num_gpu_blocks", "kv_cache_tokens")}
    weights = _number(row, "weight_gib", where)
    found["weight_bytes"] = None if weights is None else round(weights * GIB)
    found |= {"engine": row.get("engine") or None, "version": _texts(row, ("engine_version",)).get("engine_version")}
    return {name: value for name, value in found.items() if value is not None}


def _started(row: dict[str, Any], where: str) -> tuple[str, float | None, list[str]]:
    """When the point began: as written, in seconds since 1970, and what was assumed for that."""
    text = row.get("started")
    if text is None or text == "":
        return "", None, []
    try:
        at = datetime.fromisoformat(str(text).strip())
    except ValueError:
        raise FormatError(f"{where}, started", text, "a time in ISO 8601, such as 2026-07-31T14:05:00Z") from None
    notes = [] if at.tzinfo else [f"started {text}: no time zone is stated, UTC is taken"]
    if _is_date(str(text).strip()):
        notes = [f"started on {text}: no time of day is stated, its first instant (UTC) is taken"]
    return str(text), (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(), notes


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _stated(row: dict[str, Any], column: str, where: str, concurrency: float | None) -> list[tuple[str, float]]:
    """The `Summary` path and value that a column states; nothing for an empty cell or a column that is not read."""
    match = STAT_COLUMN.fullmatch(column)
    if column in SHARES:
        share = _share(row, column, where)
        return [] if share is None else [(column.removesuffix("_pct"), share)]
    if not match and column not in (*PLAIN, "preemptions", "littles_law_concurrency"):
        return []
    value = _count(row, column, where) if column in COUNTS else _number(row, column, where)
    if value is None:
        return []
    if match:
        return [(f"{match[1]}_s.{match[3]}", value / 1000 if match[2] == "ms" else value)]
    if column == "littles_law_concurrency":
        return [("littles_law", value / concurrency)] if concurrency else []
    return [(column, value)]


def _share(row: dict[str, Any], column: str, where: str) -> float | None:
    """A share as one of 1. Raises `FormatError` above the whole: most often a percentage in the other column."""
    value, whole = _number(row, column, where), SHARES[column]
    if value is not None and value > whole:
        raise FormatError(f"{where}, {column}", value, f"a share from 0 to {whole:g}")
    return None if value is None else value / whole


def _count(row: dict[str, Any], column: str, where: str) -> int | None:
    value = _number(row, column, where)
    if value is not None and value != int(value):
        raise FormatError(f"{where}, {column}", value, "a whole number")
    return None if value is None else int(value)


def _number(row: dict[str, Any], column: str, where: str, *, infinite: bool = False) -> float | None:
    value = row.get(column)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (number >= 0 and (infinite or math.isfinite(number))):
        raise FormatError(f"{where}, {column}", value, "a number of at least 0, or an empty cell")
    return number


def _not_read(row: dict[str, Any]) -> list[str]:
    ignored = [column for column in row if not _is_read(column)]
    return [f"columns not read: {', '.join(ignored)}"] if ignored else []
