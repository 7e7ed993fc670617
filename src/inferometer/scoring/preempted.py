"""What became of requests that the KV pool ran out on: computed again, or swapped to the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from inferometer.records.run import Run

Mode = Literal["recomputed", "swapped", "none seen", "not known"]
GAUGES = ("swapped", "cpu_kv_usage")
"""Of requests, and of KV blocks, in the host's memory."""
NEVER_SWAP = ("vllm", "sglang")
"""vLLM's V1 engine has no swap space: it frees the blocks and computes prompt and output again; SGLang retracts, which
is the same. A start-up log with blocks on the CPU is of the older engine, which had one."""


def preemption_mode(runs: Sequence[Run]) -> tuple[Mode, str]:
    """What the engine did with the requests that these runs preempted, and how that is known.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> preemption_mode([make_run(RunMeta(kind="measured", counters={"preemptions": 2.0}, server={"engine": "vllm"}))])
    ('recomputed', 'nothing was seen in host memory, and this engine has no other way')
    """
    counts = [count for run in runs if (count := run.summary().preemptions) is not None]
    if any(_peak(run, gauge) > 0 for run in runs for gauge in GAUGES):
        return "swapped", "the server reported requests or KV blocks in host memory"
    if not counts:
        return "not known", "no preemption counter was recorded"
    if not sum(counts):
        return "none seen", "the counter did not move"
    again = sum(run.meta.counters.get("recomputed_prompt_tokens", 0.0) for run in runs)
    if again:
        return "recomputed", f"{again:,.0f} prompt tokens were computed again"
    if all(_recomputes(run) for run in runs):
        return "recomputed", "nothing was seen in host memory, and this engine has no other way"
    return "not known", "the server does not count what was swapped or computed again"


def _recomputes(run: Run) -> bool:
    """Whether the engine cannot swap, or can and shows by its gauge that it did not."""
    if "swapped" in run.server.columns:
        return True
    named = run.meta.server.get("engine") or run.meta.deployment.get("engine") or run.meta.policy or ""
    return str(named).lower().startswith(NEVER_SWAP) and run.meta.server.get("num_cpu_blocks") is None


def _peak(run: Run, column: str) -> float:
    peak = run.server[column].max() if column in run.server.columns else None
    return float(peak) if isinstance(peak, int | float) else 0.0
