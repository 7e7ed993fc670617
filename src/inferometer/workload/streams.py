"""Named random streams of one seed: adding a stream changes no other."""

from __future__ import annotations

import zlib

import numpy as np

from inferometer.specs.checks import whole


def stream(seed: int, name: str) -> np.random.Generator:
    """The random numbers called ``name`` under ``seed``: the same on every machine, independent of other names.

    The name's CRC-32 is the spawn key of a `numpy.random.SeedSequence`, so no stream depends on the others there are.

    Raises:
        InputError: a seed that is not a whole number of at least 0.

    >>> bool(stream(0, "arrivals").random() == stream(0, "arrivals").random())
    True
    """
    key = zlib.crc32(name.encode("utf-8"))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(whole("seed", seed), spawn_key=(key,))))
