"""What the importers share: reading bytes, JSON and tables, and saying what is wrong with a file by its name."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import polars as pl

from inferometer.errors import FormatError, InputError

T = TypeVar("T")

BOM = b"\xef\xbb\xbf"


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
