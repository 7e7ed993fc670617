"""``inferometer compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from inferometer.cli.measured import measured_runs
from inferometer.cli.options import Output, Storage
from inferometer.cli.output import print_json

if TYPE_CHECKING:
    from inferometer.records.run import Run

EXAMPLES = """Examples:
  inferometer compare before.json after.json
  inferometer compare 3f2a9c 81b0d4 --margin 0.05
  inferometer compare runs/main runs/branch --fail-on cannot-tell --quiet
"""
FAILS = {"worse": ("worse",), "cannot-tell": ("worse", "cannot tell"), "any": ("worse", "cannot tell", "better")}
"""The verdicts that exit with 1, by --fail-on."""


def compare(
    a: str,
    b: str,
    /,
    *,
    margin: Annotated[float, Parameter(help="Share within which a change does not matter.")] = 0.02,
    confidence: Annotated[float, Parameter(help="Of the intervals and of the verdict.")] = 0.95,
    fail_on: Annotated[
        Literal["worse", "cannot-tell", "any"],
        Parameter(help="Exit 1 if B is worse; or also if it cannot be told; or at anything but the same."),
    ] = "worse",
    ttft_ms: Annotated[float | None, Parameter(help="Limit whose attainment is compared; else the runs' own.")] = None,
    tpot_ms: Annotated[float | None, Parameter(help="The same for the time per output token.")] = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Compare two measurements of one load, or two sweeps: is B better or worse than A?

    Intervals come from the repeats of each load where there are three a side, else from the
    requests. Exit status 1 if B is worse (see --fail-on).

    Parameters
    ----------
    a
        What was before: result files, a folder, a glob or ids of runs in the store, several
        with commas.
    b
        What is now, likewise.
    """
    from inferometer.report import compare_view, terminal
    from inferometer.scoring.compare import compare as compare_runs

    limits = {"ttft_s": ttft_ms, "tpot_s": tpot_ms}
    slo = {name: limit / 1000 for name, limit in limits.items() if limit is not None}
    before, after = (_runs(given, storage.store) for given in (a, b))
    found = compare_runs(before, after, confidence, margin=margin, slo=slo or None)
    if output.json:
        print_json(found.to_dict())
    elif output.quiet:
        print(found.verdict)
    else:
        compare_view.report(found, terminal.make_console())
    return int(found.verdict in FAILS[fail_on])


def _runs(given: str, store: str | None) -> list[Run]:
    """The runs of one side: what is given is one thing, or several with commas between."""
    parts = [given] if Path(given).exists() else given.split(",")
    return measured_runs([part.strip() for part in parts], store)
