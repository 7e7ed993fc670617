"""Where runs are kept: a folder a run with Parquet tables, and an SQLite index to list and filter them.

::

    .inferometer/
        index.sqlite3
        runs/<id>/meta.json requests.parquet server.parquet token_times.parquet
        running/<id>/...   the journal of a benchmark in progress, or of one that was killed (`inferometer.journal`)
        predictions/<start of its SHA-256>.json   sealed predictions (`inferometer.prediction.seal`), and a lock
        scores/<id>.json   scores, as their JSON

The folders are the truth; the index can be made again from them (`Store.reindex`). A run is written to a temporary
folder and renamed, so that it is there as a whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from inferometer import journal
from inferometer.errors import FormatError, InputError, UnknownNameError
from inferometer.records.run import Run, RunMeta, TokenTimes, content_id, make_run

Rows = list[dict[str, Any]]
Paths = list[Path]
Ids = list[str]

ENVIRONMENT = "INFEROMETER_STORE"
DEFAULT_FOLDER = ".inferometer"

SHA256 = re.compile(r"[0-9a-f]{64}")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""What an id may be: it names a folder."""

FILTERS = ("kind", "name", "tool", "model", "chip", "arm", "concurrency", "request_rate_per_s", "source_sha256")
"""Columns that `Store.list` can filter by."""

COLUMNS = (
    "id",
    "kind",
    "name",
    "tool",
    "tool_version",
    "created",
    "model",
    "chip",
    "arm",
    "concurrency",
    "request_rate_per_s",
    "source",
    "source_sha256",
    "requests",
    "output_tok_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
)
"""Columns of the index, and keys of a row of `Store.list`."""


def store_path(given: str | os.PathLike[str] | None = None) -> Path:
    """The store's folder: the one given, else that of ``INFEROMETER_STORE``, else ``.inferometer`` here."""
    return Path(given or os.environ.get(ENVIRONMENT) or DEFAULT_FOLDER)


