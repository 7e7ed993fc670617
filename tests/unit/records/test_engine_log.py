"""Genuine logs of vLLM 0.32 on a CPU, step for step, and lines composed in the form of other versions and engines."""

from __future__ import annotations

import csv
import os
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from inferometer.errors import FormatError
from inferometer.records.engine_log import EngineLog, arguments, read_log, server_columns, without_secrets
from inferometer.records.run import RunMeta, make_run
from inferometer.units import GIB
from shared import shared

FOLDER = "data/cpu_engine/"
RUNS = ("chunk256", "main_clean", "main_rerun", "prefix", "tiny_eager")


def genuine(name: str) -> EngineLog:
    return read_log(shared(f"{FOLDER}{name}.server.log"), year=2026, zone=UTC)


@pytest.mark.parametrize("name", RUNS)
def test_steps_agree_with_the_recorded_table_row_for_row(name: str) -> None:
    log = genuine(name)
    steps = log.iterations
    at = {number: i for i, number in enumerate(steps["iteration"])}
    rows = list(csv.DictReader(shared(f"{FOLDER}{name}.iterations.csv").open()))
    assert len(rows) > 390
    for row in rows:
        i = at[int(row["iteration"])]
        assert steps["time_unix_s"][i] == float(row["unix_second"])
        assert steps["context_requests"][i] == int(row["ctx_requests"])
        assert steps["context_tokens"][i] == int(row["ctx_tokens"])
        assert steps["generation_requests"][i] == int(row["gen_requests"])
        assert steps["generation_tokens"][i] == int(row["gen_tokens"])
        assert f"{steps['elapsed_s'][i] * 1000:.2f}" == row["elapsed_ms"]
        assert f"{steps['kv_usage'][i] * 100:.1f}" == row["kv_usage_pct"]


def test_no_step_and_no_interval_line_is_missed() -> None:
    text = shared(f"{FOLDER}main_rerun.server.log").read_text()
    log = genuine("main_rerun")
    assert len(log.iterations["iteration"]) == text.count("Iteration(") == 1165
    assert len(log.periodic["running"]) == text.count("Avg prompt throughput") == 12


def test_intervals_of_a_genuine_log() -> None:
    periodic = genuine("prefix").periodic
    assert periodic["time_unix_s"][0] == datetime(2026, 11, 29, 12, 50, 11, tzinfo=UTC).timestamp()
    assert periodic["line"][0] == "interval"
    assert periodic["prompt_tok_per_s"][:3] == [168.4, 179.2, 102.4]
    assert periodic["generation_tok_per_s"][:3] == [17.4, 115.6, 121.9]
    assert periodic["running"][:3] == [4, 4, 0]
    assert periodic["waiting"][:3] == [0, 0, 0]
    assert periodic["prefix_cache_hit_rate"][:3] == pytest.approx([0.222, 0.741, 0.8])
    assert periodic["kv_usage"][:3] == pytest.approx([0.031, 0.031, 0.0])


def test_the_start_of_a_genuine_log() -> None:
    log = read_log(shared(FOLDER + "startup_first_cold.log"), year=2026, zone=UTC)
    assert (log.engine, log.version, log.model) == ("vllm", "0.32.0", "models/q3s")
    assert log.flags["served_model_name"] == ["q3s"]
    assert log.flags["load_format"] == "dummy"
    assert log.config["dtype"] == "torch.bfloat16"
    assert log.config["tensor_parallel_size"] == 1
    assert log.config["enforce_eager"] is False
    assert log.kv_cache_memory_bytes == 2 * GIB
    assert log.kv_cache_tokens == 65536
    assert log.max_concurrency == 32.0
    assert log.max_model_len == 2048
    assert log.prefix_caching is True
    assert log.chunked_prefill is True
    assert log.init_engine_s == 61.27
    assert log.ready_unix_s is not None
    assert log.first_unix_s is not None
    assert log.ready_unix_s - log.first_unix_s == 130
    assert log.async_scheduling is None, "this version does not print it"
    assert log.weight_bytes is None, "nor this, on a CPU"
    assert log.periodic == log.iterations == {}
    assert log.notes == []


def test_flags_and_budget_of_the_small_one() -> None:
    log = genuine("tiny_eager")
    assert log.max_num_batched_tokens == 512
    assert log.max_num_seqs == 16
    assert log.prefix_caching is False
    assert log.config["enforce_eager"] is True


