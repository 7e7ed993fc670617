"""Sweep tables: a run a row that states what the row does. The founding sweep is in test_sweeps.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import load


def write(tmp_path: Path, text: str, name: str = "sweep.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_units_come_from_the_columns_names(tmp_path: Path) -> None:
    (run,) = load(write(tmp_path, "concurrency,output_tok_per_s,ttft_ms_p50,e2e_s_mean,requests\n4,80,250,1.5,40\n"))
    s = run.summary()
    assert (s.ttft_s.p50, s.e2e_s.mean, s.requests, s.concurrency) == (0.25, 1.5, 40, 4)
    assert (s.ttft_s.p99, s.completed) == (None, None)


def test_an_open_loop_and_littles_law_over_the_concurrency(tmp_path: Path) -> None:
    text = "request_rate,concurrency,output_tok_per_s,littles_law_concurrency\n2.5,,80,\ninf,8,90,7.2\n"
    first, second = load(write(tmp_path, text))
    assert (first.meta.request_rate_per_s, first.meta.concurrency) == (2.5, None)
    assert (second.meta.request_rate_per_s, second.meta.concurrency) == (None, 8)
    assert first.summary().littles_law is None
    assert second.summary().littles_law == pytest.approx(0.9)


def test_names_and_what_was_not_read(tmp_path: Path) -> None:
    text = "name,model,chip,concurrency,output_tok_per_s,remark\nrun a,m,h100-sxm-80gb,1,2,warm\n,m,,2,3,\n"
    first, second = load(write(tmp_path, text))
    assert (first.meta.name, first.meta.model, first.meta.chip) == ("run a", "m", "h100-sxm-80gb")
    assert (second.meta.name, second.meta.chip) == ("sweep-2", None)
    assert first.meta.notes == ["columns not read: remark"]


def test_json_objects_read_too(tmp_path: Path) -> None:
    rows = [{"concurrency": 1, "output_tok_per_s": 9.5}, {"concurrency": 2, "output_tok_per_s": 18, "ttft_ms_p99": 4}]
    first, second = load(write(tmp_path, json.dumps(rows), "sweep.json"))
    assert (first.summary().output_tok_per_s, second.summary().ttft_s.p99) == (9.5, 0.004)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("concurrency,output_tok_per_s\n", "without rows"),
        ("concurrency,output_tok_per_s\n1,fast\n", "row 1, output_tok_per_s"),
        ("concurrency,output_tok_per_s\n1,5\n2,-5\n", "row 2, output_tok_per_s"),
        ("concurrency,output_tok_per_s\n1.5,5\n", "whole number"),
        ("concurrency,output_tok_per_s\n0,5\n", "at least 1"),
        ("concurrency,output_tok_per_s\n,5\n", "neither concurrency nor request_rate"),
    ],
)
def test_a_bad_value_is_refused_by_file_row_and_column(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        load(write(tmp_path, text))
    assert "sweep.csv" in str(error.value)
