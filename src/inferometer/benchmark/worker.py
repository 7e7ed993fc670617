"""One load-generating process: ``python -m inferometer.benchmark.worker JOB_FILE``. The protocol is in `job`.

Exit status: 0 after a `Report`, 2 for a job that cannot be run (the reason is on standard error).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import stat
import sys
import time

import msgspec
import uvloop

from inferometer.benchmark.job import Command, Ended, Job, Ready, Said
from inferometer.benchmark.loadgen import LoadGenerator
from inferometer.errors import InferometerError, InputError

PULSE_EVERY_S = 0.5
STDIN, STDOUT = 0, 1
GARBAGE_THRESHOLD = (100_000, 20, 100)
"""A run leaves few cycles behind, and a collection in mid-run is a pause; what was there before is frozen."""


class Journal:
    """Appends records to a file, one JSON line each, unbuffered: a killed process loses at most its last line.

    A torn last line of an earlier run is cut off first. A line that does not fit on the disk is taken back, so every
    line of the file is whole. Raises `OSError` where the file cannot be opened or written.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._encoder = msgspec.json.Encoder()
        self._line = bytearray()
        if self._regular:
            self._mend()

    def write(self, record: Ended) -> None:
        """Append one record."""
        line = self._line
        self._encoder.encode_into(record, line)
        line += b"\n"
        written = os.write(self._fd, line)
        if written < len(line):
            self._write_rest(line, written)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _write_rest(self, line: bytearray, written: int) -> None:
        """The disk took a part: the rest may fit after all, or the error says why not."""
        whole = os.fstat(self._fd).st_size - written
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, whole)
            raise

    def _mend(self) -> None:
        end = size = os.fstat(self._fd).st_size
        while end and os.pread(self._fd, 1, end - 1) != b"\n":
            start = max(0, end - 65536)
            end = start + os.pread(self._fd, end - start, start).rfind(b"\n") + 1
        if end < size:
            os.ftruncate(self._fd, end)


class Worker:
    """Drives one `LoadGenerator` by the commands that come on standard input and by signals."""

    def __init__(self, job: Job) -> None:
        self._journal = Journal(job.journal)
        self._generator = LoadGenerator(job, self._journal.write)
        self._heard = b""

    async def run(self) -> None:
        """Prepare, wait for the start, send, report."""
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[float] = self._loop.create_future()
        await self._generator.prepare()
        self._listen()
        _freeze()
        _say(Ready(pid=os.getpid()))
        start = await self._started
        pulsing = self._loop.create_task(self._pulse())
        try:
            report = await self._generator.run(start)
        finally:
            pulsing.cancel()
            self._journal.close()
        _say(report)

    def _listen(self) -> None:
        self._loop.add_reader(STDIN, self._hear)
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        self._loop.add_signal_handler(signal.SIGTERM, self._abort, "told to end by a signal")

    def _hear(self) -> None:
        data = os.read(STDIN, 65536)
        if not data:
            self._loop.remove_reader(STDIN)
            self._abort("the coordinator is gone")
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._obey(line)

    def _obey(self, line: bytes) -> None:
        try:
            command = msgspec.json.decode(line, type=Command)
        except msgspec.DecodeError as why:
            print(f"not a command: {why}: {line!r}", file=sys.stderr)
            self._abort("the coordinator said what is no command")
            return
        if command.abort:
            self._abort("the run was aborted")
        elif command.stop:
            self._stop()
        elif command.start is not None:
            self._begin(command.start)

    def _interrupted(self) -> None:
        """Ctrl-C reaches the whole group of processes: the first drains, the second gives up."""
        self._loop.add_signal_handler(signal.SIGINT, self._abort, "interrupted")
        self._stop()

    def _stop(self) -> None:
        self._generator.stop()
        self._begin(time.perf_counter())

    def _abort(self, why: str) -> None:
        self._generator.abort(why)
        self._begin(time.perf_counter())

    def _begin(self, start: float) -> None:
        if not self._started.done():
            self._started.set_result(start)

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(PULSE_EVERY_S)
            _say(self._generator.pulse())


def read_job(path: str) -> Job:
    """A job from its msgpack file, which is removed: it may hold an API key, and a killed run leaves its files behind.

    Raises `InputError` where it cannot be read or is none; such a file stays.
    """
    try:
        with open(path, "rb") as file:
            job = msgspec.msgpack.decode(file.read(), type=Job)
        os.unlink(path)
        return job
    except (OSError, msgspec.DecodeError) as why:
        raise InputError("JOB_FILE", path, f"the path of a job as the coordinator writes it ({why})") from why


def main(arguments: list[str] | None = None) -> int:
    """Run one worker; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print("usage: python -m inferometer.benchmark.worker JOB_FILE", file=sys.stderr)
        return 2
    try:
        worker = Worker(read_job(given[0]))
    except (InferometerError, OSError) as why:
        print(why, file=sys.stderr)
        return 2
    _allow_connections()
    uvloop.run(worker.run())
    return 0


def _say(said: Said) -> None:
    """One line on standard output. A coordinator that is gone does not hear it, which its closed pipe tells us."""
    line = msgspec.json.encode(said) + b"\n"
    with contextlib.suppress(BrokenPipeError):
        while line:
            line = line[os.write(STDOUT, line) :]


def _freeze() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLD)


def _allow_connections() -> None:
    """As many open files as this process may ask for: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
