"""What the coordinator and its worker processes say to each other.

A worker is started as ``python -m inferometer.benchmark.worker JOB_FILE`` (`Job`, msgpack). It prepares itself, writes
a `Ready` line on standard output, waits for a `Command` line on standard input, sends the plan's requests, writes one
`Ended` line for each request as it ends to its own file of the journal, a `Pulse` line about twice a second, and at the
end a `Report` line. All times in these lines are seconds from ``Command.start`` on `time.perf_counter`, which on one
machine is one clock for all processes. A worker whose standard input closes gives up at once: its coordinator is gone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inferometer.records.ended import ERROR_CLASSES as ERROR_CLASSES
from inferometer.records.ended import Ended as Ended

Endpoint = Literal["completions", "chat"]


class Connection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server is and how it is spoken to."""

    host: str
    """A name or an address; an IPv6 address without brackets."""
    port: int
    unix_socket: str | None = None
    """Path of a Unix socket, instead of host and port (``host`` is then only the Host header)."""
    tls: bool = False
    verify: bool = True
    """Check the server's certificate."""
    ca_file: str | None = None
    path: str = "/v1"
    """What stands before ``/completions``, ``/chat/completions`` and ``/models``."""
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with every request: ``Authorization: Bearer ...`` and the user's own."""
    connect_timeout_s: float = 10.0
    timeout_s: float = 600.0
    """Of a whole request, from sent to end."""
    idle_timeout_s: float = 120.0
    """Between two pieces of one answer."""

    def __repr__(self) -> str:
        """Where, and which headers are sent: their values are secrets, and a traceback may be shared."""
        where = self.unix_socket or f"{self.host}:{self.port}"
        return f"Connection({where}{self.path}, headers={[name for name, _ in self.headers]})"


class Plan(msgspec.Struct, kw_only=True):
    """The requests of one worker, in order; request ``i`` has the same row in every list that is not empty.

    A request's body is ``head + prompt + middle + output_tokens + tail``, the prompt being its slices of the arena file
    one after the other: nothing is generated or encoded while the clock runs.
    """

    index: list[int]
    """The request's number over all workers."""
    slices: list[list[int]]
    """Byte offsets in the arena: start, stop, start, stop, ..."""
    output_tokens: list[int]
    prompt_tokens: list[int] = []
    """What each prompt is meant to hold, for `Ended.asked_prompt_tokens`."""
    scheduled_s: list[float] = []
    """Open loop: when each is meant to be sent."""
    session: list[int] = []
    """Requests of one session are adjacent; each is sent after the one before it has ended, with its answer."""
    salt: list[str] = []
    """``cache_salt`` of each, already in the right place of the body: appended before the tail's last brace."""


class Job(msgspec.Struct, kw_only=True):
    """All that one worker needs."""

    connection: Connection
    endpoint: Endpoint
    stream: bool = True
    worker: int = 0
    workers: int = 1
    """How many there are: a request past the end of a cycled plan gets ``index + round * total``."""
    arena: str
    """Path of the file that holds the prompts' bytes."""
    head: str
    middle: str
    tail: str
    plan: Plan
    total: int
    """Requests of all workers' plans together."""
    journal: str
    """Path of the file to append `Ended` lines to."""
    concurrency: int = 0
    """Closed loop: this worker's users. 0: open loop."""
    think_time_s: float = 0.0
    ramp_up_s: float = 0.0
    """Closed loop: the users start evenly over so long."""
    max_concurrency: int = 0
    """Open loop: at most so many in flight, the others wait in the client (their lateness is recorded). 0: no cap."""
    cycle: bool = False
    """Start again when the plan is used up, each time with the last slice of every prompt moved by ``shift_bytes``."""
    shift_bytes: int = 0
    ring_bytes: int = 0
    """The arena's first so many bytes are the ring that moved slices wrap around in. 0: slices are not moved."""
    drain_timeout_s: float = 600.0
    keep_text: bool = False
    """Sessions need the answers; otherwise text is dropped as it is counted."""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line to a worker: exactly one of its fields."""

    start: float | None = None
    """The `time.perf_counter` value that is second 0 of the run."""
    stop: bool = False
    """Send nothing new, let what is in flight end (at most ``drain_timeout_s``), then report."""
    abort: bool = False
    """Give up what is in flight: each gets the error ``cancelled``."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready", tag_field="say"):
    """The worker can start."""

    pid: int


class Pulse(msgspec.Struct, frozen=True, kw_only=True, tag="pulse", tag_field="say"):
    """How a worker fares, about twice a second."""

    time_s: float
    sent: int
    ended: int
    failed: int
    in_flight: int
    token_events: int


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report", tag_field="say"):
    """What a worker has to say at the end."""

    sent: int
    ended: int
    failed: int = 0
    cpu_s: float
    """User and system time of this process between start and end."""
    wall_s: float
    loop_lag_s: list[float]
    """How late a timer of every 20 ms fired, the last 100,000 values at most."""
    peak_in_flight: int
    reconnects: int
    stale: int = 0
    """Requests sent a second time, because the server had closed the connection they were first sent on."""
    fault: str | None = None
    """Why the worker gave up, where it did: ``No space left on device``."""
    last_send_s: float | None = None


Said = Ready | Pulse | Report
