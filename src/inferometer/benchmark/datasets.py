"""Prompts from files: read whatever the tool that wrote them, and put into an arena as JSON text.

Told apart by content:

- ShareGPT-style: a JSON array (or JSON lines) of rows with ``conversations``, each turn ``{"from": .., "value": ..}``;
  the prompt is the first user turn, and the answer that follows says about how long the output is
- JSON lines (or a JSON array) with ``prompt``, ``text``, ``question`` or ``messages`` (OpenAI's chat form), and
  optionally ``output_tokens``, ``max_tokens`` or ``output_length``
- anything else: plain text, a prompt a line

How many tokens such a prompt has is for the server's usage to say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.benchmark.job import Endpoint, Plan
from inferometer.benchmark.prompts import Prompts, Tokenizer, escaped, salts
from inferometer.errors import FormatError, InputError
from inferometer.specs.checks import whole
from inferometer.workload.streams import stream

Message = dict[str, Any]
"""``{"role": .., "content": ..}`` as the chat protocol has it."""
Form = Literal["sharegpt", "json", "text"]

_TEXTS = ("prompt", "text", "question")
_CONVERSATIONS = ("conversations", "conversation")
_OUTPUTS = ("output_tokens", "max_tokens", "output_length")
_USERS = ("human", "user")
_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_CHARACTERS_A_TOKEN = 4


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of a file; request ``i`` of a session (or alone) has row ``i`` in every column."""

    path: str
    form: Form
    prompts: list[str | list[Message]]
    """A text, or the messages of a chat."""
    output_tokens: list[int | None]
    session: list[int]
    """Which conversation each is of; adjacent. Each its own, unless sessions were asked for."""
    notes: list[str] = []

    @property
    def has_messages(self) -> bool:
        """Whether any prompt is a list of messages: in a chat they are all sent as such then."""
        return any(not isinstance(prompt, str) for prompt in self.prompts)


class _Turn(msgspec.Struct, frozen=True):
    prompt: str | list[Message]
    output_tokens: int | None
    estimated: bool = False


def load_dataset(
    path: str | os.PathLike[str], *, sessions: bool = False, tokenizer: Tokenizer | None = None
) -> Dataset:
    """The prompts in the file at ``path``.

    ``sessions``: every user turn of a conversation, in order, each to be sent after the answer to the one before it
    (the answers in the file are not sent; the server's own are). ``tokenizer``: counts the answers in the file; without
    one their tokens are a quarter of their characters.

    Raises:
        FormatError: a file that cannot be read, is broken or holds no prompts; the row is named.
    """
    file = os.fspath(path)
    text = _text(file)
    rows = _rows(file, text)
    count = tokenizer.count if tokenizer else lambda text: round(len(text) / _CHARACTERS_A_TOKEN)
    if rows is None:
        turns = [[_Turn(line.strip(), None)] for line in text.splitlines()]
        return _dataset(file, "text", turns)
    form: Form = "sharegpt" if any(_conversation(row) is not None for row in rows) else "json"
    return _dataset(file, form, [_turns(file, n, row, sessions, count) for n, row in enumerate(rows, 1)])


def plan_dataset(
    dataset: Dataset,
    path: str | os.PathLike[str],
    conversations: int,
    *,
    seed: int,
    endpoint: Endpoint,
    output_tokens: int | None = None,
    unsaid_output_tokens: Sequence[int] | npt.NDArray[np.int64] = (),
    scheduled_s: Sequence[float] | npt.NDArray[np.float64] = (),
    tokenizer: Tokenizer | None = None,
    fresh_salt: bool = False,
) -> Prompts:
    """So many conversations (prompts, where it has no sessions) drawn from ``dataset``, and the arena at ``path``.

    Drawn without replacement; a file with fewer is gone through again, in another order, and a note says so. Give
    `prompts.body` ``messages=dataset.has_messages`` for a chat. ``output_tokens``: of every request, instead of those
    in the file. ``unsaid_output_tokens``: of request i where the file does not say it, from the first again where there
    are fewer than requests. ``fresh_salt``: a random ``cache_salt`` for each conversation. Prompt tokens are known
    beforehand where there is a ``tokenizer`` and no chat template around.

    Raises:
        InputError: a number of conversations below 1, a file that does not say how long outputs are where nothing else
            does either, another number of ``scheduled_s`` than of requests, an arena that cannot be written.
    """
    rows, session, notes = _draw(dataset, whole("requests", conversations, 1), seed)
    if len(scheduled_s) not in (0, len(rows)):
        raise InputError("scheduled_s", f"{len(scheduled_s)} values", f"as many as there are requests, {len(rows)}")
    several = len(set(session)) < len(session)
    plan = Plan(
        index=list(range(len(rows))),
        slices=_write(path, rows, lambda row: _prompt_text(dataset, row, endpoint)),
        output_tokens=_output_tokens(dataset, rows, output_tokens, np.asarray(unsaid_output_tokens).tolist()),
        scheduled_s=np.asarray(scheduled_s, dtype=np.float64).tolist(),
        session=session if several else [],
        salt=salts(session, seed) if fresh_salt else [],
    )
    return Prompts(
        plan=plan,
        arena=os.fspath(path),
        distinct_requests=len(set(rows)),
        asked_prompt_tokens=_counts(dataset, rows, endpoint, tokenizer, several),
        notes=[*dataset.notes, *notes],
    )


