"""A live engine on a virtual clock, for the emulator's tests."""

from __future__ import annotations

import numpy as np

from inferometer.emulator.clock import VirtualClock
from inferometer.emulator.engine import Engine
from inferometer.emulator.metrics import Meter
from inferometer.emulator.scheduler import Call, LiveScheduler
from inferometer.sim.rules import Rules
from inferometer.steptime.costs import NO_WINDOW, StepCosts


class Collector:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended: Call | None = None

    def prepare(self, index: int, last: bool) -> bytes:
        return b"%d%s" % (index, b"!" if last else b"")

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def finish(self, call: Call) -> None:
        self.ended = call


class Bench:
    """An engine on a virtual clock."""

    def __init__(self, rules: Rules, costs: StepCosts) -> None:
        self.clock = VirtualClock()
        self.scheduler = LiveScheduler(rules, costs)
        self.meter = Meter(1.0, 8192, False)
        self.engine = Engine(self.scheduler, self.clock, self.meter)
        self.calls: dict[int, Call] = {}
        self.sinks: dict[int, Collector] = {}

    def submit(self, key: int, prompt: int, output: int) -> None:
        self.sinks[key] = Collector()
        self.calls[key] = self.engine.submit(prompt, output, self.sinks[key])

    def at(self, tick: int, key: int, prompt: int, output: int) -> None:
        self.clock.event(tick, lambda: self.submit(key, prompt, output))

    def abort_at(self, tick: int, key: int) -> None:
        self.clock.event(tick, lambda: self.engine.abort(self.calls[key]))


def tiny_costs(seqs: int, budget: int, windows: tuple[int, ...] = (NO_WINDOW,)) -> StepCosts:
    rng = np.random.default_rng(7)
    table = lambda n: (rng.integers(1, 40, n).cumsum() * 2**36).astype(np.int64)  # noqa: E731
    row = np.full(len(windows), 2**30, np.int64)
    return StepCosts(
        decode=table(seqs + 1),
        mixed=table(budget + 1),
        rows=table(seqs + 1),
        sequence=2**33,
        window=np.array(windows, np.int64),
        decode_kv=row,
        mixed_kv=2 * row,
        pair=row // 16,
        chunk_kv=row // 4,
    )
