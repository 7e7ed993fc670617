"""What a user must get: a service-level objective."""

from __future__ import annotations

import msgspec

from inferometer.errors import InputError
from inferometer.specs.checks import is_number


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on a request's latencies, in seconds, and the share of requests that must meet all of them.

    Raises:
        InputError: a limit that is not a finite number above 0, a share that is not above 0 and at most 1.

    >>> Slo(ttft_s=0.5, tpot_s=0.05).attainment
    0.99
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.99

    def __post_init__(self) -> None:
        """Refuse limits that no request could meet and shares that are none."""
        for name, value in self.limits().items():
            if not is_number(value) or value <= 0:
                raise InputError(f"slo.{name}", value, "a time above 0 s")
        if not is_number(self.attainment) or not 0 < self.attainment <= 1:
            raise InputError("slo.attainment", self.attainment, "a share above 0, at most 1")

    def table(self) -> dict[str, float]:
        """The limits and the attainment, as a run records them; empty where there is no limit."""
        limits = self.limits()
        return {**limits, "attainment": self.attainment} if limits else {}

    def limits(self) -> dict[str, float]:
        """The limits that are set, by metric name (``ttft_s``, ``tpot_s``, ``itl_s``, ``e2e_s``)."""
        values = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "itl_s": self.itl_s, "e2e_s": self.e2e_s}
        return {k: v for k, v in values.items() if v is not None}
