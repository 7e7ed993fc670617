"""A study: one TOML file that says what is served, on what, under which loads, and what its users must get.

::

    model = "Qwen/Qwen3-8B"                 # or a path to a config.json, or a table of figures
    chip = "a100-sxm4-80gb"                 # or a path to a chip's file, or a table of figures
    [deployment]                            # the engine's own flag names
    [workload]                              # lengths; one loop: concurrency, request_rate, requests or trace
    [slo]                                   # ttft_ms, tpot_ms, itl_ms, e2e_ms, attainment
    [price]                                 # chip_usd_per_hour
    [claims]                                # your own figures: "output_tok_per_s@64" = 5060, or "none"
    [[arm]]                                 # a name, and whatever differs from the above

Requests of a point, unless stated: 10 a user in a closed loop; 60 s worth and at least 100 in an open loop. At most
`MOST_REQUESTS`.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import FormatError, InputError
from inferometer.specs import merge as tables
from inferometer.specs.checks import (
    at,
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
from inferometer.specs.chip import Chip, chip
from inferometer.specs.deployment import Deployment
from inferometer.specs.model import Model, model
from inferometer.specs.slo import Slo
from inferometer.specs.workload import Workload

PER_CONCURRENCY = 10
"""Requests a user, where a closed loop's number is not stated."""
PER_RATE_S = 60
"""Seconds' worth of requests, where an open loop's number is not stated ..."""
LEAST_OPEN_REQUESTS = 100
"""... and at least so many."""
MOST_REQUESTS = 20_000_000
"""No point has more: their columns alone take gigabytes."""

BASE = "base"
"""Name of arm 0: the study without any of its ``[[arm]]`` tables."""

NO_CLAIM = "none"
"""What ``[claims]`` says of a figure that there is not, such as a knee."""

