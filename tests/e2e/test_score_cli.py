"""`inferometer score` of sealed predictions, what it keeps, and the scorecard."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inferometer.cli.main import main
from ran import Ran
from shared import shared

FLAGS = [
    *("--model", "Qwen/Qwen3-8B", "--chip", "a100-sxm4-80gb", "--engine-version", "0.26.0"),
    *("--concurrency", "1,2", "--prompt-tokens", "256", "--output-tokens", "16"),
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)

    def command(*words: str) -> Ran:
        capsys.readouterr()
        return Ran(main(words), *capsys.readouterr())

    return command


def sweep(path: Path, started: str = "2031-01-01T00:00:00+00:00", rows: tuple[str, ...] = ("1,80", "2,160")) -> str:
    path.write_text(f"concurrency,output_tok_per_s,started\n{''.join(f'{row},{started}{chr(10)}' for row in rows)}")
    return path.name


def sealed(run: Any, *claims: str) -> str:
    words = [word for claim in claims for word in ("--claim", claim)]
    assert run("predict", *FLAGS, "--seal", *words, "--quiet").status == 0
    (file,) = Path(".inferometer/predictions").glob("*.json")
    return str(file)


def test_a_sealed_prediction_is_scored_as_it_stands(run: Any, tmp_path: Path):
    file = sealed(run, "output_tok_per_s@2=200")
    ran = run("score", file, sweep(tmp_path / "sweep.csv"), "--tolerance", "9")
    assert ran.status == 0
    assert ran.out.splitlines()[0].startswith(f"Sealed {Path(file).stem[:8]}")
    assert re.search(r"^out tok/s at C=2 +200 +\+25\.0 ", ran.out, flags=re.M)
    assert max(map(len, ran.out.splitlines())) <= 100
    card = run("score", file, "sweep.csv", "--tolerance", "9", "--json").json
    assert card["seal"]["state"] == "sealed"
    assert card["claims"][0]["measured"] == 160
    point = json.loads(Path(file).read_text())["points"][0]
    assert card["rows"][0]["predicted"] == point["output_tok_per_s"]


def test_sealed_too_late_is_said_first(run: Any, tmp_path: Path):
    file = sealed(run)
    ran = run("score", file, sweep(tmp_path / "old.csv", started="2020-01-01T00:00:00+00:00"))
    assert ran.out.splitlines()[0].startswith("Not a sealed prediction: sealed ")
    assert run("score", file, "old.csv", "--quiet").err.startswith("Not a sealed prediction")


def test_a_broken_seal_fails(run: Any, tmp_path: Path):
    file = Path(sealed(run))
    file.write_text(file.read_text().replace('"seed": null', '"seed": 7', 1))
    ran = run("score", str(file), sweep(tmp_path / "sweep.csv"), "--tolerance", "9")
    assert (ran.status, ran.out.startswith("Broken seal")) == (1, True)


def test_a_prediction_is_not_changed_on_the_way(run: Any, tmp_path: Path):
    file = sealed(run)
    sweep(tmp_path / "sweep.csv")
    for words in (("--seed", "3"), ("--set", "workload.output_tokens=8"), ("--max-num-seqs", "8")):
        ran = run("score", file, "sweep.csv", *words)
        assert (ran.status, ran.out) == (2, "")
        assert words[0] in ran.err


def test_missing_points_are_named(run: Any, tmp_path: Path):
    ran = run("score", sealed(run), sweep(tmp_path / "part.csv", rows=("1,80",)))
    assert "Predicted and not measured: C=2." in ran.out


def test_scores_are_kept_and_summed_up(run: Any, tmp_path: Path):
    file = sealed(run)
    assert "no score is kept" in run("score", "--scorecard").out.lower()
    assert "Sealed and never scored" in run("score", "--scorecard").out
    sweep(tmp_path / "sweep.csv")
    run("score", file, "sweep.csv", "--no-store")
    assert run("score", "--scorecard", "--json").json["scores"] == 0
    run("score", file, "sweep.csv")
    run("score", file, "sweep.csv", "--json")
    run("score", *FLAGS, "sweep.csv")
    ran = run("score", "--scorecard")
    assert ran.out.startswith("2 predictions scored.")
    assert max(map(len, ran.out.splitlines())) <= 100
    document = run("score", "--scorecard", "--json").json
    assert document["schema"] == "inferometer/scorecard/1"
    assert {tally["name"]: tally["points"] for tally in document["by_seal"]} == {"sealed before": 2, "all others": 2}
    assert run("score", "--scorecard", "--quiet").out.count("\n") <= 2
    assert run("score", "--scorecard", "sweep.csv").status == 2


def test_memory_is_scored_against_the_startup_log(run: Any):
    folder = shared("data/cpu_engine")
    words = (
        "score",
        *FLAGS,
        str(folder / "main_clean" / "c1.json"),
        "--server-log",
        str(folder / "main_clean.server.log"),
    )
    card = run(*words, "--json").json
    rows = {row["metric"]: row["measured"] for row in card["rows"]}
    assert rows["memory.kv_cache_tokens"] == 65536
    assert rows["memory.kv_pool_bytes"] == 2 * 2**30
