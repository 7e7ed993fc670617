"""Request-level replays of vLLM 0.19, predicted from specification sheets: nothing here was fitted to these runs."""

from __future__ import annotations

import pytest

import inferometer as im
from shared import shared

REPLAYS = [
    ("rtxpro6000-llama31-8b", "meta-llama/Llama-3.1-8B", 0.08),
    ("rtxpro6000-qwen3-32b-tp2", "Qwen/Qwen3-32B", 0.25),
    ("rtxpro6000-qwen3-30b-a3b-dp2", "Qwen/Qwen3-30B-A3B-Instruct-2507", 0.25),
]


@pytest.mark.parametrize(("study", "model", "tolerance"), REPLAYS)
def test_mean_tpot_and_e2e(study: str, model: str, tolerance: float) -> None:
    file = shared("data/vllm_replay_requests.csv")
    (run,) = [r for r in im.load(file) if r.meta.model == model]
    arm = im.load_study(study, {"workload.requests": str(file)}).base
    simulated = im.simulate(arm.deployment, arm.points[0].workload)
    was, says = run.summary(), simulated.summary()
    assert (says.requests, says.failed) == (was.requests, 0)
    assert says.output_tokens == was.output_tokens
    assert says.tpot_s.mean == pytest.approx(was.tpot_s.mean, rel=tolerance)
    assert says.e2e_s.mean == pytest.approx(was.e2e_s.mean, rel=tolerance)
