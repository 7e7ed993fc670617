"""The emulator as clients meet it: over sockets, in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import inferometer as im
from inferometer.emulator import serve
from inferometer.errors import InferometerError
from inferometer.records.prometheus import parse_page
from inferometer.steptime.costs import sheet_costs

MODEL = "Qwen/Qwen3-8B"
STUDY = "a100-qwen3-8b"
FAST = 0.05


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    pieces: list[tuple[float, bytes]]
    """What was read, and when."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The stream's events but the last, which must be the mark of the end."""
        datas = [line.removeprefix(b"data: ") for line in self.body.split(b"\n\n") if line]
        assert datas[-1] == b"[DONE]"
        return [json.loads(data) for data in datas[:-1]]


def connect(url: str) -> http.client.HTTPConnection:
    host, port = url.removeprefix("http://").split(":")
    return http.client.HTTPConnection(host, int(port), timeout=20)


def call(url: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    connection = connect(url)
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request("GET" if raw is None else "POST", path, raw, headers or {})
    response = connection.getresponse()
    pieces = []
    while piece := response.read1(65536):
        pieces.append((time.monotonic(), piece))
    connection.close()
    return Answer(
        response.status,
        {name.lower(): value for name, value in response.getheaders()},
        b"".join(piece for _, piece in pieces),
        pieces,
    )


def complete(url: str, **body: Any) -> Answer:
    return call(url, "/v1/completions", {"model": MODEL, "prompt": [1] * 20, "max_tokens": 4} | body)


def counted(url: str, name: str, replica: int = 0) -> float:
    return parse_page(call(url, "/metrics").body.decode()).replicas[replica].counters[name]


def eventually(claim: Any) -> None:
    """Wait until it holds; a disconnect takes a moment to arrive."""
    for _ in range(500):
        if claim():
            return
        time.sleep(0.01)
    assert claim()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(STUDY, time_scale=FAST) as address:
        yield address


# ------------------------------------------------------------------------------------------------ answers


def test_small_routes(url: str):
    assert call(url, "/health").status == call(url, "/ping").status == call(url, "/ping", b"{}").status == 200
    assert call(url, "/version").json == {"version": "0.26.0"}
    (model,) = call(url, "/v1/models").json["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == (MODEL, MODEL, 40960)
    assert call(url, "/nowhere").status == 404
    tokens = call(url, "/tokenize", {"prompt": "one two three"}).json
    assert (tokens["count"], tokens["max_model_len"]) == (3, 40960)
    text = call(url, "/detokenize", {"tokens": tokens["tokens"]}).json["prompt"]
    assert call(url, "/tokenize", {"prompt": text}).json["count"] == 3


def test_a_completion_in_one_piece(url: str):
    told = complete(url).json
    assert told["object"] == "text_completion"
    assert told["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 4,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (choice,) = told["choices"]
    assert (choice["finish_reason"], len(choice["text"].split())) == ("length", 4)


def test_a_streamed_completion(url: str):
    streamed = complete(url, stream=True, stream_options={"include_usage": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *tokens, counts = streamed.events
    assert [t["choices"][0]["finish_reason"] for t in tokens] == [None, None, None, "length"]
    assert "".join(t["choices"][0]["text"] for t in tokens) == complete(url).json["choices"][0]["text"]
    assert counts["choices"] == []
    assert counts["usage"]["completion_tokens"] == 4
    assert len({t["id"] for t in tokens}) == 1
    assert all("usage" not in event or event["usage"] is None for event in complete(url, stream=True).events)


def test_usage_in_every_chunk(url: str):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = complete(url, stream=True, stream_options=options).events
    assert [e["usage"]["completion_tokens"] for e in events] == [1, 2, 3, 4, 4]


def test_a_chat(url: str):
    body = {"messages": [{"role": "user", "content": "three words here"}], "max_completion_tokens": 3}
    told = call(url, "/v1/chat/completions", body).json
    assert told["choices"][0]["message"] == {"role": "assistant", "content": " the quick brown"}
    assert told["usage"]["prompt_tokens"] == 3 + 4
    streamed = call(url, "/v1/chat/completions", body | {"stream": True}).events
    deltas = [event["choices"][0]["delta"] for event in streamed]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta["content"] for delta in deltas[1:]] == [" the", " quick", " brown"]


def test_errors_are_openais(url: str):
    for status, body in ((400, {"max_tokens": 0}), (404, {"model": "other"}), (400, {"prompt": [1] * 40960})):
        answer = complete(url, **body)
        assert answer.status == answer.json["error"]["code"] == status
        assert answer.headers["content-type"].startswith("application/json")
    assert call(url, "/v1/completions", b"{").status == 400
    assert "maximum context length is 40960" in complete(url, prompt=[1] * 40960).json["error"]["message"]


def test_one_connection_serves_many(url: str):
    connection = connect(url)
    for stream in (True, False, True):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 3, "stream": stream}))
        response = connection.getresponse()
        assert response.read().count(b'"text"') == (3 if stream else 1)
    connection.close()


def test_http_1_0_gets_no_chunks(url: str):
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "a", "max_tokens": 3, "stream": True}).encode()
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        plain.sendall(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        got = b"".join(iter(lambda: plain.recv(65536), b""))
    head, _, rest = got.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert rest.startswith(b"data: {")
    assert rest.endswith(b"data: [DONE]\n\n")


def test_a_large_prompt_arrives(url: str):
    prompt = "word " * 30_000
    assert complete(url, prompt=prompt).json["usage"]["prompt_tokens"] == 30_000


# ------------------------------------------------------------------------------------------------ time


def test_tokens_come_when_the_simulator_says():
    dep = im.load_study(STUDY).base.deployment
    costs = sheet_costs(dep)
    with serve(dep) as url:
        streamed = complete(url, prompt=[1] * 500, max_tokens=20, stream=True)
        truth = call(url, "/emulator/truth?tokens=1").json
    (row,) = truth["requests"]
    assert row["first_token_s"] - row["arrival_s"] == pytest.approx(costs.prefill_step_s(500), rel=1e-9)
    steps = [b - a for a, b in zip(row["token_s"], row["token_s"][1:], strict=False)]
    assert steps == pytest.approx([costs.decode_step_s(1, 501 + k) for k in range(19)], rel=1e-6)
    read = [at for at, piece in streamed.pieces for _ in range(piece.count(b'"text"'))]
    late = sorted(at - due for at, due in zip(read, row["token_s"], strict=True))
    assert late[0] > 0, "nothing is early"
    assert late[10] < 0.05, late
    assert truth["late_s"]["n"] == 20


def test_a_scale_stretches_the_same_schedule():
    with serve(STUDY, time_scale=0.01) as url:
        start = time.monotonic()
        complete(url, max_tokens=500)
        passed = time.monotonic() - start
        (row,) = call(url, "/emulator/truth").json["requests"]
    natural = sheet_costs(im.load_study(STUDY).base.deployment).decode_step_s(1, 270) * 499
    assert row["last_token_s"] - row["first_token_s"] == pytest.approx(0.01 * natural, rel=0.01)
    assert passed < 0.2 * natural


def test_metrics_agree_with_the_truth():
    with serve(STUDY, time_scale=FAST) as url, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda k: complete(url, prompt=[1] * (10 + k), max_tokens=3 + k, stream=bool(k % 2)), range(32)))
        rows = call(url, "/emulator/truth?tokens=1").json["requests"]
        replica = parse_page(call(url, "/metrics").body.decode()).replicas[0]
    assert len(rows) == replica.counters["requests_finished.length"] == 32
    assert replica.counters["prompt_tokens"] == sum(10 + k for k in range(32))
    assert replica.counters["generation_tokens"] == sum(3 + k for k in range(32))
    for name, values in (
        ("ttft_s", [r["first_token_s"] - r["arrival_s"] for r in rows]),
        ("e2e_s", [r["last_token_s"] - r["arrival_s"] for r in rows]),
        ("itl_s", [b - a for r in rows for a, b in zip(r["token_s"], r["token_s"][1:], strict=False)]),
    ):
        assert replica.histograms[name].count == len(values)
        assert replica.histograms[name].sum == pytest.approx(sum(values), rel=1e-6)
    assert replica.gauges["running"] == replica.gauges["waiting"] == replica.gauges["kv_usage"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(stream: bool):
    with serve(STUDY) as url:
        connection = connect(url)
        body = {"prompt": [1] * 100, "max_tokens": 5000, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body))
        if stream:
            connection.getresponse().read1(100)
        eventually(lambda: parse_page(call(url, "/metrics").body.decode()).replicas[0].gauges["running"] == 1)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        eventually(lambda: counted(url, "requests_finished.abort") == 1)
        eventually(lambda: parse_page(call(url, "/metrics").body.decode()).replicas[0].gauges["kv_usage"] == 0)
        assert complete(url).status == 200


