"""One figure predicted and measured, and how one is made of two numbers.

The error is ``(predicted - measured) / measured``, so that a positive one means the prediction was too high. A figure
that can be absent, such as a knee, is None: absent on both sides is right, on one side a miss without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from inferometer.records.metrics import LIMITS, Stat, Summary
from inferometer.records.run import Run
from inferometer.scoring.sides import Side, SideArm

RATES = {
    "output_tok_per_s": "tok/s",
    "total_tok_per_s": "tok/s",
    "per_user_tok_per_s": "tok/s",
    "request_per_s": "1/s",
}
STATISTICS = ("mean", "p50", "p90", "p99")

Verdict = Literal["ok", "miss"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one point, or of an arm's whole sweep (neither concurrency nor rate), predicted and measured."""

    metric: str
    """``output_tok_per_s``, ``ttft_ms.p99``, ..., ``ttft_knee_concurrency``, ``goodput.p99``, ``memory.weight_bytes``.
    """
    unit: str
    predicted: float | None
    """None: that there is none, such as no knee."""
    measured: float | None
    error_pct: float | None
    """Signed, relative to what was measured; None where that is 0 or absent and the prediction is not."""
    low: float | None = None
    """The prediction's interval, where it has one: a range over the model's constants, not a confidence interval."""
    high: float | None = None
    verdict: Verdict
    arm: str | None = None
    concurrency: int | None = None
    request_rate: float | None = None
    fitted: bool = False
    """Whether the calibration was fitted to this point, or to one that the sweep's figure is drawn through."""

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies within the interval; None without one."""
        if self.low is None or self.high is None or self.measured is None:
            return None
        return self.low <= self.measured <= self.high

    @property
    def of_point(self) -> bool:
        """Whether it is of one point, not of the sweep or of the server's memory."""
        return self.metric in RATES or "_ms." in self.metric

    @property
    def restates(self) -> bool:
        """Whether it only says another row over again: output per user of a closed loop is output over a constant."""
        return self.metric == "per_user_tok_per_s" and self.request_rate is None and self.concurrency is not None

    def to_dict(self) -> dict[str, Any]:
        """Every field, and ``inside``."""
        return {**msgspec.structs.asdict(self), "inside": self.inside}


def make_row(
    metric: str,
    unit: str,
    predicted: float | None,
    measured: float | None,
    tolerance: float,
    interval: tuple[float, float] | None = None,
    **point: Any,
) -> Row:
    """A row with its error and verdict; ``point`` is arm, concurrency, request rate and fitted."""
    low, high = interval or (None, None)
    return Row(
        metric=metric,
        unit=unit,
        predicted=predicted,
        measured=measured,
        error_pct=error_pct(predicted, measured),
        low=low,
        high=high,
        verdict="ok" if _within(predicted, measured, tolerance) else "miss",
        **point,
    )


def _within(predicted: float | None, measured: float | None, tolerance: float) -> bool:
    if predicted is None or measured is None:
        return predicted is measured
    # 1e-12: a prediction at the very edge is within it, whatever the rounding
    return abs(predicted - measured) <= tolerance * abs(measured) * (1 + 1e-12)


def error_pct(predicted: float | None, measured: float | None) -> float | None:
    """``(predicted - measured) / |measured|`` in per cent; None where only one side has a figure, or it is 0.

    >>> error_pct(110.0, 100.0), error_pct(None, None), error_pct(4.0, None)
    (10.0, 0.0, None)
    """
    if predicted == measured:
        return 0.0
    if predicted is None or not measured:
        return None
    return (predicted - measured) / abs(measured) * 100


def figures(summary: Summary) -> dict[str, float]:
    """Every figure that is scored, by its path, latencies in milliseconds; only what is known."""
    found = {name: getattr(summary, name) for name in RATES}
    for name in LIMITS:
        stat: Stat = getattr(summary, name)
        values = stat.to_dict(1000)
        found |= {f"{name.removesuffix('_s')}_ms.{part}": values[part] for part in STATISTICS}
    return {path: value for path, value in found.items() if value is not None}


def point_rows(side: Side, measured: Summary, tolerance: float, *, fitted: bool = False) -> Iterator[Row]:
    """A row for every figure that both sides know of a point; ``fitted``: the calibration was fitted to it."""
    theirs = figures(measured)
    for metric, mine in figures(side.summary).items():
        if metric in theirs:
            yield make_row(
                metric,
                RATES.get(metric, "ms"),
                mine,
                theirs[metric],
                tolerance,
                interval=side.intervals.get(metric),
                arm=side.arm,
                concurrency=side.concurrency,
                request_rate=side.request_rate,
                fitted=fitted,
            )


MEMORY = {
    "kv_cache_tokens": ("kv_cache_tokens", "tokens"),
    "num_gpu_blocks": ("num_gpu_blocks", "blocks"),
    "kv_pool_bytes": ("kv_cache_memory_bytes", "bytes"),
    "weight_bytes": ("weight_bytes", "bytes"),
}
"""By the prediction's name of it: what the server's start-up says (`records.engine_log`), and the unit."""

WITH_WEIGHTS = ("weights", "allocator rounding", "tables and copies")
"""Terms that an engine counts when it says how much loading the model took."""


def memory_rows(arm: SideArm, runs: Sequence[Run], tolerance: float) -> Iterator[Row]:
    """A row for each memory figure that the server stated at its start, once an arm, with the predicted terms' range.

    An engine prints the weights of one rank; so do these rows where the model is split.
    """
    if arm.memory is None or not arm.memory.get("fits"):
        return
    for name, (fact, unit) in MEMORY.items():
        measured = server_fact(runs, fact)
        if measured is not None:
            key = _key(arm.memory, name)
            interval = _memory_range(arm.memory, name)
            yield make_row(f"memory.{key}", unit, float(arm.memory[key]), measured, tolerance, interval, arm=arm.name)


def _key(found: Mapping[str, Any], name: str) -> str:
    split = name == "weight_bytes" and found.get("weight_bytes_per_rank") not in (None, found["weight_bytes"])
    return "weight_bytes_per_rank" if split else name


def server_fact(runs: Sequence[Run], name: str) -> float | None:
    """What the first run that knows it says of its server's start."""
    values = (run.meta.server.get(name) for run in runs)
    return next((float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)


def _memory_range(found: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Of the pool: its term's; of tokens and blocks: in proportion to it; of the weights: with what is rounded up."""
    terms = {term["name"]: term for term in found.get("terms", ())}
    if name == "weight_bytes":
        parts = [terms[each] for each in WITH_WEIGHTS if each in terms]
        return (parts[0]["low_bytes"], sum(part["high_bytes"] for part in parts)) if "weights" in terms else None
    pool = terms.get("KV pool")
    if pool is None or not pool["bytes"]:
        return None
    scale = found[name] / pool["bytes"]
    return pool["low_bytes"] * scale, pool["high_bytes"] * scale
