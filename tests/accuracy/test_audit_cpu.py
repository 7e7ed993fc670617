"""The audit on a real engine's sweeps: nothing is wrong with the clean ones, and the cached ones are found.

Both with what the client wrote alone, and joined with the server's pages and log. The founding sweep, too: its first
point is the one that its author found to be below the compute floor of its prompt.
"""

from __future__ import annotations

from functools import cache

import pytest

import inferometer as im
from inferometer.cli import founding_sweep
from inferometer.records.run import Run
from inferometer.scoring.audit import Finding, audit
from shared import shared

CLEAN = ("main_clean/c1", "main_clean/c2", "main_clean/c4", "main_clean/c8", "main_rerun/c32b")
CACHED = ("prefix/prefix_on_c4", "prefix/prefix_on_c8")
CONTAMINATION = {
    "ttft_below_prefill_floor", "tpot_below_weight_floor", "prefix_cache_hits", "prompts_shared_between_points",
    "token_counts_disagree", "server_flags_differ",
}  # fmt: skip
CAUTIONS = {"few_requests", "warmup_in_window", "lockstep", "decode_stalls"}
"""What is true of these sweeps: 12 to 96 requests a point, the first burst among them, all of one length."""


@cache
def cpu() -> im.Deployment:
    """One thread of the machine, by its best measured rates in ``ceilings.json``."""
    rates = {"bandwidth_bytes_per_s": 35.9e9, "flops_per_s": {"bf16": 485e9}}
    chip = im.chip({"id": "cpu", "memory_bytes": 24 * 2**30, **rates})
    return im.Deployment(model=im.model(str(shared("data/cpu_engine/model/config.json"))), chip=chip)


@cache
def alone(name: str) -> Run:
    return im.load(shared(f"data/cpu_engine/{name}.json"))[0]


@cache
def joined(name: str) -> Run:
    """With the pages of ``/metrics`` that were saved beside it, and with its server's log."""
    attach = pytest.importorskip("inferometer.records.attach")
    log = shared(f"data/cpu_engine/{name.partition('/')[0]}.server.log")
    joined: Run = attach.with_server(alone(name), shared(f"data/cpu_engine/{name}.metrics.prom"), log)
    return joined


def codes(found: list[Finding]) -> set[str]:
    return {finding.code for finding in found}


@pytest.mark.parametrize("read", [alone, joined])
def test_the_clean_sweeps_are_clean(read) -> None:
    found = audit([read(name) for name in CLEAN], cpu())
    assert not codes(found) & CONTAMINATION
    assert {finding.severity for finding in found} == {"caution"}
    assert codes(found) == CAUTIONS


@pytest.mark.parametrize("name", CLEAN)
def test_each_clean_point_alone_is_clean(name: str) -> None:
    assert {finding.severity for finding in audit(joined(name), cpu())} == {"caution"}


def test_the_shared_prefixes_are_found_by_the_counters() -> None:
    """18,432 of 23,040 tokens hit at C=4 (the data's README): 80 %."""
    found = [finding for finding in audit([joined(name) for name in CACHED]) if finding.code == "prefix_cache_hits"]
    assert [(finding.where, finding.severity) for finding in found] == [("C=4", "spoils"), ("C=8", "spoils")]
    assert found[0].value == pytest.approx(0.80, abs=0.03)


def test_the_shared_prefixes_are_found_by_physics_alone() -> None:
    """576 tokens take at least 478 ms on 485 GFLOP/s; the fastest first token came after 113 ms."""
    found = [f for f in audit(alone(CACHED[0]), cpu()) if f.code == "ttft_below_prefill_floor"]
    assert [(f.where, f.value) for f in found] == [("C=4", pytest.approx(0.1132, abs=1e-4))]
    assert found[0].limit == pytest.approx(576 * 402.7e6 / 485e9, rel=0.01)


def test_sweeps_of_two_servers_are_told_apart() -> None:
    found = audit([joined(CLEAN[2]), joined(CACHED[1])])
    (differ,) = [finding for finding in found if finding.code == "server_flags_differ"]
    assert "enable_prefix_caching" in differ.evidence


def test_a_stall_is_laid_to_the_prompts_that_the_log_saw_in_its_step() -> None:
    """At 32 users prefill steps carry up to 2,048 tokens beside the running decodes, and ITL p99 is one such step."""
    (stall,) = [finding for finding in audit(joined("main_rerun/c32b")) if finding.code == "decode_stalls"]
    assert "prompt tokens (median)" in stall.evidence


def test_the_founding_sweep() -> None:
    """C=1: 23 ms where computing 1,024 tokens takes 53 ms; every other point is above it."""
    found = audit(founding_sweep.runs(), im.load_study(founding_sweep.STUDY).base.deployment)
    (spoils,) = [finding for finding in found if finding.severity == "spoils"]
    assert (spoils.code, spoils.where) == ("ttft_below_prefill_floor", "C=1")
    assert "23 ms" in spoils.evidence
    assert "53 ms" in spoils.evidence
    assert {finding.severity for finding in found} == {"spoils", "caution"}
    assert not codes(found) & (CONTAMINATION - {"ttft_below_prefill_floor"})
