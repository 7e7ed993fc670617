"""Drawing a workload: arrivals, lengths and caches, each from its own random stream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.errors import InputError
from inferometer.specs.workload import Workload
from inferometer.workload import generate, stream


def test_a_closed_loop_starts_its_users_and_leaves_the_rest_to_the_simulator():
    requests = generate(Workload.closed_loop(3, requests=5, think_time_s=0.25), seed=1)
    assert requests.arrival_s[:3].tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(requests.arrival_s[3:]).all()
    assert (len(requests), requests.concurrency, requests.think_time_s) == (5, 3, 0.25)


def test_a_closed_loop_of_fewer_requests_than_users():
    assert generate(Workload.closed_loop(8, requests=2)).arrival_s.tolist() == [0.0, 0.0]


def test_constant_arrivals_are_evenly_spaced():
    requests = generate(Workload.open_loop(4, 5, 8, 8, arrivals="constant"))
    assert requests.arrival_s.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert requests.concurrency == 0


def test_poisson_gaps_are_exponential():
    rate, count = 20.0, 100_000
    gaps = np.diff(generate(Workload.open_loop(rate, count, 8, 8), seed=3).arrival_s, prepend=0.0)
    assert gaps[0] > 0  # a gap before the first request
    assert gaps.mean() * rate == pytest.approx(1, abs=5 / np.sqrt(count))
    assert gaps.std() * rate == pytest.approx(1, abs=0.02)
    assert np.mean(gaps > 1 / rate) == pytest.approx(np.exp(-1), abs=0.01)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 5 / np.sqrt(count)


def ks_distance(values: np.ndarray, cumulative: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance between a sample and the values of a distribution function at it, sorted."""
    n = len(values)
    ranks = np.arange(n)
    return float(max((cumulative - ranks / n).max(), ((ranks + 1) / n - cumulative).max()))


def test_10_000_poisson_gaps_pass_kolmogorov_smirnov_against_the_exponential():
    arrival = generate(Workload.open_loop(80, 10_000, 8, 8), seed=5).arrival_s
    gaps = np.sort(np.diff(arrival, prepend=0.0))
    # 1.63 / sqrt(n) is the distance that 1 % of true samples exceed
    assert ks_distance(gaps, 1 - np.exp(-80 * gaps)) < 1.63 / np.sqrt(10_000)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(burstiness: float):
    workload = Workload.open_loop(20, 40_000, 8, 8, arrivals="gamma", burstiness=burstiness)
    gaps = np.diff(generate(workload, seed=2).arrival_s, prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.06)


def test_burstiness_goes_with_gamma_arrivals_only():
    with pytest.raises(InputError, match=r"burstiness: 0\.5 .* poisson"):
        Workload.open_loop(20, 10, 8, 8, burstiness=0.5)
    with pytest.raises(InputError, match="burstiness: 0 "):
        Workload.open_loop(20, 10, 8, 8, arrivals="gamma", burstiness=0)


def test_sessions_are_a_closed_loop_of_conversations():
    workload = Workload.sessions(concurrency=2, sessions=3, turns=4, prompt_tokens=10, output_tokens=5)
    requests = generate(workload)
    assert (workload.requests, len(requests), requests.concurrency) == (12, 12, 2)
    with pytest.raises(InputError, match="prompt_tokens"):
        Workload.sessions(concurrency=1, prompt_tokens=[1, 2])


@pytest.mark.parametrize(
    ("length", "mean", "std", "least", "most"),
    [
        ({"lognormal": {"mean": 900, "sigma": 0.8}}, 900, 900 * np.sqrt(np.exp(0.64) - 1), 1, 10**6),
        ({"normal": {"mean": 500, "std": 50}}, 500, 50, 100, 900),
        ({"uniform": {"low": 10, "high": 20}}, 15, np.sqrt((11**2 - 1) / 12), 10, 20),
    ],
)
def test_drawn_lengths_have_the_stated_mean_and_spread(length: Any, mean: float, std: float, least: int, most: int):
    drawn = generate(Workload.open_loop(1, 100_000, length, 1), seed=0).prompt_tokens
    assert drawn.dtype == np.int64
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() == pytest.approx(std, rel=0.05)
    assert drawn.min() >= least
    assert drawn.max() <= most


