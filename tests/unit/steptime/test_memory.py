"""The memory budget: the pool as the engine finds it, groups of layers, stages, and the simple model."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferometer as im
from inferometer.errors import InputError
from inferometer.specs.chip import chip
from inferometer.specs.deployment import Deployment
from inferometer.specs.model import Model, model
from inferometer.steptime.kv_layout import kv_layout
from inferometer.steptime.memory import GIB, MIB, memory, pool_blocks, rounding_bytes, stages, what_would_fit

LAB = Model(name="lab-70b", weight_bytes=140_000_000_000, layers=80, kv_heads=8, head_dim=128)


def deployment(name: str | Model = "Qwen/Qwen3-8B", card: str = "a100-sxm4-80gb", **more: Any) -> Deployment:
    return Deployment(model=model(name) if isinstance(name, str) else name, chip=chip(card), **more)


# ---------------------------------------------------------------- the founding documents


def test_the_founding_pool_within_a_third_of_a_percent() -> None:
    flags = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
    found = memory(deployment(engine_version="0.26.0", flags=flags))
    assert found.kv_bytes_per_token == 147_456
    assert found.bytes_per_block == 16 * 147_456
    assert found.kv_cache_tokens == pytest.approx(410_240, rel=3e-3)
    assert found.num_gpu_blocks == pytest.approx(25_640, rel=3e-3)
    assert found.kv_pool_bytes / GIB == pytest.approx(56.34, rel=3e-3)
    assert found.kv_cache_tokens == 16 * found.num_gpu_blocks


def test_the_simple_model_is_exact() -> None:
    node = deployment(LAB, tensor_parallel_size=8)
    found = memory(node, overhead_fraction=0.1)
    assert found.kv_pool_bytes == 492_475_290_624
    assert found.weight_bytes == 140_000_000_000
    assert found.kv_bytes_per_token == 327_680
    assert (found.fits, found.shortfall_bytes) == (True, 0)


def test_the_simple_model_says_by_how_much_one_card_is_too_small() -> None:
    found = memory(deployment(LAB), overhead_fraction=0.1)
    assert (found.fits, found.kv_pool_bytes, found.num_gpu_blocks) == (False, 0, 0)
    assert found.shortfall_bytes == 140_000_000_000 - 85_899_345_920


@pytest.mark.parametrize("overhead", [-0.1, 1.0, True])
def test_the_simple_models_overhead_is_a_share(overhead: float) -> None:
    with pytest.raises(InputError, match="overhead_fraction"):
        memory(deployment(LAB), overhead_fraction=overhead)


# ---------------------------------------------------------------- terms


@pytest.mark.parametrize("version", ["0.19.0", "0.26.0"])
def test_terms_add_up(version: str) -> None:
    dep = deployment(engine_version=version)
    found = memory(dep)
    size = {t.name: t.bytes for t in found.terms}
    taken = ["weights", "allocator rounding", "tables and copies", "activation peak", "non-torch", "KV pool"]
    taken += ["CUDA graphs"] if version == "0.26.0" else []
    assert size["total"] == size["requested"] + size["outside the engine"]
    assert size["requested"] == sum(size[name] for name in taken)
    for term in found.terms:
        assert term.low_bytes <= term.bytes <= term.high_bytes, term
        assert term.origin in ("exact", "modelled", "calibrated", "reported")


def test_requested_is_the_ceiling_of_the_share() -> None:
    dep = deployment(flags={"gpu_memory_utilization": 0.9})
    requested = next(t.bytes for t in memory(dep).terms if t.name == "requested")
    assert requested == -(-dep.chip.total_memory_bytes * 9 // 10)


def test_graphs_are_taken_off_from_0_20_only_and_not_when_eager() -> None:
    flags = {"gpu_memory_utilization": 0.9}
    old, new = (memory(deployment(engine_version=v, flags=flags)) for v in ("0.19.0", "0.26.0"))
    eager = memory(deployment(engine_version="0.26.0", flags={**flags, "enforce_eager": True}))
    assert old.kv_pool_bytes == eager.kv_pool_bytes > new.kv_pool_bytes


def test_the_allocator_rounds_large_tensors_to_two_mib_but_splits_a_remainder_above_one() -> None:
    assert rounding_bytes(231 * 2 * MIB + MIB) == MIB
    assert rounding_bytes(231 * 2 * MIB + MIB // 2) == 0
    assert rounding_bytes(5 * MIB + 1) == 0


# ---------------------------------------------------------------- what does not fit


def test_weights_that_exceed_the_card_leave_exactly_nothing() -> None:
    dep = deployment("llama-3.1-70b")
    found = memory(dep)
    assert (found.fits, found.kv_pool_bytes, found.num_gpu_blocks, found.kv_cache_tokens) == (False, 0, 0, 0)
    assert found.max_concurrency == 0
    assert found.shortfall_bytes > 60 * GIB
    assert "exceed" in found.reason


def test_a_request_longer_than_the_pool_does_not_fit_and_a_shorter_limit_does() -> None:
    dep = deployment("llama-3.1-8b", "rtx-4090", flags={"max_model_len": 131_072})
    found = memory(dep)
    assert not found.fits
    assert "max_model_len" in found.reason
    shorter = next(a for a in what_would_fit(dep) if a.startswith("max_model_len="))
    length = int(shorter.split("=")[1])
    assert memory(deployment("llama-3.1-8b", "rtx-4090", flags={"max_model_len": length})).fits


def test_a_limit_left_to_the_model_is_shortened_to_what_fits_and_says_so() -> None:
    found = memory(deployment("llama-3.1-8b", "rtx-4090"))
    assert found.fits
    assert f"--max-model-len {found.max_model_len}" in found.note
    longer = {"max_model_len": found.max_model_len + found.block_size}
    assert memory(deployment("llama-3.1-8b", "rtx-4090", flags={"max_model_len": found.max_model_len})).fits
    assert not memory(deployment("llama-3.1-8b", "rtx-4090", flags=longer)).fits
    assert memory(deployment("qwen3-8b")).note == ""


def test_each_piece_of_advice_holds() -> None:
    dep = deployment("llama-3.1-70b", flags={"max_model_len": 8192})
    advice = what_would_fit(dep)
    assert "tensor_parallel_size=4" in advice
    assert "chip=b200-sxm-180gb" in advice
    assert memory(msgspec.structs.replace(dep, tensor_parallel_size=4)).fits
    assert what_would_fit(msgspec.structs.replace(dep, tensor_parallel_size=4)) == []


def test_a_little_more_room_flips_fits_at_the_shortfall() -> None:
    dep = deployment("llama-3.1-70b", flags={"max_model_len": 8192})
    short = memory(dep).shortfall_bytes
    for extra, fits in ((short - 2 * MIB, False), (short + 2 * MIB, True)):
        total = dep.chip.total_memory_bytes + math.ceil(extra / 0.92)
        larger = msgspec.structs.replace(dep.chip, reported_memory_bytes=total)
        assert (
            memory(msgspec.structs.replace(dep, chip=larger, flags={**dep.flags, "gpu_memory_utilization": 0.92})).fits
            is fits
        )


# ---------------------------------------------------------------- overrides


def test_blocks_and_bytes_may_be_given() -> None:
    blocks = memory(deployment(flags={"num_gpu_blocks_override": 3000}))
    assert (blocks.num_gpu_blocks, blocks.kv_cache_tokens) == (3000, 48_000)
    assert blocks.kv_pool_bytes == 3000 * blocks.bytes_per_block
    tiny = memory(deployment(flags={"num_gpu_blocks_override": 10}))
    assert (tiny.fits, tiny.num_gpu_blocks) == (True, 10)
    given_bytes = memory(deployment(flags={"kv_cache_memory_bytes": 10 * GIB}))
    assert given_bytes.kv_pool_bytes == 10 * GIB
    assert given_bytes.num_gpu_blocks == 10 * GIB // given_bytes.bytes_per_block


# ---------------------------------------------------------------- parallelism


def test_tensor_parallelism_replicates_kv_heads_beyond_their_number() -> None:
    eight, sixteen = (memory(deployment("llama-3.1-70b", tensor_parallel_size=tp)) for tp in (8, 16))
    assert eight.kv_bytes_per_token_per_rank == sixteen.kv_bytes_per_token_per_rank == 40_960
    assert sixteen.weight_bytes_per_rank < eight.weight_bytes_per_rank


def test_mla_latents_lie_whole_on_every_rank() -> None:
    found = memory(deployment("deepseek-v3", "h200-sxm-141gb", tensor_parallel_size=8))
    assert found.kv_bytes_per_token_per_rank == found.kv_bytes_per_token == 70_272


def test_the_last_stage_has_the_head_and_the_sampler_and_binds() -> None:
    dep = deployment("llama-3.1-8b", "h100-sxm-80gb", pipeline_parallel_size=4)
    first, *middle, last = stages(dep)
    assert [s.end - s.first for s in (first, *middle, last)] == [8, 8, 8, 8]
    assert first.weights > middle[0].weights < last.weights
    assert last.taken > first.taken
    found = memory(dep)
    assert found.weight_bytes_per_rank == last.weights
    assert found.kv_bytes_per_token_per_rank * 4 == found.kv_bytes_per_token


def test_layers_left_over_go_to_all_but_the_last_stage() -> None:
    sizes = [s.end - s.first for s in stages(deployment("qwen3-0.6b", pipeline_parallel_size=3))]
    assert sizes == [9, 10, 9]


@pytest.mark.parametrize("whole", [False, True])
def test_replicas_share_the_experts_cut_or_whole(whole: bool) -> None:
    alone = memory(deployment("qwen3-30b-a3b"))
    spread = memory(deployment("qwen3-30b-a3b", data_parallel_size=2, enable_expert_parallel=whole))
    assert spread.weight_bytes == alone.weight_bytes
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert alone.weight_bytes_per_rank - spread.weight_bytes_per_rank == experts // 2


# ---------------------------------------------------------------- hybrids


def test_gemma_3_groups_as_the_engine_does() -> None:
    flags = {"max_num_batched_tokens": 8192, "max_model_len": 131_072}
    dep = deployment("gemma-3-27b", "h200-sxm-141gb", engine_version="0.26.0", flags=flags)
    layout = kv_layout(dep)
    assert sorted(len(g.indices) for g in layout.groups) == [8, 8, 9, 9, 9, 9, 10]  # 10 full, 52 sliding in 6
    found = memory(dep)
    assert found.blocks_per_request == 8192 + 6 * 1089
    assert found.blocks_per_request * found.bytes_per_block / GIB == pytest.approx(18.0, abs=0.05)
    assert found.kv_cache_tokens == int(found.num_gpu_blocks / found.blocks_per_request * 131_072)


def test_before_0_21_the_engine_prints_blocks_over_groups() -> None:
    flags = {"max_model_len": 8192, "gpu_memory_utilization": 0.95}
    found = memory(deployment("gemma-2-27b", "h100-sxm-80gb", engine_version="0.19.0", flags=flags))
    assert found.kv_cache_tokens == found.num_gpu_blocks // 2 * 16
    assert found.max_concurrency == found.num_gpu_blocks / (512 + 513)


def test_blocks_grow_until_a_page_holds_a_recurrent_state() -> None:
    dep = deployment("qwen3.6-27b", "h200-sxm-141gb")
    layout = kv_layout(dep)
    pages = {p for g in layout.groups for p in g.pages}
    assert len(pages) == 1
    state = (3 * 10_240 * 2) + 48 * 128 * 128 * 4
    assert pages.pop() >= state
    assert layout.block_size % 16 == 0
    assert layout.block_size > 16
    assert sorted(len(g.indices) for g in layout.groups) == [16, 16, 16, 16]
    assert memory(dep).state_bytes_per_sequence == 48 * state


def test_pool_blocks_are_the_engines_own_for_plain_attention_and_scaled_for_windows() -> None:
    plain = deployment()
    assert pool_blocks(plain, memory(plain), 2048) == memory(plain).num_gpu_blocks
    windows = deployment("gemma-3-27b", "h200-sxm-141gb")
    found = memory(windows)
    layout = kv_layout(windows)
    # while it decodes a request holds all of its tokens in the full group, a window and two blocks in each other
    full = sum(g.layer.kind == "full" for g in layout.groups)
    held = full * 2048 + (len(layout.groups) - full) * (1024 // 16 + 1)
    assert pool_blocks(windows, found, 32_768) == int(found.num_gpu_blocks / held * 2048)
    assert held < layout.blocks_per_request(32_768)


# ---------------------------------------------------------------- few figures, and invariants


def test_a_model_by_its_few_figures_has_a_budget_in_the_ordinary_mode() -> None:
    found = memory(deployment(LAB, tensor_parallel_size=4))
    assert found.fits
    assert found.weight_bytes_per_rank == 35_000_000_000
    assert found.kv_bytes_per_token_per_rank == 80 * 2 * 2 * 128 * 2
    assert next(t for t in found.terms if t.name == "weights").origin == "reported"


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["qwen3-8b", "qwen3-30b-a3b", "gemma-2-9b", "deepseek-v2-lite", "qwen3-next-80b-a3b"]),
    card=st.sampled_from(["a100-sxm4-80gb", "h200-sxm-141gb", "rtx-4090"]),
    tp=st.sampled_from([1, 2]),
    length=st.integers(64, 40_000),
    low=st.floats(0.3, 0.9),
)
def test_the_pool_is_0_or_holds_one_request_and_grows_with_utilisation(
    name: str, card: str, tp: int, length: int, low: float
) -> None:
    def at(utilization: float) -> im.Memory:
        flags = {"max_model_len": length, "gpu_memory_utilization": utilization}
        return memory(deployment(name, card, tensor_parallel_size=tp, flags=flags))

    less, more = at(low), at(0.95)
    assert less.kv_pool_bytes <= more.kv_pool_bytes
    for found in (less, more):
        if found.fits:
            assert found.shortfall_bytes == 0
            assert found.num_gpu_blocks * found.bytes_per_block <= found.kv_pool_bytes
            assert found.max_concurrency >= 1
        else:
            assert found.kv_pool_bytes == found.num_gpu_blocks == found.kv_cache_tokens == 0
            assert found.shortfall_bytes > 0
