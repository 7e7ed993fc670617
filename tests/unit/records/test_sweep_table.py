"""Sweep tables: a run a row that states what the row does. The founding sweep is in test_sweeps.py."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from inferometer.cli import founding_sweep
from inferometer.errors import FormatError, InferometerWarning
from inferometer.records.importers import load
from inferometer.records.metrics import sweep_table
from shared import shared


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


@pytest.mark.parametrize(
    ("column", "meant"),
    [
        ("ttft_p50", "ttft_ms_p50"),
        ("ttft_p50_ms", "ttft_ms_p50"),
        ("e2e_sec_mean", "e2e_s_mean"),
        ("Concurrency", "concurrency"),
        ("output_tok_per_sec", "output_tok_per_s"),
        ("total_tokens_per_s", "total_tok_per_s"),
    ],
)
def test_a_column_that_is_nearly_a_known_one_is_warned_of(tmp_path: Path, column: str, meant: str) -> None:
    path = write(tmp_path, f"request_rate,tpot_ms_p50,{column}\n1,2,3\n2,3,4\n")
    with pytest.warns(InferometerWarning) as said:
        load(path)
    assert [str(each.message) for each in said] == [f"{path}: column {column!r} is not read; did you mean {meant}?"]


def test_a_row_that_is_cut_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "concurrency,output_tok_per_s,ttft_ms_p50,name\n1,10,20,a\n2,18,2\n")
    with pytest.warns(InferometerWarning, match="row 2 has 3 of 4 cells") as said:
        runs = load(path)
    assert len(said) == 1
    assert [run.summary().output_tok_per_s for run in runs] == [10, 18]


def test_whole_tables_of_known_and_far_columns_are_read_without_a_word(tmp_path: Path) -> None:
    rows = sweep_table(founding_sweep.runs())
    text = [",".join([*rows[0], "remark", "date"])]
    text += [",".join("" if value is None else str(value) for value in (*row.values(), "warm", "x")) for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load(write(tmp_path, "\n".join(text)))) == 8
        founding_sweep.runs()


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
        ("concurrency,output_tok_per_s,prefix_hit_rate\n1,5,58\n", "row 1, prefix_hit_rate: 58.* from 0 to 1"),
        ("concurrency,output_tok_per_s,prefix_hit_rate_pct\n1,5,101\n", "prefix_hit_rate_pct.* from 0 to 100"),
        ("concurrency,output_tok_per_s,kv_usage\n1,5,1.2\n", "row 1, kv_usage"),
        ("concurrency,output_tok_per_s,num_gpu_blocks\n1,5,25640.5\n", "row 1, num_gpu_blocks.* whole number"),
        ("concurrency,output_tok_per_s,weight_gib\n1,5,15 GiB\n", "row 1, weight_gib"),
        ("concurrency,output_tok_per_s,started\n1,5,yesterday\n", "row 1, started.* ISO 8601"),
    ],
)
def test_a_bad_value_is_refused_by_file_row_and_column(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        load(write(tmp_path, text))
    assert "sweep.csv" in str(error.value)


def test_what_is_known_of_the_server(tmp_path: Path) -> None:
    text = (
        "concurrency,output_tok_per_s,num_gpu_blocks,kv_cache_tokens,weight_gib,prefix_hit_rate_pct,running,waiting,"
        "kv_usage,preemptions,engine,engine_version,started\n"
        "64,2504.6,25640,410240,15.25,45,61.5,2.5,0.31,3,vllm,0.26.0,2026-07-31T14:05:00+02:00\n"
        "128,3088.2,,,,,,,,,,,\n"
    )
    first, second = load(write(tmp_path, text))
    assert first.meta.server == {
        "num_gpu_blocks": 25640, "kv_cache_tokens": 410240, "weight_bytes": 16_374_562_816, "engine": "vllm",
        "version": "0.26.0",
    }  # fmt: skip
    assert first.meta.deployment == {"engine": "vllm", "engine_version": "0.26.0"}
    assert first.meta.started_unix_s == 1785499500.0
    assert first.meta.created == "2026-07-31T14:05:00+02:00"
    s = first.summary()
    assert (s.prefix_hit_rate, s.running, s.waiting, s.kv_usage, s.preemptions) == (0.45, 61.5, 2.5, 0.31, 3)
    assert first.meta.notes == []
    assert (second.meta.server, second.meta.deployment, second.meta.started_unix_s) == ({}, {}, None)
    assert second.summary().prefix_hit_rate is None


@pytest.mark.parametrize(
    ("started", "unix_s", "says"),
    [("2026-07-31", 1785456000.0, "no time of day"), ("2026-07-31 14:05", 1785506700.0, "no time zone")],
)
def test_a_start_that_lacks_something_says_what_was_taken(
    tmp_path: Path, started: str, unix_s: float, says: str
) -> None:
    (run,) = load(write(tmp_path, f"concurrency,output_tok_per_s,started\n1,5,{started}\n"))
    assert run.meta.started_unix_s == unix_s
    assert says in run.meta.notes[0]


def test_the_packaged_table_is_the_founding_documents() -> None:
    runs = founding_sweep.runs()
    truth = json.loads(shared("vectors/seeds.json").read_text())["benchmark"]
    assert [run.meta.concurrency for run in runs] == [row["concurrency"] for row in truth["sweep_measured"]]
    for run, row in zip(runs, truth["sweep_measured"], strict=True):
        s = run.summary()
        assert s.output_tok_per_s == row["output_tok_per_s"]
        assert (s.ttft_s.p50, s.ttft_s.p99) == (row["ttft_ms_p50"] / 1000, row["ttft_ms_p99"] / 1000)
        assert (s.tpot_s.p50, s.tpot_s.p99) == (row["tpot_ms_p50"] / 1000, row["tpot_ms_p99"] / 1000)
        assert s.itl_s.p99 == (row["itl_ms_p99"] / 1000 if "itl_ms_p99" in row else None)
        assert s.littles_law_concurrency == pytest.approx(row["littles_law_concurrency"])
        pool = truth["kv_pool_measured"]
        assert run.meta.server["num_gpu_blocks"] == pool["blocks"]
        assert run.meta.server["kv_cache_tokens"] == pool["tokens"]
        assert (run.meta.model, run.meta.chip) == ("Qwen/Qwen3-8B", "a100-sxm4-80gb")
        assert run.meta.deployment == {"engine": "vllm", "engine_version": "0.26.0"}
        # a day alone: from its first instant on, so that no prediction made on that day passes for one made before
        assert run.meta.started_unix_s == 1785456000.0
    assert [run.summary().prefix_hit_rate for run in runs] == [None] * 7 + [0.004]
