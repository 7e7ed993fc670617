"""Charts over the load: throughput, latencies, speed per user; and throughput against speed per user."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from inferometer.records.metrics import Percentile, Point, Stat, Summary, percentile_interval, relative_half_width
from inferometer.report.chart_theme import (
    CEILING,
    INK,
    LABEL,
    LINE,
    MEASURED,
    PLOT_WIDTH,
    PREDICTED,
    Drawn,
    Frame,
    Label,
    Note,
    Rows,
    apart,
    band,
    bars,
    crosses,
    dots,
    finished,
    line,
    load_axis,
    log_axis,
    notes,
    rings,
    words,
    zero_axis,
)
from inferometer.report.grid import figure
from inferometer.report.material import ArmMaterial, Level, Material

LEAST_LEVELS = 2
"""A curve of fewer loads is none."""
ROOM = 0.17
"""Share of a plot's width that is left for the words at the ends of its lines."""
CEILING_SHOWN = 2.6
"""A roofline higher than so many times everything else leaves the picture instead of flattening the rest."""
ROOF_STEPS = 48


def throughput(material: Material) -> Drawn | None:
    """Output tok/s over the load: roofline, prediction with its band, measurement, claims, knees and goodput."""
    arm = material.base
    if not has_curve(arm):
        return None
    predicted, measured = _rows(arm.predicted, _tok_per_s, "output_tok_per_s"), _measured_rows(arm)
    claimed, roof = _claims(material), _roof(arm)
    y = zero_axis(_reach([*predicted, *measured, *claimed], roof), "output tok/s")
    frame = Frame(x=_loads(arm), y=y)
    roof = _cut(roof, frame)
    layers = [line(frame, roof, CEILING, dash=[5, 4], width=1.6)] if roof else []
    layers += _prediction(frame, predicted) + _measurement(frame, measured)
    layers += [crosses(frame, claimed, INK)] if claimed else []
    ends = [(roof, "roofline", CEILING), (predicted, "predicted", PREDICTED), (measured, "measured", MEASURED)]
    layers += _ends(frame, [*ends, *((([row]), "claimed", INK) for row in claimed[-1:])])
    remarks = _remarks(arm, frame)
    layers += [rings(frame, [{"x": n.x, "y": n.y}], n.colour) for n in remarks if n.y > 0] + notes(frame, remarks)
    return finished(layers, "Throughput against load", frame, material.caption)


def has_curve(arm: ArmMaterial) -> bool:
    """Whether the arm has two loads to draw a curve through."""
    return len({level.load for level in arm.levels if level.load}) >= LEAST_LEVELS


def _tok_per_s(summary: Summary) -> float | None:
    return summary.output_tok_per_s


def _loads(arm: ArmMaterial, room: float = ROOM) -> Any:
    title = "requests a second" if arm.is_open else "users at once (concurrency)"
    return load_axis([float(level.load) for level in arm.levels if level.load], title, room)


def _rows(levels: Sequence[Level], y: Callable[[Summary], float | None], path: str, scale: float = 1.0) -> Rows:
    """The prediction's rows: load, figure, and its interval where it has one."""
    rows = []
    for level in levels:
        value = y(level.predicted) if level.predicted is not None else None
        if value is None or not math.isfinite(value):
            continue
        low, high = level.intervals.get(path, (value * scale, value * scale))
        rows.append({"x": level.load, "y": value * scale, "low": low, "high": high})
    return rows


def _measured_rows(arm: ArmMaterial) -> Rows:
    """Measured throughput; its interval is that of the mean E2E, which a closed loop's throughput is the inverse of."""
    rows = []
    for level in arm.measured:
        value = level.measured.output_tok_per_s if level.measured else None
        if value is None or level.run is None:
            continue
        half = relative_half_width(level.run, "e2e_s") if level.run.requests.height else None
        error = {} if half is None else {"low": value * (1 - half), "high": value * (1 + half)}
        rows.append({"x": level.load, "y": value, **error})
    return rows


def _claims(material: Material) -> Rows:
    claims = [c for c in material.claims if c.path == "output_tok_per_s" and c.concurrency and c.value is not None]
    return [{"x": c.concurrency, "y": c.value} for c in sorted(claims, key=lambda c: c.concurrency or 0)]


def _roof(arm: ArmMaterial) -> Rows:
    """The roofline, densely in a closed loop where it is known as a formula, else at the points."""
    points = [{"x": v.load, "y": v.roofline_tok_per_s} for v in arm.predicted if v.roofline_tok_per_s]
    if arm.roofline is None or arm.is_open or len(points) < LEAST_LEVELS or not _is_formula(arm):
        return points
    low, high = math.log(points[0]["x"] or 1), math.log(points[-1]["x"] or 1)
    loads = [math.exp(low + (high - low) * i / ROOF_STEPS) for i in range(ROOF_STEPS + 1)]
    return [{"x": float(f"{b:.6g}"), "y": float(f"{arm.roofline.decode_tok_per_s(b):.6g}")} for b in loads]


