"""All that a report says, gathered once: what was predicted, what was measured, the score, the findings, the gap.

Nothing is computed by the pages that are made of it: every figure is a Summary's, a Score's, a finding's or an
explanation's. Levels are the loads of one arm in order, each with what was predicted and what was measured there.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer.errors import InferometerError, InputError
from inferometer.prediction.predict import PredictedArm, Prediction, memory_dict, predict
from inferometer.prediction.seal import Claim, Sealed, SealedArm, read_sealed
from inferometer.records.metrics import (
    LIMITS,
    Summary,
    SweepGoodput,
    server_knee,
    sweep_goodput,
    throughput_knee,
    ttft_knee,
)
from inferometer.records.run import Run
from inferometer.report.terminal import ENGINES, run_load
from inferometer.report.terminal import limits as words
from inferometer.report.terminal import load as load_words
from inferometer.scoring.score import ArmScore, Score, score
from inferometer.scoring.sides import prediction_file
from inferometer.specs.deployment import Deployment
from inferometer.specs.engine import resolve_version
from inferometer.specs.slo import Slo
from inferometer.specs.study import Arm, Study, load_study
from inferometer.specs.workload import Workload
from inferometer.steptime.profile import Profile
from inferometer.steptime.roofline import Roofline

if TYPE_CHECKING:
    from inferometer.scoring.audit import Finding
    from inferometer.scoring.explain import Explanation, SweepExplanation

Subject = Study | Prediction | Sealed | str | os.PathLike[str] | Mapping[str, Any]
"""What a prediction is made or read from: a study, its file or name, a Prediction, or a sealed file."""
SEAL_DIGITS = 8


class Level(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One load of one arm. A load that was measured twice makes two levels."""

    concurrency: int | None
    request_rate: float | None
    predicted: Summary | None = None
    intervals: dict[str, tuple[float, float]] = {}
    roofline_tok_per_s: float | None = None
    limited_by: str = ""
    simulated: Run | None = None
    measured: Summary | None = None
    run: Run | None = None

    @property
    def load(self) -> float | None:
        """Users of a closed loop, or requests a second; None of a replay."""
        return self.request_rate if self.request_rate is not None else self.concurrency

    @property
    def name(self) -> str:
        """``C=8``, ``2/s`` or ``replay``."""
        if self.request_rate is not None:
            return f"{self.request_rate:g}/s"
        return "replay" if self.concurrency is None else f"C={self.concurrency}"


