"""From a study to its prediction: for each arm its memory, its roofline, and its points simulated one by one.

Conventions, beside those of `records.metrics`:

- The roofline is taken at the mean prompt plus half the mean output: the average context of a decoding request.
- An interval is the figure's range over three simulations: the estimate of every constant of the step-time model, all
  of them at their slow end, and all at their fast end. It says nothing of errors in the scheduler or the workload.
  With a calibration profile: its constants, and the ends of their standard errors.
- The closed form of the TTFT knee assumes that all users send at once and prompts are computed one after another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np
import polars as pl

from inferometer.errors import InputError
from inferometer.prediction.binding import limited_by, time_shares
from inferometer.prediction.cautions import cautions
from inferometer.prediction.claims import Claim
from inferometer.prediction.claims import check as check_claims
from inferometer.prediction.claims import merged as merged_claims
from inferometer.prediction.outcome import refuse_unserved, refused
from inferometer.prediction.resolved import resolved, versions
from inferometer.records.metrics import (
    LIMITS,
    Stat,
    Summary,
    SweepGoodput,
    server_knee,
    sweep_goodput,
    throughput_knee,
    ttft_knee,
)
from inferometer.records.metrics import Point as GoodputPoint
from inferometer.records.overload import overloaded
from inferometer.records.run import Run, TokenTimes
from inferometer.sim.simulate import simulate
from inferometer.specs.checks import at, whole
from inferometer.specs.deployment import Deployment
from inferometer.specs.study import BASE, Arm, Point, Study, load_study
from inferometer.steptime.costs import StepCosts, sheet_costs
from inferometer.steptime.efficiencies import Bound
from inferometer.steptime.memory import Memory, memory, what_would_fit
from inferometer.steptime.profile import Profile, calibrated_costs, calibrated_efficiencies, load_profile
from inferometer.steptime.roofline import Roofline, roofline
from inferometer.workload import generate

if TYPE_CHECKING:
    from inferometer.store import Store

SCHEMA = "inferometer/prediction/1"
STATISTICS = ("mean", "p50", "p90", "p99")
"""What is given of each latency."""
RATES = ("output_tok_per_s", "per_user_tok_per_s")
MOST_TOKEN_TIMES = 50_000_000
"""A point of more output tokens is simulated without their times (8 bytes each), and has no ITL."""

Progress = Callable[[int, int], None]
"""Called with the points done and the points in all."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests of the mean length run at once, over all data-parallel replicas."""

    max_num_seqs: int
    """By the flag, times the replicas."""
    preemption_concurrency: int
    """By KV memory: whole requests of mean prompt + mean output that the pools hold; beyond, some are preempted."""

    @property
    def first_to_bind(self) -> str:
        """The name of the smaller one."""
        return "max_num_seqs" if self.max_num_seqs <= self.preemption_concurrency else "preemption_concurrency"


