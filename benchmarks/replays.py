"""Simulates the public request-level vLLM replays from specification sheets and prints the score table.

    python benchmarks/replays.py [--costs slow|value|fast]

Arrivals and lengths come from the measured file; nothing else does. Efficiencies of the RTX PRO 6000 come from its
kernel tables and the priors (``steptime/data/efficiencies.toml``), never from these runs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import inferometer as im
from inferometer.steptime.costs import sheet_costs

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("INFEROMETER_SHARED") or ROOT.parent / "shared")
FILE = SHARED / "data/vllm_replay_requests.csv"
STUDIES = {
    "meta-llama/Llama-3.1-8B": "rtxpro6000-llama31-8b",
    "Qwen/Qwen3-32B": "rtxpro6000-qwen3-32b-tp2",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "rtxpro6000-qwen3-30b-a3b-dp2",
}
METRICS = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E"))
STATS = ("mean", "p50", "p90", "p99")


def replay(run: im.Run, bound: str = "value") -> im.Run:
    """The measured run's requests through the simulator, on its study's deployment."""
    arm = im.load_study(STUDIES[str(run.meta.model)], {"workload.requests": str(FILE)}).base
    return im.simulate(arm.deployment, arm.points[0].workload, costs=sheet_costs(arm.deployment, bound))


def table(run: im.Run, simulated: im.Run) -> list[str]:
    """Rows of measured, simulated and error."""
    was, says = run.summary(), simulated.summary()
    lines = [
        f"{run.meta.model}   {run.requests.height} requests, preemptions {simulated.meta.counters['preemptions']:.0f}"
    ]
    for name, label in METRICS:
        for stat in STATS:
            m, s = getattr(getattr(was, name), stat), getattr(getattr(says, name), stat)
            lines.append(f"  {label:5}{stat:5}{m * 1e3:12,.1f}{s * 1e3:12,.1f}{(s / m - 1) * 100:+9.1f} %")
    m, s = was.output_tok_per_s, says.output_tok_per_s
    lines.append(f"  {'out tok/s':10}{m:12,.1f}{s:12,.1f}{(s / m - 1) * 100:+9.1f} %")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--costs", default="value", choices=("slow", "value", "fast"))
    args = parser.parse_args()
    print(f"{'':10}{'measured':>14}{'simulated':>12}{'error':>9}   (ms)")
    for run in im.load(FILE):
        print("\n".join(table(run, replay(run, args.costs))))


if __name__ == "__main__":
    main()
