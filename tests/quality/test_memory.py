"""The memory meter sees what processes allocate, and not the pages of mapped files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bigpca.quality.memory import MemoryMeter

MIB = 2**20


HOLD = """
block = bytearray(300 * 2**20)
block[::4096] = b"x" * (300 * 256)  # a page has memory once it is written to
print("held", flush=True)
input()
"""
PEAK_OF_A_PROCESS = """
import numpy as np
from bigpca.quality.memory import MemoryMeter

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
    with (
        MemoryMeter(interval=1) as meter,
        subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        meter._sample()
        child.communicate(b"\n")
    assert meter.peak_bytes > 200 * MIB  # this process may give up to 100 MiB of others' garbage back meanwhile


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells mapped pages apart")
def test_pages_of_mapped_files_do_not_count(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones(64 * MIB, np.uint8))
    with MemoryMeter(interval=0.005) as meter:
        assert int(np.load(tmp_path / "rows.npy", mmap_mode="r").sum(dtype=np.int64)) == 64 * MIB
    assert meter.peak_bytes < 32 * MIB
