"""The shared server that keeps the truth: exact times, and faults on demand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from free_port import free_port
from shared import shared


@dataclass
class Truth:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def configure(self, **values: float) -> None:
        self.get("/config?" + "&".join(f"{name}={value}" for name, value in values.items()))


@contextmanager
def truth_server(ttft_s: float = 0.05, itl_s: float = 0.02) -> Iterator[Truth]:
    port = free_port()
    script = shared("tools/truth_server.py")
    command = [sys.executable, str(script), "--port", str(port), "--ttft", str(ttft_s), "--itl", str(itl_s)]
    process = subprocess.Popen(command)
    server = Truth(f"http://127.0.0.1:{port}", process)
    try:
        _await(server)
        yield server
    finally:
        process.kill()
        process.wait()


def _await(server: Truth) -> None:
    for _ in range(100):
        with suppress(OSError):
            server.get("/health")
            return
        time.sleep(0.1)
    raise RuntimeError("the truth server did not start")
