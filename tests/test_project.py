"""What holds for the project as a whole: public names, layers, lazy imports, documents, no machine's traces."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import inferometer

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Put together from pieces so that this file does not trip its own test.
FORBIDDEN = ("pypi" + ".org", "files.python" + "hosted", "npm" + "js", "/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/")


def modules() -> list[str]:
    """Every module of the package by name, found without importing any."""
    source = ROOT / "src"
    paths = sorted((source / "inferometer").rglob("*.py"))
    names = [".".join(path.relative_to(source).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that runs ``code`` with the source tree on its path."""
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def committed() -> list[Path]:
    """Files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout, so what would be committed cannot be listed")
    return [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name and (ROOT / name.decode()).is_file()]


# --- public names ---------------------------------------------------------------------------------------------------


def test_public_names_are_sorted_and_each_has_a_home():
    assert inferometer.__all__ == sorted(inferometer.__all__)
    assert set(inferometer.__all__) == set(inferometer._HOME)
    assert set(inferometer.__all__) <= set(dir(inferometer))


def test_no_public_name_is_hidden_by_a_module():
    below = {module.name for module in pkgutil.iter_modules(inferometer.__path__)}
    assert below.isdisjoint(inferometer.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = inferometer.simulat


@pytest.mark.parametrize("name", inferometer.__all__)
def test_public_name_is_documented_with_an_example(name: str):
    value = getattr(inferometer, name)
    assert value.__name__ == name
    documented = inspect.getdoc(value) or ""
    assert doctest.DocTestParser().get_examples(documented), f"inferometer.{name} has no '>>>' example"


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFEROMETER_STORE", str(tmp_path / "store"))
    result = doctest.testmod(importlib.import_module(name), optionflags=EXAMPLES)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} fail (see captured output)"


def test_version_is_said_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == inferometer.__version__


# --- structure ------------------------------------------------------------------------------------------------------


def test_layers():
    checked = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as run; run()",
            "--no-logo",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", "NO_COLOR": "1"},
    )
    assert checked.returncode == 0, checked.stdout[-3000:] + checked.stderr[-1000:]


HEAVY = {"numba", "polars", "scipy", "altair", "pyarrow", "pandas", "mkdocs"}


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import inferometer", HEAVY | {"numpy", "msgspec", "rich", "cyclopts"}),
        ("import inferometer.cli.main", HEAVY),
        ("import inferometer.specs.deployment, inferometer.specs.study", HEAVY),
    ],
)
def test_what_an_import_leaves_unloaded(code: str, absent: set[str]):
    ran = python(f"{code}\nprint(*sorted({absent!r} & set(sys.modules)))")
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split() == []


def test_help_loads_nothing_heavy():
    ran = python(
        "from inferometer.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print('loaded:', *sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines()[-1].split() == ["loaded:"]


# --- documents ------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """The commands that ``inferometer --help`` lists, as the program itself knows them."""
    return sorted(importlib.import_module("inferometer.cli.main").COMMANDS)


def test_every_command_and_flag_is_documented():
    # test_docs compares each of these blocks with what the program prints, so every flag is in them.
    page = (ROOT / "docs/reference/cli.md").read_text()
    missing = [name for name in commands() if f"$ inferometer {name} --help\n" not in page]
    assert not missing, f"docs/reference/cli.md has no '$ inferometer NAME --help' block for {missing}"
    assert commands(), "the program lists no command"


def test_changelog_tells_of_this_version():
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert "Unreleased" in heads or inferometer.__version__ in heads


def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere():
    docs = ROOT / "docs"
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs).as_posix()
        assert f" {name}\n" in navigation, f"{name} is not in mkdocs.yml"
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{name} links to {target}, which does not exist"


def test_shipped_studies_load():
    studies = sorted((ROOT / "studies").glob("*.toml"))
    assert studies
    for study in studies:
        inferometer.load_study(study)


# --- no machine's traces --------------------------------------------------------------------------------------------


def test_no_file_names_a_registry_or_a_machine():
    found = []
    for path in committed():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in FORBIDDEN if word in text]
    assert not found


def test_lock_covers_every_dependency_with_hashes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[<>=!~\[; ]", line)[0].lower().replace("_", "-") for line in wanted}
    lock = (ROOT / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, flags=re.M))
    assert names <= pinned, f"not in requirements.lock (make lock): {sorted(names - pinned)}"
    assert len(re.findall(r"^[a-z0-9-]+==.*\\\n    --hash=sha256:", lock, flags=re.M)) == len(
        re.findall(r"^[a-z0-9-]+==", lock, flags=re.M)
    )


def test_ranges_are_bounded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [d for extra in project["optional-dependencies"].values() for d in extra]
    assert [line for line in wanted if not (">=" in line and "<" in line)] == []
