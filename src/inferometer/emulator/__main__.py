"""``python -m inferometer.emulator``: reads `Options` as one line of JSON from standard input, and serves.

It stops when its standard input ends, so that it does not outlive whoever started it. People use
``inferometer emulate``.
"""

import sys

import msgspec

from inferometer.emulator.options import Options
from inferometer.emulator.server import run
from inferometer.errors import InputError


def main() -> int:
    """Serve; 2 for bad input, with one line on standard error."""
    try:
        options = msgspec.json.decode(sys.stdin.buffer.readline(), type=Options)
        run(options, owner=sys.stdin.fileno())
    except (InputError, msgspec.DecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
