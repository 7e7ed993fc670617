"""Goodput and knees of a sweep, on small sweeps and on the second founding document's."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from inferometer.errors import InputError
from inferometer.records.importers import load
from inferometer.records.metrics import sweep_goodput, sweep_table, throughput_knee, ttft_knee
from inferometer.records.run import Run, RunMeta, make_run
from shared import shared


def point(concurrency: int | None, tok_per_s: float | None, **stated: float) -> Run:
    values = {} if tok_per_s is None else {"output_tok_per_s": tok_per_s}
    paths = {name.replace("__", "."): v for name, v in stated.items()}
    return make_run(RunMeta(kind="imported", concurrency=concurrency, stated={**values, **paths}))


@pytest.fixture
def founding(tmp_path: Path) -> tuple[list[Run], dict[str, object]]:
    """The founding document's sweep, read from a CSV as people keep it, and what it says about it."""
    facts = json.loads(shared("vectors/seeds.json").read_text())["benchmark"]
    rows = facts["sweep_measured"]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    path = tmp_path / "sweep.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return load(path), facts


def test_the_founding_sweep_reads_back_as_it_was_written(founding) -> None:
    runs, facts = founding
    table = sweep_table(runs)
    assert len(runs) == 8
    for row, written in zip(table, facts["sweep_measured"], strict=True):
        assert {key: row[key] for key in written} == pytest.approx(written)
        assert row["per_user_tok_per_s"] == pytest.approx(written["output_tok_per_s"] / written["concurrency"])
        assert row["ttft_ms_mean"] is None
    assert table[0]["itl_ms_p99"] is None


def test_the_founding_sweeps_goodput_and_gaps(founding) -> None:
    runs, facts = founding
    slo = facts["goodput"]["slo"]
    good = sweep_goodput(runs, ttft_s=slo["ttft_ms"] / 1000, tpot_s=slo["tpot_ms"] / 1000)
    assert good.p99 is not None
    assert good.p50 is not None
    assert (good.p99.concurrency, good.p99.output_tok_per_s) == (8, 639.5)
    assert (good.p50.concurrency, good.p50.output_tok_per_s) == (32, 1763.3)
    assert (good.raw_max.concurrency, good.raw_max.output_tok_per_s) == (128, 3088.2)
    assert [round(good.gap_p50, 2), round(good.gap_p99, 1)] == facts["goodput"]["gap"]  # type: ignore[arg-type]
    assert good.binding_p50 == good.binding_p99 == ("ttft_s",)  # "TPOT SLO never binds"
    assert good.name == "marginal percentile"


def test_the_founding_sweeps_knee(founding) -> None:
    runs, facts = founding
    assert ttft_knee(runs) == facts["ttft_knee"]["concurrency"] == 2
    assert ttft_knee(list(reversed(runs))) == 2


def test_a_table_written_from_runs_reads_back(founding, tmp_path: Path) -> None:
    runs, _ = founding
    path = tmp_path / "again.csv"
    table = sweep_table(runs)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    for row, again in zip(table, sweep_table(load(path)), strict=True):
        assert again == pytest.approx(row)


def test_no_point_meets_the_limits() -> None:
    good = sweep_goodput([point(1, 10.0, ttft_s__p50=1.0, ttft_s__p99=2.0)], ttft_s=0.5)
    assert (good.p50, good.p99, good.gap_p50, good.gap_p99) == (None, None, None, None)
    assert good.raw_max.output_tok_per_s == 10.0
    assert good.binding_p99 == ("ttft_s",)


def test_a_point_that_does_not_state_the_percentile_does_not_qualify_by_it() -> None:
    runs = [point(1, 10.0, ttft_s__p50=0.1, ttft_s__p99=0.1), point(2, 20.0, ttft_s__p50=0.1)]
    good = sweep_goodput(runs, ttft_s=0.5)
    assert good.p50 is not None
    assert good.p99 is not None
    assert (good.p50.concurrency, good.p99.concurrency) == (2, 1)


def test_the_limit_itself_is_met() -> None:
    assert sweep_goodput([point(1, 1.0, tpot_s__p99=0.05)], tpot_s=0.05).p99 is not None


@pytest.mark.parametrize(
    ("runs", "says"),
    [([], "runs"), ([point(1, None)], "rate"), ([point(1, 5.0, ttft_s__mean=0.1)], "no run states ttft_s")],
)
def test_what_cannot_be_judged_is_refused(runs: list[Run], says: str) -> None:
    with pytest.raises(InputError, match=says):
        sweep_goodput(runs, ttft_s=0.5)


def test_one_token_replies_meet_a_tpot_limit() -> None:
    columns = {"sent_s": [0.0], "first_token_s": [0.1], "end_s": [0.1], "prompt_tokens": [1], "output_tokens": [1]}
    run = make_run(RunMeta(kind="measured", concurrency=1), columns)
    assert sweep_goodput([run], ttft_s=0.5, tpot_s=0.01).p99 is not None


def test_ttft_knee_needs_more_than_twice() -> None:
    assert ttft_knee([point(1, 1.0, ttft_s__p50=0.1, ttft_s__p99=0.2)]) is None
    assert ttft_knee([point(None, 1.0, ttft_s__p50=0.1, ttft_s__p99=0.9)]) is None
    assert ttft_knee([]) is None


def test_throughput_knee_is_where_a_curve_bends() -> None:
    rising = [point(c, 100.0 * min(c, 16)) for c in (1, 2, 4, 8, 16, 32, 64)]
    assert throughput_knee(rising) == 16
    assert throughput_knee([point(c, 100.0 * c) for c in (1, 2, 4, 8)]) is None
    assert throughput_knee(rising[:2]) is None
    assert throughput_knee([point(c, 100.0) for c in (1, 2, 4)]) is None
