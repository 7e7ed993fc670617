"""``inferometer report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from inferometer.cli.measured import ServerSide, measured_runs
from inferometer.cli.options import Output, Overrides, Seed, Storage, StudyFlags, read_study
from inferometer.cli.output import print_json, progress
from inferometer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from inferometer.prediction.predict import Prediction
    from inferometer.prediction.sealed import Sealed
    from inferometer.report.material import Material

EXAMPLES = """Examples:
  inferometer report study.toml sweep.csv
  inferometer report .inferometer/predictions/3f2a9c.json results/ -o docs/report
  inferometer report results/ --format html          a measurement alone, without a prediction
  inferometer report study.toml                      a prediction alone, before anything is measured
"""
SCHEMA = "inferometer/report/1"


def report(
    study: str,
    /,
    *measured: str,
    folder: Annotated[
        Path, Parameter(name=["--folder", "-o"], help="Where to write it; made where it is missing.")
    ] = Path("report"),
    formats: Annotated[
        str, Parameter(name="--format", help="Of md, html, svg and png, separated by commas.")
    ] = "md,html,svg,png",
    concurrency: Annotated[
        int | None, Parameter(help="The point whose waterfall is drawn; else the highest claimed, or the highest.")
    ] = None,
    tolerance: Annotated[
        float, Parameter(help="Share of the measured figure within which a prediction is right.")
    ] = 0.10,
    profile: Annotated[
        str | None, Parameter(help="Calibration (TOML) whose constants stand for the chip family's.")
    ] = None,
    server: ServerSide = ServerSide(),  # noqa: B008
    overrides: Overrides = (),
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Write what was predicted and how it fared: a Markdown post, one HTML page, and the charts.

    The page needs nothing beside itself. The same study and measurement give the same files:
    the date on them is the measurement's. A sweep that is not whole is reported as far as it
    goes, with what is missing.

    Parameters
    ----------
    study
        Study file, a packaged study's name, or a prediction's JSON file; else the first
        measurement, and there is no prediction.
    measured
        Result files, folders, globs, or ids of runs in the store; none: the prediction
        alone.
    """
    from inferometer.report.material import gather
    from inferometer.report.write import checked, write

    wanted = checked(formats.split(","))
    with progress("Simulating", show=not output.quiet) as tick:
        subject = _subject(study, profile, overrides, seed, tick)
    given = measured if subject is not None else (study, *measured)
    runs = measured_runs(given, storage.store, server)
    material = gather(subject, runs, profile, tolerance=tolerance, concurrency=concurrency)
    _answer(material, write(material, folder, wanted), output)
    return 0


def _answer(material: Material, paths: list[Path], output: Output) -> None:
    if output.json:
        print_json(document(material, paths))
    elif output.quiet:
        print("\n".join(str(path) for path in paths))
    else:
        _show(material, paths)


def _subject(
    first: str, profile: str | None, overrides: tuple[str, ...], seed: int | None, tick: Any
) -> Prediction | Sealed | None:
    """The prediction that the first word names or asks for; None where it is a measurement."""
    from inferometer.prediction.predict import predict
    from inferometer.prediction.sealed import read_sealed
    from inferometer.scoring.sides import prediction_file
    from inferometer.specs.study import packaged_studies

    changes = [name for name, given in (("--set", overrides), ("--seed", seed), ("--profile", profile)) if given]
    if first.endswith(".toml") or first in packaged_studies():
        return predict(read_study(first, StudyFlags(), overrides), seed=seed, progress=tick, profile=profile)
    if prediction_file(first):
        _refuse(changes, f"{first} is a prediction and is reported as it stands")
        return read_sealed(first)
    _refuse(changes, f"{first} is no study and no prediction, so there is nothing to predict")
    return None


def _refuse(changes: list[str], why: str) -> None:
    if changes:
        raise InputError.because(f"{why}: leave out {', '.join(changes)}")


def document(material: Material, paths: list[Path]) -> dict[str, Any]:
    """The JSON of ``report``: ``docs/reference/json.md``."""
    return {
        "schema": SCHEMA,
        "study": material.study,
        "seal": material.seal or None,
        "date": material.date or None,
        "paths": [str(path) for path in paths],
        "score": None if material.card is None else material.card.to_dict(),
        "findings": [finding.to_dict() for finding in material.findings],
        "explanation": None if material.sweep is None else material.sweep.to_dict(),
        "missing": list(material.missing),
    }


def _show(material: Material, paths: list[Path]) -> None:
    """The post's first sentences, the score and what was found in short, and where it all is."""
    from inferometer.report import terminal
    from inferometer.report.story import hook

    console = terminal.make_console()
    terminal.say(console, material.caption, style=terminal.HEADING)
    for words in hook(material):
        terminal.say(console, words)
    if material.card is not None:
        terminal.say(console)
        terminal.score(material.card, console, brief=True)
    _show_causes(material, console)
    for each in material.missing:
        terminal.say(console, terminal.sentence(each), style=terminal.FAINT)
    terminal.say(console)
    for path in paths:
        terminal.say(console, f"wrote {path}")
    _next(material, console)


def _show_causes(material: Material, console: Console) -> None:
    """What the audit found in a sentence, and the gap at one load."""
    from inferometer.report import findings, terminal, waterfall

    runs = [run for arm in material.arms for run in arm.runs]
    if runs:
        terminal.say(console)
        terminal.say(console, findings.verdict(material.findings, len(runs)))
    featured = material.featured
    if featured is not None:
        terminal.say(console)
        terminal.show(waterfall.waterfall(featured, console), console)


def _next(material: Material, console: Console) -> None:
    from inferometer.report import terminal

    if not material.measured_by:
        terminal.command(console, "Measure it, and put both in one report:  ", "inferometer report STUDY MEASURED")
