"""The simulator's scheduler, fed while it runs: `sim.reference.VllmV1` with requests that come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from inferometer.sim.reference import Arrivals, Request, Sampler, VllmV1
from inferometer.sim.rules import Rules
from inferometer.steptime.costs import StepCosts


class Sink(Protocol):
    """Where a request's tokens go."""

    def prepare(self, index: int, last: bool) -> bytes | None:
        """What is to be written when token ``index`` (from 0) is due, made ahead of time; None: nothing."""

    def write(self, data: bytes) -> None:
        """Write what `prepare` made: it is due now."""

    def finish(self, call: Call) -> None:
        """The last token has been written."""


@dataclass(eq=False)
class Call(Request):
    """A request with somebody waiting for its tokens."""

    sink: Sink = field(kw_only=True)
    reason: str = "length"
    """Why it will end: ``length`` at its limit, ``stop`` before."""
    max_tokens: int = 0
    """The client's limit."""
    aborted: bool = False


class LiveArrivals(Arrivals):
    """What has come in and the scheduler has not seen: in order of arrival, without an end."""

    def __init__(self, rules: Rules) -> None:
        super().__init__([], rules)
        self.pending: deque[Request] = deque()

    def finish(self, now: int) -> None:
        """Clients outside decide when they send again."""

    def first(self) -> int:
        """When the next one arrives (or arrived)."""
        return self.pending[0].arrival

    def until(self, now: int) -> Iterator[Request]:
        """Take what has arrived by ``now``."""
        while self.pending and self.pending[0].arrival <= now:
            yield self.pending.popleft()

    def count(self, now: int) -> int:
        """How many have arrived by ``now`` and were not taken."""
        return sum(r.arrival <= now for r in self.pending)


class NoSampler(Sampler):
    """A live server is sampled by whoever reads its metrics."""

    def hold(self, until: int, running: int, queued: int, used: int, preemptions: int) -> None:
        """Keep nothing."""


class LiveScheduler(VllmV1):
    """`VllmV1` a step at a time: `plan_step` chooses a batch and says when it ends, `end_step` hands out its tokens.

    Same rules, same results to the tick for the same arrivals (tests/unit/emulator/test_engine.py).
    """

    def __init__(self, rules: Rules, costs: StepCosts) -> None:
        super().__init__([], rules, costs)
        self.live = LiveArrivals(rules)
        self.arrivals = self.live
        self.sampler = NoSampler(self.arrivals)
        self.dropped: list[Call] = []

    def add(self, call: Call) -> None:
        """A request arrived; arrivals must not go back in time."""
        self.live.pending.append(call)

    def abort(self, call: Call) -> None:
        """Nobody wants it any more: out of the queue now, or off the engine when the step in flight ends."""
        call.aborted = True
        for queue in (self.live.pending, self.waiting):
            if call in queue:
                queue.remove(call)
                return
        self.dropped.append(call)

    @property
    def has_work(self) -> bool:
        """Whether there is a step to plan."""
        return bool(self.running or self.waiting or self.live.pending)

    @property
    def queued(self) -> int:
        """Requests that wait, seen by the scheduler or not."""
        return len(self.waiting) + len(self.live.pending)

    def plan_step(self) -> list[Call]:
        """Choose the next batch and let the simulator's clock (``now``) run to its end."""
        self.see()
        scheduled = self.plan()
        self.step(scheduled)
        return scheduled  # type: ignore[return-value]  # only calls were added

    def end_step(self, scheduled: list[Call]) -> list[Call]:
        """The batch has run: count, retire, free. Returns it without those that were aborted meanwhile."""
        kept = self._without_dropped(scheduled) if self.dropped else scheduled
        self.complete(kept)  # type: ignore[arg-type]  # a list of calls is only read
        return kept

    def _without_dropped(self, scheduled: list[Call]) -> list[Call]:
        for call in self.dropped:
            if call in self.running:
                self.running.remove(call)
                self.free += call.blocks
        self.dropped = []
        return [call for call in scheduled if not call.aborted]

    def schedule_running(self) -> tuple[list[Request], int]:
        """As the base's; where all decode, the budget holds all and the pool has the blocks, without its loop."""
        running, budget, size = self.running, self.rules.max_num_batched_tokens, self.rules.block_size
        if len(running) > budget or not all(r.decoding for r in running):
            return super().schedule_running()
        full = [r for r in running if r.computed == r.blocks * size]
        if len(full) > self.free:
            return super().schedule_running()
        for r in full:
            r.blocks += 1
        self.free -= len(full)
        for r in running:
            r.chunk = 1
        return list(running), budget - len(running)
