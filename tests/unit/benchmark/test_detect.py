"""Detection and probes against made servers of every dialect, and against the truth server."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from inferometer.benchmark import detect as module
from inferometer.benchmark.detect import MAX_PROBES, Abilities, Server, detect, is_prometheus, probe
from inferometer.benchmark.target import parse_target
from inferometer.errors import InputError
from shared import shared

VLLM_PAGE = "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"


class Fake:
    """A server of the OpenAI protocol that counts words and ids, and refuses what it is told to."""

    def __init__(self, **changes: Any) -> None:
        self.models: Any = [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]
        self.places: dict[str, Any] = {"/version": {"version": "0.26.0"}, "/metrics": VLLM_PAGE}
        self.overhead, self.per_unit, self.usage = 1, 1.0, "always"
        self.refuse: Callable[[dict[str, Any]], tuple[int, Any] | None] = lambda body: None
        self.failures: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.authorizations: set[str | None] = set()
        self.prefix = "/v1"
        self.headers: dict[str, str] = {}
        self.__dict__.update(changes)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        self.authorizations.add(request.headers.get("Authorization"))
        if request.path == self.prefix + "/models":
            if isinstance(self.models, int):
                return web.Response(status=self.models, text="no")
            return web.json_response({"object": "list", "data": self.models}, headers=self.headers)
        if request.path.endswith("/completions"):
            return await self.complete(request)
        found = self.places.get(request.path)
        if found is None:
            return web.Response(status=404, text="nothing here")
        return web.Response(text=found if isinstance(found, str) else json.dumps(found))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if self.failures:
            failure = self.failures.pop(0)
            if failure == "cut":
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return web.Response(status=failure, text="busy")
        body = await request.json()
        self.bodies.append(body)
        refused = self.refuse(body)
        if refused is not None:
            return web.json_response(refused[1], status=refused[0])
        return self.answer(body)

    def answer(self, body: dict[str, Any]) -> web.Response:
        text = body.get("prompt") or body["messages"][-1]["content"]
        units = len(text) if isinstance(text, list) else len(text.split())
        tokens = round(units * self.per_unit) + self.overhead
        usage = {"prompt_tokens": tokens, "completion_tokens": body.get("max_tokens", 0)}
        if not body["stream"]:
            return web.json_response({"choices": [{}], **({} if self.usage == "never" else {"usage": usage})})
        events: list[Any] = [{"choices": [{"text": " a"}]}]
        if self.usage == "always" and body.get("stream_options"):
            events.append({"choices": [], "usage": usage})
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=lines + "data: [DONE]\n\n", content_type="text/event-stream")


@asynccontextmanager
async def serving(fake: Fake):
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", fake.handle)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


def detected(fake: Fake, model: str | None = None, *, path: str = "", key: str = "", **options: Any) -> Server:
    async def run() -> Server:
        async with serving(fake) as url:
            urls = options.pop("metrics_urls", None)
            given = None if urls is None else [found.format(url=url) for found in urls]
            return await detect(parse_target(url + path, api_key=key), model, metrics_urls=given)

    return asyncio.run(run())


def probed(fake: Fake, endpoint: Any = "completions", *, key: str = "", **options: Any) -> Abilities:
    async def run() -> Abilities:
        async with serving(fake) as url:
            return await probe(parse_target(url, api_key=key), "m", endpoint, **options)

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.sleep
    monkeypatch.setattr(module.asyncio, "sleep", lambda delay: real(0))


def test_vllm():
    found = detected(Fake())
    assert (found.engine, found.version, found.model, found.max_model_len) == ("vllm", "0.26.0", "m", 4096)
    assert [re.sub(r":\d+/", "/", url) for url in found.metrics_urls] == ["http://127.0.0.1/metrics"]
    assert found.notes == []


def test_the_settings_of_vllm_are_on_its_metrics_page():
    labels = 'block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9"'
    labels += ',num_gpu_blocks="27000",num_cpu_blocks="None",kv_cache_api_key="s3cret"'
    page = f"{VLLM_PAGE}vllm:cache_config_info{{{labels}}} 1.0\n"
    found = detected(Fake(places={"/version": {"version": "0.26.0"}, "/metrics": page}))
    assert found.flags == {
        "block_size": 16,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.9,
        "num_gpu_blocks": 27000,
    }
    assert detected(Fake()).flags == {}


def test_sglang_and_its_flags_without_secrets():
    info = {
        "version": "0.5.23",
        "mem_fraction_static": 0.88,
        "chunked_prefill_size": 8192,
        "context_length": 32768,
        "disable_radix_cache": False,
        "api_key": "s3cret",
        "admin_api_key": "s3cret",
        "hf_token": "s3cret",
        "internal_states": [{}],
        "lora_paths": None,
    }
    fake = Fake(models=[{"id": "m", "owned_by": "sglang"}], places={"/get_server_info": info})
    found = detected(fake)
    assert (found.engine, found.version, found.max_model_len) == ("sglang", "0.5.23", 32768)
    assert found.flags == {
        "version": "0.5.23",
        "mem_fraction_static": 0.88,
        "chunked_prefill_size": 8192,
        "context_length": 32768,
        "disable_radix_cache": False,
    }
    assert found.notes == [
        "no /metrics page answers: nothing is known of the server's inside; start it with --enable-metrics"
    ]


def test_tgi():
    info = {"model_id": "m", "version": "3.1.0", "max_concurrent_requests": 128, "max_total_tokens": 8192}
    fake = Fake(
        models=[{"id": "m", "owned_by": "m"}], places={"/info": info, "/metrics": "# TYPE tgi_queue_size gauge\n"}
    )
    found = detected(fake)
    assert (found.engine, found.version, found.max_model_len) == ("tgi", "3.1.0", 8192)
    assert found.flags["max_concurrent_requests"] == 128


def test_trtllm_has_json_at_the_usual_place():
    places = {
        "/version": {"version": "1.2.0"},
        "/metrics": "[]",
        "/prometheus/metrics": "# TYPE trtllm_e2e gauge\ntrtllm_e2e 1\n",
    }
    found = detected(Fake(models=[{"id": "m", "owned_by": "tensorrt_llm"}], places=places))
    assert (found.engine, found.version) == ("trtllm", "1.2.0")
    assert [url.split("/", 3)[3] for url in found.metrics_urls] == ["prometheus/metrics"]


def test_llamacpp_by_its_header_and_properties():
    props = {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 4, "build_info": "b4719-abc"}
    fake = Fake(models=[{"id": "m.gguf"}], places={"/props": props}, headers={"Server": "llama.cpp"})
    found = detected(fake)
    assert (found.engine, found.version, found.max_model_len) == ("llamacpp", "b4719-abc", 1024)
    assert found.flags == {"total_slots": 4, "n_ctx": 1024}
    assert found.server_header == "llama.cpp"
    assert "start llama-server with --metrics" in found.notes[0]


def test_an_unknown_server_is_known_by_its_metrics_or_not_at_all():
    unknown = [{"id": "m", "owned_by": "someone"}]
    assert detected(Fake(models=unknown)).engine == "vllm"
    found = detected(Fake(models=unknown, places={}))
    assert (found.engine, found.version, found.metrics_urls) == ("openai", None, [])


def test_behind_a_prefix():
    fake = Fake(prefix="/team/v1", places={"/team/metrics": VLLM_PAGE, "/team/version": {"version": "1"}})
    found = detected(fake, path="/team/v1/chat/completions")
    assert found.version == "1"
    assert found.metrics_urls[0].endswith("/team/metrics")


def test_the_model_asked_for():
    models = [{"id": "a", "owned_by": "vllm", "max_model_len": 7}, {"id": "b", "owned_by": "vllm", "max_model_len": 9}]
    found = detected(Fake(models=models), "b")
    assert (found.model, found.models, found.max_model_len) == ("b", ["a", "b"], 9)
    with pytest.raises(InputError, match="model: None is not allowed; give one of a, b"):
        detected(Fake(models=models))
    with pytest.raises(InputError, match="model: 'c' is not allowed; give one that is served: a, b"):
        detected(Fake(models=models), "c")


def test_a_server_without_a_list_of_models():
    found = detected(Fake(models=404), "x")
    assert (found.model, found.models) == ("x", [])
    assert "taken as it is" in found.notes[0]
    with pytest.raises(InputError, match="the server lists none"):
        detected(Fake(models=404))


def test_a_key_that_is_refused_or_missing():
    with pytest.raises(InputError, match=r"api_key: .* 401: it wants a key, and none is given"):
        detected(Fake(models=401))
    with pytest.raises(InputError, match="does not take the key that is given") as raised:
        detected(Fake(models=403), key="s3cret")
    assert "s3cret" not in str(raised.value)


def test_a_server_that_is_not_ready():
    fake = Fake(models=503)
    with pytest.raises(InputError, match=r"^url: .*/models answers 503"):
        detected(fake)
    assert fake.asked == ["/v1/models"] * 4


def test_nothing_answers():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match=r"^url: nothing answers at http://127.0.0.1:\d+/v1 \(Connection refused\)"):
        asyncio.run(detect(parse_target(url, api_key="")))
    with pytest.raises(InputError, match=r"^url: nothing answers at unix:///no/such.sock:/v1 \(No such file"):
        asyncio.run(detect(parse_target("unix:///no/such.sock", api_key="")))


def test_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def run(**options: Any) -> Server:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", Fake().handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        try:
            return await detect(parse_target(f"https://localhost:{port}", api_key="", **options))
        finally:
            await runner.cleanup()

    with pytest.raises(InputError, match=r"^url: .*certificate verify failed"):
        asyncio.run(run())
    assert asyncio.run(run(verify=False)).engine == "vllm"
    found = asyncio.run(run(ca_file=certificate))
    assert found.metrics_urls[0].startswith("https://localhost:")


def test_over_a_unix_socket(tmp_path):
    async def run() -> Server:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", Fake().handle)
        runner = web.AppRunner(app)
        await runner.setup()
        path = str(tmp_path / "s.sock")
        await web.UnixSite(runner, path).start()
        found = await detect(parse_target(f"unix://{path}", api_key=""))
        await runner.cleanup()
        return found

    found = asyncio.run(run())
    assert (found.engine, found.metrics_urls) == ("vllm", ["http://localhost/metrics"])


def test_given_metrics_addresses():
    fake = Fake(places={"/elsewhere": VLLM_PAGE, "/json": "{}"})
    assert detected(fake, metrics_urls=["{url}/elsewhere"]).metrics_urls[0].endswith("/elsewhere")
    for url, why in (("{url}/absent", "404"), ("{url}/json", "200"), ("ftp://h/x", "http://")):
        with pytest.raises(InputError, match=rf"^metrics_url: .*{why}"):
            detected(fake, metrics_urls=[url])
    found = detected(fake, metrics_urls=[])
    assert (found.metrics_urls, found.notes) == ([], [])


def test_the_key_goes_to_no_other_server():
    other = Fake(places={"/metrics": VLLM_PAGE})
    fake = Fake()

    async def run() -> None:
        async with serving(fake) as url, serving(other) as exporter:
            await detect(parse_target(url, api_key="s3cret"), metrics_urls=[f"{exporter}/metrics", f"{url}/metrics"])

    asyncio.run(run())
    assert fake.authorizations == {"Bearer s3cret"}
    assert other.authorizations == {None}


@pytest.mark.parametrize(
    ("text", "is_page"),
    [
        (VLLM_PAGE, True),
        ('\nvllm:x{a="b c"} 1.0', True),
        ("process_cpu_seconds_total 1.5e3", True),
        ("x NaN", True),
        ("", False),
        ("[]", False),
        ('{"a": 1}', False),
        ("<html>", False),
        ("not found", False),
    ],
)
def test_what_a_metrics_page_looks_like(text: str, is_page: bool):
    assert is_prometheus(text) is is_page


def test_two_probes_tell_all_of_a_server_that_takes_all():
    fake = Fake(overhead=1)
    found = probed(fake)
    assert (found.takes_token_ids, found.gives_usage, found.takes_ignore_eos, found.calibrated) == (True,) * 4
    how = found.calibration
    assert (how.kind, how.tokens_per_unit, how.overhead_tokens) == ("ids", 1.0, 1.0)
    assert found.probes == len(fake.bodies) == 2
    lengths = [len(body["prompt"]) for body in fake.bodies]
    assert lengths == [64, 256]
    assert found.probe_prompt_tokens == sum(lengths) + 2
    assert found.probe_output_tokens == 4
    assert found.notes == []
    assert fake.bodies[0]["prompt"][:32] != fake.bodies[1]["prompt"][:32]
    assert all(body["stream"] and body["ignore_eos"] and body["max_tokens"] <= 8 for body in fake.bodies)


def test_a_short_context_gets_short_probes():
    fake = Fake()
    probed(fake, max_model_len=128)
    assert [len(body["prompt"]) for body in fake.bodies] == [4, 16]


def test_text_is_calibrated_by_usage():
    found = probed(Fake(overhead=23, per_unit=1.25), "chat")
    how = found.calibration
    assert (how.kind, how.tokens_per_unit, how.overhead_tokens) == ("words", 1.25, 23.0)
    assert not found.takes_token_ids
    assert found.notes == ["a word is 1.250 tokens on average: prompt lengths are close, not exact"]
    exact = probed(Fake(overhead=9), "chat", system_prompt="Be brief.")
    assert (exact.calibration.overhead_tokens, exact.notes) == (9.0, [])


def test_words_when_asked_for():
    fake = Fake()
    assert probed(fake, token_ids=False).calibration.kind == "words"
    assert isinstance(fake.bodies[0]["prompt"], str)


def refusing(*fields: str, status: int = 400, named: bool = True) -> Callable[[dict[str, Any]], Any]:
    def refuse(body: dict[str, Any]) -> Any:
        bad = next((field for field in fields if field in body), None)
        message = f"Unrecognized request argument supplied: {bad}" if named else "bad request"
        return bad and (status, {"error": {"message": message}})

    return refuse


def no_ids(body: dict[str, Any]) -> Any:
    wrong = isinstance(body.get("prompt"), list)
    return (422, "data did not match any variant of untagged enum Prompt") if wrong else None


@pytest.mark.parametrize(
    ("refuse", "endpoint", "expected"),
    [
        (refusing("ignore_eos"), "completions", {"takes_ignore_eos": False, "takes_token_ids": True}),
        (refusing("stream_options", status=422), "completions", {"takes_usage_option": False}),
        (refusing("temperature"), "chat", {"takes_temperature": False, "takes_ignore_eos": True}),
        (no_ids, "completions", {"takes_token_ids": False, "takes_ignore_eos": True}),
        (refusing("ignore_eos", named=False), "completions", {"takes_ignore_eos": False, "takes_token_ids": True}),
        (refusing("ignore_eos", "stream_options", "temperature"), "chat", {"takes_temperature": False}),
    ],
)
def test_what_is_refused_is_left_out(refuse: Any, endpoint: Any, expected: dict[str, Any]):
    fake = Fake(refuse=refuse)
    found = probed(fake, endpoint)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.probes <= MAX_PROBES
    assert found.calibrated
    assert found.notes
    assert found.body_options()["ignore_eos"] == found.takes_ignore_eos


def test_max_completion_tokens():
    def refuse(body: dict[str, Any]) -> Any:
        message = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        return (400, {"error": {"message": message}}) if "max_tokens" in body else None

    fake = Fake(refuse=refuse)
    assert probed(fake, "chat").max_tokens_key == "max_completion_tokens"
    assert len(fake.bodies) == 3


def test_a_small_vocabulary():
    def refuse(body: dict[str, Any]) -> Any:
        high = max(body["prompt"])
        return (400, {"message": f"Token id {high} is out of vocabulary"}) if high >= 4000 else None

    found = probed(Fake(refuse=refuse))
    assert found.takes_token_ids
    assert found.calibration.id_range == (1000, 1999)


def test_ids_that_are_not_counted_as_ids_become_words():
    fake = Fake()
    original = fake.answer

    def answer(body: dict[str, Any]) -> web.Response:
        fake.per_unit = 3.0 if isinstance(body["prompt"], list) else 1.0
        return original(body)

    fake.answer = answer  # type: ignore[method-assign]
    found = probed(fake)
    assert (found.takes_token_ids, found.calibration.kind) == (False, "words")
    assert "counted as 3.00 tokens each" in found.notes[0]
    assert found.probes == 4


def test_no_usage_in_streams_or_at_all():
    found = probed(Fake(usage="whole"))
    assert (found.gives_usage, found.calibrated, found.calibration.overhead_tokens) == (False, True, 1.0)
    assert found.probes == 3
    found = probed(Fake(usage="never"))
    assert (found.gives_usage, found.calibrated, found.calibration.kind) == (False, False, "ids")
    assert "gives no usage" in found.notes[-1]


def test_usage_that_does_not_grow_is_not_believed():
    found = probed(Fake(per_unit=0.0))
    assert not found.calibrated
    assert "does not grow" in found.notes[0]


def test_without_streaming():
    fake = Fake()
    found = probed(fake, stream=False)
    assert found.gives_usage
    assert all("stream_options" not in body and body["stream"] is False for body in fake.bodies)


def test_passing_failures_are_tried_again():
    fake = Fake(failures=[503, "cut", 429])
    found = probed(fake)
    assert (found.probes, found.calibrated) == (5, True)


def test_failures_that_do_not_pass_are_one_error():
    with pytest.raises(InputError, match=r"a first request fails; .*500: busy"):
        probed(Fake(failures=[500] * 4))
    fake = Fake()
    fake.answer = lambda body: web.Response(text='data: {"error": {"message": "boom"}}\n\n')  # type: ignore
    with pytest.raises(InputError, match="first request fails"):
        probed(fake)


def test_refusals_that_are_the_users():
    refuse = refusing("top_k", "cache_salt")
    with pytest.raises(InputError, match="top_k: the server refuses it"):
        probed(Fake(refuse=refuse), extra_body={"top_k": 1})
    with pytest.raises(InputError, match="cache_salt: the server refuses it"):
        probed(Fake(refuse=refuse), cache_salt="x")
    fake = Fake()
    probed(fake, extra_body={"top_k": 1}, cache_salt="x")
    assert all((body["top_k"], body["cache_salt"]) == (1, "x") for body in fake.bodies)


def test_a_server_that_refuses_everything():
    fake = Fake(refuse=lambda body: (400, {"error": "no, never"}))
    with pytest.raises(InputError, match=r"refuses every form of a request.*no, never"):
        probed(fake)
    assert len(fake.bodies) == MAX_PROBES


@pytest.mark.parametrize(
    ("status", "message", "field"),
    [
        (404, "The model `m` does not exist.", "model"),
        (404, "Not Found", "endpoint"),
        (405, "Method Not Allowed", "endpoint"),
        (501, "Not implemented", "endpoint"),
        (307, "elsewhere", "endpoint"),
    ],
)
def test_a_wrong_place(status: int, message: str, field: str):
    fake = Fake(refuse=lambda body: (status, {"error": {"message": message}}))
    with pytest.raises(InputError, match=f"^{field}: ") as raised:
        probed(fake)
    assert message.rstrip(".") in str(raised.value)
    assert len(fake.bodies) == 1


def test_a_secret_that_the_server_repeats_is_hidden():
    fake = Fake(refuse=lambda body: (401, {"error": {"message": "Incorrect API key provided: s3cret"}}))
    with pytest.raises(InputError, match=r"^api_key: .*provided: \*\*\*") as raised:
        probed(fake, key="s3cret")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("ask", [detect, lambda connection: probe(connection, "m", "chat")])
def test_a_secret_in_what_is_no_answer_is_hidden(ask: Callable[[Any], Any]):
    key = "s3cret"

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"220 Bearer {key}\r\n\r\n".encode())
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await ask(parse_target(f"127.0.0.1:{port}", api_key=key))

    with pytest.raises(InputError, match=r"220 \*\*\*") as raised:
        asyncio.run(run())
    assert key not in "".join(traceback.format_exception(raised.value))


@contextmanager
def truth_server() -> Iterator[str]:
    """The shared server whose times are known, as a process of its own."""
    script = shared("tools/truth_server.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(script), "--port", str(port), "--ttft", "0.001", "--itl", "0"]
    process = subprocess.Popen(command)
    try:
        for _ in range(200):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def test_the_truth_server():
    async def run(url: str) -> tuple[Server, Abilities, Abilities]:
        connection = parse_target(url, api_key="")
        server = await detect(connection)
        ids = await probe(connection, server.model, "completions", max_model_len=server.max_model_len)
        return server, ids, await probe(connection, server.model, "chat")

    with truth_server() as url:
        server, ids, chat = asyncio.run(run(url))
    assert (server.engine, server.version, server.model, server.max_model_len) == ("vllm", "0.0", "mock", 131072)
    assert server.metrics_urls == [f"{url}/metrics"]
    assert (ids.takes_token_ids, ids.calibration.tokens_per_unit, ids.probes) == (True, 1.0, 2)  # 5 bytes a token
    assert (chat.calibration.kind, chat.calibration.tokens_per_unit, chat.probes) == ("words", 1.0, 2)
