"""Tables of columns, and how figures are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from inferometer.report.grid import Column, Grid, count, figure, gib, milliseconds, percent, signed


def lines(grid: Grid, width: int = 100) -> list[str]:
    return [line.plain for line in grid.lines(width)]


def sample() -> Grid:
    columns = [Column("C"), Column("p50", group="TTFT ms"), Column("p99", group="TTFT ms"), Column("why", "left")]
    grid = Grid("Sweep", columns)
    grid.add("1", "60", "3,830", "weights")
    grid.add("128", "1,000", "2", Text("KV"))
    return grid


def test_groups_stand_over_their_columns():
    assert lines(sample()) == [
        "Sweep    TTFT ms",
        "    C    p50    p99  why",
        "    1     60  3,830  weights",
        "  128  1,000      2  KV",
    ]


def test_columns_move_together_where_two_spaces_do_not_fit():
    assert lines(sample(), width=27) == [
        "Sweep   TTFT ms",
        "    C   p50   p99 why",
        "    1    60 3,830 weights",
        "  128 1,000     2 KV",
    ]


def test_a_last_column_that_is_too_wide_goes_on_below():
    columns = [Column("C"), Column("ms"), Column("limited by", "left")]
    grid = Grid("", columns)
    grid.add("1", "60", Text("prefill in mixed steps", style="cyan"))
    grid.add("128", "2", "one-very-long-word-that-stays in one piece")
    found = lines(grid, width=24)
    assert found == [
        "  C ms limited by",
        "  1 60 prefill in mixed",
        "       steps",
        "128  2 one-very-long-word-that-stays",
        "       in one piece",
    ]
    assert next(iter(list(grid.lines(24))[2].spans)).style == "cyan"


def test_a_last_column_is_wrapped_before_columns_move_together():
    grid = Grid("", [Column("C"), Column("differs in", "left")])
    grid.add("1", "max_num_seqs 4, max_num_batched_tokens 8192")
    assert lines(grid, width=40) == ["C  differs in", "1  max_num_seqs 4,", "   max_num_batched_tokens 8192"]
    assert lines(grid, width=46) == ["C  differs in", "1  max_num_seqs 4, max_num_batched_tokens 8192"]


def test_where_there_is_no_room_a_line_is_left_to_the_terminal():
    grid = Grid("", [Column("C"), Column("why", "left")])
    grid.add("1", "prefill in mixed steps")
    assert lines(grid, width=10)[1] == "1 prefill in mixed steps"


def test_times_of_ten_seconds_are_in_seconds():
    assert [milliseconds(time_s) for time_s in (9.99, 10.0, 62.9, 1234.0)] == ["9,990", "10.0 s", "62.9 s", "1,230 s"]


def test_a_label_longer_than_its_columns_widens_the_last():
    grid = Grid("", [Column("a"), Column("b", group="a long label")])
    grid.add("1", "2")
    assert lines(grid) == ["   a long label", "a             b", "1             2"]


def test_without_groups_the_title_heads_the_first_column():
    grid = Grid("Chips", [Column("", "left"), Column("GiB")])
    grid.add("a100", "80.0")
    assert lines(grid) == ["Chips   GiB", "a100   80.0"]


def test_a_row_has_a_cell_a_column():
    with pytest.raises(AssertionError, match="1 cells for 4 columns"):
        sample().add("1")


@given(st.lists(st.lists(st.text("ab ,", max_size=8), min_size=3, max_size=3), max_size=5), st.integers(5, 80))
def test_right_aligned_columns_end_together(rows: list[list[str]], width: int):
    grid = Grid("T", [Column("x"), Column("y", group="g"), Column("z", group="g")])
    for row in rows:
        grid.add(*(cell.strip() + "." for cell in row))
    assert len({len(line) for line in lines(grid, width)[1:]}) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (0.0, "0"), (1280, "1,280"), (1280.0, "1,280"), (1284.9, "1,280"), (99.96, "100"),
        (99.94, "99.9"), (68.0, "68.0"), (9.996, "10.0"), (1.0, "1.00"), (0.1, "0.100"), (0.0123, "0.0123"),
        (-11.25, "-11.3"), (18_100_000.0, "18,100,000"), (2e-5, "0.00002"),
    ],
)  # fmt: skip
def test_figures(value: float | None, text: str):
    assert figure(value) == text


@given(st.floats(1e-3, 1e9))
def test_a_figure_is_within_half_a_unit_of_its_third_digit(value: float):
    shown = float(figure(value).replace(",", ""))
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    assert abs(shown - value) <= 0.51 * unit
    assert len(figure(value).replace(",", "").replace(".", "").lstrip("0")) >= 3 or shown < 1


def test_other_cells():
    assert (milliseconds(0.0112), milliseconds(None)) == ("11.2", "-")
    assert [gib(size) for size in (0, 2**20, 2**30, 56.34 * 2**30)] == ["0.00", "< 0.01", "1.00", "56.3"]
    assert (percent(0.481), percent(None)) == ("48", "-")
    assert [signed(error) for error in (-1.44, 99.4, 99.6, 1234.0, 0.0, None)] == [
        "-1.4", "+99.4", "+100", "+1,234", "+0.0", "-",
    ]  # fmt: skip
    assert [count(value) for value in (72.4, 9999, 409_232.0)] == ["72", "9,999", "409,000"]
