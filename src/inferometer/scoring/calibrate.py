"""Fits the few physical constants of the step-time model to runs, and says what the runs cannot tell.

The main path: `points.measured_points` makes the runs ready, `identify.plan` says by rule which constants they can
tell, `fitting.fit` fits those, and what the numbers do not bear out is dropped and the rest fitted again. The method
and its limits: ``docs/explanation/calibration.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.errors import InputError
from inferometer.records.metrics import Summary
from inferometer.records.run import Run
from inferometer.scoring.fitting import NOMINAL_NOISE, Fit, fit
from inferometer.scoring.identify import FITTABLE, Plan, plan, with_ties
from inferometer.scoring.points import Measured, Simulator, measured_points
from inferometer.sim.simulate import simulate
from inferometer.specs.deployment import Deployment
from inferometer.specs.engine import resolve_version
from inferometer.steptime.costs import SheetModel, StepCosts, peak_flops_per_s
from inferometer.steptime.efficiencies import Efficiencies, efficiencies
from inferometer.steptime.ops import rank_ops
from inferometer.steptime.profile import Profile

Floats = npt.NDArray[np.float64]

LARGEST_ERROR = 0.5
"""A constant whose standard error is a larger share of it is not told by the data."""
ALIKE = 0.98
"""Two constants whose estimates are more correlated than this are not told apart."""
CARRIERS = {
    "step_s": "weight_read",
    "sequence_s": "kv_read",
    "prefill_step_s": "mfu",
    "mfu_attention": "mfu",
    "kv_read": "weight_read",
}
"""Into which other constant one is lumped that cannot be told from it."""

Progress = Callable[[int, int], None]


def calibrate(
    runs: Run | Sequence[Run],
    dep: Deployment | Sequence[Deployment],
    *,
    hold_out: Run | Sequence[Run] = (),
    fit: Sequence[str] | None = None,
    prefix_hit_rate: float | None = None,
    lengths: tuple[int, int] | None = None,
    leave_one_out: bool = True,
    name: str = "",
    progress: Progress | None = None,
) -> Profile:
    """Fit the step-time model's constants of one chip to measured or simulated runs.

    Args:
        runs: one run a point; those that state only aggregates are used by what they state.
        dep: what served them; or one deployment a run, such as two models on one chip.
        hold_out: runs that are not fitted but predicted, of the first deployment; their errors are reported.
        fit: constants that are wanted (`identify.FITTABLE`); None: all that the runs can tell.
        prefix_hit_rate: of runs that do not say theirs.
        lengths: prompt and output tokens of runs that do not say theirs.
        leave_one_out: without ``hold_out``, predict each point from the others where they are enough.
        name: of the profile; "": the chip and model.
        progress: called with fits done and fits in all.

    Raises:
        InputError: a run without hit rate, token budget, lengths or any latency; deployments of several chips;
            nothing that the runs could tell; a model given by its few figures.
        UnknownNameError: ``fit`` names what is no constant of a fit.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"),
    ...     flags={"max_num_batched_tokens": 2048, "enable_prefix_caching": False})
    >>> loads = [im.Workload.closed_loop(c, 3 * c, prompt_tokens=256, output_tokens=32) for c in (1, 8, 32)]
    >>> profile = im.calibrate([im.simulate(dep, load) for load in loads], dep)
    >>> round(profile.params["mfu"], 2), profile.lumped["weight_read"]
    (0.83, ['step_s', 'layer_s'])
    """
    points = measured_points(_list(runs), dep, prefix_hit_rate, lengths)
    held = measured_points(_list(hold_out), _first(dep), prefix_hit_rate, lengths)
    _check(points)
    tick = progress or (lambda done, total: None)
    others = len(points) if leave_one_out and not held else 0
    tick(0, 1 + others)
    found = _Calibration(points, fit)
    tick(1, 1 + others)
    rows, notes = list(_predicted(held, found.costs)), list[str]()
    if others:
        rows, notes = _left_out(points, fit, len(found.plan.fitted), lambda done: tick(1 + done, 1 + others))
    return _profile(found, points, rows, [*notes, *_notes(found, points)], name)


def _list(runs: Run | Sequence[Run]) -> list[Run]:
    return [runs] if isinstance(runs, Run) else list(runs)


def _first(dep: Deployment | Sequence[Deployment]) -> Deployment | Sequence[Deployment]:
    return dep if isinstance(dep, Deployment) else dep[0]


def _check(points: list[Measured]) -> None:
    if not points:
        raise InputError.because("cannot calibrate: no runs are given")
    chips = {p.deployment.chip.id: p.deployment.chip for p in points}
    if len(chips) > 1:
        raise InputError("dep", " and ".join(sorted(chips)), "deployments on one chip: a profile is of one")
    few = next((p for p in points if not p.deployment.model.blocks), None)
    if few is not None:
        given = f"the model of {few.name} is given by its few figures"
        raise InputError.because(f"cannot calibrate: {given}, so that its steps cannot be priced")


# ---------------------------------------------------------------- the fit
class _Calibration:
    """The plan after the numbers have been heard, and its fit."""

    def __init__(self, points: list[Measured], wanted: Sequence[str] | None) -> None:
        self.chip = points[0].deployment.chip
        self.family = efficiencies(self.chip)
        self.plan = plan(points, wanted)
        if not self.plan.fitted:
            raise InputError.because(f"cannot calibrate: {_reasons(self.plan)}")
        self.simulators = [Simulator(p, shape="kv_read_mixed" in self.plan.fitted) for p in points]
        self.sheets: list[SheetModel] = []
        self.sheet_of = [self._sheet(p.deployment) for p in points]
        self.measured = np.log([f.value for s in self.simulators for f in s.figures])
        self.classes = [f.noise for s in self.simulators for f in s.figures]
        self.fit = self._refined()

    def _refined(self) -> Fit:
        """Fit, drop what the figures do not tell, and fit again until all that is fitted is told."""
        while True:
            self._fewer_than_figures()
            found = fit(self._residuals, len(self.plan.fitted), self.classes)
            if len(self.plan.fitted) == 1:
                return self._told(found)
            if not _drop(self.plan, found):
                return found

    def _told(self, found: Fit) -> Fit:
        """The fit of one constant alone, where the figures tell it."""
        error = float(found.plain_errors[0])
        if not error <= LARGEST_ERROR:
            why = _untold(error)
            raise InputError.because(f"cannot calibrate: the figures do not tell {self.plan.fitted[0]}: {why}")
        return found

    def _fewer_than_figures(self) -> None:
        while len(self.plan.fitted) > len(self.measured):
            last = self.plan.fitted[-1]
            self.plan.drop(last, "more constants than figures", CARRIERS.get(last))

    def _residuals(self, logs: Floats) -> Floats:
        costs = [self._priced(sheet, self.constants(logs)) for sheet in self.sheets]
        pairs = zip(self.simulators, self.sheet_of, strict=True)
        return np.asarray(np.concatenate([sim.logs(costs[sheet]) for sim, sheet in pairs]) - self.measured)

    def _sheet(self, deployment: Deployment) -> int:
        """The number of the deployment's price list; what does not depend on the constants is worked out once."""
        known = next((i for i, sheet in enumerate(self.sheets) if sheet.dep == deployment), None)
        if known is None:
            self.sheets.append(SheetModel(deployment, self.family))
        return len(self.sheets) - 1 if known is None else known

    def _priced(self, sheet: SheetModel, eff: Efficiencies) -> StepCosts:
        sheet.eff = eff
        return sheet.costs()

    def values(self, logs: Floats) -> dict[str, float]:
        """The fitted constants at these logarithms over the family's values."""
        scales = zip(self.plan.fitted, logs, strict=True)
        return {name: float(getattr(self.family, name) * math.exp(log)) for name, log in scales}

    def constants(self, logs: Floats) -> Efficiencies:
        """All constants at these logarithms."""
        return with_ties(self.chip, self.plan, self.values(logs))

    def costs(self, deployment: Deployment) -> StepCosts:
        """Step costs of a deployment with the fitted constants."""
        return SheetModel(deployment, self.constants(self.fit.logs)).costs()


