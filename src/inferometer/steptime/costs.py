"""StepCosts: what one engine step costs, as integer tables that the compiled simulator looks up.

Time is counted in ticks of 2**-54 s. A step's cost is a sum of table entries and of whole numbers times whole
coefficients, each rounded to ticks once, so adding steps up in another order changes nothing
(``docs/explanation/scheduler.md``). Anything that makes these tables is a step-time model.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

TICKS_PER_S = 2.0**54
NO_WINDOW = 1 << 40
"""Stands for "the whole context" where a window is asked for."""

Ints = NDArray[np.int64]


def ticks(seconds: float) -> int:
    """Seconds as whole ticks, rounded once."""
    return round(seconds * TICKS_PER_S)


class StepCosts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The price list of one engine step on one rank, in ticks of 2**-54 s.

    A step of ``n`` decoding sequences and no prefill costs
    ``decode[n] + sum_k kinds.decode_kv[k] * context_k``; a step that carries prefill chunks costs
    ``mixed[T] + rows[r] + sequence * s + sum_k (mixed_kv * context_k + pair * half_pairs_k + chunk_kv * start_k)``
    with T tokens in all, r sampled rows, s sequences. ``context_k`` is the summed context of the decoding sequences, each
    capped at ``window[k]``; ``half_pairs_k`` is twice the (query, key) pairs of the chunks under that window;
    ``start_k`` the tokens before each chunk, capped.
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
        """Refuse tables that would overflow the clock (a step of 128 s or more is a mistake)."""
        for name in ("decode", "mixed", "rows"):
            table = getattr(self, name)
            if len(table) == 0 or int(table.max()) >= 1 << 61 or int(table.min()) < 0:
                raise ValueError(f"StepCosts.{name}: entries must lie in 0 to 128 s")

    def decode_step_s(self, sequences: int, context_tokens: int) -> float:
        """Seconds of a decode-only step of ``sequences``, each with ``context_tokens`` of context."""
        context = np.minimum(context_tokens, self.window) * sequences
        return float(self.decode[sequences] + (self.decode_kv * context).sum()) / TICKS_PER_S

    def prefill_step_s(self, tokens: int, start: int = 0) -> float:
        """Seconds of a step that holds one chunk of ``tokens`` after ``start`` computed ones, and samples from it."""
        half_pairs = np.array([half_pairs_of(tokens, start, int(w)) for w in self.window])
        context = (self.pair * half_pairs + self.chunk_kv * np.minimum(start, self.window)).sum()
        return float(self.mixed[tokens] + self.rows[1] + self.sequence + context) / TICKS_PER_S


def half_pairs_of(tokens: int, start: int, window: int) -> int:
    """Twice the (query, key) pairs of a chunk of ``tokens`` after ``start``, each query seeing at most ``window`` keys."""
    inside = min(max(window - start, 0), tokens)
    return 2 * inside * start + inside * (inside + 1) + 2 * (tokens - inside) * window
