from __future__ import annotations

from pathlib import Path

import pytest

import inferometer as im
from inferometer.emulator import startup_log
from inferometer.emulator.options import Options
from inferometer.emulator.scheduler import LiveScheduler
from inferometer.errors import InputError
from inferometer.records.engine_log import read_log
from inferometer.sim.rules import Rules
from live_engine import tiny_costs


def written(folder: Path, version: str, **flags: object) -> str:
    dep = im.Deployment(
        model=im.model("Qwen/Qwen3-8B"),
        chip=im.chip("a100-sxm4-80gb"),
        engine_version=version,
        flags={"max_model_len": 8192, **flags},
    )
    options = Options(deployment=dep, log_file=str(folder / "server.log"))
    log = startup_log.Log(options)
    startup_log.start(log, options, im.memory(dep))
    startup_log.ready(log, "http://127.0.0.1:8000")
    log.close()
    return (folder / "server.log").read_text()


@pytest.mark.parametrize("version", ["0.9.2", "0.19.0", "0.26.0", "0.32.0"])
def test_our_own_reader_of_engine_logs_finds_the_memory_models_figures(tmp_path: Path, version: str):
    written(tmp_path, version)
    found = im.memory(
        im.Deployment(
            model=im.model("Qwen/Qwen3-8B"),
            chip=im.chip("a100-sxm4-80gb"),
            engine_version=version,
            flags={"max_model_len": 8192},
        )
    )
    read = read_log(tmp_path / "server.log")
    assert (read.engine, read.version, read.model) == ("vllm", version, "Qwen/Qwen3-8B")
    assert read.kv_cache_tokens == found.kv_cache_tokens
    assert read.max_model_len == found.max_model_len == 8192
    assert read.max_concurrency == pytest.approx(found.max_concurrency, abs=0.006)
    assert read.kv_cache_memory_bytes == pytest.approx(found.kv_pool_bytes, abs=0.006 * 2**30)
    assert read.weight_bytes == pytest.approx(found.weight_bytes_per_rank, abs=0.006 * 2**30)
    assert read.max_num_batched_tokens == 2048
    assert read.flags["max_model_len"] == 8192
    assert read.ready_unix_s is not None


def test_the_pool_is_two_lines_to_0_26_and_one_from_0_28(tmp_path: Path):
    old, new = written(tmp_path, "0.26.0"), written(tmp_path, "0.28.0")
    assert "GPU KV cache size: 409,232 tokens\n" in old
    assert "tokens, Maximum concurrency for 8,192 tokens per request: " in new.split("version 0.28.0")[1]


def test_eager_engines_capture_no_graphs(tmp_path: Path):
    assert "Graph capturing" not in written(tmp_path, "0.32.0", enforce_eager=True)
    assert "Graph capturing finished in 0 secs, took 0.50 GiB" in written(tmp_path, "0.32.0")


def test_the_line_of_an_interval_says_rates_and_falls_silent():
    scheduler = LiveScheduler(Rules(max_num_seqs=2, max_num_batched_tokens=16, blocks=40), tiny_costs(2, 16))
    interval = startup_log.Interval(1, scheduler)
    interval.since_s = 100.0
    assert interval.line(0, 0, 110.0) is None
    line = interval.line(500, 1234, 120.0)
    assert line is not None
    assert line.startswith(
        "Engine 001: Avg prompt throughput: 50.0 tokens/s, Avg generation throughput: 123.4 tokens/s"
    )
    assert "Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%" in line
    assert ": 0.0 tokens/s, Avg" in (interval.line(500, 1234, 130.0) or "")
    assert interval.line(500, 1234, 140.0) is None


@pytest.mark.parametrize("bad", [{"time_scale": 0.0}, {"port": 70000}, {"seed": -1}, {"template_tokens": -1}])
def test_options_that_cannot_be_are_refused(bad: dict[str, float]):
    dep = im.load_study("a100-qwen3-8b").base.deployment
    with pytest.raises(InputError, match="--" + next(iter(bad)).replace("_", "-")):
        Options(deployment=dep, **bad)  # type: ignore[arg-type]
