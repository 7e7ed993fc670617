"""What holds for every workload, seed and pair of tables."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferometer.specs.merge import merge
from inferometer.specs.workload import Workload
from inferometer.workload import Requests, generate, stream

SEEDS = st.integers(0, 2**63)
COUNTS = st.integers(1, 200)
LENGTHS = st.one_of(
    st.integers(1, 10_000),
    st.builds(lambda mean, sigma: {"lognormal": {"mean": mean, "sigma": sigma}}, st.floats(1, 1e5), st.floats(0, 3)),
    st.builds(lambda mean, std: {"normal": {"mean": mean, "std": std}}, st.floats(1, 1e5), st.floats(0, 1e4)),
    st.builds(
        lambda low, more: {"uniform": {"low": low, "high": low + more}}, st.integers(1, 1000), st.integers(0, 1000)
    ),
)


def _columns(requests: Requests) -> list[bytes]:
    columns = (requests.arrival_s, requests.prompt_tokens, requests.output_tokens, requests.cached_tokens)
    return [column.tobytes() for column in columns]


@given(SEEDS, COUNTS, LENGTHS, LENGTHS, st.floats(0.01, 1e4))
def test_one_seed_is_one_draw(seed: int, count: int, prompt: Any, output: Any, rate: float):
    first, second = (generate(Workload.open_loop(rate, count, prompt, output), seed) for _ in range(2))
    assert _columns(first) == _columns(second)
    assert len(first) == count


@given(SEEDS, COUNTS, LENGTHS, LENGTHS, LENGTHS)
def test_changing_one_stream_changes_no_other(seed: int, count: int, prompt: Any, output: Any, other: Any):
    base = generate(Workload.open_loop(5, count, prompt, output), seed)
    new_prompts = generate(Workload.open_loop(5, count, other, output), seed)
    constant = generate(Workload.open_loop(5, count, prompt, output, arrivals="constant"), seed)
    assert new_prompts.arrival_s.tobytes() == base.arrival_s.tobytes()
    assert new_prompts.output_tokens.tobytes() == base.output_tokens.tobytes()
    assert constant.prompt_tokens.tobytes() == base.prompt_tokens.tobytes()
    assert constant.output_tokens.tobytes() == base.output_tokens.tobytes()


@given(SEEDS, st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True))
def test_streams_do_not_depend_on_each_other(seed: int, names: list[str]):
    alone = {name: stream(seed, name).random() for name in names}
    several = [stream(seed, name) for name in reversed(names)]
    assert {name: random.random() for name, random in zip(reversed(names), several, strict=True)} == alone


@given(SEEDS, COUNTS, COUNTS, LENGTHS)
def test_more_requests_begin_with_the_same_arrivals(seed: int, count: int, more: int, prompt: Any):
    short = generate(Workload.open_loop(3, count, prompt, 1), seed)
    long = generate(Workload.open_loop(3, count + more, prompt, 1), seed)
    assert (long.arrival_s[:count] == short.arrival_s).all()


@given(SEEDS, st.floats(0.01, 1e4))
def test_poisson_keeps_its_rate(seed: int, rate: float):
    """The time of n arrivals has mean n / rate and relative spread 1 / sqrt(n): six of those are allowed."""
    count = 4000
    last = generate(Workload.open_loop(rate, count, 1, 1), seed).arrival_s[-1]
    assert abs(last * rate / count - 1) < 6 / np.sqrt(count)


@given(SEEDS, COUNTS, LENGTHS, LENGTHS, st.integers(0, 5000), st.floats(0.01, 1e4))
def test_requests_are_possible(seed: int, count: int, prompt: Any, output: Any, cached: int, rate: float):
    requests = generate(Workload.open_loop(rate, count, prompt, output, cached_tokens=cached), seed)
    assert (np.diff(requests.arrival_s) >= 0).all()
    assert (requests.arrival_s > 0).all()
    assert (requests.prompt_tokens >= 1).all()
    assert (requests.output_tokens >= 1).all()
    assert (requests.cached_tokens >= 0).all()
    assert (requests.cached_tokens < requests.prompt_tokens).all()
    assert (requests.cached_tokens <= cached).all()


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=50))
def test_given_requests_are_conserved(rows: list[tuple[float, int, int]]):
    requests = generate(Workload.from_requests(*map(list, zip(*rows, strict=True))))
    columns = (requests.arrival_s, requests.prompt_tokens, requests.output_tokens)
    drawn = list(zip(*(column.tolist() for column in columns), strict=True))
    assert drawn == sorted(rows, key=lambda row: row[0])  # a stable sort, so ties keep their order


VALUES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=3))
TABLES = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4),
    lambda below: st.dictionaries(st.sampled_from("abcd"), st.one_of(VALUES, below), max_size=4),
    max_leaves=12,
)


@given(TABLES, TABLES, TABLES)
def test_merging_is_a_monoid_that_prefers_the_later(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]
):
    assert merge(first, {}) == first == merge({}, first) == merge(first, first)
    assert merge(merge(first, second), second) == merge(first, second)
    if _same_kinds(first, second) and _same_kinds(second, third) and _same_kinds(first, third):
        assert merge(merge(first, second), third) == merge(first, merge(second, third))


@given(TABLES, TABLES)
def test_merging_takes_every_leaf_of_the_later_and_the_others_of_the_earlier(
    below: dict[str, Any], above: dict[str, Any]
):
    merged = merge(below, above)
    later, earlier = dict(_leaves(above)), dict(_leaves(below))
    for path, value in _leaves(merged):
        assert value == (later[path] if path in later else earlier[path])
    assert later.items() <= dict(_leaves(merged)).items() if not _has_empty(above) else True


@given(TABLES, TABLES)
def test_merging_changes_neither_argument(below: dict[str, Any], above: dict[str, Any]):
    kept = copy.deepcopy((below, above))
    merged = merge(below, above)
    _spoil(merged)
    assert (below, above) == kept


def _same_kinds(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether no key is a table in one and a value in the other, at any depth: then merging is associative."""
    for key in one.keys() & other.keys():
        tables = [isinstance(table[key], dict) for table in (one, other)]
        if tables[0] != tables[1] or (all(tables) and not _same_kinds(one[key], other[key])):
            return False
    return True


def _leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    found = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += _leaves(value, (*path, key))
        else:
            found.append(((*path, key), repr(value)))
    return found


def _has_empty(table: dict[str, Any]) -> bool:
    return any(isinstance(value, dict) and (not value or _has_empty(value)) for value in table.values())


def _spoil(table: dict[str, Any]) -> None:
    for value in table.values():
        if isinstance(value, dict):
            _spoil(value)
        elif isinstance(value, list):
            value.append("spoilt")
    table["spoilt"] = True
