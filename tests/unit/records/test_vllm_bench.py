"""Genuine results of ``vllm bench serve``, and made ones with the faults that versions of it had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import load, vllm_bench
from inferometer.records.metrics import STAT_NAMES
from inferometer.records.run import OWN_CLOCK
from shared import shared

FOLDER = "data/bench_outputs/vllm_bench/"
DETAILED = FOLDER + "vllm-0.33.0_detailed.json"


def result(**changes: Any) -> dict[str, Any]:
    """Two requests, one of three tokens and one of two, one after the other."""
    return {
        "date": "20261129-121710",
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": 2,
        "request_rate": "inf",
        "max_concurrency": 1,
        "duration": 2.0,
        "completed": 2,
        "total_input_tokens": 20,
        "total_output_tokens": 5,
        "request_throughput": 1.0,
        "output_throughput": 2.5,
        "total_token_throughput": 12.5,
        "input_lens": [10, 10],
        "output_lens": [3, 2],
        "ttfts": [0.5, 0.25],
        "itls": [[0.25, 0.25], [0.5]],
        "start_times": [100.0, 101.0],
        "latencies": [1.0, 0.75],
        "errors": ["", ""],
        **changes,
    }


def write(tmp_path: Path, *values: dict[str, Any]) -> Path:
    path = tmp_path / "result.json"
    path.write_text("\n".join(json.dumps(value) for value in values))
    return path


def without(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: v for key, v in value.items() if key not in keys}


@pytest.mark.parametrize(
    "file",
    [DETAILED, *(f"data/cpu_engine/{f}.json" for f in ("main_clean/c1", "main_clean/c8", "main_rerun/c32b"))],
)
def test_the_summary_from_raw_values_is_the_one_the_file_states(file: str) -> None:
    (run,) = load(shared(file))
    s = run.summary()
    compared = 0
    for path, stated in run.meta.stated.items():
        name, _, part = path.partition(".")
        if name in STAT_NAMES and part in s.to_dict()[name]:
            assert s.to_dict()[name][part] == pytest.approx(stated, rel=1e-6), path
            compared += 1
        elif not part and name in s.to_dict():
            assert s.to_dict()[name] == pytest.approx(stated, rel=1e-9), path
            compared += 1
    assert compared >= 28


def test_the_detailed_file_is_a_closed_loop_of_one() -> None:
    (run,) = load(shared(DETAILED))
    s = run.summary()
    assert (run.meta.concurrency, run.meta.request_rate_per_s, run.meta.model) == (1, None, "mock")
    assert (run.meta.source, run.meta.created) == ("vllm-0.33.0_detailed.json", "2026-11-29T12:17:10")
    assert run.requests["sent_s"][0] == 0.0
    assert run.requests["scheduled_s"].null_count() == 5
    assert s.littles_law == pytest.approx(1.0, rel=0.001)
    assert (s.itl_s.n, s.itl_name) == (5 * 15, "token gap")
    # fault 11: the file says 3, counted by buckets of a second
    assert (s.peak_in_flight, run.meta.stated["max_concurrent_requests"]) == (1, 3.0)


@pytest.mark.parametrize("name", ["c1", "c2", "c4", "c8"])
def test_littles_law_holds_on_a_real_engine(name: str) -> None:
    (run,) = load(shared(f"data/cpu_engine/main_clean/{name}.json"))
    assert run.summary().littles_law == pytest.approx(1.0, rel=0.001)
    assert run.summary().peak_in_flight == run.meta.concurrency


def test_a_file_without_detail_gives_what_it_states() -> None:
    (run,) = load(shared(FOLDER + "vllm-0.33.0_goodput_rate.json"))
    s = run.summary()
    assert run.requests.height == 0
    assert (run.meta.request_rate_per_s, run.meta.concurrency) == (20.0, 4)
    assert s.ttft_s.mean == pytest.approx(0.05166918889999579)
    assert s.client_queue_s.mean == pytest.approx(0.3009195410000302)
    assert s.e2e_from_scheduled_s.p99 == pytest.approx(1.018271082830015)
    assert (s.requests, s.completed, s.failed, s.output_tokens, s.duration_s) == (20, 20, 0, 320, 1.920405675999973)
    assert (s.ttft_s.p90, s.queue_s.mean, s.littles_law) == (None, None, None)
    assert run.meta.stated["goodput.request_per_s"] == pytest.approx(10.414466198443105)


def test_a_folder_gives_both() -> None:
    assert [run.requests.height for run in load(shared(FOLDER))] == [5, 0]


def test_times_of_a_made_file(tmp_path: Path) -> None:
    (run,) = load(write(tmp_path, result()))
    assert run.requests.select("sent_s", "first_token_s", "last_token_s", "end_s").rows() == [
        (0.0, 0.5, 1.0, 1.0),
        (1.0, 1.25, 1.75, 1.75),
    ]
    assert run.token_times is not None
    assert run.token_times.times_s.tolist() == [0.5, 0.75, 1.0, 1.25, 1.75]
    assert run.token_times.offsets.tolist() == [0, 3, 5]


def test_append_mode_gives_a_run_a_line(tmp_path: Path) -> None:
    runs = load(write(tmp_path, result(max_concurrency=1), result(max_concurrency=2, duration=1.0)))
    assert [(run.meta.name, run.meta.concurrency) for run in runs] == [("result-1", 1), ("result-2", 2)]
    assert runs[0].id != runs[1].id


def test_a_pretty_printed_file_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result(), indent=2))
    assert load(path)[0].requests.equals(load(write(tmp_path, result()))[0].requests)


def test_fault_1_ttft_listed_among_the_gaps(tmp_path: Path) -> None:
    faulty = result(itls=[[0.5, 0.25, 0.25], [0.25, 0.5]])
    s = load(write(tmp_path, faulty))[0].summary()
    assert (s.itl_s.n, s.itl_s.mean) == (3, pytest.approx(1 / 3))
    assert s == load(write(tmp_path, result()))[0].summary()


def test_fault_3_an_empty_reply_has_no_ttft(tmp_path: Path) -> None:
    changes = {"output_lens": [3, 0], "ttfts": [0.5, 0.0], "itls": [[0.25, 0.25], []]}
    (run,) = load(write(tmp_path, result(**changes)))
    assert run.requests["first_token_s"].to_list() == [0.5, None]
    assert (run.summary().ttft_s.n, run.summary().completed) == (1, 2)


def test_a_failed_request_is_kept_with_its_error(tmp_path: Path) -> None:
    changes = {
        "completed": 1,
        "output_lens": [3, 0],
        "ttfts": [0.5, 0.0],
        "itls": [[0.25, 0.25], []],
        "latencies": [1.0, 0.0],
        "errors": ["", "Traceback ...\nConnectionResetError: gone"],
    }
    (run,) = load(write(tmp_path, result(**changes)))
    assert run.requests["error"].to_list() == [None, "ConnectionResetError: gone"]
    assert (run.summary().requests, run.summary().failed, run.summary().e2e_s.n) == (2, 1, 1)


def test_a_silent_failure_shows_by_the_count_of_completed(tmp_path: Path) -> None:
    changes = {"completed": 1, "output_lens": [3, 0], "ttfts": [0.5, 0.0], "itls": [[0.25, 0.25], []]}
    (run,) = load(write(tmp_path, without(result(**changes), "errors")))
    assert (run.summary().completed, run.summary().failed) == (1, 1)


def test_fault_31_nothing_completed(tmp_path: Path) -> None:
    changes = {
        "completed": 0,
        "output_lens": [0, 0],
        "ttfts": [0.0, 0.0],
        "itls": [[], []],
        "latencies": [0.0, 0.0],
        "errors": ["refused", "refused"],
        "mean_ttft_ms": float("nan"),
    }
    (run,) = load(write(tmp_path, result(**changes)))
    s = run.summary()
    assert (s.completed, s.failed, s.ttft_s.mean, s.tpot_s.mean, s.output_tok_per_s) == (0, 2, None, None, 0.0)
    assert "ttft_s.mean" not in run.meta.stated


def test_queue_times_of_an_open_loop_say_when_it_meant_to_send(tmp_path: Path) -> None:
    (run,) = load(write(tmp_path, result(request_rate=2.0, queue_times=[0.0, 0.5])))
    assert run.requests["scheduled_s"].to_list() == [0.0, 0.5]
    assert run.summary().client_queue_s.mean == 0.25
    assert run.summary().ttft_from_scheduled_s.mean == pytest.approx((0.5 + 0.75) / 2)


def test_older_files_without_latencies_end_at_the_last_token(tmp_path: Path) -> None:
    (run,) = load(write(tmp_path, without(result(), "latencies", "errors", "date")))
    assert run.requests["end_s"].to_list() == [1.0, 1.75]


def test_older_files_without_start_times_have_each_request_on_its_own_clock(tmp_path: Path) -> None:
    (run,) = load(write(tmp_path, without(result(), "start_times")))
    s = run.summary()
    assert run.meta.clock == OWN_CLOCK
    assert (s.ttft_s.mean, s.littles_law, s.peak_in_flight) == (0.375, None, None)
    assert s.output_tok_per_s == 2.5


def test_several_tokens_a_chunk(tmp_path: Path) -> None:
    s = load(write(tmp_path, result(output_lens=[9, 2])))[0].summary()
    assert s.itl_name == "chunk gap"
    assert s.tpot_s.mean == pytest.approx((0.5 / 8 + 0.5) / 2)


def test_the_users_metadata_is_kept(tmp_path: Path) -> None:
    (run,) = load(write(tmp_path, result(tp=4, rack="b12", p99_ttft_ms=1.0)))
    assert run.meta.workload["metadata"] == {"tp": 4, "rack": "b12"}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (result(ttfts=[0.5]), "different lengths"),
        (result(duration="long"), "duration"),
        (result(output_lens=[3, -2]), "output_tokens"),
        (result(request_rate="fast"), "request_rate"),
        (result(itls=[0.1, 0.2]), "itls"),
        (without(result(), "completed"), "completed"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path: Path, value: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError, match=says) as error:
        load(write(tmp_path, value))
    assert "result.json" in str(error.value)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = json.dumps(result())
    for cut in range(1, len(whole), 97):
        path = tmp_path / "cut.json"
        path.write_text(whole[:cut])
        with pytest.raises(FormatError, match=r"cut\.json.*expected"):
            load(path)


def test_sniff_takes_no_other_tools_file() -> None:
    ours = shared(FOLDER)
    others = [path for path in shared("data/bench_outputs").rglob("*") if path.is_file() and path.parent != ours]
    assert len(others) > 10
    assert [path for path in others if vllm_bench.sniff(path)] == []


def test_a_synthetic_run_makes_the_round_trip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 50
    gaps = [rng.random(int(k)).tolist() for k in rng.integers(0, 9, n)]
    ttft, start = rng.random(n) + 0.01, np.cumsum(rng.random(n))
    value = result(
        num_prompts=n,
        completed=n,
        input_lens=[7] * n,
        output_lens=[len(g) + 1 for g in gaps],
        ttfts=ttft.tolist(),
        itls=gaps,
        start_times=(start + 1e5).tolist(),
        latencies=[t + sum(g) for t, g in zip(ttft, gaps, strict=True)],
        errors=[""] * n,
    )
    (run,) = load(write(tmp_path, value))
    assert run.summary().ttft_s.p99 == pytest.approx(np.percentile(ttft, 99))
    assert run.summary().itl_s.p50 == pytest.approx(np.percentile([g for gs in gaps for g in gs], 50))
    assert np.allclose(run.requests["sent_s"].to_numpy(), start - start[0], atol=1e-9)


def test_what_tells_the_prompts_is_kept(tmp_path: Path) -> None:
    result = json.loads(shared("data/cpu_engine/main_clean/c1.json").read_text())
    path = tmp_path / "c1.json"
    path.write_text(json.dumps({**result, "seed": "601", "dataset_name": "random"}))
    (run,) = load(path)
    assert run.meta.seed == 601
    assert (run.meta.workload["seed"], run.meta.workload["dataset_name"]) == ("601", "random")
    path.write_text(json.dumps({**result, "seed": "none"}))
    assert load(path)[0].meta.seed is None
    assert load(shared("data/cpu_engine/main_clean/c1.json"))[0].meta.seed is None
