"""A timer that is exact to some 50 microseconds, which an event loop's own (milliseconds in uvloop) is not."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

EARLY_S = 0.0015
"""How much before its time the fallback's coarse timer is set; the rest is waited out turn by turn of the loop."""


class Alarm(Protocol):
    """Calls back once at a set moment of `time.perf_counter`. Setting it again moves it."""

    def set(self, when: float) -> None:
        """Ring at ``when``, at once if that has passed."""

    def close(self) -> None:
        """Never ring again."""


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """The best alarm here: a Linux timer descriptor, else the loop's timer set early and waited out."""
    linux = sys.platform == "linux" and "CLOCK_MONOTONIC" in time.get_clock_info("perf_counter").implementation
    return TimerFdAlarm(loop, ring) if linux else LoopAlarm(loop, ring)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerFdAlarm:
    """``timerfd_create(2)`` on CLOCK_MONOTONIC, which is what `time.perf_counter` reads on Linux."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _Itimerspec()
        self._where = ctypes.byref(self._spec)
        loop.add_reader(self._fd, self._fired)

    def set(self, when: float) -> None:
        """Ring at ``when``, at once if that has passed."""
        nanoseconds = max(int(when * 1e9), 1)
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(nanoseconds, 1_000_000_000)
        self._libc.timerfd_settime(self._fd, 1, self._where, None)  # 1: TFD_TIMER_ABSTIME

    def close(self) -> None:
        """Never ring again."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # moved between ringing and now
            return
        self._ring()


class LoopAlarm:
    """The loop's own timer, set `EARLY_S` early; then the loop turns without sleeping until the time has come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._when = 0.0
        self._handle: asyncio.Handle | None = None

    def set(self, when: float) -> None:
        """Ring at ``when``, at once if that has passed."""
        self.close()
        self._when = when
        early = when - time.perf_counter() - EARLY_S
        self._handle = self._loop.call_later(early, self._wait) if early > 0 else self._loop.call_soon(self._wait)

    def close(self) -> None:
        """Never ring again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        if time.perf_counter() < self._when:
            self._handle = self._loop.call_soon(self._wait)
        else:
            self._handle = None
            self._ring()
