"""What a post consists of, whatever it is written as: sentences, tables, charts, and sections of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Text(msgspec.Struct, frozen=True):
    """A paragraph of plain words."""

    words: str


class Bullets(msgspec.Struct, frozen=True):
    """A list of sentences."""

    items: tuple[str, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of cells under headers; a header that begins with ``<`` is of a column aligned left."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Each header and whether its column is aligned left."""
        return [(header.removeprefix("<"), header.startswith("<")) for header in self.headers]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A chart, what it shows in a sentence, and the figures behind it."""

    name: str
    title: str
    told: str
    chart: Any
    data: Table | None = None


Block = Text | Bullets | Table | Figure


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks under a heading; a folded one is closed on the page until it is asked for."""

    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report."""

    title: str
    hook: tuple[str, ...]
    """What one remembers: two or three sentences."""
    sections: tuple[Section, ...]
    caption: str

    @property
    def figures(self) -> list[Figure]:
        """Every chart, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table | None:
    """A table, or None where it would have no rows; columns without a word are left out."""
    if not rows:
        return None
    kept = [i for i in range(len(headers)) if i == 0 or any(row[i] not in ("", "-") for row in rows)]
    return Table(
        title=title,
        headers=tuple(headers[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in rows),
        note=note,
    )