def test_replicas_take_turns():
    table = {"model": MODEL, "chip": "a100-sxm4-80gb", "deployment": {"data_parallel_size": 2}}
    load = {"workload": {"prompt_tokens": 1, "output_tokens": 1, "concurrency": [1]}}
    with serve(table | load, time_scale=FAST) as url:
        for _ in range(4):
            complete(url)
        assert [r["replica"] for r in call(url, "/emulator/truth").json["requests"]] == [0, 1, 0, 1]
        assert counted(url, "generation_tokens", 0) == counted(url, "generation_tokens", 1) == 8


# ------------------------------------------------------------------------------------------------ keys and faults


def test_a_key_is_asked_for_under_v1_only():
    with serve(STUDY, api_key="secret", time_scale=FAST) as url:
        assert call(url, "/v1/models").status == 401
        refused = call(url, "/v1/completions", {"prompt": "a"}, {"Authorization": "Bearer wrong"})
        assert (refused.status, refused.json["error"]["code"]) == (401, 401)
        assert call(url, "/v1/models", headers={"Authorization": "Bearer s\xe9cret"}).status == 401
        assert call(url, "/v1/completions", {"prompt": "a"}, {"Authorization": "Bearer secret"}).status == 200
        assert call(url, "/health").status == call(url, "/metrics").status == 200


