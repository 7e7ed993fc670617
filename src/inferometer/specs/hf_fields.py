"""A config's keys with errors that name them, and what a family's reader gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferometer.errors import ConfigError
from inferometer.specs.model import Block


class Fields:
    """A config's keys, with errors that name the model and the key; remembers which keys were read.

    ``read`` holds the keys asked for, by the path of their table: what a catalog entry has to keep.
    """

    def __init__(self, table: Mapping[str, Any], name: str, path: str = "", read: set[str] | None = None) -> None:
        self.table, self.name, self.path = table, name, path
        self.read: set[str] = set() if read is None else read

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``; ``default`` where it is missing or null."""
        self.read.add(self.path + key)
        value = self.table.get(key)
        return default if value is None else value

    def whole(self, *keys: str, default: int | None = None) -> int:
        """The first of ``keys`` that is there, a whole number of at least 0; else ``default``, else an error."""
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.error(f"{key} is {value!r}; give a whole number of at least 0")
            return value
        if default is None:
            raise self.error(f"{' or '.join(self.path + k for k in keys)} is missing")
        return default

    def flag(self, key: str, default: bool) -> bool:
        """A true or false; ``default`` where it is missing."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}; give true or false")
        return value

    def list(self, key: str, length: int | None = None) -> list[Any] | None:
        """A list, None where missing; of ``length`` items where that is given."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or (length is not None and len(value) != length):
            raise self.error(f"{key} must be a list" + (f" of {length} entries, one a layer" if length else ""))
        return list(value)

    def sub(self, key: str) -> Fields | None:
        """A nested table; None where missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{key} must be a table")
        return Fields(value, self.name, f"{self.path}{key}.", self.read)

    def error(self, sentence: str) -> ConfigError:
        """A `ConfigError` about this model."""
        error = ConfigError.because(f"config of {self.name}: {sentence}")
        assert isinstance(error, ConfigError)
        return error


class Shape(msgspec.Struct, kw_only=True):
    """What a family's reader gives: its layers one by one, and what differs from the plain case."""

    layers: list[Block]
    norms_per_block: int = 2
    norm_bias: bool = False
    tie_default: bool = False
    learned_positions: int = 0
    lm_head_bias: bool = False
    rotary_dim: int | None = None
    rope_tables: int = 1
    kv_heads: int = 0
    head_dim: int = 0
    extra: dict[str, int] = {}
    state_bytes: int = 0
