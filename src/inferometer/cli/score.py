"""``inferometer score``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from inferometer.cli.options import Output, Overrides, Seed, Storage, StudyFlags, read_study
from inferometer.cli.output import print_json, progress
from inferometer.errors import InputError

if TYPE_CHECKING:
    from inferometer.records.run import Run

EXAMPLES = """Examples:
  inferometer score study.toml result.json
  inferometer score study.toml sweep.csv --tolerance 0.05 --json
  inferometer score study.toml 3f2a9c            a run of the store, by the start of its id
"""


def score(
    study: str | None = None,
    /,
    *measured: str,
    tolerance: Annotated[
        float, Parameter(help="Share of the measured figure within which a prediction is right.")
    ] = 0.10,
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Predict a study and lay it beside what was measured, metric by metric.

    Exit status 1 if any figure is further off than the tolerance.

    Parameters
    ----------
    study
        Study file, or the name of a packaged study; with --model this is the first measurement.
    measured
        Result files, folders, globs, or ids of runs in the store.
    """
    study, given = _split(study, measured, flags)
    read = read_study(study, flags, overrides)
    if not given:
        raise InputError.because("nothing measured: give a result file, a folder, or a run's id after the study")
    from inferometer.prediction.predict import predict
    from inferometer.report import terminal
    from inferometer.scoring.score import score as score_runs

    runs = [run for each in given for run in measured_runs(each, storage.store)]
    with progress("Simulating", show=not output.quiet) as tick:
        prediction = predict(read, seed=seed, progress=tick)
    if not prediction.points:
        why = prediction.base.note or prediction.memory.reason
        raise InputError.because(f"nothing is predicted to compare with: {why}")
    card = score_runs(prediction, runs, tolerance)
    console = terminal.make_console()
    if output.json:
        print_json(card.to_dict())
    elif output.quiet:
        print(terminal.verdict(card))
        for note in card.notes:
            print(f"not alike: {note}", file=sys.stderr)
    else:
        base = prediction.base.arm
        terminal.heading(base.deployment, base.points[0].workload, console, prediction.memory)
        terminal.say(console)
        terminal.score(card, console)
    return 0 if card.passed else 1


def _split(study: str | None, measured: tuple[str, ...], flags: StudyFlags) -> tuple[str | None, tuple[str, ...]]:
    """The study and the measurements: with --model, the first word is a study only if it looks like one."""
    from inferometer.specs.study import packaged_studies

    if study is None or flags.model is None or study.endswith(".toml") or study in packaged_studies():
        return study, measured
    return None, (study, *measured)


def measured_runs(given: str, store: str | None) -> list[Run]:
    """The runs of a file, folder or glob, or the one of the store whose id is so or starts so.

    Raises `InputError` where there is neither.
    """
    from glob import has_magic

    from inferometer.errors import UnknownNameError
    from inferometer.records.importers import load
    from inferometer.store import Store

    if not Path(given).exists() and not has_magic(given):
        try:
            return [Store(store).load(given)]
        except UnknownNameError:
            allowed = "a result file, folder or glob that exists, or the id of a run in the store"
            raise InputError("measured", given, allowed) from None
    return load(given)
