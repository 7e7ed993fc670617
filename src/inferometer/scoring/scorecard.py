"""All predictions ever scored in a store: how far off they were, and so how far to trust the next one.

The latest score of the same prediction against the same runs counts, once. Predictions sealed before the measurement
are told apart from all others, since only those cannot have been bent to fit. Figures of points that the calibration
was fitted to are no test, and count nowhere; nor do whole scores that say nothing of the next prediction: of a broken
seal, of runs unlike what was predicted, of the emulator or the simulator (`LEFT_OUT`). Tallies by chip, model and
engine are over figures of points; knees, goodput and memory stand under their own metrics. Output per user in a closed
loop is left out: it is the throughput over again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferometer.prediction.predict import finite
from inferometer.scoring.rows import RATES
from inferometer.store import Store

SCHEMA = "inferometer/scorecard/1"
ENOUGH = 10
"""Points from which on their errors say something of the next one's."""
NINE_IN_TEN = 90
BROKEN, UNLIKE, SIMULATED = "seal broken", "runs unlike what was predicted", "of the emulator or the simulator, no chip"
LEFT_OUT = (BROKEN, UNLIKE, SIMULATED)
"""Why a whole score counts nowhere; the first that holds is told."""

CLASSES = {
    "throughput": tuple(RATES),
    "TTFT": ("ttft_ms",),
    "TPOT": ("tpot_ms",),
    "ITL": ("itl_ms",),
    "E2E": ("e2e_ms",),
    "memory": ("memory",),
    "goodput": ("goodput",),
    "knees": ("ttft_knee_concurrency", "throughput_knee_concurrency", "server_knee_concurrency"),
}
"""Metrics whose errors are taken together, by the beginning of their names."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one group of scored figures."""

    name: str
    predictions: int
    points: int
    """Figures of points that were compared."""
    mean_abs_error_pct: float | None
    bias_pct: float | None
    """Mean signed error: above 0, too much was predicted."""
    inside: int
    """Measurements inside the predicted range ..."""
    with_interval: int
    """... of so many that have one."""
    undefined: int
    """Figures without an error, such as a knee that only one side has; in no mean."""

    @property
    def coverage(self) -> float | None:
        """Share of the ranges that held."""
        return self.inside / self.with_interval if self.with_interval else None

    def to_dict(self) -> dict[str, Any]:
        """Every field, and ``coverage``."""
        return {**msgspec.structs.asdict(self), "coverage": self.coverage}


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How far the next figure of one kind is likely to be off, by those that were scored."""

    kind: str
    """A key of `CLASSES`."""
    points: int
    p90_abs_error_pct: float | None
    """Nine in ten were at most so far off; None of fewer than `ENOUGH`."""
    low_pct: float | None
    """5th and 95th percentile of the signed error."""
    high_pct: float | None


class CeilingShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one user got of what reading the weights allows: comparable between chips."""

    chip: str | None
    model: str | None
    engine: str | None
    measured_tok_per_s: float
    ceiling_tok_per_s: float
    share: float


