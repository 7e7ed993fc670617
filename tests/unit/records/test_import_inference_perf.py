"""inference-perf: aggregates in seconds, requests with their chunks, a folder that is one run a stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import inference_perf, load
from result_files import assert_refused_when_cut, edited, stated_and_ours
from shared import shared

FOLDER = "data/bench_outputs/inference-perf"
STAGE = FOLDER + "/stage_0_lifecycle_metrics.json"
SUMMARY = FOLDER + "/summary_lifecycle_metrics.json"
REQUESTS = FOLDER + "/per_request_lifecycle_metrics.json"


def metrics(entry: Any) -> Any:
    return entry["info"]["response_metrics"]


def test_our_figures_are_those_the_tool_states() -> None:
    (run,) = load(shared(FOLDER))
    compared = set()
    for path, stated, ours in stated_and_ours(run):
        assert ours == pytest.approx(stated, rel=1e-6), path  # percentiles are linear on both sides
        compared.add(path)
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "normalized_latency_s"):
        assert {f"{name}.{part}" for part in ("mean", "p50", "p90", "p95", "p99")} <= compared
    assert {"output_tok_per_s", "total_tok_per_s", "request_per_s", "requests", "failed", "output_tokens"} <= compared


def test_a_folder_of_one_stage_is_one_run() -> None:
    (run,) = load(shared(FOLDER))
    assert (run.meta.name, run.meta.model, run.meta.concurrency) == ("stage_0", "mock", 1)
    # its requested_rate of 5 is of no meaning in a closed loop, and so is the delay from that rate's schedule
    assert (run.meta.request_rate_per_s, run.meta.workload["load_type"]) == (None, "concurrent")
    assert not any(path.startswith("client_queue_s") for path in run.meta.stated)
    assert run.requests.height == 5
    assert any("inference-perf.partial.stage_0.yaml" in note for note in run.meta.notes)


@pytest.mark.parametrize("file", [STAGE, SUMMARY])
def test_aggregates_alone(file: str) -> None:
    (run,) = load(shared(file))
    s = run.summary()
    assert (run.requests.height, s.requests, s.completed, s.failed, s.output_tokens) == (0, 5, 5, 0, 80)
    assert (s.ttft_s.p50, s.tpot_s.mean) == (pytest.approx(0.05154707199994846), pytest.approx(0.01996514493333355))
    assert s.duration_s == pytest.approx(1.7946826750001037)


def test_requests_alone() -> None:
    (run,) = load(shared(REQUESTS))
    s = run.summary()
    assert (run.meta.model, s.requests, s.prompt_tokens, s.itl_s.n) == ("mock", 5, 604, 75)
    assert s.ttft_s.mean == pytest.approx(0.0561635627999749)
    assert s.duration_s == pytest.approx(1.7946826750001037)  # first sent to last end


def test_fault_12_delays_of_an_open_loop_are_the_clients_queue(tmp_path: Path) -> None:
    (run,) = load(edited(shared(STAGE), tmp_path, lambda r: r["load_summary"].pop("concurrency")))
    assert (run.meta.concurrency, run.meta.request_rate_per_s) == (None, 5.0)
    assert run.summary().client_queue_s.mean == pytest.approx(0.33710286283130697)


def test_fault_34_a_reply_of_one_token_has_a_ttft(tmp_path: Path) -> None:
    def one_token(entries: Any) -> None:
        for entry in entries:
            response = metrics(entry)
            for key in ("chunk_times", "response_chunks", "output_token_times"):
                response[key] = response[key][:1]
            response["output_tokens"] = response["server_usage"]["completion_tokens"] = 1

    (run,) = load(edited(shared(REQUESTS), tmp_path, one_token))
    s = run.summary()
    assert (s.ttft_s.n, s.ttft_s.mean) == (5, pytest.approx(0.0561635627999749))
    assert (s.tpot_s.n, s.itl_s.n) == (0, 0)


def test_faults_2_and_4_what_is_a_token_is_seen_in_the_chunks(tmp_path: Path) -> None:
    def chat(entries: Any) -> None:
        deltas = [{"role": "assistant", "content": None}, {"reasoning": "So"}, *[{"content": "a"}] * 14]
        for entry in entries:
            metrics(entry)["response_chunks"] = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]

    (run,) = load(edited(shared(REQUESTS), tmp_path, chat))
    times = metrics(json.loads(shared(REQUESTS).read_text())[0])["chunk_times"]
    start = json.loads(shared(REQUESTS).read_text())[0]["start_time"]
    assert run.requests["first_token_s"][0] == pytest.approx(times[1] - start)
    assert run.requests["first_content_s"][0] == pytest.approx(times[2] - start)
    assert run.requests["token_events"].to_list() == [15] * 5


def test_an_older_file_has_its_times_in_info(tmp_path: Path) -> None:
    def older(entries: Any) -> None:
        for entry in entries:
            response = metrics(entry)
            entry["info"] = {
                "input_tokens": 116,
                "output_tokens": response["output_tokens"],
                "output_token_times": response["output_token_times"],
            }

    (run,) = load(edited(shared(REQUESTS), tmp_path, older))
    assert run.summary().tpot_s.mean == pytest.approx(0.01996514493333355)
    assert run.summary().prompt_tokens == 580


def test_the_servers_count_is_preferred_and_failures_are_rows(tmp_path: Path) -> None:
    def change(entries: Any) -> None:
        metrics(entries[0])["server_usage"]["completion_tokens"] = 31
        entries[1].update(error={"error_type": "TimeoutError", "error_msg": "no reply"}, info={})

    (run,) = load(edited(shared(REQUESTS), tmp_path, change))
    assert run.requests["output_tokens"].to_list() == [31, None, 16, 16, 16]
    assert run.requests["error"].to_list()[1] == "TimeoutError: no reply"
    assert (run.summary().failed, run.summary().itl_name) == (1, "chunk gap")


def two_stages(folder: Path, second_mean: float) -> None:
    """The stage's first two requests as one stage, the other three as another."""
    entries = json.loads(shared(REQUESTS).read_text())
    shutil.copy(shared(REQUESTS), folder)
    latencies = [entry["end_time"] - entry["start_time"] for entry in entries]
    for number, part in enumerate((latencies[:2], latencies[2:])):
        report = json.loads(shared(STAGE).read_text())
        mean = sum(part) / len(part) if number == 0 else second_mean or sum(part) / len(part)
        report["successes"]["latency"]["request_latency"] = {"mean": mean}
        report["successes"]["count"] = report["load_summary"]["count"] = len(part)
        (folder / f"stage_{number}_lifecycle_metrics.json").write_text(json.dumps(report))


