"""Claims: a person's own figures, written beside the model's before anything is measured.

``PATH[@LOAD]=VALUE``. With a load the path begins at the base's point of that concurrency (``@64``) or request rate
(``@2/s``), without one at the top of the prediction's JSON::

    output_tok_per_s@64=5060        ttft_ms.p99@64=1500
    ttft_knee_concurrency=4         memory.num_gpu_blocks=25640        throughput_knee_concurrency=none
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from inferometer.errors import InputError
from inferometer.specs.checks import complaint, is_number

FORM = "PATH=VALUE or PATH@CONCURRENCY=VALUE, such as output_tok_per_s@64=5060 or ttft_knee_concurrency=4"
NONE = "none"
"""What is written for "there is none", such as no knee."""
STATISTICS = ("mean", "p50", "p90", "p99")
OF_A_POINT = (
    *("output_tok_per_s", "total_tok_per_s", "per_user_tok_per_s", "request_per_s", "roofline_tok_per_s"),
    *(f"{latency}_ms.{part}" for latency in ("ttft", "tpot", "itl", "e2e") for part in STATISTICS),
    *("running", "waiting", "kv_usage", "preemptions", "prefix_hit_rate", "failed", "duration_s"),
)
"""The figures of a point that can be claimed."""
OF_GOODPUT = tuple(
    f"goodput.{which}.{part}"
    for which in ("p50", "p99", "raw_max")
    for part in ("output_tok_per_s", "concurrency", "request_rate")
)
"""Figures that are there only where a point meets the limits; they can be claimed in any case."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, claimed.

    >>> claim = Claim.parse("output_tok_per_s@64=5060")
    >>> claim.path, claim.concurrency, claim.value, str(claim)
    ('output_tok_per_s', 64, 5060.0, 'output_tok_per_s@64=5060')
    """

    path: str
    """Keys of the prediction's JSON, joined by dots; below a point where a load is named."""
    concurrency: int | None = None
    request_rate: float | None = None
    """Requests per second, of a point of an open loop."""
    value: float | None
    """None: that there is none, such as no knee."""

    @classmethod
    def parse(cls, written: str) -> Claim:
        """A claim as it is written on the command line.

        Raises:
            InputError: it is not of the form ``PATH[@LOAD]=VALUE``, the load is none, or the value no number.
        """
        name, equals, value = written.rpartition("=")
        if not equals or not name.strip():
            raise InputError("claim", written, FORM)
        return cls.of(name.strip(), value.strip())

    @classmethod
    def of(cls, name: str, value: object) -> Claim:
        """A claim from what stands before the ``=`` and the value, a number or ``none`` (also written as a text).

        Raises:
            InputError: as `parse`.
        """
        path, at, load = name.partition("@")
        if not path or (at and not load):
            raise InputError("claim", name, FORM)
        concurrency, request_rate = _load(name, load) if at else (None, None)
        return cls(path=path, concurrency=concurrency, request_rate=request_rate, value=_value(name, value))

    @property
    def name(self) -> str:
        """Path and load: what is claimed."""
        if self.request_rate is not None:
            return f"{self.path}@{self.request_rate:g}/s"
        return self.path if self.concurrency is None else f"{self.path}@{self.concurrency}"

    @property
    def of_point(self) -> bool:
        """Whether it is of one point, not of the sweep."""
        return self.concurrency is not None or self.request_rate is not None

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of ``predict``."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def __str__(self) -> str:
        return f"{self.name}={NONE if self.value is None else f'{self.value:.17g}'}"


def _load(name: str, load: str) -> tuple[int | None, float | None]:
    """Concurrency or request rate of what stands behind the ``@``."""
    number, slash, unit = load.partition("/")
    value = _number(number)
    if value is None or value <= 0 or (slash and unit != "s") or (not slash and value != int(value)):
        raise InputError("claim", name, "a concurrency (@64) or a request rate (@2/s) behind the @")
    return (None, value) if slash else (int(value), None)


