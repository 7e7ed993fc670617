"""``inferometer predict --seal`` and ``inferometer verify``, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import inferometer as im
from inferometer.cli.main import main
from ran import Ran

SHORT = ("--concurrency", "1,4", "--output-tokens", "8")
Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("INFEROMETER_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Ran:
        status = main(words)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return call


def test_seal_then_verify_then_change_a_digit(run: Run):
    ran = run("predict", "demo", *SHORT, "--seal", "--claim", "output_tok_per_s@4=250")
    line = next(line for line in ran.out.splitlines() if line.startswith("Sealed: "))
    path = Path(line.split()[1])
    document = json.loads(path.read_text())
    assert ran.status == 0
    assert line == f"Sealed: {path}  sha256 {document['sealed']['sha256']}  at {document['sealed']['time']}"
    assert "Claimed: output_tok_per_s@4 250; predicted: " in ran.out
    assert "inferometer bench URL demo --prompt" not in ran.out
    assert "inferometer bench URL demo --output-tokens 8 --concurrency 1,4" in ran.out
    assert f"inferometer score {path} RUN..." in ran.out
    sound = run("verify", str(path))
    assert (sound.status, sound.out.split()[:2]) == (0, ["Sound:", f"{path},"])
    assert run("verify", str(path), "--sha256", document["sealed"]["sha256"][:12]).status == 0
    wrong = run("verify", str(path), "--sha256", "0" * 12)
    assert wrong.status == 1
    assert "written down" in wrong.out
    path.write_text(path.read_text().replace('"concurrency": 4', '"concurrency": 5', 1))
    broken = run("verify", str(path), "--quiet")
    assert broken.status == 1
    assert broken.out.startswith("Not sound: ")
    assert "not what was sealed" in broken.out


def test_json_names_a_path_that_can_be_opened_and_is_sound_itself(run: Run, tmp_path: Path):
    ran = run("predict", "demo", *SHORT, "--seal", "--json", "--store", "mine")
    sealed = ran.json["sealed"]
    assert Path(sealed["path"]).parent == Path("mine/predictions")
    assert json.loads(Path(sealed["path"]).read_text())["sealed"] == {
        **sealed,
        "path": f"predictions/{sealed['sha256'][:16]}.json",
    }
    (tmp_path / "printed.json").write_text(ran.out)
    assert run("verify", "printed.json").status == 0
    assert im.read_sealed(tmp_path / "printed.json").verification
    assert run("predict", "demo", *SHORT, "--json").json["sealed"] is None


def test_verify_without_a_path_walks_the_store(run: Run):
    assert run("verify").status == 2
    quiet = run("predict", "demo", *SHORT, "--seal", "--quiet").out.splitlines()
    assert quiet[-1].startswith("Sealed: ")
    run("predict", "demo", *SHORT, "--seal", "--quiet")
    whole = run("verify")
    assert whole.status == 0
    assert "2 seals in one chain" in whole.out
    first = Path(quiet[-1].split()[1])
    first.unlink()
    found = run("verify", "--json")
    assert found.status == 1
    assert found.json["schema"] == "inferometer/verification/1"
    (folder,) = found.json["seals"]
    assert (found.json["ok"], folder["ok"], [each["ok"] for each in folder["seals"]]) == (False, False, [True])
    assert "gap" in folder["faults"][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("predict", "demo", "--claim", "outptu_tok_per_s@4=1"), "did you mean output_tok_per_s"),
        (("predict", "demo", "--profile", "absent.toml"), "absent.toml"),
        (("verify", "absent.json"), "absent.json"),
        (("verify", "a.json", "b.json", "--sha256", "0" * 64), "--sha256"),
        (("predict", "demo", *SHORT, "--seed", str(2**60), "--seal"), "seed"),
    ],
)
def test_one_line_for_a_mistake(run: Run, words: tuple[str, ...], says: str):
    ran = run(*words)
    assert ran.status == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1


def test_a_store_that_cannot_be_written(run: Run, tmp_path: Path):
    (tmp_path / "file").write_text("")
    ran = run("predict", "demo", *SHORT, "--seal", "--store", "file")
    assert ran.status == 2
    assert "cannot write the store" in ran.err


def test_what_does_not_fit_is_sealed_with_its_remedies(run: Run):
    ran = run("predict", "demo", *SHORT, "--seal", "--model", "meta-llama/Llama-3.1-70B")
    assert ran.status == 1
    assert "Sealed: " in ran.out
    assert "inferometer predict demo" in ran.out
    assert "inferometer bench" not in ran.out
    assert run("verify").status == 0
