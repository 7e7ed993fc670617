"""Genuine pages of vLLM 0.32 and llama.cpp's server, and made ones in the form of other engines and versions."""

from __future__ import annotations

import json
import re
import time

import pytest

from inferometer.errors import InputError
from inferometer.records.prometheus import (
    Histogram,
    Page,
    cache_config,
    deltas,
    gauges_now,
    gpu_totals,
    means,
    parse_page,
    server_table,
)
from inferometer.records.run import RunMeta, make_run
from inferometer.units import MIB
from shared import shared

FOLDER = "data/cpu_engine/"


def text_of(name: str) -> str:
    return shared(FOLDER + name).read_text()


def pages_of(name: str) -> list[tuple[float, str]]:
    pieces = re.split(r"(?m)^# ts ([\d.]+).*\n", text_of(name))
    return [(float(stamp), page) for stamp, page in zip(pieces[1::2], pieces[2::2], strict=True)]


def test_a_whole_page_of_vllm() -> None:
    page = parse_page(text_of("metrics_full_idle.txt"))
    assert (page.engine, page.models, list(page.replicas), page.notes) == ("vllm", ("q3s",), [0], [])
    replica = page.replicas[0]
    assert replica.gauges["running"] == replica.gauges["waiting"] == replica.gauges["kv_usage"] == 0
    assert replica.gauges["waiting_by_reason.capacity"] == 0
    assert replica.counters["prompt_tokens"] == replica.counters["prefix_cache_queries"] == 7
    assert replica.counters["generation_tokens"] == 6
    assert replica.counters["requests_finished"] == 1
    assert replica.counters["requests_finished.length"] == 1
    assert replica.counters["requests_finished.stop"] == 0
    assert replica.counters["preemptions"] == replica.counters["cached_prompt_tokens"] == 0
    assert replica.histograms["step_tokens"].sum == 13
    assert page.process_start_unix_s == 1.79595371738e9


def test_histograms_of_a_whole_page() -> None:
    histograms = parse_page(text_of("metrics_full_idle.txt")).replicas[0].histograms
    assert histograms["ttft_s"].mean == 0.051036834716796875
    assert histograms["itl_s"].count == 5
    assert histograms["itl_s"].sum == pytest.approx(0.10340593900002659)
    assert histograms["tpot_s"].mean == 0.02068118780000532
    assert histograms["e2e_s"].mean == 0.15293359756469727
    assert histograms["queue_s"].sum == 3.005500002473127e-05
    assert histograms["inference_s"].sum == pytest.approx(histograms["prefill_s"].sum + histograms["decode_s"].sum)
    assert histograms["ttft_s"].buckets[float("inf")] == 1
    assert histograms["ttft_s"].buckets[0.04] == 0
    assert histograms["ttft_s"].buckets[0.06] == 1


def test_every_metric_of_vllm_is_known_or_left_out_on_purpose() -> None:
    page = parse_page(text_of("metrics_full_idle.txt")).replicas[0]
    assert len(page.gauges) + len(page.counters) + len(page.histograms) == 41


@pytest.mark.parametrize(
    ("name", "warmups"),
    [("tiny_eager/tiny_c8", 0), ("main_clean/c8", 1), ("prefix/prefix_on_c8", 0), ("chunk256/chunk256_in512_c8", 1)],
)
def test_the_counters_agree_with_the_client_that_loaded_the_server(name: str, warmups: int) -> None:
    """Exactly, but for the client's own warm-up request, which has the lengths of the others."""
    result = json.loads(text_of(f"{name}.json"))
    before = parse_page(pages_of(f"{name}.metrics.prom")[0][1])
    counted = deltas(before, parse_page(text_of(f"{name}.metrics.final_full.prom")))
    assert counted["requests_finished"] == counted["e2e_s.count"] == result["completed"] + warmups
    assert counted["prompt_tokens"] == result["total_input_tokens"] + warmups * result["input_lens"][0]
    assert counted["generation_tokens"] == result["total_output_tokens"] + warmups * result["output_lens"][0]
    assert means(counted)["tpot_s"] * 1000 == pytest.approx(result["mean_tpot_ms"], rel=0.03)


