"""The first founding document's model: batches on ticks, one token a slot and tick, KV reserved to completion.

Unlike the simulator proper it knows no step time: a tick is one pass of the model, prefill included. It shows what the
scheduling policy alone is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from inferometer.errors import InputError
from inferometer.specs.checks import whole


class TickRequest(msgspec.Struct, frozen=True):
    """One request of the tick model."""

    id: str
    arrival_tick: int
    prompt_tokens: int
    output_tokens: int


class TickResult(msgspec.Struct, frozen=True, kw_only=True):
    """When a request was admitted, gave its first token and finished, in ticks."""

    id: str
    arrival_tick: int
    admitted_tick: int
    first_token_tick: int
    finished_tick: int


class TickOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy made of the requests; ``results`` by id, in the order of ids."""

    policy: str
    total_ticks: int
    peak_kv_bytes: int
    """Most KV bytes reserved at once."""
    rejected: list[str]
    """Requests whose prompt and output exceed the whole budget: refused on arrival, blocking nobody."""
    results: dict[str, TickResult]

    @property
    def mean_service_ticks(self) -> float:
        """Mean of finish minus admission (the founding document's latency)."""
        return _mean(r.finished_tick - r.admitted_tick for r in self.results.values())

    @property
    def mean_from_arrival_ticks(self) -> float:
        """Mean of finish minus arrival: what a user waits."""
        return _mean(r.finished_tick - r.arrival_tick for r in self.results.values())


def simulate_ticks(
    requests: Iterable[Mapping[str, Any] | object],
    policy: Literal["static", "continuous"] = "continuous",
    *,
    max_batch: int = 8,
    kv_budget_bytes: int,
    kv_bytes_per_token: int,
) -> TickOutcome:
    """Run the requests through a batcher that counts ticks.

    Args:
        requests: mappings or objects with ``id``, ``arrival_tick``, ``prompt_tokens``, ``output_tokens``.
        policy: ``static`` (a batch is taken and released together) or ``continuous`` (arrive, retire, admit, step).
        max_batch: slots.
        kv_budget_bytes: KV memory; a request reserves prompt + output of it from admission to finish.
        kv_bytes_per_token: of the model.

    The queue is scanned in order of arrival (then id), skipping what does not fit now.

    Raises:
        InputError: an unknown policy, a repeated id, a negative number.

    >>> import inferometer as im
    >>> job = dict(arrival_tick=0, prompt_tokens=512)
    >>> jobs = [job | dict(id=f"r{i}", output_tokens=n) for i, n in enumerate((400, 20, 20))]
    >>> im.simulate_ticks(jobs, "static", max_batch=2, kv_budget_bytes=2**40, kv_bytes_per_token=1).total_ticks
    420
    >>> im.simulate_ticks(jobs, "continuous", max_batch=2, kv_budget_bytes=2**40, kv_bytes_per_token=1).total_ticks
    400
    """
    jobs = sorted(map(_request, requests), key=lambda r: (r.arrival_tick, r.id))
    if len({r.id for r in jobs}) < len(jobs):
        raise InputError("id", [r.id for r in jobs][:8], "a different id for each request")
    if policy not in _POLICIES:
        raise InputError("policy", policy, f"one of {', '.join(_POLICIES)}")
    queue = _Queue(
        jobs,
        whole("max_batch", max_batch, 1),
        whole("kv_budget_bytes", kv_budget_bytes),
        whole("kv_bytes_per_token", kv_bytes_per_token),
    )
    total = _POLICIES[policy](queue)
    results = {id: queue.results[id] for id in sorted(queue.results)}
    return TickOutcome(
        policy=policy, total_ticks=total, peak_kv_bytes=queue.peak, rejected=queue.rejected, results=results
    )


class _Queue:
    """Arrivals, the queue and the KV reservations, the same for both policies."""

    def __init__(self, jobs: list[TickRequest], max_batch: int, budget: int, per_token: int) -> None:
        self.pending, self.waiting = jobs[::-1], list[TickRequest]()  # the next to arrive is last
        self.max_batch, self.budget, self.per_token = max_batch, budget, per_token
        self.reserved = self.peak = 0
        self.rejected: list[str] = []
        self.results: dict[str, TickResult] = {}

    def arrive(self, tick: int) -> None:
        """Queue what has arrived; refuse at once what could never fit."""
        while self.pending and self.pending[-1].arrival_tick <= tick:
            r = self.pending.pop()
            if self.kv_bytes(r) > self.budget:
                self.rejected.append(r.id)
            else:
                self.waiting.append(r)

    def admit(self, slots: int) -> list[TickRequest]:
        """Take, in order of arrival, what fits now."""
        taken: list[TickRequest] = []
        left: list[TickRequest] = []
        for at, r in enumerate(self.waiting):
            if len(taken) == slots:
                left += self.waiting[at:]
                break
            fits = self.reserved + self.kv_bytes(r) <= self.budget
            self.reserved += self.kv_bytes(r) if fits else 0
            (taken if fits else left).append(r)
        self.waiting = left if taken else self.waiting
        self.peak = max(self.peak, self.reserved)
        return taken

    def retire(self, r: TickRequest, admitted: int, first: int, finished: int) -> None:
        """Release what a finished request held."""
        self.reserved -= self.kv_bytes(r)
        self.results[r.id] = TickResult(
            id=r.id,
            arrival_tick=r.arrival_tick,
            admitted_tick=admitted,
            first_token_tick=first,
            finished_tick=finished,
        )

    def kv_bytes(self, r: TickRequest) -> int:
        """KV bytes of prompt and whole output."""
        return (r.prompt_tokens + r.output_tokens) * self.per_token


def _static(queue: _Queue) -> int:
    """At each free tick take what has arrived; everyone finishes at start + longest output."""
    tick = 0
    while queue.pending or queue.waiting:
        queue.arrive(tick)
        batch = queue.admit(queue.max_batch)
        if not batch:
            tick = max(tick, queue.pending[-1].arrival_tick) if queue.pending else tick
            continue
        end = tick + max(r.output_tokens for r in batch)
        for r in batch:
            queue.retire(r, tick, min(tick + 1, end), end)
        tick = end
    return tick


def _continuous(queue: _Queue) -> int:
    """Arrive, retire, admit, stop if nothing is left, step."""
    tick = 0
    running: list[tuple[TickRequest, int]] = []
    while True:
        queue.arrive(tick)
        for r, admitted in running:
            if tick - admitted >= r.output_tokens:
                queue.retire(r, admitted, min(admitted + 1, tick), tick)
        running = [(r, admitted) for r, admitted in running if r.id not in queue.results]
        for r in queue.admit(queue.max_batch - len(running)):
            running.append((r, tick))
        if not running and not queue.waiting:
            if not queue.pending:
                return tick
            tick = queue.pending[-1].arrival_tick
            continue
        tick += 1


_POLICIES = {"static": _static, "continuous": _continuous}


def _request(r: Mapping[str, Any] | object) -> TickRequest:
    get = r.__getitem__ if isinstance(r, Mapping) else lambda name: getattr(r, name)
    try:
        numbers = [whole(name, get(name)) for name in ("arrival_tick", "prompt_tokens", "output_tokens")]
        return TickRequest(str(get("id")), *numbers)
    except (KeyError, AttributeError) as error:
        raise InputError("requests", r, "id, arrival_tick, prompt_tokens and output_tokens for each") from error


def _mean(values: Iterable[int]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
