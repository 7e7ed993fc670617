"""What a scheduler must obey, as numbers; shared by the compiled core and the reference."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.specs.engine import EngineFlags

SUBTICKS = 1 << 14
"""Ticks of 2**-54 s in one of 2**-40 s. Clocks count the fine ones, recorded times and arrivals the coarse ones."""
RECORD_S = 2.0**-40
"""Seconds in a recorded tick, just under a picosecond."""
SAMPLES = 2048
"""Server samples kept at most, evenly spaced; when full, every second one goes and the interval doubles."""
SAMPLE_INTERVAL = 1 << 30
"""First interval between server samples, in recorded ticks (about a millisecond)."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's limits. Field order is the layout of the core's rule vector (`vector`)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    blocks: int
    """KV blocks that requests can hold (vLLM's null block is already taken off)."""
    block_size: int = 16
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    watermark_blocks: int = 0
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True
    concurrency: int = 0
    """Clients of a closed loop; 0: open loop."""
    think: int = 0
    """A client's pause between a finish and its next request, in recorded ticks."""

    uncapped_lone_prefill: bool = False
    """``long_prefill_token_threshold`` does not hold for a request that is the only one (vLLM from 0.32)."""

    def vector(self) -> NDArray[np.int64]:
        """The rules as one int64 vector."""
        return np.array([int(getattr(self, name)) for name in self.__struct_fields__], np.int64)

    @classmethod
    def from_flags(cls, flags: EngineFlags, num_gpu_blocks: int, concurrency: int = 0, think_s: float = 0.0) -> Rules:
        """The rules of an engine with these flags and a pool of ``num_gpu_blocks`` (one of them vLLM's null block)."""
        return cls(
            max_num_seqs=flags.max_num_seqs,
            max_num_batched_tokens=flags.max_num_batched_tokens,
            blocks=num_gpu_blocks - 1,
            block_size=flags.block_size,
            long_prefill_token_threshold=flags.long_prefill_token_threshold,
            scheduler_reserve_full_isl=flags.scheduler_reserve_full_isl,
            watermark_blocks=int(flags.watermark * num_gpu_blocks),
            enable_chunked_prefill=flags.enable_chunked_prefill,
            async_scheduling=flags.async_scheduling,
            concurrency=concurrency,
            think=round(think_s / RECORD_S),
        )
