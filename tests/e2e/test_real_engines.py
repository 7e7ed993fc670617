"""vLLM and llama.cpp's server, measured for real: our figures beside the engines' own.

The engines run on this machine's cores, beside the client. A run that says itself that it is unfit, because something
else took the cores away, is made again, three times in all. (That verdict looks at the client's lateness and at whether
client and server agree on what is in flight, not at the times and token counts that are compared.) So is one during
which the wall clock was set: vLLM's TTFT and E2E histograms are on it. CI once saw a mean TTFT longer by 0.14 s by them
than by the client, whose span holds theirs.
"""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferometer as im
from engines import loop
from engines.serve import Server

pytestmark = pytest.mark.engine

VLLM_PROMPT, VLLM_OUTPUT = 960, 5
"""A long prompt and a short reply: then 3 % of the TTFT is above the 2 to 4 ms that vLLM takes to read a request and to
write a chunk, which its own histograms leave out."""
LLAMACPP_PROMPT = 48


def measured(server: Server, workload: im.Workload, endpoint: str = "completions", **options: Any) -> im.Run:
    options = {"store": False, "scrape_interval_s": 0.25, "tokenizer": counted_by(server, endpoint), **options}
    for _ in range(3):
        run = im.bench(server.url, workload, endpoint=endpoint, server_log=str(server.log_path), **options)
        if comparable(run):
            break
    return run


def comparable(run: im.Run) -> bool:
    return not run.meta.unfit and abs(run.meta.client["clock_step_s"]) < CLOCK_STEP_S


CLOCK_STEP_S = 0.01
"""Set by less, no mean of these requests moves by 3 %."""


def counted_by(server: Server, endpoint: str) -> str | None:
    """vLLM's chats are text, of exact length with its tokenizer; completions go as token ids."""
    return str(server.tokenizer) if server.tokenizer and endpoint == "chat" else None


def total(run: im.Run, column: str) -> int:
    return int(run.requests[column].sum())


def check_whole(run: im.Run, requests: int) -> None:
    assert run.meta.partial == ""
    assert run.requests["error"].drop_nulls().to_list() == []
    assert run.requests.height == requests
    assert run.requests["output_tokens"].to_list() == run.requests["asked_output_tokens"].to_list()
    assert run.requests["finish_reason"].unique().to_list() == ["length"]


def check_tokens(run: im.Run) -> None:
    assert total(run, "prompt_tokens") == run.meta.counters["prompt_tokens"]
    assert total(run, "output_tokens") == run.meta.counters["generation_tokens"]


def check_times(run: im.Run) -> None:
    """Means within 3 % or 2 ms of the engine's own histograms."""
    summary, counters = run.summary(), run.meta.counters
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert counters[f"{name}.count"] == run.requests.height, name
        theirs = counters[f"{name}.sum"] / counters[f"{name}.count"]
        assert getattr(summary, name).mean == pytest.approx(theirs, rel=0.03, abs=0.002), (name, run.meta.client)


# --- vLLM -----------------------------------------------------------------------------------------------------------


def closed(concurrency: int) -> im.Workload:
    return im.Workload.closed_loop(concurrency, REQUESTS[concurrency], VLLM_PROMPT, VLLM_OUTPUT)


REQUESTS = {1: 20, 4: 48, 8: 80}
"""At ten and more a user; cores without AVX-512 do two prompts of this length a second."""


def test_vllm_sweep_agrees_with_its_own_metrics_at_every_point(vllm_cpu_server: Server):
    for _ in range(3):
        runs = im.bench_sweep(vllm_cpu_server.url, [closed(c) for c in (1, 4, 8)], store=False, scrape_interval_s=0.25)
        if all(map(comparable, runs)):
            break
    assert [run.meta.concurrency for run in runs] == [1, 4, 8]
    for run in runs:
        check_closed(run, run.meta.concurrency)


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_vllm_closed_loop_of_chats_agrees_with_its_own_metrics(vllm_cpu_server: Server, concurrency: int):
    check_closed(measured(vllm_cpu_server, closed(concurrency), "chat"), concurrency)


def check_closed(run: im.Run, concurrency: int) -> None:
    requests = REQUESTS[concurrency]
    check_whole(run, requests)
    check_tokens(run)
    check_times(run)
    assert run.requests["prompt_tokens"].to_list() == [VLLM_PROMPT] * requests
    assert run.summary().littles_law == pytest.approx(1, abs=0.02)
    assert run.meta.client["peak_in_flight"] == concurrency
    assert run.server["running"].max() <= concurrency


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_vllm_open_loop_agrees_with_its_own_metrics(vllm_cpu_server: Server, endpoint: str):
    rate = half_of_its_best_per_s(vllm_cpu_server)
    workload = im.Workload.open_loop(rate, requests=40, prompt_tokens=VLLM_PROMPT, output_tokens=VLLM_OUTPUT)
    run = measured(vllm_cpu_server, workload, endpoint, seed=1)
    check_whole(run, 40)
    check_tokens(run)
    check_times(run)
    # the engine computes on the client's cores, so this is no test of the client's best
    late_s = (run.requests["sent_s"] - run.requests["scheduled_s"]).sort().to_list()
    assert late_s[0] >= 0
    assert late_s[35] < 0.003


