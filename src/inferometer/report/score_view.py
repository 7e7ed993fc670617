"""How a score is shown: whether it was sealed, the verdict, the figures side by side, and what the points say together.

Plain tables of `report.grid`; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from inferometer.report.grid import Cell, Column, Grid, figure, gib, milliseconds, signed
from inferometer.report.terminal import (
    BAD,
    FAINT,
    _clipped,
    _grid,
    goodput_points,
    metric_name,
    say,
    show,
)
from inferometer.scoring.arms import ArmRatio, ArmScore, Knee, LittlesLaw
from inferometer.scoring.claimed import ClaimRow
from inferometer.scoring.score import MetricScore, Row, Score
from inferometer.scoring.sides import load_name
from inferometer.units import format_count

ARM_WIDTH = 18


def score(card: Score, console: Console, *, brief: bool = False, seal: bool = True) -> None:
    """The seal, what is not alike, the verdict, what was not measured, the figures, and what the points say together.

    ``brief`` leaves out the tables by metric and by point; ``seal`` false the first line, where it is said already.
    """
    if seal:
        seal_line(card, console)
    for note in card.notes:
        say(console, f"Not alike: {note}.", style="bold")
    for reason in card.partial:
        say(console, f"{reason}.", style=BAD)
    say(console, verdict(card), style="" if card.passed else BAD)
    if told := fitted_line(card):
        say(console, told)
    if card.missing:
        say(console, f"Predicted and not measured: {'; '.join(card.missing)}.")
    tables = list(_tables(card, brief=brief))
    for table in tables:
        say(console)
        show(table, console)
    if tables:
        say(console)
        for line in _how_to_read(card):
            say(console, line, style=FAINT)
    for line in _arm_lines(card):
        say(console, line)
    for each in card.unmatched:
        say(console, f"Not compared: {each}.", style=FAINT)


def seal_line(card: Score, console: Console) -> None:
    """Whether this was a sealed prediction, in one line; nothing where runs stood for a prediction."""
    if card.seal.sentence:
        say(console, card.seal.sentence, style=BAD if card.seal.state in ("late", "broken") else "bold")


def verdict(card: Score) -> str:
    """How many figures are within the tolerance, and the worst error, in one sentence."""
    if not card.rows:
        return "Nothing to compare: no measured point is predicted, or none states a figure that is."
    if not card.counted:
        return "Nothing predicted to compare: the calibration was fitted to every point measured."
    within = sum(row.verdict == "ok" for row in card.counted)
    points = [row for row in card.counted if row.of_point] or card.counted
    worst = max(points, key=lambda row: abs(row.error_pct or 0.0))
    text = f"{within} of {len(card.counted)} figures within {_tolerance(card)}"
    known = card.coverage
    if known["with_interval"]:
        text += f", {known['inside']} of {known['with_interval']} inside the predicted range"
    where = _where(worst)
    name = metric_name(worst.metric).removesuffix(" ms")
    return f"{text}; worst {signed(worst.error_pct)} %, {name}{f' at {where}' if where else ''}."


def fitted_line(card: Score) -> str:
    """Which points the calibration was fitted to, in one sentence; empty where none was."""
    rows = [row for row in card.rows if row.fitted]
    several = len({row.arm for row in card.rows}) > 1
    loads = (f"{row.arm} at {_where(row)}" if several and row.arm else _where(row) for row in rows if row.of_point)
    names = list(dict.fromkeys(name or "the point measured" for name in loads))
    if not names:
        return ""
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    sweep = ", as are the knees and goodput drawn through them" if any(not row.of_point for row in rows) else ""
    missed = sum(row.verdict == "miss" for row in rows)
    beyond = f" Of their figures {missed} are beyond {_tolerance(card)}." if missed else ""
    verb = "were" if len(names) > 1 else "was"
    text = f"{listed} {verb} fitted, not predicted: left out of the counts{sweep}.{beyond}"
    return text[:1].upper() + text[1:]


def _tolerance(card: Score) -> str:
    return f"{format_count(card.tolerance * 100)} %"


def _where(row: Row) -> str:
    return "" if row.concurrency is None and row.request_rate is None else load_name(row.concurrency, row.request_rate)


def _tables(card: Score, *, brief: bool) -> Iterator[Grid]:
    """Those that have rows, in order."""
    points = {(row.arm, row.concurrency, row.request_rate) for row in card.rows if row.of_point}
    if len(points) > 1:
        yield _side_by_side(card)
    elif points:
        yield _row_grid("Metric", [row for row in card.rows if row.of_point], card)
    if card.ratios:
        yield _ratio_grid(card.ratios)
    if len(points) > 1 and not brief:
        yield _metric_grid(card)
    if memory := [row for row in card.rows if row.metric.startswith("memory.")]:
        yield _row_grid("Memory", memory, card)
    if card.claims:
        yield _claim_grid(card.claims)
    if not brief and any(arm.littles_law or arm.shares_of_ceiling for arm in card.arms):
        yield _point_grid(card.arms)
    if knees := list(_knees(card)):
        yield _knee_grid(knees, card)


def _how_to_read(card: Score) -> Iterator[str]:
    if any(row.of_point and (row.concurrency or row.request_rate) for row in card.rows):
        yield f"Error: (predicted - measured) / measured; ! is beyond {_tolerance(card)}."
    if any(row.fitted for row in card.rows):
        yield f"{FITTED} The calibration was fitted to it: in no count."
    if card.coverage["with_interval"]:
        yield "A range is the span of the model's constants, not a confidence interval."


# ---------------------------------------------------------------- figures


def _row_grid(title: str, rows: Sequence[Row], card: Score) -> Grid:
    names = ("predicted", "measured", "error %")
    ranges = any(row.low is not None for row in rows)
    last = [Column("range", "left")] if ranges else []
    several = len({row.arm for row in rows}) > 1
    arms = [Column("arm", "left")] if several else []
    verdicts = Column(f"{_tolerance(card)}", "left")
    grid = _grid(title, [Column("", "left"), *arms, *map(Column, names), verdicts, *last])
    for row in rows:
        arm = [_clipped(row.arm or "", ARM_WIDTH)] if several else []
        bounds = "" if row.low is None else f"{_figure(row, row.low)}-{_figure(row, row.high)}"
        figures = (_figure(row, row.predicted), _figure(row, row.measured), signed(row.error_pct))
        star = FITTED if row.fitted else ""
        mark = Text(f"missed{star}", style=BAD) if row.verdict == "miss" else f"within{star}"
        grid.add(metric_name(row.metric), *arm, *figures, mark, *([bounds] if ranges else []))
    return grid


FITTED = "*"
"""Marks what the calibration was fitted to."""
SHOWN = 4
"""Metrics that fit side by side; one less where the arm stands before them."""
PREFERRED = (
    *("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.mean", "ttft_ms.mean"),
    *("e2e_ms.mean", "tpot_ms.p99", "itl_ms.p99"),
)
PREFERRED_OF_ARMS = ("output_tok_per_s", "ttft_ms.p99", *PREFERRED[3:], "ttft_ms.p50")


def _side_by_side(card: Score) -> Grid:
    points: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in card.rows:
        if row.of_point:
            points.setdefault((row.arm, row.concurrency, row.request_rate), {})[row.metric] = row
    present = {metric for by_metric in points.values() for metric in by_metric}
    fitted = {key for key, by_metric in points.items() if any(row.fitted for row in by_metric.values())}
    arms = len({arm for arm, *_ in points}) > 1
    preferred, most = (PREFERRED_OF_ARMS, SHOWN - 1) if arms else (PREFERRED, SHOWN)
    shown = [metric for metric in preferred if metric in present][:most]
    columns = [Column(""), *([Column("arm", "left")] if arms else [])]
    for metric in shown:
        columns += [Column(header, group=metric_name(metric)) for header in ("pred.", "meas.", "err %")]
    grid = _grid("Sweep", columns)
    before: tuple[Any, ...] | None = None
    for key, by_metric in sorted(points.items(), key=_by_load) if arms else points.items():
        arm, users, rate = key
        cells = [cell for metric in shown for cell in _cells(by_metric.get(metric))]
        load = "" if arms and (users, rate) == before else load_name(users, rate)
        star = (FITTED if key in fitted else " ") if fitted else ""
        grid.add(load + star, *([_clipped(arm or "", ARM_WIDTH)] if arms else []), *cells)
        before = (users, rate)
    return grid


def _by_load(item: tuple[tuple[Any, ...], Any]) -> tuple[float, float]:
    """Points of one load next to each other, arm by arm."""
    _, users, rate = item[0]
    return rate or 0.0, users or 0.0


def _cells(row: Row | None) -> list[Cell]:
    if row is None:
        return ["", "", ""]
    return [_figure(row, row.predicted), _figure(row, row.measured), _error(row)]


def _error(row: Row) -> Text:
    missed = row.verdict == "miss"
    return Text(signed(row.error_pct) + ("!" if missed else " "), style=BAD if missed else "")


def _figure(row: Row, value: float | None) -> str:
    """A figure of a row in the row's unit: a long time in seconds, bytes in GiB."""
    if value is None:
        return "none"
    if row.unit == "ms":
        return milliseconds(value / 1000)
    if row.unit == "bytes":
        return gib(value)
    return f"{value:,.0f}" if row.unit in ("tokens", "blocks", "users") else figure(value)


