"""A chip: what the data sheet says, and what its driver reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from inferometer import units
from inferometer.errors import ConfigError, InputError, UnknownNameError
from inferometer.specs import catalog

LinkKind = Literal["nvlink", "pcie", "infinity-fabric", "ici", "neuronlink", "roce", "none"]
NumberFormat = Literal["bf16", "fp16", "fp8", "fp4", "int8", "fp32"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where one figure comes from: a data sheet, repository@commit:path or issue, and the day it was checked."""

    source: str
    checked: str


class Chip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator device, in SI units; rates are dense and links one way.

    Raises:
        InputError: a size or rate that is not above 0, or a number format that is not known.

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
    """By field (``flops_per_s.bf16`` for a rate): where the figure comes from and when it was checked."""

    def __post_init__(self) -> None:
        """Refuse figures that no device has: a unit was forgotten."""
        for field in ("memory_bytes", "bandwidth_bytes_per_s", *_OPTIONAL):
            value = getattr(self, field)
            if value is not None and not _above_zero(value):
                raise InputError(f"chip.{field}", value, "a number above 0")
            if value is not None and field in _LIKELY and value < LEAST:
                raise InputError(f"chip.{field}", value, f"a quantity with its unit, such as {_LIKELY[field]!r}, or SI")
        for number_format, rate in self.flops_per_s.items():
            if number_format not in get_args(NumberFormat):
                raise UnknownNameError("number format in chip.flops_per_s", number_format, get_args(NumberFormat))
            if not _above_zero(rate):
                raise InputError(f"chip.flops_per_s.{number_format}", rate, "a number above 0")
            if rate < LEAST:
                raise InputError(f"chip.flops_per_s.{number_format}", rate, "a rate such as '312 TFLOP/s', or FLOP/s")
        if not {"bf16", "fp16", "fp32"} & set(self.flops_per_s):
            raise InputError("chip.flops_per_s", dict(self.flops_per_s), "a bf16, fp16 or fp32 rate among them")
        if not (_above_zero(self.usable_fraction) and self.usable_fraction <= 1):
            raise InputError("chip.usable_fraction", self.usable_fraction, "a share above 0, at most 1")

    @property
    def total_memory_bytes(self) -> int:
        """Memory as the driver reports it, else modelled as ``memory_bytes * usable_fraction``."""
        return self.reported_memory_bytes or int(self.memory_bytes * self.usable_fraction)


def chip(source: str | Path | Mapping[str, Any]) -> Chip:
    """A chip of the catalog, by id or common name; or one read from a TOML or JSON file, or from a table.

    Case, ``-``, ``_`` and spaces are ignored, and so are the vendor's words ("NVIDIA", "GeForce", ...). The user's
    folder of the catalog comes before the packaged one (see `inferometer.specs.catalog`). Quantities in a user's
    file are SI numbers or strings with units: "80 GiB", "2.039 TB/s", "312 TFLOP/s", "400 W".

    Raises:
        UnknownNameError: no such chip; close names are suggested.
        InputError: a file or table with a field that is missing, not known or of the wrong kind.

    >>> chip("NVIDIA A100-SXM4-80GB").id, chip("h100").id
    ('a100-sxm4-80gb', 'h100-sxm-80gb')
    """
    if isinstance(source, Mapping):
        return _from_table(source, str(source.get("id") or source.get("name") or "chip"))
    if isinstance(source, Path) or source.lower().endswith((".toml", ".json")):
        path = Path(source).expanduser()
        return _from_table(catalog.read_table(path), path.stem)
    table, name = _look_up(source)
    return _from_table(table, name)


_OPTIONAL = ("reported_memory_bytes", "link_bytes_per_s", "pcie_bytes_per_s", "tdp_w")
_READERS = {
    "memory_bytes": units.parse_bytes,
    "reported_memory_bytes": units.parse_bytes,
    "bandwidth_bytes_per_s": units.parse_bandwidth,
    "link_bytes_per_s": units.parse_bandwidth,
    "pcie_bytes_per_s": units.parse_bandwidth,
    "tdp_w": units.parse_watts,
}
LEAST = 1e8
"""No device has less memory (bytes), bandwidth (bytes/s) or FLOP/s: such a figure lacks its unit."""
_LIKELY = {
    "memory_bytes": "80 GiB",
    "reported_memory_bytes": "79.2 GiB",
    "bandwidth_bytes_per_s": "2.039 TB/s",
    "link_bytes_per_s": "300 GB/s",
    "pcie_bytes_per_s": "32 GB/s",
}
_REQUIRED = ("memory_bytes", "bandwidth_bytes_per_s", "flops_per_s")
_FIGURE_KEYS = {"value", "source", "checked"}
_VENDOR_WORDS = {"nvidia", "amd", "intel", "google", "aws", "geforce", "tesla", "quadro", "instinct", "habana"}


def _above_zero(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _look_up(name: str) -> tuple[dict[str, Any], str]:
    words = name.replace("(R)", " ").replace("(TM)", " ").split()
    bare = " ".join(word for word in words if word.lower() not in _VENDOR_WORDS)
    for candidate in (name, bare):
        id = catalog.find("chips", candidate) or catalog.alias("chips", candidate)
        table = catalog.read("chips", id) if id else None
        if id and table is not None:
            return table, id
    raise UnknownNameError("chip", name, catalog.names("chips"))


def _from_table(table: Mapping[str, Any], id: str) -> Chip:
    """A Chip from a file's table: plain values, or ``{value, source, checked}`` a figure."""
    unknown = [key for key in table if key not in Chip.__struct_fields__]
    if unknown:
        raise UnknownNameError(f"field of chip {id!r}:", unknown[0], Chip.__struct_fields__)
    missing = [key for key in _REQUIRED if key not in table]
    if missing:
        raise ConfigError.because(f"chip {id!r} lacks {', '.join(missing)}")
    fields: dict[str, Any] = {"id": id, "name": table.get("id", id)}
    sources: dict[str, Any] = dict(table.get("sources", {}))
    for key, entry in table.items():
        if key == "flops_per_s":
            fields[key] = _rates(entry, sources)
        elif key != "sources":
            fields[key] = _value(key, entry, sources)
    try:
        return msgspec.convert(fields | {"sources": sources}, Chip)
    except msgspec.ValidationError as error:
        raise ConfigError.because(f"chip {id!r}: {error}") from error


def _rates(entry: object, sources: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise InputError("chip.flops_per_s", entry, "a table of dense rates, such as { bf16 = '312 TFLOP/s' }")
    return {str(key): _value(f"flops_per_s.{key}", rate, sources, units.parse_flops) for key, rate in entry.items()}


def _value(key: str, entry: Any, sources: dict[str, Any], reader: Any = None) -> Any:
    """The entry's value, its source noted; quantities are read with their units."""
    if isinstance(entry, Mapping):
        strange = set(entry) - _FIGURE_KEYS
        if strange or "value" not in entry:
            raise InputError(f"chip.{key}", dict(entry), "a value, or a table of value, source and checked")
        if "source" in entry:
            sources[key] = Source(source=str(entry["source"]), checked=str(entry.get("checked", "")))
        entry = entry["value"]
    reader = reader or _READERS.get(key)
    return reader(entry, f"chip.{key}") if reader else entry
