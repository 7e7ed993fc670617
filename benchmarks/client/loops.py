"""Little's law at closed-loop points, and how late an open loop sends, up to 80 % of what a closed one gets.

    python benchmarks/client/loops.py

The server (shared/tools/truth_server.py) runs on core 0, the client on core 1. 10,000 Poisson arrivals come at 80 % of
what a server of 32 slots does, and then at shares of what this client gets in a closed loop. The gaps between what was
sent are held against the exponential (Kolmogorov-Smirnov; 1.63 / sqrt(n) is the distance that 1 % of true samples
exceed): sending takes some 25 microseconds, and one core sends one request after the other, so gaps shorter than that
are stretched, and from about 600 requests a second the test sees it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np

import inferometer as im

SHARED = Path(os.environ.get("INFEROMETER_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
PORT = 8196
URL = f"http://127.0.0.1:{PORT}"


def get(path: str) -> None:
    with urllib.request.urlopen(URL + path, timeout=10) as answer:
        answer.read()


def closed(users: int, requests: int, output: int) -> im.Run:
    workload = im.Workload.closed_loop(users, requests, prompt_tokens=64, output_tokens=output)
    return im.bench(URL, workload, store=False)


def ks_distance(gaps: np.ndarray, rate: float) -> float:
    known = np.sort(gaps)
    n, cumulative = len(known), 1 - np.exp(-rate * known)
    ranks = np.arange(n)
    return float(max((cumulative - ranks / n).max(), ((ranks + 1) / n - cumulative).max()))


def littles_law() -> None:
    get("/config?ttft=0.05&itl=0.02")
    print("| C | requests | Little's law | mean in flight | fit |")
    print("|---|---|---|---|---|")
    for users in (1, 2, 8, 32, 64, 128, 256):
        run = closed(users, 20 * users, 16)
        s = run.summary()
        print(f"| {users} | {s.requests} | {s.littles_law:.4f} | {s.mean_in_flight:.2f} | {not run.meta.unfit} |")


def open_loop() -> None:
    """At 80 % of what a server of 32 slots and 50 ms an answer does; then up to what this client can send."""
    get("/config?ttft=0.05&itl=0")
    slots = closed(32, 3_200, 1).summary().request_per_s
    get("/config?ttft=0&itl=0")
    most = closed(64, 40_000, 1).summary().request_per_s
    assert slots is not None
    assert most is not None
    print(f"\n32 slots of 50 ms serve {slots:,.0f} requests/s; 64 users of an instant server get {most:,.0f}.\n")
    print("| offered/s | of | late p50, ms | p99 | max | KS distance (limit) | client's CPU | fit |")
    print("|---|---|---|---|---|---|---|---|")
    get("/config?ttft=0.05&itl=0")
    row(0.8 * slots, "80% of the slots'")
    get("/config?ttft=0&itl=0")
    for share in (0.05, 0.2, 0.4, 0.6, 0.8):
        row(share * most, f"{share:.0%} of the users'")


def row(rate: float, of: str) -> None:
    run = im.bench(URL, im.Workload.open_loop(rate, 10_000, prompt_tokens=64, output_tokens=1), store=False)
    requests = run.requests.sort("sent_s")
    sent, scheduled = requests["sent_s"].to_numpy(), requests["scheduled_s"].to_numpy()
    late = (sent - scheduled) * 1e3
    cells = [f"{rate:,.0f}", of, *(f"{np.percentile(late, q):.3f}" for q in (50, 99, 100))]
    cells.append(f"{ks_distance(np.diff(sent), rate):.4f} ({1.63 / np.sqrt(len(sent)):.4f})")
    print(f"| {' | '.join(cells)} | {run.meta.client['cpu_share']:.0%} | {not run.meta.unfit} |")


def main() -> None:
    os.sched_setaffinity(0, {1})
    command = ["taskset", "-c", "0", sys.executable, str(SHARED / "tools/truth_server.py"), "--port", str(PORT)]
    server = subprocess.Popen(command)
    try:
        time.sleep(1.5)
        littles_law()
        open_loop()
    finally:
        server.kill()


if __name__ == "__main__":
    main()
