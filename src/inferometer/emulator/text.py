"""The emulator's tokenizer: a token is a word.

A text has as many tokens as it has words between white space; an answer is one short word a token. Ids are the words'
CRC-32 within the vocabulary, so that they repeat; they cannot be turned back, and `detokenize` writes as many words.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

WORDS = (
    " the", " quick", " brown", " fox", " jumps", " over", " a", " lazy",
    " dog", " and", " then", " it", " walks", " home", " by", " night",
)  # fmt: skip
"""Sixteen tokens, each with the space before it; token ``k`` of an answer is word ``k`` modulo 16."""


def count_tokens(text: str) -> int:
    """Tokens of a text.

    >>> count_tokens("how many  words are here")
    5
    """
    return len(text.split())


def tokenize(text: str, vocabulary: int) -> list[int]:
    """An id for each word, below ``vocabulary``."""
    return [zlib.crc32(word.encode()) % vocabulary for word in text.split()]


def detokenize(tokens: Iterable[int]) -> str:
    """A text of as many tokens."""
    return "".join(WORDS[token % len(WORDS)] for token in tokens).strip()


def answer(tokens: int) -> str:
    """The text of an answer of so many tokens.

    >>> answer(3)
    ' the quick brown'
    """
    whole, rest = divmod(tokens, len(WORDS))
    return "".join(WORDS) * whole + "".join(WORDS[:rest])


def chat_tokens(messages: Sequence[object], template_tokens: int) -> int:
    """Tokens of a chat: the words of all contents, and ``template_tokens`` for what a template puts around them."""
    return template_tokens + sum(count_tokens(text) for message in messages for text in _contents(message))


def _contents(message: object) -> list[str]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
