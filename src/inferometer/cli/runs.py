"""``inferometer runs``: what the store holds."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from inferometer.cli.options import Output, Storage
from inferometer.cli.output import print_json, run_dict, writing

EXAMPLES = """Examples:
  inferometer runs
  inferometer runs list --kind simulated --arm base
  inferometer runs show 3f2a9c --json
  inferometer runs delete 3f2a9c
"""
Filter = Annotated[str | None, Parameter(help="Only runs of exactly this.")]
RunId = Annotated[str, Parameter(help="A run's id, or the start of it.")]

app = App(name="runs", help="List what the store holds; show or delete a run.", help_epilogue=EXAMPLES, sort_key=5)


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
    from inferometer.store import Store

    if kind not in (None, "simulated", "measured", "imported"):
        raise InputError("--kind", kind, "simulated, measured or imported")
    wanted = {"kind": kind, "model": model, "chip": chip, "arm": arm}
    filters: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    store = Store(storage.store)
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
            terminal.stored(rows, console)
    return 0


app.command(list_, name="list")


@app.command(name="show")
def show(run: RunId, /, *, output: Output = Output(), storage: Storage = Storage()) -> int:  # noqa: B008
    """Show one run: what it was, its rates, and how its latencies are distributed."""
    from inferometer.report import terminal
    from inferometer.store import Store

    found = Store(storage.store).load(run)
    if output.json:
        print_json({"schema": "inferometer/run/1", **run_dict(found)})
    elif output.quiet:
        print(found.id)
    else:
        terminal.run_details(found, terminal.make_console())
    return 0


@app.command(name="delete")
def delete(*runs: RunId, output: Output = Output(), storage: Storage = Storage()) -> int:  # noqa: B008
    """Delete runs of the store, folder and index row."""
    from inferometer.errors import InputError
    from inferometer.store import Store

    if not runs:
        raise InputError.because("nothing to delete: give the id of a run")
    store = Store(storage.store)
    with writing(store):
        deleted = [store.delete(run) for run in runs]
    if output.json:
        print_json({"schema": "inferometer/deleted/1", "store": str(store.path), "deleted": deleted})
    else:
        print("\n".join(each if output.quiet else f"Deleted {each}." for each in deleted))
    return 0
