"""What an arm's matched points say together: knees, goodput and what binds it, Little's law, preemptions, ceilings.

Everything is over the points that both sides have, so that a partial sweep is held against the same part of the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from inferometer.errors import InputError
from inferometer.prediction.predict import goodput_dict
from inferometer.records.metrics import (
    LIMITS,
    Summary,
    SweepGoodput,
    server_knee,
    server_queues,
    sweep_goodput,
    throughput_knee,
    ttft_knee,
)
from inferometer.records.run import Run
from inferometer.scoring.likeness import engine, mean_tokens
from inferometer.scoring.preempted import Mode, preemption_mode
from inferometer.scoring.rows import Row, error_pct, make_row
from inferometer.scoring.sides import Pair, SideArm

LITTLES_TOLERANCE = 0.02
"""Share by which Little's law may be off at a point."""


class ShareOfCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """A point's measured throughput over the most that reading the weights once a step allows its batch."""

    measured_tok_per_s: float
    ceiling_tok_per_s: float
    """KV cache left out, so that the share compares chips, models and context lengths."""
    share: float
    concurrency: int | None = None
    roofline_tok_per_s: float | None = None
    """With the KV cache read too ..."""
    of_roofline: float | None = None
    """... and the measured share of it."""


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """A knee's concurrency on both sides; None where there is none, or where that side is not known."""

    name: Literal["ttft", "throughput", "server"]
    predicted: int | None
    measured: int | None
    predicted_known: bool
    """Whether the points state what the rule needs."""
    measured_known: bool

    @property
    def metric(self) -> str:
        """Its name among the rows."""
        return f"{self.name}_knee_concurrency"


class LittlesLaw(msgspec.Struct, frozen=True, kw_only=True):
    """Request rate x mean E2E of one measured point, over the concurrency it was configured to hold."""

    concurrency: int | None
    request_rate: float | None
    ratio: float
    in_flight: float | None
    """The concurrency that the law gives; None in an open loop."""
    basis: Literal["steady window", "stated", "whole run", "medians"]
    """Whence: `records.metrics.littles_law`, a stated figure, whole-run aggregates, or medians and output lengths."""

    @property
    def ok(self) -> bool:
        """Whether it holds within `LITTLES_TOLERANCE`."""
        return abs(self.ratio - 1) <= LITTLES_TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Every field, and ``ok``."""
        return {**msgspec.structs.asdict(self), "ok": self.ok}


class Preemptions(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests lost their KV cache, and how they got it back."""

    predicted: int | None
    measured: int | None
    mode: Mode
    evidence: str


