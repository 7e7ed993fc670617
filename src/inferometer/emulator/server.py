"""The emulator's HTTP server: an engine a replica, and the routes of vLLM's OpenAI server that clients use.

Read `Emulator.complete` for a request's way: refused or read, dealt to a replica, its tokens written as they fall due.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import hmac
import itertools
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvloop
from aiohttp import web

from inferometer import __version__
from inferometer.emulator import startup_log, text
from inferometer.emulator.answers import Body, FaultyStream, Stream
from inferometer.emulator.asks import Ask, Limits, Outputs, Refusal, bad, read_ask, read_object
from inferometer.emulator.clock import RealClock
from inferometer.emulator.engine import Engine
from inferometer.emulator.faults import Fate, Faults, Fortune, parse_faults
from inferometer.emulator.metrics import Meter, Page, Replica
from inferometer.emulator.options import Options
from inferometer.emulator.scheduler import Call, LiveScheduler
from inferometer.emulator.wire import Wire
from inferometer.errors import InputError
from inferometer.records.metrics import Stat
from inferometer.sim.rules import SUBTICKS, Rules
from inferometer.sim.simulate import LONE_PREFILL_UNCAPPED, fitting_memory
from inferometer.specs.engine import resolve_version
from inferometer.steptime.costs import sheet_costs
from inferometer.steptime.kv_layout import release
from inferometer.steptime.memory import Memory, pool_blocks

MOST_BODY_BYTES = 1 << 30
BACKLOG = 4096
TRUTHS = 4096
"""Ended requests that ``/emulator/truth`` remembers."""
EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
TRUTH_SCHEMA = "inferometer/emulator-truth/1"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def live_rules(options: Options, found: Memory) -> Rules:
    """The scheduler's limits, as `sim.simulate` has them.

    A pool of several kinds of blocks is stated in blocks of a request of ``typical_tokens``, and holds the longest one.
    """
    dep, size = options.deployment, options.deployment.resolved().block_size
    blocks = pool_blocks(dep, found, options.typical_tokens)
    if blocks != found.num_gpu_blocks:
        blocks = max(blocks, -(-found.max_model_len // size) + 1)
    rules = Rules.from_flags(dep.resolved(), max(2, blocks))
    return msgspec.structs.replace(rules, uncapped_lone_prefill=release(dep) >= LONE_PREFILL_UNCAPPED)


def cache_config(options: Options, found: Memory) -> dict[str, str]:
    """Labels of ``vllm:cache_config_info``."""
    flags = options.deployment.resolved()
    values = {
        "block_size": found.block_size,
        "cache_dtype": options.deployment.kv_cache_dtype,
        "enable_prefix_caching": flags.enable_prefix_caching,
        "gpu_memory_utilization": flags.gpu_memory_utilization,
        "kv_cache_max_concurrency": found.max_concurrency,
        "kv_cache_memory_bytes": found.kv_pool_bytes,
        "kv_cache_size_tokens": found.kv_cache_tokens,
        "num_gpu_blocks": found.num_gpu_blocks,
        "num_gpu_blocks_override": flags.num_gpu_blocks_override,
        # no engine has this label: by it a score knows that no chip was measured
        "emulated_by": f"inferometer {__version__}",
    }
    return {name: str(value) for name, value in values.items()}


class Emulator:
    """Everything that serves. Made inside a running event loop.

    Raises:
        DoesNotFitError: the deployment leaves no KV cache.
        InputError: what `Options`, faults or output lengths get wrong; a model without its layers.
    """

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        dep, self.options, self.loop = options.deployment, options, loop
        self.found = fitting_memory(dep)
        self.faults: Faults = parse_faults(options.faults)
        self.fortune = Fortune(self.faults, options.seed)
        self.outputs = Outputs(options.output_tokens, options.seed)
        start_s = time.monotonic()
        self.clocks = [RealClock(loop, options.time_scale, start_s) for _ in range(dep.data_parallel_size)]
        self.engines = self._engines(live_rules(options, self.found))
        self.deal = itertools.cycle(range(len(self.engines)))
        config = cache_config(options, self.found)
        replicas = [Replica(engine.scheduler, engine.meter, config) for engine in self.engines]
        self.page = Page(options.model_name, release(dep), replicas)
        self.started_s = time.monotonic()
        self.created_s = int(time.time())
        self.numbers = itertools.count()
        self.truths: deque[tuple[str, int, Call, array.array[int]]] = deque(maxlen=TRUTHS)
        self.limits = self._limits()

    def _engines(self, rules: Rules) -> list[Engine]:
        dep, scale = self.options.deployment, self.options.time_scale
        costs, caching = sheet_costs(dep), dep.resolved().enable_prefix_caching
        return [
            Engine(LiveScheduler(rules, costs), clock, Meter(scale, self.found.max_model_len, caching))
            for clock in self.clocks
        ]

    def _limits(self) -> Limits:
        rules = self.engines[0].scheduler.rules
        return Limits(
            model=self.options.model_name,
            max_model_len=self.found.max_model_len,
            block_size=rules.block_size,
            blocks=rules.blocks,
            template_tokens=self.options.template_tokens,
        )

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[self.guard])
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/ping", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/emulator/truth", self.truth)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        return app

    def close(self) -> None:
        """Give timers back."""
        for clock in self.clocks:
            clock.close()

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The key, where one is asked for, and refusals as answers."""
        try:
            if request.path.startswith("/v1"):
                self.check_key(request)
            return await handler(request)
        except Refusal as refusal:
            return json_response(refusal.body(), refusal.status)
        except web.HTTPException as error:
            return json_response(msgspec.json.encode({"detail": error.reason}), error.status)

    def check_key(self, request: web.Request) -> None:
        """Refuse who does not have the key."""
        given = request.headers.get("Authorization", "")
        wanted = f"Bearer {self.options.api_key}"
        pair = [text.encode("utf-8", "surrogateescape") for text in (given, wanted)]
        if self.options.api_key and not hmac.compare_digest(*pair):
            raise Refusal(401, "AuthenticationError", "Unauthorized: give the key as a bearer token.")

    def check_started(self) -> None:
        """Refuse while the server is made to start slowly."""
        if time.monotonic() - self.started_s < self.faults.slow_start_s:
            raise Refusal(503, "ServiceUnavailableError", "The server is starting.")

    # ------------------------------------------------------------------------------------------------ small routes

    async def health(self, request: web.Request) -> web.Response:
        """200 once started."""
        self.check_started()
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        """The engine's version."""
        dep = self.options.deployment
        return json_response(msgspec.json.encode({"version": resolve_version(dep.engine, dep.engine_version)}))

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus's text."""
        return web.Response(body=self.page.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        model = {
            "id": self.options.model_name,
            "object": "model",
            "created": self.created_s,
            "owned_by": "vllm",
            "root": self.options.deployment.model.name,
            "parent": None,
            "max_model_len": self.found.max_model_len,
        }
        return json_response(msgspec.json.encode({"object": "list", "data": [model]}))

    async def tokenize(self, request: web.Request) -> web.Response:
        """Ids of a text's or a chat's words."""
        body = read_object(await request.read())
        prompt, messages = body.get("prompt"), body.get("messages")
        if isinstance(prompt, str):
            tokens = text.tokenize(prompt, self.options.deployment.model.vocab_size or 2**31)
        elif isinstance(messages, list):
            tokens = [0] * text.chat_tokens(messages, self.options.template_tokens)
        else:
            raise bad("give a prompt or messages", "prompt")
        count = {"count": len(tokens), "max_model_len": self.found.max_model_len}
        return json_response(msgspec.json.encode({**count, "tokens": tokens, "token_strs": None}))

    async def detokenize(self, request: web.Request) -> web.Response:
        """A text of as many tokens."""
        tokens = read_object(await request.read()).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise bad("tokens must be a list of whole numbers", "tokens")
        return json_response(msgspec.json.encode({"prompt": text.detokenize(tokens)}))

    async def truth(self, request: web.Request) -> web.Response:
        """When each of the last requests' tokens was due, in seconds of this machine's `time.monotonic`."""
        with_tokens = request.query.get("tokens") == "1"
        late = [value for engine in self.engines for value in engine.meter.recent_late_s]
        stat = Stat.of(late)
        document = {
            "schema": TRUTH_SCHEMA,
            "time_scale": self.options.time_scale,
            "late_s": {
                "n": stat.n,
                "p50": stat.p50,
                "p99": stat.p99,
                "max": max(late, default=None),
            },
            "requests": [self._truth(*row, with_tokens) for row in self.truths],
        }
        return json_response(msgspec.json.encode(document))

    def _truth(self, id: str, replica: int, call: Call, tokens: array.array[int], with_tokens: bool) -> dict[str, Any]:
        def due_s(ticks: int) -> float:
            return self.engines[replica].clock.due_s(ticks * SUBTICKS)

        row: dict[str, Any] = {"id": id, "replica": replica, "prompt_tokens": call.prompt, "output_tokens": call.output}
        row |= {"arrival_s": due_s(call.arrival), "admitted_s": due_s(call.admitted), "preemptions": call.preemptions}
        row |= {"first_token_s": due_s(call.first), "last_token_s": due_s(call.last)}
        return row | ({"token_s": [due_s(tick) for tick in tokens]} if with_tokens else {})

    # ------------------------------------------------------------------------------------------------ completions

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """``/v1/completions``."""
        return await self.complete(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``/v1/chat/completions``."""
        return await self.complete(request, chat=True)

    async def complete(self, request: web.Request, chat: bool) -> web.StreamResponse:
        """One request, from body to last byte."""
        self.check_started()
        raw = await request.read()
        fate = self.fortune.next()
        if fate.status != 200:
            return failed(fate.status)
        ask = read_ask(raw, chat, self.limits, self.outputs)
        if self.faults.no_usage:
            ask = msgspec.structs.replace(ask, include_usage=False, continuous_usage=False)
        replica = next(self.deal)
        id = f"{'chatcmpl' if chat else 'cmpl'}-{self.options.seed:x}-{next(self.numbers):x}"
        wire = Wire(id, self.options.model_name, int(time.time()), chat)
        answer = self.stream if ask.stream else self.body
        return await answer(request, ask, wire, replica, fate)

    async def stream(self, request: web.Request, ask: Ask, wire: Wire, replica: int, fate: Fate) -> web.StreamResponse:
        """Send chunks as tokens fall due."""
        response = web.StreamResponse(headers=EVENT_STREAM)
        chunked = request.version >= (1, 1)
        if chunked:
            response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        done: asyncio.Future[Call] = self.loop.create_future()
        if self.faults == Faults():
            sink = Stream(transport, wire, ask, done, chunked)
        else:
            sink = FaultyStream(transport, wire, ask, done, chunked, self.faults, fate)
        await self.served(ask, wire, replica, sink, done)
        return response

    async def body(self, request: web.Request, ask: Ask, wire: Wire, replica: int, fate: Fate) -> web.StreamResponse:
        """Answer at the end, in one piece."""
        done: asyncio.Future[Call] = self.loop.create_future()
        await self.served(ask, wire, replica, Body(done), done)
        if self.faults.latency_s:
            await asyncio.sleep(self.faults.latency_s)
        with_usage = not self.faults.no_usage
        return json_response(wire.whole(ask.prompt_tokens, ask.output_tokens, ask.reason, with_usage))

    async def served(self, ask: Ask, wire: Wire, replica: int, sink: Stream | Body, done: asyncio.Future[Call]) -> None:
        """Wait until the engine is through with it; a client that leaves takes it off the engine."""
        engine = self.engines[replica]
        call = engine.submit(ask.prompt_tokens, ask.output_tokens, sink, ask.reason, ask.max_tokens)
        try:
            await done
        except asyncio.CancelledError:
            engine.abort(call)
            raise
        self.truths.append((wire.id, replica, call, array.array("q", call.tokens)))
        call.tokens = []


def json_response(body: bytes, status: int = 200) -> web.Response:
    """A body that is JSON already."""
    return web.Response(body=body, status=status, content_type="application/json")


def failed(status: int) -> web.Response:
    """An injected failure."""
    if status == 429:
        response = json_response(Refusal(429, "RateLimitError", "Injected: too many requests.").body(), 429)
        response.headers["Retry-After"] = "1"
        return response
    return json_response(Refusal(status, "InternalServerError", "Injected: internal error.").body(), status)


# ---------------------------------------------------------------- running it


async def serve_until(options: Options, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serve until ``stop`` is set; ``ready`` is told the address once it listens.

    Raises:
        InputError: the address cannot be listened on.
    """
    emulator = Emulator(options, asyncio.get_running_loop())
    log = startup_log.Log(options)
    runner = web.AppRunner(emulator.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        address = await listen(runner, options)  # first: an address that is taken is the only thing to say
        startup_log.start(log, options, emulator.found)
        startup_log.ready(log, address)
        gc.freeze()  # what is here stays: later collections need not look at it
        ready(address)
        await log_until(stop, emulator, log)
        log.plain("INFO:     Shutting down")
    finally:
        await runner.cleanup()
        if options.unix_socket:
            with contextlib.suppress(OSError):
                os.unlink(options.unix_socket)
        emulator.close()
        log.close()


async def listen(runner: web.AppRunner, options: Options) -> str:
    """Listen, and say where: ``http://host:port``, or ``unix:///path``."""
    site: web.BaseSite
    if options.unix_socket:
        _refuse_taken(options.unix_socket)
        site = web.UnixSite(runner, options.unix_socket, backlog=BACKLOG)
    else:
        site = web.TCPSite(runner, options.host, options.port, backlog=BACKLOG)
    try:
        await site.start()
    except OSError as error:
        where = options.unix_socket or f"{options.host}:{options.port}"
        why = os.strerror(error.errno) if error.errno else error
        raise InputError.because(f"cannot listen on {where}: {why}") from error
    if options.unix_socket:
        return f"unix://{os.path.abspath(options.unix_socket)}"
    port = runner.addresses[0][1]
    return f"http://[{options.host}]:{port}" if ":" in options.host else f"http://{options.host}:{port}"


def _refuse_taken(path: str) -> None:
    """Refuse a socket on which a server listens: aiohttp would take it away from it without a word."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(path)
        raise InputError("unix_socket", path, "a socket on which no other server listens")


async def log_until(stop: asyncio.Event, emulator: Emulator, log: startup_log.Log) -> None:
    """Every ten seconds, a line of each engine."""
    lines = [startup_log.Interval(i, engine.scheduler) for i, engine in enumerate(emulator.engines)]
    while True:
        try:
            await asyncio.wait_for(stop.wait(), startup_log.INTERVAL_S)
            return
        except TimeoutError:
            for interval, engine in zip(lines, emulator.engines, strict=True):
                meter = engine.meter
                line = interval.line(meter.prompt_tokens, meter.generation_tokens, time.monotonic())
                if line:
                    log.info("APIServer", "loggers.py:1", line)


def run(options: Options, owner: int | None = None) -> None:
    """Serve until SIGINT or SIGTERM, in this process; prints the address on standard output once it listens.

    Args:
        options: what to emulate and where.
        owner: a descriptor whose end of file stops the server too (a parent's pipe).

    Raises:
        DoesNotFitError: the deployment leaves no KV cache.
        InputError: see `Options`, `Emulator` and `listen`.
    """
    uvloop.run(_main(options, owner))


async def _main(options: Options, owner: int | None) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    if owner is not None:
        loop.add_reader(owner, _watch, loop, owner, stop)
    await serve_until(options, stop, lambda address: print(address, flush=True))


def _watch(loop: asyncio.AbstractEventLoop, owner: int, stop: asyncio.Event) -> None:
    """Stop once whoever started this process has gone."""
    if not os.read(owner, 4096):
        loop.remove_reader(owner)
        stop.set()
