"""``inferometer report``: what the second seed asks for of its sweep, and reports of less than a whole one."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from inferometer.cli.main import main
from ran import Ran
from shared import shared

STUDY = "a100-qwen3-8b"
SMALL = """
name = "small"
model = "Qwen/Qwen3-8B"
chip = "a100-sxm4-80gb"
[workload]
prompt_tokens = 256
output_tokens = 16
concurrency = [1, 2]
"""
POINT = "concurrency,output_tok_per_s,ttft_ms_p50,ttft_ms_p99\n1,85,30,31\n"


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    capsys.readouterr()
    status = main(words)
    return Ran(status, *capsys.readouterr())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "point.csv").write_text(POINT)
    return tmp_path


def founding_table(path: Path) -> Path:
    """The founding sweep as its table, with the KV cache that its log printed."""
    facts = json.loads(shared("vectors/seeds.json").read_text())["benchmark"]
    pool = {
        "num_gpu_blocks": facts["kv_pool_measured"]["blocks"],
        "kv_cache_tokens": facts["kv_pool_measured"]["tokens"],
    }
    points = [{**point, **pool} for point in facts["sweep_measured"]]
    columns = list(dict.fromkeys(name for point in points for name in point))
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, restval="")
        table.writeheader()
        table.writerows(points)
    return path


@pytest.fixture(scope="module")
def founding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the founding sweep, made by the command."""
    into = tmp_path_factory.mktemp("founding")
    table = founding_table(into / "sweep.csv")
    assert main(["report", STUDY, str(table), "-o", str(into), "--format", "md,html,svg", "--quiet"]) == 0
    return into


def test_the_five_predictions_are_scored(founding: Path):
    text = (founding / "report.md").read_text()
    assert "only a flattening from about 72 users" in text  # 1: no knee at a context of 1,536
    row = next(line for line in text.splitlines() if line.startswith("| C=64 | 4,230 |"))  # 2
    assert "| 2,500 |" in row
    assert re.search(r"KV cache, blocks \| 25,\d+ \| [^|]* \| 25,\d+ \|", text) or "25,640" in text  # 3
    assert "It holds at all 8 points." in text  # 4
    assert re.search(r"TTFT knee: predicted C=\d+, measured C=2", text)  # 5


def test_goodput_has_the_gap_of_the_seed(founding: Path):
    vectors = json.loads(shared("vectors/seeds.json").read_text())["benchmark"]["goodput"]
    low, high = vectors["gap"]
    text = (founding / "report.md").read_text()
    found = re.search(r"a gap of ([\d.]+)x to ([\d.]+)x", text)
    assert found is not None
    assert float(found[1]) == pytest.approx(low, abs=0.005)
    assert float(found[2]) == pytest.approx(high, abs=0.05)
    assert "640 tok/s at C=8 by p99" in text
    assert "1,760 tok/s at C=32 by p50" in text


def test_the_seed_s_three_findings_are_told(founding: Path):
    text = (founding / "report.md").read_text()
    assert re.search(r"spoils \| C=1 \|.*23 ms", text)
    assert "1.9x" in text
    assert re.search(r"token budget of 2,048 .*8,192", text)


def test_both_charts_are_there_and_linked(founding: Path):
    text = (founding / "report.md").read_text()
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (founding / name).read_text().startswith("<svg")
    assert {"throughput.svg", "ttft.svg", "waterfall.svg"} <= {path.name for path in founding.iterdir()}


def test_it_is_the_same_when_made_again(founding: Path, tmp_path: Path):
    table = founding / "sweep.csv"
    assert main(["report", STUDY, str(table), "-o", str(tmp_path), "--format", "md,html", "--quiet"]) == 0
    for name in ("report.md", "report.html"):
        assert (tmp_path / name).read_bytes() == (founding / name).read_bytes()


def test_the_terminal_says_the_answer_and_where_it_all_is(folder: Path, capsys: pytest.CaptureFixture[str]):
    found = ran(capsys, "report", "small.toml", "point.csv", "--format", "md")
    assert found.status == 0
    assert "Predicted but not measured: C=2." in found.out
    assert f"wrote {Path('report') / 'report.md'}" in found.out
    assert max(map(len, found.out.splitlines())) <= 100
    assert sorted(path.name for path in (folder / "report").iterdir()) == ["report.md"]


def test_json_and_quiet(folder: Path, capsys: pytest.CaptureFixture[str]):
    told = ran(capsys, "report", "small.toml", "point.csv", "--format", "md", "-o", "there", "--json").json
    assert told["schema"] == "inferometer/report/1"
    assert told["paths"] == [str(Path("there") / "report.md")]
    assert told["score"]["schema"] == "inferometer/score/1"
    assert any("not measured: C=2" in each for each in told["missing"])
    quiet = ran(capsys, "report", "small.toml", "point.csv", "--format", "md", "-o", "there", "--quiet")
    assert quiet.out == str(Path("there") / "report.md") + "\n"


def test_a_study_alone_and_a_measurement_alone(folder: Path, capsys: pytest.CaptureFixture[str]):
    alone = ran(capsys, "report", "small.toml", "--format", "md")
    assert alone.status == 0
    assert "Nothing is measured yet: this is the prediction alone." in alone.out
    measured = ran(capsys, "report", "point.csv", "--format", "html")
    assert measured.status == 0
    assert "<h1>" in (folder / "report/report.html").read_text()


def test_a_sealed_prediction(folder: Path, capsys: pytest.CaptureFixture[str]):
    sealed = ran(capsys, "predict", "small.toml", "--seal", "--json").json["sealed"]
    found = ran(capsys, "report", sealed["path"], "point.csv", "--format", "md")
    assert found.status == 0
    assert f"seal {sealed['sha256'][:8]}" in (folder / "report/report.md").read_text()
    refused = ran(capsys, "report", sealed["path"], "point.csv", "--seed", "2")
    assert refused.status == 2
    assert "leave out --seed" in refused.err


def test_real_runs_with_requests_gaps_and_server(folder: Path, capsys: pytest.CaptureFixture[str]):
    runs = shared("data/cpu_engine/main_clean")
    words = [str(runs / "c1.json"), str(runs / "c8.json")]
    found = ran(capsys, "report", *words, "--metrics", "auto", "--format", "svg", "--quiet")
    assert found.status == 0
    assert {"itl.svg", "server.svg"} <= {Path(line).name for line in found.out.splitlines()}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["small.toml", "--format", "pdf"], "of md, html, svg, png"),
        (["nothing-here"], "measured: 'nothing-here'"),
        (["point.csv", "--seed", "1"], "leave out --seed"),
    ],
)
def test_bad_input_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str):
    found = ran(capsys, "report", *words)
    assert found.status == 2
    assert told in found.err
    assert found.err.count("\n") == 1