VLLM_0_10 = """\
(APIServer pid=1) INFO 09-29 09:50:00 [api_server.py:1896] vLLM API server version 0.10.2
(APIServer pid=1) INFO 09-29 09:50:00 [utils.py:328] non-default args: {'model': 'm/M', 'gpu_memory_utilization': \
0.85, \
'compilation_config': CompilationConfig(level=3, sizes=[1, 2]), 'quantization': None}
(APIServer pid=1) INFO 09-29 09:50:02 [scheduler.py:222] Chunked prefill is enabled with max_num_batched_tokens=8192.
(APIServer pid=1) INFO 09-29 09:50:02 [vllm.py:754] Asynchronous scheduling is enabled.
(EngineCore_DP0 pid=2) INFO 09-29 09:50:03 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: \
model='m/M', \
speculative_config=None, dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=2, kv_cache_dtype=fp8, \
enable_prefix_caching=True, chunked_prefill_enabled=True, compilation_config={"level":3,"sizes":[2,1]}
(Worker_TP0 pid=3) INFO 09-29 09:50:09 [topk_topp_sampler.py:55] Using FlashInfer for top-p & top-k sampling.
(Worker_TP0 pid=3) INFO 09-29 09:50:10 [cuda.py:284] Using Flash Attention backend on V1 engine.
(Worker_TP0 pid=3) INFO 09-29 09:50:20 [default_loader.py:267] Loading weights took 5.50 seconds
(Worker_TP0 pid=3) INFO 09-29 09:50:21 [gpu_model_runner.py:2653] Model loading took 3.4244 GiB and 41.673988 seconds
(Worker_TP1 pid=4) INFO 09-29 09:50:21 [gpu_model_runner.py:2653] Model loading took 3.4244 GiB and 41.300000 seconds
(Worker_TP0 pid=3) INFO 09-29 09:51:37 [monitor.py:34] torch.compile takes 14.45 s in total
(Worker_TP0 pid=3) INFO 09-29 09:51:40 [gpu_worker.py:298] Available KV cache memory: 35.34 GiB
(Worker_TP1 pid=4) INFO 09-29 09:51:40 [gpu_worker.py:298] Available KV cache memory: 35.00 GiB
(EngineCore_DP0 pid=2) INFO 09-29 09:51:40 [kv_cache_utils.py:1087] GPU KV cache size: 463,136 tokens
(EngineCore_DP0 pid=2) INFO 09-29 09:51:40 [kv_cache_utils.py:1091] Maximum concurrency for 131,072 tokens per \
request: 3.53x
(Worker_TP0 pid=3) INFO 09-29 09:51:56 [gpu_model_runner.py:3118] Graph capturing finished in 25 secs, took 2.37 GiB
(Worker_TP1 pid=4) INFO 09-29 09:51:56 [gpu_worker.py:391] Free memory on device (139.21/139.81 GiB) on startup. \
Desired GPU \
memory utilization is (0.85, 118.84 GiB). Actual usage is 74.28 GiB for weight, 5.58 GiB for peak activation, 1.38 \
GiB for \
non-torch memory, and 2.37 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with \
`--kv-cache-memory=4` to fit.
(EngineCore_DP0 pid=2) INFO 09-29 09:51:57 [core.py:218] init engine (profile, create kv cache, warmup model) took \
95.20 seconds
(APIServer pid=1) INFO 09-29 09:52:00 [launcher.py:36] Route: /metrics, Methods: GET
INFO:     Application startup complete.
INFO:     127.0.0.1:3 - "POST /v1/completions HTTP/1.1" 200 OK
(APIServer pid=1) INFO 09-29 09:53:10 [loggers.py:123] Engine 000: Avg prompt throughput: 3279.0 tokens/s, Avg \
generation \
throughput: 1004.4 tokens/s, Running: 8 reqs, Waiting: 7 reqs, GPU KV cache usage: 82.5%, Prefix cache hit rate: \
91.1%, \
External prefix cache hit rate: 1.2%
(APIServer pid=1) INFO 09-29 09:53:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.49, Accepted \
throughput: 30.70 tokens/s, Avg Draft acceptance rate: 49.7%
(APIServer pid=1) INFO 09-29 09:53:10 [loggers.py:123] Engine 001: Avg prompt throughput: 1.0 tokens/s, Avg generation \
throughput: 2.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 2.5%, Prefix cache hit rate: nan%
"""


