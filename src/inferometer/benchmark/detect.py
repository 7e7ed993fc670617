"""What answers at an address, and what it takes: asked before the clock starts.

`detect` reads the server's own descriptions (GET requests only). `probe` sends a few tiny requests, the same way as the
benchmark will, to learn which fields the server takes and how many tokens a prompt of so many units has. Both belong
before the first boundary page of ``/metrics``, so that nothing of theirs is in the run's counters.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec
import numpy as np

from inferometer.benchmark.job import Connection, Endpoint
from inferometer.benchmark.prompts import (
    ID_RANGE,
    WORDS,
    Calibration,
    Kind,
    Template,
    body,
    random_units,
)
from inferometer.benchmark.sse import message
from inferometer.benchmark.target import base_url, open_session, origin, root_url, same_server, shown_url, veil
from inferometer.benchmark.target import reason as reason
from inferometer.errors import InputError
from inferometer.records.engine_log import without_secrets
from inferometer.records.prometheus import cache_config, parse_page
from inferometer.specs.checks import complaint

Engine = Literal["vllm", "sglang", "tgi", "trtllm", "llamacpp", "openai"]
Flag = str | int | float | bool

_OWNERS: dict[str, Engine] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "tensorrt_llm": "trtllm",
}
_METRIC_NAMES: dict[str, Engine] = {
    "vllm:": "vllm",
    "sglang:": "sglang",
    "tgi_": "tgi",
    "trtllm_": "trtllm",
    "llamacpp:": "llamacpp",
}
_ASK_TIMEOUT_S = 10.0
_TRIES = 4
_PASSING = (408, 425, 429)
"""Refusals that another try may not get; so are all from 500 on."""
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""What aiohttp raises, an address it cannot use included."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What answers, by what it says of itself."""

    engine: Engine
    """``openai``: an OpenAI-compatible server that does not say which."""
    version: str | None = None
    model: str
    """As requests have to name it."""
    models: list[str] = []
    """All that it lists."""
    max_model_len: int | None = None
    """Tokens of prompt and output together that it allows."""
    metrics_urls: list[str] = []
    """Those that answered with Prometheus text."""
    flags: dict[str, Flag] = {}
    """What it tells of its settings, without what may be a secret."""
    server_header: str | None = None
    notes: list[str] = []


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the server takes, found by trying, and how long a prompt is."""

    takes_token_ids: bool
    gives_usage: bool
    """At the end of a stream, or with the whole answer."""
    takes_usage_option: bool
    """``stream_options`` may be sent."""
    takes_ignore_eos: bool
    takes_temperature: bool
    max_tokens_key: str
    calibration: Calibration
    calibrated: bool
    """Whether the calibration is the server's own count, and no guess."""
    probes: int
    """Requests sent, those that were repeated after a passing failure too."""
    probe_prompt_tokens: int
    """Of the probes that were answered, by the server's usage."""
    probe_output_tokens: int
    notes: list[str] = []

    def body_options(self) -> dict[str, Any]:
        """What `prompts.body` has to be told."""
        return {
            "usage": self.takes_usage_option,
            "ignore_eos": self.takes_ignore_eos,
            "temperature": self.takes_temperature,
            "token_ids": self.calibration.kind == "ids",
            "max_tokens_key": self.max_tokens_key,
        }


async def detect(
    connection: Connection, model: str | None = None, *, metrics_urls: Sequence[str] | None = None
) -> Server:
    """The server behind ``connection``.

    ``model``: whose name requests carry; None: the only one that is served. ``metrics_urls``: None: the usual places
    are tried; given, each must answer.

    Raises:
        InputError: nothing answers (``url``), the key is refused (``api_key``), the model is not served or several are
            and none is asked for (``model``), a given metrics address does not answer (``metrics_url``).
    """
    async with open_session(connection, timeout_s=_ASK_TIMEOUT_S) as session:
        listing, header = await _listing(session, connection)
        cards = [card for card in _get(listing, "data", list) or [] if isinstance(card, dict) and "id" in card]
        name, notes = _served(model, [str(card["id"]) for card in cards])
        pages = await _metrics(session, connection, metrics_urls)
        facts = await _facts(session, root_url(connection), _owner(cards, name), header, list(pages.values()))
    if not pages and metrics_urls is None:
        notes.append(_no_metrics(facts.engine))
    card = next((card for card in cards if card["id"] == name), {})
    return Server(
        engine=facts.engine,
        version=facts.version,
        model=name,
        models=[str(card["id"]) for card in cards],
        max_model_len=_first_int(card.get("max_model_len"), facts.max_model_len),
        metrics_urls=list(pages),
        flags=facts.flags,
        server_header=header,
        notes=notes,
    )


