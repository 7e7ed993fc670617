"""What ``inferometer audit`` prints: the answer first, points of one kind together, within 100 columns."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.cli.main import main
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report import terminal
from inferometer.report.findings import findings, verdict
from inferometer.scoring.audit import audit
from ran import Ran
from shared import shared

HEAD = "concurrency,output_tok_per_s,ttft_ms_p50,tpot_ms_p50"


def point(users: int, **stated: float) -> Run:
    return make_run(RunMeta(kind="imported", concurrency=users, stated={"requests": 100.0 * users, **stated}))


def printed(runs: list[Run]) -> str:
    out = io.StringIO()
    console = terminal.make_console(out)
    console.width = 100
    findings(audit(runs), console, points=len(runs), measured=["a b.csv"])
    return out.getvalue()


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Three points of the founding sweep, as people keep them."""
    rows = [f"{c},{row[0]},{row[1] * 1000:g},{row[3] * 1000:g}" for c, row in founding_sweep.SWEEP.items() if c <= 4]
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return str(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def ran(*words: str) -> Ran:
        status = main(["audit", *words])
        return Ran(status, *capsys.readouterr())

    return ran


def test_the_answer_comes_first_and_points_stand_together() -> None:
    text = printed([point(c, failed=float(c)) for c in (1, 2, 4)])
    lines = text.splitlines()
    assert lines[0] == "1 finding at 3 points, none spoils the figures: 1 warning."
    assert "warning  Requests failed   C=1, 2, 4" in lines
    assert text.count("Do: ") == 1


def test_a_kind_at_two_severities_is_shown_twice() -> None:
    lines = printed([point(1, failed=1.0), point(2, failed=50.0)]).splitlines()
    assert lines[0] == "2 findings at 2 points, 1 spoils the figures: requests failed (C=2)."
    assert any(line.startswith("spoils   Requests failed   C=2") for line in lines)
    assert any(line.startswith("warning  Requests failed   C=1") for line in lines)


def test_lines_fit_and_the_next_command_can_be_pasted() -> None:
    text = printed([*founding_sweep.runs(), point(256, failed=50.0)])
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "inferometer audit 'a b.csv' --study STUDY" in text


def test_nothing_found() -> None:
    assert verdict(audit([point(1)])) == "Nothing found at the point."
    assert printed([point(1), point(2)]).splitlines()[0] == "Nothing found at 2 points."


def test_a_study_says_what_served_and_how_long_the_prompts_are(run, table: str) -> None:
    ran = run(table, "--study", founding_sweep.STUDY)
    assert ran.status == 1
    first = ran.out.splitlines()[0]
    assert "1 spoils the figures: TTFT below what computing the prompt takes (C=1)" in first
    assert "23 ms" in ran.out
    assert "53 ms" in ran.out
    assert f"inferometer score {founding_sweep.STUDY} {table}" in ran.out


def test_without_a_study_nothing_is_held_against_a_chip(run, table: str) -> None:
    ran = run(table)
    assert ran.status == 0
    assert "Not held against the floors of a chip" in ran.out


def test_flags_say_what_served_too(run, table: str) -> None:
    by_flags = ("--model", "Qwen/Qwen3-8B", "--chip", "a100-sxm4-80gb")
    assert run(table, *by_flags).status == 0, "nobody said how long the prompts were"
    assert run(table, *by_flags, "--prompt-tokens", "1024").status == 1


def test_a_predictions_file_says_what_served_too(run, table: str, tmp_path: Path) -> None:
    predicted = im.predict(founding_sweep.STUDY, overrides=["workload.concurrency=[1]"])
    sealed = str(predicted.seal(tmp_path / "store"))
    by_study = run(table, "--study", founding_sweep.STUDY, "--json").json
    assert run(table, "--study", sealed, "--json").json == by_study
    assert f"inferometer score {sealed} {table}" in run(table, "--study", sealed).out


def test_the_next_command_keeps_what_was_given(run) -> None:
    folder = shared("data/cpu_engine/main_clean")
    given = [str(folder / "c1.json"), "--metrics", "auto", "--server-log", f"{folder}.server.log"]
    assert f"inferometer audit {' '.join(given)} --study STUDY" in run(*given).out


def test_a_studys_lengths_are_not_those_of_another_load(run) -> None:
    """576 in, 64 out are not short answers of a load of 256 in, 128 out; 256 in, 128 out are of 256 in, 200 out."""
    lengths = ("--prompt-tokens", "256", "--model", "Qwen/Qwen3-8B", "--chip", "a100-sxm4-80gb", "--json")
    prefix, clean = (
        str(shared(f"data/cpu_engine/{name}")) for name in ("prefix/prefix_on_c4.json", "main_clean/c8.json")
    )

    def codes(result: str, output_tokens: str) -> set[str]:
        return {each["code"] for each in run(result, *lengths, "--output-tokens", output_tokens).json["findings"]}

    assert "short_outputs" not in codes(prefix, "128")
    assert "short_outputs" in codes(clean, "200")
    assert "short_outputs" not in codes(clean, "128")


def test_quiet_prints_the_answer_alone(run, table: str) -> None:
    assert run(table, "--quiet", "--study", founding_sweep.STUDY).out.count("\n") == 1


def test_json(run, table: str) -> None:
    ran = run(table, "--json", "--study", founding_sweep.STUDY)
    document = json.loads(ran.out)
    assert (document["schema"], document["passed"], document["spoils"]) == ("inferometer/audit/1", False, 1)
    first = document["findings"][0]
    assert (first["code"], first["where"], first["value"], first["unit"]) == (
        "ttft_below_prefill_floor",
        "C=1",
        0.023,
        "s",
    )
    # 13.89 GFLOP a token and 1.24 for the first output, on 312 TFLOP/s
    assert first["limit"] == pytest.approx((1024 * 13.89e9 + 1.24e9) / 312e12, rel=0.01)
    assert len(document["runs"]) == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [((), "nothing measured"), (("nowhere.json",), "a result file, folder or glob"), (("--chip", "a100"), "no")],
)
def test_bad_input_takes_one_line(run, words: tuple[str, ...], complaint: str) -> None:
    ran = run(*words)
    assert ran.status == 2
    assert complaint in ran.err
    assert ran.err.count("\n") == 1


def test_the_servers_pages_are_joined(run) -> None:
    """80 % of the prompt tokens came from the cache, which the client's own file cannot know."""
    result, pages = (str(shared(f"data/cpu_engine/prefix/prefix_on_c4{end}")) for end in (".json", ".metrics.prom"))
    assert "prefix cache" not in run(result).out
    joined = run(result, "--metrics", pages)
    assert joined.status == 1
    assert "80% from the cache" in joined.out


def test_pages_are_matched_by_name_and_one_without_is_refused(run) -> None:
    folder = shared("data/cpu_engine/prefix")
    both = run(*(str(folder / f"prefix_on_c{users}.json") for users in (4, 8)), "--metrics", str(folder))
    assert both.status == 1
    assert "80% from the cache" in both.out
    assert "83% from the cache" in run(str(folder / "prefix_on_c8.json"), "--metrics", "auto").out
    missing = run(str(folder / "prefix_on_c4.json"), "--metrics", str(folder.parent / "main_clean"))
    assert missing.status == 2
    assert "prefix_on_c4" in missing.err
