"""The machine's limits are those that Dask's workers see."""

from pathlib import Path

import psutil
import pytest
from distributed.system import memory_limit as limit_of_dask

from bigpca import settings


def test_the_memory_limit_is_that_of_a_dask_worker() -> None:
    assert settings.memory_limit() == limit_of_dask()


def test_the_smallest_limit_of_the_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.high": "1048576\n"}

    def read(path: Path) -> str:
        if str(path) not in given:
            raise FileNotFoundError(path)
        return given[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert settings.memory_limit() == 2**20 < psutil.virtual_memory().total
