"""What the tests of the importers share: editing genuine files, cutting them, comparing figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import load
from inferometer.records.metrics import STAT_NAMES
from inferometer.records.run import Run


def edited(source: Path, folder: Path, change: Callable[[Any], object], name: str | None = None) -> Path:
    """A copy of a JSON file after ``change`` has worked on its value."""
    value = json.loads(source.read_text())
    change(value)
    path = folder / (name or source.name)
    path.write_text(json.dumps(value))
    return path


def stated_and_ours(run: Run) -> Iterator[tuple[str, float, float]]:
    """Each figure that the source states and ours from its raw values, where both are there."""
    ours = run.summary().to_dict()
    for path, stated in run.meta.stated.items():
        name, _, part = path.partition(".")
        value = ours.get(name) if not part else (ours[name].get(part) if name in STAT_NAMES else None)
        if value is not None:
            yield path, stated, value


def assert_refused_when_cut(source: Path, folder: Path, pieces: int = 40) -> None:
    """Cut anywhere, the file is refused by name."""
    data = source.read_bytes()
    whole = len(data.rstrip()) - 1
    for cut in sorted({round(i * whole / pieces) for i in range(pieces)} | {whole}):
        path = folder / source.name
        path.write_bytes(data[:cut])
        with pytest.raises(FormatError) as error:
            load(path)
        assert str(error.value).startswith(source.name + ":"), error.value
        assert "expected" in str(error.value)
        assert "\n" not in str(error.value)


def different_figures(a: Run, b: Run, but: tuple[str, ...] = ()) -> dict[str, tuple[object, object]]:
    """Figures of two runs' summaries that are not the same to nine digits, those of ``but`` aside."""
    ours, theirs = _figures(a), _figures(b)
    paths = [path for path in ours if path.partition(".")[0] not in but]
    return {path: (ours[path], theirs[path]) for path in paths if not _same(ours[path], theirs[path])}


def _figures(run: Run) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, value in run.summary().to_dict().items():
        figures |= {f"{name}.{part}": v for part, v in value.items()} if name in STAT_NAMES else {name: value}
    return figures


def _same(a: object, b: object) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return bool(b == pytest.approx(a, rel=1e-9, abs=1e-12))
    return a == b
