"""What became of preempted requests, told the same way wherever it is told."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.preempted import preemption_mode


def run(preemptions: int | None, engine: str | None = None, gauge: int | None = None, **counters: float) -> Run:
    server: dict[str, Any] = {} if engine is None else {"engine": engine}
    counted = {} if preemptions is None else {"preemptions": float(preemptions)}
    samples = {} if gauge is None else {"time_s": [0.0], "swapped": [gauge]}
    return make_run(RunMeta(kind="measured", counters=counted | counters, server=server), server=samples)


@pytest.mark.parametrize(
    ("runs", "mode"),
    [
        ([run(None)], "not known"),
        ([run(0, "vllm")], "none seen"),
        ([run(3, "vllm")], "recomputed"),
        ([run(3, "SGLang")], "recomputed"),
        ([run(3, "other")], "not known"),
        ([run(3, "other", recomputed_prompt_tokens=512.0)], "recomputed"),
        ([run(3, "other", gauge=0)], "recomputed"),
        ([run(3, "vllm", gauge=2)], "swapped"),
        ([run(0, "vllm"), run(3, "vllm", gauge=2)], "swapped"),
    ],
)
def test_mode(runs: list[Run], mode: str) -> None:
    assert preemption_mode(runs)[0] == mode


def test_the_old_engine_with_blocks_on_the_cpu_may_have_swapped() -> None:
    old = make_run(
        RunMeta(kind="measured", counters={"preemptions": 3.0}, server={"engine": "vllm", "num_cpu_blocks": 2048})
    )
    assert preemption_mode([old])[0] == "not known"
