"""What one worker process can do, and how true its times are, beside the truth of ``../shared/tools/truth_server.py``.

    python benchmarks/client/worker_speed.py [--quick]

The server has core 0 and the worker core 1. Rows: one-token replies at concurrency 64 (requests/s), replies of 256
tokens at once (tokens/s), TTFT and TPOT at concurrency 1, 64 and 256 with a true 50 ms and 20 ms, and a Poisson open
loop of 2,000 requests/s (how late each was sent). It runs in under a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferometer.benchmark.job import Connection, Ended, Job, Plan, Report

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("INFEROMETER_SHARED") or ROOT.parent / "shared")
SERVER = SHARED / "tools/truth_server.py"
PORT = 8155
PROMPT = b"the " * 100


def pinned(core: int) -> list[str]:
    """What to put before a command so that it runs on one core."""
    return ["taskset", "-c", str(core)] if shutil.which("taskset") and (os.cpu_count() or 1) > 1 else []


def ask(path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
        return json.load(answer)


def serve() -> subprocess.Popen[bytes]:
    server = subprocess.Popen([*pinned(0), sys.executable, str(SERVER), "--port", str(PORT)])
    for _ in range(100):
        try:
            ask("/health")
            return server
        except OSError:
            time.sleep(0.05)
    server.kill()
    raise SystemExit(f"{SERVER} does not answer on port {PORT}")


def job(folder: Path, rows: int, tokens: int, scheduled_s: list[float] | None = None, **more: Any) -> Job:
    """A chat job of ``rows`` requests of 100 words each, all of one slice."""
    (folder / "arena").write_bytes(PROMPT)
    (folder / "journal.jsonl").unlink(missing_ok=True)
    return Job(
        connection=Connection(host="127.0.0.1", port=PORT),
        endpoint="chat",
        arena=str(folder / "arena"),
        head='{"model":"mock","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"',
        middle='"}],"max_tokens":',
        tail="}",
        plan=Plan(
            index=list(range(rows)),
            slices=[[0, len(PROMPT)]] * rows,
            output_tokens=[tokens] * rows,
            scheduled_s=scheduled_s or [],
        ),
        total=rows,
        journal=str(folder / "journal.jsonl"),
        **more,
    )


def work(job: Job, folder: Path, **server: float) -> tuple[list[Ended], Report, dict[str, Any]]:
    """Run one job in a worker of its own; its records, its report, and the server's truth."""
    (folder / "job").write_bytes(msgspec.msgpack.encode(job))
    ask("/config?" + "&".join(f"{key}={value}" for key, value in server.items()))
    ask("/reset")
    command = [*pinned(1), sys.executable, "-m", "inferometer.benchmark.worker", str(folder / "job")]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.readline()  # ready
    worker.stdin.write(b'{"start": %f}\n' % (time.perf_counter() + 0.05))
    worker.stdin.flush()
    last = worker.stdout.read().splitlines()[-1]
    worker.wait()
    records = msgspec.json.decode(
        b"[" + Path(job.journal).read_bytes().replace(b"\n", b",")[:-1] + b"]", type=list[Ended]
    )
    assert not [record.error for record in records if record.error], records[0].error
    return records, msgspec.json.decode(last, type=Report), ask("/truth")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def column(records: list[Ended], of: str, minus: str) -> np.ndarray:
    return np.array([getattr(record, of) - getattr(record, minus) for record in records]) * 1e3


def rate(folder: Path, rows: int, tokens: int, concurrency: int) -> str:
    records, report, _ = work(job(folder, rows, tokens, concurrency=concurrency), folder, ttft=0, itl=0)
    took_s = max(r.end_s or 0 for r in records) - min(r.sent_s or 0 for r in records)
    made = sum(record.output_tokens or 0 for record in records)
    late = np.percentile(column(records, "sent_s", "scheduled_s"), 99)
    return (
        f"{rows / took_s:9,.0f} requests/s {made / took_s:10,.0f} tok/s   CPU {report.cpu_s / report.wall_s:4.0%}, "
        f"{report.cpu_s / rows * 1e6:.0f} us a request   sent late p99 {late:.2f} ms"
    )


def reference(rows: int, tokens: int, concurrency: int) -> str:
    """The plain client of the shared tools, which keeps no record, on the same cores in the same sitting."""
    ask("/config?ttft=0&itl=0")
    command = [*pinned(1), sys.executable, str(SHARED / "tools/reference_client.py"), "--port", str(PORT)]
    told = subprocess.run([*command, f"-c{concurrency}", f"-n{rows}", "--tokens", str(tokens)], capture_output=True)
    figures = json.loads(told.stdout)
    share, each_us = figures["cpu"] / figures["dur"], figures["cpu"] / rows * 1e6
    return (
        f"{figures['rps']:9,.0f} requests/s {figures['toks']:10,.0f} tok/s   CPU {share:4.0%}, "
        f"{each_us:.0f} us a request"
    )


def fidelity(folder: Path, rows: int, concurrency: int) -> str:
    records, report, truth = work(job(folder, rows, 64, concurrency=concurrency), folder, ttft=0.05, itl=0.02)
    ttft = column(records, "first_token_s", "sent_s")
    tpot = column(records, "last_token_s", "first_token_s") / 63
    was, gap = truth["ttft_ms"], truth["itl_ms"]
    return (
        f"TTFT p50 {np.median(ttft):6.2f} (true {was['p50']:6.2f})  p99 {np.percentile(ttft, 99):6.2f} "
        f"(true {was['p99']:6.2f})   TPOT {tpot.mean():6.3f} (true {gap['mean']:6.3f})   "
        f"CPU {report.cpu_s / report.wall_s:4.0%}"
    )


def open_loop(folder: Path, rows: int, rate_per_s: float) -> str:
    gaps = random.Random(1)
    times = np.cumsum([gaps.expovariate(rate_per_s) for _ in range(rows)]).tolist()
    records, report, truth = work(job(folder, rows, 4, times), folder, ttft=0.05, itl=0.02)
    late = column(records, "sent_s", "scheduled_s")
    ttft = column(records, "first_token_s", "sent_s")
    return (
        f"sent late p50 {np.median(late):.3f} p99 {np.percentile(late, 99):.3f} max {late.max():.3f} ms   "
        f"TTFT p50 {np.median(ttft):.2f} (true {truth['ttft_ms']['p50']:.2f})  p99 {np.percentile(ttft, 99):.2f} "
        f"(true {truth['ttft_ms']['p99']:.2f})   CPU {report.cpu_s / report.wall_s:4.0%}   "
        f"{truth['conns']} connections opened in the run"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--quick", action="store_true", help="a third of the requests")
    share = 3 if options.parse_args().quick else 1
    if not SERVER.exists():
        raise SystemExit(f"{SERVER} is not there; set INFEROMETER_SHARED")
    server = serve()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            print("one token, c=64      ", rate(folder, 90_000 // share, 1, 64), flush=True)
            print("   reference client  ", reference(45_000 // share, 1, 64), flush=True)
            print("flood, 256 tok, c=16 ", rate(folder, 3_000 // share, 256, 16), flush=True)
            print("   reference client  ", reference(1_500 // share, 256, 16), flush=True)
            for concurrency, rows in ((1, 4), (64, 256), (256, 1024)):
                print(f"TTFT and TPOT, c={concurrency:<4}", fidelity(folder, rows, concurrency), flush=True)
            print("Poisson, 2,000/s     ", open_loop(folder, 12_000 // share, 2_000.0), flush=True)
    finally:
        server.kill()


if __name__ == "__main__":
    main()
