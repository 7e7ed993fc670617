"""What no measurement can go below: the least time to compute a prompt, and to read the weights once.

Formulas of engines.md, section 5, at the chip's peak rates, everything else free: no attention, no overhead. The input
embedding is looked up, so it is neither computed nor read; lm_head runs on one row. These floors are therefore below
those of `steptime.roofline`, which keeps the founding documents' convention of 2 P FLOPs a token and W bytes a step.
"""

from __future__ import annotations

from inferometer.specs.deployment import Deployment
from inferometer.steptime.costs import peak_flops_per_s
from inferometer.steptime.ops import RankOps, rank_ops


def token_floor_s(dep: Deployment) -> float:
    """Least seconds of compute that one prompt token takes.

    The chips of a tensor-parallel group share it, and pipeline stages can work on different chunks of one prompt.

    Raises:
        InputError: the model is given by its few figures, so its layers are not known.
    """
    ops = rank_ops(dep)
    linear = sum(flops / peak_flops_per_s(dep.chip, name) for name, flops in ops.dense_flops_by_format)
    experts = ops.expert_flops_per_token / ops.experts_ranks / peak_flops_per_s(dep.chip, ops.expert_format)
    return (linear + experts) / dep.pipeline_parallel_size


def prefill_floor_s(dep: Deployment, tokens: float) -> float:
    """Least seconds to compute a prompt of so many tokens, and the first token's logits; InputError as above.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> round(prefill_floor_s(dep, 1024), 4)  # 13.89 GFLOP a token, 1.24 of lm_head, 312 TFLOP/s
    0.0456
    """
    ops = rank_ops(dep)
    return tokens * token_floor_s(dep) + ops.head_flops_per_row / peak_flops_per_s(dep.chip, ops.head_format)


def weight_read_floor_s(dep: Deployment) -> float:
    """Least seconds of a decode step: weights read once, of experts those that one token visits; InputError as above.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("a100-sxm4-80gb"))
    >>> round(weight_read_floor_s(dep), 5)  # 15.14 GB at 2,039 GB/s
    0.00742
    """
    ops = rank_ops(dep)
    read = ops.dense_weight_bytes + ops.head_weight_bytes + _expert_bytes(ops, dep)
    return read / dep.chip.bandwidth_bytes_per_s


def _expert_bytes(ops: RankOps, dep: Deployment) -> float:
    """Expert weights that one token makes one rank read, spread evenly at best."""
    holders = ops.experts_ranks if dep.enable_expert_parallel else 1
    return ops.moe_layers * ops.experts_per_token * ops.expert_weight_bytes / holders
