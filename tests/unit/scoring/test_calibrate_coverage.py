"""Standard errors mean what they say: of noisy copies of a simulated sweep, nine in ten intervals hold the truth.

`benchmarks/calibration.py` does 100 draws of three cases; this does fewer of one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DRAWS = 40
LEAST, MOST_OFF = 30, 1.5
"""Right intervals hold the truth in 30 or more of 40 draws but once in 500 times."""


def _benchmark() -> Any:
    path = Path(__file__).resolve().parents[3] / "benchmarks" / "calibration.py"
    spec = importlib.util.spec_from_file_location("calibration_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawn() -> list[tuple[Any, dict[str, float]]]:
    benchmark = _benchmark()
    case = benchmark.CASES[0]._replace(points=[(c, 256, 32) for c in (1, 2, 8, 24, 32)])
    return list(benchmark.draws(case, DRAWS, seed=3))


def test_intervals_hold_the_truth_nine_times_in_ten(drawn: list[tuple[Any, dict[str, float]]]):
    for name in ("weight_read", "kv_read", "mfu"):
        fitted = [(profile, truth) for profile, truth in drawn if name in profile.params]
        assert len(fitted) >= DRAWS - 4
        held = sum(low <= truth[name] <= high for p, truth in fitted for low, high in [p.interval(name)])
        assert held >= LEAST - (DRAWS - len(fitted)), name


def test_intervals_are_no_wider_than_the_scatter(drawn: list[tuple[Any, dict[str, float]]]):
    for name in ("weight_read", "mfu"):
        logs = [np.log(p.params[name] / truth[name]) for p, truth in drawn]
        bars = [p.stderr[name] / p.params[name] for p, _ in drawn]
        assert 1 / MOST_OFF < np.std(logs) / np.mean(bars) < MOST_OFF, name
        assert abs(np.mean(logs)) < 3 * np.std(logs) / np.sqrt(DRAWS), name


def test_what_a_sweep_of_one_model_cannot_tell_is_lumped_in_every_draw(drawn: list[tuple[Any, dict[str, float]]]):
    for profile, _ in drawn:
        assert {"step_s", "sequence_s", "prefill_step_s", "mfu_attention"} <= set(profile.refused)
        assert profile.lumped["weight_read"] == ["step_s", "layer_s"]
