"""What a measured run and its prediction do not have in common is told, with both values."""

from __future__ import annotations

import json
from typing import Any

import pytest

import inferometer as im
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.likeness import engine, mean_tokens, same_chip, unlike
from inferometer.scoring.score import score
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
