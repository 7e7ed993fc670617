"""A prediction read back from its file, sealed or not: enough to be scored without simulating anything again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import FormatError, InputError
from inferometer.prediction.canonical import SEALED
from inferometer.prediction.claims import Claim
from inferometer.prediction.verification import Verification, read_file, unix_s, verify
from inferometer.records.metrics import LIMITS, Summary
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.steptime.roofline import Roofline


class SealedPoint(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One predicted point, as its file states it."""

    concurrency: int | None
    request_rate: float | None
    """Requests per second."""
    run: Run
    """Simulated; states aggregates only."""
    summary: Summary
    intervals: dict[str, tuple[float, float]]
    """Low and high by figure, as in `PredictedPoint.intervals`: latencies in milliseconds."""
    roofline_tok_per_s: float
    limited_by: str
    time_shares: dict[str, float]
    overloaded: bool = False


class SealedArm(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One arm of a prediction, as its file states it."""

    name: str
    table: dict[str, Any]
    """The study's table of this arm."""
    deployment: dict[str, Any]
    memory: dict[str, Any]
    roofline: Roofline
    limits: dict[str, Any]
    """``max_num_seqs``, ``preemption_concurrency``, ``first_to_bind``."""
    prompt_tokens: float
    """Mean over the requests."""
    output_tokens: float
    points: tuple[SealedPoint, ...]
    slo: dict[str, float]
    """Limits in seconds, by ``ttft_s``, ``tpot_s``, ..."""
    goodput: dict[str, Any]
    ttft_knee_concurrency: int | None
    ttft_knee_closed_form: int | None
    throughput_knee_concurrency: int | None
    server_knee_concurrency: int | None
    note: str = ""
    """Why there are no points, where it fits."""

    @property
    def fits(self) -> bool:
        """Whether the weights leave room for a KV cache."""
        return bool(self.memory["fits"])

    @property
    def runs(self) -> list[Run]:
        """The run of each point."""
        return [point.run for point in self.points]


class Sealed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A prediction read from a file; ``verification`` is None where it is not sealed.

    >>> import inferometer as im, tempfile
    >>> prediction = im.predict("demo", overrides=["workload.concurrency=[1]", "workload.output_tokens=8"])
    >>> sealed = im.read_sealed(prediction.seal(tempfile.mkdtemp()))
    >>> sealed.verification.ok, sealed.base.points[0].concurrency
    (True, 1)
    """

    document: dict[str, Any]
    verification: Verification | None
    arms: tuple[SealedArm, ...]
    claims: tuple[Claim, ...] = ()
    sealed_unix_s: float | None = None
    """When it was sealed, in seconds since 1970; None where it is not."""

    @property
    def base(self) -> SealedArm:
        """Arm 0."""
        return self.arms[0]

    @property
    def runs(self) -> list[Run]:
        """Every arm's runs, in order."""
        return [run for arm in self.arms for run in arm.runs]


def read_sealed(path: str | os.PathLike[str]) -> Sealed:
    """A sealed prediction, or the JSON of ``predict``, read back; every figure is the file's, nothing is simulated.

    A file that was changed since it was sealed is read too: ``verification`` says so.

    Raises:
        InputError: it cannot be read, is no prediction, or is so damaged that nothing can be made of it.

    >>> import inferometer as im, tempfile
    >>> prediction = im.predict("demo", overrides=["workload.concurrency=[1]"])
    >>> sealed = im.read_sealed(prediction.seal(tempfile.mkdtemp()))
    >>> bool(sealed.verification), sealed.base.points[0].concurrency
    (True, 1)
    >>> sealed.base.points[0].summary.output_tok_per_s == prediction.points[0].summary.output_tok_per_s
    True
    """
    file = Path(path).expanduser()
    document = read_file(file).document
    is_sealed = document.get(SEALED) is not None or document.get("ink") is not None or not document
    verification = verify(file) if is_sealed else None
    sealed_unix_s = None if verification is None else unix_s(verification.time)
    try:
        return Sealed(
            document=document,
            verification=verification,
            arms=_arms(document, verification),
            claims=tuple(msgspec.convert(document.get("claims", []), list[Claim])),
            sealed_unix_s=sealed_unix_s,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, InputError) as error:
        known = "" if verification is None or verification else f" ({verification.faults[0]})"
        missing = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError.because(
            f"{file}: cannot be read as a prediction of this version: {missing}{known}"
        ) from error


def _arms(document: dict[str, Any], verification: Verification | None) -> tuple[SealedArm, ...]:
    base, *others = document["arms"]
    return tuple(_arm(document, arm, verification) for arm in (base, *others))


def _arm(document: dict[str, Any], arm: dict[str, Any], verification: Verification | None) -> SealedArm:
    created = "" if verification is None else verification.time
    meta = RunMeta(
        kind="simulated",
        tool="inferometer",
        tool_version=str((document.get("versions") or {}).get("inferometer", "")),
        created=created,
        seed=document["seed"],
        model=arm["deployment"]["model"],
        chip=arm["deployment"]["chip"],
        arm=arm["name"],
        deployment=arm["deployment"],
        workload=dict(arm["study"].get("workload", {})),
        slo=arm["resolved"]["slo"],
    )
    return SealedArm(
        table=arm["study"],
        roofline=msgspec.convert(arm["resolved"]["roofline"], Roofline),
        limits=arm["roofline"]["limits"],
        prompt_tokens=arm["mean_prompt_tokens"],
        output_tokens=arm["mean_output_tokens"],
        points=tuple(_point(point, meta, document.get("name", "")) for point in arm["points"]),
        slo=arm["resolved"]["slo"],
        note=arm["note"] or "",
        **{name: arm[name] for name in _AS_IS},
    )


_AS_IS = (
    *("name", "deployment", "memory", "goodput"),
    *("ttft_knee_concurrency", "ttft_knee_closed_form", "throughput_knee_concurrency", "server_knee_concurrency"),
)
_STATED = (
    *("output_tok_per_s", "total_tok_per_s", "per_user_tok_per_s", "request_per_s"),
    *("requests", "completed", "failed", "prompt_tokens", "output_tokens"),
    *("running", "waiting", "kv_usage", "preemptions", "prefix_hit_rate"),
)
"""Figures of a point that are fields of `Summary` by the same name."""


def _point(point: dict[str, Any], meta: RunMeta, study: str) -> SealedPoint:
    concurrency, rate = point["concurrency"], point["request_rate"]
    own = msgspec.structs.replace(
        meta,
        name=f"{study}:{meta.arm}:{_load(concurrency, rate)}",
        concurrency=concurrency,
        request_rate_per_s=rate,
        duration_s=point["duration_s"],
        stated=_stated(point),
        notes=["read from a prediction's file, which holds no requests"],
    )
    run = make_run(own)
    kept = ("concurrency", "request_rate", "roofline_tok_per_s", "limited_by", "time_shares", "overloaded")
    intervals = {path: (float(low), float(high)) for path, (low, high) in point["intervals"].items()}
    return SealedPoint(run=run, summary=run.summary(), intervals=intervals, **{name: point[name] for name in kept})


def _load(concurrency: int | None, rate: float | None) -> str:
    """As `predict.point_name`."""
    if rate is not None:
        return f"{rate:g}/s"
    return "replay" if concurrency is None else f"C={concurrency}"


def _stated(point: dict[str, Any]) -> dict[str, float]:
    """The known figures by their path in `Summary`: latencies in seconds."""
    found = {name: point[name] for name in _STATED}
    for limit in LIMITS:
        latencies = point[f"{limit.removesuffix('_s')}_ms"]
        found |= {f"{limit}.{part}": None if ms is None else ms / 1000 for part, ms in latencies.items()}
    return {name: float(value) for name, value in found.items() if value is not None}
