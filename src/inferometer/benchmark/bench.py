"""The front door of measuring: an endpoint and a workload in, a Run out.

`bench` measures one point. `Bench` is a server that has been looked at once and can be measured at many points; sweeps
and searches use it. The clock itself runs in worker processes (`worker`), which this process starts, watches and stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from inferometer.benchmark.detect import Abilities, Server, detect, probe
from inferometer.benchmark.job import Endpoint
from inferometer.benchmark.options import BenchOptions
from inferometer.benchmark.options import options as checked_options
from inferometer.benchmark.point import Interrupt, Point, measure
from inferometer.benchmark.progress import Watch
from inferometer.benchmark.prompts import Calibration, load_tokenizer
from inferometer.benchmark.target import parse_target, shown_url
from inferometer.errors import InputError
from inferometer.records.run import Run, RunMeta
from inferometer.specs.workload import Workload
from inferometer.store import Store

T = TypeVar("T")

ENDPOINTS = ("completions", "chat")


def bench(
    url: str,
    workload: Workload,
    model: str | None = None,
    endpoint: Endpoint = "completions",
    metrics_url: str | None = None,
    server_log: str | None = None,
    *,
    watch: Watch | None = None,
    **options: Any,
) -> Run:
    """Send a workload to an OpenAI-compatible server and record what became of every request.

    The run is kept in the store as it is measured: killed at any time, what was measured is there. Interrupted
    (Ctrl-C), it lets what is in flight end and returns what it has, named partial.

    Args:
        url: ``http://host:port``, with or without ``/v1``; ``https://``; ``unix:///path``.
        workload: a closed loop, an open loop, requests with their arrivals, a trace, or sessions (chat only).
        model: as the server names it; None: the one it serves.
        endpoint: ``completions`` or ``chat``.
        metrics_url: its Prometheus page; None: looked for beside the url.
        server_log: the file that the server writes its log to, on this machine.
        watch: called with a `Progress` about twice a second.
        options: see `BenchOptions`.

    Returns:
        A Run of kind ``measured``; ``meta.unfit`` says why it should not be trusted, ``meta.partial`` why it is not
        whole.

    Raises:
        InputError: an option, url or workload that is not allowed; a server that cannot be reached, does not serve the
            model, or refuses the kind of request.

    >>> bench("http://127.0.0.1:9", Workload.closed_loop(concurrency=1), store=False)  # where nobody listens
    Traceback (most recent call last):
    inferometer.errors.InputError: url: nothing answers at http://127.0.0.1:9/v1 (Connection refused); is it running?
    """
    return Bench(url, model, endpoint, metrics_url, server_log, watch, options).point(workload)


class Bench:
    """A server to be measured at one or more points: what it is and can is found out at the first.

    Raises:
        InputError: as `bench`.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        endpoint: Endpoint = "completions",
        metrics_url: str | None = None,
        server_log: str | None = None,
        watch: Watch | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if endpoint not in ENDPOINTS:
            raise InputError("endpoint", endpoint, "'completions' or 'chat'")
        if server_log is not None and not Path(server_log).is_file():
            raise InputError("server_log", server_log, "a log file that exists")
        self.options: BenchOptions = checked_options(options or {})
        headers = self.options.headers
        self.connection = parse_target(
            url,
            api_key=self.options.api_key,
            headers=headers.items() if isinstance(headers, dict) else headers,
            verify=self.options.verify,
            ca_file=self.options.ca_file,
            connect_timeout_s=self.options.connect_timeout_s,
            timeout_s=self.options.timeout_s,
            idle_timeout_s=self.options.idle_timeout_s,
        )
        self.model, self.endpoint = model, endpoint
        self.metrics_url, self.server_log, self.watch = metrics_url, server_log, watch
        self.store = None if self.options.store is False else Store(self.options.store)
        self.tokenizer = load_tokenizer(self.options.tokenizer) if self.options.tokenizer else None
        self._found: tuple[Server, Abilities] | None = None

    def point(self, workload: Workload, *, repeat: int = 0, number: int = 0, points: int | None = 1) -> Run:
        """Measure one point and keep it. ``number`` of ``points`` is for the live view."""
        seed, place = self.seed(number), (number + 1, points)
        return _finished(lambda interrupt: self._point(workload, seed, repeat, place, interrupt))

    def server(self, workload: Workload) -> Server:
        """What answers, looked for once."""
        return _finished(lambda interrupt: self._looked(workload))[0]

    async def _point(
        self, workload: Workload, seed: int, repeat: int, place: tuple[int, int | None], interrupt: Interrupt
    ) -> Run:
        server, abilities = await self._looked(workload)
        point = Point(
            connection=self.connection,
            endpoint=self.endpoint,
            server=server,
            abilities=abilities,
            options=self.options,
            workload=workload,
            seed=seed,
            meta=self.meta(workload, seed, self.key(workload, repeat, server.model), server),
            tokenizer=self.tokenizer,
            server_log=self.server_log,
            place=place,
        )
        return await measure(point, self.store, interrupt, self.watch)

    async def _looked(self, workload: Workload) -> tuple[Server, Abilities]:
        """What `_look` finds, looked for once."""
        if self._found is None:
            self._found = await self._look(workload)
        return self._found

    async def _look(self, workload: Workload) -> tuple[Server, Abilities]:
        """What the server is, and what it takes."""
        options = self.options
        urls = None if self.metrics_url is None else [self.metrics_url]
        server = await detect(self.connection, self.model, metrics_urls=urls)
        own = self.tokenizer.calibration() if self.tokenizer else Calibration(kind="words")
        abilities = await probe(
            self.connection,
            server.model,
            self.endpoint,
            max_model_len=server.max_model_len,
            token_ids=workload.kind != "sessions" and not options.dataset and not options.tokenizer,
            stream=options.stream,
            ignore_eos=options.ignore_eos,
            words=own.words,
            extra_body=options.extra_body,
            cache_salt=options.cache_salt and "probe",
        )
        if self.tokenizer and not abilities.calibrated:
            abilities = msgspec.structs.replace(abilities, calibration=own)
        return server, abilities

    def seed(self, number: int) -> int:
        """The seed of the point of this number: one after the other from the one given, else a fresh one."""
        return secrets.randbits(31) if self.options.seed is None else self.options.seed + number

    def meta(self, workload: Workload, seed: int, key: str, server: Server) -> RunMeta:
        """What is known before the first request."""
        from inferometer import __version__

        now = datetime.now(UTC)
        cap = self.options.max_concurrency if workload.concurrency is None else None
        return RunMeta(
            kind="measured",
            id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
            name=self.options.name,
            tool="inferometer bench",
            tool_version=__version__,
            created=now.isoformat(timespec="seconds"),
            seed=seed,
            model=server.model,
            chip=self.options.chip,
            arm=self.options.arm,
            slo=self.options.slo,
            workload=self._workload(workload),
            concurrency=workload.concurrency or cap,
            request_rate_per_s=workload.rate_per_s or _rate_of_arrivals(workload),
            source=shown_url(self.connection),
            source_sha256=key,
            partial="killed",
        )

    def _workload(self, workload: Workload) -> dict[str, Any]:
        """What is sent and when it stops: the workload, and the options that are not at their defaults."""
        default, described = BenchOptions(), workload.describe()
        if self.options.dataset:
            del described["prompt_tokens"], described["output_tokens"]
        values = {name: getattr(self.options, name) for name in (*_WHAT_IS_SENT, *_WHEN_IT_STOPS)}
        changed = {name: value for name, value in values.items() if value != getattr(default, name)}
        return {**described, "endpoint": self.endpoint, **changed}

    def key(self, workload: Workload, repeat: int, model: str) -> str:
        """A hash of what is asked: the server's address, the model it serves, workload, options, number of repeat."""
        names = (*_WHAT_IS_SENT, *_WHEN_IT_STOPS, "seed", "tokenizer", "arm", "chip")
        dataset = self.options.dataset
        asked = {
            "url": shown_url(self.connection),
            "model": model,
            "endpoint": self.endpoint,
            "workload": workload.describe(),
            "options": {name: getattr(self.options, name) for name in names},
            "dataset": hashlib.sha256(Path(dataset).read_bytes()).hexdigest() if dataset else None,
            "repeat": repeat,
        }
        return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()

    def kept(self, workload: Workload, repeat: int) -> Run | None:
        """The last run of this very point in the store that is whole and not unfit; None where there is none."""
        if self.store is None:
            return None
        for row in reversed(self.store.list(source_sha256=self.key(workload, repeat, self.server(workload).model))):
            run = self.store.load(row["id"])
            if not run.meta.partial and not run.meta.unfit:
                return run
        return None


