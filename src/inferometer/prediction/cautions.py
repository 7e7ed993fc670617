"""What to bear in mind of a prediction: what the simulation leaves out, and what is not measured of the chip."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from inferometer.records.run import Run
from inferometer.specs.chip import Chip
from inferometer.specs.deployment import Deployment
from inferometer.steptime.efficiencies import constants
from inferometer.steptime.profile import Profile, profile_cautions

CALIBRATED_ON = "NVIDIA"
"""The vendor whose chips the engine's start-up was read on (`steptime.memory`)."""


OF_EVERY_RUN = ("step costs: ", "no prefix is found")
"""How notes begin that every run has: where its costs come from, and that only stated prefixes are cached."""


def simplifications(runs: Iterable[Run]) -> list[str]:
    """What the notes of the runs say was left out or assumed, each once, but for what holds for every run."""
    notes = dict.fromkeys(note for run in runs for note in run.meta.notes)
    return [note for note in notes if not note.startswith(OF_EVERY_RUN)]


def cautions(chip: Chip, deployment: Deployment | None = None, profile: Profile | None = None) -> list[str]:
    """A sentence for each: no efficiency of this family was measured; the memory constants are another vendor's.

    With a profile, the constants were measured, and what there is to doubt about it on this deployment is said.

    >>> import inferometer as im
    >>> cautions(im.chip("a100-sxm4-80gb"))
    []
    """
    family = f"the {chip.family} family" if chip.family else f"{chip.name}, a chip of no known family,"
    found = []
    if profile is not None and deployment is not None:
        found += [f"{doubt[:1].upper()}{doubt[1:]}." for doubt in profile_cautions(deployment, profile)]
    elif constants(chip) == constants(msgspec.structs.replace(chip, family="")):
        found.append(f"Efficiencies of {family} are priors, not measured.")
    if chip.vendor and chip.vendor != CALIBRATED_ON:
        found.append(f"The engine's memory constants were read on {CALIBRATED_ON} GPUs, not on {chip.vendor}'s chips.")
    return found
