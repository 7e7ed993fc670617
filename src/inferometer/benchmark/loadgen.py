"""Who sends when: one worker's share of the load, from its plan.

The main loop is `LoadGenerator._pump`: users whose time has come stand in ``ready``, first come first served; each is
sent as soon as the cap allows and a connection is free. New users come from `Rows`: all of a closed loop's at the
start or over the ramp, an open loop's each at its time. `LoadGenerator._advance` says when a user sends again: in a
closed loop after its last answer, in an open loop only where its session goes on.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from inferometer.benchmark.alarm import make_alarm
from inferometer.benchmark.client import CLOCK_DIGITS, Dialer, DialError, Request, Wire
from inferometer.benchmark.job import Ended, Job, Pulse, Report
from inferometer.benchmark.payload import Bodies
from inferometer.benchmark.target import reason, veil
from inferometer.errors import InputError

LAG_EVERY_S = 0.02
LAGS_KEPT = 100_000
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 2.0
"""A closed loop's user that got no connection waits so long, doubling, before it tries again."""
DIALS_AT_ONCE = 32
"""Connections opened side by side before the start: below the shortest backlog in use."""
MOST_STALE = 3
"""A server that has closed so many connections behind our back gets a new one for every request."""
POOL_AT_START = 256
"""Open loop: at most so many connections are opened before the start."""

_now = time.perf_counter


class User:
    """One who sends the plan's rows from ``row`` up to ``stop``, which are one session, one after the other."""

    __slots__ = ("backoff_s", "due_s", "earlier", "resent", "round", "row", "shift_s", "stop")

    def __init__(self, due_s: float, shift_s: float = 0.0) -> None:
        self.due_s = due_s
        self.shift_s = shift_s  # of the plan's times in this round
        self.round = self.row = self.stop = 0
        self.earlier: list[bytes] = []
        self.backoff_s = 0.0
        self.resent = False  # the request it waits for was sent once, on a connection that was closed already