def test_vllm_0_10_on_two_gpus() -> None:
    log = read_log(VLLM_0_10, year=2025, zone=UTC)
    assert (log.engine, log.version, log.model) == ("vllm", "0.10.2", "m/M")
    assert log.flags["compilation_config"] == "CompilationConfig(level=3, sizes=[1, 2])", "kept as text, never run"
    assert log.flags["quantization"] is None
    assert log.gpu_memory_utilization == 0.85
    assert log.max_num_batched_tokens == 8192
    assert log.async_scheduling is True
    assert log.config["tensor_parallel_size"] == 2
    assert log.config["kv_cache_dtype"] == "fp8"
    assert log.max_model_len == 131072
    assert log.sampler == "flashinfer"
    assert log.attention_backend == "Flash Attention"
    assert log.weights_load_s == 5.5
    assert log.model_load_s == 41.673988
    assert log.torch_compile_s == 14.45
    assert log.kv_cache_memory_bytes == 35 * GIB, "of the ranks the least"
    assert log.kv_cache_tokens == 463136
    assert log.max_concurrency == 3.53
    assert log.cuda_graph_s == 25
    assert log.cuda_graph_bytes == round(2.37 * GIB)
    assert log.weight_bytes == round(74.28 * GIB)
    assert log.activation_peak_bytes == round(5.58 * GIB)
    assert log.non_torch_bytes == round(1.38 * GIB)
    assert log.device_free_bytes == round(139.21 * GIB)
    assert log.device_total_bytes == round(139.81 * GIB)
    assert log.init_engine_s == 95.2
    assert log.ready_unix_s == datetime(2025, 9, 29, 9, 52, tzinfo=UTC).timestamp()


def test_intervals_of_two_replicas_with_what_belongs_to_them() -> None:
    periodic = read_log(VLLM_0_10, year=2025, zone=UTC).periodic
    assert periodic["replica"] == [0, 1]
    assert periodic["kv_usage"] == pytest.approx([0.825, 0.025])
    assert periodic["prefix_cache_hit_rate"] == [pytest.approx(0.911), None]
    assert periodic["external_prefix_cache_hit_rate"] == [pytest.approx(0.012), None]
    assert periodic["spec_decode_accept_length"] == [2.49, None]
    assert periodic["spec_decode_acceptance_rate"] == [pytest.approx(0.497), None]


VLLM_0_6 = """\
INFO 02-28 21:40:00 api_server.py:495] vLLM API server version 0.6.3
INFO 02-28 21:40:00 api_server.py:496] args: Namespace(host=None, port=8000, model='m', allowed_origins=['*'], seed=0)
INFO 02-28 21:40:03 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: model='m', \
dtype=torch.float16, \
max_seq_len=4096, tensor_parallel_size=1, use_v2_block_manager=True, enable_prefix_caching=False, \
decoding_config=DecodingConfig(guided_decoding_backend='outlines')
INFO 02-28 21:40:04 selector.py:115] Using XFormers backend.
INFO 02-28 21:40:09 model_runner.py:1067] Loading model weights took 14.25 GB
INFO 02-28 21:40:10 gpu_executor.py:122] # GPU blocks: 7449, # CPU blocks: 512
INFO 02-28 21:40:10 gpu_executor.py:126] Maximum concurrency for 4096 tokens per request: 29.10x
INFO 02-28 21:40:20 model_runner.py:1523] Graph capturing finished in 9 secs.
INFO 02-28 21:48:18 metrics.py:345] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 44.9 tokens/s, \
Running: 2 reqs, Swapped: 1 reqs, Pending: 3 reqs, GPU KV cache usage: 82.1%, CPU KV cache usage: 4.0%.
INFO 02-28 21:48:18 metrics.py:361] Prefix cache hit rate: GPU: 94.35%, CPU: 0.00%
"""


def test_vllm_v0_with_its_swapped_and_pending() -> None:
    log = read_log(VLLM_0_6, year=2024, zone=UTC)
    assert (log.version, log.attention_backend, log.max_model_len) == ("0.6.3", "XFormers", 4096)
    assert log.flags == {"host": None, "port": 8000, "model": "m", "allowed_origins": ["*"], "seed": 0}
    assert (log.num_gpu_blocks, log.num_cpu_blocks, log.max_concurrency) == (7449, 512, 29.1)
    assert log.cuda_graph_s == 9
    assert log.cuda_graph_bytes is None
    assert {name: values[0] for name, values in log.periodic.items()} == {
        "time_unix_s": datetime(2024, 2, 28, 21, 48, 18, tzinfo=UTC).timestamp(),
        "replica": 0,
        "line": "interval",
        "prompt_tok_per_s": 0.0,
        "generation_tok_per_s": 44.9,
        "running": 2,
        "waiting": 3,
        "swapped": 1,
        "prefix_cache_hit_rate": pytest.approx(0.9435),
        "kv_usage": pytest.approx(0.821),
        "cpu_kv_usage": pytest.approx(0.04),
    }


def test_gb_that_means_gib_is_read_so_and_said() -> None:
    log = read_log(VLLM_0_6, year=2024)
    assert log.weight_bytes == round(14.25 * 2**30)
    assert log.printed["weight_bytes"] == "14.25 GB"
    assert any("weight_bytes: printed as GB" in note for note in log.notes)


