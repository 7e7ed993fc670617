"""The live engine: the scheduler's steps, each ending when the simulator says, on a clock that may be stretched.

The simulated clock leads. Where Python is late with one step, the next still starts when the late one should have
ended, so that lateness does not add up; it is recorded for each write (`metrics.Meter.late`).
"""

from __future__ import annotations

import time
from collections import Counter

from inferometer.emulator.clock import Clock
from inferometer.emulator.metrics import Meter
from inferometer.emulator.scheduler import Call, LiveScheduler, Sink
from inferometer.sim.rules import SUBTICKS


class Engine:
    """One replica: takes requests, steps while there are any, writes tokens as steps end."""

    def __init__(self, scheduler: LiveScheduler, clock: Clock, meter: Meter) -> None:
        self.scheduler, self.clock, self.meter = scheduler, clock, meter
        self.busy = False
        self.submitted = self.latest = 0
        self.scheduled: list[Call] = []
        self.ready: list[tuple[Sink, bytes]] = []
        self.emitting: list[Call] = []

    def submit(self, prompt_tokens: int, output_tokens: int, sink: Sink, reason: str = "length", most: int = 0) -> Call:
        """A request arrives now; its tokens go to ``sink``. It must fit the engine: nothing is refused here."""
        self.latest = max(self.latest, self.clock.now())
        call = Call(
            self.submitted, prompt_tokens, output_tokens, 0, self.latest, sink=sink, reason=reason, max_tokens=most
        )
        self.submitted += 1
        self.scheduler.add(call)
        if not self.busy:
            self.busy = True
            self.clock.soon(self._begin)
        return call

    def abort(self, call: Call) -> None:
        """The client has gone: the request leaves the engine and its blocks are freed."""
        if call.last < 0 and not call.aborted:
            self.scheduler.abort(call)
            self.meter.abort()

    def _begin(self) -> None:
        """Start the next step, and make what will be written at its end."""
        if not self.scheduler.has_work:
            self.scheduler.release()  # nobody is left to notice that the last ones' blocks were held a step longer
            self.busy = False
            return
        self.scheduled = self.scheduler.plan_step()
        self.emitting = [r for r in self.scheduled if r.computed + r.chunk == r.num_tokens]
        made = [(r.sink, r.sink.prepare(r.generated, r.generated + 1 >= r.output)) for r in self.emitting]
        self.ready = [(sink, data) for sink, data in made if data is not None]
        self.clock.at(self.scheduler.now, self._end)

    def _end(self) -> None:
        """The step is over: first the tokens, then the books, then the next step."""
        self._write()
        previous = Counter([r.tokens[-1] for r in self.emitting if r.tokens and not r.aborted])
        started = [r for r in self.emitting if not r.tokens and not r.aborted]
        kept = self.scheduler.end_step(self.scheduled)
        now = self.scheduler.now // SUBTICKS
        self.meter.step(now, previous, started, self.scheduler.preemptions)
        for call in [r for r in kept if r.last >= 0]:
            self.meter.finished(call)
            call.sink.finish(call)
        self._begin()

    def _write(self) -> None:
        times = []
        for sink, data in self.ready:
            sink.write(data)
            times.append(time.monotonic())
        self.ready = []
        if times:
            self.meter.late(times, self.clock.due_s(self.scheduler.now))
