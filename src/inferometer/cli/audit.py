"""``inferometer audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from inferometer.cli.measured import ServerSide, measured_runs
from inferometer.cli.options import STUDY, Output, Overrides, Storage, StudyFlags, read_served, study_words
from inferometer.cli.output import print_json
from inferometer.errors import InputError

if TYPE_CHECKING:
    from inferometer.records.run import Run
    from inferometer.scoring.audit import Finding
    from inferometer.specs.study import Arm, Study

EXAMPLES = """Examples:
  inferometer audit results/ --study study.toml
  inferometer audit 'sweep/*.json' --model Qwen/Qwen3-8B --chip a100-sxm4-80gb
  inferometer audit c8.json --metrics c8.metrics.prom --server-log server.log
  inferometer audit 3f2a9c --json                a run of the store, by the start of its id
"""


def audit(
    *measured: str,
    study: Annotated[
        str | None,
        Parameter(group=STUDY, help="Study file, packaged study or a prediction's file: what is said to have served."),
    ] = None,
    server: ServerSide = ServerSide(),  # noqa: B008
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Look for what makes a measurement something else than it claims to be.

    A study, or --model and --chip, say what served: then TTFT and TPOT are held against what
    is physically possible. Exit status 1 if any finding spoils the figures.

    Parameters
    ----------
    measured
        Result files, folders, globs, or ids of runs in the store: the points of one sweep.
    """
    if not measured:
        raise InputError.because("nothing measured: give a result file, a folder, or a run's id")
    from inferometer.report import findings, terminal

    known = read_served(study, flags, overrides)
    runs = measured_runs(measured, storage.store, server)
    found = _audited(runs, known, _given(study, flags))
    console = terminal.make_console()
    if output.json:
        print_json(document(found, runs))
    elif output.quiet:
        print(findings.verdict(found, len(runs)))
    else:
        words = study_words(study, flags, overrides) if study else ""
        given = (*measured, *server.words())
        findings.findings(found, console, points=len(runs), measured=given, study=words, known=known is not None)
    return int(any(finding.severity == "spoils" for finding in found))


def _given(study: str | None, flags: StudyFlags) -> list[str]:
    """Which lengths somebody asked for: a study's, or those of the flags; a default is nobody's."""
    return [
        name for name in ("prompt_tokens", "output_tokens") if study is not None or getattr(flags, name) is not None
    ]


def _audited(runs: list[Run], study: Study | None, given: list[str]) -> list[Finding]:
    """The findings: a run of an arm of the study is held against that arm, any other against the base."""
    from inferometer.scoring.audit import audit as audit_runs

    if study is None:
        return audit_runs(runs)
    arms = {arm.name: arm.deployment for arm in study.arms[1:]}
    return audit_runs(runs, study.base.deployment, arms=arms, **_lengths(study.base, given))


def _lengths(arm: Arm, given: list[str]) -> dict[str, Any]:
    """The lengths of these that the arm's load asks for as one number."""
    lengths = {name: getattr(arm.points[0].workload, name) for name in given}
    return {name: length for name, length in lengths.items() if isinstance(length, int)}


def document(found: list[Finding], runs: list[Run]) -> dict[str, Any]:
    """An audit as JSON has it."""
    from inferometer.scoring.audit import SCHEMA, SEVERITIES

    return {
        "schema": SCHEMA,
        "passed": not any(finding.severity == "spoils" for finding in found),
        **{severity: sum(finding.severity == severity for finding in found) for severity in SEVERITIES},
        "runs": [run.id for run in runs],
        "findings": [finding.to_dict() for finding in found],
    }
