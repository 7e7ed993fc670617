"""AIPerf's and GenAI-Perf's exports: units as named, their ITL that is a TPOT, requests and figures together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import aiperf, load
from result_files import assert_refused_when_cut, edited, stated_and_ours
from shared import shared

FOLDER = "data/bench_outputs/aiperf"
JSON = FOLDER + "/profile_export_aiperf.json"
LINES = FOLDER + "/profile_export.jsonl"
CSV = FOLDER + "/profile_export_aiperf.csv"


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(folder: Path, records: list[Any], name: str = "profile_export.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def test_our_figures_are_those_the_tool_states() -> None:
    (run,) = load(shared(FOLDER))
    compared = set()
    for path, stated, ours in stated_and_ours(run):
        # percentiles are linear on both sides; the tool subtracts nanoseconds since 1970 as floats, 256 ns apart
        assert ours == pytest.approx(stated, rel=1e-6, abs=3e-7), path
        compared.add(path)
    for name in ("ttft_s", "e2e_s", "tpot_s", "itl_s", "e2e_from_scheduled_s", "client_queue_s"):
        assert {f"{name}.{part}" for part in ("mean", "std", "p50", "p90", "p95", "p99", "n")} <= compared
    assert {"output_tok_per_s", "total_tok_per_s", "request_per_s", "prompt_tokens", "output_tokens"} <= compared


def test_a_folder_of_one_export_is_one_run() -> None:
    (run,) = load(shared(FOLDER))
    meta = run.meta
    assert (meta.tool, meta.tool_version, meta.model, meta.concurrency) == ("AIPerf", "0.13.0", "mock", 1)
    assert (meta.source, meta.created) == ("profile_export_aiperf.json", "2026-11-29T12:16:57.777460")
    assert (run.requests.height, meta.notes) == (5, ["requests from profile_export.jsonl"])
    assert run.summary().littles_law == pytest.approx(1.0, abs=0.02)


def test_the_aggregates_alone() -> None:
    (run,) = load(shared(JSON))
    s = run.summary()
    assert (run.requests.height, s.requests, s.completed, s.failed) == (0, 5, 5, 0)
    assert (s.ttft_s.mean, s.ttft_s.p99) == (pytest.approx(0.0527324046), pytest.approx(0.05939954388))
    assert (s.tpot_s.mean, s.itl_s.std) == (pytest.approx(0.01997440236), pytest.approx(0.0013495655505))
    assert (s.duration_s, s.output_tok_per_s) == (pytest.approx(1.785012), pytest.approx(44.81761912192212))
    assert run.meta.stated["benchmark_duration_s"] == pytest.approx(1.779425536)


def test_the_csv_alone_has_two_decimals_and_no_load() -> None:
    (run,) = load(shared(CSV))
    s = run.summary()
    assert (s.ttft_s.mean, s.tpot_s.p99, s.itl_s.p95) == (
        pytest.approx(0.05273),
        pytest.approx(0.02005),
        pytest.approx(0.02042),
    )
    assert (s.requests, s.prompt_tokens, s.output_tok_per_s, s.concurrency) == (5, 424, 44.82, None)
    assert s.duration_s == pytest.approx(1.78)


def test_the_requests_alone() -> None:
    (run,) = load(shared(LINES))
    first = run.requests.row(0, named=True)
    assert first["sent_s"] == 0.0
    assert first["scheduled_s"] == pytest.approx(-0.001034954)
    assert first["first_token_s"] == pytest.approx(0.059732667)
    assert first["last_token_s"] == pytest.approx(0.355571796)
    assert (first["prompt_tokens"], first["output_tokens"], first["token_events"]) == (84, 16, 16)
    assert run.summary().itl_s.n == 75
    assert run.meta.started_unix_s == pytest.approx(1795954617.782366764)


def test_a_unit_is_read_not_supposed(tmp_path: Path) -> None:
    def microseconds(report: Any) -> None:
        metric = report["time_to_first_token"]
        metric.update({key: value * 1000 for key, value in metric.items() if key != "unit"}, unit="us", count=5)

    (run,) = load(edited(shared(JSON), tmp_path, microseconds))
    assert run.summary().ttft_s.mean == pytest.approx(0.0527324046)

    records = lines_of(shared(LINES))
    for record in records:
        record["metrics"]["time_to_first_token"]["value"] /= 1000
        record["metrics"]["time_to_first_token"]["unit"] = "s"
    assert load(written(tmp_path, records))[0].summary().ttft_s.mean == pytest.approx(0.0527324046)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r["time_to_first_token"].update(unit="tokens"), "time_to_first_token, unit"),
        (lambda r: r["output_token_throughput"].update(unit="tokens/min"), "output_token_throughput, unit"),
        (lambda r: r["request_latency"].update(avg="fast"), "avg"),
        (lambda r: [r.pop(key) for key in list(r) if isinstance(r[key], dict)], "known format|no metric"),
    ],
)
def test_a_wrong_unit_or_value_is_refused_by_name(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        load(edited(shared(JSON), tmp_path, change, "x_aiperf.json"))
    assert "x_aiperf.json" in str(error.value)


def test_fault_25_the_servers_count_is_preferred(tmp_path: Path) -> None:
    records = lines_of(shared(LINES))
    for record in records:
        record["metrics"]["output_sequence_length"]["value"] = 9
    (run,) = load(written(tmp_path, records))
    assert run.requests["output_tokens"].to_list() == [16] * 5


def test_fault_7_several_tokens_a_chunk(tmp_path: Path) -> None:
    records = lines_of(shared(LINES))
    for record in records:
        gaps = record["metrics"]["inter_chunk_latency"]["value"]
        record["metrics"]["inter_chunk_latency"]["value"] = [
            a + b + c for a, b, c in zip(*[iter(gaps)] * 3, strict=True)
        ]
    (run,) = load(written(tmp_path, records))
    s = run.summary()
    assert (s.itl_name, s.itl_s.n) == ("chunk gap", 25)
    assert s.itl_s.mean == pytest.approx(3 * 0.01997440236, rel=1e-6)
    assert s.tpot_s.mean == pytest.approx(0.01997440236, rel=1e-6)


def test_fault_4_reasoning_comes_before_content(tmp_path: Path) -> None:
    records = lines_of(shared(LINES))
    for record in records:
        record["metrics"]["time_to_first_output_token"]["value"] += 100.0
    (run,) = load(written(tmp_path, records))
    apart = run.requests["first_content_s"] - run.requests["first_token_s"]
    assert apart.to_list() == [pytest.approx(0.1)] * 5
    assert run.summary().ttft_s.mean == pytest.approx(0.0527324046)


def test_failed_cancelled_and_warm_up_requests(tmp_path: Path) -> None:
    records = lines_of(shared(LINES))
    records[0]["metadata"]["benchmark_phase"] = "warmup"
    records[1]["metadata"]["was_cancelled"] = True
    records[2]["error"] = {"code": 503, "type": "ServiceUnavailable", "message": "busy"}
    records[2]["metrics"] = {}
    (run,) = load(written(tmp_path, records))
    s = run.summary()
    assert run.requests["error"].to_list() == ["cancelled", "ServiceUnavailable: busy", None, None]
    assert (s.requests, s.completed, s.failed, s.ttft_s.n) == (4, 2, 2, 2)
    assert "1 requests of the warm-up are left out" in run.meta.notes


def test_a_reply_of_one_token_and_one_that_was_not_streamed(tmp_path: Path) -> None:
    records = lines_of(shared(LINES))
    for name in ("inter_chunk_latency", "inter_token_latency"):
        del records[0]["metrics"][name]
    records[0]["metrics"]["usage_completion_tokens"]["value"] = 1
    for name in ("time_to_first_token", "time_to_first_output_token", "inter_chunk_latency"):
        del records[1]["metrics"][name]
    (run,) = load(written(tmp_path, records[:2]))
    assert run.requests["first_token_s"].to_list() == [pytest.approx(0.059732667), None]
    assert run.requests["last_token_s"].to_list() == [pytest.approx(0.059732667), None]
    assert run.summary().tpot_s.n == 0


def test_turns_of_a_conversation_are_a_session(tmp_path: Path) -> None:
    records = lines_of(shared(LINES))
    records[3]["metadata"]["conversation_id"] = records[0]["metadata"]["conversation_id"]
    (run,) = load(written(tmp_path, records))
    assert run.requests["session"].to_list() == [0, 1, 2, 0, 3]


def test_lines_that_end_early_are_a_partial_run(tmp_path: Path) -> None:
    shutil.copy(shared(JSON), tmp_path)
    written(tmp_path, lines_of(shared(LINES))[:3])
    (run,) = load(tmp_path)
    assert run.meta.partial == "profile_export.jsonl lists 3 of 5 requests"


def test_a_newer_version_is_read_as_far_as_known(tmp_path: Path) -> None:
    path = edited(shared(JSON), tmp_path, lambda r: r.update(schema_version="2.0", verdict=["good"]))
    (run,) = load(path)
    assert run.meta.notes == ["version 2.0 is newer than 1.4: read as far as known; skipped: verdict"]
    path = edited(shared(JSON), tmp_path, lambda r: r.update(verdict=["good"]))
    assert load(path)[0].meta.notes == ["keys not read: verdict"]


def test_a_cancelled_run_is_partial(tmp_path: Path) -> None:
    (run,) = load(edited(shared(JSON), tmp_path, lambda r: r.update(was_cancelled=True)))
    assert run.meta.partial == "cancelled"


@pytest.mark.parametrize("file", [JSON, LINES])
def test_cut_files_are_refused(tmp_path: Path, file: str) -> None:
    source = shared(file)
    if file == LINES:  # cut between two lines it is whole, with fewer requests: see the partial run above
        source = tmp_path / "one.jsonl"
        source.write_text(shared(file).read_text().splitlines()[0] + "\n")
        (tmp_path / "cut").mkdir()
    assert_refused_when_cut(source, tmp_path / "cut" if file == LINES else tmp_path)


def test_a_cut_csv_is_refused(tmp_path: Path) -> None:
    text = shared(CSV).read_text()
    (tmp_path / "x.csv").write_text(text[: text.index("Inter Token") + 30])
    with pytest.raises(FormatError, match=r"x\.csv.*not complete"):
        load(tmp_path / "x.csv")


def test_sniff_takes_no_other_tools_file() -> None:
    others = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file() and p.parent.name != "aiperf"]
    assert [path.name for path in others if aiperf.sniff(path)] == []


# --- GenAI-Perf: no genuine file is at hand, so these are made by the shape in its SCHEMA.md -------------------------


def as_genai_perf(report: Any) -> None:
    """AIPerf's JSON without what GenAI-Perf does not write."""
    for key in ("schema_version", "aiperf_version", "benchmark_id", "run_info", "was_cancelled", "is_complete",
                "error_summary", "start_time", "end_time", "inter_chunk_latency"):  # fmt: skip
        report.pop(key, None)
    for value in report.values():
        value.pop("count", None), value.pop("sum", None)
    report["input_config"] = {"model_names": ["mock"], "perf_analyzer": {"stimulus": {"concurrency": 4}}}


