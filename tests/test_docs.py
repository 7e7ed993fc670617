"""Runs every example of README.md and docs/: a page's blocks in order, in one empty folder that has ``studies/``.

A block by its fence:

- ``python``: executed; all of a page share one namespace.
- ``pycon``: run as a doctest in that namespace, its output compared.
- ``console``: each ``$ inferometer ...`` line is run in-process and must exit 0, or the status that a comment
  ``<!-- exit: 2 -->`` before the block states; ``> file`` stores its output. Other ``$`` lines are not run.
- ``console`` after a comment ``<!-- exact -->``: what it prints must also be what the page shows;
  ``INFEROMETER_UPDATE=1`` rewrites it.
- any with ``title="name"``: written to that file, so that a page shows its own input. Written only, not run.

A comment ``<!-- not run: reason -->`` before a block leaves it out.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(
    r"(?:^<!-- (?P<note>exact|(?:exit|not run): .*?) -->\n+)?^```(?P<info>\w[^\n]*)\n(?P<body>.*?)^```$",
    flags=re.M | re.S,
)


class Block(NamedTuple):
    """One fenced block of a page."""

    line: int
    info: str
    body: str
    note: str
    span: tuple[int, int]

    @property
    def language(self) -> str:
        return self.info.split()[0]

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.info)
        return found[1] if found else None

    @property
    def runs(self) -> bool:
        return not self.note.startswith("not run") and self.language in ("python", "pycon", "console")

    @property
    def status(self) -> int:
        return int(self.note.removeprefix("exit:")) if self.note.startswith("exit") else 0


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(text[: m.start("info")].count("\n") + 1, m["info"], m["body"], m["note"] or "", m.span("body"))
        for m in FENCE.finditer(text)
    ]


def sessions(body: str) -> list[tuple[str, str]]:
    """Each command of a console block with the output shown under it; a trailing backslash joins lines."""
    found: list[tuple[str, str]] = []
    for line in re.sub(r"\\\n\s*", "", body).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


class Page:
    """A page being run: its namespace, and the text as it would be with fresh output."""

    def __init__(self, path: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.path, self.capture = path, capture
        self.names: dict[str, Any] = {"__name__": "__docs__"}
        self.text = path.read_text()
        self.fresh: list[tuple[tuple[int, int], str]] = []

    def run(self) -> None:
        for block in blocks(self.text):
            if block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.body)
            elif block.runs:
                getattr(self, block.language)(block)

    def python(self, block: Block) -> None:
        # Blank lines in front make a traceback's line numbers those of the page.
        exec(compile("\n" * block.line + block.body, str(self.path), "exec"), self.names)

    def pycon(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(block.body, self.names, self.path.name, str(self.path), block.line)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        result = runner.run(test, out=said.append, clear_globs=False)
        self.names.update(test.globs)
        assert result.failed == 0, "".join(said)

    def console(self, block: Block) -> None:
        shown = []
        for command, output in sessions(block.body):
            printed = self.command(command, block) if command.startswith("inferometer ") else output
            if block.note == "exact":
                shown.append(f"$ {command}\n{printed}")
                if not os.environ.get("INFEROMETER_UPDATE"):
                    assert printed == output, f"{self.path.name}:{block.line}: $ {command} prints something else"
        if shown:
            self.fresh.append((block.span, "".join(shown)))

    def command(self, command: str, block: Block) -> str:
        words = shlex.split(command, comments=True)[1:]
        target = words[words.index(">") + 1] if ">" in words else None
        arguments = words[: words.index(">")] if target else words
        self.capture.readouterr()
        status = run_command(arguments)
        out, err = self.capture.readouterr()
        where = f"{self.path.name}:{block.line}: $ {command}"
        assert status == block.status, f"{where} exits {status}, not {block.status}\n{out[-2000:]}{err[-2000:]}"
        if target:
            Path(target).write_text(out)
            return ""
        return "".join(line.rstrip() + "\n" for line in (out + (err if block.status == 2 else "")).splitlines())

    def update(self) -> None:
        text = self.text
        for (start, end), body in reversed(self.fresh):
            text = text[:start] + body + text[end:]
        if text != self.text:
            self.path.write_text(text)


def run_command(arguments: list[str]) -> int:
    """The exit status of ``inferometer ARGUMENTS``, run in this process."""
    main = importlib.import_module("inferometer.cli.main").main
    try:
        return int(main(arguments) or 0)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFEROMETER_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("INFEROMETER_CATALOG", str(tmp_path / "catalog"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path


RUNNABLE = [page for page in PAGES if any(block.runs and not block.title for block in blocks(page.read_text()))]


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_run(path: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    page = Page(path, capsys)
    page.run()
    if os.environ.get("INFEROMETER_UPDATE"):
        page.update()


def test_pages_with_examples_are_found():
    names = {page.relative_to(ROOT).as_posix() for page in RUNNABLE}
    assert {"README.md", "docs/tutorial/first-prediction.md", "docs/reference/cli.md"} <= names


def test_every_fence_is_closed():
    for page in PAGES:
        assert len(re.findall(r"^ *```", page.read_text(), flags=re.M)) == 2 * len(blocks(page.read_text())), page.name


def test_a_wrong_example_fails(folder: Path, capsys: pytest.CaptureFixture[str]):
    page = folder / "wrong.md"
    page.write_text("```python\nx = 1\n```\n\n```pycon\n>>> x\n2\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        Page(page, capsys).run()
    page.write_text('```toml title="a.toml"\nb = 1\n```\n\n```python\nassert open("a.toml").read() == "b = 2"\n```\n')
    with pytest.raises(AssertionError):
        Page(page, capsys).run()