def one(line: str) -> EngineLog:
    return read_log(f"INFO 01-02 03:04:05 [file.py:1] {line}", year=2026, zone=UTC)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("GPU KV cache size: 410,240 tokens", "kv_cache_tokens", 410240),
        ("Maximum concurrency for 40,960 tokens per request: 10.02x", "max_concurrency", 10.02),
        ("GPU KV cache size: 65,536 tokens, Maximum concurrency for 2,048 tokens per request: 32.00x",
         "max_concurrency", 32.0),
        ("GPU KV cache size: 65,536 tokens, Maximum concurrency for 2,048 tokens per request: 1,032.50x",
         "max_concurrency", 1032.5),
        ("Available KV cache memory: 8.11 GiB", "kv_cache_memory_bytes", round(8.11 * GIB)),
        ("Initial free memory 78.60 GiB, reserved 40.00 GiB memory for KV Cache as specified by "
         "kv_cache_memory_bytes config",
         "kv_cache_memory_bytes", 40 * GIB),
        ("# cpu blocks: 1170, # CPU blocks: 0", "num_gpu_blocks", 1170),
        ("# GPU blocks: 1381", "num_gpu_blocks", 1381),
        ("Model loading took 12.66 GiB memory and 31.657031 seconds", "weight_bytes", round(12.66 * GIB)),
        ("Model loading took 0.7512 GiB and 3.20 seconds", "model_load_s", 3.2),
        ("torch.compile took 0.87 s in total", "torch_compile_s", 0.87),
        ("init engine took 70.62 s (compilation: 42.18 s)", "init_engine_s", 70.62),
        ("Estimated CUDA graph memory: 0.26 GiB total", "cuda_graph_estimate_bytes", round(0.26 * GIB)),
        ("Free memory on device cuda:0 (27.28/31.86 GiB) on startup is less than desired GPU memory utilization "
         "(0.97, 30.9 GiB).",
         "device_total_bytes", round(31.86 * GIB)),
        ("model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; "
         "the rest "
         "of the memory reserved for KV Cache is 1.57GiB.", "activation_peak_bytes", round(0.37 * GIB)),
        ("model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; "
         "the rest "
         "of the memory reserved for KV Cache is 1.57GiB.", "kv_cache_memory_bytes", round(1.57 * GIB)),
        ("the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.99) = 23.35GiB",
         "device_total_bytes", round(23.58 * GIB)),
        ("Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].",
         "attention_backend", "FLASH_ATTN"),
        ("Using AttentionBackendEnum.FLASHINFER backend", "attention_backend", "FLASHINFER"),
        ("Using Triton MLA backend on V1 engine.", "attention_backend", "Triton MLA"),
        ("Using AttentionBackendEnum.FLASH_ATTN for MMEncoderAttention.", "attention_backend", None),
        ("Using TRITON Fp8 MoE backend", "attention_backend", None),
        ("Using backend AttentionBackendEnum.FLASH_ATTN for vit attention", "attention_backend", None),
        ("Using FlashAttention version 3", "flash_attention_version", 3),
        ("FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p & top-k sampling.",
         "sampler", "torch"),
        ("FlashInfer top-p/top-k sampling is available but disabled by default.", "sampler", "torch"),
        ("Using Triton for top-p & top-k sampling.", "sampler", "triton"),
        ("Asynchronous scheduling is disabled.", "async_scheduling", False),
        ("Automatic prefix caching is enabled.", "prefix_caching", True),
    ],
)  # fmt: skip
def test_lines_of_the_start_in_the_spellings_of_versions(line: str, field: str, value: object) -> None:
    assert getattr(one(line), field) == value


def test_the_short_numbers_of_a_line_do_not_swallow_its_unit() -> None:
    log = one("Available KV cache memory: 512.00 MiB")
    assert log.kv_cache_memory_bytes == 512 * 2**20


def test_steps_before_they_moved_to_the_front_end() -> None:
    log = read_log(
        "(EngineCore_DP3 pid=9) INFO 12-22 21:44:40 [core.py:349] Iteration(515): 0 context requests, 0 context "
        "tokens, "
        "20 generation requests, 20 generation tokens, iteration elapsed time: 10.99 ms\n"
        "(APIServer pid=1) INFO 12-22 21:44:41 [loggers.py:199] Engine 002: Iteration(10): 1 context requests, 7 "
        "context "
        "tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 3.00 ms, GPU KV cache usage: "
        "12.5%, "
        "encoder inputs: 4, encoder output embeddings: 3520",
        year=2025,
    )
    assert log.engine == "vllm"
    assert log.iterations["replica"] == [3, 2]
    assert log.iterations["elapsed_s"] == [0.01099, 0.003]
    assert log.iterations["kv_usage"] == [None, 0.125]


