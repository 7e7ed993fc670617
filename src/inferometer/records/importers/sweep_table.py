"""Sweep tables: CSV (or JSON objects) of one row a point, the way people keep results in notebooks.

Columns: ``concurrency`` (closed loop) or ``request_rate`` (open loop); ``output_tok_per_s``, ``total_tok_per_s``,
``request_per_s``, ``per_user_tok_per_s``, ``requests``, ``completed``, ``failed``, ``duration_s``;
``{ttft,tpot,itl,e2e,queue}_{ms,s}_{mean,std,p50,p90,p95,p99}``; ``littles_law_concurrency`` (request rate x mean E2E);
``model``, ``chip``, ``arm``, ``name``, ``tool``. An empty cell is unknown. Each row gives a run without requests whose
summary is what the row states.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from inferometer.errors import FormatError
from inferometer.records.importers.files import in_file, read_table, source_fields, table_columns
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = (
    "a sweep table: one row a point, columns concurrency or request_rate, output_tok_per_s, ttft_ms_p50, ttft_ms_p99, "
    "tpot_ms_p50, ..., littles_law_concurrency"
)

STAT_COLUMN = re.compile(r"(ttft|tpot|itl|e2e|queue|client_queue|normalized_latency)_(ms|s)_(mean|std|p\d+)")

PLAIN = (
    "output_tok_per_s",
    "total_tok_per_s",
    "request_per_s",
    "per_user_tok_per_s",
    "requests",
    "completed",
    "failed",
    "duration_s",
)
"""Columns stated under their own name."""

TEXTS = ("model", "chip", "arm", "tool", "tool_version")


def sniff(path: Path) -> bool:
    """Whether the table has a column for the point and one for what was measured there."""
    names = table_columns(path)
    measured = any(STAT_COLUMN.fullmatch(name) for name in names) or "output_tok_per_s" in names
    return measured and bool({"concurrency", "request_rate"} & set(names))


def read(path: Path) -> list[Run]:
    """One run a row. Raises `FormatError` naming the row and column of a value that is not what it should be."""
    rows = read_table(path, EXPECTED).to_dicts()
    return in_file(path, lambda: [_run(path, number, row) for number, row in enumerate(rows, 1)])


def _run(path: Path, number: int, row: dict[str, Any]) -> Run:
    where = f"row {number}"
    concurrency, rate = _number(row, "concurrency", where), _number(row, "request_rate", where, infinite=True)
    if concurrency is None and rate is None:
        raise FormatError.because(f"{path.name}: {where} has neither concurrency nor request_rate; expected {EXPECTED}")
    if concurrency is not None and (concurrency < 1 or concurrency != int(concurrency)):
        raise FormatError(f"{path.name}: {where}, concurrency", concurrency, "a whole number of at least 1")
    stated = {p: v for column in row for p, v in _stated(row, column, where, concurrency)}
    texts: dict[str, Any] = {key: str(row[key]) for key in TEXTS if row.get(key) not in (None, "")}
    meta = RunMeta(
        kind="imported",
        name=str(row.get("name") or f"{path.stem}-{number}"),
        concurrency=None if concurrency is None else int(concurrency),
        request_rate_per_s=rate if rate is not None and math.isfinite(rate) else None,
        duration_s=stated.get("duration_s"),
        stated=stated,
        notes=_not_read(row),
        **{"tool": "sweep table", **texts, **source_fields(path)},
    )
    return make_run(meta)


def _stated(row: dict[str, Any], column: str, where: str, concurrency: float | None) -> list[tuple[str, float]]:
    """The `Summary` path and value that a column states; nothing for an empty cell or a column that is not read."""
    match = STAT_COLUMN.fullmatch(column)
    if not match and column not in (*PLAIN, "littles_law_concurrency"):
        return []
    value = _number(row, column, where)
    if value is None:
        return []
    if match:
        return [(f"{match[1]}_s.{match[3]}", value / 1000 if match[2] == "ms" else value)]
    if column == "littles_law_concurrency":
        return [("littles_law", value / concurrency)] if concurrency else []
    return [(column, value)]


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
    known = {"concurrency", "request_rate", "littles_law_concurrency", "name", *PLAIN, *TEXTS}
    ignored = [column for column in row if column not in known and not STAT_COLUMN.fullmatch(column)]
    return [f"columns not read: {', '.join(ignored)}"] if ignored else []
