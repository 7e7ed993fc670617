"""The founding sweep: what was measured on an A100 in a public benchmark log, point by point.

Source: the second founding document (``001_22e1e159ed55acf7``), section "Measurements": A100-SXM4-80GB, Qwen3-8B, vLLM
0.26.0, ``vllm bench serve`` in a closed loop, 1,024 tokens in and out, 10 prompts a user, measured 2026-07-31. The
prompts repeated from point to point, so the prefix cache hit: 50 to 66 % at 2 to 32 users, next to nothing at 128. The
first token of a single user (23 ms) is below what computing its prompt takes (53 ms), and so a hit too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.records.run import Run

STUDY = "a100-qwen3-8b"
SOURCE = "founding document 001_22e1e159ed55acf7, Measurements, 2026-07-31"
COLUMNS = ("output_tok_per_s", "ttft_s.p50", "ttft_s.p99", "tpot_s.p50", "tpot_s.p99")
SWEEP = {
    1: (88.8, 0.023, 0.026, 0.01125, 0.01127),
    2: (175.2, 0.059, 0.138, 0.01134, 0.01141),
    4: (339.7, 0.069, 0.201, 0.01167, 0.01181),
    8: (639.5, 0.075, 0.263, 0.01240, 0.01266),
    16: (1139.6, 0.093, 0.546, 0.01378, 0.01440),
    32: (1763.3, 0.140, 1.018, 0.01768, 0.01891),
    64: (2504.6, 0.519, 3.730, 0.02509, 0.02544),
    128: (3088.2, 0.678, 8.302, 0.04100, 0.04130),
}
"""By users: the figures of `COLUMNS`."""
ITL_P99_S = {64: 0.148, 128: 0.196}


def runs() -> list[Run]:
    """The eight points as runs that state their figures."""
    from inferometer.records.run import RunMeta, make_run

    return [make_run(RunMeta(kind="imported", name=f"founding sweep C={c}", **_meta(c))) for c in SWEEP]


def _meta(concurrency: int) -> dict[str, Any]:
    stated = dict(zip(COLUMNS, SWEEP[concurrency], strict=True))
    if concurrency in ITL_P99_S:
        stated["itl_s.p99"] = ITL_P99_S[concurrency]
    return {
        "tool": "vllm bench serve", "tool_version": "0.26.0", "model": "Qwen/Qwen3-8B", "chip": "a100-sxm4-80gb",
        "concurrency": concurrency, "source": SOURCE, "stated": stated,
    }  # fmt: skip
