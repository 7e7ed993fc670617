"""How commands answer: JSON on standard output, progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.records.metrics import Summary
    from inferometer.records.run import Run
    from inferometer.store import Store

RUNS_SCHEMA = "inferometer/runs/1"


def print_json(document: Any) -> None:
    """One JSON document, indented; NaN and infinity are null."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=2)
    sys.stdout.write(text.decode() + "\n")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


@contextmanager
def progress(label: str, *, show: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while points are simulated, where that is a terminal: call it with done and total."""
    from inferometer.report.terminal import make_console, progress_bar

    console = make_console(stderr=True)
    if not (show and console.is_terminal):
        yield lambda done, total: None
        return
    with progress_bar(console) as bar:
        # hidden until it is known how many there are
        task = bar.add_task(label, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


@contextmanager
def writing(store: Store) -> Iterator[None]:
    """Make what goes wrong while the store is written one `InputError` that says where the store is."""
    from inferometer.errors import FormatError, InputError

    try:
        yield
    except OSError as error:
        raise InputError.because(f"cannot write the store at {store.path}: {error.strerror or error}") from error
    except Exception as error:
        # sqlite3's word for a file that is locked, read-only or on a full disk; any other fault is the index's own
        fault = error.__cause__ if isinstance(error, FormatError) else error
        if type(fault).__name__ != "OperationalError":
            raise
        raise InputError.because(f"cannot write the store at {store.path}: {fault}") from error


def summary_dict(summary: Summary) -> dict[str, Any]:
    """A summary as JSON has it: distributions in milliseconds under ``..._ms``, everything else as it is."""
    from inferometer.records.metrics import Stat

    values: dict[str, Any] = {}
    for name in (name for name in summary.__struct_fields__ if not name.startswith("_")):
        value = getattr(summary, name)
        if isinstance(value, Stat) and not name.endswith("_per_s"):
            values[name.removesuffix("_s") + "_ms"] = value.to_dict(1000)
        else:
            values[name] = value.to_dict() if isinstance(value, Stat) else value
    return values


def run_dict(run: Run, summary: Summary | None = None) -> dict[str, Any]:
    """A run as JSON has it: its meta with its id, and its summary."""
    return {**run.to_dict(), "summary": summary_dict(summary or run.summary())}
