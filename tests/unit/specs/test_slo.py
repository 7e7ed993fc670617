"""Limits are seconds above 0; the attainment is a share."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.errors import InputError
from inferometer.specs.slo import Slo


def test_limits_are_those_that_are_set():
    assert Slo(ttft_s=0.5, tpot_s=0.05).limits() == {"ttft_s": 0.5, "tpot_s": 0.05}
    assert Slo().limits() == {}
    assert Slo().attainment == 0.99


@pytest.mark.parametrize("field", ["ttft_s", "tpot_s", "itl_s", "e2e_s"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "fast", True])
def test_a_limit_is_a_time_above_zero(field: str, value: Any):
    with pytest.raises(InputError, match=f"slo.{field}: .* a time above 0 s"):
        Slo(**{field: value})


@pytest.mark.parametrize("value", [0, 1.01, -0.5, float("nan"), "most", None])
def test_attainment_is_a_share(value: Any):
    with pytest.raises(InputError, match=r"slo\.attainment: .* a share above 0, at most 1"):
        Slo(attainment=value)


def test_all_requests_may_be_asked_for():
    assert Slo(attainment=1).attainment == 1
