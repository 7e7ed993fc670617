"""One point: prompts made, workers started, watched and stopped, the journal turned into a Run."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec

from inferometer.benchmark import assemble
from inferometer.benchmark.crew import Crew
from inferometer.benchmark.detect import Abilities, Server
from inferometer.benchmark.job import Command, Connection, Endpoint
from inferometer.benchmark.options import BenchOptions
from inferometer.benchmark.preparation import prepare
from inferometer.benchmark.progress import RECENT, Progress, Tail, Watch
from inferometer.benchmark.prompts import Tokenizer
from inferometer.benchmark.scrape import Scraper
from inferometer.errors import InputError
from inferometer.journal import Journal
from inferometer.records import device_memory
from inferometer.records.metrics import relative_half_width
from inferometer.records.run import Run, RunMeta
from inferometer.specs.workload import Workload
from inferometer.store import Store

LEAD_S = 0.2
"""From the word to the workers to second 0, so that all of them have heard it."""
FAILURES_IN_A_ROW = 10
"""Fewer do not make a server unreachable: it may only be slow after one bad answer."""
LOOK_S = 0.1
"""How often the rules for stopping are looked at."""
SILENT_S = 10.0
"""A worker that says nothing for so long hangs: it has a pulse twice a second."""
SHOW_S = 0.5
"""How often a live view is told."""


class Interrupt:
    """What a user's Ctrl-C asks for: before anything was sent to leave, then once to finish, twice to give up."""

    def __init__(self) -> None:
        self.asked = 0
        self.measuring = False
        """Whether requests are or have been sent, so that there is something to finish."""

    def ask(self) -> None:
        """Take in one more."""
        self.asked += 1


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All that one measurement depends on."""

    connection: Connection
    endpoint: Endpoint
    server: Server
    abilities: Abilities
    options: BenchOptions
    workload: Workload
    seed: int
    meta: RunMeta
    tokenizer: Tokenizer | None = None
    server_log: str | None = None
    place: tuple[int, int | None] = (1, 1)
    """Which of how many points, for the live view."""

    @property
    def label(self) -> str:
        """What sets this point apart in a sweep."""
        if self.workload.rate_per_s is not None:
            return f"{self.workload.rate_per_s:g} requests/s"
        return f"C = {self.workload.concurrency}" if self.workload.concurrency else "replay"


async def measure(point: Point, store: Store | None, interrupt: Interrupt, watch: Watch | None) -> Run:
    """Measure a point, keep it in the store, and return it.

    Raises:
        InputError: prompts that cannot be made, a worker that does not start, a store that cannot be written (what was
            measured then stays in its journal, which the error names).
    """
    with tempfile.TemporaryDirectory(prefix="inferometer-") as temporary:
        root = store.running if store else Path(temporary) / "running"
        journal = Journal.create(root, point.meta)
        kept = False
        try:
            run = await _Measurement(point, journal, Path(temporary), interrupt, watch).run()
            if store:
                _keep(store, run, journal)
            kept = True
            return run
        finally:
            # what was measured outlives whatever went wrong
            nothing = not any(file.stat().st_size for file in journal.folder.glob("requests-*.jsonl"))
            journal.close(remove=kept or nothing)


def _keep(store: Store, run: Run, journal: Journal) -> None:
    try:
        store.save(run)
    except (OSError, InputError) as why:
        reason = getattr(why, "strerror", None) or str(why)
        raise InputError.because(
            f"cannot write the store at {store.path}: {reason}; what was measured is in {journal.folder}, and "
            "`inferometer runs list` takes it in once there is room"
        ) from why


class _Measurement:
    """The state of one point while it runs."""

    def __init__(
        self, point: Point, journal: Journal, temporary: Path, interrupt: Interrupt, watch: Watch | None
    ) -> None:
        self.point, self.options = point, point.options
        self.journal, self.temporary = journal, temporary
        self.interrupt, self.watch = interrupt, watch
        self.partial = ""
        """Why the run was broken off; empty: it went as the options ask."""
        self.stopped = self.aborted = False
        self.told_s = 0.0
        """When the workers were last told to end, on `time.monotonic`."""
        self.shown_s = self.failing_since_s = 0.0
        self.succeeded = self.failed_then = self.seen_then = 0
        self.confident = False

    async def run(self) -> Run:
        """From nothing to a Run."""
        self.show("preparing")
        self.prepared = prepare(self.point, self.temporary / "prompts.bin")
        keep = None if self.options.confidence else RECENT
        self.tail = Tail([self.journal.requests(worker) for worker in range(len(self.prepared.plans))], keep)
        self.devices = [device_memory.query()]
        async with self.scraping() as self.scraper:
            await self.scraper.settled()
            await self.work()
            reports = self.crew.reports
            await self.scraper.settled(sum(report.ended - report.failed for report in reports))
        self.devices.append(device_memory.query())
        run = self.assembled()
        self.show("done")
        return run

    def scraping(self) -> Scraper:
        """What looks at the server's inside, and at its GPUs."""
        return Scraper(
            self.point.server.metrics_urls,
            self.journal.pages,
            connection=self.point.connection,
            extra_urls=self.options.gpu_metrics_urls,
            interval_s=self.options.scrape_interval_s,
        )

    async def work(self) -> None:
        """Have the workers send everything, and see them out."""
        jobs = self.prepared.jobs(self.point, self.journal)
        self.crew = await Crew.start(jobs, self.temporary)
        try:
            self.begin()
            while not await self.crew.wait(LOOK_S):
                # before the look, which calls a stranger's code: what was said meanwhile has been heard here
                self.crew.give_up(SILENT_S, self.told_s + self.patience_s if self.stopped else None)
                self.look()
        finally:
            await self.crew.dismiss()
        if self.crew.faults and not self.partial:
            self.partial = "; ".join(self.crew.faults)

    def begin(self) -> None:
        """Set second 0, a moment from now."""
        self.start = time.perf_counter() + LEAD_S
        self.started_unix_s = time.time() + LEAD_S
        self.scraper.start(self.start)
        meta = self.point.meta
        meta.request_rate_per_s = self.prepared.rate_per_s
        meta.started_unix_s, meta.client = self.started_unix_s, {"started_perf_counter_s": self.start}
        meta.server, meta.notes = assemble.server_facts(self.point), [*self.point.server.notes, *self.prepared.notes]
        self.journal.write_meta(meta)
        self.interrupt.measuring = True
        self.crew.tell(Command(start=self.start))

    @property
    def patience_s(self) -> float:
        """How long workers that were told to end may take."""
        return SILENT_S + (0.0 if self.aborted else self.options.drain_timeout_s)

    @property
    def now_s(self) -> float:
        """On the run's clock."""
        return time.perf_counter() - self.start

    def look(self) -> None:
        """See how it goes, stop what should be stopped, tell the live view."""
        if self.interrupt.asked > 1 and not self.aborted:
            self.aborted = self.stopped = True
            self.partial, self.told_s = "interrupted", time.monotonic()
            self.crew.tell(Command(abort=True))
        if not self.stopped and (enough := self.enough()) is not None:
            self.stopped, self.partial, self.told_s = True, enough, time.monotonic()
            self.crew.tell(Command(stop=True))
        if self.now_s - self.shown_s >= SHOW_S:
            self.shown_s = self.now_s
            if self.watch or self.options.confidence:
                self.tail.read()
            self.confident = bool(self.options.confidence) and self.known(self.options.confidence or 0.0)
            self.show(self.phase())

    def enough(self) -> str | None:
        """Why to send no more: empty where all that was asked is done, None to go on."""
        if self.interrupt.asked:
            return "interrupted"
        if self.failing():
            return f"given up: no request has succeeded for {self.options.give_up_after_s:g} s"
        now_s, ended = self.now_s, self.crew.pulse.ended
        if self.options.duration_s is not None and now_s >= self.options.duration_s:
            return ""
        if now_s < self.options.min_duration_s or ended < self.options.min_requests:
            return None
        if self.prepared.cycle and self.prepared.requests and ended >= self.prepared.requests:
            return ""
        return "" if self.confident else None

    def failing(self) -> bool:
        """Whether requests have failed one after the other, and none succeeded, for too long."""
        pulse = self.crew.pulse
        succeeded = pulse.ended - pulse.failed
        if succeeded > self.succeeded or not pulse.failed:
            self.succeeded, self.failed_then, self.failing_since_s = succeeded, pulse.failed, self.now_s
        in_a_row = pulse.failed - self.failed_then
        return in_a_row >= FAILURES_IN_A_ROW and self.now_s - self.failing_since_s > self.options.give_up_after_s

    def known(self, share: float) -> bool:
        """Whether every metric's mean is known to within so much; looked at again for every tenth more requests."""
        if self.confident or len(self.tail.seen) < 1.1 * self.seen_then:
            return self.confident
        self.seen_then = len(self.tail.seen)
        run = self.tail.run(after_s=self.options.warmup_s, after_requests=self.options.warmup_requests)
        widths = [relative_half_width(run, metric) for metric in self.options.confidence_metrics]
        return all(width is not None and width <= share for width in widths)

    def phase(self) -> str:
        """What a live view calls this time."""
        pulse, options = self.crew.pulse, self.options
        if self.stopped or (self.prepared.requests is not None and pulse.sent >= self.prepared.requests):
            return "draining"
        warming = pulse.sent < options.warmup_requests or self.now_s < options.warmup_s
        return "warming up" if warming else "measuring"

    def show(self, phase: str) -> None:
        """Tell the live view."""
        if self.watch is None:
            return
        point, points = self.point.place
        if phase in ("preparing", "done"):
            self.watch(Progress(label=self.point.label, phase=phase, point=point, points=points))
            return
        pulse, summary, gauges = self.crew.pulse, self.tail.summary(), self.scraper.gauges
        total = self.prepared.requests
        self.watch(
            Progress(
                label=self.point.label,
                phase=phase,
                time_s=max(self.now_s, 0.0),
                left_s=self.left_s(pulse.ended),
                total=total,
                sent=pulse.sent,
                ended=pulse.ended,
                failed=pulse.failed,
                in_flight=pulse.in_flight,
                output_tok_per_s=summary.output_tok_per_s if summary else None,
                ttft_p50_s=summary.ttft_s.p50 if summary else None,
                tpot_p50_s=summary.tpot_s.p50 if summary else None,
                running=gauges.get("running"),
                waiting=gauges.get("waiting"),
                kv_usage=gauges.get("kv_usage"),
                error=self.tail.last_error,
                point=point,
                points=points,
            )
        )

    def left_s(self, ended: int) -> float | None:
        """How much longer, by how it went so far."""
        now_s, total = self.now_s, self.prepared.requests
        by_time = self.options.duration_s and max(self.options.duration_s - now_s, 0.0)
        if not (total and ended) or now_s <= 0:
            return by_time
        by_count = max(now_s * (total / ended - 1), self.options.min_duration_s - now_s, 0.0)
        return by_count if by_time is None else min(by_time, by_count) if not self.prepared.cycle else by_time

    def assembled(self) -> Run:
        """The journal as a Run, with all that is known about it."""
        seen = assemble.Seen(
            reports=self.crew.reports,
            confident=self.confident,
            partial=self.partial,
            start_perf_s=self.start,
            started_unix_s=self.started_unix_s,
            clock_step_s=(time.time() - time.perf_counter()) - (self.started_unix_s - self.start),
            scrape_notes=self.scraper.notes,
            devices=self.devices,
        )
        return assemble.assembled(self.point, self.journal, self.prepared, seen)