def _metric_grid(card: Score) -> Grid:
    restated = {row.metric for row in card.rows if row.restates}
    metrics = [metric for metric in card.by_metric if metric.metric not in restated]
    ranges = any(metric.with_interval for metric in metrics)
    columns = (
        Column("", "left"),
        Column("points"),
        Column(f"within {_tolerance(card)}"),
        *([Column("inside range")] if ranges else []),
        Column("mean |error| %"),
        Column("bias %"),
        Column("worst %"),
        Column("at", "left"),
    )
    grid = _grid("By metric", columns)
    for metric in metrics:
        grid.add(metric_name(metric.metric), *_metric_cells(metric, ranges))
    return grid


def _metric_cells(metric: MetricScore, ranges: bool) -> list[str]:
    inside = f"{metric.inside} of {metric.with_interval}" if metric.with_interval else figure(None)
    return [
        str(metric.points),
        str(metric.within),
        *([inside] if ranges else []),
        figure(metric.mean_abs_error_pct),
        signed(metric.bias_pct),
        signed(metric.worst.error_pct),
        _where(metric.worst),
    ]


def _ratio_grid(ratios: Sequence[ArmRatio]) -> Grid:
    """What an arm buys, load by load."""
    shown = list(dict.fromkeys(ratio.metric for ratio in ratios))
    columns = [Column(""), Column("arm", "left")]
    for metric in shown:
        columns += [Column(header, group=metric_name(metric)) for header in ("pred.", "meas.", "err %")]
    grid = _grid(f"Times {ratios[0].base or 'the base'}", columns)
    by_point: dict[tuple[Any, ...], dict[str, ArmRatio]] = {}
    for ratio in sorted(ratios, key=lambda each: (each.request_rate or 0.0, each.concurrency or 0)):
        by_point.setdefault((ratio.concurrency, ratio.request_rate, ratio.arm), {})[ratio.metric] = ratio
    for (users, rate, arm), by_metric in by_point.items():
        cells: list[Cell] = [cell for metric in shown for cell in _ratio_cells(by_metric.get(metric))]
        grid.add(load_name(users, rate), _clipped(arm or "", ARM_WIDTH), *cells)
    return grid


