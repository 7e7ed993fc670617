"""The program as a user runs it: answers, exit statuses, JSON, the store; bad input gets one line."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.cli import main as program
from inferometer.cli.main import main
from ran import Ran
from shared import shared

ROOT = Path(__file__).resolve().parents[2]
STUDY = """
model = "Qwen/Qwen3-8B"
chip = "a100-sxm4-80gb"

[deployment]
engine_version = "0.26.0"

[workload]
prompt_tokens = 256
output_tokens = 16
concurrency = [1, 2]

[slo]
ttft_ms = 500
tpot_ms = 50
"""
LENGTHS = ["--prompt-tokens", "256", "--output-tokens", "16"]
FLAGS = ["--model", "Qwen/Qwen3-8B", "--chip", "a100-sxm4-80gb", "--concurrency", "1,2", *LENGTHS]
COMMANDS = (
    *("predict", "simulate", "bench", "score", "verify", "audit", "explain", "calibrate", "report", "compare"),
    *("import", "emulate", "runs", "catalog", "demo"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]):
    def command(*words: str) -> Ran:
        capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Ran(status, *capsys.readouterr())

    return command


def sweep_csv(path: Path, factor: float = 1.0) -> Path:
    """The study's own prediction as a sweep table, its throughput times a factor."""
    points = im.predict("study.toml").to_dict()["points"]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["concurrency", "output_tok_per_s", "ttft_ms_p50"])
        for point in points:
            table.writerow([point["concurrency"], factor * point["output_tok_per_s"], point["ttft_ms"]["p50"]])
    return path


