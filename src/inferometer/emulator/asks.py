"""What a client asks for: bodies of ``/v1/completions`` and ``/v1/chat/completions``, and refusals in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import msgspec

from inferometer.emulator import text
from inferometer.specs.workload import Workload
from inferometer.workload import generate

COMPLETION_MAX_TOKENS = 16
"""Of a completion that states none (OpenAI's default)."""
CHAT_OUTPUT_TOKENS = 128
"""Of a chat answer, where neither the client nor ``--output-tokens`` says."""
DRAWS = 4096
"""Output lengths drawn ahead; then they come again."""


class Refusal(Exception):
    """An answer other than 200, in OpenAI's form."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        self.status, self.kind, self.message, self.param = status, kind, message, param
        super().__init__(message)

    def body(self) -> bytes:
        """The JSON of the error."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


def bad(message: str, param: str | None = None) -> Refusal:
    """HTTP 400."""
    return Refusal(400, "BadRequestError", message, param)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine can serve."""

    model: str
    max_model_len: int
    block_size: int
    blocks: int
    """KV blocks that one request may hold."""
    template_tokens: int

    def check(self, prompt: int, limit: int | None) -> None:
        """Refuse what is too long, as the engine does."""
        most = self.max_model_len
        if prompt >= most:
            raise bad(
                f"This model's maximum context length is {most} tokens. However, your request has {prompt} input "
                "tokens. Please reduce the length of the input messages.",
                "input_tokens",
            )
        if limit is not None and prompt + limit > most:
            raise bad(
                f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum context length "
                f"is {most} tokens and your request has {prompt} input tokens ({limit} > {most} - {prompt}).",
                "max_tokens",
            )

    def check_pool(self, prompt: int, output: int) -> None:
        """Refuse what even the empty pool could not hold (the last token's keys and values are never needed)."""
        if -(-(prompt + output - 1) // self.block_size) > self.blocks:
            raise bad(f"the request of {prompt} + {output} tokens is larger than the KV pool of {self.blocks} blocks")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request, read and checked."""

    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    reason: str
    stream: bool
    include_usage: bool
    continuous_usage: bool


class Outputs:
    """How long answers are: as long as asked, or drawn where the client lets the model stop."""

    def __init__(self, lengths: Any, seed: int) -> None:
        self.drawn: Iterator[int] | None = None
        if lengths is not None:
            load = Workload.closed_loop(concurrency=1, requests=DRAWS, prompt_tokens=1, output_tokens=lengths)
            self.drawn = cycle([max(1, int(n)) for n in generate(load, seed).output_tokens])

    def choose(self, limit: int | None, default: int, least: int, ignore_eos: bool) -> tuple[int, str]:
        """Output tokens and the reason for the end; ``default`` where neither client nor distribution says."""
        if ignore_eos and limit is not None:
            return limit, "length"
        wanted = max(least, next(self.drawn)) if self.drawn else None
        if wanted is None:
            return (limit, "length") if limit is not None else (default, "stop")
        return (wanted, "stop") if limit is None or wanted < limit else (limit, "length")


def read_ask(raw: bytes, chat: bool, limits: Limits, outputs: Outputs) -> Ask:
    """Read a body.

    Raises:
        Refusal: it is not JSON, names another model, is too long, or asks for what the emulator does not do.
    """
    body = read_object(raw)
    _check_model(body, limits.model)
    _check_unsupported(body)
    prompt = _chat_prompt(body, limits) if chat else _prompt_tokens(body)
    limit = _limit(body, chat)
    limits.check(prompt, limit)
    room = limits.max_model_len - prompt
    least = _count(body, "min_tokens", 0) or 0
    if limit is not None and least > limit:
        raise bad(f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.", "min_tokens")
    if not isinstance(body.get("stream", False), bool | None):
        raise bad("stream must be true or false", "stream")
    output, reason = outputs.choose(limit, min(CHAT_OUTPUT_TOKENS, room), least, bool(body.get("ignore_eos")))
    output, reason = (room, "length") if output > room else (output, reason)
    limits.check_pool(prompt, output)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad("stream_options must be an object", "stream_options")
    return Ask(
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=room if limit is None else limit,
        reason=reason,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
    )


def read_object(raw: bytes) -> dict[str, Any]:
    """A JSON object. Raises `Refusal` for anything else."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad("the body is not a JSON object")
    return body


def _check_model(body: dict[str, Any], model: str) -> None:
    asked = body.get("model")
    if asked not in (None, "", model):
        raise Refusal(404, "NotFoundError", f"The model `{asked}` does not exist.", "model")


def _check_unsupported(body: dict[str, Any]) -> None:
    for field, usual in (("n", 1), ("best_of", 1), ("echo", False)):
        if body.get(field) not in (None, usual):
            raise bad(f"the emulator serves only {field}={str(usual).lower()}", field)
    if body.get("stream_options") and not body.get("stream"):
        raise bad("Stream options can only be defined when `stream=True`.", "stream_options")


def _limit(body: dict[str, Any], chat: bool) -> int | None:
    newer = _count(body, "max_completion_tokens", 1) if chat else None
    limit = newer if newer is not None else _count(body, "max_tokens", 1)
    return COMPLETION_MAX_TOKENS if limit is None and not chat else limit


def _count(body: dict[str, Any], field: str, least: int) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise bad(f"{field} must be at least {least}, got {value!r}.", field)
    return value


def _prompt_tokens(body: dict[str, Any]) -> int:
    """A text, a list of token ids, or a list of one of these."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise bad("the emulator serves one prompt a request", "prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        tokens = text.count_tokens(prompt)
    elif isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt):
        tokens = len(prompt)
    else:
        raise bad("prompt must be a text, a list of token ids, or a list of one of these", "prompt")
    if not tokens:
        raise bad("The prompt cannot be empty", "prompt")
    return tokens


def _chat_prompt(body: dict[str, Any], limits: Limits) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise bad("messages must be a list of at least one object", "messages")
    return max(1, text.chat_tokens(messages, limits.template_tokens))