def _is_formula(arm: ArmMaterial) -> bool:
    """Whether the points' ceilings are the formula's: not over several replicas."""
    last = arm.predicted[-1]
    allowed = arm.roofline.decode_tok_per_s(float(last.load or 1)) if arm.roofline else 0.0
    return math.isclose(allowed, last.roofline_tok_per_s or 0.0, rel_tol=1e-6)


def _reach(rows: Rows, roof: Rows) -> list[float]:
    """What the vertical axis covers: everything, but not a roofline far above the rest."""
    values = [row[key] for row in rows for key in ("y", "high") if row.get(key) is not None]
    ceiling = max((row["y"] for row in roof), default=0.0)
    most = max(values, default=ceiling)
    return [*values, min(ceiling, CEILING_SHOWN * most)]


def _cut(rows: Rows, frame: Frame) -> Rows:
    """The part of a rising line below the top of the plot."""
    return [row for row in rows if frame.y.holds(row["y"])]


def _prediction(frame: Frame, rows: Rows, dash: Sequence[int] = ()) -> list[Drawn]:
    with_band = [row for row in rows if row["high"] > row["low"]]
    layers = [band(frame, [_within(row, frame) for row in with_band], PREDICTED)] if with_band else []
    return [*layers, line(frame, rows, PREDICTED, dash=dash)] if rows else layers


def _within(row: dict[str, Any], frame: Frame) -> dict[str, Any]:
    return {**row, "low": max(row["low"], frame.y.low), "high": min(row["high"], frame.y.high)}


def _measurement(frame: Frame, rows: Rows, hollow: bool = False) -> list[Drawn]:
    known = [_within(row, frame) for row in rows if "low" in row]
    layers = [bars(frame, known, MEASURED)] if known else []
    return [*layers, dots(frame, rows, MEASURED, hollow=hollow)] if rows else layers


def _ends(frame: Frame, named: Sequence[tuple[Rows, str, str]]) -> list[Drawn]:
    """The name of each line beside its last point, none over another."""
    labels = []
    for rows, text, colour in named:
        if rows:
            x, y = frame.px(rows[-1]["x"], rows[-1]["y"])
            labels.append(Label(x=x + 9, y=y, text=text, colour=colour))
    right = [label for label in labels if label.x > frame.width * 0.7]
    rest = [label for label in labels if label not in right]
    return words(frame, [*apart(right, 6, frame.height - 6), *rest], weight="bold")


# ---------------------------------------------------------------- knees and goodput


def _remarks(arm: ArmMaterial, frame: Frame) -> list[Note]:
    """Knees on both sides, and the goodput's points; two of one place are said in one breath."""
    found: list[Note] = []
    for name in ("ttft", "throughput", "server"):
        mine, theirs = getattr(arm.predicted_knees, name), getattr(arm.measured_knees, name)
        found += _knee(arm, KNEES[name], mine, theirs)
    found += _no_knee(arm, frame)
    return [*found, *_goodput(arm)]


KNEES = {"ttft": "TTFT knee", "throughput": "throughput knee", "server": "server's queue begins"}


def _knee(arm: ArmMaterial, name: str, predicted: int | None, measured: int | None) -> list[Note]:
    if predicted is not None and predicted == measured:
        return _at(arm, measured, f"{name}: predicted and measured C={measured}", MEASURED)
    notes = _at(arm, predicted, f"{name}, predicted: C={predicted}", PREDICTED)
    return notes + _at(arm, measured, f"{name}, measured: C={measured}", MEASURED)


def _at(arm: ArmMaterial, users: int | None, text: str, colour: str) -> list[Note]:
    """A remark on the point of so many users, on the side its colour stands for."""
    if users is None:
        return []
    levels = arm.measured if colour == MEASURED else arm.predicted
    for level in levels:
        summary = level.measured if colour == MEASURED else level.predicted
        if level.concurrency == users and summary is not None and summary.output_tok_per_s is not None:
            return [Note(x=users, y=summary.output_tok_per_s, text=text, colour=colour)]
    return []


def _no_knee(arm: ArmMaterial, frame: Frame) -> list[Note]:
    """Where the roofline has no knee: from where it flattens."""
    roof = arm.roofline
    if roof is None or roof.knee_batch is not None or arm.is_open or not frame.x.holds(roof.half_saturation_batch):
        return []
    users = roof.half_saturation_batch
    return [Note(x=users, y=0, text=f"roofline: no knee, flattening from about {users:,.0f} users", colour=CEILING)]


