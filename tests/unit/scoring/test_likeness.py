"""What a measured run and its prediction do not have in common is told, with both values."""

from __future__ import annotations

import json
from typing import Any

import pytest

import inferometer as im
from inferometer.emulator.options import Options
from inferometer.emulator.server import cache_config
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.likeness import engine, mean_tokens, same_chip, simulated, unlike
from inferometer.scoring.score import score
from inferometer.sim.simulate import fitting_memory
from shared import shared


def run(prompt: float | None = None, output: float | None = None, **meta: Any) -> Run:
    """A run that states its totals over ten requests."""
    totals = {"prompt_tokens": prompt and 10 * prompt, "output_tokens": output and 10 * output, "completed": 10}
    stated = {"output_tok_per_s": 1.0, **{key: float(value) for key, value in totals.items() if value}}
    return make_run(RunMeta(**{"kind": "imported", "stated": stated, **meta}))


@pytest.mark.parametrize(
    ("mine", "theirs", "note"),
    [
        ({"model": "Qwen/Qwen3-8B"}, {"model": "mock"}, "model: measured mock, predicted Qwen/Qwen3-8B"),
        ({"model": "Qwen/Qwen3-8B"}, {"model": "qwen3_8B"}, None),
        ({"model": "Qwen/Qwen3-8B"}, {}, None),
        ({"chip": "h100-sxm-80gb"}, {"chip": "a100"}, "chip: measured a100, predicted h100-sxm-80gb"),
        ({"chip": "h100-sxm-80gb"}, {"chip": "NVIDIA H100"}, None),
        ({"chip": "lab one"}, {"chip": "Lab-One"}, None),
        ({"prompt": 1024}, {"prompt": 149}, "mean prompt_tokens: measured 149, predicted 1,024"),
        ({"prompt": 1024}, {"prompt": 1070}, None),
        ({"output": 256}, {"output": 240}, "mean output_tokens: measured 240, predicted 256"),
        ({"output": 256}, {"output": 244}, None),
        ({"output": 256}, {}, None),
        ({"concurrency": 8}, {"concurrency": 4}, "load: measured C=4, predicted C=8"),
        ({"request_rate_per_s": 8.0}, {"concurrency": 4}, "load: measured C=4, predicted 8/s"),
        ({}, {"concurrency": 4}, None),
    ],
)
def test_both_values_are_told(mine: dict[str, Any], theirs: dict[str, Any], note: str | None):
    assert list(unlike([(run(**mine), run(**theirs))])) == ([note] if note else [])


@pytest.mark.parametrize(
    ("theirs", "note"),
    [
        ({"workload": {"backend": "openai-chat"}}, None),
        ({"workload": {"backend": "vllm"}}, None),
        ({"workload": {"backend": "sglang-oai"}}, "engine: measured sglang, predicted vllm 0.26.0"),
        ({"deployment": {"engine": "vllm"}}, None),
        (
            {"deployment": {"engine": "vllm", "engine_version": "0.19.0"}},
            "engine: measured vllm 0.19.0, predicted vllm 0.26.0",
        ),
    ],
)
def test_engines(theirs: dict[str, Any], note: str | None):
    mine = run(deployment={"engine": "vllm", "engine_version": "0.26.0"})
    assert list(unlike([(mine, run(**theirs))])) == ([note] if note else [])
    assert engine(run()) is None


@pytest.mark.parametrize(
    ("flags", "server", "note"),
    [
        (
            {"max_num_batched_tokens": 2048},
            {"max_num_batched_tokens": 256},
            "max_num_batched_tokens: measured 256, predicted 2048",
        ),
        ({"max_num_batched_tokens": 2048}, {"max_num_batched_tokens": 2048}, None),
        ({"max_num_batched_tokens": 2048}, {}, None),
        ({"max_num_seqs": 64}, {"log": {"max_num_seqs": 256}}, "max_num_seqs: measured 256, predicted 64"),
        ({"async_scheduling": True}, {"async_scheduling": False}, "async_scheduling: measured off, predicted on"),
        (
            {"enable_prefix_caching": False},
            {"flags": {"enable_prefix_caching": True}},
            "enable_prefix_caching: measured on, predicted off",
        ),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.5}, None),
        ({"max_model_len": 4096}, {"max_model_len": 2048}, None),
    ],
)
def test_flags_that_the_server_states(flags: dict[str, Any], server: dict[str, Any], note: str | None):
    pair = (run(deployment={"flags": flags}), run(server=server))
    assert list(unlike([pair])) == ([note] if note else [])


