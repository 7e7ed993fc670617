"""A prediction beside a measurement: metric by metric, point by point, with a verdict at a stated tolerance.

Points are matched by arm (a measured run that names none belongs to the base), then by request rate or concurrency; a
measured run with neither goes to the only point there is. A figure is compared where both sides know it. The error is
``(predicted - measured) / measured``, so that a positive one means the prediction was too high. What differs between
the sides besides the figures, the load or what served it, is told in `Score.notes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from inferometer.errors import InputError
from inferometer.prediction.predict import PredictedArm, Prediction, finite, goodput_dict
from inferometer.records.metrics import LIMITS, Stat, Summary, SweepGoodput, sweep_goodput, ttft_knee
from inferometer.records.run import Run
from inferometer.scoring.likeness import same_model, unlike
from inferometer.steptime.roofline import Roofline

SCHEMA = "inferometer/score/1"
TOLERANCE = 0.10
"""Share of the measured figure by which a prediction may be off, unless stated."""

RATES = {"output_tok_per_s": "tok/s", "total_tok_per_s": "tok/s", "request_per_s": "1/s"}
STATISTICS = ("mean", "p50", "p90", "p99")
SWEEP = ("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "itl_ms.p99")
"""What `Score.sweep` lays side by side."""

Verdict = Literal["ok", "miss"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one point, or of the sweep (neither concurrency nor rate), predicted and measured."""

    metric: str
    """``output_tok_per_s``, ``ttft_ms.p99``, ..., ``ttft_knee_concurrency``, ``goodput.p99``."""
    unit: str
    predicted: float
    measured: float
    error_pct: float | None
    """Signed, relative to what was measured; None where that is 0 and the prediction is not."""
    low: float | None = None
    """The prediction's interval, where it has one."""
    high: float | None = None
    verdict: Verdict
    arm: str | None = None
    concurrency: int | None = None
    request_rate: float | None = None

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies within the interval; None without one."""
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Every field, and ``inside``."""
        return {**msgspec.structs.asdict(self), "inside": self.inside}


class ShareOfCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """A single user's measured throughput, and the most that reading the weights once a token allows."""

    measured_tok_per_s: float
    ceiling_tok_per_s: float
    share: float


