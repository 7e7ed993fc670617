from __future__ import annotations

import csv
import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from inferometer.errors import FormatError
from inferometer.specs import catalog
from inferometer.specs.chip import Chip, chip
from shared import ROOT, shared

REQUIRED = [
    "a100-sxm4-80gb",
    "a100-pcie-80gb",
    "a100-sxm4-40gb",
    "h100-sxm-80gb",
    "h100-pcie-80gb",
    "h100-nvl-94gb",
    "h200-sxm-141gb",
    "b200-sxm-180gb",
    "b300-sxm-288gb",
    "gb200",
    "a10g",
    "a10",
    "l4",
    "l40s",
    "t4",
    "v100-sxm2-32gb",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rtx-6000-ada",
    "rtx-pro-6000",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
]
FAMILIES = [
    "volta",
    "turing",
    "ampere",
    "ampere-consumer",
    "ada",
    "hopper",
    "blackwell",
    "blackwell-consumer",
    "cdna2",
    "cdna3",
    "cdna4",
    "apple",
    "tpu",
    "gaudi",
    "trainium",
    "xe",
    "generic",
]
CHIPS = catalog.names("chips")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty catalog of the user's."""
    monkeypatch.setenv("INFEROMETER_CATALOG", str(tmp_path))
    for kind in ("chips", "models"):
        (tmp_path / kind).mkdir()
    return tmp_path


def test_fold_ignores_case_and_separators():
    assert catalog.fold("A100_SXM4-80 GB") == catalog.fold("a100-sxm4-80gb") == "a100sxm480gb"
    assert catalog.fold("Qwen/Qwen2.5-7B") == "qwenqwen2.57b"


def test_ids_are_sorted_and_stand_for_one_entry_each():
    assert sorted(CHIPS) == CHIPS
    assert len({catalog.fold(id) for id in CHIPS}) == len(CHIPS) >= 55
    assert set(REQUIRED) <= set(CHIPS)


def test_users_entry_hides_the_packaged_one(user: Path):
    (user / "chips" / "A100_SXM4_80GB.json").write_text('{"memory_bytes": 1}')
    (user / "chips" / "lab.toml").write_text("memory_bytes = 2")
    (user / "chips" / "notes.txt").write_text("no entry")
    assert catalog.read("chips", "a100-sxm4-80gb") == {"memory_bytes": 1}
    assert catalog.find("chips", "LAB") == "lab"
    assert "A100_SXM4_80GB" in (names := catalog.names("chips"))
    assert "a100-sxm4-80gb" not in names
    assert len(names) == len(CHIPS) + 1
    assert names == sorted(names)


def test_users_folder_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFEROMETER_CATALOG", str(tmp_path / "nowhere"))
    assert catalog.names("chips") == CHIPS


def test_users_folder_defaults_to_the_config_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("INFEROMETER_CATALOG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.user_folder() == tmp_path / ".config" / "inferometer" / "catalog"


def test_kinds_are_apart(user: Path):
    (user / "models" / "lab-70b.json").write_text(json.dumps({"layers": 80}))
    assert catalog.read("models", "Lab_70B") == {"layers": 80}
    assert catalog.read("chips", "lab-70b") is None
    assert "lab-70b" in catalog.names("models")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bad.toml", "memory_bytes = ", "not valid TOML"),
        ("bad.json", '{"memory_bytes": ', "not valid JSON"),
        ("bad.json", "[]", "a table of fields"),
    ],
)
def test_broken_file_is_named(user: Path, name: str, text: str, says: str):
    (user / "chips" / name).write_text(text)
    with pytest.raises(FormatError, match=rf"{name}.*{says}"):
        catalog.read("chips", "bad")


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(FormatError, match=r"none\.toml: cannot be read"):
        catalog.read_table(tmp_path / "none.toml")


@pytest.mark.parametrize("id", CHIPS)
def test_every_figure_has_a_source_and_a_day(id: str):
    device = chip(id)
    assert device.id == id
    assert device.family in FAMILIES
    assert device.vendor
    optional = ("reported_memory_bytes", "link_bytes_per_s", "pcie_bytes_per_s", "tdp_w")
    figures = ["memory_bytes", "bandwidth_bytes_per_s", *(f"flops_per_s.{key}" for key in device.flops_per_s)]
    figures += [key for key in optional if getattr(device, key) is not None]
    figures += ["usable_fraction"] if device.reported_memory_bytes is None else []
    for figure in figures:
        assert device.sources[figure].source, figure
        assert date.fromisoformat(device.sources[figure].checked) >= date(2026, 11, 29)
    if device.reported_memory_bytes is None:
        assert device.sources["usable_fraction"].source.startswith("modelled")