async def _listing(session: aiohttp.ClientSession, connection: Connection) -> tuple[Any, str | None]:
    """The answer of ``/models`` and the ``Server`` header; an empty one of servers that have no such list."""
    where = shown_url(connection)
    try:
        status, text, header = await _models(session, connection)
    except _FAILURES as error:
        why = veil(reason(error), connection)
        raise complaint("url", f"nothing answers at {where} ({why}); is it running?") from None
    if status in (401, 403):
        raise InputError.because(f"api_key: {where} answers {status}: {_about_key(connection)}")
    if status in _PASSING or status >= 500:
        why = _message(text, connection)
        raise InputError("url", where, f"that of a server that is ready: /models answers {status} ({why})")
    return (_json(text) if status == 200 else None), header


async def _models(session: aiohttp.ClientSession, connection: Connection) -> tuple[int, str, str | None]:
    status, text, header = 0, "", None
    for attempt in range(_TRIES):
        await asyncio.sleep(0.1 * 2**attempt if attempt else 0)
        async with session.get(base_url(connection) + "/models", allow_redirects=False) as answer:
            status, text, header = answer.status, await answer.text(errors="replace"), answer.headers.get("Server")
        if status not in _PASSING and status < 500:
            break
    return status, text, header


def _about_key(connection: Connection) -> str:
    given = any(name.lower() == "authorization" for name, _ in connection.headers)
    return "it does not take the key that is given" if given else "it wants a key, and none is given"


def _served(model: str | None, served: list[str]) -> tuple[str, list[str]]:
    if model is None:
        if len(served) == 1:
            return served[0], []
        allowed = f"one of {', '.join(served)}" if served else "its name: the server lists none"
        raise InputError("model", None, allowed)
    if not served:
        return model, ["the server lists no models: the one given is taken as it is"]
    if model not in served:
        raise InputError("model", model, f"one that is served: {', '.join(served)}")
    return model, []


def _owner(cards: list[dict[str, Any]], name: str) -> str:
    return next((str(card.get("owned_by", "")) for card in cards if card["id"] == name), "")


async def _metrics(
    session: aiohttp.ClientSession, connection: Connection, given: Sequence[str] | None
) -> dict[str, str]:
    """The pages that answered, by address."""
    if given is not None:
        pages = {}
        for url in given:
            if urlsplit(url).scheme not in ("http", "https"):
                raise InputError("metrics_url", url, "an http:// or https:// address")
            pages[url] = await _given_page(session, connection, url)
        return pages
    root = root_url(connection)
    places = [f"{root}/metrics", f"{origin(connection)}/metrics", f"{root}/prometheus/metrics"]
    for url in dict.fromkeys(places):
        status, text = await _ask(session, url)
        if status == 200 and is_prometheus(text):
            return {url: text}
    return {}


async def _given_page(session: aiohttp.ClientSession, connection: Connection, url: str) -> str:
    if same_server(connection, url):
        status, text = await _ask(session, url)
    else:
        async with open_session(connection, timeout_s=_ASK_TIMEOUT_S, elsewhere=True) as other:
            status, text = await _ask(other, url)
    if status != 200 or not is_prometheus(text):
        what = f"it answers {status}" if status else veil(text, connection)
        raise InputError("metrics_url", url, f"an address that answers with Prometheus text ({what})")
    return text


