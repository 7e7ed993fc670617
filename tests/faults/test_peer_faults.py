"""The faults of other tools, by their numbers in benchmarking.md: the input that triggers each, and the right value."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from rich.console import Console

import inferometer as im
from faults.served import Served, driven, reply, scripted
from inferometer.benchmark.bench import bench
from inferometer.benchmark.fitness import BUSY
from inferometer.benchmark.sweep import bench_sweep
from inferometer.cli.main import main
from inferometer.records import prometheus
from inferometer.records.importers import load
from inferometer.records.metrics import relative_half_width
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.report import measured
from inferometer.store import Store
from shared import shared
from truth import Truth, truth_server
from unit.benchmark.scripted import (
    DONE,
    HANG,
    LAST_CHUNK,
    STREAM_HEAD,
    chunk,
    delta,
    plain,
    stream,
    text,
    tokens,
    usage,
)

NEAR = 0.05
"""How far a pause of a script and the time measured may be apart on a busy machine."""
CHAT: dict[str, Any] = {"endpoint": "chat"}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INFEROMETER_STORE", raising=False)


@pytest.fixture(scope="module")
def truth() -> Iterator[Truth]:
    with truth_server() as running:
        yield running


def closed(users: int, requests: int, prompt: int = 16, output: int = 4) -> im.Workload:
    return im.Workload.closed_loop(concurrency=users, requests=requests, prompt_tokens=prompt, output_tokens=output)


def vllm_file(folder: Path, *, gaps: list[list[float]], ttfts: list[float], output: list[int], **more: Any) -> Path:
    """A result of ``vllm bench serve --save-result --save-detailed``."""
    ends = [ttft + sum(each) for ttft, each in zip(ttfts, gaps, strict=True)]
    starts = more.get("start_times", [0.0] * len(ttfts))
    duration = max(start + end for start, end in zip(starts, ends, strict=True)) - min(starts)
    values = {
        "date": "20261129-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": "mock",
        "num_prompts": len(ttfts),
        "request_rate": "inf",
        "max_concurrency": len(ttfts),
        "duration": duration,
        "completed": len(ttfts),
        "total_input_tokens": 8 * len(ttfts),
        "total_output_tokens": sum(output),
        "request_throughput": len(ttfts) / duration,
        "output_throughput": sum(output) / duration,
        "total_token_throughput": (8 * len(ttfts) + sum(output)) / duration,
        "input_lens": [8] * len(ttfts),
        "output_lens": output,
        "ttfts": ttfts,
        "itls": gaps,
        "start_times": starts,
        "errors": [""] * len(ttfts),
    }
    path = folder / "result.json"
    path.write_text(json.dumps(values | more))
    return path


# --- 1 to 10: what is a token, and when did it come -----------------------------------------------------------------


def test_01_ttft_is_no_gap_of_a_stream(tmp_path: Path) -> None:
    """vllm#7242: the TTFT was appended to the list of gaps, so that n tokens had n of them."""
    events = [text(" the", "length" if i == 4 else None) for i in range(5)]
    pieces = [step for event in events[1:] for step in (0.06, chunk(event))]
    script = [STREAM_HEAD, 0.4, chunk(events[0]), *pieces, chunk(usage(7, 5)), chunk(DONE), LAST_CHUNK]
    s = scripted(tmp_path, [script]).summary
    assert s.ttft_s.mean == pytest.approx(0.4, abs=NEAR)
    assert s.itl_s.n == 4
    assert s.itl_s.mean == pytest.approx(0.06, abs=NEAR)
    assert s.itl_s.mean == pytest.approx(s.tpot_s.mean)


def test_01_ttft_is_no_gap_of_a_file(tmp_path: Path) -> None:
    """vllm#7242: such files are about: with the TTFT listed first, the gaps are those after it."""
    file = vllm_file(tmp_path, ttfts=[0.5, 0.4], gaps=[[0.5, 0.02, 0.03], [0.4, 0.04, 0.05]], output=[3, 3])
    (run,) = load(file)
    s = run.summary()
    assert s.itl_s.n == 4
    assert s.itl_s.mean == pytest.approx(0.035)
    assert s.tpot_s.mean == pytest.approx((0.025 + 0.045) / 2)


@pytest.mark.parametrize(
    "first",
    [
        delta(role="assistant"),
        delta(role="assistant", content=""),
        delta(role="assistant", content=None),
        delta(role="assistant", content=None, reasoning_content=None, tool_calls=None),
        delta(content="", reasoning_content=""),
        delta(),
        b'data: {"choices": [{"index": 0, "delta": null}]}\n\n',
    ],
    ids=["role", "empty", "null", "all-null", "empty-reasoning", "no-delta", "null-delta"],
)
def test_02_a_first_delta_without_a_token(tmp_path: Path, first: bytes) -> None:
    """vllm#3759: the role-only first delta was taken for the first token."""
    last = (chunk(delta("length", content=" b")), chunk(usage(7, 2)), chunk(DONE), LAST_CHUNK)
    script = [STREAM_HEAD, chunk(first), 0.3, chunk(delta(content="a")), 0.1, *last]
    made = scripted(tmp_path, [script], **CHAT)
    assert made.row["first_byte_s"] - made.row["sent_s"] < 0.2
    assert made.summary.ttft_s.mean == pytest.approx(0.3, abs=NEAR)
    assert made.summary.tpot_s.mean == pytest.approx(0.1, abs=NEAR)
    assert (made.row["token_events"], made.row["output_tokens"], made.summary.itl_name) == (2, 2, "token gap")


