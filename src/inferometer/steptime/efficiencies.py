"""How much of its peak a chip family reaches, constant by constant, each with a range and an origin."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from inferometer.specs.chip import Chip

Bound = Literal["value", "slow", "fast"]


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One constant: best estimate, pessimistic and optimistic end, origin."""

    value: float
    slow: float
    fast: float
    origin: str


class Efficiencies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the step-time model (``docs/explanation/step-time.md``): shares of peak, and seconds (``_s``)."""

    weight_read: float
    mfu: float
    smooth_max: float
    expert_read: float
    mfu_expert: float
    routing_skew: float
    expert_imbalance: float
    fp4_on_hopper: float
    kv_read: float
    kv_read_mixed: float
    mixed_query_rows: float
    chunk_kv_read: float
    mla_read: float
    mfu_mla: float
    mfu_attention: float
    layer_s: float
    moe_layer_s: float
    mla_layer_s: float
    sparse_layer_s: float
    recurrent_layer_s: float
    prefill_layer_s: float
    prefill_step_s: float
    allreduce_s: float
    allreduce_pcie_s: float
    allreduce_growth: float
    link_share: float
    alltoall_s: float
    hop_s: float
    step_s: float
    sequence_s: float
    activation_traffic: float


@cache
def _table() -> dict[str, dict[str, Constant]]:
    text = files("inferometer.steptime").joinpath("data/efficiencies.toml").read_text()
    return msgspec.convert(tomllib.loads(text), dict[str, dict[str, Constant]])


def constants(chip: Chip) -> dict[str, Constant]:
    """The constants of the chip's family over the defaults, each with range and origin."""
    table = _table()
    return {**table["default"], **table.get(chip.family, {})}


def efficiencies(chip: Chip, bound: Bound = "value") -> Efficiencies:
    """The constants of a chip's family: the estimate, or all of them at the ``slow`` or ``fast`` end.

    >>> import inferometer as im
    >>> efficiencies(im.chip("a100-sxm4-80gb")).weight_read
    0.8
    """
    return Efficiencies(**{name: getattr(c, bound) for name, c in constants(chip).items()})