def test_a_prefix_cache_in_which_nothing_was_found_is_no_difference():
    off, on = run(deployment={"flags": {"enable_prefix_caching": False}}), {"prefix_caching": True}
    counters = {"prefix_cache_queries": 900.0, "prefix_cache_hits": 0.0, "prompt_tokens": 900.0}
    assert list(unlike([(off, run(server=on, counters=counters))])) == []
    assert list(unlike([(off, run(server=on, counters={**counters, "prefix_cache_hits": 720.0}))]))


@pytest.mark.parametrize(
    ("sweep", "files", "note"),
    [
        ("main_clean", "c*.json", None),
        ("chunk256", "*.json", "max_num_batched_tokens: measured 256, predicted 2048"),
        ("prefix", "*.json", "enable_prefix_caching: measured on, predicted off"),
    ],
)
def test_flags_of_a_real_server(sweep: str, files: str, note: str | None):
    folder = shared("data/cpu_engine")
    log = str(folder / f"{sweep}.server.log")
    runs = [im.load(str(file), metrics="auto", server_log=log) for file in sorted((folder / sweep).glob(files))]
    flags = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "enable_prefix_caching": False}
    mine = run(deployment={"flags": flags})
    told = [said for said in unlike([(mine, each) for found in runs for each in found]) if "tokens:" not in said[:15]]
    assert told == ([note] if note else [])


def test_what_no_chip_served():
    assert simulated(run(kind="simulated"))
    assert simulated(run(server={"flags": {"emulated_by": "inferometer 0.1.0"}}))
    assert simulated(run(server={"cache_config": {"emulated_by": "inferometer 0.1.0"}}))
    assert not simulated(run(server={"flags": {"block_size": 16}}))


def test_the_emulator_says_that_it_is_one():
    dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    labels = cache_config(Options(deployment=dep), fitting_memory(dep))
    assert simulated(run(server={"flags": labels}))


def test_one_note_for_all_points():
    pairs = [(run(1024, 16), run(100, 16)), (run(1024, 16), run(200, 16)), (run(1024, 16), run(1024, 16))]
    assert list(unlike(pairs)) == ["mean prompt_tokens: measured 100 to 200, predicted 1,024 (2 of 3 points)"]


def test_means_are_those_of_the_requests_that_did_not_fail():
    columns = {"prompt_tokens": [10, 20, 900], "output_tokens": [1, 2, 0], "error": [None, None, "no"]}
    whole = make_run(RunMeta(kind="measured", stated={"prompt_tokens": 1e9, "completed": 1.0}), columns)
    assert (mean_tokens(whole, "prompt_tokens"), mean_tokens(whole, "output_tokens")) == (15.0, 1.5)
    assert mean_tokens(make_run(RunMeta(kind="measured")), "prompt_tokens") is None


def test_same_chip():
    assert same_chip("A100_SXM4-80GB", "NVIDIA A100-SXM4-80GB")
    assert not same_chip("a100-sxm4-80gb", "a100-pcie-80gb")
    assert not same_chip("lab-one", "lab-two")


def test_a_benchmark_of_another_load_is_told_first():
    study = im.load_study(
        {
            "model": "Qwen/Qwen3-8B",
            "chip": "a100-sxm4-80gb",
            "workload": {"concurrency": [1], "prompt_tokens": 1024, "output_tokens": 256},
        }
    )
    card = score(im.predict(study), im.load(str(shared("data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json"))))
    assert card.notes == (
        "model: measured mock, predicted Qwen/Qwen3-8B",
        "mean prompt_tokens: measured 149, predicted 1,024",
        "mean output_tokens: measured 16, predicted 256",
    )
    document = card.to_dict()
    assert document["notes"] == list(card.notes)
    assert list(json.loads(json.dumps(document)))[:3] == ["schema", "seal", "notes"]
