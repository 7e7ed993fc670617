"""TTFT of public steady-state rows against two readings of "fixed lengths": exactly equal, and spread by a fifth.

    python benchmarks/steady_ttft.py

Rows: Qwen3-32B bf16, vLLM, two H100, 1,024 tokens in, of ``steady_state.csv``. The Hopper constants are priors from a
study that had this file among its data, so this is not held out; what it shows is the effect of lockstep.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import inferometer as im

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("INFEROMETER_SHARED") or ROOT.parent / "shared")
WANTED = {"engine": "vllm", "gpu": "h100_sxm", "tensor_parallel_size": "2", "input_tokens": "1024", "precision": "bf16"}


def rows() -> list[dict[str, str]]:
    with (SHARED / "data/steady_state.csv").open() as file:
        found = [r for r in csv.DictReader(file) if "Qwen3-32B" in r["model"] and WANTED.items() <= r.items()]
    return sorted(found, key=lambda r: (int(r["concurrency"]), int(r["output_tokens"])))


def simulated(users: int, prompt: object, output: object) -> tuple[float, float]:
    """Mean TTFT and TPOT in ms."""
    dep = im.Deployment(
        model=im.model("Qwen/Qwen3-32B"),
        chip=im.chip("h100-sxm-80gb"),
        tensor_parallel_size=2,
        engine_version="0.12.0",
    )
    load = im.Workload.closed_loop(users, requests=10 * users, prompt_tokens=prompt, output_tokens=output)
    summary = im.simulate(dep, load).summary()
    return summary.ttft_s.mean * 1e3, summary.tpot_s.mean * 1e3


def spread(tokens: int) -> dict[str, dict[str, int]]:
    return {"uniform": {"low": round(0.8 * tokens), "high": tokens}}


def main() -> None:
    print(f"{'':14}{'TTFT ms':>10}{'equal':>10}{'spread':>10}{'TPOT ms':>10}{'equal':>10}{'spread':>10}")
    for row in rows():
        users, output = int(row["concurrency"]), int(row["output_tokens"])
        equal, varied = simulated(users, 1024, output), simulated(users, spread(1024), spread(output))
        ttft, tpot = float(row["ttft_ms"]), float(row["tpot_ms"])
        line = f"C={users:<4} out={output:<5}{ttft:10.0f}{equal[0]:10.0f}{varied[0]:10.0f}"
        print(line + f"{tpot:10.1f}{equal[1]:10.1f}{varied[1]:10.1f}")


if __name__ == "__main__":
    main()
