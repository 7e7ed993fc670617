"""Our warnings on the command line: one line each on standard error, and only while a command runs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from inferometer.cli.main import main
from inferometer.errors import InferometerError, InferometerWarning

SWEEP = "concurrency,output_tok_per_s,ttft_p50\n1,10,5\n2,20,6\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sweep.csv").write_text(SWEEP)
    (tmp_path / "c64.json").write_text('{"date": "2026')
    return tmp_path


def test_a_warning_is_one_line_and_the_command_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(folder), "--no-store", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["runs"]) == 2
    column, cut = sorted(err.splitlines(), key=lambda line: "c64" in line)
    assert column == f"warning: {folder / 'sweep.csv'}: column 'ttft_p50' is not read; did you mean ttft_ms_p50?"
    assert cut.startswith(f"warning: {folder / 'c64.json'} is passed over: not complete JSON")


def test_the_same_is_said_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", str(folder / "sweep.csv"), str(folder / "sweep.csv"), "--no-store"])
    assert capsys.readouterr().err.count("warning:") == 1


def test_filters_and_what_shows_warnings_are_put_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = warnings.showwarning, list(warnings.filters)
        main(["import", str(folder), "--no-store"])
        assert (warnings.showwarning, list(warnings.filters)) == before
        assert "warning:" in capsys.readouterr().err
        main(["import", str(folder / "absent.csv")])
        assert (warnings.showwarning, list(warnings.filters)) == before


def test_it_can_be_silenced_as_any_warning_and_is_no_error_of_ours() -> None:
    assert issubclass(InferometerWarning, UserWarning)
    assert not issubclass(InferometerWarning, InferometerError)