def test_03_an_empty_reply(tmp_path: Path) -> None:
    """vllm#6064: a reply without a token had a TTFT of 0, which pulled the mean down."""
    empty = stream(delta(role="assistant", content=""), delta("stop"), usage(7, 0), DONE)
    good = [0.2, *stream(delta(content="a"), delta("stop", content="b"), usage(7, 2), DONE)]
    made = scripted(tmp_path, [empty, good], 2, **CHAT)
    assert made.run.requests["first_token_s"].is_null().to_list() == [True, False]
    assert made.run.requests["output_tokens"].to_list() == [0, 2]
    s = made.summary
    assert (s.completed, s.failed, s.ttft_s.n) == (2, 0, 1)
    assert s.ttft_s.mean == pytest.approx(0.2, abs=NEAR)
    assert s.goodput(ttft_s=10.0).attainment == 0.5


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_04_reasoning_before_content(tmp_path: Path, field: str) -> None:
    """guidellm#737, inference-perf#559: TTFT waited for the content, or was null, though tokens had come."""
    thoughts = [delta(**{field: "so"}), delta(**{field: " then"})]
    events = [delta(role="assistant", content=""), *thoughts, delta(content="42"), delta("stop", content=".")]
    script = [STREAM_HEAD, chunk(events[0])]
    for event in events[1:]:
        script += [0.15, chunk(event)]
    details = {"completion_tokens_details": {"reasoning_tokens": 2}}
    made = scripted(tmp_path, [[*script, chunk(usage(7, 4, **details)), chunk(DONE), LAST_CHUNK]], **CHAT)
    assert made.summary.ttft_s.mean == pytest.approx(0.15, abs=NEAR)
    assert made.summary.first_content_s.mean == pytest.approx(0.45, abs=NEAR)
    assert made.summary.tpot_s.mean == pytest.approx(0.15, abs=NEAR)
    assert (made.row["token_events"], made.row["reasoning_tokens"]) == (4, 2)
    assert not made.says("hide reasoning")


def test_05_only_reasoning(tmp_path: Path) -> None:
    """tenstorrent/vllm#377: a reply of nothing but reasoning_content crashed the client."""
    thoughts = [delta("length" if i == 7 else None, reasoning_content="hm") for i in range(8)]
    made = scripted(tmp_path, [stream(*thoughts, usage(7, 8), DONE, pause_s=0.05), stream(*thoughts, DONE)], 2, **CHAT)
    assert made.run.requests["output_tokens"].to_list() == [8, 8]
    assert made.run.requests["output_counted_by"].to_list() == ["usage", "events"]
    assert (made.summary.failed, made.summary.ttft_s.n, made.summary.tpot_s.n) == (0, 2, 2)
    assert "first_content_s" not in made.run.requests.columns


def test_05_reasoning_for_half_of_the_reply(truth: Truth, tmp_path: Path) -> None:
    """tenstorrent/vllm#377 (M): TTFT 692 ms for 50 and TPOT 9.8 ms for 20, from the content alone."""
    truth.configure(ttft=0.05, itl=0.02, reasoning=32)
    try:
        made = driven(tmp_path, urlsplit(truth.url).port or 0, 2, concurrency=2, **CHAT, **long_chat(64, 2))
    finally:
        truth.configure(reasoning=0)
    s = made.summary
    assert s.ttft_s.p50 == pytest.approx(0.05, abs=NEAR)
    assert s.tpot_s.p50 == pytest.approx(0.02, abs=0.002)
    assert s.first_content_s.p50 == pytest.approx(0.05 + 32 * 0.02, abs=NEAR)
    assert s.output_tokens == 128


def long_chat(output: int, rows: int) -> dict[str, Any]:
    """A streaming chat with usage, of so many tokens."""
    tail = ',"stream":true,"stream_options":{"include_usage":true}}'
    return {"plan": {"output_tokens": [output] * rows}, "tail": tail}


def test_06_hidden_reasoning(tmp_path: Path) -> None:
    """genai-bench#81: reasoning is not streamed, the first chunk holds many tokens: TTFT and speed came out wrong."""
    thought = {"completion_tokens_details": {"reasoning_tokens": 32}}
    after = [chunk(delta(content=" and")), 0.05, chunk(delta("stop", content=" so"))]
    first = chunk(delta(content="The answer to it all is 42"))
    start = [STREAM_HEAD, chunk(delta(role="assistant", content="")), 0.3, first, 0.05, *after]
    made = scripted(tmp_path, [[*start, chunk(usage(7, 42, **thought)), chunk(DONE), LAST_CHUNK]], **CHAT)
    assert made.summary.ttft_s.mean == pytest.approx(0.3, abs=NEAR)
    assert made.says("1 answers hide reasoning", "TTFT")
    assert made.summary.itl_name == "chunk gap"
    # a server that does not say how much it thought: the many-token chunk is still told of
    made = scripted(tmp_path, [[*start, chunk(usage(7, 42)), chunk(DONE), LAST_CHUNK]], **CHAT)
    assert made.says("chunks hold several tokens")


def test_07_several_tokens_a_chunk(tmp_path: Path) -> None:
    """sglang PR#12064, llmperf PR#99: with speculative decoding the gap of a chunk was given as that of a token."""
    events = [text(" a b c d", "length" if i == 3 else None) for i in range(4)]
    made = scripted(tmp_path, [stream(*events, usage(7, 16), DONE, pause_s=0.15)])
    s = made.summary
    assert (made.row["token_events"], s.output_tokens) == (4, 16)
    assert s.tpot_s.mean == pytest.approx(3 * 0.15 / 15, abs=0.01)
    assert (s.itl_name, s.itl_s.n) == ("chunk gap", 3)
    assert s.itl_s.mean == pytest.approx(0.15, abs=NEAR)
    assert made.says("gaps are chunk gaps", "TPOT counts tokens")


