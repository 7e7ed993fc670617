"""The journal of a benchmark in progress: what has been measured is on disk at once, so a killed run can be read.

::

    .inferometer/running/<id>/
        lock               held by the coordinator while it lives
        meta.json          the run's meta as far as it is known
        requests-0.jsonl   one `Ended` a line, a file a worker, written as each request ends
        metrics.prom       the server's /metrics pages as they came, each after a line "# ts UNIX PERF_COUNTER"

A line that a kill or a full disk tore is passed over, and said so in the run's notes.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.errors import FormatError, InputError
from inferometer.records import prometheus
from inferometer.records.ended import Ended
from inferometer.records.run import MEASURED_SCHEMA, REQUEST_SCHEMA, Run, RunMeta, TokenTimes, make_run

PAGES = "metrics.prom"
KILLED = "killed"
"""`RunMeta.partial` of a journal: what a run is called whose coordinator never came to the end."""
_PAGE = re.compile(r"^# ts ([0-9.]+) ([0-9.]+)\n", re.MULTILINE)

_COLUMNS = tuple(name for name in (*REQUEST_SCHEMA, *MEASURED_SCHEMA) if name in Ended.__struct_fields__)


class Journal:
    """One benchmark's folder under ``running``; its lock is held until `close` or the end of the process."""

    def __init__(self, folder: Path, lock: IO[bytes]) -> None:
        self.folder, self._lock = folder, lock

    @classmethod
    def create(cls, root: Path, meta: RunMeta) -> Journal:
        """A new folder in ``root`` of the name ``meta.id``. Raises `InputError` where it is there or cannot be made."""
        folder = root / meta.id
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InputError("id", meta.id, "an id that no other benchmark has") from None
        except OSError as why:
            raise InputError.because(f"cannot write the journal at {folder}: {why.strerror}") from why
        try:
            lock = open(folder / "lock", "wb")  # noqa: SIM115  (held for the journal's life)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            journal = cls(folder, lock)
            journal.write_meta(meta)
            return journal
        except OSError as why:
            shutil.rmtree(folder, ignore_errors=True)
            raise InputError.because(f"cannot write the journal at {folder}: {why.strerror}") from why

    def requests(self, worker: int) -> Path:
        """The file that this worker appends its `Ended` lines to."""
        return self.folder / f"requests-{worker}.jsonl"

    @property
    def pages(self) -> Path:
        """The file of the server's /metrics pages."""
        return self.folder / PAGES

    def write_meta(self, meta: RunMeta) -> None:
        """Replace ``meta.json`` as a whole."""
        temporary = self.folder / "meta.json.new"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=1))
        temporary.replace(self.folder / "meta.json")

    def close(self, *, remove: bool) -> None:
        """Let go of the folder, and remove it once its run is kept elsewhere."""
        self._lock.close()
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)


def abandoned(root: Path) -> list[Path]:
    """The journals in ``root`` whose coordinator is gone, oldest first."""
    folders = [folder for folder in root.iterdir() if (folder / "meta.json").is_file()] if root.is_dir() else []
    return sorted((f for f in folders if not _held(f)), key=lambda f: (f.stat().st_mtime_ns, f.name))


