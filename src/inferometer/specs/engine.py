"""Engines, their flags by their own names, and what each version's defaults are."""

from __future__ import annotations

import msgspec


class EngineFlags(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every flag resolved to a value: the user's, else the version preset's for this chip and model.

    Names are vLLM's own. Source of the defaults: ``vllm/engine/arg_utils.py`` and ``vllm/config/*.py`` of each release.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = True
    watermark: float = 0.0
    enforce_eager: bool = False
    max_cudagraph_capture_size: int = 512
    """Largest token count with a captured CUDA graph; 0 when eager."""
    subtract_cudagraph_memory: bool = True
    """Whether this version takes the CUDA graphs' memory off the KV cache."""
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
