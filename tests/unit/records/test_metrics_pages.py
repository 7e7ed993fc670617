"""Saved pages of /metrics as a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer.errors import FormatError
from inferometer.records.importers import metrics_pages, request_table, server_log, sweep_table, vllm_bench
from shared import shared

FOLDER = "data/cpu_engine/"


def test_a_genuine_series_of_pages() -> None:
    path = shared(FOLDER + "prefix/prefix_on_c4.metrics.prom")
    assert metrics_pages.sniff(path)
    (run,) = metrics_pages.read(path)
    result = json.loads(shared(FOLDER + "prefix/prefix_on_c4.json").read_text())
    assert (run.meta.tool, run.meta.model, run.meta.name) == ("vllm /metrics", "q3s", "prefix_on_c4")
    assert run.server.height == 30
    assert run.server["time_s"][0] == 0.0
    assert run.meta.duration_s == run.server["time_s"][-1]
    assert run.meta.duration_s == pytest.approx(29, abs=0.1)
    assert run.meta.started_unix_s is not None
    assert run.server["running"].max() == 4
    assert run.meta.counters["requests_finished"] <= result["completed"]
    assert run.meta.counters["prefix_cache_hits"] == 18432
    assert run.requests.height == 0
    assert run.summary().running is not None


def test_one_whole_page_counts_since_the_servers_start() -> None:
    (run,) = metrics_pages.read(shared(FOLDER + "metrics_full_idle.txt"))
    assert run.server.height == 1
    assert run.meta.counters["generation_tokens"] == 6
    assert run.meta.counters["ttft_s.count"] == 1
    assert run.meta.server["cache_config"]["num_gpu_blocks"] == 512
    assert run.meta.started_unix_s is None
    assert run.meta.duration_s is None


def test_llama_cpp_and_gpu_pages(tmp_path: Path) -> None:
    assert metrics_pages.sniff(shared(FOLDER + "llama_server_metrics.txt"))
    path = tmp_path / "gpu.prom"
    path.write_text('# ts 10\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\n# ts 11.5\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 70\n')
    assert metrics_pages.sniff(path)
    (run,) = metrics_pages.read(path)
    assert run.meta.tool == "GPU /metrics"
    assert run.server["time_s"].to_list() == [0.0, 1.5]
    assert run.server["gpu_util"].to_list() == pytest.approx([0.5, 0.7])


def test_no_importer_takes_anothers_file() -> None:
    page = shared(FOLDER + "tiny_eager/tiny_c8.metrics.prom")
    assert not any(importer.sniff(page) for importer in (vllm_bench, request_table, sweep_table, server_log))
    files = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file()]
    files += [*shared(FOLDER).glob("*.log"), *shared(FOLDER).glob("*.csv"), *shared("data").glob("*.csv")]
    assert len(files) > 20
    assert [p.name for p in files if metrics_pages.sniff(p)] == []


@pytest.mark.parametrize("text", ["", "{}", "process_cpu_seconds_total 3\n", "# vllm:num_requests_running\n"])
def test_other_text_is_not_taken_and_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.prom"
    path.write_text(text)
    assert not metrics_pages.sniff(path)
    with pytest.raises(FormatError, match=r"page\.prom: no sample of a known engine"):
        metrics_pages.read(path)


def test_a_series_cut_off_in_mid_page_is_read_with_a_note(tmp_path: Path) -> None:
    text = shared(FOLDER + "tiny_eager/tiny_c8.metrics.prom").read_text()
    path = tmp_path / "cut.prom"
    path.write_text(text[: text.rindex('engine="0"')])
    (run,) = metrics_pages.read(path)
    assert run.server.height == 9
    assert any("malformed" in note for note in run.meta.notes)


@pytest.mark.parametrize(
    ("stamps", "says"),
    [
        (("2026.11.29", "3"), "2026.11.29"),
        (("1", "."), "seconds since 1970"),
        (("5", "0"), "not before"),
        (("9" * 20, "9" * 20), "years 1 to 9999"),
        (("1", "9" * 400), "seconds since 1970"),
    ],
)
def test_a_stamp_that_is_no_time_or_goes_back_is_refused(tmp_path: Path, stamps: tuple[str, str], says: str) -> None:
    path = tmp_path / "gpu.prom"
    path.write_text("".join(f'# ts {stamp}\nDCGM_FI_DEV_GPU_UTIL{{gpu="0"}} 50\n' for stamp in stamps))
    with pytest.raises(FormatError, match=says) as error:
        metrics_pages.read(path)
    assert str(error.value).startswith("gpu.prom:")
