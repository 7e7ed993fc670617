"""Where a chip's memory goes at start-up, and how much is left for the KV cache.

`memory` finds the pool the way vLLM does (engines.md 1.4): of what the driver reports, the utilisation's share is
requested; weights, the activation peak of a profile run, what lies outside PyTorch and, in versions that do so, the
CUDA graphs are taken off; the rest is cut into blocks. Every term says where it comes from.

`memory(deployment, overhead_fraction=f)` is the simple model of the first founding document:
(marketed memory of all chips - weights) x (1 - f), and never below 0.

Constants: `Startup` and `STARTUPS`, each with the rows it was read from.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import InputError
from inferometer.specs.chip import Chip, chip
from inferometer.specs.deployment import Deployment
from inferometer.specs.engine import cudagraph_sizes
from inferometer.specs.model import Mla, Mlp, Model, Moe
from inferometer.steptime.kv_layout import KvLayout, kv_layout, release
from inferometer.steptime.ops import kv_bytes_per_token, state_bytes_per_sequence
from inferometer.steptime.weights import (
    Split,
    Tensor,
    block_tensors,
    embedding_tensors,
    head_tensors,
    stored_quantization,
    tensor_bytes,
    unquantized_bytes,
    weight_bytes,
)

GIB = 2**30
MIB = 2**20

Origin = Literal["exact", "modelled", "calibrated", "reported"]

SEGMENT_BYTES = 2 * MIB
"""PyTorch's allocator takes large tensors in multiples of this ..."""
UNSPLIT_BYTES = MIB
"""... and leaves a remainder of at most this unused (``kSmallSize``); it counts as allocated."""
LARGE_TENSOR_BYTES = 10 * MIB
"""Tensors from here on have segments of their own (``kMinLargeAlloc``)."""

DEFAULT_VOCAB = 131_072
DEFAULT_HIDDEN = 8_192
"""Assumed for the activations of a model given by its few figures."""

SIMPLE_BLOCK_TOKENS = 16

NULL_BLOCK_FIRST = (0, 32)
"""The release from which the engine sets its null block aside before it checks that one longest request fits."""


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """What a start-up takes besides weights. Read from the H100 rows of kv_pool_llmd_planner_h100_vllm0190.csv
    (jgchn/llm-d-planner@d3121e0), all in sample; rows run with ``max_num_seqs`` 1024 and a budget of 8192."""

    fp32_logit_copies: float
    """Copies of rows x vocabulary x 4 bytes that the sampler holds, besides the logits in the model's own dtype.
    0.19: 3.1, from Llama-3.1-8B, Qwen3-8B, the Gemmas and phi-4 (and 8B in fp32, whose own copy is twice as large).
    0.15, 0.16 (Qwen3-14B) and most rows labelled 0.11: 9.0."""
    hidden_copies_forward: float = 3.5
    """Hidden vectors of all tokens alive beside the MLP's at the forward peak: granite-3.1-8b, Mistral-Small w8a8,
    8B at pp=2 and pp=4."""
    base_gib: float = 0.063
    """Buffers left over in every row: same rows as the copies."""
    non_torch_gib: float = 0.25
    """CUDA context and libraries, one chip (0.18 and 0.19; 0.13 before)."""
    non_torch_ada_gib: float = 0.6
    """The same on Ada chips: one row, Llama-3.1-8B on RTX 4090 (kv_pool_issues.csv, 0.19)."""
    non_torch_tp_gib: float = 2.1
    """The same with tensor parallelism and NVLink from Hopper on: communicators' and symmetric buffers (0.19; 0.55 in
    rows labelled 0.11)."""
    non_torch_tp_other_gib: float = 0.75
    """The same on other chips: no row; engines.md estimates 0.5 to 1 GiB."""
    non_torch_pp_gib: float = 0.07
    """Pipeline parallelism alone: 8B at pp=2 and pp=4."""


_BEFORE_0_18: dict[str, float] = {
    "non_torch_gib": 0.13,
    "non_torch_ada_gib": 0.48,
    "non_torch_tp_gib": 0.55,
    "non_torch_tp_other_gib": 0.55,
}

