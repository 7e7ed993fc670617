"""Cautions: families whose constants are the defaults, and vendors whose start-up nobody read."""

from __future__ import annotations

import msgspec
import pytest

import inferometer as im
from inferometer.prediction.cautions import cautions, simplifications
from inferometer.records.run import RunMeta, make_run
from inferometer.steptime.efficiencies import constants


@pytest.mark.parametrize("name", ["t4", "v100-sxm2-32gb"])
def test_families_without_constants_of_their_own_are_priors(name: str):
    chip = im.chip(name)
    assert cautions(chip) == [f"Efficiencies of the {chip.family} family are priors, not measured."]


@pytest.mark.parametrize("name", ["mi300x", "gaudi-3", "tpu-v5e", "apple-m1-max-64gb"])
def test_other_vendors_have_no_memory_constants_either(name: str):
    priors, memory = cautions(im.chip(name))
    assert "priors" in priors
    assert memory.endswith(f"read on NVIDIA GPUs, not on {im.chip(name).vendor}'s chips.")


def test_every_family_is_told_as_its_constants_are():
    from inferometer.specs.catalog import names

    chips = [im.chip(name) for name in names("chips")]
    default = constants(msgspec.structs.replace(chips[0], family=""))
    for chip in chips:
        assert any("priors" in caution for caution in cautions(chip)) == (constants(chip) == default)
    assert {chip.family for chip in chips if not cautions(chip)} >= {"ampere", "ada", "blackwell-consumer"}


def test_a_chip_of_ones_own_has_neither_family_nor_vendor():
    (priors,) = cautions(msgspec.structs.replace(im.chip("a100-sxm4-80gb"), family="", vendor="", name="Lab"))
    assert "Lab, a chip of no known family," in priors


def test_simplifications_are_those_that_not_every_run_has():
    common = ["step costs: sheet", "no prefix is found in the cache but the cached_tokens that the workload states"]
    runs = [make_run(RunMeta(kind="simulated", notes=[*common, note])) for note in ("one", "one", "two")]
    assert simplifications(runs) == ["one", "two"]


def test_a_predicted_pipeline_says_what_it_leaves_out():
    study = {
        "model": "Qwen/Qwen3-30B-A3B",
        "chip": "h200-sxm-141gb",
        "deployment": {"pipeline_parallel_size": 2, "data_parallel_size": 2},
        "workload": {"concurrency": [2], "prompt_tokens": 32, "output_tokens": 4},
    }
    found = simplifications(im.predict(study).runs)
    assert len(found) == 2
    assert any("pipeline" in note for note in found)
    assert any("replicas" in note for note in found)
