"""Our means beside the engine's own histograms, in one and the same run: vLLM on the CPU, a sweep.

    python benchmarks/client/real_engine.py [vllm|llamacpp]

The engine is the tests' (`scripts/engines/serve.py`, installed once into ``.engines/``).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import inferometer as im
from inferometer.records import prometheus

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from engines.serve import running

LOADS: tuple[tuple[str, im.Workload], ...] = (
    *(("completions", im.Workload.closed_loop(c, 20 * c, 960, 5)) for c in (1, 2, 4, 8)),
    ("chat", im.Workload.closed_loop(8, 160, 960, 5)),
    ("completions", im.Workload.open_loop(5, 60, 960, 5)),
)


def main() -> None:
    engine = sys.argv[1] if len(sys.argv) > 1 else "vllm"
    print("| load | TTFT ms, ours / engine's | TPOT | E2E | prompt tokens | output tokens | Little's law | fit |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, running(engine, Path(folder) / "server.log") as server:
        for endpoint, workload in LOADS:
            run = im.bench(server.url, workload, endpoint=endpoint, store=False, tokenizer=_words(server, endpoint))
            print(f"| {endpoint} {_load(workload)} | {' | '.join(_cells(run))} |", flush=True)


def _words(server: object, endpoint: str) -> str | None:
    return str(server.tokenizer) if endpoint == "chat" else None  # type: ignore[attr-defined]


def _load(workload: im.Workload) -> str:
    return f"C={workload.concurrency}" if workload.concurrency else f"{workload.rate_per_s:g}/s"


def _cells(run: im.Run) -> list[str]:
    s, theirs = run.summary(), prometheus.means(run.meta.counters)
    pairs = ((s.ttft_s.mean, "ttft_s"), (s.tpot_s.mean, "tpot_s"), (s.e2e_s.mean, "e2e_s"))
    cells = [f"{(ours or 0) * 1e3:.2f} / {theirs.get(name, float('nan')) * 1e3:.2f}" for ours, name in pairs]
    for column, counter in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "generation_tokens")):
        cells.append(f"{run.requests[column].sum():,} / {run.meta.counters.get(counter, 0):,.0f}")
    law = "-" if s.littles_law is None else f"{s.littles_law:.4f}"
    return [*cells, law, "yes" if not run.meta.unfit else "; ".join(run.meta.unfit)]


if __name__ == "__main__":
    main()
