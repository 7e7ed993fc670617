"""Prompts: valid JSON around exact slices, no prefix shared but on request, lengths as asked."""

from __future__ import annotations

import builtins
import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.benchmark import prompts
from inferometer.benchmark.job import Connection, Endpoint, Job, Plan
from inferometer.benchmark.payload import Bodies
from inferometer.benchmark.prompts import (
    WORDS,
    Calibration,
    Prompts,
    body,
    escaped,
    load_tokenizer,
    make_arena,
    make_plan,
    split_plan,
    units_for,
)
from inferometer.errors import InputError
from shared import shared

IDS = Calibration()
TEXT = Calibration(kind="words")


def plan_of(tmp_path: Path, lengths: list[int], how: Calibration = IDS, **options: Any) -> Prompts:
    return make_plan(tmp_path / "arena", lengths, [1] * len(lengths), how, **{"seed": 1, **options})


def prompt_bytes(made: Prompts, moved: int = 0) -> list[bytes]:
    """Each prompt as the worker reads it, in a cycled plan's round ``moved``."""
    arena = Path(made.arena).read_bytes()
    texts = []
    for row in made.plan.slices:
        *shared_part, start, stop = row
        shift = (start + moved * made.shift_bytes) % made.ring_bytes - start
        pieces = [*zip(shared_part[::2], shared_part[1::2], strict=True), (start + shift, stop + shift)]
        assert all(0 <= a < b <= len(arena) for a, b in pieces)
        texts.append(b"".join(arena[a:b] for a, b in pieces))
    return texts


def ids_of(made: Prompts, moved: int = 0) -> list[list[int]]:
    return [json.loads(b"[" + text + b"]") for text in prompt_bytes(made, moved)]


def test_words_are_distinct_and_of_four_letters():
    assert len(set(WORDS)) == len(WORDS) > 250
    assert all(len(word) == 4 and word.isascii() and word.islower() for word in WORDS)


