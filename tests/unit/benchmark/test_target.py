"""Addresses as people write them, and secrets that stay where they belong."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

import aiohttp
import msgspec
import pytest

from inferometer.benchmark.job import Connection
from inferometer.benchmark.target import (
    base_url,
    origin,
    parse_header,
    parse_target,
    public,
    reason,
    root_url,
    same_server,
    shown_url,
    ssl_context,
    veil,
)
from inferometer.errors import InputError


def target(url: str, **options: Any) -> Connection:
    return parse_target(url, environment={}, **options)


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "path"),
    [
        ("http://localhost:8000", "localhost", 8000, False, "/v1"),
        ("localhost:8000", "localhost", 8000, False, "/v1"),
        ("  localhost:8000/ ", "localhost", 8000, False, "/v1"),
        ("localhost", "localhost", 80, False, "/v1"),
        ("HTTPS://api.example.com", "api.example.com", 443, True, "/v1"),
        ("http://h:1/v1", "h", 1, False, "/v1"),
        ("http://h:1/v1/", "h", 1, False, "/v1"),
        ("http://h:1/v1/completions", "h", 1, False, "/v1"),
        ("http://h:1/v1/chat/completions/", "h", 1, False, "/v1"),
        ("http://h:1/v1/models", "h", 1, False, "/v1"),
        ("https://h/openai/v1", "h", 443, True, "/openai/v1"),
        ("https://h/openai", "h", 443, True, "/openai/v1"),
        ("https://h//openai//v1", "h", 443, True, "/openai/v1"),
        ("https://h/v1beta/openai", "h", 443, True, "/v1beta/openai"),
        ("https://h/api/chat/completions", "h", 443, True, "/api"),
        ("https://h/completions", "h", 443, True, ""),
        ("http://[::1]:8000", "::1", 8000, False, "/v1"),
        ("[2001:db8::2]:80/v1", "2001:db8::2", 80, False, "/v1"),
        ("::1", "::1", 80, False, "/v1"),
        ("http://[fe80::1%25eth0]:8000", "fe80::1%eth0", 8000, False, "/v1"),
    ],
)
def test_addresses(url: str, host: str, port: int, tls: bool, path: str):
    found = target(url)
    assert (found.host, found.port, found.tls, found.path) == (host, port, tls, path)
    assert found.unix_socket is None


@pytest.mark.parametrize(
    ("url", "socket", "path"),
    [
        ("unix:///run/server.sock", "/run/server.sock", "/v1"),
        ("unix:///run/server.sock/v1", "/run/server.sock", "/v1"),
        ("unix:///run/server.sock/openai/v1/completions", "/run/server.sock", "/openai/v1"),
        ("unix:///run/server:/api/v2", "/run/server", "/api/v2"),
        ("http+unix:///run/server", "/run/server", "/v1"),
        ("http+unix://%2Frun%2Fserver.sock/v1/chat/completions", "/run/server.sock", "/v1"),
    ],
)
def test_unix_sockets(url: str, socket: str, path: str):
    found = target(url)
    assert (found.unix_socket, found.path, found.host) == (socket, path, "localhost")
    assert target(shown_url(found)) == found


@pytest.mark.parametrize("url", ["http://h:1", "https://h/openai/v1", "http://[::1]:8000/v1"])
def test_what_is_shown_reads_back(url: str):
    assert target(shown_url(target(url))) == target(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "   ",
        "ftp://h",
        "http://",
        "http://:8000",
        "http://h:0",
        "http://h:65536",
        "http://h:x",
        "http://[::1",
        "http://h/a b",
        "http://h/v1\r\nX: y",
        "http://h/v1?api-version=2",
        "http://h/v1#here",
        "unix://relative.sock",
        "unix://",
    ],
)
def test_what_is_no_address_is_one_clear_error(url: str):
    with pytest.raises(InputError, match=r"^url: ") as raised:
        target(url)
    assert raised.value.field == "url"


def test_urls_for_requests():
    found = target("https://[::1]:8443/team/v1")
    assert base_url(found) == "https://[::1]:8443/team/v1"
    assert root_url(found) == "https://[::1]:8443/team"
    assert origin(target("https://h:443")) == "https://h"
    assert root_url(target("https://h/api/completions")) == "https://h/api"
    assert base_url(target("unix:///run/s.sock")) == "http://localhost/v1"


def test_headers_go_to_the_same_server_only():
    found = target("http://h:80")
    assert same_server(found, "http://h/metrics")
    assert not same_server(found, "http://h:9400/metrics")
    assert not same_server(found, "https://h/metrics")
    assert not same_server(found, "http://evil.example/metrics")


def test_the_key_is_a_bearer_header():
    assert target("h", api_key=" abc ").headers == (("Authorization", "Bearer abc"),)
    assert target("h", headers=[("X-A", "1")]).headers == (("X-A", "1"),)


def test_the_environment_is_only_the_fallback():
    environment = {"OPENAI_API_KEY": "theirs", "INFEROMETER_API_KEY": "ours"}
    bearer = dict(parse_target("h", environment=environment).headers)["Authorization"]
    assert bearer == "Bearer ours"
    assert parse_target("h", environment={"OPENAI_API_KEY": "theirs"}).headers == (("Authorization", "Bearer theirs"),)
    assert parse_target("h", api_key="mine", environment=environment).headers == (("Authorization", "Bearer mine"),)
    assert parse_target("h", api_key="", environment=environment).headers == ()
    own = ("authorization", "Basic x")
    assert parse_target("h", headers=[own], environment=environment).headers == (own,)


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFEROMETER_API_KEY", "from-outside")
    assert parse_target("h").headers == (("Authorization", "Bearer from-outside"),)


SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"http://user:{SECRET}@h:8000", {}),
        (f"user:{SECRET}@h:8000/v1", {}),
        (f"http://user:{SECRET}@h:notaport", {}),
        (f"http://h/v1?key={SECRET}", {}),
        ("h", {"api_key": f"{SECRET}\r\nX: y"}),
        ("h", {"api_key": f"{SECRET} {SECRET}"}),
        ("h", {"api_key": SECRET, "headers": [("Authorization", f"Bearer {SECRET}")]}),
        ("h", {"headers": [("X-Key", f"{SECRET}\nX: y")]}),
        ("h", {"headers": [("X-Key", f"{SECRET}\r")]}),
        ("h", {"headers": [("X-Key", f"{SECRET}\t")]}),
        ("h", {"headers": [("X Key", SECRET)]}),
        ("h", {"headers": [("Content-Length", SECRET)]}),
    ],
)
def test_errors_never_show_a_secret(url: str, options: dict[str, Any]):
    with pytest.raises(InputError) as raised:
        target(url, **options)
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(raised.value.__dict__)
    assert raised.value.__cause__ is None


def test_what_is_made_public_has_no_secret():
    found = target("h:1", api_key=SECRET, headers=[("X-Key", SECRET)])
    shown = public(found)
    assert SECRET not in msgspec.json.encode(shown).decode()
    assert shown["headers"] == ["Authorization", "X-Key"]
    assert shown["url"] == "http://h:1/v1"


def test_header_texts():
    assert parse_header("X-A:  b:c ") == ("X-A", "b:c")
    for text in (SECRET, f"X A: {SECRET}"):
        with pytest.raises(InputError, match=r"^header: ") as raised:
            parse_header(text)
        assert SECRET not in str(raised.value)


def test_time_limits_and_certificates(tmp_path):
    with pytest.raises(InputError, match=r"^timeout_s: 0 is not allowed"):
        target("h", timeout_s=0)
    with pytest.raises(InputError, match=r"^ca_file: "):
        target("https://h", ca_file=tmp_path / "absent.pem")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    with pytest.raises(InputError, match=r"^ca_file: .*PEM"):
        ssl_context(target("https://h", ca_file=junk))
    assert not ssl_context(target("https://h", verify=False)).check_hostname
    assert ssl_context(target("https://h")).check_hostname


def test_a_secret_is_not_in_the_repr() -> None:
    connection = parse_target("localhost:8000", api_key="s3cret")
    assert "s3cret" not in repr(connection)
    assert "Authorization" in repr(connection)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Bearer s3cret-key", "***"),
        ("s3cret-key, s3cret-key", "***, ***"),
        ("use Bearer", "use Bearer"),
        ("a blue, and a red", "a ***, and a red"),
        ("cut off: s3cret-k", "cut off: ***"),
        ("cut off: s3c", "cut off: s3c"),
        ("user dXNlcg==", "user ***"),
    ],
)
def test_veil(text: str, seen: str) -> None:
    headers = [("Authorization", "Bearer s3cret-key"), ("A", "blue"), ("B", "red"), ("C", "Basic dXNlcg=="), ("D", "")]
    assert veil(text, parse_target("localhost", headers=headers)) == seen


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TimeoutError(), "no answer in time"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "Connection timed out"),
        (ConnectionResetError(errno.ECONNRESET, "Connect call failed"), "Connection reset by peer"),
        (ConnectionResetError("Connection lost"), "Connection lost"),
        (ConnectionResetError(), "ConnectionResetError"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "wrong version number"), "wrong version number"),
        (ValueError("not an address"), "not an address"),
        (ValueError(), "ValueError"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (aiohttp.ClientOSError(errno.EPIPE, "x"), "Broken pipe"),
        (aiohttp.SocketTimeoutError(), "no answer in time"),
    ],
)
def test_reasons(error: Exception, says: str) -> None:
    assert reason(error) == says
