"""Charts of what lies behind the curves: the gap, the server over time, gaps between tokens, and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import msgspec
import numpy as np
import polars as pl

from inferometer.records.metrics import PerRequest
from inferometer.records.run import Run
from inferometer.report.chart_theme import (
    CEILING,
    FAINT,
    INK,
    LABEL,
    MEASURED,
    PREDICTED,
    RIGHT,
    SMALL,
    WIDTH,
    Axis,
    Drawn,
    Frame,
    Label,
    Rows,
    configured,
    dots,
    finished,
    line,
    log_axis,
    words,
    wrapped,
    written,
    zero_axis,
)
from inferometer.report.grid import figure, gib
from inferometer.report.material import Level, Material

ROW = 26
"""Height of one bar with its space, px."""
NAMES = 222
"""Room for the bars' names, px."""


# ---------------------------------------------------------------- bars with names


def _bar_frame(names: Sequence[str], x: Axis) -> Frame:
    """Bars below one another: the vertical axis counts them from the top, and their names stand left of the plot."""
    y = Axis(title="", low=0.0, high=float(len(names)), ticks={})
    return Frame(x=x, y=y, width=WIDTH - NAMES - RIGHT, height=ROW * len(names))


def _bars(frame: Frame, rows: Rows, colour: str, thickness: float = 0.62) -> list[Drawn]:
    """Bars from ``x`` to ``x2`` in row ``n``, counted from the top."""
    if not rows:
        return []
    rows_ = [
        {**row, "y": _middle(frame, row) + thickness / 2, "y2": _middle(frame, row) - thickness / 2} for row in rows
    ]
    return [frame.encode(rows_).mark_rect(fill=colour).encode(x2="x2:Q", y2="y2:Q")]


def _middle(frame: Frame, row: dict[str, Any]) -> float:
    return float(frame.y.high - row["n"] - 0.5)


def _row_words(frame: Frame, n: int, x: float, text: str, colour: str, align: str = "left") -> Label:
    return Label(x=x, y=(n + 0.5) * ROW, text=text, colour=colour, align=align)


# ---------------------------------------------------------------- the gap


def waterfall(material: Material) -> Drawn | None:
    """From the ideal roofline to what was measured: what each effect costs, at one load."""
    found = material.featured
    if found is None or len(found.steps) < 2:
        return None
    steps = [step for step in found.steps if _is_shown(step, found.steps)]
    x = zero_axis([step.tok_per_s for step in steps], "output tok/s", head=1.16)
    frame = _bar_frame([*(step.effect for step in steps), "measured"], x)
    rows = [_fall(n, steps) for n in range(len(steps))]
    kinds = {
        CEILING: rows[:1],
        PREDICTED: [r for r in rows[1:] if not r["odd"]],
        INK: [r for r in rows[1:] if r["odd"]],
    }
    layers = [layer for colour, of_colour in kinds.items() for layer in _bars(frame, of_colour, colour)]
    last: dict[str, Any] = {"n": len(steps), "effect": "measured", "x": 0.0, "x2": steps[-1].tok_per_s}
    layers += _bars(frame, [last], MEASURED)
    labels = [_row_words(frame, row["n"], -8, row["effect"], INK, "right") for row in [*rows, last]]
    px = frame.px(last["x2"], 0)[0] + 7
    labels += [_row_words(frame, len(steps), px, figure(float(steps[-1].tok_per_s)), MEASURED)]
    labels += [_change(frame, n, row, steps) for n, row in enumerate(rows)]
    at = f"C={found.concurrency}" if found.concurrency is not None else "this load"
    what = "output tok/s, from what reading the weights allows to what was measured"
    title = f"Where the tokens went, {at}"
    return finished([*layers, *words(frame, labels)], title, frame, material.caption, subtitle=what, left=NAMES)


def _is_shown(step: Any, steps: Sequence[Any]) -> bool:
    """Whether a bar can be seen: the first, the last, and those that change something."""
    return step in (steps[0], steps[-1]) or abs(step.change) >= LEAST_SHARE * steps[0].tok_per_s


LEAST_SHARE = 0.001


