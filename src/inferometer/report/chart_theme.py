"""What all charts share: colours, sizes, axes, marks with their labels, and SVG and PNG without a browser.

A chart is 720 px wide with fixed margins (``autosize: none``), so that its layout does not hang on a machine's fonts
and the same figures give the same bytes. Colours are for a white card; `DARK` says what each becomes on a dark page.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import msgspec
import vl_convert

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 46, 78
PLOT_WIDTH = WIDTH - LEFT - RIGHT
HEIGHT = 330
"""Of the plot itself; title, axis and caption come on top."""

PREDICTED, MEASURED = "#0072b2", "#d55e00"
"""Blue and orange, told apart by the colour-blind (Okabe and Ito)."""
CEILING, INK, FAINT, GRID, CARD = "#767676", "#222222", "#5c5c5c", "#e4e4e4", "#ffffff"
DARK = {
    PREDICTED: "#5cb8f0",
    MEASURED: "#ff9a4d",
    CEILING: "#9a9a9a",
    INK: "#e8e8e8",
    FAINT: "#b0b0b0",
    GRID: "#3a3d42",
    CARD: "#1b1d21",
}
"""What each colour becomes on a dark page."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
LABEL, SMALL = 12, 11
LINE = 14
"""Least distance between two labels, px."""
VL_VERSION = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])

Drawn = Any
"""A chart of Altair, or a layer of one: its methods do not say which of its kinds they give."""
Rows = list[dict[str, Any]]


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One axis: its title, its span, and its ticks, each with its text."""

    title: str
    low: float
    high: float
    ticks: dict[float, str]
    logarithmic: bool = False
    base: int = 10

    def share(self, value: float) -> float:
        """Where a figure lies between the axis's ends, 0 to 1."""
        low, high, at = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)

    def value(self, share: float) -> float:
        """The figure at a place between the ends; inverse of `share`, to six digits."""
        low, high = (math.log(v) if self.logarithmic else v for v in (self.low, self.high))
        at = low + share * (high - low)
        return float(f"{math.exp(at) if self.logarithmic else at:.6g}")

    def holds(self, value: float | None) -> bool:
        """Whether a figure can be drawn."""
        return value is not None and math.isfinite(value) and self.low <= value <= self.high

    @property
    def scale(self) -> alt.Scale:
        """For Altair."""
        kind = {"type": "log", "base": self.base} if self.logarithmic else {"type": "linear"}
        return alt.Scale(domain=[self.low, self.high], nice=False, zero=False, **kind)


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A plot's two axes and its size."""

    x: Axis
    y: Axis
    width: int = PLOT_WIDTH
    height: int = HEIGHT

    def px(self, x: float, y: float) -> tuple[float, float]:
        """A point's place, px from the upper left corner."""
        return self.x.share(x) * self.width, (1 - self.y.share(y)) * self.height

    def row(self, px: float, py: float) -> dict[str, Any]:
        """The figures at a place of the plot, inverse of `px`."""
        return {"x": self.x.value(px / self.width), "y": self.y.value(1 - py / self.height)}

    def encode(self, rows: Rows) -> Drawn:
        """A chart of rows ``x`` and ``y`` on these axes."""
        return data(rows).encode(x=x_of(self.x), y=y_of(self.y))


def data(rows: Rows) -> Drawn:
    """A chart of rows, kept in order."""
    return alt.Chart(alt.InlineData(values=rows))


def x_of(axis: Axis, field: str = "x") -> alt.X:
    """The horizontal axis; ticks stand where they are said to, with their own text."""
    return alt.X(f"{field}:Q", scale=axis.scale, axis=_axis(axis, grid=False), title=axis.title)


def y_of(axis: Axis, field: str = "y") -> alt.Y:
    """The vertical axis; its title is written above it by `finished`."""
    return alt.Y(f"{field}:Q", scale=axis.scale, axis=_axis(axis, grid=True), title=None)


