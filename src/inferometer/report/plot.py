"""Pictures for a terminal: a prediction as a line, a measurement as dots, what the chip allows in grey.

Blue is predicted and orange measured, everywhere; without colours the marks still tell them apart. Loads are on a
logarithmic axis with the points as ticks, throughput starts at zero, TTFT is logarithmic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import plotext  # type: ignore[import-untyped]
from rich.console import Console
from rich.text import Text

from inferometer.prediction.predict import PredictedPoint
from inferometer.records.metrics import Summary
from inferometer.records.run import Run
from inferometer.report.terminal import FAINT, HEADING, say

PREDICTED, MEASURED, CEILING = 33, 208, 244
"""Of the terminal's 256 colours: blue, orange, grey. Blue and orange are told apart by the colour-blind."""
HEIGHT = 15
LEAST_WIDTH, MOST_WIDTH = 60, 100
LEAST_LEVELS = 2
"""A curve of fewer points is none."""
STEPS = 120
"""Points that a line between two loads is drawn by, so that it is straight on a logarithmic axis too."""
MARKS = {"line": "braille", "dot": "●", "ceiling": "·"}
ASCII_MARKS = {"line": ".", "dot": "o", "ceiling": "-"}


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One load of a curve, and what was predicted or measured there."""

    load: float
    """Users, or requests a second."""
    output_tok_per_s: float | None
    ttft_p99_s: float | None
    ceiling_tok_per_s: float | None = None
    """What the roofline allows, of a prediction."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A plot without its data."""

    title: str
    y: Callable[[Level], float | None]
    logarithmic: bool = False
    ceiling: bool = False


PICTURES = (
    Picture(title="Output tok/s", y=lambda level: level.output_tok_per_s, ceiling=True),
    Picture(
        title="TTFT p99, ms",
        y=lambda level: None if level.ttft_p99_s is None else level.ttft_p99_s * 1000,
        logarithmic=True,
    ),
)


def curves(
    predicted: Sequence[Run | PredictedPoint], measured: Sequence[Run], console: Console, caption: str = ""
) -> None:
    """Draw throughput and TTFT p99 over the load; either side may be empty.

    Draws nothing where both sides together have fewer than two loads. ``caption`` stands under the pictures.
    """
    lines, dots = levels(predicted), levels(measured)
    loads = sorted({level.load for level in (*lines, *dots)})
    if len(loads) < LEAST_LEVELS:
        return
    unit = "requests/s" if _is_open([*predicted, *measured]) else "users"
    for picture in PICTURES:
        text = drawn(picture, lines, dots, console)
        if text is not None:
            say(console, f"{picture.title} by {unit}", style=HEADING)
            console.print(text, soft_wrap=True, end="")
            say(console)
    console.print(_key(bool(lines), bool(dots), any(level.ceiling_tok_per_s for level in lines), console))
    if caption:
        say(console, caption, style=FAINT)


def levels(points: Sequence[Run | PredictedPoint]) -> list[Level]:
    """The points that have a load, in its order; several of one load stay side by side."""
    found = [level for point in points if (level := _level(point)) is not None]
    return sorted(found, key=lambda level: level.load)


def _level(point: Run | PredictedPoint) -> Level | None:
    concurrency, rate = _load(point)
    load = rate if rate is not None else concurrency
    if not load:
        return None
    summary: Summary = point.summary() if isinstance(point, Run) else point.summary
    return Level(
        load=float(load),
        output_tok_per_s=summary.output_tok_per_s,
        ttft_p99_s=summary.ttft_s.p99,
        ceiling_tok_per_s=None if isinstance(point, Run) else point.roofline_tok_per_s,
    )


def _load(point: Run | PredictedPoint) -> tuple[int | None, float | None]:
    if isinstance(point, Run):
        return point.meta.concurrency, point.meta.request_rate_per_s
    return point.concurrency, point.request_rate


def _is_open(points: Sequence[Run | PredictedPoint]) -> bool:
    return any(_load(point)[1] is not None for point in points)


def drawn(picture: Picture, lines: Sequence[Level], dots: Sequence[Level], console: Console) -> Text | None:
    """One picture as styled text; None where there is nothing to draw."""
    curve, points = _xy(lines, picture.y), _xy(dots, picture.y)
    if not curve and not points:
        return None
    utf = (console.encoding or "").lower().startswith("utf")
    marks = MARKS if utf else ASCII_MARKS
    low, high = _range([y for _, y in (*curve, *points)], picture.logarithmic)
    figure = _canvas(console)
    _axes(figure, sorted({x for x, _ in (*curve, *points)}), (low, high), picture.logarithmic)
    if picture.ceiling:
        allowed = _between(_xy(lines, lambda level: level.ceiling_tok_per_s))
        _add(figure, [(x, y) for x, y in allowed if y <= high], marks["ceiling"], CEILING, picture)
    _add(figure, _between(curve, picture.logarithmic), marks["line"], PREDICTED, picture)
    _add(figure, points, marks["dot"], MEASURED, picture)
    built = figure.build().rstrip("\n")
    return Text.from_ansi(built if utf else built.translate(_BOX)) + Text("\n")