SGLANG = """\
[2025-11-10 19:58:00] server_args=ServerArgs(model_path='m/S', tp_size=2, dp_size=1, chunked_prefill_size=8192, \
attention_backend='flashinfer', disable_radix_cache=False, disable_overlap_schedule=False, cuda_graph_bs=[1, 2, 4], \
mem_fraction_static=0.85, chat_template=None)
[2025-11-10 19:58:30 TP0] Load weight end. type=M, dtype=torch.bfloat16, avail mem=131.08 GB, mem usage=8.13 GB.
[2025-11-10 19:58:30 TP1] Load weight end. type=M, dtype=torch.bfloat16, avail mem=131.08 GB, mem usage=8.13 GB.
[2025-11-10 19:58:31 TP1] KV Cache is allocated. #tokens: 834615, K size: 54.12 GB, V size: 54.12 GB
[2025-11-10 19:58:31 TP0] KV Cache is allocated. #tokens: 834615, K size: 54.12 GB, V size: 54.12 GB
[2025-11-10 19:59:09 TP1] Capture cuda graph end. Time elapsed: 11.35 s. mem usage=1.04 GB. avail mem=11.22 GB.
[2025-11-10 19:59:09 TP0] max_total_num_tokens=834615, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=4096, context_len=128000, available_gpu_mem=37.06 GB
[2025-11-10 19:59:10] The server is fired up and ready to roll!
[2025-11-10 20:00:00 TP0] Prefill batch. #new-seq: 9, #new-token: 8192, #cached-token: 27, token usage: 0.03, \
#running-req: 8, #queue-req: 106,
[2025-11-10 20:00:01 TP0] Decode batch. #running-req: 17, #token: 137, token usage: 0.05, cuda graph: True, \
gen throughput (token/s): 84.20, #queue-req: 97,
[2025-11-10 20:00:01 TP1] Decode batch. #running-req: 17, #token: 137, token usage: 0.05, cuda graph: True, \
gen throughput (token/s): 84.20, #queue-req: 97,
"""


def test_sglang() -> None:
    log = read_log(SGLANG, zone=UTC)
    assert (log.engine, log.model, log.attention_backend) == ("sglang", "m/S", "flashinfer")
    assert log.flags["cuda_graph_bs"] == [1, 2, 4]
    assert log.flags["mem_fraction_static"] == 0.85
    assert log.weight_bytes == pytest.approx(8.13 * 2**30, abs=1)
    assert log.kv_cache_memory_bytes == pytest.approx(2 * 54.12 * 2**30, abs=4), "K and V of one rank"
    assert log.printed["kv_cache_memory_bytes"] == "54.12 GB + 54.12 GB"
    assert log.kv_cache_tokens == 834615
    assert log.max_num_seqs == 4096
    assert log.max_model_len == 128000
    assert (log.cuda_graph_s, log.cuda_graph_bytes) == (11.35, round(1.04 * 2**30))
    assert (log.async_scheduling, log.prefix_caching) == (True, True)
    assert log.ready_unix_s == datetime(2025, 11, 10, 19, 59, 9, tzinfo=UTC).timestamp()
    assert any("divides by 2**30" in note for note in log.notes)


def test_sglang_batches_of_one_rank() -> None:
    periodic = read_log(SGLANG, year=1999, zone=UTC).periodic
    assert periodic["line"] == ["prefill", "decode"]
    assert periodic["time_unix_s"][0] == datetime(2025, 11, 10, 20, tzinfo=UTC).timestamp(), "the line has its year"
    assert periodic["running"] == [8, 17]
    assert periodic["waiting"] == [106, 97]
    assert periodic["kv_usage"] == [0.03, 0.05]
    assert periodic["generation_tok_per_s"] == [None, 84.2]
    assert periodic["new_tokens"] == [8192, None]
    assert periodic["cached_tokens"] == [27, None]
    assert periodic["kv_used_tokens"] == [None, 137]