def _reasons(found: Plan) -> str:
    return "; ".join(f"{name}: {why}" for name, why in found.refused.items())


def _untold(error: float) -> str:
    return f"its standard error would be {error:.0%} of it" if math.isfinite(error) else "it has no effect on them"


def _drop(found: Plan, result: Fit) -> bool:
    """Drop the worst constant that the figures do not tell; whether there was one."""
    errors, names = result.plain_errors, found.fitted
    worst = int(np.argmax(errors))
    if not errors[worst] <= LARGEST_ERROR:
        why = _untold(float(errors[worst]))
        found.drop(names[worst], f"the figures do not tell it: {why}; kept at the family's value")
        return True
    pairs = np.abs(np.triu(result.correlations, 1))
    first, second = np.unravel_index(int(np.argmax(pairs)), pairs.shape)
    if pairs[first, second] <= ALIKE:
        return False
    kept, gone = names[int(first)], names[int(second)]
    found.refused[gone] = f"lumped into {kept}: their estimates are correlated by {pairs[first, second]:.3f}"
    found.drop(gone, "", into=kept)
    return True


# ---------------------------------------------------------------- errors, in and out of the fit
def _predicted(points: Sequence[Measured], costs: Callable[[Deployment], StepCosts]) -> Iterator[dict[str, Any]]:
    """Rows of what is predicted for points beside what they measured."""
    for point in points:
        run = simulate(point.deployment, point.workload, costs=costs(point.deployment), token_times=True)
        mine, theirs = _figures(_counted(run, point).summary()), _figures(point.run.summary())
        for metric in (name for name in mine if name in theirs):
            yield _row(point, metric, mine[metric], theirs[metric])


