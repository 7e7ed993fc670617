"""The founding sweep: what was measured on an A100 in a public benchmark log, point by point.

Source: the second founding document (``001_22e1e159ed55acf7``), section "Measurements": A100-SXM4-80GB, Qwen3-8B, vLLM
0.26.0, ``vllm bench serve`` in a closed loop, 1,024 tokens in and out, 10 prompts a user, measured 2026-07-31. The
figures stand once, in ``studies/a100-qwen3-8b-sweep.csv``.

The prompts repeated from point to point, so the prefix cache hit: 50 to 66 % at 2 to 32 users, from 45 down to 16 % at
64, and 0.2 to 0.5 % at 128. A range is no figure, so the table states a hit rate for 128 users only, 0.4 %. The first
token of a single user (23 ms) is below what computing its prompt takes (53 ms), and so a hit too.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferometer.records.run import Run

STUDY = "a100-qwen3-8b"
TABLE = Path(__file__).parent.parent / "studies" / "a100-qwen3-8b-sweep.csv"
SOURCE = "founding document 001_22e1e159ed55acf7, Measurements, 2026-07-31"
IN_MS = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99")


def _sweep() -> dict[int, tuple[float, ...]]:
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        int(row["concurrency"]): (float(row["output_tok_per_s"]), *(float(row[name]) / 1000 for name in IN_MS))
        for row in rows
    }


SWEEP = _sweep()
"""By users: output tok/s, then TTFT p50 and p99 and TPOT p50 and p99 in seconds."""


def runs() -> list[Run]:
    """The eight points as runs that state their figures."""
    from inferometer.records.importers import load

    found = load(TABLE)
    for run in found:
        run.meta.source = SOURCE
        prompts = 10 * (run.meta.concurrency or 0)
        run.meta.workload = {"prompt_tokens": 1024, "output_tokens": 1024, "num_prompts": prompts}
    return found
