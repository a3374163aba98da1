"""Kernel blocks between rows and landmarks: in tiles of bounded memory, and for a few rows with arbitrary numbers.

Precomputed kernels identify rows by absolute number, not by content. Landmarks, whose numbers are not consecutive, are
then prepared one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bigpca import csr
from bigpca.arrays import Array
from bigpca.costs import BlockForm, Work
from bigpca.kernels.base import Kernel
from bigpca.kernels.precomputed import reject_asymmetric
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.layout import MIB

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
TILE_BYTES = 16 * MIB
TILE_ROWS = 4096
PREPARED_SECONDS = 1.2e-9  # to prepare a dense row: of one core, per byte
SPARSE_SECONDS = 1.2e-8  # the same of a sparse row, per stored value
ENTRY_SECONDS = 3e-10  # to add an entry of a sparse product to its block, per byte


def tile_rows(row_bytes: int) -> int:
    """Return the rows evaluated at a time: 16 MiB of them, at most 4,096 and at least one.

    >>> tile_rows(1 << 14), tile_rows(1), tile_rows(1 << 30)
    (1024, 4096, 1)
    """
    return max(1, min(TILE_ROWS, TILE_BYTES // max(1, row_bytes)))


def entries_work(kernel: Kernel, rows: BlockForm, count: float) -> Work:
    """Return the cost of preparing a row and of its entries with ``count`` dense ones, without memory."""
    flops = count * kernel.entry_flops(rows)
    if not rows.sparse:
        return Work(0, flops, loops=PREPARED_SECONDS * kernel.prepared_bytes(rows.columns, rows.itemsize))
    if not kernel.accepts_csr:
        return rows.strip_work + replace(entries_work(kernel, replace(rows, stored=None), count), flops=flops)
    product, looped = csr.multiply_work(rows, max(1.0, count)), flops - count * kernel.flops_per_entry(0)
    products = looped / max(1.0, product.flops)  # of sums of kernels, several
    loops = products * product.loops + SPARSE_SECONDS * rows.values + ENTRY_SECONDS * count * rows.itemsize
    return Work(0, flops, looped, loops)


def prepare_tile(kernel: Kernel, block: Block, start: int, stop: int, shift: Vector | None) -> object:
    """Prepare rows ``start:stop`` of a block as the first argument of a kernel.

    Raises
    ------
    ValueError
        If the kernel identifies rows by number, and rows with missing values were omitted between them.
    """
    rows = block.rows[start:stop]
    _check_consecutive(kernel, rows)
    return kernel.prepare(block.values[start:stop], shift, int(rows[0]))


def prepare_landmarks(kernel: Kernel, rows: Array, numbers: Integers, shift: Vector | None) -> object:
    """Prepare landmarks (m, d), rows ``numbers`` (m,) of X, for :func:`landmark_block`."""
    if kernel.needs_rows:
        return kernel.prepare(rows, shift)
    return [kernel.prepare(row[None], shift, int(i)) for row, i in zip(rows, numbers, strict=True)]


def landmark_block(kernel: Kernel, A: object, landmarks: object) -> Array:
    """Return ``k(A, L)`` (a, m) of a prepared block and the result of :func:`prepare_landmarks`."""
    if kernel.needs_rows:
        return kernel.block(A, landmarks)
    return np.hstack([kernel.block(A, one) for one in _one_by_one(landmarks)])


def _check_consecutive(kernel: Kernel, rows: Integers) -> None:
    if not kernel.needs_rows and rows[-1] - rows[0] + 1 != len(rows):
        raise ValueError(
            f"rows between {rows[0]} and {rows[-1]} were omitted because of missing values, or have weight 0, but "
            f"{kernel} identifies rows by number and requires a complete matrix. Remove those rows and columns from it "
            "first."
        )


def check_mirrored(
    kernel: Kernel, A: object, landmarks: object, block: Array, rows: Integers, numbers: Integers
) -> None:
    """Reject a block ``k(A, L)`` of rows of a fit that is not ``k(L, A)'``.

    Raises
    ------
    ValueError
        For a precomputed matrix, whose landmarks hold both entries; also if rows between the first and the last lack.
    """
    if not kernel.needs_rows:
        _check_consecutive(kernel, rows)
        mirrored = np.vstack([kernel.block(one, A) for one in _one_by_one(landmarks)]).T
        reject_asymmetric(block, mirrored, rows, numbers)


def cross_block(kernel: Kernel, A: object, landmarks: object) -> Array:
    """Return ``k(A, L)`` (a, m) where both are results of :func:`prepare_landmarks`."""
    if kernel.needs_rows:
        return kernel.block(A, landmarks)
    return np.vstack([landmark_block(kernel, one, landmarks) for one in _one_by_one(A)])


def square_block(kernel: Kernel, rows: Array, numbers: Integers, shift: Vector | None) -> Matrix:
    """Return ``k(L, L)`` (m, m) in float64 for rows of any precision, because it is factorised."""
    A = prepare_landmarks(kernel, rows.astype(np.float64), numbers, shift)
    K_mm = cross_block(kernel, A, A)
    if not kernel.needs_rows:
        reject_asymmetric(K_mm, K_mm.T, numbers, numbers)
    symmetric: Matrix = (K_mm + K_mm.T) / 2
    return symmetric


def diagonal_of(kernel: Kernel, A: object) -> Vector:
    """Return ``k(x, x)`` (m,) of the result of :func:`prepare_landmarks`."""
    if kernel.needs_rows:
        return kernel.diagonal_of(A)
    return np.concatenate([kernel.diagonal_of(one) for one in _one_by_one(A)])


def _one_by_one(landmarks: object) -> list[object]:
    """Return landmarks that :func:`prepare_landmarks` prepared one by one."""
    return cast("list[object]", landmarks)
