"""Prompts of exact token length, made before the clock starts: an arena of bytes, and slices of it.

The arena is a file of random units of five bytes each, so that offsets are plain arithmetic: a four-digit token id and
a comma, or a space and an English word of four letters that nearly every vocabulary holds as one token. A request's
prompt is a slice of the arena's ring. No two slices start at the same place, so no two prompts have a prefix in common
beyond the token or two that chance gives, unless sharing is asked for; then the shared prefixes are slices of a part of
the file that no other slice touches.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.benchmark.job import Endpoint, Plan
from inferometer.errors import InputError
from inferometer.specs.checks import whole
from inferometer.workload.streams import stream

Kind = Literal["ids", "words"]
Bytes = npt.NDArray[np.uint8]

UNIT_BYTES = 5
CAP_BYTES = 64_000_000
"""An arena is not larger, so that what all workers map stays in memory."""
FRESH = "fresh"
"""The ``cache_salt`` that stands for a random one a request."""
ID_RANGE = (1000, 9999)
"""Token ids that are used, both included: ordinary tokens in every vocabulary of 10,000 and more."""
_CHUNK_UNITS = 1_000_000
_LEAST_SPACING = 64  # of cycled plans: so many rounds before a prompt comes again

_ENGLISH = """
able army away baby back ball band bank base bear beat best bill bird blue boat body book born both busy call calm
came camp card care case city club coal coat cold come cook cool copy cost dark data date dead deal dear deep door
down draw drew drop each east easy edge else even ever evil face fact fair fall farm fast fear feel feet fell felt
file fill film find fine fire fish five flat flow food foot form four free from full game gave girl give glad goal
goes gold gone good gray grew grow hair half hall hand hang hard have head hear heat held help here high hill hold
home hope hour huge idea inch into iron item join jump just keep kept kind king knew know lady lake land last late
lead left less life lift like line list live long look lost love made mail main make many mark meet mile milk mind
mine miss moon more most move much name near need news next nice nine note once only open over page pair park part
pass past path plan play poem pool poor race rain read real rest rich ride ring rise road rock role room rule safe
said sail salt same sand save seat seem seen self sell send ship shoe shop show side sign sing size skin slow snow
soft some song soon stay step stop such sure take talk tall team tell than that them then they thin this time told
took town tree trip true turn type unit upon very wait walk wall want warm wash wave week well went were west what
when wide wife wild will wind wise wish with wood word work yard year your
"""
WORDS = tuple(_ENGLISH.split())
"""English words of four letters."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens a prompt of so many units has: ``overhead_tokens + tokens_per_unit * units``."""

    kind: Kind = "ids"
    tokens_per_unit: float = 1.0
    overhead_tokens: float = 0.0
    """A token for the beginning of the text, a chat's template, a system prompt."""
    words: tuple[str, ...] = WORDS
    id_range: tuple[int, int] = ID_RANGE


class Template(NamedTuple):
    """A request's body without its prompt and its output length: ``head + prompt + middle + N + tail``."""

    head: str
    middle: str
    tail: str


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """All prompts of a run: the plan over all workers, and what the job needs to know of the arena."""

    plan: Plan
    arena: str
    ring_bytes: int = 0
    shift_bytes: int = 0
    """0: a cycled plan cannot move its slices."""
    distinct_requests: int = 0
    """So many are sent before a prompt comes again, however often a cycled plan is gone through."""
    asked_prompt_tokens: list[int | None]
    """None where the server's usage alone says how long a prompt is."""
    notes: list[str] = []