@contextmanager
def faulty(*faults: str, **options: Any) -> Iterator[str]:
    with serve(STUDY, faults=faults, time_scale=FAST, **options) as url:
        yield url


def test_errors_are_injected_in_their_shares_and_repeat():
    def statuses() -> list[int]:
        with faulty("error-rate=0.3", "error-429=0.2", seed=5) as url:
            return [complete(url).status for _ in range(40)]

    first = statuses()
    assert first == statuses()
    assert set(first) == {200, 429, 500}
    with faulty("error-429=1") as url:
        answer = complete(url)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")


def test_latency_is_added_to_the_whole_answer():
    with faulty("latency=200ms") as url:
        for stream in (True, False):
            start = time.monotonic()
            answer = complete(url, stream=stream, max_tokens=30)
            assert answer.pieces[0][0] - start > 0.2
            assert answer.pieces[-1][0] - start < 3, "once, not for every token"
        assert len(complete(url, stream=True).events) == 4


def test_a_stall_pauses_a_stream_once():
    with faulty("stall=1:800ms") as url:
        streamed = complete(url, stream=True, max_tokens=10)
    times = [at for at, _ in streamed.pieces]
    gaps = [b - a for a, b in pairwise(times)]
    assert sum(gap > 0.6 for gap in gaps) == 1
    assert len(streamed.events) == 10