def _ratio_cells(ratio: ArmRatio | None) -> list[str]:
    if ratio is None:
        return ["", "", ""]
    return [f"{ratio.predicted:.2f}x", f"{ratio.measured:.2f}x", f"{signed(ratio.error_pct)} "]


# ---------------------------------------------------------------- claims


def _claim_grid(claims: Sequence[ClaimRow]) -> Grid:
    columns = (
        Column("", "left"),
        *(Column(header, group="claimed") for header in ("", "err %")),
        *(Column(header, group="model") for header in ("", "err %")),
        Column("measured"),
        Column("closer", "left"),
    )
    grid = _grid("In ink", columns)
    for claim in claims:
        grid.add(
            _claim_name(claim),
            *(_claimed(claim, claim.claimed), signed(claim.error_pct)),
            *(_claimed(claim, claim.predicted), signed(claim.model_error_pct)),
            _claimed(claim, claim.measured) if claim.known else figure(None),
            claim.reason
            if not claim.known
            else {"claim": "the claim", "model": "the model"}.get(str(claim.closer), "tie"),
        )
    return grid


def _claim_name(claim: ClaimRow) -> str:
    path, _, load = claim.claim.partition("@")
    where = "" if not load else f" at {load if load.endswith('/s') else f'C={load}'}"
    return f"{metric_name(path)}{where}"