def test_08_a_chunk_of_no_tokens(tmp_path: Path) -> None:
    """sglang PR#26497: an empty or marker-only chunk retokenised to nothing, and its gap was divided by 0."""
    odd = stream(text(" a"), text(""), text("\n"), text(""), text(" \u00e9", "length"), usage(7, 3), DONE)
    none = stream(text("\u200b", "stop"), usage(7, 0), DONE)
    with np.errstate(all="raise"):
        made = scripted(tmp_path, [odd, none], 2)
        s = made.summary
    assert made.run.requests["token_events"].to_list() == [3, 1]
    assert made.run.requests["output_tokens"].to_list() == [3, 0]
    assert (s.failed, s.itl_s.n, s.tpot_s.n, s.normalized_latency_s.n, s.output_tokens) == (0, 2, 1, 1, 3)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_09_eos_before_the_length_asked_for(tmp_path: Path, endpoint: str) -> None:
    """sglang#24254: EOS at 16 of 64 without usage was counted as 64, four times the tok/s."""
    piece = text if endpoint == "completions" else lambda t, finish=None: delta(finish, content=t)
    script = stream(*[piece(" the")] * 15, piece(" the", "stop"), DONE)
    made = scripted(tmp_path, [[0.05, *script]], 4, endpoint=endpoint, plan={"output_tokens": [64] * 4})
    s = made.summary
    assert made.run.requests["output_tokens"].to_list() == [16] * 4
    assert s.output_tokens == 64
    assert s.output_tok_per_s == pytest.approx(64 / s.duration_s)
    assert made.run.requests["finish_reason"].to_list() == ["stop"] * 4
    assert made.says("4 of 4 answers ended before the length asked for")
    assert made.says("no usage")


def test_10_the_peak_is_counted_in_tokens(tmp_path: Path) -> None:
    """vllm#37666: the peak tok/s counted chunks, and was below the mean where a chunk holds several tokens."""
    events = [text(" the" * 16, "length" if i == 5 else None) for i in range(6)]
    made = scripted(tmp_path, [stream(*events, usage(7, 96), DONE, pause_s=0.25)], 2, concurrency=2)
    s = made.summary
    assert made.run.token_times is not None
    by_chunks = max(
        np.sum((made.run.token_times.times_s >= t) & (made.run.token_times.times_s <= t + 1.0))
        for t in made.run.token_times.times_s
    )
    assert by_chunks < s.output_tok_per_s, "the input does not show the fault"
    assert s.peak_output_tok_per_s >= s.output_tok_per_s
    assert s.peak_output_tok_per_s == 16 * by_chunks


# --- 11 to 19: the load, and the client that makes it ---------------------------------------------------------------


def by_second(sent: Any, end: Any) -> int:
    """Requests that are in flight at any time of a second, of the fullest second: how the peer counts."""
    seconds = np.arange(int(np.max(end)) + 1)
    return max(int(np.sum((sent < second + 1) & (end >= second))) for second in seconds)


def test_11_peak_concurrency_under_a_cap(tmp_path: Path) -> None:
    """vllm#56653 (M): 512 in flight were reported at a cap of 256, as each second's requests were counted together."""
    plan = {"scheduled_s": [0.0] * 512, "output_tokens": [1] * 512}
    made = scripted(tmp_path, [[0.25, *tokens(1)]], 512, plan=plan, max_concurrency=256)
    sent, end = (made.run.requests[name].to_numpy() for name in ("sent_s", "end_s"))
    # moved to the start of a second, where the peer's buckets would have the two rounds together
    assert by_second(sent - sent.min(), np.minimum(end - sent.min(), 0.999)) == 512, "the input does not show the fault"
    assert made.summary.peak_in_flight == 256
    assert made.report.peak_in_flight == 256
    assert made.run.meta.client["peak_in_flight"] == 256


def test_11_peak_concurrency_of_a_file(tmp_path: Path) -> None:
    """vllm#56653: what the file states is kept under its own name, and is not the peak."""
    starts = [0.0] * 256 + [0.5] * 256
    more = {"start_times": starts, "max_concurrency": 256, "max_concurrent_requests": 512}
    (run,) = load(vllm_file(tmp_path, ttfts=[0.1] * 512, gaps=[[0.35]] * 512, output=[2] * 512, **more))
    sent, end = (run.requests[name].to_numpy() for name in ("sent_s", "end_s"))
    assert by_second(sent, end) == 512
    assert (run.summary().peak_in_flight, run.summary().concurrency) == (256, 256)
    assert run.meta.stated["max_concurrent_requests"] == 512


