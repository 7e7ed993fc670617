"""Which importers there are, and `load`, which finds the one that reads a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from glob import glob, has_magic
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from inferometer.errors import FormatError, InputError
from inferometer.records.importers import request_table, sweep_table, vllm_bench
from inferometer.records.importers.files import json_fault, read_bytes
from inferometer.records.run import Run

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv")
"""Files that `load` looks at in a folder."""


class Importer(Protocol):
    """A format: whether a file is of it, and its runs. A module or any object with these two."""

    def sniff(self, path: Path) -> bool:
        """Whether this file looks like the format; never raises for a file that is not."""

    def read(self, path: Path) -> list[Run]:
        """The runs in it. Raises `FormatError` with the file's name and what was expected."""


IMPORTERS: dict[str, Importer] = {
    "vllm bench serve result (JSON)": vllm_bench,
    "request table (CSV, JSONL)": request_table,
    "sweep table (CSV, JSONL)": sweep_table,
}
"""Built-in formats, asked in this order."""

ENTRY_POINTS = "inferometer.importers"
"""The entry point group of other packages' importers, asked after the built-in ones."""


def importers() -> dict[str, Importer]:
    """Every format by name: the built-in ones, then those that other packages register by entry point."""
    return {**IMPORTERS, **{found.name: found.load() for found in entry_points(group=ENTRY_POINTS)}}


def load(source: str | os.PathLike[str]) -> list[Run]:
    """Every run in a result file, in the files that match a glob, or in a folder's result files, in order of name.

    In a folder, files of no known format are passed over, but one that is not even complete JSON is an error.

    Raises `InputError` where nothing is there, `FormatError` for a file that is truncated, empty or of no known format.

    >>> load("nothing.json")
    Traceback (most recent call last):
    inferometer.errors.InputError: path: 'nothing.json' is not allowed; give a result file, folder or glob that exists
    """
    path = Path(source)
    if path.is_dir():
        return _load_folder(path)
    if not path.exists() and has_magic(str(source)):
        return [run for found in _matches(str(source)) for run in _load_file(found)]
    if not path.exists():
        raise InputError("path", str(source), "a result file, folder or glob that exists")
    return _load_file(path)


def _matches(pattern: str) -> Iterator[Path]:
    found = sorted(glob(pattern, recursive=True))
    files = [path for path in map(Path, found) if path.is_file()]
    if not files:
        raise InputError("path", pattern, "a glob that matches at least one file")
    yield from files


def _load_folder(folder: Path) -> list[Run]:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    runs: list[Run] = []
    for path in files:
        importer = _find(path)
        if importer is not None:
            runs += importer.read(path)
        elif path.suffix.lower() != ".csv" and json_fault(path):
            raise _unknown(path)
    if not runs:
        raise FormatError.because(f"{folder.name}: no result file in this folder; known formats: {_known()}")
    return runs


def _load_file(path: Path) -> list[Run]:
    importer = _find(path)
    if importer is None:
        raise _unknown(path)
    return importer.read(path)


def _find(path: Path) -> Importer | None:
    return next((importer for importer in importers().values() if importer.sniff(path)), None)


def _unknown(path: Path) -> InputError:
    """Why no importer takes this file, and what would be taken."""
    if not read_bytes(path).strip():
        what = "the file is empty"
    elif fault := json_fault(path):
        what = f"not complete JSON ({fault})"
    else:
        what = "not a result file of a known format"
    return FormatError.because(f"{path.name}: {what}; expected one of: {_known()}")


def _known() -> str:
    return ", ".join(importers())