def _axis(axis: Axis, grid: bool) -> alt.Axis:
    texts = {f"{value:.12g}": text for value, text in axis.ticks.items()}
    # a look-up by the tick's own value: Vega's number formats know no "three digits with thousands"
    label = f"{_object(texts)}[format(datum.value, '.12~g')] || ''"
    return alt.Axis(
        values=list(axis.ticks), labelExpr=label, grid=grid, minExtent=24, maxExtent=24, labelOverlap=False,
        labelFlush=False, labelLimit=0, titleLimit=0, titlePadding=0,
    )  # fmt: skip


def _object(texts: dict[str, str]) -> str:
    return "{" + ", ".join(f"'{key}': '{text}'" for key, text in texts.items()) + "}"


# ---------------------------------------------------------------- axes


def load_axis(loads: Iterable[float], title: str, room: float = 0.0) -> Axis:
    """Loads on a base-2 logarithmic axis, the tested ones as ticks; ``room``: share of the width left at its end."""
    tested = sorted(set(loads))
    low, high = tested[0], tested[-1]
    octaves = math.log2(high / low) or 1.0
    end = 2 ** (math.log2(high) + octaves * (0.03 + room / (1 - room)))
    start = 2 ** (math.log2(low) - octaves * 0.04)
    axis = Axis(title=title, low=start, high=end, ticks={}, logarithmic=True, base=2)
    return msgspec.structs.replace(axis, ticks={load: f"{load:,g}" for load in _apart(tested, axis)})


LEAST_TICK_PX = 30


def _apart(loads: Sequence[float], axis: Axis) -> list[float]:
    """The loads whose ticks do not touch, the last one among them."""
    kept: list[float] = []
    for load in reversed(loads):
        if not kept or (axis.share(kept[-1]) - axis.share(load)) * PLOT_WIDTH >= LEAST_TICK_PX:
            kept.append(load)
    return kept[::-1]


def zero_axis(values: Iterable[float | None], title: str, head: float = 1.08, least_step: float = 0.0) -> Axis:
    """From zero to a little above the largest value; round ticks, no closer than ``least_step``."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    high = (max(known, default=1.0) or 1.0) * head
    step = max(next(s for s in _rounds(high / 5) if s >= high / 5), least_step)
    ticks = [step * i for i in range(int(high / step) + 1)]
    return Axis(title=title, low=0.0, high=high, ticks={t: f"{t:,.6g}" for t in ticks})


def log_axis(values: Iterable[float | None], title: str, *, always: bool = False) -> Axis:
    """Whole steps of 1, 2, 5 around the values; linear from zero where they span less than a decade.

    ``always``: logarithmic all the same, over at least a decade.
    """
    known = sorted(v for v in values if v is not None and math.isfinite(v) and v > 0)
    if not known or (known[-1] < 10 * known[0] and not always):
        return zero_axis(known, title)
    low = max(s for s in _rounds(known[0]) if s <= known[0])
    high = max(min(s for s in _rounds(known[-1] * 1.05) if s >= known[-1] * 1.05), 10 * low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{lead}e{decade}") for decade in decades for lead in (1, 2, 5)]
    ticks = [tick for tick in every if low * 0.999 <= tick <= high * 1.001]
    if len(ticks) > 10:
        ticks = [tick for tick in ticks if f"{tick:e}"[0] == "1"]
    return Axis(title=title, low=low, high=high, ticks={t: f"{t:,.6g}" for t in ticks}, logarithmic=True)


def _rounds(value: float) -> list[float]:
    exponent = math.floor(math.log10(value)) if value > 0 else 0
    return [float(f"{lead}e{e}") for e in (exponent - 1, exponent, exponent + 1, exponent + 2) for lead in (1, 2, 5)]


# ---------------------------------------------------------------- marks


def line(frame: Frame, rows: Rows, colour: str, *, dash: Sequence[int] = (), width: float = 2.2) -> Drawn:
    """A line through the rows, in their order."""
    mark = frame.encode(rows).mark_line(
        color=colour, strokeWidth=width, strokeJoin="round", strokeDash=list(dash) or alt.Undefined
    )
    return mark.encode(order="n:Q") if all("n" in row for row in rows) else mark


def band(frame: Frame, rows: Rows, colour: str) -> Drawn:
    """The area between ``low`` and ``high`` of each row."""
    area = data(rows).mark_area(color=colour, opacity=0.16)
    return area.encode(x=x_of(frame.x), y=y_of(frame.y, "low"), y2="high:Q")


def dots(frame: Frame, rows: Rows, colour: str, *, hollow: bool = False, shape: str = "circle") -> Drawn:
    """A dot a row; a hollow one is filled with the card's colour, so that lines do not show through it."""
    fill = CARD if hollow else colour
    return frame.encode(rows).mark_point(
        shape=shape,
        size=58,
        fill=fill,
        stroke=colour,
        strokeWidth=1.8,
        opacity=1,
        fillOpacity=1,
    )


