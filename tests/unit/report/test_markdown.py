"""The post as Markdown: the founding document's skeleton, tables that are tables, and no markup from the figures."""

from __future__ import annotations

import re

import pytest

from inferometer.report.blocks import Bullets, Post, Section, Table, Text, table
from inferometer.report.charts import charts
from inferometer.report.markdown import escaped, markdown
from inferometer.report.material import Material, gather
from inferometer.report.story import post
from reported import predicted, scored, stated, with_raw


def written(material: Material) -> str:
    return markdown(post(material, charts(material)))


@pytest.fixture(scope="module")
def text() -> str:
    return written(scored())


def test_the_skeleton_in_order(text: str):
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings[:4] == ["The chart", "The number", "What surprised", "Why: where the tokens went"]
    assert "The five predictions, scored" in headings
    assert headings[-1] == "Small print"


def test_the_hook_is_one_user_against_many(text: str):
    hook = text.splitlines()[2]
    # 500 tok/s over 8 users
    assert hook == "One A100-SXM4-80GB serves 1 user at 88.0 tok/s, or 8 users at 62.5 tok/s each."


def test_the_five_predictions_are_numbered(text: str):
    assert [f"**{n}.**" in text for n in range(1, 6)] == [True] * 5
    assert "TTFT knee: predicted" in text
    assert "measured C=2" in text


def test_what_surprised_is_the_largest_misses(text: str):
    section = text.partition("## What surprised")[2].partition("## ")[0]
    first = re.search(r"predicted .*, measured .*, [+-]\d+", section)
    assert first


def test_goodput_has_its_gap(text: str):
    # 500 over 150 and over 88
    assert "150 tok/s at C=2 by p50; 88.0 tok/s at C=1 by p99" in text
    assert "a gap of 3.33x to 5.68x" in text


def test_every_table_has_rows_of_one_width(text: str):
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(widths) == 1
        assert re.match(r"\| [:-]", block.splitlines()[1])


def test_no_trailing_spaces_and_one_last_newline(text: str):
    assert not re.search(r"[ \t]$", text, re.M)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_figures_have_thousands_and_three_digits(text: str):
    assert not re.search(r"\b\d\.\d{6,}", text)


def test_nothing_in_the_words_is_markup():
    assert escaped("a | b") == r"a \| b"
    assert escaped("*x* `y` [z]") == r"\*x\* \`y\` \[z\]"
    assert escaped("<script>alert(1)</script>") == "&lt;script>alert(1)&lt;/script>"
    assert escaped("max_num_seqs") == "max_num_seqs"
    assert escaped("_seqs") == r"\_seqs"
    assert escaped("two\nlines") == "two lines"


def test_blocks_as_markdown():
    rows = Table(title="T", headers=("<name", "n"), rows=(("a|b", "1"),))
    section = Section(title="S", blocks=(Text("1. One."), Bullets(("x",)), rows))
    told = Post(title="P", hook=("H.",), sections=(section,), caption="c")
    assert markdown(told) == (
        "# P\n\nH.\n\n## S\n\n**1.** One.\n\n- x\n\n**T**\n\n| name | n |\n| :-- | --: |\n| a\\|b | 1 |\n\n*c*\n"
    )


def test_a_table_without_rows_is_none_and_empty_columns_go():
    assert table("T", ("a", "b"), []) is None
    found = table("T", ("a", "b", "c"), [("1", "-", "2"), ("3", "", "4")])
    assert found is not None
    assert found.headers == ("a", "c")
    assert found.rows == (("1", "2"), ("3", "4"))


def test_a_prediction_alone_and_a_measurement_alone_read_well():
    alone = written(gather(predicted()))
    assert "should serve" in alone
    assert "Nothing is measured yet" in alone
    assert "scored" not in alone.splitlines()[0]
    measured = written(gather(None, [stated(1), stated(8)]))
    assert measured.splitlines()[2].startswith("One server serves 1 user at 88.0 tok/s")
    assert "predicted" not in measured.partition("## Audit")[0].replace("predictions", "")


def test_a_killed_sweep_is_reported_as_far_as_it_goes():
    text = written(gather(predicted(), [stated(1, partial="interrupted")]))
    missing = text.partition("## What is missing")[2]
    assert "Predicted but not measured: C=2, C=8." in missing
    assert "C=1 is not whole: interrupted." in missing
    assert "88.0" in text


def test_a_claim_is_scored_beside_the_model():
    material = gather(predicted(("output_tok_per_s@8=400",)), [stated(1), stated(8)])
    row = next(line for line in written(material).splitlines() if "output_tok_per_s@8" in line)
    assert "| 400 |" in row
    assert "| 500 |" in row
    assert "-20.0" in row


def test_repeats_and_raw_runs_are_told_too():
    assert written(with_raw()).count("| C=8 |") >= 2
