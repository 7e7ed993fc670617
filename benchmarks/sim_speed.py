"""Simulated requests per second on one core, first compilation, cached start, and ``--help``.

    python benchmarks/sim_speed.py            # pins itself to core 0

Poisson arrivals, 512 tokens in and 256 out, Llama-3.1-8B on one H100, 20 requests/s. Prints a table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import inferometer as im

START = """
import time; t = time.perf_counter()
import inferometer as im
dep = im.Deployment(model=im.model("meta-llama/Llama-3.1-8B"), chip=im.chip("h100-sxm-80gb"))
im.simulate(dep, im.Workload.open_loop(rate_per_s=20, requests=100, prompt_tokens=512, output_tokens=256))
print(time.perf_counter() - t)
"""


def deployment() -> im.Deployment:
    return im.Deployment(
        model=im.model("meta-llama/Llama-3.1-8B"), chip=im.chip("h100-sxm-80gb"), engine_version="0.26.0"
    )


def workload(requests: int) -> im.Workload:
    return im.Workload.open_loop(rate_per_s=20, requests=requests, prompt_tokens=512, output_tokens=256)


def best_s(requests: int, repeats: int, **kwargs: object) -> float:
    """Best of some repeats of one whole `simulate` call."""
    dep, load, times = deployment(), workload(requests), []
    for _ in range(repeats):
        start = time.perf_counter()
        im.simulate(dep, load, seed=0, **kwargs)
        times.append(time.perf_counter() - start)
    return min(times)


def start_s(cache: str) -> float:
    """A fresh process that simulates 100 requests, import included."""
    env = {**os.environ, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", START], env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def help_ms(repeats: int = 9) -> float:
    """Median wall time of ``inferometer --help`` as a process."""
    call, times = [sys.executable, "-m", "inferometer", "--help"], []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(call, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    best_s(1000, 1)
    rows = []
    for n, repeats in ((10_000, 5), (1_000_000, 2)):
        rows.append((f"simulate {n:,} requests", f"{n / best_s(n, repeats):,.0f} requests/s", ">= 300,000"))
    tokens = best_s(100_000, 2, token_times=True)
    rows.append(("  with every token's time, 100,000", f"{100_000 / tokens:,.0f} requests/s", ""))
    with tempfile.TemporaryDirectory() as cache:
        rows.append(("first start, compiling", f"{start_s(cache):.1f} s", "< 20 s"))
        rows.append(("cached start, import included", f"{start_s(cache):.2f} s", "< 2 s"))
    rows.append(("inferometer --help", f"{help_ms():.0f} ms", "< 300 ms"))
    print(f"{'one core':40}{'measured':>26}{'wanted':>14}")
    for name, measured, wanted in rows:
        print(f"{name:40}{measured:>26}{wanted:>14}")


if __name__ == "__main__":
    main()
