"""How a point fares while it runs: what a live view shows and a stop rule needs."""

from __future__ import annotations

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

    def __init__(self, files: list[Path]) -> None:
        self._files = dict.fromkeys(files, 0)
        self._decoder = msgspec.json.Decoder(_Glimpse)
        self.seen: list[_Glimpse] = []
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

    def run(self, after_s: float = 0.0, last: int | None = None) -> Run:
        """What has ended so far (the last so many, sent after so long), in order of sending, as a run."""
        seen = [each for each in self.seen[-(last or 0) :] if each.sent_s is not None and each.sent_s >= after_s]
        seen.sort(key=lambda each: each.sent_s or 0.0)
        columns: dict[str, Any] = {name: [getattr(e, name) for e in seen] for name in _Glimpse.__struct_fields__}
        return make_run(RunMeta(kind="measured"), columns)

    def summary(self) -> Summary | None:
        """The figures of the last `RECENT` to end; None before any has."""
        return self.run(last=RECENT).summary() if self.seen else None
