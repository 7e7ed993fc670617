"""``inferometer score``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from inferometer.cli.measured import ServerSide, measured_runs
from inferometer.cli.options import Output, Overrides, Seed, Storage, StudyFlags, read_study
from inferometer.cli.output import print_json, progress, writing
from inferometer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from inferometer.prediction.predict import Prediction
    from inferometer.prediction.sealed import Sealed
    from inferometer.scoring.score import Score
    from inferometer.specs.study import Study

EXAMPLES = """Examples:
  inferometer score study.toml result.json
  inferometer score study.toml sweep.csv --tolerance 0.05 --json
  inferometer score .inferometer/predictions/3f2a9c.json sweep.csv    a sealed prediction, as it stands
  inferometer score study.toml 3f2a9c                  a run of the store, by the start of its id
  inferometer score --scorecard                        how far to trust the next one
"""
Tolerance = Annotated[float, Parameter(help="Share of the measured figure within which a prediction is right.")]
ProfileFile = Annotated[str | None, Parameter(help="Calibration (TOML) whose constants stand for the chip family's.")]


def score(
    study: str | None = None,
    /,
    *measured: str,
    tolerance: Tolerance = 0.10,
    profile: ProfileFile = None,
    server: ServerSide = ServerSide(),  # noqa: B008
    scorecard: Annotated[bool, Parameter(help="All scores kept in the store, taken together.")] = False,
    no_store: Annotated[bool, Parameter(help="Do not keep the score.")] = False,
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Lay a prediction beside what was measured, metric by metric.

    A study is predicted first; a prediction's file (predict --seal, predict --json) is scored
    as it stands, and the first line says whether it was sealed before the measurement began.
    Each score is kept in the store; --scorecard sums them up.

    Exit status 1 if any figure is further off than the tolerance, or a seal is broken.

    Parameters
    ----------
    study
        Study file, a packaged study's name, or a prediction's JSON file; with --model the
        first measurement.
    measured
        Result files, folders, globs, or ids of runs in the store.
    """
    if scorecard:
        return _scorecard(study, measured, output, storage)
    study, given = _split(study, measured, flags)
    if not given:
        raise InputError.because("nothing measured: give a result file, a folder, or a run's id after the study")
    from inferometer.scoring.score import score as score_runs

    sealed = _sealed(study, flags, overrides, seed, profile)
    read = None if sealed else read_study(study, flags, overrides)
    runs = measured_runs(given, storage.store, server)
    predicted = sealed or _predicted(read, seed, profile, output)
    _refuse_empty(predicted)
    card = score_runs(predicted, runs, tolerance)
    if not no_store:
        _keep(card, storage.store)
    _answer(card, predicted, output)
    return 0 if card.passed else 1


def _sealed(
    study: str | None, flags: StudyFlags, overrides: tuple[str, ...], seed: int | None, profile: str | None
) -> Sealed | None:
    """The prediction of a file; None where a study is given. Raises `InputError` for changes to a prediction."""
    from inferometer.prediction.sealed import read_sealed
    from inferometer.scoring.sides import prediction_file

    if study is None or not prediction_file(study):
        return None
    changes = [f"--{name.replace('_', '-')}" for name, _ in flags.given()] + [*(["--set"] if overrides else [])]
    changes += [name for name, value in (("--seed", seed), ("--profile", profile)) if value is not None]
    if changes:
        raise InputError.because(f"{study} is a prediction and is scored as it stands: leave out {', '.join(changes)}")
    return read_sealed(study)


def _predicted(study: Study | None, seed: int | None, profile: str | None, output: Output) -> Prediction:
    from inferometer.prediction.predict import predict

    assert study is not None
    with progress("Simulating", show=not output.quiet) as tick:
        return predict(study, seed=seed, progress=tick, profile=profile)


def _refuse_empty(predicted: Prediction | Sealed) -> None:
    if any(arm.points for arm in predicted.arms):
        return
    base = predicted.base
    reason = base.memory["reason"] if isinstance(base.memory, dict) else base.memory.reason
    raise InputError.because(f"nothing is predicted to compare with: {base.note or reason}")


def _keep(card: Score, path: str | None) -> None:
    from inferometer.store import Store

    store = Store(path)
    with writing(store):
        store.save_score(card.to_dict())


def _answer(card: Score, predicted: Prediction | Sealed, output: Output) -> None:
    from inferometer.report import score_view, terminal

    if output.json:
        print_json(card.to_dict())
    elif output.quiet:
        print(terminal.verdict(card))
        sealed = [card.seal.sentence] if card.seal.state in ("late", "broken") else []
        fitted = [line] if (line := score_view.fitted_line(card)) else []
        for line in (*sealed, *fitted, *card.partial):
            print(line, file=sys.stderr)
        for note in card.notes:
            print(f"not alike: {note}", file=sys.stderr)
    else:
        _show(card, predicted, terminal.make_console())


def _show(card: Score, predicted: Prediction | Sealed, console: Console) -> None:
    """The seal first, then what was predicted, then how it did."""
    from inferometer.prediction.predict import Prediction
    from inferometer.report import score_view, terminal

    score_view.seal_line(card, console)
    if isinstance(predicted, Prediction):
        base = predicted.base.arm
        terminal.heading(base.deployment, base.points[0].workload, console, predicted.memory)
    else:
        named = predicted.base.deployment
        version = named.get("engine_version") or ""
        served = f"{named['model']} on {named['chip']}, {named['engine']} {version}".rstrip()
        terminal.say(console, f"{predicted.document.get('name') or 'unnamed'}: {served}", style=terminal.HEADING)
    terminal.say(console)
    score_view.score(card, console, seal=False)
    if card.rows:
        terminal.say(console)
        terminal.command(console, "How far to trust the next one:  ", "inferometer score --scorecard")


def _scorecard(study: str | None, measured: tuple[str, ...], output: Output, storage: Storage) -> int:
    """All scores of the store."""
    from inferometer.report import scorecard_view, terminal
    from inferometer.scoring.scorecard import scorecard

    if study is not None or measured:
        raise InputError("--scorecard", study, "it alone: it is of all scores in the store")
    card = scorecard(storage.store)
    if output.json:
        print_json(card.to_dict())
    elif output.quiet:
        print("\n".join(scorecard_view.trust_lines(card)))
    else:
        scorecard_view.scorecard(card, terminal.make_console())
    return 0


def _split(study: str | None, measured: tuple[str, ...], flags: StudyFlags) -> tuple[str | None, tuple[str, ...]]:
    """The study and the measurements: with --model, the first word is a study only if it looks like one."""
    from inferometer.specs.study import packaged_studies

    if study is None or flags.model is None or study.endswith(".toml") or study in packaged_studies():
        return study, measured
    return None, (study, *measured)
