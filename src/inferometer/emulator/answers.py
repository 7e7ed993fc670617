"""Where tokens go: a stream of chunks written straight to the connection, or one body at the end.

aiohttp's ``StreamResponse.write`` is a coroutine with a check of the connection each time; a thousand streams of twenty
tokens a second are twenty thousand writes a second. A stream's chunks are made while the engine's step runs, and when
it ends they are handed to the kernel one system call after the other.
"""

from __future__ import annotations

import asyncio
import os

from inferometer.emulator.asks import Ask
from inferometer.emulator.faults import Fate, Faults
from inferometer.emulator.scheduler import Call
from inferometer.emulator.text import WORDS
from inferometer.emulator.wire import BROKEN, DONE, Wire, http_chunk, usage, words


class Body:
    """An answer that is not streamed: only its end matters."""

    def __init__(self, done: asyncio.Future[Call]) -> None:
        self.done = done

    def prepare(self, index: int, last: bool) -> bytes | None:
        """See `Sink.prepare`."""
        return None

    def write(self, data: bytes) -> None:
        """See `Sink.write`: never called."""

    def finish(self, call: Call) -> None:
        """See `Sink.finish`."""
        if not self.done.done():
            self.done.set_result(call)


class Stream:
    """A stream of server-sent events, one chunk a token."""

    def __init__(
        self, transport: asyncio.Transport, wire: Wire, ask: Ask, done: asyncio.Future[Call], chunked: bool
    ) -> None:
        self.transport, self.wire, self.ask, self.done, self.chunked = transport, wire, ask, done, chunked
        self.fd: int = transport.get_extra_info("socket").fileno()
        self.pieces: list[bytes] = []
        self.role_sent = not wire.chat

    def frame(self, data: bytes) -> bytes:
        """As the connection wants it: HTTP/1.0 knows no chunks."""
        return http_chunk(data) if self.chunked else data

    def prepare(self, index: int, last: bool) -> bytes | None:
        """See `Sink.prepare`."""
        if last or not self.role_sent or self.ask.continuous_usage:
            return self.chunk(index, 1, last)
        if not self.pieces:
            self.pieces = [self.frame(self.wire.token(word)) for word in WORDS]
        return self.pieces[index % len(WORDS)]

    def chunk(self, first: int, count: int, last: bool) -> bytes:
        """Tokens ``first`` and on as one chunk, with what goes before and after it; in one write."""
        before = b"" if self.role_sent else self.frame(self.wire.role())
        self.role_sent = True
        return before + self.frame(self.event(first, count, last)) + (self.tail() if last else b"")

    def event(self, first: int, count: int, last: bool) -> bytes:
        """The event that carries these tokens."""
        content, reason = words(first, count), self.ask.reason if last else None
        if self.ask.continuous_usage:
            return self.wire.token_with_usage(content, usage(self.ask.prompt_tokens, first + count), reason)
        return self.wire.last(content, reason) if reason else self.wire.token(content)

    def tail(self) -> bytes:
        """What ends a stream: token counts where asked for, and the mark of the end."""
        counts = b""
        if self.ask.include_usage:
            counts = self.frame(self.wire.counts(self.ask.prompt_tokens, self.ask.output_tokens))
        return counts + self.frame(DONE)

    def write(self, data: bytes) -> None:
        """See `Sink.write`: to the kernel at once where nothing is queued before it."""
        transport = self.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size():
            transport.write(data)
            return
        try:
            sent = os.write(self.fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the client has gone; the loop will say so
        if sent < len(data):
            transport.write(data[sent:])

    def finish(self, call: Call) -> None:
        """See `Sink.finish`."""
        if not self.done.done():
            self.done.set_result(call)


class FaultyStream(Stream):
    """A stream with faults: late, paused, cut, broken, or of many tokens a chunk."""

    def __init__(
        self,
        transport: asyncio.Transport,
        wire: Wire,
        ask: Ask,
        done: asyncio.Future[Call],
        chunked: bool,
        faults: Faults,
        fate: Fate,
    ) -> None:
        super().__init__(transport, wire, ask, done, chunked)
        self.faults = faults
        self.delay_s = faults.latency_s
        self.stall_at = _token(fate.stall_at, ask)
        self.cut_at = _token(fate.cut_at, ask)
        self.malformed_at = _token(fate.malformed_at, ask)
        self.held = self.index = 0
        self.loop = done.get_loop()
        if faults.role_chunk_first and wire.chat:
            self.role_sent = True
            self.transport.write(self.frame(wire.role()))

    def prepare(self, index: int, last: bool) -> bytes | None:
        """See `Sink.prepare`: None while tokens are being gathered for a chunk."""
        self.held += 1
        self.index = index
        if self.held < self.faults.tokens_per_chunk and not last:
            return None
        first, self.held = index + 1 - self.held, 0
        broken = self.malformed_at is not None and first <= self.malformed_at <= index
        return self.chunk(first, index + 1 - first, last) if not broken else self._broken(last)

    def _broken(self, last: bool) -> bytes:
        return self.frame(BROKEN) + (self.tail() if last else b"")

    def write(self, data: bytes) -> None:
        """See `Sink.write`: what is delayed stays in order, as the delay only grows."""
        if self.stall_at is not None and self.index >= self.stall_at:
            self.delay_s, self.stall_at = self.delay_s + self.faults.stall_s, None
        if self.cut_at is not None and self.index >= self.cut_at:
            self._later(self.transport.abort)
        elif self.delay_s:
            self.loop.call_later(self.delay_s, super().write, data)
        else:
            super().write(data)

    def finish(self, call: Call) -> None:
        """See `Sink.finish`: once the delayed end is out; never where the connection is cut."""
        if self.cut_at is None:
            self._later(super().finish, call)

    def _later(self, what, *arguments) -> None:  # type: ignore[no-untyped-def]
        if self.delay_s:
            self.loop.call_later(self.delay_s, what, *arguments)
        else:
            what(*arguments)


def _token(share: float | None, ask: Ask) -> int | None:
    """The token at a share of the output: after the first where there is another, before the last of three or more."""
    if share is None:
        return None
    return min(1 + int(share * max(0, ask.output_tokens - 2)), ask.output_tokens - 1)