_SECTIONS = {
    "workload": (
        *("prompt_tokens", "output_tokens", "cached_tokens", *tables.LOOPS, "arrivals", "burstiness"),
        "think_time_s",
        *("requests_per_point", "duration_s", "warmup_requests", "seed"),
    ),
    "slo": ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "attainment"),
    "price": ("chip_usd_per_hour",),
}
_ARM_KEYS = ("name", "description", "model", "chip", "deployment", *_SECTIONS)
_DEPLOYMENT_FIELDS = tuple(field for field in Deployment.__struct_fields__ if field not in ("model", "chip", "flags"))
_NOT_REPLAYED = tuple(key for key in _SECTIONS["workload"] if key not in (*tables.LOOPS, "warmup_requests", "seed"))
_TRACE_KEYS = ("path", "rate_scale", "limit", "model")


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One load of an arm: a concurrency, a request rate, or (with neither) a replay."""

    workload: Workload
    concurrency: int | None = None
    request_rate: float | None = None
    """Requests per second."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One variant of a study: a deployment, its points and its limits."""

    name: str
    deployment: Deployment
    points: tuple[Point, ...]
    slo: Slo
    seed: int
    warmup_requests: int
    """The first so many requests of each point are left out of the summary."""
    table: dict[str, Any]
    """The study's table with this arm's laid over it, as plain values: what is printed and sealed."""
    price: dict[str, float] = {}
    """``chip_usd_per_hour`` where stated."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A study, resolved: arm 0 is the base, the others are its ``[[arm]]`` tables in order. Made by `load_study`.

    >>> import inferometer as im
    >>> [arm.name for arm in im.load_study("a100-qwen3-8b").arms][:2]
    ['base', 'prefix-hits']
    """

    name: str
    arms: tuple[Arm, ...]
    description: str = ""
    source: str = ""
    """The file it was read from, as given; empty for a table."""
    table: dict[str, Any]
    """The file's table with overrides applied, arms included."""
    claims: dict[str, float | None] = {}
    """A person's own figures of the base, by ``PATH[@LOAD]`` (`prediction.claims`); None: that there is none."""

    @property
    def base(self) -> Arm:
        """Arm 0."""
        return self.arms[0]

    def arm(self, name: str) -> Arm:
        """The arm of this name.

        Raises:
            InputError: there is none.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise InputError("arm", name, f"one of {', '.join(arm.name for arm in self.arms)}")


def load_study(
    source: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any] | Iterable[str] = ()
) -> Study:
    """A study from a TOML file, a packaged study's name or a table; ``overrides`` change fields before it is resolved.

    Overrides are dotted keys (``deployment.max_num_seqs``), as a mapping or as texts ``key=value``; they change the
    base, and ``arm.NAME.key`` changes one arm. Paths in a study are relative to its file, else to the working folder.

    Raises:
        InputError: the file is missing or not valid TOML; a key that is not known; a value that is not allowed. The
            message names the file, the arm, the field and the value. A model that does not fit is no error here.

    >>> study = load_study("a100-qwen3-8b", ["workload.concurrency=[1, 8]"])
    >>> [point.workload.requests for point in study.base.points]
    [10, 80]
    """
    if isinstance(source, Mapping):
        return _resolve(dict(source), tables.overrides(overrides), "", Path())
    given = os.fspath(source)
    file = _find(given)
    return _resolve(_read(file), tables.overrides(overrides), given, file.parent)


def packaged_studies() -> dict[str, Path]:
    """The studies that come with this package, by name."""
    folder = Path(__file__).resolve().parents[1] / "studies"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def _find(given: str) -> Path:
    path = Path(given).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise FormatError.because(f"{given}: is a folder; give a study file (TOML)")
    packaged = packaged_studies()
    if given in packaged:
        return packaged[given]
    raise FormatError.because(f"{given}: no such study file; packaged studies: {', '.join(packaged) or 'none'}")


def _read(file: Path) -> dict[str, Any]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError.because(f"{file}: cannot be read: {error}") from error
    try:
        found = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        last = f"at line {len(content.splitlines())}, the end of the file"
        reason = str(error).replace("at end of document", last)
        raise FormatError.because(f"{file}: not valid TOML: {reason}") from error
    if not found:
        raise FormatError.because(f"{file}: is empty; a study has at least a model, a chip and a [workload]")
    return found


def _resolve(given: dict[str, Any], changes: dict[str, Any], source: str, folder: Path) -> Study:
    with at(source):
        full = _changed(given, changes)
        known_top_level(full)
        claims = _claims(full.get("claims", {}))
        base = {key: value for key, value in full.items() if key not in ("arm", "claims")}
        arms = [_arm(BASE, base, folder)]
        for name, merged in _variants(base, full.get("arm", []), {BASE}):
            with at(f"arm {name!r}"):
                arms.append(_arm(name, merged, folder))
        name = text("name", full.get("name", Path(source).stem or "study"))
        description = full.get("description", "")
        if not isinstance(description, str):
            raise InputError("description", description, "a text")
        everything = tuple(arms)
        return Study(name=name, description=description, arms=everything, source=source, table=full, claims=claims)


def known_top_level(given: Mapping[str, Any]) -> None:
    """Refuse keys that no study has, saying where a key of a section belongs."""
    for key in given:
        for section, keys in {**_SECTIONS, "deployment": _DEPLOYMENT_FIELDS}.items():
            if key in keys and key not in _ARM_KEYS:
                raise complaint(key, f"belongs in [{section}], not at the top level")
    known_keys("", given, (*_ARM_KEYS, "arm", "claims"))


def _changed(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``given`` with the overrides applied: those below ``arm`` each to the arm it names, the rest to the base."""
    of_arms = changes.get("arm", {})
    rest = {key: value for key, value in changes.items() if key != "arm"}
    if isinstance(of_arms, list):
        return tables.merge(given, changes)
    full = tables.merge(given, rest)
    for name, change in table("arm", of_arms).items():
        known = [arm.get("name") for arm in full.get("arm", []) if isinstance(arm, Mapping)]
        if name not in known:
            raise InputError("arm", name, f"one of {', '.join(map(str, known)) or 'none: this study has no arms'}")
        at_row = known.index(name)
        full["arm"][at_row] = tables.merge(full["arm"][at_row], table(f"arm.{name}", change))
    return full


