"""A server that answers by script, byte for byte, and the means to run a load generator against it.

A script is what one request gets: bytes are written, a number is a pause in seconds, `CLOSE` ends the connection in
order, `RESET` breaks it, `HANG` waits until the client gives up.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from inferometer.benchmark.job import Connection, Ended, Job, Plan, Report
from inferometer.benchmark.loadgen import LoadGenerator

CLOSE, RESET, HANG = "close", "reset", "hang"
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

Step = bytes | float | str
Script = Sequence[Step]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(piece: str | None, finish: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": piece, "finish_reason": finish, **more}]})


def delta(finish: str | None = None, choice: dict[str, Any] | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish, **(choice or {})}]})


def usage(prompt: int, completion: int, **details: Any) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"choices": [], "usage": {**counts, **details}})


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes, pause_s: float = 0.0) -> list[Step]:
    """A whole event stream, each event in a chunk and a write of its own, so many seconds apart."""
    steps: list[Step] = [STREAM_HEAD]
    for one in events:
        steps += [pause_s, chunk(one)] if pause_s else [chunk(one)]
    return [*steps, LAST_CHUNK]


def tokens(count: int, pause_s: float = 0.0) -> list[Step]:
    """A completion of so many tokens, with usage."""
    middle = [text(" the") for _ in range(count - 1)]
    return stream(*middle, text(" the", "length"), usage(7, count), DONE, pause_s=pause_s)


def plain(status: int, body: bytes | dict[str, Any], **headers: str) -> list[Step]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return [f"HTTP/1.1 {status} Whatever\r\ncontent-length: {len(data)}\r\n{lines}\r\n".encode() + data]


@dataclass
class Seen:
    """One request as it came."""

    at: float
    line: str
    headers: dict[str, str]
    body: Any
    connection: int
    wrote: list[float] = field(default_factory=list)
    """When each piece of the answer was written."""


@dataclass
class Scripted:
    """Plays the scripts, one a request in the order they come, the last again and again."""

    scripts: Sequence[Script]
    host: str = "127.0.0.1"
    unix: str | None = None
    tls: ssl.SSLContext | None = None
    greeting: bytes = b""
    """Written to each new connection, unasked."""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most_open_requests: int = 0
    port: int = 0
    _busy: int = 0

    async def __aenter__(self) -> Scripted:
        if self.unix is not None:
            self._server = await asyncio.start_unix_server(self._serve, self.unix, ssl=self.tls)
        else:
            self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self.tls)
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    @property
    def connection(self) -> Connection:
        return Connection(host=self.host, port=self.port, unix_socket=self.unix)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections, self.open = self.connections, self.connections + 1, self.open + 1
        writer.write(self.greeting)
        try:
            while await self._answer(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        seen = Seen(time.perf_counter(), head[0], headers, body, number)
        self.seen.append(seen)
        self._busy += 1
        self.most_open_requests = max(self.most_open_requests, self._busy)
        try:
            return await self._play(self.scripts[min(len(self.seen), len(self.scripts)) - 1], seen, reader, writer)
        finally:
            self._busy -= 1

    async def _play(
        self, script: Script, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        for step in script:
            if isinstance(step, bytes):
                seen.wrote.append(time.perf_counter())
                writer.write(step)
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step == HANG:
                await reader.read(1)
            else:
                await writer.drain()
                if step == RESET:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                return False
        await writer.drain()
        return True


def make_job(folder: Path, connection: Connection, rows: int = 1, **changes: Any) -> Job:
    """A completions job of ``rows`` requests at concurrency 1, prompt ``w0`` to ``w9`` in turn, 4 tokens each."""
    arena = folder / "arena"
    arena.write_bytes(b"".join(b"w%d" % digit for digit in range(10)))
    plan = {
        "index": list(range(rows)),
        "slices": [[row % 10 * 2, row % 10 * 2 + 2] for row in range(rows)],
        "output_tokens": [4] * rows,
        "scheduled_s": [],
        **changes.pop("plan", {}),
    }
    chat = changes.get("endpoint") == "chat"
    values: dict[str, Any] = {
        "connection": connection,
        "endpoint": "completions",
        "arena": str(arena),
        "head": '{"messages":[{"role":"user","content":"' if chat else '{"prompt":"',
        "middle": '"}],"max_tokens":' if chat else '","max_tokens":',
        "tail": "}",
        "plan": Plan(**plan),
        "total": rows,
        "journal": str(folder / "journal.jsonl"),
        "concurrency": 0 if plan["scheduled_s"] else 1,
        **changes,
    }
    return Job(**values)


@dataclass
class Outcome:
    """What came of a job."""

    records: list[Ended]
    report: Report
    server: Scripted

    @property
    def record(self) -> Ended:
        (one,) = self.records
        return one


During = Callable[[LoadGenerator, Scripted], Coroutine[Any, Any, None]]


def bench(
    folder: Path,
    scripts: Sequence[Script],
    rows: int = 1,
    *,
    during: During | None = None,
    server: dict[str, Any] | None = None,
    connection: dict[str, Any] | None = None,
    before_start_s: float = 0.0,
    **changes: Any,
) -> Outcome:
    """Run a job in this process against a server with these scripts."""

    async def go() -> Outcome:
        async with Scripted(scripts, **(server or {})) as scripted:
            where = msgspec.structs.replace(scripted.connection, **(connection or {}))
            records: list[Ended] = []
            generator = LoadGenerator(make_job(folder, where, rows, **changes), records.append)
            await generator.prepare()
            await asyncio.sleep(before_start_s)
            aside = asyncio.ensure_future(during(generator, scripted)) if during else None
            report = await asyncio.wait_for(generator.run(time.perf_counter()), 20)
            if aside is not None:
                await aside
            for _ in range(200):  # until the server has seen the connections end
                if not scripted.open:
                    break
                await asyncio.sleep(0.01)
            return Outcome(records, report, scripted)

    return uvloop.run(go())