def test_12_a_rate_with_a_cap_queues_in_the_client(tmp_path: Path) -> None:
    """vllm#54101 (M): offered 20/s, did 10.4/s, queued 301 ms in the client, and called its goodput 100 %."""
    plan = {"scheduled_s": [i / 20 for i in range(16)], "output_tokens": [1] * 16}
    meta = {"request_rate_per_s": 20.0}
    made = scripted(tmp_path, [[0.186, *tokens(1)]], 16, plan=plan, max_concurrency=2, meta=meta)
    s = made.summary
    assert s.request_rate_per_s == 20.0
    assert s.request_per_s == pytest.approx(10.4, abs=0.8)
    assert s.client_queue_s.mean == pytest.approx(0.301, abs=0.06)
    assert s.ttft_s.mean == pytest.approx(0.186, abs=NEAR)
    assert s.ttft_from_scheduled_s.mean == pytest.approx(0.301 + 0.186, abs=0.06)
    # the first four wait 0 or 86 ms, the others 172 ms and more
    assert s.goodput(ttft_s=0.315).attainment == 4 / 16
    assert s.goodput(ttft_s=0.315, from_scheduled=False).attainment == 1.0


async def stall(generator: Any, server: Any) -> None:
    """Hold the client's loop for 0.35 s, beginning where nothing is in flight."""
    await asyncio.sleep(0.125)
    time.sleep(0.35)


def stalled(folder: Path) -> Any:
    """Requests every 50 ms for a second, by a client that stalls."""
    plan = {"scheduled_s": [i / 20 for i in range(20)], "output_tokens": [1] * 20}
    return scripted(folder, [tokens(1)], 20, plan=plan, during=stall, meta={"request_rate_per_s": 20.0})


def test_13_a_stalled_dispatch(tmp_path: Path) -> None:
    """guidellm#1048: the dispatcher stalled, and latencies counted from the late sending looked fine."""
    made = stalled(tmp_path)
    rows = made.run.requests.sort("scheduled_s")
    late = (rows["sent_s"] - rows["scheduled_s"]).to_numpy()
    assert late[3] == pytest.approx(0.325, abs=NEAR)  # due at 0.15 s, sent at 0.475 s
    from_scheduled = (rows["first_token_s"] - rows["scheduled_s"]).to_numpy()
    assert from_scheduled[3] >= late[3]
    assert made.summary.ttft_s.p50 < 0.1
    assert made.summary.ttft_from_scheduled_s.p99 > 0.25
    assert made.summary.goodput(ttft_s=0.2).attainment < 1.0
    assert any(text.startswith("the client was late") for text in made.run.meta.unfit)


PREFIX_BLOCK = 16


def caching() -> Served:
    """A server with a prefix cache, which it counts as vLLM does."""
    known: set[tuple[int, ...]] = set()

    def answer(served: Served, seen: Any) -> Any:
        prompt = seen.body["prompt"]
        starts = [tuple(prompt[:stop]) for stop in range(PREFIX_BLOCK, len(prompt) + 1, PREFIX_BLOCK)]
        hits = PREFIX_BLOCK * sum(start in known for start in starts)
        known.update(starts)
        served.counters["prefix_cache_queries"] += len(prompt)
        served.counters["prefix_cache_hits"] += hits
        return reply(seen, 0.02)

    return Served(answer, pages=True)


@pytest.fixture(scope="module")
def seeded() -> Iterator[tuple[list[Run], Run, list[Any]]]:
    """A sweep of two points with a seed, by two workers; then its first point again with the same seed."""
    with caching() as served:
        loads = [closed(2, 24, prompt=64), closed(4, 36, prompt=64)]
        runs = bench_sweep(served.url, loads, seed=7, workers=2, store=False)
        asked = list(served.asked)
        again = bench(served.url, loads[0], seed=7, store=False)
        yield runs, again, asked


def test_14_a_fixed_seed_over_sweep_points(seeded: tuple[list[Run], Run, list[Any]]) -> None:
    """vllm#52884, #54227: each point of a sweep sent the prompts of the one before, up to 2.3x faster by the cache."""
    runs, again, _ = seeded
    assert [run.meta.seed for run in runs] == [7, 8]
    assert [run.meta.counters["prefix_cache_queries"] for run in runs] == [24 * 64, 36 * 64]
    assert [run.meta.counters["prefix_cache_hits"] for run in runs] == [0, 0]
    assert not any("prefix cache" in note for run in runs for note in run.meta.notes)
    # who does send the same prompts twice is told so by the server's counters
    assert again.meta.counters["prefix_cache_hits"] == 24 * 64
    warm = "100% of the prompt tokens came from the server's prefix cache, though no sharing was asked for"
    assert warm in again.meta.notes


def test_15_a_seed_a_worker(seeded: tuple[list[Run], Run, list[Any]]) -> None:
    """inference-perf PR#340: forked workers drew from one seed, and 93 % of the prompts were found in the cache."""
    runs, _, asked = seeded
    prompts = [tuple(seen.body["prompt"]) for seen in asked]
    assert [sorted(set(run.requests["worker"])) for run in runs] == [[0, 1], [0, 1]]
    assert len(prompts) == 24 + 36
    assert len({prompt[:PREFIX_BLOCK] for prompt in prompts}) == 24 + 36
    assert all(run.requests["worker"].value_counts()["count"].min() > 5 for run in runs)


def test_16_prompts_of_50_000_tokens() -> None:
    """vllm#39963: with 50k-token prompts the client collapsed, and said nothing of it."""
    with Served(lambda served, seen: reply(seen, 0.2)) as served:
        run = bench(served.url, closed(4, 12, prompt=50_000, output=1), store=False)
    assert [len(seen.body["prompt"]) for seen in served.asked] == [50_000] * 12
    assert run.requests["prompt_tokens"].to_list() == [50_000] * 12
    assert (run.summary().completed, run.meta.partial) == (12, "")
    client = run.meta.client
    assert {"cpu_share", "lateness_s.p50", "lateness_s.p99", "loop_lag_s.p50", "loop_lag_s.p99"} <= client.keys()
    assert client["cpu_share"] < BUSY
    assert client["loop_lag_s.p50"] < 0.02


