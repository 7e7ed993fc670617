"""Little's law over the steady window: 1 where the load was what it claims, elsewhere by how much it was not."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from inferometer.records.metrics import littles_law
from inferometer.records.run import Run, RunMeta, make_run


def closed_loop(slots: int, e2e_s: list[float], *, gap_s: float = 0.0, concurrency: int | None = None) -> Run:
    """Each slot takes the next request ``gap_s`` after its last one ended."""
    free = [0.0] * slots
    sent, end = [], []
    for duration in e2e_s:
        start = heapq.heappop(free)
        sent.append(start)
        end.append(start + duration)
        heapq.heappush(free, start + duration + gap_s)
    return make_run(RunMeta(kind="simulated", concurrency=concurrency or slots), {"sent_s": sent, "end_s": end})


def lengths(n: int, seed: int = 0) -> list[float]:
    return list(np.random.default_rng(seed).exponential(2.0, n) + 0.1)


@pytest.mark.parametrize("slots", [1, 2, 8, 64])
def test_ten_requests_a_slot_in_lock_step(slots: int) -> None:
    run = closed_loop(slots, [3.0] * (10 * slots))
    assert run.summary().littles_law == pytest.approx(1.0)
    assert run.summary().littles_law_concurrency == pytest.approx(slots)


@pytest.mark.parametrize("slots", [1, 3, 16, 128])
def test_ten_requests_a_slot_of_mixed_lengths(slots: int) -> None:
    assert littles_law(closed_loop(slots, lengths(10 * slots))) == pytest.approx(1.0)


def test_the_start_staggered_by_prefill_and_the_drain_are_outside_the_window() -> None:
    # one long request drains alone for far longer than the rest took
    run = closed_loop(4, [1.0] * 39 + [200.0])
    assert littles_law(run) == pytest.approx(1.0)
    assert run.summary().mean_in_flight < 1.5  # type: ignore[operator]


def test_a_hidden_cap_of_the_client_shows() -> None:
    """Fault 18: 6 in flight where 8 are configured."""
    run = closed_loop(6, lengths(80), concurrency=8)
    assert littles_law(run) == pytest.approx(6 / 8, rel=1e-6)


def test_more_in_flight_than_configured_shows() -> None:
    run = closed_loop(8, lengths(80), concurrency=4)
    assert littles_law(run) == pytest.approx(2.0, rel=0.02)


def test_a_client_slow_to_refill_shows() -> None:
    assert littles_law(closed_loop(4, [0.9] * 400, gap_s=0.1)) == pytest.approx(0.9, rel=0.01)


def test_a_wrong_e2e_shows() -> None:
    """Timed from a late start: the slot seems empty for a tenth of the time."""
    run = closed_loop(4, [1.0] * 400)
    late = make_run(run.meta, {"sent_s": run.requests["sent_s"] + 0.1, "end_s": run.requests["end_s"]})
    assert littles_law(late) == pytest.approx(0.9, rel=0.01)


@pytest.mark.parametrize("n", [0, 1, 8, 15])
def test_fewer_than_two_requests_a_slot_say_nothing(n: int) -> None:
    assert littles_law(closed_loop(8, [1.0] * n)) is None


def test_without_concurrency_or_samples_there_is_nothing_to_compare_with() -> None:
    run = make_run(RunMeta(kind="measured"), {"sent_s": [0.0, 1.0, 2.0], "end_s": [1.0, 2.0, 3.0]})
    assert littles_law(run) is None


def poisson(rate: float, n: int, *, seen: float = 1.0, replicas: int = 1) -> Run:
    """An open loop; each 10 ms the server samples ``seen`` of what is in flight, a third of it waiting."""
    rng = np.random.default_rng(1)
    sent = np.cumsum(rng.exponential(1 / rate, n))
    end = sent + rng.exponential(3.0, n)
    times = np.arange(0, end.max(), 0.01)
    in_flight = (np.searchsorted(sent, times) - np.searchsorted(np.sort(end), times)) * seen
    running = np.floor(in_flight * 2 / 3)
    server = {
        "time_s": np.tile(times, replicas),
        "replica": np.repeat(np.arange(replicas), times.size),
        "running": np.tile(running, replicas).astype(int),
        "waiting": np.tile(in_flight - running, replicas).round().astype(int),
    }
    meta = RunMeta(kind="measured", request_rate_per_s=rate)
    return make_run(meta, {"sent_s": sent, "end_s": end}, server)


def test_an_open_loop_is_held_against_the_servers_running_and_waiting() -> None:
    assert littles_law(poisson(20.0, 2000)) == pytest.approx(1.0, rel=0.005)


def test_replicas_are_summed() -> None:
    assert littles_law(poisson(20.0, 2000, replicas=2)) == pytest.approx(0.5, rel=0.005)


def test_a_server_that_saw_more_than_the_client_sent_shows() -> None:
    assert littles_law(poisson(20.0, 2000, seen=2.0)) == pytest.approx(0.5, rel=0.01)


def test_a_rate_with_a_cap_is_an_open_loop() -> None:
    run = closed_loop(4, lengths(40))
    run.meta.request_rate_per_s = 20.0
    assert littles_law(run) is None


def test_of_a_measured_open_loop_too_few_or_uneven_samples_say_nothing() -> None:
    sent = np.arange(0.0, 60.0, 0.25)
    columns = {"sent_s": sent, "end_s": sent + 1.0, "output_tokens": np.full(sent.size, 4)}

    def law(running: list[float]) -> float | None:
        times = np.linspace(0.0, 60.0, len(running))
        server = {"time_s": times, "running": running, "waiting": [0] * len(running)}
        return make_run(RunMeta(kind="measured", request_rate_per_s=4.0), columns, server).summary().littles_law

    assert law([4] * 60) == pytest.approx(1.0, abs=0.02)
    assert law([4] * 8) is None
    assert law([0, 8] * 30) is None
