"""What a command of the program left behind."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """Exit status, standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)
