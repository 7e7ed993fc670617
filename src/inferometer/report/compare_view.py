"""What ``inferometer compare`` prints: the verdict in one sentence, the changes with their intervals, what to know."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from inferometer.report.grid import Cell, Column, Grid, figure, milliseconds, signed
from inferometer.report.terminal import ACCENT, BAD, FAINT, HEADING, _grid, metric_name, say, show
from inferometer.scoring.compare import Change, Comparison

NAMES = {"attainment": "goodput attainment %", "failed": "failed requests %"}
STYLES = {"better": ACCENT, "worse": BAD, "cannot tell": FAINT, "same": ""}
SAID = 2
"""Changes named in the sentence."""


def report(found: Comparison, console: Console) -> None:
    """Everything about a comparison."""
    say(console, f"A  {found.a}\nB  {found.b}", style=HEADING)
    for line in found.differs:
        say(console, f"   {line}", style=FAINT)
    say(console)
    for each in found.notes:
        say(console, f"Not alike: {each}.", style=BAD)
    say(console, answer(found), style=BAD if found.verdict == "worse" else "")
    say(console)
    shown = rows_shown(found)
    show(_rows_grid(found, shown), console)
    hidden = len(found.rows) - len(shown)
    more = [f"{hidden} further rows show no change; --json has them."] if hidden else []
    say(console)
    for line in (*_unlike(found), *_grouped_reasons(shown), *more):
        say(console, line, style=FAINT)


def answer(found: Comparison) -> str:
    """The verdict, and the changes it rests on.

    >>> answer(Comparison(a="a", b="b", rows=(), verdict="same", confidence=0.95, margin=0.02))
    'B is the same as A: every headline change lies within 2 %, with 95 % confidence.'
    """
    sure = f"{found.confidence * 100:g} %"
    if found.verdict == "same":
        return (
            f"B is the same as A: every headline change lies within {found.margin * 100:g} %, with {sure} confidence."
        )
    if found.verdict == "cannot tell":
        widest = max((row for row in found.headline if row.low_pct is not None), key=_width, default=None)
        if widest is None:
            known = [row for row in found.headline if row.change_pct is not None]
            largest = max(known, key=lambda row: abs(row.change_pct or 0.0), default=None)
            told = f"; the largest is {_change(largest)}" if largest else ""
            return f"Cannot tell A from B: no headline change has an interval{told}."
        return f"Cannot tell A from B: no headline change is beyond chance; the widest is {_change(widest)}."
    decisive = [row for row in found.headline if row.verdict == found.verdict]
    decisive.sort(key=lambda row: -abs(row.change_pct or 0.0))
    named = "; ".join(_change(row) for row in decisive[:SAID])
    more = len(decisive) - SAID
    also = [row for row in found.headline if row.verdict == "better"] if found.verdict == "worse" else []
    but = f" Better: {'; '.join(_change(row) for row in also[:1])}." if also else ""
    return f"B is {found.verdict} than A: {named}{f', and {more} more' if more > 0 else ''}.{but}"


def _width(row: Change) -> float:
    return (row.high_pct or 0.0) - (row.low_pct or 0.0)


def _change(row: Change) -> str:
    """``TTFT p99 +23 % (12 to 35) at C=64``."""
    unit = "points" if row.unit == "%" else "%"
    span = "" if row.low_pct is None else f" ({_interval(row)})"
    load = _load(row)
    name = _name(row).removesuffix(" ms").removesuffix(" %")
    return f"{name} {signed(row.change_pct)} {unit}{span}{f' at {load}' if load else ''}"


def _name(row: Change) -> str:
    return NAMES.get(row.metric) or metric_name(row.metric)


def _load(row: Change) -> str:
    if row.request_rate is not None:
        return f"{row.request_rate:g}/s"
    return f"C={row.concurrency}" if row.concurrency is not None else ""


def rows_shown(found: Comparison) -> list[Change]:
    """All rows of one load; of several the headline, and what else has changed."""
    if len({(row.arm, _load(row)) for row in found.rows}) <= 1:
        return list(found.rows)
    return [row for row in found.rows if row.headline or row.verdict in ("better", "worse")]


def _rows_grid(found: Comparison, rows: Sequence[Change]) -> Grid:
    several, arms = len({_load(row) for row in rows}) > 1, len({row.arm for row in rows}) > 1
    columns = [Column("arm", "left")] if arms else []
    columns += [Column("load", "left")] if several else []
    sure = f"{found.confidence * 100:g} % interval"
    figures = [Column("A"), Column("B"), Column("change %"), Column(sure, "left"), Column("verdict", "left")]
    grid = _grid("", [*columns, Column("metric", "left"), *figures])
    before: tuple[str | None, str] | None = None
    for row in rows:
        place = (row.arm, _load(row))
        lead = [
            "" if place == before else text or "" for text, there in zip(place, (arms, several), strict=True) if there
        ]
        before = place
        grid.add(*lead, *_cells(row))
    return grid


def _cells(row: Change) -> list[Cell]:
    headline = Text(_name(row), style=ACCENT if row.headline else "")
    shown = [milliseconds(value / 1000) if row.unit == "ms" else figure(value) for value in (row.a, row.b)]
    return [headline, *shown, signed(row.change_pct), _interval(row), Text(row.verdict, style=STYLES[row.verdict])]


def _interval(row: Change) -> str:
    if row.low_pct is None or row.high_pct is None:
        return "-"
    return f"{signed(row.low_pct)} to {signed(row.high_pct)}"


def _grouped_reasons(rows: Sequence[Change]) -> list[str]:
    """Why rows have no interval, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            by_reason.setdefault(row.reason, []).append(f"{_name(row)}{f' at {_load(row)}' if _load(row) else ''}")
    more = {why: f" and {len(names) - 1} more" if len(names) > 1 else "" for why, names in by_reason.items()}
    return [f"{names[0]}{more[why]}: {why}." for why, names in by_reason.items()]


def _unlike(found: Comparison) -> list[str]:
    return [f"Not compared: {each}." for each in found.unmatched]
