"""A person's claims beside the model's figures and what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from inferometer.prediction.claims import Claim, predicted_value
from inferometer.records.metrics import Summary
from inferometer.records.run import Run
from inferometer.scoring.arms import ArmScore
from inferometer.scoring.likeness import mean_tokens
from inferometer.scoring.rows import MEMORY, error_pct, figures, server_fact
from inferometer.scoring.sides import Pair, Predicted, same_load

CEILING = "roofline_tok_per_s"
OF_SUMMARY = ("running", "waiting", "kv_usage", "preemptions", "prefix_hit_rate", "failed", "duration_s")
"""Figures of a point that are no rows, and that a measurement may have all the same."""


class ClaimRow(msgspec.Struct, frozen=True, kw_only=True):
    """One claim, beside what the model predicted and what was measured."""

    claim: str
    """What is claimed: ``output_tok_per_s@64``."""
    claimed: float | None
    """None: that there is none, such as no knee."""
    predicted: float | None
    """The model's figure."""
    measured: float | None
    known: bool
    """Whether the measurement says; where it does, a measured None means there is none."""
    error_pct: float | None
    """Of the claim."""
    model_error_pct: float | None
    reason: str = ""
    """Why nothing is measured beside it."""

    @property
    def closer(self) -> Literal["claim", "model", "both"] | None:
        """Who was closer to what was measured; None where that is not known."""
        if not self.known:
            return None
        mine, models = (_distance(value, self.measured) for value in (self.claimed, self.predicted))
        if mine == models:
            return "both"
        return "claim" if mine < models else "model"

    def to_dict(self) -> dict[str, Any]:
        """Every field, and ``closer``."""
        return {**msgspec.structs.asdict(self), "closer": self.closer}


def _distance(value: float | None, measured: float | None) -> float:
    """Not by the errors: those are not known where 0 was measured."""
    if value is None or measured is None:
        return 0.0 if value is measured else math.inf
    return abs(value - measured)


def claim_rows(predicted: Predicted, pairs: Sequence[Pair], arms: Sequence[ArmScore]) -> list[ClaimRow]:
    """A row a claim; all claims are about the base."""
    base = predicted.base
    mine = [pair for pair in pairs if base is not None and pair[0].arm == base.name]
    card = next((arm for arm in arms if base is not None and arm.name == base.name), None)
    rows = []
    for claim in predicted.claims:
        model = predicted_value(predicted.document or {}, claim)
        measured, reason = _measured(claim, mine, card)
        rows.append(
            ClaimRow(
                claim=claim.name,
                claimed=claim.value,
                predicted=model,
                measured=measured,
                known=not reason,
                error_pct=None if reason else error_pct(claim.value, measured),
                model_error_pct=None if reason else error_pct(model, measured),
                reason=reason,
            )
        )
    return rows


_Found = tuple[float | None, str]
"""What was measured, and where nothing was, why."""


def _measured(claim: Claim, pairs: list[Pair], arm: ArmScore | None) -> _Found:
    if arm is None:
        return None, "nothing of the base was measured"
    if claim.of_point:
        runs = [run for side, run in pairs if same_load(side, claim.concurrency, claim.request_rate)]
        return _of_point(claim.path, runs[0].summary()) if runs else (None, "that point was not measured")
    head, _, rest = claim.path.partition(".")
    if head == "memory":
        return _of_memory(rest, [run for _, run in pairs])
    if head == "goodput":
        return _of_goodput(rest, arm)
    if head in ("mean_prompt_tokens", "mean_output_tokens"):
        means = [mean_tokens(run, head.removeprefix("mean_")) for _, run in pairs]
        return _or_not_stated(next((mean for mean in means if mean is not None), None))
    if head == "roofline":
        return None, "a bound of the roofline, which no measurement equals"
    return _of_knee(head, arm)


def _of_point(path: str, summary: Summary) -> _Found:
    known: dict[str, Any] = {**figures(summary), **{name: getattr(summary, name) for name in OF_SUMMARY}}
    # a ceiling is claimed of what will be reached
    return _or_not_stated(known.get("output_tok_per_s" if path == CEILING else path))


def _or_not_stated(value: float | None) -> _Found:
    return (None, "the measurement does not state it") if value is None else (float(value), "")


def _of_memory(name: str, runs: list[Run]) -> _Found:
    key = "weight_bytes" if name == "weight_bytes_per_rank" else name
    if key not in MEMORY:
        return None, "a server does not say it at its start"
    value = server_fact(runs, MEMORY[key][0])
    return (None, "the server's start is not known") if value is None else (value, "")


def _of_goodput(name: str, arm: ArmScore) -> _Found:
    which, _, part = name.partition(".")
    if arm.measured_goodput is None or which not in ("p50", "p99", "raw_max"):
        return None, "the measurement does not state it" if arm.measured_goodput is None else "no figure of a goodput"
    point = getattr(arm.measured_goodput, which)
    if point is None:
        return (None, "") if which in arm.percentiles else (None, "the measurement does not state it")
    return getattr(point, "request_rate_per_s" if part == "request_rate" else part), ""


def _of_knee(name: str, arm: ArmScore) -> _Found:
    # the closed form is another way to the same knee
    name = "ttft_knee_concurrency" if name == "ttft_knee_closed_form" else name
    knee = next((knee for knee in arm.knees if knee.metric == name), None)
    if knee is None:
        return None, "nothing measured is beside it"
    if not knee.measured_known:
        return None, "too few points, or the server was not looked at"
    return None if knee.measured is None else float(knee.measured), ""
