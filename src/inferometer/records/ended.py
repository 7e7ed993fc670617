"""A line of a benchmark's journal: one request, as it ended. Light: the timed worker imports it."""

from __future__ import annotations

from typing import Literal

import msgspec


class Ended(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request, as it ended: a line of the journal. Names are those of `Run.requests`."""

    index: int
    worker: int = 0
    session: int | None = None
    scheduled_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    first_token_s: float | None = None
    first_content_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None
    prompt_tokens: int | None = None
    """The server's own count; None where it gave none."""
    output_tokens: int | None = None
    """The server's own count; where it gave none, the number of token events."""
    output_counted_by: Literal["usage", "events"] = "usage"
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    token_events: int = 0
    finish_reason: str | None = None
    http_status: int | None = None
    error: str | None = None
    """``CLASS: detail``, CLASS one of `ERROR_CLASSES`; None for a request that completed."""
    retry_after_s: float | None = None
    times_s: list[float] = []
    """When each token event came."""


ERROR_CLASSES = (
    "connect",  # no connection: refused, unreachable, name not found, TLS
    "timeout",  # of connecting, of the whole, or between two pieces
    "reset",  # the connection broke before the answer began
    "cut",  # the answer began and did not end
    "http",  # "http 503: ..."
    "stream",  # the server reported an error inside the stream
    "malformed",  # not HTTP, not SSE or not the JSON of the protocol
    "cancelled",  # given up by the client: interrupted, or the drain took too long
)
"""What an error begins with."""
