"""Device memory from nvidia-smi's CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer.errors import FormatError
from inferometer.records import device_memory
from inferometer.records.device_memory import Device, query, read_nvidia_smi
from inferometer.units import MIB

TWO = [Device(0, "NVIDIA H100 80GB HBM3", 81559 * MIB, 1234 * MIB), Device(1, "NVIDIA H100 80GB HBM3", 81559 * MIB, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "index, name, memory.total [MiB], memory.used [MiB]\n0, NVIDIA H100 80GB HBM3, 81559 MiB, 1234 MiB\n"
        "1, NVIDIA H100 80GB HBM3, 81559 MiB, 0 MiB\n",
        "0, NVIDIA H100 80GB HBM3, 81559 MiB, 1234 MiB\n1, NVIDIA H100 80GB HBM3, 81559 MiB, 0 MiB\n",
        "0, NVIDIA H100 80GB HBM3, 81559, 1234\r\n1, NVIDIA H100 80GB HBM3, 81559, 0\r\n",
    ],
    ids=["header", "noheader", "nounits"],
)
def test_mebibytes_in_every_spelling(text: str) -> None:
    assert read_nvidia_smi(text) == TWO


def test_a_row_is_a_tuple() -> None:
    index, name, total_bytes, used_bytes = read_nvidia_smi("3, T4, 15360 MiB, 3 MiB")[0]
    assert (index, name, total_bytes, used_bytes) == (3, "T4", 15360 * 2**20, 3 * 2**20)


def test_what_the_driver_does_not_tell_is_none_not_zero() -> None:
    assert read_nvidia_smi("0, NVIDIA GB10, [N/A], [Not Supported]") == [Device(0, "NVIDIA GB10", None, None)]


def test_no_gpus_is_an_empty_list() -> None:
    assert read_nvidia_smi("") == []


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "index, memory.used [MiB]\n0, 12 MiB",
        "0, NVIDIA A100, 81920 MiB",
        "0, NVIDIA A100, much, 3 MiB",
        "0, NVIDIA A100, 80 G, 3 MiB",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="nvidia-smi"):
        read_nvidia_smi(text)


def _program(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(device_memory.shutil, "which", lambda name: str(path) if name == "nvidia-smi" else None)


def test_query_runs_the_program_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(
        tmp_path,
        'test "$1" = --query-gpu=index,name,memory.total,memory.used && echo "0, A100, 81920 MiB, 5 MiB"',
        monkeypatch,
    )
    assert query() == [Device(0, "A100", 80 * 2**30, 5 * MIB)]


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found", "sleep 5"])
def test_query_without_a_sound_answer_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    _program(tmp_path, f"exec {script}" if script.startswith("sleep") else script, monkeypatch)
    assert query(timeout_s=0.5) is None


def test_query_without_the_program_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory.shutil, "which", lambda name: None)
    assert query() is None
