"""``inferometer explain``: what it prints, its JSON, and bad input."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from inferometer.cli import founding_sweep
from inferometer.cli.main import main
from inferometer.records.metrics import sweep_table
from inferometer.scoring.explanation import EFFECTS
from ran import Ran


@pytest.fixture
def sweep_file(tmp_path: Path) -> str:
    rows = sweep_table(founding_sweep.runs()[-2:])
    path = tmp_path / "sweep.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    status = main(["explain", founding_sweep.STUDY, *words])
    return Ran(status, *capsys.readouterr())


def test_the_answer_comes_first_and_all_fits(sweep_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ran(capsys, sweep_file, "--concurrency", "64")
    assert found.status == 0
    lines = found.out.splitlines()
    assert lines[3].startswith("C=64: roofline 5,010 tok/s, measured 2,504.6:")
    assert all(len(line) <= 100 for line in lines[:-1])  # the last is a command to paste
    for effect in EFFECTS:
        assert sum(line.startswith(effect) for line in lines) >= 2, effect  # its bar and its note
    assert any(line.startswith("max_num_batched_tokens=2048, stated") and " fits" in line for line in lines)


def test_quiet_is_the_sentence_of_the_point(sweep_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, sweep_file, "--quiet").out.startswith("C=128: roofline 7,309")
    assert ran(capsys, sweep_file, "--quiet", "--concurrency", "64").out.startswith("C=64: ")


def test_json_holds_every_step_of_every_point(sweep_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = ran(capsys, sweep_file, "--json").json
    assert document["schema"] == "inferometer/explanation/1"
    (arm,) = document["arms"]
    assert [point["load"] for point in arm["points"]] == ["C=64", "C=128"]
    for point in arm["points"]:
        assert [step["effect"] for step in point["steps"]] == list(EFFECTS)
        last = point["steps"][-1]["tok_per_s"]
        assert point["steps"][0]["tok_per_s"] + sum(step["change"] for step in point["steps"]) == pytest.approx(last)
    assert {each["setting"] for each in arm["hypotheses"]} == {"max_num_batched_tokens", "async_scheduling"}


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "nothing measured"), (("--concurrency", "3"), "one of the points measured: 64, 128")],
)
def test_bad_input_is_one_line(
    sweep_file: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    found = ran(capsys, *([sweep_file] if words else []), *words)
    assert found.status == 2
    assert said in found.err
