"""``inferometer bench``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from inferometer.cli.bench_flags import Connection, Flags, Load, Plan, Prompts, Server, Stop, Sweep, by_flag, levels
from inferometer.cli.options import COMMON, Output, Storage, study_words
from inferometer.cli.output import RUNS_SCHEMA, print_json, run_dict
from inferometer.errors import InferometerError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from inferometer.benchmark.search import Found
    from inferometer.records.run import Run
    from inferometer.scoring.hunt import Hunt

EXAMPLES = """Examples:
  inferometer bench http://127.0.0.1:8000 studies/a100-qwen3-8b.toml
  inferometer bench http://127.0.0.1:8000 --concurrency 1..64 --output-tokens 128
  inferometer bench https://host/v1 --endpoint chat --request-rate 1,2,4 --duration-s 120
  inferometer bench http://127.0.0.1:8000 --concurrency 1..256 --search --ttft-ms 500 --tpot-ms 50
  inferometer bench http://127.0.0.1:8000 study.toml --hunt preemption
  inferometer bench http://127.0.0.1:8000 study.toml --arms
"""
INTERRUPTED, ERROR_WIDTH = 130, 200
"""Exit status of Ctrl-C; how much of an error is shown where there is no terminal."""


def bench(
    url: str,
    study: str | None = None,
    /,
    *,
    arm: Annotated[str | None, Parameter(help="This arm of the study; else its base.")] = None,
    load: Load = Load(),  # noqa: B008
    prompts: Prompts = Prompts(),  # noqa: B008
    stop: Stop = Stop(),  # noqa: B008
    sweep: Sweep = Sweep(),  # noqa: B008
    connection: Connection = Connection(),  # noqa: B008
    server: Server = Server(),  # noqa: B008
    name: Annotated[str | None, Parameter(group=COMMON, help="Of the runs; else the study's and its arm's.")] = None,
    seed: Annotated[
        int | None, Parameter(group=COMMON, help="Of prompts, lengths and arrivals; else a fresh one a point.")
    ] = None,
    no_store: Annotated[bool, Parameter(group=COMMON, help="Do not keep the runs.")] = False,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Measure a server: send a load, time every token, and keep each point as a run.

    The loads are a study's points, or flags. Exit status 1 if a request failed (see
    --tolerate-failures), a run is unfit or broken off, no load met the limits of a --search, or a
    --hunt did not find what it predicted.

    Parameters
    ----------
    url
        http://HOST:PORT, with or without /v1; https://...; unix:///PATH.
    study
        Study file, or the name of a packaged study, whose points are the loads.
    """
    flags = Flags(load, prompts, stop, sweep, connection, server)
    common: _Common = {"seed": seed, "name": name, "store": False if no_store else storage.store}
    try:
        if sweep.arms:
            return _bench_arms(url, flags, *flags.plans(study, arm), common, output)
        return _bench(url, flags, flags.plan(study, arm), arm, common, output)
    except InputError as why:
        raise by_flag(why, flags) from why


_Common = dict[str, Any]
"""Options that every run of a command has, where they are not None: ``seed``, ``name``, ``store``."""


def _bench(url: str, flags: Flags, plan: Plan, arm: str | None, common: _Common, output: Output) -> int:
    job = _job(url, flags, plan, arm, common, output)
    job.measure()
    if job.runs:
        job.report(common["store"] or None)
    if job.fault:
        raise job.fault
    return INTERRUPTED if job.interrupted else job.status()


def _job(url: str, flags: Flags, plan: Plan, arm: str | None, common: _Common, output: Output) -> _Job:
    plan.options |= {"arm": arm, **{key: value for key, value in common.items() if value is not None}}
    return _Job(url, plan, flags, output)


def _bench_arms(
    url: str, flags: Flags, plans: list[Plan], skipped: dict[str, str], common: _Common, output: Output
) -> int:
    """One arm after the other; the first that is broken off is the last."""
    done: list[_Job] = []
    for plan in plans:
        job = _job(url, flags, plan, plan.arm.name if plan.arm else None, common, output)
        job.measure()
        done += [job] if job.runs else []
        if job.interrupted or job.fault:
            break
    arms = _Arms(done, skipped, [plan.arm.name for plan in plans[len(done) :] if plan.arm])
    if done:
        arms.report(common["store"] or None)
    if done and done[-1].fault:
        raise done[-1].fault
    return INTERRUPTED if job.interrupted else max(each.status() for each in done)