def is_prometheus(text: str) -> bool:
    """Whether ``text`` looks like a page of metrics: its first line is a comment or a name and a value.

    TensorRT-LLM has JSON at ``/metrics`` and its Prometheus page at ``/prometheus/metrics``.

    >>> is_prometheus("vllm:num_requests_running 2"), is_prometheus("[]"), is_prometheus("<html> 1")
    (True, False, False)
    """
    first = text.lstrip().split("\n", 1)[0]
    return bool(re.match(r"# (HELP|TYPE|EOF)|[A-Za-z_:][\w:]*(\{.*\})?\s+[-+.\dNI]", first))


def _no_metrics(engine: Engine) -> str:
    hint = {
        "llamacpp": "; start llama-server with --metrics",
        "sglang": "; start it with --enable-metrics",
        "trtllm": "; set return_perf_metrics: true in its configuration",
    }.get(engine, "")
    return f"no /metrics page answers: nothing is known of the server's inside{hint}"


class _Facts(msgspec.Struct):
    engine: Engine
    version: str | None = None
    max_model_len: int | None = None
    flags: dict[str, Flag] = {}


async def _facts(session: aiohttp.ClientSession, root: str, owner: str, header: str | None, pages: list[str]) -> _Facts:
    """By the model's owner, else by who answers at a place of its own, else by the names on the metrics page."""
    known = _OWNERS.get(owner.lower()) or ("llamacpp" if "llama.cpp" in (header or "") else None)
    readers = {"sglang": _sglang, "tgi": _tgi, "llamacpp": _llamacpp}
    for engine, read in readers.items():
        if known in (None, engine):
            facts = await read(session, root)
            if facts is not None:
                return facts
    named = next(
        (engine for mark, engine in _METRIC_NAMES.items() for page in pages if f"\n{mark}" in f"\n{page}"), None
    )
    _, text = await _ask(session, root + "/version")
    version = _get(_json(text), "version", str)
    # vLLM's own settings stand nowhere else
    configs = (cache_config(parse_page(page)) for page in pages if "cache_config_info" in page)
    return _Facts(engine=known or named or "openai", version=version, flags=_flags(next(configs, {})))


async def _sglang(session: aiohttp.ClientSession, root: str) -> _Facts | None:
    for place in ("/get_server_info", "/server_info"):
        _, text = await _ask(session, root + place)
        info = _json(text)
        if isinstance(info, dict) and ("mem_fraction_static" in info or "chunked_prefill_size" in info):
            length = _first_int(info.get("context_length"), info.get("max_total_num_tokens"))
            return _Facts("sglang", _get(info, "version", str), length, _flags(info))
    return None


async def _tgi(session: aiohttp.ClientSession, root: str) -> _Facts | None:
    _, text = await _ask(session, root + "/info")
    info = _json(text)
    if not isinstance(info, dict) or not {"max_concurrent_requests", "max_total_tokens"} <= info.keys():
        return None
    return _Facts("tgi", _get(info, "version", str), _first_int(info["max_total_tokens"]), _flags(info))


async def _llamacpp(session: aiohttp.ClientSession, root: str) -> _Facts | None:
    _, text = await _ask(session, root + "/props")
    info = _json(text)
    if not isinstance(info, dict) or "default_generation_settings" not in info:
        return None
    settings = _get(info, "default_generation_settings", dict) or {}
    flags = {name: info[name] for name in ("total_slots",) if isinstance(info.get(name), int)}
    length = _first_int(settings.get("n_ctx"))
    return _Facts("llamacpp", _get(info, "build_info", str), length, flags | ({"n_ctx": length} if length else {}))


def _flags(info: Mapping[str, Any]) -> dict[str, Flag]:
    plain = {name: value for name, value in info.items() if isinstance(value, str | int | float | bool)}
    found: dict[str, Flag] = without_secrets(plain)
    return found


async def _ask(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    """Status and text of a GET; 0 and the reason where nothing answers."""
    try:
        async with session.get(url, allow_redirects=False) as answer:
            return answer.status, await answer.text(errors="replace")
    except _FAILURES as error:
        return 0, reason(error)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _get(value: Any, name: str, kind: type) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, kind) else None


