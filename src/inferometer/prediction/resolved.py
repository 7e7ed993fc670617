"""What a prediction was computed from, value by value: its file says so also when the catalogs have moved on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

import msgspec

from inferometer import __version__
from inferometer.specs.deployment import Deployment
from inferometer.specs.slo import Slo
from inferometer.steptime.efficiencies import Bound, Constant, Efficiencies, constants
from inferometer.steptime.profile import Profile, calibrated_efficiencies
from inferometer.steptime.roofline import Roofline
from inferometer.steptime.weights import active_parameters, parameters, weight_bytes

LIBRARIES = ("numpy", "numba", "polars")
"""Those whose version can change a figure's last digits."""


def resolved(deployment: Deployment, slo: Slo, roofline: Roofline, profile: Profile | None = None) -> dict[str, Any]:
    """``resolved`` of an arm's JSON: chip and model with their sources, constants with their ranges, the roofline's
    own inputs (`Roofline`'s fields), and the limits in seconds."""
    known = _constants(deployment, profile) if deployment.model.blocks else {}
    return {
        "chip": msgspec.to_builtins(deployment.chip),
        "model": _model(deployment),
        "efficiencies": {name: msgspec.to_builtins(constant) for name, constant in known.items()},
        "roofline": msgspec.to_builtins(roofline),
        "slo": slo.limits(),
    }


def _model(deployment: Deployment) -> dict[str, Any]:
    """The model's shape, with the figures that follow from it where all its layers are known."""
    shape: dict[str, Any] = msgspec.to_builtins(deployment.model)
    counted = {"loaded_weight_bytes": weight_bytes(deployment.model, deployment)}
    if deployment.model.blocks:
        counted["parameters"] = parameters(deployment.model)
        counted["active_parameters"] = active_parameters(deployment.model)
    return {**shape, **counted}


def _constants(deployment: Deployment, profile: Profile | None) -> dict[str, Constant]:
    """Each constant as it was used, with the two ends that its intervals come from."""
    family = constants(deployment.chip)
    if profile is None:
        return family
    value, slow, fast = (calibrated_efficiencies(deployment.chip, profile, bound) for bound in get_args(Bound))
    said = f"profile {profile.name}"
    return {
        name: Constant(
            value=getattr(value, name),
            slow=getattr(slow, name),
            fast=getattr(fast, name),
            origin=said if name in profile.params else f"{family[name].origin}; kept at its value by {said}",
        )
        for name in Efficiencies.__struct_fields__
    }


@cache
def versions() -> dict[str, str | None]:
    """Of this program, Python, and the libraries that compute; None: not installed as a package."""
    return {
        "inferometer": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
