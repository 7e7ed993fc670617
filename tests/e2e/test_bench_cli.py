"""``inferometer bench`` as a user runs it, against the emulator: answers, exit statuses, JSON, Ctrl-C and kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferometer.cli.bench_flags import levels
from inferometer.cli.main import main
from inferometer.emulator import serve
from inferometer.errors import InputError
from inferometer.store import Store
from ran import Ran

ROOT = Path(__file__).resolve().parents[2]
STUDY = """
model = "Qwen/Qwen3-8B"
chip = "a100-sxm4-80gb"

[deployment]
engine_version = "0.26.0"

[workload]
prompt_tokens = 128
output_tokens = 8
concurrency = [1, 2]
requests_per_point = { per_concurrency = 5 }

[slo]
ttft_ms = 5000
tpot_ms = 2000
"""
LENGTHS = ("--prompt-tokens", "128", "--output-tokens", "8")
FAST = {"time_scale": 0.25}


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("study") / "study.toml"
    file.write_text(STUDY)
    return file


@pytest.fixture(scope="module")
def url(study: Path) -> Iterator[str]:
    with serve(study, **FAST) as address:
        yield address


@pytest.fixture
def run(tmp_path: Path, study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)
    (tmp_path / "study.toml").write_text(study.read_text())

    def command(*words: str) -> Ran:
        capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Ran(status, *capsys.readouterr())

    return command


def unless_unfit(ran: Ran) -> int:
    """The exit status, 0 where only a busy machine made the client late."""
    return 0 if ran.status == 1 and "unfit" in ran.out + ran.err and "failed" not in ran.err else ran.status


def absent(example: Any, actual: Any, path: str = "") -> list[str]:
    """Paths of the example that the actual document lacks."""
    if isinstance(example, list):
        return absent(example[0], actual[0], f"{path}[0]") if example and actual else []
    if not isinstance(example, dict):
        return []
    if not isinstance(actual, dict):
        return [path] if actual is not None else []
    lacking = [f"{path}.{key}" for key in example if key not in actual]
    return lacking + [
        each for key in example if key in actual for each in absent(example[key], actual[key], f"{path}.{key}")
    ]


# --- points


def test_a_study_is_measured_kept_and_scored(run: Run, url: str):
    ran = run("bench", url, "study.toml", "--chip", "a100-sxm4-80gb")
    assert unless_unfit(ran) == 0
    assert ran.out.startswith(f"Qwen/Qwen3-8B at {url}/v1   vLLM 0.26.0   closed loop, 128 in / 8 out\n")
    assert max(map(len, ran.out.split("Kept in")[0].splitlines())) <= 100
    assert "Goodput by marginal percentile (TTFT < 5,000 ms, TPOT < 2,000 ms):" in ran.out
    rows = re.findall(r"^ +([12])  .*", ran.out, flags=re.M)
    assert rows == ["1", "2"]
    assert "Server's own" in ran.out
    (score,) = re.findall(r"^Beside its prediction: +inferometer (score .*)$", ran.out, flags=re.M)
    assert "C = 1 (1 of 2): preparing" in ran.err
    assert "C=2 " in ran.err
    assert "\x1b" not in ran.out + ran.err
    assert [row["concurrency"] for row in Store().list(kind="measured")] == [1, 2]
    scored = run(*score.split(), "--tolerance", "1000", "--json")
    assert {row["concurrency"] for row in scored.json["rows"] if row["metric"] == "ttft_ms.p50"} == {1, 2}
    assert scored.json["notes"] == []


def test_resume_takes_what_is_there(run: Run, url: str):
    first = run("bench", url, "--concurrency", "1", *LENGTHS, "--requests", "4", "--quiet")
    if first.status == 1 and "unfit" in first.err.lower():
        pytest.skip("the machine was too busy for a fit run, and only such are taken")
    assert (first.status, first.err) == (0, "")
    again = run("bench", url, "--concurrency", "1,2", *LENGTHS, "--requests", "4", "--resume", "--json")
    assert first.out.strip() == again.json["runs"][0]["id"]
    assert "C=1 taken from the store" in again.err
    assert len(again.json["runs"]) == 2


def test_json_is_that_of_the_reference(run: Run, url: str):
    ran = run("bench", url, "study.toml", "--concurrency", "2", "--no-store", "--json", "--seed", "7", "--name", "mine")
    assert unless_unfit(ran) == 0
    document = ran.json
    assert (document["schema"], document["store"]) == ("inferometer/runs/1", None)
    (found,) = document["runs"]
    assert (found["kind"], found["name"], found["seed"], found["concurrency"]) == ("measured", "mine", 7, 2)
    assert (found["chip"], found["requests"], found["partial"]) == ("a100-sxm4-80gb", 10, "")
    assert found["summary"]["output_tokens"] == 80
    assert found["server"]["means"].keys() >= {"ttft_s", "tpot_s", "e2e_s"}
    assert document["goodput"]["raw_max"]["concurrency"] == 2
    page = (ROOT / "docs/reference/json.md").read_text()
    section = page[page.index("\n## bench\n") :]
    example = json.loads(re.search(r"```json\n(.*?)```", section, flags=re.S)[1])
    assert set(document) == set(example)
    assert absent(example, document) == []
    assert not Path(".inferometer").exists()


def test_an_open_loop_with_a_cap(run: Run, url: str):
    words = ("--request-rate", "200", "--max-concurrency", "1", "--requests", "30", *LENGTHS)
    ran = run("bench", url, *words, "--no-store", "--tolerate-failures", "1")
    assert "at most 1 in flight let" in ran.out
    assert "Client's queue" in ran.out


def test_conversations_are_chat(run: Run, url: str):
    ran = run("bench", url, "--concurrency", "2", "--turns", "2", "--sessions", "3", *LENGTHS, "--no-store", "--json")
    assert unless_unfit(ran) == 0
    (found,) = ran.json["runs"]
    assert found["requests"] == 6
    assert found["workload"]["endpoint"] == "chat"


def test_a_trace_is_replayed(run: Run, url: str):
    Path("trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,20,4\n0.2,30,5\n0.4,40,6\n")
    ran = run("bench", url, "--trace", "trace.csv", "--rate-scale", "2", "--no-store", "--json")
    assert unless_unfit(ran) == 0
    assert ran.json["runs"][0]["summary"]["output_tokens"] == 15
    of_study = run("bench", url, "study.toml", "--trace", "trace.csv", "--no-store", "--json")
    assert of_study.json["runs"][0]["requests"] == 3


def test_a_search_finds_the_highest_load(run: Run, url: str):
    words = ("--concurrency", "1..4", "--search", "--ttft-ms", "5000", "--attainment", "0.5", *LENGTHS)
    ran = run("bench", url, *words, "--no-store", "--json")
    assert unless_unfit(ran) == 0
    found = ran.json["search"]
    assert (found["by"], found["level"], found["beyond"], found["slo"]["ttft_ms"]) == ("concurrency", 4, None, 5000)
    assert [trial["level"] for trial in found["trials"]] == [1, 2, 4]
    quiet = run("bench", url, *words, "--no-store", "--quiet")
    assert quiet.out.startswith("Up to C=4, 50 % of the requests meet TTFT < 5,000 ms; no higher one was tried.\n")
    none = run("bench", url, *words[:3], "--ttft-ms", "0.001", *LENGTHS, "--no-store")
    assert none.status == 1
    assert "At no load do 99 % of the requests meet TTFT < 0.001 ms, the lowest tried (C=1)." in none.out


# --- failures


def test_failures_are_printed_and_exit_1(run: Run, study: Path):
    words = ("--concurrency", "4", "--requests", "40", *LENGTHS)
    with serve(study, faults=("error-rate=0.3",), seed=1, **FAST) as url:
        ran = run("bench", url, *words)
        tolerant = run("bench", url, *words, "--tolerate-failures", "0.9", "--quiet")
    assert ran.status == 1
    assert re.search(r"^\d+ of 40 requests failed\.$", ran.out, flags=re.M)
    assert re.search(r"^\d+ of 40 requests failed \(\d+ http 500\)\.$", ran.out, flags=re.M)
    assert tolerant.status == int("unfit" in tolerant.err.lower())
    assert "requests failed" in tolerant.err  # also where only the answer is wanted
    assert re.search(r"^  \d+ x http 500.*Injected", ran.out, flags=re.M)
    (kept, _) = Store().list()
    count = Store().load(kept["id"]).requests["error"].drop_nulls().len()
    assert re.search(rf"{kept['id']} .* {count} failed", run("runs").out)
    assert sum(run("runs", "show", kept["id"], "--json").json["errors"].values()) == count
    assert re.search(r"^  \d+ x http 500.*Injected", run("runs", "show", kept["id"]).out, flags=re.M)
    assert Store().load(kept["id"]).requests["error"].drop_nulls().len() > 0


def test_a_key_is_needed_and_given(run: Run, study: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("INFEROMETER_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ("--concurrency", "1", "--requests", "2", *LENGTHS, "--no-store", "--quiet")
    with serve(study, api_key="open-sesame", **FAST) as url:
        assert run("bench", url, *words).status == 2
        assert unless_unfit(run("bench", url, *words, "--api-key", "open-sesame")) == 0
        assert unless_unfit(run("bench", url, *words, "--header", "Authorization: Bearer open-sesame")) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no load"),
        (("--concurrency", "1,x"), "--concurrency: '1,x'"),
        (("--concurrency", "8..1"), "ranges that go up"),
        (("--request-rate", "0"), "--request-rate"),
        (("--concurrency", "1", "--request-rate", "1"), "exactly one of --concurrency, --request-rate"),
        (("--concurrency", "1", "--arrivals", "gamma"), "--arrivals"),
        (("--request-rate", "1", "--burstiness", "0.5"), "burstiness"),
        (("--request-rate", "1", "--think-time-s", "1"), "--think-time-s"),
        (("--request-rate", "1", "--turns", "2"), "--turns"),
        (("--concurrency", "1", "--sessions", "2"), "--sessions"),
        (("--concurrency", "1", "--rate-scale", "2"), "--rate-scale"),
        (("--concurrency", "1", "--max-concurrency", "2"), "--max-concurrency"),
        (("--concurrency", "1", "--arm", "x"), "--arm"),
        (("--concurrency", "1", "--highest", "8"), "--highest"),
        (("--concurrency", "1", "--search"), "--search: needs a limit: --ttft-ms, --tpot-ms or --e2e-ms"),
        (("--concurrency", "1", "--search", "--ttft-ms", "9", "--refine", "1"), "--search"),
        (("--concurrency", "1", "--header", "no colon"), "--header"),
        (("--concurrency", "1", "--extra-body", "[1]"), "--extra-body"),
        (("--concurrency", "1", "--extra-body", "{"), "--extra-body"),
        (("--concurrency", "1", "--tolerate-failures", "2"), "--tolerate-failures"),
        (("--concurrency", "1", "--confidence", "5"), "--confidence: 5.0 "),
        (("--confidence", "5"), "--confidence: 5.0 "),
        (("--concurrency", "1", "--duration-s", "0"), "--duration-s: 0.0 "),
        (("--concurrency", "1", "--server-log", "nope"), "--server-log: 'nope' "),
        (("--concurrency", "1", "--workers", "0"), "--workers: 0 "),
        (("--concurrency", "1", "--prefix-reuse", "3"), "--prefix-reuse: 3 .* with --shared-prefix-len"),
        (("--concurrency", "1", "--search", "--ttft-ms", "-4"), "--ttft-ms: -4.0 .* above 0 ms"),
        (("--concurrency", "1", "--dataset", "a", "--prompt-tokens", "3"), "--prompt-tokens: '3' "),
        (("--concurrency", "1", "--endpoint", "embeddings"), "--endpoint"),
        (("--concurrency", "1", "--prompt-tokens", "many"), "--prompt-tokens: 'many'"),
        (("--trace", "none.csv"), "none.csv"),
        (("none.toml",), "none.toml"),
        (("study.toml", "--arm", "none"), "none"),
        (("--concurrency", "1"), "nothing answers"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], says: str, run: Run):
    ran = run("bench", "http://127.0.0.1:9", *words)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert re.search(says, ran.err)


def test_levels():
    assert levels("--concurrency", "1..64", whole_numbers=True) == [1, 2, 4, 8, 16, 32, 64]
    assert levels("--request-rate", "0.5..3,1", whole_numbers=False) == [0.5, 1.0, 2.0, 3.0]
    with pytest.raises(InputError):
        levels("--concurrency", "1..1.5", whole_numbers=True)


# --- interrupted


def started(url: str, folder: Path) -> subprocess.Popen[str]:
    """A benchmark of a minute in a process of its own, after its first requests have ended."""
    words = ("--concurrency", "2", *LENGTHS, "--duration-s", "60", "--store", str(folder))
    command = [sys.executable, "-m", "inferometer", "bench", url, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not any(file.stat().st_size > 500 for file in (folder / "running").glob("*/requests-*.jsonl")):
        assert time.monotonic() < deadline, "no request ended in 30 s"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def test_ctrl_c_drains_saves_and_exits_130(url: str, tmp_path: Path):
    process = started(url, tmp_path / "store")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Not whole: C=2 (interrupted)." in out
    (row,) = Store(tmp_path / "store").list()
    kept = Store(tmp_path / "store").load(row["id"])
    assert kept.meta.partial == "interrupted"
    assert kept.requests.height > 0
    assert kept.requests["error"].null_count() == kept.requests.height


def test_what_a_kill_left_is_taken_in_by_the_next_look(run: Run, url: str, tmp_path: Path):
    folder = tmp_path / "store"
    process = started(url, folder)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    ran = run("runs", "--store", str(folder))
    assert re.search(r"^took in 1 interrupted benchmark: \S+$", ran.err, flags=re.M)
    assert "1 run in" in ran.out
    shown = run("runs", "show", ran.err.split()[-1], "--store", str(folder))
    assert "Not whole: killed." in shown.out
    assert shown.err == ""
