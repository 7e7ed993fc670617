"""When a server is said to queue: by its samples, by stated means, and where it was not looked at."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.records.metrics import server_knee, server_queues
from inferometer.records.run import Run, RunMeta, make_run


def sampled(concurrency: int, waiting: list[int], usage: list[float]) -> Run:
    """A measured run of ten seconds, its server looked at once a second."""
    times = [float(i) for i in range(len(waiting))]
    server: dict[str, Any] = {"time_s": times, "replica": [0] * len(times), "running": [1] * len(times)}
    server |= {"waiting": waiting, "kv_usage": usage}
    return make_run(
        RunMeta(kind="measured", concurrency=concurrency), {"sent_s": [0.0], "end_s": [float(len(times) - 1)]}, server
    )


def stated(concurrency: int, **figures: float) -> Run:
    return make_run(RunMeta(kind="imported", concurrency=concurrency, stated=figures))


@pytest.mark.parametrize(
    ("waiting", "usage", "queues"),
    [
        ([0] * 11, [0.2] * 11, False),
        ([3, *[0] * 10], [0.2] * 11, False),  # the first burst: 0.15 on average
        ([0, *[1] * 10], [0.2] * 11, True),
        ([0] * 11, [0.2] * 10 + [0.995], True),
        ([0] * 11, [0.2] * 10 + [0.98], False),
    ],
)
def test_by_samples(waiting: list[int], usage: list[float], queues: bool):
    assert server_queues(sampled(4, waiting, usage)) is queues


def test_by_what_is_stated():
    assert server_queues(stated(4, waiting=0.4)) is False
    assert server_queues(stated(4, waiting=0.5)) is True
    assert server_queues(stated(4, kv_usage=0.99)) is True
    assert server_queues(stated(4, output_tok_per_s=9.0)) is None


def test_the_first_concurrency_that_queues():
    runs = [stated(64, waiting=30.0), stated(8, waiting=0.0), stated(32, waiting=2.0)]
    assert server_knee(runs) == 32
    assert server_knee([stated(8, waiting=0.0), stated(64, output_tok_per_s=1.0)]) is None
    assert server_knee([make_run(RunMeta(kind="imported", request_rate_per_s=2.0, stated={"waiting": 9.0}))]) is None
