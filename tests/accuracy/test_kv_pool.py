"""The KV pool against vLLM's own start-up figures on H100 (in sample) and the founding A100's."""

from __future__ import annotations

import statistics
import sys

import pytest
from tests.shared import ROOT, shared

sys.path.insert(0, str(ROOT / "benchmarks"))

import kv_pool


@pytest.fixture(scope="module")
def results() -> list[kv_pool.Result]:
    shared(kv_pool.ROWS)
    return kv_pool.results(shared("."))


def test_mean_and_median_error_of_the_pool(results: list[kv_pool.Result]) -> None:
    errors = [abs(r.error_pct) for r in results if r.error_pct is not None]
    assert len(results) == 49
    assert len(errors) >= 38
    assert statistics.mean(errors) <= 2.0
    assert statistics.median(errors) <= 0.5


def test_tokens_of_the_pipeline_rows_whose_printed_gib_is_another_stages(results: list[kv_pool.Result]) -> None:
    stages = [r.token_error_pct for r in results if r.row["pp"] in ("2", "4")]
    assert len(stages) == 2
    assert all(e is not None and abs(e) < 0.5 for e in stages)


def test_the_peer_is_further_off_on_its_own_rows(results: list[kv_pool.Result]) -> None:
    rows = [
        (abs(r.error_pct), abs(r.peer_error_pct))
        for r in results
        if r.error_pct is not None and r.peer_error_pct is not None
    ]
    assert statistics.mean(ours for ours, _ in rows) < 0.5 * statistics.mean(theirs for _, theirs in rows)


def test_qwen3_14b_at_tp_5_is_refused_with_the_reason() -> None:
    shared(kv_pool.ROWS)
    assert "8 KV heads" in kv_pool.refused(shared("."))


def test_the_founding_a100_pool() -> None:
    found = kv_pool.founding()
    assert found.kv_cache_tokens == pytest.approx(410_240, rel=0.02)


def test_rows_that_gave_no_constant() -> None:
    """Gemma-4-26B on A100, vLLM 0.19, pasted by a user: 21.5 GiB."""
    found = kv_pool.memory(
        kv_pool.Deployment(
            model=kv_pool.model("google/gemma-4-26B-A4B"),
            chip=kv_pool.chip("a100-sxm4-80gb"),
            engine_version="0.19.0",
            flags={"gpu_memory_utilization": 0.9, "max_model_len": 131_072, "enforce_eager": True},
        )
    )
    assert found.kv_pool_bytes / kv_pool.GIB == pytest.approx(21.5, rel=0.02)