def test_17_the_lag_of_the_event_loop(tmp_path: Path) -> None:
    """inference-perf#86: the event loop lagged, which skewed the rate, and nothing showed it."""
    made = stalled(tmp_path)
    assert max(made.report.loop_lag_s) == pytest.approx(0.35, abs=0.08)
    assert made.run.meta.client["loop_lag_s.p99"] > 0.1
    assert any(text.startswith("the client's clock stalled") for text in made.run.meta.unfit)


def gated(admits: int, *, tells: bool) -> Served:
    """A server that works on so many at once, 0.15 s each; whether it tells of those that wait."""
    gate = asyncio.Semaphore(admits)

    async def answer(served: Served, seen: Any) -> Any:
        served.waiting += tells
        async with gate:
            served.waiting -= tells
            served.running += 1
            await asyncio.sleep(0.15)
            served.running -= 1
        return reply(seen)

    return Served(answer, pages=True, counts=False)


def test_18_a_hidden_cap() -> None:
    """guidellm#487: a cap that nobody had asked for held requests back between the client and the server."""
    with gated(2, tells=False) as served:
        run = bench(served.url, closed(8, 24, output=1), store=False, scrape_interval_s=0.1)
    s = run.summary()
    assert s.concurrency == s.peak_in_flight == 8
    assert s.server_in_flight < 3 < 6 < s.mean_in_flight
    (why,) = (text for text in run.meta.unfit if text.startswith("client and server disagree"))
    assert "holds requests back" in why


def test_19_a_server_that_hangs_between_points() -> None:
    """guidellm#431, #1152: a point that got no answer hung the sweep, and what had been measured was lost."""

    def answer(served: Served, seen: Any) -> Any:
        return [HANG] if seen.body["max_tokens"] == 5 else reply(seen)

    began = time.monotonic()
    limits = {"timeout_s": 0.5, "give_up_after_s": 1.0}
    with Served(answer) as served:
        first, second = bench_sweep(served.url, [closed(1, 6), closed(2, 2000, output=5)], **limits)
    assert time.monotonic() - began < 25
    assert (first.meta.partial, first.summary().completed) == ("", 6)
    assert second.meta.partial == "given up: no request has succeeded for 1 s"
    s = second.summary()
    assert (s.completed, s.ttft_s.mean) == (0, None)
    assert s.failed == second.requests.height >= 4
    assert second.requests["error"].str.starts_with("timeout").all()
    assert Store().load(first.id).summary() == first.summary()
    assert Store().load(second.id).meta.partial == second.meta.partial


def test_19_a_stream_that_goes_silent(tmp_path: Path) -> None:
    """guidellm#431, #1152: a stream that stops without an end must not be waited for without end."""
    script = [STREAM_HEAD, chunk(text(" the")), HANG]
    made = scripted(tmp_path, [script, tokens(2)], 2, connection={"idle_timeout_s": 0.2})
    assert made.run.requests["error"].to_list() == ["timeout: nothing more for 0.2 s", None]
    assert made.run.requests["token_events"].to_list() == [1, 2]
    assert (made.summary.completed, made.summary.failed) == (1, 1)


def test_19_a_worker_that_hangs() -> None:
    """guidellm#431, #1152: a client process that no longer answers must end the run, not hang it."""
    found: list[Run] = []

    def freeze(progress: Any) -> None:
        if progress.phase == "measuring" and not frozen:
            for pid in _workers():
                os.kill(pid, signal.SIGSTOP)
                frozen.append(pid)

    frozen: list[int] = []
    limits = {"duration_s": 1.5, "drain_timeout_s": 1.0, "timeout_s": 2.0, "give_up_after_s": 3.0}
    with Served(lambda served, seen: reply(seen, 0.05)) as served:

        def run() -> None:
            found.append(bench(served.url, closed(2, 20), watch=freeze, store=False, **limits))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(20)
        hung = thread.is_alive()
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        thread.join(10)
    assert frozen, "no worker was found"
    assert not hung, "the coordinator still waits for a worker that hangs"
    assert found[0].meta.partial


def _workers() -> list[int]:
    """The load-generating processes of this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            ours = int(parent) == os.getpid()
            if ours and b"inferometer.benchmark.worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


# --- 20 to 28: windows, rates, and counts ---------------------------------------------------------------------------


def test_20_requests_that_straddle_the_warm_up(tmp_path: Path) -> None:
    """guidellm#1078: requests begun in the warm-up were counted whole in the rate, or not at all."""
    pieces = [step for i in range(10) for step in (0.04, chunk(text(" the", "length" if i == 9 else None)))]
    script = [STREAM_HEAD, *pieces, chunk(usage(7, 10) + DONE), LAST_CHUNK]
    options = {"warmup_s": 0.6}
    made = scripted(tmp_path, [script], 5, plan={"output_tokens": [10] * 5}, options=options)
    run, s = made.run, made.summary
    assert run.meta.window_s is not None
    start, stop = run.meta.window_s
    assert (start, stop) == (0.6, run.requests["sent_s"].max())
    assert run.token_times is not None
    inside = int(np.sum((run.token_times.times_s >= start) & (run.token_times.times_s <= stop)))
    ended = 10 * int(np.sum((run.requests["end_s"].to_numpy() >= start) & (run.requests["end_s"].to_numpy() <= stop)))
    sent = run.requests.filter((run.requests["sent_s"] >= start) & (run.requests["end_s"] <= stop)).height * 10
    assert sent < inside < ended, "the input does not show the fault"
    assert s.output_tok_per_s == pytest.approx(inside / (stop - start))
    # one user, ten tokens an answer, back to back: counted whole or not at all, it would be a fifth more or less
    steady = 10 / np.median(run.requests["end_s"].to_numpy() - run.requests["sent_s"].to_numpy())
    assert s.output_tok_per_s == pytest.approx(steady, rel=0.1)
    assert s.requests == int((run.requests["sent_s"] >= start).sum())