def _fall(n: int, steps: Sequence[Any]) -> dict[str, Any]:
    """A bar from the step before to this one; the first from zero. Odd: no effect of the model explains it."""
    before = steps[n].tok_per_s - steps[n].change if n else 0.0
    odd = steps[n].effect in ("client", "unexplained")
    return {"n": n, "effect": steps[n].effect, "x": min(before, steps[n].tok_per_s),
            "x2": max(before, steps[n].tok_per_s), "odd": odd}  # fmt: skip


def _change(frame: Frame, n: int, row: dict[str, Any], steps: Sequence[Any]) -> Label:
    px = frame.px(row["x2"], 0)[0] + 7
    value = steps[n].tok_per_s
    if n == 0:
        return _row_words(frame, n, px, figure(float(value)), CEILING)
    change = steps[n].change
    sign = "+" if change > 0 else "−" if change < 0 else "±"
    return _row_words(frame, n, px, f"{sign}{figure(abs(float(change)))}", INK if row["odd"] else PREDICTED)


# ---------------------------------------------------------------- memory


def memory_bar(material: Material) -> Drawn | None:
    """What a chip's memory holds, term by term, with each one's origin and range; dots are what the engine logged."""
    terms = shown_terms(material.base.memory)
    if not terms:
        return None
    logged = logged_memory(material.base.runs)
    values = [term["high_bytes"] / 2**30 for term in terms] + [size / 2**30 for size in logged.values()]
    frame = _bar_frame([term["name"] for term in terms], zero_axis(values, "GiB", head=1.45))
    rows = [{"n": n, "x": 0.0, "x2": term["bytes"] / 2**30, "name": term["name"]} for n, term in enumerate(terms)]
    total = [row for row in rows if row["name"] in ("total", "outside the engine")]
    layers = _bars(frame, total, CEILING) + _bars(frame, [row for row in rows if row not in total], PREDICTED)
    layers += _ranges(frame, terms)
    points = [{"x": logged[term["name"]] / 2**30, "y": frame.y.high - n - 0.5}
              for n, term in enumerate(terms) if term["name"] in logged]  # fmt: skip
    layers += [dots(frame, points, MEASURED)] if points else []
    labels = [label for n, term in enumerate(terms) for label in _term_words(frame, n, term, logged)]
    what = "GiB a chip, by origin; dots: what the engine's log says" if points else "GiB a chip, by origin"
    return finished([*layers, *words(frame, labels)], "Memory of a chip", frame, material.caption,
                    subtitle=what, left=NAMES)  # fmt: skip


def shown_terms(memory: dict[str, Any]) -> list[dict[str, Any]]:
    """The pool first, what is outside and the total last, and the largest first between them."""
    order = {"KV pool": 0, "outside the engine": 2, "total": 3}
    parts = [term for term in memory.get("terms", []) if term["name"] != "requested" and term["bytes"]]
    return sorted(parts, key=lambda term: (order.get(term["name"], 1), -term["bytes"]))


LOGGED = {"weight_bytes": "weights", "kv_pool_bytes": "KV pool", "activation_bytes": "activation peak"}


def logged_memory(runs: Sequence[Run]) -> dict[str, float]:
    """What a startup log states of each term, bytes, by the term's name."""
    found: dict[str, float] = {}
    for run in runs:
        found |= {term: float(run.meta.server[key]) for key, term in LOGGED.items() if run.meta.server.get(key)}
    return found


def _ranges(frame: Frame, terms: Sequence[dict[str, Any]]) -> list[Drawn]:
    rows = [{"x": term["low_bytes"] / 2**30, "x2": term["high_bytes"] / 2**30, "y": frame.y.high - n - 0.5}
            for n, term in enumerate(terms) if term["high_bytes"] > term["low_bytes"]]  # fmt: skip
    return [frame.encode(rows).mark_rule(color=INK, strokeWidth=1.6).encode(x2="x2:Q")] if rows else []


def _term_words(frame: Frame, n: int, term: dict[str, Any], logged: dict[str, float]) -> list[Label]:
    low, high = gib(term["low_bytes"]), gib(term["high_bytes"])
    spread = "" if low == high else f" {low}-{high}"
    text = f"{gib(term['bytes'])}  {term['origin']}{spread}"
    size = max(term["bytes"], term["high_bytes"], logged.get(term["name"], 0.0)) / 2**30
    told = f", logged {gib(logged[term['name']])}" if term["name"] in logged else ""
    return [
        _row_words(frame, n, -8, term["name"], INK, "right"),
        _row_words(frame, n, frame.px(size, 0)[0] + 8, text + told, FAINT),
    ]


