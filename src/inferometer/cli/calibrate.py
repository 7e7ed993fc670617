"""``inferometer calibrate``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from inferometer.cli.measured import ServerSide, measured_runs
from inferometer.cli.options import Output, Overrides, Storage, StudyFlags, read_served, study_words
from inferometer.cli.output import print_json, progress
from inferometer.errors import InputError

if TYPE_CHECKING:
    from inferometer.records.run import Run
    from inferometer.specs.deployment import Deployment
    from inferometer.specs.study import Study
    from inferometer.steptime.profile import Profile

EXAMPLES = """Examples:
  inferometer calibrate c1.json c64.json --study study.toml -o profile.toml
  inferometer calibrate c1.json c64.json --study study.toml --hold-out c8.json --hold-out c16.json
  inferometer calibrate --live http://localhost:8000 --study study.toml --interval-s 60
  inferometer predict study.toml --profile profile.toml
"""


def calibrate(
    *runs: str,
    study: Annotated[
        str | None, Parameter(help="Study file, or a packaged study's name: what served the runs.")
    ] = None,
    output_file: Annotated[
        str | None, Parameter(name=("--output-file", "-o"), help="Write the profile here (TOML).")
    ] = None,
    hold_out: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, help="Runs that are not fitted but predicted, their error reported."),
    ] = (),
    fit: Annotated[str | None, Parameter(help="Constants that are wanted, such as weight_read,mfu; else all.")] = None,
    prefix_hit_rate: Annotated[float | None, Parameter(help="Of runs that do not say theirs: a share, 0 to 1.")] = None,
    server: ServerSide = ServerSide(),  # noqa: B008
    live: Annotated[str | None, Parameter(help="Fit to a running server's /metrics at this address instead.")] = None,
    pages: Annotated[str | None, Parameter(help="The same from a file of saved pages.")] = None,
    interval_s: Annotated[float, Parameter(help="With --live: seconds between looks; 60 where not given.")] = 60.0,
    points: Annotated[int, Parameter(help="With --live: intervals to look at; 1 where not given.")] = 1,
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Fit the step-time model's constants of your chip to measured runs.

    Give runs of at least two concurrencies, far apart: 1 and one near the knee. What they
    cannot tell apart is lumped or refused, with the reason. Each run needs its prefix-cache
    hit rate and token budget: from the server's flags in the study, its log or its /metrics.

    Points given with --hold-out are predicted, not fitted; without any, each point is
    predicted from the others. Later predictions take the profile: predict --profile FILE.

    Parameters
    ----------
    runs
        Result files, folders, globs, or ids of runs in the store; one run a point.
    """
    import msgspec

    from inferometer.steptime.profile import impossible

    read = read_served(study, flags, overrides)
    dep = read.base.deployment if read else None
    wanted = [name.strip() for name in fit.split(",") if name.strip()] if fit else None
    if live or pages:
        found = _live(live, pages, runs, dep, wanted, prefix_hit_rate, interval_s, points)
    else:
        measured, held = (measured_runs(given, storage.store, server) for given in (runs, hold_out))
        found = _fitted(measured, held, read, dep, wanted, prefix_hit_rate, quiet=output.quiet)
    found = msgspec.structs.replace(found, created=datetime.now(UTC).isoformat(timespec="seconds"))
    saved = str(found.save(output_file)) if output_file else ""
    words = study_words(study, flags, overrides)
    _print(found, dep, saved, words, output)
    return 1 if impossible(found) else 0


def _fitted(
    measured: list[Run],
    held: list[Run],
    read: Study | None,
    dep: Deployment | None,
    wanted: list[str] | None,
    hit_rate: float | None,
    *,
    quiet: bool,
) -> Profile:
    from inferometer.scoring.calibrate import calibrate as fit_runs

    if not measured:
        raise InputError.because("no runs: give result files, folders or ids of runs, or --live with an address")
    served = dep or _described(measured[0])
    with progress("Fitting", show=not quiet) as tick:
        return fit_runs(
            measured,
            served,
            hold_out=held,
            fit=wanted,
            prefix_hit_rate=hit_rate,
            lengths=_lengths(read),
            progress=tick,
        )


def _lengths(read: Study | None) -> tuple[int, int] | None:
    """The study's lengths, for runs that do not state theirs."""
    from inferometer.workload import generate

    if read is None:
        return None
    drawn = generate(read.base.points[0].workload, read.base.seed)
    return round(float(drawn.prompt_tokens.mean())), round(float(drawn.output_tokens.mean()))


def _described(run: Run) -> Deployment:
    """The deployment that a run says it was served by: its model, chip and flags."""
    from inferometer.specs.chip import chip
    from inferometer.specs.deployment import Deployment
    from inferometer.specs.model import model

    said = {**run.meta.deployment}
    names = {"model": said.get("model") or run.meta.model, "chip": said.get("chip") or run.meta.chip}
    lacking = [name for name, value in names.items() if not value]
    if lacking:
        raise InputError.because(
            f"{run.meta.name or 'the first run'} does not say its {' and '.join(lacking)}: give --study, or --model "
            "and --chip"
        )
    kept = {name: said[name] for name in Deployment.__struct_fields__ if name in said and name not in names}
    return Deployment(model=model(str(names["model"])), chip=chip(str(names["chip"])), **kept)


def _live(
    url: str | None,
    file: str | None,
    runs: tuple[str, ...],
    dep: Deployment | None,
    wanted: list[str] | None,
    hit_rate: float | None,
    interval_s: float,
    points: int,
) -> Profile:
    from inferometer.scoring.live import calibrate_live, saved_pages, watch

    if runs or (url and file):
        raise InputError.because("give one of runs, --live and --pages")
    if dep is None:
        raise InputError.because("--live and --pages need --study (or --model and --chip): pages do not say the chip")
    taken = watch(url, interval_s, points) if url else saved_pages(str(file))
    return calibrate_live(taken, dep, fit=wanted, prefix_hit_rate=hit_rate)


def _print(found: Profile, dep: Deployment | None, saved: str, words: str, output: Output) -> None:
    import msgspec

    from inferometer.report import profile_view, terminal
    from inferometer.specs.chip import chip
    from inferometer.steptime.efficiencies import constants
    from inferometer.steptime.profile import FORMAT

    if output.json:
        print_json({"schema": FORMAT, **msgspec.to_builtins(found)})
    elif output.quiet:
        print(profile_view.answer(found))
    else:
        family = constants(dep.chip if dep else chip(found.chip))
        profile_view.profile(found, family, terminal.make_console(), saved, words)
