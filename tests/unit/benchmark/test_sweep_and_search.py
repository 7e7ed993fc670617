"""Which points a sweep and a search measure, and what they conclude: on a server that is a formula."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferometer.benchmark import search, sweep
from inferometer.errors import InputError
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.specs.slo import Slo
from inferometer.specs.workload import Workload

Ttft = Callable[[float], float]


class Served:
    """Stands in for a server: a closed loop of C users takes ``1 + C / knee`` s an answer, TTFT by a formula."""

    def __init__(self, knee: float = 16, ttft: Ttft = lambda level: 0.1, spread: float = 0.0) -> None:
        self.knee, self.ttft, self.spread = knee, ttft, spread
        self.asked: list[tuple[float, int]] = []
        self.stored: dict[tuple[float, int], Run] = {}
        self.interrupt_after: int | None = None

    def __call__(self, *args: Any) -> "Served":
        return self

    def kept(self, workload: Workload, repeat: int) -> Run | None:
        return self.stored.get((workload.concurrency or workload.rate_per_s or 0, repeat))

    def point(self, workload: Workload, *, repeat: int = 0, number: int = 0, points: int | None = 1) -> Run:
        level = float(workload.concurrency or workload.rate_per_s or 0)
        self.asked.append((level, repeat))
        n, users = workload.requests or 1, workload.concurrency or 1
        takes = 1 + max(level - self.knee, 0) / self.knee
        sent = np.arange(n) // users * takes if workload.concurrency else np.arange(n) / level
        ttft = self.ttft(level) * (1 + self.spread * np.random.default_rng(len(self.asked)).standard_normal(n))
        columns = {"sent_s": sent, "first_token_s": sent + np.abs(ttft), "end_s": sent + takes + np.abs(ttft).max()}
        meta = RunMeta(
            kind="measured",
            concurrency=workload.concurrency,
            request_rate_per_s=workload.rate_per_s,
            partial="interrupted" if self.interrupt_after == len(self.asked) else "",
        )
        return make_run(meta, columns | {"output_tokens": np.full(n, 100), "prompt_tokens": np.full(n, 10)})


def served(monkeypatch: pytest.MonkeyPatch, **how: Any) -> Served:
    server = Served(**how)
    monkeypatch.setattr(sweep, "Bench", server)
    monkeypatch.setattr(search, "Bench", server)
    return server


def closed(*levels: int, per_user: int = 10) -> list[Workload]:
    return [Workload.closed_loop(concurrency=level, requests=per_user * level) for level in levels]


def test_points_are_measured_in_order_of_load_and_returned_so(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch)
    runs = sweep.bench_sweep("url", closed(4, 1, 2))
    assert [level for level, _ in server.asked] == [1, 2, 4]
    assert [run.meta.concurrency for run in runs] == [1, 2, 4]


def test_refinement_puts_points_beside_the_knee(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch, knee=16)
    runs = sweep.bench_sweep("url", closed(1, 4, 16, 64), refine=2, stop_when_overloaded=False)
    added = [level for level, _ in server.asked[4:]]
    assert added
    assert all(4 < level < 64 for level in added)
    assert [run.meta.concurrency for run in runs] == sorted(level for level, _ in server.asked)


def test_a_sweep_stops_once_a_load_was_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch, knee=8)
    original = server.point

    def collapsing(workload: Workload, **place: Any) -> Run:
        run = original(workload, **place)
        if workload.concurrency == 16:  # a quarter of the rate: thrashing
            run.meta.duration_s = 1e3
        return run

    monkeypatch.setattr(server, "point", collapsing)
    runs = sweep.bench_sweep("url", closed(1, 8, 16, 32, 64))
    assert [run.meta.concurrency for run in runs] == [1, 8, 16]
    assert len(sweep.bench_sweep("url", closed(1, 8, 16, 32, 64), stop_when_overloaded=False)) == 5


def test_an_interrupted_point_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch)
    server.interrupt_after = 2
    runs = sweep.bench_sweep("url", closed(1, 2, 4, 8), refine=1)
    assert [run.meta.concurrency for run in runs] == [1, 2]


def test_repeats_and_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch)
    assert len(sweep.bench_sweep("url", closed(1, 2), repeats=3)) == 6
    server.stored[(1, 0)] = server.point(closed(1)[0])
    server.asked.clear()
    runs = sweep.bench_sweep("url", closed(1, 2), repeats=2, resume=True)
    assert server.asked == [(1, 1), (2, 0), (2, 1)]
    assert len(runs) == 4


def test_geometric_levels() -> None:
    assert sweep.geometric(1, 100, 3) == [1, 10, 100]
    assert sweep.geometric(0.5, 2, 3, whole_numbers=False) == [0.5, 1.0, 2.0]
    assert sweep.geometric(1, 3, 8) == [1, 2, 3]
    with pytest.raises(InputError, match="to"):
        sweep.geometric(8, 4, 3)


def test_a_workload_at_another_level_keeps_its_shape() -> None:
    assert sweep.at_level(Workload.open_loop(rate_per_s=2, requests=120), 5).requests == 300
    sessions = sweep.at_level(Workload.sessions(concurrency=2, sessions=20, turns=3), 4)
    assert (sessions.concurrency, sessions.requests) == (4, 120)
    with pytest.raises(InputError, match="workload"):
        sweep.at_level(Workload.from_requests([0.0], [1], [1]), 2)


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens"])
def test_lengths_listed_one_by_one_have_no_other_level(field: str) -> None:
    listed: dict[str, Any] = {field: [5, 6]}
    for workload in (Workload.closed_loop(concurrency=1, **listed), Workload.open_loop(rate_per_s=1, **listed)):
        with pytest.raises(InputError, match=f"^{field}: '2 values' is not allowed"):
            sweep.at_level(workload, 2)


def test_the_search_brackets_and_bisects_to_the_last_level_that_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch, ttft=lambda level: 0.1 if level <= 37 else 0.9)
    found = search.bench_search("url", closed(1, per_user=500)[0], Slo(ttft_s=0.5, attainment=0.9))
    assert (found.level, found.beyond, found.resolved) == (37, 38, True)
    assert found.by == "concurrency"
    assert [level for level, _ in server.asked][:7] == [1, 2, 4, 8, 16, 32, 64]
    assert [trial.level for trial in found.trials] == sorted(trial.level for trial in found.trials)


def test_a_search_by_rate_stops_at_its_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, ttft=lambda level: 0.1 if level <= 10.4 else 0.9)
    workload = Workload.open_loop(rate_per_s=1, requests=400)
    found = search.bench_search("url", workload, Slo(ttft_s=0.5, attainment=0.9), resolution=0.02)
    assert found.level is not None
    assert found.beyond is not None
    assert found.level <= 10.4 < found.beyond
    assert found.beyond <= found.level * 1.0201


def test_nothing_meets_or_everything_up_to_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, ttft=lambda level: 0.9)
    none = search.bench_search("url", closed(4, per_user=200)[0], Slo(ttft_s=0.5, attainment=0.9))
    assert (none.level, none.beyond) == (None, 1)
    served(monkeypatch, ttft=lambda level: 0.1)
    every = search.bench_search("url", closed(4, per_user=200)[0], Slo(ttft_s=0.5, attainment=0.9), highest=10)
    assert (every.level, every.beyond) == (10, None)


def test_a_start_that_is_too_much_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch, ttft=lambda level: 0.1 if level <= 5 else 0.9)
    found = search.bench_search("url", closed(16, per_user=100)[0], Slo(ttft_s=0.5, attainment=0.9))
    assert (found.level, found.beyond) == (5, 6)
    assert [level for level, _ in server.asked][:3] == [16, 8, 4]


def test_a_rate_that_leaves_the_server_idle_is_not_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch, ttft=lambda level: 0.9)
    workload = Workload.open_loop(rate_per_s=2, requests=100, arrivals="constant")
    found = search.bench_search("url", workload, Slo(ttft_s=0.5, attainment=0.9))
    assert found.level is None
    assert [level for level, _ in server.asked] == [2, 1, 0.5, 0.25]


def test_a_run_that_was_broken_off_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(monkeypatch)
    server.interrupt_after = 3
    found = search.bench_search("url", closed(1, per_user=400)[0], Slo(ttft_s=0.5, attainment=0.9))
    assert (found.level, found.beyond, found.resolved) == (2, None, False)
    assert [level for level, _ in server.asked] == [1, 2, 4]


@pytest.mark.parametrize("highest", [-1, 4])
def test_the_highest_is_at_least_the_start(monkeypatch: pytest.MonkeyPatch, highest: float) -> None:
    served(monkeypatch)
    with pytest.raises(InputError, match="highest"):
        search.bench_search("url", closed(8)[0], Slo(ttft_s=0.5), highest=highest)


def test_too_few_requests_leave_it_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifteen of fifteen do not show that 99 of 100 meet the limit."""
    server = served(monkeypatch)
    found = search.bench_search("url", closed(1, per_user=5)[0], Slo(ttft_s=0.5, attainment=0.99), highest=1)
    assert (found.level, found.resolved) == (1, False)
    assert server.asked == [(1, 0), (1, 1), (1, 2)]
    assert found.trials[0].requests == 15


def test_an_slo_without_limits_cannot_be_searched_for() -> None:
    with pytest.raises(InputError, match="slo"):
        search.bench_search("url", closed(1)[0], Slo())
