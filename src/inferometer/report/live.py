"""A benchmark while it runs: a bar and the figures so far on a terminal, plain lines now and then elsewhere.

The load runs in other processes, so what is drawn here disturbs it little; still it is drawn at most four times a
second, and without a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from inferometer.benchmark.progress import Progress
from inferometer.records.run import Run
from inferometer.report.grid import figure, milliseconds, percent
from inferometer.report.terminal import ACCENT, BAD, FAINT, run_load

REDRAW_S = 0.25
"""Drawn no more often than this."""
PLAIN_S = 10.0
"""Where it is no terminal, a line so often."""
BAR = 30
SHORT_S = 9.95
"""Shorter times have a decimal."""


class View:
    """Shows `Progress` as it comes: `watch` is to be given to the benchmark, `finished` told of each run.

    Used as a context manager; ``show`` False shows nothing.
    """

    def __init__(self, console: Console, *, show: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.show, self._clock = console, show, clock
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._drawn_s = self._said_s = float("-inf")
        self._point: tuple[int, str] | None = None

    def __enter__(self) -> Self:
        if self._live and self.show:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live and self.show:
            self._live.stop()

    def watch(self, progress: Progress) -> None:
        """Take in how it goes."""
        if not self.show or progress.phase == "done":
            return
        begun = self._point != (progress.point, progress.label)
        self._point = (progress.point, progress.label)
        if self._live:
            self._draw(self._live, progress, at_once=begun)
        else:
            self._say(progress, begun)

    def finished(self, run: Run) -> None:
        """A point is done: its row stays above what is shown next."""
        if not self.show:
            return
        text = finished_line(run, measured=self._point is not None)
        self._point = None
        self._said_s = self._clock()
        if self._live:
            self._live.update(Text(""), refresh=True)
        bad = run.meta.unfit or run.meta.partial or run.requests["error"].null_count() < run.requests.height
        self.console.print(Text(text, style=BAD if bad else ""), soft_wrap=True)

    def _draw(self, live: Live, progress: Progress, *, at_once: bool) -> None:
        now_s = self._clock()
        if at_once or now_s - self._drawn_s >= REDRAW_S:
            self._drawn_s = now_s
            live.update(picture(progress, self.console.width), refresh=True)

    def _say(self, progress: Progress, begun: bool) -> None:
        now_s = self._clock()
        if begun:
            self._said_s = now_s
            self.console.print(f"{_name(progress)}: {progress.phase}", soft_wrap=True)
        elif now_s - self._said_s >= PLAIN_S:
            self._said_s = now_s
            self.console.print(plain_line(progress), soft_wrap=True)


def picture(progress: Progress, width: int) -> Group:
    """Progress and time left; the client's figures so far; the server's; failures, with the last one."""
    lines = [_bar_line(progress)]
    for parts in (_client(progress), _server(progress)):
        if parts:
            lines.append(Text("  " + "   ".join(parts)))
    if progress.failed:
        last = f"; last: {progress.error}" if progress.error else ""
        lines.append(Text(f"  {progress.failed:,} failed{last}", style=BAD))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _bar_line(progress: Progress) -> Text:
    line = Text.assemble((_name(progress), f"bold {ACCENT}"), f"  {progress.phase}")
    share = done_share(progress)
    if share is not None:
        full = round(share * BAR)
        line.append("  ").append("━" * full, style=ACCENT).append("━" * (BAR - full), style=FAINT)
        line.append(f" {share * 100:.0f} %")
    count = _count(progress)
    if count:
        line.append(f"  {count}")
    if progress.left_s is not None:
        line.append(f"  {_clock_time(progress.left_s)} left")
    return line


def done_share(progress: Progress) -> float | None:
    """How much of the point is done: by its requests where their number is known, else by time."""
    if progress.total:
        return min(progress.ended / progress.total, 1.0)
    if progress.left_s is not None and progress.time_s + progress.left_s > 0:
        return progress.time_s / (progress.time_s + progress.left_s)
    return None


def plain_line(progress: Progress) -> str:
    """All of it in one line."""
    failed = [f"{progress.failed:,} failed" + (f" (last: {progress.error})" if progress.error else "")]
    left = [] if progress.left_s is None else [f"{_clock_time(progress.left_s)} left"]
    server = _server(progress)
    parts = [_count(progress), *_client(progress), " ".join(server), *(failed if progress.failed else []), *left]
    return f"{_name(progress)}: {progress.phase}, " + ", ".join(part for part in parts if part)


def finished_line(run: Run, *, measured: bool = True) -> str:
    """One line of a run that is done, and whether it is one to be trusted."""
    s = run.summary()
    failed = f", {s.failed:,} failed" if s.failed else ""
    took = f" in {_took(s.duration_s)}" if s.duration_s is not None and measured else ""
    state = "unfit" if run.meta.unfit else f"not whole ({run.meta.partial})" if run.meta.partial else "done"
    state = state if measured else "taken from the store"
    times = ", ".join(
        f"{name} p50 {milliseconds(stat.p50)} p99 {milliseconds(stat.p99)}"
        for name, stat in (("TTFT", s.ttft_s), ("TPOT", s.tpot_s))
    )
    requests = f"{s.requests or 0:,} {'request' if s.requests == 1 else 'requests'}{took}{failed}"
    if run.requests.height and not run.requests["error"].null_count():
        return f"{run_load(run)} {state}: {requests}"
    return f"{run_load(run)} {state}: {requests}; {figure(s.output_tok_per_s)} tok/s, {times} ms"


def _name(progress: Progress) -> str:
    if progress.points is None:
        return f"{progress.label} (point {progress.point})"
    return progress.label if progress.points == 1 else f"{progress.label} ({progress.point} of {progress.points})"


def _count(progress: Progress) -> str:
    if progress.total:
        return f"{progress.ended:,} of {progress.total:,} {'request' if progress.total == 1 else 'requests'}"
    return f"{progress.ended:,} {'request' if progress.ended == 1 else 'requests'}" if progress.sent else ""


def _client(progress: Progress) -> list[str]:
    if not progress.sent:
        return []
    known = {
        "{} tok/s": progress.output_tok_per_s and figure(progress.output_tok_per_s),
        "TTFT p50 {} ms": progress.ttft_p50_s and milliseconds(progress.ttft_p50_s),
        "TPOT p50 {} ms": progress.tpot_p50_s and milliseconds(progress.tpot_p50_s),
    }
    return [f"{progress.in_flight:,} in flight", *(form.format(value) for form, value in known.items() if value)]


def _server(progress: Progress) -> list[str]:
    known = {
        "running {}": progress.running is not None and f"{progress.running:,.0f}",
        "waiting {}": progress.waiting is not None and f"{progress.waiting:,.0f}",
        "KV {} %": progress.kv_usage is not None and percent(progress.kv_usage),
    }
    parts = [form.format(value) for form, value in known.items() if value]
    return [f"server: {parts[0]}", *parts[1:]] if parts else []


def _took(time_s: float) -> str:
    """A time that has passed: seconds with a decimal while they are few.

    >>> _took(0.31), _took(83.4)
    ('0.3 s', '1:23')
    """
    return f"{time_s:.1f} s" if time_s < SHORT_S else _clock_time(time_s)


def _clock_time(time_s: float) -> str:
    """Minutes and seconds.

    >>> _clock_time(83.4), _clock_time(3700)
    ('1:23', '1:01:40')
    """
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
