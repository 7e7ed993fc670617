"""Device memory as ``nvidia-smi`` states it, before and after a server has started."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from typing import NamedTuple

from inferometer.errors import FormatError, InputError
from inferometer.units import parse_bytes

QUERY = ("--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader")
"""What `query` asks for; `read_nvidia_smi` reads it with or without header and units."""

EXPECTED = "the output of `nvidia-smi --query-gpu=index,name,memory.total,memory.used --format=csv`"


class Device(NamedTuple):
    """One GPU: its index, its name, and its memory in bytes. A memory that the driver does not tell is None."""

    gpu: int
    name: str
    total_bytes: int | None
    used_bytes: int | None


def read_nvidia_smi(text: str) -> list[Device]:
    """The GPUs in ``nvidia-smi``'s CSV of index, name, memory.total and memory.used, with or without header and units.

    Without units (``nounits``) the numbers are MiB, which is what nvidia-smi prints. ``[N/A]`` and its like are None.

    Raises `FormatError` for text that is anything else: other columns, an error message.

    >>> read_nvidia_smi("0, NVIDIA A100-SXM4-80GB, 81920 MiB, 512 MiB")
    [Device(gpu=0, name='NVIDIA A100-SXM4-80GB', total_bytes=85899345920, used_bytes=536870912)]
    """
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if row]
    if rows and rows[0][0].strip() == "index":
        _check_header([name.strip() for name in rows.pop(0)])
    return [_device([field.strip() for field in row]) for row in rows]


def query(timeout_s: float = 10.0) -> list[Device] | None:
    """The GPUs of this machine; None where there is no ``nvidia-smi`` or it gives no sound answer in ``timeout_s``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run((program, *QUERY), capture_output=True, text=True, timeout=timeout_s, check=True)
        return read_nvidia_smi(done.stdout)
    except (OSError, subprocess.SubprocessError, FormatError):
        return None


def _check_header(names: list[str]) -> None:
    wanted = ("index", "name", "memory.total", "memory.used")
    if len(names) != len(wanted) or not all(name.startswith(want) for name, want in zip(names, wanted, strict=True)):
        raise FormatError("nvidia-smi columns", ", ".join(names), EXPECTED)


def _device(fields: list[str]) -> Device:
    if len(fields) != 4 or not fields[0].isdecimal():
        raise FormatError("nvidia-smi line", ", ".join(fields), EXPECTED)
    return Device(int(fields[0]), fields[1], _bytes(fields[2]), _bytes(fields[3]))


def _bytes(field: str) -> int | None:
    if field.startswith("["):
        return None
    try:
        return parse_bytes(f"{field} MiB" if field.isdecimal() else field, "nvidia-smi memory")
    except InputError as why:
        raise FormatError("nvidia-smi memory", field, EXPECTED) from why