class PredictedPoint(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One simulated point: its run without the warm-up requests, that run's summary, and what surrounds it."""

    concurrency: int | None
    request_rate: float | None
    """Requests per second."""
    roofline_tok_per_s: float
    summary: Summary
    intervals: dict[str, tuple[float, float]]
    """Low and high by figure: ``output_tok_per_s``, ``ttft_ms.p50``, ..."""
    limited_by: str
    time_shares: dict[str, float]
    overloaded: bool
    """Whether an open loop offers more than is served; its latencies then depend on how long the run is."""
    run: Run

    @property
    def refused(self) -> dict[str, int]:
        """How many requests the engine refused, by its reason."""
        return refused(self.run)

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``predict``."""
        s = self.summary
        return {
            "concurrency": self.concurrency,
            "request_rate": self.request_rate,
            "roofline_tok_per_s": self.roofline_tok_per_s,
            **{name: getattr(s, name) for name in RATES},
            "total_tok_per_s": s.total_tok_per_s,
            **{_ms(name): _statistics(getattr(s, name)) for name in LIMITS},
            "running": s.running,
            "waiting": s.waiting,
            "kv_usage": s.kv_usage,
            "preemptions": s.preemptions,
            "prefix_hit_rate": s.prefix_hit_rate,
            "requests": s.requests,
            "completed": s.completed,
            "failed": s.failed,
            "refused": self.refused,
            "prompt_tokens": s.prompt_tokens,
            "output_tokens": s.output_tokens,
            "duration_s": s.duration_s,
            "request_per_s": s.request_per_s,
            "overloaded": self.overloaded,
            "limited_by": self.limited_by,
            "time_shares": self.time_shares,
            "intervals": {path: list(interval) for path, interval in self.intervals.items()},
        }


class PredictedArm(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One arm of the study, predicted."""

    arm: Arm
    memory: Memory
    roofline: Roofline
    limits: Limits
    prompt_tokens: float
    """Mean over the requests of the first point."""
    output_tokens: float
    points: tuple[PredictedPoint, ...] = ()
    goodput: SweepGoodput | None = None
    """By marginal percentile; None without an SLO or points."""
    would_fit: tuple[str, ...] = ()
    """Where it does not fit: what would."""
    note: str = ""
    """Why there are no points, where it fits."""
    profile: Profile | None = None
    """The calibration its costs come from; None: the chip family's constants."""

    @property
    def name(self) -> str:
        """The arm's name."""
        return self.arm.name

    @property
    def fits(self) -> bool:
        """Whether the weights leave room for a KV cache."""
        return self.memory.fits

    @property
    def runs(self) -> list[Run]:
        """The simulated run of each point, warm-up requests left out."""
        return [point.run for point in self.points]

    @property
    def raw_max_tok_per_s(self) -> float | None:
        """The most output tokens per second of any point, whatever its latencies; None without points."""
        return max((p.summary.output_tok_per_s or 0.0 for p in self.points), default=None)

    @property
    def cautions(self) -> list[str]:
        """What to bear in mind because of the chip, or of the profile where there is one."""
        return cautions(self.arm.deployment.chip, self.arm.deployment, self.profile)

    @property
    def ttft_knee_concurrency(self) -> int | None:
        """First tested concurrency whose p99 TTFT is more than twice its p50."""
        return ttft_knee(self.runs)

    @property
    def throughput_knee_concurrency(self) -> int | None:
        """Where the curve of output tok/s over the tested concurrencies bends (`throughput_knee`); None: nowhere."""
        return throughput_knee(self.runs)

    @property
    def server_knee_concurrency(self) -> int | None:
        """First tested concurrency where requests wait or the KV pool is full (`server_knee`); None: none does."""
        return server_knee(self.runs)

    @property
    def ttft_knee_closed_form(self) -> int | None:
        """Least C with ``(C - 1) x prefill floor > 2 x (prefill floor + decode floor)``; None for an open loop.

        The founding sweep's arithmetic: of C prompts that arrive at once the last waits for the C - 1 before it, and
        the median request for about its own prefill and a decode step.
        """
        if self.arm.points[0].concurrency is None:
            return None
        return self.roofline.ttft_knee(self.prompt_tokens)

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``predict``."""
        return {
            "name": self.name,
            "study": self.arm.table,
            "deployment": self.arm.deployment.describe(),
            "memory": memory_dict(self.memory, self.would_fit),
            "roofline": {**roofline_dict(self), "limits": _limits_dict(self.limits)},
            "mean_prompt_tokens": self.prompt_tokens,
            "mean_output_tokens": self.output_tokens,
            "points": [point.to_dict() for point in self.points],
            "ttft_knee_concurrency": self.ttft_knee_concurrency,
            "ttft_knee_closed_form": self.ttft_knee_closed_form,
            "throughput_knee_concurrency": self.throughput_knee_concurrency,
            "server_knee_concurrency": self.server_knee_concurrency,
            "goodput": goodput_dict(self.goodput),
            "note": self.note or None,
            "cautions": self.cautions,
            "resolved": resolved(self.arm.deployment, self.arm.slo, self.roofline, self.profile),
        }


class Prediction(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A study, predicted. Arm 0 is the base; ``memory``, ``points`` and so on are its.

    >>> import inferometer as im
    >>> prediction = im.predict("a100-qwen3-8b", overrides=["workload.concurrency=[1]", "workload.output_tokens=64"])
    >>> prediction.arms[0].fits, [point.concurrency for point in prediction.points]
    (True, [1])
    """

    study: Study
    arms: tuple[PredictedArm, ...]
    seed: int | None
    """As given; None: each arm's own."""
    claims: tuple[Claim, ...] = ()
    """A person's own figures, of the base."""
    profile: Profile | None = None

    @property
    def base(self) -> PredictedArm:
        """Arm 0."""
        return self.arms[0]

    @property
    def memory(self) -> Memory:
        """The base's memory."""
        return self.base.memory

    @property
    def roofline(self) -> Roofline:
        """The base's roofline."""
        return self.base.roofline

    @property
    def points(self) -> tuple[PredictedPoint, ...]:
        """The base's points."""
        return self.base.points

    @property
    def runs(self) -> list[Run]:
        """Every arm's runs, in order."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def fits(self) -> bool:
        """Whether every arm fits."""
        return all(arm.fits for arm in self.arms)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``predict``: ``docs/reference/json.md``. Infinite figures are None."""
        arms = [arm.to_dict() for arm in self.arms]
        top = {key: value for key, value in arms[0].items() if key not in ("name", "study", "note", "resolved")}
        whole_study = {
            "schema": SCHEMA,
            "name": self.study.name,
            "study": self.study.table,
            "sealed": None,
            "seed": self.seed,
            "versions": versions(),
            "profile": None if self.profile is None else msgspec.to_builtins(self.profile),
            "claims": [claim.to_dict() for claim in self.claims],
            "arms": arms,
        }
        return dict(finite({**whole_study, **top}))

    def seal(self, store: Store | str | os.PathLike[str] | None = None) -> Path:
        """Write it down in ink, as a file of the store: `seal.seal`.

        >>> import inferometer as im, tempfile
        >>> prediction = im.predict("demo", overrides=["workload.concurrency=[1]"], claims=["output_tok_per_s@1=90"])
        >>> bool(im.verify(prediction.seal(tempfile.mkdtemp())))
        True
        """
        from inferometer.prediction.seal import seal  # it reads predictions, so it imports this module

        return seal(self, store)


def predict(
    study: Study | str | os.PathLike[str] | Mapping[str, Any],
    seed: int | None = None,
    overrides: Mapping[str, Any] | list[str] | tuple[str, ...] = (),
    progress: Progress | None = None,
    *,
    profile: Profile | str | os.PathLike[str] | None = None,
    claims: Iterable[Claim | str] = (),
) -> Prediction:
    """Predict a study: every arm's memory, roofline and points.

    A model that does not fit is a result: ``fits`` is false and there are no points. Of a model given by its few
    figures, memory and roofline are all that can be said.

    Args:
        study: a Study, or what `load_study` takes.
        seed: of the requests' lengths and arrivals; None: each arm's own.
        overrides: changes to the study, as `load_study` takes them (not with a Study).
        progress: called as points are done.
        profile: a calibration (`inferometer.calibrate`) or its file, whose constants stand for the chip family's.
        claims: a person's own figures (`Claim`), beside those of the study; of two on one figure these stand.

    Raises:
        InputError: a study with a mistake in it, a seed below 0, an arm that fits but refuses every request, a
            profile of another chip, or a claim of a figure or point that there is not.

    >>> import inferometer as im
    >>> too_large = {"model": "meta-llama/Llama-3.1-70B", "chip": "h100-sxm-80gb", "workload": {"concurrency": [1]}}
    >>> im.predict(too_large).fits
    False
    """
    if not isinstance(study, Study):
        study = load_study(study, overrides)
    elif overrides:
        raise InputError("overrides", overrides, "nothing with a Study: give load_study the overrides")
    if seed is not None:
        whole("seed", seed)
    calibration = load_profile(Path(profile)) if isinstance(profile, str | os.PathLike) else profile
    plain = [_plain(arm, seed, calibration) for arm in study.arms]
    own = merged_claims(study.claims, claims)
    _check_claims(own, merged_claims({}, claims), study, plain[0])
    count = _Counter(sum(len(arm.points) for arm in study.arms), progress)
    arms = tuple(_with_points(study, arm, seed, count) for arm in plain)
    return Prediction(study=study, seed=seed, arms=arms, claims=own, profile=calibration)


def _check_claims(own: tuple[Claim, ...], given: tuple[Claim, ...], study: Study, base: PredictedArm) -> None:
    """Refuse claims of what there is not, before the points are simulated, which takes a while.

    A study's own claims may be of loads that an override has taken away.
    """
    figures_of_base = finite(base.to_dict())
    check_claims(own, figures_of_base)
    check_claims(given, figures_of_base, [(point.concurrency, point.request_rate) for point in study.base.points])


def point_run(
    study: Study,
    arm: Arm,
    point: Point,
    seed: int | None = None,
    *,
    policy: str | None = None,
    costs: StepCosts | None = None,
    token_times: bool = True,
) -> Run:
    """The simulated run of one point, named after study, arm and point, all requests included.

    Raises:
        DoesNotFitError: the weights leave no room for a KV cache.
        UnknownNameError: no such policy.
    """
    chosen = arm.seed if seed is None else seed
    run = simulate(arm.deployment, point.workload, policy, costs, chosen, token_times)
    meta = msgspec.structs.replace(
        run.meta, name=f"{study.name}:{arm.name}:{point_name(point)}", arm=arm.name, slo=arm.slo.limits()
    )
    return msgspec.structs.replace(run, meta=meta)


def point_name(point: Point | PredictedPoint) -> str:
    """``C=8``, ``2/s``, or ``replay``.

    >>> point_name(load_study("a100-qwen3-8b").base.points[3])
    'C=8'
    """
    if point.request_rate is not None:
        return f"{point.request_rate:g}/s"
    return "replay" if point.concurrency is None else f"C={point.concurrency}"


def steady(run: Run, warmup_requests: int) -> Run:
    """The run without the first so many requests in order of sending, and without server samples from before the next.

    The same run where there is nothing to leave out.
    """
    if not warmup_requests:
        return run
    order = run.requests["sent_s"].arg_sort()
    kept = order.slice(warmup_requests).sort()
    requests = run.requests[kept]
    start = requests["sent_s"].min()
    note = f"the first {warmup_requests} requests are left out as warm-up"
    return Run(
        meta=msgspec.structs.replace(run.meta, id="", notes=[*run.meta.notes, note]),
        requests=requests,
        server=run.server.filter(pl.col("time_s") >= start),
        token_times=run.token_times and _kept_times(run.token_times, kept.to_numpy()),
    )


def _kept_times(times: TokenTimes, kept: Any) -> TokenTimes:
    counts = np.diff(times.offsets)
    mask = np.zeros(counts.size, dtype=bool)
    mask[kept] = True
    return TokenTimes(
        offsets=np.concatenate(([0], np.cumsum(counts[mask]))), times_s=times.times_s[np.repeat(mask, counts)]
    )


class _Counter:
    """Points done, of how many; an arm that has no points to simulate counts them all at once."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress
        self.add(0)

    def add(self, points: int) -> None:
        """So many more are done."""
        self.done += points
        if self.progress:
            self.progress(self.done, self.total)


def _plain(arm: Arm, seed: int | None, profile: Profile | None) -> PredictedArm:
    """Memory, roofline and limits: all but the points."""
    requests = generate(arm.points[0].workload, arm.seed if seed is None else seed)
    prompt, output = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
    found = memory(arm.deployment)
    with at("" if arm.name == BASE else f"arm {arm.name!r}"):
        if profile is not None:
            calibrated_efficiencies(arm.deployment.chip, profile)  # refuses a profile of another chip
    return PredictedArm(
        arm=arm,
        memory=found,
        roofline=roofline(arm.deployment, context_tokens=round(prompt + output / 2)),
        limits=_limits(arm.deployment, found, prompt + output),
        prompt_tokens=prompt,
        output_tokens=output,
        would_fit=() if found.fits else tuple(what_would_fit(arm.deployment)),
        profile=profile,
    )


def _with_points(study: Study, plain: PredictedArm, seed: int | None, count: _Counter) -> PredictedArm:
    arm, found = plain.arm, plain.memory
    if not found.fits or not arm.deployment.model.blocks:
        count.add(len(arm.points))
        note = "the model is given by its few figures, so that its steps cannot be priced" if found.fits else ""
        return msgspec.structs.replace(plain, note=note)
    points = tuple(_points(study, plain, seed, count))
    refuse_unserved(arm, [point.run for point in points])
    return msgspec.structs.replace(plain, points=points, goodput=_goodput(arm, [point.run for point in points]))


def _costs(deployment: Deployment, profile: Profile | None) -> list[StepCosts]:
    """The estimate, and both ends of its constants."""
    if profile is None:
        return [sheet_costs(deployment, bound) for bound in get_args(Bound)]
    return [calibrated_costs(deployment, profile, bound) for bound in get_args(Bound)]


def _limits(deployment: Deployment, found: Memory, tokens: float) -> Limits:
    replicas = deployment.data_parallel_size
    return Limits(
        max_num_seqs=deployment.resolved().max_num_seqs * replicas,
        preemption_concurrency=int(found.kv_cache_tokens / tokens) * replicas,
    )


def _points(study: Study, plain: PredictedArm, seed: int | None, count: _Counter) -> Iterator[PredictedPoint]:
    arm = plain.arm
    costs = _costs(arm.deployment, plain.profile)
    constants = None if plain.profile is None else calibrated_efficiencies(arm.deployment.chip, plain.profile)
    for point in arm.points:
        times = (point.workload.requests or 0) * plain.output_tokens <= MOST_TOKEN_TIMES
        each = [point_run(study, arm, point, seed, costs=c, token_times=times) for c in costs]
        runs = [steady(run, arm.warmup_requests) for run in each]
        summaries = [run.summary() for run in runs]
        shares = time_shares(arm.deployment, runs[0], costs[0], constants)
        yield PredictedPoint(
            concurrency=point.concurrency,
            request_rate=point.request_rate,
            roofline_tok_per_s=_roof(plain, point, summaries[0]),
            summary=summaries[0],
            intervals=_intervals(summaries),
            limited_by=limited_by(arm.deployment, runs[0], summaries[0], shares),
            time_shares=shares,
            overloaded=overloaded(runs[0], summaries[0]),
            run=runs[0],
        )
        count.add(1)


def _roof(plain: PredictedArm, point: Point, summary: Summary) -> float:
    """The roofline at the users of a closed loop, else at the mean of the requests in flight, spread over replicas."""
    users = point.concurrency or summary.mean_in_flight or 0.0
    replicas = min(plain.arm.deployment.data_parallel_size, max(users, 1.0))
    return replicas * plain.roofline.decode_tok_per_s(users / replicas)


def figures(summary: Summary) -> dict[str, float]:
    """The figures of a summary that have an interval, by path, those that are known; latencies in milliseconds."""
    known = {name: getattr(summary, name) for name in RATES}
    for name in LIMITS:
        known |= {f"{_ms(name)}.{part}": value for part, value in _statistics(getattr(summary, name)).items()}
    return {path: value for path, value in known.items() if value is not None}


def _intervals(summaries: list[Summary]) -> dict[str, tuple[float, float]]:
    each = [figures(summary) for summary in summaries]
    return {
        path: (min(known), max(known))
        for path in each[0]
        if len(known := [found[path] for found in each if path in found]) == len(each)
    }


def _goodput(arm: Arm, runs: list[Run]) -> SweepGoodput | None:
    if not arm.slo.limits():
        return None
    try:
        return sweep_goodput(runs, **arm.slo.limits())
    except InputError:  # no request made a token, so that no limit says anything
        return None


def _statistics(stat: Stat) -> dict[str, float | None]:
    values = stat.to_dict(1000)
    return {name: values[name] for name in STATISTICS}


def _ms(name: str) -> str:
    return name.removesuffix("_s") + "_ms"


def memory_dict(found: Memory, would_fit: tuple[str, ...] = ()) -> dict[str, Any]:
    """``memory`` of the JSON, with what would fit where it does not."""
    values: dict[str, Any] = msgspec.to_builtins(found)
    return {**values, "would_fit": list(would_fit)}


ROOFLINE = (
    "ridge_flops_per_byte",
    "knee_batch_naive",
    "knee_batch",
    "intensity_asymptote_flops_per_byte",
    "half_saturation_batch",
    "crossover_batch",
    "throughput_asymptote_tok_per_s",
    "compute_roof_tok_per_s",
    "decode_floor_s",
)


def roofline_dict(arm: PredictedArm) -> dict[str, Any]:
    """``roofline`` of the JSON, but for its limits; the prefill floor is that of the mean prompt."""
    floor = arm.roofline.prefill_floor_s(round(arm.prompt_tokens))
    values = {name: getattr(arm.roofline, name) for name in ROOFLINE}
    return {"context_tokens": arm.roofline.context_tokens, **values, "prefill_floor_s": floor}


def _limits_dict(limits: Limits) -> dict[str, Any]:
    return {**msgspec.to_builtins(limits), "first_to_bind": limits.first_to_bind}


def goodput_dict(goodput: SweepGoodput | None) -> dict[str, Any]:
    """``goodput`` of the JSON: a point or None at p50 and p99, the raw maximum, and the gaps to it."""
    if goodput is None:
        return {"p50": None, "p99": None, "raw_max": None, "gap_p50": None, "gap_p99": None}
    return {
        "p50": _goodput_point(goodput.p50),
        "p99": _goodput_point(goodput.p99),
        "raw_max": _goodput_point(goodput.raw_max),
        "gap_p50": goodput.gap_p50,
        "gap_p99": goodput.gap_p99,
    }


def _goodput_point(point: GoodputPoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    return {
        "concurrency": point.concurrency,
        "request_rate": point.request_rate_per_s,
        "output_tok_per_s": point.output_tok_per_s,
    }


def finite(value: Any) -> Any:
    """``value`` with NaN and infinite numbers as None, which JSON has no words for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value