def body(
    endpoint: Endpoint,
    model: str,
    *,
    stream: bool = True,
    usage: bool = True,
    ignore_eos: bool = True,
    temperature: bool = True,
    token_ids: bool = False,
    max_tokens_key: str = "max_tokens",
    system_prompt: str | None = None,
    messages: bool = False,
    extra_body: Mapping[str, Any] | None = None,
) -> Template:
    """The JSON around a prompt and an output length.

    ``temperature``: 0, unless ``extra_body`` has another. ``token_ids``: the prompt is ids and commas. ``messages``:
    the prompt is whole JSON objects of a chat, separated by commas; otherwise a chat's prompt is one user message's
    text. ``system_prompt`` goes before it: as a system message, or as the text that a completion begins with.

    Raises:
        InputError: an ``extra_body`` that asks for several answers or sets what is set here; a system prompt before
            token ids; token ids in a chat.

    >>> head, middle, tail = body("completions", "m", usage=False, ignore_eos=False, token_ids=True)
    >>> head + "1,2" + middle + "16" + tail
    '{"model":"m","stream":true,"temperature":0,"prompt":[1,2],"max_tokens":16}'
    """
    if token_ids and (endpoint == "chat" or system_prompt):
        raise InputError("token_ids", True, "False for a chat or with a system prompt: those are texts")
    fields: dict[str, Any] = {"model": model, "stream": stream}
    if stream and usage:
        fields["stream_options"] = {"include_usage": True}
    if temperature:
        fields["temperature"] = 0
    if ignore_eos:
        fields["ignore_eos"] = True
    fields |= _checked_extra(extra_body or {})
    opening, closing = _around(endpoint, token_ids, messages, system_prompt or "")
    return Template(_json(fields)[:-1] + "," + opening, f'{closing},"{max_tokens_key}":', "}")


def _around(endpoint: Endpoint, token_ids: bool, messages: bool, system: str) -> tuple[str, str]:
    if endpoint == "completions":
        return ('"prompt":[', "]") if token_ids else ('"prompt":"' + escaped(system), '"')
    before = _json({"role": "system", "content": system}) + "," if system else ""
    if messages:
        return '"messages":[' + before, "]"
    return f'"messages":[{before}{{"role":"user","content":"', '"}]'


_SET_HERE = {
    "model": "the model option",
    "prompt": "a workload or a dataset",
    "messages": "a workload or a dataset",
    "stream": "the stream option",
    "stream_options": "the stream option",
    "max_tokens": "the workload's output_tokens",
    "max_completion_tokens": "the workload's output_tokens",
}
_ONE_ANSWER = {"n": 1, "best_of": 1, "use_beam_search": False, "echo": False}


def _checked_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in extra.items():
        if key in _SET_HERE:
            raise InputError(f"extra_body.{key}", value, f"it through {_SET_HERE[key]} instead")
        if key in _ONE_ANSWER and value is not None and value != _ONE_ANSWER[key]:
            raise InputError(
                f"extra_body.{key}", value, f"{_ONE_ANSWER[key]!r} or nothing: one request is one answer's tokens here"
            )
    try:
        _json(dict(extra))
    except (TypeError, ValueError, OverflowError):
        raise InputError("extra_body", type(extra).__name__, "values that JSON can hold") from None
    return dict(extra)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def escaped(text: str) -> str:
    """``text`` as it stands between the quotes of a JSON string; lone surrogates become U+FFFD.

    >>> escaped('say "hi"')
    'say \\\\"hi\\\\"'
    """
    return _json(re.sub(r"[\ud800-\udfff]", "\ufffd", text))[1:-1]


def units_for(tokens: npt.ArrayLike, how: Calibration) -> npt.NDArray[np.int64]:
    """Units whose prompt is nearest to each of ``tokens``, at least 1.

    >>> units_for([1, 100], Calibration(kind="words", overhead_tokens=9, tokens_per_unit=1.0)).tolist()
    [1, 91]
    """
    units = np.rint((np.asarray(tokens, dtype=np.float64) - how.overhead_tokens) / how.tokens_per_unit)
    return np.maximum(units, 1).astype(np.int64)


def make_arena(
    kind: Kind,
    units: int,
    seed: int,
    path: str | os.PathLike[str],
    *,
    words: Sequence[str] = WORDS,
    id_range: tuple[int, int] = ID_RANGE,
) -> int:
    """Write ``units`` random units to ``path`` and return the file's size in bytes.

    Raises:
        InputError: words not of four letters, ids not of four digits, a file that cannot be written.
    """
    random = stream(seed, "prompts")
    try:
        with open(path, "wb") as file:
            for start in range(0, units, _CHUNK_UNITS):
                some = min(_CHUNK_UNITS, units - start)
                file.write(random_units(kind, some, random, words=words, id_range=id_range))
    except OSError as error:
        raise InputError.because(f"{os.fspath(path)}: the prompts cannot be written: {error.strerror}") from error
    return units * UNIT_BYTES


