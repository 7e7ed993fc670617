"""How all scores of a store are shown: how far to trust the next prediction, then the tallies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from inferometer.report.grid import Column, Grid, figure, signed
from inferometer.report.terminal import FAINT, _clipped, _grid, metric_name, say, show
from inferometer.scoring.scorecard import CeilingShare, Scorecard, Tally


def scorecard(card: Scorecard, console: Console) -> None:
    """How far to trust the next prediction, then the tallies."""
    for line in trust_lines(card):
        say(console, line)
    groups = {"seal": card.by_seal, "chip": card.by_chip, "model": card.by_model, "engine": card.by_engine}
    for grid in (_group_grid(groups), _metric_grid(card.by_metric)):
        if grid.rows:
            say(console)
            show(grid, console)
    if card.shares_of_ceiling:
        say(console)
        show(_shares_grid(card.shares_of_ceiling), console)
    say(console)
    for line in _small_print(card):
        say(console, line, style=FAINT)


def trust_lines(card: Scorecard) -> list[str]:
    """One sentence of how many predictions, and one of how far off nine in ten of their figures were, and on what."""
    if not card.scores:
        kept = sum(card.left_out.values()) or card.in_sample
        return ["No score here counts yet." if kept else "No score is kept here yet: inferometer score keeps each one."]
    runs = f", {card.scores} scores" if card.scores != card.predictions else ""
    first = f"{_count(card.predictions, 'prediction')} scored{runs}."
    said = [trust for trust in card.trust if trust.p90_abs_error_pct is not None]
    if not said:
        return [first, "Too few figures yet to say how far to trust the next one."]
    within = ", ".join(f"{figure(trust.p90_abs_error_pct)} % on {trust.kind}" for trust in said)
    sealed = card.trusted != "all"
    kind, few = ("sealed prediction", "") if sealed else ("prediction", "; too few are sealed to go by those alone")
    rests = f"{_count(sum(trust.points for trust in said), 'figure')} of {_count(card.trusted_predictions, kind)}{few}"
    return [first, f"How far to trust the next one: nine in ten were within {within} ({rests})."]


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


FIGURES = tuple(Column(name) for name in ("predictions", "figures", "mean |error| %", "bias %", "inside range"))


def _group_grid(groups: dict[str, tuple[Tally, ...]]) -> Grid:
    """Figures of points, by what they were of."""
    grid = _grid("By", (Column("", "left"), Column("", "left"), *FIGURES))
    for by, tallies in groups.items():
        for n, tally in enumerate(tallies):
            grid.add("" if n else by, _clipped(tally.name, 30), *_cells(tally))
    return grid


def _metric_grid(tallies: Sequence[Tally]) -> Grid:
    grid = _grid("By metric", (Column("", "left"), *FIGURES))
    for tally in tallies:
        grid.add(metric_name(tally.name), *_cells(tally))
    return grid


def _cells(tally: Tally) -> list[str]:
    inside = f"{tally.inside} of {tally.with_interval}" if tally.with_interval else figure(None)
    errors = (figure(tally.mean_abs_error_pct), signed(tally.bias_pct))
    return [str(tally.predictions), str(tally.points), *errors, inside]


def _shares_grid(shares: Sequence[CeilingShare]) -> Grid:
    columns = (Column("", "left"), Column("model", "left"), Column("engine", "left"))
    figures = (Column("one user, tok/s"), Column("ceiling"), Column("share %"))
    grid = _grid("Of the ceiling", (*columns, *figures))
    for share in shares:
        names = (_clipped(name or "", 24) for name in (share.chip, share.model, share.engine))
        grid.add(*names, figure(share.measured_tok_per_s), figure(share.ceiling_tok_per_s), f"{share.share * 100:.1f}")
    return grid


def _small_print(card: Scorecard) -> Iterator[str]:
    if card.scores:
        yield "Bias: mean of (predicted - measured) / measured. By chip, model, engine and seal: figures of points."
    if card.in_sample:
        yield f"Left out: {_count(card.in_sample, 'figure')} of points that the calibration was fitted to."
    for reason, scores in card.left_out.items():
        yield f"Left out: {_count(scores, 'score')}, {reason}."
    for each in card.unscored:
        yield f"Sealed and never scored: {each}."
