"""Where the server is: what a user writes as its address, checked and made a `Connection`.

Values of headers are secrets here: they go to the server that was named and nowhere else. No error shows one, `public`
is the form for records and screens, and `veil` hides those that a server repeats. Light: the timed worker imports it.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from inferometer.benchmark.job import Connection
from inferometer.errors import InputError

if TYPE_CHECKING:
    import aiohttp

KEY_VARIABLES = ("INFEROMETER_API_KEY", "OPENAI_API_KEY")
"""Environment variables that an API key is taken from, the first that is set, where none is given."""

SHORTEST_SECRET = 4
"""Header values of fewer characters are not hidden: they would blot out words of any text."""

_ALLOWED = (
    "an address such as http://localhost:8000, https://host/openai/v1, http://[::1]:8000 or unix:///run/server.sock"
)
_PORTS = {"http": 80, "https": 443}
_UNIX = ("unix", "http+unix")
_ENDPOINTS = ("/chat/completions", "/completions", "/models")
_VERSION = re.compile(r"v\d+\w*")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = ("content-length", "content-type", "transfer-encoding", "connection", "host", "accept-encoding")


def parse_target(
    url: str,
    *,
    api_key: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    verify: bool = True,
    ca_file: str | os.PathLike[str] | None = None,
    connect_timeout_s: float = 10.0,
    timeout_s: float = 600.0,
    idle_timeout_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> Connection:
    """The server at ``url``, and how to speak to it.

    Accepted: ``http://`` and ``https://`` with or without port and path, a bare ``host:port`` (http), IPv6 in brackets,
    ``unix:///path/to.sock`` and ``http+unix://`` (the path plain or percent-encoded; a prefix after a colon or after
    ``.sock``). A path may be the server's root, end in a version (``/openai/v1``) or in an endpoint
    (``/v1/chat/completions``); a path with neither gets ``/v1``.

    ``api_key`` becomes ``Authorization: Bearer``. Where it is not given and no such header is, it is taken from
    ``INFEROMETER_API_KEY``, else from ``OPENAI_API_KEY``; an empty text means none at all.

    Raises:
        InputError: naming ``url``, ``api_key``, ``header``, ``ca_file`` or the time limit that is wrong.

    >>> connection = parse_target("localhost:8000/v1/completions")
    >>> connection.host, connection.port, connection.path
    ('localhost', 8000, '/v1')
    """
    from inferometer.specs.checks import positive  # brings numpy, which the timed worker does without

    place = _place(url)
    _check_ca(ca_file)
    return Connection(
        host=place.host,
        port=place.port,
        unix_socket=place.socket,
        tls=place.tls,
        verify=verify,
        ca_file=None if ca_file is None else os.fspath(ca_file),
        path=place.path,
        headers=_headers(headers, api_key, os.environ if environment is None else environment),
        connect_timeout_s=positive("connect_timeout_s", connect_timeout_s, "a number of seconds"),
        timeout_s=positive("timeout_s", timeout_s, "a number of seconds"),
        idle_timeout_s=positive("idle_timeout_s", idle_timeout_s, "a number of seconds"),
    )


def parse_header(text: str) -> tuple[str, str]:
    """A header as written on the command line, ``Name: value``.

    Raises:
        InputError: no colon, or not a header; the value is not shown.

    >>> parse_header("X-Team: serving")
    ('X-Team', 'serving')
    """
    name, colon, value = text.partition(":")
    if not colon:
        raise InputError.because("header: a text without a colon is not allowed; give 'Name: value'")
    return checked_header(name.strip(), value.strip())


def checked_header(name: str, value: str) -> tuple[str, str]:
    """A header that may be sent with every request, as it was given.

    Raises:
        InputError: it is none, or one that the client sets; the value is not shown.
    """
    if not _NAME.fullmatch(name):
        raise InputError.because("header: its name has characters that no header has; give 'Name: value'")
    if name.lower() in _OURS:
        raise InputError("header", name, f"another: {', '.join(_OURS)} are set by the client")
    if not re.fullmatch(r"[\x20-\x7e\xa0-\xff]*", value):
        raise InputError("header", name, "a value of one line, without tabs and other control characters")
    return name, value


def veil(text: str, connection: Connection) -> str:
    """``text`` with ``***`` for every header value of ``connection`` in it, which a server may repeat.

    Hidden are values of more than 3 characters, what follows their first space (``Bearer``) and, at the end of the
    text, which may be cut off there, the beginning of a secret.

    >>> veil("bad key Bearer sk-1234", parse_target("localhost:8000", api_key="sk-1234"))
    'bad key ***'
    """
    whole, begun = _secrets(connection.headers)
    for secret in whole:
        text = text.replace(secret, "***")
    beginning = next((each for each in begun if text.endswith(each)), "")
    return text.removesuffix(beginning) + "***" if beginning else text


@lru_cache(maxsize=8)
def _secrets(headers: tuple[tuple[str, str], ...]) -> tuple[list[str], list[str]]:
    """What is to be hidden, and how what was cut off may end, each the longest first: a value before its parts."""
    values = [value.strip() for _, value in headers]
    bare = [value.partition(" ")[2].strip() or value for value in values]  # "Bearer" alone is no secret
    plain = {text for text in (*values, *bare) if len(text) >= SHORTEST_SECRET}
    whole = plain | {json.dumps(text)[1:-1] for text in plain}  # as it stands in a server's JSON
    begun = {text[:length] for text in bare for length in range(SHORTEST_SECRET, len(text))}
    return sorted(whole, key=len, reverse=True), sorted(begun, key=len, reverse=True)


def reason(error: BaseException) -> str:
    """Why a connection or a request failed, in a few words: the system's own where it says, as event loops put others
    in their place, and without what was sent.
    """
    cause = getattr(error, "os_error", error)  # aiohttp wraps it
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError | socket.gaierror):  # whose numbers are others
        if cause.errno is not None and cause.errno in errno.errorcode:
            return os.strerror(cause.errno)
        if isinstance(cause, TimeoutError):
            return "no answer in time"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def base_url(connection: Connection) -> str:
    """What stands before ``/completions`` in requests to ``connection``; behind a Unix socket the host is a stand-in.

    >>> base_url(parse_target("https://[::1]/openai/v1/"))
    'https://[::1]/openai/v1'
    """
    return origin(connection) + connection.path


def root_url(connection: Connection) -> str:
    """`base_url` without its version: where ``/metrics``, ``/version`` and the like stand.

    >>> root_url(parse_target("http://gateway/team/v1"))
    'http://gateway/team'
    """
    head, _, last = connection.path.rpartition("/")
    return origin(connection) + (head if _VERSION.fullmatch(last) else connection.path)


def origin(connection: Connection) -> str:
    """Scheme, host and port, the port only where it is not the scheme's own."""
    scheme = "https" if connection.tls else "http"
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    return f"{scheme}://{host}" + ("" if connection.port == _PORTS[scheme] else f":{connection.port}")