class Store:
    """Runs on disk, by id. The folder is made when the first run is saved.

    >>> import tempfile
    >>> from inferometer.records.run import RunMeta, make_run
    >>> store = Store(tempfile.mkdtemp())
    >>> id = store.save(make_run(RunMeta(kind="imported", model="m"), {"sent_s": [0.0], "end_s": [1.0]}))
    >>> store.load(id[:6]).meta.model, [row["id"] for row in store.list(model="m")] == [id]
    ('m', True)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = store_path(path)
        self.runs = self.path / "runs"
        self.running = self.path / "running"
        self.predictions = self.path / "predictions"
        self._scores = self.path / "scores"

    def save(self, run: Run) -> str:
        """Keep a run and return its id: ``meta.id``, else from its content. Saving the same run again changes nothing.

        Raises `InputError` where the id is taken by a run of other content, or cannot name a folder.
        """
        run_id = _sound_id(run.id)
        target = self.runs / run_id
        if not target.exists():
            self._write(run, target)
        elif run_id != (content := content_id(run)) and content_id(_read(target)) != content:
            raise InputError("id", run_id, "an id that no other run in the store has")
        self._index([_row(run, run_id)])
        return run_id

    def load(self, run_id: str) -> Run:
        """The run of this id, or of the one that starts so. Raises `UnknownNameError`, or `InputError` for several."""
        return _read(self._find(run_id))

    def list(self, **filters: str | int | float) -> Rows:
        """Rows of the index (keys: `COLUMNS`) that equal every filter (`FILTERS`), oldest first.

        Raises `InputError` for a filter that is none.
        """
        for name in filters:
            if name not in FILTERS:
                raise InputError("filter", name, f"one of {', '.join(FILTERS)}")
        if not self._database.exists():
            return []
        where = " AND ".join(f"{name} = ?" for name in filters) or "1"
        with self._connect() as db:
            rows = db.execute(
                f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {where} ORDER BY rowid", tuple(filters.values())
            ).fetchall()
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def delete(self, run_id: str) -> str:
        """Remove the run of this id (or unique start of one), folder and row; returns the id. Raises as `load`."""
        folder = self._find(run_id)
        doomed = folder.with_name(f".deleted-{uuid.uuid4().hex}")
        folder.rename(doomed)
        with self._connect() as db:
            db.execute("DELETE FROM runs WHERE id = ?", (folder.name,))
        shutil.rmtree(doomed)
        return folder.name

    def recover(self) -> Ids:
        """Take in what killed benchmarks had measured, each as a run named partial; returns their ids.

        A journal that cannot be read is left where it is; one without a request is removed.
        """
        recovered = []
        for folder in journal.abandoned(self.running):
            try:
                # a run that was kept already, but whose journal outlived it, is as it was kept
                done = self.runs / folder.name
                run = _read(done) if done.exists() else journal.read_journal(folder)
            except InputError:
                continue
            if run.requests.height:
                recovered.append(self.save(run))
            shutil.rmtree(folder, ignore_errors=True)
        return recovered

    def reindex(self) -> int:
        """Make the index again from the folders; returns how many runs there are.

        Raises `FormatError` for a folder whose files cannot be read, and leaves the index as it was.
        """
        rows = [_row(_read(folder), folder.name) for folder in self._folders()]
        if self._database.exists() or rows:
            self._index(rows, afresh=True)
        return len(rows)

    # ---------------------------------------------------------------- predictions and scores
    def list_predictions(self) -> Rows:
        """The sealed predictions as they say of themselves, oldest first: path, name, sha256, time, previous.

        Files that do not say so are passed over; ``inferometer verify`` looks at them.
        """
        files = sorted(self.predictions.glob("*.json")) if self.predictions.is_dir() else []
        rows = [row for row in map(_sealed_row, files) if row is not None]
        return sorted(rows, key=lambda row: (row["time"], row["sha256"]))

    @contextmanager
    def sealing(self) -> Iterator[Rows]:
        """Hold the folder of predictions for one process while it adds a seal; gives `list_predictions`."""
        self.predictions.mkdir(parents=True, exist_ok=True)
        with open(self.predictions / ".lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, or the process ends
            yield self.list_predictions()

    def write_prediction(self, name: str, text: str) -> Path:
        """Keep a sealed prediction's file, whole or not at all; only while `sealing`."""
        return _write_whole(self.predictions / name, text.encode())

    def newest_start_unix_s(self) -> float | None:
        """When the newest measurement of this store began, in seconds since 1970; None without one."""
        files = [
            folder / "meta.json" for root in (self.runs, self.running) if root.is_dir() for folder in root.iterdir()
        ]
        starts = [_measured_start(file) for file in files]
        return max((start for start in starts if start is not None), default=None)

    def save_score(self, document: dict[str, Any]) -> Path:
        """Keep a score's JSON, under an id from its content; keeping the same again changes nothing."""
        content = msgspec.json.encode(document, order="sorted", enc_hook=_plain)
        target = self._scores / f"{hashlib.sha256(content).hexdigest()[:16]}.json"
        return target if target.exists() else _write_whole(target, msgspec.json.format(content, indent=1))

    def scores(self) -> Rows:
        """The scores that were kept, oldest first. Raises `FormatError` for a file that is none."""
        files = [file for file in self._scores.glob("*.json") if not file.name.startswith(".")]
        return [_read_score(file) for file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name))]

    @property
    def _database(self) -> Path:
        return self.path / "index.sqlite3"

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """One transaction on the index, which is made where there is none."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            db = sqlite3.connect(self._database, timeout=30)
        except sqlite3.OperationalError as why:
            raise FormatError.because(f"{self._database.name}: cannot be opened in the store ({why})") from why
        try:
            with db:
                db.execute(f"CREATE TABLE IF NOT EXISTS runs ({', '.join(COLUMNS)}, PRIMARY KEY (id))")
                yield db
        except sqlite3.DatabaseError as why:
            fault = f"{self._database.name}: not a sound index ({why}); remove it and reindex"
            raise FormatError.because(fault) from why
        finally:
            db.close()

    def _index(self, rows: Rows, *, afresh: bool = False) -> None:
        values = [tuple(row[name] for name in COLUMNS) for row in rows]
        with self._connect() as db:
            if afresh:
                db.execute("DELETE FROM runs")
            # an id that is there keeps its row, so that saving again does not move it to the end of the list
            db.executemany(f"INSERT OR IGNORE INTO runs VALUES ({', '.join('?' * len(COLUMNS))})", values)

    def _folders(self) -> Paths:
        """The runs' folders, oldest first; what starts with a dot is being written or deleted."""
        if not self.runs.is_dir():
            return []
        found = [folder for folder in self.runs.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
        return sorted(found, key=lambda folder: (folder.stat().st_mtime_ns, folder.name))

    def _find(self, run_id: str) -> Path:
        folders = {folder.name: folder for folder in self._folders()}
        if run_id in folders:
            return folders[run_id]
        starting = [name for name in folders if run_id and name.startswith(run_id)]
        if not starting:
            raise UnknownNameError("run", run_id, folders)
        if len(starting) > 1:
            raise InputError("run", run_id, f"more of the id: {', '.join(sorted(starting)[:5])} start so")
        return folders[starting[0]]

    def _write(self, run: Run, target: Path) -> None:
        temporary = self.runs / f".writing-{uuid.uuid4().hex}"
        temporary.mkdir(parents=True)
        try:
            run.requests.write_parquet(temporary / "requests.parquet")
            run.server.write_parquet(temporary / "server.parquet")
            if run.token_times is not None:
                _token_table(run.token_times).write_parquet(temporary / "token_times.parquet")
            meta = msgspec.structs.replace(run.meta, id=target.name)
            (temporary / "meta.json").write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=1))
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            if not target.exists():  # another process may have saved the same run first
                raise


