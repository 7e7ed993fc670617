"""``python -m inferometer``: the command line."""

import sys

from inferometer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