def _held(folder: Path) -> bool:
    try:
        with open(folder / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def read_journal(folder: Path, meta: RunMeta | None = None) -> Run:
    """The run in a journal: every request on disk, in order of its number, and the server's pages.

    ``meta`` None: as the journal has it. Counters are the differences between the first page and the last.

    Raises `FormatError` for a folder without a readable ``meta.json``.
    """
    meta = meta or _read_meta(folder)
    notes: list[str] = []
    ended, times = read_ended(sorted(folder.glob("requests-*.jsonl")), notes)
    samples, counters = _server(folder / PAGES, meta, notes)
    counters = {**meta.counters, **counters}
    window_s = measured_window_s(ended, meta.workload, notes)
    if meta.partial == KILLED:
        window_s = _until_killed(ended, window_s, notes)
    meta = msgspec.structs.replace(meta, notes=[*meta.notes, *notes], counters=counters, window_s=window_s)
    return make_run(meta, columns(ended), samples, times)


def _until_killed(
    ended: Sequence[Ended], window_s: tuple[float, float | None] | None, notes: list[str]
) -> tuple[float, float | None] | None:
    """The window up to the last answer: the time after it, in which a kill came, is nobody's."""
    cut = sum((each.error or "").startswith("cancelled") for each in ended)
    if cut:
        notes.append(f"{cut} in flight when it was killed: they count as failed")
    last = max((each.end_s for each in ended if each.error is None and each.end_s is not None), default=None)
    return window_s if last is None else (window_s[0] if window_s else 0.0, last)


def measured_window_s(
    ended: Sequence[Ended], workload: dict[str, Any], notes: list[str]
) -> tuple[float, float | None] | None:
    """From the end of the warm-up that the workload asks for to the last send or ``duration_s``; None without warm-up.

    The drain is left out where the warm-up is, so that both edges are in the steady part.
    """
    requests, start = int(workload.get("warmup_requests", 0)), float(workload.get("warmup_s", 0.0))
    sent = sorted(each.sent_s for each in ended if each.sent_s is not None)
    if not (requests or start) or not sent:
        return None
    stop = max(sent[-1], float(workload.get("duration_s", 0.0)))
    if requests < len(sent):
        start = sent[requests] if requests else start
    if requests >= len(sent) or start >= sent[-1]:
        notes.append("the warm-up took the whole run: nothing is left out")
        return None
    return start, stop


def _server(file: Path, meta: RunMeta, notes: list[str]) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """The pages as columns of `Run.server` on the run's clock, and what the counters counted between first and last."""
    pages = read_pages(file)
    if not pages or meta.started_unix_s is None:
        return None, {}
    start = meta.client.get("started_perf_counter_s")
    clock = [(unix - meta.started_unix_s if start is None else perf - start, text) for unix, perf, text in pages]
    table, found = prometheus.server_table(clock)
    notes += found
    first, last = prometheus.parse_page(pages[0][2]), prometheus.parse_page(pages[-1][2])
    return table, prometheus.deltas(first, last) if len(pages) > 1 else {}


def read_pages(file: Path) -> list[tuple[float, float, str]]:
    """The pages of a file of them: when each came, in seconds since 1970 and on `time.perf_counter`, and its text.

    A last page without its end is passed over.
    """
    if not file.exists():
        return []
    parts = _PAGE.split(file.read_text(errors="replace"))[1:]
    return [
        (float(unix), float(perf), text)
        for unix, perf, text in zip(*[iter(parts)] * 3, strict=True)
        if text.endswith("\n")
    ]


def read_ended(files: Iterable[Path], notes: list[str]) -> tuple[list[Ended], TokenTimes]:
    """The lines of these files in order of number, and the token times apart: as floats they would take six times more.

    Torn lines are passed over and counted in ``notes``.
    """
    decoder, torn = msgspec.json.Decoder(Ended), 0
    ended: list[Ended] = []
    times, starts = array("d"), array("q")
    for file in files:
        with open(file, "rb") as lines:
            for line in lines:
                try:
                    each = decoder.decode(line)
                except msgspec.DecodeError:
                    torn += 1
                    continue
                starts.append(len(times))
                times.extend(each.times_s)
                each.times_s = []
                ended.append(each)
    if torn:
        notes.append(f"{torn} torn line{'s' * (torn > 1)} of the journal passed over")
    order = sorted(range(len(ended)), key=lambda row: ended[row].index)
    return [ended[row] for row in order], _ragged(np.array(times), np.array([*starts, len(times)]), np.array(order))


def _ragged(times: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> TokenTimes:
    """The rows between ``starts`` in another order, as one ragged pair."""
    order = order.astype(np.int64)
    counts = np.diff(starts).astype(np.int64)[order]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    return TokenTimes(offsets, times[np.repeat(starts[:-1][order], counts) + within])


def columns(ended: Sequence[Ended]) -> dict[str, list[Any]]:
    """The columns of `Run.requests`: the schema's, and of the measured ones those that hold anything."""
    found = {name: [getattr(each, name) for each in ended] for name in _COLUMNS}
    return {n: v for n, v in found.items() if n in REQUEST_SCHEMA or any(x is not None for x in v)}


def _read_meta(folder: Path) -> RunMeta:
    try:
        return msgspec.json.decode((folder / "meta.json").read_bytes(), type=RunMeta)
    except (OSError, msgspec.DecodeError) as why:
        raise FormatError.because(f"journal {folder.name}: meta.json cannot be read ({why})") from why
