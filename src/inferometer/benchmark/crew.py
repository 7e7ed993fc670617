"""The worker processes of one point: started, told when to begin and stop, listened to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferometer.benchmark.job import Command, Job, Pulse, Ready, Report, Said
from inferometer.errors import InputError

READY_TIMEOUT_S = 60.0
"""A worker that is not ready by then will not be: importing and opening its connections takes well under a second."""

_SAID = msgspec.json.Decoder(Said)


class Hand(msgspec.Struct, kw_only=True, eq=False):
    """One worker, and the last it said."""

    process: asyncio.subprocess.Process
    log: Path
    """What it wrote on standard error."""
    ready: asyncio.Event
    heard_s: float
    """When it last said anything, on `time.monotonic`."""
    given_up: str | None = None
    pulse: Pulse | None = None
    report: Report | None = None

    async def listen(self) -> None:
        """Take in its lines until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            with contextlib.suppress(msgspec.DecodeError):  # a stray print of a library is no fault
                self.heard(_SAID.decode(line))
        await self.process.wait()
        self.ready.set()

    def heard(self, said: Said) -> None:
        """Keep what was said."""
        self.heard_s = time.monotonic()
        if isinstance(said, Ready):
            self.ready.set()
        elif isinstance(said, Pulse):
            self.pulse = said
        else:
            self.report = said

    @property
    def fault(self) -> str | None:
        """Why it did not do all its work, where it did not."""
        if self.report is not None:
            return self.report.fault
        if self.given_up is not None:
            return self.given_up
        if self.process.returncode is None:
            return None
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:] if self.log.exists() else []
        return f"a client process ended by itself with status {self.process.returncode}: {(last or ['no word'])[0]}"


class Crew:
    """All workers of a point."""

    def __init__(self, hands: Sequence[Hand]) -> None:
        self.hands = hands
        self._listening = [asyncio.create_task(hand.listen()) for hand in hands]

    @classmethod
    async def start(cls, jobs: Sequence[Job], folder: Path) -> Crew:
        """Start a process for each job, its files in ``folder``, and wait until all can begin.

        Raises `InputError` where one cannot.
        """
        try:
            crew = cls([await _started(job, folder) for job in jobs])
        except OSError as why:
            raise InputError.because(f"a client process cannot be started: {why.strerror or why}") from why
        for hand in crew.hands:
            try:
                await asyncio.wait_for(hand.ready.wait(), READY_TIMEOUT_S)
            except TimeoutError:
                await crew.dismiss()
                raise InputError.because(f"a client process is not ready after {READY_TIMEOUT_S:.0f} s") from None
            if hand.fault:
                await crew.dismiss()
                raise InputError.because(hand.fault)
        return crew

    def tell(self, command: Command) -> None:
        """Say this to every worker that still lives; it is expected to be heard from now on."""
        for hand in self.hands:
            hand.heard_s = time.monotonic()
        line = msgspec.json.encode(command) + b"\n"
        for hand in self.hands:
            if hand.process.returncode is None and hand.process.stdin is not None:
                hand.process.stdin.write(line)

    async def wait(self, timeout_s: float) -> bool:
        """Whether all have ended, after at most so long."""
        pending = [task for task in self._listening if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)
        return all(task.done() for task in self._listening)

    def give_up(self, silence_s: float, deadline_s: float | None) -> None:
        """End workers that have said nothing for so long, or have not ended by ``deadline_s`` (`time.monotonic`)."""
        now = time.monotonic()
        for hand in self.hands:
            late = deadline_s is not None and now > deadline_s
            if hand.process.returncode is None and (late or now - hand.heard_s > silence_s):
                hand.given_up = (
                    f"a client process hung: it {'did not end' if late else f'said nothing for {silence_s:g} s'}"
                )
                with contextlib.suppress(ProcessLookupError):
                    hand.process.kill()

    async def dismiss(self) -> None:
        """End all that still live."""
        for hand in self.hands:
            if hand.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    hand.process.kill()
        await asyncio.gather(*self._listening, return_exceptions=True)

    @property
    def pulse(self) -> Pulse:
        """The sum of what they said last."""
        pulses = [hand.pulse for hand in self.hands if hand.pulse is not None]
        names = ("sent", "ended", "failed", "in_flight", "token_events")
        sums = {name: sum(getattr(pulse, name) for pulse in pulses) for name in names}
        return Pulse(time_s=max((pulse.time_s for pulse in pulses), default=0.0), **sums)

    @property
    def reports(self) -> list[Report]:
        """What those that came to their end had to say."""
        return [hand.report for hand in self.hands if hand.report is not None]

    @property
    def faults(self) -> list[str]:
        """What went wrong in the workers."""
        return list(dict.fromkeys(hand.fault for hand in self.hands if hand.fault))


async def _started(job: Job, folder: Path) -> Hand:
    file, log = folder / f"job-{job.worker}.msgpack", folder / f"worker-{job.worker}.log"
    # it holds the headers, and so the key: nobody else's to read, and the worker removes it
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as content:
        content.write(msgspec.msgpack.encode(job))
    with open(log, "wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "inferometer.benchmark.worker", str(file)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=2**24,  # a report of 100,000 lags is one line
            # Ctrl-C reaches the coordinator alone, which tells the workers what to do. A session of their own would do
            # that too, but Linux then schedules them as one group against a server of many threads, and starves them
            process_group=0,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    return Hand(process=process, log=log, ready=asyncio.Event(), heard_s=time.monotonic())