def test_21_the_burst_at_the_start(tmp_path: Path) -> None:
    """evalscope PR#1641: after the warm-up all users started at once again, and that burst was measured."""
    prefill = asyncio.Lock()

    async def answer(served: Served, seen: Any) -> Any:
        async with prefill:
            await asyncio.sleep(0.03)
        last = chunk(text(" the", "length") + usage(7, 2) + DONE)
        return [STREAM_HEAD, chunk(text(" the")), 0.3, last, LAST_CHUNK]

    with Served(answer) as served:
        made = driven(tmp_path, served.port, 40, concurrency=8, options={"warmup_requests": 8})
    run = made.run
    assert run.meta.window_s is not None
    start = run.meta.window_s[0]
    sent, end = (run.requests[name].to_numpy() for name in ("sent_s", "end_s"))
    ttft = run.requests["first_token_s"].to_numpy() - sent
    assert ttft.max() > 0.2, "the input does not show the fault"
    # handed over as it is: seven users are busy when the eighth sends the first request that counts
    assert np.sum((sent < start) & (end > start)) == 7
    assert made.summary.requests == 32
    assert made.summary.ttft_s.p90 < 0.12


def test_22_simultaneous_finishes(tmp_path: Path) -> None:
    """guidellm#602: requests that ended at one instant gave a request rate with a deviation of 900."""
    arrived: list[asyncio.Event] = []

    async def answer(served: Served, seen: Any) -> Any:
        if len(served.asked) % 10 == 1:
            arrived.append(asyncio.Event())
        mine = arrived[-1]
        if len(served.asked) % 10 == 0:
            asyncio.get_running_loop().call_later(0.3, mine.set)
        await mine.wait()
        return reply(seen)

    with Served(answer) as served:
        made = driven(tmp_path, served.port, 20, concurrency=10, plan={"output_tokens": [1] * 20})
    ends = np.sort(made.run.requests["end_s"].to_numpy())
    assert np.diff(ends).min() < 1 / 900, "the input does not show the fault"
    assert made.summary.request_per_s == pytest.approx(20 / 0.6, rel=0.2)


def test_22_finishes_at_the_very_same_time() -> None:
    """guidellm#602: gaps of zero between two ends are no rate."""
    columns = {"sent_s": [0.0] * 50, "end_s": [2.0] * 50, "first_token_s": [1.0] * 50, "last_token_s": [2.0] * 50}
    run = make_run(RunMeta(kind="measured"), {**columns, "output_tokens": [5] * 50, "prompt_tokens": [5] * 50})
    with np.errstate(all="raise"):
        s = run.summary()
        assert relative_half_width(run, "e2e_s") == 0.0
    assert (s.request_per_s, s.output_tok_per_s, s.total_tok_per_s) == (25.0, 125.0, 250.0)
    assert (s.mean_in_flight, s.peak_in_flight, s.e2e_s.std) == (50.0, 50, 0.0)


def test_23_gaps_are_kept(tmp_path: Path) -> None:
    """guidellm#1145: its "ITL" is each request's average, which a stall in mid-stream does not show in."""
    pauses = [0.05, 0.05, 0.4, 0.05, 0.05]
    pieces = [step for pause in pauses for step in (pause, chunk(text(" the")))]
    last = (chunk(text("", "length")), chunk(usage(7, 6)), chunk(DONE), LAST_CHUNK)
    s = scripted(tmp_path, [[STREAM_HEAD, chunk(text(" the")), *pieces, *last]]).summary
    assert (s.itl_s.n, s.itl_name, s.tpot_s.n) == (5, "token gap", 1)
    assert s.itl_s.p50 == pytest.approx(0.05, abs=0.03)
    assert s.itl_s.p99 == pytest.approx(0.4, abs=NEAR)
    assert s.tpot_s.p99 == pytest.approx(0.12, abs=0.03)
    assert s.goodput(itl_s=0.2).attainment == 0.0
    assert s.goodput(tpot_s=0.2).attainment == 1.0


def test_23_an_average_is_not_taken_for_gaps() -> None:
    """guidellm#1145: of its file the averages are TPOTs, and no ITL is made up; its "TPOT" keeps its own name."""
    (run,) = load(shared("data/bench_outputs/guidellm/guidellm-0.8.1_concurrent1.json"))
    s = run.summary()
    assert (s.itl_s.n, s.itl_name) == (0, None)
    assert s.tpot_s.mean == pytest.approx(0.0198218, abs=1e-6)
    assert run.meta.stated["guidellm.inter_token_latency_s.mean"] == pytest.approx(0.0198218, abs=1e-6)
    assert run.meta.stated["guidellm.time_per_output_token_s.mean"] == pytest.approx(0.0221664, abs=1e-6)


def test_24_few_requests_a_user(tmp_path: Path) -> None:
    """dynamo PR#6777: 10 requests at concurrency 10 measure the start and the end of a run only."""
    few = scripted(tmp_path, [[0.05, *tokens(1)]], 10, concurrency=10)
    assert few.says("10 requests of 10 users", "at least 3 a user")
    enough = scripted(tmp_path, [[0.05, *tokens(1)]], 30, concurrency=10)
    assert not enough.says("at least 3 a user")


