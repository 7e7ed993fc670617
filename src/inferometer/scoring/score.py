"""A prediction beside a measurement: metric by metric, point by point, with a verdict at a stated tolerance.

How points are matched is in `scoring.sides`, what a row is in `scoring.rows`, what the points of an arm say together in
`scoring.arms`, whether the prediction is one in `scoring.seals`. A figure is compared where both sides know it. What
differs between the sides besides the figures, the load or what served it, is told in `Score.notes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from inferometer.errors import InputError
from inferometer.prediction.predict import finite
from inferometer.records.run import Run
from inferometer.scoring.arms import ArmRatio, ArmScore, ShareOfCeiling, arm_score, ratios, sweep_rows
from inferometer.scoring.claimed import ClaimRow, claim_rows
from inferometer.scoring.likeness import simulated, unlike
from inferometer.scoring.rows import RATES, STATISTICS, Row, Verdict, figures, memory_rows, point_rows
from inferometer.scoring.seals import SealStatus, began, seal_status
from inferometer.scoring.sides import Comparable, Pair, Predicted, SideArm, load_name, match, missing, predicted_side

__all__ = [
    "RATES",
    "SCHEMA",
    "STATISTICS",
    "TOLERANCE",
    "ArmScore",
    "ClaimRow",
    "MetricScore",
    "Row",
    "Score",
    "SealStatus",
    "ShareOfCeiling",
    "Subject",
    "Verdict",
    "figures",
    "score",
]

SCHEMA = "inferometer/score/1"
TOLERANCE = 0.10
"""Share of the measured figure by which a prediction may be off, unless stated."""

SWEEP = ("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "itl_ms.p99")
"""What `Score.sweep` lays side by side."""


class MetricScore(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the points where it is known on both sides."""

    metric: str
    points: int
    mean_abs_error_pct: float | None
    bias_pct: float | None
    """The mean signed error: above 0, too much is predicted."""
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


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What was scored against what: enough to know the same score again."""

    prediction: str
    """SHA-256 of the seal, else of study, seed and profile, else of the runs that stood for a prediction."""
    study: str | None
    profile: str | None
    """The calibration's name."""
    runs: tuple[str, ...]
    """Ids of the measured runs, in order."""
    version: str
    """Of Inferometer."""
    in_sample: bool = False
    """Whether the calibration was fitted to one of these runs: its rows are `Row.fitted`."""
    simulated: bool = False
    """Whether one of these runs is of the simulator, or of Inferometer's emulator: it says nothing of a chip."""


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
    seal: SealStatus = SealStatus(state="unsealed", sentence="")
    of: Subject | None = None
    claims: tuple[ClaimRow, ...] = ()
    ratios: tuple[ArmRatio, ...] = ()
    """What each arm does over the base at the same load."""
    unmatched: tuple[str, ...] = ()
    """Measured runs without a predicted point, each with the reason."""
    missing: tuple[str, ...] = ()
    """What is predicted and was not measured: ``C=64, 128``, ``arm fp8``."""
    partial: tuple[str, ...] = ()
    """Measured runs that are scored though they are not whole or not fit, each with the reason."""
    notes: tuple[str, ...] = ()
    """Where the measured runs are unlike what was predicted: another model, chip, engine, setting, load or mean
    length."""

    @property
    def passed(self) -> bool:
        """Whether something was compared, all of it is within the tolerance, and no seal is broken."""
        return bool(self.rows) and not self.missed and self.seal.state != "broken"

    @property
    def missed(self) -> tuple[Row, ...]:
        """The rows beyond the tolerance."""
        return tuple(row for row in self.rows if row.verdict == "miss")

    @property
    def counted(self) -> tuple[Row, ...]:
        """The rows that sums are over: those that were predicted, not fitted, and do not restate another."""
        return tuple(row for row in self.rows if not row.restates and not row.fitted)

    @property
    def coverage(self) -> dict[str, int]:
        """``inside`` of ``with_interval`` rows: how often the prediction's range held."""
        known = [row.inside for row in self.counted if row.inside is not None]
        return {"inside": sum(known), "with_interval": len(known)}

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
                values = {key: getattr(row, key) for key in ("predicted", "measured", "error_pct", "verdict")}
                table.setdefault(tuple(point.values()), point)[row.metric] = values
        return list(table.values())

    @property
    def by_metric(self) -> list[MetricScore]:
        """Each metric of a point over all points that were not fitted, in the order of the rows."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.of_point and not row.fitted:
                groups.setdefault(row.metric, []).append(row)
        return [_metric(group) for group in groups.values()]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``score``: ``docs/reference/json.md``."""
        values = {
            "schema": SCHEMA,
            "seal": msgspec.to_builtins(self.seal),
            "notes": list(self.notes),
            "tolerance": self.tolerance,
            "passed": self.passed,
            "coverage": self.coverage,
            "rows": [row.to_dict() for row in self.rows],
            "by_metric": [metric.to_dict() for metric in self.by_metric],
            "sweep": self.sweep,
            "arms": [arm.to_dict() for arm in self.arms],
            "ratios": msgspec.to_builtins(self.ratios),
            "claims": [claim.to_dict() for claim in self.claims],
            "goodput": self.goodput,
            "share_of_ceiling": self.share_of_ceiling and msgspec.to_builtins(self.share_of_ceiling),
            "unmatched": list(self.unmatched),
            "missing": list(self.missing),
            "partial": list(self.partial),
            "of": self.of and msgspec.to_builtins(self.of),
        }
        return dict(finite(values))