def bars(frame: Frame, rows: Rows, colour: str) -> Drawn:
    """Error bars from ``low`` to ``high``."""
    mark = data(rows).mark_rule(color=colour, strokeWidth=1.4)
    return mark.encode(x=x_of(frame.x), y=y_of(frame.y, "low"), y2="high:Q")


def crosses(frame: Frame, rows: Rows, colour: str) -> Drawn:
    """A cross a row: a human's claim."""
    return frame.encode(rows).mark_point(
        shape="M-1,-1L1,1M-1,1L1,-1", size=120, stroke=colour, strokeWidth=2.2, opacity=1
    )


def rings(frame: Frame, rows: Rows, colour: str) -> Drawn:
    """A ring around the point that a note speaks of."""
    return frame.encode(rows).mark_point(shape="circle", size=210, stroke=colour, strokeWidth=1.6, filled=False)


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """Words at a place of the plot, px; moved up or down where others stand."""

    x: float
    y: float
    text: str
    colour: str
    align: str = "left"


def apart(labels: Sequence[Label], low: float, high: float, least: float = LINE) -> list[Label]:
    """The labels of one column, so far apart that none covers another, as near to their places as may be."""
    order = sorted(labels, key=lambda label: label.y)
    ys: list[float] = []
    for label in order:
        ys.append(max(label.y, ys[-1] + least if ys else low))
    for i in range(len(ys) - 1, -1, -1):
        ys[i] = min(ys[i], ys[i + 1] - least if i + 1 < len(ys) else high)
    return [msgspec.structs.replace(label, y=y) for label, y in zip(order, ys, strict=True)]


