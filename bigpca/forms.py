"""What each kind of rows does in its own way: dense rows here, sparse rows in :mod:`bigpca.csr`.

Code that takes rows of either kind asks ``csr.form_of(rows)`` for what does it, never which kind they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigpca import blas
from bigpca.arrays import Array, DType, Integers, Vector

WIDTH = 8192  # columns multiplied in the rows' precision before the product is added in float64
AHEAD = 8  # such products that idle threads make at a time
Values: TypeAlias = Array | csr_array
CACHED_BYTES = 3 << 19  # of rows that are accessed several times in succession
LEAST_SQUARED = 1e-150  # whose square keeps its digits in float64
# Of values whose squares are 0, only a mean can say that they are not zeros. Where their sum says no more, it is set to
# this, which changes no other number, and is not 0 after it is divided by a number of rows.
SEEN = 1e-300


def cached_rows(row_bytes: int) -> int:
    """Return the rows of a strip that stays in a core's cache between accesses; a multiple of 128 if possible."""
    rows = max(1, CACHED_BYTES // max(1, row_bytes))
    return rows if rows < 128 else rows // 128 * 128


class DenseForm:
    """Rows (b, d) that store every value: arrays of NumPy. Other kinds of rows override what they do otherwise.

    Attributes
    ----------
    shifts : bool
        Whether something can be subtracted from rows before they are multiplied.
    stays : bool
        Whether a block may overwrite the rows that were read.
    strips : bool
        Whether BLAS multiplies the rows, in strips of several threads.
    once : str
        How to write the rows of a graph to a store.
    """

    shifts: ClassVar[bool] = True
    stays: ClassVar[bool] = True
    strips: ClassVar[bool] = True
    once: ClassVar[str] = "Write the array once with bp.ingest(X, out) and open that."

    def after(self, kept: bool) -> DenseForm:
        """Return the form of what a map makes of rows, which leaves sparse ones sparse if they are ``kept`` so."""
        return self

    def meta(self, dtype: DType) -> Any:
        """Return the ``meta`` of Dask arrays of such chunks."""
        return np.empty((0, 0), dtype)

    def mean_values(self, columns: int, known: float | None, look: Callable[[], tuple[int, int]]) -> float:
        """Return the stored values of a mean row: those that are ``known``, or a ``look`` at some rows shows."""
        return float(columns)

    def looked(self, look: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """Return how many rows a look at some of them has seen, and how many values these store."""
        return 0, 0

    def per_row(self, values: float) -> float | None:
        """Return ``stored`` of a :class:`bigpca.costs.BlockForm`."""
        return None

    def row_bytes(self, values: float, itemsize: int) -> float:
        """Return the bytes of a row of so many stored values."""
        return values * itemsize

    def slab_bytes(self, usual: int) -> int:
        """Return the bytes of a slab of rows that is multiplied at a time, at most."""
        return usual

    def stored(self, rows: Any) -> Any:
        """Return the values that rows store, in an array of one dimension or more."""
        return rows

    def here(self, rows: Any) -> Values:
        """Return rows in this process's memory."""
        return np.asarray(rows)

    def dense(self, rows: Any) -> Array:
        """Return rows as an array of NumPy."""
        return np.asarray(rows)

    def flat(self, rows: Any, width: int) -> Values:
        """Return rows of any shape as rows (b, width)."""
        return rows.reshape(len(rows), width)

    def like_first(self, rows: Any, label: str) -> Any:
        """Return a batch of rows in this form, that of the first batch."""
        raise TypeError(f"{label} is sparse, but the first batch is dense. Give all batches in one form.")

    def fitted(self, rows: Any, fit: Callable[[Array], Array]) -> Any:
        """Return rows in the dtype that ``fit`` converts arrays to, or its error of rows that do not fit."""
        return fit(np.asarray(rows))

    def unplanned(self, rows: Any) -> int:
        """Return the stored values of rows, if their number was not known before."""
        return 0

    def columns(self, rows: Any, first: int, last: int) -> Any:
        """Return some columns, in an array of their own."""
        return np.ascontiguousarray(rows[:, first:last])

    def vectors(self, rows: Any) -> tuple[Array, ...]:
        """Return the arrays that hold the rows, without the row ends of sparse ones."""
        return (rows,)

    def content(self, rows: Any, first: int) -> Any:
        """Return the bytes of rows from that number on, which do not depend on how batches are cut."""
        return np.ascontiguousarray(rows).data

    def places(self, rows: Any, chosen: NDArray[np.bool_]) -> tuple[Integers, Integers]:
        """Return the rows and columns of some of the :meth:`stored` values."""
        lines, columns = np.nonzero(chosen)
        return lines, columns

    def mask(self, rows: Any, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return some of the :meth:`stored` values as a mask (b, d)."""
        return chosen

    def lines(self, rows: Any, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which rows (b,) have some of the :meth:`stored` values."""
        found: NDArray[np.bool_] = np.any(chosen, axis=1)
        return found

    def mapped(self, rows: Any, f: Callable[..., Array], *by_column: Array) -> Values:
        """Return rows whose stored values are ``f(values, *of_their_columns)``, for vectors (d,) of the columns."""
        return f(rows, *by_column)

    def affine(self, rows: Any, shift: Any, inverse_scale: Vector | None, out: Array | None = None) -> Values:
        """Return ``(x - shift) * inverse_scale``, in ``out`` if it is given; nothing is subtracted from sparse rows."""
        out = np.empty_like(rows) if out is None else out
        np.subtract(rows, shift.astype(rows.dtype), out=out)
        if inverse_scale is not None:
            np.multiply(out, inverse_scale.astype(rows.dtype), out=out)
        return out

    def about_zero(self, rows: Any, shift: Vector) -> Values:
        """Return rows that are less a shift as they were."""
        return np.asarray(rows + shift)

    def searched(self, rows: Any, inside: Callable[[Array], bool]) -> Array:
        """Return dense rows in which values that are not ``inside`` are searched: no sparse ones if all are."""
        found: Array = rows
        return found

    def replaced(self, rows: Any, bad: NDArray[np.bool_]) -> Values:
        """Return a copy with valid rows in the place of some bad ones, whose values are not finite."""
        clean = np.array(np.asarray(rows))
        clean[bad] = clean[~bad][0] if not bad.all() else 1
        return clean

    def filled(self, rows: Array, means: Vector) -> Values:
        """Set NaN to the means of their columns, in place."""
        step = cached_rows(rows.shape[1] * rows.itemsize)
        for i in range(0, len(rows), step):
            strip = rows[i : i + step]
            np.copyto(strip, means, where=np.isnan(strip))
        return rows

    def multiply(self, V: Any, Q: Array, out: Array | None = None) -> Array:
        """Return ``V Q`` in the dtype of V, in ``out`` if that is given and V is dense."""
        return np.matmul(V, Q.astype(V.dtype, copy=False), out=out)

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

    def placed(self, device: Any, host: Any) -> Any:
        """Return what multiplies these rows: a device, or the host."""
        return device

    def by_rows(self, work: Callable[[Any], Array], rows: Any) -> Array:
        """Return what ``work`` makes of rows, in the strips of this group."""
        return blas.by_rows(work, rows)

    def add_product(self, V: Any, Z: Array, out: Array) -> None:
        """Add ``V'Z`` to ``out``."""
        blas.add_product(V, Z, out)

    def add_sketched(self, V: Any, part: Any, out: Array, step: int) -> None:
        """Add ``V part'`` to ``out``, for a sparse part (q, d) with a few entries in each column, by so many rows."""
        for i in range(0, len(V), step):
            out[i : i + step] += (part @ np.ascontiguousarray(V[i : i + step].T)).T  # (columns, rows)

    def zeros(self, V: Any, columns: int) -> Array:
        """Return (d, l) zeros in the order in which products are added fastest: by a fifth for widths near 100."""
        return np.zeros((V.shape[1], columns), V.dtype, order="F")

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

    def column_squares(self, values: Any, weights: Vector | None = None) -> Vector:
        """Return the (weighted) sum of squares of every column in float64, converting only a few rows at a time."""
        total = np.zeros(values.shape[1])
        step = cached_rows(8 * values.shape[1])
        for i in range(0, len(values), step):
            rows = values[i : i + step].astype(np.float64, copy=False)
            total += np.einsum("ij,ij->j", rows, rows) if weights is None else weights[i : i + step] @ rows**2
        return total

    def add_squares(self, block: Any, shift: Vector | None, squares: Vector) -> Any:
        """Add the squares of a block to those of its group about a ``shift`` (None: the first), and return the block
        about it.
        """
        squares += self.column_squares(block.values, block.weights)
        return block

    def row_totals(self, values: Any) -> Vector:
        """Return the sum of each row in float64."""
        return np.asarray(values.sum(axis=1, dtype=np.float64))

    def row_magnitudes(self, values: Any) -> Array:
        """Return the largest magnitude of each row."""
        largest: Array = np.maximum(values.max(axis=1, initial=0), -values.min(axis=1, initial=0))
        return largest

    def row_norms(self, values: Any) -> Array:
        """Return the norm of each row."""
        norms: Array = np.sqrt(np.einsum("ij,ij->i", values, values))
        return norms

    def by_row(self, f: Callable[..., Array], rows: Any, numbers: Array, **out: Any) -> Values:
        """Return rows whose stored values are ``f(values, number_of_their_row)``; ``out=`` is of dense ones."""
        return f(rows, numbers[:, None], **out)

    def seen(self, values: Any, sums: Vector, shift: Vector) -> Vector:
        """Return column sums of values that came in float64, set to :data:`SEEN` where these are tiny."""
        if values.dtype != np.float64 or not len(values):
            return sums
        still = (np.abs(sums) < SEEN) & (np.abs(shift) < SEEN)
        if not still.any():
            return sums
        few = 4 * np.count_nonzero(still) <= len(still)  # which are copied, in less time
        looked = values[:, still] if few else values
        largest = np.maximum(np.max(looked, axis=0), -np.min(looked, axis=0))
        tiny = (largest > 0) & (largest < LEAST_SQUARED)
        still[still] = tiny if few else tiny[still]
        return np.where(still, SEEN, sums)

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

    def total(self, values: Any) -> Vector:
        """Return the sums of columns, each added in float64."""
        sums: Vector = values.sum(axis=0, dtype=np.float64)
        return sums

    def origin(self, shift: Array | None, sums: Vector, count: int, d: int) -> tuple[Vector, Vector | None]:
        """Return what rows are about, and what else is to be subtracted from their products."""
        return np.zeros(d) if shift is None else shift.astype(np.float64), None

    def among(self, block: Any, own: Integers, shift: Array | None) -> tuple[Any, Array | None]:
        """Return some rows of a block about a shift of their own beside that of the block, and that shift."""
        part = block.about(block.values[own], block.rows[own], shift, block.device)
        return part.moved(block.origin), part.shift

    def strips_of(self, block: Any, shift: Array | None) -> Iterator[Any]:
        """Yield a block as dense blocks."""
        yield block

    def parts(self, rows: Any, whole: bool) -> Iterator[tuple[Any, int]]:
        """Yield rows and the place of their first: at once if they are dense, or may be ``whole``, or dense strips."""
        yield rows, 0

    def repeated(self, pieces: Any, whole: bool) -> Any:
        """Return pieces that are gone through once for each of the :meth:`parts`."""
        return pieces

    def gram(self, rows: Any) -> Any:
        """Return sums for ``X'X`` of rows in this form; None for those that are multiplied as dense strips."""
        return None

    def nothing_lost(self, d: int) -> Vector | None:
        """Return zeros (d,) if sums are centred after they are added up, and lose digits; else None."""
        return None

    def add_left(self, product: Array, V: Array, values: Any, block: Any) -> None:
        """Add ``V' values`` to a product."""
        product += V.T.astype(values.dtype) @ values

    def widened(self, rows: Any) -> Values:
        """Return rows in the precision of their products with float64 numbers."""
        return rows

    def pieces(self, count: int, step: int) -> Iterator[slice]:
        """Yield slices of ``count`` rows whose products are summed apart."""
        yield from (slice(i, i + step) for i in range(0, count, step))


def magnitude(values: Array) -> float:
    """Return the largest magnitude of an array, 0 of an empty one."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


DENSE = DenseForm()