def score(predicted: Comparable, measured: Run | Sequence[Run], tolerance: float = TOLERANCE) -> Score:
    """Lay a prediction, or runs that stand for one, beside measured runs.

    Args:
        predicted: a Prediction (all its arms), one read from its file (`read_sealed`), the path of such a file, a Run,
            or runs. Nothing is simulated here: a file is scored as it stands.
        measured: a Run or runs; those that state only aggregates are compared by what they state.
        tolerance: share of the measured figure within which a row is ``ok``.

    Raises:
        InputError: a tolerance that is negative or not finite; nothing on one of the sides; a file that is no
            prediction.

    >>> import inferometer as im
    >>> work = im.Workload.closed_loop(concurrency=1, requests=2, prompt_tokens=64, output_tokens=8)
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> run = im.simulate(dep, work)
    >>> im.score(run, run).passed
    True
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise InputError("tolerance", tolerance, "a share of at least 0, such as 0.1 for 10 %")
    side = predicted_side(predicted)
    runs = [measured] if isinstance(measured, Run) else list(measured)
    if not side.sides or not runs:
        which = "measured" if side.sides else "predicted"
        raise InputError.because(f"score: nothing is {which}, so there is nothing to compare")
    return _card(side, runs, float(tolerance))


def _card(side: Predicted, runs: list[Run], tolerance: float) -> Score:
    pairs, unmatched = match(side.sides, runs)
    compared = [run for _, run in pairs]
    groups = [(arm, of_arm) for arm in side.arms if (of_arm := [pair for pair in pairs if pair[0].arm == arm.name])]
    arms = tuple(arm_score(arm, of_arm) for arm, of_arm in groups)
    profile = _profile(side)
    fitted = {run.id for run in compared if _fitted(profile, run)}
    rows = tuple(_rows(groups, pairs, arms, tolerance, fitted))
    return Score(
        rows=rows,
        tolerance=tolerance,
        arms=arms,
        seal=seal_status(side, compared or runs),
        of=_subject(side, compared or runs),
        claims=tuple(claim_rows(side, pairs, arms)),
        ratios=tuple(ratios(rows, None if side.base is None else side.base.name)),
        unmatched=tuple(unmatched),
        missing=tuple(missing(side.arms, pairs)),
        partial=tuple(reason for run in compared for reason in _faults(run)),
        notes=tuple(unlike([(point.run, run) for point, run in pairs])),
    )


def _rows(
    groups: list[tuple[SideArm, list[Pair]]],
    pairs: list[Pair],
    arms: Sequence[ArmScore],
    tolerance: float,
    fitted: set[str],
) -> list[Row]:
    rows = [row for side, run in pairs for row in point_rows(side, run.summary(), tolerance, fitted=run.id in fitted)]
    # a knee or goodput is drawn through all points of its arm
    bent = {side.arm for side, run in pairs if run.id in fitted}
    sweeps = [row for arm in arms for row in sweep_rows(arm, tolerance)]
    rows += [msgspec.structs.replace(row, fitted=row.arm in bent) for row in sweeps]
    return rows + [row for arm, of_arm in groups for row in memory_rows(arm, [run for _, run in of_arm], tolerance)]


def _faults(run: Run) -> list[str]:
    name = load_name(run.meta.concurrency, run.meta.request_rate_per_s)
    where = f"{run.meta.arm} at {name}" if run.meta.arm not in (None, "base") else name
    not_whole = [f"{where} is not whole: {run.meta.partial}"] if run.meta.partial else []
    return not_whole + [f"{where} is not fit: {reason}" for reason in run.meta.unfit]


def _profile(side: Predicted) -> dict[str, Any]:
    """The calibration of the prediction, as its JSON has it; empty without one."""
    return (side.document or {}).get("profile") or {}


def _subject(side: Predicted, runs: list[Run]) -> Subject:
    from inferometer import __version__

    profile = _profile(side)
    return Subject(
        prediction=side.id,
        study=side.study,
        profile=profile.get("name"),
        runs=tuple(run.id for run in runs),
        version=__version__,
        in_sample=any(_fitted(profile, run) for run in runs),
        simulated=any(map(simulated, runs)),
    )


def _fitted(profile: dict[str, Any], run: Run) -> bool:
    """Whether the run is one of the profile's: by its id, or by its name and begun before the profile was made."""
    fitted = set(profile.get("runs") or ())
    if run.id in fitted | set(profile.get("run_ids") or ()):
        return True
    start = began(run)
    try:
        made = datetime.fromisoformat(profile.get("created") or "").timestamp()
    except ValueError:
        made = math.inf
    return run.meta.name in fitted and (start is None or start.unix_s <= made)


def _metric(rows: list[Row]) -> MetricScore:
    errors = [row.error_pct for row in rows if row.error_pct is not None]
    return MetricScore(
        metric=rows[0].metric,
        points=len(rows),
        mean_abs_error_pct=sum(map(abs, errors)) / len(errors) if errors else None,
        bias_pct=sum(errors) / len(errors) if errors else None,
        worst=max(rows, key=lambda row: math.inf if row.error_pct is None else abs(row.error_pct)),
        within=sum(row.verdict == "ok" for row in rows),
        inside=sum(row.inside is True for row in rows),
        with_interval=sum(row.inside is not None for row in rows),
    )