def _goodput(arm: ArmMaterial) -> list[Note]:
    """The goodput's points of the measurement, or where there is none of the prediction."""
    measured = arm.measured_goodput is not None
    found = arm.measured_goodput or arm.predicted_goodput
    if found is None:
        return []
    colour, side = (MEASURED, "") if measured else (PREDICTED, ", predicted")
    points = [(name, point) for name, point in (("p50", found.p50), ("p99", found.p99)) if point is not None]
    return [Note(x=x, y=p.output_tok_per_s, text=_goodput_words(name, p) + side, colour=colour)
            for name, p in points if (x := _load_of(p))]  # fmt: skip


def _load_of(point: Point) -> float | None:
    return point.request_rate_per_s if point.request_rate_per_s is not None else point.concurrency


def _goodput_words(name: str, point: Point) -> str:
    at = f"{point.request_rate_per_s:g}/s" if point.request_rate_per_s is not None else f"C={point.concurrency}"
    return f"goodput at {name}: {figure(point.output_tok_per_s)} tok/s, {at}"


# ---------------------------------------------------------------- latencies

PERCENTILES: tuple[Percentile, ...] = ("p50", "p99")


def ttft(material: Material) -> Drawn | None:
    """TTFT p50 and p99 over the load, with the limit."""
    return _latency(material, "ttft_s", "Time to first token (TTFT)")


def tpot(material: Material) -> Drawn | None:
    """TPOT p50 and p99 over the load, with the limit."""
    return _latency(material, "tpot_s", "Time per output token (TPOT)")


def _latency(material: Material, metric: str, title: str) -> Drawn | None:
    arm = material.base
    if not has_curve(arm):
        return None
    lines = {p: _rows(arm.predicted, _percentile(metric, p), f"{metric[:-2]}_ms.{p}", 1000) for p in PERCENTILES}
    points = {p: _latency_rows(arm, metric, p) for p in PERCENTILES}
    every = [row for rows in (*lines.values(), *points.values()) for row in rows]
    if not every:
        return None
    limit = arm.slo[metric] * 1000 if metric in arm.slo else None
    near = limit is not None and limit < 20 * max(row["y"] for row in every)
    values = [row[key] for row in every for key in ("y", "low", "high") if row.get(key)]
    frame = Frame(x=_loads(arm, 0.2), y=log_axis([*values, *([limit] if near else [])], "ms"))
    layers = _limit(frame, limit, metric) if near and limit is not None else []
    for p in PERCENTILES:
        layers += _prediction(frame, lines[p], dash=[6, 3] if p == "p99" else ())
        layers += _measurement(frame, points[p], hollow=p == "p99")
    layers += _ends(frame, [(lines[p], f"{p} predicted", PREDICTED) for p in PERCENTILES]
                    + [(points[p], f"{p} measured", MEASURED) for p in PERCENTILES])  # fmt: skip
    layers += notes(frame, _latency_remarks(arm, metric, frame))
    return finished(
        layers, title, frame, material.caption, subtitle=f"ms{', logarithmic' if frame.y.logarithmic else ''}"
    )


def _percentile(metric: str, percentile: str) -> Callable[[Summary], float | None]:
    def value(summary: Summary) -> float | None:
        stat: Stat = getattr(summary, metric)
        return getattr(stat, percentile)  # type: ignore[no-any-return]

    return value


def _latency_rows(arm: ArmMaterial, metric: str, percentile: Percentile) -> Rows:
    """Measured percentiles in ms with their 95 % intervals, where the raw values give one."""
    rows = []
    for level in arm.measured:
        value = _percentile(metric, percentile)(level.measured) if level.measured is not None else None
        if value is None or level.run is None:
            continue
        interval = percentile_interval(level.run, metric, percentile) if level.run.requests.height else None
        error = {} if interval is None else {"low": interval[0] * 1000, "high": interval[1] * 1000}
        rows.append({"x": level.load, "y": value * 1000, **error})
    return rows


def _limit(frame: Frame, limit_ms: float, metric: str) -> list[Drawn]:
    rows = [{"x": frame.x.low, "y": limit_ms}, {"x": frame.x.high, "y": limit_ms}]
    _, y = frame.px(frame.x.low, limit_ms)
    text = f"SLO: {metric[:-2].upper()} < {figure(limit_ms)} ms"
    label = Label(x=8, y=y - 9, text=text, colour=CEILING)
    return [line(frame, rows, CEILING, dash=[5, 4], width=1.4), *words(frame, [label])]


