"""The arithmetic of a pass: the few operations on the rows of a block with which accumulators are written.

A pass declares one record, which all its tasks use, so another array library is one more record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import blas, csr
from bigpca.arrays import Array, DType

Values: TypeAlias = Array | csr_array
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Arithmetic:
    """Operations on the rows of a block; functions of a module, so that the record is picklable.

    Attributes
    ----------
    name : str
        Part of the fingerprint of a checkpoint: different names may give different bits.
    asarray : callable
        (rows, dtype) -> the rows as an array of this library.
    rank_update : callable
        (V, out, add): write the upper triangle of ``V'V`` (d, d) to ``out``, or add it.
    multiply : callable
        (V, Q): return ``V Q`` (b, l) in the dtype of V, for dense rows V (b, d) or CSR.
    add_product : callable
        (V, Z, out): ``out += V'Z`` (d, l), for dense rows V (b, d) or CSR; fastest if ``out`` is one of ``zeros``.
    zeros : callable
        (V, l): return zeros (d, l) in the dtype of V, in the memory order that is best for ``add_product``.
    column_sums : callable
        (V, total): return the column sums of V in float64, added to ``total`` (d,) if that is given.
    """

    name: str
    asarray: Callable[[Array, DType], Array]
    rank_update: Callable[[Array, Array, bool], None]
    multiply: Callable[[Values, Array], Array]
    add_product: Callable[[Values, Array, Array], None]
    zeros: Callable[[Values, int], Array]
    column_sums: Callable[[Values, Vector | None], Vector]

    @property
    def identity(self) -> dict[str, str]:
        """Its entry in checkpoint fingerprints; empty for NumPy."""
        return {} if self.name == NUMPY.name else {"arithmetic": self.name}


def asarray(rows: Array, dtype: DType) -> Array:
    """Return the rows in ``dtype``, copied only if they have another."""
    return rows.astype(dtype, copy=False)


def rank_update(V: Array, out: Array, add: bool) -> None:
    """Write or add the upper triangle of ``V'V``, by BLAS syrk."""
    blas.symmetric_rank_update(V, out, add=add)


def multiply(V: Values, Q: Array) -> Array:
    """Return ``V Q``, by BLAS gemm or a sparse product."""
    if isinstance(V, csr_array):
        return csr.multiply(V, Q)
    product: Array = V @ Q.astype(V.dtype, copy=False)
    return product


def add_product(V: Values, Z: Array, out: Array) -> None:
    """Add ``V'Z``, by BLAS gemm or a sparse product."""
    (csr if isinstance(V, csr_array) else blas).add_product(V, Z, out)


def zeros(V: Values, columns: int) -> Array:
    """Return (d, l) zeros: in C order for CSR, else in Fortran order, a fifth faster for widths near 100."""
    return np.zeros((V.shape[1], columns), V.dtype, order="C" if isinstance(V, csr_array) else "F")


def column_sums(values: Values, total: Vector | None = None) -> Vector:
    """Sum each column: 128 rows at a time in the block's precision, then in float64 (16 times as fast as all float64).

    If ``total`` (d,) is given, the sums are added to it in place.
    """
    if total is None:
        total = np.zeros(values.shape[1])
    if isinstance(values, csr_array):
        csr.add_column_sums(values, total)
        return total
    whole = len(values) // 128 * 128
    if whole:
        total += values[:whole].reshape(-1, 128, values.shape[1]).sum(axis=1).sum(axis=0, dtype=np.float64)
    if whole < len(values):
        total += values[whole:].sum(axis=0)
    return total


NUMPY = Arithmetic("numpy", asarray, rank_update, multiply, add_product, zeros, column_sums)
