"""One request's truth over a real connection: its times, its end, and each way to fail."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import uvloop

from inferometer.benchmark.client import Dialer, Wire, retry_after_s
from inferometer.benchmark.job import ERROR_CLASSES, Connection
from inferometer.errors import InputError
from unit.benchmark.scripted import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    RESET,
    STREAM_HEAD,
    Scripted,
    Step,
    bench,
    chunk,
    delta,
    event,
    plain,
    stream,
    text,
    tokens,
    usage,
)

# --- times ----------------------------------------------------------------------------------------------------------


def test_times_of_a_streamed_answer(tmp_path: Path):
    script = [STREAM_HEAD, 0.03, chunk(text(" a")), 0.05, chunk(text(" b") + text(" c", "length")), 0.04]
    ended = bench(tmp_path, [[*script, chunk(usage(7, 3)), chunk(DONE), LAST_CHUNK]])
    record = ended.record
    assert record.error is None
    got = [record.first_byte_s, record.first_token_s, record.last_token_s, record.end_s]
    wrote = ended.server.seen[0].wrote[:4]
    for before, after, sent_before, sent_after in zip(got, got[1:], wrote, wrote[1:], strict=False):
        assert after - before == pytest.approx(sent_after - sent_before, abs=0.02)
    assert 0 <= record.scheduled_s <= record.sent_s <= record.first_byte_s
    assert record.times_s == [record.first_token_s, record.last_token_s, record.last_token_s]
    assert (record.prompt_tokens, record.output_tokens, record.asked_output_tokens) == (7, 3, 4)
    assert (record.http_status, record.finish_reason, record.output_counted_by) == (200, "length", "usage")


def test_the_end_is_done_though_the_message_ends_later(tmp_path: Path):
    late_end = [STREAM_HEAD, chunk(text("a", "stop")), chunk(DONE), 0.2, LAST_CHUNK]
    first, second = bench(tmp_path, [late_end, tokens(1)], 2).records
    assert first.end_s - first.sent_s < 0.1
    assert second.sent_s - first.end_s >= 0.18  # the connection was not free before
    assert second.sent_s - second.scheduled_s < 0.1  # which is not the client's lateness


def test_a_message_that_never_ends_after_done_frees_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inferometer.benchmark.client.LINGER_S", 0.1)
    endless = [STREAM_HEAD, chunk(text("a", "stop")), chunk(DONE), HANG]
    ended = bench(tmp_path, [endless, tokens(1)], 2)
    assert [record.error for record in ended.records] == [None, None]
    assert ended.records[0].end_s < 0.1


def test_answer_split_at_every_byte(tmp_path: Path):
    answer = b"".join(step for step in tokens(2) if isinstance(step, bytes))
    scripts = [[answer[:at], 0.0, answer[at:]] for at in range(1, len(answer), 3)]
    ended = bench(tmp_path, scripts, len(scripts))
    assert {(r.error, r.output_tokens, r.token_events) for r in ended.records} == {(None, 2, 2)}
    assert ended.server.connections == 1


def test_empty_reply_completes_without_a_first_token(tmp_path: Path):
    record = bench(tmp_path, [stream(delta(role="assistant"), delta("stop"), DONE)], endpoint="chat").record
    assert (record.error, record.first_token_s, record.output_tokens) == (None, None, 0)


def test_end_of_stream_early_without_usage(tmp_path: Path):
    answer = stream(*(text(" a") for _ in range(15)), text(" a", "stop"), DONE)
    record = bench(tmp_path, [answer], plan={"output_tokens": [64]}).record
    assert (record.output_tokens, record.output_counted_by, record.asked_output_tokens) == (16, "events", 64)


def test_not_streaming(tmp_path: Path):
    body = {
        "choices": [{"text": "a b", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    record = bench(tmp_path, [[0.03, *plain(200, body)]], stream=False).record
    assert (record.error, record.prompt_tokens, record.output_tokens) == (None, 3, 2)
    assert (record.first_token_s, record.token_events) == (None, 0)
    assert record.end_s - record.sent_s >= 0.029


def test_continue_and_unframed_answers(tmp_path: Path):
    body = text("a", "stop") + DONE
    unframed: list[Step] = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + body, CLOSE]
    ended = bench(tmp_path, [unframed, tokens(1)], 2)
    assert [record.error for record in ended.records] == [None, None]
    assert ended.report.reconnects == 1


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_request_as_it_is_sent(tmp_path: Path):
    ended = bench(
        tmp_path,
        [tokens(1)],
        connection={
            "path": "/api/v1/",
            "headers": (("Authorization", "Bearer k"), ("X-Team", "a b"), ("accept", "*/*")),
        },
        plan={"slices": [[2, 4, 8, 10]], "output_tokens": [16], "salt": [',"cache_salt":"s"']},
    )
    (seen,) = ended.server.seen
    assert seen.line == "POST /api/v1/completions HTTP/1.1"
    assert seen.body == {"prompt": "w1w4", "max_tokens": 16, "cache_salt": "s"}
    assert seen.headers["authorization"] == "Bearer k"
    assert seen.headers["x-team"] == "a b"
    assert seen.headers["accept"] == "*/*"
    assert seen.headers["host"] == f"127.0.0.1:{ended.server.port}"


def test_chat_goes_to_its_own_path(tmp_path: Path):
    ended = bench(tmp_path, [tokens(1)], endpoint="chat")
    assert ended.server.seen[0].line == "POST /v1/chat/completions HTTP/1.1"
    assert ended.server.seen[0].body == {"messages": [{"role": "user", "content": "w0"}], "max_tokens": 4}


def test_a_body_larger_than_the_sockets_buffers(tmp_path: Path):
    head = '{"prompt":"' + "x" * 5_000_000
    ended = bench(tmp_path, [tokens(1)], 2, head=head)
    assert [record.error for record in ended.records] == [None, None]
    assert len(ended.server.seen[1].body["prompt"]) == 5_000_002


@pytest.mark.parametrize(
    "header",
    [
        ("A b", "sk-1"),
        ("A", "sk-1\r\nc"),
        ("A", "sk-1\t"),
        ("", "sk-1"),
        ("Content-Length", "4"),
        ("A", "sk-1\u20ac"),
        ("A:", "sk-1"),
    ],
)
def test_header_that_cannot_be_sent(header: tuple[str, str]):
    with pytest.raises(InputError, match=r"^header") as raised:
        Dialer(Connection(host="h", port=1, headers=(header,)), "chat", True, None)
    assert "sk-1" not in str(raised.value)


def test_usual_port_is_not_named_and_an_ipv6_host_is_in_brackets():
    def host(**values: Any) -> str:
        head = Dialer(Connection(**values), "chat", True, None).payload([]).decode()
        return head.split("Host: ")[1].split("\r\n")[0]

    assert host(host="h.example", port=80) == "h.example"
    assert host(host="h.example", port=443, tls=True) == "h.example"
    assert host(host="h.example", port=443) == "h.example:443"
    assert host(host="::1", port=8000) == "[::1]:8000"


# --- connections ----------------------------------------------------------------------------------------------------


def test_one_connection_is_kept(tmp_path: Path):
    ended = bench(tmp_path, [tokens(2)], 20)
    assert ended.server.connections == 1
    assert ended.report.reconnects == 0


def test_no_handshake_in_the_first_request(tmp_path: Path):
    async def opened(_: Any, server: Scripted) -> None:
        assert server.connections == 3

    bench(tmp_path, [tokens(1)], 3, concurrency=3, during=opened, before_start_s=0.02)


def test_server_that_closes_an_idle_connection_costs_a_reconnect_and_no_error(tmp_path: Path):
    ended = bench(tmp_path, [[*tokens(1), 0.02, CLOSE]], 4, think_time_s=0.05)
    assert [record.error for record in ended.records] == [None] * 4
    assert ended.server.connections == 4
    assert ended.report.reconnects == 3


@pytest.mark.parametrize("then", ["nothing", "close", "bytes"])
def test_what_the_loop_has_not_yet_seen_is_seen_before_the_next_request(then: str):
    async def go() -> bool:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        wire = Wire(Mock(), Connection(host="h", port=1), True)
        await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=ours)
        wire.send_directly(ours)
        if then == "close":
            theirs.close()
        elif then == "bytes":
            theirs.send(b"HTTP/1.1 408 Request Timeout")
        fresh = wire.fresh()
        wire.close()
        theirs.close()
        return fresh

    assert uvloop.run(go()) is (then == "nothing")


def test_connection_close_is_heeded(tmp_path: Path):
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    ended = bench(tmp_path, [[closing, *tokens(1)[1:]]], 3)
    assert [record.error for record in ended.records] == [None] * 3
    assert (ended.server.connections, ended.report.reconnects) == (3, 2)


def test_an_answer_nobody_asked_for_ends_the_connection(tmp_path: Path):
    ended = bench(tmp_path, [[*tokens(1), *plain(408, b"idle too long")], tokens(1)], 2, think_time_s=0.03)
    assert [record.error for record in ended.records] == [None, None]
    assert ended.server.connections == 2


def test_ipv6(tmp_path: Path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as why:
        pytest.skip(f"no IPv6 here: {why}")
    ended = bench(tmp_path, [tokens(1)], server={"host": "::1"})
    assert ended.record.error is None
    assert ended.server.seen[0].headers["host"].startswith("[::1]:")


def test_unix_socket(tmp_path: Path):
    ended = bench(tmp_path, [tokens(1)], 3, server={"unix": str(tmp_path / "s"), "host": "localhost"})
    assert [record.error for record in ended.records] == [None] * 3
    assert ended.server.seen[0].headers["host"] == "localhost"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of our own for 127.0.0.1, in one file with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key", "-out", folder / "crt"),
        ],
        capture_output=True,
    )
    assert made.returncode == 0, made.stderr
    (folder / "both").write_bytes((folder / "key").read_bytes() + (folder / "crt").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("how", "error"),
    [({"ca_file": "crt"}, None), ({"verify": False}, None), ({}, "connect: TLS: self-signed certificate")],
)
def test_tls(tmp_path: Path, certificate: Path, how: dict[str, Any], error: str | None):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "both")
    if "ca_file" in how:
        how = {"ca_file": str(certificate / how["ca_file"])}
    ended = bench(tmp_path, [tokens(3)], 2, server={"tls": context}, connection={"tls": True, **how}, think_time_s=0.0)
    assert [record.error for record in ended.records] == [error] * 2
    assert [record.output_tokens for record in ended.records] == [None if error else 3] * 2


def test_tls_to_a_server_without(tmp_path: Path):
    where = {"tls": True, "connect_timeout_s": 0.3}
    server = {"greeting": b"HTTP/1.1 400 Bad Request\r\n\r\n"}
    assert bench(tmp_path, [tokens(1)], connection=where, server=server).record.error.startswith("connect: TLS: ")
    assert bench(tmp_path, [tokens(1)], connection=where).record.error == "timeout: no connection within 0.3 s"


def test_certificates_that_cannot_be_read():
    with pytest.raises(InputError, match="ca_file"):
        Dialer(Connection(host="h", port=1, tls=True, ca_file="/nowhere"), "chat", True, None)


# --- errors ---------------------------------------------------------------------------------------------------------

BEGUN = [STREAM_HEAD, chunk(text(" a")), chunk(text(" b"))]
ERRORS: dict[str, tuple[list[Step], str]] = {
    "closed before the answer": ([CLOSE], "reset: the connection closed before the answer began"),
    "reset before the answer": ([RESET], "reset: "),
    "closed in the stream": ([*BEGUN, CLOSE], "cut: after 2 token events"),
    "reset in the stream": ([*BEGUN, 0.02, RESET], "cut: after 2 token events"),
    "stream ends in order, but early": ([*BEGUN, LAST_CHUNK], "cut: after 2 token events"),
    "closed in the head": ([b"HTTP/1.1 200 OK\r\ncontent", CLOSE], "cut: after 0 token events"),
    "unframed and early": ([b"HTTP/1.1 200 OK\r\n\r\n" + text("a"), CLOSE], "cut: after 1 token events"),
    "server error": (plain(500, {"error": {"message": "boom"}}), "http 500: boom"),
    "plain text error": (plain(404, b"not\nhere"), "http 404: not here"),
    "validation error": (plain(422, {"detail": [{"loc": ["a"]}]}), 'http 422: [{"loc": ["a"]}]'),
    "bare error object": (plain(400, {"object": "error", "message": "bad"}), "http 400: bad"),
    "error without a body": (plain(503, b""), "http 503: "),
    "error that breaks off": ([b"HTTP/1.1 502 X\r\ncontent-length: 9\r\n\r\nboo", 0.01, CLOSE], "http 502: boo"),
    "redirection": (plain(307, b"", location="/x"), "http 307: "),
    "error in the stream": (
        [*BEGUN, chunk(event({"error": {"message": "oom"}})), chunk(DONE), LAST_CHUNK],
        "stream: oom",
    ),
    "error in the stream, then nothing": ([*BEGUN, chunk(event({"error": "oom"})), CLOSE], "stream: oom"),
    "not HTTP": ([b"SSH-2.0-OpenSSH\r\n\r\n"], "malformed: not HTTP"),
    "not HTTP after a token": ([*BEGUN, b"zz\r\n"], "malformed: not HTTP"),
    "not JSON": (stream(text("a"), b"data: {oops\n\n"), "malformed: "),
    "not a stream": (plain(200, {"choices": []}), "malformed: not a line of an event stream"),
    "other protocol": (
        [b"HTTP/1.1 101 X\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"],
        "malformed: the server changed",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(tmp_path: Path, name: str):
    script, error = ERRORS[name]
    ended = bench(tmp_path, [script, tokens(1)], 2)
    first, second = ended.records
    assert first.error.startswith(error)
    assert first.error.split(":")[0].split(" ")[0] in ERROR_CLASSES
    assert first.end_s >= first.sent_s
    assert first.token_events == len(first.times_s)
    assert second.error is None, "the next request is not harmed"
    assert ended.report.ended == 2


KEY = "sk-" + "0123456789abcdef" * 8
REPEATS: dict[str, tuple[list[Step], str]] = {
    "JSON": (plain(401, {"error": {"message": f"bad key Bearer {KEY}"}}), "http 401: bad key ***"),
    "without Bearer": (plain(401, {"detail": f"bad key {KEY} (x)"}), "http 401: bad key *** (x)"),
    "text": (plain(403, f"Authorization: Bearer {KEY}\n".encode()), "http 403: Authorization: ***"),
    "a list": (plain(422, {"detail": [{"input": KEY}]}), 'http 422: [{"input": "***"}]'),
    "cut off": (plain(400, b"x" * 250 + KEY.encode()), "http 400: " + "x" * 250 + "***"),
    "another header": (plain(400, b'team "blue\\" is unknown'), 'http 400: team "***" is unknown'),
    "in the stream": ([*BEGUN, chunk(event({"error": f"no {KEY}"})), LAST_CHUNK], f"stream: no {'***'}"),
    "a word of ours": (plain(500, b"http is down"), "http 500: *** is down"),
}


@pytest.mark.parametrize("name", REPEATS)
def test_a_secret_that_the_server_repeats_is_hidden(tmp_path: Path, name: str):
    script, error = REPEATS[name]
    headers = (("Authorization", f"Bearer {KEY}"), ("X-Team", "blue\\"), ("X-Scheme", "http"))
    assert bench(tmp_path, [script], connection={"headers": headers}).record.error == error


def test_a_secret_in_what_is_no_answer_is_hidden(tmp_path: Path):
    script: list[Step] = [b"220 welcome Bearer " + KEY.encode() + b"\r\n"]
    connection = {"headers": (("Authorization", f"Bearer {KEY}"),)}
    error = bench(tmp_path, [script], connection=connection).record.error
    assert error.startswith("malformed: not HTTP")
    assert error.endswith("220 welcome ***")


@pytest.mark.parametrize("body", [b"[" * 60_000, b'{"error":' * 3000, b'{"error": {"message": "\\ud800"}}'])
def test_an_error_body_that_no_parser_likes_ends_no_run(tmp_path: Path, body: bytes):
    ended = bench(tmp_path, [plain(500, body), tokens(1)], 2)
    assert ended.report.fault is None
    assert [record.error is None for record in ended.records] == [False, True]
    assert b"http 500: " in msgspec.json.encode(ended.records[0])


def test_what_was_counted_before_a_cut_is_kept(tmp_path: Path):
    record = bench(tmp_path, [[*BEGUN, CLOSE]]).record
    assert (record.output_tokens, record.output_counted_by, record.http_status) == (2, "events", 200)
    assert record.first_token_s is not None


@pytest.mark.parametrize("last", [text("a", "stop"), usage(3, 1), DONE])
def test_broken_off_after_all_was_said_is_complete(tmp_path: Path, last: bytes):
    assert bench(tmp_path, [[STREAM_HEAD, chunk(text("a")), chunk(last), 0.01, CLOSE]]).record.error is None


def test_error_that_ends_in_order_keeps_the_connection(tmp_path: Path):
    failing = stream(text("a"), event({"error": "oom"}), DONE)
    ended = bench(tmp_path, [failing, plain(500, b"x"), tokens(1)], 3)
    assert ended.server.connections == 1


def test_nothing_listens(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    record = bench(tmp_path, [tokens(1)], connection={"port": port}).record
    assert record.error == "connect: Connection refused"
    assert (record.sent_s, record.output_tokens, record.http_status) == (None, None, None)
    assert record.end_s >= record.scheduled_s


def test_a_name_with_several_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    resolve, tried = Dialer._resolve, []

    async def with_a_dead_one_first(self: Dialer) -> list[Any]:
        tried.append(1)
        return [(socket.AF_INET, ("127.0.0.1", 1)), *await resolve(self)]

    monkeypatch.setattr(Dialer, "_resolve", with_a_dead_one_first)
    ended = bench(tmp_path, [[*tokens(1), CLOSE]], 3, think_time_s=0.01)
    assert [record.error for record in ended.records] == [None] * 3
    assert len(tried) == 1


def test_no_such_unix_socket(tmp_path: Path):
    record = bench(tmp_path, [tokens(1)], connection={"unix_socket": str(tmp_path / "none")}).record
    assert record.error == "connect: No such file or directory"


def test_no_such_name(tmp_path: Path):
    record = bench(tmp_path, [tokens(1)], connection={"host": "no-such-host.invalid"}).record
    assert record.error.startswith("connect: name not found: no-such-host.invalid")


def test_no_connection_in_time(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # the queue of a server that accepts nobody takes one or two
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        where = {"port": full.getsockname()[1], "connect_timeout_s": 0.2}
        record = bench(tmp_path, [tokens(1)], connection=where).record
        for filler in fillers:
            filler.close()
    assert record.error == "timeout: no connection within 0.2 s"


def test_whole_timeout(tmp_path: Path):
    slow = [STREAM_HEAD, *(step for _ in range(100) for step in (chunk(text("a")), 0.02))]
    ended = bench(tmp_path, [slow, tokens(1)], 2, connection={"timeout_s": 0.2})
    assert ended.records[0].error == "timeout: no end within 0.2 s"
    assert ended.records[0].token_events > 3
    assert ended.records[0].end_s == pytest.approx(0.2, abs=0.15)
    assert ended.records[1].error is None
    assert ended.server.connections == 2


def test_idle_timeout_is_between_two_pieces(tmp_path: Path):
    slow_start = [0.25, *tokens(1)]
    stalls = [*BEGUN, HANG]
    ended = bench(tmp_path, [slow_start, stalls], 2, connection={"idle_timeout_s": 0.15})
    assert ended.records[0].error is None
    assert ended.records[1].error == "timeout: nothing more for 0.15 s"
    assert ended.records[1].token_events == 2


# --- Retry-After ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("0.5", 0.5),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 60.0),
        ("Wed, 21 Oct 2026 07:26:00 GMT", 0.0),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("later", None),
        ("", None),
    ],
)
def test_retry_after(value: str, seconds: float | None):
    assert retry_after_s(value, 1792567620.0) == seconds


def test_retry_after_is_recorded(tmp_path: Path):
    record = bench(tmp_path, [plain(429, {"error": {"message": "busy"}}, retry_after="0.25")]).record
    assert (record.error, record.retry_after_s, record.http_status) == ("http 429: busy", 0.25, 429)
