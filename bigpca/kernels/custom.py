"""Kernels that the caller brings: a precomputed matrix, or any Python function of two blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Array, Integers, Vector
from bigpca.errors import brief, check_switch
from bigpca.kernels.base import Block, Kernel, strips

SYMMETRY = 1e-6  # largest accepted |K[i, j] - K[j, i]|, relative to the largest entry of the block
FUNCTION_SYMMETRY = 1e-5  # the same of what a function returns, whose two calls may round differently
DIAGONAL_TILE = 8  # rows of the blocks computed for their diagonals: the other entries are wasted


@dataclass(frozen=True)
class NumberedRows:
    """Rows of a kernel matrix, and the absolute number of the first."""

    rows: Array
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.rows)


@dataclass(frozen=True)
class Precomputed(Kernel):
    """``k(x_i, x_j) = X[i, j]``: row i of X is row i of the kernel matrix.

    The rows of B are identified by their absolute numbers ``first_row``, ``first_row + 1``, ..., which are columns of
    the rows of A; their contents are not used. New rows hold their kernel with all training rows, and have no diagonal.
    Blocks on the diagonal are checked for symmetry; other blocks are used unchecked.

    Parameters
    ----------
    indefinite : bool, default False
        Whether the matrix may have negative eigenvalues, as a matrix of distances does. The largest eigenvalues by
        value are then kept, with a warning. Otherwise a fit raises ValueError if it finds significant negative
        eigenvalues. Only a fit that computes the whole spectrum is certain to find them (KernelPCA up to a few thousand
        rows, or all rows as landmarks).

    Raises
    ------
    ValueError
        From :meth:`block`, for a missing column, or ``block(A, A)`` not symmetric to 1e-6 of its largest entry.

    Examples
    --------
    >>> Precomputed()([[2.0, 1.0], [1.0, 3.0]]).tolist()
    [[2.0, 1.0], [1.0, 3.0]]
    """

    needs_rows: ClassVar[bool] = False

    indefinite: bool = False

    def __post_init__(self) -> None:
        check_switch("indefinite", self.indefinite)

    @property
    def positive_semidefinite(self) -> bool:
        return not self.indefinite

    @property
    def taken_on_trust(self) -> bool:
        return not self.indefinite

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> NumberedRows:
        return NumberedRows(rows.copy(), first_row)

    def block(self, A: Any, B: Any) -> NDArray[np.floating]:
        columns = A.rows.shape[1]
        if B.stop > columns:
            raise ValueError(
                f"rows have {columns} columns, but their kernel with rows {B.start}:{B.stop} was requested; one column "
                "per training row is required. Give the kernel matrix (n, n), and (new rows, n) for new rows."
            )
        entries: NDArray[np.floating] = A.rows[:, B.start : B.stop].copy()
        if A is B:
            reject_asymmetric(entries, entries.T, A.start + np.arange(len(entries)), B.start + np.arange(len(entries)))
        return entries

    def diagonal_of(self, A: Any) -> Vector:
        columns = A.rows.shape[1]
        if A.stop > columns:
            raise ValueError(
                f"k(x, x) of row {max(A.start, columns)} was requested, but rows have {columns} columns, one per "
                "training row; a precomputed matrix has no k(x, x) of new rows. Use a kernel that computes entries."
            )
        places = np.arange(len(A.rows))
        diagonal: Vector = A.rows[places, A.start + places].astype(np.float64)
        least = int(np.argmin(diagonal)) if len(diagonal) else 0
        if not self.indefinite and len(diagonal) and diagonal[least] < -SYMMETRY * np.abs(A.rows[least]).max():
            raise ValueError(
                f"K[{A.start + least}, {A.start + least}] = {diagonal[least]:.6g}, but k(x, x) is at least 0 where no "
                "eigenvalue is negative. Check that the rows are in the order of the columns; for a matrix with "
                "negative eigenvalues, such as one of distances, use KernelPCA with Precomputed(indefinite=True)."
            )
        return diagonal

    def flops_per_entry(self, d: int) -> float:
        return 2.0

    def entry_bytes(self, itemsize: int) -> int:
        return 2 * itemsize


def reject_asymmetric(
    entries: NDArray[np.floating], mirrored: NDArray[np.floating], rows: Integers, columns: Integers
) -> None:
    """Reject ``K[rows, columns]`` (a, b) that differs from ``K[columns, rows]'``, which is ``mirrored``.

    Raises
    ------
    ValueError
    """
    if not entries.size:
        return
    differences = entries - mirrored
    np.abs(differences, out=differences)
    i, j = np.unravel_index(np.argmax(differences), differences.shape)
    if differences[i, j] > SYMMETRY * max(entries.max(), -entries.min()):
        raise ValueError(
            f"K[{rows[i]}, {columns[j]}] = {entries[i, j]}, but K[{columns[j]}, {rows[i]}] = {mirrored[i, j]}; a "
            "symmetric kernel matrix was expected. Use (K + K') / 2, or check the order of its rows."
        )


@dataclass(frozen=True)
class FromFunction(Kernel):
    """``K = function(A, B)`` of two blocks of rows (a, d) and (b, d), an (a, b) array.

    It is called with blocks, not with single rows. Its cost is assumed to be 100 flops per column, its memory four
    numbers per entry; its diagonal costs 8 entries per row.

    Parameters
    ----------
    function : callable
        Must return the same entries for any division into blocks; called from several threads.
    positive_semidefinite : bool, default False
        Whether the kernel is known to be so; sampling by residuals and the bounds require it. Fits raise ValueError if
        they find that it is not.

    Raises
    ------
    ValueError
        From :meth:`block`, for a wrong shape, values that are not finite, or k(x, y) != k(y, x).

    Examples
    --------
    >>> FromFunction(lambda A, B: A @ B.T)([[1.0, 2.0]], [[3.0, 4.0]]).tolist()
    [[11.0]]
    """

    function: Callable[[Array, Array], Any]
    positive_semidefinite: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"function = {self.function!r} is not a function. Give one of two blocks of rows, (a, d) and (b, d), "
                "that returns (a, b)."
            )
        check_switch("positive_semidefinite", self.positive_semidefinite)

    @property
    def taken_on_trust(self) -> bool:
        return self.positive_semidefinite

    def prepare(self, rows: Array, shift: Vector | None = None, first_row: int = 0) -> Array:
        return rows.copy()

    def block(self, A: Array, B: Array) -> Block:
        result = self._checked_block(A, B)
        if A is B:
            largest = max(abs(float(result.max(initial=0.0))), abs(float(result.min(initial=0.0))))
            for where, strip in strips(result):
                gap = np.abs(strip - result[:, where].T)
                if gap.max(initial=0.0) > FUNCTION_SYMMETRY * largest:
                    i, j = (int(place) for place in np.unravel_index(np.argmax(gap), gap.shape))
                    raise ValueError(
                        f"the kernel function returned {strip[i, j]:.6g} for rows ({where.start + i}, {j}) of a block "
                        f"and {result[j, where.start + i]:.6g} for ({j}, {where.start + i}); a kernel is symmetric. "
                        "Make it k(x, y) = k(y, x)."
                    )
        return result

    def diagonal_of(self, A: Array) -> Vector:
        result = np.empty(len(A))
        for start in range(0, len(A), DIAGONAL_TILE):
            rows = A[start : start + DIAGONAL_TILE]
            result[start : start + DIAGONAL_TILE] = np.diagonal(self._checked_block(rows, rows))
        return result

    def flops_per_entry(self, d: int) -> float:
        return 100.0 * d

    def entry_bytes(self, itemsize: int) -> int:
        return 32

    def _checked_block(self, A: Array, B: Array) -> Block:
        try:
            result = np.asarray(self.function(A, B))
        except (TypeError, ValueError) as error:
            of_rows = False
            with suppress(Exception):  # whatever it raises for two rows, it is not a function of these
                of_rows = np.ndim(self.function(A[0], B[0])) == 0
            if not of_rows:
                raise
            raise ValueError(
                f"the kernel function takes two rows, but it is called with two blocks of rows, of shapes {A.shape} "
                f"and {B.shape}, for which it raised {type(error).__name__} ({brief(error)}). Write it for blocks, "
                "such as lambda A, B: A @ B.T; or, slowly, np.array([[function(a, b) for b in B] for a in A])."
            ) from error
        if result.shape != (len(A), len(B)):
            raise ValueError(
                f"the kernel function returned shape {result.shape} for blocks of {len(A)} and {len(B)} rows; "
                f"({len(A)}, {len(B)}) was expected. Write it for two blocks of rows, (a, d) and (b, d), not for "
                f"two single rows."
            )
        if result.dtype not in (np.float32, np.float64):
            if result.dtype.kind not in "biuf":
                raise ValueError(f"the kernel function returned {result.dtype}, not real numbers. Convert them.")
            result = result.astype(np.float64)
        for where, strip in strips(result):
            if not np.isfinite(strip).all():
                i, j = np.argwhere(~np.isfinite(strip))[0]
                raise ValueError(
                    f"the kernel function returned {strip[i, j]} for rows {where.start + i} and {j} of its blocks, "
                    "which is not finite. Correct the function, or scale the rows."
                )
        return result.copy() if result.base is not None or not result.flags.writeable else result