def test_uniform_reaches_both_ends():
    drawn = generate(Workload.open_loop(1, 1000, {"uniform": {"low": 3, "high": 5}}, 1)).prompt_tokens
    assert sorted(set(drawn.tolist())) == [3, 4, 5]


def test_drawn_lengths_are_at_least_one_even_where_outputs_may_be_none():
    drawn = generate(Workload.open_loop(1, 1000, 1, {"normal": {"mean": 1, "std": 50}}))
    assert drawn.output_tokens.min() == 1
    assert generate(Workload.open_loop(1, 3, 1, 0)).output_tokens.tolist() == [0, 0, 0]


def test_prompt_and_output_of_one_distribution_are_independent():
    same = {"lognormal": {"mean": 900, "sigma": 0.8}}
    drawn = generate(Workload.open_loop(1, 20_000, same, same))
    assert abs(np.corrcoef(np.log(drawn.prompt_tokens), np.log(drawn.output_tokens))[0, 1]) < 0.04


def test_lengths_of_one_trace_file_are_drawn_together(tmp_path: Path):
    file = tmp_path / "lengths.csv"
    file.write_text("input_tokens,output_tokens\n" + "".join(f"{n},{n + 1000}\n" for n in range(1, 51)))
    length = {"trace": str(file)}
    drawn = generate(Workload.open_loop(1, 500, length, length))
    assert (drawn.output_tokens - drawn.prompt_tokens == 1000).all()
    assert len(set(drawn.prompt_tokens.tolist())) > 40
    assert set(drawn.prompt_tokens.tolist()) <= set(range(1, 51))
    alone = generate(Workload.open_loop(1, 500, 7, length))
    assert set(alone.prompt_tokens.tolist()) == {7}
    assert set(alone.output_tokens.tolist()) <= set(range(1001, 1051))


def test_given_requests_come_back_as_given():
    requests = generate(Workload.from_requests([0.5, 0.0], [10, 20], [0, 3], cached_tokens=[4, 0]), seed=9)
    assert requests.arrival_s.tolist() == [0.0, 0.5]
    assert requests.prompt_tokens.tolist() == [20, 10]
    assert requests.output_tokens.tolist() == [3, 0]
    assert requests.cached_tokens.tolist() == [0, 4]


def test_at_least_one_prompt_token_is_computed():
    assert generate(Workload.closed_loop(1, 3, prompt_tokens=[1, 8, 64], cached_tokens=16)).cached_tokens.tolist() == [
        0,
        7,
        16,
    ]


def test_replay_scales_and_limits(tmp_path: Path):
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n0.0,1,2\n1.0,3,4\n4.0,5,6\n")
    requests = generate(Workload.from_trace(file, rate_scale=2.0, limit=2))
    assert requests.arrival_s.tolist() == [0.0, 0.5]
    assert requests.prompt_tokens.tolist() == [1, 3]
    assert requests.output_tokens.tolist() == [2, 4]
    assert requests.cached_tokens.tolist() == [0, 0]


def test_a_stream_is_its_name_and_seed():
    draw = stream(7, "arrivals").random(4).tolist()
    assert stream(7, "arrivals").random(4).tolist() == draw
    assert stream(8, "arrivals").random(4).tolist() != draw
    assert stream(7, "prompt_tokens").random(4).tolist() != draw


def test_streams_are_the_same_on_every_machine():
    """Stored figures: a changed hash, generator or order of draws would change every seeded result."""
    assert stream(0, "arrivals").integers(0, 2**32, 3).tolist() == STORED


STORED = [2318390332, 1874535375, 3611307783]


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None])
def test_a_seed_is_a_whole_number(seed: Any):
    with pytest.raises(InputError, match="seed: "):
        generate(Workload.open_loop(1, 2, 1, 1), seed=seed)


def test_importing_the_package_is_light():
    code = "import sys, inferometer.workload; sys.exit(any(name in sys.modules for name in ('numba', 'polars')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
