"""``inferometer runs export``: to a file, to standard output, and what it says of a format that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import inferometer as im
from inferometer.cli.main import main
from shared import shared

DETAILED = "data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json"


@pytest.fixture
def run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFEROMETER_STORE", str(tmp_path / "store"))
    assert main(["import", str(shared(DETAILED)), "--quiet"]) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(("format", "name"), [("vllm-bench", "r.json"), ("llmd-report", "r.yaml")])
def test_to_a_file_that_loads_again(run_id: str, format: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "export", run_id, "--format", format, "--output", name]) == 0
    assert capsys.readouterr().out == f"Wrote {run_id} to {name}.\n"
    (run,) = im.load(name)
    assert run.summary().tpot_s.p99 == pytest.approx(0.020031386005328994)
    assert main(["runs", "export", run_id, "--format", format, "--output", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "inferometer/exported/1",
        "id": run_id,
        "format": format,
        "file": name,
    }


def test_to_standard_output(run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "export", run_id[:8], "--format", "vllm-bench"]) == 0
    assert json.loads(capsys.readouterr().out)["num_prompts"] == 5
    assert main(["runs", "export", run_id, "--format", "llmd-report"]) == 0
    report = yaml.safe_load(capsys.readouterr().out)
    assert main(["runs", "export", run_id, "--format", "llmd-report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report


def test_what_cannot_be_done(run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--format", "csv"], [], ["--format", "vllm-bench", "--output", "no/such/folder.json"]):
        assert main(["runs", "export", run_id, *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["runs", "export", "nothing", "--format", "vllm-bench"]) == 2
