"""Checks on values and tables that a user wrote: one clear `InputError` each."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np

from inferometer.errors import InputError


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a finite int or float (numpy's too), and no bool."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(-sys.float_info.max <= value <= sys.float_info.max)  # also false of an int that no float holds


def complaint(field: str, sentence: str) -> InputError:
    """An error about ``field`` in words of its own, where the value is not what is wrong."""
    error = InputError.because(f"{field}: {sentence}")
    error.field = field
    return error


def whole(field: str, value: object, least: int = 0) -> int:
    """``value`` as an int, where it is a whole number of at least ``least``.

    >>> whole("concurrency", 4.0, 1)
    4
    """
    if is_number(value) and value == int(value) and value >= least:
        return int(value)
    raise InputError(field, value, f"a whole number of at least {least}")


def positive(field: str, value: object, what: str = "a number") -> float:
    """``value`` as a float, where it is a finite number above 0."""
    if is_number(value) and value > 0:
        return float(value)
    raise InputError(field, value, f"{what} above 0")


def not_negative(field: str, value: object, what: str = "a number") -> float:
    """``value`` as a float, where it is a finite number of at least 0."""
    if is_number(value) and value >= 0:
        return float(value)
    raise InputError(field, value, f"{what} of at least 0")


def text(field: str, value: object, what: str = "a text") -> str:
    """``value``, where it is a non-empty string."""
    if isinstance(value, str) and value:
        return value
    raise InputError(field, value, what)


def table(field: str, value: object) -> dict[str, Any]:
    """``value`` as a dict, where it is a table with texts as keys."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise InputError(field, value, "a table of fields")


def known_keys(where: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse the first key of ``given`` that is not ``known``; the error names its path and the closest known key.

    >>> known_keys("workload", {"concurency": [1]}, ["concurrency", "seed"])
    Traceback (most recent call last):
    inferometer.errors.InputError: workload.concurency: no such key; did you mean concurrency?
    """
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key.lower(), sorted(known), n=1, cutoff=0.6)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
            path = f"{where}.{key}" if where else key
            raise complaint(path, f"no such key; {hint}")


@contextmanager
def within(where: str) -> Iterator[None]:
    """Make an `InputError` raised inside say where: its field ``x`` becomes ``where.x``.

    >>> with within("workload"):
    ...     whole("seed", -1)
    Traceback (most recent call last):
    inferometer.errors.InputError: workload.seed: -1 is not allowed; give a whole number of at least 0
    """
    try:
        yield
    except InputError as error:
        message = str(error)
        inner = bool(error.field) and message.startswith(error.field)
        error.args = (f"{where}.{message}" if inner else f"{where}: {message}",)
        error.field = f"{where}.{error.field}" if inner else error.field
        raise


@contextmanager
def at(place: str) -> Iterator[None]:
    """Make an `InputError` raised inside begin with ``place`` (a file, an arm), its field unchanged."""
    try:
        yield
    except InputError as error:
        if place:
            error.args = (f"{place}: {error}",)
        raise