def test_stages_get_their_own_requests(tmp_path: Path) -> None:
    two_stages(tmp_path, second_mean=0.0)
    shutil.copy(shared(SUMMARY), tmp_path)
    runs = load(tmp_path)
    assert [(run.meta.name, run.requests.height) for run in runs] == [("stage_0", 2), ("stage_1", 3)]
    assert [run.requests["sent_s"][0] for run in runs] == [0.0, 0.0]


def test_requests_that_do_not_fit_the_stages_stay_together(tmp_path: Path) -> None:
    two_stages(tmp_path, second_mean=9.0)
    assert [run.requests.height for run in load(tmp_path)] == [5, 0, 0]


@pytest.mark.parametrize("file", [STAGE, SUMMARY, REQUESTS])
def test_cut_files_are_refused(tmp_path: Path, file: str) -> None:
    assert_refused_when_cut(shared(file), tmp_path, pieces=20)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        (STAGE, lambda r: r.update(successes=[]), "successes"),
        (STAGE, lambda r: r.update(benchmark_time_seconds="long"), "benchmark_time_seconds"),
        (REQUESTS, lambda r: r[0].update(start_time=None), "start_time"),
        (REQUESTS, lambda r: r[0].update(end_time=0.0, info={}), "end_s"),
        (
            REQUESTS,
            lambda r: metrics(r[0])["server_usage"].update(completion_tokens="many"),
            "output_tokens|different kinds",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path: Path, file: str, change: Any, says: str) -> None:
    path = edited(shared(file), tmp_path, change)
    with pytest.raises(FormatError, match=says) as error:
        load(path)
    assert str(error.value).startswith(path.name)


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    (run,) = load(edited(shared(STAGE), tmp_path, lambda r: r.update(verdict="good")))
    assert run.meta.notes == ["keys not read: verdict"]


def test_sniff_takes_no_other_tools_file() -> None:
    others = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file() and p.parent.name != "inference-perf"]
    others += [shared(FOLDER + "/" + name) for name in ("validation.json", "config.yaml")]
    assert [path.name for path in others if inference_perf.sniff(path)] == []


def test_fault_34_a_token_and_the_usage_in_one_piece_are_a_token(tmp_path: Path) -> None:
    token, counts = {"choices": [{"delta": {"content": "a"}}]}, {"prompt_tokens": 7, "completion_tokens": 1}
    piece = f"data: {json.dumps(token)}\n\ndata: {json.dumps({'choices': [], 'usage': counts})}\n\ndata: [DONE]\n\n"

    def one_piece(entries: Any) -> None:
        for entry in entries:
            response = metrics(entry)
            response.update(chunk_times=response["chunk_times"][:1], response_chunks=[piece], server_usage=None)

    (run,) = load(edited(shared(REQUESTS), tmp_path, one_piece))
    assert (run.summary().ttft_s.n, run.requests["token_events"].to_list()) == (5, [1] * 5)
    assert (run.summary().output_tokens, run.summary().prompt_tokens) == (5, 35)


def test_the_usage_need_not_be_in_the_last_piece(tmp_path: Path) -> None:
    def change(entries: Any) -> None:
        for entry in entries:
            response = metrics(entry)
            response["server_usage"] = None
            response["response_chunks"][-2:] = [json.dumps({"usage": {"completion_tokens": 31}}), "data: [DONE]"]

    (run,) = load(edited(shared(REQUESTS), tmp_path, change))
    assert run.requests["output_tokens"].to_list() == [31] * 5
