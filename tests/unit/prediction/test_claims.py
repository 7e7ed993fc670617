"""Claims: how they are written, which figures there are, and what is said of a mistake."""

from __future__ import annotations

from typing import Any

import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.prediction.claims import OF_A_POINT, Claim, check, claim_lines, merged, predicted_value

BASE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "chip": "a100-sxm4-80gb",
    "deployment": {"engine_version": "0.26.0"},
    "workload": {"prompt_tokens": 256, "output_tokens": 8, "concurrency": [1, 4]},
    "slo": {"ttft_ms": 500},
}


def open_loop() -> dict[str, Any]:
    return {
        **BASE,
        "workload": {"prompt_tokens": 64, "output_tokens": 8, "request_rate": [0.5, 2], "requests_per_point": 4},
    }


@pytest.mark.parametrize(
    ("written", "path", "concurrency", "rate", "value"),
    [
        ("output_tok_per_s@64=5060", "output_tok_per_s", 64, None, 5060.0),
        ("ttft_ms.p99@8 = 1.5e3", "ttft_ms.p99", 8, None, 1500.0),
        ("tpot_ms.p50@0.5/s=20", "tpot_ms.p50", None, 0.5, 20.0),
        ("ttft_knee_concurrency=none", "ttft_knee_concurrency", None, None, None),
        ("goodput.gap_p99=-1", "goodput.gap_p99", None, None, -1.0),
    ],
)
def test_a_claim_as_it_is_written(
    written: str, path: str, concurrency: int | None, rate: float | None, value: float | None
):
    claim = Claim.parse(written)
    assert (claim.path, claim.concurrency, claim.request_rate, claim.value) == (path, concurrency, rate, value)
    assert Claim.parse(str(claim)) == claim
    assert claim.of_point == ("@" in written)


@pytest.mark.parametrize(
    "written",
    [
        *("output_tok_per_s", "=5", "@64=5", "output_tok_per_s@=5", "output_tok_per_s@x=5", "output_tok_per_s@0=5"),
        *("output_tok_per_s@1.5=5", "output_tok_per_s@2/m=5", "a=b", "a=", "a=nan", "a=inf", "a=true"),
    ],
)
def test_what_is_no_claim(written: str):
    with pytest.raises(InputError, match="claim"):
        Claim.parse(written)


def test_the_flag_wins_over_the_study():
    study = {"output_tok_per_s@4": 10.0, "ttft_knee_concurrency": None}
    found = merged(study, ["output_tok_per_s@4=20", Claim.parse("kv_usage@1=0.5")])
    assert [str(claim) for claim in found] == [
        "output_tok_per_s@4=20", "ttft_knee_concurrency=none", "kv_usage@1=0.5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ("outptu_tok_per_s@4=1", "did you mean output_tok_per_s"),
        ("p99@4=1", "ttft_ms.p99"),
        ("output_tok_per_s@5=1", "no such point; the study has @1, @4"),
        ("output_tok_per_s@2/s=1", "no such point"),
        ("output_tok_per_s=1", "write output_tok_per_s@64"),
        ("ttft_knee_concurrency@4=1", "leave out the @"),
        ("memory.num_blocks=1", "did you mean memory.num_gpu_blocks"),
        ("memory.fits=1", "no such figure"),
        ("memory.terms=1", "no such figure"),
        ("resolved.chip.memory_bytes=1", "no such figure"),
        ("seed=1", "no such figure"),
    ],
)
def test_a_figure_or_point_that_there_is_not_is_one_clear_error_before_anything_is_simulated(claim: str, says: str):
    ticks: list[int] = []
    with pytest.raises(InputError, match=says):
        im.predict(BASE, claims=[claim], progress=lambda done, total: ticks.append(done))
    assert ticks == []


def test_every_figure_of_a_point_that_can_be_claimed_is_in_its_json():
    prediction = im.predict(BASE, claims=[f"{path}@4=1" for path in OF_A_POINT])
    document = prediction.to_dict()
    values = {claim.path: predicted_value(document, claim) for claim in prediction.claims}
    assert None not in values.values()
    assert values["ttft_ms.p99"] == document["points"][1]["ttft_ms"]["p99"]
    assert [claim["concurrency"] for claim in document["claims"]] == [4] * len(OF_A_POINT)


