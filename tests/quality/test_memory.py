"""The memory meter sees what processes allocate, and not the pages of mapped files."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bigpca.quality import MemoryMeter

MIB = 2**20


def hold(ready: object, release: object) -> None:
    block = np.ones(300 * MIB, np.uint8)
    ready.set()  # type: ignore[attr-defined]
    release.wait(30)  # type: ignore[attr-defined]
    del block


PEAK_OF_A_PROCESS = """
import numpy as np
from bigpca.quality import MemoryMeter

with MemoryMeter(interval=0.005) as meter:
    block = np.ones(100 * 2**20, np.uint8)
    meter._sample()
    del block
print(meter.peak_bytes)
"""


def test_the_peak_is_what_was_allocated_even_if_freed_since() -> None:
    # In a process of its own: one that ran other tests may give their garbage back meanwhile.
    ended = subprocess.run([sys.executable, "-c", PEAK_OF_A_PROCESS], check=True, capture_output=True, text=True)
    assert 95 * MIB < int(ended.stdout) < 160 * MIB


def test_child_processes_count() -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    child = context.Process(target=hold, args=(ready, release))
    with MemoryMeter(interval=0.01) as meter:
        child.start()
        assert ready.wait(60)
        meter._sample()
        release.set()
        child.join(60)
    assert meter.peak_bytes > 200 * MIB  # this process may give up to 100 MiB of others' garbage back meanwhile


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells mapped pages apart")
def test_pages_of_mapped_files_do_not_count(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones(64 * MIB, np.uint8))
    with MemoryMeter(interval=0.005) as meter:
        assert int(np.load(tmp_path / "rows.npy", mmap_mode="r").sum(dtype=np.int64)) == 64 * MIB
    assert meter.peak_bytes < 32 * MIB