def test_cut_streams_end_without_a_mark():
    with faulty("cut=1") as url:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            complete(url, stream=True, max_tokens=1000)
        assert complete(url).status == 200, "only streams are cut"
        eventually(lambda: counted(url, "requests_finished.abort") == 1)


def test_chunks_of_several_tokens():
    with faulty("tokens-per-chunk=4") as url:
        events = complete(url, stream=True, max_tokens=10, stream_options={"include_usage": True}).events
    assert [len(e["choices"][0]["text"].split()) for e in events[:-1]] == [4, 4, 2]
    assert events[-1]["usage"]["completion_tokens"] == 10


def test_the_role_may_come_first():
    with serve(STUDY, faults=("role-chunk-first", "latency=300ms")) as url:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True}
        streamed = call(url, "/v1/chat/completions", body)
    assert b'"role"' in streamed.pieces[0][1]
    assert streamed.pieces[1][0] - streamed.pieces[0][0] > 0.25
    assert [e["choices"][0]["delta"].get("content") for e in streamed.events] == ["", " the", " quick"]


def test_usage_may_be_left_out():
    with faulty("no-usage") as url:
        assert complete(url).json["usage"] is None
        assert len(complete(url, stream=True, stream_options={"include_usage": True}).events) == 4


def test_a_chunk_may_be_broken():
    with faulty("malformed=1") as url:
        answer = complete(url, stream=True, max_tokens=10)
    broken = 0
    for line in answer.body.split(b"\n\n")[:-2]:
        try:
            json.loads(line.removeprefix(b"data: "))
        except ValueError:
            broken += 1
    assert broken == 1
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_a_slow_start_answers_503():
    with faulty("slow-start=1500ms") as url:
        assert (call(url, "/health").status, complete(url).status) == (503, 503)
        eventually(lambda: call(url, "/health").status == 200)
        assert complete(url).status == 200


# ------------------------------------------------------------------------------------------------ the program


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "inferometer", "emulate", STUDY, "--port", "0", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_with_streams_open(how: int):
    with start("--time-scale", "1") as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        connection = connect(url)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 5000, "stream": True}))
        connection.getresponse().read1(100)
        process.send_signal(how)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out) == (0, "")
        assert "Application startup complete." in err
        assert err.endswith("INFO:     Shutting down\n")


def test_a_unix_socket(tmp_path: Path):
    path = str(tmp_path / "server.sock")
    with start("--unix-socket", path, "--log-file", str(tmp_path / "log")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"unix://{path}\n"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b"0.26.0" in b"".join(iter(lambda: client.recv(4096), b""))
        process.terminate()
        assert process.communicate(timeout=10) == ("", "")
        assert process.returncode == 0
    assert "GPU KV cache size" in (tmp_path / "log").read_text()


def test_bad_input_is_one_line():
    with start("--fault", "cut=2") as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: --fault cut: '2' is not allowed; give a share from 0 to 1")
    assert len(err.splitlines()) == 1


def test_a_port_that_is_taken_is_bad_input():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InferometerError, match="cannot listen on"), serve(STUDY, taken.getsockname()[1]):
            pass


def test_what_does_not_fit_is_said():
    table = {"model": "meta-llama/Llama-3.1-70B", "chip": "a100-sxm4-80gb"}
    load = {"workload": {"prompt_tokens": 1, "output_tokens": 1, "concurrency": [1]}}
    with pytest.raises(InferometerError, match="does not fit"), serve(table | load):
        pass


def test_it_does_not_outlive_its_owner():
    code = (
        "import os, inferometer.emulator as e\n"
        f"with e.serve({STUDY!r}) as url:\n"
        "    print(url, flush=True)\n"
        "    os._exit(0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, env=os.environ)
    url = ran.stdout.strip()

    def gone() -> bool:
        try:
            call(url, "/health")
        except OSError:
            return True
        return False

    eventually(gone)