XY = list[tuple[float, float]]


def _xy(of: Sequence[Level], y: Callable[[Level], float | None]) -> XY:
    pairs = ((level.load, y(level)) for level in of)
    return [(x, value) for x, value in pairs if value is not None and math.isfinite(value) and value > 0]


def _between(points: XY, logarithmic: bool = False) -> XY:
    """The line through the points on the picture's axes, close together."""
    dense: XY = points[:1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        for step in range(1, STEPS + 1):
            share = step / STEPS
            y = y0 * (y1 / y0) ** share if logarithmic else y0 + (y1 - y0) * share
            dense.append((x0 * (x1 / x0) ** share, y))
    return dense


def _range(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """From zero to a little above; on a logarithmic axis whole steps of 1, 2, 5 around the values."""
    if not logarithmic:
        return 0.0, max(values) * 1.08
    low = max(step for step in _steps(min(values)) if step <= min(values))
    high = min(step for step in _steps(max(values)) if step >= max(values))
    return (low, high) if low < high else (low / 2, high * 2)


def _steps(value: float) -> list[float]:
    """1, 2, 5 and so on around a value."""
    exponent = math.floor(math.log10(value))
    return [lead * 10.0**e for e in (exponent - 1, exponent, exponent + 1) for lead in (1, 2, 5)]


def _canvas(console: Console) -> Any:
    """An empty plot as wide as the console, within limits; plotext keeps one for all, so it is cleared."""
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plotsize(max(LEAST_WIDTH, min(console.width, MOST_WIDTH)), HEIGHT)
    plotext.theme("clear")
    return plotext


def _axes(figure: Any, loads: Sequence[float], span: tuple[float, float], logarithmic: bool) -> None:
    """Ticks at the loads, and at round figures of the other axis; logarithms are taken here, not by plotext."""
    edge = 0.02 * math.log2(loads[-1] / loads[0]) or 1.0
    figure.xlim(math.log2(loads[0]) - edge, math.log2(loads[-1]) + edge)
    figure.xticks([math.log2(load) for load in loads], [f"{load:g}" for load in loads])
    rounds = _round_ticks(*span, logarithmic)
    figure.yticks([_scaled(tick, logarithmic) for tick in rounds], [f"{tick:,.6g}" for tick in rounds])
    figure.ylim(*(_scaled(end, logarithmic) for end in span))


def _scaled(y: float, logarithmic: bool) -> float:
    return math.log10(y) if logarithmic else y


def _round_ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Round figures within the span: 1, 2, 5 and so on of each decade, or some five steps of such a size from 0.

    >>> _round_ticks(0, 1640, False), _round_ticks(20, 1000, True)
    ([0.0, 500.0, 1000.0, 1500.0], [20.0, 50.0, 100.0, 200.0, 500.0, 1000.0])
    """
    if logarithmic:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = [lead * 10.0**decade for decade in decades for lead in (1, 2, 5)]
        return [tick for tick in every if low * 0.999 <= tick <= high * 1.001]
    step = next(each for each in _steps(high / 5) if each >= high / 5)
    return [step * i for i in range(int(high / step) + 1)]


def _add(figure: Any, points: XY, mark: str, colour: int, picture: Picture) -> None:
    if points:
        xs, ys = [math.log2(x) for x, _ in points], [_scaled(y, picture.logarithmic) for _, y in points]
        figure.scatter(xs, ys, marker=mark, color=colour)


_BOX = str.maketrans(
    {"┌": "+", "┐": "+", "└": "+", "┘": "+", "─": "-", "│": "|", "┤": "+", "┬": "+", "├": "+", "┼": "+"}
)


def _key(lines: bool, dots: bool, ceiling: bool, console: Console) -> Text:
    """What is what, in the colours of the picture."""
    utf = (console.encoding or "").lower().startswith("utf")
    line, dot, allowed = ("⠤⠒", "●", "··") if utf else ("..", "o", "--")
    parts = [
        (f"{line} predicted", PREDICTED, lines),
        (f"{dot} measured", MEASURED, dots),
        (f"{allowed} roofline", CEILING, ceiling),
    ]
    shown = [Text(text, style=f"color({colour})") for text, colour, there in parts if there]
    return Text("   ").join(shown)
