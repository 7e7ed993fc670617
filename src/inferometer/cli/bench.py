"""``inferometer bench``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from inferometer.cli.bench_flags import Connection, Flags, Load, Plan, Prompts, Server, Stop, Sweep, by_flag
from inferometer.cli.options import COMMON, Output, Storage, study_words
from inferometer.cli.output import RUNS_SCHEMA, print_json, run_dict
from inferometer.errors import InferometerError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from inferometer.benchmark.search import Found
    from inferometer.records.run import Run

EXAMPLES = """Examples:
  inferometer bench http://127.0.0.1:8000 studies/a100-qwen3-8b.toml
  inferometer bench http://127.0.0.1:8000 --concurrency 1..64 --output-tokens 128
  inferometer bench https://host/v1 --endpoint chat --request-rate 1,2,4 --duration-s 120
  inferometer bench http://127.0.0.1:8000 --concurrency 1..256 --search --ttft-ms 500 --tpot-ms 50
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
    --tolerate-failures), a run is unfit or broken off, or no load met the limits of a --search.

    Parameters
    ----------
    url
        http://HOST:PORT, with or without /v1; https://...; unix:///PATH.
    study
        Study file, or the name of a packaged study, whose points are the loads.
    """
    flags = Flags(load, prompts, stop, sweep, connection, server)
    try:
        return _bench(url, flags, flags.plan(study, arm), arm, seed, name, False if no_store else storage.store, output)
    except InputError as why:
        raise by_flag(why, flags) from why


def _bench(
    url: str,
    flags: Flags,
    plan: Plan,
    arm: str | None,
    seed: int | None,
    name: str | None,
    store: str | Literal[False] | None,
    output: Output,
) -> int:
    plan.options |= {"arm": arm}
    given = {"seed": seed, "name": name, "store": store}
    plan.options |= {key: value for key, value in given.items() if value is not None}
    job = _Job(url, plan, flags, output)
    job.measure()
    if job.runs:
        job.report(store or None)
    if job.fault:
        raise job.fault
    return INTERRUPTED if job.interrupted else job.status()


@dataclass
class _Job:
    """What is measured, and what came of it."""

    url: str
    plan: Plan
    flags: Flags
    output: Output
    runs: list[Run] = field(default_factory=list)
    found: Found | None = None
    interrupted: bool = False
    fault: InferometerError | None = None
    """What ended the work after some points were done."""

    def measure(self) -> None:
        """Measure the points, or search; what is done is kept also where it does not come to its end."""
        from inferometer.report.live import View
        from inferometer.report.terminal import make_console

        with View(make_console(stderr=True), show=not self.output.quiet) as view:

            def on_run(run: Run) -> None:
                self.runs.append(run)
                view.finished(run)

            try:
                (self._search if self.flags.sweep.search else self._sweep)(view.watch, on_run)
            except KeyboardInterrupt:
                self.interrupted = True
            except InferometerError as why:
                if not self.runs:
                    raise
                self.fault = why
        self.interrupted |= bool(self.runs) and self.runs[-1].meta.partial == "interrupted"

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

    def status(self) -> int:
        """1 where something failed, cannot be trusted, is not whole, or was looked for and not found."""
        bad = any(run.meta.unfit or run.meta.partial or self._failing(run) for run in self.runs)
        return int(bad or (self.found is not None and self.found.level is None))

    def _failing(self, run: Run) -> bool:
        failed = run.requests.height - run.requests["error"].null_count()
        return failed > self.flags.stop.tolerate_failures * run.requests.height

    def report(self, store: str | None) -> None:
        """Print what came of it, as asked for."""
        from inferometer.report import measured, terminal

        if self.output.json or self.output.quiet:
            for line in (*measured.warnings(self.runs), *measured.error_lines(self.runs, ERROR_WIDTH)):
                print(line, file=sys.stderr)
        if self.output.json:
            print_json(self.document(store))
        elif self.output.quiet:
            if self.found:
                print(measured.found_lines(self.found)[0])
            print("\n".join(run.id for run in self.runs))
        else:
            console = terminal.make_console()
            measured.report(self.runs, self.plan.workloads[0], self.plan.slo, console, self.found)
            skipped = "" if self.found else measured.left_out(self.runs, self.plan.workloads)
            if skipped:
                terminal.say(console, f"\n{skipped}")
            terminal.say(console)
            self._say_where(console, store)

    def document(self, store: str | None) -> dict[str, Any]:
        """The runs as JSON has them, what the sweep says, and what a search found."""
        from inferometer.prediction.predict import goodput_dict
        from inferometer.records.metrics import throughput_knee, ttft_knee
        from inferometer.records.overload import overloaded
        from inferometer.report.measured import sweep_goodput_of

        pairs = [(run, run.summary()) for run in self.runs]
        whole = [run for run in self.runs if not run.meta.partial]
        document = {
            "schema": RUNS_SCHEMA,
            "store": str(self._store_path(store)) if self._kept else None,
            "runs": [{**run_dict(run, each), "overloaded": overloaded(run, each)} for run, each in pairs],
            "throughput_knee_concurrency": throughput_knee(whole),
            "ttft_knee_concurrency": ttft_knee(whole),
            "goodput": goodput_dict(sweep_goodput_of(self.runs, self.plan.slo)),
        }
        return document if self.found is None else {**document, "search": search_dict(self.found)}

    @property
    def _kept(self) -> bool:
        return self.plan.options.get("store") is not False

    def _store_path(self, store: str | None) -> Any:
        from inferometer.store import store_path

        return store_path(store)

    def _say_where(self, console: Console, store: str | None) -> None:
        """Where the runs are, and the command that lays them beside a prediction."""
        from inferometer.report import terminal
        from inferometer.report.measured import answered

        if not self._kept:
            terminal.say(console, "Not kept (--no-store).", style=terminal.FAINT)
            return
        path = str(self._store_path(store))
        where = [] if path == ".inferometer" else ["--store", path]
        ids = [run.id for run in self.runs]
        several = f", {len(ids)} runs; the last" if len(ids) > 1 else ""
        shown = shlex.join(["inferometer", "runs", "show", ids[-1], *where])
        terminal.command(console, f"Kept in {path}{several}:  ", shown)
        ids = [run.id for run in self.runs if answered(run)]
        if not ids:
            return
        words = study_words(self.plan.study, self.plan.flags, self.plan.overrides) if self.plan.study else "STUDY"
        terminal.command(console, "Beside its prediction:  ", f"inferometer score {words} {shlex.join([*ids, *where])}")


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