def _variants(base: dict[str, Any], arms: object, taken: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each ``[[arm]]`` by name, laid over the base."""
    if not isinstance(arms, list):
        raise InputError("arm", arms, "a list of tables, written [[arm]]")
    for row, given in enumerate(arms):
        own = table(f"arm[{row}]", given)
        name = text(f"arm[{row}].name", own.get("name"), "each arm a name")
        if name in taken:
            raise InputError(f"arm[{row}].name", name, "each arm a name of its own ('base' is the study without arms)")
        taken.add(name)
        known_keys(f"arm[{row}]", own, _ARM_KEYS)
        yield name, tables.merge(base, {key: value for key, value in own.items() if key != "name"})


def _arm(name: str, merged: dict[str, Any], folder: Path) -> Arm:
    load = _section(merged, "workload")
    limits = _section(merged, "slo")
    price = {key: not_negative(f"price.{key}", value) for key, value in _section(merged, "price").items()}
    with within("workload"):
        seed = whole("seed", load.get("seed", 0))
        points = _points(_with_paths(load, folder, _model_name(merged.get("model"))))
        warmup = _warmup(load.get("warmup_requests", 0), points)
    return Arm(
        name=name,
        deployment=_deployment(merged, folder),
        points=points,
        slo=_slo(limits),
        seed=seed,
        warmup_requests=warmup,
        table=merged,
        price=price,
    )


def _section(merged: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = table(name, merged.get(name, {}))
    known_keys(name, section, _SECTIONS[name])
    return section


def _deployment(merged: Mapping[str, Any], folder: Path) -> Deployment:
    section = table("deployment", merged.get("deployment", {}))
    fields = {key: value for key, value in section.items() if key in _DEPLOYMENT_FIELDS}
    flags = {key: value for key, value in section.items() if key not in (*_DEPLOYMENT_FIELDS, "flags")}
    served, device = _model(merged.get("model"), folder), _chip(merged.get("chip"), folder)
    with within("deployment"):
        flags |= table("flags", section.get("flags", {}))
        return Deployment(model=served, chip=device, **fields, flags=flags)


def _model(given: object, folder: Path) -> Model:
    """A catalog name, a config.json, or a table: a config, or the few figures of `Model`."""
    if isinstance(given, Mapping):
        return _few_figures(given) if "layers" in given else model(dict(given))
    name = text("model", given, "a catalog name, a path to a config.json, or a table of figures")
    return model(_beside(name, folder))


def _few_figures(given: Mapping[str, Any]) -> Model:
    known_keys("model", given, Model.__struct_fields__)
    try:
        return msgspec.convert({"name": "model", **given}, Model)
    except msgspec.ValidationError as error:
        raise InputError.because(f"model: {error}") from error


def _chip(given: object, folder: Path) -> Chip:
    if isinstance(given, Mapping):
        return chip(given)
    return chip(_beside(text("chip", given, "a catalog name, a path to a chip's file, or a table of figures"), folder))


def _beside(name: str, folder: Path) -> str:
    """``name`` as a path beside the study where there is such a file or folder, else unchanged."""
    path = folder / Path(name).expanduser()
    return str(path) if path.exists() else name


def _model_name(given: object) -> str | None:
    name = given.get("name") if isinstance(given, Mapping) else given
    return name if isinstance(name, str) else None


def _with_paths(load: dict[str, Any], folder: Path, model_name: str | None) -> dict[str, Any]:
    """The workload's table with trace files found beside the study, and rows of the study's model meant by default."""
    found = dict(load)
    for key in ("prompt_tokens", "output_tokens"):
        value = found.get(key)
        if isinstance(value, Mapping) and isinstance(value.get("trace"), str):
            found[key] = {"model": model_name, **value, "trace": _beside(value["trace"], folder)}
    for key in ("requests", "trace"):
        if key in found:
            given = found[key] if isinstance(found[key], Mapping) else {"path": found[key]}
            path = text(key, given.get("path"), f"a trace file's name, or a table of {', '.join(_TRACE_KEYS)}")
            found[key] = {"model": model_name, **given, "path": _beside(path, folder)}
    return found


def _points(load: dict[str, Any]) -> tuple[Point, ...]:
    loops = [key for key in tables.LOOPS if key in load]
    if len(loops) != 1:
        found = f"not {' and '.join(loops)} at once" if loops else "none is given"
        raise InputError.because(f"give exactly one of {', '.join(tables.LOOPS)} in [workload]; {found}")
    (loop,) = loops
    if loop == "concurrency":
        _only(load, loop, refused=("arrivals", "burstiness", "duration_s"), belongs="request_rate (open loop)")
        return tuple(_closed(users, load) for users in _levels(loop, load[loop], whole_numbers=True))
    if loop == "request_rate":
        _only(load, loop, refused=("think_time_s",), belongs="concurrency (closed loop)")
        return tuple(_open(rate, load) for rate in _levels(loop, load[loop], whole_numbers=False))
    _only(load, loop, refused=_NOT_REPLAYED, belongs="concurrency or request_rate")
    return (Point(workload=_replay(loop, load[loop])),)


def _only(load: Mapping[str, Any], loop: str, refused: tuple[str, ...], belongs: str) -> None:
    for key in refused:
        if key in load:
            raise complaint(key, f"goes with {belongs}, not with {loop}")


def _levels(field: str, given: object, *, whole_numbers: bool) -> list[Any]:
    each = "whole numbers of at least 1" if whole_numbers else "numbers of requests per second above 0"
    levels = [given] if is_number(given) else given
    if not isinstance(levels, list | tuple) or not levels:
        raise InputError(field, given, f"a list of at least one value: {each}")
    check = (lambda value: whole(field, value, 1)) if whole_numbers else (lambda value: positive(field, value))
    return [check(level) for level in levels]


def _closed(users: int, load: dict[str, Any]) -> Point:
    count = _stated_count(load, "per_concurrency", users)
    if count is None and not _listed(load):
        count = _capped(PER_CONCURRENCY * users, f"; unless stated it is {PER_CONCURRENCY} a user")
    workload = Workload.closed_loop(users, count, think_time_s=load.get("think_time_s", 0.0), **_lengths(load))
    return Point(workload=workload, concurrency=users)


def _open(rate: float, load: dict[str, Any]) -> Point:
    count = _stated_count(load, "per_rate", rate)
    if "duration_s" in load:
        if count is not None:
            raise complaint("duration_s", "sets the number of requests, and requests_per_point does too; give one")
        span_s = positive("duration_s", load["duration_s"], "a number of seconds")
        count = max(1, _capped(rate * span_s, "; here it follows from duration_s"))
    if count is None and not _listed(load):
        count = max(LEAST_OPEN_REQUESTS, _capped(PER_RATE_S * rate, f"; unless stated it is {PER_RATE_S} s worth"))
    arrivals = {key: load[key] for key in ("arrivals", "burstiness") if key in load}
    workload = Workload.open_loop(rate, count, **arrivals, **_lengths(load))
    return Point(workload=workload, request_rate=rate)


def _stated_count(load: Mapping[str, Any], per: str, level: float) -> int | None:
    """Requests of a point as ``requests_per_point`` states them: a number, or so many for each unit of the level."""
    given = load.get("requests_per_point")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        if not is_number(given):
            raise InputError("requests_per_point", given, f"a whole number of at least 1, or {{ {per} = NUMBER }}")
        return _capped(whole("requests_per_point", given, 1))
    known_keys("requests_per_point", given, [per])
    if per not in given:
        raise InputError("requests_per_point", dict(given), f"{{ {per} = NUMBER }}")
    return max(1, _capped(positive(f"requests_per_point.{per}", given[per]) * level))


def _capped(count: float, how: str = "") -> int:
    """A point's number of requests, rounded, where a machine can hold so many; ``how`` it came to be is said if not."""
    if count > MOST_REQUESTS:
        shown = int(count) if math.isfinite(count) else count
        raise InputError("requests_per_point", shown, f"at most {MOST_REQUESTS:,} requests a point{how}")
    return round(count)


def _listed(load: Mapping[str, Any]) -> bool:
    """Whether lengths are given one by one, so that their number is the number of requests."""
    return any(isinstance(load.get(key), list) for key in ("prompt_tokens", "output_tokens", "cached_tokens"))


def _lengths(load: Mapping[str, Any]) -> dict[str, Any]:
    return {key: load[key] for key in ("prompt_tokens", "output_tokens", "cached_tokens") if key in load}


def _replay(loop: str, given: Mapping[str, Any]) -> Workload:
    with within(loop):
        known_keys("", given, _TRACE_KEYS)
        return Workload.from_trace(**given)


def _warmup(given: object, points: tuple[Point, ...]) -> int:
    warmup = whole("warmup_requests", given)
    fewest = min((point.workload.requests for point in points if point.workload.requests is not None), default=None)
    if fewest is not None and warmup >= fewest:
        raise InputError("warmup_requests", warmup, f"fewer than the {fewest} requests of the smallest point")
    return warmup


def _claims(given: object, path: str = "") -> dict[str, float | None]:
    """Claims by path; a path may be one quoted key or, as TOML reads bare dots, tables in tables."""
    found: dict[str, float | None] = {}
    for key, value in table(path or "claims", given).items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            found |= _claims(value, name)
        elif is_number(value) or value == NO_CLAIM:
            found[name] = None if value == NO_CLAIM else float(value)
        else:
            raise InputError(f"claims.{name}", value, f"a number, or {NO_CLAIM!r} for that there is none")
    return found


def _slo(limits: Mapping[str, Any]) -> Slo:
    seconds = {
        key.replace("_ms", "_s"): positive(f"slo.{key}", value, "a number of milliseconds") / 1e3
        for key, value in limits.items()
        if key != "attainment"
    }
    return Slo(**seconds, attainment=limits.get("attainment", 0.99))
