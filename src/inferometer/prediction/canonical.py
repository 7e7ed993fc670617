"""The JSON of a sealed file: how it is written, read with suspicion, and hashed.

The hash is the SHA-256 of the RFC 8785 canonical form, in which a number is the shortest text of its double. So two
files of the same keys and doubles have one hash, however they are laid out, and what is hidden by that is looked for in
the text itself: a key that stands twice, and digits beyond those that the double needs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import rfc8785

from inferometer.errors import FormatError, InputError

SEALED = "sealed"
"""The one member that the hash does not cover: it holds the hash."""
EXACT = 2**53
"""Whole numbers from here on are not all doubles."""
_SHOWN = 40


class Reading(NamedTuple):
    """A file's content, and what its text hides."""

    document: dict[str, Any]
    faults: list[str]


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of the canonical form of all but ``sealed``.

    Raises:
        ValueError: a number that is no double, or a text that is not Unicode.

    >>> digest({"a": 1.0, "sealed": None}) == digest({"a": 1})
    True
    """
    return hashlib.sha256(rfc8785.dumps({key: v for key, v in document.items() if key != SEALED})).hexdigest()


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` as its file will hold it: texts, numbers, lists and tables only.

    Raises:
        InputError: a whole number of 2**53 or more, or a number that is not finite.
    """
    values: dict[str, Any] = json.loads(json.dumps(document, default=_plain))
    for path, value in _numbers("", values):
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) >= EXACT):
            raise InputError(path, value, "a finite number, if whole then below 2**53, in what is to be sealed")
    return values


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _numbers(f"{path}.{key}" if path else key, below)
    elif isinstance(value, list):
        for row, below in enumerate(value):
            yield from _numbers(f"{path}[{row}]", below)
    elif isinstance(value, int | float):
        yield path, value


def written(document: Mapping[str, Any]) -> str:
    """The text of a sealed file: keys sorted, indented, numbers in their shortest form."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def read(text: str) -> Reading:
    """A document and what is hidden in its text, a sentence each.

    Raises:
        FormatError: not JSON, or not a table.
    """
    faults: list[str] = []

    def number(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            faults.append(f"The number {_short(literal)} is too large for a double.")
        elif _exact(literal) != Decimal(repr(value)):
            faults.append(f"The number {_short(literal)} has digits that no double keeps: it reads as {value!r}.")
        return value

    def whole(literal: str) -> float:
        return int(literal) if len(literal) < 17 and abs(int(literal)) < EXACT else number(literal)

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            faults.append(f"The key {_short(twice)!r} stands twice in one table.")
        return found

    try:
        document = json.loads(
            text, parse_float=number, parse_int=whole, parse_constant=_refused, object_pairs_hook=table
        )
    except (ValueError, RecursionError) as error:
        raise FormatError.because(f"not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise FormatError.because("not a table of fields")
    return Reading(document, faults)


def _exact(literal: str) -> Decimal | None:
    """The number as written; None where its exponent is beyond what any number has."""
    try:
        return Decimal(literal)
    except InvalidOperation:
        return None


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