def _counted(run: Run, point: Measured) -> Run:
    """The simulated run without the requests that do not count; of a live server, without its beginning."""
    if point.counted.all() or not run.token_times:
        return run
    kept = np.flatnonzero(point.counted)
    requests = run.requests[kept]
    starts, counts = run.token_times.offsets[kept], np.diff(run.token_times.offsets)[kept]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    at = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
    times = msgspec.structs.replace(run.token_times, offsets=offsets, times_s=run.token_times.times_s[at])
    return Run(meta=run.meta, requests=requests, server=run.server, token_times=times)


def _figures(summary: Summary) -> dict[str, float]:
    """What a point is judged by; latencies in milliseconds."""
    ms = {"tpot_ms": summary.tpot_s, "itl_ms": summary.itl_s, "ttft_ms": summary.ttft_s}
    parts = {"tpot_ms": ("mean", "p50"), "itl_ms": ("p50", "p99"), "ttft_ms": ("mean", "p50", "p99")}
    found = {"output_tok_per_s": summary.output_tok_per_s}
    for name, stat in ms.items():
        values = stat.to_dict(1000)
        found |= {f"{name}.{part}": values[part] for part in parts[name]}
    return {metric: float(value) for metric, value in found.items() if value}


def _row(point: Measured, metric: str, predicted: float, measured: float) -> dict[str, Any]:
    return {
        "run": point.name,
        "concurrency": point.run.meta.concurrency,
        "metric": metric,
        "predicted": float(f"{predicted:.6g}"),
        "measured": float(f"{measured:.6g}"),
        "error_pct": round((predicted / measured - 1) * 100, 2),
    }