def _value(name: str, value: object) -> float | None:
    if isinstance(value, str):
        if value.lower() == NONE:
            return None
        value = _number(value)
    if not is_number(value):
        raise complaint("claim", f"{name}: give a number, or {NONE}, after the =")
    return float(value)


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def merged(study: Mapping[str, float | None], given: Iterable[Claim | str]) -> tuple[Claim, ...]:
    """The study's claims and those given; of two about the same figure the later one stands.

    Raises:
        InputError: one that is not a claim.
    """
    claims = [Claim.of(name, NONE if value is None else value) for name, value in study.items()]
    claims += [claim if isinstance(claim, Claim) else Claim.parse(claim) for claim in given]
    return tuple({claim.name: claim for claim in claims}.values())


def check(
    claims: Iterable[Claim], arm: Mapping[str, Any], loads: Iterable[tuple[int | None, float | None]] | None = None
) -> None:
    """Refuse claims of figures or points that there are not; close names are listed.

    Args:
        claims: what is claimed.
        arm: the base as in the JSON of ``predict``; its points do not matter.
        loads: concurrency and request rate of each of its points; None: any load will do.

    Raises:
        InputError: naming the claim, and what could be meant.
    """
    of_sweep = list(dict.fromkeys([*numbers(arm), *OF_GOODPUT]))
    known = None if loads is None else list(loads)
    for claim in claims:
        if claim.of_point:
            _check_path(
                claim, OF_A_POINT, of_sweep, "a point", "is a figure of the sweep: leave out the @ and the load"
            )
            if known is not None and not any(_same(claim, load) for load in known):
                raise complaint("claim", f"{claim.name}: no such point; {_listed(known)}")
        else:
            _check_path(claim, of_sweep, OF_A_POINT, "the sweep", f"is a figure of a point; write {claim.path}@64")


def _check_path(claim: Claim, known: Iterable[str], elsewhere: Iterable[str], what: str, belongs: str) -> None:
    names = list(known)
    if claim.path in names:
        return
    if claim.path in elsewhere:
        raise complaint("claim", f"{claim.path} {belongs}")
    close = difflib.get_close_matches(claim.path, names, n=3, cutoff=0.5)
    last = claim.path.rpartition(".")[2]
    close = close or [name for name in names if name.rpartition(".")[2] == last]
    hint = f"did you mean {' or '.join(close[:3])}?" if close else f"such as {', '.join(names[:6])}"
    raise complaint("claim", f"{claim.path}: no such figure of {what}; {hint}")


def _listed(loads: list[tuple[int | None, float | None]]) -> str:
    names = [f"@{c}" if rate is None else f"@{rate:g}/s" for c, rate in loads if (c, rate) != (None, None)]
    return f"the study has {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}" if names else "it is a replay"


def _same(claim: Claim, load: tuple[int | None, float | None]) -> bool:
    concurrency, rate = load
    if claim.request_rate is None or rate is None:
        return claim.request_rate is None and rate is None and concurrency == claim.concurrency
    return math.isclose(claim.request_rate, rate, rel_tol=1e-6)


def numbers(arm: Mapping[str, Any]) -> Iterator[str]:
    """Paths of the figures of the sweep in an arm's JSON: memory, roofline, goodput, knees and mean lengths."""
    for key, value in arm.items():
        if key in ("memory", "roofline", "goodput"):
            yield from _leaves(key, value)
        elif key.startswith(("ttft_knee", "throughput_knee", "server_knee", "mean_")):
            yield key


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(f"{path}.{key}", below)
    elif value is None or is_number(value):
        yield path


def _loads(document: Mapping[str, Any]) -> list[tuple[int | None, float | None]]:
    return [(point["concurrency"], point["request_rate"]) for point in document["points"]]


def predicted_value(document: Mapping[str, Any], claim: Claim) -> float | None:
    """What the prediction says of the claimed figure; None where it says there is none or that point is not there."""
    found: Any = document
    if claim.of_point:
        loads = zip(document["points"], _loads(document), strict=True)
        found = next((point for point, load in loads if _same(claim, load)), None)
    for key in claim.path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return float(found) if is_number(found) else None


def claim_lines(claims: Iterable[Claim], document: Mapping[str, Any]) -> Iterator[str]:
    """A sentence a claim: what a person says of a figure, and what the model does."""
    for claim in claims:
        said = predicted_value(document, claim)
        mine, models = (NONE if value is None else f"{value:,.6g}" for value in (claim.value, said))
        there = not claim.of_point or any(_same(claim, load) for load in _loads(document))
        yield f"Claimed: {claim.name} {mine}; predicted: {models if there else 'that load is not among the points'}."