def words(frame: Frame, labels: Sequence[Label], size: int = LABEL, weight: str = "normal") -> list[Drawn]:
    """The labels as text with a halo of the card's colour, so that lines behind do not disturb it."""
    layers = []
    for colour, align in dict.fromkeys((label.colour, label.align) for label in labels):
        same = [label for label in labels if (label.colour, label.align) == (colour, align)]
        base = frame.encode([{**frame.row(label.x, label.y), "text": label.text} for label in same])
        common: dict[str, Any] = {"align": align, "baseline": "middle", "fontSize": size, "fontWeight": weight}
        for fill in ({"fill": CARD, "stroke": CARD, "strokeWidth": 4, "strokeJoin": "round"}, {"fill": colour}):
            layers.append(base.mark_text(**common, **fill).encode(text="text:N"))
    return layers


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A remark on a point of the plot, by figures of its axes."""

    x: float
    y: float
    text: str
    colour: str


def notes(frame: Frame, remarks: Sequence[Note]) -> list[Drawn]:
    """Remarks in the upper part, each on a line of its own with a thin rule down to its point; the last one on top."""
    order = sorted(remarks, key=lambda note: (-note.x, note.y))
    layers: list[Drawn] = []
    labels: list[Label] = []
    for n, note in enumerate(order):
        x, y = frame.px(note.x, note.y)
        level = 10.0 + n * (LINE + 2)
        left = x > 0.42 * frame.width
        labels.append(Label(x=x - 5 if left else x + 5, y=level, text=note.text, colour=note.colour,
                            align="right" if left else "left"))  # fmt: skip
        layers.append(_leader(frame, x, level - 6, max(y - 8, level), note.colour))
    return [*layers, *words(frame, labels)]


def _leader(frame: Frame, x: float, top: float, end: float, colour: str) -> Drawn:
    row = {**frame.row(x, top), "end": frame.row(x, end)["y"]}
    return frame.encode([row]).mark_rule(color=colour, strokeWidth=1, strokeDash=[2, 2]).encode(y2="end:Q")


# ---------------------------------------------------------------- the whole


def finished(
    layers: Sequence[Drawn], title: str, frame: Frame, caption: str, *, subtitle: str = "", left: int = LEFT
) -> Drawn:
    """The layers on one card: title, what the vertical axis is, and the caption below."""
    top = TOP
    place: dict[str, Any] = {"x": -left + 10}
    texts = [written(title, y=-top + 16, size=15, weight="bold", colour=INK, **place)]
    texts.append(written(subtitle or frame.y.title, y=-top + 33, size=LABEL, colour=FAINT, **place))
    lines = wrapped(caption)
    for n, each in enumerate(lines):
        texts.append(written(each, y=frame.height + 62 + n * 14, size=SMALL, colour=FAINT, **place))
    padding = {"left": left, "right": WIDTH - left - frame.width, "top": top, "bottom": BOTTOM + 14 * (len(lines) - 1)}
    chart = alt.layer(*layers, *texts).properties(
        width=frame.width, height=frame.height, padding=padding, autosize=alt.AutoSizeParams(type="none")
    )
    return configured(chart)


def wrapped(caption: str) -> list[str]:
    """The caption in lines that fit a chart."""
    return textwrap.wrap(caption, 108)


def written(text: str, *, x: float, y: float, size: int, colour: str, weight: str = "normal") -> Drawn:
    """Words at a fixed place, px from the plot's upper left corner."""
    mark = data([{}]).mark_text(align="left", baseline="middle", fontSize=size, fontWeight=weight, fill=colour)
    return mark.encode(x=alt.value(x), y=alt.value(y), text=alt.value(text))


def configured(chart: Any) -> Any:
    """The chart in this project's colours and type."""
    axis = {"labelColor": FAINT, "titleColor": FAINT, "gridColor": GRID, "domainColor": CEILING, "tickColor": CEILING}
    sizes = {"labelFontSize": SMALL, "titleFontSize": LABEL, "titleFontWeight": "normal", "domain": False}
    return (
        chart.configure(font=FONT, background=CARD)
        .configure_view(stroke=None)
        .configure_axis(**axis, **sizes)
        .configure_axisX(domain=True)
        .configure_text(font=FONT)
    )


def svg(chart: Any, name: str) -> str:
    """The chart as SVG; ids begin with ``name``, so that several can stand on one page, and are the same every time."""
    text = str(vl_convert.vegalite_to_svg(chart.to_dict(validate=False), vl_version=VL_VERSION))
    ids = list(dict.fromkeys(re.findall(r'\bid="([^"]+)"', text)))
    for n, old in enumerate(ids):
        new = f"{name}-{n}"
        text = text.replace(f'id="{old}"', f'id="{new}"').replace(f"url(#{old})", f"url(#{new})")
    return text + ("" if text.endswith("\n") else "\n")


def png(drawn: str) -> bytes:
    """A chart's SVG as PNG, two pixels a px."""
    return bytes(vl_convert.svg_to_png(drawn, scale=2))
