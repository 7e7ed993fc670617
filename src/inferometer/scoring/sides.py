"""The predicted side of a score, whatever it comes as: a prediction just made, one read from its file, or runs.

Points are matched by arm (a measured run that names none belongs to the base), then by request rate or concurrency; a
measured run with neither goes to the only point there is.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer.prediction.claims import Claim
from inferometer.prediction.predict import PredictedArm, Prediction, memory_dict
from inferometer.prediction.sealed import Sealed, SealedArm, read_sealed
from inferometer.prediction.verification import FAMILY, Verification
from inferometer.records.metrics import Summary
from inferometer.records.run import Run
from inferometer.scoring.likeness import same_model
from inferometer.steptime.memory import Memory
from inferometer.steptime.roofline import Roofline

Comparable = Prediction | Sealed | str | os.PathLike[str] | Run | Sequence[Run]
"""What `score` takes for a prediction."""


class Side(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One predicted point."""

    arm: str | None
    base: bool
    concurrency: int | None
    request_rate: float | None
    summary: Summary
    run: Run
    intervals: dict[str, tuple[float, float]] = {}
    roofline_tok_per_s: float | None = None

    @property
    def load(self) -> str:
        """``C=8``, ``2/s`` or ``replay``."""
        return load_name(self.concurrency, self.request_rate)


