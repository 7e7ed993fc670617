"""Trace files: the formats that are read, and the one clear error for a file that is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import FormatError, InputError
from inferometer.specs.workload import Workload
from inferometer.workload import generate, traces
from shared import shared


def _file(folder: Path, text: str, name: str = "trace.csv") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = (
    '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [0]}\n'
    '{"timestamp": 1500, "input_length": 20, "output_length": 2, "hash_ids": [0, 1]}\n'
)


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("arrival_s,input_tokens,output_tokens\n0.5,10,1\n2.0,20,2\n", [0.0, 1.5]),
        ("arrival_ms,input_tokens,output_tokens,n_blocks\n0,10,1,7\n1500,20,2,7\n", [0.0, 1.5]),
        (AZURE + "2023-11-16 18:17:03.9799600,10,1\n2023-11-16 18:17:05.4799600,20,2\n", [0.0, 1.5]),
        (AZURE + "2024-05-10 00:00:00.5+00:00,10,1\n2024-05-10 00:00:02+00:00,20,2\n", [0.0, 1.5]),
        (MOONCAKE, [0.0, 1.5]),
        ("request_id,arrival_s,queued_s,input_tokens,output_tokens\na,0.3,0.0,10,1\nb,1.9,1.5,20,2\n", [0.0, 1.5]),
        ("\ufeffarrival_s,prompt_tokens,output_tokens\r\n0,10,1\r\n1.5,20,2\r\n\r\n", [0.0, 1.5]),
    ],
    ids=["azure-seconds", "milliseconds", "azure-dates", "azure-2024", "mooncake", "queued", "bom-and-crlf"],
)
def test_formats(tmp_path: Path, text: str, arrivals: list[float]):
    table = traces.read(_file(tmp_path, text))
    assert table.arrival_s.tolist() == pytest.approx(arrivals)
    assert table.prompt_tokens.tolist() == [10, 20]
    assert table.output_tokens.tolist() == [1, 2]


def test_rows_are_sorted_by_arrival_ties_in_file_order(tmp_path: Path):
    table = traces.read(_file(tmp_path, "arrival_s,input_tokens,output_tokens\n3,1,1\n1,2,2\n3,3,3\n1,4,4\n"))
    assert table.arrival_s.tolist() == [0.0, 0.0, 2.0, 2.0]
    assert table.prompt_tokens.tolist() == [2, 4, 1, 3]


MODELS = "model,arrival_s,input_tokens,output_tokens\norg/A-8B,0,1,1\norg/B-30B-Instruct-2507,0,2,2\norg/A-8B,1,3,3\n"


@pytest.mark.parametrize("model", ["org/A-8B", "A-8B", "other/a-8b"])
def test_one_models_rows_are_picked(tmp_path: Path, model: str):
    assert traces.read(_file(tmp_path, MODELS), model).prompt_tokens.tolist() == [1, 3]


def test_a_suffix_of_the_models_name_may_differ(tmp_path: Path):
    assert traces.read(_file(tmp_path, MODELS), "org/B-30B").prompt_tokens.tolist() == [2]


@pytest.mark.parametrize("model", [None, "org/C-70B"])
def test_several_models_need_a_choice(tmp_path: Path, model: str | None):
    with pytest.raises(InputError, match="org/A-8B, org/B-30B-Instruct-2507"):
        traces.read(_file(tmp_path, MODELS), model)


def test_a_file_of_one_model_is_taken_whole(tmp_path: Path):
    text = "model,arrival_s,input_tokens,output_tokens\norg/A-8B,0,1,1\n"
    assert len(traces.read(_file(tmp_path, text), "org/C-70B")) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no requests"),
        ("arrival_s,input_tokens,output_tokens\n", "holds no requests"),
        ("arrival_s,input_tokens\n0,1\n", "no column output_tokens or output_length"),
        ("input_tokens,output_tokens\n1,1\n", "no column queued_s, arrival_s"),
        ("arrival_s,input_tokens,output_tokens\n0,1,1\n1,2\n", "row 2 has 2 values, the header has 3"),
        ("arrival_s,input_tokens,output_tokens\n0,1,1\n1,x,1\n", "row 2: input_tokens: 'x' is not allowed"),
        ("arrival_s,input_tokens,output_tokens\n0,0,1\n", "row 1: input_tokens: '0' .* at least 1"),
        ("arrival_s,input_tokens,output_tokens\n0,1,-1\n", "row 1: output_tokens: '-1' .* at least 0"),
        ("arrival_s,input_tokens,output_tokens\n0,1,1.5\n", "row 1: output_tokens: '1.5' "),
        ("arrival_s,input_tokens,output_tokens\n0,1,\n", "row 1: output_tokens: '' "),
        ("arrival_s,input_tokens,output_tokens\nnan,1,1\n", "row 1: arrival_s: 'nan' "),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "TIMESTAMP: "),
        ('{"timestamp": 0, "input_length": 10, "output_len', "not valid JSON lines"),
        ('{"timestamp": 0, "input_length": 10, "output_length": 1}\n{"timestamp": 1}\n', "row 2: input_length: None "),
        ('{"timestamp": 0, "input_length": 10, "output_length": 1}\n[1]\n', "not valid JSON lines"),
    ],
)
def test_a_bad_file_is_one_clear_error_that_names_it(tmp_path: Path, text: str, says: str):
    with pytest.raises(FormatError, match=f"trace.csv: {says}"):
        traces.read(_file(tmp_path, text))


def test_binary_and_missing_files(tmp_path: Path):
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(FormatError, match=r"b\.csv: cannot be read"):
        traces.read(tmp_path / "b.csv")
    with pytest.raises(FormatError, match=r"gone\.csv: cannot be read"):
        traces.read(tmp_path / "gone.csv")


def test_a_file_without_arrivals_serves_lengths(tmp_path: Path):
    file = _file(tmp_path, "input_tokens,output_tokens\n5,6\n")
    assert traces.read(file, with_arrivals=False).output_tokens.tolist() == [6]


@pytest.mark.parametrize(
    ("name", "rows", "mean_input"), [("azure2023_code", 8819, 2047.8), ("azure2023_conv", 19366, None)]
)
def test_public_azure_traces(name: str, rows: int, mean_input: float | None):
    requests = generate(Workload.from_trace(shared(f"data/trace_{name}.csv"), rate_scale=2.0))
    plain = generate(Workload.from_trace(shared(f"data/trace_{name}.csv")))
    assert len(requests) == rows
    np.testing.assert_allclose(requests.arrival_s * 2, plain.arrival_s)
    if mean_input:
        assert requests.prompt_tokens.mean() == pytest.approx(mean_input, abs=0.05)


def test_public_mooncake_trace_reads_the_same_from_both_formats():
    lines = traces.read(shared("data/trace_mooncake_conversation.jsonl"))
    table = traces.read(shared("data/trace_mooncake_conversation.csv"))
    assert len(lines) == 12031
    np.testing.assert_array_equal(lines.arrival_s, table.arrival_s)
    np.testing.assert_array_equal(lines.prompt_tokens, table.prompt_tokens)
    np.testing.assert_array_equal(lines.output_tokens, table.output_tokens)
    with open(shared("data/trace_mooncake_conversation.jsonl")) as file:
        assert json.loads(file.readline())["input_length"] == lines.prompt_tokens[0]


@pytest.mark.parametrize(
    ("model", "mean_input"),
    [("meta-llama/Llama-3.1-8B", 857.46), ("Qwen/Qwen3-32B", 862.30), ("Qwen/Qwen3-30B-A3B", 862.30)],
)
def test_public_replays_of_three_models(model: str, mean_input: float):
    table = traces.read(shared("data/vllm_replay_requests.csv"), model)
    assert len(table) == 300
    assert table.prompt_tokens.mean() == pytest.approx(mean_input, abs=0.01)
    assert 29 < table.arrival_s[-1] < 29.2
