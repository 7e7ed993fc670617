"""A log like vLLM's own, for what reads such logs: figures are the memory model's, sizes GiB with two decimals.

Layout: data of vLLM 0.32 on a CPU, and engines.md 1.4. Processes are named in front from 0.11; the pool and its
concurrency are two lines to 0.26 and one from 0.28. What an emulator cannot know (the attention backend, times of
loading) is not said or is its own.
"""

from __future__ import annotations

import os
import sys
import time
from typing import IO

from inferometer import __version__
from inferometer.emulator.options import Options
from inferometer.emulator.scheduler import LiveScheduler
from inferometer.specs.engine import cudagraph_sizes, resolve_version
from inferometer.steptime.kv_layout import release
from inferometer.steptime.memory import Memory

PROCESSES_NAMED_FROM = (0, 11)
RANK_NAMED_TO = (0, 16)
"""Releases before it call the engine's process EngineCore_DP0."""
ONE_POOL_LINE_FROM = (0, 28)
INTERVAL_S = 10.0
GIB = 2**30


class Log:
    """Lines on standard error or in a file, each written out at once."""

    def __init__(self, options: Options) -> None:
        self.file: IO[str] = open(options.log_file, "a") if options.log_file else sys.stderr  # noqa: SIM115
        self.release = release(options.deployment)

    def info(self, process: str, place: str, message: str) -> None:
        """One line of an engine's process, from ``place`` in its source."""
        who = ""
        if self.release >= PROCESSES_NAMED_FROM:
            rank = "_DP0" if process != "APIServer" and self.release < RANK_NAMED_TO else ""
            who = f"({process}{rank} pid={os.getpid()}) "
        self.plain(f"{who}INFO {time.strftime('%m-%d %H:%M:%S')} [{place}] {message}")

    def plain(self, line: str) -> None:
        """A line as it is."""
        self.file.write(line + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file, where it is one."""
        if self.file is not sys.stderr:
            self.file.close()


def start(log: Log, options: Options, found: Memory) -> None:
    """What a start-up says, up to the server's own lines."""
    dep, flags = options.deployment, options.deployment.resolved()
    version = resolve_version(dep.engine, dep.engine_version)
    log.plain(f"inferometer {__version__} emulates this server: no model is run, times are simulated")
    log.info("APIServer", "api_server.py:1", f"vLLM API server version {version}")
    log.info("APIServer", "utils.py:1", f"non-default args: {_given(options)}")
    log.info("APIServer", "model.py:1", f"Using max model len {found.max_model_len}")
    if flags.enable_chunked_prefill:
        budget = flags.max_num_batched_tokens
        log.info("APIServer", "scheduler.py:1", f"Chunked prefill is enabled with max_num_batched_tokens={budget}.")
    if flags.async_scheduling:
        log.info("APIServer", "vllm.py:1", "Asynchronous scheduling is enabled.")
    log.info(
        "EngineCore", "core.py:1", f"Initializing a V1 LLM engine (v{version}) with config: {_config(options, found)}"
    )
    for line in memory_lines(log.release, options, found):
        log.info("EngineCore", *line)


def memory_lines(release: tuple[int, int], options: Options, found: Memory) -> list[tuple[str, str]]:
    """The lines that say where memory went: place in the source, message."""
    terms = {term.name: term.bytes for term in found.terms}
    pool = f"GPU KV cache size: {found.kv_cache_tokens:,} tokens"
    most = f"Maximum concurrency for {found.max_model_len:,} tokens per request: {found.max_concurrency:.2f}x"
    weights = found.weight_bytes_per_rank / GIB
    lines = [("gpu_model_runner.py:1", f"Model loading took {weights:.2f} GiB memory and 0.000000 seconds")]
    lines.append(("gpu_worker.py:1", f"Available KV cache memory: {found.kv_pool_bytes / GIB:.2f} GiB"))
    if release >= ONE_POOL_LINE_FROM:
        lines.append(("kv_cache_utils.py:1", f"{pool}, {most}"))
    else:
        lines += [("kv_cache_utils.py:1", pool), ("kv_cache_utils.py:2", most)]
    if cudagraph_sizes(options.deployment.resolved()):
        graphs = terms.get("CUDA graphs", 0) / GIB
        lines.append(("gpu_model_runner.py:2", f"Graph capturing finished in 0 secs, took {graphs:.2f} GiB"))
    return [*lines, ("core.py:2", "init engine (profile, create kv cache, warmup model) took 0.00 s")]


def ready(log: Log, address: str) -> None:
    """The server listens."""
    log.info("APIServer", "entry.py:1", f"Starting vLLM server on {address}")
    log.plain(f"INFO:     Started server process [{os.getpid()}]")
    log.plain("INFO:     Waiting for application startup.")
    log.plain("INFO:     Application startup complete.")


class Interval:
    """The line that an engine writes every ten seconds while it has something to do, and once after."""

    def __init__(self, index: int, scheduler: LiveScheduler) -> None:
        self.index, self.scheduler = index, scheduler
        self.since_s = time.monotonic()
        self.prompt = self.generated = 0
        self.was_busy = False

    def line(self, prompt_tokens: int, generation_tokens: int, now_s: float) -> str | None:
        """The line for what was counted since the last one; None where nothing happened in two intervals."""
        passed, s = max(now_s - self.since_s, 1e-9), self.scheduler
        prompt, generated = (prompt_tokens - self.prompt) / passed, (generation_tokens - self.generated) / passed
        self.since_s, self.prompt, self.generated = now_s, prompt_tokens, generation_tokens
        busy = bool(prompt or generated or s.has_work)
        said, self.was_busy = busy or self.was_busy, busy
        usage = 100 * (1 - s.free / s.rules.blocks)
        return (
            f"Engine {self.index:03d}: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generated:.1f} tokens/s, Running: {len(s.running)} reqs, "
            f"Waiting: {s.queued} reqs, GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 0.0%"
            if said
            else None
        )


def _given(options: Options) -> dict[str, object]:
    """The arguments that are not the engine's defaults."""
    dep = options.deployment
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    given: dict[str, object] = {"model_tag": dep.model.name, "host": options.host, "port": options.port}
    given["model"] = dep.model.name
    given |= {name: getattr(dep, name) for name in sizes if getattr(dep, name) > 1}
    given |= {"enable_expert_parallel": True} if dep.enable_expert_parallel else {}
    given |= {name: getattr(dep, name) for name in ("dtype", "kv_cache_dtype") if getattr(dep, name) != "auto"}
    given |= {"quantization": dep.quantization} if dep.quantization else {}
    given |= {"served_model_name": [options.served_model_name]} if options.served_model_name else {}
    return given | {name.replace("-", "_"): value for name, value in dep.flags.items()}


def _config(options: Options, found: Memory) -> str:
    """The engine's line of settings: those that the emulator has."""
    dep, flags = options.deployment, options.deployment.resolved()
    dtype = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}[dep.activation_dtype]
    settings: dict[str, object] = {
        "model": repr(dep.model.name),
        "speculative_config": None,
        "dtype": dtype,
        "max_seq_len": found.max_model_len,
        "tensor_parallel_size": dep.tensor_parallel_size,
        "pipeline_parallel_size": dep.pipeline_parallel_size,
        "data_parallel_size": dep.data_parallel_size,
        "quantization": dep.quantization,
        "enforce_eager": flags.enforce_eager,
        "kv_cache_dtype": dep.kv_cache_dtype,
        "device_config": "cuda",
        "seed": options.seed,
        "served_model_name": options.model_name,
        "enable_prefix_caching": flags.enable_prefix_caching,
        "enable_chunked_prefill": flags.enable_chunked_prefill,
    }
    return ", ".join(f"{name}={value}" for name, value in settings.items())
