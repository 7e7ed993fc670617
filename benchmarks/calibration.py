"""How often the truth lies within 1.645 standard errors of what `calibrate` finds, on simulated runs with noise.

Each case has a truth of its own, drawn once about the family's values; the partner of a lumped constant is at the value
at which the fit holds it. A draw simulates the case's points once, then scales each run's gaps between tokens by one
lognormal factor (1 %) and its waits for the first token by another (3 %), and fits. Right intervals hold the truth in
90 % of draws; of 100 draws then 83 to 96.

    python benchmarks/calibration.py            100 draws a case, about two minutes on one core
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

import inferometer as im
from inferometer.records.run import Run, TokenTimes
from inferometer.steptime.costs import SheetModel, StepCosts
from inferometer.steptime.efficiencies import efficiencies

NOISE = {"tpot": 0.01, "ttft": 0.03}
FLAGS = {"max_num_batched_tokens": 2048, "enable_prefix_caching": False}
SHORT = [(c, 256, 48) for c in (1, 2, 4, 8, 16, 32)]
"""Points: users, prompt and output tokens."""
CONTEXTS = [(1, 128, 32), (32, 128, 32), (64, 128, 32), (16, 2000, 32), (64, 2000, 32), (1, 2000, 32)]


class Case(NamedTuple):
    """One set of runs and the constants that they tell."""

    name: str
    chip: str
    models: tuple[str, ...]
    points: list[tuple[int, int, int]]
    truth: dict[str, float]
    """Of the constants that are fitted, over the family's value."""


CASES = [
    Case("one model", "a100-sxm4-80gb", ("Qwen/Qwen3-8B",), SHORT, {"weight_read": 0.93, "kv_read": 0.8, "mfu": 0.9}),
    Case(
        "two model sizes",
        "h100-sxm-80gb",
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-14B"),
        SHORT[::2],
        {"weight_read": 1.05, "step_s": 1.4, "kv_read": 0.9, "mfu": 0.85},
    ),
    Case(
        "contexts and prompts apart",
        "a100-sxm4-80gb",
        ("Qwen/Qwen3-8B",),
        CONTEXTS,
        {"weight_read": 0.95, "kv_read": 0.85, "sequence_s": 2.0, "mfu": 0.88, "prefill_step_s": 2.5},
    ),
]


def truth_of(case: Case) -> dict[str, float]:
    """The constants of the case's truth."""
    family = efficiencies(im.chip(case.chip))
    return {name: getattr(family, name) * factor for name, factor in case.truth.items()}


def true_costs(deployment: im.Deployment, truth: dict[str, float]) -> StepCosts:
    """Step costs with the truth; decodes in mixed steps follow those of decode steps, as the fit assumes."""
    family = efficiencies(deployment.chip)
    follows = {"kv_read_mixed": family.kv_read_mixed * truth["kv_read"] / family.kv_read}
    return SheetModel(deployment, msgspec.structs.replace(family, **truth, **follows)).costs()


def clean_runs(case: Case) -> tuple[list[Run], list[im.Deployment]]:
    """The case's points, simulated with its truth."""
    truth, runs, deployments = truth_of(case), [], []
    for name in case.models:
        dep = im.Deployment(model=im.model(name), chip=im.chip(case.chip), flags=FLAGS)
        costs = true_costs(dep, truth)
        for users, prompt, output in case.points:
            load = im.Workload.closed_loop(users, 2 * users, prompt, output)
            runs.append(im.simulate(dep, load, costs=costs, token_times=True))
            deployments.append(dep)
    return runs, deployments


def noisy(run: Run, random: np.random.Generator) -> Run:
    """The run with its waits for the first token, and its gaps between tokens, each scaled by one factor."""
    wait, gap = (np.exp(sigma * random.standard_normal()) for sigma in (NOISE["ttft"], NOISE["tpot"]))
    sent, first, last = (run.requests[name].to_numpy() for name in ("sent_s", "first_token_s", "last_token_s"))
    new_first = sent + wait * (first - sent)
    new_last = new_first + gap * (last - first)
    requests = run.requests.with_columns(first_token_s=new_first, last_token_s=new_last, end_s=new_last)
    times = run.token_times
    assert times is not None
    counts = np.diff(times.offsets)
    moved = np.repeat(new_first, counts) + gap * (times.times_s - np.repeat(first, counts))
    return Run(meta=run.meta, requests=requests, server=run.server, token_times=TokenTimes(times.offsets, moved))


def draws(case: Case, count: int, seed: int = 0) -> Iterator[tuple[im.Profile, dict[str, float]]]:
    """Fits of noisy copies of the case, each with the truth."""
    truth, (runs, deployments) = truth_of(case), clean_runs(case)
    random = np.random.default_rng(seed)
    for _ in range(count):
        copies = [noisy(run, random) for run in runs]
        yield im.calibrate(copies, deployments, leave_one_out=False), truth


def coverage(case: Case, count: int, seed: int = 0) -> dict[str, tuple[int, int, float, float]]:
    """By constant: draws whose 1.645 standard errors hold the truth, draws that fitted it, mean error and error bar."""
    found: dict[str, list[tuple[bool, float, float]]] = {}
    for profile, truth in draws(case, count, seed):
        for name, value in profile.params.items():
            low, high = profile.interval(name)
            error, bar = value / truth[name] - 1, profile.stderr[name] / value
            found.setdefault(name, []).append((low <= truth[name] <= high, error, bar))
    return {
        name: (sum(hit for hit, *_ in each), len(each), *(float(np.mean([row[i] for row in each])) for i in (1, 2)))
        for name, each in found.items()
    }


def main(count: int) -> None:
    """Print the table."""
    for case in CASES:
        print(f"{case.name}: {' + '.join(case.models)} on {case.chip}, {count} draws")
        for name, (held, fitted, bias, bar) in coverage(case, count).items():
            print(
                f"  {name:16s} held in {held:3d} of {fitted:3d}   mean error {bias:+7.2%}   standard error {bar:6.2%}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
