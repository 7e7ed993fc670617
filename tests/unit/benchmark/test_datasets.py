"""Datasets by their content, what is wrong with broken ones, and their prompts as JSON in an arena."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.benchmark.datasets import Dataset, load_dataset, plan_dataset
from inferometer.benchmark.job import Endpoint
from inferometer.benchmark.prompts import Prompts, body, load_tokenizer
from inferometer.errors import FormatError, InputError

SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "first"},
            {"from": "gpt", "value": "x" * 40},
            {"from": "human", "value": "second"},
            {"from": "gpt", "value": "y" * 8},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "late"}]},
    {"id": "c", "conversations": [{"from": "system", "value": "be good"}]},
    {"id": "d", "conversations": []},
]


def write(folder: Path, content: Any, name: str = "data") -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def planned(dataset: Dataset, folder: Path, count: int, endpoint: Endpoint = "completions", **options: Any) -> Prompts:
    given = {"seed": 1, "endpoint": endpoint, "output_tokens": 5, **options}
    return plan_dataset(dataset, folder / "arena", count, **given)


def sent(made: Prompts, endpoint: Endpoint, messages: bool = False) -> list[Any]:
    """What a server gets: the prompts, or the messages of a chat."""
    arena = Path(made.arena).read_bytes()
    head, middle, tail = body(endpoint, "m", messages=messages)
    texts = [arena[start:stop].decode() for start, stop in made.plan.slices]
    bodies = [json.loads(head + text + middle + "1" + tail) for text in texts]
    return [content["prompt" if endpoint == "completions" else "messages"] for content in bodies]


@pytest.mark.parametrize("as_lines", [False, True])
def test_sharegpt(tmp_path: Path, as_lines: bool):
    found = load_dataset(write(tmp_path, lines(*SHAREGPT) if as_lines else SHAREGPT))
    assert found.form == "sharegpt"
    assert found.prompts == ["first", "late"]
    assert found.output_tokens == [10, None]
    assert found.session == [0, 1]
    assert found.notes == [
        "2 rows without a prompt are left out",
        "output tokens are those of the answers in the file, about",
    ]


def test_sharegpt_sessions(tmp_path: Path):
    found = load_dataset(write(tmp_path, SHAREGPT), sessions=True)
    assert found.prompts == ["first", "second", "late"]
    assert found.output_tokens == [10, 2, None]
    assert found.session == [0, 0, 1]
    made = planned(found, tmp_path, 2, "chat")
    assert sorted(made.plan.session) in ([0, 0, 1], [0, 1, 1])
    said = [messages[-1]["content"] for messages in sent(made, "chat")]
    assert said.index("second") == said.index("first") + 1
    assert made.asked_prompt_tokens == [None] * 3


def test_json_lines_in_all_their_keys(tmp_path: Path):
    rows = [
        {"prompt": "a", "output_tokens": 7},
        {"text": "b", "max_tokens": 8.0},
        {"question": "c", "output_length": 9},
        {"prompt": "d"},
        {"prompt": "e", "output_tokens": None, "max_tokens": 3},
    ]
    found = load_dataset(write(tmp_path, lines(*rows)))
    assert (found.form, found.prompts) == ("json", ["a", "b", "c", "d", "e"])
    assert found.output_tokens == [7, 8, 9, None, 3]
    assert not found.has_messages
    assert load_dataset(write(tmp_path, rows)) == found
    assert load_dataset(write(tmp_path, ["x", "y"])).prompts == ["x", "y"]


def test_messages(tmp_path: Path):
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "z" * 12},
    ]
    rows = [{"messages": chat}, {"messages": [{"role": "user", "content": 'q"'}], "max_tokens": 4}, {"prompt": "p"}]
    found = load_dataset(write(tmp_path, lines(*rows)))
    assert found.has_messages
    assert found.prompts == [
        [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"}],
        'q"',
        "p",
    ]
    assert found.output_tokens == [3, 4, None]
    got = sent(planned(found, tmp_path, 3, "chat"), "chat", messages=True)
    users = [[{"role": "user", "content": text}] for text in ('q"', "p")]
    assert sorted(map(json.dumps, got)) == sorted(map(json.dumps, [found.prompts[0], *users]))
    assert set(sent(planned(found, tmp_path, 3), "completions")) == {"s\nab", 'q"', "p"}


def test_messages_as_sessions(tmp_path: Path):
    chat = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "bbbb"), ("user", "c"))]
    found = load_dataset(write(tmp_path, lines({"messages": chat})), sessions=True)
    assert (found.prompts, found.session, found.output_tokens) == (["a", "c"], [0, 0], [1, None])


def test_plain_lines(tmp_path: Path):
    found = load_dataset(write(tmp_path, "[INST] what [/INST]\n\n  {not json} \r\nünï\n"))
    assert (found.form, found.prompts) == ("text", ["[INST] what [/INST]", "{not json}", "ünï"])
    assert found.output_tokens == [None] * 3
    assert found.notes == ["1 rows without a prompt are left out"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "holds no prompts"),
        ("\n \n", "holds no prompts"),
        ("[]", "holds no prompts"),
        ('[{"conversations": []}]', "holds no prompts"),
        ('[{"prompt": "a"}, {"pro', "not valid JSON"),
        ('{"prompt": "a"}\n{"pro\n', "line 2: not valid JSON"),
        ('{\n  "prompt": "a"\n}\n{"prompt": "b"}', "holds|JSON"),
        ('{"prompt": "a"}\n{"other": "b"}\n', r"row 2: has none of prompt, text"),
        ('{"prompt": 5}\n', "row 1: prompt is no text"),
        ('["a", 5]', "row 2: is no object and no text"),
        ('{"prompt": "a", "output_tokens": 0}', "row 1: output_tokens: 0 is not allowed"),
        ('{"prompt": "a", "output_tokens": "9"}', "row 1: output_tokens: '9'"),
        ('{"messages": "a"}', "row 1: messages are no list"),
        ('{"messages": ["a"]}', "row 1: a turn of the conversation is no object"),
        ('{"messages": [{"content": "a"}]}', "row 1: a turn does not say who speaks"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "something other than text"),
        ('[{"conversations": [{"from": "human", "value": 5}]}]', "something other than text"),
    ],
)
def test_what_is_broken_is_one_clear_error(tmp_path: Path, content: str, why: str):
    with pytest.raises(FormatError, match=why):
        load_dataset(write(tmp_path, content))


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(FormatError, match="No such file"):
        load_dataset(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00abc\x80")
    with pytest.raises(FormatError, match="not UTF-8"):
        load_dataset(tmp_path / "binary")


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path):
    (tmp_path / "data").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert load_dataset(tmp_path / "data").prompts == ["a"]


def test_a_draw_is_without_replacement_and_of_its_seed(tmp_path: Path):
    found = load_dataset(write(tmp_path, "\n".join(f"line {n}" for n in range(50))))
    first = sent(planned(found, tmp_path, 50), "completions")
    assert sorted(first) == sorted(found.prompts)
    assert first != found.prompts
    assert sent(planned(found, tmp_path, 50), "completions") == first
    assert sent(planned(found, tmp_path, 50, seed=2), "completions") != first
    some = planned(found, tmp_path, 20)
    assert sent(some, "completions") == first[:20]
    assert some.notes == []


def test_a_short_dataset_repeats_and_says_so(tmp_path: Path):
    found = load_dataset(write(tmp_path, "a\nb\n"))
    made = planned(found, tmp_path, 5)
    got = sent(made, "completions")
    assert (sorted(got[:2]), sorted(got[2:4]), len(got)) == (["a", "b"], ["a", "b"], 5)
    assert made.notes == ["the dataset has 2 prompts: they repeat"]
    assert made.distinct_requests == 2
    assert Path(made.arena).stat().st_size == 2


def test_output_tokens_come_from_the_file_or_the_user(tmp_path: Path):
    found = load_dataset(write(tmp_path, lines({"prompt": "a", "max_tokens": 7}, {"prompt": "b", "max_tokens": 9})))
    assert sorted(planned(found, tmp_path, 2, output_tokens=None).plan.output_tokens) == [7, 9]
    assert planned(found, tmp_path, 2).plan.output_tokens == [5, 5]
    some = load_dataset(write(tmp_path, lines({"prompt": "a", "max_tokens": 7}, {"prompt": "b"}, {"prompt": "c"})))
    made = planned(some, tmp_path, 6, output_tokens=None, unsaid_output_tokens=[1, 2, 3, 4])
    asked = zip(sent(made, "completions"), made.plan.output_tokens, [1, 2, 3, 4, 1, 2], strict=True)
    assert all(tokens == (7 if prompt == "a" else other) for prompt, tokens, other in asked)
    assert planned(some, tmp_path, 3, unsaid_output_tokens=[1]).plan.output_tokens == [5, 5, 5]
    silent = load_dataset(write(tmp_path, "a\n"))
    with pytest.raises(InputError, match=r"^output_tokens: None is not allowed"):
        planned(silent, tmp_path, 1, output_tokens=None)


def test_bad_plans(tmp_path: Path):
    found = load_dataset(write(tmp_path, "a\nb\n"))
    with pytest.raises(InputError, match=r"^requests: 0"):
        planned(found, tmp_path, 0)
    with pytest.raises(InputError, match=r"^scheduled_s: '1 values'"):
        planned(found, tmp_path, 2, scheduled_s=[0.0])
    with pytest.raises(InputError, match="prompts cannot be written"):
        plan_dataset(found, tmp_path / "no" / "arena", 1, seed=0, endpoint="chat", output_tokens=1)


def test_schedules_and_salts(tmp_path: Path):
    found = load_dataset(write(tmp_path, "a\nb\n"))
    made = planned(found, tmp_path, 2, scheduled_s=[0.0, 0.5], fresh_salt=True)
    assert made.plan.scheduled_s == [0.0, 0.5]
    assert len(set(made.plan.salt)) == 2
    assert made.plan.session == []


def test_a_tokenizer_counts_prompts_and_answers(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    rows = [{"conversations": [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "longword " * 6}]}]
    found = load_dataset(write(tmp_path, rows), tokenizer=tokenizer)
    assert found.output_tokens == [6]
    assert planned(found, tmp_path, 2, tokenizer=tokenizer).asked_prompt_tokens == [3, 3]
    assert planned(found, tmp_path, 1, "chat", tokenizer=tokenizer).asked_prompt_tokens == [None]
    assert planned(found, tmp_path, 1).asked_prompt_tokens == [None]


@given(texts=st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_any_text_arrives_as_it_is(tmp_path_factory: pytest.TempPathFactory, texts: list[str]):
    folder = tmp_path_factory.mktemp("any")
    found = load_dataset(write(folder, lines(*({"prompt": text} for text in texts))))
    assert found.prompts == texts
    for endpoint in ("completions", "chat"):
        got = sent(planned(found, folder, len(texts), endpoint), endpoint)
        assert sorted(m if endpoint == "completions" else m[0]["content"] for m in got) == sorted(texts)
