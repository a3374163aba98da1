"""``dask.array``, imported when its first name is used.

It takes a quarter of the time of importing an estimator, and workers and the command line often need none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask.array import Array as Array

# Returns the values of what may be lazy: ``computed`` of ``bigpca.passes.graphs``, for the rooms below that. The
# package sets it.
computed: Callable[[Any], Any]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # which Python looks for in every module
        raise AttributeError(name)
    import dask.array

    return globals().setdefault(name, getattr(dask.array, name))
