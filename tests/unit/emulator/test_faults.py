from __future__ import annotations

import numpy as np
import pytest

from inferometer.emulator.faults import KINDS, Fate, Faults, Fortune, parse_faults
from inferometer.errors import InputError


def test_every_kind_is_read_as_it_is_shown():
    shown = [told.split()[0] for told in KINDS.values()]
    assert parse_faults(shown) == Faults(
        latency_s=0.05,
        error_rate=0.1,
        error_429=0.1,
        stall=0.05,
        stall_s=2.0,
        cut=0.1,
        malformed=0.01,
        tokens_per_chunk=4,
        role_chunk_first=True,
        no_usage=True,
        slow_start_s=10.0,
    )
    assert parse_faults(["slow-start"]).slow_start_s == 10.0
    assert parse_faults([]) == Faults()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("latncy=50ms", "one of latency, error-rate"),
        ("latency=50", "a unit"),
        ("latency", "--fault latency"),
        ("error-rate=1.5", "a share from 0 to 1"),
        ("cut=often", "a share from 0 to 1"),
        ("cut=nan", "a share from 0 to 1"),
        ("stall=0.5", "--fault stall"),
        ("stall=2:1s", "a share from 0 to 1"),
        ("tokens-per-chunk=0", "a whole number of at least 1"),
        ("tokens-per-chunk=2.5", "a whole number of at least 1"),
        ("no-usage=0.5", "no value"),
    ],
)
def test_what_cannot_be_is_refused(text: str, said: str):
    with pytest.raises(InputError, match="--fault") as caught:
        parse_faults([text])
    if said != "a unit":
        assert said in str(caught.value)


def test_shares_of_errors_add_up_to_at_most_one():
    with pytest.raises(InputError, match="at most 1 in all"):
        parse_faults(["error-rate=0.7", "error-429=0.7"])


def test_fates_repeat_with_the_seed_and_have_the_shares_asked_for():
    faults = Faults(error_rate=0.1, error_429=0.2, stall=0.5, stall_s=1.0, cut=0.25)
    draw = lambda seed: [fortune.next() for fortune in [Fortune(faults, seed)] for _ in range(4000)]  # noqa: E731
    fates = draw(3)
    assert fates == draw(3) != draw(4)
    statuses = [fate.status for fate in fates]
    assert abs(statuses.count(500) / 4000 - 0.1) < 0.02
    assert abs(statuses.count(429) / 4000 - 0.2) < 0.02
    stalls = [fate.stall_at for fate in fates if fate.stall_at is not None]
    assert abs(len(stalls) / 4000 - 0.5) < 0.03
    assert 0 <= min(stalls) <= max(stalls) < 1
    assert abs(np.mean(stalls) - 0.5) < 0.03
    assert all(fate.malformed_at is None for fate in fates)


def test_one_fault_does_not_move_another():
    alone = Fortune(Faults(cut=0.3), 1)
    both = Fortune(Faults(cut=0.3, error_rate=0.5, malformed=0.2), 1)
    assert [alone.next().cut_at for _ in range(100)] == [both.next().cut_at for _ in range(100)]


def test_nothing_goes_wrong_unasked():
    fortune = Fortune(Faults(), 0)
    assert {fortune.next() for _ in range(100)} == {Fate()}