def test_genai_perf_aggregates(tmp_path: Path) -> None:
    (run,) = load(edited(shared(JSON), tmp_path, as_genai_perf, "profile_export_genai_perf.json"))
    s = run.summary()
    assert (run.meta.tool, run.meta.model, run.meta.concurrency) == ("GenAI-Perf", "mock", 4)
    assert (s.ttft_s.p50, s.tpot_s.mean, s.itl_s.mean) == (
        pytest.approx(0.0508823),
        pytest.approx(0.01997440236),
        None,
    )


def profile(**last: Any) -> dict[str, Any]:
    """Two replies: a role, two tokens, the usage; in steps of 10 ms from 100 ms after sending."""
    ms = 1_000_000
    texts = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]
    chunks = ["data: " + json.dumps({"choices": [{"delta": delta}]}) for delta in texts]
    chunks.append("data: " + json.dumps({"choices": [], **last}))
    requests = [
        {
            "timestamp": 10**18 + start * ms,
            "request_inputs": {"payload": "{}"},
            "response_timestamps": [10**18 + (start + t) * ms for t in (100, 110, 120, 121)],
            "response_outputs": [{"response": chunk} for chunk in chunks],
        }
        for start in (0, 200)
    ]
    point = {"experiment": {"mode": "concurrency", "value": 1}, "requests": requests, "window_boundaries": [0, 1]}
    return {"service_kind": "openai", "endpoint": "v1/chat/completions", "experiments": [point], "version": "0.0.16"}