class Rows:
    """A plan's rows as users take them: single, or a session at a time; again from the first where they cycle."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._count = len(job.plan.index)
        self._ends = _session_ends(job.plan.session)
        self._round = self._row = 0

    def give(self, user: User) -> bool:
        """Give a user the next rows; False when the plan is used up."""
        if self._row >= self._count:
            if not (self._job.cycle and self._count):
                return False
            self._round, self._row = self._round + 1, 0
        user.round, user.row = self._round, self._row
        user.stop = self._row = self._ends[self._row] if self._ends else self._row + 1
        user.earlier.clear()
        return True

    def closed_loop(self) -> Iterator[User]:
        """The users of a closed loop, in the order of their start: evenly over the ramp, among those of all workers."""
        job = self._job
        for number in range(job.concurrency):
            user = User(job.ramp_up_s * (number + job.worker / job.workers) / job.concurrency)
            if not self.give(user):
                return
            yield user

    def open_loop(self) -> Iterator[User]:
        """The users of an open loop in the order of their times; a later round of a cycled plan follows the one before.

        A round lasts as long as its requests' times do and one mean gap more.
        """
        times = self._job.plan.scheduled_s
        firsts = [row for row in range(self._count) if not self._ends or self._ends[row]]
        firsts.sort(key=times.__getitem__)
        span_s = max(times, default=0.0) - min(times, default=0.0)
        round_s = span_s * self._count / max(self._count - 1, 1)
        for round_ in itertools.count() if self._job.cycle and round_s > 0 else (0,):
            for row in firsts:
                user = User(times[row] + round_ * round_s, round_ * round_s)
                user.round, user.row, user.stop = round_, row, self._ends[row] if self._ends else row + 1
                yield user


class LoadGenerator:
    """Sends one job's requests and hands each record to ``write`` as it ends.

    ``write`` may raise `OSError`: then nothing more is sent, what is in flight is dropped, and the report tells why.
    Raises `InputError` for a job that cannot be run: a plan that does not fit its arena, sessions without chat, ...
    """

    def __init__(self, job: Job, write: Callable[[Ended], None]) -> None:
        check(job)
        self.job = job
        self._write = write
        self._bodies = Bodies(job)
        self._dialer = Dialer(job.connection, job.endpoint, job.stream, self)
        self._keep_text = job.keep_text or bool(job.plan.session)
        self._cap = job.max_concurrency if job.max_concurrency and not job.concurrency else math.inf
        self._rows = Rows(job)
        self._arrivals: Iterator[User] = iter(())
        self._arrival: User | None = None
        self._agenda: list[tuple[float, int, User]] = []  # a heap: who sends again later
        self._order = itertools.count()  # of equal times the first to come is the first to go
        self._ready: deque[User] = deque()
        self._wires: set[Wire] = set()
        self._idle: deque[Wire] = deque()
        self._dials: set[asyncio.Task[None]] = set()
        self._stale = 0  # connections that were closed as a request was on its way
        self._gone = 0  # connections that the server closed and that were not needed since
        self._start = 0.0
        self._armed_s = math.inf
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)
        self._stopping = False
        self._drain_until_s = math.inf
        self._fault: str | None = None
        self._sent = self._ended = self._failed = self._token_events = 0
        self._in_flight = self._peak_in_flight = self._reconnects = 0
        self._last_send_s: float | None = None

    # --- one run ----------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Open connections before the start. What cannot be opened now is tried again when it is needed."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._unforeseen)
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._alarm = make_alarm(self._loop, self._pump)
        self._lag_alarm = make_alarm(self._loop, self._note_lag)
        self._reachable = True
        slots = asyncio.Semaphore(DIALS_AT_ONCE)
        await asyncio.gather(*(self._dial_early(slots) for _ in range(_connections_at_start(self.job))))

    async def run(self, start: float) -> Report:
        """Send everything; second 0 is when `time.perf_counter` reads ``start``. Returns when the last has ended."""
        cpu_s, self._start = _cpu_s(), start
        for wire in self._wires:
            wire.start = start
        if not self._stopping:
            self._arrivals = self._rows.closed_loop() if self.job.concurrency else self._rows.open_loop()
            self._arrival = next(self._arrivals, None)
        self._lag_due = max(start, _now())
        self._note_lag()
        self._sweeping = self._loop.call_later(self._sweep_every_s(), self._sweep)
        self._pump()
        try:
            await self._finished
            return self._report(_cpu_s() - cpu_s)
        finally:
            self._close()

    def stop(self) -> None:
        """Send nothing new and let what is in flight end, at most ``drain_timeout_s``.

        What was due by now and not sent, for the cap or for want of a connection, is recorded as ``cancelled``.
        """
        if self._stopping:
            return
        now_s = self._now_s()
        self._collect(now_s)
        self._stopping = True
        self._drain_until_s = now_s + self.job.drain_timeout_s
        self._arrivals, self._arrival = iter(()), None
        self._agenda.clear()
        while self._ready:
            self._record(self._unsent(self._ready.popleft(), "cancelled: due, but not sent before the stop"))
        self._finish_when_empty()

    def abort(self, why: str = "given up by the client") -> None:
        """Give up what is in flight: each request gets the error ``cancelled`` with this reason."""
        self.stop()
        for wire in list(self._wires):
            if wire.request is not None:
                wire.give_up(f"cancelled: {why}")
        self._finish_when_empty()

    def pulse(self) -> Pulse:
        """How the load fares now."""
        return Pulse(
            time_s=self._now_s(),
            sent=self._sent,
            ended=self._ended,
            failed=self._failed,
            in_flight=self._in_flight,
            token_events=self._token_events,
        )

    def _report(self, cpu_s: float) -> Report:
        return Report(
            sent=self._sent,
            ended=self._ended,
            failed=self._failed,
            cpu_s=cpu_s,
            wall_s=max(self._now_s(), 0.0),
            loop_lag_s=list(self._lags),
            peak_in_flight=self._peak_in_flight,
            reconnects=self._reconnects,
            stale=self._stale,
            fault=self._fault,
            last_send_s=self._last_send_s,
        )

    # --- who sends now ----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send all that is due, as far as the cap and the free connections go; dial for the rest; set the alarm."""
        self._collect(self._now_s())
        ready = self._ready
        while ready and self._in_flight < self._cap and (wire := self._free_wire(unused=ready[0].resent)):
            self._send(wire, ready.popleft())
        for _ in range(self._wanting() - len(self._dials)):
            self._dial()
        self._set_alarm()
        self._finish_when_empty()

    def _collect(self, now_s: float) -> None:
        while self._arrival is not None and self._arrival.due_s <= now_s:
            self._ready.append(self._arrival)
            self._arrival = next(self._arrivals, None)
        while self._agenda and self._agenda[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._agenda)[2])

    def _set_alarm(self) -> None:
        due_s = self._agenda[0][0] if self._agenda else math.inf
        if self._arrival is not None:
            due_s = min(due_s, self._arrival.due_s)
        if due_s != self._armed_s and due_s < math.inf:
            self._alarm.set(self._start + due_s)
        self._armed_s = due_s

    def _send(self, wire: Wire, user: User) -> None:
        record = self._new_record(user)
        request = Request(record, user, self._keep_text)
        self._in_flight += 1
        self._sent += 1
        if self._in_flight > self._peak_in_flight:
            self._peak_in_flight = self._in_flight
        wire.send(request, self._dialer.payload(self._bodies.build(user.row, user.round, user.earlier)))
        self._last_send_s = record.sent_s

    def _new_record(self, user: User) -> Ended:
        plan, moved = self.job.plan, user.round * self.job.total
        return Ended(
            index=plan.index[user.row] + moved,
            worker=self.job.worker,
            session=plan.session[user.row] + moved if plan.session else None,
            scheduled_s=user.due_s,
            asked_prompt_tokens=plan.prompt_tokens[user.row] if plan.prompt_tokens else None,
            asked_output_tokens=plan.output_tokens[user.row],
        )

    def _unsent(self, user: User, error: str) -> Ended:
        record = self._new_record(user)
        record.end_s = max(self._now_s(), user.due_s)
        record.error, record.output_counted_by = error, "events"
        return record

    # --- what happens to it -----------------------------------------------------------------------------------------

    def ended(self, wire: Wire, request: Request) -> None:
        """A request is over: record it, and let its user go on, on the same connection if it can."""
        record, user = request.record, request.tag
        self._in_flight -= 1
        self._token_events += record.token_events
        self._record(record)
        user.resent = False
        again = self._advance(user, record, "".join(request.reader.parts), wire.heard_s)
        if wire.usable and self._stale >= MOST_STALE:
            wire.close()
        if not wire.usable:
            self._wires.discard(wire)
            self._gone += record.error is None
        elif again and not self._ready and user.due_s <= self._now_s():
            self._send(wire, user)
            return
        else:
            self._idle.append(wire)
        if again:
            self._later(user)
        self._pump()

    def lost(self, wire: Wire) -> None:
        """A connection closed; where it was idle, it is opened again when it is needed."""
        if wire in self._wires:
            self._wires.discard(wire)
            self._gone += 1
            if wire in self._idle:
                self._idle.remove(wire)

    def stale(self, wire: Wire, request: Request) -> bool:
        """Send the request again, once, on another connection: the server never saw it. Its lateness tells of it."""
        user = request.tag
        if user.resent or self._stopping:
            return False
        self._wires.discard(wire)
        self._stale, self._gone = self._stale + 1, self._gone + 1
        self._sent, self._in_flight = self._sent - 1, self._in_flight - 1
        user.resent = True
        self._ready.appendleft(user)
        self._loop.call_soon(self._pump)
        return True

    def _advance(self, user: User, record: Ended, answer: str, heard_s: float) -> bool:
        """Set when the user sends again, and what; False if never."""
        if self._stopping:
            return False
        # Between [DONE] and the end of the message the connection is not free, which is no lateness of ours.
        free_s = max(record.end_s or 0.0, heard_s)
        wait_s = self._wait_s(user, record)
        user.row += 1
        if record.error is not None:
            self._cancel_session(user, free_s)
        elif user.row < user.stop:
            return self._next_turn(user, free_s, answer)
        if not self.job.concurrency or not self._rows.give(user):
            return False
        user.due_s = round(free_s + self.job.think_time_s + wait_s, CLOCK_DIGITS)
        return True

    def _next_turn(self, user: User, free_s: float, answer: str) -> bool:
        user.earlier.append(self._bodies.turn(user.row - 1, user.round, answer))
        then_s = free_s + self.job.think_time_s
        if not self.job.concurrency:  # the plan's time, or as soon after it as the turn before allows
            then_s = max(then_s, self.job.plan.scheduled_s[user.row] + user.shift_s)
        user.due_s = round(then_s, CLOCK_DIGITS)
        return True

    def _cancel_session(self, user: User, now_s: float) -> None:
        user.due_s = now_s
        while user.row < user.stop:
            self._record(self._unsent(user, "cancelled: an earlier turn of the session failed"))
            user.row += 1

    def _wait_s(self, user: User, record: Ended) -> float:
        """How long a user waits after a failure: as the server asks, or longer each time no connection held."""
        error = record.error
        if error is None:
            user.backoff_s = 0.0
        elif record.retry_after_s is not None:
            return record.retry_after_s
        elif error.startswith(("connect", "reset")):
            user.backoff_s = min(2 * user.backoff_s or FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
            return user.backoff_s
        return 0.0

    def _later(self, user: User) -> None:
        heapq.heappush(self._agenda, (user.due_s, next(self._order), user))

    def _record(self, record: Ended) -> None:
        """Write one record. Where that fails the run is over: nothing that follows could be kept."""
        if self._fault is not None:
            return
        if record.error is not None:
            record.error = self._veiled(record.error)
        try:
            self._write(record)
        except OSError as why:
            self._give_up(f"journal: {reason(why)}")
            return
        self._ended += 1
        self._failed += record.error is not None

    def _veiled(self, error: str) -> str:
        """An error without what must not be kept: a server may repeat the headers it got. Its class stays."""
        head, colon, detail = error.partition(": ")
        return head + colon + veil(detail, self.job.connection)

    # --- connections ------------------------------------------------------------------------------------------------

    def _free_wire(self, *, unused: bool = False) -> Wire | None:
        """A connection that waits: in a closed loop the one that waited longest, so that all stay in use.

        ``unused``: one that has carried no request, since a server that closed one used connection behind our back may
        have closed the others too.
        """
        if unused:
            for wire in [wire for wire in self._idle if wire.used]:
                self._idle.remove(wire)
                self._wires.discard(wire)
                self._gone += 1
                wire.close()
        while self._idle:
            wire = self._idle.popleft() if self.job.concurrency else self._idle.pop()
            if wire.fresh():
                return wire
            self._wires.discard(wire)
            self._gone += 1
            wire.close()
        return None

    def _wanting(self) -> int:
        """How many that are due wait for a connection, not for the cap."""
        return int(min(len(self._ready), self._cap - self._in_flight))

    def _dial(self) -> None:
        if self._gone:
            self._gone -= 1
            self._reconnects += 1
        task = self._loop.create_task(self._dial_now())
        self._dials.add(task)
        task.add_done_callback(self._dialled)

    async def _dial_now(self) -> None:
        try:
            self._adopt(await self._dialer.dial())
        except DialError as why:
            if self._wanting() >= len(self._dials):  # else another connection serves who waits
                self._unreachable(self._ready.popleft(), str(why))

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dials.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._give_up(f"internal: {fault!r}")
        if not self._finished.done():
            self._pump()

    async def _dial_early(self, slots: asyncio.Semaphore) -> None:
        async with slots:
            if self._reachable:
                try:
                    self._adopt(await self._dialer.dial())
                except DialError:
                    self._reachable = False  # no need to wait for as many timeouts as there are connections

    def _adopt(self, wire: Wire) -> None:
        wire.start = self._start
        self._wires.add(wire)
        self._idle.append(wire)

    def _unreachable(self, user: User, error: str) -> None:
        record = self._unsent(user, error)
        self._record(record)
        if self._advance(user, record, "", 0.0):
            self._later(user)

    # --- watching over it -------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return round(_now() - self._start, CLOCK_DIGITS)

    def _sweep_every_s(self) -> float:
        limits = self.job.connection
        return min(max(min(limits.timeout_s, limits.idle_timeout_s, self.job.drain_timeout_s) / 5, 0.02), 0.2)

    def _sweep(self) -> None:
        now = _now()
        for wire in list(self._wires):
            wire.check(now)
        if now - self._start > self._drain_until_s:
            self.abort(f"not ended within the drain of {self.job.drain_timeout_s:g} s")
        self._sweeping = self._loop.call_later(self._sweep_every_s(), self._sweep)

    def _note_lag(self) -> None:
        now = _now()
        # one for every tick that a stall swallowed: else a long one is one value among thousands
        while self._lag_due < now:
            self._lags.append(round(now - self._lag_due, CLOCK_DIGITS))
            self._lag_due += LAG_EVERY_S
        self._lag_alarm.set(self._lag_due)

    def _unforeseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of ours must end the run, not hang it; broken connections are told of elsewhere."""
        fault = context.get("exception")
        if fault is None or isinstance(fault, OSError):
            return
        try:
            self._give_up(f"internal: {fault!r}")
        finally:  # what is amiss may be amiss with giving up, too
            if not self._finished.done():
                self._finished.set_result(None)

    def _give_up(self, fault: str) -> None:
        self._fault = self._fault or self._veiled(fault)
        self.abort(fault)

    def _finish_when_empty(self) -> None:
        busy = self._in_flight or self._ready or self._agenda or self._arrival is not None
        if not busy and not self._finished.done():
            self._finished.set_result(None)

    def _close(self) -> None:
        self._sweeping.cancel()
        self._alarm.close()
        self._lag_alarm.close()
        for task in self._dials:
            task.cancel()
        for wire in self._wires:
            wire.close()


def check(job: Job) -> None:
    """Raise `InputError` for a job that no worker can run."""
    plan, limits = job.plan, job.connection
    if plan.session and job.endpoint != "chat":
        raise InputError("endpoint", job.endpoint, "chat, which is the one that takes the turns of a session")
    if len(set(plan.session)) != sum(1 for _ in itertools.groupby(plan.session)):
        raise InputError.because("plan.session: the requests of one session must stand one after the other")
    if not job.concurrency and len(plan.scheduled_s) != len(plan.index):
        raise InputError(
            "plan.scheduled_s", f"{len(plan.scheduled_s)} times", "a time for each request in an open loop"
        )
    for name in ("concurrency", "max_concurrency", "think_time_s", "ramp_up_s", "drain_timeout_s", "shift_bytes"):
        if not 0 <= getattr(job, name) < math.inf:
            raise InputError(name, getattr(job, name), "a finite number of at least 0")
    for name in ("timeout_s", "idle_timeout_s", "connect_timeout_s"):
        if not getattr(limits, name) > 0:
            raise InputError(f"connection.{name}", getattr(limits, name), "more than 0 seconds")
    if limits.unix_socket is None and not 0 < limits.port < 65536:
        raise InputError("connection.port", limits.port, "1 to 65535")
    if not os.path.isfile(job.arena):
        raise InputError("arena", job.arena, "the path of a readable file")


def _session_ends(sessions: list[int]) -> list[int]:
    """For the first row of each session the row after its last; 0 for the other rows; nothing without sessions."""
    ends, row = [0] * len(sessions), 0
    for _, members in itertools.groupby(sessions):
        first, row = row, row + sum(1 for _ in members)
        ends[first] = row
    return ends


def _connections_at_start(job: Job) -> int:
    """Closed loop: one a user. Open loop: what a second's arrivals need, within `POOL_AT_START` and the cap."""
    rows = len(job.plan.index)
    if job.concurrency:
        return job.concurrency if job.cycle else min(job.concurrency, rows)
    times = job.plan.scheduled_s
    span_s = max(max(times, default=0.0) - min(times, default=0.0), 1.0)
    return min(rows, math.ceil(rows / span_s), job.max_concurrency or POOL_AT_START, POOL_AT_START)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
