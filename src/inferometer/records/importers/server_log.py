"""A server's log alone (vLLM, SGLang, llama.cpp, TensorRT-LLM): what the server is, and its load over time.

The run has no requests: a log does not list them. ``meta.server`` holds what the log says of the server
(`records.engine_log.EngineLog.facts`), the server table its interval and step lines, from the first line on. The lines'
year is taken from the file's modification, their zone is this machine's.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from inferometer.records.engine_log import EngineLog, read_log, server_columns
from inferometer.records.importers.files import head, in_file, iso_utc, refuse, source_fields, text
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "the log of vLLM, SGLang, llama.cpp's server or TensorRT-LLM"

MARKS = (
    b"LLM engine (v",
    b"vLLM API server version",
    b"KV cache size: ",
    b"Avg prompt throughput: ",
    b"iteration elapsed time: ",
    b"server_args=ServerArgs(",
    b"KV Cache is allocated.",
    b"Decode batch",
    b"llama_kv_cache",
    b"KV self size",
    b"tokens in paged KV cache",
)
"""Pieces of lines that only these logs hold."""

HEAD_BYTES = 1 << 18

STAMPED = re.compile(rb"\s*\[\d{4}-\d\d-\d\d|\s*\[TensorRT-LLM\]|\s*[^\[{\s]")
"""How a log begins, and JSON does not."""


def sniff(path: Path) -> bool:
    """Whether the file's first 256 KiB hold a line of one of the engines, and do not begin like JSON."""
    data = head(path, HEAD_BYTES)
    return STAMPED.match(data) is not None and any(mark in data for mark in MARKS)


def read(path: Path) -> list[Run]:
    """One run. Raises `FormatError` where the file has nothing that is known of any engine's log."""
    log = read_log(path)
    if not log.facts():
        refuse(path, "no line of a known engine", EXPECTED)
    meta = _meta(path, log)
    return [in_file(path, lambda: make_run(meta, server=server_columns(log, _start(log))))]


def _start(log: EngineLog) -> float:
    return log.first_unix_s or 0.0


def _meta(path: Path, log: EngineLog) -> RunMeta:
    first, last = log.first_unix_s, log.last_unix_s
    return RunMeta(
        kind="imported",
        name=path.stem,
        tool=f"{log.engine or 'engine'} log",
        tool_version=log.version or "",
        created=in_file(path, lambda: iso_utc(first, "a line's time")),
        model=text(log.model),
        started_unix_s=first,
        duration_s=last - first if first is not None and last is not None else None,
        server=msgspec.to_builtins(log.facts()),
        notes=["a server's log: no requests are known", *log.notes],
        **source_fields(path),
    )
