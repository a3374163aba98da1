"""The machine's limits are those that Dask's workers see."""

from pathlib import Path

import psutil
import pytest
from distributed.system import memory_limit as limit_of_dask

from bigpca import settings


def test_the_memory_limit_is_that_of_a_dask_worker() -> None:
    assert settings.memory_limit() == limit_of_dask()


def test_the_smallest_limit_of_the_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (("memory.max", "max\n"), ("memory.high", "1048576\n")):
        (tmp_path / name).write_text(text)
    names = [tmp_path / name.rpartition("/")[2] for name in settings.CGROUP_LIMITS]
    monkeypatch.setattr(settings, "CGROUP_LIMITS", names)
    assert settings.memory_limit() == 2**20 < psutil.virtual_memory().total
