"""FLOPs and bytes of each operation, by architecture: what one rank does in one engine step."""

from __future__ import annotations

import msgspec

from inferometer.specs.deployment import Deployment


class KvRead(msgspec.Struct, frozen=True, kw_only=True):
    """KV bytes that one decoding sequence reads a step, a token of context, on one rank, over all layers of a kind."""

    bytes_per_token: float
    window: int | None = None
    """Context is capped at this many tokens (sliding layers); None: the whole context."""


class RankOps(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share of the model's work (all layers, whatever the pipeline; TP and EP divided out).

    Bytes follow the weight formats (scales included), FLOPs count 2 a multiply-add.
    """

    # linear layers every token visits: attention projections, dense MLPs, shared experts, routers, mixers
    dense_weight_bytes: float
    dense_flops_per_token: float
    """2 x the dense parameters of a rank, without embedding and lm_head."""
    compute_format: str
    """Number format the dense matrix products run in: bf16, fp16, fp8, int8, fp4, fp32."""
    weight_format: str
    # lm_head, on sampled rows only
    head_weight_bytes: float
    head_flops_per_row: float
    # routed experts
    moe_layers: int
    experts: int
    experts_per_token: int
    expert_weight_bytes: float
    """One expert of one layer, the rank's share (divided by tp without expert parallelism, whole with it)."""
    expert_flops_per_token: float
    """2 x activated expert parameters of one token over all layers, whole model."""
    expert_format: str
    expert_weight_format: str
    experts_ranks: int
    """Ranks among which the experts' work is divided (tp, or tp x dp with expert parallelism)."""
    # attention
    kv_reads: tuple[KvRead, ...]
    """Softmax attention layers (not MLA), by window."""
    mla_read_bytes_per_token: float
    """Latent bytes a token of context over all MLA layers, whole latent on each rank."""
    mla_flops_per_token: float
    """Absorbed decode FLOPs a token of context: 2 n_q/tp (2 kv_lora + rope), over all MLA layers."""
    attention_flops_per_pair: float
    """Prefill FLOPs a (query, key) pair over all layers: 4 n_q d / tp, MLA 2 n_q (nope + rope + v) / tp."""
    window_flops_per_pair: float
    """The part of ``attention_flops_per_pair`` in windowed layers."""
    state_bytes_per_sequence: float
    """Recurrent state read and written a sequence and step, on one rank."""
    kv_write_bytes_per_token: float
    activation_bytes_per_token: float
    """step-time.md's activation_bytes a token and rank, bf16."""
    # counts
    layers: int
    attention_layers: int
    mla_layers: int
    sparse_layers: int
    recurrent_layers: int
    hidden_size: int
    hidden_bytes: int
    """Bytes of one token's hidden vector (an all-reduce message a token)."""
    active_parameters: int
    """Parameters that one token visits, without embedding, with lm_head (whole model)."""


def rank_ops(deployment: Deployment) -> RankOps:
    """What one rank does in a step of `deployment`; see engines.md section 5 and step-time.md."""
    raise NotImplementedError
