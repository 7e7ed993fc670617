"""A post as Markdown: for a blog, a pull request, or a documentation page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from inferometer.report.blocks import Block, Bullets, Figure, Post, Section, Table, Text


def markdown(post: Post, image: Callable[[str], str] = lambda name: f"{name}.svg") -> str:
    """The post; ``image`` gives the address of a chart by its name. Ends with a newline, has no trailing spaces."""
    lines = [f"# {escaped(post.title)}", "", *(line for words in post.hook for line in (escaped(words), ""))]
    for section in post.sections:
        lines += _section(section, image)
    lines += [f"*{escaped(post.caption)}*"]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _section(section: Section, image: Callable[[str], str]) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    yield ""
    for block in section.blocks:
        yield from _block(block, image)
        yield ""


def _block(block: Block, image: Callable[[str], str]) -> Iterator[str]:
    match block:
        case Text(words=words):
            yield _paragraph(words)
        case Bullets(items=items):
            yield from (f"- {escaped(item)}" for item in items)
        case Table():
            yield from _table(block)
        case Figure():
            yield f"![{escaped(block.title)}]({image(block.name)})"
            yield ""
            yield escaped(block.told)


def _paragraph(words: str) -> str:
    """A paragraph; one that begins ``1. `` is no list."""
    return re.sub(r"^(\d+)\. ", r"**\1.** ", escaped(words))


def _table(table: Table) -> Iterator[str]:
    yield f"**{escaped(table.title)}**"
    yield ""
    yield _row([name for name, _ in table.columns])
    yield _row([":--" if left else "--:" for _, left in table.columns])
    yield from (_row(row) for row in table.rows)
    if table.note:
        yield ""
        yield escaped(table.note)


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(escaped(cell) or " " for cell in cells) + " |"


def escaped(text: str) -> str:
    """Plain words for Markdown: nothing in them is markup.

    >>> escaped("max_num_seqs | *all* <b>"), escaped("p99 > 2 x p50, TTFT < 500 ms")
    ('max_num_seqs \\\\| \\\\*all\\\\* &lt;b>', 'p99 > 2 x p50, TTFT < 500 ms')
    """
    words = " ".join(text.split())
    words = re.sub(r"([\\`*|\[\]])", r"\\\1", words)
    words = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", words)
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", words)
