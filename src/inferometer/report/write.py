"""Writes a report into a folder: a Markdown post, one HTML page, and each chart as SVG and PNG."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from inferometer.errors import InputError
from inferometer.records.run import Run
from inferometer.report.blocks import Post
from inferometer.report.charts import charts, png, svg
from inferometer.report.markdown import markdown
from inferometer.report.material import Material, Subject, gather
from inferometer.report.page import page
from inferometer.report.story import post
from inferometer.steptime.profile import Profile

FORMATS = ("md", "html", "svg", "png")


def write_report(
    study_or_prediction: Subject | None,
    runs: Run | Sequence[Run] = (),
    folder: str | os.PathLike[str] = "report",
    formats: Iterable[str] = FORMATS,
    profile: Profile | str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write what a prediction says and how it fared: ``report.md``, ``report.html``, and the charts by name.

    The same study and runs give the same bytes: a date on it is the measurement's or the seal's, not today's.

    Args:
        study_or_prediction: a study, its file or name, a Prediction, a sealed file; None: the runs alone.
        runs: what was measured; none: the prediction alone.
        folder: where to; made where it is missing. Files of the same names are replaced.
        formats: of ``md``, ``html``, ``svg``, ``png``. The post's charts are its SVG files, or else its PNG files.
        profile: calibrated constants to predict and explain with.

    Raises:
        InputError: an unknown format, nothing to report on, or whatever is wrong with the study.

    >>> import tempfile
    >>> import inferometer as im
    >>> study = im.load_study("a100-qwen3-8b", ["workload.concurrency=[1,2]", "workload.output_tokens=8", "arm=[]"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in im.write_report(study, [], folder, formats=["md"])]
    ['report.md']
    """
    return write(gather(study_or_prediction, runs, profile), folder, formats)


def write(material: Material, folder: str | os.PathLike[str], formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write the report of a material that is gathered already; the paths written, the post first."""
    wanted = checked(formats)
    told = post(material, charts(material))
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    return [_put(into / name, content) for name, content in _files(told, wanted)]


def checked(formats: Iterable[str]) -> tuple[str, ...]:
    """The formats, each once, in the order of `FORMATS`. Raises `InputError` for one that is unknown, or for none."""
    given = [name.strip().lower() for name in formats]
    for name in given:
        if name not in FORMATS:
            raise InputError("format", name, f"of {', '.join(FORMATS)}, separated by commas")
    if not given:
        raise InputError("format", "", f"at least one of {', '.join(FORMATS)}")
    return tuple(name for name in FORMATS if name in given)


def _files(told: Post, formats: tuple[str, ...]) -> Iterator[tuple[str, str | bytes]]:
    """Each file's name and content, made as it is asked for; every chart is drawn once."""
    suffix = "svg" if "svg" in formats or "png" not in formats else "png"
    if "md" in formats:
        yield "report.md", markdown(told, lambda name: f"{name}.{suffix}")
    drawn = {figure.name: svg(figure.chart, figure.name) for figure in told.figures} if set(formats) - {"md"} else {}
    if "html" in formats:
        yield "report.html", page(told, drawn)
    for name, text in drawn.items():
        if "svg" in formats:
            yield f"{name}.svg", text
        if "png" in formats:
            yield f"{name}.png", png(text)


def _put(path: Path, content: str | bytes) -> Path:
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="\n")
    else:
        path.write_bytes(content)
    return path
