"""Clocks that wake the engine: the machine's own, stretched by a scale, and a virtual one for tests.

Event loops round their timers to milliseconds; on Linux a timer of the kernel wakes the engine within about 0.1 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from inferometer.sim.rules import RECORD_S, SUBTICKS

SUBTICK_S = RECORD_S / SUBTICKS


class Clock(Protocol):
    """What the engine asks of time. ``subticks`` are the simulator's fine ticks of 2**-54 s since the clock's start."""

    def now(self) -> int:
        """The simulator's time, in recorded ticks of 2**-40 s."""

    def due_s(self, subticks: int) -> float:
        """When that instant is, on the clock of `time.monotonic`."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back after everything that happens at this instant."""

    def at(self, subticks: int, callback: Callable[[], None]) -> None:
        """Call back at that instant, or at once where it has passed. One at a time."""


class RealClock:
    """The machine's clock: one simulated second takes ``scale`` real ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scale: float, start_s: float | None = None) -> None:
        self.loop, self.scale = loop, scale
        self.start_s = time.monotonic() if start_s is None else start_s
        self.timer = kernel_timer(loop)

    def now(self) -> int:
        """See `Clock.now`."""
        return int((time.monotonic() - self.start_s) / self.scale / RECORD_S)

    def due_s(self, subticks: int) -> float:
        """See `Clock.due_s`."""
        return self.start_s + subticks * SUBTICK_S * self.scale

    def soon(self, callback: Callable[[], None]) -> None:
        """See `Clock.soon`."""
        self.loop.call_soon(callback)

    def at(self, subticks: int, callback: Callable[[], None]) -> None:
        """See `Clock.at`."""
        due_s = self.due_s(subticks)
        if due_s <= time.monotonic():
            self.loop.call_soon(callback)
        elif self.timer:
            self.timer.set(due_s, callback)
        else:
            self.loop.call_later(due_s - time.monotonic(), self._not_before, due_s, callback)

    def _not_before(self, due_s: float, callback: Callable[[], None]) -> None:
        """A loop's timer may come early by a fraction of a millisecond; then sleep the rest."""
        time.sleep(max(0.0, min(due_s - time.monotonic(), 0.002)))
        callback()

    def close(self) -> None:
        """Give the timer back."""
        if self.timer:
            self.timer.close()


class KernelTimer:
    """Linux's timerfd on CLOCK_MONOTONIC (``timerfd_create(2)``), read by the event loop."""

    MONOTONIC, FLAGS, ABSOLUTE = 1, 0o2004000, 1  # CLOCK_MONOTONIC; TFD_NONBLOCK | TFD_CLOEXEC; TFD_TIMER_ABSTIME

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self.libc.timerfd_create(self.MONOTONIC, self.FLAGS)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "no kernel timer")
        self.loop = loop
        self.callback: Callable[[], None] | None = None
        loop.add_reader(self.fd, self._fire)

    def set(self, due_s: float, callback: Callable[[], None]) -> None:
        """Call back at that time of `time.monotonic`."""
        self.callback = callback
        whole, rest = divmod(max(1, int(due_s * 1e9)), 10**9)
        self.libc.timerfd_settime(self.fd, self.ABSOLUTE, (ctypes.c_long * 4)(0, 0, whole, rest), None)

    def _fire(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return
        callback, self.callback = self.callback, None
        if callback:
            callback()

    def close(self) -> None:
        """Stop and free the descriptor."""
        if self.fd >= 0:
            self.loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1


def kernel_timer(loop: asyncio.AbstractEventLoop) -> KernelTimer | None:
    """A kernel timer, where there is one."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return KernelTimer(loop)
    except (OSError, AttributeError, NotImplementedError):
        return None


class VirtualClock:
    """Time that passes only as events are run: what comes at one instant runs before what the engine does in it."""

    def __init__(self) -> None:
        self.subticks = 0
        self.order = itertools.count()
        self.events: list[tuple[int, int, int, Callable[[], None]]] = []

    def now(self) -> int:
        """See `Clock.now`."""
        return self.subticks // SUBTICKS

    def due_s(self, subticks: int) -> float:
        """See `Clock.due_s`: virtual seconds."""
        return subticks * SUBTICK_S

    def soon(self, callback: Callable[[], None]) -> None:
        """See `Clock.soon`."""
        self._push(self.subticks, 1, callback)

    def at(self, subticks: int, callback: Callable[[], None]) -> None:
        """See `Clock.at`."""
        self._push(max(subticks, self.subticks), 1, callback)

    def event(self, ticks: int, callback: Callable[[], None]) -> None:
        """Something from outside happens at that recorded tick."""
        self._push(ticks * SUBTICKS, 0, callback)

    def _push(self, subticks: int, priority: int, callback: Callable[[], None]) -> None:
        heapq.heappush(self.events, (subticks, priority, next(self.order), callback))

    def run(self) -> None:
        """Run events in order of time until none is left."""
        while self.events:
            self.subticks, _, _, callback = heapq.heappop(self.events)
            callback()
