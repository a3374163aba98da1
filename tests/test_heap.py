"""Freed blocks of a pass go back to the system, where the C library is glibc."""

import os
import platform
import subprocess
import sys

import pytest

from bigpca.settings import steady_heap, trim_heap

GLIBC = platform.libc_ver()[0] == "glibc"
SCRIPT = """
import sys
import numpy as np, psutil
from bigpca.settings import steady_heap
if sys.argv[1] == "steady":
    steady_heap()
used = lambda: psutil.Process().memory_info().rss
np.ones(3 << 20)  # 24 MiB, freed: glibc now takes blocks of up to that size from its heap
before = used()
pairs = [(np.ones(2 << 20), np.ones(1 << 15)) for _ in range(8)]  # 16 MiB, and 256 KiB above it in the heap
kept = [small for _, small in pairs]
del pairs
print((used() - before) >> 20)
"""


@pytest.mark.skipif(not GLIBC, reason="only glibc's heap is told how to keep blocks")
def test_blocks_that_are_freed_leave_the_process() -> None:
    # A nanny of an earlier test may have left thresholds of its own in the environment.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    held = {}
    for mode in ("steady", "as it is"):
        done = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, check=True, env=plain)
        held[mode] = int(done.stdout)
    assert held["steady"] <= 16
    assert held["as it is"] >= held["steady"] + 64


def test_a_heap_without_these_functions_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigpca.settings.of_libc", lambda name: None)
    steady_heap.cache_clear()
    assert not steady_heap()
    trim_heap()
    steady_heap.cache_clear()