# ---------------------------------------------------------------- small multiples

MOST_PANELS = 4
PANEL_WIDTH = 270
PANEL_HEIGHT = 150
MOST_TICKS = 7
"""Whose texts fit under a panel."""


def itl(material: Material) -> Drawn | None:
    """How many gaps between tokens are longer than so much, at each load: what the tails look like."""
    with_gaps = [level for level in material.base.levels if _gaps(level.run).size]
    if not with_gaps and not material.base.runs:
        with_gaps = [level for level in material.base.levels if _gaps(level.simulated).size]
    tails = [(level.name, _tails(level)) for level in _picked(with_gaps)]
    if not tails:
        return None
    x = log_axis([row["x"] for _, sides in tails for _, rows, _ in sides for row in rows], "ms", always=True)
    if len(x.ticks) > MOST_TICKS:
        x = msgspec.structs.replace(x, ticks=dict(list(x.ticks.items())[::2]))
    panels = [_itl_panel(name, sides, x) for name, sides in tails]
    return _together(panels, "Gaps between tokens (ITL)", "share of the gaps that are longer", material)


def _picked(levels: Sequence[Level]) -> list[Level]:
    """At most so many, evenly over the loads, first and last among them."""
    if len(levels) <= MOST_PANELS:
        return list(levels)
    step = (len(levels) - 1) / (MOST_PANELS - 1)
    return [levels[round(step * i)] for i in range(MOST_PANELS)]


def _gaps(run: Run | None) -> np.ndarray:
    return np.empty(0) if run is None or run.token_times is None else np.sort(PerRequest(run).itl)


_Tail = tuple[str, Rows, str]
"""Whose gaps, their curve, its colour."""


def _tails(level: Level) -> list[_Tail]:
    sides = (("predicted", _gaps(level.simulated), PREDICTED), ("measured", _gaps(level.run), MEASURED))
    return [(name, tail_curve(gaps), colour) for name, gaps, colour in sides if gaps.size]


SHARES = {1.0: "100 %", 0.1: "10 %", 0.01: "1 %", 0.001: "0.1 %"}


def _itl_panel(title: str, sides: Sequence[_Tail], x: Axis) -> Drawn:
    y = Axis(title="", low=0.001, high=1.0, ticks=SHARES, logarithmic=True)
    frame = Frame(x=x, y=y, width=PANEL_WIDTH, height=PANEL_HEIGHT)
    layers = [line(frame, [{**row, "n": n} for n, row in enumerate(rows)], colour) for _, rows, colour in sides]
    told = [
        Label(x=PANEL_WIDTH, y=8 + 15 * n, text=name, colour=colour, align="right")
        for n, (name, _, colour) in enumerate(sides)
    ]
    return _panel([*layers, *words(frame, told, weight="bold")], frame, title)


CURVE_POINTS = 160


def tail_curve(gaps_s: np.ndarray) -> Rows:
    """Gaps in ms and the share that is longer, at shares evenly spaced in their logarithm from all to 1 in 1,000."""
    ordered = np.sort(gaps_s)
    least = max(0.001, 1 / ordered.size)
    shares = np.geomspace(1.0, least, CURVE_POINTS)
    values = np.quantile(ordered, 1 - shares) * 1000
    rows = [{"x": float(f"{x:.5g}"), "y": float(f"{y:.5g}")} for x, y in zip(values, shares, strict=True) if x > 0]
    # of many shares at one gap the first and the last draw the same line
    last = len(rows) - 1
    return [row for i, row in enumerate(rows) if i in (0, last) or not rows[i - 1]["x"] == row["x"] == rows[i + 1]["x"]]


def server(material: Material) -> Drawn | None:
    """Requests running and waiting at the server, and its KV cache, over the time of each point."""
    sampled = [level for level in material.base.levels if level.run is not None and _samples(level.run).height > 1]
    panels = [panel for level in _picked(sampled) for panel in _server_panels(level)]
    return _together(panels, "The server under each load", "requests at the server, and use of its KV cache, over time",
                     material) if panels else None  # fmt: skip