def same_server(connection: Connection, url: str) -> bool:
    """Whether ``url`` is of the very server of ``connection``, so that its headers may go there.

    >>> same_server(parse_target("localhost:8000"), "http://localhost:9400/metrics")
    False
    """
    here, there = urlsplit(origin(connection)), urlsplit(url)
    return (here.scheme, here.hostname, connection.port) == (
        there.scheme,
        there.hostname,
        there.port or _PORTS.get(there.scheme),
    )


def public(connection: Connection) -> dict[str, Any]:
    """``connection`` for records and screens: where, and which headers are sent, without their values.

    >>> public(parse_target("localhost:8000", api_key="secret"))["headers"]
    ['Authorization']
    """
    return {
        "url": shown_url(connection),
        "verify": connection.verify,
        "headers": [name for name, _ in connection.headers],
        "connect_timeout_s": connection.connect_timeout_s,
        "timeout_s": connection.timeout_s,
        "idle_timeout_s": connection.idle_timeout_s,
    }


def shown_url(connection: Connection) -> str:
    """The address as `parse_target` takes it.

    >>> shown_url(parse_target("unix:///run/server.sock"))
    'unix:///run/server.sock:/v1'
    """
    if connection.unix_socket is not None:
        return f"unix://{connection.unix_socket}:{connection.path}"
    return base_url(connection)


