"""Measuring a server whose truth is known: counts, clocks, stops, and what is left when something dies."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferometer as im
from inferometer.benchmark.bench import Bench, bench
from inferometer.benchmark.progress import Progress
from inferometer.benchmark.sweep import bench_sweep
from inferometer.records.run import Run
from inferometer.store import Store
from truth import Truth, truth_server


@pytest.fixture(scope="module")
def server() -> Iterator[Truth]:
    with truth_server() as running:
        yield running


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)
    return tmp_path


@pytest.fixture
def plain(server: Truth) -> Iterator[Truth]:
    """The server as it starts, its truth emptied."""
    server.configure(ttft=0.05, itl=0.02, err_every=0, cut_every=0, eos_at=0, tokens_per_chunk=1, usage=1)
    server.get("/reset")
    yield server
    server.configure(ttft=0.05, itl=0.02, err_every=0, cut_every=0, eos_at=0, tokens_per_chunk=1, usage=1)


def closed(users: int = 4, requests: int = 20, output: int = 8, **more: Any) -> im.Workload:
    return im.Workload.closed_loop(concurrency=users, requests=requests, prompt_tokens=64, output_tokens=output, **more)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_every_request_and_token_is_there(plain: Truth, endpoint: Any) -> None:
    run = bench(plain.url, closed(), endpoint=endpoint)
    summary, truth = run.summary(), plain.get("/truth")
    assert (summary.requests, summary.completed, summary.failed) == (20, 20, 0)
    assert run.requests["output_tokens"].to_list() == [8] * 20
    assert run.meta.counters["requests_finished"] == 20
    assert run.meta.counters["generation_tokens"] == 160
    # two probes came before, and are in nobody's figures but the truth's
    assert truth["n"] == 22
    assert summary.ttft_s.p50 == pytest.approx(0.05, abs=0.02)
    assert summary.tpot_s.p50 == pytest.approx(0.02, abs=0.005)
    assert summary.peak_in_flight == 4
    assert summary.itl_name == "token gap"
    assert run.meta.partial == ""
    assert run.meta.model == "mock"
    assert run.meta.server["engine"] == "vllm"


@pytest.mark.parametrize("step_s", [1.5, -1.5])
def test_a_wall_clock_set_during_the_run_is_measured(
    plain: Truth, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    real, ahead_s = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s[0])

    def set_clock(seen: Progress) -> None:
        if seen.phase == "measuring":
            ahead_s[0] = step_s

    run = bench(plain.url, closed(requests=60), watch=set_clock)
    assert run.meta.client["clock_step_s"] == pytest.approx(step_s, abs=0.1)
    assert any(f"the wall clock was set by {step_s:+.2f} s" in note for note in run.meta.notes)
    assert run.summary().ttft_s.p50 == pytest.approx(0.05, abs=0.02)
    still = bench(plain.url, closed())
    assert still.meta.client["clock_step_s"] == pytest.approx(0, abs=0.01)


def test_times_of_a_request_are_in_order(plain: Truth) -> None:
    rows = bench(plain.url, closed()).requests
    names = ["scheduled_s", "sent_s", "first_byte_s", "first_token_s", "last_token_s", "end_s"]
    table = rows.select(names).to_numpy()
    assert (np.diff(table, axis=1) >= 0).all()


def test_the_run_is_kept_and_its_journal_gone(plain: Truth, folder: Path) -> None:
    run = bench(plain.url, closed(requests=4))
    store = Store()
    assert [row["id"] for row in store.list()] == [run.id]
    assert store.load(run.id) == run
    assert list(store.running.iterdir()) == []
    bench(plain.url, closed(requests=4), store=False)
    assert len(store.list()) == 1
    assert sorted(path.name for path in folder.iterdir()) == [".inferometer"]


def test_littles_law_holds_in_a_closed_loop(plain: Truth) -> None:
    summary = bench(plain.url, closed(users=8, requests=160, output=4)).summary()
    assert summary.littles_law == pytest.approx(1.0, abs=0.02)


def test_an_open_loop_sends_by_its_schedule_whatever_the_server_does(plain: Truth) -> None:
    plain.configure(ttft=0.5, itl=0)
    run = bench(plain.url, im.Workload.open_loop(rate_per_s=100, requests=100, prompt_tokens=8, output_tokens=1))
    sent, scheduled = run.requests["sent_s"].to_numpy(), run.requests["scheduled_s"].to_numpy()
    assert np.ptp(scheduled) > 0.6
    assert run.summary().peak_in_flight is not None
    assert run.summary().peak_in_flight > 30
    assert np.median(sent - scheduled) < 0.01


def test_a_cap_makes_requests_wait_in_the_client_and_counts_the_wait(plain: Truth) -> None:
    """vllm#54101: offered 50/s, capped at 2 in flight, a server of 20/s: goodput is not 100 %."""
    plain.configure(ttft=0.1, itl=0)
    workload = im.Workload.open_loop(50, 40, prompt_tokens=8, output_tokens=1, arrivals="constant")
    run = bench(plain.url, workload, max_concurrency=2)
    summary = run.summary()
    assert summary.peak_in_flight == 2
    assert summary.ttft_s.p99 == pytest.approx(0.1, abs=0.05)
    assert summary.ttft_from_scheduled_s.p99 > 0.8  # type: ignore[operator]
    good = summary.goodput(ttft_s=0.2)
    assert good.attainment is not None
    assert good.attainment < 0.4
    assert summary.goodput(ttft_s=0.2, from_scheduled=False).attainment == 1.0


