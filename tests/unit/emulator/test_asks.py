from __future__ import annotations

import json
from typing import Any

import pytest

from inferometer.emulator.asks import CHAT_OUTPUT_TOKENS, Ask, Limits, Outputs, Refusal, read_ask
from inferometer.emulator.text import answer, chat_tokens, count_tokens, detokenize, tokenize

LIMITS = Limits(model="m", max_model_len=200, block_size=16, blocks=12, template_tokens=4)


def ask(chat: bool = False, outputs: Any = None, **body: Any) -> Ask:
    return read_ask(json.dumps(body).encode(), chat, LIMITS, Outputs(outputs, 0))


def refused(chat: bool = False, raw: bytes | None = None, **body: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read_ask(raw or json.dumps(body).encode(), chat, LIMITS, Outputs(None, 0))
    return caught.value


@pytest.mark.parametrize(
    "prompt", ["a b  c\nd", ["a b c d"], [1, 2, 3, 4], [[1, 2, 3, 4]]], ids=["text", "texts", "ids", "lists"]
)
def test_prompts_of_every_form_are_counted(prompt: Any):
    assert ask(prompt=prompt).prompt_tokens == 4


@pytest.mark.parametrize("prompt", ["", "  ", [], ["a", "b"], [[1], [2]], None, {"a": 1}, [1, "a"], [True]])
def test_other_prompts_are_refused(prompt: Any):
    assert refused(prompt=prompt).status == 400


def test_a_chat_counts_words_and_its_template():
    parts = [{"type": "text", "text": "three words here"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    assert ask(chat=True, messages=messages).prompt_tokens == 2 + 3 + 4


def test_how_long_an_answer_is():
    assert ask(prompt="a").output_tokens == 16
    assert (ask(prompt="a", max_tokens=9).output_tokens, ask(prompt="a", max_tokens=9).reason) == (9, "length")
    chat = {"chat": True, "messages": [{"role": "user", "content": "a"}]}
    assert (ask(**chat).output_tokens, ask(**chat).reason) == (CHAT_OUTPUT_TOKENS, "stop")
    assert ask(**chat, max_tokens=5, max_completion_tokens=7).output_tokens == 7


def test_drawn_lengths_stop_unless_the_limit_comes_first():
    assert (ask(outputs=30, prompt="a", max_tokens=50).output_tokens, "stop") == (30, "stop")
    assert ask(outputs=30, prompt="a", max_tokens=50).reason == "stop"
    assert (ask(outputs=30, prompt="a", max_tokens=20).output_tokens) == 20
    assert ask(outputs=30, prompt="a", max_tokens=20).reason == "length"
    assert ask(outputs=30, prompt="a", max_tokens=50, ignore_eos=True).output_tokens == 50
    assert ask(outputs=30, prompt="a", max_tokens=50, min_tokens=40).output_tokens == 40
    spread = Outputs({"uniform": {"low": 5, "high": 15}}, seed=1)
    lengths = [spread.choose(100, 1, 0, False)[0] for _ in range(200)]
    assert set(lengths) == set(range(5, 16))
    again = Outputs({"uniform": {"low": 5, "high": 15}}, seed=1)
    assert lengths == [again.choose(100, 1, 0, False)[0] for _ in range(200)]


def test_what_is_too_long_is_refused_in_the_engines_words():
    long = refused(prompt=[1] * 200, max_tokens=1)
    assert long.status == 400
    assert long.message.startswith("This model's maximum context length is 200 tokens. However, your request has 200")
    large = refused(prompt=[1] * 150, max_tokens=60)
    assert "'max_tokens' or 'max_completion_tokens' is too large: 60" in large.message
    assert "(60 > 200 - 150)" in large.message
    assert refused(prompt=[1] * 150, max_tokens=50).message.endswith("larger than the KV pool of 12 blocks")
    assert ask(prompt=[1] * 150, max_tokens=43).output_tokens == 43


def test_another_model_does_not_exist():
    assert ask(prompt="a", model="m").prompt_tokens == 1
    missing = refused(prompt="a", model="other")
    assert (missing.status, missing.kind, missing.message) == (
        404,
        "NotFoundError",
        "The model `other` does not exist.",
    )
    assert json.loads(missing.body())["error"]["code"] == 404


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 2), ("best_of", 3), ("echo", True), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", "9")],
)
def test_what_is_not_done_is_refused_by_name(field: str, value: Any):
    error = json.loads(refused(prompt="a", **{field: value}).body())["error"]
    assert (error["param"], error["type"], error["code"]) == (field, "BadRequestError", 400)
    assert field in error["message"]


def test_stream_options_need_a_stream():
    assert refused(prompt="a", stream_options={"include_usage": True}).param == "stream_options"
    assert refused(prompt="a", stream=True, stream_options=[1]).param == "stream_options"
    asked = ask(prompt="a", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (asked.include_usage, asked.continuous_usage) == (True, True)


@pytest.mark.parametrize("raw", [b"{", b"[1]", b"\xff"])
def test_a_body_that_is_no_object_is_refused(raw: bytes):
    assert refused(raw=raw).status == 400


def test_words_are_tokens_both_ways():
    for n in (1, 16, 17, 100):
        assert count_tokens(answer(n)) == n
    ids = tokenize("to be or not to be", 1000)
    assert ids[0] == ids[4]
    assert len(ids) == 6
    assert max(ids) < 1000
    assert count_tokens(detokenize(ids)) == 6
    assert chat_tokens([{"role": "user", "content": None}], 4) == 4


def test_what_vllm_refuses_is_refused():
    assert refused(prompt="a", min_tokens=9, max_tokens=4).param == "min_tokens"
    assert refused(prompt="a", stream="false").param == "stream"
    assert refused(prompt=[1, -2]).param == "prompt"
    assert refused(raw=b"[" * 100_000 + b"]" * 100_000).status == 400
