"""How an engine lays the KV cache out in blocks: groups of layers, pages, and what one request takes.

vLLM's rules (engines.md 1.4; ``vllm/v1/core/kv_cache_utils.py`` and ``kv_cache_interface.py`` of 0.19 to 0.26): layers
of one kind of attention share a block table. Where kinds differ, layers are split into groups of equal size, every
group draws blocks from one pool, and pages of different sizes are made equal by longer blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from inferometer.specs.deployment import Deployment
from inferometer.specs.engine import resolve_version
from inferometer.specs.model import Attention, Block, Mla, Model, Recurrent
from inferometer.steptime.ops import block_kv_bytes, kv_bytes_per_token, mixer_state_bytes

Kind = Literal["full", "sliding", "chunked", "state"]

IN_FLIGHT_SINCE = (0, 26)
"""From here on a window keeps the blocks of every batch in flight, two under async scheduling (0.24 keeps one)."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's cache: bytes a token, or (``state``) bytes a sequence; ``block_tokens`` tokens share a page."""

    kind: Kind
    bytes: int
    window: int | None = None
    block_tokens: int = 16
    page_bytes: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table."""

    layer: Layer
    """Any of them: all keep the same tokens."""
    indices: tuple[int, ...]
    pages: tuple[int, ...]
    """Page bytes, layer by layer."""

    def blocks(self, tokens: int, in_flight: int, states: int) -> int:
        """Blocks that a request of ``tokens`` holds at most, with ``in_flight`` tokens scheduled and not settled."""
        layer, window = self.layer, self.layer.window or 0
        if layer.kind == "state":
            return states
        if layer.kind == "full":
            return math.ceil(tokens / layer.block_tokens)
        if layer.kind == "chunked":
            return math.ceil(min(window + in_flight, tokens) / layer.block_tokens)
        # a window may begin inside a block, hence one more
        return math.ceil(min(window - 1 + in_flight, tokens) / layer.block_tokens) + 1


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a deployment, and how many tokens and state copies a request may hold beyond its window."""

    groups: tuple[Group, ...]
    in_flight_tokens: int
    states: int
    block_size: int

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks of all groups that a request of ``tokens`` holds at most."""
        return sum(g.blocks(tokens, self.in_flight_tokens, self.states) for g in self.groups)

    def bytes_per_block(self, first: int, end: int) -> int:
        """Bytes that one block takes on a rank that holds the layers ``first`` to ``end`` (end not included)."""
        held = (sum(p for i, p in zip(g.indices, g.pages, strict=True) if first <= i < end) for g in self.groups)
        return max(held, default=0)


def release(deployment: Deployment) -> tuple[int, int]:
    """Major and minor number of the deployment's engine."""
    major, minor = resolve_version(deployment.engine, deployment.engine_version).lstrip("v").split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def kv_layout(deployment: Deployment) -> KvLayout:
    """The groups, pages and blocks of a deployment's KV cache."""
    flags = deployment.resolved()
    layers = dict(_layers(deployment, flags.block_size))
    batches = 2 if flags.async_scheduling else 1
    in_flight = max(batches, deployment.pipeline_parallel_size) if release(deployment) >= IN_FLIGHT_SINCE else 1
    groups = tuple(_groups(layers))
    attention = [g.layer.block_tokens for g in groups if g.layer.kind != "state"]
    return KvLayout(
        groups=groups,
        in_flight_tokens=in_flight * flags.max_num_batched_tokens,
        # with prefix caching a recurrent layer keeps the state at the last block boundary too ("align")
        states=2 if flags.enable_prefix_caching else 1,
        block_size=min(attention, default=flags.block_size),
    )


def _layers(deployment: Deployment, block: int) -> Iterator[tuple[int, Layer]]:
    """Every layer that owns a cache, by its index, with pages of equal size where they can be made equal."""
    model, tp, kv = deployment.model, deployment.tensor_parallel_size, deployment.kv_dtype_bytes()
    if not model.blocks:
        each = kv_bytes_per_token(model, kv, tp) // max(1, model.layers)
        alike = Layer(kind="full", bytes=each, block_tokens=block, page_bytes=block * each)
        yield from ((i, alike) for i in range(model.layers if each else 0))
        return
    plain = [(i, layer) for i, b in enumerate(_each(model)) if (layer := _layer(b, deployment, kv, tp)) is not None]
    yield from _paged(plain, block)


def _each(model: Model) -> Iterator[Block]:
    for block in model.blocks:
        yield from (block for _ in range(block.count))


def _layer(block: Block, deployment: Deployment, kv: int, tp: int) -> Layer | None:
    mixer = block.mixer
    if isinstance(mixer, Recurrent):
        return Layer(kind="state", bytes=math.ceil(mixer_state_bytes(mixer, deployment) / tp))
    each = block_kv_bytes(block, kv, tp)
    if isinstance(mixer, Mla):
        return Layer(kind="full", bytes=each)
    if not isinstance(mixer, Attention) or not each:
        return None
    kind: Kind = "full" if mixer.window is None else "chunked" if mixer.chunked else "sliding"
    return Layer(kind=kind, bytes=each, window=mixer.window)


def _paged(layers: list[tuple[int, Layer]], block: int) -> Iterator[tuple[int, Layer]]:
    """Pages set: blocks grow until an attention page holds a state, and until kinds of layers agree on the size."""
    attention = [layer.bytes for _, layer in layers if layer.kind != "state"]
    state = max((layer.bytes for _, layer in layers if layer.kind == "state"), default=0)
    if not attention:
        yield from ((i, msgspec.structs.replace(x, page_bytes=state)) for i, x in layers)
        return
    widest = max(attention)
    tokens = block * math.ceil(state / (block * widest)) if state > block * widest else block
    mixed = len({(x.kind, x.window) for _, x in layers}) > 1
    for i, layer in layers:
        if layer.kind == "state":
            yield i, msgspec.structs.replace(layer, block_tokens=tokens, page_bytes=tokens * widest)
            continue
        # a page that does not divide the widest is padded to it
        ratio = widest // layer.bytes if mixed and widest % layer.bytes == 0 else 1
        page = tokens * widest if mixed else tokens * layer.bytes
        yield i, msgspec.structs.replace(layer, block_tokens=tokens * ratio, page_bytes=page)


def _groups(layers: dict[int, Layer]) -> Iterator[Group]:
    """One group where all layers keep the same tokens; else groups of the size of the rarest kind (see the module)."""
    kinds: dict[tuple[Kind, int | None, int], list[int]] = {}
    for i, layer in layers.items():
        kinds.setdefault((layer.kind, layer.window, layer.block_tokens), []).append(i)
    sizes = [len(indices) for indices in kinds.values()]
    if not sizes:
        return
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    for indices in kinds.values():
        count = math.ceil(len(indices) / size) if len(kinds) > 1 else 1
        for k in range(count):
            mine = tuple(indices[k::count])
            yield Group(layer=layers[mine[0]], indices=mine, pages=tuple(layers[i].page_bytes for i in mine))
