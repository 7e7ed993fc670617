from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer import units
from inferometer.errors import InputError, UnitError

PARSERS = [
    (units.parse_bytes, "80 GiB"),
    (units.parse_seconds, "500 ms"),
    (units.parse_bandwidth, "2.039 TB/s"),
    (units.parse_flops, "312 TFLOP/s"),
    (units.parse_watts, "400 W"),
]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80 GiB", 85_899_345_920),
        ("80 GB", 80_000_000_000),
        ("80GiB", 85_899_345_920),
        (" 1.5 MiB ", 1_572_864),
        ("0.1 GiB", 107_374_182),
        ("1e3 kB", 1_000_000),
        ("2 TiB", 2 * 2**40),
        ("7 B", 7),
        (7, 7),
        (8.5e10, 85_000_000_000),
    ],
)
def test_bytes(text: object, size: int):
    parsed = units.parse_bytes(text)
    assert parsed == size
    assert type(parsed) is int


@pytest.mark.parametrize(
    "text", ["80", "80 G", "80 Gb", "80 gb", "80 gib", "GiB", "", "80 GiB/s", "80 GB of it", "nan GB"]
)
def test_bytes_need_a_unit_of_bytes(text: str):
    with pytest.raises(UnitError, match=r"memory_bytes.*GiB or GB") as caught:
        units.parse_bytes(text, "memory_bytes")
    assert caught.value.field == "memory_bytes"
    assert caught.value.value == text


@pytest.mark.parametrize("value", [-1, "-1 GiB", 1.5, True, None, math.inf, math.nan, [80]])
def test_bytes_refuse_what_is_no_size(value: object):
    with pytest.raises(InputError, match=r"^size: "):
        units.parse_bytes(value, "size")


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        ("500 ms", 0.5),
        ("2 s", 2),
        ("75 us", 75e-6),
        ("75 µs", 75e-6),
        ("3 min", 180),
        ("1.5 h", 5400),
        (0.25, 0.25),
        (2, 2),
    ],
)
def test_seconds(text: object, time_s: float):
    assert units.parse_seconds(text) == time_s


@pytest.mark.parametrize(
    ("text", "rate"),
    [("2.039 TB/s", 2.039e12), ("936 GB/s", 936e9), ("1 GiB/s", 2**30), (1.935e12, 1.935e12)],
)
def test_bandwidth(text: object, rate: float):
    assert units.parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("312 TFLOP/s", 312e12),
        ("312 TFLOPS", 312e12),
        ("312TFLOPs", 312e12),
        ("624 TOPS", 624e12),
        ("1.1 PFLOP/s", 1.1e15),
    ],
)
def test_flops(text: str, rate: float):
    assert units.parse_flops(text) == rate


@pytest.mark.parametrize(("text", "power_w"), [("400 W", 400), ("1.2 kW", 1200), (700, 700)])
def test_watts(text: object, power_w: float):
    assert units.parse_watts(text) == power_w


@pytest.mark.parametrize(("parse", "own"), PARSERS)
def test_every_parser_refuses_the_others_units_and_names_the_field(parse, own: str):
    assert parse(own) > 0
    for _, other in PARSERS:
        if other != own:
            with pytest.raises(UnitError, match=r"^a\.field: "):
                parse(other, "a.field")


def test_bits_are_not_bytes():
    with pytest.raises(UnitError, match="GB/s"):
        units.parse_bandwidth("400 Gb/s")


@given(st.integers(0, 2**60))
def test_a_number_of_bytes_survives_being_written(size: int):
    assert units.parse_bytes(f"{size} B") == units.parse_bytes(size) == size


@given(st.integers(0, 10**6), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_binary_units_exceed_decimal_ones(number: int, unit: str):
    assert units.parse_bytes(f"{number} {unit}") >= units.parse_bytes(f"{number} {unit.replace('i', '')}")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (60_494_610_432, "56.3 GiB"),
        (0, "0.00 GiB"),
        (2**30, "1.00 GiB"),
        (7.65 * 2**30, "7.65 GiB"),
        (2**20, "< 0.01 GiB"),
        (-3 * 2**30, "-3.00 GiB"),
        (2000 * 2**30, "2,000.0 GiB"),
    ],
)
def test_format_bytes_gib(size: float, text: str):
    assert units.format_bytes_gib(size) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.01125, "11.3 ms"),
        (4.2e-6, "4.2 us"),
        (2, "2 s"),
        (0.99999, "1 s"),
        (0.00099999, "1 ms"),
        (0, "0 s"),
        (1234, "1,230 s"),
    ],
)
def test_format_seconds(time_s: float, text: str):
    assert units.format_seconds(time_s) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (410_240, "410,000"),
        (1_234_567, "1,230,000"),
        (999.6, "1,000"),
        (88.4, "88.4"),
        (100, "100"),
        (0.71, "0.71"),
        (0.000123456, "0.000123"),
        (-1234.5, "-1,230"),
        (0, "0"),
        (math.inf, "inf"),
        (1.5e-9, "1.50e-09"),
    ],
)
def test_format_count(number: float, text: str):
    assert units.format_count(number) == text


@given(st.floats(1e-6, 1e14))
def test_a_count_is_written_within_half_a_percent(number: float):
    assert float(units.format_count(number).replace(",", "")) == pytest.approx(number, rel=0.0051)
