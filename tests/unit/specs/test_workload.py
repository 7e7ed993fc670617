"""A workload's constructors: what they accept, and the one clear error for what they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.errors import InputError
from inferometer.specs.workload import Empirical, Lognormal, Normal, Trace, Uniform, Workload, length


def test_closed_loop_defaults_to_ten_requests_a_user():
    workload = Workload.closed_loop(concurrency=64)
    assert (workload.kind, workload.requests, workload.prompt_tokens, workload.output_tokens) == (
        "closed",
        640,
        1024,
        1024,
    )
    assert (workload.concurrency, workload.think_time_s, workload.cached_tokens) == (64, 0.0, 0)


def test_open_loop_keeps_rate_and_count():
    workload = Workload.open_loop(rate_per_s=20, requests=10_000, prompt_tokens=512, output_tokens=256)
    assert (workload.kind, workload.rate_per_s, workload.requests, workload.arrivals) == (
        "open",
        20.0,
        10_000,
        "poisson",
    )


def test_from_requests_sorts_by_arrival_and_keeps_ties_in_the_given_order():
    workload = Workload.from_requests([2.0, 1.0, 1.0, 0.0], [1, 2, 3, 4], [10, 20, 30, 0], cached_tokens=[0, 1, 2, 3])
    assert workload.arrival_s is not None
    assert workload.arrival_s.tolist() == [0.0, 1.0, 1.0, 2.0]
    assert np.asarray(workload.prompt_tokens).tolist() == [4, 2, 3, 1]
    assert np.asarray(workload.output_tokens).tolist() == [0, 20, 30, 10]
    assert np.asarray(workload.cached_tokens).tolist() == [3, 1, 2, 0]
    assert workload.requests == 4


def test_from_requests_does_not_keep_the_callers_arrays():
    arrivals, prompts = np.array([0.0, 1.0]), np.array([5, 6])
    workload = Workload.from_requests(arrivals, prompts, np.array([1, 1]))
    arrivals[0], prompts[0] = 99.0, 99
    assert np.asarray(workload.prompt_tokens).tolist() == [5, 6]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(workload.arrival_s)[0] = 1.0


def test_lengths_one_by_one_set_the_number_of_requests():
    assert Workload.closed_loop(2, prompt_tokens=[5, 6, 7]).requests == 3
    assert Workload.open_loop(1.0, output_tokens=[1, 2]).requests == 2


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (7, 7),
        (7.0, 7),
        (np.int64(7), 7),
        ({"lognormal": {"mean": 900, "sigma": 0.8}}, Lognormal(mean=900, sigma=0.8)),
        ({"normal": {"mean": 900, "std": 10}}, Normal(mean=900, std=10)),
        ({"uniform": {"low": 1, "high": 9}}, Uniform(low=1, high=9)),
        (Uniform(low=1, high=9), Uniform(low=1, high=9)),
    ],
)
def test_length_takes_numbers_tables_and_structs(written: Any, meant: Any):
    assert length("prompt_tokens", written, 1) == meant


def test_length_takes_a_trace_file_that_is_there(tmp_path: Path):
    file = tmp_path / "lengths.csv"
    file.write_text("input_tokens,output_tokens\n1,2\n")
    assert length("prompt_tokens", {"trace": str(file)}, 1) == Empirical(trace=str(file))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Workload.closed_loop(4, prompt_tokens=-5),
            "prompt_tokens: -5 is not allowed; give a whole number of at least 1",
        ),
        (lambda: Workload.closed_loop(4, prompt_tokens=0), "prompt_tokens: 0 "),
        (lambda: Workload.closed_loop(4, prompt_tokens=1.5), "prompt_tokens: 1.5 "),
        (lambda: Workload.closed_loop(4, prompt_tokens="many"), "prompt_tokens: 'many' "),
        (lambda: Workload.closed_loop(4, prompt_tokens=True), "prompt_tokens: True "),
        (lambda: Workload.closed_loop(4, prompt_tokens=float("nan")), "prompt_tokens: nan "),
        (lambda: Workload.closed_loop(4, prompt_tokens=2**40), "prompt_tokens: 1099511627776 "),
        (lambda: Workload.closed_loop(4, output_tokens=-1), "output_tokens: -1 .* at least 0"),
        (lambda: Workload.closed_loop(0), "concurrency: 0 .* at least 1"),
        (lambda: Workload.closed_loop(2.5), "concurrency: 2.5 "),
        (lambda: Workload.closed_loop(4, requests=0), "requests: 0 .* at least 1"),
        (lambda: Workload.closed_loop(4, think_time_s=-0.1), "think_time_s: -0.1 "),
        (lambda: Workload.closed_loop(4, cached_tokens=-1), "cached_tokens: -1 "),
        (lambda: Workload.closed_loop(4, requests=5, prompt_tokens=[1, 2]), "prompt_tokens: '2 values' .* which is 5"),
        (lambda: Workload.closed_loop(4, prompt_tokens=[3, 0, 1]), r"prompt_tokens\[1\]: 0 "),
        (lambda: Workload.closed_loop(4, prompt_tokens=[]), "prompt_tokens: .* at least one value"),
        (lambda: Workload.closed_loop(4, prompt_tokens=[[1], [2, 3]]), "prompt_tokens: .* flat list"),
        (lambda: Workload.open_loop(0, 5), "rate_per_s: 0 .* above 0"),
        (lambda: Workload.open_loop(float("inf"), 5), "rate_per_s: inf "),
        (lambda: Workload.open_loop(1, None), "requests: None "),
        (lambda: Workload.open_loop(1, 5, arrivals="bursty"), "arrivals: 'bursty' "),
        (lambda: Workload.from_requests([0.0], [1, 2], [1]), "prompt_tokens: '2 values' .* which is 1"),
        (lambda: Workload.from_requests([0.0, -1.0], [1, 2], [1, 1]), r"arrival_s\[1\]: -1.0 "),
        (lambda: Workload.from_requests([0.0, float("nan")], [1, 2], [1, 1]), r"arrival_s\[1\]: nan "),
        (lambda: Workload.from_requests([0.0], [0], [1]), r"prompt_tokens\[0\]: 0 "),
        (lambda: Workload.from_requests([], [], []), "arrival_s: .* at least one value"),
        (lambda: Workload.from_requests([0.0], [1], [1], cached_tokens=[1, 2]), "cached_tokens: '2 values' "),
        (lambda: Workload.from_trace("no/such/trace.csv"), "no/such/trace.csv: no such file"),
        (lambda: Workload.from_trace(__file__, rate_scale=0), "rate_scale: 0 .* above 0"),
        (lambda: Workload.from_trace(__file__, limit=0), "limit: 0 .* at least 1"),
        (lambda: length("x", {"lognormol": {}}, 1), "x.lognormol: no such key; did you mean lognormal"),
        (lambda: length("x", {"lognormal": {"mean": 5}}, 1), "x.lognormal.sigma: is missing"),
        (lambda: length("x", {"lognormal": {"mean": 5, "sigma": -1}}, 1), "x.lognormal.sigma: -1 "),
        (lambda: length("x", {"lognormal": {"mean": 0, "sigma": 1}}, 1), "x.lognormal.mean: 0 "),
        (lambda: length("x", {"lognormal": {"mean": "a", "sigma": 1}}, 1), "x.lognormal.mean: 'a' "),
        (lambda: length("x", {"normal": {"mean": 5, "std": 1}, "uniform": {}}, 1), "x: give exactly one of"),
        (lambda: length("x", {"uniform": {"low": 9, "high": 3}}, 1), "x.uniform.high: 3 .* which is 9"),
        (lambda: length("x", {"uniform": {"low": 0, "high": 3}}, 1), "x.uniform.low: 0 "),
        (lambda: length("x", {"trace": "no-such.csv"}, 1), "x: no-such.csv: no such file"),
    ],
)
def test_bad_input_names_the_field_and_the_value(make: Any, says: str):
    with pytest.raises(InputError, match=f"^{says}"):
        make()


def test_describe_is_plain_and_tells_workloads_apart():
    first = Workload.from_requests([0.0, 1.0], [1, 2], [3, 4])
    other = Workload.from_requests([0.0, 1.0], [2, 1], [3, 4])
    assert first.describe()["prompt_tokens"]["values"] == 2
    assert first.describe()["prompt_tokens"]["mean"] == 1.5
    assert first == Workload.from_requests([0.0, 1.0], [1, 2], [3, 4])
    assert first != other
    assert hash(first) == hash(Workload.from_requests([0.0, 1.0], [1, 2], [3, 4]))
    assert Workload.closed_loop(8, prompt_tokens={"uniform": {"low": 1, "high": 2}}).describe() == {
        "kind": "closed",
        "requests": 80,
        "prompt_tokens": {"low": 1, "high": 2},
        "output_tokens": 1024,
        "cached_tokens": 0,
        "concurrency": 8,
        "think_time_s": 0.0,
        "arrivals": "poisson",
    }


def test_trace_keeps_what_it_is_told():
    assert Workload.from_trace(__file__, rate_scale=2.0, limit=3, model="m").trace == Trace(
        path=__file__, rate_scale=2.0, limit=3, model="m"
    )


def test_a_trace_is_known_by_its_content_not_its_place(tmp_path: Path):
    rows = "arrival_s,input_tokens,output_tokens\n0,5,5\n1,6,6\n"
    places = [tmp_path / "a" / "t.csv", tmp_path / "b" / "t.csv"]
    for place in places:
        place.parent.mkdir()
        place.write_text(rows)
    one, two = (Workload.from_trace(place) for place in places)
    drawn, again = (Workload.closed_loop(2, prompt_tokens={"trace": str(place)}) for place in places)
    assert one == two
    assert drawn == again
    places[1].write_text(rows + "2,7,7\n")
    assert one != two
    assert drawn != again
