"""A workload: how long requests are and when they come. A description; `workload.generate` draws it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from inferometer.errors import FormatError, InputError
from inferometer.specs.checks import (
    complaint,
    is_number,
    known_keys,
    not_negative,
    positive,
    table,
    text,
    whole,
    within,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MAX_TOKENS = 2**31 - 1
"""No request is longer: a larger drawn length is cut here."""


class Lognormal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts with this mean whose logarithm has standard deviation ``sigma``."""

    mean: float
    sigma: float

    def __post_init__(self) -> None:
        """Refuse a mean below 1 token and a negative spread."""
        _mean("lognormal.mean", self.mean)
        not_negative("lognormal.sigma", self.sigma)


class Normal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts of this mean and standard deviation, cut at 1."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        """Refuse a mean below 1 token and a negative spread."""
        _mean("normal.mean", self.mean)
        not_negative("normal.std", self.std)


class Uniform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts equally likely from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse an empty range and lengths below 1."""
        low = whole("uniform.low", self.low, 1)
        if whole("uniform.high", self.high, 1) < low:
            raise InputError("uniform.high", self.high, f"a whole number of at least low, which is {low}")


class Empirical(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts drawn with replacement from the matching column of a trace file.

    Prompt and output drawn from one file are drawn together, row by row, so they keep their correlation.
    """

    trace: str
    model: str | None = None
    """Whose rows, where the file holds several models."""

    def __post_init__(self) -> None:
        """Refuse a file that is not there."""
        _existing("trace", self.trace)


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of requests with their arrivals, replayed; ``rate_scale`` 2 halves the gaps."""

    path: str
    rate_scale: float = 1.0
    limit: int | None = None
    """Only the first so many requests."""
    model: str | None = None
    """Whose rows, where the file holds several models; a file of one model is taken whole."""

    def __post_init__(self) -> None:
        """Refuse a file that is not there, a scale that is not positive and a limit below 1."""
        _existing("path", self.path)
        positive("rate_scale", self.rate_scale)
        if self.limit is not None:
            whole("limit", self.limit, 1)


Length = int | Lognormal | Normal | Uniform | Empirical
LengthLike = Length | Mapping[str, Any] | list[int] | tuple[int, ...] | npt.NDArray[Any]
"""What the constructors take for a length: also a table such as ``{"lognormal": {...}}``, or one number a request."""

Arrivals = Literal["poisson", "constant", "gamma"]

_KINDS: dict[str, type[Lognormal] | type[Normal] | type[Uniform]] = {
    "lognormal": Lognormal,
    "normal": Normal,
    "uniform": Uniform,
}
_FORMS = "{ lognormal = { mean, sigma } }, { normal = { mean, std } }, { uniform = { low, high } }, { trace = FILE }"


class Workload(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """How long requests are and when they come: closed loop, open loop, given one by one, or in a trace file.

    Make one with `closed_loop`, `open_loop`, `from_requests` or `from_trace`: they check what they are given.

    >>> Workload.closed_loop(concurrency=64).requests
    640
    """

    kind: Literal["closed", "open", "requests", "trace", "sessions"]
    requests: int | None
    """How many; None for a trace file of which all is taken: known when it is read."""
    prompt_tokens: Length | np.ndarray = 1
    output_tokens: Length | np.ndarray = 1
    cached_tokens: int | np.ndarray = 0
    """Prompt tokens that a prefix cache is said to hold: skipped in prefill (all but one at most)."""
    concurrency: int | None = None
    think_time_s: float = 0.0
    """Closed loop: from one request's end to the same user's next."""
    rate_per_s: float | None = None
    arrivals: Arrivals = "poisson"
    burstiness: float | None = None
    """Gamma arrivals: the shape of the gaps' distribution; 1 is Poisson, below 1 comes in bursts."""
    turns: int | None = None
    """Sessions: requests of one conversation, each with all that was said before; see `sessions`."""
    arrival_s: np.ndarray | None = None
    trace: Trace | None = None
    name: str = ""

    @classmethod
    def closed_loop(
        cls,
        concurrency: int,
        requests: int | None = None,
        prompt_tokens: LengthLike = 1024,
        output_tokens: LengthLike = 1024,
        think_time_s: float = 0.0,
        cached_tokens: int | list[int] | npt.NDArray[Any] = 0,
    ) -> Workload:
        """``concurrency`` users, each sending its next request ``think_time_s`` after its last one ended.

        ``requests`` is 10 x ``concurrency`` unless stated (or as many as there are lengths, where those are lists).

        Raises:
            InputError: a size below 1, a length that is not a whole number, lists of unequal length.

        >>> Workload.closed_loop(concurrency=8, requests=80, prompt_tokens=1024, output_tokens=128).concurrency
        8
        """
        users = whole("concurrency", concurrency, 1)
        lengths = _lengths(prompt_tokens, output_tokens, cached_tokens)
        count = _count(requests, lengths, 10 * users)
        think = not_negative("think_time_s", think_time_s, "a number of seconds")
        return cls(kind="closed", requests=count, concurrency=users, think_time_s=think, **lengths)

    @classmethod
    def open_loop(
        cls,
        rate_per_s: float,
        requests: int | None = None,
        prompt_tokens: LengthLike = 1024,
        output_tokens: LengthLike = 1024,
        arrivals: Arrivals = "poisson",
        cached_tokens: int | list[int] | npt.NDArray[Any] = 0,
        burstiness: float | None = None,
    ) -> Workload:
        """``requests`` requests at ``rate_per_s`` however the server fares, at random or evenly spaced.

        ``poisson``: independent exponential gaps, one before the first request. ``constant``: request i at i / rate.
        ``gamma``: independent gaps of a gamma distribution of shape ``burstiness`` and mean 1 / rate, as
        ``vllm bench serve --burstiness`` draws them.

        Raises:
            InputError: a rate or burstiness that is not above 0, a burstiness without gamma arrivals, a length that is
                not a whole number, no number of requests.

        >>> Workload.open_loop(rate_per_s=20, requests=10_000, prompt_tokens=512, output_tokens=256).arrivals
        'poisson'
        """
        rate = positive("rate_per_s", rate_per_s, "a number of requests per second")
        if arrivals not in get_args(Arrivals):
            raise InputError("arrivals", arrivals, "'poisson', 'constant' or 'gamma'")
        if burstiness is not None and arrivals != "gamma":
            raise InputError("burstiness", burstiness, f"it only with gamma arrivals: {arrivals} arrivals have none")
        shape = positive("burstiness", 1.0 if burstiness is None else burstiness) if arrivals == "gamma" else None
        lengths = _lengths(prompt_tokens, output_tokens, cached_tokens)
        count = _count(requests, lengths, None)
        return cls(kind="open", requests=count, rate_per_s=rate, arrivals=arrivals, burstiness=shape, **lengths)

    @classmethod
    def sessions(
        cls,
        concurrency: int,
        sessions: int | None = None,
        turns: int = 4,
        prompt_tokens: LengthLike = 256,
        output_tokens: LengthLike = 128,
        think_time_s: float = 0.0,
    ) -> Workload:
        """Conversations of several turns, ``concurrency`` of them at a time, each turn with all that was said before.

        ``prompt_tokens`` are the user's new ones of a turn; what the server gets grows with every turn. A turn comes
        ``think_time_s`` after the answer to the one before it. ``sessions`` is 10 x ``concurrency`` unless stated.

        Raises:
            InputError: a size below 1, lengths listed one by one, a length that is not a whole number.

        >>> Workload.sessions(concurrency=2, sessions=6, turns=3).requests
        18
        """
        users, each = whole("concurrency", concurrency, 1), whole("turns", turns, 1)
        count = 10 * users if sessions is None else whole("sessions", sessions, 1)
        lengths = _lengths(prompt_tokens, output_tokens, 0)
        for field, value in lengths.items():
            if isinstance(value, np.ndarray):
                raise InputError(field, f"{len(value)} values", "one length or a distribution for all turns")
        think = not_negative("think_time_s", think_time_s, "a number of seconds")
        return cls(kind="sessions", requests=count * each, turns=each, concurrency=users, think_time_s=think, **lengths)

    @classmethod
    def from_requests(
        cls,
        arrival_s: list[float] | npt.NDArray[Any],
        prompt_tokens: list[int] | npt.NDArray[Any],
        output_tokens: list[int] | npt.NDArray[Any],
        cached_tokens: int | list[int] | npt.NDArray[Any] = 0,
    ) -> Workload:
        """Requests given one by one, seconds from the start; sorted by arrival, ties in the given order.

        Raises:
            InputError: lists of unequal length or empty, an arrival that is negative or not finite, a bad length.

        >>> Workload.from_requests([0.2, 0.0], [10, 20], [1, 2]).prompt_tokens
        array([20, 10])
        """
        times = _arrival_array(arrival_s)
        fields: dict[str, Any] = {
            "prompt_tokens": _token_array("prompt_tokens", prompt_tokens, 1),
            "output_tokens": _token_array("output_tokens", output_tokens, 0),
            "cached_tokens": _cached(cached_tokens),
        }
        order = np.argsort(times, kind="stable")
        for field, column in fields.items():
            if isinstance(column, np.ndarray):
                if len(column) != len(times):
                    raise InputError(field, f"{len(column)} values", f"as many as arrival_s has, which is {len(times)}")
                fields[field] = _frozen(column[order])
        return cls(kind="requests", requests=len(times), arrival_s=_frozen(times[order]), **fields)

    @classmethod
    def from_trace(
        cls, path: str | os.PathLike[str], rate_scale: float = 1.0, limit: int | None = None, model: str | None = None
    ) -> Workload:
        """The requests of a trace file, arrivals counted from its first and divided by ``rate_scale``.

        Formats: CSV with ``arrival_s`` or ``arrival_ms``, ``input_tokens``, ``output_tokens`` (also the Azure Public
        Dataset's own header); Mooncake JSON lines (``timestamp`` in ms, ``input_length``, ``output_length``); a
        request table with ``queued_s``, which is preferred to ``arrival_s``. ``model`` picks the rows of one model
        where a ``model`` column holds several. The file is read by `workload.generate`.

        Raises:
            InputError: no such file, a scale that is not above 0, a limit below 1.
        """
        trace = Trace(path=os.fspath(path), rate_scale=rate_scale, limit=limit, model=model)
        return cls(kind="trace", requests=None, trace=trace)

    def describe(self) -> dict[str, Any]:
        """What sets this workload apart, as plain JSON values; arrays and files as their size or name, and hash."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "name" or self.name}
        return {name: _plain(value) for name, value in fields.items() if value is not None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self.describe(), order="deterministic"))


def length(field: str, value: object, least: int) -> Length | IntArray:
    """A length as a user may write it: a number, a distribution, a table naming one, or one number a request.

    Raises:
        InputError: naming ``field``, for anything else and for numbers below ``least`` (1 for prompts, 0 for outputs).

    >>> length("prompt_tokens", {"lognormal": {"mean": 900, "sigma": 0.8}}, 1)
    Lognormal(mean=900, sigma=0.8)
    """
    if isinstance(value, Lognormal | Normal | Uniform | Empirical):
        return value
    if isinstance(value, Mapping):
        with within(field):
            return _distribution(table("length", value))
    if isinstance(value, list | tuple | np.ndarray):
        return _frozen(_token_array(field, value, least))
    if not is_number(value):
        raise InputError(field, value, f"a whole number of at least {least}, a list of them, or one of {_FORMS}")
    number = whole(field, value, least)
    if number > MAX_TOKENS:
        raise InputError(field, value, f"a whole number of at most {MAX_TOKENS}")
    return number


def _distribution(given: dict[str, Any]) -> Length:
    if "trace" in given:
        known_keys("", given, ["trace", "model"])
        return Empirical(trace=text("trace", given["trace"], "a file name"), model=given.get("model"))
    known_keys("", given, [*_KINDS, "trace"])
    if len(given) != 1:
        raise InputError.because(f"give exactly one of {_FORMS}, not {len(given)}")
    ((kind, figures),) = given.items()
    struct = _KINDS[kind]
    figures = table(kind, figures)
    known_keys(kind, figures, struct.__struct_fields__)
    for field in struct.__struct_fields__:
        if field not in figures:
            raise complaint(f"{kind}.{field}", f"is missing; give {{ {', '.join(struct.__struct_fields__)} }}")
    return struct(**figures)


def _lengths(prompt: LengthLike, output: LengthLike, cached: object) -> dict[str, Any]:
    return {
        "prompt_tokens": length("prompt_tokens", prompt, 1),
        "output_tokens": length("output_tokens", output, 0),
        "cached_tokens": _cached(cached),
    }


def _cached(value: object) -> int | IntArray:
    if isinstance(value, list | tuple | np.ndarray):
        return _frozen(_token_array("cached_tokens", value, 0))
    return whole("cached_tokens", value)


def _count(requests: int | None, lengths: dict[str, Any], default: int | None) -> int:
    sizes = {field: len(value) for field, value in lengths.items() if isinstance(value, np.ndarray)}
    if requests is None:
        requests = next(iter(sizes.values()), default)
    count = whole("requests", requests, 1)
    for field, size in sizes.items():
        if size != count:
            raise InputError(field, f"{size} values", f"as many as there are requests, which is {count}")
    return count


def _token_array(field: str, values: object, least: int) -> IntArray:
    allowed = f"whole numbers of at least {least}"
    numbers = _numbers(field, values, allowed)
    bad = ~((numbers == np.floor(numbers)) & (numbers >= least) & (numbers <= MAX_TOKENS))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(f"{field}[{at}]", numbers[at].item(), allowed)
    return numbers.astype(np.int64)


def _arrival_array(values: object) -> FloatArray:
    allowed = "finite numbers of seconds, at least 0"
    numbers = _numbers("arrival_s", values, allowed).astype(np.float64)
    bad = ~(np.isfinite(numbers) & (numbers >= 0))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(f"arrival_s[{at}]", numbers[at].item(), allowed)
    return numbers


def _numbers(field: str, values: object, allowed: str) -> npt.NDArray[Any]:
    try:
        numbers = np.asarray(values)
    except ValueError:  # ragged
        raise InputError(field, values, f"a flat list of {allowed}") from None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise InputError(field, values, f"a flat list of {allowed}")
    if not numbers.size:
        raise InputError(field, values, f"at least one value: {allowed}")
    return numbers


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    own = array.copy()
    own.setflags(write=False)
    return own


def _mean(field: str, value: object) -> None:
    if not is_number(value) or not 1 <= value <= MAX_TOKENS:
        raise InputError(field, value, "a number of tokens of at least 1")


def _existing(field: str, path: object) -> None:
    if not isinstance(path, str) or not path:
        raise InputError(field, path, "a file name")
    if not os.path.isfile(path):
        raise FormatError.because(f"{path}: no such file")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        span = {"min": value.min().item(), "mean": value.mean().item(), "max": value.max().item()}
        return {"values": len(value), **span, "sha256": digest}
    plain = msgspec.to_builtins(value)
    if isinstance(value, Trace):
        return {**plain, "path": os.path.basename(value.path), "sha256": _file_hash(value.path)}
    if isinstance(value, Empirical):
        return {**plain, "trace": os.path.basename(value.trace), "sha256": _file_hash(value.trace)}
    return plain


def _file_hash(path: str) -> str | None:
    """Of the content, so that a file is the same wherever it lies; None where it is gone."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
