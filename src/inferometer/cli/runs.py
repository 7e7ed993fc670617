"""``inferometer runs``: what the store holds."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from inferometer.cli.options import Output, Storage
from inferometer.cli.output import print_json, run_dict, writing

if TYPE_CHECKING:
    from inferometer.store import Store

EXAMPLES = """Examples:
  inferometer runs
  inferometer runs list --kind simulated --arm base
  inferometer runs show 3f2a9c --json
  inferometer runs export 3f2a9c --format llmd-report --output report.yaml
  inferometer runs delete 3f2a9c
"""
FAILED = re.compile(r"([\d,]+) of [\d,]+ requests? failed")
MOST_ERRORS = 10
"""Of those that ``runs show --json`` lists."""
Filter = Annotated[str | None, Parameter(help="Only runs of exactly this.")]
RunId = Annotated[str, Parameter(help="A run's id, or the start of it.")]

app = App(
    name="runs", help="List what the store holds; show, export or delete a run.", help_epilogue=EXAMPLES, sort_key=5
)


@app.default
def list_(
    *,
    kind: Annotated[str | None, Parameter(help="Only simulated, measured or imported runs.")] = None,
    model: Filter = None,
    chip: Filter = None,
    arm: Filter = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """List what the store holds, oldest first."""
    from inferometer.errors import InputError
    from inferometer.report import terminal

    if kind not in (None, "simulated", "measured", "imported"):
        raise InputError("--kind", kind, "simulated, measured or imported")
    wanted = {"kind": kind, "model": model, "chip": chip, "arm": arm}
    filters: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    store = _opened(storage)
    rows = store.list(**filters)
    console = terminal.make_console()
    if output.json:
        print_json({"schema": "inferometer/run-list/1", "store": str(store.path), "runs": rows})
    elif output.quiet:
        print("".join(f"{row['id']}\n" for row in rows), end="")
    else:
        so = " so filtered" if filters else ""
        terminal.say(console, f"{len(rows)} {'run' if len(rows) == 1 else 'runs'} in {store.path}{so}.")
        if rows:
            terminal.say(console)
            terminal.stored([{**row, "state": _state(store, row)} for row in rows], console)
    return 0


app.command(list_, name="list")


@app.command(name="show")
def show(run: RunId, /, *, output: Output = Output(), storage: Storage = Storage()) -> int:  # noqa: B008
    """Show one run: what it was, its rates, and how its latencies are distributed."""
    from inferometer.report import terminal

    found = _opened(storage).load(run)
    if output.json:
        print_json(
            {"schema": "inferometer/run/1", **run_dict(found), "errors": terminal.errors_of([found], MOST_ERRORS)}
        )
    elif output.quiet:
        print(found.id)
    else:
        terminal.run_details(found, terminal.make_console())
    return 0


@app.command(name="export")
def export(
    run: RunId,
    /,
    *,
    format: Annotated[
        Literal["vllm-bench", "llmd-report"],
        Parameter(help="vllm-bench: vllm bench serve's JSON; llmd-report: an llm-d benchmark report in YAML."),
    ],
    to: Annotated[
        Path | None, Parameter(name="--output", help="File to write; else it goes to standard output.")
    ] = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Write one run in another tool's format. What the format cannot hold is left out."""
    from inferometer.records import exporters

    found = _opened(storage).load(run)
    content = exporters.export(found, format, to)
    if to is None and output.json:
        print_json(exporters.to_llmd_report(found) if format == "llmd-report" else exporters.to_vllm_bench(found))
    elif to is None:
        print(content, end="")
    elif output.json:
        print_json({"schema": "inferometer/exported/1", "id": found.id, "format": format, "file": str(to)})
    else:
        print(to if output.quiet else f"Wrote {found.id} to {to}.")
    return 0


@app.command(name="delete")
def delete(*runs: RunId, output: Output = Output(), storage: Storage = Storage()) -> int:  # noqa: B008
    """Delete runs of the store, folder and index row."""
    from inferometer.errors import InputError

    if not runs:
        raise InputError.because("nothing to delete: give the id of a run")
    store = _opened(storage)
    with writing(store):
        deleted = [store.delete(run) for run in runs]
    if output.json:
        print_json({"schema": "inferometer/deleted/1", "store": str(store.path), "deleted": deleted})
    else:
        print("\n".join(each if output.quiet else f"Deleted {each}." for each in deleted))
    return 0


def _state(store: Store, row: dict[str, Any]) -> str:
    """What is wrong with a measured run, as its meta says: failures, why it is not whole, that it is unfit."""
    import msgspec

    if row["kind"] != "measured":
        return ""
    try:
        meta = msgspec.json.decode((store.runs / row["id"] / "meta.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return "unreadable"
    failed = [found[1] for note in meta.get("notes", ()) if (found := FAILED.match(note))]
    parts = [f"{failed[0]} failed"] if failed else []
    parts += [meta["partial"].partition(":")[0]] if meta.get("partial") else []
    parts += ["unfit"] if meta.get("unfit") else []
    return ", ".join(parts)


def _opened(storage: Storage) -> Store:
    """The store, with what killed benchmarks had measured taken in; that is said on standard error."""
    from inferometer.store import Store

    store = Store(storage.store)
    with writing(store):
        taken = store.recover()
    if taken:
        what = "benchmark" if len(taken) == 1 else "benchmarks"
        print(f"took in {len(taken)} interrupted {what}: {', '.join(taken)}", file=sys.stderr)
    return store
