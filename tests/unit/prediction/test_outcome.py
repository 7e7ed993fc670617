"""What became of the offered load: refusals with their reasons, and open loops that offer more than is served."""

from __future__ import annotations

from typing import Any

import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.prediction.outcome import refused, serves
from inferometer.records.overload import offered_per_s, overloaded
from inferometer.records.run import RunMeta, make_run
from inferometer.specs.merge import merge

TABLE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "chip": "h100-sxm-80gb",
    "deployment": {"engine_version": "0.26.0"},
    "workload": {"prompt_tokens": 1024, "output_tokens": 256},
}


def predict(**workload: Any) -> im.Prediction:
    """The table's study with this workload, and deployment flags where they are given."""
    flags = workload.pop("deployment", {})
    return im.predict(merge(TABLE, {"workload": workload, "deployment": flags}))


def queue(rate: float, service_s: float, n: int = 400, slots: int = 1, **meta: Any) -> im.Run:
    """One request after the other on each of so many servers, sent evenly; the server's samples at each sending."""
    sent = [i / rate for i in range(n)]
    free = [0.0] * slots
    admitted, end = [], []
    for at in sent:
        slot = free.index(min(free))
        admitted.append(max(at, free[slot]))
        free[slot] = admitted[-1] + service_s
        end.append(free[slot])
    waiting = [sum(a > at for a in admitted[: i + 1]) for i, at in enumerate(sent)]
    columns = {
        "sent_s": sent, "admitted_s": admitted, "first_token_s": end, "last_token_s": end, "end_s": end,
        "prompt_tokens": [8] * n, "output_tokens": [8] * n,
    }  # fmt: skip
    server = {"time_s": sent, "replica": [0] * n, "waiting": waiting}
    return make_run(RunMeta(**{"kind": "simulated", "request_rate_per_s": rate, **meta}), columns, server)


# --- overload


@pytest.mark.parametrize(
    ("rate", "slots", "over"), [(2.0, 1, True), (1.2, 1, True), (1.0, 1, False), (0.5, 1, False), (8.0, 10, False)]
)
def test_a_server_that_serves_one_a_second_is_overloaded_beyond_that(rate: float, slots: int, over: bool):
    run = queue(rate, service_s=1.0, slots=slots)
    assert overloaded(run, run.summary()) is over


def test_a_short_run_is_not_overloaded_only_because_it_ends_late():
    # 20 requests in 2 s, each served at once in 10 s: 1.6 of 10 requests/s over the run, and nobody waits
    run = queue(10.0, service_s=10.0, n=20, slots=100)
    summary = run.summary()
    assert summary.request_per_s < 0.2 * offered_per_s(run)
    assert not overloaded(run, summary)


def test_requests_that_are_all_admitted_and_slow_each_other_down_pile_up_too():
    n, rate = 400, 10.0
    sent = [i / rate for i in range(n)]
    columns: dict[str, Any] = {"sent_s": sent, "prompt_tokens": [8] * n, "output_tokens": [10] * n}
    for growth, over in ((0.0, False), (0.05, True)):
        columns["end_s"] = [at + 1 + growth * i for i, at in enumerate(sent)]
        run = make_run(RunMeta(kind="simulated", request_rate_per_s=rate, duration_s=80.0), columns)
        assert overloaded(run, run.summary()) is over


def test_a_closed_loop_is_never_overloaded():
    run = queue(2.0, 1.0, concurrency=8, request_rate_per_s=None)
    assert offered_per_s(run) is None
    assert not overloaded(run, run.summary())


def test_too_few_requests_say_nothing():
    run = queue(2.0, 1.0, n=19)
    assert not overloaded(run, run.summary())
    assert overloaded(queue(2.0, 1.0, n=20), queue(2.0, 1.0, n=20).summary())


def test_predicted_points_know_it():
    prediction = predict(request_rate=[5.0, 50.0])
    assert [point.overloaded for point in prediction.points] == [False, True]
    document = prediction.to_dict()["points"]
    assert [point["overloaded"] for point in document] == [False, True]
    assert document[1]["request_per_s"] < 0.5 * 50
    assert offered_per_s(prediction.points[1].run) == pytest.approx(50, rel=0.1)


# --- refusals


def test_refused_requests_are_counted_by_reason():
    lengths = {"uniform": {"low": 1000, "high": 1048}}
    prediction = predict(concurrency=[2], prompt_tokens=lengths, deployment={"max_model_len": 1280})
    (point,) = prediction.points
    longer = int((point.run.requests["prompt_tokens"] > 1024).sum())
    assert 0 < longer < 20
    assert point.refused == {"longer than max_model_len 1280": longer}
    assert prediction.to_dict()["points"][0]["refused"] == point.refused
    assert point.summary.failed == longer
    assert serves(point.run)


def test_where_nothing_is_refused_there_is_no_reason():
    assert refused(queue(1.0, 0.5, n=5)) == {}


def test_an_arm_that_refuses_everything_is_an_error():
    with pytest.raises(
        InputError, match=r"^every request is refused: prompt_tokens 1024 \+ output_tokens 256 are long"
    ):
        predict(concurrency=[1, 2], deployment={"max_model_len": 1279})
    assert predict(concurrency=[1], deployment={"max_model_len": 1280}).points[0].refused == {}
    arm = {"name": "short", "deployment": {"max_model_len": 100}}
    with pytest.raises(InputError, match=r"^arm 'short': every request .* longer than max_model_len 100$"):
        im.predict({**merge(TABLE, {"workload": {"concurrency": [1]}}), "arm": [arm]})
