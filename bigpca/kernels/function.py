"""A kernel from any Python function of two blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigpca.kernels.base import Kernel, Rows, Vector
from bigpca.kernels.rows import Block, checked_switch, strips

SYMMETRIC = 1e-5  # relative to the largest entry
DIAGONAL_TILE = 8  # rows of the blocks computed for their diagonals: the other entries are wasted


@dataclass(frozen=True)
class FromFunction(Kernel):
    """``K = function(A, B)`` of two blocks of rows (a, d) and (b, d), an (a, b) array.

    It takes blocks, not single rows. Its cost is assumed to be 100 flops per column, its memory four numbers per entry;
    its diagonal costs 8 entries per row.

    Parameters
    ----------
    function : callable
        Must return the same entries for any division into blocks; called from several threads.
    positive_semidefinite : bool, default False
        Whether you know it to be: sampling by residuals and the bounds require it. Fits raise ValueError if they find
        that it is not.

    Raises
    ------
    ValueError
        From :meth:`block`, for a wrong shape, values that are not finite, or k(x, y) != k(y, x).

    Examples
    --------
    >>> FromFunction(lambda A, B: A @ B.T)([[1.0, 2.0]], [[3.0, 4.0]]).tolist()
    [[11.0]]
    """

    function: Callable[[Rows, Rows], Any]
    positive_semidefinite: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"function = {self.function!r} is not a function. Give one of two blocks of rows, (a, d) and (b, d), "
                "that returns (a, b)."
            )
        checked_switch("positive_semidefinite", self.positive_semidefinite)

    @property
    def taken_on_trust(self) -> bool:
        return self.positive_semidefinite

    def prepare(self, rows: Rows, shift: Vector | None = None, first_row: int = 0) -> Rows:
        return rows.copy()

    def block(self, A: Rows, B: Rows) -> Block:
        result = self._checked_block(A, B)
        if A is B:
            self._check_symmetry(result)
        return result

    def diagonal_of(self, A: Rows) -> Vector:
        result = np.empty(len(A))
        for start in range(0, len(A), DIAGONAL_TILE):
            rows = A[start : start + DIAGONAL_TILE]
            result[start : start + DIAGONAL_TILE] = np.diagonal(self._checked_block(rows, rows))
        return result

    def flops_per_entry(self, d: int) -> float:
        return 100.0 * d

    def entry_bytes(self, itemsize: int) -> int:
        return 32

    def prepared_bytes(self, d: int, itemsize: int) -> int:
        return d * itemsize

    def _checked_block(self, A: Rows, B: Rows) -> Block:
        result = np.asarray(self.function(A, B))
        if result.shape != (len(A), len(B)):
            raise ValueError(
                f"the kernel function returned shape {result.shape} for blocks of {len(A)} and {len(B)} rows; "
                f"({len(A)}, {len(B)}) was expected. Write it for two blocks of rows, (a, d) and (b, d), "
                "not for two rows."
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

    def _check_symmetry(self, block: Block) -> None:
        largest = max(abs(float(block.max(initial=0.0))), abs(float(block.min(initial=0.0))))
        for where, strip in strips(block):
            gap = np.abs(strip - block[:, where].T)
            if gap.max(initial=0.0) > SYMMETRIC * largest:
                i, j = (int(place) for place in np.unravel_index(np.argmax(gap), gap.shape))
                raise ValueError(
                    f"the kernel function returned {strip[i, j]:.6g} for rows ({where.start + i}, {j}) of a block and "
                    f"{block[j, where.start + i]:.6g} for ({j}, {where.start + i}); a kernel is symmetric. "
                    "Make it k(x, y) = k(y, x)."
                )
