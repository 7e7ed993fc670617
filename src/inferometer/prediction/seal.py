"""Sealing: a prediction becomes a file whose hash covers every figure, the time, and the seal before it.

The hash is the SHA-256 of the canonical JSON without ``sealed``, which repeats it. Time and predecessor stand in
``ink``, which the hash covers, and again in ``sealed``. The clock never runs backwards in a chain: too late a time
makes a prediction look worse, never better. How a seal is checked: `prediction.verification`; read back:
`prediction.sealed`.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.prediction.canonical import SEALED, digest, plain, written
from inferometer.prediction.claims import Claim
from inferometer.prediction.sealed import Sealed, SealedArm, SealedPoint, read_sealed
from inferometer.prediction.verification import FOLDER, NAME_DIGITS, Verification, iso_time, unix_s, verify
from inferometer.store import Rows, Store

if TYPE_CHECKING:
    from inferometer.prediction.predict import Prediction

__all__ = ["Claim", "Sealed", "SealedArm", "SealedPoint", "Verification", "read_sealed", "seal", "verify"]

clock = time.time
"""Seconds since 1970, as this machine has it."""


def seal(prediction: Prediction, store: Store | str | os.PathLike[str] | None = None) -> Path:
    """Write a prediction down as the next seal of a store; returns its file. Also of a model that does not fit.

    Sealing the same prediction again gives another seal, with another time and predecessor.

    Args:
        prediction: what is sealed.
        store: the store or its folder; None: as `Store` finds it.

    Raises:
        InputError: a whole number of 2**53 or more in it, such as a seed.
        OSError: the store cannot be written.
    """
    kept = store if isinstance(store, Store) else Store(store)
    document = plain(prediction.to_dict())
    with kept.sealing() as earlier:
        ink = _ink(earlier, kept.newest_start_unix_s())
        document["ink"] = ink
        sha256 = digest(document)
        name = f"{sha256[:NAME_DIGITS]}.json"
        repeated = {"time": ink["time"], "previous": ink["previous"]}
        document[SEALED] = {"path": f"{FOLDER}/{name}", "sha256": sha256, **repeated}
        return kept.write_prediction(name, written(document))


def _ink(earlier: Rows, newest_start_unix_s: float | None) -> dict[str, Any]:
    """Time, predecessor, and what the clock read where that is not the time."""
    head, now = _head(earlier), _up_to_ms(clock())
    made = None if head is None else unix_s(head["time"])
    floors = {"the seal before it was made": made, "a run was measured": newest_start_unix_s}
    later = {what: _up_to_ms(when) for what, when in floors.items() if when is not None and _up_to_ms(when) > now}
    when = max(later.values(), default=now)
    said = ""
    if later:
        what = max(later, key=lambda name: later[name])
        said = f"The clock read {iso_time(now)}, before {iso_time(when)}, when {what}; the later time is taken."
    return {"time": iso_time(when), "previous": head and head["sha256"], "clock": said}


def _head(earlier: Rows) -> dict[str, Any] | None:
    """The seal that no other names as its predecessor; of several the latest, then the last by hash."""
    named = {row["previous"] for row in earlier}
    ends = [row for row in earlier if row["sha256"] not in named]
    return max(ends, key=lambda row: (unix_s(row["time"]) or 0.0, row["sha256"]), default=None)


def _up_to_ms(unix: float) -> float:
    """Rounded up to the millisecond that is written: a seal is never dated before it was made."""
    return math.ceil(unix * 1000) / 1000
