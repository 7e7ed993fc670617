"""The server's ``/metrics`` while the benchmark runs: pages at an interval, on the clock of the requests.

A page is appended to the journal as it comes, after a line ``# ts UNIX PERF_COUNTER`` that says when (the middle
between asking and having it). What several addresses answered to one look is one page: the replicas of a server first,
whose series are then summed, and exporters of GPU telemetry after them. Nothing here raises into the run: what fails is
counted, and said in `Scraper.notes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import aiohttp

from inferometer.benchmark.detect import is_prometheus, reason
from inferometer.benchmark.job import Connection
from inferometer.benchmark.target import open_session, same_server, veil
from inferometer.journal import read_pages as read_pages
from inferometer.records.prometheus import Page, gauges_now, parse_page

SETTLE_S = 3.0
"""So long `Scraper.settled` waits for the server to come to rest."""
_POLL_S = 0.1
_TIMEOUT_S = 5.0
_ACCEPT = {"Accept": "text/plain;version=0.0.4"}


class _Failed(Exception):
    """A page that could not be had; says why."""


class Scraper:
    """Pages of ``urls`` into the file ``journal``, as an async context manager.

    ``urls``: the replicas of one server; where any of them fails, there is no page, so that sums do not jump.
    ``extra_urls``: exporters of GPU telemetry; where one fails, the page lacks it. ``connection``: the server that is
    measured, whose headers go to addresses of its own only. Without ``urls`` and ``extra_urls`` nothing is done.
    """

    def __init__(
        self,
        urls: Sequence[str],
        journal: str | os.PathLike[str],
        *,
        connection: Connection,
        extra_urls: Sequence[str] = (),
        interval_s: float = 1.0,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.urls, self.extra_urls = tuple(urls), tuple(extra_urls)
        self.journal, self.connection = os.fspath(journal), connection
        self.interval_s, self.timeout_s = interval_s, timeout_s
        self.gauges: dict[str, float] = {}
        """``running``, ``waiting``, ``kv_usage`` and ``generation_tokens`` of the latest page."""
        self.pages = 0
        """Written to the journal."""
        self.failures = 0
        """Looks that gave no page, or not all of it."""
        self._why: dict[str, int] = {}
        self._remarks: list[str] = []
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._task: asyncio.Task[None] | None = None
        self._finished_before: float | None = None
        self._disk_failed = False

    async def __aenter__(self) -> Self:
        """Open what is asked through; nothing is asked yet."""
        for elsewhere in (False, True):
            self._sessions[elsewhere] = open_session(self.connection, timeout_s=self.timeout_s, elsewhere=elsewhere)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop looking."""
        await self.stop()
        for session in self._sessions.values():
            await session.close()

    @property
    def notes(self) -> list[str]:
        """What the reader of the run has to know."""
        failed = [
            f"/metrics: {count} of {self.pages + self.failures} looks failed: {why}" for why, count in self._why.items()
        ]
        return [*self._remarks, *failed]

    def start(self, start: float | None = None) -> None:
        """Look every ``interval_s`` from the `time.perf_counter` value ``start`` on (None: now), until `stop`."""
        if self._task is None and (self.urls or self.extra_urls):
            self._task = asyncio.create_task(self._loop(time.perf_counter() if start is None else start))

    async def stop(self) -> None:
        """Look no more. A look under way is dropped."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def once(self) -> str | None:
        """One page now, into the journal; its text, or None where it failed."""
        found = await self._look()
        if found is not None:
            self._append(*found)
        return found[2] if found else None

    async def settled(self, expected_requests: int | None = None, *, timeout_s: float = SETTLE_S) -> bool:
        """A boundary page, before the first request and after the last: once the server is at rest.

        It is at rest when nothing runs or waits and no counter has changed between two looks, and when it has finished
        ``expected_requests`` since the first boundary page, where it counts them. Periodic looks end first. Of the
        pages seen meanwhile only the last goes into the journal. False, and a note, where the server was not at rest
        within ``timeout_s``: counters then hold other work, or lack some.
        """
        await self.stop()
        if not self.urls:
            await self.once()
            return True
        until, before, rests = time.perf_counter() + timeout_s, None, False
        while True:
            found = await self._look()
            page = parse_page(found[2]) if found else None
            rests = page is not None and _counted(page) == before and self._at_rest(page, expected_requests)
            if rests or time.perf_counter() + _POLL_S > until:
                break
            before = page and _counted(page)
            await asyncio.sleep(_POLL_S)
        if found is None or page is None:
            self._remarks.append("/metrics did not answer at the edge of the run: its counters do not hold all of it")
            return False
        self._append(*found)
        self._finished_before = _finished(page) if self._finished_before is None else self._finished_before
        if not rests:
            self._remarks.append("the server was not at rest at the edge of the run: its counters may hold other work")
        return rests

    def _at_rest(self, page: Page, expected: int | None) -> bool:
        gauges = [replica.gauges for replica in page.replicas.values()]
        if any(each.get("running", 0.0) or each.get("waiting", 0.0) for each in gauges):
            return False
        finished = _finished(page)
        if expected is None or finished is None or self._finished_before is None:
            return True
        return finished - self._finished_before >= expected

    async def _loop(self, start: float) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(max(start + ticks * self.interval_s - time.perf_counter(), 0.0))
            await self.once()
            missed = int((time.perf_counter() - start) // self.interval_s)  # a slow page: skip, do not hurry after
            ticks = max(ticks, missed) + 1

    async def _look(self) -> tuple[float, float, str] | None:
        """When, in seconds since 1970 and on `time.perf_counter`, and the page; None where it failed."""
        asked_unix, asked = time.time(), time.perf_counter()
        texts = await asyncio.gather(*map(self._get, (*self.urls, *self.extra_urls)), return_exceptions=True)
        half = (time.perf_counter() - asked) / 2
        good = [text for text in texts if isinstance(text, str)]
        failed = [text for text in texts if not isinstance(text, str)]
        for error in failed:
            self._why[str(error)] = self._why.get(str(error), 0) + 1
        self.failures += bool(failed)
        if not good or any(not isinstance(text, str) for text in texts[: len(self.urls)]):
            return None
        page = "".join(good)
        self.gauges = gauges_now(page)
        return asked_unix + half, asked + half, page

    async def _get(self, url: str) -> str:
        session = self._sessions[not same_server(self.connection, url)]
        try:
            async with session.get(url, headers=_ACCEPT, allow_redirects=False) as answer:
                text = await answer.text(errors="replace")
        except Exception as error:  # whatever it is, the run goes on
            raise _Failed(veil(reason(error), self.connection)) from error
        if answer.status != 200 or not is_prometheus(text):
            raise _Failed(f"{answer.status}" if answer.status != 200 else "no Prometheus text")
        return text if text.endswith("\n") else text + "\n"

    def _append(self, unix: float, perf: float, text: str) -> None:
        """Add a page in one write, so that a kill tears none; what a full disk tore is cut off again."""
        content = f"# ts {unix:.6f} {perf:.6f}\n{text}".encode()
        try:
            with open(self.journal, "ab", buffering=0) as file:
                end = file.tell()
                if file.write(content) != len(content):
                    file.truncate(end)
                    raise OSError(0, "only a part could be written")
            self.pages += 1
        except OSError as error:
            if not self._disk_failed:
                self._disk_failed = True
                self._remarks.append(f"/metrics: pages are not kept: {error.strerror}")


def _finished(page: Page) -> float | None:
    counts = [each.counters.get("requests_finished") for each in page.replicas.values()]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _counted(page: Page) -> list[tuple[dict[str, float], dict[str, float | None]]]:
    """All that only grows, replica by replica: telemetry and gauges may change at rest."""
    return [
        (each.counters, {name: histogram.count for name, histogram in each.histograms.items()})
        for each in page.replicas.values()
    ]