class ArmScore(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one arm's matched points say together; goodputs are None without an SLO."""

    name: str | None
    predicted_goodput: SweepGoodput | None = None
    measured_goodput: SweepGoodput | None = None
    predicted_ttft_knee: int | None = None
    measured_ttft_knee: int | None = None
    share_of_ceiling: ShareOfCeiling | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``score``."""
        return {
            "name": self.name,
            "goodput": {
                "predicted": goodput_dict(self.predicted_goodput),
                "measured": goodput_dict(self.measured_goodput),
            },
            "ttft_knee_concurrency": {"predicted": self.predicted_ttft_knee, "measured": self.measured_ttft_knee},
            "share_of_ceiling": self.share_of_ceiling and msgspec.to_builtins(self.share_of_ceiling),
        }


class MetricScore(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the points where it is known on both sides."""

    metric: str
    points: int
    mean_abs_error_pct: float | None
    worst: Row
    within: int
    """Points within the tolerance."""
    inside: int
    """Points whose measurement lies within the prediction's interval ..."""
    with_interval: int
    """... of so many that have one."""

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``score``: the worst row by its point and error."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "worst"}
        worst = {key: getattr(self.worst, key) for key in ("arm", "concurrency", "request_rate", "error_pct")}
        return {**values, "worst": worst}


class Score(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A prediction beside a measurement.

    >>> from inferometer.records.run import RunMeta, make_run
    >>> measured = make_run(RunMeta(kind="imported", stated={"ttft_s.p50": 0.1}))
    >>> card = score(make_run(RunMeta(kind="simulated", stated={"ttft_s.p50": 0.105})), measured, tolerance=0.1)
    >>> card.passed, card.rows[0].metric, round(card.rows[0].error_pct, 1)
    (True, 'ttft_ms.p50', 5.0)
    """

    rows: tuple[Row, ...]
    tolerance: float
    arms: tuple[ArmScore, ...]
    unmatched: tuple[str, ...] = ()
    """Measured runs without a predicted point, each with the reason."""
    notes: tuple[str, ...] = ()
    """Where the measured runs are unlike what was predicted: another model, chip, engine, load or mean length."""

    @property
    def passed(self) -> bool:
        """Whether something was compared and all of it is within the tolerance."""
        return bool(self.rows) and all(row.verdict == "ok" for row in self.rows)

    @property
    def missed(self) -> tuple[Row, ...]:
        """The rows beyond the tolerance."""
        return tuple(row for row in self.rows if row.verdict == "miss")

    @property
    def goodput(self) -> dict[str, Any]:
        """Raw maximum, goodput at p50 and p99 and the gaps, predicted and measured, of the first matched arm."""
        return dict(self.arms[0].to_dict()["goodput"]) if self.arms else {}

    @property
    def share_of_ceiling(self) -> ShareOfCeiling | None:
        """Of the first matched arm; None without a single user or without a roofline."""
        return self.arms[0].share_of_ceiling if self.arms else None

    @property
    def sweep(self) -> list[dict[str, Any]]:
        """One row a point: by metric of `SWEEP`, predicted, measured and error_pct, where both sides are known."""
        table: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.rows:
            if row.metric in SWEEP:
                point = {"arm": row.arm, "concurrency": row.concurrency, "request_rate": row.request_rate}
                figures = {key: getattr(row, key) for key in ("predicted", "measured", "error_pct", "verdict")}
                table.setdefault(tuple(point.values()), point)[row.metric] = figures
        return list(table.values())

    @property
    def by_metric(self) -> list[MetricScore]:
        """Each metric of a point over all points, in the order of the rows."""
        names = dict.fromkeys(row.metric for row in self.rows if row.metric not in _OF_SWEEP)
        return [_metric([row for row in self.rows if row.metric == name]) for name in names]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``score``: ``docs/reference/json.md``."""
        values = {
            "schema": SCHEMA,
            "notes": list(self.notes),
            "tolerance": self.tolerance,
            "passed": self.passed,
            "rows": [row.to_dict() for row in self.rows],
            "by_metric": [metric.to_dict() for metric in self.by_metric],
            "sweep": self.sweep,
            "arms": [arm.to_dict() for arm in self.arms],
            "goodput": self.goodput,
            "share_of_ceiling": self.share_of_ceiling and msgspec.to_builtins(self.share_of_ceiling),
            "unmatched": list(self.unmatched),
        }
        return dict(finite(values))


def score(
    predicted: Prediction | Run | Sequence[Run], measured: Run | Sequence[Run], tolerance: float = TOLERANCE
) -> Score:
    """Lay a prediction, or runs that stand for one, beside measured runs.

    Args:
        predicted: a Prediction (all its arms), a Run, or runs.
        measured: a Run or runs; those that state only aggregates are compared by what they state.
        tolerance: share of the measured figure within which a row is ``ok``.

    Raises:
        InputError: a tolerance that is negative or not finite; nothing on one of the sides.

    >>> import inferometer as im
    >>> work = im.Workload.closed_loop(concurrency=1, requests=2, prompt_tokens=64, output_tokens=8)
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> run = im.simulate(dep, work)
    >>> im.score(run, run).passed
    True
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise InputError("tolerance", tolerance, "a share of at least 0, such as 0.1 for 10 %")
    runs = [measured] if isinstance(measured, Run) else list(measured)
    sides = _sides(predicted)
    if not sides or not runs:
        side = "measured" if sides else "predicted"
        raise InputError.because(f"score: nothing is {side}, so there is nothing to compare")
    pairs, unmatched = _match(sides, runs)
    groups = {arm: [pair for pair in pairs if pair[0].arm == arm] for arm in dict.fromkeys(s.arm for s, _ in pairs)}
    rows = [row for side, run in pairs for row in _point_rows(side, run.summary(), tolerance)]
    arms = [_arm(name, of_arm) for name, of_arm in groups.items()]
    rows += [row for arm in arms for row in _sweep_rows(arm, tolerance)]
    return Score(
        rows=tuple(rows),
        tolerance=float(tolerance),
        arms=tuple(arms),
        unmatched=tuple(unmatched),
        notes=tuple(unlike([(side.run, run) for side, run in pairs])),
    )


class _Side(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One predicted point."""

    arm: str | None
    base: bool
    concurrency: int | None
    request_rate: float | None
    summary: Summary
    run: Run
    intervals: dict[str, tuple[float, float]] = {}
    slo: dict[str, float] = {}
    roofline: Roofline | None = None


_Pair = tuple[_Side, Run]


def _sides(predicted: Prediction | Run | Sequence[Run]) -> list[_Side]:
    if isinstance(predicted, Prediction):
        return [side for arm in predicted.arms for side in _of_arm(arm, base=arm is predicted.base)]
    runs = [predicted] if isinstance(predicted, Run) else list(predicted)
    return [
        _Side(
            arm=run.meta.arm,
            base=run.meta.arm in (None, runs[0].meta.arm),
            concurrency=run.meta.concurrency,
            request_rate=run.meta.request_rate_per_s,
            summary=run.summary(),
            run=run,
            slo=run.meta.slo,
        )
        for run in runs
    ]


def _of_arm(arm: PredictedArm, base: bool) -> Iterator[_Side]:
    for point in arm.points:
        yield _Side(
            arm=arm.name,
            base=base,
            concurrency=point.concurrency,
            request_rate=point.request_rate,
            summary=point.summary,
            run=point.run,
            intervals=point.intervals,
            slo=arm.arm.slo.limits(),
            roofline=arm.roofline,
        )


def _match(sides: list[_Side], runs: list[Run]) -> tuple[list[_Pair], list[str]]:
    """Each measured run with its predicted point, and those that have none with the reason."""
    if len(sides) == 1 and len(runs) == 1:
        return [(sides[0], runs[0])], []
    several = len({run.meta.model for run in runs if run.meta.model}) > 1
    pairs, unmatched = [], []
    for run in runs:
        side, reason = _find(sides, run, by_model=several)
        if side is not None:
            pairs.append((side, run))
        else:
            unmatched.append(f"{run.meta.name or run.id}: {reason}")
    return pairs, unmatched


def _find(sides: list[_Side], run: Run, *, by_model: bool) -> tuple[_Side | None, str]:
    meta = run.meta
    if by_model and meta.model and not same_model(meta.model, sides[0].run.meta.model):
        return None, f"of model {meta.model}, not {sides[0].run.meta.model}"
    known = {side.arm for side in sides}
    named = meta.arm if meta.arm in known else None
    in_arm = [side for side in sides if (side.arm == named if named is not None else side.base)]
    if meta.request_rate_per_s is None and meta.concurrency is None:
        return (in_arm[0], "") if len(in_arm) == 1 else (None, "has neither a concurrency nor a request rate")
    found = [side for side in in_arm if _same_load(side, meta.concurrency, meta.request_rate_per_s)]
    at = f"{meta.request_rate_per_s:g}/s" if meta.request_rate_per_s is not None else f"C={meta.concurrency}"
    return (found[0], "") if found else (None, f"no point at {at} is predicted")


def _same_load(side: _Side, concurrency: int | None, request_rate: float | None) -> bool:
    if request_rate is not None or side.request_rate is not None:
        both = request_rate is not None and side.request_rate is not None
        return both and math.isclose(request_rate or 0.0, side.request_rate or 0.0, rel_tol=1e-6)
    return side.concurrency == concurrency


def figures(summary: Summary) -> dict[str, float]:
    """Every figure that is scored, by its path, latencies in milliseconds; only what is known."""
    found = {name: getattr(summary, name) for name in RATES}
    for name in LIMITS:
        stat: Stat = getattr(summary, name)
        values = stat.to_dict(1000)
        found |= {f"{name.removesuffix('_s')}_ms.{part}": values[part] for part in STATISTICS}
    return {path: value for path, value in found.items() if value is not None}


def _point_rows(side: _Side, measured: Summary, tolerance: float) -> Iterator[Row]:
    theirs = figures(measured)
    for metric, mine in figures(side.summary).items():
        if metric in theirs:
            yield _row(
                metric,
                RATES.get(metric, "ms"),
                mine,
                theirs[metric],
                tolerance,
                interval=side.intervals.get(metric),
                arm=side.arm,
                concurrency=side.concurrency,
                request_rate=side.request_rate,
            )


def _row(
    metric: str,
    unit: str,
    predicted: float,
    measured: float,
    tolerance: float,
    interval: tuple[float, float] | None = None,
    **point: Any,
) -> Row:
    low, high = interval or (None, None)
    # 1e-12: a prediction at the very edge is within it, whatever the rounding
    ok = abs(predicted - measured) <= tolerance * abs(measured) * (1 + 1e-12)
    return Row(
        metric=metric,
        unit=unit,
        predicted=predicted,
        measured=measured,
        error_pct=_error_pct(predicted, measured),
        low=low,
        high=high,
        verdict="ok" if ok else "miss",
        **point,
    )


def _error_pct(predicted: float, measured: float) -> float | None:
    if predicted == measured:
        return 0.0
    return (predicted - measured) / abs(measured) * 100 if measured else None


_OF_SWEEP = ("ttft_knee_concurrency", "goodput.p50", "goodput.p99")


def _arm(name: str | None, pairs: list[_Pair]) -> ArmScore:
    """Goodput, knee and ceiling over the points that both sides have."""
    mine, theirs = [side.run for side, _ in pairs], [run for _, run in pairs]
    limits = pairs[0][0].slo or theirs[0].meta.slo
    return ArmScore(
        name=name,
        predicted_goodput=_goodput(mine, limits),
        measured_goodput=_goodput(theirs, limits),
        predicted_ttft_knee=ttft_knee(mine),
        measured_ttft_knee=ttft_knee(theirs),
        share_of_ceiling=_share_of_ceiling(pairs),
    )


def _goodput(runs: list[Run], limits: dict[str, float]) -> SweepGoodput | None:
    known = {name: limit for name, limit in limits.items() if name in LIMITS}
    try:
        return sweep_goodput(runs, **known) if known else None
    except InputError:  # the runs do not state what a limit needs
        return None


def _share_of_ceiling(pairs: list[_Pair]) -> ShareOfCeiling | None:
    for side, run in pairs:
        measured, roof = run.summary().output_tok_per_s, side.roofline
        if side.concurrency == 1 and roof is not None and measured is not None:
            ceiling = 1 / roof.share_of_ceiling(1.0)
            return ShareOfCeiling(measured_tok_per_s=measured, ceiling_tok_per_s=ceiling, share=measured / ceiling)
    return None


def _sweep_rows(arm: ArmScore, tolerance: float) -> Iterator[Row]:
    """Knee and goodput, each where both sides have one."""
    if arm.predicted_ttft_knee is not None and arm.measured_ttft_knee is not None:
        knees = (float(arm.predicted_ttft_knee), float(arm.measured_ttft_knee))
        yield _row("ttft_knee_concurrency", "users", *knees, tolerance, arm=arm.name)
    mine, theirs = arm.predicted_goodput, arm.measured_goodput
    if mine is None or theirs is None:
        return
    for name, ours, measured in (
        ("goodput.p50", mine.p50, theirs.p50),
        ("goodput.p99", mine.p99, theirs.p99),
    ):
        if ours is not None and measured is not None:
            yield _row(name, "tok/s", ours.output_tok_per_s, measured.output_tok_per_s, tolerance, arm=arm.name)


def _metric(rows: list[Row]) -> MetricScore:
    errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    return MetricScore(
        metric=rows[0].metric,
        points=len(rows),
        mean_abs_error_pct=sum(errors) / len(errors) if errors else None,
        worst=max(rows, key=lambda row: math.inf if row.error_pct is None else abs(row.error_pct)),
        within=sum(row.verdict == "ok" for row in rows),
        inside=sum(row.inside is True for row in rows),
        with_interval=sum(row.inside is not None for row in rows),
    )
