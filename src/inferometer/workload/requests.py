"""Draws a workload: a description in, columns of requests out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from inferometer.errors import InputError
from inferometer.specs.workload import FloatArray, IntArray, Workload
from inferometer.workload import arrivals, lengths, traces
from inferometer.workload.streams import stream


class Requests(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Requests as columns, in order of arrival; ties in the given order."""

    arrival_s: FloatArray
    """Seconds from the start. Closed loop: 0 for the first ``concurrency``, then nan: the simulator issues those."""
    prompt_tokens: IntArray
    output_tokens: IntArray
    cached_tokens: IntArray
    """Of the prompt; at most all but one token, since the last one is always computed."""
    concurrency: int = 0
    """Users of a closed loop; 0: open loop."""
    think_time_s: float = 0.0

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def generate(workload: Workload, seed: int = 0) -> Requests:
    """Draw the requests of ``workload``; one seed gives the same requests every time.

    Random streams are named (``arrivals``, ``prompt_tokens``, ``output_tokens``), so another distribution of lengths
    leaves the arrivals as they were.

    Raises:
        InputError: a seed below 0, a trace file of several models.
        FormatError: a trace file that cannot be read or is not one.

    >>> import inferometer as im
    >>> workload = im.Workload.open_loop(rate_per_s=2, requests=3, prompt_tokens=8, arrivals="constant")
    >>> generate(workload, seed=0).arrival_s
    array([0. , 0.5, 1. ])
    """
    if workload.kind == "trace":
        return _replayed(workload)
    requests = workload.requests
    if requests is None:
        raise InputError("requests", None, "a whole number of at least 1")
    prompt, output = lengths.draw_pair(workload, requests, seed)
    return _assemble(workload, _arrival_s(workload, requests, seed), prompt, output)


def _arrival_s(workload: Workload, requests: int, seed: int) -> FloatArray:
    if workload.kind in ("closed", "sessions") and workload.concurrency is not None:
        times = arrivals.closed_loop(workload.concurrency, requests)
        if workload.arrival_s is not None:  # a measured loop: when each user's first request went
            times[: workload.concurrency] = workload.arrival_s
        return times
    if workload.kind == "open" and workload.rate_per_s is not None:
        random = stream(seed, "arrivals")
        return arrivals.open_loop(workload.rate_per_s, requests, workload.arrivals, random, workload.burstiness or 1.0)
    if workload.arrival_s is not None:
        return np.asarray(workload.arrival_s, dtype=np.float64)
    raise InputError("workload", workload.kind, "concurrency (closed loop), rate_per_s (open loop) or arrival_s")


def _replayed(workload: Workload) -> Requests:
    if workload.trace is None:
        raise InputError("trace", None, "a trace file")
    table = traces.replay(workload.trace)
    return _assemble(workload, table.arrival_s, table.prompt_tokens, table.output_tokens)


def _assemble(workload: Workload, arrival_s: FloatArray, prompt: IntArray, output: IntArray) -> Requests:
    cached: Any = np.broadcast_to(np.asarray(workload.cached_tokens, dtype=np.int64), prompt.shape)
    return Requests(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=np.minimum(cached, prompt - 1),
        concurrency=workload.concurrency or 0,
        think_time_s=workload.think_time_s,
    )
