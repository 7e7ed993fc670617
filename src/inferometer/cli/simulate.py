"""``inferometer simulate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from inferometer.cli.options import Output, Overrides, Seed, Storage, StudyFlags, read_study
from inferometer.cli.output import RUNS_SCHEMA, print_json, progress, run_dict, writing
from inferometer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from inferometer.records.metrics import Summary
    from inferometer.records.run import Run
    from inferometer.scoring.score import Score
    from inferometer.specs.study import Arm, Point, Study
    from inferometer.specs.workload import Workload
    from inferometer.store import Store

EXAMPLES = """Examples:
  inferometer simulate studies/a100-qwen3-8b.toml --arm base
  inferometer simulate study.toml --policy static --no-store --json
  inferometer simulate studies/rtxpro6000-llama31-8b.toml --replay requests.csv --tolerance 0.08
"""
Policy = Annotated[str | None, Parameter(help="Scheduler instead of the engine's own: vllm-v1, static or continuous.")]
Replay = Annotated[
    str | None, Parameter(help="Simulate the requests of this measured run (of the study's model) instead, and score.")
]


def simulate(
    study: str | None = None,
    /,
    *,
    arm: Annotated[str | None, Parameter(help="Only this arm; base is the study without its arms.")] = None,
    policy: Policy = None,
    replay: Replay = None,
    tolerance: Annotated[float | None, Parameter(help="With --replay: exit 1 if a figure is further off.")] = None,
    token_times: Annotated[bool, Parameter(help="Keep each token's time, for inter-token latencies.")] = False,
    no_store: Annotated[bool, Parameter(help="Do not keep the runs.")] = False,
    overrides: Overrides = (),
    flags: StudyFlags = StudyFlags(),  # noqa: B008
    seed: Seed = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Run the engine's scheduler on a study's load and keep each point as a run.

    A model that does not fit is an error here (exit status 2).

    Parameters
    ----------
    study
        Study file, or the name of a packaged study.
    """
    read = read_study(study, flags, overrides)
    if tolerance is not None and not replay:
        raise InputError("--tolerance", tolerance, "it only with --replay: there is nothing to compare with")
    from inferometer.store import Store

    arms = [read.arm(arm)] if arm else list(read.arms)
    store = None if no_store else Store(storage.store)
    job = _Job(read, arms, policy, seed, token_times, store, output)
    return _replay(job, replay, tolerance) if replay else _points(job)


@dataclass(frozen=True)
class _Job:
    """What is to be simulated, and where it goes."""

    study: Study
    arms: list[Arm]
    policy: str | None
    seed: int | None
    token_times: bool
    store: Store | None
    output: Output

    def run(self, arm: Arm, point: Point, *, token_times: bool = False) -> Run:
        """Simulate one point, and keep it if any request was served."""
        from inferometer.prediction.outcome import serves
        from inferometer.prediction.predict import point_run

        times = self.token_times or token_times
        run = point_run(self.study, arm, point, self.seed, policy=self.policy, token_times=times)
        if serves(run):
            self.keep(run)
        return run

    def keep(self, run: Run) -> None:
        """Put a run into the store, where there is one."""
        if self.store:
            with writing(self.store):
                self.store.save(run)

    def document(self, runs: list[Run], summaries: list[Summary]) -> dict[str, Any]:
        """The runs as JSON has them."""
        from inferometer.records.overload import overloaded

        pairs = list(zip(runs, summaries, strict=True))
        each = [{**run_dict(run, summary), "overloaded": overloaded(run, summary)} for run, summary in pairs]
        return {"schema": RUNS_SCHEMA, "store": str(self.store.path) if self.store else None, "runs": each}

    def say_where(self, run: Run, console: Console) -> None:
        """Where runs were kept, and the command that shows one."""
        from inferometer.report import terminal

        if self.store:
            where = "" if str(self.store.path) == ".inferometer" else f" --store {self.store.path}"
            terminal.command(console, f"Kept in {self.store.path}:  ", f"inferometer runs show {run.id}{where}")
        else:
            terminal.say(console, "Not kept (--no-store).", style=terminal.FAINT)


def _points(job: _Job) -> int:
    """Simulate and keep every point of the arms, one after the other."""
    from inferometer.prediction.predict import steady

    runs: list[Run] = []
    summaries, total = [], sum(len(arm.points) for arm in job.arms)
    with progress("Simulating", show=not job.output.quiet) as tick:
        tick(0, total)
        for arm in job.arms:
            for run in _arm_runs(job, arm):
                runs.append(run)
                summaries.append(steady(run, arm.warmup_requests).summary())
                tick(len(runs), total)
    _print_runs(job, runs, summaries)
    return 0


def _arm_runs(job: _Job, arm: Arm) -> Iterator[Run]:
    """The runs of an arm's points. Raises `InputError` where every request of all of them is refused."""
    from inferometer.prediction.outcome import refuse_unserved, serves

    runs = []
    for point in arm.points:
        runs.append(job.run(arm, point))
        yield runs[-1]
    refuse_unserved(arm, runs)
    for run in runs:
        if not serves(run):
            job.keep(run)


