"""Wall time of a piece of work, for the scripts of this folder."""

import time
from collections.abc import Callable
from typing import Any


def timed(work: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """Seconds of the fastest of `repeats` calls, and what the last one gave."""
    best, result = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result