def _claimed(claim: ClaimRow, value: float | None) -> str:
    if value is None:
        return "none"
    path = claim.claim.partition("@")[0]
    if path.startswith("memory.") and path.endswith("_bytes"):
        return gib(value)
    if "_ms." in path:
        return milliseconds(value / 1000)
    whole = path.startswith("memory.") or path.endswith(("_concurrency", ".concurrency", "_closed_form"))
    return f"{value:,.0f}" if whole and value == round(value) else figure(value)


# ---------------------------------------------------------------- what the points say together


def _point_grid(arms: Sequence[ArmScore]) -> Grid:
    """Little's law and the ceilings, point by point."""
    several, ceilings = len(arms) > 1, any(arm.shares_of_ceiling for arm in arms)
    columns = (
        Column(""),
        *([Column("arm", "left")] if several else []),
        *(Column(name, group="Little's law") for name in ("users", "off %")),
        *(Column(name, group="% of the ceiling") for name in ("weights only", "with KV") if ceilings),
    )
    grid = _grid("Measured", columns)
    for arm in arms:
        shares = {share.concurrency: share for share in arm.shares_of_ceiling}
        laws = {(law.concurrency, law.request_rate): law for law in arm.littles_law}
        for users, rate in dict.fromkeys([*laws, *((users, None) for users in shares)]):
            share = shares.get(users) if rate is None else None
            cells = (share.share, share.of_roofline) if share else (None, None)
            grid.add(
                load_name(users, rate),
                *([_clipped(arm.name or "", ARM_WIDTH)] if several else []),
                *_law_cells(laws.get((users, rate))),
                *(map(_percent, cells) if ceilings else ()),
            )
    return grid


def _law_cells(law: LittlesLaw | None) -> list[Cell]:
    if law is None:
        return [figure(None), f"{figure(None)} "]
    off = f"{signed((law.ratio - 1) * 100)}{' ' if law.ok else '!'}"
    return [figure(law.in_flight), Text(off, style="" if law.ok else BAD)]


def _percent(share: float | None) -> str:
    return figure(None) if share is None else f"{share * 100:.1f}"


RULES = {
    "ttft": "first p99 TTFT > 2 x p50",
    "throughput": "tok/s bends: farthest above the chord",
    "server": "requests wait, or the KV pool is full",
}


def _knees(card: Score) -> Iterator[tuple[ArmScore, Knee]]:
    for arm in card.arms:
        for knee in arm.knees:
            # a predicted knee of a server that was not looked at says where to look
            if knee.measured_known or (knee.name == "server" and knee.predicted is not None):
                yield arm, knee


