"""What each kind of rows does in its own way: dense rows here, sparse ones in :mod:`bigpca.csr`, and rows on a device
in :mod:`bigpca.devices`.

Code that takes rows of any kind asks ``csr.form_of(rows)`` for what does it, never which kind they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from bigpca import blas
from bigpca.arrays import Array, DType, Integers, Vector

WIDTH = 8192  # columns multiplied in the rows' precision before the product is added in float64
AHEAD = 8  # such products that idle threads make at a time
Values: TypeAlias = Array | csr_array
CACHED_BYTES = 3 << 19  # of rows that are accessed several times in succession


def cached_rows(row_bytes: int) -> int:
    """Return the rows of a strip that stays in a core's cache between accesses; a multiple of 128 if possible."""
    rows = max(1, CACHED_BYTES // max(1, row_bytes))
    return rows if rows < 128 else rows // 128 * 128


class DenseForm:
    """Rows (b, d) that store every value: arrays of NumPy. Other kinds of rows override what they do otherwise.

    Attributes
    ----------
    shifts : bool
        Whether a shift is subtracted from rows before they are multiplied, in the memory in which they were read if it
        is the task's; it would make sparse ones dense. Such rows are multiplied by BLAS, in strips of several threads.
    factors : bool
        Whether they are sparse rows plus a thin product: states and maps that take sparse rows may not take them.
    once : str
        How to write the rows of a graph to a store.
    """

    shifts: ClassVar[bool] = True
    factors: ClassVar[bool] = False
    once: ClassVar[str] = "Write the array once with bp.ingest(X, out) and open that."

    def meta(self, dtype: DType) -> Any:
        """Return the ``meta`` of Dask arrays of such chunks."""
        return np.empty((0, 0), dtype)

    def row_bytes(self, values: float, itemsize: int) -> float:
        """Return the bytes of a row of so many stored values."""
        return values * itemsize

    def stored(self, rows: Any) -> Any:
        """Return the values that rows store, in an array of one dimension or more."""
        return rows

    def here(self, rows: Any) -> Values:
        """Return rows in this process's memory."""
        return np.asarray(rows)

    def dense(self, rows: Any) -> Array:
        """Return rows as an array of NumPy."""
        return np.asarray(rows)

    def whole(self, rows: Any) -> Any:
        """Return rows for what takes dense or sparse ones alone."""
        return rows

    def content(self, rows: Any, first: int) -> Any:
        """Return the bytes of rows from that number on, which do not depend on how batches are cut."""
        return np.ascontiguousarray(rows).data

    def places(self, rows: Any, chosen: NDArray[np.bool_]) -> tuple[Integers, Integers]:
        """Return the rows and columns of some of the :meth:`stored` values."""
        lines, columns = np.nonzero(chosen)
        return lines, columns

    def mapped(
        self, rows: Any, f: Callable[..., Array], *by_column: Array, by_row: Sequence[Array] = (), **out: Any
    ) -> Any:
        """Return rows whose stored values are ``f(values, *of_their_columns, *of_their_rows)``, for vectors (d,) of the
        columns and (b,) of the rows; ``out=`` is of dense ones.
        """
        return f(rows, *by_column, *(one[:, None] for one in by_row), **out)

    def along_rows(self, rows: Any, f: np.ufunc, dtype: DTypeLike | None = None) -> Array:
        """Return what ``f`` makes of 0 and the stored values of each row (b,), in their dtype or another one."""
        found: Array = f.reduce(rows, axis=1, dtype=dtype, initial=0)
        return found

    def affine(self, rows: Any, shift: Any, inverse_scale: Vector | None, out: Array | None = None) -> Values:
        """Return ``(x - shift) * inverse_scale``, in ``out`` if it is given; nothing is subtracted from sparse rows."""
        out = np.empty_like(rows) if out is None else out
        np.subtract(rows, shift.astype(rows.dtype), out=out)
        if inverse_scale is not None:
            np.multiply(out, inverse_scale.astype(rows.dtype), out=out)
        return out

    def multiply(self, V: Any, Q: Array, out: Array | None = None) -> Array:
        """Return ``V Q`` in the dtype of V, in ``out`` if that is given and V is dense."""
        return np.matmul(V, Q.astype(V.dtype, copy=False), out=out)

    def linear(self, rows: Any, f: Callable[[Any], Array]) -> Array:
        """Return a linear function of rows."""
        return f(rows)

    def projected(self, V: Any, mean: Array, axes: Array, strip: int) -> Array:
        """Return ``(V - mean) axes`` (b, k) in the precision of the axes (d, k), for so many rows at a time."""
        scores, centred = np.empty((len(V), axes.shape[1]), axes.dtype), np.empty((strip, len(axes)), axes.dtype)
        for start in range(0, len(V), strip):
            part = V[start : start + strip]
            shifted = np.subtract(part, mean, out=centred[: len(part)], dtype=axes.dtype, casting="unsafe")
            np.matmul(shifted, axes, out=scores[start : start + strip])
        return scores

    def projected_dtype(self, dtype: DType) -> DType:
        """Return the dtype in which rows are projected for results of ``dtype``."""
        return dtype

    def add_product(self, V: Any, Z: Array, out: Array | None = None) -> Array:
        """Return ``V'Z`` (d, l), added to ``out`` if that is given."""
        if out is None:  # in the order in which products are added fastest: by a fifth for widths near 100
            out = np.zeros((V.shape[1], Z.shape[1]), V.dtype, order="F")
        blas.add_product(V, Z, out)
        return out

    def add_sketched(self, V: Any, part: Any, out: Array, step: int) -> None:
        """Add ``V part'`` to ``out``, for a sparse part (q, d) with a few entries in each column, by so many rows."""
        for i in range(0, len(V), step):
            out[i : i + step] += (part @ np.ascontiguousarray(V[i : i + step].T)).T  # (columns, rows)

    def add_pair(self, rows: Any, columns: Any, target: Array) -> None:
        """Add the products of rows (a, d) and columns (d, b) to the target (a, b), summed in float64."""
        for products in blas.made_ahead(
            lambda j: [rows[:, j : j + WIDTH] @ columns[j : j + WIDTH]], range(0, rows.shape[1], WIDTH), AHEAD
        ):
            for product in products:
                target += product

    def column_sums(
        self, values: Any, total: Vector | None = None, weights: Vector | None = None, dtype: DType | None = None
    ) -> Vector:
        """Sum each column: 128 rows at a time in their precision, then in float64 (16 times as fast as all float64).

        If ``total`` (d,) is given, the sums are added to it in place. With weights (rows,), ``sum_t w_t x_t``, all in
        float64. Rows are converted to ``dtype`` a few at a time.
        """
        if total is None:
            total = np.zeros(values.shape[1])
        if weights is not None:
            step = cached_rows(8 * max(1, values.shape[1]))
            for i in range(0, len(values), step):
                total += values[i : i + step].astype(np.float64).T @ weights[i : i + step]
            return total
        whole = len(values) // 128 * 128
        dtype = values.dtype if dtype is None else dtype
        if whole:
            step = max(128, cached_rows(values.shape[1] * dtype.itemsize) // 128 * 128)
            strips = (values[i : min(i + step, whole)].astype(dtype, copy=False) for i in range(0, whole, step))
            parts = [strip.reshape(-1, 128, strip.shape[1]).sum(axis=1) for strip in strips]
            total += np.concatenate(parts).sum(axis=0, dtype=np.float64)
        if whole < len(values):
            total += values[whole:].astype(dtype, copy=False).sum(axis=0)
        return total

    def column_squares(self, values: Any, weights: Vector | None = None, scale: Any = None) -> Vector:
        """Return the (weighted) sum of squares of every column in float64, converting only a few rows at a time.

        On a device, rows are multiplied by a power of two first, which is found if no ``scale`` is given.
        """
        total = np.zeros(values.shape[1])
        step = cached_rows(8 * values.shape[1])
        for i in range(0, len(values), step):
            rows = values[i : i + step].astype(np.float64, copy=False)
            total += np.einsum("ij,ij->j", rows, rows) if weights is None else weights[i : i + step] @ rows**2
        return total

    def add_squares(self, block: Any, shift: Vector | None, squares: Vector) -> tuple[Any, Vector]:
        """Return a block about the ``shift`` of its group (None: the first), and the group's squares with its own."""
        squares += self.column_squares(block.values, block.weights)
        return block, squares

    def row_norms(self, values: Any) -> Array:
        """Return the norm of each row."""
        norms: Array = np.sqrt(np.einsum("ij,ij->i", values, values))
        return norms

    def known(self, values: Any) -> tuple[Any, Integers]:
        """Return rows without NaN and infinities, and how many values of each column (d,) their sums have.

        The complete rows, if there are any; else, and of sparse rows, all with 0 in place of what is not finite.
        """
        finite = np.isfinite(values)
        complete = finite.all(axis=1)
        if complete.any():
            return values[complete], np.full(values.shape[1], np.count_nonzero(complete))
        return np.where(finite, values, 0), np.maximum(1, np.count_nonzero(finite, axis=0))

    def first_shift(self, values: Any, shift: Array | None, dtype: DType) -> Array | None:
        """Return what a slab is to be less, in ``dtype``: a given shift, or the mean of its finite rows."""
        return self.mean(values, dtype) if shift is None else shift.astype(dtype, copy=False)

    def mean(self, values: Any, dtype: DType | None = None) -> Array:
        """Return the mean of a slab's finite entries in the ``dtype`` of its block, by default its own.

        Of dense rows, only the complete ones count, if there are any: the others may be left out, and may be far from
        them.
        """
        with np.errstate(all="ignore"):
            mean = self.column_sums(values, dtype=dtype) / max(1, values.shape[0])
            if not np.isfinite(mean).all():
                known, counts = self.known(values)
                mean = self.column_sums(known, dtype=dtype) / counts
            shift: Array = mean.astype(dtype or values.dtype)
        shift[~np.isfinite(shift)] = 0
        return shift

    def centred(
        self, values: Any, shift: Array | None, *, owned: bool, dtype: DType, find_largest: bool = False
    ) -> tuple[Any, Vector, float]:
        """Return rows less a shift, the sums of their columns, and the largest magnitude if it is to be found.

        Memory is traversed once: a strip of rows is converted, shifted, summed and searched while it is in the cache.
        ``owned`` rows may be overwritten.
        """
        shift = np.zeros(values.shape[1], dtype) if shift is None else shift
        count, step = len(values), cached_rows(values.shape[1] * dtype.itemsize)
        shifted = values if owned and values.dtype == dtype else np.empty_like(values, dtype)
        # Rows beyond the last 128 are summed alone.
        edges = sorted({*range(0, count, step), count, count if step < 128 else count // 128 * 128})
        found = dict[int, tuple[Vector, float]]()

        def centre(edge: tuple[int, int]) -> None:
            rows, strip = values[slice(*edge)], shifted[slice(*edge)]
            if rows.dtype != dtype:  # converted in place, without another strip
                strip[...] = rows
            np.subtract(rows if rows.dtype == dtype else strip, shift, out=strip)
            found[edge[0]] = self.column_sums(strip), magnitude(strip) if find_largest else 0.0

        blas.each_piece(centre, pairwise(edges))
        sums = sum((found[edge][0] for edge in edges[:-1]), np.zeros(values.shape[1]))
        return shifted, sums, max([0.0, *(most for _, most in found.values())])

    def shifted(self, values: Any, shift: Array | None, dtype: DType) -> tuple[Any, Vector, Vector, Vector | None]:
        """Return rows less a shift (d,), or their mean, in place if they are here; their sums, and :meth:`origin`."""
        near = self.mean(values) if shift is None else shift.astype(values.dtype, copy=False)
        np.subtract(values, near, out=values)
        sums = self.column_sums(values)
        return values, sums, *self.origin(near, sums, *values.shape)

    def total(self, values: Any) -> Vector:
        """Return the sums of columns, each added in float64."""
        sums: Vector = values.sum(axis=0, dtype=np.float64)
        return sums

    def origin(self, shift: Array | None, sums: Vector, count: int, d: int) -> tuple[Vector, Vector | None]:
        """Return what rows are about, and what else is to be subtracted from their products."""
        return np.zeros(d) if shift is None else shift.astype(np.float64), None

    def strips_of(self, block: Any, shift: Array | None) -> Iterator[Any]:
        """Yield a block as dense blocks."""
        yield block

    def parts(self, rows: Any, whole: bool) -> Iterator[tuple[Any, int]]:
        """Yield rows and the place of their first: at once if they are dense, or may be ``whole``, or dense strips."""
        yield rows, 0

    def gram(self, rows: Any) -> Any:
        """Return sums for ``X'X`` of rows in this form; None for those that are multiplied as dense strips."""
        return None

    def note_constants(self, rows: Any, values: Vector, counts: Integers) -> None:
        """Follow which columns of sparse rows (b, d) are constant, in place.

        Parameters
        ----------
        values : ndarray of shape (d,)
            The stored value of each column; NaN where two differ.
        counts : ndarray of shape (d,)
            How many values are stored in each column. In a constant column other than zero, as many as rows.
        """

    def add_left(self, product: Array, V: Array, values: Any, block: Any) -> Array:
        """Return a product with ``V' values`` of some rows of a block."""
        product += V.T.astype(values.dtype) @ values
        return product


def magnitude(values: Array) -> float:
    """Return the largest magnitude of an array, 0 of an empty one."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


DENSE = DenseForm()