class Scorecard(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Every prediction of a store that was scored, taken together."""

    predictions: int
    scores: int
    """Of which each prediction may have several, of different runs."""
    by_seal: tuple[Tally, ...] = ()
    """``sealed before`` what they were scored against was measured, and ``all others``."""
    by_chip: tuple[Tally, ...] = ()
    by_model: tuple[Tally, ...] = ()
    by_engine: tuple[Tally, ...] = ()
    by_metric: tuple[Tally, ...] = ()
    trust: tuple[Trust, ...] = ()
    trusted: str = ""
    """What `trust` is by: the sealed ones, where those are enough, else all."""
    trusted_predictions: int = 0
    """Predictions that `trust` rests on."""
    shares_of_ceiling: tuple[CeilingShare, ...] = ()
    in_sample: int = 0
    """Figures that count nowhere: the calibration was fitted to their points."""
    left_out: dict[str, int] = {}
    """Scores that count nowhere, by reason (`LEFT_OUT`)."""
    unscored: tuple[str, ...] = ()
    """Sealed predictions of the store that were never scored."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``score --scorecard``."""
        tallies = ("by_seal", "by_chip", "by_model", "by_engine", "by_metric")
        values = {
            "schema": SCHEMA,
            "predictions": self.predictions,
            "scores": self.scores,
            **{name: [tally.to_dict() for tally in getattr(self, name)] for name in tallies},
            "trust": msgspec.to_builtins(self.trust),
            "trusted": self.trusted,
            "trusted_predictions": self.trusted_predictions,
            "shares_of_ceiling": msgspec.to_builtins(self.shares_of_ceiling),
            "in_sample": self.in_sample,
            "left_out": dict(self.left_out),
            "unscored": list(self.unscored),
        }
        return dict(finite(values))


class _Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One scored figure, and whose it is."""

    prediction: str
    score: int
    """Its place among those that count."""
    sealed: bool
    chip: str
    model: str
    engine: str
    metric: str
    of_point: bool
    error_pct: float | None
    inside: bool | None


def scorecard(store: Store | str | Path | None = None) -> Scorecard:
    """What the scores kept in a store say together; an empty one of a store without any.

    Args:
        store: a Store or its folder; None: that of ``INFEROMETER_STORE``, else ``.inferometer``.

    Raises:
        FormatError: a score of the store cannot be read.

    >>> import inferometer as im, tempfile
    >>> from inferometer.store import Store
    >>> from inferometer.records.run import RunMeta, make_run
    >>> store = Store(tempfile.mkdtemp())
    >>> measured = make_run(RunMeta(kind="imported", stated={"ttft_s.p50": 0.1}))
    >>> predicted = make_run(RunMeta(kind="simulated", stated={"ttft_s.p50": 0.12}, chip="l4"))
    >>> _ = store.save_score(im.score(predicted, measured).to_dict())
    >>> card = im.scorecard(store)
    >>> card.predictions, card.by_chip[0].name, round(card.by_chip[0].bias_pct, 1)
    (1, 'l4', 20.0)
    """
    store = store if isinstance(store, Store) else Store(store)
    latest = list({_key(score, n): score for n, score in enumerate(store.scores())}.values())
    sound = [score for score in latest if _left_out(score) is None]
    rows = [(score, n, row) for n, score in enumerate(sound) for row in _rows(score)]
    found = [_figure(score, n, row) for score, n, row in rows if not _fitted(score, row)]
    tested = {figure.score for figure in found}
    counted = [score for n, score in enumerate(sound) if n in tested]
    sealed = [figure for figure in found if figure.sealed]
    trusted = sealed if sum(figure.of_point for figure in sealed) >= ENOUGH else found
    return Scorecard(
        predictions=_predictions(found),
        scores=len(tested),
        by_seal=_tallies(found, lambda each: SEALED if each.sealed else "all others"),
        by_chip=_tallies(found, lambda each: each.chip),
        by_model=_tallies(found, lambda each: each.model),
        by_engine=_tallies(found, lambda each: each.engine),
        by_metric=_tallies(found, lambda each: each.metric, points=False),
        trust=tuple(_trust(kind, trusted) for kind in CLASSES if any(_is(kind, each.metric) for each in trusted)),
        trusted=SEALED if trusted is sealed else "all",
        trusted_predictions=_predictions(trusted),
        shares_of_ceiling=tuple(_shares(counted)),
        in_sample=len(rows) - len(found),
        left_out=_reasons(latest),
        unscored=tuple(_unscored(store, latest)),
    )


SEALED = "sealed before"


def _key(score: dict[str, Any], n: int) -> tuple[Any, ...]:
    of = score.get("of") or {}
    return (of["prediction"], *of["runs"]) if of else (n,)


def _prediction(score: dict[str, Any], n: int) -> str:
    return str((score.get("of") or {}).get("prediction", n))


def _left_out(score: dict[str, Any]) -> str | None:
    """Why a score counts nowhere; None: it does."""
    holds = {
        BROKEN: (score.get("seal") or {}).get("state") == "broken",
        UNLIKE: bool(score.get("notes")),
        SIMULATED: (score.get("of") or {}).get("simulated", False),
    }
    return next((reason for reason in LEFT_OUT if holds[reason]), None)


def _reasons(scores: Iterable[dict[str, Any]]) -> dict[str, int]:
    counts = Counter(map(_left_out, scores))
    return {reason: counts[reason] for reason in LEFT_OUT if counts[reason]}


def _rows(score: dict[str, Any]) -> list[dict[str, Any]]:
    """Its rows, but for those that restate another (`Row.restates`)."""
    rows = score.get("rows", ())
    return [row for row in rows if row["metric"] != "per_user_tok_per_s" or row["request_rate"] is not None]


def _fitted(score: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether the calibration was fitted to it; a score kept before rows said so, as a whole."""
    return bool(row.get("fitted", (score.get("of") or {}).get("in_sample")))


def _figure(score: dict[str, Any], n: int, row: dict[str, Any]) -> _Figure:
    arms: dict[str | None, dict[str, Any]] = {arm["name"]: arm for arm in score.get("arms", ())}
    arm = arms.get(row["arm"], {})
    return _Figure(
        prediction=_prediction(score, n),
        score=n,
        sealed=(score.get("seal") or {}).get("state") == "sealed",
        **{name: arm.get(name) or "not stated" for name in ("chip", "model", "engine")},
        metric=row["metric"],
        of_point=row["metric"] in RATES or "_ms." in row["metric"],
        error_pct=row["error_pct"],
        inside=row["inside"],
    )


def _predictions(figures: Iterable[_Figure]) -> int:
    return len({figure.prediction for figure in figures})


def _tallies(figures: Sequence[_Figure], of: Callable[[_Figure], str], *, points: bool = True) -> tuple[Tally, ...]:
    """One a group, in the order of first appearance; of figures of points only, or of all."""
    groups: dict[str, list[_Figure]] = {}
    for figure in figures:
        if figure.of_point or not points:
            groups.setdefault(of(figure), []).append(figure)
    return tuple(_tally(name, group) for name, group in groups.items())


def _tally(name: str, figures: Sequence[_Figure]) -> Tally:
    errors = _errors(figures)
    return Tally(
        name=name,
        predictions=_predictions(figures),
        points=len(figures),
        mean_abs_error_pct=float(np.abs(errors).mean()) if errors else None,
        bias_pct=float(np.mean(errors)) if errors else None,
        inside=sum(figure.inside is True for figure in figures),
        with_interval=sum(figure.inside is not None for figure in figures),
        undefined=len(figures) - len(errors),
    )


def _errors(figures: Iterable[_Figure]) -> list[float]:
    return [figure.error_pct for figure in figures if figure.error_pct is not None]


def _is(kind: str, metric: str) -> bool:
    return metric.partition(".")[0] in CLASSES[kind]


def _trust(kind: str, figures: Sequence[_Figure]) -> Trust:
    errors = np.array(_errors(figure for figure in figures if _is(kind, figure.metric)))
    if errors.size < ENOUGH:
        return Trust(kind=kind, points=int(errors.size), p90_abs_error_pct=None, low_pct=None, high_pct=None)
    low, high = np.percentile(errors, [5, 95])
    p90 = np.percentile(np.abs(errors), NINE_IN_TEN)
    return Trust(
        kind=kind,
        points=int(errors.size),
        p90_abs_error_pct=float(p90),
        low_pct=float(low),
        high_pct=float(high),
    )


def _shares(scores: Sequence[dict[str, Any]]) -> list[CeilingShare]:
    """The latest of each chip, model and engine."""
    found: dict[tuple[Any, ...], CeilingShare] = {}
    for arm in (arm for score in scores for arm in score.get("arms", ())):
        share = arm.get("share_of_ceiling")
        if share:
            whose = {name: arm.get(name) for name in ("chip", "model", "engine")}
            figures = {name: share[name] for name in ("measured_tok_per_s", "ceiling_tok_per_s", "share")}
            found[tuple(whose.values())] = CeilingShare(**whose, **figures)
    return list(found.values())


def _unscored(store: Store, scores: Sequence[dict[str, Any]]) -> Iterable[str]:
    scored = {_prediction(score, n) for n, score in enumerate(scores)}
    for row in store.list_predictions():
        if row["sha256"] not in scored:
            yield f"{row['name'] or 'unnamed'} {row['sha256'][:8]}, sealed {row['time']}"
