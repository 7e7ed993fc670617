"""Every error a user can cause, in one tree.

::

    InferometerError                 catch this to catch all of ours
    └── InputError                   bad input: the command line exits 2 with one line
        ├── UnknownNameError         no such chip, model, engine, policy: close names are suggested
        ├── UnitError                a quantity without a unit, or with the wrong one
        ├── ConfigError              a model's config.json that lacks or contradicts what is needed
        ├── FormatError              a file that is not what an importer or the store expects
        └── DoesNotFitError          asked to run a deployment whose weights leave no KV cache

    InferometerWarning (a UserWarning)   what was done all the same, but not as one would think; one line a warning
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InferometerError(Exception):
    """Base of all errors raised on purpose by this package.

    >>> import inferometer as im
    >>> try:
    ...     im.chip("a1000")
    ... except InferometerError as error:
    ...     print(str(error).split(";")[0])
    unknown chip 'a1000'
    """


class InputError(InferometerError):
    """Bad input. Says which field, what value, and what would be allowed.

    >>> raise InputError("prompt_tokens", -5, "a whole number of at least 1")
    Traceback (most recent call last):
    inferometer.errors.InputError: prompt_tokens: -5 is not allowed; give a whole number of at least 1
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field}: {value!r} is not allowed; give {allowed}")

    @classmethod
    def because(cls, message: str) -> InputError:
        """An error with its whole sentence given, for what is not one field's fault."""
        error = cls.__new__(cls)
        error.field, error.value, error.allowed = "", None, ""
        Exception.__init__(error, message)
        return error


class UnknownNameError(InputError):
    """A name that is in no catalog or registry; close names are suggested."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.field, self.value = kind, name
        names = sorted(known)
        close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        self.allowed = f"one of {', '.join(close or names[:8])}" + ("" if close or len(names) <= 8 else ", ...")
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"known: {', '.join(names[:8])}" + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
        )
        Exception.__init__(self, f"unknown {kind} {name!r}; {hint}")


class UnitError(InputError):
    """A quantity without a unit, or with one of another kind."""


class ConfigError(InputError):
    """A model configuration that lacks or contradicts what a prediction needs."""


class FormatError(InputError):
    """A file that is not what an importer or the store expects."""


class DoesNotFitError(InputError):
    """A deployment whose weights and working memory leave no room for a KV cache."""


class InferometerWarning(UserWarning):
    """What was done all the same, though its reader may expect more: a file passed over, a column that is not read.

    Raised with `warnings.warn`, so that it can be silenced, recorded or made an error as any other.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     warnings.warn("sweep/c64.json is passed over", InferometerWarning, stacklevel=2)
    >>> str(said[0].message)
    'sweep/c64.json is passed over'
    """
