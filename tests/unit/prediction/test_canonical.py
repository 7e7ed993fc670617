"""The canonical form, held against the published examples, and what the text of a file can hide."""

from __future__ import annotations

import hashlib
import json

import pytest

from inferometer.errors import FormatError, InputError
from inferometer.prediction.canonical import digest, plain, read, written

PUBLISHED = (
    '{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],'
    '"string":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/","literals":[null,true,false]}'
)
PUBLISHED_FORM = (
    '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
)
"""RFC 8785, sections 3.2.2 and 3.2.3."""


def test_the_hash_is_of_the_published_form():
    assert digest(json.loads(PUBLISHED)) == hashlib.sha256(PUBLISHED_FORM.encode()).hexdigest()


def test_the_hash_does_not_cover_sealed_and_not_the_layout():
    document = {"b": 1.0, "a": [1e21, -2.5e-7], "sealed": {"sha256": "x"}}
    expected = hashlib.sha256(b'{"a":[1e+21,-2.5e-7],"b":1}').hexdigest()
    assert digest(document) == expected
    assert digest(read(json.dumps(document, indent=7)).document) == expected
    assert digest({**document, "c": 0}) != expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 0.1000000000000000055}', "0.1"),
        ('{"a": [{"b": 739.00000000000001}]}', "739.0"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 9007199254740993}', "9007199254740992"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "'c' stands twice"),
    ],
)
def test_what_a_text_hides(text: str, says: str):
    (fault,) = read(text).faults
    assert says in fault


@pytest.mark.parametrize(
    "text", ['{"a": 0.1, "b": 15000000000000000, "c": 1.50, "d": 5060.0, "e": 1.5E3, "f": -0.0, "g": 10}', "{}"]
)
def test_other_ways_to_write_the_same_doubles_hide_nothing(text: str):
    assert read(text).faults == []


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 01}', '{"a": NaN}', '{"a": Infinity}', "[" * 100_000])
def test_what_is_no_table_of_json(text: str):
    with pytest.raises(FormatError):
        read(text)


def test_the_written_text_is_read_back_as_it_was():
    document = {"z": [0.1, 1e-7, 1e22, 5.0, 3], "a": {"€": None, "b": True, "t": "1e5\n"}}
    reading = read(written(document))
    assert (reading.document, reading.faults) == (document, [])
    assert written(reading.document) == written(document)
    assert written(document).startswith('{\n  "a": {\n')


@pytest.mark.parametrize("value", [2**53, -(2**60), float("nan"), float("inf")])
def test_numbers_that_cannot_be_sealed(value: float):
    with pytest.raises(InputError, match=r"study\.workload\[1\]"):
        plain({"study": {"workload": [1, value]}})


@pytest.mark.parametrize("number", ["1e-99999999999999999999", "0e99999999999999999999"])
def test_an_exponent_that_no_number_has_is_a_fault(number: str):
    (fault,) = read(f'{{"a": {number}}}').faults
    assert "digits that no double keeps" in fault
