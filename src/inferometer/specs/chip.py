"""A chip: what the data sheet says, and what its driver reports."""

from __future__ import annotations

from typing import Literal

import msgspec

LinkKind = Literal["nvlink", "pcie", "infinity-fabric", "ici", "neuronlink", "roce", "none"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where one figure comes from: a data sheet, repository@commit:path or issue, and the day it was checked."""

    source: str
    checked: str


class Chip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator device, in SI units; rates are dense and links one way.

    >>> import inferometer as im
    >>> im.chip("a100-sxm4-80gb").bandwidth_bytes_per_s
    2039000000000.0
    """

    id: str
    """Catalog id, for example ``a100-sxm4-80gb``."""
    name: str
    """The name people use, for example ``A100-SXM4-80GB``."""
    memory_bytes: int
    """Marketed capacity in bytes (80 GiB is 85899345920)."""
    bandwidth_bytes_per_s: float
    """Peak memory bandwidth."""
    flops_per_s: dict[str, float]
    """Dense peak by number format: ``bf16``, ``fp16``, ``fp8``, ``fp4``, ``int8``, ``fp32``; absent: no such unit."""
    vendor: str = ""
    family: str = ""
    """Key of the efficiencies in ``steptime/data``: ``ampere``, ``ada``, ``hopper``, ``blackwell``, ..."""
    reported_memory_bytes: int | None = None
    """What the driver reports as the device's total; None: ``total_memory_bytes`` models it."""
    link_bytes_per_s: float | None = None
    """Chip-to-chip bandwidth inside a node, one way."""
    link_kind: LinkKind = "none"
    pcie_bytes_per_s: float | None = None
    """Host link, one way."""
    tdp_w: float | None = None
    usable_fraction: float = 0.99
    """Driver-reported share of ``memory_bytes`` where none was reported (GeForce 0.98, T4 0.92)."""
    sources: dict[str, Source] = {}
    """By field: where the figure comes from and when it was checked."""

    @property
    def total_memory_bytes(self) -> int:
        """Memory as the driver reports it, else modelled as ``memory_bytes * usable_fraction``."""
        return self.reported_memory_bytes or int(self.memory_bytes * self.usable_fraction)
