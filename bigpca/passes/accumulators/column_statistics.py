"""Statistics of columns, and the pieces in which reads of column blocks compute them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array
from bigpca.errors import counted, warn_approximation
from bigpca.passes.accumulators.base import Arrays
from bigpca.passes.accumulators.products import column_squares
from bigpca.passes.reading.blocks import Block, scaled_rows
from bigpca.solvers.scaling import LearnedScale, Patterson

VARIES = 100.0  # roundings of a value, by which a column that varies differs from its mean: far above those of merges
Pieces = tuple[tuple[int, NDArray[np.float64]], ...]


def _first(item: tuple[int, NDArray[np.float64]]) -> int:
    return item[0]


def joined(pieces: Pieces, axis: int = 0) -> NDArray[np.float64]:
    """Concatenate pieces in the order of their first columns."""
    return np.concatenate([a for _, a in sorted(pieces, key=_first)], axis=axis)


def named_pieces(name: str, pieces: Pieces) -> Arrays:
    """Name pieces for an archive of arrays."""
    return {f"{name}-{first}": a for first, a in pieces}


def pieces_in(arrays: Mapping[str, Array], name: str) -> Pieces:
    """Return the pieces that :func:`named_pieces` named, in order."""
    return tuple(sorted(((int(k.split("-")[1]), a) for k, a in arrays.items() if k.startswith(f"{name}-")), key=_first))


def standardized_columns(
    block: Block, values: Array, center: bool, scale: LearnedScale
) -> tuple[Array, NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of a block of all rows, centred, scaled and times the square roots of the weights, with their
    means and sums of squares about these; ``values`` are those of the block, possibly in a wider precision.
    """
    residual, deviations = column_moments(block, center)
    mean = block.shift + residual
    if center:
        values = values - residual.astype(values.dtype)
    if scale:
        count, weight = present_rows(block), total_weight(block)
        values = values / _scale_of(deviations, mean, count, scale, weight)[0].astype(values.dtype)
    if block.weights is not None:
        values = np.asarray(scaled_rows(values, np.sqrt(block.weights)))
    return values, mean, deviations


def total_weight(block: Block) -> float:
    """Return the sum of the weights of a block of all rows, or their number."""
    return len(block.values) if block.weights is None else float(block.weights.sum())


def present_rows(block: Block) -> int:
    """Return the number of rows of a block of all rows whose weight is not 0."""
    return len(block.values) if block.weights is None else int(np.count_nonzero(block.weights))


def column_moments(block: Block, shifted: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the column means of a block of all rows, and the sums of squares about them, weighted if the rows are."""
    values = block.values
    if shifted:
        residual = block.sums / total_weight(block)
        return residual, column_squares(values, block.weights) - total_weight(block) * residual**2
    if block.weights is not None:
        mean = block.sums / total_weight(block)
        return mean, column_squares(values - mean, block.weights)
    mean = values.mean(axis=0, dtype=np.float64)
    total = np.zeros(values.shape[1])
    for i in range(0, len(values), 128):
        rows = values[i : i + 128] - mean
        total += np.einsum("ij,ij->j", rows, rows)
    return mean, total


def column_scale(
    squares: NDArray[np.float64], mean: NDArray[np.float64], count: int, scale: LearnedScale = True,
    weight: float | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the standard deviations (divided by n) of columns, and 1 for columns that are constant to rounding.

    ``count`` is the number n of rows that were added, and ``weight`` the sum of their weights. The rule for "constant"
    is scikit-learn's: ``var <= n eps var + (n mean eps)^2``, in which the rounding of n additions is n whatever the
    weights are. A rule such as ``Patterson()`` gives another scale. Warns of columns that are taken for constant though
    they vary by more than the rounding of one value.
    """
    found, varying = _scale_of(squares, mean, count, scale, weight)
    if len(varying):
        first = int(varying[0])
        warn_approximation(
            f"column {first} varies by less than the rounding that {count} additions of values near its mean "
            f"{mean[first]:.6g} may have: it is treated as constant and not scaled "
            f"({counted(len(varying), 'such column')}). Subtract an offset from such columns."
        )
    return found


def _scale_of(
    squares: NDArray[np.float64], mean: NDArray[np.float64], count: int, scale: LearnedScale, weight: float | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the scale, and the columns that vary although they are treated as constant."""
    if isinstance(scale, Patterson):
        return scale.of(mean), np.zeros(0, np.int64)
    variance = np.maximum(squares, 0) / ((count if weight is None else weight) or 1)
    eps = np.finfo(np.float64).eps
    constant = variance <= count * eps * variance + (count * mean * eps) ** 2
    varying = np.flatnonzero(constant & (variance > (VARIES * mean * eps) ** 2))
    return np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance))), varying
