"""A finding, and every kind of finding that there is: how bad it is, what it means and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

Severity = Literal["spoils", "warning", "caution"]
SEVERITIES: tuple[Severity, ...] = ("spoils", "warning", "caution")
"""The worst first. ``spoils``: the figures are not of what they claim to be; ``warning``: some are not what they seem,
or the server was at a limit; ``caution``: how far to trust or how to read them."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an audit found at one point, or over points of a sweep.

    >>> low = Finding(code="few_requests", severity="caution", where="C=8", evidence="40 requests", value=40, limit=299)
    >>> low.title
    'too few requests for a p99'
    """

    code: str
    """What kind: a key of `KINDS`."""
    severity: Severity
    where: str
    """The point, such as ``C=1`` or ``2/s``; several points of a sweep as ``C=1, 2, 4``."""
    evidence: str
    """The figures that it is seen by."""
    advice: str = ""
    value: float | None = None
    """The figure found, in the unit of `Kind.unit` ..."""
    limit: float | None = None
    """... and what it was held against."""

    @property
    def title(self) -> str:
        """The kind in a few words."""
        return KINDS[self.code].title

    def to_dict(self) -> dict[str, Any]:
        """Every field, with title and unit."""
        return {**msgspec.structs.asdict(self), "title": self.title, "unit": KINDS[self.code].unit}


class Kind(NamedTuple):
    """What all findings of one code have in common."""

    severity: Severity
    """Unless a finding says otherwise."""
    title: str
    advice: str
    unit: str = ""
    """Of value and limit."""


FRESH = "use a fresh seed for every point, or restart the server between points"

KINDS: dict[str, Kind] = {
    "nothing_measured": Kind("spoils", "no request completed", "look at the errors and at the server's log"),
    "ttft_below_prefill_floor": Kind(
        "spoils",
        "TTFT below what computing the prompt takes",
        f"send prompts that repeat nothing ({FRESH}): these were in the prefix cache, or the chip is not the one named",
        "s",
    ),
    "tpot_below_weight_floor": Kind(
        "spoils",
        "TPOT below what reading the weights takes",
        "check for speculative decoding, and that chip, number format and parallel sizes are those that served",
        "s",
    ),
    "prefix_cache_hits": Kind(
        "spoils",
        "prompts found in the prefix cache",
        "send prompts that repeat nothing, within a point and from point to point (some tools' seed is fixed unless "
        "given), or measure with prefix caching off",
        "share",
    ),
    "prompts_shared_between_points": Kind("spoils", "one point's prompts were another's", FRESH, "share"),
    "client_cpu_bound": Kind(
        "spoils", "the client had no CPU time left", "more workers, each on a core of its own", "share"
    ),
    "client_late": Kind(
        "spoils", "the client was late", "give the client more workers or another machine, or less to do", "s"
    ),
    "client_server_disagree": Kind(
        "spoils",
        "client and server hold different numbers of requests",
        "look for others on the server, for a proxy or pool that queues, and for a limit on the client's connections",
        "requests",
    ),
    "server_flags_differ": Kind(
        "spoils", "points of one sweep by different servers", "measure all points of a sweep on one server"
    ),
    "littles_law": Kind(
        "warning",
        "Little's law does not hold",
        "the load was not what was configured: look for pauses between a user's requests, or for a cap elsewhere",
        "ratio",
    ),
    "loop_mismatch": Kind(
        "warning",
        "the load is not the loop it is called",
        "compare it only with predictions and points of the loop that it really was",
    ),
    "overloaded": Kind(
        "warning",
        "more offered than served",
        "lower the rate, or report it as too high: its latencies grow with the length of the run",
        "1/s",
    ),
    "failed_requests": Kind(
        "warning", "requests failed", "read the errors: what failed is in no percentile, and took load off", "share"
    ),
    "cut_requests": Kind(
        "warning", "requests were cut", "drain to the end, and raise the time limit or max_model_len", "share"
    ),
    "partial_run": Kind("warning", "the run was broken off", "measure the point again"),
    "short_outputs": Kind(
        "warning",
        "answers shorter than asked for",
        "set ignore_eos, or compare only with the lengths that came",
        "share",
    ),
    "token_counts_disagree": Kind(
        "warning",
        "client and server count different tokens",
        "take the server's usage for lengths, and make sure that nobody else uses the server",
        "tokens",
    ),
    "tokens_counted_by_chunks": Kind(
        "warning", "output tokens are counted in chunks", "ask for usage (stream_options), or count with the tokenizer"
    ),
    "preemptions": Kind(
        "warning",
        "requests were preempted",
        "send fewer at once, or give the KV cache more memory: latencies hold work that was done twice",
        "requests",
    ),
    "fallback_sampler": Kind(
        "warning", "the sampler is a fallback", "install the fused sampler, or say so beside the figures"
    ),
    "max_num_seqs_binds": Kind(
        "warning",
        "max_num_seqs holds requests back",
        "raise max_num_seqs, or read the point as one of max_num_seqs users with a queue in front",
        "share",
    ),
    "kv_pool_binds": Kind(
        "warning",
        "the KV pool is full",
        "give it more memory, a smaller KV format or fewer users: requests wait for memory, not for compute",
        "share",
    ),
    "server_not_steady": Kind(
        "warning",
        "the server's speed drifts",
        "warm it up, look for throttling and for other load, and measure longer",
        "share",
    ),
    "few_requests": Kind(
        "caution", "too few requests for a p99", "send at least 299 a point, or report p50 and p90", "requests"
    ),
    "few_per_user": Kind(
        "caution",
        "too few requests a user",
        "send at least 3 a user: start and end are measured, not the server",
        "requests",
    ),
    "warmup_in_window": Kind(
        "caution",
        "the first burst is measured too",
        "leave a warm-up of one request a user out of the figures",
        "share",
    ),
    "ramp_down_in_window": Kind(
        "caution", "the emptying of the server is measured too", "end the window at the last send", "share"
    ),
    "lockstep": Kind(
        "caution",
        "users in lock-step",
        "read TTFT percentiles as places in a wave of prompts; draw lengths at random to break it up",
        "s",
    ),
    "decode_stalls": Kind(
        "caution",
        "long gaps between tokens",
        "lower max_num_batched_tokens to shorten them: they are steps that carry prompts",
        "ratio",
    ),
    "chunk_gaps": Kind(
        "caution", "several tokens a chunk", "read ITL as gaps between chunks; TPOT counts tokens", "tokens a chunk"
    ),
    "hidden_reasoning": Kind(
        "caution", "reasoning that is not streamed", "read TTFT as that of the first visible token"
    ),
    "clock_unknown": Kind(
        "caution", "no common clock", "have the tool write start times, or the in-flight checks cannot be made"
    ),
}
"""Every finding by its code, the worst first."""


def seconds(time_s: float) -> str:
    """A time as people read it, three digits.

    >>> seconds(0.023), seconds(1.902), seconds(31.0)
    ('23 ms', '1.90 s', '31.0 s')
    """
    if time_s >= 10:
        return f"{time_s:.1f} s"
    return f"{time_s:.2f} s" if time_s >= 1 else f"{time_s * 1000:.3g} ms"


def floor_seconds(time_s: float) -> str:
    """The same, rounded down: a floor stays one.

    >>> floor_seconds(0.0538), floor_seconds(0.00743), floor_seconds(2.178)
    ('53 ms', '7.4 ms', '2.17 s')
    """
    if time_s >= 1:
        return f"{math.floor(time_s * 100) / 100:.2f} s"
    thousandths = time_s * 1000
    return f"{math.floor(thousandths)} ms" if thousandths >= 10 else f"{math.floor(thousandths * 10) / 10:.1f} ms"


def joined(points: Iterable[str]) -> str:
    """Names of points in a few words.

    >>> joined(["C=1", "C=2", "C=4"]), joined(["2/s", "4/s"]), joined(["fp8 C=1", "C=2"])
    ('C=1, 2, 4', '2/s, 4/s', 'fp8 C=1, C=2')
    """
    names = list(dict.fromkeys(points))
    if len(names) > 1 and all(name.startswith("C=") for name in names):
        return ", ".join([names[0], *(name.removeprefix("C=") for name in names[1:])])
    return ", ".join(names)
