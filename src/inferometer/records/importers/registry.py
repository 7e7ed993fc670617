"""Which importers there are, and `load`, which finds the one that reads a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from glob import glob, has_magic
from importlib.metadata import entry_points
from math import isclose
from pathlib import Path
from typing import Protocol

from inferometer.errors import FormatError, InferometerWarning, InputError
from inferometer.records.attach import with_server
from inferometer.records.importers import (
    aiperf,
    genai_perf,
    guidellm,
    inference_perf,
    inferencex,
    llmd_report,
    metrics_pages,
    request_table,
    server_log,
    sglang,
    sweep_table,
    vllm_bench,
)
from inferometer.records.importers.files import json_fault, read_bytes
from inferometer.records.run import Run

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".yaml", ".yml", ".log", ".txt", ".prom")
"""Files that `load` looks at in a folder."""


class Importer(Protocol):
    """A format: whether a file is of it, and its runs. A module or any object with these two.

    One whose tool writes several files for a run may have ``read_together(paths)`` too: the runs of all its files in
    one folder.
    """

    def sniff(self, path: Path) -> bool:
        """Whether this file looks like the format; never raises for a file that is not."""

    def read(self, path: Path) -> list[Run]:
        """The runs in it. Raises `FormatError` with the file's name and what was expected."""


IMPORTERS: dict[str, Importer] = {
    "InferenceX result (JSON)": inferencex,
    "vllm bench serve result (JSON)": vllm_bench,
    "SGLang bench_serving result (JSON lines)": sglang,
    "GuideLLM report (JSON)": guidellm,
    "AIPerf export (JSON, JSON lines, CSV)": aiperf,
    "GenAI-Perf export (JSON)": genai_perf,
    "inference-perf report (JSON)": inference_perf,
    "llm-d benchmark report (YAML, JSON)": llmd_report,
    "server log (text)": server_log,
    "saved /metrics pages (text)": metrics_pages,
    "request table (CSV, JSONL)": request_table,
    "sweep table (CSV, JSONL)": sweep_table,
}
"""Built-in formats, asked in this order."""

ENTRY_POINTS = "inferometer.importers"
"""The entry point group of other packages' importers, asked after the built-in ones."""


def importers() -> dict[str, Importer]:
    """Every format by name: the built-in ones, then those that other packages register by entry point."""
    return {**IMPORTERS, **{found.name: found.load() for found in entry_points(group=ENTRY_POINTS)}}


Source = str | os.PathLike[str]

SIBLINGS = "auto"
"""As ``metrics``: the pages that lie beside each result and are named after it."""


def load(source: Source, metrics: Source | None = None, server_log: Source | None = None) -> list[Run]:
    """Every run in a result file, in the files that match a glob, or in a folder's result files, in order of name.

    Files that lie in one folder are read together: a run's several files make one run. A folder without a result file
    of its own gives those of its subfolders, one level down, in order of name.

    In a folder or a glob, files of no known format are passed over, and so is one that is not even complete JSON, as a
    benchmark that was killed leaves it: with an `InferometerWarning` that names it, and only beside some other result.
    Saved pages and logs of servers beside results are no runs of their own there.

    ``metrics`` and ``server_log`` join what the server said to each run (`records.attach.with_server`). ``metrics``: a
    file of saved ``/metrics`` pages, which may span all runs; a folder or glob of such files, each for the run of its
    name (``c1.metrics.prom`` for ``c1.json``); ``"auto"``: those beside the results. ``server_log``: the engine's log.

    Raises `InputError` where nothing is there, `FormatError` for a file given by its name that is truncated, and where
    there is nothing but what is truncated, empty or of no known format.

    >>> load("nothing.json")
    Traceback (most recent call last):
    inferometer.errors.InputError: path: 'nothing.json' is not allowed; give a result file, folder or glob that exists
    """
    groups = _groups(source)
    if metrics is None and server_log is None:
        return [run for _, runs in groups for run in runs]
    return _joined(groups, metrics, server_log)