def test_genai_perf_requests(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.json"
    path.write_text(json.dumps(profile(usage={"prompt_tokens": 7, "completion_tokens": 3})))
    (run,) = load(path)
    s = run.summary()
    assert (run.meta.concurrency, s.requests, s.output_tokens, s.prompt_tokens) == (1, 2, 6, 14)
    # fault 2: the role-only piece at 100 ms is the first byte, not the first token
    assert (s.ttft_s.mean, s.tpot_s.mean, s.itl_name) == (pytest.approx(0.11), pytest.approx(0.005), "chunk gap")
    assert run.requests["first_byte_s"].to_list() == [pytest.approx(0.1), pytest.approx(0.3)]


def test_genai_perf_without_usage_does_not_know_lengths(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.json"
    path.write_text(json.dumps(profile()))
    (run,) = load(path)
    assert (run.summary().output_tokens, run.summary().tpot_s.n) == (None, 0)
    assert run.requests["token_events"].to_list() == [2, 2]
    assert "no usage" in run.meta.notes[0]


def test_a_folder_of_genai_perf_is_one_run(tmp_path: Path) -> None:
    edited(shared(JSON), tmp_path, as_genai_perf, "profile_export_genai_perf.json")
    (tmp_path / "profile_export.json").write_text(json.dumps(profile()))
    (tmp_path / "inputs.json").write_text('{"data": []}')
    (run,) = load(tmp_path)
    assert (run.requests.height, run.meta.model) == (2, "mock")
    assert run.meta.stated["ttft_s.mean"] == pytest.approx(0.0527324046)


def test_genai_perf_cut(tmp_path: Path) -> None:
    whole = tmp_path / "profile_export.json"
    whole.write_text(json.dumps(profile()))
    (tmp_path / "cut").mkdir()
    assert_refused_when_cut(whole, tmp_path / "cut")


def test_its_export_of_the_servers_metrics_is_passed_over(tmp_path: Path) -> None:
    """Written into the same folder wherever the server has /metrics."""
    shutil.copytree(shared("data/bench_outputs/aiperf"), tmp_path / "out")
    metrics = {"vllm:e2e_request_latency_seconds": {"type": "histogram", "series": [], "unit": "seconds"}}
    content = {"schema_version": "1.0", "aiperf_version": "0.13.0", "metrics": metrics}
    (tmp_path / "out" / "server_metrics_export.json").write_text(json.dumps(content))
    assert len(load(str(tmp_path / "out"))) == 1


def test_genai_perf_last_token_and_usage_in_one_piece(tmp_path: Path) -> None:
    made = profile(usage={"prompt_tokens": 7, "completion_tokens": 2})
    for request in made["experiments"][0]["requests"]:
        _, first, second, usage = (reply["response"] for reply in request["response_outputs"])
        request["response_outputs"] = [{"response": first}, {"response": f"{second}\n\n{usage}\n\n"}]
        request["response_timestamps"] = [request["timestamp"] + t * 1_000_000 for t in (100, 120)]
    path = tmp_path / "profile_export.json"
    path.write_text(json.dumps(made))
    (run,) = load(path)
    assert run.summary().tpot_s.mean == pytest.approx(0.02)
    assert run.requests["token_events"].to_list() == [2, 2]
