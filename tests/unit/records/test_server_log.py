"""A server's log alone as a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import request_table, server_log, sweep_table, vllm_bench
from shared import shared

FOLDER = "data/cpu_engine/"


def test_a_genuine_log() -> None:
    path = shared(FOLDER + "main_clean.server.log")
    assert server_log.sniff(path)
    (run,) = server_log.read(path)
    assert run.meta.kind == "imported"
    assert (run.meta.tool, run.meta.tool_version, run.meta.model) == ("vllm log", "0.32.0", "models/q3s")
    assert run.meta.source == "main_clean.server.log"
    assert run.meta.server["kv_cache_tokens"] == 65536
    assert run.meta.server["flags"]["max_num_batched_tokens"] == 2048
    assert run.meta.duration_s == 192
    assert run.requests.height == 0
    assert run.server.height == 4499 + 15
    assert run.server["line"].value_counts().sort("line")["count"].to_list() == [15, 4499]
    assert run.server["running"].max() == 8
    assert any("no requests are known" in note for note in run.meta.notes)


def test_its_summary_has_no_latencies_but_the_servers_load() -> None:
    (run,) = server_log.read(shared(FOLDER + "main_rerun.server.log"))
    summary = run.summary()
    assert summary.requests == 0
    assert summary.ttft_s.mean is None
    assert summary.running is not None
    assert 10 < summary.running < 32


def test_a_log_of_the_start_only() -> None:
    (run,) = server_log.read(shared(FOLDER + "startup_first_cold.log"))
    assert run.server.height == 0
    assert run.meta.server["init_engine_s"] == 61.27


def test_no_other_importer_takes_a_log_and_this_one_takes_nothing_else() -> None:
    log = shared(FOLDER + "prefix.server.log")
    assert not any(importer.sniff(log) for importer in (vllm_bench, request_table, sweep_table))
    others = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file()]
    assert len(others) > 5
    assert [p.name for p in others if server_log.sniff(p)] == []


@pytest.mark.parametrize(
    "text",
    [
        "[2025-11-10 20:00:01 TP0] Decode batch. #running-req: 17, #token: 137, token usage: 0.05, #queue-req: 97\n",
        "INFO 02-28 21:40:10 gpu_executor.py:122] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 4.9 "
        "tokens/s, Running: 2 reqs, Swapped: 1 reqs, Pending: 3 reqs, GPU KV cache usage: 82.1%\n",
        "llama_kv_cache: size =  544.00 MiB (  8192 cells,  16 layers,  1/1 seqs), K (f16):  272.00 MiB\n",
    ],
)
def test_logs_of_several_engines_are_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(text)
    assert server_log.sniff(path)
    assert server_log.read(path)[0].meta.tool in ("sglang log", "vllm log", "llamacpp log")


@pytest.mark.parametrize("text", ["", '{"log": "Avg prompt throughput: 1"}', '[1, "Decode batch"]', "hello\n"])
def test_what_is_no_log_is_not_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    assert not server_log.sniff(path)


def test_a_file_that_is_not_there_is_not_taken(tmp_path: Path) -> None:
    assert not server_log.sniff(tmp_path / "absent.log")


def test_a_log_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("hello\n")
    with pytest.raises(FormatError, match=r"x\.log: no line of a known engine; expected the log of vLLM"):
        server_log.read(path)
