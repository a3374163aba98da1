"""NumPy's basic indexing (and one list per axis) for a store that reads only half-open ranges."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

AxisIndex = slice | SupportsIndex | list[int] | NDArray[Any]
Index = AxisIndex | EllipsisType | tuple[AxisIndex | EllipsisType, ...]


@dataclass(frozen=True)
class IndexPlan:
    """The ranges to read, and what to select from them on each axis.

    Attributes
    ----------
    bounds : tuple of (int, int)
        Half-open range to read on each axis.
    rest : tuple
        On each axis an integer (which removes the axis), a slice, or an array of positions, relative to the range.
    """

    bounds: tuple[tuple[int, int], ...]
    rest: tuple[Any, ...]

    def finish(self, block: NDArray[Any]) -> NDArray[Any]:
        """Apply the selection to the ranges that were read; lists act on each axis separately."""
        for axis in reversed(range(len(self.rest))):
            taken = self.rest[axis]
            if not (isinstance(taken, slice) and taken == slice(None)):
                block = block[(slice(None),) * axis + (taken,)]
        return block


def plan_index(index: Any, shape: tuple[int, ...]) -> IndexPlan:
    """Split an index into ranges to read and a selection to apply in memory.

    Raises
    ------
    IndexError
        If it is out of bounds, has too many indices, or is of a kind that stores do not support (``None``).

    Examples
    --------
    >>> plan_index((slice(2, 8, 3), -1), (10, 4)).bounds
    ((2, 6), (3, 4))
    """
    index = index if isinstance(index, tuple) else (index,)
    dots = [i for i, one in enumerate(index) if one is Ellipsis]
    given = len(index) - len(dots)
    if given > len(shape) or len(dots) > 1:
        raise IndexError(f"{given} indices were given for an array of {len(shape)} dimensions.")
    at = dots[0] if dots else len(index)
    fill = (slice(None),) * (len(shape) - given)
    axes = [_axis(one, size) for one, size in zip(index[:at] + fill + index[at + 1 :], shape, strict=True)]
    return IndexPlan(tuple(bounds for bounds, _ in axes), tuple(rest for _, rest in axes))


def _axis(index: Any, size: int) -> tuple[tuple[int, int], Any]:
    if isinstance(index, slice):
        taken = range(*index.indices(size))
        if not len(taken):
            return (0, 0), slice(None)
        lo, hi = min(taken[0], taken[-1]), max(taken[0], taken[-1]) + 1
        rest = slice(None) if taken.step == 1 else slice(None, None, taken.step)
        return (lo, hi), rest
    if isinstance(index, (list, np.ndarray)):
        return _positions(np.asarray(index), size)
    try:
        position = operator.index(index)
    except TypeError:
        raise IndexError(f"an index of type {type(index).__name__} cannot be read from a store.") from None
    if not -size <= position < size:
        raise IndexError(f"index {position} is out of bounds for an axis of size {size}.")
    position %= size
    return (position, position + 1), 0


def _positions(index: NDArray[Any], size: int) -> tuple[tuple[int, int], Any]:
    if index.dtype == bool:
        if index.shape != (size,):
            raise IndexError(f"a mask of shape {index.shape} was given for an axis of size {size}.")
        index = np.flatnonzero(index)
    if index.size == 0:
        return (0, 0), slice(None)
    if index.ndim != 1 or index.min() < -size or index.max() >= size:
        raise IndexError(f"a list of positions must have one dimension and lie within an axis of size {size}.")
    index = np.where(index < 0, index + size, index)
    lo, hi = int(index.min()), int(index.max()) + 1
    return (lo, hi), index - lo