@dataclass
class _Job:
    """What is measured, and what came of it."""

    url: str
    plan: Plan
    flags: Flags
    output: Output
    runs: list[Run] = field(default_factory=list)
    found: Found | None = None
    hunted: Hunt | None = None
    interrupted: bool = False
    fault: InferometerError | None = None
    """What ended the work after some points were done."""

    @property
    def arm(self) -> str:
        """The name of its arm."""
        return self.plan.arm.name if self.plan.arm else ""

    def measure(self) -> None:
        """Measure the points, or search; what is done is kept also where it does not come to its end."""
        from inferometer.report.live import View
        from inferometer.report.terminal import make_console

        with View(make_console(stderr=True), show=not self.output.quiet) as view:

            def on_run(run: Run) -> None:
                self.runs.append(run)
                view.finished(run)

            try:
                self._work(view.watch, on_run)
            except KeyboardInterrupt:
                self.interrupted = True
            except InferometerError as why:
                if not self.runs:
                    raise
                self.fault = why
        self.interrupted |= bool(self.runs) and self.runs[-1].meta.partial == "interrupted"

    def _work(self, watch: Callable[[Any], None], on_run: Callable[[Run], None]) -> None:
        sweep = self.flags.sweep
        (self._search if sweep.search else self._hunt if sweep.hunt else self._sweep)(watch, on_run)

    def _common(self) -> dict[str, Any]:
        plan, server = self.plan, self.flags.server
        return {
            "model": server.model,
            "endpoint": plan.endpoint,
            "metrics_url": server.metrics_url,
            "server_log": server.server_log,
            **plan.options,
        }

    def _sweep(self, watch: Callable[[Any], None], on_run: Callable[[Run], None]) -> None:
        from inferometer.benchmark.sweep import bench_sweep

        sweep = self.flags.sweep
        self.runs = bench_sweep(
            self.url,
            self.plan.workloads,
            repeats=1 if sweep.repeats is None else sweep.repeats,
            refine=sweep.refine or 0,
            stop_when_overloaded=not sweep.keep_going,
            resume=sweep.resume,
            watch=watch,
            on_run=on_run,
            slo=self.plan.slo.table(),
            **self._common(),
        )

    def _search(self, watch: Callable[[Any], None], on_run: Callable[[Run], None]) -> None:
        from inferometer.benchmark.search import bench_search

        sweep, workloads = self.flags.sweep, sorted(self.plan.workloads, key=_level)
        highest = _level(workloads[-1]) if sweep.highest is None and len(workloads) > 1 else sweep.highest
        self.found = bench_search(
            self.url,
            workloads[0],
            self.plan.slo,
            highest=highest,
            resolution=0.05 if sweep.resolution is None else sweep.resolution,
            watch=watch,
            on_run=on_run,
            **self._common(),
        )

    def _hunt(self, watch: Callable[[Any], None], on_run: Callable[[Run], None]) -> None:
        from inferometer.scoring.hunt import hunt

        sweep, given = self.flags.sweep, self.flags.load.concurrency
        users = levels("--concurrency", given, whole_numbers=True) if given else []
        highest = sweep.highest if sweep.highest is not None or len(users) < 2 else max(users)
        assert sweep.hunt is not None
        assert self.plan.arm is not None
        self.hunted = hunt(
            self.url,
            self.plan.arm,
            sweep.hunt,
            lowest=int(min(users, default=1)),
            highest=None if highest is None else int(highest),
            resolution=0.05 if sweep.resolution is None else sweep.resolution,
            profile=sweep.profile,
            watch=watch,
            on_run=on_run,
            **self._common(),
        )

    def status(self) -> int:
        """1 where something failed, cannot be trusted, is not whole, or was looked for and not found."""
        bad = any(run.meta.unfit or run.meta.partial or self._failing(run) for run in self.runs)
        missed = self.hunted is not None and (self.hunted.found is None) != (self.hunted.predicted is None)
        return int(bad or missed or (self.found is not None and self.found.level is None))

    def _failing(self, run: Run) -> bool:
        failed = run.requests.height - run.requests["error"].null_count()
        return failed > self.flags.stop.tolerate_failures * run.requests.height

    def report(self, store: str | None) -> None:
        """Print what came of it, as asked for."""
        from inferometer.report import terminal

        if self.output.json or self.output.quiet:
            self.warn()
        if self.output.json:
            print_json(self.document(store))
        elif self.output.quiet:
            self.say_briefly()
        else:
            console = terminal.make_console()
            self.show(console)
            self._say_where(console, store, self.runs)

    def warn(self) -> None:
        """Say on standard error what must not be overlooked."""
        from inferometer.report import measured

        for line in (*measured.warnings(self.runs), *measured.error_lines(self.runs, ERROR_WIDTH)):
            print(line, file=sys.stderr)

    def say_briefly(self) -> None:
        """The answer of a search or a hunt, and the ids."""
        from inferometer.report import hunt_view, measured

        if self.found:
            print(measured.found_lines(self.found)[0])
        if self.hunted:
            print(hunt_view.answer(self.hunted))
        print("\n".join(run.id for run in self.runs))

    def show(self, console: Console) -> None:
        """The runs as a terminal has them."""
        from inferometer.report import hunt_view, measured, terminal

        if self.hunted:
            hunt_view.report(self.hunted, self.plan.workloads[0], console)
        else:
            measured.report(self.runs, self.plan.workloads[0], self.plan.slo, console, self.found)
        chosen = self.found or self.hunted
        skipped = "" if chosen else measured.left_out(self.runs, self.plan.workloads)
        if skipped:
            terminal.say(console, f"\n{skipped}")
        terminal.say(console)

    def document(self, store: str | None) -> dict[str, Any]:
        """The runs as JSON has them, what the sweep says, and what a search found."""
        from inferometer.records.overload import overloaded

        pairs = [(run, run.summary()) for run in self.runs]
        document = {
            "schema": RUNS_SCHEMA,
            "store": str(self._store_path(store)) if self._kept else None,
            "runs": [{**run_dict(run, each), "overloaded": overloaded(run, each)} for run, each in pairs],
            **self.of_sweep(),
        }
        found = {} if self.found is None else {"search": search_dict(self.found)}
        return document | found | ({} if self.hunted is None else {"hunt": self.hunted.to_dict()})

    def of_sweep(self) -> dict[str, Any]:
        """Knees and goodput over the runs."""
        from inferometer.prediction.predict import goodput_dict
        from inferometer.records.metrics import throughput_knee, ttft_knee
        from inferometer.report.measured import sweep_goodput_of

        whole = [run for run in self.runs if not run.meta.partial]
        return {
            "throughput_knee_concurrency": throughput_knee(whole),
            "ttft_knee_concurrency": ttft_knee(whole),
            "goodput": goodput_dict(sweep_goodput_of(self.runs, self.plan.slo)),
        }

    @property
    def _kept(self) -> bool:
        return self.plan.options.get("store") is not False

    def _store_path(self, store: str | None) -> Any:
        from inferometer.store import store_path

        return store_path(store)

    def _say_where(self, console: Console, store: str | None, runs: list[Run]) -> None:
        """Where the runs are, and the command that lays them beside a prediction."""
        from inferometer.report import terminal
        from inferometer.report.measured import answered

        if not self._kept:
            terminal.say(console, "Not kept (--no-store).", style=terminal.FAINT)
            return
        path = str(self._store_path(store))
        where = [] if path == ".inferometer" else ["--store", path]
        ids = [run.id for run in runs]
        several = f", {len(ids)} runs; the last" if len(ids) > 1 else ""
        shown = shlex.join(["inferometer", "runs", "show", ids[-1], *where])
        terminal.command(console, f"Kept in {path}{several}:  ", shown)
        ids = [run.id for run in runs if answered(run)]
        if not ids:
            return
        words = self._study_words() if self.plan.study else "STUDY"
        terminal.command(console, "Beside its prediction:  ", f"inferometer score {words} {shlex.join([*ids, *where])}")

    def _study_words(self) -> str:
        """How the study is named to another command; after a hunt, with what it tried in place of its points."""
        flags, overrides = self.plan.flags, self.plan.overrides
        if self.hunted and self.hunted.trials:
            tried = ",".join(str(trial.concurrency) for trial in self.hunted.trials)
            if self.arm == "base":
                flags = replace(flags, concurrency=tried)
            else:
                overrides = (*overrides, f"arm.{self.arm}.workload.concurrency=[{tried}]")
        return study_words(self.plan.study, flags, overrides)


