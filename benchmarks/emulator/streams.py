"""How many streams the emulator holds: it on one core, a light client on another, a decode step of a given length.

    python benchmarks/emulator/streams.py                    # 1,000 streams at 50 ms a token
    python benchmarks/emulator/streams.py --streams 250 500 1000 2000 --step-ms 50

Qwen3-8B on an H200 with room for that many sequences; the time scale makes its decode step of all of them last what is
asked for. A token's lateness is counted against the simulated schedule: at the server when it was handed to the kernel,
at the client when it was read. The first tokens' burst (prefill) is left out of the second figure of each.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import re
import resource
import select
import socket
import time
from typing import Any
from urllib.request import urlopen

import inferometer as im
from inferometer.emulator import serve
from inferometer.steptime.costs import sheet_costs

MODEL, CHIP = "Qwen/Qwen3-8B", "h200-sxm-141gb"


class Client:
    """One connection, one streamed request; keeps what it reads and when."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read: list[tuple[float, bytes]] = []

    def events(self) -> tuple[str, list[float]]:
        """The answer's id, and the time at which each token's chunk was complete."""
        whole = b"".join(data for _, data in self.read)
        id = whole.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
        times, tail = list[float](), b""
        for now, data in self.read:
            tail += data
            *complete, tail = tail.split(b"\n\n")
            times += [now] * sum(b'"text":' in event for event in complete)
        assert b"[DONE]" in whole, f"{id} ended early after {len(times)} tokens"
        return id, times


def load(url: str, streams: int, tokens: int, prompt: int) -> list[Client]:
    """All streams at once, to their end. What one poll finds readable has come by then, and has its time."""
    host, port = url.removeprefix("http://").split(":")
    body = {"model": MODEL, "prompt": [1] * prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    raw = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    clients = [Client(host, int(port)) for _ in range(streams)]
    poll = select.epoll()
    by_fd = {}
    for client in clients:
        poll.register(client.socket.fileno(), select.EPOLLIN)
        by_fd[client.socket.fileno()] = client
    for client in clients:
        client.socket.sendall(head % len(raw) + raw)
    gc.disable()
    while by_fd:
        ready = poll.poll(maxevents=streams)
        now = time.monotonic()
        for fd, _ in ready:
            data = os.read(fd, 65536)
            by_fd[fd].read.append((now, data))
            if not data or b"[DONE]" in data:
                poll.unregister(fd)
                del by_fd[fd]
    gc.enable()
    return clients


def server_cpu_s(url: str) -> float:
    """Processor seconds that the server has used."""
    return float(re.search(r"^process_cpu_seconds_total (\S+)", urlopen(f"{url}/metrics").read().decode(), re.M)[1])  # type: ignore[index]


def quantiles(values: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(values)
    at = lambda share: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)  # noqa: E731
    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0)}


def measure(streams: int, step_ms: float, tokens: int, prompt: int) -> dict[str, Any]:
    """One level of load."""
    seqs = max(1024, streams)
    dep = im.Deployment(model=im.model(MODEL), chip=im.chip(CHIP), flags={"max_num_seqs": seqs})
    natural_s = sheet_costs(dep).decode_step_s(streams, prompt + tokens // 2)
    scale = step_ms / 1e3 / natural_s
    with serve(dep, time_scale=scale, cpus=frozenset({0})) as url:
        spent, before, start = server_cpu_s(url), os.times(), time.monotonic()
        clients = load(url, streams, tokens, prompt)
        after, passed = os.times(), time.monotonic() - start
        spent = server_cpu_s(url) - spent
        truth = json.load(urlopen(f"{url}/emulator/truth?tokens=1"))
    due = {row["id"]: row["token_s"] for row in truth["requests"]}
    got = dict(client.events() for client in clients)
    assert all(len(times) == tokens for times in got.values()), "tokens were lost"
    full = max(at[0] for at in due.values())
    late = [(read - at, at > full) for id in got for read, at in zip(got[id], due[id], strict=True)]
    held = [lateness for lateness, all_run in late if all_run]
    gaps = [b - a for at in due.values() for a, b in itertools.pairwise(at) if a > full]
    return {
        "streams": streams,
        "time_scale": round(scale, 3),
        "simulated_gap_ms": quantiles(gaps) if gaps else None,
        "server_late_ms": {k: round(v * 1e3, 2) for k, v in truth["late_s"].items() if k != "n"},
        "client_late_ms_all": quantiles([lateness for lateness, _ in late]),
        "client_late_ms_all_streams_running": quantiles(held) if held else None,
        "server_core_busy": round(spent / passed, 2),
        "client_core_busy": round((after.user + after.system - before.user - before.system) / passed, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1000])
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompt", type=int, default=32)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * max(given.streams) + 100)), hard))
    os.sched_setaffinity(0, {1})
    for streams in given.streams:
        print(json.dumps(measure(streams, given.step_ms, given.tokens, given.prompt)), flush=True)


if __name__ == "__main__":
    main()
