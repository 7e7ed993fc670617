"""The reports of the documentation are what the program writes of the same files."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from tests.shared import shared

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "docs/reports"


def make_reports() -> Any:
    spec = importlib.util.spec_from_file_location("make_reports", ROOT / "scripts/make_reports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if name.startswith("cpu"):
        monkeypatch.setenv("INFEROMETER_SHARED", str(shared("data/cpu_engine").parents[1]))
    folder = make_reports().write(name, tmp_path, "md,svg")
    pictures = {path.name for path in folder.glob("*.svg")}
    assert pictures == {path.name for path in (COMMITTED / name).glob("*.svg")}
    return (folder / "report.md").read_text()


@pytest.mark.parametrize("name", ["a100-qwen3-8b", "cpu-vllm-q3s"])
def test_the_committed_report_is_what_the_program_writes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(name, tmp_path, monkeypatch) == (COMMITTED / name / "report.md").read_text(), (
        "python scripts/make_reports.py writes it anew"
    )


def test_the_founding_report_tells_the_seeds_story() -> None:
    """Each figure is the founding documents' own (vectors/seeds.json), not the program's."""
    text = (COMMITTED / "a100-qwen3-8b/report.md").read_text()
    assert "TTFT p50 23 ms, below the 53 ms compute floor" in text
    assert re.search(r"TPOT 21\.\d ms at C=128, measured 41\.0: 1\.9x\. Prefill shares the steps", text)
    assert "fixed overhead" in text
    assert "does not amortise" in text
    assert re.search(r"fit a token budget of 2,048 \(.*not .*8,192", text)
    assert "a gap of 1.75x to 4.83x" in text
    assert "It holds at all 8 points" in text
    assert "| output_tok_per_s@64 | 5,060 | 2,470 | 2,500 | +102 |" in text
    assert "| memory.num_gpu_blocks | 22,959 | 25,577 | 25,640 | -10.5 |" in text
    assert "![Throughput against load](throughput.svg)" in text
    assert "![Time to first token](ttft.svg)" in text
    for number in range(1, 6):
        assert f"**{number}.**" in text
