"""``inferometer explain``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from inferometer.cli.measured import ServerSide, measured_runs
from inferometer.cli.options import (
    Output,
    Overrides,
    Seed,
    Storage,
    StudyFlags,
    read_study,
    served_source,
    study_words,
)
from inferometer.cli.output import print_json, progress
from inferometer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from inferometer.records.run import Run
    from inferometer.scoring.explanation import SweepExplanation
    from inferometer.specs.study import Arm, Study
    from inferometer.specs.workload import Workload
    from inferometer.steptime.profile import Profile

EXAMPLES = """Examples:
  inferometer explain study.toml sweep.csv
  inferometer explain study.toml results/ --concurrency 64
  inferometer explain study.toml 3f2a9c --profile mine.toml --json
"""


def explain(
    study: str,
    /,
    *measured: str,
    concurrency: Annotated[
        int | None, Parameter(help="The point whose waterfall is shown; else that of the most users.")
    ] = None,
    profile: Annotated[str | None, Parameter(help="Calibrated constants, as calibrate writes them.")] = None,
    server: ServerSide = ServerSide(),  # noqa: B008
    overrides: Overrides = (),
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Take the gap between roofline and measurement apart, effect by effect.

    Each effect is switched on in a simulation of the same requests. The settings that the
    server may have had, such as its token budget, are judged by the tails of TTFT and ITL.

    Parameters
    ----------
    study
        Study file, the name of a packaged study, or a prediction's file, sealed or not: what was
        served. Its points tell the lengths of runs that state only aggregates. A prediction's own
        calibration is taken too, unless --profile is given.
    measured
        Result files, folders, globs, or ids of runs in the store: the points of one sweep.
    """
    from inferometer.report import terminal

    source, kept = served_source(study)
    read = read_study(source, StudyFlags(), overrides)
    if not measured:
        raise InputError.because("nothing measured: give a result file, a folder, or a run's id after the study")
    runs = measured_runs(measured, storage.store, server)
    with progress("Explaining", show=not output.quiet) as tick:
        found = _explained(read, runs, profile or kept, seed, tick)
    if not any(True for sweep in found.values() for e in sweep if concurrency in (None, e.concurrency)):
        next(iter(found.values())).at(concurrency)  # raises, naming the points there are
    console = terminal.make_console()
    if output.json:
        print_json(document(found))
    elif output.quiet:
        for sweep in found.values():
            print(sweep.findings[0] if concurrency is None else sweep.at(concurrency).findings[0])
    else:
        for name, sweep in found.items():
            _show(read.arm(name), sweep, concurrency, console, several=len(found) > 1)
        runs_given, words = shlex.join([*measured, *server.words()]), study_words(study, StudyFlags(), overrides)
        fit = f"inferometer calibrate {runs_given} --study {words} -o profile.toml"
        terminal.command(console, "Fit the constants to these runs:  ", fit)
    return 0


def document(found: dict[str, SweepExplanation]) -> dict[str, Any]:
    """The JSON of ``explain``: ``docs/reference/json.md``."""
    from inferometer.scoring.explanation import SCHEMA

    return {"schema": SCHEMA, "arms": [{"name": name, **sweep.to_dict()} for name, sweep in found.items()]}


def _explained(
    study: Study, runs: list[Run], profile: Profile | str | None, seed: int | None, tick: Any
) -> dict[str, SweepExplanation]:
    """The runs of each arm explained, by its name; a run that names no arm is of the base."""
    from inferometer.scoring.explain import explain_sweep

    by_arm: dict[str, list[Run]] = {}
    for run in runs:
        by_arm.setdefault(run.meta.arm or study.base.name, []).append(run)
    found = {}
    for name, of_arm in by_arm.items():
        arm = study.arm(name)
        loads = [_workload(arm, run) for run in of_arm]
        chosen = arm.seed if seed is None else seed
        found[name] = explain_sweep(
            arm.deployment, of_arm, profile=profile, workloads=loads, seed=chosen, progress=tick
        )
    return found


def _workload(arm: Arm, run: Run) -> Workload:
    """The study's point of this load, else its first: its lengths are what counts."""
    for point in arm.points:
        load = run.meta.request_rate_per_s if point.request_rate is not None else run.meta.concurrency
        if load is not None and load == (point.request_rate or point.concurrency):
            return point.workload
    return arm.points[0].workload


def _show(arm: Arm, sweep: SweepExplanation, concurrency: int | None, console: Console, *, several: bool) -> None:
    """One arm: nothing of it where another is asked for by its concurrency."""
    from inferometer.report import terminal, waterfall
    from inferometer.steptime.memory import memory

    if concurrency is not None and all(point.concurrency != concurrency for point in sweep):
        return
    terminal.heading(arm.deployment, arm.points[0].workload, console, memory(arm.deployment))
    if several:
        terminal.say(console, f"Arm {arm.name}", style=terminal.HEADING)
    terminal.say(console)
    waterfall.explained(sweep, sweep.at(concurrency), console)
    terminal.say(console)
