"""What this machine's cores can do, by the engine's own torch: the best of a stream read and of a matrix product.

    PYTHON_OF_THE_ENGINE scripts/engines/ceilings.py THREADS DTYPE

Prints one JSON object: ``read_bytes_per_s`` and, of matrices of that dtype, ``flop_per_s``, measured in a second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

READ_BYTES = 256 * 2**20
"""More than any cache holds."""
ROWS = 512
LOOKS_S = 0.4


def best_s(work: Callable[[], object]) -> float:
    """The shortest of some repetitions: what else runs here only ever adds."""
    work()
    took, until = [], time.perf_counter() + LOOKS_S
    while time.perf_counter() < until or len(took) < 3:
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def main() -> None:
    import torch  # the engine's, not the project's

    torch.set_num_threads(int(sys.argv[1]))
    stream = torch.ones(READ_BYTES // 4, dtype=torch.float32)
    a, b = (torch.ones(ROWS, ROWS, dtype=getattr(torch, sys.argv[2])) for _ in range(2))
    product_s = best_s(lambda: torch.nn.functional.linear(a, b))
    print(json.dumps({"read_bytes_per_s": READ_BYTES / best_s(stream.sum), "flop_per_s": 2 * ROWS**3 / product_s}))


if __name__ == "__main__":
    main()
