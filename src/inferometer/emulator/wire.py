"""The bytes of answers, in the layout of vLLM's: a streamed chunk, and the whole of an answer that is not streamed."""

from __future__ import annotations

from typing import Any

import msgspec

from inferometer.emulator.text import WORDS, answer

DONE = b"data: [DONE]\n\n"
BROKEN = b'data: {"id":"broken","choices":[{"index":0,\n\n'
"""A chunk whose JSON does not end."""


def http_chunk(data: bytes) -> bytes:
    """Framed for ``Transfer-Encoding: chunked``."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def usage(prompt: int, output: int) -> dict[str, Any]:
    """The usage object; nothing is ever found in a cache."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


class Wire:
    """Chunks of one answer, unframed. What does not change is put together once."""

    def __init__(self, id: str, model: str, created_s: int, chat: bool) -> None:
        self.chat, self.id = chat, id
        kind = "chat.completion" if chat else "text_completion"
        self.head = {"id": id, "object": kind, "created": created_s, "model": model}
        self.chunk_head = {**self.head, "object": "chat.completion.chunk"} if chat else self.head
        marked = self._event(self._choice("\0", None))
        self.before, self.after = marked.split(b"\\u0000")

    def _choice(self, content: str, reason: str | None) -> dict[str, Any]:
        if self.chat:
            return {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": reason}
        return {"index": 0, "text": content, "logprobs": None, "finish_reason": reason, "stop_reason": None}

    def _event(self, choice: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        document = {**self.chunk_head, "choices": [choice], **(extra or {})}
        return b"data: %b\n\n" % msgspec.json.encode(document)

    def token(self, word: str) -> bytes:
        """A chunk that holds this text; words need no escaping."""
        return b"%b%b%b" % (self.before, word.encode(), self.after)

    def token_with_usage(self, word: str, counts: dict[str, Any], reason: str | None) -> bytes:
        """The same with token counts so far."""
        return self._event(self._choice(word, reason), {"usage": counts})

    def last(self, word: str, reason: str) -> bytes:
        """The last token's chunk, with the reason."""
        return self._event(self._choice(word, reason))

    def role(self) -> bytes:
        """A chat's first chunk: who speaks, and no token."""
        delta = {"role": "assistant", "content": ""}
        return self._event({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None})

    def counts(self, prompt: int, output: int) -> bytes:
        """The chunk of usage, without choices."""
        document = {**self.chunk_head, "choices": [], "usage": usage(prompt, output)}
        return b"data: %b\n\n" % msgspec.json.encode(document)

    def whole(self, prompt: int, output: int, reason: str, with_usage: bool) -> bytes:
        """An answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        content = answer(output)
        choice |= {"message": {"role": "assistant", "content": content}} if self.chat else {"text": content}
        counts = usage(prompt, output) if with_usage else None
        return msgspec.json.encode({**self.head, "choices": [choice], "usage": counts})


def words(first: int, count: int) -> str:
    """The text of tokens ``first`` to ``first + count - 1`` of an answer."""
    return "".join(WORDS[k % len(WORDS)] for k in range(first, first + count))
