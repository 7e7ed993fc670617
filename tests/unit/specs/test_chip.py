from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from inferometer.errors import ConfigError, FormatError, InputError, UnitError, UnknownNameError
from inferometer.specs import catalog
from inferometer.specs.chip import Chip, chip

LAB = {"memory_bytes": 80 * 2**30, "bandwidth_bytes_per_s": 2e12, "flops_per_s": {"bf16": 300e12}}


@pytest.mark.parametrize(
    ("id", "bandwidth", "total_gib"),
    [("a100-sxm4-80gb", 2.039e12, 79.15), ("a100-pcie-80gb", 1.935e12, 79.15), ("h100-sxm-80gb", 3.35e12, 79.19)],
)
def test_founding_figures(id: str, bandwidth: float, total_gib: float):
    device = chip(id)
    assert device.memory_bytes == 85_899_345_920
    assert device.bandwidth_bytes_per_s == bandwidth
    assert device.total_memory_bytes / 2**30 == pytest.approx(total_gib, abs=1e-6)


def test_a100_computes_312_teraflops():
    assert chip("a100-pcie-80gb").flops_per_s["bf16"] == 312e12
    assert chip("a100-pcie-80gb").link_kind == "pcie"
    assert chip("a100-sxm4-80gb").link_bytes_per_s == 300e9


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("A100 SXM 80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("a100_sxm4_80gb", "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("h100", "h100-sxm-80gb"),
        ("H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("h200_sxm", "h200-sxm-141gb"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
        ("GB200", "gb200"),
    ],
)
def test_common_names(name: str, id: str):
    assert chip(name).id == id


def test_every_alias_leads_to_a_chip():
    aliases = catalog._aliases()["chips"]
    assert len(aliases) > 100
    for name, id in aliases.items():
        assert chip(name).id == id


@pytest.mark.parametrize("id", catalog.names("chips"))
def test_a_chips_own_name_leads_to_it(id: str):
    assert chip(chip(id).name).id == id


def test_unknown_chip_suggests_close_ones():
    with pytest.raises(UnknownNameError, match=r"unknown chip 'a100-sxm-81gb'; did you mean .*a100-sxm4-80gb"):
        chip("a100-sxm-81gb")


def test_users_file_takes_units(tmp_path: Path):
    file = tmp_path / "lab-chip.toml"
    file.write_text(
        'name = "Lab"\nvendor = "Us"\nfamily = "generic"\nmemory_bytes = "80 GiB"\nlink_kind = "pcie"\n'
        'bandwidth_bytes_per_s = "2.039 TB/s"\n'
        'flops_per_s = { bf16 = "312 TFLOP/s", int8 = "624 TOPS", fp32 = 19.5e12 }\n'
        'link_bytes_per_s = { value = "32 GB/s", source = "our test", checked = "2026-11-29" }\ntdp_w = "400 W"\n'
    )
    for source in (file, str(file)):
        device = chip(source)
        assert device.id == "lab-chip"
        assert device.memory_bytes == 85_899_345_920
        assert device.bandwidth_bytes_per_s == 2.039e12
        assert device.flops_per_s == {"bf16": 312e12, "int8": 624e12, "fp32": 19.5e12}
        assert device.link_bytes_per_s == 32e9
        assert device.tdp_w == 400
        assert device.total_memory_bytes == int(0.99 * 85_899_345_920)
        assert device.sources["link_bytes_per_s"].source == "our test"


def test_json_and_tables_are_read_too(tmp_path: Path):
    file = tmp_path / "lab.json"
    file.write_text(json.dumps(LAB | {"id": "ours"}))
    assert chip(file).id == "ours"
    assert chip(LAB | {"id": "ours"}) == chip(file)


def test_users_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFEROMETER_CATALOG", str(tmp_path))
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "rtx-4090.json").write_text(json.dumps(LAB))
    assert chip("RTX 4090").bandwidth_bytes_per_s == 2e12


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"bandwith_bytes_per_s": 1}, UnknownNameError, "bandwith_bytes_per_s.*did you mean bandwidth_bytes_per_s"),
        ({"memory_bytes": "80 G"}, UnitError, r"chip\.memory_bytes: '80 G'.*GiB or GB"),
        ({"memory_bytes": 0}, InputError, r"chip\.memory_bytes: 0"),
        ({"bandwidth_bytes_per_s": "2 Tb/s"}, UnitError, r"chip\.bandwidth_bytes_per_s"),
        ({"bandwidth_bytes_per_s": "fast"}, UnitError, r"chip\.bandwidth_bytes_per_s"),
        ({"flops_per_s": {"bf16": "312"}}, UnitError, r"chip\.flops_per_s\.bf16"),
        ({"flops_per_s": {"bf17": 1e12}}, UnknownNameError, "'bf17'; did you mean bf16"),
        ({"flops_per_s": 312e12}, InputError, r"chip\.flops_per_s.*table"),
        ({"tdp_w": True}, InputError, r"chip\.tdp_w"),
        ({"tdp_w": {"vale": 400}}, InputError, r"chip\.tdp_w.*source"),
        ({"usable_fraction": 1.2}, InputError, "usable_fraction.*at most 1"),
        ({"usable_fraction": "most"}, ConfigError, "usable_fraction"),
        ({"link_kind": "string"}, ConfigError, "link_kind"),
        ({"link_bytes_per_s": -1}, InputError, r"chip\.link_bytes_per_s"),
        ({"name": 5}, ConfigError, "name"),
    ],
)
def test_wrong_field_is_named(change: dict[str, object], error: type[InputError], says: str):
    with pytest.raises(error, match=says):
        chip(LAB | change)


def test_missing_fields_are_named():
    with pytest.raises(ConfigError, match="lacks bandwidth_bytes_per_s, flops_per_s"):
        chip({"id": "lab", "memory_bytes": 1})


def test_missing_file_is_an_input_error():
    with pytest.raises(FormatError, match=r"none\.toml"):
        chip("none.toml")


def test_a_chip_made_by_hand_is_checked():
    with pytest.raises(InputError, match=r"chip\.bandwidth_bytes_per_s"):
        Chip(id="x", name="x", memory_bytes=2**30, bandwidth_bytes_per_s=0, flops_per_s={})
    with pytest.raises(InputError, match=r"chip\.flops_per_s\.bf16"):
        Chip(id="x", name="x", memory_bytes=2**30, bandwidth_bytes_per_s=1e9, flops_per_s={"bf16": float("nan")})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"memory_bytes": 96}, "memory_bytes"),
        ({"bandwidth_bytes_per_s": 3.35}, "bandwidth_bytes_per_s"),
        ({"flops_per_s": {"bf16": 312}}, r"flops_per_s\.bf16"),
        ({"flops_per_s": {"fp8": "1 PFLOP/s"}}, "a bf16, fp16 or fp32 rate"),
    ],
)
def test_a_figure_without_its_unit_is_refused(change: dict[str, object], field: str):
    with pytest.raises(InputError, match=field):
        chip(LAB | change)


def test_reported_memory_comes_before_the_model():
    device = chip(LAB | {"reported_memory_bytes": "79.15 GiB"})
    assert device.total_memory_bytes == round(79.15 * 2**30)


@pytest.mark.parametrize("id", ["a100-sxm4-80gb", "mi250x"])
def test_a_chip_survives_json(id: str):
    assert msgspec.json.decode(msgspec.json.encode(chip(id)), type=Chip) == chip(id)
