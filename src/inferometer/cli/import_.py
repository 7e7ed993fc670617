"""``inferometer import``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from inferometer.cli.options import Output, Storage
from inferometer.cli.output import RUNS_SCHEMA, print_json, run_dict, writing
from inferometer.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferometer.records.run import Run

EXAMPLES = """Examples:
  inferometer import result.json
  inferometer import results/ 'sweep_*.json' --json
  inferometer import c1.json --metrics c1.metrics.prom --server-log server.log
  inferometer import results/ --metrics auto --server-log server.log
"""


def import_(
    *files: str,
    metrics: Annotated[
        str | None,
        Parameter(help="Saved /metrics pages: a file, a folder or glob matched by name, or auto: beside each result."),
    ] = None,
    server_log: Annotated[str | None, Parameter(help="The engine's log; it may span all results.")] = None,
    no_store: Annotated[bool, Parameter(help="Do not keep the runs, only show them.")] = False,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Read benchmark results and keep them as runs.

    Formats: vllm bench serve, SGLang bench_serving, GuideLLM, AIPerf, GenAI-Perf, inference-perf,
    InferenceX, llm-d benchmark reports, request tables and sweep tables (CSV, JSON lines),
    server logs, saved /metrics pages.

    With --metrics and --server-log each run gets its server's samples, counters and facts. The two
    clocks are laid over each other by what both sides count; a note says how well.

    Parameters
    ----------
    files
        Result files, folders or globs.
    """
    if not files:
        raise InputError.because("nothing to import: give a result file, a folder or a glob")
    from inferometer.records.importers import load
    from inferometer.report import terminal
    from inferometer.store import Store

    runs = [run for file in files for run in load(file, metrics, server_log)]
    store = None if no_store else Store(storage.store)
    if store:
        with writing(store):
            for run in runs:
                store.save(run)
    console = terminal.make_console()
    if output.json:
        each = [run_dict(run) for run in runs]
        print_json({"schema": RUNS_SCHEMA, "store": str(store.path) if store else None, "runs": each})
    elif output.quiet:
        print("\n".join(run.id for run in runs))
    else:
        kept = f"kept in {store.path}" if store else "not kept"
        terminal.say(console, f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} read, {kept}.")
        if joined := _clocks(runs):
            terminal.say(console, joined)
        terminal.say(console)
        terminal.imported(runs, console)
        if store:
            terminal.say(console)
            terminal.command(console, "Compare it:  ", f"inferometer score STUDY {runs[0].id}")
    return 0


def _clocks(runs: Sequence[Run]) -> str:
    """How well the server's clock is laid over the client's, of the runs where that had to be found out."""
    known = sorted(run.meta.server["clock_uncertainty_s"] for run in runs if "clock_uncertainty_s" in run.meta.server)
    if not known:
        return ""
    span = " to ".join(dict.fromkeys(f"{within:#.2g}" for within in (known[0], known[-1])))
    return f"Joined with the server's side; the clocks agree within {span} s."
