"""What the server was doing: limits that bind, preemption, steps that stall decodes, a slow sampler."""

from __future__ import annotations

import numpy as np
import polars as pl

from inferometer.errors import InputError
from inferometer.scoring.auditing import floors
from inferometer.scoring.auditing.finding import Finding, seconds
from inferometer.scoring.auditing.point import Point
from inferometer.scoring.preempted import preemption_mode

STALL = 3.0
"""ITL p99 over p50 from which the longest gaps are other steps than the usual."""
BINDS = 0.05
"""Share of the looks at the server that find it at a limit, from which the limit shapes the figures ..."""
LEAST_LOOKS = 2
"""... and by so many looks at least."""
FULL = 0.99
"""KV pool usage that is full; with requests waiting for no other reason `NEARLY_FULL` is."""
NEARLY_FULL = 0.9
FALLBACK_SAMPLERS = {"torch": "the log names the PyTorch-native top-p and top-k sampling"}
"""Samplers by their name in `records.engine_log`."""


def preemptions(point: Point) -> Finding | None:
    """Requests thrown out of the batch, and what became of their KV cache."""
    count = point.summary.preemptions
    if not count:
        return None
    requests = point.summary.requests
    of = f" over {requests:,} requests" if requests else ""
    mode, evidence = preemption_mode([point.run])
    how = "recomputed or swapped, it is not known" if mode == "not known" else mode
    return point.finding("preemptions", f"{count:,} preemptions{of}, {how}: {evidence}", count, 0)


def max_num_seqs(point: Point) -> Finding | None:
    """As many running as may, and more waiting."""
    most = point.max_num_seqs
    if not most:
        return None
    share = _share(point, (pl.col("running") >= most) & (pl.col("waiting") > 0))
    if share is None:
        running, waiting = point.summary.running, point.summary.waiting
        share = 1.0 if running is not None and waiting and running >= FULL * most else 0.0
    if share < BINDS:
        return None
    waiting = point.summary.waiting
    queue = f", {waiting:.1f} waiting on average" if waiting is not None else ""
    text = (
        f"{most} running and others waiting in {share:.0%} of the looks at the server{queue}{_before_the_knee(point)}"
    )
    return point.finding("max_num_seqs_binds", text, share, BINDS)


def kv_pool(point: Point) -> Finding | None:
    """A KV pool that is full, or that requests wait for."""
    slots = pl.col("running") < point.max_num_seqs if point.max_num_seqs else pl.lit(True)
    waits = (pl.col("kv_usage") >= NEARLY_FULL) & (pl.col("waiting") > 0) & slots
    share = _share(point, (pl.col("kv_usage") >= FULL) | waits, "kv_usage")
    if share is None:
        usage, waiting = point.summary.kv_usage, point.summary.waiting
        share = 1.0 if usage is not None and (usage >= FULL or (usage >= NEARLY_FULL and waiting)) else 0.0
    if share < BINDS:
        return None
    highest = point.run.server["kv_usage"].max() if point.run.server.height else point.summary.kv_usage
    most = f" at up to {highest:.0%}" if isinstance(highest, float) else ""
    text = f"KV pool{most}, full or waited for in {share:.0%} of the looks at the server"
    return point.finding("kv_pool_binds", text + _before_the_knee(point), share, BINDS)


def _share(point: Point, condition: pl.Expr, needs: str = "running") -> float | None:
    """Share of the samples under way that meet a condition; 0 where too few do, None without samples."""
    known = point.run.server.filter(pl.col(needs).is_not_null() & pl.col("waiting").is_not_null())
    known = known.filter((pl.col("running").fill_null(1) > 0) | (pl.col("waiting") > 0))
    if not known.height:
        return None
    met = known.filter(condition.fill_null(False)).height
    return met / known.height if met >= LEAST_LOOKS else 0.0


def _before_the_knee(point: Point) -> str:
    if point.users is None or point.knee is None or point.users >= point.knee:
        return ""
    return f", before the sweep's throughput knee at C={point.knee}"


def stalls(point: Point) -> Finding | None:
    """Gaps that are several times the usual one: steps that carry prompts beside the decodes."""
    itl = point.summary.itl_s
    usual = itl.p50 if itl.p50 is not None else point.summary.tpot_s.p50
    if itl.p99 is None or not usual or itl.p99 <= STALL * usual:
        return None
    gap = "chunk gap" if point.summary.itl_name == "chunk gap" else "ITL"
    text = f"{gap} p99 {seconds(itl.p99)}, {itl.p99 / usual:.1f} x the usual {seconds(usual)}"
    if gap == "chunk gap":
        text += ": of chunks that hold several tokens, so no decode need have stalled"
        return point.finding("decode_stalls", text, itl.p99 / usual, STALL, advice="read TPOT instead")
    if point.users == 1:
        text += ": of one user alone, so no other's prompt is the reason"
        return point.finding("decode_stalls", text, itl.p99 / usual, STALL, advice="look at the server and its host")
    return point.finding("decode_stalls", text + _carried(point, itl.p99, usual), itl.p99 / usual, STALL)


def _carried(point: Point, gap_s: float, usual_s: float) -> str:
    """How many prompt tokens a step of that length carries: by the log's steps, else at most, by the chip's peak."""
    server = point.run.server
    if {"step_s", "step_context_tokens"} <= set(server.columns):
        long = server.filter((pl.col("step_s") >= (gap_s + usual_s) / 2) & (pl.col("step_generation_tokens") > 0))
        tokens = long["step_context_tokens"].median()
        if isinstance(tokens, int | float):
            return f": the log's {long.height} steps of that length carry {tokens:,.0f} prompt tokens (median)"
    prompt = point.tokens("prompt_tokens")
    carries = f"; prompts of {prompt:,.0f} tokens share its steps" if prompt else ""
    if point.dep is None:
        return carries
    try:
        most = (gap_s - usual_s) / floors.token_floor_s(point.dep)
    except InputError:
        return carries
    return f": time for at most {np.floor(most):,.0f} prompt tokens in the step{carries}"


def sampler(point: Point) -> Finding | None:
    """A sampler that the engine falls back on."""
    name = point.fact("sampler")
    if not isinstance(name, str) or name not in FALLBACK_SAMPLERS:
        return None
    return point.finding("fallback_sampler", FALLBACK_SAMPLERS[name])
