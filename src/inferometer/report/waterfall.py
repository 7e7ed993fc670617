"""An explanation in the terminal: the answer, the waterfall as bars, all points, what the tails say of settings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from inferometer.report.grid import NO_FIGURE, Cell, Column, Grid, figure, milliseconds, signed
from inferometer.report.terminal import ACCENT, BAD, EIGHTHS, FAINT, HEADING, say, sentence, show
from inferometer.scoring import explanation as ex
from inferometer.scoring.explanation import Explanation, Hypothesis, Step, SweepExplanation

BAR = 24
"""Columns of the longest bar."""
LARGE_PCT = 10.0
"""More unexplained than this is shown in red."""
SHORT = (
    ("KV", (ex.KV_PROMPT, ex.KV_OUTPUT)),
    ("prefill", (ex.PREFILL, ex.MIXED)),
    ("hits", (ex.HITS,)),
    ("rates", (ex.RATES,)),
    ("step", (ex.STEP,)),
    ("seqs", (ex.SEQUENCE,)),
    ("queue", (ex.LOAD, ex.QUEUEING)),
    ("client", (ex.CLIENT,)),
)
"""Columns of the table of all points, and the effects that each adds up."""


def explained(sweep: SweepExplanation, shown: Explanation, console: Console) -> None:
    """Everything about one arm, its waterfall that of the point ``shown``."""
    say(console, shown.findings[0])
    say(console)
    show(waterfall(shown, console), console)
    say(console)
    for line in notes(shown).lines(console.width):
        console.print(line, soft_wrap=True, style=FAINT)
    if len(sweep.explanations) > 1:
        say(console)
        show(_points(sweep.explanations), console)
        say(
            console,
            "The roofline is at the prompt's context, the effects beside it are at the mean context.",
            FAINT,
        )
    hits = [each for each in sweep.hypotheses if each.setting == "prefix_hit_rate"]
    others = [each for each in sweep.hypotheses if each not in hits]
    for judged, title in ((others, "What the tails say"), (hits, "Points set aside")):
        if judged:
            say(console)
            show(settings(judged, title), console)
    say(console)
    for found in sweep.findings:
        if found != shown.findings[0]:
            say(console, found)
    for found in shown.findings[1:]:
        if found not in sweep.findings:
            say(console, found, style=BAD)
    for note in sweep.notes:
        say(console, sentence(note), style=FAINT)


def waterfall(point: Explanation, console: Console) -> Grid:
    """One row an effect: what it changes and leaves, and a bar from the one to the other."""
    columns = (Column("", "left"), Column("tok/s"), Column("change"), Column("ms a token"), Column("", "left"))
    grid = _grid(f"Waterfall, {point.load}", columns)
    most = max(step.tok_per_s for step in point.steps)
    for n, step in enumerate(point.steps):
        grid.add(
            Text(step.effect, style=_style(step, n)),
            _rate(step.tok_per_s),
            _rate_change(step) if n else "",
            milliseconds(step.seconds),
            _bar(step, most, console),
        )
    whole = Step(effect=ex.IDEAL, tok_per_s=point.measured_tok_per_s, change=0.0, seconds=None)
    last = milliseconds(point.steps[-1].seconds)
    grid.add("measured", _rate(point.measured_tok_per_s), "", last, _bar(whole, most, console))
    return grid


def notes(point: Explanation) -> Grid:
    """What each effect was switched on with."""
    grid = _grid("Effect", (Column("", "left"), Column("", "left")))
    for step in point.steps:
        grid.add(step.effect, step.note)
    return grid


def settings(judged: Sequence[Hypothesis], title: str = "What the tails say") -> Grid:
    """The settings tried: error, verdict, and the tails of the two largest points that each would have given."""
    names = sorted({key.split()[0] for each in judged for key in each.figures}, key=_load_of)[-2:]
    keys = [f"{name} {path}" for name in names for path in TAILS if any(f"{name} {path}" in h.figures for h in judged)]
    columns = [Column(TAILS[key.split()[1]], group=f"{key.split()[0]}, ms") for key in keys]
    grid = _grid(title, (Column("", "left"), Column("error"), Column("", "left"), *columns))
    for each in judged:
        verdict = Text("fits", style=ACCENT) if each.supported else Text("no", style=FAINT)
        name = f"{each.name}{', stated' if each.stated else ''}"
        grid.add(name, f"{each.error:.2f}", verdict, *(milliseconds(_side(each, key, 0)) for key in keys))
    grid.add("measured", "", "", *(milliseconds(_side(judged[0], key, 1)) for key in keys))
    return grid


TAILS = {"ttft_s.p50": "TTFT p50", "ttft_s.p99": "TTFT p99", "itl_s.p99": "ITL p99"}


def _side(each: Hypothesis, key: str, side: int) -> float | None:
    return each.figures[key][side] if key in each.figures else None


def _load_of(name: str) -> float:
    """``C=64`` by its 64."""
    return float("".join(c for c in name if c.isdigit() or c == ".") or 0)


def _points(points: Sequence[Explanation]) -> Grid:
    """Milliseconds of a user's token by effect, all points."""
    columns = (
        Column(""),
        Column("roofline", group="tok/s"),
        Column("measured", group="tok/s"),
        Column("ideal", group="ms a token"),
        *(Column(name, group="ms a token") for name, _ in SHORT),
        Column("measured", group="ms a token"),
        Column("left %"),
    )
    grid = _grid("All points", columns)
    for point in points:
        left = point.unexplained_pct
        grid.add(
            point.load,
            figure(point.roofline_tok_per_s),
            figure(point.measured_tok_per_s),
            milliseconds(point.change_s(ex.IDEAL) + point.change_s(ex.DECODE)),
            *(_change(point.change_s(*effects)) for _, effects in SHORT),
            milliseconds(point.steps[-1].seconds),
            Text(signed(left), style=BAD if abs(left) > LARGE_PCT else ""),
        )
    return grid


