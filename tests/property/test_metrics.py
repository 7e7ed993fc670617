"""Invariants of metrics, importers and store on random runs."""

from __future__ import annotations

import heapq
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.records.importers import load
from inferometer.records.metrics import PERCENTILES, STAT_NAMES, PerRequest, Stat
from inferometer.records.run import Run, RunMeta, TokenTimes, content_id, make_run
from inferometer.store import Store

seconds = st.floats(0, 100, allow_subnormal=False)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run of up to 30 requests; some fail, some have no output; each token event is known."""
    rows = draw(
        st.lists(
            st.tuples(seconds, seconds, st.lists(seconds, max_size=5), seconds, st.integers(0, 3), st.booleans()),
            max_size=30,
        )
    )
    columns: dict[str, list[object]] = {
        name: [] for name in ("scheduled_s", "sent_s", "first_token_s", "last_token_s", "end_s")
    }
    columns |= {"prompt_tokens": [], "output_tokens": [], "error": []}
    events: list[np.ndarray] = []
    for sent, ttft, gaps, tail, prompt, fails in rows:
        times = sent + ttft + np.concatenate(([0.0], np.cumsum(gaps))) if gaps else np.empty(0)
        values = (
            sent - 1,
            sent,
            times[0] if gaps else None,
            times[-1] if gaps else None,
            (times[-1] if gaps else sent) + tail,
            prompt,
            times.size,
            "failed" if fails else None,
        )
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
        events.append(times)
    offsets = np.concatenate(([0], np.cumsum([e.size for e in events]))).astype(np.int64)
    tokens = TokenTimes(offsets, np.concatenate(events) if events else np.empty(0))
    rate = draw(st.none() | st.just(2.0))
    meta = RunMeta(kind="simulated", concurrency=draw(st.none() | st.integers(1, 4)), request_rate_per_s=rate)
    return make_run(meta, columns, token_times=tokens)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_equal_numpys_on_the_raw_values(values: list[float]) -> None:
    stat = Stat.of(values)
    assert stat.n == len(values)
    for name, q in PERCENTILES.items():
        assert getattr(stat, name) == np.percentile(values, q)
    assert stat.mean == pytest.approx(np.mean(values))
    assert stat.std == pytest.approx(np.std(values), abs=1e-9)


@given(runs())
def test_every_metric_equals_a_plain_reckoning(run: Run) -> None:
    s = run.summary()
    done = [row for row in run.requests.to_dicts() if row["error"] is None]
    answered = [row for row in done if row["first_token_s"] is not None]
    reckoned = {
        "ttft_s": [r["first_token_s"] - r["sent_s"] for r in answered],
        "ttft_from_scheduled_s": [r["first_token_s"] - r["scheduled_s"] for r in answered],
        "tpot_s": [(r["last_token_s"] - r["first_token_s"]) / (r["output_tokens"] - 1) for r in answered],
        "e2e_s": [r["end_s"] - r["sent_s"] for r in done],
        "normalized_latency_s": [(r["end_s"] - r["sent_s"]) / r["output_tokens"] for r in answered],
    }
    for name, values in reckoned.items():
        stat: Stat = getattr(s, name)
        assert stat.n == len(values)
        if values:
            assert stat.mean == pytest.approx(np.mean(values))
            assert stat.p99 == pytest.approx(np.percentile(values, 99))
    assert s.itl_s.n == sum(r["output_tokens"] - 1 for r in answered)


@given(runs())
def test_requests_and_tokens_are_conserved(run: Run) -> None:
    s = run.summary()
    assert s.requests == run.requests.height == (s.completed or 0) + (s.failed or 0)
    done = run.requests.filter(run.requests["error"].is_null())
    if s.completed:
        assert (s.prompt_tokens, s.output_tokens) == (done["prompt_tokens"].sum(), done["output_tokens"].sum())
    if s.duration_s and s.output_tok_per_s is not None and s.total_tok_per_s is not None:
        assert s.output_tok_per_s * s.duration_s == pytest.approx(s.output_tokens)
        assert s.total_tok_per_s >= s.output_tok_per_s
        assert s.mean_in_flight <= s.peak_in_flight + 1e-9  # type: ignore[operator]


@given(runs())
def test_percentiles_rise(run: Run) -> None:
    for name in STAT_NAMES:
        stat: Stat = getattr(run.summary(), name)
        if stat.n:
            assert stat.p50 <= stat.p90 <= stat.p95 <= stat.p99  # type: ignore[operator]


LIMITS = st.floats(1e-3, 200)


@given(runs(), LIMITS, LIMITS, LIMITS, LIMITS, st.floats(1, 10))
def test_goodput_grows_with_every_limit(
    run: Run, ttft: float, tpot: float, itl: float, e2e: float, looser: float
) -> None:
    s = run.summary()
    limits = {"ttft_s": ttft, "tpot_s": tpot, "itl_s": itl, "e2e_s": e2e}
    joint = s.goodput(**limits)
    if joint.attainment is None:
        assert s.requests == 0
        return
    for name in limits:
        wider = s.goodput(**{**limits, name: limits[name] * looser})
        fewer = s.goodput(**{k: v for k, v in limits.items() if k != name})
        assert joint.attainment <= wider.attainment <= fewer.attainment <= (s.completed or 0) / joint.n  # type: ignore[operator]
        if joint.output_tok_per_s is not None and wider.output_tok_per_s is not None:
            assert joint.output_tok_per_s <= wider.output_tok_per_s <= s.output_tok_per_s + 1e-9  # type: ignore[operator]


@given(st.integers(1, 12), st.lists(st.floats(0.01, 10), min_size=1, max_size=120))
def test_littles_law_is_1_in_any_closed_loop(slots: int, e2e_s: list[float]) -> None:
    free = [0.0] * slots
    sent = []
    for duration in e2e_s:
        sent.append(heapq.heappop(free))
        heapq.heappush(free, sent[-1] + duration)
    columns = {"sent_s": sent, "end_s": [a + b for a, b in zip(sent, e2e_s, strict=True)]}
    s = make_run(RunMeta(kind="simulated", concurrency=slots), columns).summary()
    assert s.peak_in_flight == min(slots, len(e2e_s))
    if len(e2e_s) < 2 * slots:
        assert s.littles_law is None
    else:
        assert s.littles_law == pytest.approx(1.0, rel=1e-6)


@given(runs(), seconds, st.floats(0.1, 100))
def test_mean_in_flight_is_the_sum_of_what_lies_in_the_window(run: Run, start: float, width: float) -> None:
    rows = run.requests.select("sent_s", "end_s").rows()
    inside = [max(min(end, start + width) - max(sent, start), 0) for sent, end in rows]
    got = PerRequest(run).mean_in_flight(start, start + width)
    assert got == pytest.approx(sum(inside) / width, abs=1e-9)


@given(runs())
def test_a_run_makes_the_round_trip_through_the_store(run: Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        again = store.load(store.save(run))
    assert again == run
    assert content_id(again) == content_id(run)
    assert again.summary() == run.summary()


@given(runs().filter(lambda run: run.requests.height > 0))
def test_a_run_makes_the_round_trip_through_a_vllm_result(run: Run) -> None:
    """Written the way the tool writes, every latency comes back."""
    run = a_second_later(run)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        path.write_text(json.dumps(as_vllm_result(run)))
        (again,) = load(path)
    a, b = run.summary(), again.summary()
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        mine, theirs = getattr(a, name), getattr(b, name)
        assert mine.n == theirs.n
        assert mine.mean == pytest.approx(theirs.mean, abs=1e-9)
        assert mine.p99 == pytest.approx(theirs.p99, abs=1e-9)
    assert (a.requests, a.completed, a.failed) == (b.requests, b.completed, b.failed)


def a_second_later(run: Run) -> Run:
    """All but the sending: the format has 0 for a first token that never came, so it cannot hold a TTFT of 0."""
    assert run.token_times is not None
    names = ["first_token_s", "last_token_s", "end_s"]
    requests = run.requests.with_columns(run.requests[name] + 1.0 for name in names)
    return make_run(run.meta, requests, None, TokenTimes(run.token_times.offsets, run.token_times.times_s + 1.0))


def as_vllm_result(run: Run) -> dict[str, object]:
    assert run.token_times is not None
    s, table = run.summary(), run.requests
    borders = run.token_times.offsets[1:-1]
    tokens = np.split(run.token_times.times_s, borders)
    return {
        "num_prompts": table.height,
        "request_rate": "inf",
        "max_concurrency": 4,
        "duration": 10.0,
        "completed": s.completed,
        "total_input_tokens": s.prompt_tokens,
        "total_output_tokens": s.output_tokens,
        "request_throughput": 1.0,
        "output_throughput": 1.0,
        "total_token_throughput": 1.0,
        "input_lens": table["prompt_tokens"].to_list(),
        "output_lens": table["output_tokens"].to_list(),
        "ttfts": (table["first_token_s"] - table["sent_s"]).fill_null(0.0).to_list(),
        "itls": [np.diff(times).tolist() for times in tokens],
        "start_times": (table["sent_s"] + 500.0).to_list(),
        "latencies": (table["end_s"] - table["sent_s"]).to_list(),
        "errors": table["error"].fill_null("").to_list(),
    }