_WHAT_IS_SENT = (
    "dataset",
    "dataset_output_tokens",
    "shared_prefix_len",
    "prefix_reuse",
    "cache_salt",
    "ignore_eos",
    "stream",
    "extra_body",
    "max_concurrency",
    "ramp_up_s",
    "warmup_requests",
    "warmup_s",
)
_WHEN_IT_STOPS = ("duration_s", "min_duration_s", "min_requests", "confidence", "confidence_metrics")


def level_of(run: Run) -> float | None:
    """What a sweep varies: the request rate of an open loop, the concurrency of a closed one."""
    rate = run.meta.request_rate_per_s
    return rate if rate is not None else run.meta.concurrency


def _rate_of_arrivals(workload: Workload) -> float | None:
    """The mean rate of requests given with their arrivals; None for one request, or all at once."""
    times = workload.arrival_s
    if times is None or len(times) < 2 or not np.ptp(times) > 0:
        return None
    return float((len(times) - 1) / np.ptp(times))


def _finished(work: Callable[[Interrupt], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine to its end; the first Ctrl-C asks it to finish, the second to give up.

    In a notebook, where a loop runs in this thread already, it runs in a thread of its own, without signals.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_with_signals(work))
    interrupt = Interrupt()
    return _in_thread(lambda: asyncio.run(work(interrupt)), interrupt)


async def _with_signals(work: Callable[[Interrupt], Coroutine[Any, Any, T]]) -> T:
    interrupt = Interrupt()
    task = asyncio.create_task(work(interrupt))

    def asked() -> None:
        interrupt.ask()
        if not interrupt.measuring:  # nothing was sent, so there is nothing to finish
            task.cancel()

    with _caught(asked):
        try:
            return await task
        except asyncio.CancelledError:
            if interrupt.asked:
                raise KeyboardInterrupt from None
            raise


@contextlib.contextmanager
def _caught(asked: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call this, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    caught = (signal.SIGINT, signal.SIGTERM)
    for each in caught:
        loop.add_signal_handler(each, asked)
    try:
        yield
    finally:
        for each in caught:
            loop.remove_signal_handler(each)


def _in_thread(work: Callable[[], T], interrupt: Interrupt) -> T:
    found: list[T] = []
    failed: list[BaseException] = []

    def target() -> None:
        try:
            found.append(work())
        except BaseException as why:
            failed.append(why)

    thread = threading.Thread(target=target, name="inferometer-bench")
    thread.start()
    while thread.is_alive():
        try:
            thread.join(timeout=0.2)
        except KeyboardInterrupt:
            interrupt.ask()
    if failed:
        raise failed[0]
    return found[0]
