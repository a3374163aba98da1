"""What a call allocates at most, as tracemalloc sees it."""

import tracemalloc
from collections.abc import Callable
from typing import Any


def traced_peak(run: Callable[[], Any]) -> int:
    """The least peak of two runs, in bytes above what is held before each.

    All threads of the process are traced: what one of an earlier test, or a first import, takes meanwhile only adds.
    """
    peaks = []
    for _ in range(2):
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            run()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        finally:
            tracemalloc.stop()
    return min(peaks)
