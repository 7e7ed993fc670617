"""Reads result files of other tools: one module a format, each with ``sniff(path)`` and ``read(path)``."""

from inferometer.records.importers.registry import load

__all__ = ["load"]
