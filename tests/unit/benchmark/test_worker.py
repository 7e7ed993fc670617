"""The worker as its coordinator sees it: a process with commands in, lines out, and a journal on disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from inferometer.benchmark.job import Command, Connection, Ended, Pulse, Ready, Report, Said
from inferometer.benchmark.worker import Journal, main, read_job
from inferometer.errors import InputError
from unit.benchmark.scripted import HANG, Script, Scripted, make_job, tokens

SLOW: Script = [0.15, *tokens(2)]


class Hired:
    """A worker process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process, server: Scripted, journal: Path) -> None:
        self.process, self.server, self.journal = process, server, journal

    async def hear(self) -> Said:
        line = await asyncio.wait_for(self.process.stdout.readline(), 20)
        assert line, (await self.process.stderr.read()).decode()
        return msgspec.json.decode(line, type=Said)

    async def begin(self) -> None:
        ready = await self.hear()
        assert isinstance(ready, Ready)
        assert ready.pid == self.process.pid
        self.tell(Command(start=time.perf_counter()))

    def tell(self, command: Command) -> None:
        self.process.stdin.write(msgspec.json.encode(command) + b"\n")

    async def sent(self, count: int) -> None:
        while len(self.server.seen) < count:
            await asyncio.sleep(0.005)

    async def report(self) -> tuple[Report, list[Pulse]]:
        pulses = []
        while not isinstance(said := await self.hear(), Report):
            pulses.append(said)
        assert await asyncio.wait_for(self.process.wait(), 10) == 0
        return said, pulses

    def records(self) -> list[Ended]:
        return [msgspec.json.decode(line, type=Ended) for line in self.journal.read_bytes().splitlines()]


@contextlib.asynccontextmanager
async def hired(folder: Path, scripts: list[Script], rows: int, **changes: Any) -> AsyncIterator[Hired]:
    async with Scripted(scripts) as server:
        job = make_job(folder, server.connection, rows, **changes)
        (folder / "job").write_bytes(msgspec.msgpack.encode(job))
        command = (sys.executable, "-m", "inferometer.benchmark.worker", str(folder / "job"))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=2**24)
        try:
            yield Hired(process, server, Path(job.journal))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def test_from_job_to_report(tmp_path: Path):
    async def go() -> None:
        async with hired(tmp_path, [[0.02, *tokens(3)]], 60, concurrency=2, worker=3) as worker:
            await worker.begin()
            report, pulses = await worker.report()
            records = worker.records()
        assert sorted(record.index for record in records) == list(range(60))
        assert {(r.error, r.output_tokens, r.worker, len(r.times_s)) for r in records} == {(None, 3, 3, 3)}
        assert (report.sent, report.ended, report.fault, report.peak_in_flight) == (60, 60, None, 2)
        assert 0 < report.cpu_s < report.wall_s
        assert len(pulses) == int(report.wall_s / 0.5)
        assert pulses[0].ended > 0
        assert pulses[0].token_events == 3 * pulses[0].ended

    uvloop.run(go())


def test_stop_drains_and_reports(tmp_path: Path):
    async def go() -> None:
        async with hired(tmp_path, [SLOW], 99, concurrency=2) as worker:
            await worker.begin()
            await worker.sent(2)
            worker.tell(Command(stop=True))
            report, _ = await worker.report()
            assert [record.error for record in worker.records()] == [None, None]
            assert (report.sent, report.ended) == (2, 2)

    uvloop.run(go())


@pytest.mark.parametrize("how", ["command", "end of input", "SIGTERM", "not a command"])
def test_abort(tmp_path: Path, how: str):
    why = {
        "command": "the run was aborted",
        "end of input": "the coordinator is gone",
        "SIGTERM": "told to end by a signal",
        "not a command": "the coordinator said what is no command",
    }

    async def go() -> None:
        async with hired(tmp_path, [[HANG]], 99, concurrency=2) as worker:
            await worker.begin()
            await worker.sent(2)
            if how == "command":
                worker.tell(Command(abort=True))
            elif how == "end of input":
                worker.process.stdin.close()
            elif how == "SIGTERM":
                worker.process.send_signal(signal.SIGTERM)
            else:
                worker.process.stdin.write(b"begin, please\n")
            report, _ = await worker.report()
            assert report.ended == 2
            assert [record.error for record in worker.records()] == [f"cancelled: {why[how]}"] * 2

    uvloop.run(go())