def half_of_its_best_per_s(server: Server) -> float:
    """Half of what it does for four users: from 0.8 to 5 requests a second on the machines seen."""
    run = measured(server, im.Workload.closed_loop(4, 12, VLLM_PROMPT, VLLM_OUTPUT))
    return 0.5 * run.requests.height / float(run.requests["end_s"].max() - run.requests["sent_s"].min())


def test_vllm_is_found_out_and_its_log_read(vllm_cpu_server: Server):
    run = measured(vllm_cpu_server, im.Workload.closed_loop(2, 20, 64, 8))
    found = run.meta.server
    assert (found["engine"], found["version"]) == ("vllm", vllm_cpu_server.version)
    assert run.meta.model == "tiny"
    assert found["max_model_len"] == 1024
    assert found["log"]["version"] == vllm_cpu_server.version
    assert found["log"]["kv_cache_memory_bytes"] == 2**30
    assert found["log"]["max_num_batched_tokens"] == 512
    assert found["log"]["prefix_caching"] is False
    # one line a step: in each, every request that has its first token gets one more
    steps = run.server.filter(pl.col("step_s").is_not_null())
    assert steps.height > 0
    assert steps["step_generation_requests"].max() <= 2
    assert (steps["step_s"] > 0).all()


def test_vllm_tokens_without_text_are_counted(vllm_cpu_server: Server):
    # the end token decodes to nothing, so each chunk has the text "": with token ids it is known to be a token
    workload = im.Workload.closed_loop(concurrency=2, requests=10, prompt_tokens=VLLM_PROMPT, output_tokens=8)
    run = measured(vllm_cpu_server, workload, extra_body={"logit_bias": {"0": 100}, "return_token_ids": True})
    check_whole(run, 10)
    check_tokens(run)
    assert run.requests["output_tokens"].to_list() == [8] * 10
    assert run.requests["first_token_s"].null_count() == 0
    check_times(run)


def test_vllm_end_token_before_the_asked_length(vllm_cpu_server: Server):
    workload = im.Workload.closed_loop(concurrency=2, requests=10, prompt_tokens=64, output_tokens=8)
    run = measured(vllm_cpu_server, workload, ignore_eos=False, extra_body={"logit_bias": {"0": 100}})
    check_tokens(run)
    assert run.requests["output_tokens"].to_list() == [1] * 10
    assert run.requests["asked_output_tokens"].to_list() == [8] * 10
    assert run.requests["finish_reason"].unique().to_list() == ["stop"]


def test_the_whole_loop_at_vllm(vllm_cpu_server: Server, tmp_path: Path):
    done = loop.loop(tmp_path, show=False, server=vllm_cpu_server)
    assert done.card.seal.state == "sealed"
    assert im.verify(done.sealed.verification.path)
    assert [run.meta.concurrency for run in done.runs] == list(loop.USERS)
    for run in done.runs:
        assert run.meta.partial == ""
        assert run.requests["error"].drop_nulls().len() == 0
    # a fresh prompt each time, and the cores' ceilings are ceilings
    assert [each.code for each in done.found if each.severity == "spoils"] == []
    assert {row["concurrency"] for row in done.profile.held_out} == set(loop.USERS) - set(loop.FITTED)
    # what else these cores do meanwhile moves the points by some percent: a second look before it is called wrong
    if worst(done) >= 25:
        done = loop.loop(tmp_path, show=False, server=vllm_cpu_server)
    rows = [row for row in done.profile.held_out if row["metric"] in HELD_OUT]
    assert {row["metric"] for row in rows} == HELD_OUT
    assert worst(done) < 25


HELD_OUT = {"output_tok_per_s", "tpot_ms.mean"}


def worst(done: loop.Loop) -> float:
    return max(abs(row["error_pct"]) for row in done.profile.held_out if row["metric"] in HELD_OUT)


# --- llama.cpp ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_llamacpp_closed_loop_agrees_with_its_own_counters(llamacpp_server: Server, endpoint: str, concurrency: int):
    requests = 20 * concurrency
    run = measured(llamacpp_server, im.Workload.closed_loop(concurrency, requests, LLAMACPP_PROMPT, 8), endpoint)
    check_whole(run, requests)
    check_tokens(run)
    assert run.summary().littles_law == pytest.approx(1, abs=0.02)
    if endpoint == "completions":
        assert run.requests["prompt_tokens"].to_list() == [LLAMACPP_PROMPT] * requests


