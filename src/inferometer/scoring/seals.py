"""Whether a prediction was sealed before what it is scored against was measured.

When a run began is its ``meta.started_unix_s``; else its ``meta.created`` less its duration, because tools such as
vLLM's benchmark date their file when they are done. A date without a zone is read in this machine's (a sweep table's in
UTC), and is said to be; where another zone would put it before the seal, which came first is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from inferometer.records.run import Run
from inferometer.scoring.sides import Predicted

State = Literal["sealed", "late", "broken", "unsealed", "undated"]

ZONES_S = 26 * 3600.0
"""Zones are up to so far apart: beyond it, none changes what came first."""


LAST_UNIX_S = 253_402_300_800.0
"""The end of the year 9999: a later start is no time in seconds."""


class SealStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the prediction is one: made, and unchanged, from before the measurement."""

    state: State
    """``sealed``; ``late``: sealed after the measurement began; ``broken``: not what was sealed; ``unsealed``;
    ``undated``: sealed, but the measurement has no date, or one without a zone and so near that another zone would
    change what came first."""
    sentence: str
    """In words; empty where runs stand for a prediction, which are never sealed."""
    sha256: str | None = None
    sealed_at: str | None = None
    """ISO 8601, UTC."""
    measured_at: str | None = None
    """When the first compared run began: ISO 8601, UTC."""


class Began(NamedTuple):
    """When a run began, in seconds since 1970, and how that is known."""

    unix_s: float
    caveat: str
    zoneless: bool


def began(run: Run) -> Began | None:
    """When a run began; None where it has no date.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> began(make_run(RunMeta(kind="imported", created="2026-08-01T10:05:00+00:00", duration_s=300.0))).unix_s
    1785578400.0
    """
    created, start = _date(run.meta.created), run.meta.started_unix_s
    if start is not None and 0 <= start < LAST_UNIX_S:
        assumed = created is not None and created.tzinfo is None and created.replace(tzinfo=UTC).timestamp() == start
        return Began(start, "its date, without a zone, so read in UTC" if assumed else "", assumed)
    if created is None:
        return None
    duration = run.summary().duration_s or 0.0
    caveat = "taken at its end, less its duration" if duration else "which may be that of its end"
    if created.tzinfo is None:
        caveat = f"{caveat}; without a zone, so read in this machine's"
    return Began(created.timestamp() - duration, f"the file's date, {caveat}", created.tzinfo is None)


def _date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def seal_status(predicted: Predicted, runs: Sequence[Run]) -> SealStatus:
    """What is to be said of the prediction's seal beside these measured runs."""
    found = predicted.verification
    if predicted.document is None:
        return SealStatus(state="unsealed", sentence="")
    if found is None:
        return SealStatus(
            state="unsealed", sentence="Not sealed: nothing shows that it was made before the measurement."
        )
    sealed_at = predicted.sealed_unix_s
    told = {"sha256": found.sha256, "sealed_at": None if sealed_at is None else _iso(sealed_at)}
    if not found:
        why = "; ".join(fault.rstrip(".") for fault in found.faults) or "It does not verify"
        return SealStatus(state="broken", sentence=f"Broken seal, so no prediction. {why}.", **told)
    starts = [began(run) for run in runs]
    known = [each for each in starts if each is not None]
    if sealed_at is None or not known:
        sentence = (
            f"Sealed {_name(found.sha256, sealed_at)}, but the measurement has no date: which came first is open."
        )
        return SealStatus(state="undated", sentence=sentence, **told)
    return _dated(sorted(known), len(starts) - len(known), sealed_at, found.sha256, told)


def _dated(
    known: Sequence[Began], undated: int, sealed_at: float, sha256: str, told: dict[str, str | None]
) -> SealStatus:
    first = known[0]
    margin = first.unix_s - sealed_at
    open_one = next((each for each in known if each.zoneless and each.unix_s - sealed_at <= ZONES_S), None)
    caveat = f" (by {first.caveat})" if first.caveat and not (first.zoneless and abs(margin) > ZONES_S) else ""
    state: State
    if margin <= 0:
        state = "late"
        sentence = f"Not a sealed prediction: sealed {duration(-margin)} after the measurement began{caveat}."
    elif undated:
        state = "undated"
        count = f"{undated} measured run{'s have' if undated > 1 else ' has'} no date"
        sentence = f"Sealed {_name(sha256, sealed_at)}, but {count}: which came first is open."
    elif open_one is not None:
        state = "undated"
        sentence = f"Sealed {_name(sha256, sealed_at)}, {_in_another_zone(open_one, sealed_at)}"
    else:
        state = "sealed"
        sentence = f"Sealed {_name(sha256, sealed_at)}, {duration(margin)} before the measurement began{caveat}."
    return SealStatus(state=state, sentence=sentence, measured_at=_iso(first.unix_s), **told)


def _in_another_zone(run: Began, sealed_at: float) -> str:
    return (
        f"{duration(run.unix_s - sealed_at)} before the measurement began (by {run.caveat}). "
        "Of another zone, it began before that: which came first is open."
    )


def _name(sha256: str, unix_s: float | None) -> str:
    when = "" if unix_s is None else f", {datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{sha256[:8]}{when}"


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


def duration(time_s: float) -> str:
    """A length of time in its two largest units at most.

    >>> duration(45), duration(3900), duration(200_000), duration(0.2)
    ('45 s', '1 h 5 min', '2 d 7 h', 'less than 1 s')
    """
    if time_s < 1:
        return "less than 1 s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    rest, parts = int(time_s), []
    for n, (name, size) in enumerate(units):
        count, rest = divmod(rest, size)
        if count:
            parts.append((n, f"{count} {name}"))
    largest = parts[0][0]
    return " ".join(text for n, text in parts if n <= largest + 1)
