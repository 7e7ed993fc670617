"""Writes runs in the formats of other tools: one module a format, each with ``write(run, path)``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferometer.errors import UnknownNameError
from inferometer.records.exporters import llmd_report, vllm_bench
from inferometer.records.exporters.llmd_report import to_llmd_report
from inferometer.records.exporters.vllm_bench import to_vllm_bench
from inferometer.records.run import Run

__all__ = ["FORMATS", "export", "to_llmd_report", "to_vllm_bench"]

FORMATS: dict[str, tuple[str, Callable[[Run], str]]] = {
    "vllm-bench": (".json", vllm_bench.text),
    "llmd-report": (".yaml", llmd_report.text),
}
"""Each format's suffix and what makes its text."""


def export(run: Run, format: str, path: Path | None = None) -> str:
    """The run in a format, also written to ``path`` where one is given.

    Raises `UnknownNameError` for a format that is not in `FORMATS`, `InputError` for a run that it cannot hold.
    """
    if format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    _, text = FORMATS[format]
    content = text(run)
    if path is not None:
        path.write_text(content, encoding="utf-8")
    return content