MOST_SAMPLES = 240


def _samples(run: Run) -> pl.DataFrame:
    """Samples with a count of running requests, replicas summed; thinned to so many."""
    known = run.server.filter(pl.col("running").is_not_null() & (pl.col("time_s") >= 0))
    total = known.group_by("time_s", maintain_order=True).agg(
        pl.col("running").sum(), pl.col("waiting").sum(), pl.col("kv_usage").mean()
    )
    every = max(1, math.ceil(total.height / MOST_SAMPLES))
    return total.sort("time_s").gather_every(every)


def _server_panels(level: Level) -> list[Drawn]:
    """Left the requests, right the KV cache; the whole point on the left alone where its cache is not known."""
    assert level.run is not None
    samples = _samples(level.run).to_dicts()
    times = [row["time_s"] for row in samples]
    x = zero_axis([max(times)], "s", head=1.02)
    queue = zero_axis([row[k] for row in samples for k in ("running", "waiting")], "", 1.25, least_step=1)
    frame = Frame(x=x, y=queue, width=PANEL_WIDTH, height=PANEL_HEIGHT - 40)
    layers = [
        line(frame, _series(samples, "running"), MEASURED),
        line(frame, _series(samples, "waiting"), INK, width=1.4),
    ]
    told = [Label(x=PANEL_WIDTH, y=6, text="running", colour=MEASURED, align="right"),
            Label(x=PANEL_WIDTH - 58, y=6, text="waiting", colour=INK, align="right")]  # fmt: skip
    left = _panel([*layers, *words(frame, told, weight="bold")], frame, f"{level.name}: requests")
    used = Axis(title="", low=0, high=1.0, ticks={0.0: "0", 0.5: "50 %", 1.0: "100 %"})
    cache = Frame(x=x, y=used, width=PANEL_WIDTH, height=PANEL_HEIGHT - 40)
    rows = _series(samples, "kv_usage")
    right = _panel([line(cache, rows, MEASURED)] if rows else words(cache, [_unknown(cache)]), cache,
                   f"{level.name}: KV cache in use")  # fmt: skip
    return [left, right]


def _unknown(frame: Frame) -> Label:
    return Label(x=frame.width / 2, y=frame.height / 2, text="not sampled", colour=FAINT, align="center")


def _series(samples: Sequence[dict[str, Any]], name: str) -> Rows:
    return [{"x": round(row["time_s"], 3), "y": row[name], "n": n}
            for n, row in enumerate(samples) if row[name] is not None]  # fmt: skip


def _panel(layers: Sequence[Drawn], frame: Frame, title: str) -> Drawn:
    heading = alt.TitleParams(
        text=title, anchor="start", frame="group", fontSize=LABEL, color=INK, fontWeight="bold", offset=8
    )
    return alt.layer(*layers).properties(width=frame.width, height=frame.height, title=heading)


def _together(panels: Sequence[Drawn], title: str, subtitle: str, material: Material) -> Drawn:
    """Panels two in a row, under one title, over the caption."""
    heading = alt.TitleParams(
        text=title, subtitle=subtitle, anchor="start", frame="group", fontSize=15, color=INK, subtitleColor=FAINT,
        subtitleFontSize=LABEL, subtitlePadding=6, offset=30,
    )  # fmt: skip
    lines = [written(text, x=0, y=14 * n, size=SMALL, colour=FAINT) for n, text in enumerate(wrapped(material.caption))]
    below = alt.layer(*lines).properties(width=PANEL_WIDTH, height=14 * len(lines))
    spacing = {"row": 78, "column": 62}
    whole = alt.concat(*panels, *[_nothing()] * (len(panels) % 2), below, columns=2, spacing=spacing, bounds="flush")
    return configured(whole.properties(title=heading, padding={"left": 30, "right": 22, "top": 16, "bottom": 4}))


def _nothing() -> Drawn:
    """An empty panel, to fill a row."""
    return written("", x=0, y=0, size=SMALL, colour=FAINT).properties(width=PANEL_WIDTH, height=1)
