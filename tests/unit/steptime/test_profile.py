"""A profile: its file, what is refused in one, and the constants and step costs that follow from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import inferometer as im
from inferometer.errors import FormatError, InputError, UnknownNameError
from inferometer.steptime.costs import sheet_costs
from inferometer.steptime.profile import calibrated_efficiencies, larger_is_slower, profile_cautions

CHIP = im.chip("a100-sxm4-80gb")
DEP = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=CHIP)


def a_profile(**changes: Any) -> im.Profile:
    fields: dict[str, Any] = {
        "name": 'mine, "quoted" \\ and\nlong',
        "chip": CHIP.id,
        "model": "Qwen/Qwen3-8B",
        "engine": "vllm 0.32.0",
        "params": {"weight_read": 0.7, "sequence_s": 2e-05},
        "stderr": {"weight_read": 0.014, "sequence_s": 1e-06},
    }
    return im.Profile(**(fields | changes))


FULL = a_profile(
    lumped={"weight_read": ["step_s", "layer_s"]},
    held={"smooth_max": 5.5, "activation_traffic": 0.0},
    refused={"mfu": "no run states a TTFT"},
    held_out=[
        {"run": "c8", "concurrency": 8, "metric": "tpot_ms.mean", "predicted": 1.5, "measured": 1.0, "error_pct": 50.0}
    ],
    noise={"tpot": 0.01},
    runs=["c1", "c 64"],
    notes=["tab\tand é"],
)


def test_a_profile_comes_back_from_its_file_as_it_was(tmp_path: Path):
    assert im.load_profile(FULL.save(tmp_path / "p.toml")) == FULL


def test_the_json_of_the_command_is_read_too(tmp_path: Path):
    import msgspec

    (tmp_path / "p.json").write_bytes(
        msgspec.json.encode({"schema": "inferometer/profile/1", **msgspec.to_builtins(FULL)})
    )
    assert im.load_profile(tmp_path / "p.json") == FULL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "colour"),
        ("name = 'x", "not valid TOML"),
        ("schema = 'inferometer/score/1'", "not a calibration profile"),
        ("name = 'x'", "chip"),
        ("name = 'x'\nchip = 3", "chip"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(tmp_path: Path, text: str, said: str):
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        im.load_profile(file)


def test_a_file_that_is_not_there():
    with pytest.raises(FormatError, match=r"nowhere\.toml"):
        im.load_profile("nowhere.toml")


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"warp": 1.0}, "stderr": {"warp": 0.1}},
        {"held": {"warp": 1.0}},
    ],
)
def test_constants_that_do_not_exist(changes: dict[str, Any]):
    with pytest.raises(UnknownNameError, match="warp"):
        a_profile(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"mfu": -0.5}, "stderr": {"mfu": 0.1}},
        {"params": {"mfu": math.nan}, "stderr": {"mfu": 0.1}},
        {"params": {"mfu": 0.5}, "stderr": {}},
        {"params": {"mfu": 0.5}, "stderr": {"mfu": -1.0}},
        {"params": {"mfu": 0.5}, "stderr": {"mfu": 1000.0}},
    ],
)
def test_figures_that_mean_nothing(changes: dict[str, Any]):
    with pytest.raises(InputError):
        a_profile(**changes)


def test_slow_and_fast_are_1645_standard_errors_to_the_side_that_is_slower_or_faster():
    value, slow, fast = (calibrated_efficiencies(CHIP, FULL, bound) for bound in ("value", "slow", "fast"))
    assert (value.weight_read, value.sequence_s, value.smooth_max) == (0.7, 2e-05, 5.5)
    assert slow.weight_read == pytest.approx(0.7 / math.exp(1.645 * 0.02))
    assert fast.weight_read == pytest.approx(0.7 * math.exp(1.645 * 0.02))
    assert slow.sequence_s == pytest.approx(2e-05 * math.exp(1.645 * 0.05))
    assert slow.mfu == fast.mfu == value.mfu == 0.83  # not fitted: the family's, at its value


def test_constants_of_which_more_is_slower():
    assert not larger_is_slower(CHIP, "smooth_max")
    assert larger_is_slower(CHIP, "activation_traffic")


def test_calibrated_costs_are_the_sheets_with_the_fitted_constants():
    costs, sheet = im.calibrated_costs(DEP, FULL), sheet_costs(DEP)
    # weights are 15.14 GB a step: at 0.7 instead of 0.8 of 2.039 TB/s they take 1.33 ms longer
    more_s = costs.decode_step_s(1, 1) - sheet.decode_step_s(1, 1)
    assert more_s == pytest.approx(15.14e9 / 2.039e12 * (1 / 0.7 - 1 / 0.8), rel=0.02)
    assert "calibrated" in costs.origin


def test_another_chip_is_refused_and_another_model_doubted(tmp_path: Path):
    other = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("h100-sxm-80gb"))
    with pytest.raises(InputError, match="a100-sxm4-80gb"):
        im.calibrated_costs(other, FULL)
    small = im.Deployment(model=im.model("Qwen/Qwen3-0.6B"), chip=CHIP)
    assert profile_cautions(DEP, FULL) == []
    (said,) = profile_cautions(small, FULL)
    assert "weight_read also carries step_s, layer_s" in said
    assert said in im.calibrated_costs(small, FULL.save(tmp_path / "p.toml")).origin
