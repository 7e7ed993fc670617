"""Flags that several commands share, as dataclasses that cyclopts flattens into options."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from inferometer.errors import InferometerWarning, InputError

if TYPE_CHECKING:
    from inferometer.specs.study import Study
    from inferometer.steptime.profile import Profile

COMMON = Group("Common", sort_key=3)
STUDY = Group("Study by flags: over the file's, or without a file", sort_key=2)

Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        help="Override one field of the study: KEY=VALUE, such as deployment.max_num_batched_tokens=8192. Repeatable.",
    ),
]
Seed = Annotated[int | None, Parameter(group=COMMON, help="Of lengths and arrivals, instead of the study's.")]


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Output:
    """How a command answers."""

    json: Annotated[bool, Parameter(help="Print one JSON document on standard output.")] = False
    quiet: Annotated[bool, Parameter(help="Print only the answer, a line or the ids; no progress.")] = False


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Storage:
    """Where runs are kept."""

    store: Annotated[
        str | None, Parameter(help="Folder of runs; else INFEROMETER_STORE, else .inferometer in the working folder.")
    ] = None


@Parameter(name="*", group=STUDY)
@dataclass(frozen=True)
class StudyFlags:
    """A study's most used fields; each is an override of the field of its name."""

    model: Annotated[
        str | None, Parameter(help="Catalog name, or path of a config.json or of the folder that holds it.")
    ] = None
    chip: Annotated[str | None, Parameter(help="Catalog name, or path of a chip's file (TOML or JSON).")] = None
    engine: Annotated[str | None, Parameter(help="Whose scheduler and defaults.")] = None
    engine_version: Annotated[str | None, Parameter(help="Whose defaults.")] = None
    tensor_parallel_size: Annotated[int | None, Parameter(help="Chips that share every layer.")] = None
    pipeline_parallel_size: Annotated[int | None, Parameter(help="Chips in a row.")] = None
    data_parallel_size: Annotated[int | None, Parameter(help="Independent replicas.")] = None
    enable_expert_parallel: Annotated[bool | None, Parameter(help="Experts divided whole among the ranks.")] = None
    dtype: Annotated[str | None, Parameter(help="Of activations and weights that are not quantised.")] = None
    quantization: Annotated[str | None, Parameter(help="The weights' format, such as fp8.")] = None
    kv_cache_dtype: Annotated[str | None, Parameter(help="The KV cache's format, such as fp8.")] = None
    max_num_seqs: Annotated[int | None, Parameter(help="Most requests running at once.")] = None
    max_num_batched_tokens: Annotated[int | None, Parameter(help="Token budget of a step.")] = None
    max_model_len: Annotated[int | None, Parameter(help="Longest prompt plus output.")] = None
    gpu_memory_utilization: Annotated[float | None, Parameter(help="Share of the device the engine takes.")] = None
    prompt_tokens: Annotated[str | None, Parameter(help="A number, or a distribution as in a study file.")] = None
    output_tokens: Annotated[str | None, Parameter(help="A number, or a distribution as in a study file.")] = None
    concurrency: Annotated[str | None, Parameter(help="Closed loop: users, such as 1,8,64.")] = None
    request_rate: Annotated[str | None, Parameter(help="Open loop: requests a second, such as 0.5,1,2.")] = None
    requests_per_point: Annotated[int | None, Parameter(help="Requests of each point.")] = None
    warmup_requests: Annotated[int | None, Parameter(help="First requests of each point, left out of figures.")] = None
    ttft_ms: Annotated[float | None, Parameter(help="Limit on the time to first token.")] = None
    tpot_ms: Annotated[float | None, Parameter(help="Limit on the time per output token.")] = None

    def given(self) -> Iterator[tuple[str, Any]]:
        """The flags that were given, by their names here."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                yield field.name, value

    def overrides(self) -> dict[str, Any]:
        """What they override, by dotted key."""
        return {f"{_section(name)}{name}": _value(name, value) for name, value in self.given()}

    def words(self) -> list[str]:
        """As they are written on a command line."""
        return [word for name, value in self.given() for word in _words(name, value)]


_TOP = ("model", "chip")
_LISTS = ("concurrency", "request_rate")
_WORKLOAD = ("prompt_tokens", "output_tokens", *_LISTS, "requests_per_point", "warmup_requests")
_SLO = ("ttft_ms", "tpot_ms")


def _section(name: str) -> str:
    sections = (("", _TOP), ("workload.", _WORKLOAD), ("slo.", _SLO))
    return next((section for section, names in sections if name in names), "deployment.")


def _value(name: str, value: Any) -> Any:
    """The value as a study file would hold it."""
    from inferometer.specs.merge import overrides

    if name in _LISTS:
        return [_number(name, part) for part in str(value).split(",")]
    return overrides([f"value={value}"])["value"] if name in _WORKLOAD else value


def _number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--{name.replace('_', '-')}", text, "numbers separated by commas, such as 1,8,64") from None


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag] if value else []
    return [flag, str(value)]


def served_source(study: str | None) -> tuple[str | Mapping[str, Any] | None, Profile | None]:
    """What a command line names as what served: a study as it is; of a prediction's file its study and its profile.

    Warns where the prediction was changed after it was sealed. Raises `InputError` for a prediction that cannot be
    read.
    """
    from inferometer.scoring.sides import prediction_file

    if study is None or not prediction_file(study):
        return study, None
    import msgspec

    from inferometer.prediction.sealed import read_sealed
    from inferometer.steptime.profile import Profile

    read = read_sealed(study)
    if read.verification is not None and not read.verification.ok:
        what = f"{study}: not what was sealed ({'; '.join(read.verification.faults)}); its study is taken as it stands"
        warnings.warn(what, InferometerWarning, stacklevel=2)
    kept = read.document.get("profile")
    table = {"name": read.document.get("name", "study"), **read.document["study"]}
    return table, msgspec.convert(kept, Profile) if kept else None


def read_study(study: str | Mapping[str, Any] | None, flags: StudyFlags, overrides: tuple[str, ...]) -> Study:
    """The study of a command line: a file, a packaged study's name or a table, flags over it, ``--set`` over both.

    Raises `InputError` where there is neither a file nor a model, and for whatever is wrong with the study.
    """
    from inferometer.specs import merge
    from inferometer.specs.study import load_study

    if study is None and flags.model is None:
        raise InputError.because("no study: give a study file, or --model and --chip with a load (--concurrency 1,8)")
    _one_load([f"--{name.replace('_', '-')}" for name, _ in flags.given() if name in _LISTS])
    loads = [f"workload.{loop}" for loop in merge.LOOPS]
    _one_load([f"--set {key}" for key in dict.fromkeys(map(_key, overrides)) if key in loads])
    changes = merge.merge(merge.overrides(flags.overrides()), merge.overrides(overrides))
    if study is None and not any(loop in changes.get("workload", {}) for loop in merge.LOOPS):
        raise InputError.because("no load: give --concurrency 1,8 (closed loop) or --request-rate 0.5,1 (open loop)")
    return load_study({} if study is None else study, changes)


def read_served(study: str | None, flags: StudyFlags, overrides: tuple[str, ...]) -> Study | None:
    """What is said to have served; None where nothing is said. The load of a study by flags alone does not matter.

    ``study``: a study, or a prediction's file, whose study is taken.

    Raises:
        InputError: flags without a study or a model, or what `read_study` raises.
    """
    if study is None and flags.model is None:
        if flags != StudyFlags() or overrides:
            raise InputError.because("no study: give --study, or --model and --chip, to say what served")
        return None
    if study is None and flags.concurrency is None and flags.request_rate is None:
        flags = replace(flags, concurrency="1")
    return read_study(served_source(study)[0], flags, overrides)


def _one_load(given: list[str]) -> None:
    if len(given) > 1:
        raise InputError.because(f"give exactly one of {', '.join(given)}: a load is one or the other")


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def study_words(study: str | None, flags: StudyFlags, overrides: tuple[str, ...]) -> str:
    """What a command line says of its study, to be pasted after another command."""
    import shlex

    sets = [word for each in overrides for word in ("--set", each)]
    return shlex.join([*([study] if study else []), *flags.words(), *sets])
