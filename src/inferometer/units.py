"""Quantities as people write them, and back: ``80 GiB``, ``500 ms``, ``2.039 TB/s``, ``312 TFLOP/s``.

A string must name its unit, and GiB (2**30) and GB (10**9) are different units: "80 G" is refused. A plain number
is taken as SI: bytes, seconds, bytes per second, FLOP per second, watts. Unit names are case-sensitive where case
tells bits from bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal

from inferometer.errors import InputError, UnitError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_BYTES = {"B": 1, **_DECIMAL, **_BINARY}
_BANDWIDTH = {f"{unit}/s": scale for unit, scale in _BYTES.items()}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
_FLOPS = {
    f"{prefix}{word}": scale
    for prefix, scale in {"G": 10**9, "T": 10**12, "P": 10**15}.items()
    for word in ("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS", "OPs")
}
_WATTS = {"W": 1, "kW": 1000, "mW": 1e-3}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\D*?)\s*")


def parse_bytes(value: object, field: str = "memory") -> int:
    """Bytes in ``value``: a whole number of bytes, or a string with its unit, such as "80 GiB" or "80 GB".

    Raises:
        UnitError: the string has no unit or one that is not of bytes.
        InputError: the number is negative, not finite or (a plain number) not whole.

    >>> parse_bytes("80 GiB"), parse_bytes("80 GB")
    (85899345920, 80000000000)
    """
    allowed = "a size in GiB or GB (also MiB, MB, TiB, TB or B), for example '80 GiB'"
    size = _parse(value, field, _BYTES, allowed)
    if not isinstance(value, str) and size != int(size):
        raise InputError(field, value, "a whole number of bytes")
    return int(size.to_integral_value(ROUND_HALF_UP))


def parse_seconds(value: object, field: str = "time") -> float:
    """Seconds in ``value``: a number of seconds, or a string such as "500 ms" (ns, us, ms, s, min, h).

    Raises:
        UnitError: the string has no unit or one that is not of time.
        InputError: the number is negative or not finite.

    >>> parse_seconds("500 ms")
    0.5
    """
    return float(_parse(value, field, _SECONDS, "a time in s, ms, us, min or h, for example '500 ms'"))


def parse_bandwidth(value: object, field: str = "bandwidth") -> float:
    """Bytes per second in ``value``: a number, or a string such as "2.039 TB/s".

    Raises:
        UnitError: the string has no unit or one that is not of bytes per second (bits, for one).
        InputError: the number is negative or not finite.

    >>> parse_bandwidth("2.039 TB/s")
    2039000000000.0
    """
    return float(_parse(value, field, _BANDWIDTH, "a rate in TB/s, GB/s or GiB/s, for example '2.039 TB/s'"))


def parse_flops(value: object, field: str = "flops_per_s") -> float:
    """Operations per second in ``value``: a number, or a string such as "312 TFLOP/s" (also TFLOPS, TOPS, PFLOP/s).

    Raises:
        UnitError: the string has no unit or one that is not of operations per second.
        InputError: the number is negative or not finite.

    >>> parse_flops("312 TFLOPS")
    312000000000000.0
    """
    return float(_parse(value, field, _FLOPS, "a rate in TFLOP/s or PFLOP/s (TOP/s for int8), such as '312 TFLOP/s'"))


def parse_watts(value: object, field: str = "power") -> float:
    """Watts in ``value``: a number, or a string such as "400 W" or "1.2 kW".

    Raises:
        UnitError: the string has no unit or one that is not of power.
        InputError: the number is negative or not finite.

    >>> parse_watts("1.2 kW")
    1200.0
    """
    return float(_parse(value, field, _WATTS, "a power in W or kW, for example '400 W'"))


def format_bytes_gib(size_bytes: float) -> str:
    """``size_bytes`` in GiB: one decimal, two below 10 GiB.

    >>> format_bytes_gib(60494610432)
    '56.3 GiB'
    """
    gib = size_bytes / GIB
    if 0 < abs(gib) < 0.005:
        return "< 0.01 GiB" if gib > 0 else "> -0.01 GiB"
    return f"{gib:,.1f} GiB" if abs(gib) >= 10 else f"{gib:.2f} GiB"


def format_seconds(time_s: float) -> str:
    """``time_s`` to three significant digits, in the unit that reads best: us, ms or s.

    >>> format_seconds(0.01125), format_seconds(4.2e-6), format_seconds(1234)
    ('11.3 ms', '4.2 us', '1,230 s')
    """
    for limit_s, scale, unit in ((0.9995e-3, 1e6, "us"), (0.9995, 1e3, "ms")):
        if abs(time_s) < limit_s and time_s:
            return f"{format_count(time_s * scale)} {unit}"
    return f"{format_count(time_s)} s"


def format_count(number: float) -> str:
    """``number`` to three significant digits, thousands separated; no trailing zeros.

    >>> format_count(410240), format_count(88.4), format_count(0.71)
    ('410,000', '88.4', '0.71')
    """
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    exact = Decimal(repr(number))
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_HALF_UP)
    if not 1e-6 <= abs(rounded) < Decimal("1e15"):
        return f"{number:.2e}"
    text = f"{rounded:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _parse(value: object, field: str, units: Mapping[str, float], allowed: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError(field, value, allowed)
    number = _with_unit(value, field, units, allowed) if isinstance(value, str) else Decimal(repr(value))
    if not number.is_finite() or number < 0:
        raise InputError(field, value, f"a finite number of at least 0: {allowed}")
    return number


def _with_unit(text: str, field: str, units: Mapping[str, float], allowed: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    scale = units.get(match[2]) if match else None
    if match is None or scale is None:
        raise UnitError(field, text, allowed)
    return Decimal(match[1]) * Decimal(repr(scale))
