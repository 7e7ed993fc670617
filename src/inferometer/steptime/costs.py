"""StepCosts: what one engine step costs, as integer tables that the compiled simulator looks up.

Time is counted in ticks of 2**-54 s. A step's cost is a sum of table entries and of whole numbers times whole
coefficients, each rounded to ticks once, so adding steps up in another order changes nothing
(``docs/explanation/scheduler.md``). Anything that makes these tables is a step-time model.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import InputError
from inferometer.specs.chip import Chip
from inferometer.specs.deployment import Deployment
from inferometer.specs.engine import EngineFlags, cudagraph_sizes
from inferometer.steptime.efficiencies import Bound, Efficiencies, efficiencies
from inferometer.steptime.ops import RankOps, rank_ops

TICKS_PER_S = 2.0**54
LONGEST_STEP = 1 << 61
"""128 s."""
NO_WINDOW = 1 << 40
"""Stands for "the whole context" where a window is asked for."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def ticks(seconds: float) -> int:
    """Seconds as whole ticks, rounded once."""
    return round(seconds * TICKS_PER_S)


class StepCosts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The price list of one engine step on one rank, in ticks of 2**-54 s.

    A step of ``n`` decoding sequences and no prefill costs
    ``decode[n] + sum_k kinds.decode_kv[k] * context_k``; a step that carries prefill chunks costs
    ``mixed[T] + rows[r] + sequence * s + sum_k (mixed_kv * context_k + pair * half_pairs_k + chunk_kv * start_k)``
    with T tokens in all, r sampled rows, s sequences. ``context_k`` is the summed context of the decoding sequences,
    each capped at ``window[k]``; ``half_pairs_k`` is twice the (query, key) pairs of the chunks under that window;
    ``start_k`` the tokens before each chunk, capped.

    >>> import inferometer as im
    >>> costs = sheet_costs(im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb")))
    >>> costs.decode_step_s(sequences=64, context_tokens=1000) < costs.prefill_step_s(tokens=2048)
    True
    """

    decode: Ints
    """(max_num_seqs + 1,) by sequences: linear layers at the padded batch, lm_head, overheads, communication."""
    mixed: Ints
    """(max_num_batched_tokens + 1,) by tokens in the step, without lm_head and sequences."""
    rows: Ints
    """(max_num_seqs + 1,) by sampled rows: lm_head of a mixed step."""
    sequence: int
    """A sequence of a mixed step."""
    window: Ints
    """(K,) tokens that each kind of attention layer looks back; `NO_WINDOW` for all."""
    decode_kv: Ints
    """(K,) a token of decode context, in a step of decodes only."""
    mixed_kv: Ints
    """(K,) a token of decode context, in a step that carries prefill."""
    pair: Ints
    """(K,) half a (query, key) pair of a prefill chunk."""
    chunk_kv: Ints
    """(K,) a token that lies before a prefill chunk."""
    origin: str = ""

    def __post_init__(self) -> None:
        """Refuse empty tables, kinds that do not match, and entries that would overflow the clock.

        Raises:
            InputError: naming the table; a step of 128 s or more is taken for a mistake.
        """
        for name in ("decode", "mixed", "rows"):
            table = getattr(self, name)
            if len(table) < 2 or int(table.max()) >= LONGEST_STEP or int(table.min()) < 0:
                worst = float(max(table, default=0)) / TICKS_PER_S
                allowed = "steps of 0 to 128 s (fewer tokens a step, a faster chip)"
                raise InputError(f"costs.{name}", f"{worst:.3g} s", allowed)
        kinds = {len(getattr(self, name)) for name in ("window", "decode_kv", "mixed_kv", "pair", "chunk_kv")}
        if len(kinds) != 1 or 0 in kinds:
            raise InputError("costs.window", len(self.window), "as many entries as each coefficient, at least one")

    def decode_step_s(self, sequences: int, context_tokens: int) -> float:
        """Seconds of a decode-only step of ``sequences``, each with ``context_tokens`` of context."""
        if not 0 <= sequences < len(self.decode):
            raise InputError("sequences", sequences, f"0 to max_num_seqs, {len(self.decode) - 1}")
        context = np.minimum(context_tokens, self.window) * sequences
        return float(self.decode[sequences] + (self.decode_kv * context).sum()) / TICKS_PER_S

    def prefill_step_s(self, tokens: int, start: int = 0) -> float:
        """Seconds of a step that holds one chunk of ``tokens`` after ``start`` computed ones, and samples from it."""
        if not 1 <= tokens < len(self.mixed):
            raise InputError("tokens", tokens, f"1 to max_num_batched_tokens, {len(self.mixed) - 1}")
        half_pairs = np.array([half_pairs_of(tokens, start, int(w)) for w in self.window])
        context = (self.pair * half_pairs + self.chunk_kv * np.minimum(start, self.window)).sum()
        return float(self.mixed[tokens] + self.rows[1] + self.sequence + context) / TICKS_PER_S


def half_pairs_of(tokens: int, start: int, window: int) -> int:
    """Twice the (query, key) pairs of ``tokens`` after ``start``, each query seeing at most ``window`` keys."""
    inside = min(max(window - start, 0), tokens)
    return 2 * inside * start + inside * (inside + 1) + 2 * (tokens - inside) * window


# ---------------------------------------------------------------- the specification-sheet model
RATE_FALLBACK = {"fp4": "fp8", "fp8": "bf16", "int8": "bf16", "bf16": "fp16", "fp16": "bf16"}
"""Where a chip has no unit for a format, the format its products run in instead (weights are widened on the fly)."""
FP32_SHARE = 0.5
"""Of the 16-bit tensor rate, where a data sheet gives no fp32 rate: TF32 runs at half of it."""
ALLTOALL_BYTES = 1.5
"""Bytes an element on its way to the experts and back: 8 bits out, 16 bits home (step-time study)."""
SAMPLER_BYTES_PER_LOGIT = 8
"""fp32 logits, read and written once; agrees with the sampler rows of the RTX PRO 6000 kernel tables."""


def peak_flops_per_s(chip: Chip, number_format: str) -> float:
    """Dense FLOP/s of a chip in a number format; without a unit for it, in the one that it falls back to."""
    rates = chip.flops_per_s
    if number_format in rates:
        return rates[number_format]
    if number_format == "fp32":
        return FP32_SHARE * peak_flops_per_s(chip, "bf16")
    wanted = number_format
    for _ in RATE_FALLBACK:
        wanted = wanted if wanted in rates else RATE_FALLBACK[wanted]
    return rates.get(wanted) or max(rates.values())


def pad_to_graph(tokens: Ints, flags: EngineFlags) -> Ints:
    """Tokens that steps of ``tokens`` compute: the next captured CUDA graph, or themselves beyond the largest."""
    sizes = np.array((0, *cudagraph_sizes(flags)))
    return np.where(tokens <= sizes[-1], sizes[np.searchsorted(sizes, np.minimum(tokens, sizes[-1]))], tokens)


def sheet_costs(deployment: Deployment, bound: Bound = "value") -> StepCosts:
    """Step costs from the specification sheet and the family's efficiencies; nothing of the user's is measured.

    Formulas: ``docs/explanation/step-time.md``. A table entry is rounded to ticks once.

    Args:
        deployment: model, chips and flags; all layers must be known.
        bound: the estimate, or every constant at its slow or fast end.

    Raises:
        InputError: the model was given by its few figures, so its layers are not known; a step of 128 s or more.
    """
    return SheetModel(deployment, efficiencies(deployment.chip, bound)).costs()


class SheetModel:
    """The terms of a step, in seconds, each a function of tokens or rows; `costs` tabulates them."""

    def __init__(self, deployment: Deployment, eff: Efficiencies) -> None:
        self.dep, self.eff = deployment, eff
        self.chip: Chip = deployment.chip
        self.flags: EngineFlags = deployment.resolved()
        self.ops: RankOps = rank_ops(deployment)
        self.pp = deployment.pipeline_parallel_size

    def costs(self) -> StepCosts:
        """Tabulate everything."""
        seqs = np.arange(self.flags.max_num_seqs + 1)
        tokens = np.arange(self.flags.max_num_batched_tokens + 1)
        decode = self.layers_s(self.padded(seqs)) + self.head_s(seqs) + self.sequence_s() * seqs
        decode[0] = self.eff.step_s
        kinds = self.attention()
        as_ticks = partial(np.asarray, dtype=np.int64)
        return StepCosts(
            decode=_ticks(decode),
            mixed=_ticks(self.layers_s(self.padded(tokens)) + self.prefill_overhead_s()),
            rows=_ticks(self.head_s(seqs)),
            sequence=ticks(self.sequence_s()),
            window=as_ticks([w for w, *_ in kinds]),
            decode_kv=as_ticks([ticks(d) for _, d, *_ in kinds]),
            mixed_kv=as_ticks([ticks(m) for _, _, m, *_ in kinds]),
            pair=as_ticks([ticks(p / 2) for *_, p, _ in kinds]),
            chunk_kv=as_ticks([ticks(c) for *_, c in kinds]),
            origin=f"specification sheet, efficiencies of family {self.chip.family or 'default'!r}",
        )

    def padded(self, tokens: NDArray[np.int64]) -> Floats:
        """Tokens rounded up to a captured CUDA graph, then spread over the micro-batches of a pipeline."""
        return np.ceil(pad_to_graph(tokens, self.flags) / self.pp)

    def layers_s(self, tokens: Floats) -> Floats:
        """All layers but attention over the context, with communication and the engine's own time."""
        return self.dense_s(tokens) + self.experts_s(tokens) + self.communication_s(tokens) + self.fixed_s(tokens)

    def dense_s(self, tokens: Floats) -> Floats:
        """Linear layers: smooth maximum of reading the weights and of the FLOPs."""
        read = self.ops.dense_weight_bytes / (self.chip.bandwidth_bytes_per_s * self.eff.weight_read)
        a_token = sum(flops / self.rate(name) for name, flops in self.ops.dense_flops_by_format)
        return self.smooth_max(read, tokens * a_token / self.eff.mfu)

    def experts_s(self, tokens: Floats) -> Floats:
        """Routed experts: those that the step's tokens are expected to hit are read once.

        Data-parallel replicas send their tokens to the same experts, in lockstep: each replica's step waits for the
        others' chunks too. As they are simulated apart, each pays for its own chunk ``dp`` times instead.
        """
        ops, eff, dep = self.ops, self.eff, self.dep
        if not ops.moe_layers:
            return np.zeros_like(tokens)
        together = tokens * dep.data_parallel_size
        share = ops.experts_per_token / ops.experts
        distinct = ops.experts * (1 - (1 - share) ** (eff.routing_skew * together))
        distinct = np.where(together > 0, np.maximum(distinct, ops.experts_per_token), 0)
        holders = ops.experts_ranks if dep.enable_expert_parallel else 1
        read_bytes = ops.moe_layers * distinct * ops.expert_weight_bytes / holders
        read = read_bytes / (self.chip.bandwidth_bytes_per_s * eff.expert_read)
        flops = together * ops.expert_flops_per_token / ops.experts_ranks
        compute = flops / (self.rate(ops.expert_format) * eff.mfu_expert)
        uneven = eff.expert_imbalance if dep.enable_expert_parallel and holders > 1 else 1.0
        return self.smooth_max(read, compute) * uneven / self.fp4_penalty(ops.expert_weight_format)

    def communication_s(self, tokens: Floats) -> Floats:
        """Two all-reduces a layer (tensor parallel), two all-to-alls a MoE layer (data parallel), pipeline hops."""
        ops, eff, tp, dp = self.ops, self.eff, self.dep.tensor_parallel_size, self.dep.data_parallel_size
        message = tokens * ops.hidden_bytes / (self.link() * eff.link_share)
        total = np.zeros_like(tokens)
        if tp > 1:
            latency = eff.allreduce_pcie_s if self.chip.link_kind in ("pcie", "none") else eff.allreduce_s
            latency *= 1 + eff.allreduce_growth * np.log2(tp / 2)
            total = total + 2 * ops.layers * (latency + message * 2 * (tp - 1) / tp)
        if dp > 1 and ops.moe_layers:
            ranks = ops.experts_ranks
            sent = dp * tokens * ops.hidden_size * ALLTOALL_BYTES / (self.link() * eff.link_share)
            total = total + 2 * ops.moe_layers * (eff.alltoall_s + sent * (ranks - 1) / ranks)
        return total + (self.pp - 1) * (eff.hop_s + message)

    def fixed_s(self, tokens: Floats) -> Floats:
        """Small kernels of every layer, activations through memory, the engine's own time a step."""
        ops, eff = self.ops, self.eff
        floor = ops.layers * eff.layer_s + ops.moe_layers * eff.moe_layer_s + ops.mla_layers * eff.mla_layer_s
        floor += ops.sparse_layers * eff.sparse_layer_s + ops.recurrent_layers * eff.recurrent_layer_s
        moved = ops.activation_bytes_per_token + ops.kv_write_bytes_per_token
        return eff.step_s + floor + eff.activation_traffic * tokens * moved / self.chip.bandwidth_bytes_per_s

    def head_s(self, sampled: NDArray[np.int64]) -> Floats:
        """lm_head on sampled rows (those of a micro-batch), and the sampler's passes over the logits."""
        ops, tp = self.ops, self.dep.tensor_parallel_size
        rows = np.ceil(sampled / self.pp)
        read = ops.head_weight_bytes / (self.chip.bandwidth_bytes_per_s * self.eff.weight_read)
        flops = rows * ops.head_flops_per_row / (self.rate(ops.head_format) * self.eff.mfu)
        logits = rows * self.dep.model.vocab_size * SAMPLER_BYTES_PER_LOGIT / self.chip.bandwidth_bytes_per_s
        gather = 0.0 if tp == 1 else rows * self.dep.model.vocab_size * 2 / (self.link() * self.eff.link_share)
        return np.where(rows > 0, self.smooth_max(read, flops) + logits + gather, 0.0)

    def sequence_s(self) -> float:
        """A sequence and step: the engine's bookkeeping, and recurrent state read and written."""
        state = 2 * self.ops.state_bytes_per_sequence / (self.chip.bandwidth_bytes_per_s * self.eff.kv_read)
        return self.eff.sequence_s + state

    def prefill_overhead_s(self) -> float:
        """What a step pays once for carrying any prefill."""
        return self.eff.prefill_step_s + self.ops.layers * self.eff.prefill_layer_s

    def attention(self) -> list[tuple[int, float, float, float, float]]:
        """By kind of layer: window, and seconds for each of the four `StepCosts` coefficients of it."""
        ops, eff, pp = self.ops, self.eff, self.pp
        bandwidth, rate = self.chip.bandwidth_bytes_per_s, self.rate("bf16")
        by_window: dict[int, float] = {}
        for read in ops.kv_reads:
            key = read.window or NO_WINDOW
            by_window[key] = by_window.get(key, 0.0) + read.bytes_per_token
        if ops.mla_layers or not by_window:
            by_window.setdefault(NO_WINDOW, 0.0)
        kinds = []
        for window, read_bytes in sorted(by_window.items()):
            pair = self.pair_flops(window, by_window) / (rate * eff.mfu_attention)
            decode = read_bytes / (bandwidth * eff.kv_read)
            mixed = read_bytes / (bandwidth * eff.kv_read_mixed)
            if read_bytes and not ops.mla_layers:
                mixed = max(mixed, pair * eff.mixed_query_rows)
            chunk = read_bytes / (bandwidth * eff.chunk_kv_read)
            if window == NO_WINDOW and ops.mla_layers:
                latent = ops.mla_read_bytes_per_token / (bandwidth * eff.mla_read)
                absorbed = ops.mla_flops_per_token / (rate * eff.mfu_mla)
                both = float(self.smooth_max(latent, np.array(absorbed)))
                decode, mixed, chunk = decode + both, mixed + both, chunk + latent
            kinds.append((window, decode / pp, mixed / pp, pair / pp, chunk / pp))
        return kinds

    def pair_flops(self, window: int, by_window: dict[int, float]) -> float:
        """FLOPs a (query, key) pair of the layers with this window (windowed kinds share theirs by KV bytes)."""
        if window == NO_WINDOW:
            return self.ops.attention_flops_per_pair - self.ops.window_flops_per_pair
        windowed = sum(b for w, b in by_window.items() if w != NO_WINDOW)
        return self.ops.window_flops_per_pair * by_window[window] / windowed

    def smooth_max(self, read: Any, flops: Any) -> Floats:
        """(a^p + b^p)^(1/p): near the larger of the two, above it where they are alike."""
        p = self.eff.smooth_max
        return np.asarray((np.asarray(read) ** p + flops**p) ** (1 / p))

    def rate(self, number_format: str) -> float:
        """Dense FLOP/s of the chip in a format, or in the one it falls back to."""
        return peak_flops_per_s(self.chip, number_format)

    def link(self) -> float:
        """Chip-to-chip bytes a second, one way: the node's link, else PCIe, else PCIe 4 x16."""
        return self.chip.link_bytes_per_s or self.chip.pcie_bytes_per_s or 32e9

    def fp4_penalty(self, weight_format: str) -> float:
        """Hopper has no fp4 units: 4-bit experts are unpacked in software."""
        four_bit = weight_format in ("int4", "mxfp4", "nvfp4")
        return self.eff.fp4_on_hopper if four_bit and self.chip.family == "hopper" else 1.0


def _ticks(seconds: Floats) -> Ints:
    """Rounded once; what would overflow is cut to a figure that `StepCosts` refuses."""
    return np.minimum(np.rint(seconds * TICKS_PER_S), float(LONGEST_STEP)).astype(np.int64)
