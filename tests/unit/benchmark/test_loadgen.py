"""Who sends when: closed loop, open loop, sessions, cycles, and how a run stops."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from inferometer.benchmark.alarm import LoopAlarm, make_alarm
from inferometer.benchmark.job import Connection, Ended
from inferometer.benchmark.loadgen import LoadGenerator, Rows
from inferometer.benchmark.payload import Bodies
from inferometer.errors import InputError
from unit.benchmark.scripted import CLOSE, HANG, RESET, Scripted, bench, delta, make_job, plain, stream, tokens, usage

SLOW = [0.1, *tokens(1)]


def late(record: Ended) -> float:
    assert record.sent_s is not None
    assert record.scheduled_s is not None
    return record.sent_s - record.scheduled_s


# --- closed loop ----------------------------------------------------------------------------------------------------


def test_closed_loop_keeps_its_users_busy_and_sends_each_row_once(tmp_path: Path):
    ended = bench(tmp_path, [[0.01, *tokens(1)]], 40, concurrency=4)
    assert sorted(record.index for record in ended.records) == list(range(40))
    assert ended.server.most_open_requests == 4
    assert ended.server.connections == 4
    assert ended.report.peak_in_flight == 4
    assert (ended.report.sent, ended.report.ended) == (40, 40)
    assert ended.report.last_send_s == max(record.sent_s for record in ended.records)
    busy = sum(record.end_s - record.sent_s for record in ended.records)
    assert busy / ended.report.wall_s == pytest.approx(4, rel=0.2)


def test_closed_loop_schedules_from_the_end_of_the_one_before(tmp_path: Path):
    records = bench(tmp_path, [tokens(2)], 5).records
    assert records[0].scheduled_s == 0
    for before, after in itertools.pairwise(records):
        assert after.scheduled_s == before.end_s
        assert 0 <= late(after) < 0.1


def test_prompts_and_lengths_are_the_plans(tmp_path: Path):
    ended = bench(tmp_path, [tokens(1)], 3, plan={"output_tokens": [5, 6, 7], "prompt_tokens": [1, 2, 3]})
    asked = [(seen.body["prompt"], seen.body["max_tokens"]) for seen in ended.server.seen]
    assert asked == [("w0", 5), ("w1", 6), ("w2", 7)]
    assert [(r.asked_prompt_tokens, r.asked_output_tokens) for r in ended.records] == [(1, 5), (2, 6), (3, 7)]


def test_think_time(tmp_path: Path):
    records = bench(tmp_path, [tokens(1)], 4, think_time_s=0.04).records
    for before, after in itertools.pairwise(records):
        assert after.scheduled_s == pytest.approx(before.end_s + 0.04, abs=2e-7)
        assert 0 <= late(after) < 0.1


def test_ramp_spreads_the_first_of_each_user_over_all_workers(tmp_path: Path):
    records = bench(tmp_path, [[0.3, *tokens(1)]], 4, concurrency=4, ramp_up_s=0.2, worker=1, workers=2).records
    assert [record.scheduled_s for record in records] == pytest.approx([0.025, 0.075, 0.125, 0.175])
    assert all(0 <= late(record) < 0.1 for record in records)


def test_fewer_rows_than_users(tmp_path: Path):
    ended = bench(tmp_path, [tokens(1)], 2, concurrency=5)
    assert len(ended.records) == 2
    assert ended.server.connections == 2


def test_nothing_to_do(tmp_path: Path):
    ended = bench(tmp_path, [tokens(1)], 0)
    assert ended.records == []
    assert ended.report.last_send_s is None


def test_a_user_waits_as_long_as_the_server_asks(tmp_path: Path):
    busy = plain(429, b"", retry_after="0.15")
    ended = bench(tmp_path, [busy, tokens(1)], 2, think_time_s=0.02)
    first, second = ended.records
    assert second.scheduled_s == pytest.approx(first.end_s + 0.17, abs=2e-7)
    assert 0 <= late(second) < 0.1


def test_a_user_backs_off_from_broken_connections_and_success_resets_it(tmp_path: Path):
    # the fourth comes on a used connection, and so it is sent twice before it counts as broken
    ended = bench(tmp_path, [[CLOSE], [CLOSE], tokens(1), [CLOSE], [CLOSE], tokens(1)], 5)
    gaps = [after.scheduled_s - before.end_s for before, after in itertools.pairwise(ended.records)]
    assert gaps == pytest.approx([0.1, 0.2, 0.0, 0.1], abs=2e-7)


def test_a_server_that_closes_behind_our_back_costs_no_request(tmp_path: Path):
    """llama.cpp says keep-alive and closes after every streamed answer, as the next request is on its way."""
    ended = bench(tmp_path, [[*tokens(2), 0.005, CLOSE]], 12)
    assert [record.error for record in ended.records] == [None] * 12
    assert (ended.report.sent, ended.report.ended) == (12, 12)
    assert (ended.report.reconnects, ended.report.stale, ended.report.failed) == (11, 3, 0)
    assert all(record.sent_s >= record.scheduled_s for record in ended.records)
    # after three the connection is not used again, so nothing more is sent in vain
    assert max(late(record) for record in ended.records[6:]) < 0.1


@pytest.mark.parametrize(
    ("how", "resent"),
    [([RESET], True), ([CLOSE], True), ([0.1, CLOSE], True), ([0.1, RESET], False), ([0.4, CLOSE], False)],
)
def test_a_request_is_sent_again_only_where_the_server_cannot_have_seen_it(
    tmp_path: Path, how: list[Any], resent: bool
):
    ended = bench(tmp_path, [tokens(1), how, tokens(1)], 2)
    assert [record.error is None for record in ended.records] == [True, resent]
    assert (ended.report.stale, ended.report.failed, ended.report.sent) == (resent, not resent, 2)
    assert len(ended.server.seen) == 2 + resent


class Idle:
    """Stands in for a connection that waits, and that the server has closed without our having seen it."""

    def __init__(self, used: bool) -> None:
        self.used, self.closed = used, False

    def fresh(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def test_a_request_is_sent_again_on_a_connection_that_carried_none(tmp_path: Path):
    """Another user's used connection may be closed behind our back as well: the second sending must not go there."""
    generator = LoadGenerator(make_job(tmp_path, Connection(host="h", port=1)), [].append)
    used, unused = Idle(used=True), Idle(used=False)
    generator._idle.extend([used, unused])
    assert generator._free_wire(unused=True) is unused
    assert used.closed
    generator._idle.append(Idle(used=True))
    assert generator._free_wire(unused=True) is None