def test_cache_config_is_typed() -> None:
    config = cache_config(parse_page(text_of("metrics_full_idle.txt")))
    assert config["num_gpu_blocks"] == 512
    assert config["block_size"] == 128
    assert config["kv_cache_size_tokens"] == 65536
    assert config["kv_cache_max_concurrency"] == 32.0
    assert config["gpu_memory_utilization"] == 0.92
    assert config["enable_prefix_caching"] is True
    assert config["cache_dtype"] == "auto"
    assert config["kv_cache_dtype_skip_layers"] == []
    assert {"num_cpu_blocks", "engine", "_block_size_resolved"}.isdisjoint(config)


def test_a_page_without_cache_config_has_none() -> None:
    assert cache_config(Page()) == {}


def test_llama_cpp() -> None:
    page = parse_page(text_of("llama_server_metrics.txt"))
    replica = page.replicas[0]
    assert page.engine == "llamacpp"
    assert replica.counters["prompt_tokens"] == 1804, "computed and cached"
    assert replica.counters["computed_prompt_tokens"] == 1803
    assert replica.counters["generation_tokens"] == 689
    assert replica.counters["steps"] == 362
    assert replica.gauges["busy_slots_per_step"] == 1.94751
    assert replica.gauges["running"] == 0
    assert "kv_usage" not in replica.gauges


VLLM_0_8 = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:cpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.75
vllm:gpu_prefix_cache_queries_total{model_name="m"} 40.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 30.0
vllm:num_preemptions_total{model_name="m"} 4.0
vllm:prompt_tokens_total{model_name="m"} 100.0
vllm:generation_tokens_total{model_name="m"} 50.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 9.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 2.0
vllm:time_per_output_token_seconds_count{model_name="m"} 8.0
vllm:time_in_queue_requests_sum{model_name="m"} 0.5
vllm:time_in_queue_requests_count{model_name="m"} 2.0
"""


def test_old_names_of_vllm() -> None:
    replica = parse_page(VLLM_0_8).replicas[0]
    assert replica.gauges == {
        "running": 3,
        "swapped": 1,
        "waiting": 2,
        "kv_usage": 0.25,
        "cpu_kv_usage": 0.5,
        "prefix_cache_hit_rate": 0.75,
    }
    assert replica.counters["prefix_cache_queries"] == 40
    assert replica.counters["prefix_cache_hits"] == 30
    assert replica.counters["preemptions"] == 4
    assert replica.counters["spec_decode_accepted_tokens"] == 9
    assert replica.histograms["itl_s"].mean == 0.25, "the old name of the gaps between tokens"
    assert replica.histograms["queue_s"].sum == 0.5
    assert "tpot_s" not in replica.histograms


def test_old_and_new_name_at_once_are_counted_once() -> None:
    """vLLM 0.9 to 0.14 print both: the new one is read."""
    page = parse_page(
        "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n"
        "vllm:gpu_prefix_cache_hits_total 7\nvllm:prefix_cache_hits_total 6\n"
        "vllm:time_per_output_token_seconds_sum 3\nvllm:time_per_output_token_seconds_count 4\n"
        "vllm:inter_token_latency_seconds_sum 1\nvllm:inter_token_latency_seconds_count 2\n"
    )
    replica = page.replicas[0]
    assert replica.gauges == {"kv_usage": 0.5}
    assert replica.counters == {"prefix_cache_hits": 6}
    assert replica.histograms["itl_s"] == Histogram(1, 2, {})


def test_counters_without_total_suffix() -> None:
    assert parse_page("vllm:num_preemptions 5\nvllm:prompt_tokens 6").replicas[0].counters == {
        "preemptions": 5,
        "prompt_tokens": 6,
    }


def test_the_colon_may_have_become_an_underscore() -> None:
    page = parse_page('ray_vllm_num_requests_running{engine="0"} 2')
    assert (page.engine, page.replicas[0].gauges) == ("vllm", {"running": 2})


REPLICAS = """\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:generation_tokens_total{engine="0",model_name="m"} 10.0
vllm:generation_tokens_total{engine="1",model_name="m"} 20.0
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 1.0
"""


def test_replicas_are_kept_apart() -> None:
    page = parse_page(REPLICAS)
    assert {n: r.gauges["running"] for n, r in page.replicas.items()} == {0: 3, 1: 4}
    assert page.replicas[0].counters["admission_rejections"] == 1, "a series without replica belongs to the first"
    assert "admission_rejections" not in page.replicas[1].counters


def test_a_series_without_replica_makes_no_replica_of_its_own() -> None:
    page = parse_page(REPLICAS.replace('engine="0"', 'engine="6"').replace('engine="1"', 'engine="7"'))
    assert list(page.replicas) == [6, 7]
    assert page.replicas[6].counters["admission_rejections"] == 1


MODELS = """\
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="0",model_name="b"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.5
"""


def test_several_models_are_summed_with_a_note_or_picked() -> None:
    page = parse_page(MODELS)
    assert page.models == ("a", "b")
    assert page.replicas[0].gauges == {"running": 7, "kv_usage": 0.5}
    assert page.notes == ["series of 2 models are summed: a, b"]
    picked = parse_page(MODELS, model="a")
    assert picked.replicas[0].gauges == {"running": 3, "kv_usage": 0.25}
    assert picked.notes == []


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"model: 'c' is not allowed; give one that the page has: a, b"):
        parse_page(MODELS, model="c")


SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 5.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:cache_hit_rate{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 430067.0
sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 80.0
sglang:prompt_tokens_total{model_name="m",is_streaming="false"} 20.0
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
sglang:cached_tokens_total{cache_source="device",model_name="m"} 40.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 2.0
sglang:num_retracted_requests_total{model_name="m"} 1.0
sglang:num_requests_total{model_name="m"} 12.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 6.0
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 1.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 12.0
sglang:time_to_first_token_seconds_count{model_name="m"} 12.0
"""


