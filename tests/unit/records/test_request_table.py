"""Request-level tables: the public replays, and what other columns mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import load
from inferometer.records.run import RunMeta, make_run
from shared import shared

HEADER = "queued_s,input_tokens,output_tokens,first_token_s,last_token_s"


def table(tmp_path: Path, text: str, name: str = "requests.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_replays_give_a_run_a_model_with_the_published_means() -> None:
    runs = load(shared("data/vllm_replay_requests.csv"))
    assert [run.meta.model for run in runs] == [
        "meta-llama/Llama-3.1-8B",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-32B",
    ]
    assert [run.requests.height for run in runs] == [300, 300, 300]
    published = [(7097.16, 32.458, 28200.7), (1086.0, 47.3, 32344.6), (36905.2, 80.3, 90408.1)]
    for run, means in zip(runs, published, strict=True):
        s = run.summary()
        got = [stat.mean * 1000 for stat in (s.ttft_s, s.tpot_s, s.e2e_s) if stat.mean is not None]
        assert got == pytest.approx(means, rel=1e-3)
        assert s.queue_s.n == 300
        assert s.queue_s.mean >= 0  # type: ignore[operator]
    assert runs[0].summary().tpot_s.mean == pytest.approx(0.032458, abs=1e-6)
    assert runs[0].meta.deployment == {"gpu": "RTXPRO6000"}


def test_queued_goes_before_arrival_and_scheduled_is_the_schedulers(tmp_path: Path) -> None:
    text = f"arrival_s,scheduled_s,{HEADER}\n9.9,10.5,10.0,8,4,11.0,12.5\n12.1,12.0,12.0,8,4,13.0,14.5\n"
    (run,) = load(table(tmp_path, text))
    assert run.requests["sent_s"].to_list() == [0.0, 2.0]
    assert run.requests["admitted_s"].to_list() == [0.5, 2.0]
    assert run.requests["scheduled_s"].null_count() == 2
    assert run.summary().tpot_s.mean == 0.5


def test_arrival_alone_will_do(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,first_token_s,last_token_s\n1.0,8,2,1.5,2.0\n"
    assert load(table(tmp_path, text))[0].summary().ttft_s.mean == 0.5


def test_optional_columns_and_empty_cells(tmp_path: Path) -> None:
    text = (
        f"{HEADER},cached_tokens,session,error,note\n"
        "0.0,8,4,1.0,2.0,6,chat-7,,x\n0.0,8,4,1.0,2.0,,chat-9,,x\n0.5,8,0,,,,chat-7,timed out,x\n"
    )
    (run,) = load(table(tmp_path, text))
    assert run.requests["session"].to_list() == [0, 1, 0]
    assert run.requests["cached_tokens"].to_list() == [6, None, None]
    assert run.requests["error"].to_list() == [None, None, "timed out"]
    assert (run.summary().completed, run.summary().failed) == (2, 1)


@pytest.mark.parametrize("style", ["lines", "list"])
def test_json_objects_read_as_the_csv(tmp_path: Path, style: str) -> None:
    rows = [
        {"queued_s": 0, "input_tokens": 8, "output_tokens": 3, "first_token_s": 0.5, "last_token_s": 1.5},
        {"queued_s": 1, "input_tokens": 8, "output_tokens": 3, "first_token_s": None, "last_token_s": None},
    ]
    text = json.dumps(rows) if style == "list" else "\n".join(map(json.dumps, rows)) + "\n"
    (run,) = load(table(tmp_path, text, "requests.jsonl"))
    csv = f"{HEADER}\n0,8,3,0.5,1.5\n1,8,3,,\n"
    assert run.requests.equals(load(table(tmp_path, csv))[0].requests)


def test_our_own_table_reads_back_with_its_meanings(tmp_path: Path) -> None:
    columns = {
        "scheduled_s": [0.0, 0.5],
        "sent_s": [0.0, 1.0],
        "admitted_s": [0.1, 1.1],
        "first_token_s": [0.5, 1.5],
        "last_token_s": [1.0, 2.0],
        "end_s": [1.25, 2.25],
        "prompt_tokens": [8, 8],
        "output_tokens": [3, 3],
        "preemptions": [0, 1],
    }
    run = make_run(RunMeta(kind="measured"), columns)
    run.requests.write_csv(tmp_path / "ours.csv")
    (again,) = load(tmp_path / "ours.csv")
    assert again.requests.equals(run.requests)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEADER}\n", "without rows"),
        ("queued_s,first_token_s\n0,1\n", "prompt_tokens or input_tokens, output_tokens"),
        (f"{HEADER}\n0,8,4,soon,2.0\n", "first_token_s"),
        (f"{HEADER}\n0,8,-4,1.0,2.0\n", "output_tokens"),
        (f"{HEADER}\n3.0,8,4,1.0,2.0\n", "first_token_s of row 0"),
        (f"{HEADER}\n0,8,4,1.0,2.0,9,9,9\n", "sound table"),
        (f"{HEADER}\n,8,4,,\n", "time of sending"),
    ],
)
def test_a_bad_table_is_refused_by_its_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        load(table(tmp_path, text))
    assert "requests.csv" in str(error.value)
