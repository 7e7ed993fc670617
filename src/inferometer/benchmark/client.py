"""Connections to the server, and the truth about one request on one of them.

A `Wire` is one connection: it sends a request when told to and reports how it ended, with each time taken where the
thing happens: sent right before the bytes are handed to the kernel, the rest when the bytes come out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import os
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, Protocol, cast

import httptools  # type: ignore[import-untyped]

from inferometer.benchmark.job import Connection, Ended, Endpoint
from inferometer.benchmark.payload import Piece
from inferometer.benchmark.sse import AnswerError, AnswerReader, excerpt, message
from inferometer.benchmark.target import checked_header, reason, ssl_context

ENDPOINT_PATHS: dict[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}
CLOCK_DIGITS = 7
"""Times are kept to 100 ns: shorter in the journal, and far below what a read costs."""
ERROR_BODY_BYTES = 64 << 10
"""So much of an HTTP error's body is kept to find its message in."""
LINGER_S = 0.5
"""After ``[DONE]`` a server has so long to end its answer before the connection is given up."""
STALE_S = 0.25
"""A used connection that closes in order so soon after a request was sent had been closed before the request came."""
STALE_RESET_S = 0.05
"""One that is reset is so within this: a closed socket answers at once, later the request may have been its cause."""

_now = time.perf_counter


class DialError(Exception):
    """No connection: a text that begins with ``connect`` or ``timeout``."""


class Request:
    """One request on its way: its record, what reads its answer, and whose it is (``tag``, the load generator's)."""

    __slots__ = ("reader", "record", "tag")

    def __init__(self, record: Ended, tag: Any = None, keep_text: bool = False) -> None:
        self.record = record
        self.reader = AnswerReader(record, keep_text)
        self.tag = tag


class Owner(Protocol):
    """Who uses the wires."""

    def ended(self, wire: Wire, request: Request) -> None:
        """A request's record is whole, with or without an error. The wire takes another if it is ``usable``."""

    def lost(self, wire: Wire) -> None:
        """A wire without a request is closed."""

    def stale(self, wire: Wire, request: Request) -> bool:
        """The server closed a used connection as a request was on its way to it: whether it is sent again elsewhere."""


