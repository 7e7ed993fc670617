"""Every finding of an audit: a genuine or simulated run changed so that it is found, and one where it is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl
import pytest

import inferometer as im
from inferometer.errors import InputError
from inferometer.records.metrics import percentile_bounds
from inferometer.records.run import Run, RunMeta, TokenTimes, make_run
from inferometer.scoring.audit import KINDS, SEVERITIES, Finding, audit
from shared import shared

CPU = {"id": "cpu", "memory_bytes": 24 * 2**30, "bandwidth_bytes_per_s": 35.9e9, "flops_per_s": {"bf16": 485e9}}
"""One thread of the machine that the CPU runs were measured on, by its best measured rates (``ceilings.json``)."""


# ---------------------------------------------------------------- runs to change


@cache
def genuine(name: str) -> Run:
    """A point measured on a real engine: 256 tokens in, 128 out, closed loop."""
    return im.load(shared(f"data/cpu_engine/{name}.json"))[0]


def c8() -> Run:
    return genuine("main_clean/c8")


def c32() -> Run:
    return genuine("main_rerun/c32b")


@cache
def cpu() -> im.Deployment:
    model = im.model(str(shared("data/cpu_engine/model/config.json")))
    return im.Deployment(model=model, chip=im.chip(CPU))


@cache
def a100(**flags: Any) -> im.Deployment:
    return im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"), flags=flags)


@cache
def closed(users: int = 8, requests: int = 400, **flags: Any) -> Run:
    """A simulated closed loop of random lengths, its token times kept."""
    lengths = {"lognormal": {"mean": 200, "sigma": 0.5}}
    load = im.Workload.closed_loop(
        concurrency=users, requests=requests, prompt_tokens=lengths, output_tokens={"uniform": {"low": 40, "high": 80}}
    )
    return im.simulate(a100(**flags), load, seed=3)


@cache
def opened(rate: float, requests: int = 400) -> Run:
    load = im.Workload.open_loop(rate_per_s=rate, requests=requests, prompt_tokens=512, output_tokens=128)
    return im.simulate(a100(max_num_seqs=32), load, seed=3)


def changed(run: Run, columns: dict[str, Any] | None = None, samples: Any = None, **meta: Any) -> Run:
    """The run with these columns, samples and fields instead; without token times where times are changed."""
    frame = run.requests.with_columns(*(pl.Series(name, list(v)) for name, v in (columns or {}).items()))
    times = None if {"first_token_s", "last_token_s"} & set(columns or {}) else run.token_times
    return make_run(
        msgspec.structs.replace(run.meta, id="", **meta), frame, run.server if samples is None else samples, times
    )


def column(run: Run, name: str) -> np.ndarray[Any, Any]:
    return run.requests[name].cast(pl.Float64).to_numpy().copy()


def sooner(run: Run, ttft_s: float) -> Run:
    return changed(run, {"first_token_s": column(run, "sent_s") + ttft_s})


def decoding(run: Run, tpot_s: Any) -> Run:
    """Its first tokens as they were, and so long for each of the others."""
    last = column(run, "first_token_s") + tpot_s * (column(run, "output_tokens") - 1)
    return changed(run, {"last_token_s": last, "end_s": last})


def slowing(run: Run) -> Run:
    order = np.argsort(np.argsort(column(run, "sent_s"), kind="stable"))
    return decoding(run, 0.03 * (1 + 0.5 * order / order.size))


def sampled(run: Run, **gauges: float) -> dict[str, Any]:
    times = np.linspace(0.0, float(run.requests["end_s"].max()), 61)
    values = {"running": 8.0, "waiting": 0.0, "kv_usage": 0.3} | gauges
    return {"time_s": times, **{name: np.full(times.size, value) for name, value in values.items()}}


def failing(run: Run, errors: list[str]) -> Run:
    return changed(run, {"error": [*errors, *[None] * (run.requests.height - len(errors))]})


def unfinished(run: Run, count: int) -> Run:
    ends = {name: column(run, name) for name in ("last_token_s", "end_s")}
    for values in ends.values():
        values[:count] = np.nan
    return changed(run, ends)


def filled(run: Run, name: str, value: Any) -> Run:
    return changed(run, {name: [value] * run.requests.height})


def stretched(run: Run, by_s: float) -> Run:
    """Its last request ends so much later."""
    end, last = column(run, "end_s"), column(run, "last_token_s")
    at = int(np.argmax(end))
    end[at] += by_s
    last[at] += by_s
    return changed(run, {"end_s": end, "last_token_s": last}, duration_s=None)


def first(run: Run, count: int) -> Run:
    return make_run(msgspec.structs.replace(run.meta, id=""), run.requests.sort("sent_s").head(count))


def in_chunks(run: Run, size: int) -> Run:
    """Only every ``size``-th token event of each request is seen."""
    assert run.token_times is not None
    parts = np.split(run.token_times.times_s, run.token_times.offsets[1:-1])
    kept = [part[::size] for part in parts]
    offsets = np.concatenate(([0], np.cumsum([part.size for part in kept])))
    times = TokenTimes(offsets, np.concatenate(kept))
    return Run(
        meta=msgspec.structs.replace(run.meta, id=""), requests=run.requests, server=run.server, token_times=times
    )


def closed_by_name(run: Run) -> Run:
    return changed(run, concurrency=8, request_rate_per_s=None)


def two(**meta: Any) -> Callable[[], list[Run]]:
    """Two points of a sweep whose fields are the first and the second of each pair."""

    def runs() -> list[Run]:
        pair = (genuine("main_clean/c4"), c8())
        return [changed(run, **{name: values[i] for name, values in meta.items()}) for i, run in enumerate(pair)]

    return runs


WARM = {"prefix_cache_queries": 10_000.0, "prefix_cache_hits": 5_800.0}
COLD = {"prefix_cache_queries": 10_000.0, "prefix_cache_hits": 20.0}
TWICE = {"prompt_tokens": 2.0 * 40 * 256, "generation_tokens": 40.0 * 128}
WARMED_UP = {"prompt_tokens": 41.0 * 256, "generation_tokens": 41.0 * 128}
FLAGS = {"max_num_seqs": 64, "enable_prefix_caching": False}


class Case(NamedTuple):
    """What is found in one and not in the other; ``dep``: what both are held against."""

    code: str
    dirty: Callable[[], Run | list[Run]]
    clean: Callable[[], Run | list[Run]]
    dep: Callable[[], im.Deployment] | None = None


CASES = [
    Case("nothing_measured", lambda: failing(c8(), ["timeout: no answer"] * 40), c8),
    Case("ttft_below_prefill_floor", lambda: sooner(c8(), 0.05), c8, cpu),
    Case("tpot_below_weight_floor", lambda: decoding(c8(), 0.005), c8, cpu),
    Case("prefix_cache_hits", lambda: changed(c8(), counters=WARM), lambda: changed(c8(), counters=COLD)),
    Case(
        "prefix_cache_hits",
        lambda: changed(c8(), counters={"prompt_tokens": 10_000.0, "cached_prompt_tokens": 500.0}),
        lambda: changed(c8(), counters=WARM, workload={"shared_prefix_len": 200}),
    ),
    Case(
        "prompts_shared_between_points",
        two(seed=(7, 7), counters=(COLD, WARM)),
        two(seed=(7, 8), counters=(COLD, COLD)),
    ),
    Case("prompts_shared_between_points", two(seed=(7, 7)), two(seed=(7, 8))),
    Case("prompts_shared_between_points", two(counters=(COLD, WARM)), two(counters=(WARM, WARM))),
    Case("prompts_shared_between_points", two(seed=(7, 7)), two(seed=(7, 7), counters=(COLD, COLD))),
    Case(
        "client_cpu_bound",
        lambda: changed(c8(), client={"cpu_share": 0.97}),
        lambda: changed(c8(), client={"cpu_share": 0.4}),
    ),
    Case(
        "client_late",
        lambda: changed(c8(), client={"lateness_s.p99": 0.5, "lateness_s.third_highest": 0.4}),
        lambda: changed(c8(), client={"lateness_s.p99": 0.05}),
    ),
    Case("client_late", lambda: changed(c8(), client={"loop_lag_s.p99": 0.5}), c8),
    Case(
        "client_late",
        lambda: changed(opened(4.0), {"scheduled_s": column(opened(4.0), "sent_s") - 0.3}),
        lambda: opened(4.0),
    ),
    Case(
        "client_server_disagree",
        lambda: changed(c8(), samples=sampled(c8(), running=3.0)),
        lambda: changed(c8(), samples=sampled(c8())),
    ),
    Case(
        "server_flags_differ",
        two(server=({"flags": FLAGS}, {"flags": {**FLAGS, "max_num_seqs": 128}})),
        two(server=({"flags": {**FLAGS, "port": 8000}}, {"flags": {**FLAGS, "port": 8001}})),
    ),
    Case(
        "server_flags_differ",
        two(
            server=(
                {"flags": FLAGS, "version": "0.26.0"},
                {"log": {"flags": FLAGS, "version": "0.32.0"}, "version": "0.32.0"},
            )
        ),
        two(
            server=({"flags": FLAGS, "kv_cache_tokens": 410_240}, {"log": {"flags": FLAGS, "kv_cache_tokens": 410_000}})
        ),
    ),
    Case("littles_law", lambda: changed(c8(), concurrency=16), c8),
    Case("loop_mismatch", lambda: changed(c8(), concurrency=None, request_rate_per_s=1.3), lambda: opened(4.0)),
    Case("loop_mismatch", lambda: closed_by_name(opened(4.0)), lambda: closed()),
    Case("loop_mismatch", lambda: changed(c8(), request_rate_per_s=20.0), c8),
    Case("overloaded", lambda: opened(60.0), lambda: opened(4.0)),
    Case("failed_requests", lambda: failing(c8(), ["http 503: busy"]), c8),
    Case("cut_requests", lambda: unfinished(c8(), 2), c8),
    Case(
        "cut_requests", lambda: failing(c8(), ["cut: the connection closed"]), lambda: failing(c8(), ["timeout: 30 s"])
    ),
    Case("partial_run", lambda: changed(c8(), partial="interrupted"), c8),
    Case(
        "short_outputs",
        lambda: filled(c8(), "asked_output_tokens", 256),
        lambda: filled(c8(), "asked_output_tokens", 128),
    ),
    Case(
        "short_outputs",
        lambda: changed(c8(), workload={"output_tokens": 256}),
        lambda: changed(c8(), workload={"output_tokens": 128}),
    ),
    Case("token_counts_disagree", lambda: changed(c8(), counters=TWICE), lambda: changed(c8(), counters=WARMED_UP)),
    Case(
        "tokens_counted_by_chunks",
        lambda: filled(c8(), "output_counted_by", "events"),
        lambda: filled(c8(), "output_counted_by", "usage"),
    ),
    Case("preemptions", lambda: filled(c8(), "preemptions", 1), lambda: filled(c8(), "preemptions", 0)),
    Case(
        "fallback_sampler",
        lambda: changed(c8(), server={"sampler": "torch"}),
        lambda: changed(c8(), server={"sampler": "flashinfer"}),
    ),
    Case("max_num_seqs_binds", lambda: closed(32, 128, max_num_seqs=8), lambda: closed(32, 128, max_num_seqs=64)),
    Case(
        "kv_pool_binds",
        lambda: changed(c8(), samples=sampled(c8(), kv_usage=0.995)),
        lambda: changed(c8(), samples=sampled(c8(), kv_usage=0.95)),
    ),
    Case(
        "kv_pool_binds",
        lambda: changed(c8(), samples=sampled(c8(), kv_usage=0.95, running=6.0, waiting=2.0)),
        lambda: changed(c8(), samples=sampled(c8(), kv_usage=0.5, running=6.0, waiting=2.0)),
    ),
    Case("server_not_steady", lambda: slowing(c8()), c8),
    Case("few_requests", c8, lambda: closed()),
    Case("few_per_user", lambda: first(c8(), 20), c8),
    Case("warmup_in_window", c8, lambda: closed()),
    Case("warmup_in_window", c8, lambda: changed(c8(), window_s=(6.0, None))),
    Case("ramp_down_in_window", lambda: stretched(c8(), 4.0), c8),
    Case("lockstep", c8, lambda: closed()),
    Case("lockstep", c8, lambda: genuine("main_clean/c1")),
    Case("decode_stalls", c32, c8),
    Case("chunk_gaps", lambda: in_chunks(c8(), 2), c8),
    Case(
        "hidden_reasoning",
        lambda: changed(filled(c8(), "reasoning_tokens", 5), {"first_content_s": column(c8(), "first_token_s")}),
        lambda: changed(filled(c8(), "reasoning_tokens", 5), {"first_content_s": column(c8(), "first_token_s") + 0.5}),
    ),
    Case("clock_unknown", lambda: changed(c8(), clock="own"), c8),
]


def codes(found: list[Finding]) -> set[str]:
    return {finding.code for finding in found}


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case.code}" for n, case in enumerate(CASES)])
def test_found_where_it_is_and_not_where_it_is_not(case: Case) -> None:
    dep = case.dep() if case.dep else None
    found = [finding for finding in audit(case.dirty(), dep) if finding.code == case.code]
    assert len(found) == 1
    assert found[0].evidence
    assert found[0].advice
    assert case.code not in codes(audit(case.clean(), dep))


def test_every_kind_of_finding_has_a_case() -> None:
    assert {case.code for case in CASES} == set(KINDS)


# ---------------------------------------------------------------- what a finding says


def one(code: str, found: list[Finding]) -> Finding:
    (finding,) = [finding for finding in found if finding.code == code]
    return finding


def test_the_worst_come_first_then_the_lowest_load() -> None:
    dirty = [changed(c32(), partial="interrupted"), changed(c8(), counters=WARM)]
    found = audit(dirty)
    severities = [SEVERITIES.index(finding.severity) for finding in found]
    assert severities == sorted(severities)
    assert found[0].code == "prefix_cache_hits"
    assert [finding.where for finding in found if finding.code == "few_requests"] == ["C=8", "C=32"]


def test_few_hits_are_a_warning_many_spoil() -> None:
    few = changed(c8(), counters={"prefix_cache_queries": 10_000.0, "prefix_cache_hits": 200.0})
    assert one("prefix_cache_hits", audit(few)).severity == "warning"
    assert one("prefix_cache_hits", audit(changed(c8(), counters=WARM))).severity == "spoils"


def test_equal_seeds_spoil_only_where_the_cache_was_hit() -> None:
    unknown = one("prompts_shared_between_points", audit(two(seed=(7, 7))()))
    assert unknown.severity == "warning"
    hit = one("prompts_shared_between_points", audit(two(seed=(7, 7), counters=(COLD, WARM))()))
    assert hit.severity == "spoils"
    assert hit.where == "C=4, 8"


def test_flags_are_compared_within_an_arm() -> None:
    arms = two(server=({"flags": FLAGS}, {"flags": {**FLAGS, "max_num_seqs": 128}}), arm=(None, "more"))()
    assert "server_flags_differ" not in codes(audit(arms))


def test_a_flag_that_one_server_was_not_given_differs() -> None:
    runs = two(server=({"flags": FLAGS}, {"flags": {"max_num_seqs": 64}}))()
    assert "enable_prefix_caching False at C=4, default at C=8" in one("server_flags_differ", audit(runs)).evidence


def test_a_short_count_is_no_finding_where_the_server_was_looked_at_too_briefly() -> None:
    half = {"prompt_tokens": 20.0 * 256}
    briefly = {"time_s": [2.0, 20.0], "running": [8, 8]}
    assert "token_counts_disagree" in codes(audit(changed(c8(), counters=half)))
    assert "token_counts_disagree" not in codes(audit(changed(c8(), counters=half, samples=briefly)))


def test_many_failures_spoil() -> None:
    assert one("failed_requests", audit(failing(c8(), ["http 503: busy"] * 1))).severity == "warning"
    spoilt = one("failed_requests", audit(failing(c8(), ["http 503: busy"] * 4 + ["timeout: no answer"])))
    assert spoilt.severity == "spoils"
    assert spoilt.evidence == "5 of 40 failed (4 http 503, 1 timeout)"


def test_preempted_requests_are_recomputed_or_swapped() -> None:
    dirty = filled(c8(), "preemptions", 1)
    v1 = changed(dirty, server={"engine": "vllm"})
    assert ", recomputed: nothing was seen in host memory" in one("preemptions", audit(v1)).evidence
    swapped = changed(dirty, samples=sampled(c8()) | {"swapped": [3] * 61})
    assert ", swapped: the server reported" in one("preemptions", audit(swapped)).evidence


def test_asked_for_sharing_lowers_the_floor() -> None:
    """200 of 256 tokens shared: 56 take at least 46 ms, all 256 at least 213."""
    shared_prefix = changed(sooner(c8(), 0.1), workload={"shared_prefix_len": 200})
    assert "ttft_below_prefill_floor" not in codes(audit(shared_prefix, cpu()))
    assert "ttft_below_prefill_floor" in codes(audit(sooner(c8(), 0.1), cpu()))


def test_a_stall_is_explained_by_the_steps_that_the_log_lists() -> None:
    steps = {"time_s": [1.0, 2.0, 3.0], "step_s": [1.9, 1.8, 0.09], "step_generation_tokens": [4, 5, 32]}
    logged = changed(c32(), samples={**steps, "step_context_tokens": [2000, 1800, 0]})
    assert "carry 1,900 prompt tokens" in one("decode_stalls", audit(logged)).evidence


def test_chunk_gaps_are_not_taken_for_stalls() -> None:
    stalled = one("decode_stalls", audit(in_chunks(c32(), 2)))
    assert "chunks that hold several tokens" in stalled.evidence


def test_a_limit_that_binds_before_the_knee_says_so() -> None:
    tok_per_s = {1: 50.0, 8: 60.0, 32: 240.0, 64: 245.0}
    runs = [
        make_run(
            RunMeta(
                kind="imported",
                concurrency=users,
                stated={"output_tok_per_s": rate, "kv_usage": 0.999 if users == 8 else 0.1},
            )
        )
        for users, rate in tok_per_s.items()
    ]
    assert "before the sweep's throughput knee at C=32" in one("kv_pool_binds", audit(runs)).evidence


# ---------------------------------------------------------------- runs that say little


def test_aggregates_are_enough_for_the_floors() -> None:
    """1,024 tokens at 13.89 GFLOP each take 45.6 ms on 312 TFLOP/s; reading 15.14 GB at 2,039 GB/s takes 7.4 ms."""
    stated = {"ttft_s.p50": 0.040, "tpot_s.p50": 0.006, "requests": 400.0}
    run = make_run(RunMeta(kind="imported", concurrency=1, stated=stated))
    assert {"ttft_below_prefill_floor", "tpot_below_weight_floor"} <= codes(audit(run, a100(), prompt_tokens=1024))
    assert codes(audit(run, a100())) == {"tpot_below_weight_floor"}, "without a length there is no prompt's floor"
    assert not audit(run)
    above = make_run(
        RunMeta(kind="imported", concurrency=1, stated={**stated, "ttft_s.p50": 0.046, "tpot_s.p50": 0.0076})
    )
    assert not audit(above, a100(), prompt_tokens=1024)


@pytest.mark.parametrize("kind", ["imported", "measured", "simulated"])
def test_an_empty_run_is_no_crash(kind: Any) -> None:
    assert codes(audit(make_run(RunMeta(kind=kind)), a100())) == {"nothing_measured"}


def test_a_model_of_few_figures_has_no_floors() -> None:
    model = im.Model(name="lab", weight_bytes=16 * 10**9, layers=36, kv_heads=8, head_dim=128)
    dep = im.Deployment(model=model, chip=im.chip("a100-sxm4-80gb"))
    run = make_run(RunMeta(kind="imported", concurrency=1, stated={"ttft_s.p50": 1e-6, "tpot_s.p50": 1e-6}))
    assert not codes(audit(run, dep, prompt_tokens=1024)) & {"ttft_below_prefill_floor", "tpot_below_weight_floor"}


def test_no_run_is_bad_input() -> None:
    with pytest.raises(InputError, match="at least one run"):
        audit([])


def test_bounds_of_a_percentile() -> None:
    """0.99^298 is just above 0.05, 0.99^299 just below it."""
    assert percentile_bounds(np.arange(298.0), "p99")[1] is None
    assert percentile_bounds(np.arange(299.0), "p99")[1] == 298.0
    assert percentile_bounds([], "p50") == (None, None)
    # of 5 draws all lie on one side of the median with 1/32 each: the extremes bound it with 97 %
    assert percentile_bounds([5.0, 1.0, 3.0, 2.0, 4.0, float("nan")], "p50") == (1.0, 5.0)
    assert percentile_bounds([1.0, 2.0, 3.0, 4.0], "p50") == (None, None)


def test_bounds_cover_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(5)
    draws = random.random((2000, 60))
    bounds = [percentile_bounds(row, "p50") for row in draws]
    below, above = (np.mean([b[i] <= 0.5 if i == 0 else b[i] >= 0.5 for b in bounds]) for i in (0, 1))
    assert 0.95 <= below < 0.985
    assert 0.95 <= above < 0.985
