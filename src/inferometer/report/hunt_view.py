"""What ``inferometer bench --hunt`` prints: where it was predicted and found, and every concurrency tried."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from inferometer.report import measured
from inferometer.report.grid import Column, Grid, count, figure, milliseconds, percent
from inferometer.report.terminal import BAD, FAINT, _grid, say, show
from inferometer.scoring.hunt import Hunt
from inferometer.specs.workload import Workload

NAMES = {"preemption": "Preemption", "ttft-knee": "TTFT knee (p99 > 2 x p50)"}
MODES = {"recomputed": "recomputed, not swapped", "swapped": "swapped, not recomputed"}


def report(hunted: Hunt, workload: Workload, console: Console) -> None:
    """Everything about a hunt that measured something; ``workload`` is of one of its runs."""
    measured.heading(hunted.runs[0], workload, console)
    say(console)
    say(console, answer(hunted), style=BAD if missed(hunted) else "")
    for line in remarks(hunted):
        say(console, line)
    if hunted.trials:
        say(console)
        show(trials_grid(hunted), console)
    said = [*measured.warnings(hunted.runs), *measured.error_lines(hunted.runs, console.width)]
    if said:
        say(console)
    for line in said:
        say(console, line, style=BAD)
    for line in measured._remarks(hunted.runs):
        say(console, line, style=FAINT)


def missed(hunted: Hunt) -> bool:
    """Whether something was predicted and not found."""
    return hunted.found is None and hunted.predicted is not None


def answer(hunted: Hunt) -> str:
    """Prediction, finding and error in one sentence.

    >>> answer(Hunt(what="preemption", predicted=23, found=24, bracket=(22, 24), closed_form=21, mode="recomputed"))
    'Preemption predicted from C = 23, found at C = 24 (between 22 and 24): -4 %; recomputed, not swapped.'
    """
    where = "nowhere" if hunted.predicted is None else f"from C = {hunted.predicted}"
    start = f"{NAMES[hunted.what]} predicted {where}"
    without, having = hunted.bracket
    if hunted.interrupted:
        known = [f"not at C = {without}"] if without is not None else []
        known += [f"at C = {having}"] if having is not None else []
        return f"Broken off ({hunted.interrupted}). {start}; found {', '.join(known) or 'nothing yet'}."
    if having is None:
        return f"{start}, not found up to C = {without}."
    between = f" (between {without} and {having})" if without is not None else ", the lowest tried"
    error = "" if hunted.error_pct is None else f": {_signed_whole(hunted.error_pct)} %"
    mode = f"; {MODES[hunted.mode]}" if hunted.mode else ""
    return f"{start}, found at C = {having}{between}{error}{mode}."


def _signed_whole(value: float) -> str:
    return f"{round(value):+,d}" if round(value) else "0"


def remarks(hunted: Hunt) -> list[str]:
    """The closed form beside it, and how sure the finding is."""
    lines = []
    if hunted.closed_form is not None:
        server = hunted.server_closed_form
        own = f"; with the pool the server states {server}" if server not in (None, hunted.closed_form) else ""
        lines.append(f"By the closed form alone it would begin at C = {hunted.closed_form}{own}.")
    if not hunted.resolved and not hunted.interrupted:
        lines.append(
            "Not resolved: the points' requests are too few to tell a p99 from chance; more a point would tell."
            if hunted.what == "ttft-knee"
            else "Not resolved: a trial speaks against another; repeat it, or give a smaller --resolution."
        )
    return lines


def trials_grid(hunted: Hunt) -> Grid:
    """A row a concurrency that was tried."""
    knee = hunted.what == "ttft-knee"
    own = (
        [Column("p50", group="TTFT ms"), Column("p99", group="TTFT ms"), Column("p50", group="p99 /")]
        if knee
        else [Column("preemptions"), Column("peak KV %")]
    )
    grid = _grid(
        "Tried", [Column("C"), Column("requests"), *own, Column("running"), Column("waiting"), Column("", "left")]
    )
    for trial in hunted.trials:
        p50, p99 = trial.ttft_p50_s, trial.ttft_p99_s
        ratio = figure(p99 / p50) if p50 and p99 is not None else "-"
        cells = (
            [milliseconds(p50), milliseconds(p99), ratio]
            if knee
            else [figure(trial.preemptions), percent(trial.kv_usage)]
        )
        mark = "yes" if trial.hit else "no"
        grid.add(
            str(trial.concurrency),
            count(trial.requests),
            *cells,
            figure(trial.running),
            figure(trial.waiting),
            Text(mark if trial.resolved else f"{mark}, by chance perhaps", style="" if trial.resolved else FAINT),
        )
    return grid