STARTUPS: tuple[tuple[tuple[int, int], Startup], ...] = (
    ((0, 0), Startup(fp32_logit_copies=9.0, **_BEFORE_0_18)),
    ((0, 17), Startup(fp32_logit_copies=3.1, **_BEFORE_0_18)),
    ((0, 18), Startup(fp32_logit_copies=3.1)),
)
"""From which release each holds; later releases are assumed to be as 0.19."""

GRAPHS_GIB = {"hopper": 0.85, "hopper-moe": 1.3, "hopper-tp": 1.65, "other": 0.5, "pp": 0.5}
"""CUDA graphs as the engine estimates them for 51 sizes. Hopper: medians of the 0.19 rows (dense, MoE or MLA, tp
above 1, pp above 1). Other chips: engines.md's estimate; the founding A100 pool (0.26) asks for 0.36."""
GRAPH_SIZES = 51

_CALIBRATED_SPREAD = 0.3


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One item of the budget, on the smallest rank."""

    name: str
    bytes: int
    origin: Origin
    low_bytes: int
    high_bytes: int
    note: str = ""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment's memory budget. See the fields for what each is counted over.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("h200-sxm-141gb"))
    >>> found = im.memory(dep)
    >>> found.fits, found.kv_bytes_per_token, [term.name for term in found.terms][:3]
    (True, 147456, ['total', 'requested', 'outside the engine'])
    """

    fits: bool
    """Whether weights and working memory leave room for at least one request of ``max_model_len``."""
    shortfall_bytes: int
    """What a rank lacks for that; 0 where it fits."""
    reason: str
    """Why it does not fit; "" where it does."""
    max_model_len: int
    """The longest request: the flag; where it is not set, the model's own length or the longest that the pool holds."""
    note: str
    """What the engine must be told beside the flags given; "" for nothing."""
    # the whole model
    weight_bytes: int
    """Text model, and towers of other modalities that the engine loads too."""
    kv_bytes_per_token: int
    """All layers that own a cache, windows not applied."""
    state_bytes_per_sequence: int
    """Recurrent state, fixed whatever the length."""
    # the smallest rank
    weight_bytes_per_rank: int
    kv_bytes_per_token_per_rank: int
    kv_pool_bytes: int
    """Exactly 0 where it does not fit."""
    num_gpu_blocks: int
    bytes_per_block: int
    block_size: int
    """Tokens a block (the shortest, where groups differ)."""
    # one data-parallel replica
    kv_cache_tokens: int
    """As the engine prints it: ``int(max_concurrency x max_model_len)``; up to 0.20 blocks over groups x block size."""
    max_concurrency: float
    """Requests of ``max_model_len`` that the pool holds."""
    blocks_per_request: int
    """Blocks that one request of ``max_model_len`` takes."""
    terms: tuple[Term, ...]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline stage's rank: its layers and what it holds."""

    first: int
    end: int
    weights: int
    allocator: int
    buffers: int
    activations: int
    non_torch: int
    graphs: int

    @property
    def taken(self) -> int:
        """All that is taken off the requested memory."""
        return self.weights + self.allocator + self.buffers + self.activations + self.non_torch + self.graphs


def memory(deployment: Deployment, overhead_fraction: float | None = None) -> Memory:
    """What fits where, term by term.

    Args:
        deployment: what is served on what.
        overhead_fraction: where given, the first founding document's model instead: all chips together, marketed
            memory, and this share of what weights leave taken off.

    Raises:
        InputError: an overhead outside 0 to 1; a model without a config whose weights are not stated.

    >>> import inferometer as im
    >>> lab = im.Model(name="lab-70b", weight_bytes=140_000_000_000, layers=80, kv_heads=8, head_dim=128)
    >>> node = im.Deployment(model=lab, chip=im.chip("a100-sxm4-80gb"), tensor_parallel_size=8)
    >>> im.memory(node, overhead_fraction=0.1).kv_pool_bytes
    492475290624
    """
    if overhead_fraction is not None:
        return _simple(deployment, overhead_fraction)
    flags = deployment.resolved()
    layout = kv_layout(deployment)
    requested = math.ceil(deployment.chip.total_memory_bytes * Fraction(str(flags.gpu_memory_utilization)))
    pools = [(requested - s.taken, s, layout.bytes_per_block(s.first, s.end)) for s in stages(deployment)]
    if flags.kv_cache_memory_bytes is not None:
        pools = [(flags.kv_cache_memory_bytes, s, block) for _, s, block in pools]
    room, stage, block = min(pools, key=lambda p: p[0] / p[2] if p[2] else math.inf)
    return _budget(deployment, layout, stage, requested, room, block)


