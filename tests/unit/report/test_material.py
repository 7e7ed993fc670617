"""What a report says is gathered once, whatever it is made from, and what it cannot say is said."""

from __future__ import annotations

from pathlib import Path

import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.report.material import gather
from reported import MEASURED, STUDY, predicted, raw, scored, stated, with_raw


def test_each_load_is_a_level_with_both_sides():
    levels = scored().base.levels
    assert [level.name for level in levels] == ["C=1", "C=2", "C=8"]
    assert [level.measured.output_tok_per_s for level in levels] == [88.0, 150.0, 500.0]
    assert all(level.predicted is not None and level.roofline_tok_per_s for level in levels)


def test_knees_and_goodput_are_of_the_measured_figures():
    base = scored().base
    assert base.measured_knees.ttft == 2  # 150 ms is more than twice 40 ms
    assert base.measured_goodput.p50.concurrency == 2  # of a limit of 100 ms: 120 ms at 8 misses it
    assert base.measured_goodput.p99.concurrency == 1


def test_a_load_measured_twice_is_two_levels_and_one_point_of_the_line():
    base = with_raw().base
    assert [level.name for level in base.measured] == ["C=1", "C=8", "C=8"]
    assert [level.name for level in base.predicted] == ["C=1", "C=2", "C=8"]


def test_a_partial_sweep_says_what_is_missing():
    killed = stated(8, partial="interrupted")
    material = gather(predicted(), [stated(1), killed])
    told = " / ".join(material.missing)
    assert "but not measured: C=2" in told
    assert "C=8 is not whole: interrupted" in told
    assert "aggregates only" in told
    assert material.card is not None


def test_what_the_measurement_holds_is_not_missing():
    told = " / ".join(with_raw().missing)
    assert "aggregates only" not in told
    assert "token times" not in told
    assert "not sampled" not in told
    assert "no startup log" in told


def test_a_prediction_alone():
    material = gather(predicted())
    assert material.card is None
    assert material.findings == ()
    assert "nothing is measured yet" in material.missing[0]
    assert "measured by" not in material.caption


def test_a_measurement_alone():
    material = gather(None, [stated(users) for users in MEASURED])
    assert material.card is None
    assert material.base.predicted == []
    assert "predicted by" not in material.caption
    assert "seal" not in material.caption


def test_nothing_at_all_is_refused():
    with pytest.raises(InputError, match="nothing to report on"):
        gather(None, [])


def test_a_run_of_a_load_that_is_not_predicted_is_kept():
    other = im.predict({**STUDY, "workload": {**STUDY["workload"], "concurrency": [1, 4]}})
    material = gather(other, [stated(1), stated(8)])
    assert [level.name for level in material.base.levels] == ["C=1", "C=4", "C=8"]
    assert any("C=8" in each for each in material.missing)


def test_the_date_is_the_measurement_s():
    assert with_raw().date == "2026-07-31"
    assert scored().date == ""


def test_a_sealed_prediction_reports_as_the_live_one(tmp_path: Path):
    sealed = predicted().seal(tmp_path)
    material = gather(sealed, [stated(users) for users in MEASURED])
    assert len(material.seal) == 8
    assert f"seal {material.seal}" in material.caption
    live = scored()
    assert [r.predicted for r in material.card.rows] == pytest.approx([r.predicted for r in live.card.rows])
    assert material.base.predicted_knees == live.base.predicted_knees
    assert material.base.deployment == live.base.deployment


def test_a_profile_does_not_go_with_a_prediction_s_file(tmp_path: Path):
    with pytest.raises(InputError, match="leave out the profile"):
        gather(predicted().seal(tmp_path), [raw(1)], "profile.toml")
