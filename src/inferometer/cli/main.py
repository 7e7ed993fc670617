"""The program: its commands, and what its exit status means.

0 fine; 1 a tolerance was missed, a model does not fit, or a measurement failed or is unfit; 2 bad input, with one line
on standard error; 130 interrupted; 141 the reader of standard output left before the end, as a program that SIGPIPE
ends has it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from inferometer import __version__
from inferometer.cli import bench, catalog, demo, emulate, import_, predict, runs, score, simulate
from inferometer.errors import InferometerError

app = App(
    name="inferometer",
    help="What will this server of language models do under this load, and was I right?",
    version=f"inferometer {__version__}",
    default_parameter=Parameter(negative="", show_default=False),
    help_format="plaintext",
    help_epilogue="Start with:  inferometer demo",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(predict.predict, sort_key=1, help_epilogue=predict.EXAMPLES)
app.command(simulate.simulate, sort_key=2, help_epilogue=simulate.EXAMPLES)
app.command(bench.bench, sort_key=2, help_epilogue=bench.EXAMPLES)
app.command(score.score, sort_key=3, help_epilogue=score.EXAMPLES)
app.command(import_.import_, sort_key=4, name="import", help_epilogue=import_.EXAMPLES)
app.command(emulate.emulate, sort_key=4, help_epilogue=emulate.EXAMPLES)
app.command(runs.app)
app.command(catalog.catalog, sort_key=6, help_epilogue=catalog.EXAMPLES)
app.command(demo.demo, sort_key=7, help_epilogue=demo.EXAMPLES)


INTERRUPTED, READER_LEFT = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of ``argv`` (None: of the process) and return its exit status; user errors take one line."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        status = int(app(tokens, exit_on_error=False, print_error=False) or 0)
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


def _reader_left() -> int:
    """The reader has gone (head, less): not an error, and nothing more can be said."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_LEFT


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2