def _first_int(*values: Any) -> int | None:
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


def _message(text: str, connection: Connection) -> str:
    """The sentence of an error answer, in whatever form the server gives it; a secret it repeats is hidden."""
    return veil(message(text.encode("utf-8", "replace")), connection) or "no reason given"


MAX_PROBES = 6
_PROBE_OUTPUT = 2
_ANSWER_BYTES = 1_000_000


class _Refused(Exception):
    """A probe that the server will never take as it is."""


class _Form(msgspec.Struct):
    """How the next probe is sent; what the server refuses is dropped from it."""

    kind: Kind
    id_range: tuple[int, int]
    usage: bool = True
    ignore_eos: bool = True
    temperature: bool = True
    max_tokens_key: str = "max_tokens"
    stream: bool = True


class _Answer(msgspec.Struct, frozen=True):
    prompt_tokens: int | None
    output_tokens: int | None


async def probe(
    connection: Connection,
    model: str,
    endpoint: Endpoint,
    *,
    max_model_len: int | None = None,
    token_ids: bool = True,
    stream: bool = True,
    ignore_eos: bool = True,
    words: tuple[str, ...] = WORDS,
    id_range: tuple[int, int] = ID_RANGE,
    system_prompt: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
    cache_salt: str | None = None,
) -> Abilities:
    """Find out by at most six tiny requests what the server takes; each has random content of its own.

    Normally two: prompts of two lengths, whose usage gives the tokens of a unit and the overhead. Every refusal costs
    one more: fields are dropped (``ignore_eos``, ``stream_options``, ``temperature``), ``max_tokens`` becomes
    ``max_completion_tokens``, token ids become words. A request that fails in passing (5xx, 429, a broken connection)
    is sent up to three times more.

    ``token_ids`` False: words are wanted, as sessions and datasets do. ``system_prompt``, ``extra_body`` and
    ``cache_salt`` are sent as the benchmark will send them.

    Raises:
        InputError: the server refuses a field that was asked for, the key, or every form of the request.
    """
    ids = token_ids and endpoint == "completions" and not system_prompt
    form = _Form("ids" if ids else "words", id_range, usage=stream, stream=stream, ignore_eos=ignore_eos)
    fixed = {"system_prompt": system_prompt, "extra_body": extra_body}
    async with open_session(connection, timeout_s=min(connection.timeout_s, 120.0)) as session:
        prober = _Prober(session, connection, model, endpoint, form, fixed, cache_salt, words)
        return await prober.run(max_model_len)