def test_sglang() -> None:
    page = parse_page(SGLANG)
    replica = page.replicas[0]
    assert page.engine == "sglang"
    assert replica.gauges["running"] == 5, "a tensor-parallel rank is a copy, not more requests"
    assert page.notes == ["several tensor- or pipeline-parallel ranks report: rank 0 is read"]
    assert replica.gauges["waiting"] == 2
    assert replica.gauges["kv_usage"] == 0.28
    assert replica.gauges["kv_cache_tokens"] == 430067
    assert replica.counters["prompt_tokens"] == 100
    assert replica.counters["generation_tokens"] == 7557572
    assert replica.counters["cached_prompt_tokens"] == 42
    assert replica.counters["preemptions"] == 1
    assert replica.histograms["ttft_s"] == Histogram(6, 12, {0.1: 1, float("inf"): 12})


def test_data_parallel_ranks_of_sglang_are_replicas() -> None:
    page = parse_page(
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 5\nsglang:num_running_reqs{dp_rank="1",tp_rank="1"} 6\n'
    )
    assert {n: r.gauges["running"] for n, r in page.replicas.items()} == {0: 5, 1: 6}


def test_the_total_of_sglang_is_not_added_to_its_parts_by_priority() -> None:
    page = parse_page('sglang:num_queue_reqs{priority=""} 5\nsglang:num_queue_reqs{priority="1"} 5\n')
    assert page.replicas[0].gauges == {"waiting": 5}


