"""Sealing: what a sealed file holds, its time, its chain, and several processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.prediction import seal as sealing
from inferometer.prediction.seal import seal, verify
from inferometer.records.run import RunMeta, make_run
from inferometer.store import Store

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


class Fake:
    """Stands for a prediction: sealing asks only for its JSON."""

    def __init__(self, figure: float = 1.5) -> None:
        self.figure = figure

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "inferometer/prediction/1", "sealed": None, "name": "s", "points": [{"a": self.figure}]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that reads the last of these."""
    readings = [NOON]
    monkeypatch.setattr(sealing, "clock", lambda: readings[-1])
    return readings


def contents(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.fixture(scope="module")
def small() -> im.Prediction:
    return im.predict(
        "demo", overrides=["workload.concurrency=[1, 4]", "workload.output_tokens=8"], claims=["kv_usage@4=0.5"]
    )


def test_a_sealed_file_holds_the_prediction_its_ink_and_its_seal(small: im.Prediction, store: Store):
    path = small.seal(store)
    document = contents(path)
    sealed, ink = document.pop("sealed"), document.pop("ink")
    expected = json.loads(json.dumps(small.to_dict()))
    del expected["sealed"]
    assert document == expected
    assert path == store.predictions / f"{sealed['sha256'][:16]}.json"
    assert sealed["path"] == f"predictions/{path.name}"
    assert (sealed["time"], sealed["previous"]) == (ink["time"], ink["previous"])
    assert (ink["previous"], ink["clock"]) == (None, "")
    assert abs(datetime.fromisoformat(ink["time"]).timestamp() - datetime.now(UTC).timestamp()) < 60


def test_what_the_prediction_was_computed_from_is_in_it(small: im.Prediction):
    document = small.to_dict()
    resolved = document["arms"][0]["resolved"]
    assert resolved["chip"]["bandwidth_bytes_per_s"] == 2.039e12
    assert "source" in resolved["chip"]["sources"]["bandwidth_bytes_per_s"]
    assert (resolved["model"]["hidden_size"], resolved["model"]["blocks"][0]["count"]) == (4096, 36)
    assert 8.1e9 < resolved["model"]["parameters"] < 8.3e9
    constant = resolved["efficiencies"]["weight_read"]
    assert constant["slow"] < constant["value"] < constant["fast"]
    assert constant["origin"]
    assert resolved["slo"] == {"ttft_s": 0.8, "tpot_s": 0.025}
    assert resolved["roofline"]["weight_bytes"] == document["memory"]["weight_bytes"]
    assert set(document["versions"]) == {"inferometer", "python", "numpy", "numba", "polars"}
    assert document["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert document["profile"] is None
    assert document["claims"] == [{"path": "kv_usage", "concurrency": 4, "request_rate": None, "value": 0.5}]
    assert (document["mean_prompt_tokens"], document["mean_output_tokens"]) == (512, 8)
    assert {"throughput_knee_concurrency", "server_knee_concurrency"} <= set(document) & set(document["arms"][0])
    point = document["points"][1]
    assert point["total_tok_per_s"] == pytest.approx(point["output_tok_per_s"] * (512 + 8) / 8)


def test_sealing_twice_makes_a_chain(store: Store, clock: list[float]):
    first = seal(Fake(), store)  # type: ignore[arg-type]
    second = seal(Fake(), store)  # type: ignore[arg-type]
    assert first != second
    assert contents(second)["ink"]["previous"] == contents(first)["sealed"]["sha256"]
    assert contents(first)["ink"]["time"] == "2026-03-01T12:00:00.000Z"
    assert verify(first).ok
    assert verify(second).ok
    rows = store.list_predictions()
    assert [Path(row["path"]) for row in rows] == sorted(
        [first, second], key=lambda path: contents(path)["sealed"]["sha256"]
    )
    assert {row["name"] for row in rows} == {"s"}


def test_a_clock_that_runs_backwards(store: Store, clock: list[float]):
    first = seal(Fake(), store)  # type: ignore[arg-type]
    clock.append(NOON - 3600)
    second = contents(seal(Fake(), store))["ink"]  # type: ignore[arg-type]
    assert second["time"] == contents(first)["ink"]["time"]
    assert "2026-03-01T11:00:00.000Z" in second["clock"]
    assert "seal before" in second["clock"]
    clock.append(NOON + 1)
    third = seal(Fake(), store)  # type: ignore[arg-type]
    assert (contents(third)["ink"]["time"], contents(third)["ink"]["clock"]) == ("2026-03-01T12:00:01.000Z", "")
    whole = verify(store.path)
    assert whole.ok
    assert whole.sha256 == contents(third)["sealed"]["sha256"]
    assert whole.seals[0].previous is None


def test_no_seal_is_dated_before_a_measurement_that_is_there(store: Store, clock: list[float]):
    store.save(make_run(RunMeta(kind="measured", id="m", started_unix_s=NOON + 10.0004), {"sent_s": [0.0]}))
    store.save(make_run(RunMeta(kind="imported", id="i", started_unix_s=NOON + 1e6), {"sent_s": [0.0]}))
    path = seal(Fake(), store)  # type: ignore[arg-type]
    ink = contents(path)["ink"]
    assert ink["time"] == "2026-03-01T12:00:10.001Z"  # never a millisecond early
    assert "run was measured" in ink["clock"]
    assert verify(path).notes == (ink["clock"],)


def test_a_measurement_under_way_counts_too(store: Store, clock: list[float]):
    folder = store.running / "now"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"kind": "measured", "started_unix_s": NOON + 5}))
    (store.running / "torn").mkdir()
    (store.running / "torn" / "meta.json").write_text("{")
    assert contents(seal(Fake(), store))["ink"]["time"] == "2026-03-01T12:00:05.000Z"  # type: ignore[arg-type]