def _groups(source: Source) -> list[tuple[Path, list[Run]]]:
    """The runs by the folder that their files lie in."""
    path = Path(source)
    if path.is_dir():
        return _load_folder(path)
    if not path.exists() and has_magic(str(source)):
        return _load_matches(str(source))
    if not path.exists():
        raise InputError("path", str(source), "a result file, folder or glob that exists")
    return [(path.parent, _load_file(path))]


def _joined(groups: list[tuple[Path, list[Run]]], metrics: Source | None, server_log: Source | None) -> list[Run]:
    """The runs of requests, each with its server's side."""
    log = None if server_log is None else Path(server_log)
    results = [(folder, [run for run in runs if not _is_servers(run)]) for folder, runs in groups]
    pairs = [(run, _pages_of(run, folder, metrics)) for folder, runs in results for run in runs]
    if not pairs:
        raise InputError.because("nothing to join the server's side to: no run of requests among the files given")
    if metrics is not None and all(pages is None for _, pages in pairs):
        names = ", ".join(run.meta.source or run.meta.name for run, _ in pairs[:3])
        raise InputError("metrics", str(metrics), f"a file of pages, or some named as the results are ({names})")
    return [_with_server(run, pages, log) for run, pages in pairs]


def _is_servers(run: Run) -> bool:
    """Whether this is the server's side alone."""
    return not run.requests.height and not run.meta.stated and bool(run.server.height or run.meta.server)


def _with_server(run: Run, pages: Path | None, log: Path | None) -> Run:
    if pages is None and log is None:
        run.meta.notes.append("no saved /metrics pages of its name: nothing is joined")
        return run
    return with_server(run, pages, log)


def _pages_of(run: Run, folder: Path, metrics: Source | None) -> Path | None:
    """The file of pages for a run: the one given, or of several the one of its name; None where there is none."""
    if metrics is None:
        return None
    given = folder if str(metrics) == SIBLINGS else Path(metrics)
    if given.is_dir():
        files = sorted(path for path in given.iterdir() if path.is_file())
    elif has_magic(str(metrics)) and not given.exists():
        files = sorted(map(Path, glob(str(metrics), recursive=True)))
    elif given.is_file():
        return given
    else:
        raise InputError("metrics", str(metrics), f"a file, folder or glob of saved /metrics pages, or {SIBLINGS!r}")
    names = {Path(run.meta.source or "").stem, run.meta.name}
    return next((path for path in files if _pages_name(path) in names and metrics_pages.sniff(path)), None)


def _pages_name(path: Path) -> str:
    """The name of the run that a file of pages is of: ``c1`` of ``c1.metrics.prom`` and ``c1.prom``."""
    return path.stem.removesuffix(".metrics")


def _load_matches(pattern: str) -> list[tuple[Path, list[Run]]]:
    """The runs of the files that match, each folder's together. Of matches that are all unknown the first is named."""
    files = [path for path in map(Path, sorted(glob(pattern, recursive=True))) if path.is_file()]
    if not files:
        raise InputError("path", pattern, "a glob that matches at least one file")
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    cut: list[Path] = []
    groups = [(folder, _load_files(together, cut)) for folder, together in folders.items()]
    found = _results(groups, cut)
    if not found:
        raise _unknown(files[0])
    return found


def _load_folder(folder: Path) -> list[tuple[Path, list[Run]]]:
    cut: list[Path] = []
    groups = [(folder, _load_files(_result_files(folder), cut))]
    if not groups[0][1]:
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        groups = [(path, _load_files(_result_files(path), cut)) for path in below]
    found = _results(groups, cut)
    if not found:
        raise FormatError.because(f"{folder.name}: no result file in this folder; known formats: {_known()}")
    return found


