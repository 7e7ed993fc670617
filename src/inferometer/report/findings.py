"""What an audit found, for a terminal: the answer, each kind of finding with its points, evidence and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from inferometer.report.terminal import ACCENT, BAD, FAINT, command, say
from inferometer.scoring.audit import KINDS, SEVERITIES, Finding, joined

INDENT = " " * 9
SHOWN = 2
"""So many points of one kind show their evidence; of more, only the worst does."""
STYLES = {"spoils": BAD, "warning": "bold", "caution": FAINT}


def findings(
    found: Sequence[Finding],
    console: Console,
    *,
    points: int = 1,
    measured: Sequence[str] = (),
    study: str = "",
    known: bool = False,
) -> None:
    """Everything about an audit of ``points`` runs; ``measured`` and ``study`` are how the command line names them.

    ``known``: something says what served, so that figures were held against the floors of its chip.
    """
    say(console, verdict(found, points), style=BAD if any(each.severity == "spoils" for each in found) else "")
    for group in grouped(found):
        say(console)
        _kind(group, console)
    say(console)
    for line in closing(found, known=known):
        say(console, line, style=FAINT)
    if study:
        command(console, "Score it:  ", f"inferometer score {study} {shlex.join(measured)}")
    elif not known:
        command(console, "With what served it:  ", f"inferometer audit {shlex.join(measured)} --study STUDY")


def verdict(found: Sequence[Finding], points: int = 1) -> str:
    """How many kinds of finding there are, and what the worst are, in one sentence.

    >>> verdict([]), verdict([], points=5)
    ('Nothing found at the point.', 'Nothing found at 5 points.')
    """
    where = "the point" if points == 1 else f"{points} points"
    if not found:
        return f"Nothing found at {where}."
    groups = grouped(found)
    counts = {severity: [group for group in groups if group[0].severity == severity] for severity in SEVERITIES}
    of = f"{len(groups)} finding{'s' * (len(groups) > 1)} at {where}"
    spoils = counts["spoils"]
    if spoils:
        worst = "; ".join(f"{group[0].title} ({_points(group)})" for group in spoils)
        return f"{of}, {len(spoils)} spoil{'s' * (len(spoils) == 1)} the figures: {worst}."
    rest = ", ".join(_counted(severity, len(groups)) for severity, groups in counts.items() if groups)
    return f"{of}, none spoils the figures: {rest}."


def _counted(severity: str, count: int) -> str:
    return f"{count} {severity}{'s' * (count > 1)}"


def grouped(found: Sequence[Finding]) -> list[list[Finding]]:
    """The findings of one kind and severity together, in the order given."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for each in found:
        groups.setdefault((each.severity, each.code), []).append(each)
    order = list(KINDS)
    return sorted(groups.values(), key=lambda g: (SEVERITIES.index(g[0].severity), order.index(g[0].code)))


def _points(group: Sequence[Finding]) -> str:
    return joined(each.where for each in group)


def _kind(group: Sequence[Finding], console: Console) -> None:
    first = group[0]
    heading = Text(f"{first.severity:<9}", style=STYLES[first.severity])
    heading.append(f"{first.title[:1].upper()}{first.title[1:]}", style="bold")
    heading.append(f"   {_points(group)}", style=ACCENT)
    console.print(heading, soft_wrap=True)
    shown = group if len(group) <= SHOWN else [max(group, key=distance)]
    for each in shown:
        named = f"{each.where}: " if len(group) > 1 else ""
        _below(f"{named}{each.evidence}.", console)
    for advice in dict.fromkeys(each.advice for each in shown if each.advice):
        _below(f"Do: {advice}.", console, FAINT)


def distance(finding: Finding) -> float:
    """How far the figure is from what it was held against."""
    if finding.value is None or not finding.limit:
        return abs(finding.value or 0.0)
    return abs(finding.value / finding.limit - 1)


def _below(text: str, console: Console, style: str = "") -> None:
    for line in Text(text, style=style).wrap(console, console.width - len(INDENT)):
        line.rstrip()
        console.print(Text(INDENT) + line, soft_wrap=True)


def closing(found: Sequence[Finding], *, known: bool) -> list[str]:
    """What the severities mean, as far as they occur, and what could not be looked at."""
    meanings = {
        "spoils": "spoils: the figures are not of what they claim to be.",
        "warning": "warning: some are not what they seem, or the server was at a limit.",
        "caution": "caution: how far to trust them, and how to read them.",
    }
    present = [meanings[severity] for severity in SEVERITIES if any(each.severity == severity for each in found)]
    floors = [] if known else ["Not held against the floors of a chip: nothing says what served."]
    return [" ".join(present), *floors] if present else floors