def test_think_time_and_sessions(plain: Truth) -> None:
    run = bench(plain.url, closed(users=1, requests=3, output=1, think_time_s=0.2))
    gaps = run.requests["sent_s"].to_numpy()[1:] - run.requests["end_s"].to_numpy()[:-1]
    assert (gaps > 0.19).all()
    workload = im.Workload.sessions(concurrency=2, sessions=4, turns=3, prompt_tokens=32, output_tokens=4)
    run = bench(plain.url, workload, endpoint="chat")
    assert run.requests["session"].to_list() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    prompts = run.requests["prompt_tokens"].to_numpy().reshape(4, 3)
    assert (np.diff(prompts, axis=1) > 32).all(), "each turn holds those before it and their answers"
    with pytest.raises(im.InputError, match="endpoint"):
        bench(plain.url, workload)


def test_a_closed_loop_by_time_goes_on_until_then(plain: Truth) -> None:
    plain.configure(ttft=0.01, itl=0)
    run = bench(plain.url, closed(users=4, requests=8, output=1), duration_s=1.0)
    assert run.requests.height > 40
    assert run.meta.partial == ""
    assert run.requests["sent_s"].max() < 1.3  # type: ignore[operator]


def test_a_minimum_time_goes_on_past_the_count(plain: Truth) -> None:
    plain.configure(ttft=0.01, itl=0)
    run = bench(plain.url, closed(users=4, requests=8, output=1), min_duration_s=0.8)
    assert run.requests.height > 40


def test_a_target_confidence_stops_early(plain: Truth) -> None:
    plain.configure(ttft=0.01, itl=0.001)
    run = bench(plain.url, closed(users=8, requests=4000, output=4), confidence=0.1, min_requests=200)
    assert 200 <= run.requests.height < 4000
    assert run.meta.partial == ""


def test_warm_up_is_recorded_and_left_out(plain: Truth) -> None:
    run = bench(plain.url, closed(users=4, requests=40), warmup_requests=8)
    assert run.requests.height == 40
    assert run.summary().requests == pytest.approx(32, abs=4)
    assert run.meta.window_s is not None
    # handed over without a drain: the slots are full when the window opens (evalscope PR#1641)
    start = run.meta.window_s[0]
    in_flight = run.requests.filter((run.requests["sent_s"] < start) & (run.requests["end_s"] > start - 0.01))
    assert in_flight.height >= 3


def test_several_workers_share_one_clock_and_one_count(plain: Truth) -> None:
    run = bench(plain.url, closed(users=6, requests=60), workers=2)
    assert sorted(run.requests["worker"].unique().to_list()) == [0, 1]
    assert run.requests.height == 60
    assert run.summary().peak_in_flight == 6
    assert run.summary().littles_law == pytest.approx(1.0, abs=0.03)