def test_newer_sglang_lines() -> None:
    log = read_log(
        "[2026-07-04 04:31:20] Load weight end. elapsed=118.38 s, type=M, avail mem=59.87 GB, mem usage=51.86 GB.\n"
        "[2026-07-04 04:31:21] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 56320, K size: 5.40 GB, V "
        "size: 5.40 GB\n"
        "[2026-07-04 04:31:21] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 70656, K size: 0.68 GB, V "
        "size: 0.68 GB\n"
        "[2026-07-04 04:31:22] Capture target decode CUDA graph end. elapsed=30.54 s, mem usage=1.38 GB, avail "
        "mem=19.66 GB.\n"
        "[2026-07-04 04:31:24 DP1 TP1] Prefill batch, #new-seq: 12, #new-token: 43008, #cached-token: 0, full token "
        "usage: 0.14, "
        "mamba usage: 0.20, #running-req: 1, #queue-req: 97, #pending-token: 109585, npu graph: False, "
        "input throughput (token/s): 15734.14\n",
        zone=UTC,
    )
    assert log.weights_load_s == 118.38
    assert log.kv_cache_memory_bytes == pytest.approx(12.16 * 2**30, abs=4)
    assert log.kv_cache_tokens == 70656
    assert any("2 KV caches are added up" in note for note in log.notes)
    assert log.cuda_graph_s == 30.54
    row = {name: values[0] for name, values in log.periodic.items()}
    assert (row["replica"], row["kv_usage"], row["prompt_tok_per_s"]) == (1, 0.14, 15734.14)


def test_llama_cpp_and_tensorrt_llm() -> None:
    llama = read_log(
        "build: 8247 (aaa18bb49) with GNU 11.4.0 for Linux x86_64\n"
        "load_tensors:          CPU model buffer size =   143.86 MiB\n"
        "load_tensors:        CUDA0 model buffer size =  4717.38 MiB\n"
        "llama_context: n_ctx         = 8192\nllama_context: n_ctx_seq     = 2048\n"
        "llama_kv_cache: size =  544.00 MiB (  8192 cells,  16 layers,  1/1 seqs), K (q8_0):  272.00 MiB, V (q8_0):  "
        "272.00 MiB\n"
        "llama_context:      CUDA0 compute buffer size =   298.50 MiB\n"
        "srv          init: initializing slots, n_slots = 4\n"
    )
    assert (llama.engine, llama.version) == ("llamacpp", "8247 (aaa18bb49)")
    assert llama.kv_cache_memory_bytes == 544 * 2**20
    assert (llama.kv_cache_tokens, llama.max_model_len, llama.max_num_seqs) == (8192, 2048, 4)
    assert llama.weight_bytes == pytest.approx((143.86 + 4717.38) * 2**20, abs=1)
    assert llama.activation_peak_bytes == 298.5 * 2**20
    trt = read_log(
        "[TensorRT-LLM] TensorRT-LLM version: 1.0.0\n"
        "[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 65, tokens per block=32, primary blocks=116617, "
        "secondary blocks=0\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 78.30 GiB for max tokens in paged KV cache (3731744).\n"
    )
    assert (trt.engine, trt.version) == ("trtllm", "1.0.0")
    assert trt.kv_cache_memory_bytes == round(78.3 * GIB)
    assert (trt.kv_cache_tokens, trt.num_gpu_blocks) == (3731744, 116617)


@pytest.mark.parametrize(("text", "prefix"), [(SGLANG, "sglang-1  | "), (VLLM_0_10, "Aug 25 19:32:10 host vllm[72]: ")])
def test_a_prefix_of_docker_or_the_journal_changes_nothing(text: str, prefix: str) -> None:
    plain, prefixed = (
        read_log(t, year=2025, zone=UTC) for t in (text, "".join(prefix + line for line in text.splitlines(True)))
    )
    assert prefixed == plain


@pytest.mark.parametrize("name", ["prefix.server.log", "startup_first_cold.log"])
def test_a_log_cut_off_anywhere_is_read_up_to_there(name: str) -> None:
    text = shared(FOLDER + name).read_text()[:60_000]
    for cut in range(0, len(text), 997):
        log = read_log(text[:cut], year=2026, zone=UTC)
        assert len(log.iterations.get("iteration", [])) <= text[:cut].count("Iteration(")


def test_the_zone_is_the_servers() -> None:
    east = timezone(timedelta(hours=9))
    a, b = one("x"), read_log("INFO 01-02 03:04:05 [file.py:1] x", year=2026, zone=east)
    assert a.first_unix_s is not None
    assert b.first_unix_s == a.first_unix_s - 9 * 3600


def test_new_year_passes() -> None:
    log = read_log("INFO 12-31 23:59:59 a.py:1] x\nINFO 01-01 00:00:01 a.py:1] x", year=2026, zone=UTC)
    assert log.first_unix_s == datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    assert log.last_unix_s == log.first_unix_s + 2


def test_the_year_of_a_file_is_that_of_its_modification(tmp_path: Path) -> None:
    """Copied in January, a log of December is of the year before."""
    path = tmp_path / "server.log"
    path.write_text("INFO 12-30 10:00:00 [a.py:1] x")
    written = datetime(2024, 1, 5, tzinfo=UTC).timestamp()
    os.utime(path, (written, written))
    assert read_log(path, zone=UTC).first_unix_s == datetime(2023, 12, 30, 10, tzinfo=UTC).timestamp()


