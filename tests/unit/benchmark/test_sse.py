"""Streams as servers send them, split anywhere, and what becomes of each in a record."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.benchmark import sse
from inferometer.benchmark.job import Ended
from inferometer.benchmark.sse import AnswerError, AnswerReader, message, said
from unit.benchmark.scripted import DONE, delta, event, text, usage


def read(*pieces: bytes, keep_text: bool = False, end: bool = True) -> AnswerReader:
    """Feed each piece at 1 s, 2 s, ...; then the end of the stream."""
    reader = AnswerReader(Ended(index=0), keep_text)
    for number, piece in enumerate(pieces, 1):
        reader.feed(piece, float(number))
    if end:
        reader.flush(float(len(pieces)))
        reader.settle()
    return reader


def fails(*pieces: bytes) -> str:
    with pytest.raises(AnswerError) as raised:
        read(*pieces)
    return str(raised.value)


# --- framing --------------------------------------------------------------------------------------------------------

WHOLE = (
    b": keep-alive\n\n"
    + delta(role="assistant", content="")
    + b"event: message\nid: 3\nretry: 10\n"
    + delta(content="é ")
    + delta(reasoning_content="hm")
    + b'data:{"choices": [{"delta": {"content": "b"},\ndata: "finish_reason": "stop"}]}\n\n'
    + usage(9, 5, prompt_tokens_details={"cached_tokens": 4})
    + DONE
)


def told(reader: AnswerReader) -> tuple[Any, ...]:
    record = reader.record
    counts = (record.token_events, record.prompt_tokens, record.output_tokens, record.cached_tokens)
    return (*counts, record.finish_reason, "".join(reader.parts), reader.done, reader.concluded)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_split_at_every_byte(line_end: bytes):
    stream = WHOLE.replace(b"\n", line_end)
    whole = told(read(stream, keep_text=True))
    assert whole == (3, 9, 5, 4, "stop", "é b", True, True)
    for at in range(len(stream) + 1):
        assert told(read(stream[:at], stream[at:], keep_text=True)) == whole, at


@given(st.lists(st.integers(0, len(WHOLE)), max_size=40), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_split_anywhere(cuts: list[int], line_end: bytes):
    stream = WHOLE.replace(b"\n", line_end)
    at = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(at)]
    assert told(read(*pieces, keep_text=True)) == told(read(stream, keep_text=True))


def test_byte_by_byte_the_token_comes_with_its_last_byte():
    stream = text(" a") + text(" b")
    reader = read(*(stream[at : at + 1] for at in range(len(stream))))
    assert reader.record.times_s == [len(stream) / 2, len(stream)]


def test_several_events_in_one_read_come_at_one_time():
    record = read(text("a") + text("b"), text("c")).record
    assert record.times_s == [1.0, 1.0, 2.0]
    assert (record.first_token_s, record.last_token_s, record.token_events) == (1.0, 2.0, 3)


def test_a_last_event_without_an_empty_line_counts_at_the_end_of_the_stream():
    assert read(text("a"), b"data: [DONE]").done
    assert read(text("a", "stop").rstrip()).record.token_events == 1


def test_a_byte_order_mark_and_empty_data_are_nothing():
    assert read(b"\xef\xbb\xbf" + text("a") + b"data:\n\n" + b"data\n\n\n\n" + DONE).record.token_events == 1


def test_nothing_counts_after_done():
    assert read(text("a") + DONE + text("b")).record.token_events == 1


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "LONGEST_EVENT_BYTES", 100)
    assert fails(b"data: " + b"x" * 101).startswith("malformed: an event of more than 100 bytes")


# --- what is a token ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        delta(role="assistant", content=""),
        delta(role="assistant"),
        delta(role="assistant", content=None),
        delta(content="", reasoning_content="", tool_calls=[]),
        event({"choices": [{"index": 0, "delta": None}]}),
        event({"choices": [{"index": 0, "delta": {}}]}),
        event({"choices": []}),
        text(""),
        text(None),
    ],
)
def test_empty_first_chunk_is_no_token(first: bytes):
    record = read(first, delta(content="a") + delta("stop")).record
    assert (record.first_token_s, record.token_events) == (2.0, 1)


@pytest.mark.parametrize(
    "chunk",
    [
        text("", token_ids=[5]),
        delta(choice={"token_ids": [5]}, content=""),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
        delta(refusal="no"),
        delta(content=" "),
    ],
)
def test_ids_calls_refusals_and_spaces_are_tokens(chunk: bytes):
    assert read(chunk).record.token_events == 1


def test_ids_of_a_role_chunk_that_are_empty_are_no_token():
    assert read(delta(choice={"token_ids": []}, role="assistant", content="")).record.token_events == 0


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_a_token_and_content_is_told_apart(name: str):
    record = read(delta(role="assistant"), delta(**{name: "hm"}), delta(content="a")).record
    assert (record.first_token_s, record.first_content_s, record.token_events) == (2.0, 3.0, 2)


def test_only_reasoning_has_tokens_and_no_content():
    record = read(delta(reasoning_content="a"), delta(reasoning_content="b") + delta("stop")).record
    assert (record.first_token_s, record.last_token_s, record.token_events) == (1.0, 2.0, 2)
    assert record.first_content_s is None


def test_text_is_kept_only_where_asked():
    assert read(text("a"), text("b")).parts == []
    assert read(text("a"), text("b"), keep_text=True).parts == ["a", "b"]
    assert read(delta(reasoning="x"), delta(content="b"), keep_text=True).parts == ["b"]


# --- how many -------------------------------------------------------------------------------------------------------


def test_several_tokens_a_chunk_are_counted_by_usage():
    record = read(text(" a b c d"), text(" e f g h", "length"), usage(3, 8)).record
    assert (record.output_tokens, record.token_events, record.output_counted_by) == (8, 2, "usage")


def test_without_usage_what_came_is_counted_not_what_was_asked():
    reader = AnswerReader(Ended(index=0, asked_output_tokens=64))
    for number in range(16):
        reader.feed(text(" a", "stop" if number == 15 else None), float(number))
    reader.settle()
    assert (reader.record.output_tokens, reader.record.output_counted_by) == (16, "events")
    assert reader.record.prompt_tokens is None


def test_empty_reply_has_no_first_token_and_no_output():
    record = read(delta(role="assistant", content=""), delta("stop") + DONE).record
    assert (record.first_token_s, record.last_token_s, record.output_tokens) == (None, None, 0)


def test_a_failed_request_without_a_token_has_an_unknown_output():
    reader = AnswerReader(Ended(index=0, error="reset: ..."))
    reader.settle()
    assert reader.record.output_tokens is None


def test_reasoning_tokens_of_usage_in_both_places():
    nested = read(usage(1, 9, completion_tokens_details={"reasoning_tokens": 4})).record
    assert nested.reasoning_tokens == read(usage(1, 9, reasoning_tokens=4)).record.reasoning_tokens == 4
    assert read(usage(1, 9, prompt_tokens_details=None)).record.cached_tokens is None


def test_usage_on_every_chunk_is_no_end():
    going = event({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    reader = read(going)
    assert (reader.concluded, reader.record.output_tokens) == (False, 1)
    assert read(going, usage(3, 2)).concluded


def test_null_usage_and_engines_extras_are_ignored():
    reader = read(
        event({"choices": [{"text": "a", "finish_reason": ""}], "usage": None, "timings": {"predicted_n": 5}})
    )
    assert (reader.concluded, reader.record.finish_reason) == (False, None)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (event({"error": {"message": "out of\nmemory", "code": 500}}), "out of memory"),
        (event({"error": "boom"}), "boom"),
        (event({"error": {"code": 7}}), '{"code": 7}'),
        (event({"object": "error", "message": "boom", "code": 400}), "boom"),
        (b"event: error\n" + event({"error": {"detail": "boom"}}), "boom"),
        (text("", "abort"), "the server ended with finish_reason abort"),
    ],
)
def test_error_inside_the_stream(error: bytes, message: str):
    reader = AnswerReader(Ended(index=0))
    with pytest.raises(AnswerError, match=r"^stream: ") as raised:
        reader.feed(text("a") + error, 1.0)
    assert str(raised.value) == f"stream: {message}"
    assert reader.record.token_events == 1


@pytest.mark.parametrize(
    "data",
    [
        b"data: {nonsense\n\n",
        b"data: 5\n\n",
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [{"text": 5}]}\n\n',
        b'data: {"choices": [{"text": "\xff"}]}\n\n',
        b'data: {"x": ' + b"[" * 100_000 + b"\n\n",
        b"<html>\n\n",
        b'{"choices": []}\n\n',
        b'{"choices": []}',
    ],
)
def test_malformed(data: bytes):
    assert fails(data).startswith("malformed: ")
    assert len(fails(data)) < 500


def test_an_event_that_says_nothing_is_passed_over():
    assert read(event({}), event({"ping": 1}), text("a")).record.token_events == 1


# --- not a stream ---------------------------------------------------------------------------------------------------


def whole(body: bytes) -> AnswerReader:
    reader = AnswerReader(Ended(index=0), keep_text=True)
    reader.whole(body)
    reader.settle()
    return reader


@pytest.mark.parametrize("choice", [b'"text": "a b"', b'"message": {"role": "assistant", "content": "a b"}'])
def test_whole_answer(choice: bytes):
    usage_of = b'"usage": {"prompt_tokens": 3, "completion_tokens": 2}'
    reader = whole(b'{"choices": [{%b, "finish_reason": "length"}], %b}' % (choice, usage_of))
    record = reader.record
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (3, 2, "length")
    assert (record.first_token_s, record.token_events, reader.parts) == (None, 0, ["a b"])


def test_whole_answer_without_usage_has_an_unknown_output():
    assert whole(b'{"choices": [{"message": {"content": null}}]}').record.output_tokens is None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"error": {"message": "no"}}', "stream: no"),
        (b"{}", "malformed: an answer without choices: {}"),
        (b"<html>", "malformed: "),
        (b"", "malformed: "),
    ],
)
def test_whole_answer_that_is_none(body: bytes, error: str):
    with pytest.raises(AnswerError) as raised:
        whole(body)
    assert str(raised.value).startswith(error)


def test_said_is_short_and_on_one_line():
    assert said({"error": {"message": "a\n b"}}) == "a b"
    assert len(said("x" * 1000)) == sse.EXCERPT


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "a"}', "a"),
        (b'{"error": {"type": "t", "msg": "a"}}', "a"),
        (b'{"object": "error", "message": "a"}', "a"),
        (b'{"detail": [{"loc": ["b"]}]}', '[{"loc": ["b"]}]'),
        (b'{"error": {"code": 7}}', '{"code": 7}'),
        (b'"a"', "a"),
        (b"<html>\n a", "<html> a"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_what_an_error_body_says(body: bytes, says: str):
    assert message(body) == says
