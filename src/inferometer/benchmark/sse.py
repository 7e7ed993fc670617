"""What an OpenAI-compatible server answers, read into one request's record: server-sent events or one whole JSON text.

Server-sent events after the WHATWG HTML standard, section 9.2; the JSON after OpenAI's API as vLLM, SGLang, TGI and
llama.cpp serve it. Fields that no engine here needs (``timings``, ``logprobs``, ...) are skipped unread.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from inferometer.benchmark.job import Ended

EXCERPT = 300
"""Characters of a server's own words that an error repeats."""
LONGEST_EVENT_BYTES = 64 << 20
"""An event of more than this is taken for a stream that will never have an event's end."""


class AnswerError(Exception):
    """What makes an answer fail: a text that begins with one of `job.ERROR_CLASSES`."""


class _Delta(msgspec.Struct, gc=False):
    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    reasoning_tokens: int | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class AnswerReader:
    """Reads one answer into its record, piece by piece as it comes.

    ``done`` is set by ``[DONE]``; ``concluded`` by that, a finish reason or the closing usage chunk: the server had
    said all it meant to. ``parts`` holds the answer's text where ``keep_text`` asks for it, else nothing.

    >>> record = Ended(index=0)
    >>> reader = AnswerReader(record)
    >>> reader.feed(b'data: {"choices": [{"text": " the"}]}\\n\\ndata: [DO', 0.25)
    >>> reader.feed(b"NE]\\n\\n", 0.5)
    >>> record.token_events, record.first_token_s, reader.done
    (1, 0.25, True)
    """

    __slots__ = ("concluded", "done", "held", "keep_text", "parts", "record", "streamed")

    def __init__(self, record: Ended, keep_text: bool = False) -> None:
        self.record = record
        self.keep_text = keep_text
        self.parts: list[str] = []
        self.held = b""
        self.done = self.concluded = False
        self.streamed = True

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the next bytes of a stream, split anywhere, which came at ``now_s``.

        Raises `AnswerError`: ``malformed`` for what is no event stream or not the protocol's JSON, ``stream`` for an
        error that the server reports. Events before it are counted.
        """
        if self.held:
            data = self.held + data
        held = b""
        if b"\r" in data:
            data, held = _plain_lines(data)
        events = data.split(b"\n\n")
        self.held = events.pop() + held
        if len(self.held) > LONGEST_EVENT_BYTES:
            raise AnswerError(f"malformed: an event of more than {LONGEST_EVENT_BYTES} bytes")
        for event in events:
            if event.startswith(b"data:") and b"\n" not in event:
                payload = event[5:]
            else:
                payload = _payload(event)
            if len(payload) < 16 and (payload := payload.strip()) in (b"", b"[DONE]"):
                self.done = self.done or bool(payload)
            elif not self.done:
                self._take(payload, now_s)
        self.concluded = self.concluded or self.done

    def flush(self, now_s: float) -> None:
        """Take what is held as the last event: the stream has ended without an empty line. Raises as `feed`."""
        if self.held.strip():
            self.feed(b"\n\n", now_s)

    def whole(self, body: bytes) -> None:
        """Take a whole answer that is no stream. Raises `AnswerError` as `feed` does."""
        self.streamed = False
        chunk = _read(body)
        if chunk.error:
            raise AnswerError(f"stream: {said(chunk.error)}")
        if chunk.choices is None:
            raise AnswerError(f"malformed: an answer without choices: {excerpt(body)}")
        for choice in chunk.choices:
            self._finish_reason(choice.finish_reason)
            if self.keep_text:
                content = choice.text if choice.message is None else choice.message.content
                self.parts.append(content if isinstance(content, str) else "")
        if chunk.usage is not None:
            self._usage(chunk.usage)
        self.done = self.concluded = True

    def settle(self) -> None:
        """Where the server did not count the output: a token each event; unknown for what failed before its first."""
        record = self.record
        if record.output_tokens is None:
            record.output_counted_by = "events"
            if record.token_events or (self.streamed and record.error is None):
                record.output_tokens = record.token_events

    def _take(self, payload: bytes, now_s: float) -> None:
        chunk = _read(payload)
        if chunk.error:
            raise AnswerError(f"stream: {said(chunk.error)}")
        if chunk.choices:
            for choice in chunk.choices:
                if choice.delta is not None:
                    self._delta(choice.delta, bool(choice.token_ids), now_s)
                elif choice.text or choice.token_ids:
                    self._token(now_s, True, choice.text)
                if choice.finish_reason:
                    self._finish_reason(choice.finish_reason)
        elif chunk.usage is not None:
            self.concluded = True
        elif chunk.choices is None:
            _refuse_bare_error(payload)
        if chunk.usage is not None:
            self._usage(chunk.usage)

    def _delta(self, delta: _Delta, has_ids: bool, now_s: float) -> None:
        content = delta.content
        if content or delta.tool_calls or delta.refusal:
            self._token(now_s, True, content)
        elif delta.reasoning_content or delta.reasoning or has_ids:
            self._token(now_s, False, None)

    def _token(self, now_s: float, is_content: bool, text: str | list[msgspec.Raw] | None) -> None:
        record = self.record
        record.token_events += 1
        record.times_s.append(now_s)
        record.last_token_s = now_s
        if record.first_token_s is None:
            record.first_token_s = now_s
        if is_content:
            if record.first_content_s is None:
                record.first_content_s = now_s
            if self.keep_text and isinstance(text, str):
                self.parts.append(text)

    def _finish_reason(self, reason: str | None) -> None:
        if reason in ("error", "abort"):
            raise AnswerError(f"stream: the server ended with finish_reason {reason}")
        if reason:
            self.record.finish_reason = reason
            self.concluded = True

    def _usage(self, usage: _Usage) -> None:
        record = self.record
        record.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            record.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens
        details = usage.completion_tokens_details
        record.reasoning_tokens = usage.reasoning_tokens if details is None else details.reasoning_tokens


def said(error: Any) -> str:
    """A server's error in its own words, on one line: of an object its ``message``, ``detail``, ``error`` or ``msg``.

    >>> said({"error": {"message": "out of memory", "code": 500}})
    'out of memory'
    """
    while isinstance(error, dict):
        inner = next((error[name] for name in ("message", "detail", "error", "msg") if error.get(name)), None)
        if inner is None:
            break
        error = inner
    text = error if isinstance(error, str) else json.dumps(error)
    return " ".join(text.split())[:EXCERPT]


def message(body: bytes) -> str:
    """What the body of an error answer says, JSON in any form or text; may be empty.

    >>> message(b'{"error": {"message": "no such model"}}')
    'no such model'
    """
    try:
        # not json's loads: it passes half a surrogate pair, which no file takes
        return said(msgspec.json.decode(body))
    except _UNREADABLE:
        return excerpt(body)


def excerpt(data: bytes) -> str:
    """The beginning of ``data``, printable and on one line."""
    return " ".join(data[: 4 * EXCERPT].decode("utf-8", "replace").split())[:EXCERPT]


def _read(payload: bytes) -> _Chunk:
    try:
        return _decode(payload)
    except _UNREADABLE as why:
        raise AnswerError(f"malformed: {why}: {excerpt(payload)}") from None


def _refuse_bare_error(payload: bytes) -> None:
    """vLLM before 0.10 sends ``{"object": "error", "message": ...}`` without an ``error`` around it."""
    told = msgspec.json.decode(payload)
    if told.get("object") == "error":
        raise AnswerError(f"stream: {said(told)}")


def _plain_lines(data: bytes) -> tuple[bytes, bytes]:
    """``data`` with every line end as LF, and a CR at its end kept apart: an LF may follow it."""
    held = b"\r" if data.endswith(b"\r") else b""
    data = data[: len(data) - len(held)]
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), held


def _payload(event: bytes) -> bytes:
    """The data lines of one event, joined. Comments and the fields ``event``, ``id`` and ``retry`` say nothing here."""
    lines = []
    for line in event.split(b"\n"):
        name, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
        elif name not in (b"", b"event", b"id", b"retry"):
            raise AnswerError(f"malformed: not a line of an event stream: {excerpt(line)}")
    return b"\n".join(lines)