@dataclass
class _Arms:
    """The arms that were measured, those that need another server, and those not come to."""

    jobs: list[_Job]
    skipped: dict[str, str]
    left: list[str]

    def report(self, store: str | None) -> None:
        """Print what came of all of them."""
        from inferometer.report import terminal

        first = self.jobs[0]
        if first.output.json or first.output.quiet:
            for job in self.jobs:
                job.warn()
            for line in self.lines():
                print(line, file=sys.stderr)
        if first.output.json:
            print_json(self.document(store))
        elif first.output.quiet:
            for job in self.jobs:
                job.say_briefly()
        else:
            console = terminal.make_console()
            for job in self.jobs:
                terminal.say(console, f"Arm {job.arm}", style=terminal.HEADING)
                job.show(console)
            for line in self.lines():
                terminal.say(console, line, style=terminal.FAINT)
            first._say_where(console, store, [run for job in self.jobs for run in job.runs])

    def lines(self) -> list[str]:
        """Which arms were not measured, and why."""
        left = [f"Not measured: {', '.join(self.left)}."] if self.left else []
        return [*left, *(f"Skipped {name}: {why}." for name, why in self.skipped.items())]

    def document(self, store: str | None) -> dict[str, Any]:
        """As of the first arm, with the runs of all and what each arm's sweep says."""
        documents = [job.document(store) for job in self.jobs]
        runs = [run for document in documents for run in document["runs"]]
        arms = [{"name": job.arm, "runs": [run.id for run in job.runs], **job.of_sweep()} for job in self.jobs]
        skipped = [{"name": name, "why": why} for name, why in self.skipped.items()]
        return {**documents[0], "runs": runs, "arms": arms, "skipped_arms": skipped}


def _level(workload: Any) -> float:
    return float(workload.concurrency or workload.rate_per_s or 0.0)


def search_dict(found: Found) -> dict[str, Any]:
    """What a search found, as JSON has it."""
    import msgspec

    trials = [{**msgspec.structs.asdict(trial), "attainment": trial.attainment} for trial in found.trials]
    limits = {name.replace("_s", "_ms"): limit * 1000 for name, limit in found.slo.limits().items()}
    return {
        "by": found.by,
        "slo": {**limits, "attainment": found.slo.attainment},
        "level": found.level,
        "beyond": found.beyond,
        "resolved": found.resolved,
        "trials": trials,
    }
