"""InferenceX: keys without a unit, in seconds, alone or aggregated per GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import inferencex, load
from result_files import assert_refused_when_cut, edited
from shared import shared

FILE = "data/bench_outputs/inferencex/minimax_m25_vllm_tep8_isl10240_osl128_conc8.json"

AGGREGATED = {
    "hw": "b200",
    "tp": 4,
    "ep": 1,
    "dp_attention": "false",
    "conc": 64,
    "model": "openai/gpt-oss-120b",
    "framework": "vllm",
    "precision": "fp4",
    "isl": 1024,
    "osl": 1024,
    "is_multinode": False,
    "tput_per_gpu": 2500.0,
    "output_tput_per_gpu": 1250.0,
    "mean_ttft": 0.25,
    "p99_ttft": 0.75,
    "median_tpot": 0.0125,
    "median_intvty": 80.0,
    "mean_itl": 0.0125,
    "mean_e2el": 13.0,
}


def written(folder: Path, value: Any) -> Path:
    path = folder / "agg_x.json"
    path.write_text(json.dumps(value))
    return path


def test_figures_are_in_seconds() -> None:
    (run,) = load(shared(FILE))
    s = run.summary()
    assert (run.meta.tool, run.meta.model, run.meta.concurrency) == ("InferenceX", "MiniMaxAI/MiniMax-M2.5", 8)
    assert (run.meta.created, run.meta.request_rate_per_s) == ("2026-02-14T15:10:11", None)
    assert (s.ttft_s.p50, s.ttft_s.p99, s.ttft_s.mean) == (1.8341439673677087, 4.951054758802055, None)
    assert (s.tpot_s.p99, s.e2e_s.p50, s.itl_s.p50) == (0.047637920127668244, 4.371704826131463, None)
    assert (s.requests, s.completed, s.output_tokens, s.prompt_tokens) == (80, 80, 10240, 819200)
    assert s.output_tok_per_s == pytest.approx(10240 / s.duration_s)
    assert s.total_tok_per_s is None  # not in the file


def test_the_aggregated_shape(tmp_path: Path) -> None:
    (run,) = load(written(tmp_path, AGGREGATED))
    s = run.summary()
    assert (run.meta.model, run.meta.chip, run.meta.concurrency) == ("openai/gpt-oss-120b", "b200", 64)
    assert run.meta.deployment["tensor_parallel_size"] == 4
    assert (run.meta.deployment["engine"], run.meta.deployment["precision"]) == ("vllm", "fp4")
    assert (s.ttft_s.p99, s.tpot_s.p50, s.e2e_s.mean) == (0.75, 0.0125, 13.0)
    assert (s.output_tok_per_s, s.total_tok_per_s, s.per_user_tok_per_s) == (5000.0, 10000.0, 5000.0 / 64)
    assert "per GPU, here times 4 GPUs" in run.meta.notes[0]


@pytest.mark.parametrize("change", [{"is_multinode": True}, {"disagg": "true"}, {"tp": None}])
def test_figures_per_gpu_of_several_pools_are_not_put_back(tmp_path: Path, change: dict[str, Any]) -> None:
    (run,) = load(written(tmp_path, AGGREGATED | change))
    assert run.summary().output_tok_per_s is None
    assert run.meta.workload["output_tput_per_gpu"] == 1250.0


def test_a_list_of_points(tmp_path: Path) -> None:
    runs = load(written(tmp_path, [AGGREGATED, AGGREGATED | {"conc": 128}]))
    assert [run.meta.concurrency for run in runs] == [64, 128]


def test_milliseconds_under_these_names_are_refused(tmp_path: Path) -> None:
    path = edited(shared(FILE), tmp_path, lambda r: r.update(p99_e2el=8318.98))
    with pytest.raises(FormatError, match=r"minimax.*e2e_s\.p99.*longer than the run"):
        load(path)


def test_a_concurrency_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"agg_x\.json.*concurrency"):
        load(written(tmp_path, AGGREGATED | {"conc": 0}))


def test_vllms_own_file_with_such_a_tag_is_vllms(tmp_path: Path) -> None:
    source = shared("data/bench_outputs/vllm_bench/vllm-0.33.0_goodput_rate.json")
    (run,) = load(edited(source, tmp_path, lambda r: r.update(tp=8, conc=4)))
    assert run.meta.tool == "vllm bench serve"
    assert run.summary().ttft_s.mean == pytest.approx(0.05166918889999579)


def test_cut_files_are_refused(tmp_path: Path) -> None:
    assert_refused_when_cut(shared(FILE), tmp_path)


def test_sniff_takes_no_other_tools_file() -> None:
    others = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file() and p.parent.name != "inferencex"]
    assert [path.name for path in others if inferencex.sniff(path)] == []
