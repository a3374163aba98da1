"""Facts about this process and this machine: versions, cores, memory (within container limits), free disk space."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from bigpca.data.provenance import versions as package_versions

PACKAGES = ("bigpca", "numpy", "scipy", "zarr", "numcodecs", "dask", "distributed", "scikit-learn", "dask-ml")


def versions() -> dict[str, Any]:
    """Return the versions of Python and of the packages that results depend on.

    >>> list(versions())[:2]
    ['python', 'bigpca']
    """
    return dict(package_versions(PACKAGES))


def blas() -> list[dict[str, Any]]:
    """Return the BLAS libraries that NumPy and SciPy have loaded, with their thread counts."""
    import scipy.linalg  # noqa: F401  loads SciPy's own BLAS, which may differ from NumPy's
    from threadpoolctl import threadpool_info

    wanted = ("internal_api", "version", "num_threads", "architecture")
    return [{name: pool.get(name) for name in wanted} for pool in threadpool_info() if pool["user_api"] == "blas"]


def memory_total() -> int:
    """Return the bytes of memory that this process may use: the smaller of the machine's and the container's."""
    from bigpca.machine import memory_limit

    return memory_limit()


def cores() -> int:
    """Return the cores that this process may use, by affinity and container quota."""
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def free_disk(path: Path) -> int:
    """Return the free bytes of the file system of ``path`` or its nearest existing parent."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
