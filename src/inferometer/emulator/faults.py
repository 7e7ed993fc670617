"""Faults to inject: what goes wrong, how often, drawn from a random stream of its own so that runs repeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferometer.errors import InputError
from inferometer.units import parse_seconds
from inferometer.workload import stream

KINDS = {
    "latency": "latency=50ms delays the whole answer",
    "error-rate": "error-rate=0.1 answers that share of requests with HTTP 500",
    "error-429": "error-429=0.1 answers that share with HTTP 429 and Retry-After",
    "stall": "stall=0.05:2s pauses that share of streams once",
    "cut": "cut=0.1 closes that share of streams midway",
    "malformed": "malformed=0.01 breaks the JSON of one chunk in that share of streams",
    "tokens-per-chunk": "tokens-per-chunk=4 puts so many tokens into each chunk",
    "role-chunk-first": "role-chunk-first sends a chat's role chunk as soon as the request is taken",
    "no-usage": "no-usage leaves token counts out of every answer",
    "slow-start": "slow-start=10s answers 503 for so long after the start",
}
"""Every kind, with an example of how it is written and what it does."""
SLOW_START_S = 10.0


@dataclass(frozen=True)
class Faults:
    """What was asked for with ``--fault``."""

    latency_s: float = 0.0
    error_rate: float = 0.0
    error_429: float = 0.0
    stall: float = 0.0
    stall_s: float = 0.0
    cut: float = 0.0
    malformed: float = 0.0
    tokens_per_chunk: int = 1
    role_chunk_first: bool = False
    no_usage: bool = False
    slow_start_s: float = 0.0


@dataclass(frozen=True)
class Fate:
    """What goes wrong with one request. Positions are shares of its output, 0 to 1; None: it does not happen."""

    status: int = 200
    stall_at: float | None = None
    cut_at: float | None = None
    malformed_at: float | None = None


def parse_faults(given: Iterable[str]) -> Faults:
    """Faults from texts ``KIND=VALUE``, such as ``cut=0.1``.

    Raises:
        InputError: an unknown kind, a value that does not suit it.

    >>> parse_faults(["stall=0.05:2s", "no-usage"])  # doctest: +ELLIPSIS
    Faults(latency_s=0.0, error_rate=0.0, error_429=0.0, stall=0.05, stall_s=2.0, ..., no_usage=True, slow_start_s=0.0)
    """
    faults = Faults()
    for text in given:
        kind, _, value = text.partition("=")
        if kind not in KINDS:
            raise InputError("--fault", text, f"one of {', '.join(KINDS)}, such as {KINDS['cut'].split()[0]}")
        faults = _with(faults, kind, value.strip())
    if faults.error_rate + faults.error_429 > 1:
        raise InputError(
            "--fault", faults.error_rate + faults.error_429, "error-rate and error-429 of at most 1 in all"
        )
    return faults


def _with(faults: Faults, kind: str, value: str) -> Faults:
    """One more fault."""
    field, found = kind.replace("-", "_"), dict[str, Any]()
    if kind in ("role-chunk-first", "no-usage"):
        if value not in ("", "true"):
            raise InputError(f"--fault {kind}", value, f"no value: {KINDS[kind]}")
        found[field] = True
    elif kind == "tokens-per-chunk":
        found[field] = _whole(value)
    elif kind in ("latency", "slow-start"):
        text = value or (f"{SLOW_START_S} s" if kind == "slow-start" else "")
        found[f"{field}_s"] = parse_seconds(text, f"--fault {kind}")
    elif kind == "stall":
        share, _, pause = value.partition(":")
        found |= {"stall": _share(kind, share), "stall_s": parse_seconds(pause, "--fault stall")}
    else:
        found[field] = _share(kind, value)
    return replace(faults, **found)


def _share(kind: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(f"--fault {kind}", text, f"a share from 0 to 1: {KINDS[kind]}")
    return share


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise InputError("--fault tokens-per-chunk", text, "a whole number of at least 1")
    return int(text)


class Fortune:
    """Draws each request's `Fate`, in order of arrival, from the stream "emulator-faults" of the seed."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults, self.random = faults, stream(seed, "emulator-faults")

    def next(self) -> Fate:
        """The next request's."""
        faults, drawn = self.faults, self.random.random(4)
        return Fate(
            status=_status(faults, float(drawn[0])),
            stall_at=_position(drawn[1], faults.stall),
            cut_at=_position(drawn[2], faults.cut),
            malformed_at=_position(drawn[3], faults.malformed),
        )


def _status(faults: Faults, drawn: float) -> int:
    if drawn < faults.error_rate:
        return 500
    return 429 if drawn < faults.error_rate + faults.error_429 else 200


def _position(drawn: np.float64, share: float) -> float | None:
    """Where it happens, uniform over the output, where it does."""
    return float(drawn) / share if drawn < share else None