def _text(file: str) -> str:
    try:
        with open(file, encoding="utf-8-sig", newline=None) as lines:
            return lines.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FormatError.because(f"{file}: cannot be read as a dataset: {why}") from error


def _rows(file: str, text: str) -> list[Any] | None:
    """The rows of a JSON array or of JSON lines; None for plain text."""
    start = text.lstrip()[:200]
    if re.match(r'\[\s*[{"\]\[]', start):
        rows = _decoded(file, text)
        return rows if isinstance(rows, list) else [rows]
    if re.match(r'\{\s*["}]', start):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [_decoded(f"{file}: line {number}", line) for number, line in lines]
    return None


def _decoded(where: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise FormatError.because(f"{where}: not valid JSON: {error}") from error


def _conversation(row: Any) -> list[Any] | None:
    found = next((row[name] for name in _CONVERSATIONS if name in row), None) if isinstance(row, dict) else None
    return found if isinstance(found, list) else None


def _turns(file: str, number: int, row: Any, sessions: bool, count: Callable[[str], int]) -> list[_Turn]:
    """The requests of one row; none where it has nothing to ask."""
    where = f"{file}: row {number}"
    if isinstance(row, str):
        return [_Turn(row, None)]
    if not isinstance(row, dict):
        raise FormatError.because(f"{where}: is no object and no text")
    declared = _declared(where, row)
    conversation = _conversation(row)
    messages = row.get("messages", row.get("prompt") if isinstance(row.get("prompt"), list) else None)
    if conversation is not None or (messages is not None and sessions):
        said = _said(where, conversation if conversation is not None else messages)
        return _user_turns(said, declared, count)[: None if sessions else 1]
    if messages is not None:
        return _chat(where, messages, declared, count)
    name = next((name for name in _TEXTS if name in row), None)
    if name is None:
        raise FormatError.because(f"{where}: has none of {', '.join([*_TEXTS, 'messages', 'conversations'])}")
    if not isinstance(row[name], str):
        raise FormatError.because(f"{where}: {name} is no text")
    return [_Turn(row[name], declared)]


def _declared(where: str, row: dict[str, Any]) -> int | None:
    name = next((name for name in _OUTPUTS if row.get(name) is not None), None)
    if name is None:
        return None
    try:
        return whole(name, row[name], 1)
    except InputError as error:
        raise FormatError.because(f"{where}: {error}") from error


def _said(where: str, turns: Any) -> list[tuple[str, str]]:
    """Who said what: ShareGPT's turns or messages."""
    if not isinstance(turns, list):
        raise FormatError.because(f"{where}: messages are no list")
    said = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise FormatError.because(f"{where}: a turn of the conversation is no object")
        who, what = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if not isinstance(who, str):
            raise FormatError.because(f"{where}: a turn does not say who speaks (from, or role)")
        said.append((who.lower(), _content(where, what)))
    return said


def _content(where: str, content: Any) -> str:
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise FormatError.because(f"{where}: a turn has something other than text")
    return "".join(str(text) for text in texts)


def _user_turns(said: list[tuple[str, str]], declared: int | None, count: Callable[[str], int]) -> list[_Turn]:
    turns = []
    for place, (who, what) in enumerate(said):
        if who not in _USERS or not what.strip():
            continue
        next_who, answer = said[place + 1] if place + 1 < len(said) else ("", "")
        length = max(1, count(answer)) if next_who in _ANSWERS and answer else None
        turns.append(_Turn(what, declared or length, declared is None and length is not None))
    return turns


def _chat(where: str, messages: Any, declared: int | None, count: Callable[[str], int]) -> list[_Turn]:
    """The messages up to the last user's; an answer after it says how long the output is."""
    said = _said(where, messages)
    last = max((place for place, (who, _) in enumerate(said) if who in _USERS), default=None)
    if last is None:
        return []
    turn = _user_turns(said[last:], declared, count)
    if not turn:
        return []
    kept = [{"role": "user" if who in _USERS else who, "content": what} for who, what in said[: last + 1]]
    return [msgspec.structs.replace(turn[0], prompt=said[0][1] if last == 0 else kept)]


def _dataset(file: str, form: Form, rows: list[list[_Turn]]) -> Dataset:
    kept = [turns for turns in ([turn for turn in row if turn.prompt] for row in rows) if turns]
    turns = [turn for row in kept for turn in row]
    if not turns:
        raise FormatError.because(f"{file}: holds no prompts")
    notes = [f"{len(rows) - len(kept)} rows without a prompt are left out"] if len(kept) < len(rows) else []
    if any(turn.estimated for turn in turns):
        notes.append("output tokens are those of the answers in the file, about")
    return Dataset(
        path=file,
        form=form,
        prompts=[turn.prompt for turn in turns],
        output_tokens=[turn.output_tokens for turn in turns],
        session=[number for number, row in enumerate(kept) for _ in row],
        notes=notes,
    )


def _draw(dataset: Dataset, conversations: int, seed: int) -> tuple[list[int], list[int], list[str]]:
    """Rows of the dataset, the session of each, and what there is to say of the draw."""
    rows_of: dict[int, list[int]] = {}
    for row, session in enumerate(dataset.session):
        rows_of.setdefault(session, []).append(row)
    random = stream(seed, "dataset")
    drawn: list[int] = []
    while len(drawn) < conversations:
        drawn += random.permutation(len(rows_of)).tolist()
    groups = list(rows_of.values())
    picked = [groups[session] for session in drawn[:conversations]]
    rows = [row for some in picked for row in some]
    notes = [f"the dataset has {len(rows_of)} prompts: they repeat"] if conversations > len(rows_of) else []
    return rows, [number for number, some in enumerate(picked) for _ in some], notes


def _output_tokens(dataset: Dataset, rows: list[int], given: int | None, unsaid: list[int]) -> list[int]:
    """Of each request: as given for all, else as the file says of its row, else as is said for requests without."""
    if given is not None:
        return [given] * len(rows)
    said = [dataset.output_tokens[row] for row in rows]
    if None in said and not unsaid:
        raise InputError("output_tokens", None, f"a number: {dataset.path} does not say it for every prompt")
    return [unsaid[i % len(unsaid)] if tokens is None else tokens for i, tokens in enumerate(said)]


def _prompt_text(dataset: Dataset, row: int, endpoint: Endpoint) -> str:
    """The prompt as it stands in a body, escaped."""
    prompt = dataset.prompts[row]
    if endpoint == "chat" and dataset.has_messages:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        objects = [
            f'{{"role":"{escaped(message["role"])}","content":"{escaped(message["content"])}"}}' for message in messages
        ]
        return ",".join(objects)
    return escaped(_plain(prompt))


def _plain(prompt: str | list[Message]) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)


def _write(path: str | os.PathLike[str], rows: list[int], text_of: Callable[[int], str]) -> list[list[int]]:
    """One slice a row, of a file that holds each different text once. Requests of one text share one list."""
    places: dict[str, list[int]] = {}
    of_row: dict[int, list[int]] = {}
    end = 0
    try:
        with open(path, "wb") as file:
            for row in dict.fromkeys(rows):
                text = text_of(row)
                if text not in places:
                    start, end = end, end + file.write(text.encode())
                    places[text] = [start, end]
                of_row[row] = places[text]
    except OSError as error:
        raise InputError.because(f"{os.fspath(path)}: the prompts cannot be written: {error.strerror}") from error
    return [of_row[row] for row in rows]


def _counts(
    dataset: Dataset, rows: list[int], endpoint: Endpoint, tokenizer: Tokenizer | None, sessions: bool
) -> list[int | None]:
    if tokenizer is None or endpoint == "chat" or sessions:
        return [None] * len(rows)
    counts = {row: tokenizer.count(_plain(dataset.prompts[row]), special=True) for row in dict.fromkeys(rows)}
    return [counts[row] for row in rows]
