"""The growing basis of a Krylov run: orthonormal rows, their products with A, and what follows from both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bigpca.solvers.eigh import top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

STRIP = 4096  # entries of long rows worked on at a time
EPS = float(np.finfo(np.float64).eps)
ORTHONORMAL = 1e-14  # largest entry of a Gram matrix minus I that needs no correction
RELIABLE = 1e-3  # directions of given products below this share are dropped: they would only magnify rounding
INDEPENDENT = 0.1  # what a new direction must keep of its length when it is made orthogonal once more
RANDOM_RANK = 1e-8


class KrylovBasis:
    """Orthonormal rows B, their products A B, and the projection ``H = B A B'``.

    NOTE: vectors are rows here, so a block is contiguous; the caller sees columns, as transposed views.

    Parameters
    ----------
    most_columns : how many vectors it can hold; at most N are used. Memory is touched only as it fills.
    N : length of a vector.
    seed : of the random vectors.
    beside : columns that :meth:`fill` can put beside a new block, so that both are multiplied as one array.

    Attributes
    ----------
    count : vectors held.
    vectors, products : ndarray with rows of length N; the first ``count`` are filled.
    directions : ndarray of shape (r, N); what :meth:`fill` makes the next block from, which is its workspace.
    """

    def __init__(self, most_columns: int, N: int, seed: int, beside: int = 0) -> None:
        self.N, self.size, self.count = N, min(most_columns, N), 0
        self.vectors, self.products = np.empty((self.size + beside, N)), np.empty((self.size, N))
        self.directions: Matrix = self.vectors[:0]
        self._H = np.zeros((self.size, self.size))
        self._rng = np.random.default_rng(seed)

    def adopt(self, B: Matrix, AB: Matrix) -> None:
        """Take B (N, c) with A B, made orthonormal; what is so already stays as it is, to the bit.

        Raises
        ------
        ValueError
            When the shapes do not fit.
        """
        N, c = B.shape
        if AB.shape != B.shape or self.N != N or c > self.size:
            raise ValueError(
                f"the given products have shapes {B.shape} and {AB.shape}, but both must be ({self.N}, c) with "
                f"c <= {self.size}, the columns that the basis can hold."
            )
        self.vectors[:c], self.products[:c] = B.T, AB.T
        for _ in range(2):
            C = _orthonormaliser(self.vectors[:c] @ self.vectors[:c].T, RELIABLE)
            if C is not None:
                c = len(C)
                _combine(C, self.vectors)
                _combine(C, self.products)
        self._H[:c, :c] = self.vectors[:c] @ self.products[:c].T
        self.count = c

    def fill(self, block: int, smallest: float, beside: Matrix | None = None) -> Matrix:
        """Return ``block`` new orthonormal vectors as columns, to be multiplied and given to :meth:`close`.

        They span ``directions``, of which those below ``smallest`` (where 1 is the longest row) are dropped as
        rounding; random ones take their place. Fewer where the basis is nearly full. The columns ``beside`` (N, r),
        which the basis does not keep, come after them in the same array: nothing is copied but these.
        """
        c, stop = self.count, min(self.count + block, self.size)
        rows, self.directions = self.directions, self.vectors[:0]
        end = self._append(rows, c, stop, smallest)
        while end < stop:
            end = self._append(self._rng.standard_normal((stop - end, self.N)), end, stop, RANDOM_RANK)
        if beside is not None:
            end = stop + beside.shape[1]
            self.vectors[stop:end] = beside.T
        columns: Matrix = self.vectors[c:end].T
        return columns

    def close(self, product: Matrix) -> None:
        """Store the product (N, block) of the vectors that :meth:`fill` returned."""
        c, stop = self.count, self.count + product.shape[1]
        self.products[c:stop] = product.T
        self._H[c:stop, :stop] = self.products[c:stop] @ self.vectors[:stop].T
        self._H[:c, c:stop] = self.products[:c] @ self.vectors[c:stop].T
        self.count = stop

    def ritz(self) -> tuple[Vector, Matrix]:
        """Return the Ritz values (c,), descending, and their coefficients in the basis as rows (c, c)."""
        H = self._H[: self.count, : self.count]
        return top_eigenpairs((H + H.T) / 2)

    def residuals(self, values: Vector, coefficients: Matrix, kept: int) -> Matrix:
        """Return ``r r'`` (c, c) of the residuals ``r = (A u - theta u) / theta_1`` of all Ritz pairs.

        The first ``kept`` are the next directions; they lie where the next block will, if there is room. They are
        computed as rows, and only then multiplied: the Gram matrix of the products, less ``Theta^2``, would keep half
        the digits, none where theta_1 is 1e8 theta_i.
        """
        c, scaled = self.count, coefficients / (values[0] or 1.0)
        weighted = values[:, None] * scaled
        rows = self.vectors[c : c + kept] if c + kept <= self.size else np.empty((kept, self.N))
        gram = np.zeros((c, c))
        for j in range(0, self.N, STRIP):
            strip = scaled @ self.products[:c, j : j + STRIP]
            strip -= weighted @ self.vectors[:c, j : j + STRIP]
            rows[:, j : j + STRIP] = strip[:kept]
            gram += strip @ strip.T
        self.directions = rows
        return gram

    def remainder(self, weights: Vector, coefficients: Matrix, Q: Matrix, product: Matrix) -> tuple[Matrix, Matrix]:
        """Return ``(I - BB') Q`` and ``(A - A_hat) Q`` for the product ``A Q``, with ``A_hat =
        sum_i A u_i weights_i (A u_i)'``.

        The second is orthogonal to the basis, on which A_hat is exact: what rounding leaves along it, of the
        size of theta_1, is taken out.
        """
        B, P = self.vectors[: self.count], self.products[: self.count]
        missed: Matrix = product - P.T @ (coefficients.T @ (weights[:, None] * (coefficients @ (P @ Q))))
        missed -= B.T @ (B @ missed)
        return Q - B.T @ (B @ Q), missed

    def begin_again(self, coefficients: Matrix) -> None:
        """Drop all vectors; the images ``A u`` of those with these coefficients (r, c) are the next directions."""
        self.directions, self.count = coefficients @ self.products[: self.count], 0

    def restart(self, values: Vector, coefficients: Matrix) -> None:
        """Keep only these Ritz vectors (r, c), with their products: linear combinations, no multiplication."""
        r = self.count = len(values)
        _combine(coefficients, self.vectors)
        _combine(coefficients, self.products)
        self._H[:r, :r] = np.diag(values)

    def _append(self, rows: Matrix, start: int, stop: int, smallest: float) -> int:
        """Write rows, made orthonormal to the basis and to each other, from row ``start``; return where they end."""
        for attempt in range(4):
            coefficients = rows @ self.vectors[:start].T
            overlap = float(np.max(np.abs(coefficients), initial=0.0))
            if attempt and overlap <= ORTHONORMAL and _is_identity(rows @ rows.T):
                break
            for j in range(0, self.N, STRIP):
                rows[:, j : j + STRIP] -= coefficients @ self.vectors[:start, j : j + STRIP]
            C = _orthonormaliser(rows @ rows.T, INDEPENDENT if attempt else smallest)
            rows = rows if C is None else _combine(C, rows)
        end = min(start + len(rows), stop)
        self.vectors[start:end] = rows[: end - start]
        return end


def orthonormal_columns(parts: Sequence[Matrix], seed: int) -> Matrix:
    """Return orthonormal columns (N, l) that span those of all parts (N, l_i), in a third of the
    time of Householder's QR.

    Random columns take the place of directions that the rounding of their Gram matrix hides, about 1e-7 of the longest.
    """
    rows = np.vstack([part.T for part in parts])
    basis = KrylovBasis(len(rows), rows.shape[1], seed)
    basis.directions = rows
    return basis.fill(len(rows), RANDOM_RANK)


def _is_identity(gram: Matrix) -> bool:
    return float(np.max(np.abs(gram - np.eye(len(gram))), initial=0.0)) <= ORTHONORMAL


def _orthonormaliser(gram: Matrix, smallest: float) -> Matrix | None:
    """Return C (r, m) that makes rows with this Gram matrix orthonormal, or None when they are so to rounding.

    From its eigenpairs (Stathopoulos & Wu 2002); singular values below ``smallest``, and what the rounding of the Gram
    matrix hides, are dropped. The leading directions come first.
    """
    if _is_identity(gram):
        return None
    g, V = top_eigenpairs(gram)
    kept = g > max(smallest**2, len(g) * EPS * g[0])
    C: Matrix = V[kept] / np.sqrt(g[kept])[:, None]
    return C


def _combine(C: Matrix, rows: Matrix) -> Matrix:
    """Overwrite the first r rows by ``C rows[:m]`` for C (r, m), strip by strip, and return them."""
    r, m = C.shape
    for j in range(0, rows.shape[1], STRIP):
        rows[:r, j : j + STRIP] = C @ rows[:m, j : j + STRIP]
    return rows[:r]
