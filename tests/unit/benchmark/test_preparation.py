"""What is made before the clock starts: how many requests, for how many workers, and what is said of it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from inferometer.benchmark import preparation
from inferometer.benchmark.detect import Abilities, Server
from inferometer.benchmark.job import Connection, Job
from inferometer.benchmark.options import options
from inferometer.benchmark.payload import Bodies
from inferometer.benchmark.point import Point
from inferometer.benchmark.preparation import Prepared, draw, offered_rate, prepare, ramped, workers
from inferometer.benchmark.prompts import Calibration
from inferometer.errors import InputError
from inferometer.journal import Journal
from inferometer.records.run import RunMeta
from inferometer.specs.workload import Uniform, Workload
from inferometer.workload import generate

ABILITIES = Abilities(
    takes_token_ids=True,
    gives_usage=True,
    takes_usage_option=True,
    takes_ignore_eos=True,
    takes_temperature=True,
    max_tokens_key="max_tokens",
    calibration=Calibration(),
    calibrated=True,
    probes=0,
    probe_prompt_tokens=0,
    probe_output_tokens=0,
)


def a_point(workload: Workload, **given: Any) -> Point:
    text = workload.kind == "sessions" or "dataset" in given
    return Point(
        connection=Connection(host="h", port=1),
        endpoint="chat" if workload.kind == "sessions" else "completions",
        server=Server(engine="openai", model="m", max_model_len=4096),
        abilities=msgspec.structs.replace(ABILITIES, calibration=Calibration(kind="words" if text else "ids")),
        options=options(given),
        workload=workload,
        seed=1,
        meta=RunMeta(kind="measured", id="run"),
    )


def prepared(folder: Path, workload: Workload, **given: Any) -> Prepared:
    return prepare(a_point(workload, **given), folder / "arena")


def jobs(folder: Path, workload: Workload, **given: Any) -> list[Job]:
    point = a_point(workload, **given)
    journal = Journal.create(folder / "running", point.meta)
    try:
        return prepare(point, folder / "arena").jobs(point, journal)
    finally:
        journal.close(remove=True)


def closed(users: int = 2, requests: int = 20, **lengths: Any) -> Workload:
    return Workload.closed_loop(users, requests, **{"prompt_tokens": 16, "output_tokens": 4, **lengths})


def opened(rate: float = 10, requests: int = 20, **lengths: Any) -> Workload:
    return Workload.open_loop(rate, requests, **{"prompt_tokens": 16, "output_tokens": 4, **lengths})


def dataset(folder: Path, *rows: dict[str, Any]) -> str:
    file = folder / "data"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return str(file)


# --- workers --------------------------------------------------------------------------------------------------------


def test_a_ramp_brings_the_rate_up_evenly_and_leaves_nothing_out() -> None:
    arrival = np.arange(1, 4001) / 100  # 100 a second for 40 s
    times = ramped(arrival, 10.0)
    counts, _ = np.histogram(times, bins=np.arange(0, 46, 1))
    assert counts[:10].tolist() == pytest.approx([5 + 10 * second for second in range(10)], abs=1.01)
    assert counts[12:40].tolist() == pytest.approx([100] * 28, abs=1.01)
    assert len(times) == 4000
    assert (np.diff(times) > 0).all()


def test_a_cap_is_never_dealt_out_as_none_at_all(tmp_path: Path) -> None:
    """0 stands for no cap: a worker dealt nothing of it would send without one."""
    made = jobs(tmp_path, opened(), workers=8, max_concurrency=2)
    assert [job.max_concurrency for job in made] == [1, 1]
    made = jobs(tmp_path, opened(), workers=2, max_concurrency=5)
    assert [job.max_concurrency for job in made] == [3, 2]
    assert [job.max_concurrency for job in jobs(tmp_path, opened(), workers=3)] == [0, 0, 0]
    assert [job.concurrency for job in jobs(tmp_path, closed(3), workers=8)] == [1, 1, 1]


def test_a_split_cap_is_said(tmp_path: Path) -> None:
    note = "the cap of 5 is split over 2 client processes"
    assert note in prepared(tmp_path, opened(), workers=2, max_concurrency=5).notes
    assert prepared(tmp_path, opened(), workers=1, max_concurrency=5).notes == []
    assert prepared(tmp_path, opened(), workers=2).notes == []


def test_each_worker_has_rows_in_proportion_to_its_users(tmp_path: Path) -> None:
    made = jobs(tmp_path, closed(3, 300), workers=2)
    assert [(job.concurrency, len(job.plan.index)) for job in made] == [(2, 200), (1, 100)]
    made = jobs(tmp_path, opened(requests=300), workers=2, max_concurrency=3)
    assert [job.plan.index[:2] for job in made] == [[0, 2], [1, 3]]
    assert [len(job.plan.index) for job in made] == [150, 150]


def test_workers_by_users_and_by_rate_while_cores_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def number(workload: Workload, **given: Any) -> int:
        return workers(options(given), workload, workload.rate_per_s)

    monkeypatch.setattr(preparation.os, "cpu_count", lambda: 8)
    assert [number(closed(users)) for users in (1, 512, 513, 100_000)] == [1, 1, 2, 7]
    assert [number(opened(rate)) for rate in (1, 5_000, 5_001, 12_000, 1e6)] == [1, 1, 2, 3, 7]
    assert number(opened(1), max_concurrency=2000) == 4
    assert number(opened(50_000), max_concurrency=3) == 3
    assert number(opened(50_000), workers=1) == 1
    monkeypatch.setattr(preparation.os, "cpu_count", lambda: 1)
    assert number(opened(50_000)) == 1


# --- how many requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "requests", "cycle"),
    [
        ({}, 20, False),
        ({"min_requests": 20}, 20, False),
        ({"min_requests": 50}, 50, True),
        ({"confidence": 0.05}, 20, True),
        ({"confidence": 0.05, "min_requests": 50}, 50, True),
        ({"min_duration_s": 5}, 20, True),
        ({"duration_s": 5}, None, True),
        ({"duration_s": 5, "confidence": 0.05, "min_requests": 50}, None, True),
    ],
)
def test_how_far_a_closed_loop_may_go(tmp_path: Path, given: dict[str, Any], requests: int | None, cycle: bool) -> None:
    for workload in (closed(), Workload.sessions(concurrency=2, sessions=10, turns=2, prompt_tokens=16)):
        made = prepared(tmp_path, workload, **given)
        assert (made.requests, made.cycle) == (requests, cycle)
        assert len(made.prompts.plan.index) == 20
        assert made.rate_per_s is None


def test_an_open_loop_has_as_many_as_are_asked_for(tmp_path: Path) -> None:
    def number(workload: Workload, **given: Any) -> int | None:
        made = prepared(tmp_path, workload, **given)
        assert not made.cycle
        assert made.requests == len(made.plans[0].index) == len(made.plans[0].scheduled_s)
        return made.requests

    assert number(opened()) == 20
    assert number(opened(), min_requests=70) == 70
    assert number(opened(), min_requests=7) == 20
    assert number(opened(), confidence=0.05, min_requests=70) == 70
    assert number(opened(), min_requests=3000, min_duration_s=10) == 3000
    assert 100 < (number(opened(), min_requests=70, min_duration_s=10) or 0) < 200
    # time bounds it: only those that come within it
    assert number(opened(arrivals="constant"), min_requests=3000, duration_s=10) == 101


def test_requests_given_one_by_one_cannot_be_more_and_that_is_said(tmp_path: Path) -> None:
    listed = opened(prompt_tokens=[16] * 20)
    given = Workload.from_requests(np.arange(20.0), [16] * 20, [4] * 20)
    for workload in (listed, given):
        made = prepared(tmp_path, workload, min_requests=50)
        assert made.requests == 20
        assert made.notes == ["the workload has 20 requests, fewer than min_requests"]
        assert prepared(tmp_path, workload, min_requests=20).notes == []


def test_too_many_requests_are_refused_before_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def generated(*args: Any) -> None:
        raise AssertionError("drawn all the same")

    monkeypatch.setattr(preparation, "generate", generated)
    most = preparation.MOST_REQUESTS
    for workload, given in (
        (closed(requests=most + 1), {}),
        (opened(requests=most + 1), {}),
        (opened(), {"min_requests": most + 1}),
        (opened(rate=most), {"duration_s": 2}),
    ):
        with pytest.raises(InputError, match=f"^requests: .* at most {most:,}"):
            draw(workload, options(given), seed=0)


# --- rates ----------------------------------------------------------------------------------------------------------


def test_the_rate_at_which_requests_come(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{n / 4},8,2\n" for n in range(9)))
    assert offered_rate(generate(Workload.from_trace(trace))) == pytest.approx(4)
    assert prepared(tmp_path, Workload.from_trace(trace)).rate_per_s == pytest.approx(4)
    assert prepared(tmp_path, Workload.from_trace(trace, rate_scale=2)).rate_per_s == pytest.approx(8)
    assert offered_rate(generate(Workload.from_requests([0, 1, 5], [1] * 3, [1] * 3))) == pytest.approx(0.4)
    assert offered_rate(generate(Workload.from_requests([3, 3], [1] * 2, [1] * 2))) is None
    assert offered_rate(generate(Workload.from_requests([3], [1], [1]))) is None
    assert offered_rate(generate(closed())) is None
    assert prepared(tmp_path, opened(rate=10)).rate_per_s == 10


# --- prompts --------------------------------------------------------------------------------------------------------


def test_a_row_that_says_no_length_leaves_the_others_theirs(tmp_path: Path) -> None:
    file = dataset(tmp_path, *({"prompt": f"p{n}", "max_tokens": 100 + n} for n in range(9)), {"prompt": "silent"})

    def asked(workload: Workload, **given: Any) -> list[int]:
        return sorted(prepared(tmp_path, workload, dataset=file, **given).plans[0].output_tokens)

    assert asked(closed(requests=10, output_tokens=7)) == [7, *range(100, 109)]
    assert asked(closed(requests=10), dataset_output_tokens=5) == [5] * 10
    drawn = asked(closed(requests=10, output_tokens=Uniform(low=20, high=30)))
    assert drawn[1:] == [*range(100, 109)]
    assert 20 <= drawn[0] <= 30


def test_a_fresh_salt_is_another_for_every_request_and_round(tmp_path: Path) -> None:
    made = jobs(tmp_path, closed(4, 6), workers=2, duration_s=5, cache_salt="fresh")
    sent = []
    for job in made:
        bodies = Bodies(job)
        rows = range(len(job.plan.index))
        sent += [json.loads(b"".join(bodies.build(row, round_))) for row in rows for round_ in range(3)]
    assert len({body["cache_salt"] for body in sent}) == len(sent) == 18


def test_a_salt_of_ones_own_stays_the_same(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, closed(2, 2), duration_s=5, cache_salt='a "quoted" one', extra_body={"top_k": 1})
    bodies = Bodies(job)
    sent = [json.loads(b"".join(bodies.build(row, round_))) for row in range(2) for round_ in range(2)]
    assert [(body["cache_salt"], body["top_k"]) for body in sent] == [('a "quoted" one', 1)] * 4


def test_prompts_of_a_dataset_that_come_again_are_said(tmp_path: Path) -> None:
    file = dataset(tmp_path, *({"prompt": f"p{n}"} for n in range(50)))
    note = "prompts repeat after 20 requests"
    assert note in prepared(tmp_path, closed(), dataset=file, duration_s=5).notes
    assert note in prepared(tmp_path, closed(), dataset=file, min_requests=30).notes
    assert prepared(tmp_path, closed(), dataset=file).notes == []
    assert prepared(tmp_path, opened(), dataset=file, duration_s=1).notes == []
    assert prepared(tmp_path, closed(), duration_s=5).notes == []  # random ones move on in every round


def test_a_plan_is_held_once_and_costs_some_200_bytes_a_request(tmp_path: Path) -> None:
    point = a_point(closed(64, 20_000))
    tracemalloc.start()
    try:
        made = prepare(point, tmp_path / "arena")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.plans[0] is made.prompts.plan
    assert held / 20_000 < 220


@pytest.mark.parametrize(
    ("load", "given", "field"),
    [
        ({"prompt_tokens": 64}, {"shared_prefix_len": 64}, "shared_prefix_len"),
        ({"requests": 20}, {"warmup_requests": 20}, "warmup_requests"),
        ({"prompt_tokens": 5000, "output_tokens": 8}, {}, "prompt_tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is_sent(
    tmp_path: Path, load: dict[str, Any], given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        prepared(tmp_path, closed(**load), **given)


def test_some_requests_that_are_too_long_are_said(tmp_path: Path) -> None:
    made = prepared(tmp_path, closed(requests=40, prompt_tokens={"uniform": {"low": 100, "high": 8000}}))
    assert any("longer than the server's max_model_len, 4096" in note for note in made.notes)
