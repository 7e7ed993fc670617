"""Whether a score calls a prediction sealed: only one that is whole and from before the measurement began."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import inferometer as im
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.score import score
from inferometer.scoring.seals import began, duration
from inferometer.scoring.sides import prediction_file

STUDY = {"arm": [], "workload.concurrency": [1, 2], "workload.output_tokens": 16}


@pytest.fixture(scope="module")
def prediction() -> im.Prediction:
    return im.predict("a100-qwen3-8b", overrides=STUDY)


@pytest.fixture
def sealed(prediction: im.Prediction, tmp_path: Path) -> Path:
    return prediction.seal(tmp_path)


def measured(concurrency: int, **meta: Any) -> Run:
    return make_run(RunMeta(kind="imported", concurrency=concurrency, stated={"output_tok_per_s": 90.0}, **meta))


def seconds(sealed: Path) -> float:
    found = im.read_sealed(sealed).sealed_unix_s
    assert found is not None
    return found


def test_sealed_before_every_run_began(sealed: Path):
    at = seconds(sealed)
    runs = [measured(1, started_unix_s=at + 3900), measured(2, started_unix_s=at + 9999)]
    seal = score(sealed, runs).seal
    assert seal.state == "sealed"
    assert "1 h 5 min before" in seal.sentence
    assert seal.sha256 is not None
    assert seal.sentence.startswith(f"Sealed {seal.sha256[:8]}")
    assert seal.measured_at == datetime.fromtimestamp(at + 3900, UTC).isoformat(timespec="seconds")


def test_made_after_one_of_the_runs_began_is_late(sealed: Path):
    at = seconds(sealed)
    card = score(sealed, [measured(1, started_unix_s=at - 90), measured(2, started_unix_s=at + 90)])
    assert card.seal.state == "late"
    assert card.seal.sentence == "Not a sealed prediction: sealed 1 min 30 s after the measurement began."
    assert score(sealed, [measured(1, started_unix_s=at)]).seal.state == "late"


def test_only_runs_that_are_compared_matter(sealed: Path):
    at = seconds(sealed)
    runs = [measured(64, started_unix_s=at - 90), measured(2, started_unix_s=at + 90)]
    assert score(sealed, runs).seal.state == "sealed"


def test_a_measurement_without_a_date(sealed: Path):
    assert score(sealed, measured(1)).seal.state == "undated"
    assert score(sealed, measured(1, created="yesterday")).seal.state == "undated"
    mixed = score(sealed, [measured(1, started_unix_s=seconds(sealed) + 9), measured(2)]).seal
    assert (mixed.state, "1 measured run has no date" in mixed.sentence) == ("undated", True)
    early = score(sealed, [measured(1, started_unix_s=seconds(sealed) - 9), measured(2)]).seal
    assert early.state == "late"


def test_a_file_dated_at_its_end_began_its_duration_before(sealed: Path):
    at = seconds(sealed)
    end = datetime.fromtimestamp(at + 100, UTC).isoformat()
    assert score(sealed, measured(1, created=end, duration_s=60.0)).seal.state == "sealed"
    late = score(sealed, measured(1, created=end, duration_s=300.0)).seal
    assert late.state == "late"
    assert "taken at its end, less its duration" in late.sentence


def test_a_date_without_a_zone_so_near_that_another_would_change_what_came_first(sealed: Path):
    at = seconds(sealed)
    soon = datetime.fromtimestamp(at + 7200).isoformat()
    seal = score(sealed, measured(1, created=soon)).seal
    assert (seal.state, "without a zone" in seal.sentence) == ("undated", True)
    assert seal.sentence.endswith("Of another zone, it began before that: which came first is open.")
    # it need not be the first: another zone would move it before the seal all the same
    mixed = [measured(1, started_unix_s=at + 60), measured(2, created=soon)]
    assert score(sealed, mixed).seal.state == "undated"
    near, far = (datetime.fromtimestamp(at + hours * 3600).isoformat() for hours in (25.9, 26.1))
    assert score(sealed, measured(1, created=near)).seal.state == "undated"
    assert score(sealed, measured(1, created=far)).seal.state == "sealed"
    # what is late as it stands is called late
    early = datetime.fromtimestamp(at - 7200).isoformat()
    assert score(sealed, measured(1, created=early)).seal.state == "late"
    # beyond what zones can differ by there is nothing to say
    later = datetime.fromtimestamp(at + 3 * 86400).isoformat()
    seal = score(sealed, measured(1, created=later)).seal
    assert (seal.state, "zone" in seal.sentence) == ("sealed", False)


def test_a_changed_digit_breaks_the_seal_and_fails(prediction: im.Prediction, sealed: Path):
    later = seconds(sealed) + 60
    good = [
        msgspec.structs.replace(run, meta=msgspec.structs.replace(run.meta, started_unix_s=later))
        for run in prediction.runs
    ]
    assert score(sealed, good).passed
    document = json.loads(sealed.read_text())
    document["arms"][0]["points"][0]["ttft_ms"]["p99"] += 1e-6
    sealed.write_text(json.dumps(document))
    card = score(sealed, good)
    assert (card.seal.state, card.passed, card.missed) == ("broken", False, ())
    assert card.to_dict()["seal"]["state"] == "broken"


def test_not_sealed(prediction: im.Prediction, tmp_path: Path):
    run = measured(1, started_unix_s=2e9)
    assert score(prediction, run).seal.state == "unsealed"
    file = tmp_path / "prediction.json"
    file.write_bytes(msgspec.json.encode(prediction.to_dict(), enc_hook=str))
    assert score(file, run).seal.state == "unsealed"
    assert score(prediction.runs, run).seal.sentence == ""


def test_when_a_run_began():
    assert began(measured(1)) is None
    started = began(measured(1, started_unix_s=5.0, created="2026-01-01T00:00:00+00:00"))
    assert started is not None
    assert started.unix_s == 5.0


@pytest.mark.parametrize(
    ("time_s", "words"), [(0.4, "less than 1 s"), (59, "59 s"), (3600, "1 h"), (86400 + 60, "1 d"), (7384, "2 h 3 min")]
)
def test_durations_in_words(time_s: float, words: str):
    assert duration(time_s) == words


def test_a_start_that_is_no_time_in_seconds_is_none(sealed: Path):
    milliseconds = seconds(sealed) * 1000 + 60_000
    assert score(sealed, measured(1, started_unix_s=milliseconds)).seal.state == "undated"
    at = datetime.fromtimestamp(seconds(sealed) + 60, UTC).isoformat()
    assert score(sealed, measured(1, started_unix_s=milliseconds, created=at)).seal.state == "sealed"


def test_a_start_whose_zone_was_assumed_is_said_to_be(sealed: Path, tmp_path: Path):
    soon = datetime.fromtimestamp(seconds(sealed) + 7200, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    table = tmp_path / "sweep.csv"
    table.write_text(f"concurrency,output_tok_per_s,started\n1,90,{soon}\n")
    seal = score(sealed, im.load(table)).seal
    assert (seal.state, "without a zone, so read in UTC" in seal.sentence) == ("undated", True)
    table.write_text(f"concurrency,output_tok_per_s,started\n1,90,{soon}Z\n")
    seal = score(sealed, im.load(table)).seal
    assert (seal.state, "zone" in seal.sentence) == ("sealed", False)


def test_a_sealed_file_that_is_json_no_longer_is_still_a_predictions(sealed: Path, tmp_path: Path):
    assert prediction_file(str(sealed))
    sealed.write_text(sealed.read_text()[:-9])
    assert prediction_file(str(sealed))
    other = tmp_path / "other.json"
    other.write_text('{"schema": "inferometer/score/1"')
    assert not prediction_file(str(other))