class Wire(asyncio.Protocol):
    """One connection. At most one request at a time is on it; ``usable`` says whether it takes the next.

    ``start`` is the `time.perf_counter` value of second 0, which may be set until the first request is sent.
    """

    def __init__(self, owner: Owner, connection: Connection, stream: bool) -> None:
        self.owner = owner
        self.connection = connection
        self.stream = stream
        self.start = 0.0
        self.usable = False
        self.request: Request | None = None
        self._socket: socket.socket | None = None
        self._sent = self._heard = 0.0
        self.used = False  # it has carried a request
        self._complete = False
        self._reset_answer()

    # --- the request ------------------------------------------------------------------------------------------------

    def send(self, request: Request, payload: bytes) -> None:
        """Send a request now. How it ends is told to the owner, never from within this call."""
        self.request = request
        self.usable = False
        self._sent = sent = _now()
        request.record.sent_s = round(sent - self.start, CLOCK_DIGITS)
        written = 0
        if self._socket is not None:
            try:
                # Past the loop's own buffer, which it would flush only after the other reads of this turn.
                written = self._socket.send(payload)
            except BlockingIOError:
                pass
            except OSError as why:
                asyncio.get_running_loop().call_soon(self._broken, why)
                return
        if written < len(payload):
            self.transport.write(payload[written:] if written else payload)

    def give_up(self, error: str) -> None:
        """End the request at once with this error, unless it has its end already, and the connection with it."""
        self.close()
        if self.request is not None:
            record = self.request.record
            self._finish(_now(), error if record.end_s is None else record.error)

    def check(self, now: float) -> None:
        """End what has taken too long at ``now``, on `time.perf_counter`."""
        request, limits = self.request, self.connection
        if request is None:
            return
        if request.record.end_s is not None:
            if now - self._heard > LINGER_S:
                self.give_up("cut: the answer's end is missing")
        elif now - self._sent > limits.timeout_s:
            self.give_up(f"timeout: no end within {limits.timeout_s:g} s")
        elif request.record.first_byte_s is not None and now - self._heard > limits.idle_timeout_s:
            self.give_up(f"timeout: nothing more for {limits.idle_timeout_s:g} s")

    @property
    def heard_s(self) -> float:
        """When the last bytes came."""
        return round(self._heard - self.start, CLOCK_DIGITS)

    def fresh(self) -> bool:
        """Whether a connection that has waited still takes a request: the server may have closed it this moment."""
        if not self.usable or self.transport.is_closing():
            return False
        if self._socket is None:
            return True
        try:
            self._socket.recv(1, socket.MSG_PEEK)  # the end of the stream, or what nobody asked for
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Close the connection without waiting for anything."""
        self.usable = False
        self.transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection, through TLS where asked, is there."""
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)
        self.usable = True

    def send_directly(self, plain: socket.socket) -> None:
        """Let requests go straight to the connection's own socket, which carries no TLS."""
        self._socket = plain

    def data_received(self, data: bytes) -> None:
        """A piece of the answer: every token in it has come now."""
        self._heard = now = _now()
        request = self.request
        if request is None:  # an answer that nobody asked for: nothing on this connection can be trusted now
            self.close()
            return
        if request.record.first_byte_s is None:
            request.record.first_byte_s = round(now - self.start, CLOCK_DIGITS)
        try:
            self._parse(request, data, now)
        except AnswerError as why:
            self._faulty(request, str(why), now)
        else:
            if self._complete:
                self._completed(request, now)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: so is the request on it, unless its answer was all there."""
        self.usable = False
        request = self.request
        if request is None:
            self.owner.lost(self)
            return
        now = _now()
        if request.record.end_s is not None:
            self._finish(now, request.record.error)
        elif request.record.first_byte_s is None and self._was_stale(request, now, exc):
            self.request = None
        elif request.record.first_byte_s is None:
            self._finish(now, f"reset: the connection closed before the answer began{_because(exc)}")
        elif self._status and exc is None and not self._framed:
            self._completed(request, now)  # an answer without a length ends where its connection does
        elif self._status not in (0, 200):
            self._finish(now, self._http_error(request.record))
        elif request.reader.concluded:
            self._finish(now, None)
        else:
            self._finish(now, _cut(request.record))

    # --- httptools' callbacks ---------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what a header says of the body's end and of when to come again."""
        name = name.lower()
        if name == b"retry-after":
            self._retry_after = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """The status is known."""
        if self._complete:  # a second answer to one request
            self._keep = False
        else:
            self._status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Collect: one read of the socket may bring many pieces."""
        if not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was only ``100 Continue``."""
        if self._status < 200:
            self._reset_answer()
        elif not self._complete:
            self._complete = True
            self._keep = self._keep and self.parser.should_keep_alive()

    # --- how it ends ------------------------------------------------------------------------------------------------

    def _reset_answer(self) -> None:
        self._status = 0
        self._complete = self._framed = False
        self._keep = True
        self._pieces: list[bytes] = []
        self._kept_bytes = 0
        self._retry_after = b""

    def _parse(self, request: Request, data: bytes, now: float) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise AnswerError("malformed: the server changed the protocol") from None
        except httptools.HttpParserError as why:
            self._take_pieces(request, now)
            raise AnswerError(f"malformed: not HTTP ({why}): {excerpt(data)}") from None
        if self._pieces:
            self._take_pieces(request, now)

    def _take_pieces(self, request: Request, now: float) -> None:
        """Read a stream's events now; of an error's body, which may be anything, keep the beginning."""
        if self._status == 200 and self.stream:
            pieces, self._pieces = self._pieces, []
            reader = request.reader
            reader.feed(b"".join(pieces), round(now - self.start, CLOCK_DIGITS))
            if reader.done and request.record.end_s is None:
                request.record.end_s = round(now - self.start, CLOCK_DIGITS)
        elif self._status != 200 and len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)[:ERROR_BODY_BYTES]]

    def _completed(self, request: Request, now: float) -> None:
        """The message is whole; is the answer?"""
        record, reader = request.record, request.reader
        error = record.error
        try:
            if self._status != 200:
                error = self._http_error(record)
            elif not self.stream:
                reader.whole(b"".join(self._pieces))
            else:
                reader.flush(round(now - self.start, CLOCK_DIGITS))
                error = error if error or reader.concluded else _cut(record)
        except AnswerError as why:
            error = str(why)
        self._finish(now, error)

    def _faulty(self, request: Request, error: str, now: float) -> None:
        """After an error that the server reports the stream may still end in order; after any other nothing can."""
        if not error.startswith("stream"):
            self.give_up(error)
        elif self._complete:
            self._finish(now, error)
        elif request.record.end_s is None:
            request.record.error = error
            request.record.end_s = round(now - self.start, CLOCK_DIGITS)

    def _broken(self, why: OSError) -> None:
        request = self.request
        if request is None:
            return
        if self._was_stale(request, _now(), why):
            self.request = None
            self.close()
        else:
            self.give_up(f"reset: {reason(why)}")

    def _was_stale(self, request: Request, now: float, why: Exception | None) -> bool:
        """Whether the server had closed this connection after the answer before, so that it never saw the request."""
        limit_s = STALE_S if why is None else STALE_RESET_S
        return self.used and now - self._sent < limit_s and self.owner.stale(self, request)

    def _finish(self, now: float, error: str | None) -> None:
        request, self.request = self.request, None
        if request is None:
            return
        record = request.record
        record.error = error
        record.http_status = self._status or None
        if record.end_s is None:
            record.end_s = round(now - self.start, CLOCK_DIGITS)
        request.reader.settle()
        self.used = True
        self._free()
        self.owner.ended(self, request)

    def _free(self) -> None:
        """Decide whether this connection takes another request."""
        transport = self.transport
        sound = self._complete and self._keep and not transport.is_closing()
        self.usable = sound and transport.get_write_buffer_size() == 0
        if not self.usable:
            self.close()
        self._reset_answer()

    def _http_error(self, record: Ended) -> str:
        if self._retry_after:
            record.retry_after_s = retry_after_s(self._retry_after.decode("latin-1"), time.time())
        return f"http {self._status}: {message(b''.join(self._pieces))}"


