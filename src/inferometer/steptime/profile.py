"""A calibration profile: what was fitted of a chip's constants, with its errors, and the step costs that follow.

Made by `scoring.calibrate`; a TOML file that a person can read and check. How it is fitted, and what a fit cannot tell
apart: ``docs/explanation/calibration.md``.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import FormatError, InputError, UnknownNameError
from inferometer.specs.catalog import fold
from inferometer.specs.chip import Chip
from inferometer.specs.deployment import Deployment
from inferometer.steptime.costs import SheetModel, StepCosts
from inferometer.steptime.efficiencies import Bound, Efficiencies, constants, efficiencies

NINETY_PERCENT = 1.645
"""Standard errors either side of a fitted constant that hold 90 % of a normal distribution."""
MOST_ERROR = 100.0
"""A standard error of more times its constant says nothing, and its range is no number."""
FORMAT = "inferometer/profile/1"


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the step-time model fitted to runs of one chip, and how far each is known.

    A constant that is neither in ``params`` nor in ``held`` has its chip family's value.

    Raises:
        UnknownNameError: a constant that the step-time model does not have.
        InputError: a fitted constant that is not above 0, or without a standard error.

    >>> import inferometer as im
    >>> fitted = {"weight_read": 0.8}, {"weight_read": 0.01}
    >>> im.Profile(name="mine", chip="l4", model="m", engine="vllm", params=fitted[0], stderr=fitted[1]).interval(
    ...     "weight_read")
    (0.784, 0.817)
    """

    name: str
    chip: str
    """The chip's id: the profile is of no use on another."""
    model: str
    """Names of the models it was fitted on, joined by " + "."""
    engine: str
    params: dict[str, float]
    """Fitted constants, by their names in `Efficiencies`."""
    stderr: dict[str, float]
    """Their standard errors, in the same units."""
    lumped: dict[str, list[str]] = {}
    """By fitted constant: others whose effect it also carries, because the data do not tell them apart."""
    held: dict[str, float] = {}
    """Constants kept at the family's value on which the fit depends."""
    refused: dict[str, str] = {}
    """By constant: why the data do not identify it."""
    held_out: list[dict[str, Any]] = []
    """Points the fit did not see: ``run``, ``concurrency``, ``metric``, ``predicted``, ``measured``, ``error_pct``."""
    residuals: list[dict[str, Any]] = []
    """The same of the points it was fitted to."""
    noise: dict[str, float] = {}
    """Scatter of the measured figures about the fit, a share, by class: ``tpot``, ``ttft``."""
    coarse: str = ""
    """Not empty: fitted to less than requests (histograms of a live server), and says so."""
    runs: list[str] = []
    """What the runs it was fitted to are called ..."""
    run_ids: list[str] = []
    """... and their ids: names may be shared by all points of a sweep."""
    created: str = ""
    version: str = ""
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Refuse constants that do not exist and figures that mean nothing."""
        for table in ("params", "held"):
            for name, value in getattr(self, table).items():
                _known(f"{table}.{name}", name)
                if not (math.isfinite(value) and (value > 0 or (table == "held" and value == 0))):
                    raise InputError(f"profile.{table}.{name}", value, "a number above 0")
        if set(self.stderr) != set(self.params):
            raise InputError("profile.stderr", sorted(self.stderr), f"the names of params: {sorted(self.params)}")
        for name, value in self.stderr.items():
            if not 0 <= value <= MOST_ERROR * self.params[name]:
                raise InputError(f"profile.stderr.{name}", value, f"from 0 to {MOST_ERROR:g} times the constant")

    def interval(self, name: str) -> tuple[float, float]:
        """Low and high of a fitted constant: 1.645 standard errors of its logarithm either side (90 %)."""
        value = self.params[name]
        factor = math.exp(NINETY_PERCENT * self.stderr[name] / value)
        return round_to(value / factor), round_to(value * factor)

    def save(self, path: str | Path) -> Path:
        """Write the profile as TOML and return where.

        Raises:
            InputError: the file cannot be written.
        """
        file = Path(path).expanduser()
        try:
            file.write_text(to_toml(self), encoding="utf-8")
        except OSError as error:
            raise InputError.because(f"{file}: cannot be written: {error.strerror or error}") from error
        return file


def round_to(value: float, digits: int = 3) -> float:
    """``value`` to so many significant digits.

    >>> round_to(0.00123456)
    0.00123
    """
    return float(f"{value:.{digits}g}")


def impossible(profile: Profile) -> list[str]:
    """The fitted constants that are more than all of the chip's peak: such a fit is of something else.

    >>> fitted, errors = {"mfu": 2.3, "step_s": 3.0}, {"mfu": 0.1, "step_s": 0.1}
    >>> impossible(Profile(name="mine", chip="l4", model="m", engine="vllm", params=fitted, stderr=errors))
    ['mfu']
    """
    return [name for name, value in profile.params.items() if not name.endswith("_s") and value > 1]


def load_profile(source: str | Path) -> Profile:
    """The profile of a TOML file, or of the JSON that ``inferometer calibrate --json`` prints.

    Raises:
        FormatError: no such file, not TOML or JSON, a field that is not known or of the wrong kind.
        InputError: a constant that the step-time model does not have, or a figure that means nothing.

    >>> import inferometer as im, tempfile
    >>> mine = im.Profile(name="mine", chip="l4", model="m", engine="vllm", params={"mfu": 0.6}, stderr={"mfu": 0.02})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     im.load_profile(mine.save(folder + "/profile.toml")) == mine
    True
    """
    file = Path(source).expanduser()
    table = _read(file)
    if table.pop("schema", FORMAT) != FORMAT:
        raise FormatError.because(f"{file}: not a calibration profile (its schema is not {FORMAT})")
    unknown = [key for key in table if key not in Profile.__struct_fields__]
    if unknown:
        raise UnknownNameError(f"field of profile {file}:", unknown[0], Profile.__struct_fields__)
    try:
        # a wrong value is found by Profile itself; msgspec would wrap its message
        fields = {key: _converted(key, value) for key, value in table.items()}
        return Profile(**fields)
    except (msgspec.ValidationError, TypeError) as error:
        raise FormatError.because(f"{file}: not a calibration profile: {error}") from error


def calibrated_efficiencies(chip: Chip, profile: Profile, bound: Bound = "value") -> Efficiencies:
    """The chip family's constants with the profile's over them.

    ``slow`` and ``fast`` put every fitted constant 1.645 standard errors to its slower or faster side, in its
    logarithm; constants that were not fitted stay at their value, since the fit absorbed their error.

    Raises:
        InputError: a chip other than the profile's.

    >>> import inferometer as im
    >>> mine = im.Profile(name="mine", chip="l4", model="m", engine="vllm", params={"mfu": 0.6}, stderr={"mfu": 0.02})
    >>> calibrated_efficiencies(im.chip("l4"), mine, "slow").mfu < 0.6
    True
    """
    if fold(chip.id) != fold(profile.chip):
        raise InputError("chip", chip.id, f"{profile.chip}, the chip that profile {profile.name!r} was fitted on")
    values = {**profile.held, **{name: _at(chip, profile, name, bound) for name in profile.params}}
    return msgspec.structs.replace(efficiencies(chip), **values)


def calibrated_costs(deployment: Deployment, profile: Profile | str | Path, bound: Bound = "value") -> StepCosts:
    """Step costs from the specification sheet with a profile's constants: `costs.sheet_costs`, calibrated.

    The deployment may have other flags, and another model (`profile_cautions` says what then to doubt).

    Raises:
        InputError: a chip other than the profile's; a model given by its few figures; a file that is no profile.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("l4"))
    >>> mine = im.Profile(name="mine", chip="l4", model="m", engine="vllm", params={"mfu": 0.3}, stderr={"mfu": 0.02})
    >>> slow, fast = (im.calibrated_costs(dep, mine, bound) for bound in ("slow", "fast"))
    >>> slow.prefill_step_s(1024) > fast.prefill_step_s(1024)
    True
    """
    found = profile if isinstance(profile, Profile) else load_profile(profile)
    costs = SheetModel(deployment, calibrated_efficiencies(deployment.chip, found, bound)).costs()
    said = "; ".join([f"calibrated: profile {found.name!r}", *profile_cautions(deployment, found)])
    return msgspec.structs.replace(costs, origin=said)


def profile_cautions(deployment: Deployment, profile: Profile) -> list[str]:
    """What to doubt where a profile is used on a deployment: sentences, none where it is what was fitted."""
    cautions = []
    if deployment.model.name not in profile.model.split(" + "):
        carries = [f"{name} also carries {', '.join(parts)}" for name, parts in profile.lumped.items()]
        doubt = f" ({'; '.join(carries)}: as much a step on any model)" if carries else ""
        cautions.append(f"the profile was fitted on {profile.model}, not {deployment.model.name}{doubt}")
    if profile.engine and deployment.engine != profile.engine.split()[0]:
        cautions.append(f"the profile was fitted on {profile.engine}, not {deployment.engine}")
    if profile.coarse:
        cautions.append(profile.coarse)
    return cautions


def _at(chip: Chip, profile: Profile, name: str, bound: Bound) -> float:
    value = profile.params[name]
    if bound == "value":
        return value
    factor = math.exp(NINETY_PERCENT * profile.stderr[name] / value)
    up = larger_is_slower(chip, name) == (bound == "slow")
    return value * factor if up else value / factor


def larger_is_slower(chip: Chip, name: str) -> bool:
    """Whether a step takes longer for a larger value of the constant: by the family's range, else by its unit.

    >>> import inferometer as im
    >>> larger_is_slower(im.chip("l4"), "step_s"), larger_is_slower(im.chip("l4"), "mfu")
    (True, False)
    """
    known = constants(chip)[name]
    return name.endswith("_s") if known.slow == known.fast else known.slow > known.fast


def _known(field: str, name: str) -> None:
    if name not in Efficiencies.__struct_fields__:
        raise UnknownNameError(f"constant of the step-time model in profile.{field.split('.')[0]}:", name, _NAMES)


_NAMES = Efficiencies.__struct_fields__
_TYPES = {field.name: field.type for field in msgspec.structs.fields(Profile)}


def _converted(key: str, value: object) -> Any:
    try:
        return msgspec.convert(value, _TYPES[key])
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{key}: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError.because(f"{file}: no profile can be read there: {error}") from error
    try:
        table = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise FormatError.because(f"{file}: not valid TOML: {error}") from error
    return dict(table)


# ---------------------------------------------------------------- TOML
def to_toml(profile: Profile) -> str:
    """The profile's file: scalars first, then its tables, then its lists of rows; empty ones are left out."""
    fields: dict[str, Any] = {"schema": FORMAT, **msgspec.to_builtins(profile)}
    kept = {key: value for key, value in fields.items() if value not in ("", [], {}) or key in ("params", "stderr")}
    plain = [(key, value) for key, value in kept.items() if not isinstance(value, dict) and not _is_rows(value)]
    tables = [(key, value) for key, value in kept.items() if isinstance(value, dict)]
    rows = [(key, value) for key, value in kept.items() if _is_rows(value)]
    lines = [
        "# A calibration of inferometer: predict --profile takes it. Shares are of the chip's peak; times seconds."
    ]
    lines += [f"{key} = {_toml(value)}" for key, value in plain]
    lines += [line for key, table in tables for line in ("", f"[{key}]", *_pairs(table.items()))]
    lines += [line for key, each in rows for row in each for line in ("", f"[[{key}]]", *_pairs(row.items()))]
    return "\n".join(lines) + "\n"


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _pairs(items: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Lines of a table; TOML has no null, so what is not known is left out."""
    return (f"{_key(key)} = {_toml(value)}" for key, value in items if value is not None)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value.items())) + " }"
    # JSON's escapes are TOML's too, but for the delete character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
