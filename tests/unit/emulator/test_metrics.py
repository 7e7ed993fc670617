from __future__ import annotations

import re

import pytest

from inferometer.emulator.metrics import LATENCY, LATENESS, RENAMED, Histogram, Meter, Page, Replica
from inferometer.emulator.scheduler import LiveScheduler
from inferometer.records.prometheus import parse_page
from inferometer.sim.rules import Rules
from live_engine import Bench, tiny_costs

SHARED_PAGE = "data/cpu_engine/metrics_full_idle.txt"


def replica(meter: Meter | None = None, scheduler: LiveScheduler | None = None) -> Replica:
    rules = Rules(max_num_seqs=2, max_num_batched_tokens=16, blocks=40)
    config = {"block_size": "16", "num_gpu_blocks": "41"}
    return Replica(scheduler or LiveScheduler(rules, tiny_costs(2, 16)), meter or Meter(1.0, 2048, True), config)


def page(release: tuple[int, int] = (0, 32), replicas: int = 1) -> str:
    return Page("q3s", release, [replica() for _ in range(replicas)]).text().decode()


def buckets(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, bound in re.findall(r'^(vllm:\w+)_bucket\{[^}]*le="([^"]+)"', text, re.M):
        found.setdefault(name, []).append(bound)
    return found


def test_buckets_and_labels_are_those_of_a_real_page():
    from shared import shared

    theirs, ours = shared(SHARED_PAGE).read_text(), page()
    real = buckets(theirs)
    assert {name: real[name] for name in buckets(ours) if name.startswith("vllm:")} == {
        name: bounds for name, bounds in buckets(ours).items() if name.startswith("vllm:")
    }
    missing = {name for name in real if name not in buckets(ours)}
    assert missing <= {"vllm:request_params_n", "vllm:request_max_num_generation_tokens"}
    types = dict(re.findall(r"^# TYPE (vllm:\S+) (\S+)", theirs, re.M))
    for name, kind in re.findall(r"^# TYPE (vllm:\S+) (\S+)", ours, re.M):
        assert types[name] == kind, name
    assert 'vllm:num_requests_running{engine="0",model_name="q3s"} 0.0' in ours


def test_names_of_older_releases():
    for new, old, gone in RENAMED:
        assert f"# TYPE {old}" in page((0, 8))
        assert f"# TYPE {new}" in page((0, 11))
        assert f"# TYPE {old}" not in page(gone)
    assert "vllm:kv_cache_usage_perc" not in page((0, 8))
    old = page((0, 8))
    assert "vllm:time_per_output_token_seconds_sum" in old
    assert "vllm:gpu_prefix_cache_queries_total" in old


def test_observations_land_where_one_by_one_would():
    together, single = Histogram(LATENCY), Histogram(LATENCY)
    values = sorted([0.3, 0.3, 0.29, 7680.0, 9000.0, 12.0, 0.0])
    together.observe_rising(values)
    for value in values:
        single.observe(value)
    assert together.counts == single.counts
    assert together.total == pytest.approx(single.total)
    assert together.counts[0] == 4, "a bound belongs to its bucket"


def test_the_page_reads_back_as_it_was_counted():
    bench = Bench(Rules(max_num_seqs=4, max_num_batched_tokens=64, blocks=40), tiny_costs(4, 64))
    for key in range(10):
        bench.at(key << 34, key, 20 + key, 5 + key)
    bench.abort_at((8 << 34) + 1, 8)
    bench.clock.run()
    text = Page("q3s", (0, 32), [Replica(bench.scheduler, bench.meter, {"block_size": "16"})]).text().decode()
    read = parse_page(text)
    told = read.replicas[0]
    assert read.engine == "vllm"
    assert told.counters["generation_tokens"] == bench.meter.generation_tokens
    assert told.counters["prompt_tokens"] == bench.meter.prompt_tokens
    assert told.counters["requests_finished.length"] == 9
    assert told.counters["requests_finished.abort"] == 1
    assert told.histograms["itl_s"].count == bench.meter.itl.count
    assert told.histograms["e2e_s"].sum == pytest.approx(bench.meter.e2e.total)
    assert told.histograms["ttft_s"].count == 9


def test_a_scale_stretches_every_time():
    def times(scale: float) -> tuple[float, float]:
        bench = Bench(Rules(max_num_seqs=4, max_num_batched_tokens=64, blocks=40), tiny_costs(4, 64))
        bench.engine.meter = Meter(scale, 2048, False)
        bench.at(0, 0, 30, 6)
        bench.clock.run()
        return bench.engine.meter.e2e.total, bench.engine.meter.itl.total

    assert times(2.0) == pytest.approx([2 * value for value in times(1.0)])


def test_replicas_have_their_own_rows():
    text = page(replicas=2)
    assert {"0", "1"} == set(re.findall(r'vllm:num_requests_running\{engine="(\d)"', text))
    assert len(re.findall(r"^vllm:cache_config_info\{", text, re.M)) == 2


def test_lateness_is_counted_from_the_due_time():
    meter = Meter(1.0, 2048, False)
    meter.late([10.0, 10.0015, 10.02], due_s=10.0)
    assert (meter.lateness.count, meter.lateness.total) == (3, pytest.approx(0.0215))
    meter.late([9.9], due_s=10.0)
    assert meter.lateness.total == pytest.approx(0.0215)
    text = Page("m", (0, 32), [replica(meter)]).text().decode()
    assert f'{LATENESS}_bucket{{engine="0",le="0.002",model_name="m"}} 3.0' in text
