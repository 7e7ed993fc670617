"""Trace files: who sent how much when.

Read by the columns they have, whatever the tool that wrote them:

- arrival: ``queued_s``, ``arrival_s``, ``arrival_ms``, ``timestamp`` (ms, Mooncake) or ``TIMESTAMP`` (date and time,
  Azure Public Dataset); the first that is there
- lengths: ``input_tokens`` / ``output_tokens``, ``prompt_tokens``, ``input_length`` / ``output_length`` (Mooncake),
  ``ContextTokens`` / ``GeneratedTokens`` (Azure)
- ``model``, optional: whose request it was

A file is CSV with a header line, or JSON lines.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.errors import FormatError, InputError
from inferometer.specs.workload import MAX_TOKENS, FloatArray, IntArray, Trace

_ARRIVALS = {"queued_s": 1.0, "arrival_s": 1.0, "arrival_ms": 1e-3, "timestamp": 1e-3}
_DATES = "TIMESTAMP"
_PROMPTS = ("input_tokens", "prompt_tokens", "input_length", "ContextTokens")
_OUTPUTS = ("output_tokens", "output_length", "GeneratedTokens")

Columns = dict[str, Sequence[Any]]


class TraceTable(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A trace as columns, sorted by arrival (ties in file order), the first request at 0 s."""

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def replay(trace: Trace) -> TraceTable:
    """The requests of ``trace``, its limit and rate scale applied.

    Raises:
        FormatError: the file cannot be read, or is not a trace.
        InputError: it holds several models and the trace names none of them.
    """
    table = read(trace.path, trace.model)
    kept = slice(trace.limit)
    return TraceTable(
        arrival_s=table.arrival_s[kept] / trace.rate_scale,
        prompt_tokens=table.prompt_tokens[kept],
        output_tokens=table.output_tokens[kept],
    )


def read(path: str | os.PathLike[str], model: str | None = None, *, with_arrivals: bool = True) -> TraceTable:
    """The trace in the file at ``path``; ``model`` picks rows where a ``model`` column holds several.

    ``with_arrivals`` False: only the lengths are wanted, arrivals are 0 and rows stay in file order.

    Raises:
        FormatError: the file cannot be read, lacks a column, has no rows, or a row has no valid figure.
        InputError: several models and ``model`` is none of them.
    """
    file = os.fspath(path)
    columns = _of_model(file, _columns(file), model)
    prompt = _tokens(file, columns, _PROMPTS, 1)
    output = _tokens(file, columns, _OUTPUTS, 0)
    if not with_arrivals:
        return TraceTable(arrival_s=np.zeros(len(prompt)), prompt_tokens=prompt, output_tokens=output)
    times = _arrivals(file, columns)
    order = np.argsort(times, kind="stable")
    times = times[order]
    return TraceTable(arrival_s=times - times[0], prompt_tokens=prompt[order], output_tokens=output[order])


def _columns(file: str) -> Columns:
    try:
        with open(file, newline="", encoding="utf-8-sig") as lines:
            first = lines.readline()
            lines.seek(0)
            columns = _json_columns(file, lines.read()) if first.startswith("{") else _csv_columns(file, lines)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FormatError.because(f"{file}: cannot be read as a trace: {error}") from error
    if not columns or not len(next(iter(columns.values()))):
        raise FormatError.because(f"{file}: holds no requests")
    return columns


def _csv_columns(file: str, lines: Any) -> Columns:
    header, *rows = list(csv.reader(lines)) or [[]]
    rows = [row for row in rows if row]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise FormatError.because(f"{file}: row {number} has {len(row)} values, the header has {len(header)}")
    return dict(zip((name.strip() for name in header), zip(*rows, strict=True), strict=True)) if rows else {}


def _json_columns(file: str, content: str) -> Columns:
    try:
        rows = msgspec.json.Decoder(dict[str, Any]).decode_lines(content)
    except msgspec.DecodeError as error:
        raise FormatError.because(f"{file}: not valid JSON lines: {error}") from error
    names = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
    return {name: [row.get(name) for row in rows] for name in names}


def _of_model(file: str, columns: Columns, model: str | None) -> Columns:
    given = columns.get("model", ())
    known = sorted({str(name) for name in given})
    if len(known) < 2:
        return columns
    wanted = _matching(model, known)
    if wanted is None:
        raise InputError(f"{file}: model", model, f"the one to take, of {', '.join(known)}")
    rows = [row for row, name in enumerate(given) if name == wanted]
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def _matching(model: str | None, known: list[str]) -> str | None:
    """The name among ``known`` that ``model`` means: the organisation, case and suffixes such as -Instruct ignored."""
    if not model:
        return None
    wanted = _short(model)
    exact = [name for name in known if _short(name) == wanted]
    prefixed = [name for name in known if _short(name).startswith(wanted) or wanted.startswith(_short(name))]
    found = exact or prefixed
    return found[0] if len(found) == 1 else None


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1].lower().replace("_", "-")


def _tokens(file: str, columns: Columns, names: tuple[str, ...], least: int) -> IntArray:
    name = next((name for name in names if name in columns), None)
    if name is None:
        raise FormatError.because(f"{file}: no column {' or '.join(names)}; it has {', '.join(columns)}")
    allowed = f"a whole number of at least {least}"
    numbers = _numbers(file, name, columns[name], allowed)
    good = (numbers == np.floor(numbers)) & (numbers >= least) & (numbers <= MAX_TOKENS)
    _refuse_row(file, name, columns[name], good, allowed)
    return numbers.astype(np.int64)


def _arrivals(file: str, columns: Columns) -> FloatArray:
    for name, seconds in _ARRIVALS.items():
        if name in columns:
            numbers = _numbers(file, name, columns[name], "a number")
            _refuse_row(file, name, columns[name], np.isfinite(numbers), "a finite number")
            return numbers * seconds
    if _DATES in columns:
        return _dates(file, columns[_DATES])
    raise FormatError.because(f"{file}: no column {', '.join([*_ARRIVALS, _DATES])}; it has {', '.join(columns)}")


def _dates(file: str, values: Sequence[Any]) -> FloatArray:
    """Seconds from the first; a time zone at the end is dropped, since differences are all that counts."""
    try:
        times = np.array([str(value).split("+")[0].strip() for value in values], dtype="datetime64[ns]")
    except ValueError as error:
        raise FormatError.because(f"{file}: {_DATES}: {error}") from error
    return np.asarray((times - times.min()) / np.timedelta64(1, "s"), dtype=np.float64)


def _numbers(file: str, name: str, values: Sequence[Any], allowed: str) -> FloatArray:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        _refuse_row(file, name, values, [_is_number(value) for value in values], allowed)
        raise


def _is_number(value: Any) -> bool:
    parse: Callable[[Any], float] = float
    try:
        parse(value)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_row(file: str, name: str, values: Sequence[Any], good: npt.ArrayLike, allowed: str) -> None:
    bad = np.flatnonzero(~np.asarray(good, dtype=bool))
    if bad.size:
        row = int(bad[0])
        raise FormatError.because(f"{file}: row {row + 1}: {name}: {values[row]!r} is not allowed; give {allowed}")