@pytest.mark.parametrize("id", CHIPS)
def test_figures_are_those_of_a_device(id: str):
    device = chip(id)
    assert 0.7 * device.memory_bytes <= device.total_memory_bytes <= device.memory_bytes
    assert 50e9 < device.bandwidth_bytes_per_s < 10e12
    rates = device.flops_per_s
    assert rates
    if "bf16" in rates and "fp16" in rates:
        assert rates["fp16"] == rates["bf16"]
    # a sparse figure beside a dense one would show as a factor of 4
    for narrow, wide in (("fp8", "bf16"), ("fp4", "fp8")):
        if narrow in rates and wide in rates:
            assert 0.99 <= rates[narrow] / rates[wide] <= (4.01 if device.family != "blackwell" else 4)
            if device.family in ("hopper", "ada", "blackwell-consumer", "cdna3", "cdna4") and narrow == "fp8":
                assert rates[narrow] / rates[wide] == pytest.approx(2, rel=0.02)
    assert (device.link_bytes_per_s or 0) <= 900e9


def test_chips_without_bf16_say_so():
    for id in ("t4", "v100-sxm2-32gb"):
        assert "bf16" not in chip(id).flops_per_s
        assert "fp16" in chip(id).flops_per_s


# The wide table's row, and where we depart from it on purpose (the reason is a comment in the chip's file).
WIDE = {
    "A100 PCIe 80GB": ("a100-pcie-80gb", ()),
    "A100 SXM 80GB": ("a100-sxm4-80gb", ()),
    "A100 SXM 40GB": ("a100-sxm4-40gb", ()),
    "A30 24GB": ("a30", ()),
    "A10 24GB": ("a10", ()),
    "A10G 24GB": ("a10g", ()),
    "A40 48GB": ("a40", ()),
    "B200": ("b200-sxm-180gb", ()),
    "B300": ("b300-sxm-288gb", ("memory_bytes",)),
    "GB200 (per GPU)": ("gb200", ()),
    "GB300 (per GPU)": ("gb300", ()),
    "H100 NVL 94GB": ("h100-nvl-94gb", ()),
    "H100 PCIe 80GB": ("h100-pcie-80gb", ()),
    "H100 SXM 80GB": ("h100-sxm-80gb", ()),
    "H20 96GB": ("h20-96gb", ()),
    "H200 141GB": ("h200-sxm-141gb", ()),
    "L4": ("l4", ()),
    "L40": ("l40", ()),
    "L40S": ("l40s", ()),
    "MI210": ("mi210", ("int8_dense_tops",)),
    "MI250": ("mi250", ("int8_dense_tops",)),
    "MI250X": ("mi250x", ("int8_dense_tops",)),
    "MI300X": ("mi300x", ()),
    "MI325X": ("mi325x", ()),
    "MI355X": ("mi355x", ()),
    "RTX 3090 24GB": ("rtx-3090", ()),
    "RTX 4090 24GB": ("rtx-4090", ()),
    "RTX 5090 32GB": ("rtx-5090", ()),
    "RTX 6000 Ada 48GB": ("rtx-6000-ada", ()),
    "RTX A6000 48GB": ("rtx-a6000", ()),
    "RTX PRO 6000 Server": ("rtx-pro-6000", ()),
    "V100 SXM 32GB": ("v100-sxm2-32gb", ()),
    "V100 PCIe 16GB": ("v100-pcie-16gb", ()),
    "Gaudi 3": ("gaudi-3", ()),
    "TPU v5e": ("tpu-v5e", ("mem_bw_gb_s",)),
    "TPU v6e": ("tpu-v6e", ()),
    "Trainium2": ("trainium2", ()),
    "Intel Arc Pro B60": ("arc-pro-b60", ()),
}


def _figures(device: Chip) -> dict[str, float | None]:
    rate = {key: value / 1e12 for key, value in device.flops_per_s.items()}
    return {
        "memory_bytes": device.memory_bytes,
        "reported_total_gib": (device.reported_memory_bytes or 0) / 2**30,
        "mem_bw_gb_s": device.bandwidth_bytes_per_s / 1e9,
        "bf16_dense_tflops": rate.get("bf16", rate.get("fp16")),
        "fp8_dense_tflops": rate.get("fp8"),
        "fp4_dense_tflops": rate.get("fp4"),
        "int8_dense_tops": rate.get("int8"),
        "intra_node_bw_unidir_gb_s": (device.link_bytes_per_s or 0) / 1e9,
        "pcie_bw_unidir_gb_s": (device.pcie_bytes_per_s or 0) / 1e9,
        "tdp_w": device.tdp_w,
    }


def test_figures_agree_with_the_shared_table():
    with shared("data/gpu_specs_wide.csv").open() as file:
        rows = {row["gpu"]: row for row in csv.DictReader(file)}
    compared = 0
    for gpu, (id, departs) in WIDE.items():
        for field, value in _figures(chip(id)).items():
            if rows[gpu][field] and field not in departs:
                assert value == pytest.approx(float(rows[gpu][field]), rel=0.0011), (id, field)
                compared += 1
    assert compared > 150


def test_a_chip_is_found_without_heavy_imports():
    code = (
        "import sys, inferometer.specs.chip as c\n"
        "c.chip('a100-sxm4-80gb')\n"
        "print(sorted({'numba', 'polars', 'numpy'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "HOME": "/nowhere"},
    )
    assert ran.stdout.strip() == "[]", ran.stderr
