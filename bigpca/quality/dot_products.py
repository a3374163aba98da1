"""How well sketches preserve dot products, measured on sampled pairs of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.data.sources import open as open_array
from bigpca.passes.rows import RowInput
from bigpca.quality.reading import read_rows
from bigpca.quality.states import strip_rows
from bigpca.seeds import check_seed, uniforms

Vector = NDArray[np.float64]

POOL_BYTES = 128 << 20  # of sampled rows of X that are held at a time


@dataclass(frozen=True)
class DotProductError:
    """How well sketches preserve the dot products of rows, on sampled pairs.

    Attributes
    ----------
    pairs : ndarray of shape (n_pairs, 2), int64
        Row numbers.
    exact, approximate : ndarray of shape (n_pairs,)
        ``x_i' x_j`` and ``z_i' z_j``.
    norms : ndarray of shape (n_pairs,)
        ``|x_i| |x_j|``.
    """

    pairs: NDArray[np.int64]
    exact: Vector
    approximate: Vector
    norms: Vector

    @property
    def mape(self) -> float:
        """Mean of ``|x'y - z'w| / |x'y|``, as a proportion; infinite if a product is 0 and its sketch is not."""
        return float(np.mean(self._relative_to(np.abs(self.exact))))

    @property
    def median(self) -> float:
        """Median of ``|x'y - z'w| / |x'y|``, which a few products near 0 do not affect."""
        return float(np.median(self._relative_to(np.abs(self.exact))))

    @property
    def relative_to_norms(self) -> float:
        """Mean of ``|x'y - z'w| / (|x| |y|)``, about 1 / sqrt(q), which stays bounded if x'y is near 0."""
        return float(np.mean(self._relative_to(self.norms)))

    def _relative_to(self, base: Vector) -> Vector:
        errors = np.abs(self.exact - self.approximate)
        ratio = np.full(len(errors), np.inf)
        np.divide(errors, base, out=ratio, where=base > 0)
        ratio[errors == 0] = 0.0
        return ratio


def dot_product_error(X: Any, Z: Any, n_pairs: int = 1000, seed: int = 0) -> DotProductError:
    """Measure how well ``z_i' z_j`` of a sketch Z approximates ``x_i' x_j``, on random pairs of distinct rows.

    MAPE is the tutorial's measure; it is unstable if x'y is near 0, so the median and the error relative to |x| |y| are
    returned too. Pairs are drawn from at most 2 ``n_pairs`` sampled rows, or as many as fill 128 MiB, and only those
    rows (with the rest of their chunks) are read: part of one read of X and of Z. The products are those of the given
    rows, centred or not.

    Parameters
    ----------
    X, Z : (n, d) and (n, q)
        Anything that :func:`bigpca.open` accepts: NumPy, Dask, Zarr, paths.
    n_pairs : int, default 1000
        Number of sampled pairs, at least 1.
    seed : int, default 0
        The same seed, n and d give the same pairs for any chunks.

    Returns
    -------
    DotProductError
        With ``mape``, ``median``, ``relative_to_norms``, and the pairs themselves.

    Raises
    ------
    ValueError
        If X and Z have different numbers of rows, or fewer than 2, or ``n_pairs`` or ``seed`` are out of range.
    TypeError
        If ``seed`` is not an integer.
    MemoryBudgetError
        Before any read, if the rows and their chunks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read.

    Notes
    -----
    Marukatat 2022, section 4.5 and figure 6 (mean absolute proportion error).

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((50, 20))
    >>> dot_product_error(X, 2 * X).mape  # four times too large
    3.0
    """
    if isinstance(n_pairs, bool) or not isinstance(n_pairs, int | np.integer) or n_pairs < 1:
        raise ValueError(f"n_pairs = {n_pairs!r}; an integer of at least 1 was expected. Give for example 1000.")
    original, sketch = RowInput(open_array(X)), RowInput(open_array(Z))
    n = original.n_rows
    if n != sketch.n_rows or n < 2:
        raise ValueError(
            f"X has {n} rows and Z {sketch.n_rows}; the same number, at least 2, was expected: row i of Z is the "
            "sketch of row i of X. Pass the sketch of these rows."
        )
    pool, first, second = _draw_pairs(n, 8 * original.n_columns, int(n_pairs), check_seed(seed))
    exact, norms = _products(read_rows(original, pool, "pairs"), first, second)
    approximate, _ = _products(read_rows(sketch, pool, "pairs"), first, second)
    return DotProductError(np.column_stack([pool[first], pool[second]]), exact, approximate, norms)


def _draw_pairs(n: int, row_bytes: int, n_pairs: int, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return ascending row numbers, and pairs of distinct places among them."""
    held = max(2, min(n, 2 * n_pairs, POOL_BYTES // row_bytes))
    edges = np.arange(held + 1) * n // held  # one row from each of ``held`` equal parts of the file
    pool = edges[:-1] + (uniforms(seed, "sampled rows", 0, held, 1)[:, 0] * np.diff(edges)).astype(np.int64)
    places = uniforms(seed, "pairs of rows", 0, n_pairs, 2)
    first = (places[:, 0] * held).astype(np.int64)
    second = (first + 1 + (places[:, 1] * (held - 1)).astype(np.int64)) % held
    return pool, first, second


def _products(rows: NDArray[Any], first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """Return x'y and |x| |y| of pairs of rows, in float64, a few pairs at a time."""
    step = strip_rows(rows.shape[1])
    products, norms = np.empty(len(first)), np.empty(len(first))
    for i in range(0, len(first), step):
        left, right = (rows[places[i : i + step]].astype(np.float64) for places in (first, second))
        products[i : i + step] = np.einsum("ij,ij->i", left, right)
        norms[i : i + step] = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return products, norms
