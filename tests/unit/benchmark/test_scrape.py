"""Pages on the run's clock, boundaries of a server at rest, and failures that stay out of the run."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from inferometer.benchmark import scrape
from inferometer.benchmark.scrape import Scraper, read_pages
from inferometer.benchmark.target import parse_target

GPU = '# TYPE DCGM_FI_DEV_POWER_USAGE gauge\nDCGM_FI_DEV_POWER_USAGE{gpu="0"} 100.0'


class Engine:
    """A server whose figures change as told, look by look; the last ones stay."""

    def __init__(self, *looks: Any, text: str | None = None) -> None:
        self.looks, self.text = list(looks) or [(0, 0)], text
        self.asked = 0
        self.delay_s = 0.0
        self.authorizations: list[str | None] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.authorizations.append(request.headers.get("Authorization"))
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if isinstance(look, int):
            return web.Response(status=look, text="no")
        return web.Response(text=self.text or page(*look))


def page(running: int, done: int) -> str:
    return (
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} 0\n'
        f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} {done}\n'
    )


@asynccontextmanager
async def serving(engine: Engine):
    app = web.Application()
    app.router.add_get("/metrics", engine.handle)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}/metrics"


def scraped(
    tmp_path: Path,
    do: Callable[[Scraper], Awaitable[Any]],
    *engines: Engine,
    extra: tuple[Engine, ...] = (),
    **options: Any,
) -> tuple[Any, Scraper, list[tuple[float, float, str]]]:
    """What ``do`` gives with a scraper of these servers, the scraper, and the pages of its journal."""
    journal = tmp_path / "metrics.prom"

    async def run() -> tuple[Any, Scraper]:
        async with contexts(*engines, *extra) as urls:
            connection = parse_target(urls[0] if urls else "h", api_key="s3cret")
            split = len(engines)
            scraper = Scraper(urls[:split], journal, connection=connection, extra_urls=urls[split:], **options)
            async with scraper:
                return await do(scraper), scraper

    result, scraper = asyncio.run(run())
    return result, scraper, read_pages(journal)


@asynccontextmanager
async def contexts(*engines: Engine):
    if not engines:
        yield []
        return
    async with serving(engines[0]) as url, contexts(*engines[1:]) as urls:
        yield [url, *urls]


def test_a_page_is_on_both_clocks(tmp_path: Path):
    engine = Engine((2, 5))
    engine.delay_s = 0.1
    unix, perf = time.time(), time.perf_counter()
    text, scraper, pages = scraped(tmp_path, lambda s: s.once(), engine)
    assert [found for _, _, found in pages] == [text] == [page(2, 5)]
    assert 0.04 < pages[0][1] - perf < time.perf_counter() - perf - 0.04
    assert pages[0][0] - unix == pytest.approx(pages[0][1] - perf, abs=0.05)
    assert scraper.gauges == {"running": 2.0, "waiting": 0.0}
    assert (scraper.pages, scraper.failures, scraper.notes) == (1, 0, [])


@pytest.mark.parametrize(
    ("looks_take_s", "asked_s"),
    [
        ([0.0, 0.3, 0.9, 0.0, 0.1], [10.0, 11.0, 12.0, 13.0, 14.0]),  # no drift
        ([0.1, 2.5, 1.0, 0.2, 0.0], [10.0, 11.0, 14.0, 16.0, 17.0]),  # a slow server is not hurried
    ],
)
def test_looks_come_at_the_interval_from_the_start(
    monkeypatch: pytest.MonkeyPatch, looks_take_s: list[float], asked_s: list[float]
):
    """On a clock that moves only by waiting and by looks."""
    clock, asked = [7.5], []

    async def sleep(delay: float) -> None:
        clock[0] += delay

    class Timed(Scraper):
        async def once(self) -> str | None:
            asked.append(clock[0])
            if len(asked) > len(looks_take_s):
                raise asyncio.CancelledError
            clock[0] += looks_take_s[len(asked) - 1]
            return None

    monkeypatch.setattr(scrape, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(scrape, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Timed([], "", connection=parse_target("h", api_key=""))._loop(10.0))
    assert asked[:-1] == pytest.approx(asked_s)


def test_looks_go_on_until_stopped(tmp_path: Path):
    engine = Engine((1, 0))

    async def do(scraper: Scraper) -> int:
        scraper.start()
        while engine.asked < 4:
            await asyncio.sleep(0.01)
        await scraper.stop()
        asked = engine.asked
        await asyncio.sleep(0.1)
        return engine.asked - asked

    later, _, pages = scraped(tmp_path, do, engine, interval_s=0.02)
    assert later == 0
    assert len(pages) >= 3
    assert [perf for _, perf, _ in pages] == sorted(perf for _, perf, _ in pages)


def test_settled_waits_for_the_last_request(tmp_path: Path):
    engine = Engine((3, 10), (1, 12), (0, 13), (0, 14), (0, 14))
    rested, scraper, pages = scraped(tmp_path, lambda s: s.settled(), engine)
    assert rested
    assert engine.asked == 5
    assert [text for _, _, text in pages] == [page(0, 14)]
    assert scraper.notes == []


def test_settled_waits_for_the_requests_expected(tmp_path: Path):
    engine = Engine((0, 10), (0, 10), (0, 12), (0, 12), (0, 15), (0, 15))

    async def do(scraper: Scraper) -> tuple[bool, bool]:
        return await scraper.settled(), await scraper.settled(5)

    rested, scraper, pages = scraped(tmp_path, do, engine)
    assert rested == (True, True)
    assert [text for _, _, text in pages] == [page(0, 10), page(0, 15)]
    assert scraper.pages == 2


def test_telemetry_may_change_at_rest(tmp_path: Path):
    watts = Engine()
    texts = iter(range(100))

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=f'DCGM_FI_DEV_POWER_USAGE{{gpu="0"}} {next(texts)}.0\n')

    watts.handle = handle  # type: ignore[method-assign]
    rested, _, _ = scraped(tmp_path, lambda s: s.settled(), Engine((0, 1)), extra=(watts,))
    assert rested


def test_a_server_that_does_not_rest_is_noted(tmp_path: Path):
    rested, scraper, pages = scraped(tmp_path, lambda s: s.settled(timeout_s=0.3), Engine((1, 7)))
    assert not rested
    assert [text for _, _, text in pages] == [page(1, 7)]
    assert "not at rest" in scraper.notes[0]


def test_settled_ends_the_periodic_looks(tmp_path: Path):
    async def do(scraper: Scraper) -> int:
        scraper.start()
        await asyncio.sleep(0.12)
        await scraper.settled()
        pages = scraper.pages
        await asyncio.sleep(0.12)
        return scraper.pages - pages

    later, _, pages = scraped(tmp_path, do, Engine((0, 1)), interval_s=0.05)
    assert later == 0
    assert [perf for _, perf, _ in pages] == sorted(perf for _, perf, _ in pages)


def test_replicas_and_exporters_are_one_page(tmp_path: Path):
    _, scraper, pages = scraped(tmp_path, lambda s: s.once(), Engine((2, 1)), Engine((3, 1)), extra=(Engine(text=GPU),))
    assert [text for _, _, text in pages] == [page(2, 1) + page(3, 1) + GPU + "\n"]
    assert scraper.gauges["running"] == 5.0


def test_a_replica_that_fails_takes_the_page_and_an_exporter_only_its_part(tmp_path: Path):
    async def do(scraper: Scraper) -> None:
        for _ in range(3):
            await scraper.once()

    _, scraper, pages = scraped(
        tmp_path, do, Engine((2, 1)), Engine((3, 1), 503, (3, 2)), extra=(Engine(404, (0, 0), 404),)
    )
    assert [text for _, _, text in pages] == [page(2, 1) + page(3, 1), page(2, 1) + page(3, 2)]
    assert (scraper.pages, scraper.failures) == (2, 3)
    assert scraper.notes == [
        "/metrics: 2 of 5 looks failed: 404",
        "/metrics: 1 of 5 looks failed: 503",
    ]


def test_headers_go_to_the_server_alone(tmp_path: Path):
    engine, exporter = Engine(), Engine(text=GPU)
    scraped(tmp_path, lambda s: s.once(), engine, extra=(exporter,))
    assert engine.authorizations == ["Bearer s3cret"]
    assert exporter.authorizations == [None]


def test_a_server_that_is_gone_or_mute_never_raises(tmp_path: Path):
    async def do(scraper: Scraper) -> list[Any]:
        scraper.urls = ("http://127.0.0.1:1/metrics",)
        scraper.start()
        await asyncio.sleep(0.05)
        return [await scraper.once(), await scraper.settled(timeout_s=0.15)]

    found, scraper, pages = scraped(tmp_path, do, Engine(), interval_s=0.01)
    assert (found, pages) == ([None, False], [])
    assert scraper.failures >= 3
    assert "/metrics did not answer at the edge of the run" in scraper.notes[0]
    assert re.search(r"looks failed: Connection refused", scraper.notes[-1])

    mute = Engine()
    mute.delay_s = 1.0
    found, scraper, _ = scraped(tmp_path, lambda s: s.once(), mute, timeout_s=0.05)
    assert found is None
    assert scraper.notes == ["/metrics: 1 of 1 looks failed: no answer in time"]

    found, scraper, _ = scraped(tmp_path, lambda s: s.once(), Engine(text="[]"))
    assert scraper.notes == ["/metrics: 1 of 1 looks failed: no Prometheus text"]


def test_a_disk_that_is_full_leaves_no_torn_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second page is written by half only."""
    real = open

    def short(path: Any, mode: str = "r", **options: Any) -> Any:
        file = real(path, mode, **options)
        if mode == "ab" and os.path.getsize(path):

            class Half:
                tell, truncate = file.tell, file.truncate

                def __enter__(self) -> Half:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                def write(self, content: bytes) -> int:
                    return file.write(content[: len(content) // 2])

            return Half()
        return file

    async def do(scraper: Scraper) -> None:
        await scraper.once()
        monkeypatch.setattr(scrape, "open", short, raising=False)
        await scraper.once()
        await scraper.once()

    _, scraper, pages = scraped(tmp_path, do, Engine((1, 1), (1, 2), (7, 3)))
    assert [text for _, _, text in pages] == [page(1, 1)]
    assert (tmp_path / "metrics.prom").read_text().count("# ts") == 1
    assert scraper.notes == ["/metrics: pages are not kept: only a part could be written"]
    assert scraper.gauges["running"] == 7.0


def test_a_place_that_cannot_be_written_is_noted_once(tmp_path: Path):
    async def do(scraper: Scraper) -> None:
        scraper.journal = str(tmp_path / "no" / "metrics.prom")
        await scraper.once()
        await scraper.once()

    _, scraper, _ = scraped(tmp_path, do, Engine((4, 1)))
    assert scraper.notes == ["/metrics: pages are not kept: No such file or directory"]
    assert scraper.gauges["running"] == 4.0


def test_nothing_to_look_at(tmp_path: Path):
    async def do(scraper: Scraper) -> list[Any]:
        scraper.start()
        return [await scraper.once(), await scraper.settled()]

    found, scraper, pages = scraped(tmp_path, do)
    assert (found, pages, scraper.notes, scraper.gauges) == ([None, True], [], [], {})


def test_a_torn_last_page_is_passed_over(tmp_path: Path):
    async def do(scraper: Scraper) -> None:
        await scraper.once()
        await scraper.once()

    scraped(tmp_path, do, Engine((1, 1), (1, 2)))
    journal = tmp_path / "metrics.prom"
    journal.write_bytes(journal.read_bytes()[:-4])
    assert [text for _, _, text in read_pages(journal)] == [page(1, 1)]


def test_over_a_unix_socket(tmp_path: Path):
    async def run() -> str | None:
        app = web.Application()
        app.router.add_get("/metrics", Engine((6, 1)).handle)
        runner = web.AppRunner(app)
        await runner.setup()
        path = str(tmp_path / "s.sock")
        await web.UnixSite(runner, path).start()
        connection = parse_target(f"unix://{path}", api_key="")
        async with Scraper(["http://localhost/metrics"], tmp_path / "j", connection=connection) as scraper:
            found = await scraper.once()
        await runner.cleanup()
        return found

    assert asyncio.run(run()) == page(6, 1)