def test_figures_of_the_sweep():
    names = (
        *("memory.num_gpu_blocks", "ttft_knee_concurrency", "server_knee_concurrency", "throughput_knee_concurrency"),
        *("goodput.p99.output_tok_per_s", "goodput.gap_p99", "roofline.half_saturation_batch", "roofline.knee_batch"),
        *("roofline.limits.preemption_concurrency", "mean_prompt_tokens"),
    )
    prediction = im.predict(BASE, claims=[f"{name}=3" for name in names])
    found = predicted_value(prediction.to_dict(), prediction.claims[0])
    assert found == prediction.memory.num_gpu_blocks
    assert [claim.path for claim in prediction.claims] == list(names)


def test_a_goodput_that_no_point_reaches_can_be_claimed():
    strict = {**BASE, "slo": {"ttft_ms": 0.001}}
    prediction = im.predict(strict, claims=["goodput.p99.output_tok_per_s=100"])
    assert prediction.to_dict()["goodput"]["p99"] is None
    assert predicted_value(prediction.to_dict(), prediction.claims[0]) is None


def test_a_rate_of_an_open_loop():
    prediction = im.predict(open_loop(), claims=["output_tok_per_s@0.5/s=4"])
    assert predicted_value(prediction.to_dict(), prediction.claims[0]) == prediction.points[0].summary.output_tok_per_s
    with pytest.raises(InputError, match=r"the study has @0\.5/s, @2/s"):
        im.predict(open_loop(), claims=["output_tok_per_s@2=4"])


def test_claims_of_a_model_that_does_not_fit():
    prediction = im.predict({**BASE, "model": "meta-llama/Llama-3.1-70B"}, claims=["output_tok_per_s@4=9"])
    assert prediction.points == ()
    assert prediction.claims[0].value == 9


def test_a_study_holds_claims_quoted_or_as_bare_dots():
    study = im.load_study({**BASE, "claims": {"output_tok_per_s@4": 90, "goodput": {"gap_p99": 2.5}, "kv_usage@1": 0}})
    assert study.claims == {"output_tok_per_s@4": 90.0, "goodput.gap_p99": 2.5, "kv_usage@1": 0.0}
    over = im.load_study(study.table, ["claims.output_tok_per_s@4=none", "claims.ttft_ms.p99@1=80"])
    assert over.claims["output_tok_per_s@4"] is None
    assert over.claims["ttft_ms.p99@1"] == 80
    assert "claims" not in over.base.table
    assert [str(claim) for claim in im.predict(study, claims=["kv_usage@1=0.1"]).claims] == [
        "output_tok_per_s@4=90", "goodput.gap_p99=2.5", "kv_usage@1=0.10000000000000001",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["many", True, [1], float("inf")])
def test_a_study_whose_claim_is_no_number(value: object):
    with pytest.raises(InputError, match=r"claims\.kv_usage@1"):
        im.load_study({**BASE, "claims": {"kv_usage@1": value}})


def test_claims_belong_to_the_whole_study_not_to_an_arm():
    with pytest.raises(InputError, match="claims"):
        im.load_study({**BASE, "arm": [{"name": "x", "claims": {"kv_usage@1": 1}}]})


def test_a_replay_has_no_point_to_name():
    with pytest.raises(InputError, match="replay"):
        check([Claim.parse("kv_usage@1=1")], {}, [(None, None)])


def test_a_study_whose_points_are_overridden_keeps_its_claims_of_the_others() -> None:
    table = {"model": "Qwen/Qwen3-8B", "chip": "a100-sxm4-80gb", "claims": {"output_tok_per_s@64": 5060}}
    load = {"concurrency": [1], "requests_per_point": 1, "prompt_tokens": 16, "output_tokens": 4}
    prediction = im.predict({**table, "workload": load})
    assert [claim.name for claim in prediction.claims] == ["output_tok_per_s@64"]
    (line,) = claim_lines(prediction.claims, prediction.to_dict())
    assert line == "Claimed: output_tok_per_s@64 5,060; predicted: that load is not among the points."