def _latency_remarks(arm: ArmMaterial, metric: str, frame: Frame) -> list[Note]:
    """The TTFT knee at its p99, and the load up to which each measured percentile meets the limit."""
    if metric != "ttft_s":
        return []
    found = []
    sides = ((arm.predicted_knees.ttft, "predicted", PREDICTED), (arm.measured_knees.ttft, "measured", MEASURED))
    for users, side, colour in sides:
        levels = arm.predicted if side == "predicted" else arm.measured
        for level in (each for each in levels if each.concurrency == users and users is not None):
            summary = level.predicted if side == "predicted" else level.measured
            p99 = summary.ttft_s.p99 if summary is not None else None
            if p99 is not None and frame.y.holds(p99 * 1000):
                text = f"TTFT knee (p99 > 2 x p50), {side}: C={users}"
                found.append(Note(x=float(users or 1), y=p99 * 1000, text=text, colour=colour))
                break
    return found


# ---------------------------------------------------------------- speed per user


def per_user(material: Material) -> Drawn | None:
    """Output tok/s a user over the load: what company costs each of them."""
    arm = material.base
    if not has_curve(arm):
        return None
    predicted = _rows(arm.predicted, lambda s: s.per_user_tok_per_s, "per_user_tok_per_s")
    measured = [
        {"x": level.load, "y": level.measured.per_user_tok_per_s}
        for level in arm.measured
        if level.measured is not None and level.measured.per_user_tok_per_s is not None
    ]
    roof = [] if arm.is_open else [{"x": row["x"], "y": row["y"] / row["x"]} for row in _roof(arm)]
    if not predicted and not measured:
        return None
    values = [row[key] for row in (*predicted, *measured, *roof) for key in ("y", "high") if row.get(key)]
    frame = Frame(x=_loads(arm), y=zero_axis(values, "output tok/s a user"))
    layers = [line(frame, roof, CEILING, dash=[5, 4], width=1.6)] if roof else []
    layers += _prediction(frame, predicted) + _measurement(frame, measured)
    ends = [(roof, "roofline", CEILING), (predicted, "predicted", PREDICTED), (measured, "measured", MEASURED)]
    return finished([*layers, *_ends(frame, ends)], "Speed of each user", frame, material.caption)


def pareto(material: Material) -> Drawn | None:
    """Output tok/s in all against output tok/s a user: every load is a trade of one for the other."""
    arm = material.base
    if not has_curve(arm):
        return None
    predicted = [_trade(level.predicted, level) for level in arm.predicted]
    measured = [_trade(level.measured, level) for level in arm.measured]
    lines, points = ([row for row in rows if row is not None] for rows in (predicted, measured))
    if not lines and not points:
        return None
    every = [*lines, *points]
    x = zero_axis([row["x"] for row in every], "output tok/s a user", head=1.12)
    frame = Frame(x=x, y=zero_axis([row["y"] for row in every], "output tok/s in all"))
    numbered = [{**row, "n": n} for n, row in enumerate(lines)]
    layers = [line(frame, numbered, PREDICTED), dots(frame, lines, PREDICTED, hollow=True)] if lines else []
    layers += [dots(frame, points, MEASURED)] if points else []
    layers += _named(frame, points or lines, MEASURED if points else PREDICTED)
    layers += _sides(frame, lines, points)
    return finished(layers, "Throughput against speed per user", frame, material.caption)


def _trade(summary: Summary | None, level: Level) -> dict[str, Any] | None:
    if summary is None or summary.per_user_tok_per_s is None or summary.output_tok_per_s is None:
        return None
    return {"x": summary.per_user_tok_per_s, "y": summary.output_tok_per_s, "name": level.name}


def _named(frame: Frame, rows: Rows, colour: str) -> list[Drawn]:
    """Each point's load below left of it, where the one before is not too near."""
    labels: list[Label] = []
    for row in sorted(rows, key=lambda row: -row["y"]):
        x, y = frame.px(row["x"], row["y"])
        near = [each for each in labels if abs(each.y - (y + 11)) < LINE and abs(each.x - (x - 7)) < 40]
        if not near:
            labels.append(Label(x=x - 7, y=y + 11, text=row["name"], colour=colour, align="right"))
    return words(frame, labels, size=LABEL)


def _sides(frame: Frame, lines: Rows, points: Rows) -> list[Drawn]:
    """Which is which, in the free upper right corner."""
    told = [("predicted", PREDICTED)] * bool(lines) + [("measured", MEASURED)] * bool(points)
    labels = [Label(x=PLOT_WIDTH - 6, y=10 + n * (LINE + 2), text=text, colour=colour, align="right")
              for n, (text, colour) in enumerate(told)]  # fmt: skip
    return words(frame, labels, weight="bold")
