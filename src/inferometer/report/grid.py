"""Tables of plain columns for a terminal: groups of columns under one label, right-aligned figures, no lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from rich.cells import cell_len
from rich.text import Text

from inferometer.units import format_count

Cell = str | Text
NO_FIGURE = "-"


class Column(msgspec.Struct, frozen=True):
    """A column: its header, how it is aligned, and the group whose label stands above it."""

    header: str
    align: Literal["left", "right"] = "right"
    group: str = ""


LEAST_ROOM = 12
"""A last column with less room than this is not wrapped: the terminal breaks the line."""
WIDE_ROOM = 30
"""With so much room for a last column, it is wrapped before columns are moved together."""


class Grid:
    """Rows under columns, as wide as their content; two spaces between columns, one where they would not fit.

    Where that is still too wide, the words of a last column that is aligned left go on below.
    """

    def __init__(self, title: str, columns: Sequence[Column], accent: str = "", faint: str = "") -> None:
        self.title, self.columns, self.accent, self.faint = title, list(columns), accent, faint
        self.rows: list[list[Cell]] = []

    def add(self, *cells: Cell) -> None:
        """One row, a cell for each column."""
        assert len(cells) == len(self.columns), f"{len(cells)} cells for {len(self.columns)} columns"
        self.rows.append(list(cells))

    def lines(self, width: int) -> Iterator[Text]:
        """The header (two lines where columns are grouped) and the rows, without spaces at the end."""
        gap = self._gap(width)
        widths = self._widths(gap)
        if self._grouped:
            yield self._group_line(widths, gap)
        first = self.columns[0].header if self._grouped else self.title or self.columns[0].header
        headers: list[Cell] = [first, *(column.header for column in self.columns[1:])]
        if any(headers):
            yield self._line(headers, widths, gap, self.faint, self.accent if not self._grouped else self.faint)
        room = width - sum(widths[:-1]) - gap * (len(widths) - 1)
        wraps = self.columns[-1].align == "left" and LEAST_ROOM <= room < widths[-1]
        for row in self.rows:
            below: list[Cell] = [""] * (len(row) - 1)
            parts = _wrapped(row[-1], room) if wraps else [row[-1]]
            for n, part in enumerate(parts):
                yield self._line([*(below if n else row[:-1]), part], widths, gap)

    def _gap(self, width: int) -> int:
        """Two, unless the table is too wide so and wrapping its last column would not help."""
        total, last = self._total(2), self._widths(2)[-1]
        words = [cell_len(word) for row in self.rows for word in str(row[-1]).split()]
        wraps = self.columns[-1].align == "left" and width - (total - last) >= max([WIDE_ROOM, *words])
        return 2 if total <= width or wraps else 1

    @property
    def _grouped(self) -> bool:
        return any(column.group for column in self.columns)

    def _total(self, gap: int) -> int:
        return sum(self._widths(gap)) + gap * (len(self.columns) - 1)

    def _widths(self, gap: int) -> list[int]:
        cells = [[_width(row[i]) for row in self.rows] for i in range(len(self.columns))]
        widths = [max([cell_len(c.header), *cells[i]]) for i, c in enumerate(self.columns)]
        widths[0] = max(widths[0], cell_len(self.title))
        for start, end in self._groups():
            label = cell_len(self.columns[start].group)
            short = label - sum(widths[start:end]) - gap * (end - start - 1)
            widths[end - 1] += max(0, short)
        return widths

    def _groups(self) -> Iterator[tuple[int, int]]:
        """First column and one past the last of each run of columns with one label."""
        start = 0
        for i in range(1, len(self.columns) + 1):
            if i == len(self.columns) or self.columns[i].group != self.columns[start].group:
                if self.columns[start].group:
                    yield start, i
                start = i

    def _group_line(self, widths: list[int], gap: int) -> Text:
        line = Text.assemble((self.title, self.accent))
        for start, end in self._groups():
            begin = sum(widths[:start]) + gap * start
            span = sum(widths[start:end]) + gap * (end - start - 1)
            label = self.columns[start].group
            room = span - cell_len(label)
            # over one column the label is aligned as the column is, over several it stands in the middle
            left = room if end - start == 1 and self.columns[start].align == "right" else room // 2
            left = 0 if end - start == 1 and self.columns[start].align == "left" else left
            line.append(" " * (begin + left - cell_len(line.plain)))
            line.append(label, style=self.faint)
        return line

    def _line(self, cells: Sequence[Cell], widths: list[int], gap: int, style: str = "", first: str = "") -> Text:
        line = Text()
        for i, (cell, column) in enumerate(zip(cells, self.columns, strict=True)):
            text = cell.copy() if isinstance(cell, Text) else Text(cell, style=(first or style) if i == 0 else style)
            space = " " * max(0, widths[i] - cell_len(text.plain))
            line.append(" " * gap if i else "")
            line.append_text(Text(space) + text if column.align == "right" else text + Text(space))
        line.rstrip()
        return line


def _wrapped(cell: Cell, room: int) -> list[Cell]:
    """The cell in lines of at most so many columns, broken between words, and in a longer word after an underscore.

    >>> _wrapped("prefill in mixed steps", 16), _wrapped("max_num_batched_tokens 8", 20)
    (['prefill in mixed', 'steps'], ['max_num_batched_', 'tokens 8'])
    """
    plain = cell.plain if isinstance(cell, Text) else cell
    lines: list[Cell] = []
    start = 0
    while start < len(plain):
        end = _line_end(plain, start, room)
        lines.append(cell[start:end])
        start = end + (len(plain[end:]) - len(plain[end:].lstrip()))
    return lines or [cell]


def _line_end(plain: str, start: int, room: int) -> int:
    """Where the line that starts here ends: at a space, else after an underscore, else at the end of its first word."""
    if len(plain) - start <= room:
        return len(plain)
    space = plain.rfind(" ", start, start + room + 1)
    underscore = plain.rfind("_", start, start + room) + 1
    following = plain.find(" ", start)
    return space if space > start else underscore or (following if following > 0 else len(plain))


def _width(cell: Cell) -> int:
    return cell_len(cell.plain if isinstance(cell, Text) else cell)


def figure(value: float | None) -> str:
    """A whole number as it is, another to three significant digits, thousands separated; ``-`` where unknown.

    >>> figure(1280), figure(68.0), figure(3055.9), figure(0.1), figure(None)
    ('1,280', '68.0', '3,060', '0.100', '-')
    """
    if value is None:
        return NO_FIGURE
    if isinstance(value, int):
        return f"{value:,}"
    text = format_count(value)
    number = abs(float(text.replace(",", "")))
    if not 1e-3 <= number < 100:
        return text
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals.ljust(2 - math.floor(math.log10(number)), '0')}"


IN_SECONDS_FROM_S = 10
"""Longer times are read in seconds also where a column is in milliseconds."""


def milliseconds(time_s: float | None) -> str:
    """Seconds as a figure of milliseconds; from 10 s on in seconds, with the unit.

    >>> milliseconds(0.0112), milliseconds(117.2)
    ('11.2', '117 s')
    """
    if time_s is not None and time_s >= IN_SECONDS_FROM_S:
        return f"{figure(time_s)} s"
    return figure(None if time_s is None else time_s * 1000.0)


def gib(size_bytes: float) -> str:
    """Bytes as GiB: one decimal, two below 10.

    >>> gib(60494610432)
    '56.3'
    """
    size = size_bytes / 2**30
    if 0 < size < 0.005:
        return "< 0.01"
    return f"{size:,.1f}" if size >= 10 else f"{size:.2f}"


def percent(share: float | None) -> str:
    """A share as whole per cent.

    >>> percent(0.481)
    '48'
    """
    return NO_FIGURE if share is None else f"{share * 100:.0f}"


def signed(percentage: float | None) -> str:
    """An error in per cent with its sign, one decimal below 100.

    >>> signed(-1.44), signed(171.0)
    ('-1.4', '+171')
    """
    return NO_FIGURE if percentage is None else f"{percentage:+,.{0 if abs(percentage) >= 99.5 else 1}f}"


def count(value: float) -> str:
    """A count that need not be whole: whole below 10,000, else three digits.

    >>> count(72.4), count(2048), count(409232)
    ('72', '2,048', '409,000')
    """
    return f"{value:,.0f}" if value < 10_000 else format_count(value)