def test_llamacpp_open_loop_agrees_with_its_own_counters(llamacpp_server: Server):
    run = measured(llamacpp_server, im.Workload.open_loop(2, 20, LLAMACPP_PROMPT, 8, arrivals="constant"), seed=1)
    check_whole(run, 20)
    check_tokens(run)
    assert run.meta.server["engine"] == "llamacpp"


def test_llamacpp_agrees_on_the_time_between_first_and_last_token(llamacpp_server: Server):
    # it counts generation from the first token on, so of 16 tokens these are 15 gaps
    run = measured(llamacpp_server, im.Workload.closed_loop(1, 20, LLAMACPP_PROMPT, 16))
    check_whole(run, 20)
    theirs_s = run.meta.counters["generation_s"] / 20
    ours_s = float((run.requests["last_token_s"] - run.requests["first_token_s"]).mean())
    assert ours_s == pytest.approx(theirs_s, rel=0.03, abs=0.002)


# --- what the protocols look like: the client rests on it -----------------------------------------------------------


def events(server: Server, path: str, **body: Any) -> list[Any]:
    """The events of a streamed reply to a greedy request of four tokens."""
    fields = {"model": server.model, "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True}
    fields |= {"stream_options": {"include_usage": True}, **body}
    request = urllib.request.Request(
        server.url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        data = [line[6:].strip() for line in answer if line.startswith(b"data: ")]
    assert data[-1] == b"[DONE]"
    return [json.loads(item) for item in data[:-1]]


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


PROMPT = [1000 + i for i in range(20)]


def counts(events: list[Any]) -> list[int]:
    """Tokens of each event: one, or several where vLLM was slower to write than to compute."""
    return [len(event["choices"][0]["token_ids"]) for event in events]


def test_vllm_completion_has_text_in_every_chunk(vllm_cpu_server: Server):
    *tokens, last = events(vllm_cpu_server, "/v1/completions", prompt=PROMPT, return_token_ids=True)
    assert min(counts(tokens)) >= 1
    assert sum(counts(tokens)) == 4
    assert all(event["choices"][0]["text"] for event in tokens)
    assert tokens[0]["choices"][0]["prompt_token_ids"] == PROMPT
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (20, 4)


def test_vllm_chat_begins_with_a_role_that_is_no_token(vllm_cpu_server: Server):
    role, *tokens, last = events(vllm_cpu_server, "/v1/chat/completions", messages=chat("bade"), return_token_ids=True)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "token_ids" not in role["choices"][0]
    assert all(event["choices"][0]["delta"]["content"] for event in tokens)
    assert min(counts(tokens)) >= 1
    assert sum(counts(tokens)) == 4
    assert last["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_vllm_sends_tokens_without_text_as_empty_chunks(vllm_cpu_server: Server, path: str):
    asked = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": chat("bade")}
    found = events(vllm_cpu_server, path, **asked, logit_bias={"0": 100}, return_token_ids=True)
    tokens = [choice for event in found for choice in event["choices"] if choice.get("token_ids")]
    assert [token for choice in tokens for token in choice["token_ids"]] == [0] * 4
    assert {choice.get("text", choice.get("delta", {}).get("content")) for choice in tokens} == {""}


def test_llamacpp_ends_a_completion_with_usage_and_timings(llamacpp_server: Server):
    *tokens, last = events(llamacpp_server, "/v1/completions", prompt=PROMPT)
    assert len(tokens) == 4
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["text"] == ""
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (20, 4)
    assert last["timings"]["predicted_n"] == 4


def test_llamacpp_chat_begins_with_a_role_and_ends_with_an_empty_delta(llamacpp_server: Server):
    role, *tokens, empty, last = events(llamacpp_server, "/v1/chat/completions", messages=chat("Count to ten."))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert 0 < len(tokens) <= 4
    assert empty["choices"][0]["delta"] == {}
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4


def test_llamacpp_counts_cached_prompt_tokens_apart(llamacpp_server: Server):
    before = page(llamacpp_server)
    prompt = [2000 + i for i in range(40)]
    usages = [events(llamacpp_server, "/v1/completions", prompt=prompt)[-1]["usage"] for _ in range(2)]
    grown = {name: value - before[name] for name, value in page(llamacpp_server).items() if name in before}
    assert [usage["prompt_tokens"] for usage in usages] == [40, 40]
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert grown["prompt_tokens_total"] + grown["prompt_tokens_cached_total"] == 80


def page(server: Server) -> dict[str, float]:
    """llama.cpp's metrics."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as answer:
        found = re.findall(r"^llamacpp:(\w+) (\S+)$", answer.read().decode(), flags=re.M)
    return {name: float(value) for name, value in found}
