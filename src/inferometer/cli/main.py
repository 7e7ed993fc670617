"""The program: its commands, and what its exit status means.

0 fine; 1 a tolerance was missed, a model does not fit, or a measurement failed or is unfit; 2 bad input, with one line
on standard error, where a warning takes one too; 130 interrupted; 141 the reader of standard output left before the
end, as a program that SIGPIPE ends has it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from cyclopts import App, CycloptsError, Parameter

from inferometer import __version__
from inferometer.errors import InferometerError, InferometerWarning

NAME = "inferometer"


COMMANDS = {
    "predict": "Predict a study: its memory, its roofline, and each of its points, simulated.",
    "simulate": "Run the engine's scheduler on a study's load and keep each point as a run.",
    "bench": "Measure a server: send a load, time every token, and keep each point as a run.",
    "score": "Lay a prediction beside what was measured, metric by metric.",
    "verify": "Check that sealed predictions are what was sealed: every digit, the time, and the chain.",
    "audit": "Look for what makes a measurement something else than it claims to be.",
    "explain": "Take the gap between roofline and measurement apart, effect by effect.",
    "calibrate": "Fit the step-time model's constants of your chip to measured runs.",
    "report": "Write what was predicted and how it fared: a Markdown post, one HTML page, and the charts.",
    "compare": "Compare two measurements of one load, or two sweeps: is B better or worse than A?",
    "import": "Read benchmark results and keep them as runs.",
    "emulate": "Serve a study's deployment as an OpenAI-compatible server, with simulated timing.",
    "runs": "List what the store holds; show, export or delete a run.",
    "catalog": "List chips, models and engines, or show one with the source of each figure.",
    "demo": "Predict a small study, seal that, serve it by an emulator, measure, score; then score a real A100.",
}
"""What `--help` says of each, in this order; a command's module is ``cli/NAME.py``, and so its function."""


def program(command: str | None = None) -> App:
    """The program, with one command ready to run.

    Of the others only the summaries: importing and describing all takes longer than all the rest of ``--help``.
    """
    app = App(
        name=NAME,
        help="What will this server of language models do under this load, and was I right?",
        version=f"{NAME} {__version__}",
        default_parameter=Parameter(negative="", show_default=False),
        help_format="plaintext",
        help_epilogue="Start with:  inferometer demo",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for order, (name, summary) in enumerate(COMMANDS.items()):
        if name == command:
            _add(app, name, order)
        else:
            app.command(App(name=name, help=summary, sort_key=order))
    return app


def _add(app: App, name: str, order: int) -> None:
    attribute = "import_" if name == "import" else name
    module = import_module(f"inferometer.cli.{attribute}")
    if hasattr(module, "app"):
        app.command(module.app)
    else:
        app.command(getattr(module, attribute), name=name, sort_key=order, help_epilogue=module.EXAMPLES)


INTERRUPTED, READER_LEFT = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of ``argv`` (None: of the process) and return its exit status; user errors take one line."""
    with _warnings_on_a_line():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        status = int(program(tokens[0] if tokens else None)(tokens, exit_on_error=False, print_error=False) or 0)
        sys.stdout.flush()
        return status
    except (InferometerError, CycloptsError) as error:
        return _complain(" ".join(str(error).split()))
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as stop:
        # so rich ends a program whose reader has left
        if isinstance(stop.__context__, BrokenPipeError):
            return _reader_left()
        raise
    except MemoryError:
        return _complain("out of memory: give fewer requests (requests_per_point) or shorter outputs")
    except OSError as error:
        return _complain(f"{error.filename or 'file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _warnings_on_a_line() -> Iterator[None]:
    """Our warnings as lines of standard error, each once, while a command runs; others as Python shows them."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", InferometerWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, InferometerWarning):
                usual(message, category, *place, **more)
            elif (text := " ".join(str(message).split())) not in said:
                said.add(text)
                print(f"warning: {text}", file=sys.stderr)

        warnings.showwarning = show
        yield


def _reader_left() -> int:
    """The reader has gone (head, less): not an error, and nothing more can be said."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_LEFT


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2
