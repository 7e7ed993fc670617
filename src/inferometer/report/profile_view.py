"""What ``inferometer calibrate`` prints: the answer, the constants, what was refused, and errors out of sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from inferometer.report.grid import NO_FIGURE, Cell, Column, figure, signed
from inferometer.report.terminal import FAINT, HEADING, _grid, command, metric_name, say, show
from inferometer.steptime.efficiencies import Constant
from inferometer.steptime.profile import Profile, impossible

SHOWN = ("output_tok_per_s", "tpot_ms.mean", "ttft_ms.mean")
"""The held-out figures that have a column; the JSON has the others."""


def profile(found: Profile, family: dict[str, Constant], console: Console, saved: str = "", study: str = "") -> None:
    """Everything about a profile; ``saved`` is its file, ``study`` how the command line names the study."""
    say(console, found.name, style=HEADING)
    say(console)
    say(console, answer(found))
    say(console)
    show(_constants(found, family), console)
    if found.refused:
        say(console)
        show(_refused(found), console)
    rows = found.held_out or found.residuals
    say(console)
    show(_errors("held out" if found.held_out else "fitted, not held out", rows), console)
    say(console)
    for note in found.notes:
        say(console, note[:1].upper() + note[1:] + ".", style=FAINT)
    if saved:
        say(console)
        command(console, "Next:  ", f"inferometer predict {study or 'STUDY'} --profile {saved}")


def answer(found: Profile) -> str:
    """One sentence: what was fitted, to what, and how far off it is where it had not looked."""
    over = impossible(found)
    if over:
        shown = ", ".join(f"{name} {found.params[name]:.2f}" for name in over)
        return f"Do not use this fit: {shown} of the chip's peak. Prompts were cached, or chip or model are others."
    count = len(found.params)
    said = f"{count} constant{'s' * (count != 1)} fitted to {len(found.runs)} run{'s' * (len(found.runs) != 1)}"
    worst = worst_error(found.held_out)
    if worst is not None:
        said += f"; throughput and TPOT of points held out within {worst:.1f} %"
    else:
        said += "; nothing held out, so that nothing says how well it predicts"
    return said + (f" ({found.coarse})." if found.coarse else ".")


def worst_error(rows: Iterable[dict[str, Any]]) -> float | None:
    """The largest error, in per cent, of throughput and mean TPOT."""
    errors = [abs(row["error_pct"]) for row in rows if row["metric"] in SHOWN[:2]]
    return max(errors, default=None)


def _constants(found: Profile, family: dict[str, Constant]) -> Any:
    columns = (
        Column("", "left"),
        Column("fitted"),
        Column("± (1 s.e.)"),
        Column("family's"),
        Column("also carries", "left"),
    )
    grid = _grid("constant", columns)
    for name, value in found.params.items():
        scale, unit = (1e6, " us") if name.endswith("_s") else (1.0, "")
        cells = [figure(scale * each) + unit for each in (value, found.stderr[name], family[name].value)]
        grid.add(name, *cells, ", ".join(found.lumped.get(name, ())))
    return grid


def _refused(found: Profile) -> Any:
    grid = _grid("not fitted", (Column("", "left"), Column("why", "left")))
    for name, why in found.refused.items():
        grid.add(name, why)
    return grid


def _errors(title: str, rows: list[dict[str, Any]]) -> Any:
    """A row a point, its error in each figure in per cent."""
    metrics = [metric for metric in SHOWN if any(row["metric"] == metric for row in rows)]
    metrics = metrics or list(dict.fromkeys(row["metric"] for row in rows))[:4]
    grid = _grid(f"{title}, error %", (Column("", "left"), *(Column(metric_name(metric)) for metric in metrics)))
    for name in dict.fromkeys(row["run"] for row in rows):
        own = {row["metric"]: row["error_pct"] for row in rows if row["run"] == name}
        cells: list[Cell] = [signed(own[metric]) if metric in own else NO_FIGURE for metric in metrics]
        grid.add(name, *cells)
    return grid
