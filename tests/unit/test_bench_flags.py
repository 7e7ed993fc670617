"""What flags of ``inferometer bench`` become, where nothing has to be measured to see it."""

from __future__ import annotations

import pytest

from inferometer.cli.bench_flags import Connection, Flags, Load, Prompts, Server, Stop, Sweep, by_flag
from inferometer.errors import InputError


def headers(*texts: str) -> object:
    flags = Flags(Load(), Prompts(), Stop(), Sweep(), Connection(header=texts), Server())
    return flags.options().get("headers")


def test_headers_keep_their_order_and_their_repetitions() -> None:
    assert headers("X-A: 1", "X-B:2", "X-A: 3") == [("X-A", "1"), ("X-B", "2"), ("X-A", "3")]
    assert headers() is None


@pytest.mark.parametrize(
    "text",
    ["Authorization=Bearer sk-SECRET", "X Key: sk-SECRET", ": sk-SECRET", "X-Key: sk-SECRET\tx", "Host: sk-SECRET"],
)
def test_a_header_that_is_none_is_not_shown(text: str) -> None:
    with pytest.raises(InputError, match=r"^--header: ") as raised:
        headers(text)
    assert "SECRET" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_fault_is_named_by_its_flag_only_where_a_flag_gave_it() -> None:
    given = Flags(Load(requests=0), Prompts(), Stop(), Sweep(ttft_ms=-4.0), Connection(), Server())
    assert str(by_flag(InputError("requests", 0, "at least 1"), given)).startswith("--requests: 0 ")
    assert str(by_flag(InputError("slo.ttft_s", -0.004, "a time"), given)).startswith("--ttft-ms: -4.0 ")
    of_study = InputError("think_time_s", -1, "at least 0")
    assert by_flag(of_study, given) is of_study


def test_a_value_that_is_wrong_comes_before_a_load_that_is_missing() -> None:
    flags = Flags(Load(prompt_tokens="64"), Prompts(), Stop(), Sweep(), Connection(timeout_s=-1), Server())
    with pytest.raises(InputError, match=r"^timeout_s: -1"):
        flags.plan(None, None)