def ssl_context(connection: Connection) -> ssl.SSLContext:
    """How certificates are checked: against ``ca_file``, else the system's authorities, or not at all.

    Raises:
        InputError: a ``ca_file`` that holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=connection.ca_file)
    except (OSError, ssl.SSLError):
        raise InputError("ca_file", connection.ca_file, "a file of certificates in PEM form") from None
    if not connection.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def open_session(connection: Connection, *, timeout_s: float, elsewhere: bool = False) -> aiohttp.ClientSession:
    """A session for requests off the clock (detection, probes, scraping); the caller closes it.

    ``elsewhere``: for other servers (an exporter's): over TCP, and without the headers of ``connection``. Every request
    has a connection of its own, as some servers (llama.cpp's) close theirs just when the next request comes.
    """
    import aiohttp  # heavy, and the timed worker does without

    connector: aiohttp.BaseConnector
    if connection.unix_socket is not None and not elsewhere:
        connector = aiohttp.UnixConnector(connection.unix_socket, force_close=True)
    else:
        connector = aiohttp.TCPConnector(ssl=ssl_context(connection), force_close=True)
    limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connection.connect_timeout_s)
    headers = () if elsewhere else connection.headers
    return aiohttp.ClientSession(connector=connector, timeout=limits, headers=headers)


class _Place(NamedTuple):
    host: str
    port: int
    tls: bool
    path: str
    socket: str | None = None


def _place(url: str) -> _Place:
    if not isinstance(url, str) or not url.strip():
        raise InputError("url", url, _ALLOWED)
    text = url.strip()
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise InputError("url", _veiled(text), f"{_ALLOWED}, without spaces or control characters")
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = "http", f"[{text}]" if _is_ipv6(text) else text
    scheme = scheme.lower()
    if scheme in _UNIX:
        return _unix_place(text, rest)
    if scheme not in _PORTS:
        raise InputError("url", _veiled(text), _ALLOWED)
    return _tcp_place(text, scheme, f"{scheme}://{rest}")


def _tcp_place(text: str, scheme: str, url: str) -> _Place:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a bad port or bad brackets
        raise InputError("url", _veiled(text), f"{_ALLOWED}, its port from 1 to 65535") from None
    if parts.username is not None or parts.password is not None:
        raise InputError("url", _veiled(text), "it without user and password: those go into an API key or a header")
    if parts.query or parts.fragment:
        raise InputError("url", _veiled(text), "it without what follows ? or #")
    if not host or port == 0:
        raise InputError("url", _veiled(text), _ALLOWED)
    return _Place(unquote(host), port or _PORTS[scheme], scheme == "https", _path(parts.path))


def _unix_place(text: str, rest: str) -> _Place:
    encoded, slash, prefix = rest.partition("/")
    if encoded and "%2f" in encoded.lower():
        socket, prefix = unquote(encoded), slash + prefix
    else:
        found = re.fullmatch(r"(/.*?)(?:(?:(?<=\.sock)|:)(/[^:]*))?", rest)
        if found is None:
            raise InputError("url", text, "unix:// and an absolute path: unix:///run/server.sock")
        socket, prefix = found[1], found[2] or ""
    return _Place("localhost", 80, False, _path(prefix), socket)


def _path(given: str) -> str:
    """The prefix of all endpoints: ``given`` without an endpoint at its end, ``/v1`` added where it has no version."""
    path = re.sub(r"/+", "/", quote(given, safe="/%:@!$&'()*+,;=~-._")).rstrip("/")
    for endpoint in _ENDPOINTS:
        if path.endswith(endpoint):
            return path.removesuffix(endpoint)
    if any(_VERSION.fullmatch(part) for part in path.split("/")):
        return path
    return path + "/v1"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _veiled(url: str) -> str:
    """``url`` with what may be a password, or a key in its query, hidden."""
    return re.sub(r"\?.*", "?***", re.sub(r"(^|//)[^/]*@", r"\1***@", url))


def _headers(
    given: Iterable[tuple[str, str]], api_key: str | None, environment: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    own = tuple(checked_header(name, value) for name, value in given)
    authorised = any(name.lower() == "authorization" for name, _ in own)
    if api_key and authorised:
        raise InputError.because("api_key: an Authorization header is given too; give one of the two")
    if api_key is None and not authorised:
        api_key = next((environment[name] for name in KEY_VARIABLES if environment.get(name)), None)
    if not api_key:
        return own
    if not re.fullmatch(r"[\x21-\x7e]+", api_key.strip()):
        raise InputError.because("api_key: has a space, a line break or a character outside ASCII; give the key alone")
    return (("Authorization", f"Bearer {api_key.strip()}"), *own)


def _check_ca(ca_file: str | os.PathLike[str] | None) -> None:
    if ca_file is not None and not os.path.isfile(ca_file):
        raise InputError("ca_file", os.fspath(ca_file), "a file of certificates in PEM form")
