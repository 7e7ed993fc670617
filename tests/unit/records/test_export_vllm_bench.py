"""Runs as vllm bench serve's results: there and back, nothing the format can hold is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UnknownNameError
from inferometer.records.exporters import export, to_vllm_bench, vllm_bench
from inferometer.records.importers import load
from inferometer.records.run import OWN_CLOCK, Run, RunMeta, TokenTimes, make_run
from result_files import different_figures
from shared import shared

HELD = ("sent_s", "first_token_s", "end_s", "prompt_tokens", "output_tokens", "error")
"""Columns that the format can hold of any run; with token times also last_token_s, of an open loop scheduled_s."""


def made(times: bool = True, **meta: Any) -> Run:
    """Four requests: three tokens, one token, none, and one that failed after its first token."""
    columns = {
        "sent_s": [0.0, 0.5, 1.0, 1.5],
        "scheduled_s": [0.0, 0.25, 1.0, 1.25],
        "first_token_s": [0.25, 0.75, None, 1.75],
        "last_token_s": [0.75, 0.75, None, 1.75],
        "end_s": [0.875, 0.8125, 1.5, 2.0],
        "prompt_tokens": [10, 20, 30, None],
        "output_tokens": [3, 1, 0, None],
        "error": [None, None, None, "ClientOSError: reset"],
    }
    events = TokenTimes(np.array([0, 3, 4, 4, 5]), np.array([0.25, 0.5, 0.75, 0.75, 1.75]))
    return make_run(RunMeta(kind="measured", model="m", **meta), columns, token_times=events if times else None)


def back(run: Run, folder: Path) -> Run:
    vllm_bench.write(run, folder / "result.json")
    return load(folder / "result.json")[0]


def assert_same(a: Run, b: Run, columns: tuple[str, ...] = HELD) -> None:
    for name in columns:
        x, y = a.requests[name], b.requests[name]
        if x.dtype == pl.Float64:
            assert x.is_null().equals(y.is_null(), check_names=False), name
            assert np.allclose(x.to_numpy(), y.to_numpy(), atol=1e-9, equal_nan=True), name
        else:
            assert x.to_list() == y.to_list(), name


@pytest.mark.parametrize(
    "source",
    [
        "data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json",
        "data/bench_outputs/sglang/sglang-0.5.23_python_details.jsonl",
        "data/bench_outputs/inference-perf",
        "data/bench_outputs/aiperf",
        "data/cpu_engine/main_clean/c8.json",
    ],
)
def test_genuine_runs_there_and_back(source: str, tmp_path: Path) -> None:
    run = load(shared(source))[0]
    again = back(run, tmp_path)
    assert_same(run, again, (*HELD, "last_token_s"))
    assert run.token_times is not None
    assert again.token_times is not None
    assert np.array_equal(run.token_times.offsets, again.token_times.offsets)
    assert np.allclose(run.token_times.times_s, again.token_times.times_s, atol=1e-9)
    assert different_figures(run, again, but=("prefix_hit_rate", "first_content_s")) == {}
    for field in ("model", "concurrency", "request_rate_per_s", "clock"):
        assert getattr(run.meta, field) == getattr(again.meta, field), field


def test_failures_and_gaps_in_what_is_known(tmp_path: Path) -> None:
    run = made(request_rate_per_s=2.0, concurrency=8, duration_s=2.5)
    again = back(run, tmp_path)
    assert_same(run, again, (*HELD, "last_token_s", "scheduled_s"))
    assert run.token_times == again.token_times
    assert different_figures(run, again) == {}
    value = json.loads((tmp_path / "result.json").read_text())
    assert value["errors"] == ["", "", "", "ClientOSError: reset"]
    assert (value["completed"], value["failed"], value["num_prompts"]) == (3, 1, 4)


def test_of_a_measured_window_its_requests_are_written(tmp_path: Path) -> None:
    run = made(window_s=(0.4, None))
    again = back(run, tmp_path)
    assert again.requests.height == 3
    assert again.requests["sent_s"].to_list() == [0.0, 0.5, 1.0]
    assert again.summary().ttft_s == run.summary().ttft_s
    assert again.token_times is not None
    assert np.diff(again.token_times.offsets).tolist() == [1, 0, 1]


def test_fault_3_no_first_token_is_the_formats_own_zero() -> None:
    result = to_vllm_bench(made())
    assert (result["ttfts"], result["input_lens"]) == ([0.25, 0.25, 0.0, 0.25], [10, 20, 30, None])
    assert result["itls"] == [[0.25, 0.25], [], [], []]


def test_without_token_times_the_last_token_is_lost_and_not_made_up(tmp_path: Path) -> None:
    run = made(times=False)
    again = back(run, tmp_path)
    assert_same(run, again)
    assert again.requests["last_token_s"].to_list() == [None, 0.75, None, None]
    assert again.summary().tpot_s.mean == pytest.approx((0.875 - 0.25) / 2)  # (E2E - TTFT) / (n - 1), the format's own
    assert (again.token_times, again.summary().itl_name) == (None, None)


def test_a_schedule_of_a_replay_is_kept(tmp_path: Path) -> None:
    run = made()  # neither rate nor concurrency: a trace
    again = back(run, tmp_path)
    assert_same(run, again, ("scheduled_s",))
    assert json.loads((tmp_path / "result.json").read_text())["request_rate"] == "inf"


def test_a_request_that_never_ended_is_named(tmp_path: Path) -> None:
    columns = {"sent_s": [0.0, 0.0], "first_token_s": [0.5, None], "end_s": [1.0, None], "output_tokens": [2, None]}
    run = make_run(RunMeta(kind="measured"), columns | {"prompt_tokens": [1, 1]})
    again = back(run, tmp_path)
    assert again.requests["error"].to_list() == [None, "no end"]
    assert (again.summary().failed, again.requests["end_s"].to_list()) == (1, [1.0, None])


def test_requests_on_their_own_clocks_have_no_start_times(tmp_path: Path) -> None:
    run = load(shared("data/bench_outputs/sglang/sglang-0.5.23_rust_details.jsonl"))[0]
    assert "start_times" not in to_vllm_bench(run)
    assert back(run, tmp_path).meta.clock == OWN_CLOCK


@pytest.mark.parametrize(
    "source",
    ["data/bench_outputs/inferencex", "data/bench_outputs/vllm_bench/vllm-0.33.0_goodput_rate.json"],
)
def test_stated_figures_there_and_back(source: str, tmp_path: Path) -> None:
    run = load(shared(source))[0]
    again = back(run, tmp_path)
    assert again.requests.height == 0
    assert different_figures(run, again, but=("mean_in_flight",)) == {}
    assert "itls" not in to_vllm_bench(run)


def test_the_keys_are_the_tools(tmp_path: Path) -> None:
    genuine = json.loads(shared("data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json").read_text())
    ours = to_vllm_bench(load(shared("data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json"))[0])
    # text of the replies, and figures that are by buckets of a second or of audio, are no part of a run
    known = {"generated_texts", "rtfx", "p50_ttft_ms", "p50_tpot_ms", "p50_itl_ms", "p50_e2el_ms"}
    # in a closed loop there is no queue of the client
    known |= {"queue_times"} | {key for key in genuine if "client_queue" in key}
    assert {key for key in genuine if key not in ours} <= known
    for key, value in ours.items():
        if isinstance(value, float) and key in genuine and key not in ("burstiness", "max_output_tokens_per_s"):
            assert value == pytest.approx(genuine[key], rel=1e-6), key


def test_nothing_completed_and_no_requests(tmp_path: Path) -> None:
    columns = {"sent_s": [0.0], "end_s": [0.5], "prompt_tokens": [4], "output_tokens": [None], "error": ["refused"]}
    again = back(make_run(RunMeta(kind="measured"), columns), tmp_path)
    assert (again.summary().completed, again.summary().failed, again.summary().ttft_s.n) == (0, 1, 0)
    assert to_vllm_bench(make_run(RunMeta(kind="measured")))["num_prompts"] == 0


@given(st.data())
def test_any_run_there_and_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    gap = st.floats(1e-6, 10.0)
    sent = np.cumsum([0.0, *(data.draw(gap) for _ in range(n - 1))])
    gaps = [data.draw(st.lists(gap, max_size=4)) for _ in range(n)]
    first = sent + [data.draw(gap) for _ in range(n)]
    events = [f + np.concatenate(([0.0], np.cumsum(g))) for f, g in zip(first, gaps, strict=True)]
    columns = {
        "sent_s": sent,
        "first_token_s": first,
        "last_token_s": [each[-1] for each in events],
        "end_s": [each[-1] + data.draw(gap) for each in events],
        "prompt_tokens": [data.draw(st.integers(1, 9)) for _ in range(n)],
        "output_tokens": [len(each) + data.draw(st.integers(0, 3)) for each in events],
    }
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in events])))
    run = make_run(
        RunMeta(kind="measured", concurrency=2), columns, token_times=TokenTimes(offsets, np.concatenate(events))
    )
    again = back(run, tmp_path_factory.mktemp("any"))
    assert_same(run, again, (*HELD, "last_token_s"))
    assert again.token_times is not None
    assert np.allclose(run.token_times.times_s, again.token_times.times_s, atol=1e-9)  # type: ignore[union-attr]


def test_a_format_that_is_none() -> None:
    with pytest.raises(UnknownNameError, match="vllm-bench"):
        export(made(), "vllm")


def test_rates_of_a_window_follow_from_the_arrays() -> None:
    run = made(window_s=(0.4, 1.2), duration_s=9.0, concurrency=2)
    result = to_vllm_bench(run)
    ends = [sent + latency for sent, latency in zip(result["start_times"], result["latencies"], strict=True)]
    assert result["duration"] == max(ends) - min(result["start_times"]) == 1.0
    assert (result["num_prompts"], result["completed"], result["total_output_tokens"]) == (2, 2, 1)
    assert result["output_throughput"] == result["total_output_tokens"] / result["duration"]
    assert result["request_throughput"] == result["completed"] / result["duration"]
    assert run.meta.window_s == (0.4, 1.2)