def test_tgi_counts_tokens_by_the_sums_of_its_histograms() -> None:
    page = parse_page(
        "tgi_queue_size 3\ntgi_batch_current_size 4\ntgi_request_count 9\ntgi_request_success 8\n"
        'tgi_request_failure{err="overloaded"} 1\ntgi_request_generated_tokens_sum 640\n'
        "tgi_request_generated_tokens_count 8\ntgi_request_input_length_sum 800\n"
        "tgi_request_duration_sum 4\ntgi_request_duration_count 8\n"
        "tgi_request_mean_time_per_token_duration_sum 0.16\ntgi_request_mean_time_per_token_duration_count 8\n"
    )
    replica = page.replicas[0]
    assert page.engine == "tgi"
    assert replica.gauges == {"waiting": 3, "running": 4}
    assert replica.counters["generation_tokens"] == 640
    assert replica.counters["prompt_tokens"] == 800
    assert replica.counters["requests_failed.overloaded"] == 1
    assert replica.histograms["e2e_s"].mean == 0.5
    assert replica.histograms["tpot_s"].mean == 0.02


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:", "pytrtllm:", ""])
def test_tensorrt_llm_with_and_without_prefix(prefix: str) -> None:
    page = parse_page(
        f'{prefix}time_to_first_token_seconds_sum{{engine_type="x",model_name="m"}} 3\n'
        f'{prefix}time_to_first_token_seconds_count{{engine_type="x",model_name="m"}} 6\n'
        f'{prefix}request_success_total{{finished_reason="stop",model_name="m"}} 6\n'
        f'{prefix}kv_cache_utilization{{model_name="m"}} 0.62\n'
    )
    replica = page.replicas[0]
    assert page.engine == "trtllm"
    assert replica.histograms["ttft_s"].mean == 0.5
    assert replica.counters["requests_finished.stop"] == 6
    assert replica.gauges["kv_usage"] == 0.62


def test_nan_and_infinity_are_absent_not_zero() -> None:
    page = parse_page("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running +Inf\nvllm:num_requests_waiting 1")
    assert page.replicas[0].gauges == {"waiting": 1}


def test_a_histogram_without_buckets_keeps_sum_and_count() -> None:
    """aiperf#911: such a series crashed a peer; skipped are only the buckets."""
    page = parse_page(
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        "vllm:time_to_first_token_seconds_sum 3\nvllm:time_to_first_token_seconds_count 6\n"
    )
    assert page.replicas[0].histograms["ttft_s"] == Histogram(3, 6, {})
    assert page.notes == ["a histogram without buckets: its sum and count are read"]


@pytest.mark.parametrize("bound", ["abc", "", "nan"])
def test_a_bucket_whose_bound_is_no_number_is_left_out_with_a_note(bound: str) -> None:
    name = "vllm:time_to_first_token_seconds"
    page = parse_page(f'{name}_bucket{{le="{bound}"}} 1\n{name}_bucket{{le="+Inf"}} 6\n{name}_sum 3\n{name}_count 6\n')
    assert page.replicas[0].histograms["ttft_s"] == Histogram(3, 6, {float("inf"): 6})
    assert page.notes == [f"histogram buckets left out, whose bound is no number: {bound!r}"]


def test_buckets_without_sum_have_no_mean() -> None:
    page = parse_page('vllm:time_to_first_token_seconds_bucket{le="1.0"} 3')
    assert page.replicas[0].histograms["ttft_s"].mean is None


@pytest.mark.parametrize("line", ["vllm:broken{a= 1", "vllm:num_requests_running{engine=", "<html>", "vllm:x{} one"])
def test_a_malformed_line_costs_that_line_only(line: str) -> None:
    page = parse_page(f"{VLLM_0_8}{line}\nvllm:corrupted_requests_total 2\n")
    assert page.replicas[0].gauges["running"] == 3
    assert page.replicas[0].counters["corrupted_requests"] == 2
    assert len(page.notes) == 2
    assert page.notes[0].startswith("1 malformed line(s) left out")


def test_a_page_cut_off_in_mid_line_is_read_up_to_there() -> None:
    text = text_of("metrics_full_idle.txt")
    cut = text.index("vllm:request_success_total{") + 20
    page = parse_page(text[:cut])
    assert page.replicas[0].counters["generation_tokens"] == 6
    assert "malformed" in page.notes[0]


@pytest.mark.parametrize("text", ["", "\n\n", "<html><body>404</body></html>", "process_cpu_seconds_total 1.5\n", "[]"])
def test_no_engine(text: str) -> None:
    page = parse_page(text)
    assert (page.engine, page.replicas, page.gpus) == (None, {}, {})
    assert gauges_now(text) == {}