class Knees(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sweep bends, in users; None: nowhere, or not known."""

    ttft: int | None = None
    throughput: int | None = None
    server: int | None = None


class ArmMaterial(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One arm: its levels, what it holds in memory, and what its levels say together."""

    name: str
    levels: tuple[Level, ...]
    slo: dict[str, float] = {}
    """Limits in seconds by metric."""
    memory: dict[str, Any] = {}
    roofline: Roofline | None = None
    limits: dict[str, Any] = {}
    table: dict[str, Any] = {}
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    ttft_knee_closed_form: int | None = None
    predicted_knees: Knees = Knees()
    measured_knees: Knees = Knees()
    predicted_goodput: SweepGoodput | None = None
    measured_goodput: SweepGoodput | None = None
    deployment: Deployment | None = None
    workloads: dict[tuple[float, float], Workload] = {}
    """What each load sends, by `load_key`."""

    def workload(self, run: Run) -> Workload | None:
        """What the study sends at a run's load, else at its first: the lengths are what counts."""
        return self.workloads.get(_run_key(run)) or next(iter(self.workloads.values()), None)

    @property
    def runs(self) -> list[Run]:
        """What was measured."""
        return [level.run for level in self.levels if level.run is not None]

    @property
    def is_open(self) -> bool:
        """Whether the load is a request rate."""
        return any(level.request_rate is not None for level in self.levels)

    @property
    def predicted(self) -> list[Level]:
        """Levels with a prediction and a load, one a load, in its order."""
        found = {level.load: level for level in reversed(self.levels) if level.predicted is not None and level.load}
        return [found[load] for load in sorted(found)]

    @property
    def measured(self) -> list[Level]:
        """Levels with a measurement and a load, in its order."""
        return [level for level in self.levels if level.measured is not None and level.load]


class Material(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All that a report says."""

    study: str
    served: str
    """What is served on what, in a few words."""
    engine: str
    load: str
    date: str
    """Of the first measured run, else of the seal; empty where neither says."""
    seal: str
    """The seal's first eight digits; empty without one."""
    seal_sentence: str = ""
    predicted_by: str
    measured_by: str
    arms: tuple[ArmMaterial, ...]
    card: Score | None = None
    findings: tuple[Finding, ...] = ()
    sweep: SweepExplanation | None = None
    """The base's gap taken apart, point by point."""
    concurrency: int | None = None
    """The point whose gap is drawn, where one was asked for."""
    claims: tuple[Claim, ...] = ()
    missing: tuple[str, ...] = ()
    """What this report cannot say, and why."""
    cautions: tuple[str, ...] = ()

    @property
    def base(self) -> ArmMaterial:
        """The first arm."""
        return self.arms[0]

    @property
    def explanations(self) -> tuple[Explanation, ...]:
        """Of the base's points."""
        return self.sweep.explanations if self.sweep is not None else ()

    @property
    def caption(self) -> str:
        """What stands under every chart."""
        seal = f"seal {self.seal}" if self.seal else "not sealed" if self.predicted_by else ""
        by = [f"predicted by {self.predicted_by}" if self.predicted_by else ""]
        by += [f"measured by {self.measured_by}" if self.measured_by else ""]
        return " · ".join(part for part in (self.study, self.engine, self.date, seal, *by) if part)

    @property
    def featured(self) -> Explanation | None:
        """The explanation to draw: at the load asked for, else at the highest claimed, else at the highest."""
        if self.sweep is not None and self.concurrency is not None:
            return self.sweep.at(self.concurrency)
        claimed = [each for each in self.explanations if each.concurrency in {c.concurrency for c in self.claims}]
        return max(claimed or self.explanations, key=lambda each: each.concurrency or 0, default=None)


def gather(
    subject: Subject | None,
    runs: Run | Sequence[Run] = (),
    profile: Profile | str | os.PathLike[str] | None = None,
    *,
    tolerance: float = 0.10,
    concurrency: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Material:
    """Predict (or read the prediction of) the subject, score, audit and explain the runs, and lay all of it together.

    Args:
        subject: a study, its file or name, a Prediction, a Sealed or its file; None: the measurement alone.
        runs: what was measured; may be none where there is a subject.
        profile: calibrated constants to predict and explain with.
        tolerance: share of the measured figure within which a prediction counts as right.
        concurrency: the point whose gap is drawn; None: the highest that a claim is about, else the highest.
        progress: called with the points simulated, and the points in all.

    Raises:
        InputError: neither a subject nor a run; no explanation at that concurrency; a study or a sealed file with a
            mistake in it.
    """
    measured = [runs] if isinstance(runs, Run) else list(runs)
    if subject is None and not measured:
        raise InputError.because("nothing to report on: give a study, a sealed prediction, or measured runs")
    source = None if subject is None else as_prediction(subject, profile, progress)
    arms = tuple(_arms(source, measured))
    card = score(source, measured, tolerance) if source is not None and measured and _predicts(source) else None
    judged = _judged(arms, profile or _profile_of(source))
    labels = _labels(source, measured, arms[0])
    made = Material(
        **labels,
        **judged,
        arms=arms,
        card=card,
        concurrency=concurrency,
        claims=tuple(source.claims) if source is not None else (),
        seal_sentence=card.seal.sentence if card is not None else "",
        missing=tuple(_missing(arms, measured, card)),
    )
    _ = made.featured  # a concurrency that is not there is complained of before anything is written
    return made


def _profile_of(source: Prediction | Sealed | None) -> Profile | None:
    """The calibration that a prediction was made with: the gap is explained with the same constants."""
    if isinstance(source, Sealed):
        kept = source.document.get("profile")
        return msgspec.convert(kept, Profile) if kept else None
    return None if source is None else source.profile


def as_prediction(
    subject: Subject, profile: Profile | str | os.PathLike[str] | None, progress: Callable[[int, int], None] | None
) -> Prediction | Sealed:
    """A prediction as it is, a sealed file read, a study predicted."""
    if isinstance(subject, Prediction | Sealed):
        return subject
    if isinstance(subject, str | os.PathLike) and prediction_file(str(subject)):
        if profile is not None:
            raise InputError.because(f"{subject} is a prediction and is reported as it stands: leave out the profile")
        return read_sealed(Path(subject))
    study = subject if isinstance(subject, Study) else load_study(subject)
    return predict(study, progress=progress, profile=profile)


def _predicts(source: Prediction | Sealed) -> bool:
    return any(arm.points for arm in source.arms)


# ---------------------------------------------------------------- arms and their levels


def _arms(source: Prediction | Sealed | None, runs: list[Run]) -> Iterable[ArmMaterial]:
    if source is None:
        names = list(dict.fromkeys(run.meta.arm or "" for run in runs))
        for name in names:
            of_arm = [run for run in runs if (run.meta.arm or "") == name]
            yield _together(ArmMaterial(name=name, levels=tuple(_levels({}, of_arm)), slo=dict(of_arm[0].meta.slo)))
        return
    known, asked = {arm.name for arm in source.arms}, _asked(source)
    for arm in source.arms:
        base = arm.name == source.arms[0].name
        of_arm = [r for r in runs if (r.meta.arm == arm.name) or (base and r.meta.arm not in known)]
        yield _together(_of_prediction(arm, of_arm, asked.get(arm.name)))


def _of_prediction(arm: PredictedArm | SealedArm, runs: list[Run], asked: Arm | None) -> ArmMaterial:
    return ArmMaterial(
        name=arm.name,
        levels=tuple(_levels({load_key(p.concurrency, p.request_rate): p for p in arm.points}, runs)),
        roofline=arm.roofline,
        prompt_tokens=arm.prompt_tokens,
        output_tokens=arm.output_tokens,
        ttft_knee_closed_form=arm.ttft_knee_closed_form,
        deployment=asked.deployment if asked is not None else None,
        workloads={load_key(p.concurrency, p.request_rate): p.workload for p in asked.points}
        if asked is not None
        else {},
        **_stated(arm),
    )


def _stated(arm: PredictedArm | SealedArm) -> dict[str, Any]:
    """What a sealed arm holds as plain values, of either."""
    if isinstance(arm, SealedArm):
        return {"slo": arm.slo, "memory": arm.memory, "limits": arm.limits, "table": arm.table}
    limits = {**msgspec.to_builtins(arm.limits), "first_to_bind": arm.limits.first_to_bind}
    memory = memory_dict(arm.memory, arm.would_fit)
    return {"slo": arm.arm.slo.limits(), "memory": memory, "limits": limits, "table": arm.arm.table}


def _asked(source: Prediction | Sealed) -> dict[str, Arm]:
    """The study's arms by name; of a sealed file none where its study can no longer be read."""
    if isinstance(source, Prediction):
        return {arm.name: arm.arm for arm in source.arms}
    study = sealed_study(source)
    return {} if study is None else {arm.name: arm for arm in study.arms}


def sealed_study(source: Sealed) -> Study | None:
    """The study that a sealed file holds; None where what it names is no longer in the catalog or at its path."""
    try:
        return load_study(source.document["study"])
    except (InferometerError, KeyError, OSError):
        return None


def load_key(concurrency: int | None, request_rate: float | None) -> tuple[float, float]:
    """A load to look up and to sort by: rate and users, -1 where there is none."""
    return (
        round(request_rate, 9) if request_rate is not None else -1.0,
        concurrency if concurrency is not None else -1,
    )


def _run_key(run: Run) -> tuple[float, float]:
    rate = run.meta.request_rate_per_s
    return load_key(run.meta.concurrency if rate is None else None, rate)


def _levels(points: Mapping[tuple[float, float], Any], runs: list[Run]) -> list[Level]:
    """Every load that was predicted or measured, in its order; the only point there is takes a run without a load."""
    by_load: dict[tuple[float, float], list[Run]] = {key: [] for key in points}
    for run in runs:
        key = load_key(
            run.meta.concurrency if run.meta.request_rate_per_s is None else None, run.meta.request_rate_per_s
        )
        match = next((k for k in points if k[0] == key[0] and (k[0] >= 0 or k[1] == key[1])), None)
        only = next(iter(points)) if len(points) == len(runs) == 1 else None
        by_load.setdefault(match or only or key, []).append(run)
    loads: list[tuple[tuple[float, float], Run | None]] = []
    for key in sorted(by_load):
        loads += [(key, run) for run in by_load[key]] or [(key, None)]
    return [_level(key, points.get(key), run) for key, run in loads]


def _level(key: tuple[float, float], point: Any, run: Run | None) -> Level:
    rate, users = key
    return Level(
        concurrency=int(users) if users >= 0 else None,
        request_rate=rate if rate >= 0 else None,
        measured=run.summary() if run is not None else None,
        run=run,
        **_predicted_fields(point),
    )


def _predicted_fields(point: Any) -> dict[str, Any]:
    if point is None:
        return {}
    return {
        "predicted": point.summary,
        "intervals": {path: (float(low), float(high)) for path, (low, high) in point.intervals.items()},
        "roofline_tok_per_s": point.roofline_tok_per_s,
        "limited_by": point.limited_by,
        "simulated": point.run,
    }


def _together(arm: ArmMaterial) -> ArmMaterial:
    """The arm with its knees and goodputs, predicted and measured."""
    simulated = [level.simulated for level in arm.predicted if level.simulated is not None]
    return msgspec.structs.replace(
        arm,
        predicted_knees=_knees(simulated),
        measured_knees=_knees(arm.runs),
        predicted_goodput=_goodput(simulated, arm.slo),
        measured_goodput=_goodput(arm.runs, arm.slo),
    )


def _knees(runs: list[Run]) -> Knees:
    return Knees(ttft=ttft_knee(runs), throughput=throughput_knee(runs), server=server_knee(runs))


def _goodput(runs: list[Run], slo: dict[str, float]) -> SweepGoodput | None:
    limits = {name: limit for name, limit in slo.items() if name in LIMITS}
    try:
        return sweep_goodput(runs, **limits) if limits and runs else None
    except InputError:  # the runs do not state what a limit needs
        return None


# ---------------------------------------------------------------- judgement


def _judged(arms: Sequence[ArmMaterial], profile: Any) -> dict[str, Any]:
    """Findings of every arm; explanations of the base, and what they say of its sweep."""
    base = arms[0]
    runs = [run for arm in arms for run in arm.runs]
    if not runs:
        return {}
    found: dict[str, Any] = {"findings": tuple(_findings(arms, runs))}
    if base.deployment is None or not base.deployment.model.blocks or not base.runs:
        return found
    return {**found, **_explained(base, base.deployment, profile)}


def _findings(arms: Sequence[ArmMaterial], runs: list[Run]) -> list[Finding]:
    from inferometer.scoring.audit import audit

    base = arms[0]
    by_arm = {arm.name: arm.deployment for arm in arms if arm.deployment is not None}
    lengths = {"prompt_tokens": base.prompt_tokens, "output_tokens": base.output_tokens}
    return audit(runs, base.deployment, arms=by_arm, **lengths)


def _explained(base: ArmMaterial, deployment: Deployment, profile: Any) -> dict[str, Any]:
    """The explanation; why there is none, where the runs do not hold what it needs."""
    from inferometer.scoring.explain import explain_sweep

    loads = [base.workload(run) for run in base.runs]
    try:
        sweep = explain_sweep(deployment, base.runs, profile=profile, workloads=loads)
    except InputError as why:
        return {"cautions": (f"the gap is not explained: {why}",)}
    return {"sweep": sweep, "cautions": tuple(sweep.notes)}


def arm_score(card: Score | None, arm: ArmMaterial) -> ArmScore | None:
    """The arm's score, where it has one."""
    return next((each for each in card.arms if each.name == arm.name), None) if card else None


# ---------------------------------------------------------------- labels


def _labels(source: Prediction | Sealed | None, runs: list[Run], base: ArmMaterial) -> dict[str, Any]:
    from inferometer import __version__

    arm = _study_arm(source)
    seal = _sha256(source)
    return {
        "study": _study_name(source, runs),
        "served": _served(arm, runs),
        "engine": _engine(base.deployment, runs),
        "load": load_words(arm.points[0].workload) if arm is not None and arm.points else "",
        "date": _date(source, runs),
        "seal": seal[:SEAL_DIGITS],
        "predicted_by": f"inferometer {__version__}" if source is not None else "",
        "measured_by": ", ".join(dict.fromkeys(filter(None, map(_tool, runs)))),
    }


def _study_arm(source: Prediction | Sealed | None) -> Arm | None:
    study = source.study if isinstance(source, Prediction) else sealed_study(source) if source is not None else None
    return study.arms[0] if study is not None else None


def _study_name(source: Prediction | Sealed | None, runs: list[Run]) -> str:
    if isinstance(source, Prediction):
        return source.study.name
    if source is not None:
        return str(source.document.get("study", {}).get("name", "study"))
    return runs[0].meta.model or runs[0].meta.name


def _served(arm: Arm | None, runs: list[Run]) -> str:
    if arm is not None:
        return arm.deployment.name
    meta = runs[0].meta if runs else None
    named = [meta.model or "", meta.chip or ""] if meta else []
    return " on ".join(part for part in named if part)


def _engine(deployment: Deployment | None, runs: list[Run]) -> str:
    if deployment is not None:
        version = resolve_version(deployment.engine, deployment.engine_version)
        return f"{ENGINES.get(deployment.engine, deployment.engine)} {version}"
    for run in runs:
        stated = {**run.meta.deployment, **run.meta.server}
        if stated.get("engine"):
            name, version = str(stated["engine"]), stated.get("version") or stated.get("engine_version") or ""
            return f"{ENGINES.get(name, name)} {version}".strip()
    return ""


def _tool(run: Run) -> str:
    """The tool's name and version; of a table that names none, that it is one."""
    name = f"{run.meta.tool} {run.meta.tool_version}".strip()
    return f"others ({name})" if name in ("sweep table", "request table") else name


def _date(source: Prediction | Sealed | None, runs: list[Run]) -> str:
    """The day of the first run, by its clock or by its record; else the seal's. Never today's."""
    began = [run.meta.started_unix_s for run in runs if run.meta.started_unix_s]
    if began:
        return dt.datetime.fromtimestamp(min(began), dt.UTC).date().isoformat()
    if isinstance(source, Sealed) and source.sealed_unix_s:
        return dt.datetime.fromtimestamp(source.sealed_unix_s, dt.UTC).date().isoformat()
    return ""


def _sha256(source: Prediction | Sealed | None) -> str:
    sealed = source.document.get("sealed") if isinstance(source, Sealed) else None
    return str(sealed.get("sha256", "")) if sealed else ""


# ---------------------------------------------------------------- what is missing


def _missing(arms: tuple[ArmMaterial, ...], runs: list[Run], card: Score | None) -> Iterable[str]:
    if not runs:
        yield "nothing is measured yet: this is the prediction alone"
        return
    for arm in (arm for arm in arms if arm.runs):
        gone = [level.name for level in arm.levels if level.predicted is not None and level.run is None]
        if gone:
            yield f"predicted{f' of {arm.name}' if len(arms) > 1 else ''} but not measured: {', '.join(gone)}"
    unmeasured = [arm.name for arm in arms if arm.predicted and not arm.runs]
    if unmeasured:
        yield f"predicted but not measured: arm{'s' * (len(unmeasured) > 1)} {', '.join(unmeasured)}"
    yield from (f"{run_load(run)} is not whole: {run.meta.partial}" for run in runs if run.meta.partial)
    yield from (f"{run_load(run)} is unfit: {why}" for run in runs for why in run.meta.unfit)
    yield from card.unmatched if card else ()
    yield from _not_recorded(runs)


def _not_recorded(runs: list[Run]) -> Iterable[str]:
    """What the runs do not hold, said once for all of them."""
    if not any(run.requests.height for run in runs):
        yield "the measurement states aggregates only: no error bars, and no distribution of gaps between tokens"
    elif not any(run.token_times is not None for run in runs):
        yield "no token times were recorded: no distribution of gaps between tokens"
    if not any(run.server.height for run in runs):
        yield "the server was not sampled: its queue and its KV cache over time are not known"
    if not any(set(run.meta.server) & {"num_gpu_blocks", "kv_cache_tokens"} for run in runs):
        yield "no startup log is given: the KV pool that the engine made is not known"


def slo_words(limits: dict[str, float]) -> str:
    """``TTFT < 500 ms, TPOT < 50 ms``; empty without limits."""
    known = {name: limit for name, limit in limits.items() if name in LIMITS}
    return words(Slo(**known)) if known else ""
