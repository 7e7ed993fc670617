"""What commands read as measurements: files, folders, globs and ids, with what the server said beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from inferometer.errors import InputError

if TYPE_CHECKING:
    from inferometer.records.run import Run


@Parameter(name="*")
@dataclass(frozen=True)
class ServerSide:
    """What the server said, in files of its own."""

    metrics: Annotated[
        str | None,
        Parameter(
            help="Saved /metrics pages to join to measured files: a file, a folder or glob matched by name, or auto: "
            "beside each result."
        ),
    ] = None
    server_log: Annotated[str | None, Parameter(help="The engine's log, to join to measured files.")] = None

    def words(self) -> list[str]:
        """As they are written on a command line."""
        given = (("--metrics", self.metrics), ("--server-log", self.server_log))
        return [word for flag, value in given if value is not None for word in (flag, value)]


def measured_runs(given: Iterable[str], store: str | None, server: ServerSide = ServerSide()) -> list[Run]:
    """The runs of files, folders and globs, and those of the store whose ids are so or start so, joined to ``server``.

    Raises `InputError` where there is neither.
    """
    return [run for each in given for run in _runs(each, store, server)]


def _runs(given: str, store: str | None, server: ServerSide) -> list[Run]:
    from glob import has_magic

    from inferometer.records.importers import load

    if Path(given).exists() or has_magic(given):
        return load(given, server.metrics, server.server_log)
    run = _stored(given, store)
    if server == ServerSide():
        return [run]
    from inferometer.records.attach import with_server

    return [with_server(run, server.metrics, server.server_log)]


def _stored(given: str, store: str | None) -> Run:
    from inferometer.errors import UnknownNameError
    from inferometer.store import Store

    try:
        return Store(store).load(given)
    except UnknownNameError:
        allowed = "a result file, folder or glob that exists, or the id of a run in the store"
        raise InputError("measured", given, allowed) from None
