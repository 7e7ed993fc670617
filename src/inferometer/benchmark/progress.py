"""How a point fares while it runs: what a live view shows and a stop rule needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from inferometer.records.ended import Ended
from inferometer.records.metrics import Summary
from inferometer.records.run import Run, RunMeta, make_run

RECENT = 4096
"""Requests that the figures so far are computed of: the last ones to end."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a point in progress. None for what is not known (yet)."""

    label: str
    """``C = 8``, ``20 requests/s``."""
    phase: str
    """``preparing``, ``warming up``, ``measuring``, ``draining`` or ``done``."""
    time_s: float = 0.0
    left_s: float | None = None
    total: int | None = None
    """Requests to send, where that is known."""
    sent: int = 0
    ended: int = 0
    failed: int = 0
    in_flight: int = 0
    output_tok_per_s: float | None = None
    ttft_p50_s: float | None = None
    tpot_p50_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """The server's own, by its last /metrics page."""
    error: str | None = None
    """The last failure."""
    point: int = 1
    points: int | None = 1
    """Which of how many; None: not known yet."""


Watch = Callable[[Progress], None]


class _Glimpse(msgspec.Struct, kw_only=True):
    """What of an `Ended` line the figures so far need: token times are skipped over."""

    sent_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None
    output_tokens: int | None = None
    error: str | None = None


assert set(_Glimpse.__struct_fields__) <= set(Ended.__struct_fields__)


class Tail:
    """Follows the files that the workers append to."""

    def __init__(self, files: list[Path], keep: int | None = None) -> None:
        """``keep``: only the last so many are of interest; None: all."""
        self._files = dict.fromkeys(files, 0)
        self._decoder = msgspec.json.Decoder(_Glimpse)
        self.seen: deque[_Glimpse] = deque(maxlen=keep)
        self.last_error: str | None = None

    def read(self) -> None:
        """Take in the whole lines that have been added."""
        for file, position in self._files.items():
            if not file.exists():
                continue
            with open(file, "rb") as lines:
                lines.seek(position)
                data = lines.read()
            whole = data.rfind(b"\n") + 1
            self._files[file] = position + whole
            for each in self._decoder.decode_lines(data[:whole]) if whole else ():
                self.seen.append(each)
                self.last_error = each.error or self.last_error

    def run(self, after_s: float = 0.0, after_requests: int = 0) -> Run:
        """What has ended so far, in order of sending, without what was sent before so long or among the first."""
        seen = [each for each in self.seen if each.sent_s is not None and each.sent_s >= after_s]
        seen.sort(key=lambda each: each.sent_s or 0.0)
        seen = seen[after_requests:]
        columns: dict[str, Any] = {name: [getattr(e, name) for e in seen] for name in _Glimpse.__struct_fields__}
        return make_run(RunMeta(kind="measured"), columns)

    def summary(self) -> Summary | None:
        """The figures so far of those that are kept; None before any has ended."""
        return self.run().summary() if self.seen else None
