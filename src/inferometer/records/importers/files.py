"""What the importers share: reading bytes, JSON and tables, and saying what is wrong with a file by its name."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeGuard, TypeVar

import msgspec
import polars as pl

from inferometer.errors import FormatError, InputError

T = TypeVar("T")

BOM = b"\xef\xbb\xbf"

HEAD_BYTES = 1 << 16
"""How much of a file is looked at to tell its format."""

SECONDS_IN = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
"""Seconds in one of a unit of time, by the names that tools write."""

PARTS = {"mean": "mean", "std": "std", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
"""The parts of a `Stat` and the names under which most tools have them."""


def refuse(path: Path, what: str, expected: str) -> NoReturn:
    """Raise the `FormatError` of a file: its name, what is wrong, what was expected."""
    raise FormatError.because(f"{path.name}: {what}; expected {expected}")


def read_bytes(path: Path) -> bytes:
    """The file's content without a byte-order mark. Raises `FormatError` where it cannot be read."""
    try:
        return path.read_bytes().removeprefix(BOM)
    except OSError as why:
        raise FormatError.because(f"{path.name}: cannot be read ({why.strerror})") from why


def source_fields(path: Path) -> dict[str, Any]:
    """The `RunMeta` fields that say which file a run comes from: its name (not where it lay) and its SHA-256."""
    return {"source": path.name, "source_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def decode_json(data: bytes) -> Any:
    """One JSON value; NaN and Infinity, which Python writes and JSON has not, are read too. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def decode_documents(data: bytes) -> list[Any]:
    """The values of a file of one JSON value, or of one a line. Raises ValueError."""
    try:
        return [decode_json(data)]
    except ValueError:
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [decode_json(line) for line in lines]


def json_fault(path: Path) -> str | None:
    """What is wrong with a file that starts like JSON or is named so; None for sound JSON and for anything else."""
    data = read_bytes(path)
    if data.lstrip()[:1] not in (b"{", b"[") and not path.suffix.lower().startswith(".json"):
        return None
    try:
        decode_documents(data)
    except ValueError as why:
        return str(why)
    return None


def table_columns(path: Path) -> list[str]:
    """Column names of a CSV, of JSON objects one a line, or of a JSON list of objects; none for any other file."""
    try:
        data = path.read_bytes().removeprefix(BOM)
        if data.lstrip()[:1] in (b"{", b"["):
            return _json_columns(data)
        header = data[: data.find(b"\n") + 1 or None].decode()
    except (OSError, ValueError):
        return []
    return next(iter(csv.reader(io.StringIO(header))), [])


def _json_columns(data: bytes) -> list[str]:
    value = decode_json(data if data.lstrip().startswith(b"[") else data.lstrip().splitlines()[0])
    first = value[0] if isinstance(value, list) and value else value
    return list(first) if isinstance(first, dict) else []


def read_table(path: Path, expected: str) -> pl.DataFrame:
    """A CSV, JSON objects one a line, or a JSON list of objects, as a table. Raises `FormatError`."""
    data = read_bytes(path)
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            frame = pl.DataFrame(_json_rows(data), infer_schema_length=None)
        else:
            frame = pl.read_csv(data, infer_schema_length=None)
    except (pl.exceptions.PolarsError, ValueError, TypeError) as why:
        refuse(path, f"not a sound table ({str(why).splitlines()[0]})", expected)
    if not frame.height:
        refuse(path, "a table without rows", expected)
    return frame


def short_rows(path: Path) -> list[tuple[int, int]]:
    """Number and cells of each row of a CSV that has fewer than its header; of JSON none. An empty line is no row."""
    data = read_bytes(path)
    if data.lstrip()[:1] in (b"{", b"["):
        return []
    header, *rows = csv.reader(io.StringIO(data.decode(errors="replace")))
    return [(number, len(row)) for number, row in enumerate(rows, 1) if 0 < len(row) < len(header)]


def _json_rows(data: bytes) -> list[dict[str, Any]]:
    documents = decode_documents(data)
    rows = documents[0] if len(documents) == 1 and isinstance(documents[0], list) else documents
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a row is not an object")
    return rows


def in_file(path: Path, build: Callable[[], T]) -> T:
    """What ``build`` returns; an `InputError` that does not name the file becomes a `FormatError` that does."""
    try:
        return build()
    except InputError as why:
        if isinstance(why, FormatError) and path.name in str(why):
            raise
        raise FormatError.because(f"{path.name}: {why}") from why


def head(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file without a byte-order mark; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size).removeprefix(BOM)
    except OSError:
        return b""


def is_json_with(path: Path, *marks: bytes) -> bool:
    """Whether the file starts as JSON does and each of the marks stands near its start."""
    data = head(path)
    return data.lstrip()[:1] in (b"{", b"[") and all(mark in data for mark in marks)


def read_documents(path: Path, expected: str) -> list[Any]:
    """The JSON values of a file, one or one a line. Raises `FormatError` where they are not complete."""
    try:
        return decode_documents(read_bytes(path))
    except ValueError as why:
        refuse(path, f"not complete JSON ({why})", expected)


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """The one JSON object of a file. Raises `FormatError` for anything else."""
    documents = read_documents(path, expected)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        refuse(path, "not one JSON object", expected)
    return documents[0]


def shaped(path: Path, value: Any, shape: type[T], expected: str) -> T:
    """``value`` as a struct, or a `FormatError` that names the file, the key and what is wrong with it."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as why:
        refuse(path, str(why), expected)


def seconds_in(unit: str, field: str) -> float:
    """Seconds in one ``unit``, also of a unit a token. Raises `FormatError` for one that is not of time.

    >>> seconds_in("ms/token", "inter_token_latency")
    0.001
    """
    scale = SECONDS_IN.get(unit.removesuffix("/token"))
    if scale is None:
        raise FormatError(f"{field}, unit", unit, f"a time in {', '.join(SECONDS_IN)}")
    return scale


def iso_utc(unix_s: float | None, field: str, timespec: str = "auto") -> str:
    """Seconds since 1970 as ISO 8601 in UTC; empty for None. Raises `FormatError` outside of the years 1 to 9999.

    >>> iso_utc(0.0, "start_time")
    '1970-01-01T00:00:00+00:00'
    """
    try:
        return "" if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        raise FormatError(field, unix_s, "a time in seconds since 1970, in the years 1 to 9999") from None


def at(values: Any, *keys: str) -> Any:
    """The value under a path of keys; None where a key is missing or what should hold it is no mapping."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def mapping(values: Any, *keys: str) -> dict[str, Any]:
    """The mapping under a path of keys; an empty one where there is none."""
    found = at(values, *keys)
    return found if isinstance(found, dict) else {}


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether this is a finite number (a boolean is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def stated_stat(
    name: str, values: Mapping[str, Any] | None, scale: float = 1.0, keys: Mapping[str, str] = PARTS
) -> dict[str, float]:
    """A distribution by `Summary` path, each value times ``scale``; ``keys`` are the source's names of our parts.

    >>> stated_stat("ttft_s", {"avg": 50.0, "p99": None}, 1e-3, {"mean": "avg", "p99": "p99"})
    {'ttft_s.mean': 0.05}
    """
    found = {part: (values or {}).get(key) for part, key in keys.items()}
    numbers = {part: value for part, value in found.items() if value is not None and is_number(value)}
    return {f"{name}.{part}": value if part == "n" else value * scale for part, value in numbers.items()}


def text(*values: Any) -> str | None:
    """The first of the values that is a string with something in it; None where none is."""
    return next((value for value in values if isinstance(value, str) and value), None)


def numbers(values: Any, field: str) -> list[float]:
    """A list of finite numbers. Raises `FormatError` for anything else."""
    if not isinstance(values, list) or not all(is_number(value) for value in values):
        raise FormatError(field, values, "a list of finite numbers")
    return [float(value) for value in values]


def only_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The entries that are finite numbers, as floats."""
    return {path: float(value) for path, value in values.items() if is_number(value)}


def not_read(found: Iterable[str], known: Iterable[str], what: str = "keys") -> list[str]:
    """A note that names what of a file is not read; none where everything is."""
    names = set(known)
    skipped = [str(name) for name in found if name not in names]
    return [f"{what} not read: {', '.join(skipped[:20])}"] if skipped else []


def version_notes(found: object, known: str, skipped: Iterable[str] = ()) -> list[str]:
    """A note where a format's version is newer than the newest ``known`` one, and what of it is not read.

    >>> version_notes(3, "2", ["verdict"])
    ['version 3 is newer than 2: read as far as known; skipped: verdict']
    """
    if _version(found) <= _version(known):
        return []
    names = ", ".join(skipped)
    return [f"version {found} is newer than {known}: read as far as known; skipped: {names or 'nothing seen'}"]


def _version(value: object) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", str(value)))


def last_line(error: object) -> str | None:
    """The last line of an error, at most 300 characters of it; None for no error."""
    lines = str(error or "").strip().splitlines()
    return lines[-1][:300] if lines else None