def random_units(
    kind: Kind,
    units: int,
    random: np.random.Generator,
    *,
    words: Sequence[str] = WORDS,
    id_range: tuple[int, int] = ID_RANGE,
) -> bytes:
    """So many units of five bytes; token ids have a comma after the last one too.

    Raises:
        InputError: words not of four letters, ids not of four digits.
    """
    table = _id_units(id_range) if kind == "ids" else _word_units(words)
    return table[random.integers(0, len(table), units)].tobytes()


def _id_units(id_range: tuple[int, int]) -> Bytes:
    low, high = id_range
    if not 1000 <= low < high <= 9999:
        raise InputError("id_range", id_range, "two different ids from 1000 to 9999, the lower first")
    return _table([f"{number}," for number in range(low, high + 1)])


def _word_units(words: Sequence[str]) -> Bytes:
    if len(words) < 2 or not all(re.fullmatch("[A-Za-z]{4}", word) for word in words):
        raise InputError("words", f"{len(words)} words", "at least two words of four ASCII letters")
    return _table([f" {word}" for word in words])


def _table(units: list[str]) -> Bytes:
    return np.frombuffer("".join(units).encode(), dtype=np.uint8).reshape(len(units), UNIT_BYTES)


def make_plan(
    path: str | os.PathLike[str],
    prompt_tokens: Sequence[int] | npt.NDArray[np.int64],
    output_tokens: Sequence[int] | npt.NDArray[np.int64],
    how: Calibration,
    *,
    seed: int,
    scheduled_s: Sequence[float] | npt.NDArray[np.float64] = (),
    turns: int = 1,
    cycle: bool = False,
    shared_prefix_tokens: int = 0,
    prefix_reuse: int | None = None,
    fresh_salt: bool = False,
) -> Prompts:
    """Random prompts for so many requests, and the arena at ``path`` that holds them.

    ``turns``: so many requests after one another are a session; of all but the first, ``prompt_tokens`` are what the
    user adds. ``shared_prefix_tokens`` of every prompt (of a session's first) come from a few prefixes: as many as
    give each to ``prefix_reuse`` requests (None: one for all), request i having prefix i modulo their number.
    ``fresh_salt``: a random ``cache_salt`` for each (each session). A fresh ``seed`` a point keeps a point's prompts
    out of the cache that the one before it left.

    Raises:
        InputError: no requests, columns of unequal length, sessions of ids, a negative size, a file not writable.
    """
    tokens = np.asarray(prompt_tokens, dtype=np.int64)
    _check_columns(len(tokens), len(output_tokens), len(scheduled_s), turns, how)
    first = np.arange(len(tokens)) % turns == 0
    units, notes = _lengths(tokens, first, how)
    prefix = _prefixes(units, first, how, shared_prefix_tokens, prefix_reuse, turns)
    ring = _ring(units - prefix.units, cycle)
    make_arena(how.kind, ring.ends + prefix.total, seed, path, words=how.words, id_range=how.id_range)
    rows = range(len(tokens))
    session = [row // turns for row in rows] if turns > 1 else []
    plan = Plan(
        index=list(rows),
        slices=_slices(units, prefix, ring, how.kind),
        output_tokens=np.asarray(output_tokens, dtype=np.int64).tolist(),
        scheduled_s=np.asarray(scheduled_s, dtype=np.float64).tolist(),
        session=session,
        salt=salts(session or rows, seed) if fresh_salt else [],
    )
    return Prompts(
        plan=plan,
        arena=os.fspath(path),
        ring_bytes=ring.units * UNIT_BYTES,
        shift_bytes=ring.shift * UNIT_BYTES,
        distinct_requests=ring.units,
        asked_prompt_tokens=[n if row % turns == 0 else None for row, n in enumerate(tokens.tolist())],
        notes=[*notes, *prefix.notes, *ring.notes, *_chance_notes(units - prefix.units, how)],
    )


def split_plan(plan: Plan, workers: int, users: Sequence[int] = ()) -> list[Plan]:
    """``plan`` dealt out to so many workers in turn, sessions whole; a worker may get nothing.

    ``users``: how many of a closed loop each worker has; it gets rows in that proportion, so that no worker has sent
    all of its own long before the others have.

    >>> plan = Plan(index=[0, 1, 2, 3, 4, 5], slices=[[0, 4]] * 6, output_tokens=[1] * 6)
    >>> [part.index for part in split_plan(plan, 2)], [part.index for part in split_plan(plan, 2, users=[2, 1])]
    ([[0, 2, 4], [1, 3, 5]], [[0, 2, 3, 5], [1, 4]])
    """
    if workers == 1:
        return [plan]
    weights = users or [1] * workers
    turn = np.array([worker for lap in range(max(weights)) for worker in range(workers) if lap < weights[worker]])
    first = np.diff(plan.session, prepend=-1) != 0 if plan.session else np.ones(len(plan.index), dtype=bool)
    worker_of = turn[(np.cumsum(first) - 1) % len(turn)]
    return [_part(plan, (worker_of == worker).tolist()) for worker in range(workers)]


def _part(plan: Plan, mine: list[bool]) -> Plan:
    columns = {name: getattr(plan, name) for name in Plan.__struct_fields__}
    return Plan(**{name: list(itertools.compress(column, mine)) for name, column in columns.items()})


class _Prefixes(NamedTuple):
    units: npt.NDArray[np.int64]
    """Of each request."""
    start: npt.NDArray[np.int64]
    """Where each request's is, counted from the first one."""
    total: int
    notes: list[str]


class _Ring(NamedTuple):
    units: int
    spacing: int
    shift: int
    longest: int
    notes: list[str]

    @property
    def ends(self) -> int:
        """Units up to where no slice of the ring reaches."""
        return self.units + self.longest


def _check_columns(count: int, outputs: int, times: int, turns: int, how: Calibration) -> None:
    whole("turns", turns, 1)
    if not count or outputs != count:
        raise InputError("output_tokens", f"{outputs} values", f"as many as there are prompts, {count}, at least one")
    if times not in (0, count):
        raise InputError("scheduled_s", f"{times} values", f"as many as there are requests, which is {count}")
    if turns > 1 and how.kind == "ids":
        raise InputError(
            "turns", turns, "1 with prompts of token ids; a session's answers are text, and so its prompts"
        )


def _lengths(
    tokens: npt.NDArray[np.int64], first: npt.NDArray[np.bool_], how: Calibration
) -> tuple[npt.NDArray[np.int64], list[str]]:
    bare = msgspec.structs.replace(how, overhead_tokens=0.0)
    units = np.where(first, units_for(tokens, how), units_for(tokens, bare))
    short = int(np.count_nonzero(first & (tokens < how.overhead_tokens + how.tokens_per_unit / 2)))
    if not short:
        return units, []
    least = how.overhead_tokens + how.tokens_per_unit
    return units, [f"{short} prompts are longer than asked: the server's own tokens make {least:.0f} the least"]


def _prefixes(
    units: npt.NDArray[np.int64],
    first: npt.NDArray[np.bool_],
    how: Calibration,
    shared_tokens: int,
    reuse: int | None,
    turns: int,
) -> _Prefixes:
    wanted = round(whole("shared_prefix_tokens", shared_tokens) / how.tokens_per_unit)
    nothing = np.zeros_like(units)
    if not wanted:
        return _Prefixes(nothing, nothing, 0, [])
    sessions = math.ceil(len(units) / turns)
    count = math.ceil(sessions / (sessions if reuse is None else whole("prefix_reuse", reuse, 1)))
    spacing = max(1, min(wanted, (CAP_BYTES // UNIT_BYTES - wanted) // count))
    own = np.where(first, np.minimum(wanted, units - 1), 0)
    cut = int(np.count_nonzero(first & (own < wanted)))
    notes = [f"{cut} prompts are not longer than the shared prefix: they have less of it"] if cut else []
    start = np.arange(len(units)) // turns % count * spacing
    return _Prefixes(own, start, (count - 1) * spacing + wanted, notes)


def _ring(units: npt.NDArray[np.int64], cycle: bool) -> _Ring:
    """Slices apart by the longest where the cap allows, so that they do not even overlap."""
    count, longest = len(units), int(units.max())
    room = max(CAP_BYTES // UNIT_BYTES - longest, 1)
    spacing = max(1, min(max(longest, _LEAST_SPACING if cycle else 1), room // count))
    ring = min(count, room) * spacing
    notes = [f"prompts repeat after {ring} requests"] if count > ring or (cycle and spacing < _LEAST_SPACING) else []
    return _Ring(ring, spacing, _shift(spacing) if cycle else 0, longest, notes)


def _shift(spacing: int) -> int:
    """A step that visits all offsets between two slices before it comes back, far from the one before."""
    step = max(1, round(spacing * 0.618))
    while math.gcd(step, spacing) > 1:
        step += 1
    return step


def _slices(units: npt.NDArray[np.int64], prefix: _Prefixes, ring: _Ring, kind: Kind) -> list[list[int]]:
    start = np.arange(len(units)) * ring.spacing % ring.units * UNIT_BYTES
    stop = start + (units - prefix.units) * UNIT_BYTES - (kind == "ids")  # no comma after the last id
    if not prefix.total:
        alone: list[list[int]] = np.stack([start, stop], axis=1).tolist()
        return alone
    shared = (ring.ends + prefix.start) * UNIT_BYTES
    shared_stop = shared + prefix.units * UNIT_BYTES
    rows = np.stack([shared, shared_stop, start, stop], axis=1).tolist()
    return [row if row[1] > row[0] else row[2:] for row in rows]


def _chance_notes(units: npt.NDArray[np.int64], how: Calibration) -> list[str]:
    choices = how.id_range[1] - how.id_range[0] + 1 if how.kind == "ids" else len(how.words)
    alike = len(units) ** 2 / 2 * float(choices) ** -float(min(int(units.min()), 50))
    if alike <= 0.01:
        return []
    least = int(units.min())
    return [f"prompts of {least} units of their own are so short that some may be the same by chance"]


def salts(session: Iterable[int], seed: int) -> list[str]:
    """`Plan.salt` of requests of these sessions, those of one adjacent: a random one a session.

    >>> first, second, third = salts([0, 1, 1], seed=0)
    >>> first == second, second == third
    (False, True)
    """
    random = stream(seed, "cache_salt")
    found: list[str] = []
    for _, turns in itertools.groupby(session):
        salt = f',"cache_salt":"{random.bytes(16).hex()}"'
        found += [salt for _ in turns]
    return found


class Tokenizer:
    """A tokenizer on this machine, to count with and to choose words by."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self.name = inner, name

    def count(self, text: str, *, special: bool = False) -> int:
        """Tokens of ``text``; ``special``: with those that the tokenizer adds to a prompt."""
        return len(self._inner.encode(text, add_special_tokens=special).ids)

    def calibration(self) -> Calibration:
        """For completions: words of one token each, and what the tokenizer adds to a prompt.

        The words are English ones, and where fewer than 50 of those qualify, others of the vocabulary.

        Raises:
            InputError: fewer than two such words, or joined they are not as many tokens as words.
        """
        good = self._single(WORDS)
        if len(good) < 50:
            good = self._single(sorted({*good, *self._of_vocabulary()}))
        sample = stream(0, "tokenizer").choice(good, 400).tolist() if len(good) > 1 else []
        if not sample or self._joined(sample) - self._joined(sample[:100]) != 300:
            raise InputError("tokenizer", self.name, "one in which words of four letters are one token each, or none")
        added = self._joined(sample, special=True) - len(sample)
        return Calibration(kind="words", overhead_tokens=float(added), words=tuple(good))

    def _joined(self, words: Sequence[str], special: bool = False) -> int:
        return self.count("".join(f" {word}" for word in words), special=special)

    def _single(self, words: Sequence[str]) -> list[str]:
        alone = self._joined(["time"])  # some tokenizers put a token of their own before a text
        return [word for word in words if self._joined(["time", word]) == alone + 1]

    def _of_vocabulary(self) -> list[str]:
        found = (re.fullmatch("[Ġ▁ ]([a-z]{4})", piece) for piece in self._inner.get_vocab())
        return [match[1] for match in found if match]


def load_tokenizer(name: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer in a ``tokenizer.json``, in the folder that holds one, or of a name on the Hugging Face Hub.

    Raises:
        InputError: the ``tokenizers`` package is missing, or there is no such tokenizer.
    """
    text = os.fspath(name)
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        raise InputError.because(
            "tokenizer: needs a package that is not installed; pip install 'inferometer[tokenizer]'"
        ) from None
    file = Path(text) / "tokenizer.json" if Path(text).is_dir() else Path(text)
    try:
        inner = library.Tokenizer.from_file(str(file)) if file.exists() else library.Tokenizer.from_pretrained(text)
    except Exception as error:  # the package raises bare Exception
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError("tokenizer", text, f"a tokenizer.json, its folder, or a name on the hub ({why})") from error
    return Tokenizer(inner, text)