class _Prober:
    """One server, asked; counts what it sent."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        connection: Connection,
        model: str,
        endpoint: Endpoint,
        form: _Form,
        fixed: Mapping[str, Any],
        cache_salt: str | None,
        words: tuple[str, ...],
    ) -> None:
        self.session, self.connection, self.model, self.endpoint = session, connection, model, endpoint
        self.form, self.fixed, self.salt, self.words = form, fixed, cache_salt, words
        self.forms_tried = self.sent = self.prompt_tokens = self.output_tokens = 0
        self.usage_seen = self.usage_only_whole = False
        self.notes: list[str] = []
        self.random = np.random.default_rng(secrets.randbits(64))

    async def run(self, max_model_len: int | None) -> Abilities:
        asked_ids = self.form.kind == "ids"
        calibration = await self._calibrate(*_sizes(max_model_len))
        if calibration is not None and calibration.kind == "ids" and calibration.tokens_per_unit != 1.0:
            self.notes.append(f"token ids are counted as {calibration.tokens_per_unit:.2f} tokens each: words are sent")
            self.form.kind = "words"
            calibration = await self._calibrate(*_sizes(max_model_len))
        guess = Calibration(kind=self.form.kind, words=self.words, id_range=self.form.id_range)
        if calibration is None:
            self.notes.append("the server gives no usage: prompt lengths and output tokens are the client's own count")
        return Abilities(
            takes_token_ids=asked_ids and self.form.kind == "ids",
            gives_usage=self.usage_seen and not self.usage_only_whole,
            takes_usage_option=self.form.usage,
            takes_ignore_eos=self.form.ignore_eos,
            takes_temperature=self.form.temperature,
            max_tokens_key=self.form.max_tokens_key,
            calibration=calibration or guess,
            calibrated=calibration is not None,
            probes=self.sent,
            probe_prompt_tokens=self.prompt_tokens,
            probe_output_tokens=self.output_tokens,
            notes=self.notes,
        )

    async def _calibrate(self, few: int, many: int) -> Calibration | None:
        """Tokens of a unit and overhead, from the usage of two lengths; None where there is no usage."""
        first = await self._accepted(few)
        if first.prompt_tokens is None and self.form.stream:
            self.form.stream = False  # many that leave it out of streams give it with a whole answer
            first = await self._accepted(few)
            self.usage_only_whole = first.prompt_tokens is not None
            if self.usage_only_whole:
                self.notes.append("the server gives no usage in streams: output tokens are counted by events")
        if first.prompt_tokens is None:
            return None
        second = await self._accepted(many)
        if second.prompt_tokens is None:
            return None
        slope = (second.prompt_tokens - first.prompt_tokens) / (many - few)
        if slope <= 0:
            self.notes.append("the usage does not grow with the prompt: it is not believed")
            return None
        overhead = first.prompt_tokens - slope * few
        if self.form.kind == "words" and abs(slope - 1) > 1e-9:
            self.notes.append(f"a word is {slope:.3f} tokens on average: prompt lengths are close, not exact")
        return Calibration(
            kind=self.form.kind,
            tokens_per_unit=slope,
            overhead_tokens=max(overhead, 0.0),
            words=self.words,
            id_range=self.form.id_range,
        )

    async def _accepted(self, units: int) -> _Answer:
        """The answer to a prompt of so many units, in the first form that the server takes."""
        said = "nothing"
        while self.forms_tried < MAX_PROBES:
            self.forms_tried += 1
            try:
                answer = await self._patient(units)
            except _Refused as error:
                said = str(error)
                self._drop(said)
                continue
            self.usage_seen |= answer.prompt_tokens is not None
            self.prompt_tokens += answer.prompt_tokens or 0
            self.output_tokens += answer.output_tokens or 0
            return answer
        raise InputError.because(
            f"{shown_url(self.connection)}: refuses every form of a request; the last time: {said}"
        )

    def _drop(self, said: str) -> None:
        """Leave out what the refusal names; where it names nothing, what a server is least likely to know."""
        low = said.lower()
        for field in [*(self.fixed["extra_body"] or {}), *(["cache_salt"] if self.salt is not None else [])]:
            if re.search(rf"\b{re.escape(field.lower())}\b", low):
                raise InputError.because(f"{field}: the server refuses it ({said})")
        choices = self._droppable()
        named = [drop for mark, drop in choices if re.search(mark, low)]
        if not (named or choices):
            raise InputError.because(f"{shown_url(self.connection)}: refuses a plain request ({said})")
        (named or [drop for _, drop in choices])[0]()

    def _droppable(self) -> list[tuple[str, Callable[[], None]]]:
        """What can still be left out, the least common first, each with what a refusal of it is known by."""
        form, ids = self.form, self.form.kind == "ids"
        choices: list[tuple[bool, str, Callable[[], None]]] = [
            (form.ignore_eos, "ignore_eos", self._drop_ignore_eos),
            (form.usage and form.stream, "stream_options|include_usage", self._drop_usage),
            (form.temperature, "temperature", self._drop_temperature),
            (form.max_tokens_key == "max_tokens", "max_completion_tokens", self._rename_max_tokens),
            (ids and form.id_range == ID_RANGE, "vocab|token.{0,20}out of range", self._narrow_ids),
            (ids, "prompt|token|integer|string", self._drop_ids),
        ]
        return [(mark, drop) for can, mark, drop in choices if can]

    def _narrow_ids(self) -> None:
        self.form.id_range = (1000, 1999)
        self.notes.append("token ids are taken from 1000 to 1999: higher ones are refused")

    def _rename_max_tokens(self) -> None:
        self.form.max_tokens_key = "max_completion_tokens"

    def _drop_ignore_eos(self) -> None:
        self.form.ignore_eos = False
        self.notes.append("the server refuses ignore_eos: answers may end before the length asked for")

    def _drop_usage(self) -> None:
        self.form.usage = False
        self.notes.append("the server refuses stream_options")

    def _drop_temperature(self) -> None:
        self.form.temperature = False
        self.notes.append("the server refuses temperature 0: its own is used")

    def _drop_ids(self) -> None:
        self.form.kind = "words"
        self.notes.append("the server refuses token ids: words are sent")

    def _body(self, units: int) -> bytes:
        form = self.form
        template: Template = body(
            self.endpoint,
            self.model,
            stream=form.stream,
            usage=form.usage,
            ignore_eos=form.ignore_eos,
            temperature=form.temperature,
            token_ids=form.kind == "ids",
            max_tokens_key=form.max_tokens_key,
            **self.fixed,
        )
        prompt = random_units(form.kind, units, self.random, words=self.words, id_range=form.id_range)
        text = prompt.removesuffix(b",").decode()
        salt = "" if self.salt is None else ',"cache_salt":' + json.dumps(self.salt)
        return f"{template.head}{text}{template.middle}{_PROBE_OUTPUT}{salt}{template.tail}".encode()

    async def _patient(self, units: int) -> _Answer:
        """One probe, sent again where it failed in passing."""
        why = ""
        for attempt in range(_TRIES):
            await asyncio.sleep(0.1 * 2**attempt if attempt else 0)
            self.sent += 1
            try:
                status, text = await self._post(self._body(units))
            except _FAILURES as error:
                why = veil(reason(error), self.connection)
                if isinstance(error, TimeoutError):
                    break  # it has waited long enough
                continue
            if status == 200 and (answer := _answer(text)) is not None:
                return answer
            why = f"{status}: {_message(text, self.connection)}"
            if status not in (200, *_PASSING) and (status < 500 or status == 501):
                self._judge(status, text)
        raise InputError.because(f"{shown_url(self.connection)}: a first request fails; the last of its tries: {why}")

    async def _post(self, content: bytes) -> tuple[int, str]:
        place = "/chat/completions" if self.endpoint == "chat" else "/completions"
        url, headers = base_url(self.connection) + place, {"Content-Type": "application/json"}
        async with self.session.post(url, data=content, headers=headers, allow_redirects=False) as answer:
            text = await answer.content.read(_ANSWER_BYTES) if answer.status != 200 else await answer.read()
            return answer.status, text.decode("utf-8", "replace")

    def _judge(self, status: int, text: str) -> None:
        where, said = shown_url(self.connection), _message(text, self.connection)
        if status in (401, 403):
            raise InputError.because(f"api_key: {where} answers {status}: {_about_key(self.connection)} ({said})")
        if status == 404 and "model" in said.lower():
            raise InputError("model", self.model, f"one that the server has ({said})")
        if status in (404, 405, 501) or status < 400:
            other = "chat" if self.endpoint == "completions" else "completions"
            raise InputError("endpoint", self.endpoint, f"one that the server has, perhaps {other} ({status}: {said})")
        raise _Refused(f"{status}: {said}")


def _sizes(max_model_len: int | None) -> tuple[int, int]:
    """Units of the two probes: far apart, and well inside of a short context however words are cut."""
    many = 256 if max_model_len is None else max(8, min(256, max_model_len // 8))
    return many // 4, many


def _answer(text: str) -> _Answer | None:
    """The usage in an answer, streamed or whole; None for an answer that broke off or reports an error."""
    found = _Answer(None, None)
    events = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    for event in events or [text]:
        value = _json(event)
        if event == "[DONE]":
            continue
        if not isinstance(value, dict) or value.get("error"):
            return None
        usage = _get(value, "usage", dict) or {}
        if isinstance(usage.get("prompt_tokens"), int):
            found = _Answer(usage["prompt_tokens"], _get(usage, "completion_tokens", int))
    return found