def test_25_spaces_that_collapse(tmp_path: Path) -> None:
    """fib PR#66: runs of spaces and newlines retokenised to fewer tokens than the server had made."""
    spaces = [text("  "), text("\n\n"), text("    "), text(" \n"), text("\t\t"), text("  ", "length")]
    made = scripted(tmp_path, [stream(*spaces, usage(7, 12), DONE, pause_s=0.03)])
    assert (made.row["output_tokens"], made.row["output_counted_by"], made.row["token_events"]) == (12, "usage", 6)
    assert made.summary.tpot_s.mean == pytest.approx(5 * 0.03 / 11, abs=0.01)


def test_26_the_chat_template_adds_tokens(tmp_path: Path) -> None:
    """vllm PR#44708, guidellm#75: the prompt's own tokens were counted, without those of the chat's template."""
    script = stream(delta(content="a"), delta("stop", content="b"), usage(113, 2), DONE)
    made = scripted(tmp_path, [[0.1, *script]], 2, plan={"prompt_tokens": [100, 100]}, **CHAT)
    assert made.run.requests["prompt_tokens"].to_list() == [113, 113]
    assert made.run.requests["asked_prompt_tokens"].to_list() == [100, 100]
    s = made.summary
    assert s.prompt_tokens == 226
    assert s.total_tok_per_s == pytest.approx((226 + 4) / s.duration_s)


PAGE = """\
# HELP vllm:num_requests_running requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 3.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} {ttft}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {count}
# TYPE vllm:inter_token_latency_seconds histogram
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="1.0",model_name="m"}} {count}
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {count}
vllm:e2e_request_latency_seconds_sum{{engine="0",model_name="m"}} {e2e}
vllm:e2e_request_latency_seconds_count{{engine="0",model_name="m"}} {count}
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
"""


def test_27_a_histogram_without_buckets() -> None:
    """aiperf#911: one histogram without buckets threw away the whole page."""
    before = prometheus.parse_page(PAGE.format(ttft=1.0, count=10, e2e=5.0, tokens=100))
    after = prometheus.parse_page(PAGE.format(ttft=4.0, count=30, e2e=25.0, tokens=500))
    replica = after.replicas[0]
    assert replica.gauges["running"] == 3.0
    assert replica.counters["generation_tokens"] == 500
    assert replica.histograms["ttft_s"].buckets == {}
    assert replica.histograms["e2e_s"].buckets == {1.0: 30.0, float("inf"): 30.0}
    assert "itl_s" not in replica.histograms
    assert after.notes == ["a histogram without buckets: its sum and count are read"]
    counted = prometheus.deltas(before, after)
    assert prometheus.means(counted) == {"ttft_s": 0.15, "e2e_s": 1.0}
    table, _ = prometheus.server_table([(0.0, PAGE.format(ttft=1.0, count=10, e2e=5.0, tokens=100))])
    assert make_run(RunMeta(kind="measured"), None, table).server["running"].to_list() == [3]


def test_28_the_drain_is_in_the_metrics() -> None:
    """inference-perf#187: the metrics were read up to the configured end, so what was still running was not in them."""
    with Served(lambda served, seen: reply(seen, 0.2, 0.2), pages=True) as served:
        run = bench(served.url, closed(4, 4, output=5), duration_s=0.5, store=False, scrape_interval_s=0.1)
    assert run.requests["sent_s"].max() < 0.5 < 1.0 < run.requests["end_s"].min()
    assert (run.summary().completed, run.summary().output_tokens) == (4, 20)
    assert run.meta.counters["generation_tokens"] == 20
    assert run.meta.counters["requests_finished"] == 4
    samples = run.server.sort("time_s")
    assert samples["time_s"][-1] >= run.requests["end_s"].max()
    assert (samples["running"].max(), samples["running"][-1]) == (4, 0)


# --- 29 to 34: what is told -----------------------------------------------------------------------------------------


def told(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the program."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


LOAD = ("--concurrency", "2", "--requests", "18", "--prompt-tokens", "16", "--output-tokens", "3", "--no-store")


def failing(every: int) -> Served:
    """A server of which so many-th requests fail."""
    error = plain(500, {"error": {"message": "boom", "code": 500}})
    return Served(lambda served, seen: error if len(served.asked) % every == 0 else reply(seen, 0.05))


@pytest.fixture(scope="module")
def third_fails() -> tuple[int, str, str]:
    """What the program says where every third request is answered with 500."""
    with failing(3) as served:
        return told("bench", served.url, *LOAD)


def test_29_exit_status_amid_http_500(third_fails: tuple[int, str, str]) -> None:
    """TensorRT-LLM PR#17427: the benchmark exited with 0 though requests had failed with HTTP 500."""
    status, _, err = third_fails
    assert status == 1, err
    assert "Traceback" not in err
    with failing(3) as served:
        status, out, err = told("bench", served.url, *LOAD, "--tolerate-failures", "0.5", "--json")
    (run,) = json.loads(out)["runs"]
    # tolerated, they fail nothing; a busy machine may still make a run unfit
    assert status == int(bool(run["unfit"] or run["partial"]))
    assert run["summary"]["failed"] == 6
    assert "6 of 18 requests failed (6 http 500)" in err


def test_30_failures_are_printed(third_fails: tuple[int, str, str], tmp_path: Path) -> None:
    """vllm PR#26478: failed requests were not in the printed result."""
    _, out, _ = third_fails
    assert "6 of 18 requests failed" in out
    assert "6 http 500" in out
    # none failed: that is printed too, as a 0 in a column of that name
    good = scripted(tmp_path, [tokens(2)], 4).run
    printed = io.StringIO()
    measured.report([good], closed(1, 4), im.Slo(), Console(file=printed, width=200, color_system=None))
    lines = printed.getvalue().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.rstrip().endswith("failed")]
    assert any(line.split()[-1:] == ["0"] for line in lines[at + 1 :])