def test_first_interrupt_drains_and_the_second_aborts(tmp_path: Path):
    async def go() -> None:
        async with hired(tmp_path, [SLOW, [HANG]], 99, concurrency=2) as worker:
            await worker.begin()
            await worker.sent(2)
            worker.process.send_signal(signal.SIGINT)
            while len(worker.records()) < 1:
                await asyncio.sleep(0.01)
            worker.process.send_signal(signal.SIGINT)
            await worker.report()
            assert [record.error for record in worker.records()] == [None, "cancelled: interrupted"]
            assert len(worker.server.seen) == 2

    uvloop.run(go())


def test_interrupt_before_the_start_sends_nothing(tmp_path: Path):
    async def go() -> None:
        async with hired(tmp_path, [SLOW], 9) as worker:
            assert isinstance(await worker.hear(), Ready)
            worker.process.send_signal(signal.SIGINT)
            report, _ = await worker.report()
            assert (report.sent, report.ended, worker.server.seen) == (0, 0, [])

    uvloop.run(go())


def test_killed_in_mid_run_leaves_what_ended(tmp_path: Path):
    async def go() -> None:
        async with hired(tmp_path, [tokens(2), tokens(2), tokens(2), [HANG]], 99) as worker:
            await worker.begin()
            await worker.sent(4)
            worker.process.kill()
            await worker.process.wait()
            assert [record.index for record in worker.records()] == [0, 1, 2]

    uvloop.run(go())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_is_reported(tmp_path: Path):
    async def go() -> None:
        async with hired(tmp_path, [tokens(2), [HANG]], 99, concurrency=2, journal="/dev/full") as worker:
            await worker.begin()
            report, _ = await worker.report()
            assert report.fault == "journal: No space left on device"
            assert (report.sent, report.ended) == (2, 0)

    uvloop.run(go())


# --- the journal ----------------------------------------------------------------------------------------------------


def test_journal_appends_whole_lines(tmp_path: Path):
    path = tmp_path / "journal"
    for number in range(2):
        journal = Journal(str(path))
        journal.write(Ended(index=number, times_s=[0.5]))
        journal.close()
    assert path.read_bytes() == b'{"index":0,"times_s":[0.5]}\n{"index":1,"times_s":[0.5]}\n'


@pytest.mark.parametrize("torn", [b'{"index":7', b"x" * 200_000])
@pytest.mark.parametrize("kept", [b"", b'{"index":6}\n'])
def test_torn_line_of_a_killed_run_is_cut_off(tmp_path: Path, torn: bytes, kept: bytes):
    path = tmp_path / "journal"
    path.write_bytes(kept + torn)
    journal = Journal(str(path))
    journal.write(Ended(index=8))
    journal.close()
    assert path.read_bytes() == kept + b'{"index":8}\n'


def test_line_that_does_not_fit_is_taken_back(tmp_path: Path):
    path = tmp_path / "journal"
    journal = Journal(str(path))
    journal.write(Ended(index=0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.write(Ended(index=1, times_s=[0.25] * 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == b'{"index":0}\n'


# --- the job --------------------------------------------------------------------------------------------------------


def test_the_job_file_with_its_key_is_gone_once_read(tmp_path: Path):
    job = make_job(tmp_path, Connection(host="h", port=1, headers=(("Authorization", "Bearer sk-SECRET"),)))
    path = tmp_path / "job"
    path.write_bytes(msgspec.msgpack.encode(job))
    assert read_job(str(path)) == job
    assert not path.exists()


def test_a_file_that_is_no_job_stays(tmp_path: Path):
    path = tmp_path / "job"
    path.write_bytes(b"somebody's notes")
    with pytest.raises(InputError):
        read_job(str(path))
    assert path.exists()


def test_the_worker_is_light():
    heavy = ("aiohttp", "numpy", "polars", "prometheus_client", "rich", "tokenizers", "yaml")
    asks = f"import sys, inferometer.benchmark.worker; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# --- jobs that cannot be run ----------------------------------------------------------------------------------------


def test_usage(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_no_job(tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "job"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="JOB_FILE"):
        read_job(str(path))
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith("JOB_FILE: ")


def test_job_with_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = make_job(tmp_path, Scripted([]).connection)
    (tmp_path / "job").write_bytes(msgspec.msgpack.encode(job))
    assert main([str(tmp_path / "job")]) == 2
    assert capsys.readouterr().err == "connection.port: 0 is not allowed; give 1 to 65535\n"
