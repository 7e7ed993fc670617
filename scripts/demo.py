"""What `make demo` shows: the loop at the real CPU engine where that is installed, then `inferometer demo`.

The arguments are those of `inferometer demo`; with any, only that runs.
"""

from __future__ import annotations

import sys

from engines import loop, serve
from inferometer.cli.main import main as inferometer

HINT = (
    "A real engine, vLLM on this machine's cores, is not installed. With it the demo goes on at a real server:\n"
    "  .venv/bin/python scripts/engines/serve.py vllm --install-only        (3.5 GB, some minutes)"
)


def main() -> int:
    """Exit status of `inferometer demo`."""
    if len(sys.argv) == 1 and loop.installed():
        try:
            loop.demonstrate()
            print()
        except (serve.EngineUnavailable, serve.EngineFailed) as why:
            print(f"The real engine does not run here: {why}\n", file=sys.stderr)
    status = inferometer(["demo", *sys.argv[1:]])
    if len(sys.argv) == 1 and not loop.installed():
        print(f"\n{HINT}")
    return status


if __name__ == "__main__":
    sys.exit(main())
