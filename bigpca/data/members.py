"""Selection of an array from a file or store that holds several.

NumPy's basic indexing (and one list per axis) for a store that reads only half-open ranges.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from bigpca.data.checks import MemberError
from bigpca.errors import MAX_MESSAGE, brief, shorten

SPARSE_PARTS = ("data", "indices", "indptr")  # of a compressed sparse matrix, in AnnData, 10x and scipy.sparse.save_npz
MAX_LISTED = 20

Shapes = Mapping[str, tuple[int, ...]]


def choose_member(path: str, member: str | None, shapes: Shapes, *, anndata: bool = False) -> str:
    """Pick the named member; else X of an AnnData file, else the only matrix: two dimensions or more, or sparse.

    Parameters
    ----------
    shapes : dict of str to shape
        Of every array there, nested groups as ``"group/name"``.
    anndata : bool
        Whether the file is marked as AnnData, in which other matrices, such as embeddings, are derived from X.

    Returns
    -------
    str
        Name of an array, or of a group of three that is one of :func:`sparse_members`.

    Raises
    ------
    MemberError
        If there is no array of that name; lists those that exist.
    ValueError
        If the choice is ambiguous, or AnnData has no X.

    Examples
    --------
    >>> choose_member("a.h5ad", None, {"X": (9, 4), "obsm/X_pca": (9, 2), "obs/_index": (9,)}, anndata=True)
    'X'
    """
    sparse = sparse_members(shapes)
    if member is not None:
        member = member.strip("/")
        if member not in shapes and member not in sparse:
            raise MemberError(
                f"{path} has no array {brief(repr(member))}; it holds {_listed(shapes)}. Name one of them with member=."
            )
        return member
    if anndata:
        if "X" not in shapes and "X" not in sparse:
            raise ValueError(
                f"{path} is AnnData without X; it holds {_listed(shapes)}. Name one of them with member=, such as "
                f'member="obsm/X_pca".'
            )
        return "X"
    wanted = [name for name, shape in shapes.items() if len(shape) >= 2] + sparse
    if len(wanted) != 1:
        also = f" ({len(sparse)} of them sparse)" if sparse else ""
        raise ValueError(
            f"{path} holds {len(wanted)} arrays with two dimensions or more{also}, so one must be named with member=: "
            f"it holds {_listed(shapes)}."
        )
    return wanted[0]


def sparse_members(shapes: Shapes) -> list[str]:
    """List the groups that are compressed sparse matrices; "" for the file itself."""
    ends = [name.removesuffix("indptr") for name in shapes if name == "indptr" or name.endswith("/indptr")]
    return [end.rstrip("/") for end in ends if all(f"{end}{part}" in shapes for part in SPARSE_PARTS)]


def _listed(shapes: Shapes) -> str:
    """List what is there: sparse matrices, then arrays, matrices first."""
    sparse = sparse_members(shapes)
    parts = {f"{name}/{part}".lstrip("/") for name in sparse for part in SPARSE_PARTS}
    arrays = sorted((name for name in shapes if name not in parts), key=lambda name: len(shapes[name]) < 2)
    found = [f"{brief(name)} (sparse)".lstrip() for name in sparse]
    found += [f"{brief(name)} {brief(shapes[name])}" for name in arrays]
    return (
        shorten(", ".join(found[:MAX_LISTED]), MAX_MESSAGE // 4) + (", ..." if len(found) > MAX_LISTED else "")
        or "nothing"
    )


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