def _results(groups: list[tuple[Path, list[Run]]], cut: Sequence[Path]) -> list[tuple[Path, list[Run]]]:
    """The results without the server's side beside them; that alone where nothing else is there, or an empty list.

    Warns of the files that are cut short. Raises `FormatError` for the first of them where there is no result.
    """
    results = [(folder, [run for run in runs if not _is_servers(run)]) for folder, runs in groups]
    if not any(runs for _, runs in results):
        if cut:
            raise _unknown(cut[0])
        return groups if any(runs for _, runs in groups) else []
    for path in cut:
        warnings.warn(f"{path} is passed over: {_fault(path)}", InferometerWarning, stacklevel=2)
    return results


def _result_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def _load_files(files: Iterable[Path], cut: list[Path]) -> list[Run]:
    """The runs of one folder's files, in order of name; ``cut`` gains those that are not even complete JSON."""
    found: list[tuple[Importer, Path]] = []
    for path in files:
        importer = _find(path)
        if importer is not None:
            found.append((importer, path))
        elif path.suffix.lower().startswith((".json", ".ndjson")) and json_fault(path):
            cut.append(path)
    runs = [run for importer, paths in _by_importer(found) for run in _read_whole(importer, paths, cut)]
    return _without_repeats(runs)


def _read_whole(importer: Importer, paths: list[Path], cut: list[Path]) -> list[Run]:
    """The runs of those files that are whole; ``cut`` gains the others."""
    try:
        return _read_together(importer, paths)
    except FormatError:
        broken = [path for path in paths if json_fault(path)]
        if not broken:
            raise
        cut.extend(broken)
        whole = [path for path in paths if path not in broken]
        return _read_together(importer, whole) if whole else []


def _by_importer(found: Sequence[tuple[Importer, Path]]) -> list[tuple[Importer, list[Path]]]:
    """Files in order of name; those of an importer that reads a folder's files together stand at the first of them."""
    groups: list[tuple[Importer, list[Path]]] = []
    for importer, path in found:
        group = next((paths for other, paths in groups if other is importer), None)
        if group is not None and hasattr(importer, "read_together"):
            group.append(path)
        else:
            groups.append((importer, [path]))
    return groups


def _read_together(importer: Importer, paths: list[Path]) -> list[Run]:
    together = getattr(importer, "read_together", None)
    if together is not None:
        runs: list[Run] = together(paths)
        return runs
    return [run for path in paths for run in importer.read(path)]


def _without_repeats(runs: list[Run]) -> list[Run]:
    """Without the runs that only state again what another run of the folder states: a report converted from it."""
    kept: list[Run] = []
    for run in sorted(runs, key=lambda run: (-run.requests.height, -len(run.meta.stated))):
        original = next((other for other in kept if not run.requests.height and _repeats(run, other)), None)
        if original is None:
            kept.append(run)
        else:
            original.meta.notes.append(f"stated again in {run.meta.source}, which is left out")
    return [run for run in runs if any(run is other for other in kept)]


def _repeats(run: Run, other: Run) -> bool:
    """Whether both state the same mean TTFT and E2E to the last digits, which two runs of different requests do not."""
    pairs = [(run.meta.stated.get(path), other.meta.stated.get(path)) for path in ("ttft_s.mean", "e2e_s.mean")]
    same_file = run.meta.source == other.meta.source
    return not same_file and all(a is not None and b is not None and isclose(a, b, rel_tol=1e-9) for a, b in pairs)


def _load_file(path: Path) -> list[Run]:
    importer = _find(path)
    if importer is None:
        raise _unknown(path)
    return importer.read(path)


def _find(path: Path) -> Importer | None:
    return next((importer for importer in importers().values() if importer.sniff(path)), None)


def _unknown(path: Path) -> InputError:
    """Why no importer takes this file, and what would be taken."""
    what = _fault(path) or "not a result file of a known format"
    return FormatError.because(f"{path.name}: {what}; expected one of: {_known()}")


def _fault(path: Path) -> str | None:
    """Why a file cannot be of any format; None where it may be of one."""
    if not read_bytes(path).strip():
        return "the file is empty"
    fault = json_fault(path)
    return f"not complete JSON ({fault})" if fault else None


def _known() -> str:
    return ", ".join(importers())