def _print_runs(job: _Job, runs: list[Run], summaries: list[Summary]) -> None:
    from inferometer.prediction.outcome import refused
    from inferometer.records.overload import overloaded
    from inferometer.report import terminal

    if job.output.json:
        print_json(job.document(runs, summaries))
    elif job.output.quiet:
        print("\n".join(run.id for run in runs))
    else:
        console, arm = terminal.make_console(), job.arms[0]
        _print_heading(arm, arm.points[0].workload, console)
        if any(refused(run) for run in runs):
            terminal.refusals(runs, console)
            terminal.say(console)
        terminal.run_summary(runs, console, summaries)
        pairs = zip(runs, summaries, strict=True)
        found = [(terminal.run_name(run, runs), run, each) for run, each in pairs if overloaded(run, each)]
        terminal.overloads(found, console)
        terminal.say(console)
        lines = terminal.small_print(job.arms, runs)
        for line in lines:
            terminal.say(console, line, style=terminal.FAINT)
        if lines:
            terminal.say(console)
        job.say_where(runs[0], console)


def _print_heading(arm: Arm, workload: Workload, console: Console) -> None:
    from inferometer.report import terminal
    from inferometer.steptime.memory import memory

    found = memory(arm.deployment)
    terminal.heading(arm.deployment, workload, console, found)
    terminal.say(console)
    if found.note:
        terminal.say(console, terminal.sentence(found.note))
        terminal.say(console)


def _replay(job: _Job, file: str, tolerance: float | None) -> int:
    """Simulate a measured run's requests once an arm, and lay both side by side."""
    import msgspec

    from inferometer.prediction.outcome import refuse_unserved
    from inferometer.scoring.score import TOLERANCE, score
    from inferometer.specs.study import Point

    measured = measured_run(file, job.arms[0].deployment.model.name)
    workload = workload_of(measured, file)
    runs, cards = [], []
    with progress("Replaying", show=not job.output.quiet) as tick:
        for arm in job.arms:
            replayed = msgspec.structs.replace(arm, points=(Point(workload=workload),))
            runs.append(job.run(arm, replayed.points[0], token_times=measured.token_times is not None))
            refuse_unserved(replayed, runs[-1:])
            cards.append(score(runs[-1], measured, TOLERANCE if tolerance is None else tolerance))
            tick(len(runs), len(job.arms))
    if job.output.json:
        scores = [{"arm": arm.name, **card.to_dict()} for arm, card in zip(job.arms, cards, strict=True)]
        document = job.document(runs, [run.summary() for run in runs])
        print_json({**document, "measured": measured.to_dict(), "scores": scores})
    else:
        for arm, run, card in zip(job.arms, runs, cards, strict=True):
            _print_replay(job, arm, run, card, workload)
    return 1 if tolerance is not None and not all(card.passed for card in cards) else 0


def _print_replay(job: _Job, arm: Arm, run: Run, card: Score, workload: Workload) -> None:
    from inferometer.report import terminal

    console = terminal.make_console()
    name = f"{arm.name}: " if len(job.arms) > 1 else ""
    if job.output.quiet:
        print(name + terminal.verdict(card))
        return
    _print_heading(arm, workload, console)
    terminal.say(console, f"{name}{run.requests.height:,} measured requests, simulated with their own arrivals.")
    terminal.say(console)
    terminal.score(card, console)
    terminal.say(console)
    job.say_where(run, console)


def measured_run(file: str, model: str) -> Run:
    """The run in a file that is of this model; the only one, where there is one.

    Raises `InputError` where several are there and not exactly one is of the model.
    """
    from inferometer.records.importers import load
    from inferometer.scoring.likeness import same_model

    runs = load(file)
    matching = runs if len(runs) == 1 else [run for run in runs if same_model(run.meta.model, model)]
    if len(matching) != 1:
        names = ", ".join(sorted({run.meta.model or run.meta.name for run in runs}))
        raise InputError.because(f"{file}: holds {len(matching)} runs of {model}, and one is wanted; it has {names}")
    return matching[0]


def workload_of(run: Run, file: str) -> Workload:
    """The arrivals and lengths of a measured run. Raises `InputError` where it does not hold its requests."""
    from inferometer.records.run import OWN_CLOCK
    from inferometer.specs.workload import Workload

    columns = ["sent_s", "prompt_tokens", "output_tokens"]
    known = run.requests.drop_nulls(columns)
    if not known.height:
        raise InputError.because(f"{file}: holds no requests with arrivals and lengths, so there is nothing to replay")
    if run.meta.clock == OWN_CLOCK:
        raise InputError.because(f"{file}: does not say when requests were sent, so there is nothing to replay")
    arrival, prompt, output = (known[name].to_numpy() for name in columns)
    cached = known["cached_tokens"].fill_null(0).to_numpy()
    return Workload.from_requests(arrival, prompt, output, cached_tokens=cached if cached.any() else 0)
