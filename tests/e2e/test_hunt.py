"""Hunts and arms as a user runs them, against an emulator with a small KV pool; what it serves is what is predicted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferometer.cli.main import main
from inferometer.emulator import serve
from inferometer.scoring.hunt import hunt
from inferometer.store import Store
from ran import Ran

STUDY = """
model = "Qwen/Qwen3-8B"
chip = "a100-sxm4-80gb"

[deployment]
engine_version = "0.26.0"
num_gpu_blocks_override = 60
max_model_len = 512

[workload]
prompt_tokens = 64
output_tokens = 32
concurrency = [2]
requests_per_point = { per_concurrency = 4 }

[[arm]]
name = "open"
[arm.workload]
request_rate = [10]
requests_per_point = 10

[[arm]]
name = "fp8"
[arm.deployment]
quantization = "fp8"
"""

Command = Callable[..., Ran]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("study") / "study.toml"
    file.write_text(STUDY)
    return file


@pytest.fixture(scope="module")
def url(study: Path) -> Iterator[str]:
    with serve(study, time_scale=0.5) as address:
        yield address


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)

    def command(*words: str) -> Ran:
        capsys.readouterr()
        status = main(words)
        return Ran(status, *capsys.readouterr())

    return command


def test_preemption_is_found_where_it_was_predicted(run: Command, url: str, study: Path, tmp_path: Path) -> None:
    """60 blocks hold 960 tokens, 10 requests of 96."""
    ran = run("bench", url, str(study), "--hunt", "preemption", "--scrape-interval-s", "0.1", "--json")
    found = json.loads(ran.out)["hunt"]
    assert found["closed_form"] == 10
    assert abs(found["predicted"] - 10) <= 2
    assert abs(found["found"] - found["predicted"]) <= 2
    assert found["bracket"] == [found["found"] - 1, found["found"]]
    by_level = {trial["concurrency"]: trial["preemptions"] for trial in found["trials"]}
    assert by_level[found["found"]] > 0
    assert by_level[found["found"] - 1] == 0
    assert found["mode"] == "recomputed"
    assert {row["id"] for row in Store(tmp_path / ".inferometer").list()} == set(found["runs"])


def test_the_knee_is_looked_for_between_the_bounds_given(run: Command, url: str, study: Path) -> None:
    words = ("--prompt-tokens", "256", "--output-tokens", "8", "--concurrency", "1..12", "--no-store")
    ran = run("bench", url, str(study), "--hunt", "ttft-knee", *words)
    assert ran.out.count("TTFT knee (p99 > 2 x p50) predicted") == 1
    table = ran.out.partition("Tried")[2].partition("\n\n")[0].splitlines()[2:]
    tried = [int(line.split()[0]) for line in table]
    assert tried == sorted(tried)
    assert set(tried) <= set(range(1, 13))


def test_a_hunt_in_python_without_a_store(url: str, study: Path) -> None:
    found = hunt(url, str(study), lowest=1, highest=4, store=False, scrape_interval_s=0.1)
    assert (found.predicted, found.found, found.bracket) == (None, None, (4, None))


def test_all_arms_that_the_server_can_serve(run: Command, url: str, study: Path) -> None:
    ran = run("bench", url, str(study), "--arms", "--json")
    document = ran.json
    assert [arm["name"] for arm in document["arms"]] == ["base", "open"]
    assert [each["arm"] for each in document["runs"]] == ["base", "open"]
    assert document["skipped_arms"] == [{"name": "fp8", "why": "needs another server (quantization fp8)"}]
    assert "Skipped fp8" in ran.err
    scored = run("score", str(study), *(each["id"] for each in document["runs"]), "--json", "--tolerance", "1000")
    assert {row["arm"] for row in scored.json["rows"]} >= {"base", "open"}
