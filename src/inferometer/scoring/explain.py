"""Where the throughput went: a waterfall from the ideal roofline to what was measured, by counterfactual simulation.

Each step switches one effect on and leaves on what was on before, so that the changes add up to the whole gap. The
first steps are closed forms, the rest are simulated with the engine's scheduler and the run's own requests
(`scoring.counterfactuals`); what the last of them leaves is called unexplained. How to read it, and its limits:
``docs/explanation/explaining-a-gap.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from inferometer.errors import InputError
from inferometer.records.run import Run
from inferometer.scoring.counterfactuals import ALL, PROMPTS, RATES, STEPS, Counterfactuals, real_efficiencies
from inferometer.scoring.explanation import EFFECTS, Explanation, Hypothesis, Step, SweepExplanation
from inferometer.scoring.hypotheses import Case, judge
from inferometer.scoring.loads import Load, rebuild, run_name
from inferometer.scoring.points import as_served
from inferometer.scoring.sentences import of_point, of_sweep, step_notes
from inferometer.scoring.sides import load_name
from inferometer.specs.deployment import Deployment
from inferometer.specs.workload import Workload
from inferometer.steptime.efficiencies import Efficiencies, constants, efficiencies
from inferometer.steptime.profile import Profile
from inferometer.steptime.roofline import roofline

__all__ = ["EFFECTS", "Explanation", "Hypothesis", "Step", "SweepExplanation", "explain", "explain_sweep"]

Progress = Callable[[int, int], None]
"""Called with the points done and the points in all."""


def explain(
    dep: Deployment,
    run: Run,
    *,
    profile: Profile | str | Path | None = None,
    runs: Sequence[Run] | None = None,
    workload: Workload | None = None,
    seed: int = 0,
) -> Explanation:
    """Take the gap of one measured run apart, effect by effect.

    The load is rebuilt from the run's requests (lengths, arrivals, cached tokens, the client's pauses). Requests that
    failed are left out.

    Args:
        dep: what was served on what, under which flags; batch limits and prefix caching that the run's server states
            stand over those.
        run: measured, imported or simulated.
        profile: calibrated constants; None: those of the chip's family.
        runs: the whole sweep, to judge the server's settings by; None: this run alone.
        workload: of a run that states only aggregates: what it was sent; its concurrency or rate stays the run's.
        seed: of the lengths that ``workload`` draws.

    Raises:
        InputError: the run has no output throughput, or neither it nor ``workload`` tells the requests' lengths; a
            model given by its few figures; a profile of another chip.
        DoesNotFitError: the weights leave no room for a KV cache.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> run = im.simulate(dep, im.Workload.closed_loop(concurrency=2, requests=4, prompt_tokens=64, output_tokens=8))
    >>> found = im.explain(dep, run)
    >>> found.steps[0].effect, round(found.unexplained_pct, 6)
    ('ideal: weights read once', 0.0)
    """
    real = real_efficiencies(dep, profile)
    case = _case(dep, run, real, rebuild(run, run.summary(), _at_load(workload, run), seed), seed)
    others = [(each, workload) for each in runs or () if each is not run]
    judged, _ = judge([case, *(_cases(dep, others, real, seed)[0] if others else [])])
    found = _explanation(case)
    return msgspec.structs.replace(found, hypotheses=tuple(judged), findings=tuple(of_point(found, judged)))


def explain_sweep(
    dep: Deployment,
    runs: Sequence[Run],
    *,
    profile: Profile | str | Path | None = None,
    workloads: Sequence[Workload | None] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SweepExplanation:
    """Take the gap of every point of a sweep apart, and judge the server's settings by all their tails together.

    Args:
        dep: what was served.
        runs: one a point; those that cannot be sent again, or have no throughput, are left out and said to be.
        profile: as of `explain`.
        workloads: one a run (or None), for those that state only aggregates.
        seed: of the lengths that ``workloads`` draw.
        progress: called as points are done.

    Raises:
        InputError: as of `explain`, where no run can be explained.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> loads = [im.Workload.closed_loop(users, 4 * users, 64, 8) for users in (1, 2)]
    >>> sweep = im.explain_sweep(dep, [im.simulate(dep, load) for load in loads])
    >>> [point.concurrency for point in sweep]
    [1, 2]
    """
    given = [None] * len(runs) if workloads is None else list(workloads)
    if len(given) != len(runs):
        raise InputError("workloads", len(given), f"one a run, or None: there are {len(runs)} runs")
    real = real_efficiencies(dep, profile)
    cases, left = _cases(dep, list(zip(runs, given, strict=True)), real, seed)
    points = []
    for done, case in enumerate(cases):
        points.append(_explanation(case))
        if progress:
            progress(done + 1, len(cases))
    judged, aside = judge(cases)
    points = [msgspec.structs.replace(p, hypotheses=tuple(judged), findings=tuple(of_point(p, ()))) for p in points]
    return SweepExplanation(
        explanations=tuple(points),
        hypotheses=tuple(judged),
        findings=tuple(of_sweep(points, judged, aside)),
        notes=tuple(dict.fromkeys([*left, *(note for point in points for note in point.notes)])),
    )


def _cases(
    dep: Deployment, given: Sequence[tuple[Run, Workload | None]], real: Efficiencies, seed: int
) -> tuple[list[Case], list[str]]:
    """The runs that can be sent again, and why the others are left out; where none can, the first one's fault."""
    cases: list[Case] = []
    faults: list[InputError] = []
    for run, workload in given:
        try:
            load = rebuild(run, run.summary(), _at_load(workload, run), seed)
        except InputError as fault:
            faults.append(fault)
        else:
            cases.append(_case(dep, run, real, load, seed))
    if not cases:
        raise faults[0] if faults else InputError("runs", 0, "at least one")
    return cases, [f"left out: {fault}" for fault in faults]