def test_the_29th_of_february_in_another_year_is_no_time() -> None:
    assert read_log("INFO 02-29 10:00:00 [a.py:1] x", year=2025).first_unix_s is None


def test_of_two_starts_the_last_is_described() -> None:
    second = (
        VLLM_0_10.replace("35.00 GiB", "50.00 GiB").replace("35.34 GiB", "50.00 GiB").replace("'quantization'", "'q'")
    )
    log = read_log(VLLM_0_10 + second, year=2025)
    assert log.kv_cache_memory_bytes == 50 * GIB
    assert "quantization" not in log.flags
    assert len(log.periodic["running"]) == 4
    assert log.notes[0] == "the log holds 2 starts of a server: the last is described"


def test_several_front_ends_are_one_start() -> None:
    args = "(ApiServer_{} pid=1) INFO 09-29 09:50:00 [utils.py:328] non-default args: {{'model': 'm'}}\n"
    log = read_log(
        args.format(0) + args.format(1) + "INFO 09-29 09:51:40 [k.py:1] GPU KV cache size: 4 tokens", year=2025
    )
    assert log.notes == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{'a': [1, {'b': 2}], 'c': 'x, y: z', 'd': -1.5}", {"a": [1, {"b": 2}], "c": "x, y: z", "d": -1.5}),
        ("{'t': 'it\\'s {x}, (y', 'n': None}", {"t": "it's {x}, (y", "n": None}),
        ("{'m': <Mode.A: 3>, 'o': Obj(a=1, b='}')}", {"m": "<Mode.A: 3>", "o": "Obj(a=1, b='}')"}),
        (
            "Namespace(a=1, b=['*'], c=__import__('os').getcwd())",
            {"a": 1, "b": ["*"], "c": "__import__('os').getcwd()"},
        ),
        ("{'cut': [1, 2", {"cut": "[1, 2"}),
        ("{}", {}),
        ("nothing", {}),
    ],
)
def test_arguments_are_parsed_not_run(text: str, found: dict[str, object]) -> None:
    assert arguments(text) == found


def test_server_columns_on_the_runs_clock() -> None:
    log = genuine("tiny_eager")
    assert log.iterations["time_unix_s"]
    start = log.iterations["time_unix_s"][0] + 0.5
    columns = server_columns(log, start, start + 3600)
    run = make_run(RunMeta(kind="measured"), server=columns)
    assert run.server.height == 394
    assert run.server["time_s"].min() == 0.0, "a line stamped up to a second before the start is at 0"
    assert run.server["time_s"].is_sorted()
    assert set(run.server["line"]) == {"step"}
    assert run.server["running"].max() == 8
    assert run.server["step_generation_tokens"].sum() + run.server["step_context_tokens"].sum() > 0
    assert run.server["step_s"][0] == pytest.approx(0.01285)
    assert "generation_tokens" not in run.server.columns, "that is a counter's name"


def test_server_columns_of_a_part() -> None:
    log = genuine("prefix")
    times = log.periodic["time_unix_s"]
    columns = server_columns(log, times[1], times[3])
    intervals = [i for i, line in enumerate(columns["line"]) if line == "interval"]
    assert [columns["time_s"][i] for i in intervals] == [0.0, 10.0, times[3] - times[1]]
    assert max(columns["time_s"]) <= times[3] - times[1]


def test_server_columns_of_a_log_without_load() -> None:
    log = read_log(shared(FOLDER + "startup_first_cold.log"), year=2026)
    assert make_run(RunMeta(kind="measured"), server=server_columns(log, 0.0)).server.height == 0


@pytest.mark.parametrize(
    "text", ["", "\n", "hello\nworld\n", "\x00\x01", "Iteration(x)", "Avg prompt throughput: much"]
)
def test_other_text_says_nothing(text: str) -> None:
    log = read_log(text)
    assert log.kv_cache_memory_bytes is None
    assert log.periodic == log.iterations == {}


def test_colours_of_a_terminal_are_no_part_of_a_line() -> None:
    assert one("\x1b[32mAvailable KV cache memory: 1.00 GiB\x1b[0m").kv_cache_memory_bytes == GIB


def test_a_number_that_is_none_is_noted() -> None:
    log = one("Maximum concurrency for 4,096 tokens per request: 1.2.3x")
    assert log.max_concurrency is None
    assert log.notes == ["max_concurrency: '1.2.3' is not a number"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"absent\.log: cannot be read"):
        read_log(tmp_path / "absent.log")


def test_facts_are_plain_and_known() -> None:
    facts = genuine("tiny_eager").facts()
    assert facts["kv_cache_tokens"] == 524288
    assert {"periodic", "iterations", "notes", "async_scheduling"}.isdisjoint(facts)