def _knee_grid(knees: Sequence[tuple[ArmScore, Knee]], card: Score) -> Grid:
    several = len(card.arms) > 1
    columns = [Column("", "left"), Column("predicted"), Column("measured"), Column("rule", "left")]
    grid = _grid("Knees", columns[:1] + ([Column("arm", "left")] if several else []) + columns[1:])
    for arm, knee in knees:
        grid.add(
            {"ttft": "TTFT"}.get(knee.name, knee.name),
            *([_clipped(arm.name or "", ARM_WIDTH)] if several else []),
            _knee(knee.predicted, knee.predicted_known),
            _knee(knee.measured, knee.measured_known),
            RULES[knee.name] + _closed_form(arm, knee),
        )
    return grid


def _closed_form(arm: ArmScore, knee: Knee) -> str:
    wave = arm.ttft_knee_closed_form
    return "" if knee.name != "ttft" or wave is None else f"; closed form of one wave: C={wave}"


def _knee(knee: int | None, known: bool) -> str:
    if not known:
        return "not known"
    return "none" if knee is None else f"C={knee}"


def _arm_lines(card: Score) -> Iterator[str]:
    for arm in card.arms:
        if len(card.arms) > 1:
            yield f"{arm.name}:"
        for line in _lines(arm):
            yield f"  {line}" if len(card.arms) > 1 else line


def _lines(arm: ArmScore) -> Iterator[str]:
    """Goodput and what binds it, whose knee came first, Little's law, preemptions, and a single user's share."""
    if arm.predicted_goodput and arm.measured_goodput:
        yield "Goodput by marginal percentile:"
        yield f"  predicted {goodput_points(arm.predicted_goodput)}."
        yield f"  measured  {goodput_points(arm.measured_goodput)}."
        yield f"  {_binding(arm)}"
    yield from _first(arm)
    yield from _little(arm)
    if arm.preemptions and (arm.preemptions.measured is not None or arm.preemptions.predicted):
        yield _preempted(arm)
    share = arm.share_of_ceiling
    if share:
        reached = f"{figure(share.measured_tok_per_s)} of {share.ceiling_tok_per_s:.1f} tok/s"
        yield f"One user gets {reached}: {_percent(share.share)} % of the weights' ceiling, to compare chips by."


def _binding(arm: ArmScore) -> str:
    """Which limits stand between the measured goodput and the raw maximum, at which percentile, and which never do."""
    assert arm.measured_goodput is not None
    by_percentile = {"p99": arm.measured_goodput.binding_p99, "p50": arm.measured_goodput.binding_p50}
    parts = []
    for name in arm.limits:
        binds = [percentile for percentile, binding in by_percentile.items() if name in binding]
        where = f"at {' and '.join(binds)}" if binds else "never"
        parts.append(f"{name.removesuffix('_s').upper()} {where}")
    return f"what binds, measured: {', '.join(parts)}."


def _first(arm: ArmScore) -> Iterator[str]:
    known = arm.server_before_client if arm.knees else {}
    said = {side: "before" if first else "at or after" for side, first in known.items() if first is not None}
    if "measured" in said:
        predicted = f"; predicted: {said['predicted']}" if "predicted" in said else ""
        yield f"The server's knee came {said['measured']} the client's TTFT knee{predicted}."


BASES = {
    "steady window": "over the steady window",
    "stated": "as stated",
    "whole run": "over the whole run",
    "medians": "by medians of TTFT and TPOT",
}
"""How Little's law was taken."""


def _little(arm: ArmScore) -> Iterator[str]:
    laws = arm.littles_law
    if not laws:
        return
    off = [load_name(law.concurrency, law.request_rate) for law in laws if not law.ok]
    bases = ", ".join(BASES[basis] for basis in dict.fromkeys(law.basis for law in laws))
    held = f"holds within 2 % at {len(laws) - len(off)} of {len(laws)} points"
    yield f"Little's law {held} ({bases}){f'; not at {chr(44).join(off)}' if off else ''}."


def _preempted(arm: ArmScore) -> str:
    found = arm.preemptions
    assert found is not None
    counts = " and ".join(
        f"{figure(value)} {side}" for side, value in (("predicted", found.predicted), ("measured", found.measured))
    )
    return f"Preemptions: {counts}; {found.mode}: {found.evidence}."
