"""``inferometer verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from inferometer.cli.options import Output, Storage
from inferometer.cli.output import print_json
from inferometer.errors import InputError

if TYPE_CHECKING:
    from inferometer.prediction.verification import Verification

EXAMPLES = """Examples:
  inferometer verify .inferometer/predictions/3f2a9c0d11e54b72.json
  inferometer verify 3f2a9c0d11e54b72.json --sha256 3f2a9c0d11e5
  inferometer verify                      every seal of the store, and their chain
"""
SCHEMA = "inferometer/verification/1"


def verify(
    *paths: str,
    sha256: Annotated[
        str | None, Parameter(help="The hash as it was written down elsewhere, or its first 12 digits or more.")
    ] = None,
    output: Output = Output(),  # noqa: B008
    storage: Storage = Storage(),  # noqa: B008
) -> int:
    """Check that sealed predictions are what was sealed: every digit, the time, and the chain.

    The hash is computed again; a changed digit, a changed time and a key that stands twice
    are found. Of a folder the chain is walked too: each seal names the one before it. Whoever
    can write the files can write a whole new chain; against that, --sha256 compares with a
    hash that was kept elsewhere.

    Exit status 1 if anything is not sound.

    Parameters
    ----------
    paths
        Sealed predictions, or folders of them; none: the store.
    """
    from inferometer.prediction.seal import verify as verify_seal
    from inferometer.store import store_path

    if sha256 is not None and len(paths) > 1:
        raise InputError("--sha256", sha256, "one path with it: a hash is of one seal")
    found = [verify_seal(path, sha256) for path in paths or (str(store_path(storage.store)),)]
    if output.json:
        print_json({"schema": SCHEMA, "ok": all(found), "seals": [each.to_dict() for each in found]})
    else:
        for each in found:
            _say(each, quiet=output.quiet)
    return 0 if all(found) else 1


def _say(found: Verification, *, quiet: bool) -> None:
    """One line, and one for each further fault or note."""
    from inferometer.report import terminal

    console = terminal.make_console()
    if found.ok and quiet:
        return
    many = f" {len(found.seals)} seal{'s' * (len(found.seals) != 1)} in one chain, the last" if found.seals else ""
    if found.ok:
        terminal.command(console, "Sound: ", f"{found.path},{many} sealed {found.time}  sha256 {found.sha256}")
    else:
        console.print(f"[{terminal.BAD}]Not sound:[/] {found.path}", soft_wrap=True, markup=True)
        for fault in found.faults:
            terminal.say(console, f"  {fault}")
    for note in found.notes if not quiet else ():
        terminal.say(console, f"  {note}", style=terminal.FAINT)