DCGM = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0"} 80
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",device="nvidia1"} 100
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",device="nvidia0"} 1000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-b",device="nvidia1"} 2000
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0"} 312.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b",device="nvidia1"} 300.0
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",device="nvidia0"} 61
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b",device="nvidia1"} 64
"""


def test_dcgm_percent_and_mebibytes() -> None:
    page = parse_page(DCGM)
    assert page.engine is None
    assert page.gpus["GPU-a"] == {
        "gpu_util": 0.8,
        "gpu_memory_used_bytes": 1000 * MIB,
        "gpu_power_w": 312.5,
        "gpu_temperature_c": 61,
    }


@pytest.mark.parametrize(
    "text",
    [
        'nvidia_smi_utilization_gpu_ratio{uuid="x"} 0.5\nnvidia_smi_memory_used_bytes{uuid="x"} 1048576\n'
        'nvidia_smi_power_draw_watts{uuid="x"} 100\nnvidia_smi_temperature_gpu{uuid="x"} 50\n',
        'nvidia_gpu_duty_cycle{minor_number="0",uuid="x"} 50\nnvidia_gpu_memory_used_bytes{minor_number="0"} 1048576\n'
        'nvidia_gpu_power_usage_milliwatts{minor_number="0"} 100000\n'
        'nvidia_gpu_temperature_celsius{minor_number="0"} 50\n',
    ],
    ids=["nvidia-smi", "nvml"],
)
def test_the_other_exporters_give_the_same(text: str) -> None:
    (gpu,) = parse_page(text).gpus.values()
    assert gpu == {"gpu_util": 0.5, "gpu_memory_used_bytes": MIB, "gpu_power_w": 100, "gpu_temperature_c": 50}


@pytest.mark.parametrize("label", ["Hostname", "UUID"])
def test_two_nodes_count_their_gpus_from_0(label: str) -> None:
    page = parse_page(
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",{label}="a"}} 300\nDCGM_FI_DEV_POWER_USAGE{{gpu="0",{label}="b"}} 200\n'
    )
    assert gpu_totals(page)["gpu_power_w"] == 500
    assert set(page.gpus) == ({"a/0", "b/0"} if label == "Hostname" else {"a", "b"})


def test_gpu_telemetry_stands_once_a_page() -> None:
    columns, _ = server_table([(0.0, REPLICAS + DCGM), (1.0, DCGM)])
    assert columns["replica"] == [0, 1, None]
    assert columns["running"] == [3, 4, None]
    assert columns["gpu_memory_used_bytes"] == [3000 * MIB, None, 3000 * MIB]
    assert columns["gpu_util"] == [0.9, None, 0.9]
    assert columns["gpu_power_w"] == [612.5, None, 612.5]
    assert columns["gpu_temperature_c"] == [64, None, 64]


def test_the_server_table_of_a_real_run() -> None:
    pages = pages_of("main_clean/c8.metrics.prom")
    columns, notes = server_table(pages)
    run = make_run(RunMeta(kind="measured"), server=columns)
    assert run.server.height == len(pages) == 41
    assert run.server["running"].max() == 8
    assert run.server["running"].dtype.is_integer()
    assert 0 < run.server["kv_usage"].max() < 0.05  # type: ignore[operator]  # 8 requests of 384 of 65,536 tokens
    tokens = run.server["generation_tokens"].to_list()
    assert tokens == sorted(tokens)
    assert run.server["ttft_s.count"].to_list()[-1] >= run.server["requests_finished"].to_list()[-1]
    assert notes == ["a histogram without buckets: its sum and count are read"]


def test_rows_lacking_a_metric_are_null() -> None:
    columns, _ = server_table([(0.0, "vllm:num_requests_running 1"), (1.0, "vllm:num_requests_waiting 2"), (2.0, "")])
    assert columns["time_s"] == [0.0, 1.0]
    assert columns["running"] == [1, None]
    assert columns["waiting"] == [None, 2]
    assert columns["kv_usage"] == [None, None]


def test_deltas_over_replicas_and_of_new_series() -> None:
    after = REPLICAS.replace("10.0", "15.0").replace("20.0", "40.0") + 'vllm:num_preemptions_total{engine="1"} 3\n'
    page = parse_page(after)
    assert deltas(parse_page(REPLICAS), page) == {"generation_tokens": 25, "preemptions": 3, **REJECTIONS}
    assert page.notes == []


REJECTIONS = {"admission_rejections": 0, "admission_rejections.max_num_queued_reqs": 0}


def test_a_counter_that_went_down_is_a_restart() -> None:
    """Also the counters that are already higher than before count from 0: it is one server."""
    before = parse_page("vllm:generation_tokens_total 100\nvllm:prompt_tokens_total 5")
    after = parse_page("vllm:generation_tokens_total 30\nvllm:prompt_tokens_total 7")
    assert deltas(before, after) == {"generation_tokens": 30, "prompt_tokens": 7}
    assert after.notes == ["replica 0 restarted in between: its counters are taken from 0"]


def test_a_restart_is_seen_by_the_process_start_too() -> None:
    before = parse_page("vllm:generation_tokens_total 100\nprocess_start_time_seconds 1000")
    after = parse_page("vllm:generation_tokens_total 130\nprocess_start_time_seconds 1060")
    assert deltas(before, after) == {"generation_tokens": 130}
    assert after.notes


def test_what_is_gone_is_noted_not_negative() -> None:
    after = parse_page('vllm:prompt_tokens_total{engine="0"} 7')
    counted = deltas(parse_page(REPLICAS), after)
    assert counted == {"prompt_tokens": 7}
    assert any("generation_tokens of replica 0 is gone" in note for note in after.notes)
    assert any("replica 1 is gone" in note for note in after.notes)


def test_means_only_where_something_was_counted() -> None:
    assert means(
        {"ttft_s.sum": 0.0, "ttft_s.count": 0.0, "itl_s.count": 4.0, "e2e_s.sum": 6.0, "e2e_s.count": 3.0}
    ) == {"e2e_s": 2.0}


@pytest.mark.parametrize(
    "name", ["metrics_full_idle.txt", "llama_server_metrics.txt", "prefix/prefix_on_c4.metrics.final_full.prom"]
)
def test_the_live_view_agrees_with_the_whole_page(name: str) -> None:
    text = text_of(name)
    replica = parse_page(text).replicas[0]
    whole = {**replica.gauges, **replica.counters}
    figures = gauges_now(text)
    assert figures == {
        key: whole[key] for key in ("running", "waiting", "kv_usage", "generation_tokens") if key in whole
    }
    assert "running" in figures


def test_the_live_view_of_each_engine_and_of_replicas() -> None:
    assert gauges_now(REPLICAS) == {"running": 7, "generation_tokens": 30}
    assert gauges_now(MODELS) == {"running": 7, "kv_usage": 0.5}
    assert gauges_now(VLLM_0_8) == {"running": 3, "waiting": 2, "kv_usage": 0.25, "generation_tokens": 50}
    assert gauges_now("tgi_queue_size 3\ntgi_batch_current_size 4") == {"running": 4, "waiting": 3}
    assert gauges_now("trtllm_kv_cache_utilization{} 0.5") == {"kv_usage": 0.5}
    assert gauges_now('vllm:num_requests_waiting_by_reason{reason="capacity"} 5\nvllm:num_requests_waiting NaN') == {}


def test_speed() -> None:
    text = text_of("metrics_full_idle.txt")
    parse_page(text), gauges_now(text)
    assert best_of(5, lambda: parse_page(text)) < 0.05
    assert best_of(20, lambda: gauges_now(text)) < 0.001


def best_of(times: int, call: object) -> float:
    def once() -> float:
        start = time.perf_counter()
        call()  # type: ignore[operator]
        return time.perf_counter() - start

    return min(once() for _ in range(times))