def _budget(deployment: Deployment, layout: KvLayout, stage: Stage, requested: int, room: int, block: int) -> Memory:
    flags, model, tp = deployment.resolved(), deployment.model, deployment.tensor_parallel_size
    kv = deployment.kv_dtype_bytes()
    blocks = max(0, room // block) if block else 0
    longest = _longest(deployment, layout, blocks)
    per_request = layout.blocks_per_request(longest)
    needed = per_request + (release(deployment) >= NULL_BLOCK_FIRST)
    fits = room > 0 and blocks >= needed
    if flags.num_gpu_blocks_override is not None and room > 0:
        # set by hand, and as small as one likes: the engine checks the length against memory, not against this
        blocks, fits = flags.num_gpu_blocks_override, True
        room = blocks * block
    concurrency = blocks / per_request if fits and per_request else 0.0
    return Memory(
        fits=fits,
        shortfall_bytes=0 if fits else needed * block - room,
        reason="" if fits else _why_not(room, needed * block, longest),
        max_model_len=longest,
        note=_shortened(flags.max_model_len, longest) if fits else "",
        weight_bytes=weight_bytes(model, deployment),
        kv_bytes_per_token=kv_bytes_per_token(model, kv),
        state_bytes_per_sequence=state_bytes_per_sequence(deployment),
        weight_bytes_per_rank=stage.weights,
        kv_bytes_per_token_per_rank=_stage_kv_bytes(layout, stage) or kv_bytes_per_token(model, kv, tp),
        kv_pool_bytes=room if fits else 0,
        num_gpu_blocks=blocks if fits else 0,
        bytes_per_block=block,
        block_size=layout.block_size,
        kv_cache_tokens=_printed_tokens(deployment, layout, blocks, concurrency, longest) if fits else 0,
        max_concurrency=concurrency,
        blocks_per_request=per_request,
        terms=tuple(_terms(deployment, stage, requested, room if fits else 0)),
    )


def _longest(deployment: Deployment, layout: KvLayout, blocks: int) -> int:
    """``max_model_len``; where it is left to the model and the pool is smaller, the longest request that fits.

    The engine would refuse to start with the model's own length and say so; one passes the shorter one then.
    """
    flags = deployment.resolved()
    given = any(name.replace("-", "_") == "max_model_len" for name in deployment.flags)
    override = flags.num_gpu_blocks_override is not None
    usable = blocks - 1
    if given or override or layout.blocks_per_request(flags.max_model_len) <= usable:
        return flags.max_model_len
    size = layout.block_size
    fitting = bisect.bisect_right(
        range(1, flags.max_model_len // size + 1), usable, key=lambda n: layout.blocks_per_request(n * size)
    )
    return fitting * size or flags.max_model_len


def _shortened(default: int, longest: int) -> str:
    if longest == default:
        return ""
    return (
        f"one request of the model's own {default:,} tokens does not fit, so the engine would not start: "
        f"assumes --max-model-len {longest}"
    )


def _stage_kv_bytes(layout: KvLayout, stage: Stage) -> int:
    attention = [g for g in layout.groups if g.layer.kind != "state"]
    return sum(g.layer.bytes for g in attention for i in g.indices if stage.first <= i < stage.end)


def _why_not(room: int, needed: int, longest: int) -> str:
    if room <= 0:
        return f"weights and working memory exceed the memory requested by {-room / GIB:.2f} GiB"
    return (
        f"one request of max_model_len {longest} needs {needed / GIB:.2f} GiB of KV cache, "
        f"and {room / GIB:.2f} GiB are left: give a smaller max_model_len"
    )


def _printed_tokens(deployment: Deployment, layout: KvLayout, blocks: int, concurrency: float, longest: int) -> int:
    if release(deployment) <= (0, 20):
        return blocks // max(1, len(layout.groups)) * layout.block_size
    if len(layout.groups) == 1 and longest % layout.block_size == 0:
        return blocks * layout.block_size  # the same, without a rounding error of one token
    return int(concurrency * longest)


def pool_blocks(deployment: Deployment, found: Memory, context_tokens: int) -> int:
    """Blocks of ``block_size`` tokens that a scheduler with one kind of block should be given.

    For a model with one group these are ``num_gpu_blocks``. Where windows or states make a request take fewer or
    more blocks than its tokens, the pool is stated in blocks of a request of ``context_tokens``, so that as many such
    requests fit as in the engine.
    """
    layout = kv_layout(deployment)
    if len(layout.groups) == 1 and layout.groups[0].layer.kind == "full":
        return found.num_gpu_blocks
    tokens = max(1, min(context_tokens, deployment.resolved().max_model_len))
    block = deployment.resolved().block_size
    # most of its life a request decodes, and holds no more than its window and the block being filled
    decoding = msgspec.structs.replace(layout, in_flight_tokens=1)
    return int(found.num_gpu_blocks / decoding.blocks_per_request(tokens) * math.ceil(tokens / block))


def holds(deployment: Deployment, found: Memory, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which requests, alone, fit the pool beside its null block; ``tokens`` is how many each caches in the end."""
    layout, usable = kv_layout(deployment), found.num_gpu_blocks - 1
    if not len(tokens) or layout.blocks_per_request(int(tokens.max())) <= usable:
        return np.ones(len(tokens), np.bool_)
    lengths, at = np.unique(tokens, return_inverse=True)
    return np.array([layout.blocks_per_request(int(n)) <= usable for n in lengths])[at]


# ---------------------------------------------------------------- what a rank holds


def stages(deployment: Deployment) -> Iterator[Stage]:
    """The ranks of one pipeline, first to last (``vllm/distributed/utils.py:get_pp_indices``)."""
    count = deployment.pipeline_parallel_size
    sizes = [deployment.model.layers // count] * count
    for k in range(deployment.model.layers % count):
        sizes[-2 - k] += 1
    first = 0
    for rank, size in enumerate(sizes):
        yield _stage(deployment, first, first + size, rank == 0, rank == count - 1)
        first += size


def _stage(deployment: Deployment, first: int, end: int, is_first: bool, is_last: bool) -> Stage:
    model = deployment.model
    weights, allocator = _stage_weights(deployment, first, end, is_first, is_last)
    flags, startup = deployment.resolved(), startup_of(deployment)
    return Stage(
        first=first,
        end=end,
        weights=weights,
        allocator=allocator,
        buffers=_buffers(model, deployment, first, end),
        activations=_activation_peak(deployment, startup, is_last),
        non_torch=_non_torch(deployment, startup),
        graphs=_graphs(deployment) if flags.subtract_cudagraph_memory else 0,
    )


def startup_of(deployment: Deployment) -> Startup:
    """The constants of the deployment's engine release."""
    mine = release(deployment)
    return [startup for since, startup in STARTUPS if since <= mine][-1]


def _stage_weights(deployment: Deployment, first: int, end: int, is_first: bool, is_last: bool) -> tuple[int, int]:
    """Bytes of the weights of a rank, and of what the allocator rounds up."""
    model, split = deployment.model, Split.of(deployment)
    quantization, element = stored_quantization(model, deployment), unquantized_bytes(model, deployment)
    if not model.blocks:
        whole = weight_bytes(model, deployment)
        return math.ceil(whole * (end - first) / model.layers / split.tp), 0
    held: list[tuple[int, Tensor]] = []
    position = 0
    for block in model.blocks:
        count = max(0, min(end, position + block.count) - max(first, position))
        position += block.count
        held += [(count, t) for t in block_tensors(block, model, split)] if count else []
    tied_again = is_last and model.tie_word_embeddings
    held += [(1, t) for t in embedding_tensors(model, split)] if is_first or tied_again else []
    held += [(1, t) for t in head_tensors(model, split)] if is_last else []
    sizes = [(count, tensor_bytes(t, quantization, element)) for count, t in held]
    extra = math.ceil(sum(model.extra_parameters.values()) * element / split.tp) if is_first else 0
    return sum(n * size for n, size in sizes) + extra, sum(n * rounding_bytes(size) for n, size in sizes)


def rounding_bytes(size: int) -> int:
    """What PyTorch's allocator adds to a tensor of ``size`` bytes and counts as allocated.

    >>> rounding_bytes(242_221_056) // 2**20, rounding_bytes(2**28)
    (1, 0)
    """
    rest = -size % SEGMENT_BYTES
    return rest if size >= LARGE_TENSOR_BYTES and rest <= UNSPLIT_BYTES else 0


def _buffers(model: Model, deployment: Deployment, first: int, end: int) -> int:
    """Rotary tables, and the 16-bit copies of kv_b_proj that absorbed MLA multiplies by."""
    element, tp = unquantized_bytes(model, deployment), deployment.tensor_parallel_size
    total, position = model.rope_table_elements * element, 0
    for block in model.blocks:
        count = max(0, min(end, position + block.count) - max(first, position))
        position += block.count
        if isinstance(block.mixer, Mla):
            m = block.mixer
            total += count * 2 * m.kv_lora_rank * m.heads * (m.qk_nope_head_dim + m.v_head_dim) // tp
    return total


def _activation_peak(deployment: Deployment, startup: Startup, is_last: bool) -> int:
    """Peak of the profile run: of the forward pass or, on the last stage, of logits and sampler, whichever is larger.

    What outlives the forward pass (MoE workspaces, encoder outputs, tensors between stages) counts in both.
    """
    model, flags, tp = deployment.model, deployment.resolved(), deployment.tensor_parallel_size
    element = unquantized_bytes(model, deployment)
    tokens, hidden = flags.max_num_batched_tokens, model.hidden_size or DEFAULT_HIDDEN
    rows = min(flags.max_num_seqs, tokens)
    vector = tokens * hidden * element
    kept = _moe_workspace(deployment, tokens) + startup.base_gib * GIB
    kept += vector if model.extra_parameters.get("vision_tower") else 0
    kept += 2 * vector if deployment.pipeline_parallel_size > 1 else 0
    forward = tokens * _widest_mlp(deployment) / tp + startup.hidden_copies_forward * vector
    vocab = model.vocab_size or DEFAULT_VOCAB
    sampler = rows * vocab * (4 * startup.fp32_logit_copies + element) + vector if is_last else 0.0
    return int(kept + max(forward, sampler))


def _widest_mlp(deployment: Deployment) -> float:
    """Bytes a token of the widest dense MLP: its gate and up, their product and, quantised, the product in 8 bits."""
    model, element = deployment.model, unquantized_bytes(deployment.model, deployment)
    quantization = stored_quantization(model, deployment)
    each = 3 * element + (1 if quantization and quantization.activations in ("int8", "fp8") else 0)
    widths = [b.mlp.intermediate_size for b in model.blocks if isinstance(b.mlp, Mlp)]
    widths += [b.mlp.shared_intermediate_size for b in model.blocks if isinstance(b.mlp, Moe)]
    return float(each * max(widths, default=0))


def _moe_workspace(deployment: Deployment, tokens: int) -> int:
    """The fused experts' two workspaces, which stay allocated: tokens x top-k rows of each (vLLM's modular kernel)."""
    model, split = deployment.model, Split.of(deployment)
    element, widest = unquantized_bytes(model, deployment), 0
    for block in model.blocks:
        if isinstance(block.mlp, Moe):
            m = block.mlp
            inside = m.latent_size or model.hidden_size
            width = math.ceil(m.expert_intermediate_size / split.moe_tp)
            row = max(width, inside) + max(width * (2 if m.gated else 1), inside)
            widest = max(widest, tokens * m.experts_per_token * row * element)
    return widest


def _non_torch(deployment: Deployment, startup: Startup) -> int:
    if deployment.tensor_parallel_size > 1:
        symmetric = deployment.chip.family in ("hopper", "blackwell") and deployment.chip.link_kind == "nvlink"
        return int((startup.non_torch_tp_gib if symmetric else startup.non_torch_tp_other_gib) * GIB)
    if deployment.pipeline_parallel_size > 1:
        return int(startup.non_torch_pp_gib * GIB)
    ada = deployment.chip.family == "ada"
    return int((startup.non_torch_ada_gib if ada else startup.non_torch_gib) * GIB)


def _graphs(deployment: Deployment) -> int:
    """CUDA graphs as the engine estimates them before it cuts the pool; fewer sizes take less."""
    sizes = len(cudagraph_sizes(deployment.resolved()))
    model = deployment.model
    if deployment.pipeline_parallel_size > 1:
        key = "pp"
    elif deployment.chip.family != "hopper":
        key = "other"
    elif deployment.tensor_parallel_size > 1:
        key = "hopper-tp"
    else:
        key = "hopper-moe" if any(isinstance(b.mlp, Moe) for b in model.blocks) else "hopper"
    return int(GRAPHS_GIB[key] * GIB * min(1.0, sizes / GRAPH_SIZES))


# ---------------------------------------------------------------- terms


def _terms(deployment: Deployment, stage: Stage, requested: int, pool: int) -> Iterator[Term]:
    chip_, flags, model = deployment.chip, deployment.resolved(), deployment.model
    total = chip_.total_memory_bytes
    yield _total_term(chip_)
    yield _exact("requested", requested, f"total x gpu_memory_utilization {flags.gpu_memory_utilization}")
    yield _exact("outside the engine", total - requested, "total less what is requested")
    stated = not model.blocks
    yield _exact("weights", stage.weights, "as stated" if stated else "counted from the config, on this rank", stated)
    yield _within("allocator rounding", stage.allocator, "modelled", 0.5, "PyTorch's 2 MiB segments")
    yield _within("tables and copies", stage.buffers, "modelled", 0.2, "rotary tables; MLA's copies of kv_b_proj")
    note = "assumes a vocabulary of 131,072 and a width of 8,192" if stated else "profile run: sampler or forward peak"
    yield _within("activation peak", stage.activations, "calibrated", _CALIBRATED_SPREAD, note)
    yield _within("non-torch", stage.non_torch, "calibrated", 0.5, "CUDA context, communicators")
    graphs, taken = _graphs(deployment), flags.subtract_cudagraph_memory
    note = "taken off the pool" if taken else "not taken off the pool by this version: comes out of what is outside"
    yield _within("CUDA graphs", graphs, "calibrated", 0.6, note)
    yield _pool_term(deployment, stage, pool)


def _total_term(chip_: Chip) -> Term:
    total = chip_.total_memory_bytes
    if chip_.reported_memory_bytes is not None:
        return _exact("total", total, "by the driver", reported=True)
    note = f"marketed x {chip_.usable_fraction}: no driver report at hand"
    return _within("total", total, "modelled", 0.01, note)


def _exact(name: str, size: int, note: str, reported: bool = False) -> Term:
    origin: Origin = "reported" if reported else "exact"
    return Term(name=name, bytes=size, origin=origin, low_bytes=size, high_bytes=size, note=note)


def _within(name: str, size: int, origin: Origin, share: float, note: str) -> Term:
    low, high = int(size * (1 - share)), math.ceil(size * (1 + share))
    return Term(name=name, bytes=size, origin=origin, low_bytes=low, high_bytes=high, note=note)


def _pool_term(deployment: Deployment, stage: Stage, pool: int) -> Term:
    flags = deployment.resolved()
    if flags.kv_cache_memory_bytes is not None or flags.num_gpu_blocks_override is not None:
        return _exact("KV pool", pool, "set by kv_cache_memory_bytes or num_gpu_blocks_override")
    spread = int(_CALIBRATED_SPREAD * stage.activations + 0.5 * stage.non_torch + 0.6 * stage.graphs)
    low, high = (max(0, pool - spread), pool + spread) if pool else (0, 0)
    return Term(name="KV pool", bytes=pool, origin="modelled", low_bytes=low, high_bytes=high, note="what is left")


# ---------------------------------------------------------------- the simple model, and advice


def _simple(deployment: Deployment, overhead_fraction: float) -> Memory:
    """The first founding document's: integers and decimals, so that its figures come out exactly."""
    if isinstance(overhead_fraction, bool) or not 0 <= overhead_fraction < 1:
        raise InputError("overhead_fraction", overhead_fraction, "a share from 0 to below 1")
    model, kv = deployment.model, deployment.kv_dtype_bytes()
    weights = weight_bytes(model, deployment)
    copies = weights * deployment.data_parallel_size
    total = deployment.chip.memory_bytes * deployment.chips
    left = max(0, total - copies)
    overhead = math.ceil(left * Decimal(str(overhead_fraction)))
    pool, per_token = left - overhead, kv_bytes_per_token(model, kv)
    block = SIMPLE_BLOCK_TOKENS * per_token
    blocks = pool // block if block else 0
    longest = deployment.resolved().max_model_len
    per_request = math.ceil(longest / SIMPLE_BLOCK_TOKENS)
    tokens = blocks * SIMPLE_BLOCK_TOKENS // deployment.data_parallel_size
    return Memory(
        fits=pool > 0,
        max_model_len=longest,
        note="",
        shortfall_bytes=max(0, copies - total) if pool == 0 else 0,
        reason="" if pool > 0 else f"weights exceed the memory by {(copies - total) / GIB:.2f} GiB",
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        state_bytes_per_sequence=state_bytes_per_sequence(deployment),
        weight_bytes_per_rank=math.ceil(copies / deployment.chips),
        kv_bytes_per_token_per_rank=kv_bytes_per_token(model, kv, deployment.tensor_parallel_size),
        kv_pool_bytes=pool,
        num_gpu_blocks=blocks,
        bytes_per_block=block,
        block_size=SIMPLE_BLOCK_TOKENS,
        kv_cache_tokens=tokens,
        max_concurrency=tokens / longest,
        blocks_per_request=per_request,
        terms=(
            _exact("total", total, "marketed memory of all chips"),
            _exact("weights", copies, "all replicas"),
            _exact("overhead", overhead, f"{overhead_fraction} of what weights leave"),
            _exact("KV pool", pool, "all chips together"),
        ),
    )


BIGGER_CHIPS = ("h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "b300-sxm-288gb", "mi300x", "mi355x")


def what_would_fit(deployment: Deployment) -> list[str]:
    """Single changes that make a deployment fit, each as a flag and its value; empty where it fits, or nothing does.

    Tried in turn: a shorter ``max_model_len``, a higher utilisation, fp8 weights, more chips, a bigger chip.

    >>> import inferometer as im
    >>> lab = im.Model(name="lab-70b", weight_bytes=140_000_000_000, layers=80, kv_heads=8, head_dim=128)
    >>> what_would_fit(im.Deployment(model=lab, chip=im.chip("a100-sxm4-80gb")))[0]
    'tensor_parallel_size=2'
    """
    found = memory(deployment)
    if found.fits:
        return []
    changes = [*_shorter(deployment, found), *_flags(deployment), *_more_chips(deployment), *_bigger(deployment)]
    return [text for text, changed in changes if memory(changed).fits]


Change = tuple[str, Deployment]


def _replace(deployment: Deployment, **fields: object) -> Deployment | None:
    """The deployment changed, or None where the engine would refuse it."""
    try:
        return msgspec.structs.replace(deployment, **fields)
    except InputError:
        return None


def _shorter(deployment: Deployment, found: Memory) -> Iterator[Change]:
    longest = deployment.resolved().max_model_len
    for length in (131_072, 65_536, 32_768, 16_384, 8_192, 4_096, 2_048):
        changed = _replace(deployment, flags={**deployment.flags, "max_model_len": length})
        if length < longest and changed is not None and memory(changed).fits:
            yield f"max_model_len={length}", changed
            return


def _flags(deployment: Deployment) -> Iterator[Change]:
    if deployment.resolved().gpu_memory_utilization < 0.95:
        changed = _replace(deployment, flags={**deployment.flags, "gpu_memory_utilization": 0.95})
        if changed is not None:
            yield "gpu_memory_utilization=0.95", changed
    if deployment.model.blocks and deployment.model.quantization is None and deployment.quantization is None:
        changed = _replace(deployment, quantization="fp8")
        if changed is not None:
            yield "quantization=fp8", changed


def _more_chips(deployment: Deployment) -> Iterator[Change]:
    for ranks in (2, 4, 8):
        changed = _replace(deployment, tensor_parallel_size=ranks)
        if ranks > deployment.tensor_parallel_size and changed is not None:
            yield f"tensor_parallel_size={ranks}", changed


def _bigger(deployment: Deployment) -> Iterator[Change]:
    for name in BIGGER_CHIPS:
        other = chip(name)
        if other.memory_bytes > deployment.chip.memory_bytes:
            changed = _replace(deployment, chip=other)
            if changed is not None:
                yield f"chip={name}", changed
