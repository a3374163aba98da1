"""Facts about this process and this machine: versions, cores, memory (container limits included), free disk."""

from __future__ import annotations

import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("bigpca", "numpy", "scipy", "zarr", "numcodecs", "dask", "distributed", "scikit-learn", "dask-ml")


def versions() -> dict[str, Any]:
    """Versions of Python and of the packages that results depend on.

    >>> versions()["python"] == platform.python_version()
    True
    """
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def blas() -> list[dict[str, Any]]:
    """The BLAS libraries that NumPy and SciPy have loaded, with their thread counts."""
    import scipy.linalg  # noqa: F401  loads SciPy's own BLAS, which may differ from NumPy's
    from threadpoolctl import threadpool_info

    wanted = ("internal_api", "version", "num_threads", "architecture")
    return [{name: pool.get(name) for name in wanted} for pool in threadpool_info() if pool["user_api"] == "blas"]


def memory_total() -> int:
    """Bytes of memory this process may use: the machine's, or the container's where that is smaller."""
    from bigpca.machine import memory_limit

    return memory_limit()


def cores() -> int:
    """Cores this process may use: affinity and container quota respected."""
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def free_disk(path: Path) -> int:
    """Free bytes of the file system that holds ``path`` or its nearest existing parent."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
