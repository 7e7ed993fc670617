"""Saved pages of ``/metrics``: one page, or many with a line ``# ts UNIX_SECONDS`` before each.

The run has no requests: its server table is the pages' gauges and counters, ``meta.counters`` what was counted from the
first page to the last (of a single page: since the server's start), ``meta.server`` engine, model and cache settings.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from inferometer.errors import FormatError
from inferometer.records.importers.files import head, in_file, iso_utc, read_bytes, refuse, source_fields
from inferometer.records.prometheus import Page, cache_config, deltas, parse_page, server_table
from inferometer.records.run import Run, RunMeta, make_run

EXPECTED = "pages of an engine's /metrics, each after a line `# ts UNIX_SECONDS` where there are several"

SERIES = re.compile(
    rb"^(?:(?:ray_)?vllm[:_]|sglang[:_]|tgi_|(?:py)?trtllm[:_]|llamacpp:|DCGM_FI_|nvidia_(?:smi|gpu)_)\w+[ {]", re.M
)
"""A sample of an engine or GPU exporter."""

STAMP = re.compile(r"^# ts ([\d.]+)[^\n]*\n", re.M)

HEAD_BYTES = 1 << 17


def sniff(path: Path) -> bool:
    """Whether the file's first 128 KiB begin like the text format and hold a sample of an engine or GPU exporter."""
    data = head(path, HEAD_BYTES)
    return data.lstrip()[:1] not in (b"{", b"[") and SERIES.search(data) is not None


def read(path: Path) -> list[Run]:
    """One run. Raises `FormatError` where no page has a sample of a known engine or exporter, or for a bad ``# ts``."""
    started, pages = in_file(path, lambda: _pages(read_bytes(path).decode(errors="replace")))
    columns, notes = server_table(pages)
    if not columns["time_s"]:
        refuse(path, "no sample of a known engine or GPU exporter", EXPECTED)
    first, last = parse_page(pages[0][1]), parse_page(pages[-1][1])
    counters = deltas(first if len(pages) > 1 else Page(), last)
    meta = RunMeta(
        kind="imported",
        name=path.name.removesuffix(path.suffix).removesuffix(".metrics"),
        tool=f"{last.engine or 'GPU'} /metrics",
        created=in_file(path, lambda: iso_utc(started, "# ts")),
        model=", ".join(last.models) or None,
        started_unix_s=started,
        duration_s=pages[-1][0] if started is not None else None,
        counters=counters,
        server=_server(last),
        notes=["pages of /metrics: no requests are known", *dict.fromkeys([*notes, *last.notes])],
        **source_fields(path),
    )
    return [in_file(path, lambda: make_run(meta, server=columns))]


def _pages(text: str) -> tuple[float | None, list[tuple[float, str]]]:
    """When the first page was taken, and every page with its seconds from then on. A page without time is at 0."""
    pieces = STAMP.split(text)
    if len(pieces) == 1:
        return None, [(0.0, text)]
    times = [_seconds(stamp) for stamp in pieces[1::2]]
    back = next((later for earlier, later in pairwise(times) if later < earlier), None)
    if back is not None:
        raise FormatError("# ts", back, "a time that is not before that of the page above")
    return times[0], [(time - times[0], page) for time, page in zip(times, pieces[2::2], strict=True)]


def _seconds(stamp: str) -> float:
    try:
        seconds = float(stamp)
    except ValueError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise FormatError("# ts", stamp, "a number of seconds since 1970")
    return seconds


def _server(page: Page) -> dict[str, Any]:
    known = {"engine": page.engine, "model": ", ".join(page.models) or None, "cache_config": cache_config(page) or None}
    return {name: value for name, value in known.items() if value is not None}
