"""A post as one HTML page that needs nothing beside itself: styles, charts and figures are all in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from inferometer.report.blocks import Block, Bullets, Figure, Post, Table, Text
from inferometer.report.chart_theme import DARK
from inferometer.report.charts import svg

TEMPLATE = "report.html.j2"


@cache
def _environment() -> Environment:
    loader = PackageLoader("inferometer.report", "templates")
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )


def page(post: Post, drawn: Mapping[str, str] | None = None) -> str:
    """The page. Its text is escaped, the charts are SVG in place, and it loads nothing.

    ``drawn`` holds the charts' SVG by name, where they are drawn already.
    """
    svgs = {figure.name: (drawn or {}).get(figure.name) or svg(figure.chart, figure.name) for figure in post.figures}
    sections = [
        {"title": section.title, "folded": section.folded, "blocks": [_block(each, svgs) for each in section.blocks]}
        for section in post.sections
    ]
    text = _environment().get_template(TEMPLATE).render(post=post, sections=sections, dark_colours=DARK)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


def _block(block: Block, svgs: Mapping[str, str]) -> dict[str, Any]:
    match block:
        case Text(words=words):
            return {"kind": "text", "words": words}
        case Bullets(items=items):
            return {"kind": "bullets", "told": items}
        case Table():
            return {"kind": "table", "table": block}
        case Figure():
            return {"kind": "figure", "name": block.name, "title": block.title, "told": block.told,
                    "data": block.data, "svg": svgs[block.name]}  # fmt: skip
