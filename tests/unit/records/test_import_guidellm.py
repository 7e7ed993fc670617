"""GuideLLM's report: its requests, its own figures, and what its names mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import guidellm, load
from result_files import assert_refused_when_cut, edited, stated_and_ours
from shared import shared

FILE = "data/bench_outputs/guidellm/guidellm-0.8.1_concurrent1.json"


def benchmark(report: Any) -> Any:
    return report["benchmarks"][0]


def test_our_figures_are_those_the_tool_states() -> None:
    (run,) = load(shared(FILE))
    compared = {}
    for path, stated, ours in stated_and_ours(run):
        # the tool's percentiles are values of the sample, ours interpolate: p50 of five is the same, a tail is not
        if path.rpartition(".")[2] in ("p90", "p95", "p99"):
            continue
        assert ours == pytest.approx(stated, rel=1e-6), path
        compared[path] = ours
    assert {"ttft_s.mean", "ttft_s.std", "ttft_s.p50", "e2e_s.mean", "tpot_s.mean", "mean_in_flight"} <= set(compared)
    assert compared["output_tok_per_s"] == pytest.approx(44.56862209631608)
    assert compared["total_tok_per_s"] == pytest.approx(338.72152793200223)
    assert (compared["requests"], compared["completed"], compared["output_tokens"]) == (5, 5, 80)


def test_a_tail_of_the_sample_is_the_largest_value() -> None:
    (run,) = load(shared(FILE))
    ttft = run.requests["first_token_s"] - run.requests["sent_s"]
    assert ttft.max() == pytest.approx(run.meta.stated["ttft_s.p99"], abs=1e-6)


def test_what_the_run_was() -> None:
    (run,) = load(shared(FILE))
    meta = run.meta
    assert (meta.tool, meta.tool_version, meta.model) == ("GuideLLM", "0.8.1", "mock")
    assert (meta.concurrency, meta.request_rate_per_s, meta.partial, meta.notes) == (1, None, "", [])
    assert meta.started_unix_s == pytest.approx(1795954033.6442513)
    assert meta.duration_s == pytest.approx(1.7949848175048828)
    assert run.requests["sent_s"][0] == 0.0
    assert run.requests["token_events"].to_list() == [16] * 5
    assert run.requests["first_content_s"].equals(run.requests["first_token_s"], check_names=False)
    assert run.summary().client_queue_s.mean == pytest.approx(0.004327011108398438)  # its root_dispatch_delay


def test_fault_23_an_average_is_no_gap_and_time_over_n_is_no_tpot() -> None:
    (run,) = load(shared(FILE))
    s = run.summary()
    assert (run.token_times, s.itl_s.n, s.itl_name) == (None, 0, None)
    assert not any(path.startswith("itl_s") for path in run.meta.stated)
    # the tool's "time per output token" is 22.2 ms, its "inter-token latency" 19.8 ms a request
    assert run.meta.stated["guidellm.time_per_output_token_s.mean"] == pytest.approx(0.022166386246681213)
    assert s.tpot_s.mean == pytest.approx(0.019821786880493164)
    ends_at_the_last_token = (run.requests["last_token_s"] - run.requests["sent_s"]) / run.requests["output_tokens"]
    assert ends_at_the_last_token.mean() == pytest.approx(0.022166386246681213, rel=1e-6)
    assert s.normalized_latency_s.mean == pytest.approx(0.022187483, rel=1e-6)  # E2E / n, to the end of the reply


def test_fault_33_requests_that_are_processed_but_not_listed(tmp_path: Path) -> None:
    def lose_two(report: Any) -> None:
        one = benchmark(report)
        one["requests"]["successful"] = one["requests"]["successful"][:3]
        one["metrics"]["request_totals"] = {"successful": 3, "errored": 0, "incomplete": 0, "total": 3}

    (run,) = load(edited(shared(FILE), tmp_path, lose_two))
    assert run.summary().requests == 3
    assert run.meta.partial == "3 of 5 requests processed are listed; what became of the others is unknown"
    assert run.meta.partial in run.meta.notes[0]


def test_a_warm_up_is_no_loss(tmp_path: Path) -> None:
    def warm_up(report: Any) -> None:
        one = benchmark(report)
        one["warmup_duration"] = 0.4
        one["requests"]["successful"] = one["requests"]["successful"][1:]
        one["metrics"]["request_totals"] = {"successful": 4, "errored": 0, "incomplete": 0, "total": 4}

    (run,) = load(edited(shared(FILE), tmp_path, warm_up))
    assert (run.meta.partial, run.summary().requests, run.requests["sent_s"][0]) == ("", 4, 0.0)
    assert "4 of 5" in run.meta.notes[0]


def test_a_sample_of_the_requests_gives_the_figures_of_all(tmp_path: Path) -> None:
    def sample(report: Any) -> None:
        benchmark(report)["requests"]["successful"] = benchmark(report)["requests"]["successful"][:2]

    (run,) = load(edited(shared(FILE), tmp_path, sample))
    s = run.summary()
    assert (run.requests.height, s.requests, s.output_tokens) == (0, 5, 80)
    assert s.ttft_s.mean == pytest.approx(0.05733537673950195)
    assert s.tpot_s.mean == pytest.approx(0.019821786880493164)
    assert "2 of 5 requests are listed" in run.meta.notes[0]


def test_without_requests_a_mean_weighed_by_tokens_is_no_tpot_unless_lengths_are_equal(tmp_path: Path) -> None:
    def unequal(report: Any) -> None:
        benchmark(report)["requests"] = None
        benchmark(report)["metrics"]["output_token_count"]["successful"]["min"] = 3.0

    (run,) = load(edited(shared(FILE), tmp_path, unequal))
    assert run.summary().tpot_s.mean is None
    assert run.meta.stated["guidellm.inter_token_latency_s.mean"] == pytest.approx(0.019821786880493164)


def test_faults_5_and_9_a_length_that_is_the_one_asked_for_is_flagged(tmp_path: Path) -> None:
    def stop_early(report: Any) -> None:
        for request in benchmark(report)["requests"]["successful"][:2]:
            request["info"]["timings"]["token_iterations"] = 4

    (run,) = load(edited(shared(FILE), tmp_path, stop_early))
    assert (
        "2 replies are listed with the 16 tokens asked for (32 in all) though 8 token events came" in run.meta.notes[0]
    )


def test_failed_and_cut_off_requests_are_rows(tmp_path: Path) -> None:
    def fail(report: Any) -> None:
        requests = benchmark(report)["requests"]
        requests["errored"] = [requests["successful"].pop()]
        requests["incomplete"] = [requests["successful"].pop()]
        requests["errored"][0]["info"]["error"] = "Traceback ...\nReadTimeout: slow"

    (run,) = load(edited(shared(FILE), tmp_path, fail))
    s = run.summary()
    assert (s.requests, s.completed, s.failed, s.ttft_s.n) == (5, 3, 2, 3)
    assert run.requests["error"].drop_nulls().to_list() == ["cancelled at the end of the run", "ReadTimeout: slow"]


def test_fault_13_a_stalled_dispatch_shows_from_the_intended_start(tmp_path: Path) -> None:
    def stall(report: Any) -> None:
        for request in benchmark(report)["requests"]["successful"]:
            request["info"]["timings"]["targeted_start"] -= 2.0

    (run,) = load(edited(shared(FILE), tmp_path, stall))
    s = run.summary()
    assert s.ttft_s.mean == pytest.approx(0.0573, abs=1e-4)
    assert s.ttft_from_scheduled_s.mean == pytest.approx(2.0573 + 0.0043, abs=1e-4)


def test_an_open_loop_has_its_rate(tmp_path: Path) -> None:
    def poisson(report: Any) -> None:
        benchmark(report)["config"]["strategy"] = {"type_": "poisson", "rate": 2.5, "max_concurrency": 8}

    (run,) = load(edited(shared(FILE), tmp_path, poisson))
    assert (run.meta.concurrency, run.meta.request_rate_per_s) == (8, 2.5)


def test_several_benchmarks_are_several_runs(tmp_path: Path) -> None:
    path = edited(shared(FILE), tmp_path, lambda r: r["benchmarks"].append(r["benchmarks"][0]), "sweep.json")
    assert [run.meta.name for run in load(path)] == ["sweep-1", "sweep-2"]


def test_version_1_has_its_arguments_elsewhere(tmp_path: Path) -> None:
    def older(report: Any) -> None:
        report["metadata"]["version"] = 1
        report["args"] = {"model": "old-model", "data": ["prompt_tokens=100"]}
        del report["config"], benchmark(report)["config"]["backend"]

    (run,) = load(edited(shared(FILE), tmp_path, older))
    assert (run.meta.model, run.meta.notes) == ("old-model", [])


def test_a_newer_version_is_read_as_far_as_known(tmp_path: Path) -> None:
    def newer(report: Any) -> None:
        report["metadata"]["version"] = 3
        report["verdict"] = "good"

    (run,) = load(edited(shared(FILE), tmp_path, newer))
    assert run.meta.notes == ["version 3 is newer than 2: read as far as known; skipped: verdict"]
    assert run.summary().requests == 5


def test_cut_files_are_refused(tmp_path: Path) -> None:
    assert_refused_when_cut(shared(FILE), tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.update(benchmarks=[]), "no benchmarks"),
        (lambda r: r.update(benchmarks=3), "no benchmarks"),
        (lambda r: r["benchmarks"][0].update(metrics=[1]), "metrics"),
        (lambda r: r["benchmarks"][0].pop("metrics"), "metrics"),
        (lambda r: r["benchmarks"][0].update(duration="long"), "duration"),
        (lambda r: r["benchmarks"][0].update(start_time=1e18), "start_time"),
        (lambda r: r["benchmarks"][0]["requests"]["successful"][0].update(output_tokens=1.5), "output_tokens"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        load(edited(shared(FILE), tmp_path, change, "report.json"))
    assert str(error.value).startswith("report.json:")


def test_sniff_takes_no_other_tools_file() -> None:
    others = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file() and p.parent.name != "guidellm"]
    assert [path.name for path in others if guidellm.sniff(path)] == []


def test_a_reported_0_of_cached_tokens_is_not_missing(tmp_path: Path) -> None:
    def change(report: Any) -> None:
        benchmark(report)["requests"]["successful"][0]["cached_tokens"] = 0
        benchmark(report)["requests"]["successful"][1]["input_metrics"] = {"cached_tokens": 5}

    (run,) = load(edited(shared(FILE), tmp_path, change))
    assert sorted(n for n in run.requests["cached_tokens"] if n is not None) == [0, 5]
