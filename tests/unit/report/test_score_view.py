"""How scores and the scorecard are printed: the seal first, arms side by side, claims, knees; within 100 columns."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report import score_view, scorecard_view, terminal
from inferometer.scoring.score import score
from inferometer.scoring.scorecard import Scorecard, Trust
from inferometer.store import Store


def printed(show: Callable[[Console], object]) -> str:
    out = io.StringIO()
    console = terminal.make_console(out)
    console.width = 100
    show(console)
    text = out.getvalue()
    assert max(map(len, (line.rstrip() for line in text.splitlines())), default=0) <= 100
    return text


def shown(card: im.Score, **options: Any) -> str:
    return printed(lambda console: score_view.score(card, console, **options))


@pytest.fixture(scope="module")
def prediction() -> im.Prediction:
    claims = ["output_tok_per_s@64=5060", "memory.num_gpu_blocks=22959", "ttft_knee_concurrency=4"]
    return im.predict("a100-qwen3-8b", overrides={"arm": [], "workload.concurrency": [1, 16, 64]}, claims=claims)


def founding(*users: int) -> list[Run]:
    return [run for run in founding_sweep.runs() if run.meta.concurrency in users]


def test_the_seal_is_the_first_line(prediction: im.Prediction, tmp_path: Path):
    assert shown(score(prediction, founding(1, 16))).startswith("Not sealed: ")
    assert shown(score(prediction.seal(tmp_path), founding(1, 16))).startswith(("Sealed ", "Not a sealed prediction"))
    assert not shown(score(prediction, founding(1, 16)), seal=False).startswith("Not sealed")


def test_claims_stand_beside_the_model(prediction: im.Prediction):
    text = shown(score(prediction, founding(1, 16, 64)))
    assert re.search(r"^out tok/s at C=64 +5,060 +\+102 +2,\d\d0 +[-+]\d\.\d +2,500 +the model$", text, flags=re.M)
    assert re.search(r"^TTFT knee, users +4 ", text, flags=re.M)
    assert re.search(r"^KV blocks +22,959 +-10\.5 +25,\d{3} +-0\.\d +25,640 +the model$", text, flags=re.M)


def test_knees_ceilings_and_what_binds(prediction: im.Prediction):
    text = shown(score(prediction, founding(1, 16, 64)))
    assert re.search(r"^TTFT +C=16 +C=16 +first p99 TTFT > 2 x p50; closed form of one wave: C=4$", text, flags=re.M)
    assert re.search(r"^server +C=64 +not known", text, flags=re.M)
    assert "what binds, measured: TTFT at p99 and p50, TPOT never." in text
    assert "One user gets 88.8 of 124.5 tok/s: 71.3 % of the weights' ceiling" in text
    assert re.search(r"^ +C=64 +64\.0 +[-+]0\.\d +31\.4 +\d\d\.\d$", text, flags=re.M)


def test_brief_leaves_tables_out(prediction: im.Prediction):
    text = shown(score(prediction, founding(1, 16)), brief=True)
    assert "By metric" not in text
    assert "weights only" not in text


def test_what_is_missing_and_what_is_not_whole(prediction: im.Prediction):
    runs = [
        msgspec.structs.replace(run, meta=msgspec.structs.replace(run.meta, partial="killed")) for run in founding(1)
    ]
    text = shown(score(prediction, runs))
    assert "C=1 is not whole: killed." in text
    assert "Predicted and not measured: C=16, 64." in text


def arm(name: str, users: int, tok_per_s: float, blocks: int = 100) -> Run:
    stated = {"output_tok_per_s": tok_per_s, "ttft_s.p99": 0.1, "tpot_s.p50": 0.01}
    meta = RunMeta(kind="imported", arm=name, concurrency=users, stated=stated, server={"num_gpu_blocks": blocks})
    return make_run(meta)


def test_arms_stand_side_by_side():
    predicted = [arm("base", 8, 100.0), arm("base", 16, 190.0), arm("fp8", 8, 162.0), arm("fp8", 16, 300.0)]
    measured = [arm("base", 8, 200.0), arm("base", 16, 380.0), arm("fp8", 8, 310.0), arm("fp8", 16, 600.0)]
    lines = shown(score(predicted, measured)).splitlines()
    table = [line.split()[:3] for line in lines[lines.index("") + 1 :]]
    assert table[2:6] == [["C=8", "base", "100"], ["fp8", "162", "310"], ["C=16", "base", "190"], ["fp8", "300", "600"]]
    assert any(re.match(r"^ +C=8 +fp8 +1\.62x +1\.55x +\+4\.5 ", line) for line in lines)


def test_a_knee_on_one_side_is_shown_as_none():
    def at(users: int, p99_s: float) -> Run:
        return make_run(RunMeta(kind="imported", concurrency=users, stated={"ttft_s.p50": 0.1, "ttft_s.p99": p99_s}))

    flat, bent = [at(1, 0.1), at(2, 0.1)], [at(1, 0.1), at(2, 0.3)]
    assert re.search(r"^TTFT +C=2 +none ", shown(score(bent, flat)), flags=re.M)


def test_the_scorecard(prediction: im.Prediction, tmp_path: Path):
    store = Store(tmp_path)
    assert "No score is kept here yet" in printed(lambda c: scorecard_view.scorecard(im.scorecard(store), c))
    prediction.seal(store)
    store.save_score(score(prediction, founding(1, 16, 64)).to_dict())
    text = printed(lambda c: scorecard_view.scorecard(im.scorecard(store), c))
    assert text.startswith("1 prediction scored.\n")
    assert re.search(r"^seal +all others +1 ", text, flags=re.M)
    assert re.search(r"^chip +a100-sxm4-80gb +1 ", text, flags=re.M)
    assert re.search(r"^a100-sxm4-80gb +Qwen/Qwen3-8B +vllm 0\.26\.0 +88\.8 +124 +71\.3$", text, flags=re.M)
    assert "Sealed and never scored: a100-qwen3-8b" in text
    assert "Left out" not in text


def sure(kind: str, points: int, p90: float | None) -> Trust:
    return Trust(kind=kind, points=points, p90_abs_error_pct=p90, low_pct=None, high_pct=None)


def test_the_headline_says_on_what_it_rests():
    trust = (sure("throughput", 16, 3.7), sure("TTFT", 30, 21.0), sure("knees", 2, None))
    card = Scorecard(predictions=3, scores=4, trust=trust, trusted="sealed before", trusted_predictions=2)
    assert scorecard_view.trust_lines(card) == [
        "3 predictions scored, 4 scores.",
        "How far to trust the next one: nine in ten were within 3.70 % on throughput, 21.0 % on TTFT "
        "(46 figures of 2 sealed predictions).",
    ]
    card = Scorecard(predictions=1, scores=1, trust=trust[:1], trusted="all", trusted_predictions=1)
    assert scorecard_view.trust_lines(card)[1].endswith(
        "(16 figures of 1 prediction; too few are sealed to go by those alone)."
    )


def test_what_the_scorecard_leaves_out_is_said_with_the_reason():
    card = Scorecard(predictions=1, scores=1, in_sample=1, left_out={"seal broken": 1, "runs unlike": 2})
    text = printed(lambda console: scorecard_view.scorecard(card, console))
    assert "Left out: 1 figure of points that the calibration was fitted to." in text
    assert "Left out: 1 score, seal broken." in text
    assert "Left out: 2 scores, runs unlike." in text
    none = Scorecard(predictions=0, scores=0, left_out={"seal broken": 1})
    assert scorecard_view.trust_lines(none) == ["No score here counts yet."]


def fitted(card: im.Score, *users: int) -> im.Score:
    """The same with these points and the sweep fitted."""
    rows = [
        msgspec.structs.replace(row, fitted=row.concurrency in users or not row.of_point)
        for row in card.rows
        if not row.metric.startswith("memory")
    ]
    return msgspec.structs.replace(card, rows=tuple(rows))


def test_points_that_were_fitted_are_marked_and_told(prediction: im.Prediction):
    whole = score(prediction, founding(1, 16, 64))
    card = fitted(whole, 1, 64)
    text = shown(card)
    told = "C=1 and C=64 were fitted, not predicted: left out of the counts, as are the knees and goodput"
    assert re.search(rf"^{re.escape(told)}", text, flags=re.M)
    of_16 = [row for row in whole.rows if row.concurrency == 16 and not row.restates]
    right = sum(row.verdict == "ok" for row in of_16)
    assert re.search(rf"^{right} of {len(of_16)} figures within 10 %.* at C=16\.$", text, flags=re.M)
    assert [re.search(rf"^ *C={users}(\*?) +\d", text, flags=re.M)[1] for users in (1, 16, 64)] == ["*", "", "*"]
    assert "* The calibration was fitted to it: in no count." in text
    missed = sum(row.verdict == "miss" for row in card.rows if row.fitted)
    assert f"Of their figures {missed} are beyond 10 %." in " ".join(text.split())


def test_a_score_of_fitted_points_only_has_no_verdict(prediction: im.Prediction):
    text = shown(fitted(score(prediction, founding(16)), 16))
    assert "Nothing predicted to compare: the calibration was fitted to every point measured." in text
    assert "C=16 was fitted, not predicted: left out of the counts, as are the knees and goodput" in text
    assert re.search(r"^TTFT p99 ms .*(within|missed)\*", text, flags=re.M)
    assert "fitted" not in shown(score(prediction, founding(16)))


def test_without_a_sweeps_figures_none_are_said_to_be_left_out():
    rows = [msgspec.structs.replace(row, fitted=row.concurrency != 2) for row in score(*two_sweeps()).rows]
    card = msgspec.structs.replace(score(*two_sweeps()), rows=tuple(rows))
    assert score_view.fitted_line(card) == "C=1 and C=32 were fitted, not predicted: left out of the counts."


def two_sweeps() -> tuple[list[Run], list[Run]]:
    def at(users: int, tok_per_s: float) -> Run:
        return make_run(RunMeta(kind="imported", concurrency=users, stated={"total_tok_per_s": tok_per_s}))

    return [at(users, 100.0) for users in (1, 2, 32)], [at(users, 99.0) for users in (1, 2, 32)]
