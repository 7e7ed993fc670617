"""``inferometer compare``: what it prints, and what it exits with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import inferometer as im
from inferometer.cli.main import main
from inferometer.records.run import Run
from inferometer.store import Store
from ran import Ran

Command = Callable[..., Ran]


def simulated(budget: int, users: int = 16, seed: int = 0) -> Run:
    dep = im.Deployment(
        model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"), flags={"max_num_batched_tokens": budget}
    )
    work = im.Workload.closed_loop(concurrency=users, requests=users * 10, prompt_tokens=1024, output_tokens=128)
    return im.simulate(dep, work, seed=seed)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare") / "store"


@pytest.fixture(scope="module")
def ids(store: Path) -> dict[str, str]:
    kept = {"large": simulated(8192), "small": simulated(128), "one": simulated(8192, 1), "slow": simulated(128, 1)}
    for run in kept.values():
        Store(store).save(run)
    return {name: run.id for name, run in kept.items()}


@pytest.fixture
def run(store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "100")

    def command(*words: str) -> Ran:
        capsys.readouterr()
        status = main(["compare", *words, "--store", str(store)])
        return Ran(status, *capsys.readouterr())

    return command


def test_a_worse_server_fails_a_build_and_a_better_one_does_not(run: Command, ids: dict[str, str]) -> None:
    worse, better = run(ids["large"], ids["small"]), run(ids["small"], ids["large"])
    assert (worse.status, better.status) == (1, 0)
    assert "B is worse than A: " in worse.out
    assert "B is better than A: " in better.out
    assert "max_num_batched_tokens: A 8192, B 128" in worse.out
    assert all(len(line) <= 100 for line in worse.out.splitlines())


def test_what_a_build_fails_on_can_be_chosen(run: Command, ids: dict[str, str]) -> None:
    assert run(ids["one"], ids["one"], "--quiet").out == "cannot tell\n"
    assert run(ids["one"], ids["one"]).status == 0
    assert run(ids["one"], ids["one"], "--fail-on", "cannot-tell").status == 1
    assert run(ids["small"], ids["large"], "--fail-on", "cannot-tell").status == 0
    assert run(ids["small"], ids["large"], "--fail-on", "any").status == 1


def test_sweeps_by_several_ids_show_their_headlines_by_load(run: Command, ids: dict[str, str]) -> None:
    ran = run(f"{ids['one']},{ids['large']}", f"{ids['slow']},{ids['small']}")
    rows = [line for line in ran.out.splitlines() if re.search(r"(same|worse|better|cannot tell)$", line)]
    assert sum(line.startswith("C=1 ") for line in rows) == 1
    assert sum(line.startswith("C=16 ") for line in rows) == 1
    assert "further rows" in ran.out


def test_json_has_every_row(run: Command, ids: dict[str, str]) -> None:
    document = run(ids["large"], ids["small"], "--json", "--ttft-ms", "500", "--margin", "0.05").json
    assert (document["schema"], document["verdict"], document["margin"]) == ("inferometer/comparison/1", "worse", 0.05)
    by_metric = {row["metric"]: row for row in document["rows"]}
    assert set(by_metric) >= {"output_tok_per_s", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "e2e_ms.p99"}
    assert by_metric["attainment"]["unit"] == "%"
    assert by_metric["tpot_ms.p50"]["low_pct"] > 0


@pytest.mark.parametrize(
    "words", [("nowhere.json", "ID"), ("ID", "ID", "--margin", "-1"), ("ID", "ID", "--confidence", "2")]
)
def test_bad_input_is_one_line(words: tuple[str, ...], run: Command, ids: dict[str, str]) -> None:
    ran = run(*(ids["one"] if word == "ID" else word for word in words))
    assert ran.status == 2
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