def test_no_two_prompts_are_alike_unless_asked(plain: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    """inference-perf PR#340: forked workers shared a seed, and 93 % of the prompts came from the cache."""
    from inferometer.benchmark import point

    seen: list[bytes] = []
    original = point.prepare

    def spied(what: Any, arena: Path) -> Any:
        made = original(what, arena)
        content = arena.read_bytes()
        for plan in made.plans:
            for slices in plan.slices:
                seen.append(b"".join(content[a:b] for a, b in zip(slices[::2], slices[1::2], strict=True)))
        return made

    monkeypatch.setattr(point, "prepare", spied)
    bench_sweep(plain.url, [closed(users=1, requests=10, output=1), closed(users=2, requests=20, output=1)], workers=2)
    assert len({prompt[:80] for prompt in seen}) == 30
    seen.clear()
    bench(plain.url, closed(users=1, requests=10, output=1), shared_prefix_len=32, prefix_reuse=5)
    assert len({prompt[:150] for prompt in seen}) == 2
    assert len(set(seen)) == 10


def test_a_sweep_resumes(plain: Truth) -> None:
    loads = [closed(users=1, requests=3, output=1), closed(users=2, requests=6, output=1)]
    first = bench_sweep(plain.url, loads)
    again = bench_sweep(plain.url, loads, resume=True)
    assert [run.id for run in again] == [run.id for run in first]
    third = bench_sweep(plain.url, [*loads, closed(users=4, requests=12, output=1)], resume=True)
    assert [run.id for run in third[:2]] == [run.id for run in first]
    assert len({run.meta.seed for run in third}) == 3


def test_one_in_three_fails_and_every_one_is_counted(plain: Truth) -> None:
    look = Bench(plain.url, options={})
    look.point(closed(requests=4))
    plain.configure(err_every=3)
    run = look.point(closed(users=4, requests=60))
    summary = run.summary()
    assert (summary.requests, summary.failed) == (60, 20)
    assert run.requests["error"].drop_nulls().unique().to_list() == ["http 500: boom"]
    assert set(run.requests.filter(run.requests["error"].is_not_null())["http_status"]) == {500}
    assert any("20 of 60 requests failed (20 http 500)" in note for note in run.meta.notes)
    assert summary.ttft_s.n == 40
    assert summary.goodput(ttft_s=1.0).attainment == pytest.approx(2 / 3)


def test_cut_streams_are_failures_and_keep_their_tokens(plain: Truth) -> None:
    look = Bench(plain.url, options={})
    look.point(closed(requests=4))
    plain.configure(cut_every=2)
    run = look.point(closed(users=2, requests=20))
    failed = run.requests.filter(run.requests["error"].is_not_null())
    assert failed.height == 10
    assert failed["error"].str.starts_with("cut").all()
    assert (failed["token_events"] > 0).all()


def test_an_early_end_without_usage_counts_what_came(plain: Truth) -> None:
    """sglang#24254: 16 of 64 tokens came and no usage: 16 it is."""
    plain.configure(eos_at=16, usage=0)
    run = bench(plain.url, closed(users=1, requests=4, output=64))
    assert run.requests["output_tokens"].to_list() == [16] * 4
    assert any("no usage" in note for note in run.meta.notes)
    assert any("4 of 4 answers ended before the length asked for" in note for note in run.meta.notes)


def test_chunks_of_several_tokens(plain: Truth) -> None:
    """sglang PR#12064: TPOT by tokens, gaps named chunk gaps."""
    plain.configure(tokens_per_chunk=4, itl=0.005)
    summary = bench(plain.url, closed(users=1, requests=4, output=64)).summary()
    assert summary.itl_name == "chunk gap"
    assert summary.itl_s.p50 == pytest.approx(4 * summary.tpot_s.p50, rel=0.15)  # type: ignore[operator]


def command(url: str, *more: str) -> list[str]:
    load = ["--concurrency", "4", "--requests", "400", "--prompt-tokens", "16", "--output-tokens", "8"]
    return [sys.executable, "-m", "inferometer", "bench", url, *load, *more]


def started(server: Truth, *more: str, limit_bytes: int | None = None) -> subprocess.Popen[str]:
    def limited() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.Popen(
        command(server.url, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited,
        start_new_session=True,
    )


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def journal_lines(folder: Path) -> int:
    files = folder.glob(".inferometer/running/*/requests-*.jsonl")
    return sum(file.read_bytes().count(b"\n") for file in files)


def test_killed_in_mid_run_what_was_measured_is_kept(plain: Truth, folder: Path) -> None:
    process = started(plain)
    until(lambda: journal_lines(folder) >= 20)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: plain.get("/truth")["n"] == 0 or _quiet(plain))
    store = Store()
    (run_id,) = store.recover()
    run = store.load(run_id)
    assert run.requests.height >= 20
    assert run.meta.partial == "killed"
    assert run.summary().ttft_s.p50 == pytest.approx(0.05, abs=0.03)
    assert run.meta.started_unix_s is not None


def _quiet(server: Truth) -> bool:
    """Whether the workers have left it alone: an orphan would go on to the end of its plan."""
    before = server.get("/truth")["n"]
    time.sleep(0.5)
    return bool(server.get("/truth")["n"] == before)


def test_interrupted_it_lets_answers_end_and_saves(plain: Truth, folder: Path) -> None:
    process = started(plain, "--json")
    until(lambda: journal_lines(folder) >= 20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    (run,) = json.loads(out)["runs"]
    assert run["partial"] == "interrupted"
    assert 20 <= run["requests"] < 400
    assert run["summary"]["failed"] == 0
    assert Store().load(run["id"]).requests.height == run["requests"]


def test_interrupted_before_anything_is_sent_it_leaves_at_once(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections, and never says anything
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        process = subprocess.Popen(command(url), stderr=subprocess.PIPE, start_new_session=True)
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=5)
    assert process.returncode == 130
    assert not list(folder.glob(".inferometer/running/*"))


def test_a_view_that_blocks_ends_no_worker(plain: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    from inferometer.benchmark import point

    monkeypatch.setattr(point, "SILENT_S", 1.0)
    waited: list[float] = []

    def slow(progress: Any) -> None:
        if progress.ended and not waited:
            waited.append(progress.time_s)
            time.sleep(1.5)

    run = bench(plain.url, closed(users=2, requests=60, output=8), watch=slow)
    assert waited
    assert run.meta.partial == ""
    assert run.requests.height == 60


def test_one_failure_and_slow_answers_are_no_dead_server(plain: Truth) -> None:
    look = Bench(plain.url, options={"give_up_after_s": 0.3})
    look.point(closed(requests=4))
    plain.configure(err_every=7, ttft=0.6)
    run = look.point(closed(users=1, requests=6, output=1))
    assert run.meta.partial == ""
    assert run.requests.height == 6


def test_the_server_killed_in_mid_run(folder: Path) -> None:
    with truth_server() as doomed:
        look = Bench(doomed.url, options={"give_up_after_s": 1.5})
        found: list[Run] = []

        def kill(progress: Any) -> None:
            if progress.ended >= 12:
                doomed.process.kill()

        look.watch = kill
        found.append(look.point(closed(users=4, requests=4000)))
    (run,) = found
    assert run.meta.partial.startswith("given up")
    assert run.summary().completed is not None
    assert run.summary().completed >= 12
    classes = set(run.requests["error"].drop_nulls().str.extract(r"^([a-z]+)", 1))
    assert classes <= {"cut", "reset", "connect"}
    assert "connect" in classes
    assert Store().load(run.id).meta.partial == run.meta.partial


def test_a_full_disk_keeps_what_was_written(plain: Truth, folder: Path) -> None:
    process = started(plain, "--json", limit_bytes=12_000)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (1, 2), err
    store = Store()
    store.recover()
    (row,) = store.list()
    run = store.load(row["id"])
    assert 5 < run.requests.height < 400
    assert run.meta.partial


def test_bad_input_is_one_line(server: Truth) -> None:
    for more, word in (
        (["--model", "other"], "mock"),
        (["--extra-body", '{"n": 2}'], "extra_body.n"),
        (["--endpoint", "embeddings"], "endpoint"),
    ):
        done = subprocess.run(command(server.url, *more), capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert word in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_nobody_there(folder: Path) -> None:
    with pytest.raises(im.InputError, match="url"):
        bench("http://127.0.0.1:9", closed())
    assert os.listdir(folder) == []
