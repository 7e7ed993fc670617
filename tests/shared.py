"""Finds the shared folder of public measurements and right answers, or skips."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("INFEROMETER_SHARED") or ROOT.parent / "shared").resolve()


def shared(path: str) -> Path:
    """The file or folder ``path`` of the shared folder; skips the test where it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"no {path} in the shared folder {SHARED} (set INFEROMETER_SHARED)")
    return found