class ArmRatio(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm does over the base at one load: a factor predicted and measured."""

    arm: str | None
    base: str | None
    metric: str
    concurrency: int | None
    request_rate: float | None
    predicted: float
    measured: float
    error_pct: float | None


class ArmScore(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one arm's matched points say together; goodputs are None without an SLO."""

    name: str | None
    model: str | None = None
    chip: str | None = None
    engine: str | None = None
    points: int = 0
    """Measured runs that have a predicted point."""
    predicted_goodput: SweepGoodput | None = None
    measured_goodput: SweepGoodput | None = None
    limits: dict[str, float] = {}
    """Of the goodput, seconds."""
    percentiles: tuple[str, ...] = ()
    """Of ``p50`` and ``p99`` those that both sides state of every limited metric, so that no goodput means none."""
    knees: tuple[Knee, ...] = ()
    ttft_knee_closed_form: int | None = None
    """The wave of prefills in closed form: `PredictedArm.ttft_knee_closed_form`."""
    share_of_ceiling: ShareOfCeiling | None = None
    """Of a single user."""
    shares_of_ceiling: tuple[ShareOfCeiling, ...] = ()
    """Of each closed-loop point."""
    littles_law: tuple[LittlesLaw, ...] = ()
    preemptions: Preemptions | None = None

    @property
    def predicted_ttft_knee(self) -> int | None:
        """As of ``knees``."""
        return self._knee("ttft").predicted if self.knees else None

    @property
    def measured_ttft_knee(self) -> int | None:
        """As of ``knees``."""
        return self._knee("ttft").measured if self.knees else None

    @property
    def server_before_client(self) -> dict[str, bool | None]:
        """By side: whether the server queued at a lower concurrency than the TTFT's knee; None if not known or neither.

        A server that queues while its TTFT has no knee yet is before it.
        """
        server, client = self._knee("server"), self._knee("ttft")
        mine = server.predicted_known and client.predicted_known
        theirs = server.measured_known and client.measured_known
        return {
            "predicted": _before(server.predicted, client.predicted) if mine else None,
            "measured": _before(server.measured, client.measured) if theirs else None,
        }

    def _knee(self, name: str) -> Knee:
        return next(knee for knee in self.knees if knee.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``score``."""
        return {
            "name": self.name,
            "model": self.model,
            "chip": self.chip,
            "engine": self.engine,
            "points": self.points,
            "goodput": {
                "predicted": _goodput_dict(self.predicted_goodput),
                "measured": _goodput_dict(self.measured_goodput),
            },
            **{knee.metric: _knee_dict(knee) for knee in self.knees},
            "ttft_knee_closed_form": self.ttft_knee_closed_form,
            "server_before_client": self.server_before_client if self.knees else None,
            "share_of_ceiling": self.share_of_ceiling and msgspec.to_builtins(self.share_of_ceiling),
            "shares_of_ceiling": msgspec.to_builtins(self.shares_of_ceiling),
            "littles_law": [point.to_dict() for point in self.littles_law],
            "preemptions": self.preemptions and msgspec.to_builtins(self.preemptions),
        }


def _before(server: int | None, client: int | None) -> bool | None:
    if server is None:
        return None if client is None else False
    return client is None or server < client


def _knee_dict(knee: Knee) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(knee)
    del values["name"]
    return values


def _goodput_dict(goodput: SweepGoodput | None) -> dict[str, Any]:
    """``goodput`` of the prediction's JSON, and the limits that bind."""
    binding = {"binding_p50": goodput.binding_p50, "binding_p99": goodput.binding_p99} if goodput else {}
    return {**goodput_dict(goodput), **{name: list(limits) for name, limits in binding.items()}}


def arm_score(arm: SideArm, pairs: Sequence[Pair]) -> ArmScore:
    """What the matched points of one arm say together."""
    mine, theirs = [side.run for side, _ in pairs], [run for _, run in pairs]
    slo = arm.slo or theirs[0].meta.slo
    limits = {name: limit for name, limit in slo.items() if name in LIMITS}
    shares = tuple(_shares(arm, pairs))
    return ArmScore(
        name=arm.name,
        model=mine[0].meta.model or theirs[0].meta.model,
        chip=mine[0].meta.chip or theirs[0].meta.chip,
        engine=engine(mine[0]) or engine(theirs[0]),
        points=len(pairs),
        predicted_goodput=_goodput(mine, limits),
        measured_goodput=_goodput(theirs, limits),
        limits=limits,
        percentiles=tuple(q for q in ("p50", "p99") if _states(mine, limits, q) and _states(theirs, limits, q)),
        knees=tuple(_knees(arm, mine, theirs)),
        ttft_knee_closed_form=arm.ttft_knee_closed_form,
        share_of_ceiling=next((share for share in shares if share.concurrency == 1), None),
        shares_of_ceiling=shares,
        littles_law=tuple(_littles_law(arm, pairs)),
        preemptions=_preemptions(mine, theirs),
    )


def sweep_rows(arm: ArmScore, tolerance: float) -> Iterator[Row]:
    """Knees and goodput, each where both sides are known; a knee that neither side has is a row that is right."""
    for knee in arm.knees:
        if knee.predicted_known and knee.measured_known:
            ours, measured = (None if value is None else float(value) for value in (knee.predicted, knee.measured))
            yield make_row(knee.metric, "users", ours, measured, tolerance, arm=arm.name)
    mine, theirs = arm.predicted_goodput, arm.measured_goodput
    if mine is None or theirs is None:
        return
    for name, pair in (("p50", (mine.p50, theirs.p50)), ("p99", (mine.p99, theirs.p99))):
        if all(pair) or name in arm.percentiles:
            ours, measured = (None if point is None else point.output_tok_per_s for point in pair)
            yield make_row(f"goodput.{name}", "tok/s", ours, measured, tolerance, arm=arm.name)


def _goodput(runs: list[Run], limits: dict[str, float]) -> SweepGoodput | None:
    try:
        return sweep_goodput(runs, **limits) if limits else None
    except InputError:  # the runs do not state what a limit needs
        return None


def _states(runs: list[Run], limits: dict[str, float], percentile: str) -> bool:
    summaries = [run.summary() for run in runs]
    return all(any(getattr(getattr(s, name), percentile) is not None for s in summaries) for name in limits)


# ---------------------------------------------------------------- knees


def _knees(arm: SideArm, mine: list[Run], theirs: list[Run]) -> Iterator[Knee]:
    rules: tuple[tuple[Any, Callable[[list[Run]], int | None], Callable[[list[Run], int | None], bool]], ...] = (
        ("ttft", ttft_knee, _ttft_known),
        ("throughput", throughput_knee, _throughput_known),
        ("server", server_knee, _server_known),
    )
    for name, rule, known in rules:
        ours, measured = rule(mine), rule(theirs)
        told = known(mine, ours)
        if name == "server" and not any(run.server.height for run in mine) and arm.server_knee is not None:
            ours, told = _at_or_above(mine, arm.server_knee), True
        yield Knee(
            name=name, predicted=ours, measured=measured, predicted_known=told, measured_known=known(theirs, measured)
        )


def _closed(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.meta.concurrency is not None and run.meta.request_rate_per_s is None]


def _ttft_known(runs: list[Run], knee: int | None) -> bool:
    """One point can show a knee; that there is none takes two."""
    stats = [run.summary().ttft_s for run in _closed(runs)]
    return sum(stat.p50 is not None and stat.p99 is not None for stat in stats) >= (1 if knee is not None else 2)


def _throughput_known(runs: list[Run], knee: int | None) -> bool:
    return sum(run.summary().output_tok_per_s is not None for run in _closed(runs)) >= 3


def _server_known(runs: list[Run], knee: int | None) -> bool:
    """Every point below the knee was looked at: an unseen one may have queued."""
    below = [run for run in _closed(runs) if knee is None or (run.meta.concurrency or 0) < knee]
    seen = [server_queues(run) is not None for run in below]
    return all(seen) and (knee is not None or len(seen) >= 2)


def _at_or_above(runs: list[Run], knee: int) -> int | None:
    """The stated knee's place among these points: a point that queues does so at any higher load."""
    return min((c for run in _closed(runs) if (c := run.meta.concurrency or 0) >= knee), default=None)


# ---------------------------------------------------------------- shares, Little's law, preemptions


def _shares(arm: SideArm, pairs: Sequence[Pair]) -> Iterator[ShareOfCeiling]:
    for side, run in pairs:
        measured, roof, users = run.summary().output_tok_per_s, arm.roofline, side.concurrency
        if roof is None or measured is None or users is None or side.request_rate is not None:
            continue
        # the roofline is one replica's, and replicas share the users
        replicas = min(int(side.run.meta.deployment.get("data_parallel_size") or 1), users)
        ceiling = replicas / roof.share_of_ceiling(1.0, users / replicas)
        limit = side.roofline_tok_per_s
        yield ShareOfCeiling(
            measured_tok_per_s=measured,
            ceiling_tok_per_s=ceiling,
            share=measured / ceiling,
            concurrency=users,
            roofline_tok_per_s=limit,
            of_roofline=measured / limit if limit else None,
        )


def _littles_law(arm: SideArm, pairs: Sequence[Pair]) -> Iterator[LittlesLaw]:
    for _, run in pairs:
        found = _ratio(run, run.summary(), mean_tokens(run, "output_tokens") or arm.output_tokens)
        if found is not None:
            ratio, basis = found
            users = run.meta.concurrency if run.meta.request_rate_per_s is None else None
            yield LittlesLaw(
                concurrency=run.meta.concurrency,
                request_rate=run.meta.request_rate_per_s,
                ratio=ratio,
                in_flight=users and ratio * users,
                basis=basis,
            )


_Basis = Literal["steady window", "stated", "whole run", "medians"]


def _ratio(run: Run, summary: Summary, output_tokens: float | None) -> tuple[float, _Basis] | None:
    """The best that the run allows; only the steady window and the server's own samples are independent of the client.

    Of medians: output tok/s / tokens a request x (TTFT p50 + (tokens - 1) x TPOT p50).
    """
    if run.meta.workload.get("think_time_s"):  # users who pause are not all in flight
        return None
    if summary.littles_law is not None:
        return summary.littles_law, "steady window" if run.requests.height else "stated"
    users = run.meta.concurrency
    if run.requests.height or not users or run.meta.request_rate_per_s is not None:
        return None
    if summary.mean_in_flight is not None:
        return summary.mean_in_flight / users, "whole run"
    ttft, tpot, rate = summary.ttft_s.p50, summary.tpot_s.p50, summary.output_tok_per_s
    if ttft is None or tpot is None or rate is None or not output_tokens:
        return None
    return rate / output_tokens * (ttft + (output_tokens - 1) * tpot) / users, "medians"


def _preemptions(mine: list[Run], theirs: list[Run]) -> Preemptions:
    predicted, measured = _total_preemptions(mine), _total_preemptions(theirs)
    mode, evidence = preemption_mode(theirs)
    return Preemptions(predicted=predicted, measured=measured, mode=mode, evidence=evidence)


def _total_preemptions(runs: list[Run]) -> int | None:
    known = [count for run in runs if (count := run.summary().preemptions) is not None]
    return sum(known) if known else None


# ---------------------------------------------------------------- arms over the base

COMPARED = ("output_tok_per_s", "ttft_ms.p99", "tpot_ms.p50")
"""Figures whose ratio between arms is told."""


def ratios(rows: Sequence[Row], base: str | None) -> Iterator[ArmRatio]:
    """Each arm's figure over the base's at the same load, predicted and measured, where all four are known."""
    by_load = {(row.metric, row.concurrency, row.request_rate): row for row in rows if row.arm == base and row.of_point}
    for row in rows:
        under = by_load.get((row.metric, row.concurrency, row.request_rate))
        if row.arm == base or row.metric not in COMPARED or under is None:
            continue
        if row.predicted and row.measured and under.predicted and under.measured:
            mine, theirs = row.predicted / under.predicted, row.measured / under.measured
            yield ArmRatio(
                arm=row.arm,
                base=base,
                metric=row.metric,
                concurrency=row.concurrency,
                request_rate=row.request_rate,
                predicted=mine,
                measured=theirs,
                error_pct=error_pct(mine, theirs),
            )