def test_a_model_that_does_not_fit_is_sealed_too(store: Store):
    prediction = im.predict("demo", overrides=["model=meta-llama/Llama-3.1-70B"])
    path = prediction.seal(store)
    assert verify(path).ok
    assert im.read_sealed(path).base.fits is False


def test_a_seed_that_no_double_holds_cannot_be_sealed(store: Store):
    prediction = im.predict("demo", seed=2**60, overrides=["workload.concurrency=[1]", "workload.output_tokens=8"])
    with pytest.raises(InputError, match="seed"):
        prediction.seal(store)
    assert store.list_predictions() == []


def test_the_store_is_found_as_always(small: im.Prediction, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("INFEROMETER_STORE", str(tmp_path / "mine"))
    assert small.seal().parent == tmp_path / "mine" / "predictions"


def test_a_killed_sealing_leaves_no_half_file(store: Store, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    seal(Fake(), store)  # type: ignore[arg-type]
    monkeypatch.setattr("inferometer.store.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        seal(Fake(2.5), store)  # type: ignore[arg-type]
    assert [file.name for file in store.predictions.iterdir() if file.name != ".lock"] == [
        contents(Path(row["path"]))["sealed"]["path"].removeprefix("predictions/") for row in store.list_predictions()
    ]
    assert len(store.list_predictions()) == 1


SEALER = """
import sys
from inferometer.prediction.seal import seal
class Fake:
    def to_dict(self):
        return {"schema": "inferometer/prediction/1", "sealed": None, "by": sys.argv[2], "a": [0.1] * 2000}
print(flush=True)
sys.stdin.readline()
for _ in range(15):
    seal(Fake(), sys.argv[1])
"""


def test_processes_that_seal_at_once_make_one_chain(store: Store):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, "-c", SEALER, str(store.path), str(number)], **pipes)  # type: ignore[call-overload]
        for number in range(4)
    ]
    for process in processes:
        process.stdout.readline()  # it is ready
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    for process in processes:
        process.stdin.close()
        process.stdout.close()
    whole = verify(store.path)
    assert whole.faults == ()
    assert len(whole.seals) == 60
    by_previous = {seal.previous: seal for seal in whole.seals}
    assert len(by_previous) == 60
    chain, at = [], None
    while at in by_previous:
        chain.append(at := by_previous[at].sha256)
    assert len(chain) == 60
    authors = [contents(store.predictions / f"{sha256[:16]}.json")["by"] for sha256 in chain]
    assert len({(a, b) for a, b in pairwise(authors) if a != b}) > 0, "they took turns"