def _change(seconds: float) -> str:
    value = seconds * 1e3
    return "-" if abs(value) < 0.005 else f"{value:+.2f}" if abs(value) < 10 else f"{value:+,.1f}"


def _rate_change(step: Step) -> str:
    if abs(step.change) < 0.05:
        return NO_FIGURE
    return f"{step.change:+,.0f}" if abs(step.change) >= 99.5 else f"{step.change:+.1f}"


def _rate(tok_per_s: float) -> str:
    return f"{tok_per_s:,.0f}" if tok_per_s >= 1000 else f"{tok_per_s:.1f}"


def _style(step: Step, n: int) -> str:
    return ACCENT if n == 0 or step.effect == ex.UNEXPLAINED else ""


def _bar(step: Step, most: float, console: Console) -> Cell:
    """The whole of the first step, of the others the part between before and after; a gain is accented."""
    before = step.tok_per_s - step.change
    low, high = sorted((step.tok_per_s, before))
    if step.change == 0 and step.effect == ex.IDEAL:
        low = 0.0
    unit = most / BAR
    start, width = round(low / unit), (high - low) / unit
    utf = (console.encoding or "").lower().startswith("utf")
    drawn = _blocks(width) if utf else "#" * max(1 if high > low else 0, round(width))
    gain = step.change > 0 or step.effect == ex.IDEAL
    return Text(" " * start + drawn, style=ACCENT if gain else FAINT)


def _blocks(width: float) -> str:
    whole, eighths = divmod(round(width * 8), 8)
    return "█" * whole + EIGHTHS[eighths].strip() if whole or eighths else ("▏" if width > 0.01 else "")


def _grid(title: str, columns: Sequence[Column]) -> Grid:
    return Grid(title, columns, accent=HEADING, faint=FAINT)
