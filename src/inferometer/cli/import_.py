"""``inferometer import``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from inferometer.cli.options import Output, Storage
from inferometer.cli.output import RUNS_SCHEMA, print_json, run_dict, writing
from inferometer.errors import InputError

EXAMPLES = """Examples:
  inferometer import result.json
  inferometer import results/ 'sweep_*.json' --json
"""


def import_(
    *files: str,
    no_store: Annotated[bool, Parameter(help="Do not keep the runs, only show them.")] = False,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Read benchmark results and keep them as runs.

    Formats: vllm bench serve, SGLang bench_serving, GuideLLM, AIPerf, GenAI-Perf, inference-perf,
    InferenceX, llm-d benchmark reports, request tables and sweep tables (CSV, JSON lines),
    server logs, saved /metrics pages.

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

    runs = [run for file in files for run in load(file)]
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
        terminal.say(console)
        terminal.imported(runs, console)
        if store:
            terminal.say(console)
            terminal.command(console, "Compare it:  ", f"inferometer score STUDY {runs[0].id}")
    return 0
