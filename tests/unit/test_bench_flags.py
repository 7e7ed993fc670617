"""What flags of ``inferometer bench`` become, where nothing has to be measured to see it."""

from __future__ import annotations

import pytest

from inferometer.cli.bench_flags import Connection, Flags, Load, Prompts, Server, Stop, Sweep
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