def test_an_arena_is_random_units(tmp_path):
    size = make_arena("ids", 20_000, 3, tmp_path / "a")
    text = (tmp_path / "a").read_bytes()
    assert size == len(text) == 100_000
    ids = np.array([int(unit) for unit in text.decode().split(",")[:-1]])
    assert len(ids) == 20_000
    assert (ids.min(), ids.max()) == pytest.approx((1000, 9999), abs=20)
    assert ids.mean() == pytest.approx(5499.5, abs=5 * 2598 / np.sqrt(20_000))
    make_arena("ids", 20_000, 3, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == text
    make_arena("ids", 20_000, 4, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() != text


def test_an_arena_of_words_and_of_a_narrow_range(tmp_path):
    make_arena("words", 1000, 0, tmp_path / "a", words=["able", "army"])
    assert set((tmp_path / "a").read_text().split(" ")[1:]) == {"able", "army"}
    make_arena("ids", 1000, 0, tmp_path / "a", id_range=(1000, 1999))
    assert max(int(unit) for unit in (tmp_path / "a").read_text().split(",")[:-1]) <= 1999


@pytest.mark.parametrize(
    ("kind", "choice", "field"),
    [
        ("ids", {"id_range": (999, 5000)}, "id_range"),
        ("ids", {"id_range": (5000, 10_000)}, "id_range"),
        ("ids", {"id_range": (5000, 5000)}, "id_range"),
        ("words", {"words": ["able"]}, "words"),
        ("words", {"words": ["able", "abler"]}, "words"),
        ("words", {"words": ["able", "caféx"[:4]]}, "words"),
    ],
)
def test_units_that_are_not_five_bytes_are_refused(tmp_path, kind, choice, field):
    with pytest.raises(InputError) as raised:
        make_arena(kind, 10, 0, tmp_path / "a", **choice)
    assert raised.value.field == field


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(InputError, match="prompts cannot be written"):
        make_arena("ids", 10, 0, tmp_path / "no" / "a")


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.booleans(),
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_prompts_have_the_length_asked_and_share_what_is_asked(tmp_path_factory, lengths, cycle, shared_len, reuse):
    folder = tmp_path_factory.mktemp("plan")
    made = plan_of(folder, lengths, cycle=cycle, shared_prefix_tokens=shared_len, prefix_reuse=reuse)
    found = ids_of(made)
    assert [len(ids) for ids in found] == lengths == made.asked_prompt_tokens
    prefixes = -(-len(lengths) // (reuse or len(lengths)))
    for i, ids in enumerate(found):
        for j in range(i):
            alike = min(shared_len, lengths[i] - 1, lengths[j] - 1)
            if i % prefixes == j % prefixes:
                assert ids[:alike] == found[j][:alike]
            elif alike >= 4:
                assert ids[:4] != found[j][:4]
    starts = [row[-2] for row in made.plan.slices]
    assert len(set(starts)) == len(starts)


def test_no_two_prompts_share_a_prefix_over_all_rounds(tmp_path):
    made = plan_of(tmp_path, [32] * 50, cycle=True)
    rounds = made.distinct_requests // 50
    assert rounds >= 64
    begun = [tuple(ids[:8]) for moved in range(rounds) for ids in ids_of(made, moved)]
    assert len(set(begun)) == len(begun) == made.distinct_requests
    assert sorted(ids_of(made, rounds)) == sorted(ids_of(made, 0))
    assert made.notes == []


def test_slices_do_not_overlap_while_there_is_room(tmp_path):
    rows = sorted(row[-2:] for row in plan_of(tmp_path, [10, 700, 3, 700]).plan.slices)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(rows))


def test_a_full_arena_overlaps_and_at_last_repeats(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "CAP_BYTES", 5 * 200)
    made = plan_of(tmp_path, [20] * 100)
    assert len({row[0] for row in made.plan.slices}) == 100
    assert made.notes == []
    assert Path(made.arena).stat().st_size <= 5 * 200
    made = plan_of(tmp_path, [20] * 300)
    assert made.notes == ["prompts repeat after 180 requests"]
    assert ids_of(made)[180] == ids_of(made)[0]
    made = plan_of(tmp_path, [20] * 60, cycle=True)
    assert made.notes == ["prompts repeat after 180 requests"]
    assert len({row[0] for row in made.plan.slices}) == 60


def test_ten_thousand_requests_stay_under_the_cap_and_do_not_overlap(tmp_path):
    made = plan_of(tmp_path, [1000] * 10_000)
    assert 50_000_000 < Path(made.arena).stat().st_size <= prompts.CAP_BYTES
    assert made.plan.slices[1][0] - made.plan.slices[0][1] == 1  # the comma between


def test_short_prompts_may_be_the_same_by_chance_and_that_is_said(tmp_path):
    assert "1 units of their own are so short" in plan_of(tmp_path, [1] * 100).notes[0]
    assert plan_of(tmp_path, [16] * 100, TEXT).notes == []


def test_overhead_and_slope_of_calibrated_text(tmp_path):
    how = Calibration(kind="words", tokens_per_unit=1.25, overhead_tokens=10)
    assert units_for([35, 11, 3], how).tolist() == [20, 1, 1]
    made = plan_of(tmp_path, [35, 3], how)
    assert [len(text.split()) for text in prompt_bytes(made)] == [20, 1]
    assert "1 prompts are longer than asked: the server's own tokens make 11 the least" in made.notes
    assert all(text.startswith(b" ") for text in prompt_bytes(made))


def test_a_prefix_longer_than_a_prompt_is_cut(tmp_path):
    made = plan_of(tmp_path, [8, 20, 20], shared_prefix_tokens=16)
    found = ids_of(made)
    assert [len(ids) for ids in found] == [8, 20, 20]
    assert found[0][:7] == found[1][:7]
    assert found[1][:16] == found[2][:16] != found[1][4:]
    assert made.notes == ["1 prompts are not longer than the shared prefix: they have less of it"]


def test_sessions_are_adjacent_and_count_overhead_once(tmp_path):
    how = Calibration(kind="words", overhead_tokens=5)
    made = plan_of(tmp_path, [20] * 6, how, turns=3, shared_prefix_tokens=8, fresh_salt=True)
    assert made.plan.session == [0, 0, 0, 1, 1, 1]
    assert [len(text.split()) for text in prompt_bytes(made)] == [15, 20, 20] * 2
    assert made.asked_prompt_tokens == [20, None, None] * 2
    assert [len(row) for row in made.plan.slices] == [4, 2, 2] * 2
    assert len(set(made.plan.salt)) == 2
    assert made.plan.salt[0] == made.plan.salt[2] != made.plan.salt[3]
    with pytest.raises(InputError, match="turns: 3 is not allowed"):
        plan_of(tmp_path, [20] * 6, turns=3)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scheduled_s": [0.0]}, "scheduled_s"),
        ({"shared_prefix_tokens": -1}, "shared_prefix_tokens"),
        ({"shared_prefix_tokens": 2, "prefix_reuse": 0}, "prefix_reuse"),
        ({"turns": 0}, "turns"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_plans_are_refused(tmp_path, change, field):
    with pytest.raises(InputError) as raised:
        plan_of(tmp_path, [4, 4], **change)
    assert raised.value.field == field


def test_unequal_columns_are_refused(tmp_path):
    for lengths, outputs in (([4, 4], [1]), ([], [])):
        with pytest.raises(InputError, match=r"^output_tokens: "):
            make_plan(tmp_path / "a", lengths, outputs, IDS, seed=0)


def test_salts_keep_the_body_valid(tmp_path):
    head, middle, tail = body("completions", "m", token_ids=True)
    made = plan_of(tmp_path, [4, 4], fresh_salt=True)
    text = prompt_bytes(made)[0].decode()
    for salt in made.plan.salt:
        sent = json.loads(head + text + middle + "7" + tail[:-1] + salt + tail[-1])
        assert (sent["max_tokens"], len(sent["prompt"])) == (7, 4)
        assert len(sent["cache_salt"]) == 32
    assert made.plan.salt[0] != made.plan.salt[1]
    assert plan_of(tmp_path, [4, 4], fresh_salt=True).plan.salt == made.plan.salt
    assert plan_of(tmp_path, [4]).plan.salt == []


def test_another_seed_is_another_prompt_and_the_same_seed_the_same(tmp_path):
    first = prompt_bytes(plan_of(tmp_path, [64, 64], seed=5))
    assert prompt_bytes(plan_of(tmp_path, [64, 64], seed=5)) == first
    assert prompt_bytes(plan_of(tmp_path, [64, 64], seed=6))[0][:8] != first[0][:8]


def test_plans_are_dealt_out_with_sessions_whole():
    plan = Plan(index=[*range(7)], slices=[[i, i + 1] for i in range(7)], output_tokens=[1] * 7, salt=[*"abcdefg"])
    parts = split_plan(plan, 3)
    assert [part.index for part in parts] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [part.salt for part in parts] == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert parts[0].slices == [[0, 1], [3, 4], [6, 7]]
    assert parts[0].scheduled_s == parts[0].session == []
    plan.session = [0, 0, 1, 1, 1, 2, 2]
    assert [part.index for part in split_plan(plan, 2)] == [[0, 1, 5, 6], [2, 3, 4]]
    assert split_plan(plan, 4)[3].index == []


@pytest.mark.parametrize("users", [[2, 1], [2, 2, 1], [171, 171, 170], [1]])
@pytest.mark.parametrize("turns", [1, 3])
def test_a_closed_loops_rows_go_where_its_users_are(users: list[int], turns: int):
    sessions = 10 * sum(users) + 1
    rows = range(sessions * turns)
    session = [row // turns for row in rows] if turns > 1 else []
    plan = Plan(index=[*rows], slices=[[0, 4] for _ in rows], output_tokens=[*rows], session=session)
    parts = split_plan(plan, len(users), users)
    assert sorted(index for part in parts for index in part.index) == [*rows]
    for part, own in zip(parts, users, strict=True):
        assert part.index == sorted(part.index) == part.output_tokens
        assert len(part.index) / turns == pytest.approx(10 * own, abs=1)
        assert part.session == [index // turns for index in part.index if turns > 1]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("system", [None, 'be "brief"\n'])
def test_templates_are_valid_json(endpoint: Endpoint, system: str | None):
    text = 'say "hi"\n\\ ünï \ud800'
    parts = body(endpoint, "or/g", system_prompt=system, extra_body={"top_k": 1, "n": 1, "temperature": 0.5})
    sent = json.loads(parts.head + escaped(text) + parts.middle + "16" + parts.tail)
    text = text.replace("\ud800", "\ufffd")
    expected: dict[str, Any] = {
        "model": "or/g",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "ignore_eos": True,
        "top_k": 1,
        "n": 1,
        "max_tokens": 16,
    }
    if endpoint == "completions":
        expected["prompt"] = (system or "") + text
    else:
        before = [{"role": "system", "content": system}] if system else []
        expected["messages"] = [*before, {"role": "user", "content": text}]
    assert sent == expected


def test_templates_without_what_a_server_refuses():
    parts = body("chat", "m", stream=False, ignore_eos=False, temperature=False, max_tokens_key="max_completion_tokens")
    sent = json.loads(parts.head + "x" + parts.middle + "1" + parts.tail)
    assert sent == {
        "model": "m",
        "stream": False,
        "messages": [{"role": "user", "content": "x"}],
        "max_completion_tokens": 1,
    }
    parts = body("chat", "m", messages=True, system_prompt="s")
    sent = json.loads(parts.head + '{"role":"user","content":"a"},{"role":"user","content":"b"}' + parts.middle + "1}")
    assert [message["content"] for message in sent["messages"]] == ["s", "a", "b"]


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"n": 2}, "extra_body.n"),
        ({"best_of": 4}, "extra_body.best_of"),
        ({"use_beam_search": True}, "extra_body.use_beam_search"),
        ({"echo": True}, "extra_body.echo"),
        ({"stream": False}, "extra_body.stream"),
        ({"prompt": "x"}, "extra_body.prompt"),
        ({"messages": []}, "extra_body.messages"),
        ({"max_tokens": 5}, "extra_body.max_tokens"),
        ({"max_completion_tokens": 5}, "extra_body.max_completion_tokens"),
        ({"model": "x"}, "extra_body.model"),
        ({"top_k": object()}, "extra_body"),
    ],
)
def test_an_extra_body_that_breaks_the_measurement_is_refused(extra: dict[str, Any], field: str):
    with pytest.raises(InputError, match=f"^{field}: ") as raised:
        body("completions", "m", extra_body=extra)
    assert raised.value.field == field


@pytest.mark.parametrize(("endpoint", "system"), [("chat", None), ("completions", "s")])
def test_token_ids_are_for_completions_alone(endpoint: Endpoint, system: str | None):
    with pytest.raises(InputError, match=r"^token_ids: "):
        body(endpoint, "m", token_ids=True, system_prompt=system)


def tokenizer_file(folder: Path, *, words: list[str] | None = None, bos: bool = False, legacy: bool = False) -> Path:
    """A small byte-level BPE that knows the given words with the space before them."""
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=6000,
        special_tokens=["<s>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train_from_iterator([" " + " ".join(WORDS if words is None else words)] * 3, trainer)
    if bos:
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    inner.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("bos", [False, True])
def test_a_tokenizer_makes_lengths_exact(tmp_path: Path, bos: bool):
    file = tokenizer_file(tmp_path, bos=bos)
    tokenizer = load_tokenizer(file)
    how = tokenizer.calibration()
    assert (how.kind, how.tokens_per_unit, how.overhead_tokens) == ("words", 1.0, float(bos))
    assert len(how.words) > 250
    lengths = [2, 17, 400]
    made = plan_of(tmp_path, lengths, how)
    assert [tokenizer.count(text.decode(), special=True) for text in prompt_bytes(made)] == lengths
    assert load_tokenizer(tmp_path).count(" able") == 1


def test_a_tokenizer_without_our_words_gives_its_own(tmp_path: Path):
    """The vocabulary of the recorded CPU engine: syllables that are no English."""
    mkmodel = shared("data/cpu_engine/tools/mkmodel.py")
    source = mkmodel.read_text().replace("60000", "3000").replace("V = 32000", "V = 3000")
    subprocess.run([sys.executable, "-c", source, str(tmp_path)], check=True, capture_output=True)
    how = load_tokenizer(tmp_path).calibration()
    assert len(how.words) >= 50
    made = plan_of(tmp_path, [100], how)
    assert load_tokenizer(tmp_path).count(prompt_bytes(made)[0].decode()) == 100


def test_a_tokenizer_without_any_such_word_is_refused(tmp_path: Path):
    file = tokenizer_file(tmp_path, words=["a", "bb"])
    with pytest.raises(InputError, match=r"^tokenizer: "):
        load_tokenizer(file).calibration()


def test_a_missing_tokenizer_and_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"^tokenizer: .*hub"):
        load_tokenizer(tmp_path)
    real = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name == "tokenizers":
            raise builtins.ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(InputError, match=r"pip install 'inferometer\[tokenizer\]'"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("how", [IDS, TEXT])
@pytest.mark.parametrize("lengths", [[37], [10, 90, 17, 64], [9] * 30])
def test_the_workers_bodies_are_sound_in_every_round(tmp_path: Path, how: Calibration, lengths: list[int]):
    made = plan_of(tmp_path, lengths, how, cycle=True, shared_prefix_tokens=2, fresh_salt=True)
    template = body("completions", "m", token_ids=how.kind == "ids")
    job = Job(
        connection=Connection(host="h", port=1),
        endpoint="completions",
        arena=made.arena,
        **template._asdict(),
        plan=made.plan,
        total=len(lengths),
        journal="",
        cycle=True,
        shift_bytes=made.shift_bytes,
        ring_bytes=made.ring_bytes,
    )
    bodies = Bodies(job)
    seen, salts = set(), set()
    for round_ in range(40):
        for row, length in enumerate(lengths):
            sent = json.loads(b"".join(bodies.build(row, round_)))
            units = sent["prompt"] if how.kind == "ids" else sent["prompt"].split()
            assert len(units) == length
            assert sent["max_tokens"] == 1
            seen.add(tuple(units))
            salts.add(sent["cache_salt"])
    assert len(seen) == len(salts) == 40 * len(lengths)