class Dialer:
    """Opens connections to one server.

    Raises `InputError` for a header that cannot be sent, and for a certificate file that cannot be read.
    """

    def __init__(self, connection: Connection, endpoint: Endpoint, stream: bool, owner: Owner) -> None:
        self._connection, self._stream, self._owner = connection, stream, owner
        self._tls = ssl_context(connection) if connection.tls else None
        self._head = _request_head(connection, ENDPOINT_PATHS[endpoint], stream)
        self._addresses: list[tuple[int, Any]] = []

    def payload(self, pieces: list[Piece]) -> bytes:
        """The whole request, ready to be sent: head, length and body."""
        return b"".join((self._head, b"%d\r\n\r\n" % sum(map(len, pieces)), *pieces))

    async def dial(self) -> Wire:
        """Open a connection. Raises `DialError`."""
        limit_s = self._connection.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._dial()
        except TimeoutError:
            raise DialError(f"timeout: no connection within {limit_s:g} s") from None
        except ssl.SSLError as why:
            raise DialError(f"connect: TLS: {getattr(why, 'verify_message', '') or why.reason or why}") from None
        except socket.gaierror as why:
            raise DialError(f"connect: name not found: {self._connection.host} ({why.strerror})") from None
        except OSError as why:
            raise DialError(f"connect: {reason(why)}") from None

    async def _dial(self) -> Wire:
        """Try each address of the name, with an equal share of the time; from then on the one that answered."""
        addresses = self._addresses or await self._resolve()
        for family, address in addresses[:-1]:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(self._connection.connect_timeout_s / len(addresses)):
                    wire = await self._open(family, address)
                self._addresses = [(family, address)]
                return wire
        wire = await self._open(*addresses[-1])
        self._addresses = addresses[-1:]
        return wire

    async def _resolve(self) -> list[tuple[int, Any]]:
        if self._connection.unix_socket is not None:
            return [(socket.AF_UNIX, self._connection.unix_socket)]
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._connection.host, self._connection.port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]

    async def _open(self, family: int, address: Any) -> Wire:
        loop = asyncio.get_running_loop()
        wire = Wire(self._owner, self._connection, self._stream)
        with _closed_on_error(socket.socket(family, socket.SOCK_STREAM)) as plain:
            plain.setblocking(False)
            await loop.sock_connect(plain, address)
            name = self._connection.host if self._tls else None
            if family == socket.AF_UNIX:
                await loop.create_unix_connection(lambda: wire, sock=plain, ssl=self._tls, server_hostname=name)
            else:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.create_connection(lambda: wire, sock=plain, ssl=self._tls, server_hostname=name)
        if self._tls is None:
            wire.send_directly(plain)
        return wire


def retry_after_s(value: str, now_unix_s: float) -> float | None:
    """Seconds that a ``Retry-After`` header asks to wait, given as seconds or as a date (RFC 9110, 10.2.3).

    None where it is neither.

    >>> retry_after_s("2", 0.0), retry_after_s("Thu, 01 Jan 1970 00:00:30 GMT", 10.0), retry_after_s("soon", 0.0)
    (2.0, 20.0, None)
    """
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return seconds if 0 <= seconds < float("inf") else None
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now_unix_s)
    return None


@contextlib.contextmanager
def _closed_on_error(plain: socket.socket) -> Iterator[socket.socket]:
    try:
        yield plain
    except BaseException:
        plain.close()
        raise


def _cut(record: Ended) -> str:
    return f"cut: after {record.token_events} token events"


def _because(why: Exception | None) -> str:
    return f": {reason(why)}" if why else ""


def _request_head(connection: Connection, path: str, stream: bool) -> bytes:
    """The request line and headers up to the value of Content-Length; the user's own headers replace ours."""
    secure, host = connection.tls, connection.host
    usual = connection.port == (443 if secure else 80) or connection.unix_socket is not None
    name = f"[{host}]" if ":" in host else host
    ours = {
        "Host": name if usual else f"{name}:{connection.port}",
        "User-Agent": "inferometer",
        "Accept": "text/event-stream" if stream else "application/json",
        "Content-Type": "application/json",
    }
    theirs = {key.lower() for key, _ in connection.headers}
    headers = [(key, value) for key, value in ours.items() if key.lower() not in theirs]
    headers += [checked_header(*header) for header in connection.headers]
    lines = [f"{key}: {value}\r\n" for key, value in headers]
    target = f"{os.path.join('/', connection.path.strip('/'))}".rstrip("/") + path
    return f"POST {target} HTTP/1.1\r\n{''.join(lines)}Content-Length: ".encode("latin-1")
