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

    A piece may hold several events: the first of them that carries tokens is told.

    >>> chunk_kind('data: {"choices":[{"delta":{"role":"assistant","content":""}}]}')
    >>> chunk_kind('{"choices":[{"delta":{"reasoning_content":"So"}}]}')
    'reasoning'
    """
    return next((kind for event in _events(text) if (kind := _kind(event)) is not None), None)


def usage(text: str) -> dict[str, Any]:
    """The server's own token counts in a chunk, the last where it has several; empty where it has none."""
    return next((found for event in reversed(_events(text)) if (found := mapping(event, "usage"))), {})


def _kind(event: dict[str, Any]) -> TokenKind | None:
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = mapping(choice, "delta") or (choice if isinstance(choice, dict) else {})
    if any(delta.get(key) for key in REASONING):
        return "reasoning"
    carries = delta.get("content") or delta.get("text") or delta.get("tool_calls")
    return "content" if carries else None


def _events(text: str) -> list[dict[str, Any]]:
    """The events' objects in a piece of a stream, in order."""
    found = []
    for line in text.splitlines():
        try:
            value = decode_json(line.removeprefix("data:").strip().encode())
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def token_times(events: list[list[float]]) -> TokenTimes | None:
    """Each request's token events as `TokenTimes`; None where no request has any."""
    counts = [len(times) for times in events]
    if not any(counts):
        return None
    return TokenTimes(
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64), np.array([t for times in events for t in times])
    )
