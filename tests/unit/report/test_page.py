"""The page: one file that needs nothing else, whose text is text, with the figures under every chart."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import ClassVar

import msgspec
import pytest

from inferometer.report.chart_theme import DARK
from inferometer.report.charts import charts
from inferometer.report.page import page
from inferometer.report.story import post
from reported import scored, with_raw

VOID = {"meta", "br", "link", "img", "input", "hr", "source"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed without being open, or left open."""

    shapes: ClassVar = {"path", "line", "rect", "circle", "text", "g", "svg"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[key] for key in ("href", "src", "xlink:href", "action") if key in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def parsed(text: str) -> Balanced:
    found = Balanced()
    found.feed(text)
    found.close()
    return found


@pytest.fixture(scope="module")
def text() -> str:
    return page(post(with_raw(), charts(with_raw())))


def test_it_is_whole(text: str):
    found = parsed(text)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert text.startswith("<!DOCTYPE html>")


def test_it_loads_nothing(text: str):
    assert parsed(text).addresses == []
    assert not re.search(r"@import|url\((?!#)", text)
    assert "<link" not in text


def test_every_chart_is_in_it_with_its_data(text: str):
    assert text.count("<svg ") == len(charts(with_raw()))
    assert text.count("show data") == text.count("<figure ")


def test_reading_needs_no_script(text: str):
    without = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert "What surprised" in without
    assert "<script" not in without
    assert without.count("<table>") == text.count("<table>")


def test_dark_and_print_have_their_styles(text: str):
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    for light, dark in DARK.items():
        assert f'[fill="{light}"] {{ fill: {dark}; }}' in text


def test_every_colour_of_a_chart_has_a_dark_one(text: str):
    drawn = "".join(re.findall(r"<svg .*?</svg>", text, flags=re.S))
    used = {value for value in re.findall(r'(?:fill|stroke)="([^"]+)"', drawn) if value not in ("none", "transparent")}
    assert used <= set(DARK)


def test_words_are_escaped():
    told = msgspec.structs.replace(post(scored(), {}), title="<script>x</script> & co")
    text = page(told)
    assert "&lt;script&gt;x&lt;/script&gt; &amp; co" in text
    assert text.count("<script>") == 1


def test_the_same_material_gives_the_same_page(text: str):
    assert page(post(with_raw(), charts(with_raw()))) == text
