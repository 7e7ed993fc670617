"""An emulator in a process of its own, for tests, demonstrations and notebooks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from inferometer.errors import InferometerError

if TYPE_CHECKING:
    from inferometer.specs.deployment import Deployment
    from inferometer.specs.study import Study

STOP_S = 5.0
"""An emulator that has not ended so long after being asked to is killed."""


@contextmanager
def serve(
    what: Study | Deployment | str | os.PathLike[str] | Mapping[str, Any],
    port: int = 0,
    arm: str | None = None,
    cpus: frozenset[int] | None = None,
    **options: Any,
) -> Iterator[str]:
    """Start an emulator, yield its address once it listens, stop it at the end.

    Args:
        what: a deployment, or a study (also by name, path or table), whose base is served.
        port: 0 for any that is free.
        arm: another arm of the study.
        cpus: the processors it may run on.
        options: any other field of `options.Options`, such as ``time_scale=0.1`` or ``faults=("cut=0.1",)``.

    Raises:
        InferometerError: it did not start; the message is its own.
        InputError: what a study or an option gets wrong.

    >>> from urllib.request import urlopen
    >>> with serve("a100-qwen3-8b") as url:
    ...     print(urlopen(f"{url}/version").read().decode())
    {"version":"0.26.0"}
    """
    import msgspec

    from inferometer.emulator.options import Options

    chosen = Options(deployment=_deployment(what, arm), port=port, **options)
    command = [sys.executable, "-m", "inferometer.emulator"]
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told)
        try:
            if cpus:
                os.sched_setaffinity(process.pid, cpus)
            yield _address(process, msgspec.json.encode(chosen), told)
        finally:
            _stop(process)


def _deployment(what: Any, arm: str | None) -> Deployment:
    from inferometer.specs.deployment import Deployment
    from inferometer.specs.study import Study, load_study

    if isinstance(what, Deployment):
        return what
    study = what if isinstance(what, Study) else load_study(what)
    return (study.arm(arm) if arm else study.base).deployment


def _address(process: subprocess.Popen[bytes], options: bytes, told: IO[str]) -> str:
    """What it prints once it listens; its stdin stays open, as its end would stop it."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(options + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it ended; what it said follows
    address = process.stdout.readline().decode().strip()
    if not address:
        process.wait()
        told.seek(0)
        raise InferometerError(f"the emulator did not start: {told.read().strip()[-2000:]}")
    return address


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
