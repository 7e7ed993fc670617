"""The roofline in closed form: where decoding stops being memory-bound, if ever, and what it can reach.

The convention is the founding documents': a step reads all weight bytes W once, a token costs 2 P FLOPs with all
parameters P, each sequence reads its whole KV cache. Of a mixture of experts only those parameters count that a token
visits, and only the experts that a batch is expected to hit are read. Chips of one data-parallel replica act as one
large chip, so communication is free here. `steptime.costs` is the model to predict with; this one is to reason with.
"""

from __future__ import annotations

import math

import msgspec

from inferometer.specs.checks import positive, whole
from inferometer.specs.deployment import Deployment
from inferometer.steptime.costs import peak_flops_per_s
from inferometer.steptime.ops import rank_ops
from inferometer.steptime.weights import expert_bytes, visited_parameters, weight_bytes


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Closed forms at one context length; batch is the number of sequences of one replica.

    Decoding ``batch`` sequences reads ``W(batch) + batch * kv_bytes_per_sequence`` and computes ``batch * 2 P``.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> im.roofline(dep, context_tokens=1000).ridge_flops_per_byte
    153.01618440411966
    """

    context_tokens: int
    weight_bytes: int
    flops_per_token: float
    """2 P, of a mixture of experts 2 x the parameters that a token visits (embedding included, by the convention)."""
    kv_bytes_per_sequence: float
    """KV cache (windows capped) and recurrent state that one sequence reads a step."""
    bandwidth_bytes_per_s: float
    flops_per_s: float
    """Dense peak in the format that the weights' products run in."""
    expert_bytes: float = 0.0
    """Bytes of all routed experts, within ``weight_bytes``."""
    expert_share: float = 1.0
    """Share of the experts that one token visits."""

    def read_bytes(self, batch: float) -> float:
        """Weight bytes that a step of ``batch`` sequences reads: W less the experts that none of them is sent to."""
        idle = float((1 - self.expert_share) ** batch)
        return self.weight_bytes - self.expert_bytes * idle

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity at which the chip turns from memory- to compute-bound."""
        return self.flops_per_s / self.bandwidth_bytes_per_s

    @property
    def knee_batch_naive(self) -> float:
        """Batch at the ridge with the KV cache left out: ``ridge * W / 2 P``."""
        return self._batch_where(self.flops_per_token / self.ridge_flops_per_byte)

    @property
    def knee_batch(self) -> float | None:
        """Batch at the ridge with the KV cache read too; None: intensity never gets there, the curve only flattens."""
        rest = self.flops_per_token / self.ridge_flops_per_byte - self.kv_bytes_per_sequence
        return self._batch_where(rest) if rest > 0 else None

    @property
    def intensity_asymptote_flops_per_byte(self) -> float:
        """Intensity of an endless batch: ``2 P / KV``; infinite where nothing is read a sequence."""
        return _ratio(self.flops_per_token, self.kv_bytes_per_sequence)

    @property
    def half_saturation_batch(self) -> float:
        """Batch at half the throughput asymptote: ``W / KV``."""
        return self._batch_where(self.kv_bytes_per_sequence)

    @property
    def crossover_batch(self) -> float:
        """Batch whose KV reads equal the weight reads, ``W / KV``: below it batching buys throughput."""
        return self.half_saturation_batch

    @property
    def throughput_asymptote_tok_per_s(self) -> float:
        """Memory-bound throughput of an endless batch: ``BW / KV``."""
        return _ratio(self.bandwidth_bytes_per_s, self.kv_bytes_per_sequence)

    @property
    def compute_roof_tok_per_s(self) -> float:
        """Throughput if only FLOPs counted: ``F / 2 P``."""
        return self.flops_per_s / self.flops_per_token

    @property
    def decode_floor_s(self) -> float:
        """Least time of a decode step of one sequence: reading its weights once."""
        return self.read_bytes(1) / self.bandwidth_bytes_per_s

    def decode_tok_per_s(self, batch: float) -> float:
        """Throughput of a batch: ``BW B / (W + B KV)``, at most the compute roof."""
        read = self.read_bytes(batch) + batch * self.kv_bytes_per_sequence
        return min(self.bandwidth_bytes_per_s * batch / read, self.compute_roof_tok_per_s)

    def prefill_floor_s(self, tokens: int) -> float:
        """Least time to compute a prompt: ``2 P tokens / F``."""
        return self.flops_per_token * tokens / self.flops_per_s

    def ttft_knee(self, prompt_tokens: float) -> int:
        """Least C with ``(C - 1) x prefill floor > 2 x (prefill floor + decode floor)``.

        Of a wave of C prompts, sent at once and computed one after another, the last waits twice as long as the median.
        """
        return math.floor(3 + 2 * self.decode_floor_s / self.prefill_floor_s(round(prompt_tokens))) + 1

    def share_of_ceiling(self, tok_per_s: float, batch: float = 1) -> float:
        """A measured throughput over the ceiling of that batch with the KV cache left out, ``BW B / W``.

        Comparable across chips: 88.4 of 124.5 tok/s is 71.0 %.
        """
        read_s = self.read_bytes(positive("batch", batch)) / self.bandwidth_bytes_per_s
        return tok_per_s / min(batch / read_s, self.compute_roof_tok_per_s)

    def _batch_where(self, bytes_per_sequence: float) -> float:
        """The batch whose weight reads equal ``batch x bytes_per_sequence``; iterated from above."""
        if not bytes_per_sequence:
            return math.inf
        batch = self.weight_bytes / bytes_per_sequence
        for _ in range(100):
            batch = self.read_bytes(batch) / bytes_per_sequence
        return batch


def roofline(deployment: Deployment, context_tokens: int) -> Roofline:
    """The closed forms for one data-parallel replica of a deployment, at a context of ``context_tokens`` a sequence.

    Raises:
        InputError: a context that is not a whole number of at least 0.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> roof = im.roofline(dep, context_tokens=1000)
    >>> round(roof.half_saturation_batch), roof.knee_batch
    (111, None)
    """
    context_tokens = whole("context_tokens", context_tokens)
    chips = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    weights = weight_bytes(deployment.model, deployment)
    known = bool(deployment.model.blocks)
    compute_format = rank_ops(deployment).compute_format if known else "bf16"
    experts = expert_bytes(deployment.model, deployment) if known else 0.0
    return Roofline(
        context_tokens=context_tokens,
        weight_bytes=weights,
        expert_bytes=experts,
        expert_share=rank_ops(deployment).experts_per_token / rank_ops(deployment).experts if experts else 1.0,
        flops_per_token=2.0 * visited_parameters(deployment.model) if known else float(weights),
        kv_bytes_per_sequence=sequence_bytes(deployment, context_tokens),
        bandwidth_bytes_per_s=chips * deployment.chip.bandwidth_bytes_per_s,
        flops_per_s=chips * peak_flops_per_s(deployment.chip, compute_format),
    )


def sequence_bytes(deployment: Deployment, context_tokens: int) -> float:
    """Bytes that all ranks of a replica read for one sequence a decode step: KV by window, MLA latents, state."""
    model = deployment.model
    if not model.blocks:
        return 2.0 * model.layers * model.kv_heads * model.head_dim * deployment.kv_dtype_bytes() * context_tokens
    ops = rank_ops(deployment)
    cache = sum(min(context_tokens, r.window or context_tokens) * r.bytes_per_token for r in ops.kv_reads)
    cache += context_tokens * ops.mla_read_bytes_per_token
    return deployment.tensor_parallel_size * (cache + ops.state_bytes_per_sequence)


def _ratio(a: float, b: float) -> float:
    return a / b if b else float("inf")