def _at_load(workload: Workload | None, run: Run) -> Workload | None:
    """The workload at the run's own concurrency or rate, with as many requests a user."""
    users, rate = run.meta.concurrency, run.meta.request_rate_per_s
    if workload is None or isinstance(workload.prompt_tokens, np.ndarray):
        return workload
    if workload.rate_per_s is not None and rate is not None:
        return msgspec.structs.replace(workload, rate_per_s=rate)
    if workload.concurrency is None or users is None:
        return workload
    count = max(1, round((workload.requests or 0) * users / workload.concurrency))
    return msgspec.structs.replace(workload, concurrency=users, requests=count)


def _case(dep: Deployment, run: Run, real: Efficiencies, load: Load, seed: int) -> Case:
    served, notes = as_served(run, dep)
    servers = Counterfactuals(served, load, real, run, seed)
    name = load_name(run.meta.concurrency, run.meta.request_rate_per_s)
    return Case(name=name, servers=servers, measured=run.summary(), run=run, notes=notes)


def _explanation(case: Case) -> Explanation:
    run, load = case.run, case.servers.load
    return Explanation(
        run=run_name(run),
        arm=run.meta.arm,
        concurrency=run.meta.concurrency,
        request_rate=run.meta.request_rate_per_s,
        users=load.users,
        prompt_tokens=float(load.prompt.mean()),
        output_tokens=float(load.output.mean()),
        prefix_hit_rate=load.hits,
        roofline_tok_per_s=_roof(case.servers),
        steps=tuple(_steps(case)),
        measured_tpot_s=case.measured.tpot_s.p50,
        notes=(*_notes(run, load), *case.notes, _origin(case.servers)),
    )


def _roof(servers: Counterfactuals) -> float:
    roof = roofline(servers.dep, round(float(servers.load.prompt.mean())))
    return servers.replicas * roof.decode_tok_per_s(servers.load.users / servers.replicas)


def _notes(run: Run, load: Load) -> list[str]:
    notes = list(load.notes)
    if run.meta.partial:
        notes.append(f"{run_name(run)} is not a whole run ({run.meta.partial}): what it has is explained")
    if load.hits is None:
        notes.append("the prefix cache's hit rate is not known and taken for 0")
    if not load.idle_known:
        notes.append("when requests were sent is not known, so the client's share is not either")
    return notes


def _origin(servers: Counterfactuals) -> str:
    """Where the constants come from: a fit to the very runs explained leaves little to explain."""
    chip = servers.dep.chip
    if servers.real != efficiencies(chip):
        return "constants are the profile's; of the runs that it was fitted to it explains more than of others"
    return f"constants of family {chip.family or 'default'!r}: {constants(chip)['weight_read'].origin}"


def _steps(case: Case) -> list[Step]:
    """The waterfall: throughputs in order of `EFFECTS`, each with its note."""
    rates = [*_closed_forms(case.servers), *_simulated(case.servers)]
    rates.append((case.measured.output_tok_per_s or 0.0, case.measured.tpot_s.p50))
    notes = step_notes(case.servers)
    steps: list[Step] = []
    for effect, (tok_per_s, tpot_s) in zip(EFFECTS, rates, strict=True):
        steps.append(
            Step(
                effect=effect,
                tok_per_s=tok_per_s,
                change=tok_per_s - steps[-1].tok_per_s if steps else 0.0,
                seconds=case.servers.load.users / tok_per_s if tok_per_s else None,
                tpot_s=tpot_s,
                note=notes[effect],
            )
        )
    return steps


Rate = tuple[float, float | None]
"""Output tokens a second, and the median TPOT."""


def _closed_forms(servers: Counterfactuals) -> list[Rate]:
    """Bandwidth alone: weights, the prompt's KV cache, the output's; then a decode step with its products."""
    load, batch = servers.load, servers.load.users / servers.replicas
    prompt = round(float(load.prompt.mean()))
    roofs = [roofline(servers.dep, context) for context in (prompt, load.context)]
    weights_s = roofs[0].read_bytes(batch) / roofs[0].bandwidth_bytes_per_s
    kv = [batch * roof.kv_bytes_per_sequence / roof.bandwidth_bytes_per_s for roof in roofs]
    seconds = [weights_s, *(weights_s + kv_s for kv_s in kv), servers.decode_step_s()]
    return [(load.users / each, each) for each in seconds]


def _simulated(servers: Counterfactuals) -> list[Rate]:
    """From the slots that fill and drain to the client, each simulated with one more effect."""
    load, free, budgeted = servers.load, servers.unlimited, servers.budgeted
    computed, cached = load.steady(cached=False), load.steady(cached=True)
    found = [
        servers.run(free, computed),
        servers.run(free, computed, PROMPTS),
        servers.run(budgeted, computed, PROMPTS),
        servers.run(budgeted, cached, PROMPTS),
        servers.run(budgeted, cached, PROMPTS, RATES),
        servers.run(budgeted, cached, PROMPTS, RATES, STEPS),
        servers.run(budgeted, cached, *ALL),
        servers.run(servers.dep, load.as_meant(), *ALL),
        servers.run(servers.dep, load.as_sent(), *ALL),
    ]
    return [(each.tok_per_s, each.summary.tpot_s.p50) for each in found]
