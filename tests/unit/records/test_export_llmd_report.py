"""Runs as llm-d benchmark reports: valid by the schema's own package, and read back with nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from llmd_benchmark_report.core import import_benchmark_report, load_benchmark_report

from inferometer.errors import InputError
from inferometer.records.exporters import llmd_report, to_llmd_report
from inferometer.records.importers import load
from inferometer.records.run import OWN_CLOCK, Run, RunMeta, make_run
from result_files import different_figures
from shared import shared

SOURCES = (
    "vllm_bench/vllm-0.33.0_detailed.json",
    "vllm_bench/vllm-0.33.0_goodput_rate.json",
    "sglang/sglang-0.5.23_python_details.jsonl",
    "inference-perf",
    "aiperf",
    "guidellm",
    "inferencex",
)


def back(run: Run, folder: Path) -> Run:
    path = folder / "report.yaml"
    llmd_report.write(run, path)
    import_benchmark_report(str(path))
    return load(path)[0]


@pytest.mark.parametrize("source", SOURCES)
def test_there_and_back(source: str, tmp_path: Path) -> None:
    run = load(shared("data/bench_outputs/" + source))[0]
    again = back(run, tmp_path)
    # the report does not say whether a gap is one of tokens or of chunks; the mean in flight of requests without a
    # common clock follows from the stated rate and E2E
    but = ("itl_name", "mean_in_flight") if run.meta.clock == OWN_CLOCK else ("itl_name",)
    assert different_figures(run, again, but) == {}
    for field in ("model", "concurrency", "request_rate_per_s", "deployment", "workload", "notes", "clock", "name"):
        assert getattr(again.meta, field) == getattr(run.meta, field), field


def test_what_a_measurement_says_of_itself_is_kept(tmp_path: Path) -> None:
    meta = RunMeta(
        kind="measured",
        name="night run",
        seed=7,
        arm="fp8",
        policy="fcfs",
        chip="h100",
        slo={"ttft_s": 0.5},
        partial="interrupted",
        unfit=["the client was the bottleneck"],
        counters={"preemptions": 3.0},
        started_unix_s=1795954033.5,
        duration_s=12.25,
    )
    columns = {"sent_s": [0.0], "first_token_s": [0.5], "end_s": [1.5], "prompt_tokens": [8], "output_tokens": [11]}
    again = back(make_run(meta, columns), tmp_path).meta
    for field in ("name", "seed", "arm", "policy", "chip", "slo", "partial", "unfit", "counters", "duration_s"):
        assert getattr(again, field) == getattr(meta, field), field
    assert again.created == "2026-11-29T12:07:13.500000+00:00"


def test_failures_are_counted(tmp_path: Path) -> None:
    columns = {
        "sent_s": [0.0, 0.0],
        "first_token_s": [0.5, None],
        "end_s": [1.5, 0.1],
        "prompt_tokens": [8, 8],
        "output_tokens": [11, None],
        "error": [None, "HTTP 503"],
    }
    report = to_llmd_report(make_run(RunMeta(kind="measured"), columns))
    requests = report["results"]["request_performance"]["aggregate"]["requests"]
    assert (requests["total"], requests["failures"]) == (2, 1)
    assert requests["output_length"]["mean"] == 11.0


def test_without_lengths_there_is_no_load_but_a_valid_report() -> None:
    run = make_run(RunMeta(kind="measured"), {"sent_s": [0.0], "first_token_s": [0.5], "end_s": [1.5]})
    report = to_llmd_report(run)
    assert "scenario" not in report
    load_benchmark_report(report)


def test_a_run_that_states_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no latency and no rate"):
        to_llmd_report(make_run(RunMeta(kind="measured")))


def test_every_figure_has_its_unit() -> None:
    report = to_llmd_report(load(shared("data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json"))[0])
    aggregate = report["results"]["request_performance"]["aggregate"]
    assert {name: figure["units"] for name, figure in (aggregate["latency"] | aggregate["throughput"]).items()} == {
        "time_to_first_token": "s",
        "time_per_output_token": "s/token",
        "inter_token_latency": "s/token",
        "normalized_time_per_output_token": "s/token",
        "request_latency": "s",
        "output_token_rate": "tokens/s",
        "total_token_rate": "tokens/s",
        "request_rate": "queries/s",
    }
    assert yaml.safe_load(llmd_report.text(load(shared("data/bench_outputs/aiperf"))[0]))["version"] == "0.2.1"