def test_http_errors_need_no_backoff(tmp_path: Path):
    first, second = bench(tmp_path, [plain(500, b""), tokens(1)], 2).records
    assert second.scheduled_s == first.end_s


def test_every_request_to_a_dead_server_is_recorded(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    ended = bench(tmp_path, [tokens(1)], 6, concurrency=3, connection={"port": port})
    assert sorted(record.index for record in ended.records) == list(range(6))
    assert {record.error for record in ended.records} == {"connect: Connection refused"}
    assert (ended.report.sent, ended.report.ended) == (0, 6)


def test_thirty_percent_errors_are_all_there(tmp_path: Path):
    chance = random.Random(3)
    scripts = [chance.choice([tokens(1), tokens(2), plain(500, b"x")]) for _ in range(200)]
    ended = bench(tmp_path, scripts, 200, concurrency=8)
    assert sorted(record.index for record in ended.records) == list(range(200))
    assert sum(r.error is not None for r in ended.records) == sum(len(script) == 1 for script in scripts)


# --- open loop ------------------------------------------------------------------------------------------------------


def test_open_loop_keeps_the_schedule(tmp_path: Path):
    gaps = random.Random(1)
    times = list(itertools.accumulate(gaps.expovariate(400) for _ in range(200)))
    records = bench(tmp_path, [[0.02, *tokens(1)]], 200, plan={"scheduled_s": times}).records
    assert [record.scheduled_s for record in sorted(records, key=lambda r: r.index)] == times
    lateness = [late(record) for record in records]
    assert min(lateness) >= 0
    assert np.median(lateness) < 0.01


def test_open_loop_does_not_wait_for_answers(tmp_path: Path):
    times = [0.0, 0.01, 0.02]
    ended = bench(tmp_path, [[0.4, *tokens(1)]], 3, plan={"scheduled_s": times})
    assert ended.server.most_open_requests == 3
    assert all(late(record) < 0.1 for record in ended.records)


def test_open_loop_in_any_order_of_the_plan(tmp_path: Path):
    ended = bench(tmp_path, [tokens(1)], 3, plan={"scheduled_s": [0.06, 0.0, 0.03]})
    assert [record.index for record in ended.records] == [1, 2, 0]


def test_cap_queues_in_the_client_first_come_first_served(tmp_path: Path):
    times = [0.0, 0.001, 0.002, 0.003, 0.004]
    ended = bench(tmp_path, [SLOW], 5, max_concurrency=2, plan={"scheduled_s": times})
    assert ended.server.most_open_requests == 2
    assert ended.report.peak_in_flight == 2
    assert [record.scheduled_s for record in ended.records] == times
    assert [record.index for record in ended.records] == [0, 1, 2, 3, 4]
    lateness = [late(record) for record in ended.records]
    assert max(lateness[:2]) < 0.09 < min(lateness[2:4])
    assert lateness[4] > 0.19


def test_pool_is_opened_before_and_grows_when_needed(tmp_path: Path):
    ended = bench(tmp_path, [SLOW], 8, plan={"scheduled_s": [0.0] * 4 + [3.0] * 4}, during=stop_after(0.2))
    assert ended.server.connections == 4
    assert ended.report.reconnects == 0


def test_free_connections_are_used_last_in_first_out(tmp_path: Path):
    times = [0.0, 0.0, 0.0, 0.2, 0.4, 0.6]
    ended = bench(tmp_path, [[0.01, *tokens(1)]], 6, plan={"scheduled_s": times})
    assert len({seen.connection for seen in ended.server.seen[3:]}) == 1


def test_a_stalled_start_is_seen_as_lateness(tmp_path: Path):
    async def go() -> list[Ended]:
        async with Scripted([tokens(1)]) as server:
            records: list[Ended] = []
            generator = LoadGenerator(
                make_job(tmp_path, server.connection, 2, plan={"scheduled_s": [0, 0.01]}), records.append
            )
            await generator.prepare()
            await generator.run(time.perf_counter() - 0.1)
            return records

    assert [late(record) > 0.08 for record in uvloop.run(go())] == [True, True]


def test_start_in_the_future(tmp_path: Path):
    async def go() -> tuple[float, Scripted]:
        async with Scripted([tokens(1)]) as server:
            generator = LoadGenerator(make_job(tmp_path, server.connection), [].append)
            await generator.prepare()
            start = time.perf_counter() + 0.1
            await generator.run(start)
            return start, server

    start, server = uvloop.run(go())
    assert 0 <= server.seen[0].at - start < 0.1


# --- cycles ---------------------------------------------------------------------------------------------------------


def test_cycle_starts_again_with_moved_prompts_and_new_numbers(tmp_path: Path):
    async def until(generator: LoadGenerator, server: Scripted) -> None:
        while len(server.seen) < 7:
            await asyncio.sleep(0.001)
        generator.stop()

    plan = {"slices": [[0, 2, 4, 10], [14, 20]], "index": [4, 5], "output_tokens": [1, 1]}
    moved = {"cycle": True, "shift_bytes": 4, "ring_bytes": 20, "total": 6}
    ended = bench(tmp_path, [tokens(1)], 2, plan=plan, during=until, **moved)
    prompts = [seen.body["prompt"] for seen in ended.server.seen[:6]]
    assert prompts == ["w0w2w3w4", "w7w8w9", "w0w4w5w6", "w9w0w1", "w0w6w7w8", "w1w2w3"]
    assert [record.index for record in ended.records[:6]] == [4, 5, 10, 11, 16, 17]


def test_moved_slices_go_around_the_ring_and_others_stay(tmp_path: Path):
    def prompt(slices: list[int], round_: int, **changes: Any) -> bytes:
        job = make_job(tmp_path, Connection(host="h", port=1), plan={"slices": [slices]}, **changes)
        return b"".join(Bodies(job).prompt(0, round_))

    ring = {"cycle": True, "shift_bytes": 2, "ring_bytes": 6}
    assert prompt([4, 6], 1, **ring) == b"w0"
    assert prompt([0, 16], 1, **ring) == b"w1w2w0w1w2w0w1w2"
    assert prompt([8, 10], 5, **ring) == b"w4"
    assert prompt([4, 6], 5, cycle=True) == b"w2"
    assert prompt([], 1, **ring) == b""


def test_a_salt_is_a_new_one_in_every_round(tmp_path: Path):
    salts = [',"cache_salt":"ab"', ',"cache_salt":"cd"']
    job = make_job(tmp_path, Connection(host="h", port=1), 2, cycle=True, plan={"salt": salts})
    bodies = Bodies(job)
    sent = [json.loads(b"".join(bodies.build(row, round_))) for round_ in range(3) for row in range(2)]
    assert [body["cache_salt"] for body in sent] == ["ab", "cd", "ab-1", "cd-1", "ab-2", "cd-2"]
    assert [body["max_tokens"] for body in sent] == [4] * 6


def test_cycle_of_an_open_loop_goes_on_at_its_rate(tmp_path: Path):
    job = make_job(tmp_path, Connection(host="h", port=1), 3, cycle=True, plan={"scheduled_s": [0.0, 2.0, 1.0]})
    users = list(itertools.islice(Rows(job).open_loop(), 7))
    assert [user.due_s for user in users] == [0, 1, 2, 3, 4, 5, 6]
    assert [(user.round, user.row) for user in users] == [(0, 0), (0, 2), (0, 1), (1, 0), (1, 2), (1, 1), (2, 0)]


# --- sessions -------------------------------------------------------------------------------------------------------


def answer(words: str) -> list[Any]:
    return stream(delta(role="assistant"), delta(content=words), delta("stop"), usage(5, 1), delta())


SESSIONS = {"endpoint": "chat", "plan": {"session": [7, 7, 7, 9, 9]}}


def test_session_sends_back_what_was_said(tmp_path: Path):
    said = 'a "quoted"\n\\ line, é \U0001f600'
    ended = bench(tmp_path, [answer(said), answer("two"), answer("three")], 5, **SESSIONS)
    third = ended.server.seen[2].body["messages"]
    assert third == [
        {"role": "user", "content": "w0"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "w1"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "w2"},
    ]
    assert ended.server.seen[3].body["messages"] == [{"role": "user", "content": "w3"}]
    assert [record.session for record in ended.records] == [7, 7, 7, 9, 9]


def test_not_streamed_answers_are_sent_back_too(tmp_path: Path):
    whole = plain(200, {"choices": [{"message": {"role": "assistant", "content": "one"}}]})
    ended = bench(tmp_path, [whole], 2, stream=False, endpoint="chat", plan={"session": [0, 0]})
    assert ended.server.seen[1].body["messages"][1]["content"] == "one"


def test_users_take_sessions_whole(tmp_path: Path):
    plan = {"session": [0, 0, 0, 1, 1, 1]}
    ended = bench(tmp_path, [[0.01, *answer("x")]], 6, concurrency=2, endpoint="chat", think_time_s=0.01, plan=plan)
    assert ended.server.most_open_requests == 2
    for session in (0, 1):
        turns = [record for record in ended.records if record.session == session]
        assert [turn.index for turn in turns] == [3 * session, 3 * session + 1, 3 * session + 2]
        for before, after in itertools.pairwise(turns):
            assert after.scheduled_s == pytest.approx(before.end_s + 0.01, abs=2e-7)


def test_turns_after_a_failed_one_are_recorded_and_the_user_goes_on(tmp_path: Path):
    ended = bench(tmp_path, [plain(500, b"x"), answer("y")], 5, **SESSIONS)
    gone = "cancelled: an earlier turn of the session failed"
    assert [record.error for record in ended.records] == ["http 500: x", gone, gone, None, None]
    assert [record.index for record in ended.records] == [0, 1, 2, 3, 4]
    assert ended.records[1].sent_s is None
    assert ended.server.seen[1].body["messages"] == [{"role": "user", "content": "w3"}]


def test_open_loop_sessions_send_each_turn_at_its_time_but_after_the_answer(tmp_path: Path):
    plan = {"session": [0, 0, 0, 1], "scheduled_s": [0.0, 0.01, 0.2, 0.02]}
    ended = bench(tmp_path, [[0.06, *answer("x")]], 4, endpoint="chat", plan=plan)
    first, second, third, other = sorted(ended.records, key=lambda record: record.index)
    assert second.scheduled_s == first.end_s
    assert (third.scheduled_s, other.scheduled_s) == (0.2, 0.02)
    assert all(late(record) < 0.1 for record in ended.records)


def test_sessions_of_a_later_round_have_numbers_of_their_own(tmp_path: Path):
    async def until(generator: LoadGenerator, server: Scripted) -> None:
        while len(server.seen) < 5:
            await asyncio.sleep(0.001)
        generator.stop()

    plan = {"session": [3, 3]}
    records = bench(tmp_path, [answer("x")], 2, endpoint="chat", cycle=True, plan=plan, during=until, total=10).records
    assert [record.session for record in records[:4]] == [3, 3, 13, 13]


# --- how it stops ---------------------------------------------------------------------------------------------------


def stop_after(seconds: float) -> Any:
    async def during(generator: LoadGenerator, _: Scripted) -> None:
        await asyncio.sleep(seconds)
        generator.stop()

    return during


def test_stop_drains(tmp_path: Path):
    async def during(generator: LoadGenerator, server: Scripted) -> None:
        while len(server.seen) < 3:
            await asyncio.sleep(0.005)
        generator.stop()

    ended = bench(tmp_path, [[0.2, *tokens(1)]], 100, concurrency=3, cycle=True, during=during)
    assert [record.error for record in ended.records] == [None] * 3
    assert len(ended.server.seen) == 3


def test_stop_records_what_was_due_and_could_not_be_sent(tmp_path: Path):
    plan = {"scheduled_s": [0.0, 0.0, 0.001, 0.002, 9.0]}
    ended = bench(tmp_path, [[0.1, *tokens(1)]], 5, max_concurrency=2, plan=plan, during=stop_after(0.02))
    unsent = {record.index: record for record in ended.records if record.sent_s is None}
    assert sorted(unsent) == [2, 3]
    assert {record.error for record in unsent.values()} == {"cancelled: due, but not sent before the stop"}
    assert (len(ended.records), ended.report.sent, ended.report.ended) == (4, 2, 4)


def test_drain_that_takes_too_long_is_cut_short(tmp_path: Path):
    begun = [*tokens(9)[:3], HANG]
    ended = bench(tmp_path, [begun], 9, during=stop_after(0.02), drain_timeout_s=0.1)
    assert ended.record.error == "cancelled: not ended within the drain of 0.1 s"
    assert (ended.record.token_events, ended.record.output_tokens) == (2, 2)


def test_abort_gives_up_what_is_in_flight(tmp_path: Path):
    async def during(generator: LoadGenerator, server: Scripted) -> None:
        while len(server.seen) < 4:
            await asyncio.sleep(0.005)
        assert generator.pulse().in_flight == 4
        generator.abort("no longer wanted")
        assert generator.pulse().in_flight == 0

    ended = bench(tmp_path, [[HANG]], 9, concurrency=4, during=during)
    assert [record.error for record in ended.records] == ["cancelled: no longer wanted"] * 4
    assert all(record.end_s > record.sent_s for record in ended.records)
    assert ended.server.open == 0, "the server sees its connections closed"


def test_stop_before_the_start(tmp_path: Path):
    async def go() -> Any:
        async with Scripted([tokens(1)]) as server:
            generator = LoadGenerator(make_job(tmp_path, server.connection, 3), [].append)
            await generator.prepare()
            generator.stop()
            return await asyncio.wait_for(generator.run(time.perf_counter()), 5)

    assert uvloop.run(go()).sent == 0


def test_a_record_that_cannot_be_written_ends_the_run(tmp_path: Path):
    async def go() -> tuple[Any, list[Ended]]:
        async with Scripted([tokens(1), tokens(1), [HANG]]) as server:
            kept: list[Ended] = []

            def write(record: Ended) -> None:
                if len(kept) == 2:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                kept.append(record)

            generator = LoadGenerator(make_job(tmp_path, server.connection, 50, concurrency=3), write)
            await generator.prepare()
            asyncio.get_running_loop().call_later(0.05, generator.abort)
            return await asyncio.wait_for(generator.run(time.perf_counter()), 5), kept

    report, kept = uvloop.run(go())
    assert report.fault == "journal: No space left on device"
    assert (len(kept), report.ended) == (2, 2)


def test_a_fault_of_ours_ends_the_run_instead_of_hanging_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LoadGenerator, "_advance", lambda *_: 1 // 0)
    assert "ZeroDivisionError" in (bench(tmp_path, [tokens(1)], 5, concurrency=2).report.fault or "")


# --- what it says of itself -----------------------------------------------------------------------------------------


def test_loop_lag_is_sampled_and_a_stall_shows(tmp_path: Path):
    async def stall(_: LoadGenerator, __: Scripted) -> None:
        await asyncio.sleep(0.1)
        time.sleep(0.08)

    report = bench(tmp_path, [[0.3, *tokens(1)]], during=stall).report
    assert 5 <= len(report.loop_lag_s) <= 16
    assert np.median(report.loop_lag_s) < 0.01
    assert max(report.loop_lag_s) > 0.05


def test_cpu_and_wall_time(tmp_path: Path):
    async def burn(_: LoadGenerator, __: Scripted) -> None:
        await asyncio.sleep(0.02)
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    report = bench(tmp_path, [[0.2, *tokens(1)]], during=burn).report
    assert 0.1 <= report.cpu_s < report.wall_s + 0.05
    assert report.wall_s >= 0.2


def test_pulse_counts(tmp_path: Path):
    seen = []

    async def watch(generator: LoadGenerator, _: Scripted) -> None:
        await asyncio.sleep(0.1)
        seen.append(generator.pulse())

    bench(tmp_path, [tokens(3), plain(500, b""), [0.2, *tokens(1)]], 3, during=watch)
    (pulse,) = seen
    assert (pulse.sent, pulse.ended, pulse.failed, pulse.in_flight, pulse.token_events) == (3, 2, 1, 1, 3)
    assert pulse.time_s == pytest.approx(0.1, abs=0.06)


@pytest.mark.parametrize("kind", ["best", "fallback"])
def test_alarm_rings_once_in_time_and_can_be_moved(kind: str):
    async def go() -> list[float]:
        loop, rang = asyncio.get_running_loop(), []
        ring = lambda: rang.append(time.perf_counter())  # noqa: E731
        alarm = make_alarm(loop, ring) if kind == "best" else LoopAlarm(loop, ring)
        start = time.perf_counter()
        alarm.set(start + 9)
        for number in range(5):
            alarm.set(start + 0.0123 * (number + 1))
            await asyncio.sleep(0.0123 * (number + 1) + start - time.perf_counter() + 0.005)
        alarm.set(start)  # long past
        await asyncio.sleep(0.01)
        alarm.set(time.perf_counter() + 0.01)
        alarm.close()
        await asyncio.sleep(0.02)
        return [at - start for at in rang]

    rang = uvloop.run(go())
    assert len(rang) == 6
    lateness = np.array(rang[:5]) - 0.0123 * np.arange(1, 6)
    assert (lateness >= 0).all()
    assert np.median(lateness) < 0.005


# --- jobs that cannot be run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"plan": {"session": [0]}}, "endpoint: 'completions'"),
        ({"rows": 3, "endpoint": "chat", "plan": {"session": [0, 1, 0]}}, "plan.session"),
        ({"concurrency": 0}, "plan.scheduled_s"),
        ({"plan": {"slices": []}}, "plan.slices"),
        ({"plan": {"slices": [[0, 21]]}}, "plan.slices of request 0"),
        ({"plan": {"slices": [[4, 2]]}}, "plan.slices of request 0"),
        ({"plan": {"slices": [[4]]}}, "plan.slices of request 0"),
        ({"plan": {"output_tokens": [1, 2]}}, "plan.output_tokens"),
        ({"plan": {"prompt_tokens": [1, 2]}}, "plan.prompt_tokens"),
        ({"plan": {"salt": ["x"]}, "tail": ""}, "tail"),
        ({"plan": {"salt": ["x"]}}, "plan.salt"),
        ({"ring_bytes": 21}, "ring_bytes"),
        ({"think_time_s": -1.0}, "think_time_s"),
        ({"ramp_up_s": float("inf")}, "ramp_up_s"),
        ({"connection": {"timeout_s": 0.0}}, "connection.timeout_s"),
        ({"connection": {"port": 0}}, "connection.port"),
        ({"arena": "/nowhere"}, "arena"),
    ],
)
def test_job_that_cannot_be_run(tmp_path: Path, changes: dict[str, Any], named: str):
    values = dict(changes)
    where = Connection(**{"host": "h", "port": 1, **values.pop("connection", {})})
    with pytest.raises(InputError, match=named):
        LoadGenerator(make_job(tmp_path, where, values.pop("rows", 1), **values), [].append)