SECRET_LINES = (
    "INFO 11-14 14:26:16 [utils.py:233] non-default args: {'model': 'm/S', 'api_key': ['s3cret', 's3cret2'], "
    "'hf_token': 's3cret', 'ssl_keyfile_password': 's3cret', 'max_model_len': 2048, "
    "'override_generation_config': {'temperature': 0.0, 'secret': 's3cret'}, "
    "'kv_transfer_config': KVTransferConfig(kv_connector='x', access_token='s3cret', kv_rank=0)}",
    "[2025-11-10 19:58:39] server_args=ServerArgs(model_path='m/S', api_key='s3cret', admin_api_key='s3cret', "
    'max_model_len=2048, model_loader_extra_config=\'{"hf_token": "s3cret", "n": 1}\')',
    "INFO 03-05 05:00:00 api_server.py:528] args: Namespace(host=None, model='m/S', api_key='s3cret', "
    "ssl_keyfile_password='s3cret', max_model_len=2048)",
    "INFO 03-05 05:00:01 Initializing a V1 LLM engine (v0.10.2) with config: model='m/S', "
    "speculative_config=SpeculativeConfig(model='d', hf_token='s3cret'), max_seq_len=2048, ",
)


@pytest.mark.parametrize("line", SECRET_LINES)
def test_arguments_that_look_like_secrets_are_not_kept(line: str) -> None:
    log = read_log(line)
    facts = log.facts()
    assert "s3cret" not in repr(log)
    assert "s3cret" not in repr(facts)
    assert (facts["model"], facts["max_model_len"]) == ("m/S", 2048)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("tokenizer=auto, skip_tokenizer_init=False", "tokenizer=auto, skip_tokenizer_init=False"),
        ("C(max_tokens=5, password=SecretStr('s'))", "C(max_tokens=5, password=***))"),
        ("{'api_key': ['a', 'b'], 'n': 1}", "{'api_key': ***, 'n': 1}"),
        ('{"credentials": {"user": "u"}, "n": 1}', '{"credentials": ***, "n": 1}'),
        (r"{\"api_key\": \"s\"}", r"{\"api_key\": ***"),
        ("ends in api_key='s", "ends in api_key=***"),
    ],
)
def test_secrets_inside_of_texts(text: str, kept: str) -> None:
    assert without_secrets(text) == kept


def test_a_megabyte_takes_well_under_a_second() -> None:
    path = shared(FOLDER + "main_clean.server.log")
    start = time.perf_counter()
    read_log(path, year=2026)
    assert path.stat().st_size > 1_000_000
    assert time.perf_counter() - start < 0.5


INTERVAL = (
    "INFO 01-02 03:04:05 [a.py:1] Engine 000: Avg prompt throughput: {} tokens/s, Running: {} reqs, Waiting: 0 reqs"
)


@pytest.mark.parametrize(
    "bad",
    [
        INTERVAL.format("1.0.5", 1),
        INTERVAL.format("1.0", "9" * 30),
        "Iteration(1): 1 context requests, 1 context tokens, 1 generation requests, 1 generation tokens, "
        "iteration elapsed time: . ms",
        "[2025-11-10 20:00:01] Decode batch. #running-req: 17, token usage: 0.0.5, #queue-req: 97",
        "[2025-11-10 20:00:01] Decode batch. #running-req: 1.7, token usage: 0.05, #queue-req: 97",
        "Prefix cache hit rate: GPU: 1.0.5%, CPU: 0.00%",
        "SpecDecoding metrics: Mean acceptance length: 2.3.5, Avg Draft acceptance rate: 50.0%",
        "llama_kv_cache: size = 1.2.3 MiB (   512 cells, 2 layers)",
        "KV self size  = 1.2.3 MiB",
        "llama_kv_cache: size = 12 iB (   512 cells, 2 layers)",
        "load_tensors: CPU model buffer size = 1.2.3 MiB",
        "KV Cache is allocated. #tokens: 834615, K size: 5.4.1 GB, V size: 54.12 GB",
    ],
)
def test_a_line_with_a_figure_that_is_no_number_is_passed_over(bad: str) -> None:
    good = INTERVAL.format("2.5", 3)
    log = read_log(f"{good}\n{bad}\n{good}", year=2026, zone=UTC)
    assert (log.periodic["running"], log.periodic["prompt_tok_per_s"]) == ([3, 3], [2.5, 2.5])
    assert set(log.periodic) == set(read_log(good).periodic)
    assert (log.iterations, log.kv_cache_memory_bytes, log.weight_bytes) == ({}, None, None)
    assert "1 lines with a figure that is no number are passed over" in log.notes
