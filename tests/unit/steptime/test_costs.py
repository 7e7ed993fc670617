from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferometer as im
from inferometer.specs.engine import EngineFlags, cudagraph_sizes
from inferometer.steptime.costs import (
    NO_WINDOW,
    StepCosts,
    half_pairs_of,
    pad_to_graph,
    peak_flops_per_s,
    sheet_costs,
    ticks,
)
from inferometer.steptime.efficiencies import Efficiencies, constants, efficiencies


def dep(model: str = "Qwen/Qwen3-8B", chip: str = "a100-sxm4-80gb", **kwargs: object) -> im.Deployment:
    return im.Deployment(model=im.model(model), chip=im.chip(chip), **kwargs)


def test_half_pairs_count_what_each_query_sees() -> None:
    for tokens, start, window in [(5, 0, NO_WINDOW), (5, 7, NO_WINDOW), (9, 3, 6), (4, 10, 6), (1, 0, 1), (8, 0, 8)]:
        pairs = sum(min(start + i + 1, window) for i in range(tokens))
        assert half_pairs_of(tokens, start, window) == 2 * pairs


def test_every_constant_has_a_range_and_an_origin() -> None:
    for chip in ("a100-sxm4-80gb", "h100-sxm-80gb", "rtx-4090", "rtx-pro-6000", "mi300x"):
        found = constants(im.chip(chip))
        assert set(found) == set(Efficiencies.__struct_fields__)
        for name, c in found.items():
            low, high = sorted((c.slow, c.fast))
            assert low <= c.value <= high, name
            assert c.origin, name


def test_slow_and_fast_bracket_the_estimate() -> None:
    slow, value, fast = (sheet_costs(dep(), bound) for bound in ("slow", "value", "fast"))
    for tokens in (1, 64, 2048):
        assert slow.prefill_step_s(tokens) > value.prefill_step_s(tokens) > fast.prefill_step_s(tokens)
    for batch in (1, 16, 256):
        assert slow.decode_step_s(batch, 1500) > value.decode_step_s(batch, 1500) > fast.decode_step_s(batch, 1500)


def test_costs_lie_above_the_roofline_floor() -> None:
    for chip in ("a100-sxm4-80gb", "h100-sxm-80gb", "rtx-4090", "b200-sxm-180gb"):
        d = dep(chip=chip)
        roof, costs = im.roofline(d, context_tokens=1000), sheet_costs(d)
        read_s = roof.decode_floor_s * 15.14 / 16.38  # the embedding is looked up, not read
        assert costs.decode_step_s(1, 1000) > read_s
        assert costs.prefill_step_s(1024) > roof.prefill_floor_s(1024) * 13.89 / 16.38  # head on one row only


def test_steps_cost_more_with_more_in_them() -> None:
    costs = sheet_costs(dep("Qwen/Qwen3-30B-A3B"))
    for table in (costs.decode[1:], costs.mixed, costs.rows):
        assert (np.diff(table) >= 0).all()
    assert costs.decode_step_s(8, 2000) > costs.decode_step_s(8, 1000)


def test_founding_a100_figures() -> None:
    """In sample: the ampere constants are the fit to this sweep (TPOT 11.25 and 12.40 ms at C = 1 and 8)."""
    costs = sheet_costs(dep())
    assert costs.decode_step_s(1, 1536) == pytest.approx(11.25e-3, rel=0.03)
    assert costs.decode_step_s(8, 1536) == pytest.approx(12.40e-3, rel=0.03)


def test_padding_to_cuda_graphs() -> None:
    padded = sheet_costs(dep())
    eager = sheet_costs(dep(flags={"enforce_eager": True}))
    without_context = padded.decode - eager.decode
    assert without_context[16] == 0
    assert without_context[9] > 0


def test_tensor_parallelism_is_faster_and_pays_for_communication() -> None:
    model = "meta-llama/Llama-3.1-70B"
    two, eight = (sheet_costs(dep(model, "h100-sxm-80gb", tensor_parallel_size=n)) for n in (2, 8))
    assert two.decode_step_s(1, 1000) / 4 < eight.decode_step_s(1, 1000) < two.decode_step_s(1, 1000)
    assert two.decode_step_s(64, 2000) / 4 < eight.decode_step_s(64, 2000) < two.decode_step_s(64, 2000)


def test_pcie_costs_more_than_nvlink() -> None:
    def cost(chip: str) -> float:
        many, one = (dep("Qwen/Qwen3-32B", chip, tensor_parallel_size=n) for n in (2, 1))
        return sheet_costs(many).prefill_step_s(2048) / sheet_costs(one).prefill_step_s(2048)

    assert cost("a100-pcie-80gb") > cost("a100-sxm4-80gb")


