"""``inferometer explain``: what it prints, its JSON, and bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.cli.main import main
from inferometer.records.metrics import sweep_table
from inferometer.scoring.explanation import EFFECTS
from ran import Ran
from shared import shared


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
    assert lines[3].startswith("C=64: roofline at 1,024 tokens of context 5,010 tok/s, measured 2,504.6:")
    assert all(len(line) <= 100 for line in lines[:-1])  # the last is a command to paste
    for effect in EFFECTS:
        assert sum(line.startswith(effect) for line in lines) >= 2, effect  # its bar and its note
    assert any(line.startswith("max_num_batched_tokens=2048, stated") and " fits" in line for line in lines)


def test_quiet_is_the_sentence_of_the_point(sweep_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, sweep_file, "--quiet").out.startswith("C=128: roofline at 1,024 tokens of context 7,309 tok/s, ")
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


def test_the_table_says_at_which_context_its_roofline_is(sweep_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ran(capsys, sweep_file).out.splitlines()
    table = next(number for number, line in enumerate(lines) if line.startswith("All points"))
    assert lines[table + 4].startswith("The roofline is at the prompt's context")


def test_the_next_command_keeps_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared("data/cpu_engine")
    c1, pages = (str(folder / "main_clean" / name) for name in ("c1.json", "c1.metrics.prom"))
    log = str(folder / "main_clean.server.log")
    found = ran(capsys, c1, "--metrics", pages, "--server-log", log, "--set", "deployment.max_num_seqs=64")
    last = found.out.strip().splitlines()[-1]
    assert f"calibrate {c1} --metrics {pages} --server-log {log} --study {founding_sweep.STUDY} --set " in last
    assert "deployment.max_num_seqs=64 -o profile.toml" in last


@pytest.fixture
def predicted() -> im.Prediction:
    """Of the founding study with another token budget and constants of half the bandwidth."""
    mine = im.Profile(
        name="mine",
        chip="a100-sxm4-80gb",
        model="qwen3-8b",
        engine="vllm",
        params={"weight_read": 0.4},
        stderr={"weight_read": 0.01},
    )
    changes = ["workload.concurrency=[1]", "deployment.max_num_batched_tokens=4096"]
    return im.predict(founding_sweep.STUDY, overrides=changes, profile=mine)


def explained(capsys: pytest.CaptureFixture[str], study: str, *words: str) -> dict[str, Any]:
    assert main(["explain", study, *words, "--json"]) == 0
    (arm,) = json.loads(capsys.readouterr().out)["arms"]
    return dict(arm)


def test_a_prediction_says_what_was_served_and_by_which_constants(
    sweep_file: str, predicted: im.Prediction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "prediction.json"
    plain.write_bytes(msgspec.json.encode(predicted.to_dict()))
    for path in (str(plain), str(predicted.seal(tmp_path / "store"))):
        arm = explained(capsys, path, sweep_file)
        assert [each["value"] for each in arm["hypotheses"] if each["stated"] and "max_num" in each["setting"]] == [
            4096
        ]
        rates = next(s for s in arm["points"][0]["steps"] if s["effect"] == "bandwidth and FLOP/s reached")
        assert "weights at 40 %" in rates["note"]
    other = tmp_path / "other.toml"
    msgspec.structs.replace(predicted.profile, params={"weight_read": 0.7}).save(other)
    given = explained(capsys, str(plain), sweep_file, "--profile", str(other))
    assert any("weights at 70 %" in step["note"] for step in given["points"][0]["steps"])


def test_a_prediction_that_is_not_what_was_sealed_is_warned_of(
    sweep_file: str, predicted: im.Prediction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed = predicted.seal(tmp_path / "store")
    sealed.chmod(0o644)
    sealed.write_text(sealed.read_text().replace("4096", "8192"))
    assert main(["explain", str(sealed), sweep_file, "--quiet"]) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"warning: {sealed}: not what was sealed (")
    assert err.count("\n") == 1


def test_a_file_that_is_no_prediction_is_refused(
    sweep_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "p.json"
    broken.write_text('{"schema": "inferometer/prediction/1"}')
    assert main(["explain", str(broken), sweep_file]) == 2
    assert "p.json" in capsys.readouterr().err


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
