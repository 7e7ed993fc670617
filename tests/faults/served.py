"""What the fault tests share: a server in a thread that the whole of ``bench`` can be run against, and a way from what
the load generator recorded to a Run as ``bench`` makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

import inferometer as im
from inferometer.benchmark import assemble
from inferometer.benchmark.detect import Abilities, Server
from inferometer.benchmark.job import Connection, Ended, Report
from inferometer.benchmark.loadgen import LoadGenerator
from inferometer.benchmark.options import options as bench_options
from inferometer.benchmark.point import Point
from inferometer.benchmark.prompts import Calibration
from inferometer.benchmark.worker import Journal as Lines
from inferometer.journal import Journal
from inferometer.records.run import Run, RunMeta
from unit.benchmark.scripted import DONE, Script, Scripted, Seen, bench, make_job, plain, stream, text, usage

PROBE_TOKENS = 2
"""A probe asks for so many tokens; the loads of these tests never do."""
MODEL = "mock"


def reply(seen: Seen, before_s: float = 0.0, pause_s: float = 0.0, prompt_tokens: int | None = None) -> list[Any]:
    """A completion of as many tokens as are asked for, with usage: the first after ``before_s``, then one a pause."""
    count = int(seen.body["max_tokens"])
    prompt = seen.body.get("prompt", "")
    tokens = prompt_tokens or (len(prompt) if isinstance(prompt, list) else len(prompt.split()))
    events = [text(" the") for _ in range(count - 1)] + [text(" the", "length")]
    return [before_s, *stream(*events, usage(tokens, count), DONE, pause_s=pause_s)]


Answer = Callable[["Served", Seen], Script | Awaitable[Script]]


class Served(Scripted):
    """A server in a thread of its own: it lists its model, answers probes at once, and requests as ``answer`` says.

    ``answer`` may be a coroutine function, which is awaited before the script it gives is played. With ``pages`` it has
    a vLLM page of metrics: what runs is what is between the start of ``answer`` and the last byte, unless ``answer``
    moves ``waiting`` and ``running`` itself (``counts=False``).
    """

    def __init__(self, answer: Answer = lambda served, seen: reply(seen), *, pages: bool = False, counts: bool = True):
        super().__init__([])
        self.answer, self.pages, self.counts = answer, pages, counts
        self.asked: list[Seen] = []
        """The load's requests, without the probes."""
        self.running = self.waiting = 0
        self.counters = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "request_success", "prefix_cache_queries", "prefix_cache_hits"), 0
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Served:
        ready = threading.Event()

        async def serve() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            async with self:
                ready.set()
                await self._stop.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self._thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await super()._serve(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        seen = Seen(time.perf_counter(), head[0], headers, json.loads(body) if body else None, number)
        if method == "GET":
            return await self._play(self._page(path), seen, reader, writer)
        if seen.body["max_tokens"] == PROBE_TOKENS:
            return await self._play(reply(seen), seen, reader, writer)
        return await self._load(seen, reader, writer)

    async def _load(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.asked.append(seen)
        self.running += self.counts
        try:
            script = self.answer(self, seen)
            script = await script if inspect.isawaitable(script) else script
            return await self._play(script, seen, reader, writer)
        finally:
            self.running -= self.counts
            prompt = seen.body.get("prompt", "")
            self.counters["prompt_tokens"] += len(prompt)
            self.counters["generation_tokens"] += int(seen.body["max_tokens"])
            self.counters["request_success"] += 1

    def _page(self, path: str) -> Script:
        if path.endswith("/models"):
            return plain(200, {"object": "list", "data": [{"id": MODEL, "max_model_len": 131072}]})
        if path == "/metrics" and self.pages:
            return plain(200, self.metrics().encode(), content_type="text/plain; version=0.0.4")
        return plain(404, {"error": {"message": "not found"}})

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{MODEL}"}}'
        gauges = {"num_requests_running": self.running, "num_requests_waiting": self.waiting}
        lines = [f"# TYPE vllm:{name} gauge\nvllm:{name}{label} {value}" for name, value in gauges.items()]
        counters = self.counters.items()
        lines += [f"# TYPE vllm:{name} counter\nvllm:{name}_total{label} {value}" for name, value in counters]
        return "\n".join(lines) + "\n"


class Measured(msgspec.Struct):
    """A run of the load generator in this process, and what it was made of."""

    run: Run
    records: list[Ended]
    report: Report

    @property
    def summary(self) -> im.Summary:
        return self.run.summary()

    @property
    def row(self) -> dict[str, Any]:
        (row,) = self.run.requests.to_dicts()
        return row

    def says(self, *words: str) -> bool:
        """Whether one note of the run has all these words."""
        return any(all(word in note for word in words) for note in self.run.meta.notes)


def scripted(
    folder: Path,
    scripts: Sequence[Script],
    rows: int = 1,
    *,
    meta: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Measured:
    """The load generator against a server of scripts, byte for byte."""
    outcome = bench(folder, scripts, rows, **changes)
    how = _how(changes, meta)
    return Measured(_assembled(folder, outcome.records, outcome.report, how, options), outcome.records, outcome.report)


def driven(
    folder: Path,
    port: int,
    rows: int,
    *,
    meta: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Measured:
    """The load generator against a server that runs elsewhere on this machine."""

    async def go() -> tuple[list[Ended], Report]:
        records: list[Ended] = []
        connection = Connection(host="127.0.0.1", port=port)
        generator = LoadGenerator(make_job(folder, connection, rows, **changes), records.append)
        await generator.prepare()
        return records, await asyncio.wait_for(generator.run(time.perf_counter()), 30)

    records, report = uvloop.run(go())
    return Measured(_assembled(folder, records, report, _how(changes, meta), options), records, report)


def _how(changes: dict[str, Any], meta: dict[str, Any] | None) -> dict[str, Any]:
    """What the meta says of the load."""
    open_loop = bool(changes.get("plan", {}).get("scheduled_s"))
    users = changes.get("max_concurrency") if open_loop else changes.get("concurrency", 1)
    return {"concurrency": users, **(meta or {})}


def _assembled(
    folder: Path, records: list[Ended], report: Report, meta: dict[str, Any], options: dict[str, Any] | None
) -> Run:
    """The records written as a worker writes them, and read as ``bench`` reads them."""
    number = len(list(folder.glob("running/*")))
    meta = {"workload": dict(options or {}), **meta}  # as `Bench.meta` records the options that it was sent with
    journal = Journal.create(folder / "running", RunMeta(kind="measured", id=f"run-{number}", **meta))
    lines = Lines(str(journal.requests(0)))
    for record in records:
        lines.write(record)
    lines.close()
    point = Point(
        connection=Connection(host="127.0.0.1", port=1),
        endpoint="completions",
        server=Server(engine="openai", model=MODEL),
        abilities=_ABLE,
        options=bench_options(options or {}),
        workload=im.Workload.closed_loop(concurrency=1, requests=1, prompt_tokens=1, output_tokens=1),
        seed=0,
        meta=RunMeta(kind="measured", id=f"run-{number}", **meta),
    )
    seen = assemble.Seen(reports=[report], partial="", start_perf_s=0.0, started_unix_s=0.0)
    run = assemble.assembled(point, journal, _NOTHING_SAID, seen)
    journal.close(remove=False)
    return run


_ABLE = Abilities(
    takes_token_ids=True,
    gives_usage=True,
    takes_usage_option=True,
    takes_ignore_eos=True,
    takes_temperature=True,
    max_tokens_key="max_tokens",
    calibration=Calibration(kind="ids"),
    calibrated=True,
    probes=0,
    probe_prompt_tokens=0,
    probe_output_tokens=0,
)
_NOTHING_SAID: Any = type("NothingSaid", (), {"notes": []})
