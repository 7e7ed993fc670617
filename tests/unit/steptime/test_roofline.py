from __future__ import annotations

import math

import pytest

import inferometer as im
from inferometer.steptime.roofline import Roofline


def roof(kv: float = 100.0, weights: int = 10_000) -> Roofline:
    return Roofline(
        context_tokens=1,
        weight_bytes=weights,
        flops_per_token=10_000.0,
        kv_bytes_per_sequence=kv,
        bandwidth_bytes_per_s=1e6,
        flops_per_s=5e7,
    )


def test_knee_is_where_memory_and_compute_take_equally_long() -> None:
    found = roof()
    knee = found.knee_batch
    assert knee is not None
    read_s = (found.weight_bytes + knee * found.kv_bytes_per_sequence) / found.bandwidth_bytes_per_s
    assert read_s == pytest.approx(knee * found.flops_per_token / found.flops_per_s)
    assert found.decode_tok_per_s(knee * 2) == found.compute_roof_tok_per_s
    assert knee > found.knee_batch_naive


def test_without_a_knee_the_intensity_asymptote_lies_below_the_ridge() -> None:
    found = roof(kv=300.0)
    assert found.knee_batch is None
    assert found.intensity_asymptote_flops_per_byte < found.ridge_flops_per_byte
    assert found.decode_tok_per_s(1e9) == pytest.approx(found.throughput_asymptote_tok_per_s, rel=1e-6)


def test_half_saturation_is_half_the_asymptote() -> None:
    found = roof(kv=300.0)
    half = found.decode_tok_per_s(found.half_saturation_batch)
    assert half == pytest.approx(found.throughput_asymptote_tok_per_s / 2)


def test_no_kv_reads_mean_no_asymptote() -> None:
    found = roof(kv=0.0)
    assert math.isinf(found.half_saturation_batch)
    assert found.decode_tok_per_s(2) == 2 * found.decode_tok_per_s(1)


def test_tensor_parallel_chips_add_up() -> None:
    model, chip = im.model("meta-llama/Llama-3.1-8B"), im.chip("h100-sxm-80gb")
    one = im.roofline(im.Deployment(model=model, chip=chip), context_tokens=1000)
    four = im.roofline(im.Deployment(model=model, chip=chip, tensor_parallel_size=4), context_tokens=1000)
    assert four.decode_floor_s == pytest.approx(one.decode_floor_s / 4)
    assert four.crossover_batch == pytest.approx(one.crossover_batch)
    assert four.prefill_floor_s(512) == pytest.approx(one.prefill_floor_s(512) / 4)


def test_fp8_weights_halve_the_floor_and_use_the_fp8_rate() -> None:
    chip = im.chip("h100-sxm-80gb")
    plain = im.roofline(im.Deployment(model=im.model("meta-llama/Llama-3.1-8B"), chip=chip), 1000)
    fp8 = im.roofline(im.Deployment(model=im.model("meta-llama/Llama-3.1-8B"), chip=chip, quantization="fp8"), 1000)
    assert fp8.flops_per_s == chip.flops_per_s["fp8"]
    assert 0.5 < fp8.decode_floor_s / plain.decode_floor_s < 0.6


def test_a_window_caps_the_context() -> None:
    dep = im.Deployment(model=im.model("mistralai/Mistral-7B-v0.1"), chip=im.chip("h100-sxm-80gb"))
    at_window, beyond = (im.roofline(dep, context_tokens=n).kv_bytes_per_sequence for n in (4096, 20_000))
    assert at_window == beyond


def test_negative_context_is_refused() -> None:
    dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    with pytest.raises(im.InputError, match="context_tokens"):
        im.roofline(dep, context_tokens=-1)


def test_a_mixture_of_experts_reads_and_computes_what_its_tokens_visit() -> None:
    dep = im.Deployment(model=im.model("Qwen/Qwen3-30B-A3B"), chip=im.chip("h100-sxm-80gb"))
    found = im.roofline(dep, context_tokens=1000)
    experts = 48 * 128 * 3 * 2048 * 768
    assert found.flops_per_token == pytest.approx(2 * (30.53e9 - experts * 120 / 128), rel=0.01)
    assert found.read_bytes(1) == pytest.approx(found.weight_bytes - 2 * experts * 120 / 128)
    assert found.read_bytes(1000) == pytest.approx(found.weight_bytes)
    half = found.half_saturation_batch
    assert found.read_bytes(half) == pytest.approx(half * found.kv_bytes_per_sequence)
    assert found.decode_tok_per_s(8) < 8 * found.decode_tok_per_s(1)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B", "gpt-oss-120b", "deepseek-v3", "qwen3-30b-a3b", "mixtral-8x7b", "gemma-3-27b"]
)
def test_the_simulator_never_beats_the_roofline(name: str) -> None:
    dep = im.Deployment(model=im.model(name), chip=im.chip("h200-sxm-141gb"), tensor_parallel_size=8)
    for users in (1, 8, 64):
        load = im.Workload.closed_loop(concurrency=users, requests=users, prompt_tokens=64, output_tokens=400)
        simulated = im.simulate(dep, load).summary().output_tok_per_s
        assert simulated < im.roofline(dep, context_tokens=64).decode_tok_per_s(users)