class SideArm(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One arm of the prediction: its points and what holds for all of them. What runs cannot say is None."""

    name: str | None
    base: bool
    points: tuple[Side, ...]
    slo: dict[str, float] = {}
    """Limits in seconds."""
    memory: dict[str, Any] | None = None
    """As ``memory`` of the prediction's JSON."""
    roofline: Roofline | None = None
    ttft_knee_closed_form: int | None = None
    server_knee: int | None = None
    """As stated with the prediction, over all its points."""
    output_tokens: float | None = None
    """Mean output of a request."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The predicted side, whole."""

    arms: tuple[SideArm, ...]
    document: dict[str, Any] | None = None
    """The prediction's JSON; None of runs."""
    claims: tuple[Claim, ...] = ()
    verification: Verification | None = None
    sealed_unix_s: float | None = None

    @property
    def base(self) -> SideArm | None:
        """The arm that a measured run without an arm belongs to."""
        return next((arm for arm in self.arms if arm.base), None)

    @property
    def sides(self) -> list[Side]:
        """Every point of every arm."""
        return [side for arm in self.arms for side in arm.points]

    @property
    def study(self) -> str | None:
        """The study's name, where it has one."""
        return (self.document or {}).get("name") or None

    @property
    def id(self) -> str:
        """What tells one prediction from another: its seal's hash, else a digest of study, seed and profile."""
        if self.verification is not None:
            return self.verification.sha256
        if self.document is None:
            return _digest([side.run.id for side in self.sides])
        return _digest([self.document.get(key) for key in ("study", "seed", "profile")])


def _digest(value: Any) -> str:
    encoded = msgspec.json.encode(value, order="sorted", enc_hook=str)
    return hashlib.sha256(encoded).hexdigest()


def load_name(concurrency: int | None, request_rate: float | None) -> str:
    """``C=8``, ``2/s`` or ``replay``.

    >>> load_name(8, None), load_name(None, 0.5)
    ('C=8', '0.5/s')
    """
    if request_rate is not None:
        return f"{request_rate:g}/s"
    return "replay" if concurrency is None else f"C={concurrency}"


def predicted_side(predicted: Comparable) -> Predicted:
    """The predicted side of whatever stands for it; a path is read as a prediction's JSON, sealed or not.

    Raises `InputError` for a file that is no prediction.
    """
    if isinstance(predicted, str | os.PathLike):
        predicted = read_sealed(predicted)
    if isinstance(predicted, Prediction):
        arms = tuple(_of_arm(arm, base=arm is predicted.base) for arm in predicted.arms)
        return Predicted(arms=arms, document=predicted.to_dict(), claims=predicted.claims)
    if isinstance(predicted, Sealed):
        return Predicted(
            arms=tuple(_of_arm(arm, base=arm is predicted.base) for arm in predicted.arms),
            document=predicted.document,
            claims=predicted.claims,
            verification=predicted.verification,
            sealed_unix_s=predicted.sealed_unix_s,
        )
    runs = [predicted] if isinstance(predicted, Run) else list(predicted)
    names = dict.fromkeys(run.meta.arm for run in runs)
    return Predicted(arms=tuple(_of_runs(name, runs) for name in names))


def _of_arm(arm: PredictedArm | SealedArm, *, base: bool) -> SideArm:
    points = tuple(
        Side(
            arm=arm.name,
            base=base,
            concurrency=point.concurrency,
            request_rate=point.request_rate,
            summary=point.summary,
            run=point.run,
            intervals=dict(point.intervals),
            roofline_tok_per_s=point.roofline_tok_per_s,
        )
        for point in arm.points
    )
    return SideArm(
        name=arm.name,
        base=base,
        points=points,
        slo=arm.slo if isinstance(arm, SealedArm) else arm.arm.slo.limits(),
        memory=memory_dict(arm.memory) if isinstance(arm.memory, Memory) else arm.memory,
        roofline=arm.roofline,
        ttft_knee_closed_form=arm.ttft_knee_closed_form if arm.points else None,
        server_knee=getattr(arm, "server_knee_concurrency", None),
        output_tokens=arm.output_tokens,
    )


def _of_runs(name: str | None, runs: list[Run]) -> SideArm:
    base = name in (None, runs[0].meta.arm)
    mine = [run for run in runs if run.meta.arm == name]
    points = tuple(
        Side(
            arm=name,
            base=base,
            concurrency=run.meta.concurrency,
            request_rate=run.meta.request_rate_per_s,
            summary=run.summary(),
            run=run,
        )
        for run in mine
    )
    return SideArm(name=name, base=base, points=points, slo=mine[0].meta.slo)


# ---------------------------------------------------------------- matched with what was measured

Pair = tuple[Side, Run]


def match(sides: Sequence[Side], runs: Sequence[Run]) -> tuple[list[Pair], list[str]]:
    """Each measured run with its predicted point, and those that have none with the reason."""
    if len(sides) == 1 and len(runs) == 1:
        return [(sides[0], runs[0])], []
    by_model = len({run.meta.model for run in runs if run.meta.model}) > 1
    by_arm = len({run.meta.arm for run in runs}) > 1
    pairs, unmatched = [], []
    for run in runs:
        side, reason = _find(sides, run, by_model=by_model, by_arm=by_arm)
        if side is not None:
            pairs.append((side, run))
        else:
            unmatched.append(f"{run.meta.name or run.id}: {reason}")
    return pairs, unmatched


def _find(sides: Sequence[Side], run: Run, *, by_model: bool, by_arm: bool) -> tuple[Side | None, str]:
    meta = run.meta
    if by_model and meta.model and not same_model(meta.model, sides[0].run.meta.model):
        return None, f"of model {meta.model}, not {sides[0].run.meta.model}"
    known = {side.arm for side in sides}
    # one name for all that was measured is a name for the base
    if by_arm and meta.arm not in (None, "base", *known):
        return None, f"of arm {meta.arm}, which is not predicted"
    named = meta.arm if meta.arm in known else None
    in_arm = [side for side in sides if (side.arm == named if named is not None else side.base)]
    if meta.request_rate_per_s is None and meta.concurrency is None:
        return (in_arm[0], "") if len(in_arm) == 1 else (None, "has neither a concurrency nor a request rate")
    found = [side for side in in_arm if same_load(side, meta.concurrency, meta.request_rate_per_s)]
    at = load_name(meta.concurrency, meta.request_rate_per_s)
    return (found[0], "") if found else (None, f"no point at {at} is predicted")


def same_load(side: Side, concurrency: int | None, request_rate: float | None) -> bool:
    """Whether a predicted point is of this load. A concurrency beside a rate is the client's cap, not the load."""
    if request_rate is not None or side.request_rate is not None:
        both = request_rate is not None and side.request_rate is not None
        return both and math.isclose(request_rate or 0.0, side.request_rate or 0.0, rel_tol=1e-6)
    return side.concurrency == concurrency


def missing(arms: Sequence[SideArm], pairs: Sequence[Pair]) -> Iterator[str]:
    """What is predicted and was not measured, a phrase an arm; arms of which nothing was, in one."""
    done = {id(side) for side, _ in pairs}
    absent = [str(arm.name) for arm in arms if arm.points and not any(id(side) in done for side in arm.points)]
    for arm in arms:
        left = [side for side in arm.points if id(side) not in done]
        if left and str(arm.name) not in absent:
            yield f"{f'{arm.name}: ' if len(arms) > 1 else ''}{', '.join(_short_loads(left))}"
    if absent and pairs:
        yield f"arm{'s' if len(absent) > 1 else ''} {', '.join(absent)}"


def _short_loads(sides: Sequence[Side]) -> Iterator[str]:
    """``C=64``, ``128``: the C of the first stands for all that follow it."""
    for n, side in enumerate(sides):
        again = n and side.request_rate is None and sides[n - 1].request_rate is None
        yield side.load.removeprefix("C=") if again else side.load


def prediction_file(path: str) -> bool:
    """Whether this is a file of a prediction, sealed or not: JSON whose ``schema`` starts so, or was JSON once."""
    file = Path(path)
    if file.suffix != ".json" or not file.is_file():
        return False
    try:
        content = file.read_bytes()
        document = msgspec.json.decode(content, type=dict[str, Any])
    except OSError:
        return False
    except msgspec.DecodeError:
        return f'"{FAMILY}'.encode() in content
    return str(document.get("schema", "")).startswith(FAMILY)