def test_31_nothing_completed() -> None:
    """llmperf#55: where no request completed, the figures were divided by zero."""
    with failing(1) as served, np.errstate(all="raise"):
        status, out, err = told("bench", served.url, *LOAD, "--json")
    assert status == 1
    assert "Traceback" not in err
    (run,) = json.loads(out)["runs"]
    s = run["summary"]
    assert (s["requests"], s["completed"], s["failed"], s["output_tokens"]) == (18, 0, 18, 0)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "normalized_latency_ms", "per_request_tok_per_s"):
        assert s[name]["n"] == 0
        assert {v for part, v in s[name].items() if part != "n"} == {None}, name
    assert (s["request_per_s"], s["prefix_hit_rate"]) == (0.0, None)
    assert "18 of 18 requests failed (18 http 500)" in err


def test_31_nothing_completed_is_printed(tmp_path: Path) -> None:
    """llmperf#55: the printed result has gaps where nothing is known."""
    run = scripted(tmp_path, [plain(503, b"")], 4).run
    printed = io.StringIO()
    measured.report([run], closed(1, 4), im.Slo(ttft_s=1.0), Console(file=printed, width=200, color_system=None))
    assert "4 of 4 requests failed" in printed.getvalue()
    assert "nan" not in printed.getvalue().lower()
    assert run.summary().goodput(ttft_s=1.0).attainment == 0.0


def test_32_a_server_that_queues() -> None:
    """tt-inference-server#704: the configured concurrency was reported, though the server ran fewer at once."""
    with gated(2, tells=True) as served:
        run = bench(served.url, closed(8, 24, output=1), store=False, scrape_interval_s=0.1)
    s = run.summary()
    assert (s.concurrency, s.peak_in_flight) == (8, 8)
    assert run.server["running"].max() == 2
    assert (s.running, s.waiting) == (pytest.approx(2.0, abs=0.3), pytest.approx(5.0, abs=0.8))
    # what the client held and what the server held are one, also where the client takes its time to start
    assert s.server_in_flight == pytest.approx(s.mean_in_flight, rel=0.08)
    assert not any("disagree" in text for text in run.meta.unfit)


def test_32_a_server_that_refuses(tmp_path: Path) -> None:
    """tt-inference-server#704: with 429 for all but two, two are in flight, whatever is configured."""
    running = [0]

    async def answer(served: Served, seen: Any) -> Any:
        if running[0] == 2:
            return plain(429, {"error": {"message": "busy"}}, retry_after="0.1")
        running[0] += 1
        await asyncio.sleep(0.2)
        running[0] -= 1
        return reply(seen)

    with Served(answer) as served:
        made = driven(tmp_path, served.port, 60, concurrency=8, plan={"output_tokens": [1] * 60})
    s = made.summary
    assert s.concurrency == 8
    assert s.mean_in_flight < 4
    assert s.littles_law_concurrency == pytest.approx(s.mean_in_flight, rel=0.5)
    assert s.littles_law_concurrency < 5
    assert s.failed > 0
    assert made.says(f"{s.failed} of 60 requests failed ({s.failed} http 429)")


def test_33_every_request_is_listed(truth: Truth) -> None:
    """(M) guidellm: 2,000 requests were processed, 1,981 listed, with 0 errors."""
    truth.configure(ttft=0.005, itl=0)
    try:
        run = bench(truth.url, closed(64, 2000, output=1), workers=2, store=False)
    finally:
        truth.configure(ttft=0.05, itl=0.02)
    s = run.summary()
    assert run.requests.height == 2000
    assert (s.requests, s.completed, s.failed) == (2000, 2000, 0)
    assert run.meta.counters["requests_finished"] == 2000
    assert run.meta.counters["generation_tokens"] == s.output_tokens == 2000
    assert run.token_times is not None
    assert run.token_times.times_s.size == 2000


@pytest.mark.parametrize(
    "script",
    [
        stream(text(" the", "length"), usage(7, 1), DONE),
        stream(text(" the"), text("", "length"), usage(7, 1), DONE),
        [b"".join(step for step in stream(text(" the", "stop"), usage(7, 1), DONE) if isinstance(step, bytes))],
        stream(text(" the", "length"), DONE),
    ],
    ids=["with-its-end", "end-apart", "in-one-piece", "no-usage"],
)
def test_34_a_reply_of_one_token(tmp_path: Path, script: Any) -> None:
    """(M) inference-perf: replies of one token had no TTFT."""
    made = scripted(tmp_path, [[0.15, *script]], 3, plan={"output_tokens": [1] * 3})
    s = made.summary
    assert (s.completed, s.ttft_s.n, s.tpot_s.n, s.itl_s.n, s.output_tokens) == (3, 3, 0, 0, 3)
    assert s.ttft_s.mean == pytest.approx(0.15, abs=NEAR)
    assert s.goodput(ttft_s=1.0, tpot_s=0.001, itl_s=0.001).attainment == 1.0