def test_pipeline_spreads_a_batch_over_its_stages() -> None:
    one, four = (sheet_costs(dep(pipeline_parallel_size=n, flags={"enforce_eager": True})) for n in (1, 4))
    assert four.decode_step_s(4, 1000) == pytest.approx(one.decode_step_s(1, 1000), rel=0.02)
    assert four.decode_step_s(256, 1000) < one.decode_step_s(256, 1000)


def test_moe_reads_more_experts_with_more_tokens() -> None:
    costs = sheet_costs(dep("Qwen/Qwen3-30B-A3B", "h100-sxm-80gb"))
    one, many = costs.decode_step_s(1, 100), costs.decode_step_s(64, 100)
    assert 1.5 < many / one < 20


def test_windows_cap_decode_and_prefill() -> None:
    costs = sheet_costs(dep("mistralai/Mistral-7B-v0.1"))
    assert costs.window.tolist() == [4096]
    assert costs.decode_step_s(8, 4096) == costs.decode_step_s(8, 30_000)
    assert costs.decode_step_s(8, 2000) < costs.decode_step_s(8, 4096)


def test_hybrid_attention_has_two_kinds() -> None:
    costs = sheet_costs(dep("openai/gpt-oss-20b", "h100-sxm-80gb"))
    assert sorted(costs.window.tolist()) == [128, NO_WINDOW]
    grow = costs.decode_step_s(8, 30_000) - costs.decode_step_s(8, 20_000)
    assert 0 < grow < costs.decode_step_s(8, 10_128) - costs.decode_step_s(8, 1)


def test_mla_reads_the_latent() -> None:
    costs = sheet_costs(dep("deepseek-ai/DeepSeek-V3", "h200-sxm-141gb", tensor_parallel_size=8))
    assert costs.decode_kv.min() > 0


def test_formats_without_a_unit_fall_back_to_wider_ones() -> None:
    a100 = sheet_costs(dep("meta-llama/Llama-3.1-8B", quantization="fp8"))
    bf16 = sheet_costs(dep("meta-llama/Llama-3.1-8B"))
    assert a100.decode_step_s(1, 100) < bf16.decode_step_s(1, 100), "fewer bytes"
    assert a100.prefill_step_s(2048) == pytest.approx(bf16.prefill_step_s(2048), rel=0.05), "the same FLOPs"


def test_tables_that_overflow_the_clock_are_refused() -> None:
    one, kind = np.ones(2, np.int64), np.ones(1, np.int64)
    with pytest.raises(im.InputError, match="mixed"):
        StepCosts(
            decode=one,
            mixed=one << 62,
            rows=one,
            sequence=0,
            window=kind,
            decode_kv=kind,
            mixed_kv=kind,
            pair=kind,
            chunk_kv=kind,
        )


def test_ticks_round_once() -> None:
    assert ticks(2.0**-54) == 1
    assert ticks(1.0) == 1 << 54
    assert (
        efficiencies(im.chip("a100-sxm4-80gb"), "slow").weight_read
        < efficiencies(im.chip("a100-sxm4-80gb")).weight_read
    )


@pytest.mark.parametrize("number_format", ["fp4", "fp8", "int8", "bf16", "fp16", "fp32"])
def test_a_chip_of_one_rate_answers_for_every_format(number_format: str) -> None:
    for only in ("fp32", "bf16", "fp16"):
        chip = msgspec.structs.replace(im.chip("h100-sxm-80gb"), flops_per_s={only: 1e12})
        assert peak_flops_per_s(chip, number_format) in (1e12, 0.5e12)


def graphs(largest: int) -> EngineFlags:
    return EngineFlags(max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1, max_cudagraph_capture_size=largest)


def test_padding_goes_to_the_next_captured_size() -> None:
    tokens = np.array([0, 1, 3, 5, 9, 249, 257, 512, 513])
    assert pad_to_graph(tokens, graphs(512)).tolist() == [0, 1, 4, 8, 16, 256, 272, 512, 513]
    assert pad_to_graph(tokens, graphs(0)).tolist() == tokens.tolist()


@given(st.integers(0, 1024))
def test_padding_is_to_the_least_size_that_holds_the_tokens(largest: int) -> None:
    tokens, sizes = np.arange(1100), cudagraph_sizes(graphs(largest))
    for n, padded in zip(tokens.tolist(), pad_to_graph(tokens, graphs(largest)).tolist(), strict=True):
        holding = [size for size in sizes if size >= n]
        assert padded == (min(holding) if holding and n else n)
