"""Pictures as text: every measured point is a dot where its figures say, the line is the prediction's, 100 columns."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report.plot import CEILING, MEASURED, PICTURES, PREDICTED, Level, curves, drawn, levels
from inferometer.report.terminal import make_console

GOLDEN = Path(__file__).resolve().parents[2] / "golden/plot_curves.txt"
SWEEP = {1: (88.0, 0.062), 4: (335.0, 0.25), 16: (1090.0, 0.962), 64: (2470.0, 3.68)}


def runs(factor: float = 1.0, sweep: dict[int, tuple[float, float]] = SWEEP) -> list[Run]:
    return [
        make_run(
            RunMeta(
                kind="imported",
                concurrency=users,
                stated={"output_tok_per_s": rate * factor, "ttft_s.p99": ttft_s * factor},
            )
        )
        for users, (rate, ttft_s) in sweep.items()
    ]


class Utf8(io.StringIO):
    encoding = "utf-8"


def console(width: int = 100, encoding: str = "utf-8") -> Console:
    out = Utf8()
    out.encoding = encoding  # type: ignore[misc]
    made = make_console(out)
    made.width = width
    return made


def printed(predicted: Sequence[Run], measured: Sequence[Run], width: int = 100, encoding: str = "utf-8") -> str:
    made = console(width, encoding)
    curves(predicted, measured, made, "a caption")
    return made.file.getvalue()  # type: ignore[attr-defined]


def test_golden():
    text = "".join(line.rstrip() + "\n" for line in printed(runs(), runs(0.9)).splitlines())
    if os.environ.get("INFEROMETER_UPDATE"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_each_point_is_a_dot_and_lines_fit(width: int):
    text = printed(runs(), runs(0.8), width)
    assert text.count("●") == len(PICTURES) * len(SWEEP) + 1  # and one in the key
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    for users in SWEEP:
        assert len(re.findall(rf"^ .*\b{users}\b", text, flags=re.M)) >= len(PICTURES)
    assert text.rstrip().endswith("a caption")


def dots(text: str) -> list[tuple[int, int]]:
    """Column and row of each dot, rows counted from below, left to right."""
    rows = text.splitlines()
    return sorted((match.start(), len(rows) - y) for y, row in enumerate(rows) for match in re.finditer("●", row))


def test_dots_stand_where_their_figures_are():
    found = drawn(PICTURES[0], [], levels(runs()), console())
    assert found is not None
    (first, low), (second, _), (third, _), (last, high) = dots(found.plain)
    # four times the users is the same distance each time, and height is proportional to the rate
    assert abs((second - first) - (third - second)) <= 1
    assert abs((third - second) - (last - third)) <= 1
    assert abs(low - (high - low) * 88 / (2470 - 88)) <= 4
    heights = [y for _, y in dots(found.plain)]
    assert heights == sorted(heights)
    assert len(set(heights)) > 2


def test_a_perfect_prediction_goes_through_its_dots():
    # a dot is a whole cell, so the line under it may be in the next row
    both = drawn(PICTURES[1], levels(runs()), levels(runs()), console())
    alone = drawn(PICTURES[1], levels(runs()), [], console())
    assert both is not None
    assert alone is not None
    rows = alone.plain.splitlines()
    for column, height in dots(both.plain):
        near = [rows[len(rows) - height + off][column] for off in (-1, 0, 1)]
        assert any("⠀" < cell <= "⣿" for cell in near), "there is no line under this dot"


def test_colours_are_the_same_everywhere():
    out = Utf8()
    made = Console(file=out, width=100, force_terminal=True, color_system="256")
    line = [Level(load=x, output_tok_per_s=10.0 * x, ttft_p99_s=0.1, ceiling_tok_per_s=12.0 * x) for x in (1.0, 8.0)]
    for picture in PICTURES:
        found = drawn(picture, line, line, made)
        assert found is not None
        made.print(found)
    text = out.getvalue()
    assert {int(code) for code in re.findall(r"\x1b\[38;5;(\d+)m", text)} == {PREDICTED, MEASURED, CEILING}


def test_no_colour_in_a_file_and_plain_marks_without_unicode(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(runs(), runs(), encoding="ascii")
    text.encode("ascii")
    assert text.count("o") >= len(PICTURES) * len(SWEEP)


def test_nothing_is_drawn_of_a_single_load():
    assert printed(runs()[:1], runs()[:1]) == ""
    assert printed([], []) == ""


def test_only_one_side_and_unknown_figures():
    text = printed([], runs())
    assert "measured" in text
    assert "predicted" not in text
    without = [make_run(RunMeta(kind="imported", concurrency=c, stated={"output_tok_per_s": 1.0 * c})) for c in (1, 2)]
    assert "TTFT" not in printed([], without)


def test_an_open_loop_is_drawn_by_its_rate():
    rates = [make_run(RunMeta(kind="imported", request_rate_per_s=r, stated={"output_tok_per_s": r})) for r in (0.5, 8)]
    text = printed([], rates)
    assert "Output tok/s by requests/s" in text
    assert "0.5" in text
