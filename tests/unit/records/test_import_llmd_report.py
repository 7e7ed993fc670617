"""llm-d benchmark reports: a unit a figure, and names that mean what the tool behind them means."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferometer.errors import FormatError
from inferometer.records.importers import llmd_report, load
from shared import shared

FOLDER = "data/bench_outputs/llmd-benchmark-report/"
VLLM, AIPERF, IPERF, GUIDELLM = (
    FOLDER + f"from_{name}"
    for name in ("vllm.br0.2.yaml", "aiperf.br0.2.yaml", "iperf.br0.2.yaml", "guidellm.br0.2_0.yaml")
)
VERSION_FIRST = "data/bench_outputs/inference-perf/inference-perf.partial.stage_0.yaml"


def edited(source: Path, folder: Path, change: Callable[[Any], object]) -> Path:
    report = yaml.safe_load(source.read_text())
    change(report)
    path = folder / source.name
    path.write_text(yaml.safe_dump(report))
    return path


def outcome(path: Path) -> tuple[str, list[str]]:
    """Why the file is refused, or else the notes of its run."""
    try:
        (run,) = load(path)
    except FormatError as error:
        return str(error), []
    return "", run.meta.notes


def aggregate(report: Any) -> Any:
    return report["results"]["request_performance"]["aggregate"]


@pytest.mark.parametrize(
    ("report", "original"),
    [
        (VLLM, "data/bench_outputs/vllm_bench/vllm-0.33.0_detailed.json"),
        (AIPERF, "data/bench_outputs/aiperf/profile_export_aiperf.json"),
        (IPERF, "data/bench_outputs/inference-perf/stage_0_lifecycle_metrics.json"),
        (GUIDELLM, "data/bench_outputs/guidellm/guidellm-0.8.1_concurrent1.json"),
    ],
)
def test_a_converted_report_says_what_its_original_says(report: str, original: str) -> None:
    (theirs,), (ours,) = load(shared(report)), load(shared(original))
    compared = 0
    for path, value in theirs.meta.stated.items():
        if path in ours.meta.stated and path != "duration_s":
            assert value == pytest.approx(ours.meta.stated[path], rel=1e-9), path
            compared += 1
    assert compared >= 18
    assert theirs.meta.tool == ours.meta.tool
    assert theirs.summary().tpot_s.mean == pytest.approx(0.02, abs=0.0003)


def test_units_differ_from_figure_to_figure() -> None:
    (run,) = load(shared(GUIDELLM))  # request_latency in s, time_to_first_token in ms
    s = run.summary()
    assert (s.e2e_s.mean, s.ttft_s.mean) == (pytest.approx(0.3549997329711915), pytest.approx(0.05733537673950195))
    assert (run.meta.model, run.meta.duration_s) == ("mock", pytest.approx(1.7949848175048828))


def test_fault_23_what_a_tool_calls_itl() -> None:
    itl = {name: load(shared(name))[0].summary().itl_s.mean for name in (VLLM, IPERF, AIPERF, GUIDELLM)}
    assert itl[VLLM] == pytest.approx(0.02000521050666066)
    assert itl[IPERF] == pytest.approx(0.019965144933333553)
    assert (itl[AIPERF], itl[GUIDELLM]) == (None, None)  # (E2E - TTFT) / (n - 1), and a mean a request


def test_a_mean_weighed_by_tokens_is_no_tpot_where_lengths_differ(tmp_path: Path) -> None:
    def unequal(report: Any) -> None:
        aggregate(report)["requests"]["output_length"]["min"] = 2.0

    (run,) = load(edited(shared(GUIDELLM), tmp_path, unequal))
    assert run.summary().tpot_s.mean is None
    assert run.meta.stated["guidellm.inter_token_latency_s.mean"] == pytest.approx(0.019821786880493164)


def test_load_and_totals() -> None:
    (run,) = load(shared(VLLM))
    s = run.summary()
    assert (run.meta.concurrency, run.meta.request_rate_per_s) == (1, None)  # rate_qps: .inf
    assert (s.requests, s.completed, s.failed, s.prompt_tokens, s.output_tokens) == (5, 5, 0, 747, 80)
    (run,) = load(shared(IPERF))
    assert (run.meta.concurrency, run.meta.request_rate_per_s) == (1, None)  # its rate of 5 has no meaning there
    assert run.meta.duration_s == pytest.approx(3.026)


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_the_schemas_own_example(version: str, tmp_path: Path) -> None:
    source = files("llmd_benchmark_report") / f"br_v{version.replace('.', '_')}_example.yaml"
    path = tmp_path / "example.yaml"
    path.write_text(source.read_text())
    (run,) = load(path)
    s = run.summary()
    if version == "0.2":
        assert (run.meta.model, run.meta.chip) == ("Qwen/Qwen3-0.6B", "NVIDIA-H100-80GB-HBM3")
        assert (run.meta.deployment["tp"], run.meta.deployment["engine"]) == (8, "llm-d")
        assert (run.meta.request_rate_per_s, run.meta.duration_s) == (10.0, pytest.approx(49.97206788184121))
        assert (s.ttft_s.p99, s.requests) == (0.05029489721637218, 500)
        assert any("results.observability" in note for note in run.meta.notes)
    else:
        assert run.meta.model == "deepseek-ai/DeepSeek-R1-0528"
        assert (s.ttft_s.mean, s.requests, s.completed) == (pytest.approx(0.000800974442732916), 32, 31)  # in ms
        assert s.output_tok_per_s == pytest.approx(32.544923821416)


def test_json_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(yaml.safe_load(shared(VLLM).read_text()) | {}, default=str))
    assert load(path)[0].summary() == load(shared(VLLM))[0].summary()


def test_newer_versions_and_unknown_sections(tmp_path: Path) -> None:
    (run,) = load(edited(shared(VLLM), tmp_path, lambda r: r.update(version="0.3", verdict="good")))
    assert run.meta.notes[0] == "version 0.3 is newer than 0.2.1: read as far as known; skipped: verdict"
    (run,) = load(edited(shared(VLLM), tmp_path, lambda r: r["results"].update(profiling={"x": 1})))
    assert run.meta.notes == ["sections not read: results.profiling"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: aggregate(r)["latency"]["time_to_first_token"].update(units="count"), "time_to_first_token, unit"),
        (lambda r: aggregate(r)["latency"]["request_latency"].pop("units"), "request_latency, unit"),
        (lambda r: aggregate(r)["throughput"]["request_rate"].update(units="tokens/s"), "request_rate, units"),
        (lambda r: r["run"]["time"].update(duration="5 minutes"), "duration"),
        (lambda r: [aggregate(r).pop(key) for key in ("latency", "throughput")], "neither latency nor throughput"),
        (lambda r: r.pop("version"), "no version"),
    ],
)
def test_what_is_wrong_is_refused_by_name(tmp_path: Path, change: Any, says: str) -> None:
    path = edited(shared(VLLM), tmp_path, change)
    with pytest.raises(FormatError, match=says) as error:
        load(path)
    assert str(error.value).startswith(path.name)


@pytest.mark.parametrize("file", [VLLM, AIPERF, IPERF, GUIDELLM, VERSION_FIRST])
def test_cut_files_are_refused_or_say_what_they_lack(tmp_path: Path, file: str) -> None:
    data = shared(file).read_bytes()
    path = tmp_path / "cut.yaml"
    last_line = len(data.rstrip().rpartition(b"\n")[0])
    for cut in range(0, last_line - 1, 61):
        path.write_bytes(data[:cut])
        refused, notes = outcome(path)
        assert notes or refused.startswith("cut.yaml:"), cut


def test_other_yaml_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("load:\n  type: constant\n")
    (tmp_path / "broken.yml").write_text("a: [1,\n")
    (tmp_path / "report.yaml").write_text(shared(VLLM).read_text())
    assert [run.meta.source for run in load(tmp_path)] == ["report.yaml"]


def test_a_folder_of_different_reports_keeps_them_all() -> None:
    assert len(load(shared(FOLDER))) == 4


def test_sniff_takes_no_other_tools_file() -> None:
    others = [p for p in shared("data/bench_outputs").rglob("*") if p.is_file() and "br0.2" not in p.name]
    taken = [path.name for path in others if llmd_report.sniff(path)]
    assert taken == ["inference-perf.partial.stage_0.yaml"]  # inference-perf writes such a report itself