def request_csv(path: Path, run: im.Run, slower: float = 1.0) -> Path:
    """A run's requests as a request table; tokens come ``slower`` times as long after sending."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["model", "queued_s", "input_tokens", "output_tokens", "first_token_s", "last_token_s"])
        for row in run.requests.iter_rows(named=True):
            first, last = (
                row["sent_s"] + slower * (row[key] - row["sent_s"]) for key in ("first_token_s", "last_token_s")
            )
            lengths = (row["prompt_tokens"], row["output_tokens"])
            table.writerow(["Qwen3-8B", row["sent_s"], *lengths, first, last])
    return path


# --- help


def test_the_commands_are_those_documented():
    assert tuple(name for name in program.program() if not name.startswith("-")) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str, run: Any):
    assert program.COMMANDS[name] in " ".join(run(name, "--help").out.split())


@pytest.mark.parametrize(
    "words", [(), ("--help",), *((name, "--help") for name in COMMANDS), ("runs", "show", "--help")]
)
def test_help_has_an_example(words: tuple[str, ...], run: Any):
    ran = run(*words)
    assert ran.status == 0
    assert re.search(r"^Examples?:\n +inferometer |^Start with:  inferometer demo", ran.out, flags=re.M)
    assert max(map(len, ran.out.splitlines())) <= 100


def test_help_is_quick():
    code = "from inferometer.cli.main import main; main(['--help'])"
    took = []
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True
        )
        took.append(time.perf_counter() - start)
        assert done.returncode == 0
    assert min(took) < 0.3


def test_version(run: Any):
    assert run("--version").out.strip() == f"inferometer {im.__version__}"


# --- predict


def test_predict(run: Any):
    ran = run("predict", "study.toml")
    assert (ran.status, ran.err) == (0, "")
    assert "It fits: " in ran.out
    assert ran.out.rstrip().endswith("inferometer score study.toml MEASURED")


def test_predict_json_is_pythons(run: Any):
    ran = run("predict", "study.toml", "--json")
    assert ran.json == json.loads(json.dumps(im.predict("study.toml").to_dict()))
    assert run("predict", "study.toml", "--json", "--seed", "5").json["seed"] == 5


def test_predict_by_flags_is_the_same_prediction(run: Any):
    by_file, by_flags = (
        run("predict", "study.toml", "--json").json,
        run("predict", *FLAGS, "--engine-version", "0.26.0", "--json").json,
    )
    assert by_flags["points"] == by_file["points"]
    assert by_flags["memory"] == by_file["memory"]


def test_flags_and_set_override_a_file(run: Any):
    ran = run("predict", "study.toml", "--json", "--concurrency", "4", "--set", "deployment.max_num_seqs=2")
    assert [point["concurrency"] for point in ran.json["points"]] == [4]
    assert ran.json["roofline"]["limits"]["max_num_seqs"] == 2
    assert run("predict", "study.toml", "--request-rate", "1.5", "--json").json["points"][0]["request_rate"] == 1.5
    both = run("predict", "study.toml", "--concurrency", "4", "--set", "workload.concurrency=[8]", "--json")
    assert both.json["points"][0]["concurrency"] == 8


def test_the_command_to_paste_keeps_flags(run: Any):
    ran = run("predict", *FLAGS, "--set", "workload.seed=3")
    command = ran.out.rstrip().splitlines()[-1]
    words = "--model Qwen/Qwen3-8B --chip a100-sxm4-80gb --prompt-tokens 256 --output-tokens 16 --concurrency 1,2"
    assert command.endswith(f"inferometer score {words} --set workload.seed=3 MEASURED")


def test_predict_what_does_not_fit(run: Any):
    ran = run("predict", "study.toml", "--model", "meta-llama/Llama-3.1-70B")
    assert ran.status == 1
    assert re.search(r"It does not fit: [\d.]+ GiB short", ran.out)
    assert "--set deployment.tensor_parallel_size=" in ran.out
    as_json = run("predict", "study.toml", "--model", "meta-llama/Llama-3.1-70B", "--json")
    assert (as_json.status, as_json.json["memory"]["fits"], as_json.json["points"]) == (1, False, [])


def test_quiet_is_one_sentence(run: Any):
    ran = run("predict", "study.toml", "--quiet")
    assert ran.out.startswith("It fits: ")
    assert ran.out.count("\n") == 1


def test_packaged_studies_need_no_file(run: Any):
    ran = run(
        "predict", "node-70b", "--set", "workload.concurrency=[1]", "--set", "arm.context-8000.workload.concurrency=[1]"
    )
    assert ran.status == 0
    assert "8 x A100-SXM4-80GB tp=8" in ran.out


def test_two_loads_are_refused(run: Any):
    for words in (
        ("predict", *FLAGS, "--request-rate", "1"),
        ("predict", "study.toml", "--request-rate", "1", "--concurrency", "2"),
        ("simulate", "study.toml", "--set", "workload.request_rate=[1]", "--set", "workload.concurrency=[1]"),
        ("score", *FLAGS, "--request-rate", "1", "x.json"),
    ):
        ran = run(*words)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert re.search(r"exactly one of .*(concurrency.*request.rate|request.rate.*concurrency)", ran.err)
    over = run("predict", "study.toml", "--concurrency", "4", "--set", "workload.request_rate=[2]", "--json")
    assert [point["request_rate"] for point in over.json["points"]] == [2.0], "--set comes last"


def test_without_a_load_the_flags_are_named(run: Any):
    ran = run("predict", "--model", "Qwen3-8B", "--chip", "h100-sxm-80gb")
    assert ran.status == 2
    assert ran.err == "error: no load: give --concurrency 1,8 (closed loop) or --request-rate 0.5,1 (open loop)\n"


@pytest.mark.parametrize("command", ["predict", "simulate"])
def test_everything_refused_is_one_line(command: str, run: Any):
    ran = run(command, *FLAGS[:6], "--prompt-tokens", "100000", "--output-tokens", "16")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "prompt_tokens 100000 + output_tokens 16 are longer than max_model_len 40960" in ran.err
    assert run("runs", "--json").json["runs"] == []


def test_some_refused_are_told_and_kept(run: Any):
    lengths = ("--prompt-tokens", "{ uniform = { low = 200, high = 300 } }", "--max-model-len", "280")
    ran = run("predict", "study.toml", *lengths, "--concurrency", "1")
    assert ran.status == 0
    (line,) = [line for line in ran.out.splitlines() if "refused" in line]
    assert re.fullmatch(r"\d of 10 requests are refused: longer than max_model_len 280\.", line)
    simulated = run("simulate", "study.toml", *lengths, "--concurrency", "1").out
    assert line in simulated
    assert "max_model_len 280, " in simulated
    (point,) = run("predict", "study.toml", *lengths, "--concurrency", "1", "--json").json["points"]
    assert point["refused"] == {"longer than max_model_len 280": int(line.split()[0])}
    assert len(run("runs", "--json").json["runs"]) == 1


def test_an_arm_of_which_all_is_refused_leaves_the_runs_of_the_others(run: Any, folder: Path):
    arms = '[[arm]]\nname = "long"\nworkload = { prompt_tokens = 50000 }\n'
    (folder / "arms.toml").write_text(STUDY + arms)
    ran = run("simulate", "arms.toml")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "arm 'long': every request is refused" in ran.err
    assert [each["arm"] for each in run("runs", "--json").json["runs"]] == ["base", "base"]


def test_an_overload_is_named(run: Any):
    load = ("--prompt-tokens", "2048", "--output-tokens", "16", "--request-rate", "1,100")
    ran = run("predict", "study.toml", *load)
    assert re.search(r"^100/s overloaded: serves [\d.]+ of 100 requests/s, the queue grows\.$", ran.out, flags=re.M)
    assert [point["overloaded"] for point in run("predict", "study.toml", *load, "--json").json["points"]] == [
        False,
        True,
    ]
    simulated = run("simulate", "study.toml", *load, "--no-store")
    assert re.search(
        r"^100/s overloaded: serves [\d.]+ of 100 requests/s, the queue grows\.$", simulated.out, flags=re.M
    )
    document = run("simulate", "study.toml", *load, "--no-store", "--json").json
    assert [each["overloaded"] for each in document["runs"]] == [False, True]


@pytest.mark.parametrize("command", ["predict", "simulate", "score"])
def test_warm_up_requests_by_flag(command: str, run: Any, folder: Path):
    sweep_csv(folder / "sweep.csv")
    words = [command, "study.toml", *(["sweep.csv"] if command == "score" else []), "--json"]
    plain, warm = run(*words).json, run(*words, "--warmup-requests", "3").json
    if command == "score":
        assert plain["rows"] != warm["rows"]
    elif command == "predict":
        assert [point["requests"] for point in warm["points"]] == [7, 17]
        assert [point["requests"] for point in plain["points"]] == [10, 20]
    else:
        assert [each["summary"]["requests"] for each in warm["runs"]] == [7, 17]
    assert run(*words, "--warmup-requests", "10").status == 2


def test_json_says_what_is_deployed(run: Any):
    document = run("predict", "study.toml", "--max-num-seqs", "9", "--json").json
    assert document["arms"][0]["deployment"] == document["deployment"]
    assert document["deployment"]["flags"]["max_num_seqs"] == 9
    assert document["deployment"]["flags"]["max_num_batched_tokens"] == 2048
    assert document["deployment"]["engine_version"] == "0.26.0"
    assert document["cautions"] == []
    assert "priors" in run("predict", "study.toml", "--chip", "mi300x", "--json").json["arms"][0]["cautions"][0]


# --- simulate


def test_simulate_keeps_its_runs(run: Any):
    ran = run("simulate", "study.toml", "--json")
    assert ran.status == 0
    assert ran.json["schema"] == "inferometer/runs/1"
    ids = [each["id"] for each in ran.json["runs"]]
    assert [each["concurrency"] for each in ran.json["runs"]] == [1, 2]
    assert ran.json["runs"][0]["summary"]["ttft_ms"]["n"] == 10
    assert [row["id"] for row in run("runs", "--json").json["runs"]] == ids
    text = run("simulate", "study.toml").out
    assert all(each in text for each in ids), "the same study gives the same runs"
    assert len(run("runs", "--json").json["runs"]) == 2
    assert run("simulate", "study.toml", "--quiet").out.split() == ids


def test_simulate_as_told(run: Any):
    nothing = run("simulate", "study.toml", "--no-store")
    assert "Not kept" in nothing.out
    assert run("runs", "--json").json["runs"] == []
    by_policy = run("simulate", "study.toml", "--policy", "static", "--json", "--no-store").json["runs"]
    assert {each["policy"] for each in by_policy} == {"static"}
    times = run("simulate", "study.toml", "--token-times", "--json", "--store", "elsewhere").json
    assert times["runs"][0]["summary"]["itl_ms"]["n"] == 10 * 15
    assert times["store"] == "elsewhere"
    assert "--store elsewhere" in run("simulate", "study.toml", "--store", "elsewhere").out


def test_simulate_one_arm(run: Any, folder: Path):
    (folder / "arms.toml").write_text(
        STUDY + '[[arm]]\nname = "long"\nworkload = { prompt_tokens = 512, concurrency = [3] }\n'
    )
    assert [each["arm"] for each in run("simulate", "arms.toml", "--json").json["runs"]] == ["base", "base", "long"]
    assert [each["arm"] for each in run("simulate", "arms.toml", "--arm", "long", "--json").json["runs"]] == ["long"]
    ran = run("simulate", "arms.toml", "--arm", "lnog")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "lnog" in ran.err


def test_simulate_what_does_not_fit(run: Any):
    ran = run("simulate", "study.toml", "--model", "meta-llama/Llama-3.1-70B")
    assert ran.status == 2
    assert "does not fit" in ran.err
    assert ran.err.count("\n") == 1


def test_a_replay_of_a_simulation_is_that_simulation(run: Any, folder: Path):
    study = im.load_study("study.toml", ["workload.request_rate=[20]", "workload.requests_per_point=30"])
    simulated = im.simulate(study.base.deployment, study.base.points[0].workload)
    request_csv(folder / "same.csv", simulated)
    ran = run("simulate", "study.toml", "--replay", "same.csv", "--tolerance", "0.001", "--json")
    assert ran.status == 0
    (card,) = ran.json["scores"]
    assert (card["arm"], card["passed"]) == ("base", True)
    assert {row["metric"] for row in card["rows"]} >= {"ttft_ms.p99", "tpot_ms.mean", "e2e_ms.mean", "output_tok_per_s"}
    request_csv(folder / "slow.csv", simulated, slower=1.5)
    assert run("simulate", "study.toml", "--replay", "slow.csv").status == 0, (
        "no tolerance is stated, so none is missed"
    )
    missed = run("simulate", "study.toml", "--replay", "slow.csv", "--tolerance", "0.1")
    assert missed.status == 1
    assert re.search(r"^E2E mean ms .* -33\.\d +missed", missed.out, flags=re.M)


def test_a_replay_of_which_all_is_refused_is_one_line(run: Any, folder: Path):
    study = im.load_study("study.toml", ["workload.request_rate=[20]", "workload.requests_per_point=30"])
    request_csv(folder / "same.csv", im.simulate(study.base.deployment, study.base.points[0].workload))
    ran = run("simulate", "study.toml", "--replay", "same.csv", "--max-model-len", "200")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "prompt_tokens 256 + output_tokens 16 are longer than max_model_len 200" in ran.err
    assert run("runs", "--json").json["runs"] == []


def test_replay_takes_the_run_of_the_studys_model(run: Any):
    file = str(shared("data/vllm_replay_requests.csv"))
    ran = run("simulate", "rtxpro6000-llama31-8b", "--replay", file, "--json", "--no-store")
    assert ran.json["measured"]["model"] == "meta-llama/Llama-3.1-8B"
    assert ran.json["runs"][0]["requests"] == 300
    ran = run("simulate", "study.toml", "--replay", file)
    assert ran.status == 2
    assert "holds 0 runs of Qwen/Qwen3-8B" in ran.err


def test_replay_needs_requests(run: Any, folder: Path):
    sweep_csv(folder / "sweep.csv")
    ran = run("simulate", "study.toml", "--replay", "sweep.csv", "--set", "workload.concurrency=[1]")
    assert ran.status == 2
    assert run("simulate", "study.toml", "--tolerance", "0.1").status == 2


# --- score


def test_score_within_and_beyond(run: Any, folder: Path):
    sweep_csv(folder / "right.csv")
    ran = run("score", "study.toml", "right.csv")
    assert ran.status == 0
    assert "within 10 %" in ran.out
    sweep_csv(folder / "wrong.csv", factor=1.3)
    assert run("score", "study.toml", "wrong.csv").status == 1
    assert run("score", "study.toml", "wrong.csv", "--tolerance", "0.4").status == 0
    as_json = run("score", "study.toml", "wrong.csv", "--json")
    assert (as_json.status, as_json.json["schema"], as_json.json["passed"]) == (1, "inferometer/score/1", False)
    assert as_json.json["rows"][0]["error_pct"] == pytest.approx(100 / 1.3 - 100)
    quiet = run("score", "study.toml", "wrong.csv", "--quiet")
    assert quiet.out.startswith("2 of 4 figures within 10 %")
    assert quiet.out.count("\n") == 1


def test_score_several_files_flags_and_stored_runs(run: Any, folder: Path):
    sweep_csv(folder / "right.csv")
    imported = run("import", "right.csv", "--json").json["runs"]
    by_id = run("score", "study.toml", imported[0]["id"][:8], imported[1]["id"], "--json")
    assert by_id.status == 0
    assert {row["concurrency"] for row in by_id.json["rows"] if row["metric"] == "ttft_ms.p50"} == {1, 2}
    by_flags = run(
        "score", *FLAGS, "--engine-version", "0.26.0", "--ttft-ms", "500", "--tpot-ms", "50", "right.csv", "--json"
    )
    assert by_flags.status == 0
    assert len(by_flags.json["rows"]) == len(run("score", "study.toml", "right.csv", "--json").json["rows"])


def test_score_without_a_measurement(run: Any):
    for words in (("score", "study.toml"), ("score", "study.toml", "none.json")):
        ran = run(*words)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    ran = run("score", "study.toml", "none.json", "--model", "meta-llama/Llama-3.1-70B")
    assert ran.status == 2


def test_score_says_first_what_is_not_alike(run: Any):
    measured = str(shared("data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json"))
    words = ("score", "study.toml", measured, "--concurrency", "1", "--prompt-tokens", "1024")
    ran = run(*words)
    lines = ran.out.splitlines()
    assert lines[0].startswith("Not sealed")
    assert lines[4:6] == [
        "Not alike: model: measured mock, predicted Qwen/Qwen3-8B.",
        "Not alike: mean prompt_tokens: measured 149, predicted 1,024.",
    ]
    assert "figures within 10 %" in lines[6]
    assert run(*words, "--json").json["notes"] == [line.removeprefix("Not alike: ")[:-1] for line in lines[4:6]]
    quiet = run(*words, "--quiet")
    assert (quiet.out.count("\n"), quiet.err.count("\n")) == (1, 2)


def test_score_against_what_is_not_predicted(run: Any, folder: Path):
    (folder / "other.csv").write_text("concurrency,output_tok_per_s\n64,1000\n32,800\n")
    ran = run("score", "study.toml", "other.csv")
    assert ran.status == 1
    assert "Nothing to compare" in ran.out
    assert "no point at C=64" in ran.out


# --- import, runs, catalog, demo


def test_import_and_runs(run: Any, folder: Path):
    sweep_csv(folder / "sweep.csv")
    assert "2 runs read, not kept" in run("import", "sweep.csv", "--no-store").out
    assert not (folder / ".inferometer").exists()
    assert "2 runs read, kept in .inferometer" in run("import", "sweep.csv").out
    ids = run("runs", "--quiet").out.split()
    assert len(ids) == 2
    assert run("runs", "list", "--kind", "simulated", "--json").json["runs"] == []
    assert run("runs", "list", "--kind", "imported", "--json").json["runs"][0]["concurrency"] == 1
    shown = run("runs", "show", ids[0][:6], "--json").json
    assert (shown["id"], shown["schema"]) == (ids[0], "inferometer/run/1")
    assert shown["summary"]["ttft_ms"]["p50"] > 0
    assert ids[0] in run("runs", "show", ids[0]).out
    assert run("runs", "delete", ids[0], "--json").json["deleted"] == [ids[0]]
    assert run("runs", "--quiet").out.split() == ids[1:]
    assert "1 run in .inferometer" in run("runs").out
    for words in (("runs", "show", ids[0]), ("runs", "delete"), ("runs", "list", "--kind", "dreamt"), ("import",)):
        ran = run(*words)
        assert (ran.status, ran.err.count("\n")) == (2, 1)


def test_import_reads_the_benchmarks_own_result(run: Any):
    found = shared("data/bench_outputs/vllm_bench")
    ran = run("import", str(found), "--json", "--no-store")
    assert ran.status == 0
    assert all(each["kind"] == "imported" for each in ran.json["runs"])
    assert ran.json["store"] is None


def test_import_joins_the_servers_side(run: Any):
    folder = shared("data/cpu_engine")
    words = ("--metrics", "auto", "--server-log", str(folder / "main_clean.server.log"))
    document = run("import", str(folder / "main_clean"), *words, "--json", "--no-store").json
    assert [each["name"] for each in document["runs"]] == ["c1", "c2", "c4", "c8"]
    assert all(each["server"]["kv_cache_tokens"] == 65536 for each in document["runs"])
    assert all(each["counters"]["prefix_cache_hits"] == 0 for each in document["runs"])
    ran = run("import", str(folder / "main_clean"), *words, "--no-store")
    assert "Joined with the server's side; the clocks agree within 0.020 to 0.22 s." in ran.out
    ran = run("import", str(folder / "main_clean/c8.json"), "--metrics", str(folder / "main_clean/c4.metrics.prom"))
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "do not show this run's requests" in ran.err


def test_the_store_is_where_told(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch):
    sweep_csv(folder / "sweep.csv")
    monkeypatch.setenv("INFEROMETER_STORE", str(folder / "from-environment"))
    run("import", "sweep.csv")
    assert (folder / "from-environment" / "index.sqlite3").exists()
    run("import", "sweep.csv", "--store", "from-flag")
    assert (folder / "from-flag" / "index.sqlite3").exists()


def test_catalog(run: Any):
    counts = run("catalog", "--json").json
    assert len(counts["chips"]) >= 40
    assert len(counts["models"]) >= 60
    assert counts["engines"] == ["vllm"]
    assert f"{len(counts['chips'])} chips" in run("catalog").out
    listed = run("catalog", "chips", "--json").json["entries"]
    assert [entry["id"] for entry in listed] == counts["chips"] == run("catalog", "chips", "--quiet").out.split()
    assert len(run("catalog", "models", "--json").json["entries"]) == len(counts["models"])
    for kind in ("chips", "models", "engines"):
        assert max(map(len, run("catalog", kind).out.splitlines())) <= 100


def test_catalog_shows_each_figure_with_its_source(run: Any):
    chip = run("catalog", "chips", "A100_SXM4-80GB", "--json").json
    assert chip["id"] == "a100-sxm4-80gb"
    assert chip["entry"]["bandwidth_bytes_per_s"] == 2.039e12
    assert chip["sources"]["bandwidth_bytes_per_s"].keys() == {"source", "checked"}
    text = run("catalog", "chips", "a100-sxm4-80gb").out
    assert re.search(r"^memory_bytes +80\.00 GiB +\d$", text, flags=re.M)
    assert chip["sources"]["bandwidth_bytes_per_s"]["source"] in text
    model = run("catalog", "models", "Qwen/Qwen3-8B").out
    assert re.search(r"^kv_bytes_per_token +144 KiB +counted$", model, flags=re.M)
    assert "36 x  attention" in model
    assert "max_num_seqs" in run("catalog", "engines", "vllm", "--json").out
    assert re.search(r"gpu_memory_utilization from 0.20 +0.92", run("catalog", "engines", "vllm").out)


def test_demo(run: Any, monkeypatch: pytest.MonkeyPatch):
    start = time.perf_counter()
    ran = run("demo")
    assert time.perf_counter() - start < 60
    assert ran.status == 0
    assert "It fits" in ran.out
    assert "measured  p99 640 tok/s at C=8, p50 1,760 tok/s at C=32" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    assert "The emulator's timing is the simulator's own." in ran.out
    # sealed before the emulator started; the founding prediction is made after its measurement, and not called sealed
    assert ran.out.count("Sealed ") == 2
    assert "before the measurement began" in ran.out
    assert ran.out.count("●") > 8, "no pictures"
    # the same again on a study of half a second
    monkeypatch.setattr("inferometer.cli.demo.STUDY", "study.toml")
    document = run("demo", "--json").json
    assert {row["concurrency"] for row in document["score"]["rows"]} == {*founding_sweep.SWEEP, None}
    loop = document["loop"]
    assert [(each["kind"], each["concurrency"]) for each in loop["runs"]] == [("measured", 1), ("measured", 2)]
    assert {row["concurrency"] for row in loop["score"]["rows"]} >= {1, 2}
    assert loop["score"]["seal"]["state"] == "sealed"
    assert document["score"]["seal"]["state"] == "unsealed"
    assert all(each["summary"]["failed"] == 0 for each in loop["runs"])
    assert len(run("demo", "--quiet").out.splitlines()) == 1


# --- the JSON reference


def documented(section: str) -> Any:
    """The example document of a section of docs/reference/json.md."""
    page = (ROOT / "docs/reference/json.md").read_text()
    body = page[page.index(f"\n## {section}\n") :]
    return json.loads(re.search(r"```json\n(.*?)```", body, flags=re.S)[1])


def missing(example: Any, actual: Any, path: str = "") -> list[str]:
    """Paths of the example that the actual document lacks; empty tables and lists stand for any."""
    if isinstance(example, list):
        return missing(example[0], actual[0], f"{path}[0]") if example and actual else []
    if not isinstance(example, dict) or "time_shares" in path or "intervals" in path:
        return []
    found = [f"{path}.{key}" for key in example if not isinstance(actual, dict) or key not in actual]
    known = [key for key in example if isinstance(actual, dict) and key in actual]
    return found + [each for key in known for each in missing(example[key], actual[key], f"{path}.{key}")]


def test_the_reference_shows_what_is_printed(run: Any, folder: Path):
    sweep_csv(folder / "sweep.csv", factor=1.3)
    actual = {
        "predict": run("predict", "study.toml", "--json").json,
        "simulate": run("simulate", "study.toml", "--json").json,
        "score": run("score", "study.toml", "sweep.csv", "--json").json,
    }
    for section, document in actual.items():
        example = documented(section)
        # the founding sweep states more than this table, so sweep rows are compared by what they always have
        for each in example.get("sweep", []):
            each.pop("ttft_ms.p99", None)
        assert missing(example, document) == [], section
    for section in ("predict", "score"):
        assert set(actual[section]) <= set(documented(section)), f"{section} prints a key that its page does not show"
    page = (ROOT / "docs/reference/json.md").read_text()
    undocumented = [key for key in actual["predict"]["points"][0] if f'"{key}"' not in page]
    undocumented += [key for key in actual["predict"]["memory"] if key not in page]
    assert undocumented == []


# --- bad input


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("predict",), "no study"),
        (("predict", "none.toml"), "none.toml"),
        (("predict", *FLAGS[:4], "--request-rate", "1e11"), "requests_per_point"),
        (("predict", "study.toml", "--requests-per-point", "1000000000000"), "20,000,000"),
        (("predict", "study.toml", "--concurrency", "10000000"), "requests_per_point"),
        (("predict", "study.toml", "--concurency", "1"), "--concurency"),
        (("predict", "study.toml", "--concurrency", "1,x"), "'x'"),
        (("predict", "study.toml", "--concurrency", "0"), "concurrency"),
        (("predict", "study.toml", "--prompt-tokens", "-5"), "prompt_tokens"),
        (("predict", "study.toml", "--prompt-tokens", "many"), "prompt_tokens"),
        (("predict", "study.toml", "--chip", "a1000-nope"), "a1000-nope"),
        (("predict", "study.toml", "--model", "no-such-model-9b"), "no-such-model-9b"),
        (("predict", "study.toml", "--max-num-seqs", "many"), "--max-num-seqs"),
        (("predict", "study.toml", "--set", "deployment.max_num_sequences=4"), "max_num_sequences"),
        (("predict", "study.toml", "--set", "nonsense"), "nonsense"),
        (("predict", "study.toml", "--seed", "-1"), "seed"),
        (("predict", "study.toml", "more.toml"), "more.toml"),
        (("predict", "study.toml", "--kv-cache-dtype", "fp9"), "fp9"),
        (("predict", "study.toml", "--set", "chip.memory_bytes=80 G"), "chip"),
        (("simulate", "study.toml", "--policy", "magic"), "magic"),
        (("simulate", "study.toml", "--replay", "none.csv"), "none.csv"),
        (("score", "study.toml", "study.toml", "--tolerance", "-1"), "study.toml"),
        (("import", "study.toml"), "study.toml"),
        (("catalog", "planets"), "planets"),
        (("catalog", "chips", "h1000"), "h1000"),
        (("catalog", "engines", "vlm"), "vllm"),
        (("prdict", "study.toml"), "prdict"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line_and_status_2(words: tuple[str, ...], says: str, run: Any):
    ran = run(*words)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert says in ran.err


@pytest.mark.parametrize("content", ['{"a": ', "", "[]"])
def test_bad_result_files(content: str, run: Any, folder: Path):
    (folder / "result.json").write_text(content)
    ran = run("import", "result.json")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "result.json" in ran.err


def test_an_unwritable_store_is_one_line(run: Any, folder: Path):
    (folder / "file").write_text("")
    ran = run("simulate", "study.toml", "--store", "file/below")
    assert (ran.status, ran.err) == (2, "error: cannot write the store at file/below: Not a directory\n")
    sweep_csv(folder / "sweep.csv")
    ran = run("import", "sweep.csv", "--store", "file/below")
    assert (ran.status, ran.err) == (2, "error: cannot write the store at file/below: Not a directory\n")


def test_an_index_that_cannot_be_written_is_told_as_such(run: Any, folder: Path):
    (folder / "store" / "index.sqlite3").mkdir(parents=True)
    ran = run("simulate", "study.toml", "--store", "store")
    assert (ran.status, ran.err) == (2, "error: cannot write the store at store: unable to open database file\n")
    (folder / "store" / "index.sqlite3").rmdir()
    (folder / "store" / "index.sqlite3").write_text("no index" * 100)
    ran = run("simulate", "study.toml", "--store", "store")
    assert ran.status == 2
    assert "not a sound index" in ran.err


def test_an_empty_study_is_called_empty(run: Any, folder: Path):
    (folder / "empty.toml").write_text("")
    ran = run("predict", "empty.toml")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "empty.toml: is empty" in ran.err


def test_out_of_memory_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch):
    def exhausted(*args: Any, **kwargs: Any) -> im.Run:
        raise MemoryError

    monkeypatch.setattr("inferometer.prediction.predict.simulate", exhausted)
    ran = run("predict", "study.toml")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "out of memory" in ran.err


def test_interrupted_keeps_what_was_done(run: Any, monkeypatch: pytest.MonkeyPatch):
    import inferometer.prediction.predict as module

    simulate, calls = module.simulate, []

    def once(*args: Any, **kwargs: Any) -> im.Run:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return simulate(*args, **kwargs)

    monkeypatch.setattr(module, "simulate", once)
    ran = run("simulate", "study.toml")
    assert (ran.status, ran.err) == (130, "interrupted\n")
    assert len(run("runs", "--quiet").out.split()) == 1


@pytest.mark.parametrize("words", [["catalog", "models"], ["predict", "node-70b"]])
def test_a_reader_that_leaves_gets_no_verdict_and_no_traceback(words: list[str], folder: Path):
    # unbuffered, so that a line is written at a time and the reader is gone before the last one
    program = f"import sys; from inferometer.cli.main import main; sys.exit(main({words!r}))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_help_to_a_reader_that_leaves(folder: Path):
    program = "import sys; from inferometer.cli.main import main; sys.exit(main(['predict', '--help']))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program], env=env, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_bar_is_hidden_until_there_is_a_number(monkeypatch: pytest.MonkeyPatch):
    from inferometer.cli.output import progress
    from inferometer.report import terminal

    made: list[Any] = []
    bar = terminal.progress_bar

    def recorded(console: Any) -> Any:
        made.append(bar(console))
        return made[-1]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(terminal, "progress_bar", recorded)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress("Simulating", show=True) as tick:
        assert not made[0].tasks[0].visible
        tick(0, 3)
        assert made[0].tasks[0].visible
        assert "0 of 3" in "".join(map(str, made[0].make_tasks_table(made[0].tasks).columns[2].cells))
    assert "None" not in sys.stderr.getvalue()


def test_the_catalog_counts_layers_that_alternate_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "models", "gpt-oss-120b"]) == 0
    layers = [line for line in capsys.readouterr().out.splitlines() if " x  " in line]
    assert [line.split()[0] for line in layers] == ["18", "18"]
    assert sum("window 128" in line for line in layers) == 1