def _sound_id(run_id: str) -> str:
    if not ID.fullmatch(run_id):
        raise InputError("id", run_id, "letters, digits, '-', '_' and '.', starting with a letter or digit")
    return run_id


def _row(run: Run, run_id: str) -> dict[str, Any]:
    summary = run.summary()
    return {
        **{name: getattr(run.meta, name) for name in COLUMNS if name in RunMeta.__struct_fields__},
        "id": run_id,
        "requests": summary.requests,
        "output_tok_per_s": summary.output_tok_per_s,
        "ttft_p50_s": summary.ttft_s.p50,
        "ttft_p99_s": summary.ttft_s.p99,
        "tpot_p50_s": summary.tpot_s.p50,
    }


def _token_table(token_times: TokenTimes) -> pl.DataFrame:
    """Token events one a row: the request's number and the time."""
    counts = np.diff(token_times.offsets)
    request = np.repeat(np.arange(counts.size, dtype=np.int64), counts)
    return pl.DataFrame({"request": request, "time_s": token_times.times_s})


def _token_times(table: pl.DataFrame, requests: int) -> TokenTimes:
    counts = np.bincount(table["request"].to_numpy(), minlength=requests)
    return TokenTimes(np.concatenate(([0], np.cumsum(counts))), table["time_s"].to_numpy())


def _read(folder: Path) -> Run:
    """The run in a folder. Raises `FormatError` that names the folder and the fault."""
    try:
        meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=RunMeta)
        requests, server = (pl.read_parquet(folder / f"{table}.parquet") for table in ("requests", "server"))
        tokens = folder / "token_times.parquet"
        times = _token_times(pl.read_parquet(tokens), requests.height) if tokens.exists() else None
        return make_run(meta, requests, server, times)
    except (OSError, msgspec.DecodeError, pl.exceptions.PolarsError, InputError) as why:
        fault = str(why).splitlines()[0]
        raise FormatError.because(f"run {folder.name}: its folder in the store cannot be read ({fault})") from why


# ---------------------------------------------------------------- predictions and scores
class _Seal(msgspec.Struct):
    sha256: str
    time: str
    previous: str | None


class _SealedFile(msgspec.Struct):
    """Of a sealed prediction only its seal: the rest is skipped, not decoded."""

    sealed: _Seal
    name: str = ""


class _Start(msgspec.Struct):
    """Of a run's meta only when it began."""

    kind: str
    started_unix_s: float | None = None


def _sealed_row(file: Path) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_SealedFile)
    except (OSError, msgspec.DecodeError):
        return None
    if not SHA256.fullmatch(found.sealed.sha256):
        return None
    return {"path": str(file), "name": found.name, **msgspec.to_builtins(found.sealed)}


def _measured_start(meta: Path) -> float | None:
    try:
        found = msgspec.json.decode(meta.read_bytes(), type=_Start)
    except (OSError, msgspec.DecodeError):
        return None
    return found.started_unix_s if found.kind == "measured" else None


def _read_score(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as why:
        raise FormatError.because(f"score {file.stem}: its file in the store cannot be read ({why})") from why


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def _write_whole(target: Path, content: bytes) -> Path:
    """Write a file so that it is there as a whole or not at all, also after a power cut."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".writing-{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)
        _sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