def _left_out(
    points: list[Measured], wanted: Sequence[str] | None, unknowns: int, done: Callable[[int], None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Each point predicted from the others, where those have more figures than constants; what could not be, said."""
    rows: list[dict[str, Any]] = []
    skipped = []
    for i, point in enumerate(points):
        rest = points[:i] + points[i + 1 :]
        if sum(len(p.figures) for p in rest) > unknowns and len(rest) > 1:
            rows += _predicted([point], _Calibration(rest, wanted).costs)
        else:
            skipped.append(point.name)
        done(i + 1)
    if skipped:
        return rows, ["too few points to hold any out: nothing says how well the fit predicts what it has not seen"]
    return rows, ["held out: each point is predicted from the others; the constants are those of all points"]


# ---------------------------------------------------------------- the profile
def _profile(
    found: _Calibration, points: list[Measured], held_out: list[dict[str, Any]], notes: list[str], name: str
) -> Profile:
    from inferometer import __version__

    dep, result = points[0].deployment, found.fit
    values = found.values(result.logs)
    models = dict.fromkeys(p.deployment.model.name for p in points)
    return Profile(
        name=name or f"{dep.chip.id} {' + '.join(models)}",
        chip=dep.chip.id,
        model=" + ".join(models),
        engine=f"{dep.engine} {resolve_version(dep.engine, dep.engine_version)}",
        params={n: float(f"{value:.6g}") for n, value in values.items()},
        stderr={n: float(f"{values[n] * e:.4g}") for n, e in zip(values, result.errors, strict=True)},
        lumped={n: parts for n, parts in found.plan.lumped.items() if parts},
        held=_held(found),
        refused={n: found.plan.refused[n] for n in FITTABLE if n in found.plan.refused},
        held_out=held_out,
        residuals=_residual_rows(found),
        noise={n: float(f"{share:.3g}") for n, share in result.noise.items()},
        runs=[p.name for p in points],
        run_ids=[p.run.id for p in points],
        version=__version__,
        notes=list(dict.fromkeys(notes)),
    )


def _held(found: _Calibration) -> dict[str, float]:
    """What the fit depends on and left alone: lumped partners, what follows a fitted constant, the smooth maximum."""
    eff = found.constants(found.fit.logs)
    names = [*(part for parts in found.plan.lumped.values() for part in parts), *found.plan.ties, "smooth_max"]
    kept = [name for name in dict.fromkeys(names) if name not in found.plan.fitted]
    return {name: float(f"{getattr(eff, name):.6g}") for name in kept}


def _residual_rows(found: _Calibration) -> list[dict[str, Any]]:
    left, rows, at = found.fit.residuals, [], 0
    for simulator in found.simulators:
        for figure in simulator.figures:
            metric, scale = (
                (figure.metric, 1.0) if "/" in figure.metric else (figure.metric.replace("_s.", "_ms."), 1e3)
            )
            rows.append(_row(simulator.point, metric, scale * figure.value * math.exp(left[at]), scale * figure.value))
            at += 1
    return rows


def _notes(found: _Calibration, points: list[Measured]) -> Iterator[str]:
    for point in points:
        yield from point.notes
        yield from _impossible(point)
    if found.fit.freedom < 1:
        nominal = " and ".join(f"{NOMINAL_NOISE[c]:.0%} of {c.upper()}" for c in dict.fromkeys(found.classes))
        yield f"as many constants as figures: the errors assume a noise of {nominal}, nothing checks the fit"
    for name, to in ((name, to) for name, to in found.plan.ties.items() if to in found.plan.fitted):
        yield f"the constant {name} follows {to} at the family's ratio"
    for name, value in found.values(found.fit.logs).items():
        if not name.endswith("_s") and value > 1:
            yield f"{name} is {value:.2f} of the chip's peak: the chip's figures, the model or its format may be wrong"
    for point in points:
        if point.has("shape") and "kv_read_mixed" not in found.plan.fitted:
            yield "ITL p99 is not fitted: it is a mixed step's in one run and a decode step's in the next"
            break


def _impossible(point: Measured) -> Iterator[str]:
    """A first token sooner than the chip can compute its prompt: part of it was in a cache."""
    waits = next((f for f in point.figures if f.noise == "ttft"), None)
    dep, ops = point.deployment, rank_ops(point.deployment)
    a_token = sum(flops / peak_flops_per_s(dep.chip, kind) for kind, flops in ops.dense_flops_by_format)
    floor_s = point.uncached_tokens * a_token
    if waits is not None and waits.value < floor_s:
        yield (
            f"{point.name}: TTFT {waits.value * 1e3:.3g} ms is below {floor_s * 1e3:.3g} ms, the least that computing "
            "its prompt takes: prompts were cached beyond the hit rate given, do not use this fit"
        )
