"""Chunks of an OpenAI-style stream, as tools keep them: which of them are tokens, and the server's own counts."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from inferometer.records.importers.files import decode_json, mapping
from inferometer.records.run import TokenTimes

TokenKind = Literal["reasoning", "content"]

REASONING = ("reasoning", "reasoning_content")
"""Keys of a delta that carry tokens before the answer, by server."""


def chunk_kind(text: str) -> TokenKind | None:
    """Whether a chunk carries tokens, and of what kind; None for a role, an empty or null delta, usage or the end.

    >>> chunk_kind('data: {"choices":[{"delta":{"role":"assistant","content":""}}]}')
    >>> chunk_kind('{"choices":[{"delta":{"reasoning_content":"So"}}]}')
    'reasoning'
    """
    choices = _chunk(text).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = mapping(choice, "delta") or (choice if isinstance(choice, dict) else {})
    if any(delta.get(key) for key in REASONING):
        return "reasoning"
    carries = delta.get("content") or delta.get("text") or delta.get("tool_calls")
    return "content" if carries else None


def usage(text: str) -> dict[str, Any]:
    """The server's own token counts in a chunk; empty where it has none."""
    return mapping(_chunk(text), "usage")


def _chunk(text: str) -> dict[str, Any]:
    """The last event's object of a piece of a stream; empty for what is none."""
    events = [line.removeprefix("data:").strip() for line in text.splitlines() if line.strip()]
    for event in reversed(events):
        try:
            value = decode_json(event.encode())
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}


def token_times(events: list[list[float]]) -> TokenTimes | None:
    """Each request's token events as `TokenTimes`; None where no request has any."""
    counts = [len(times) for times in events]
    if not any(counts):
        return None
    return TokenTimes(
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64), np.array([t for times in events for t in times])
    )
