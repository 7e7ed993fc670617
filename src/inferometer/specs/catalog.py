"""Catalogs of chips and models: one small TOML or JSON file an entry, the user's folder before the packaged one.

The user's folder is ``$INFEROMETER_CATALOG``, else ``~/.config/inferometer/catalog``; it holds ``chips/`` and
``models/``. An entry's id is its file's name without the ending. Files are read one at a time, when asked for.
"""

from __future__ import annotations

import json
import os
import tomllib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from inferometer.errors import FormatError

Kind = Literal["chips", "models"]

_IGNORED = str.maketrans("", "", "-_ /")
_ENDINGS = (".toml", ".json")


def fold(name: str) -> str:
    """``name`` in lower case without ``-``, ``_``, spaces and ``/``: two names are the same entry if these agree.

    >>> fold("A100_SXM4-80GB")
    'a100sxm480gb'
    """
    return name.lower().translate(_IGNORED)


def user_folder() -> Path:
    """Where the user's own entries lie: ``$INFEROMETER_CATALOG``, else ``~/.config/inferometer/catalog``."""
    given = os.environ.get("INFEROMETER_CATALOG")
    return Path(given).expanduser() if given else Path.home() / ".config" / "inferometer" / "catalog"


def names(kind: Kind) -> list[str]:
    """Every id of the catalog, sorted; an entry of the user's hides the packaged one of the same folded name."""
    found = {fold(entry): entry for entry in _packaged(kind)}
    found |= {fold(entry): entry for entry in _user(kind)}
    return sorted(found.values())


def find(kind: Kind, name: str) -> str | None:
    """The id of the entry that ``name`` folds to, the user's before the packaged one; None where there is none.

    >>> find("chips", "A100_SXM4-80GB")
    'a100-sxm4-80gb'
    """
    for files in (_user(kind), _packaged(kind)):
        for entry in (name, *files):
            if entry in files and fold(entry) == fold(name):
                return entry
    return None


def read(kind: Kind, id: str) -> dict[str, Any] | None:
    """The entry's table as its file states it, the user's before the packaged one; None where there is none.

    Raises:
        FormatError: the file is not valid TOML or JSON, or is not a table.
    """
    entry = find(kind, id)
    if entry is None:
        return None
    return read_table(_user(kind).get(entry) or _packaged(kind)[entry])


def alias(kind: Kind, name: str) -> str | None:
    """The id that the packaged list of common names (``data/aliases.toml``) gives for ``name``; None: none.

    >>> alias("chips", "RTXPRO6000 Blackwell")
    'rtx-pro-6000'
    """
    return _aliases().get(kind, {}).get(fold(name))


def read_table(file: Traversable | Path) -> dict[str, Any]:
    """The table in a TOML or JSON file, told apart by the ending.

    Raises:
        FormatError: it cannot be read, is not valid, or holds something other than a table.
    """
    try:
        text = file.read_text(encoding="utf-8")
        table = json.loads(text) if file.name.endswith(".json") else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError.because(f"{file}: cannot be read: {error}") from error
    except ValueError as error:
        kind = "JSON" if file.name.endswith(".json") else "TOML"
        raise FormatError.because(f"{file}: not valid {kind}: {error}") from error
    if not isinstance(table, dict):
        raise FormatError.because(f"{file}: holds a {type(table).__name__}; give a table of fields")
    return table


def _user(kind: Kind) -> dict[str, Traversable]:
    return _listing(user_folder() / kind)


@cache
def _aliases() -> dict[str, dict[str, str]]:
    table = read_table(resources.files("inferometer.specs") / "data" / "aliases.toml")
    return {
        kind: {fold(name): id for id, common in entries.items() for name in common} for kind, entries in table.items()
    }


@cache
def _packaged(kind: Kind) -> dict[str, Traversable]:
    return _listing(resources.files("inferometer.specs") / "data" / kind)


def _listing(folder: Traversable) -> dict[str, Traversable]:
    if not folder.is_dir():
        return {}
    return {file.name[:-5]: file for file in folder.iterdir() if file.name.endswith(_ENDINGS)}
