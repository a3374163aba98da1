"""The growing basis of a Krylov run: orthonormal rows, their products with A, and what follows from both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.strips import Strip, each_strip, sum_strips

EPS = float(np.finfo(np.float64).eps)
SETTLED = 0.01  # of the rounding of a product: a shorter remainder is zero
SMALL = 1e-3  # overlap of unit vectors, where one subtraction leaves rounding
ORTHONORMAL = 1e-14  # largest entry of a Gram matrix minus I that needs no correction
RELIABLE = 1e-3  # directions of given products below this share are dropped: they would only magnify rounding
INDEPENDENT = 0.1  # what a new direction must keep of its length when it is made orthogonal once more
RANDOM_RANK = 1e-8


class KrylovBasis:
    """Orthonormal rows B, and the products A B as ``B A = H B + R``: the projection H, and remainders R outside of B.

    A remainder vanishes once its directions are in the basis, as those of a block are after the next one: only the
    others are worked on.

    NOTE: vectors are rows here, so a block is contiguous; the caller sees columns, as transposed views. H and R are
    those of ``A / 2^exponent``, so that no square leaves the range of float64.

    Parameters
    ----------
    most_columns : how many vectors it can hold; at most N are used. Memory is touched only as it fills.
    N : length of a vector.
    seed : of the random vectors.
    beside : columns that :meth:`fill` can put beside a new block, so that both are multiplied as one array.

    Attributes
    ----------
    count : vectors held.
    vectors, remainders : ndarray with rows of length N; the first ``count`` are filled.
    settled : how many of the leading remainders are zero but for rounding.
    directions : ndarray of shape (r, N); what :meth:`fill` makes the next block from, which is its workspace.
    """

    def __init__(self, most_columns: int, N: int, seed: int, beside: int = 0) -> None:
        self.N, self.size, self.count, self.settled = N, min(most_columns, N), 0, 0
        self.vectors, self.remainders = np.empty((self.size + beside, N)), np.empty((self.size, N))
        self.directions: Matrix = self.vectors[:0]
        self.exponent = 0
        self._H = np.zeros((self.size, self.size))
        self._rng = np.random.default_rng(seed)

    @property
    def projection(self) -> Matrix:
        """``H`` (c, c), symmetric: the rounding of the products leaves an antisymmetric part, which is dropped."""
        H = self._H[: self.count, : self.count]
        return (H + H.T) / 2

    @property
    def outside(self) -> Matrix:
        """The remainders (c - settled, N) that are not zero."""
        return self.remainders[self.settled : self.count]

    def adopt(self, B: Matrix, AB: Matrix, precision: float) -> None:
        """Copy B (N, c) with A B and its relative rounding, made orthonormal; what is so already stays, to the bit.

        Raises
        ------
        ValueError
            If the shapes do not fit.
        """
        N, c = B.shape
        if AB.shape != B.shape or self.N != N or c > self.size:
            raise ValueError(
                f"the given products have shapes {B.shape} and {AB.shape}, but both must be ({self.N}, c) with "
                f"c <= {self.size}, the columns that the basis can hold."
            )
        self.exponent = _exponent(AB)
        self.vectors[:c] = B.T
        np.ldexp(AB.T, -self.exponent, out=self.remainders[:c])
        # Orthonormal to rounding after two steps of Cholesky QR; products are combined alike.
        for _ in range(2):
            gram = _gram(self.vectors[:c])
            longest = float(np.sqrt(np.max(gram.diagonal(), initial=0.0)))  # B has the units of the scale it was given
            C = _orthonormaliser(gram, RELIABLE * min(1.0, longest))
            if C is None:
                break
            c = len(C)
            _combine(C, self.vectors)
            _combine(C, self.remainders)
        self._split(c, precision)

    def fill(self, block: int, smallest: float, beside: Matrix | None = None) -> Matrix:
        """Return ``block`` new orthonormal vectors as columns, to be multiplied and given to :meth:`close`.

        They span ``directions``, which are orthogonal to the basis but for rounding; those below ``smallest`` (where 1
        is the longest row) are dropped as rounding; random ones take their place. Fewer where the basis is nearly full.
        The columns ``beside`` (N, r), which the basis does not keep, come after them in the same array: nothing is
        copied but these.
        """
        c, stop = self.count, min(self.count + block, self.size)
        rows, self.directions = self.directions, self.vectors[:0]
        end = self._append(rows, c, stop, smallest, orthogonal=True)
        while end < stop:
            end = self._append(self._rng.standard_normal((stop - end, self.N)), end, stop, RANDOM_RANK)
        if beside is not None:
            end = stop + beside.shape[1]
            self.vectors[stop:end] = beside.T
        return self.vectors[c:end].T

    def close(self, product: Matrix, precision: float) -> None:
        """Store the product (N, block) of the vectors that :meth:`fill` returned, with its relative rounding."""
        stop = self.count + product.shape[1]
        if not self.count:
            self.exponent = _exponent(product)
        np.ldexp(product.T, -self.exponent, out=self.remainders[self.count : stop])
        self._split(stop, precision)

    def _split(self, stop: int, precision: float) -> None:
        """Split the new products into H and remainders, and take the new vectors out of the earlier remainders."""
        c, s, V, R = self.count, self.settled, self.vectors, self.remainders
        # H = V A V' grows by the rows of the new block, and by its columns against remainders that still change.
        new = sum_strips(lambda j: R[c:stop, j] @ V[:stop, j].T, self.N)
        old = sum_strips(lambda j: R[s:c, j] @ V[c:stop, j].T, self.N)

        def subtract(j: Strip) -> Vector:
            # R = V A - H V: what of the products lies outside of the basis.
            R[c:stop, j] -= new @ V[:stop, j]
            R[s:c, j] -= old @ V[c:stop, j]
            part: Vector = np.einsum("ij,ij->i", R[s:stop, j], R[s:stop, j])
            return part

        squares = sum_strips(subtract, self.N)
        self._H[c:stop, :stop] = new
        self._H[:s, c:stop], self._H[s:c, c:stop] = 0.0, old
        # A vector has settled where its remainder is rounding: its product lies in the basis.
        left = np.flatnonzero(squares > (SETTLED * precision) ** 2 * np.sum(self._H[s:stop, :stop] ** 2, axis=1))
        self.count, self.settled = stop, s + int(left[0]) if len(left) else stop

    def ritz(self) -> tuple[Vector, Matrix]:
        """Return the Ritz values (c,), descending, and their coefficients in the basis as rows (c, c)."""
        values, coefficients = top_eigenpairs(self.projection)
        return np.ldexp(values, self.exponent), coefficients

    def residuals(self, unit: float, coefficients: Matrix, kept: int) -> Matrix:
        """Return ``r r'`` (c, c) of the residuals ``r = (A u - theta u) / unit`` of all Ritz pairs.

        The first ``kept`` are the next directions; they lie where the next block will, if there is room. They are
        computed as rows, and only then multiplied: from the Gram matrix of the remainders small residuals would keep
        half the digits, none where theta_1 is 1e8 theta_i.
        """
        c, outside = self.count, self.outside
        scaled = coefficients[:, self.settled :] / np.ldexp(unit, -self.exponent)
        rows = self.vectors[c : c + kept] if c + kept <= self.size else np.empty((kept, self.N))

        def multiply(j: Strip) -> Matrix:
            strip = scaled @ outside[:, j]
            rows[:, j] = strip[:kept]
            product: Matrix = strip @ strip.T
            return product

        self.directions = rows
        return sum_strips(multiply, self.N)

    def inner(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """Return the inner products of rows (r, N) with the vectors (r, c), and with :attr:`outside`."""
        V, R = self.vectors[: self.count], self.outside
        both = sum_strips(lambda j: np.hstack([rows[:, j] @ V[:, j].T, rows[:, j] @ R[:, j].T]), self.N)
        return both[:, : self.count], both[:, self.count :]

    def rows(self, inside: Matrix, outside: Matrix, into: Matrix | None = None) -> Matrix:
        """Return ``inside B + outside R`` (r, N), subtracted from ``into`` in place if that is given."""
        V, R = self.vectors[: self.count], self.outside
        result = np.empty((len(inside), self.N)) if into is None else into

        def combine(j: Strip) -> None:
            strip = inside @ V[:, j]
            strip += outside @ R[:, j]
            result[:, j] = strip if into is None else result[:, j] - strip

        each_strip(combine, self.N)
        return result

    def remainder(
        self, weights: Vector, coefficients: Matrix, Q: Matrix, product: Matrix
    ) -> tuple[Matrix, Matrix, Matrix]:
        """Return ``(I - BB') Q``, ``(A - A_hat) Q`` and ``(I - BB') A_hat (I - BB') Q`` for the product ``A Q``, with
        ``A_hat = sum_i A u_i weights_i (A u_i)'``.

        The second is orthogonal to the basis, on which A_hat is exact: ``(I - BB') A Q - R'C' weights C (H B + R) Q``.
        Rounding leaves a share of theta_1 along the basis, which is taken out once more.
        """
        r, C = Q.shape[1], coefficients[:, self.settled :]
        rows = np.vstack([Q.T, np.ldexp(product.T, -self.exponent)])
        inside, outside = self.inner(rows)
        images, lifted = inside[:r] @ self.projection @ coefficients.T, np.ldexp(weights, self.exponent)
        beyond = outside[:r] @ C.T
        seen = np.zeros((2 * r, C.shape[1]))
        seen[r:] = ((images + beyond) * lifted) @ C
        self.rows(inside, seen, rows)
        self._subtract_overlap(rows[r:], self.count)
        hidden = self.rows(np.zeros((r, self.count)), (beyond * lifted) @ C)
        return rows[:r].T, np.ldexp(rows[r:], self.exponent, out=rows[r:]).T, np.ldexp(hidden, self.exponent).T

    def restart_from_images(self, coefficients: Matrix) -> None:
        """Drop all vectors; the images ``A u`` of those with these coefficients (r, c) are the next directions."""
        images = self.rows(coefficients @ self.projection, coefficients[:, self.settled :])
        self.directions = np.ldexp(images, self.exponent, out=images)
        self.count = self.settled = 0

    def restart(self, values: Vector, coefficients: Matrix) -> None:
        """Keep only these Ritz vectors (r, c), with their products: linear combinations, no multiplication."""
        r = len(values)
        _combine(coefficients, self.vectors)
        _combine(coefficients[:, self.settled :], self.outside, self.remainders)
        self._H[:r, :r] = np.diag(np.ldexp(values, -self.exponent))
        self.count, self.settled = r, 0

    def _append(self, rows: Matrix, start: int, stop: int, smallest: float, orthogonal: bool = False) -> int:
        """Write rows, made orthonormal to the basis and to each other, from row ``start``; return where they end.

        Combining rows magnifies their overlap with the basis by as much as they grow. What a subtraction leaves of an
        overlap below ``SMALL`` is rounding.
        """
        for attempt in range(4):
            if not orthogonal:
                orthogonal = self._subtract_overlap(rows, start) <= SMALL
            C = _orthonormaliser(_gram(rows), INDEPENDENT if attempt else smallest)
            if C is None and orthogonal:
                break
            rows = rows if C is None else _combine(C, rows)
            orthogonal = orthogonal and bool(attempt)
        end = min(start + len(rows), stop)
        self.vectors[start:end] = rows[: end - start]
        return end

    def _subtract_overlap(self, rows: Matrix, start: int) -> float:
        """Make rows orthogonal to the first vectors, in place, and return the largest inner product they had."""
        if not start:
            return 0.0
        V = self.vectors[:start]
        overlap = sum_strips(lambda j: rows[:, j] @ V[:, j].T, self.N)

        def subtract(j: Strip) -> None:
            rows[:, j] -= overlap @ V[:, j]

        each_strip(subtract, self.N)
        return float(np.max(np.abs(overlap), initial=0.0))


def orthonormal_columns(parts: Sequence[Matrix], seed: int) -> Matrix:
    """Return orthonormal columns (N, l) that span those of all parts (N, l_i), in a third of the
    time of Householder's QR.

    Random columns replace directions that the rounding of their Gram matrix hides, about 1e-7 of the longest.
    """
    rows = np.vstack([part.T for part in parts])
    basis = KrylovBasis(len(rows), rows.shape[1], seed)
    basis.directions = rows
    return basis.fill(len(rows), RANDOM_RANK)


def _orthonormaliser(gram: Matrix, smallest: float) -> Matrix | None:
    """Return C (r, m) that makes rows with this Gram matrix orthonormal, or None when they are so to rounding.

    From its eigenpairs (Stathopoulos & Wu 2002); singular values below ``smallest``, and what the rounding of the Gram
    matrix hides, are dropped. The leading directions come first.
    """
    if np.max(np.abs(gram - np.eye(len(gram))), initial=0.0) <= ORTHONORMAL:
        return None
    g, V = top_eigenpairs(gram)
    kept = g > max(smallest**2, len(g) * EPS * g[0])
    C: Matrix = V[kept] / np.sqrt(g[kept])[:, None]
    return C


def _combine(C: Matrix, rows: Matrix, into: Matrix | None = None) -> Matrix:
    """Write ``C rows[:m]`` for C (r, m) over the first r rows of ``into``, or of ``rows`` itself, and return them."""
    r, m = C.shape
    result = rows if into is None else into

    def combine(j: Strip) -> None:
        result[:r, j] = C @ rows[:m, j]

    each_strip(combine, rows.shape[1])
    return result[:r]


def _gram(rows: Matrix) -> Matrix:
    return sum_strips(lambda j: rows[:, j] @ rows[:, j].T, rows.shape[1])


def _exponent(product: Matrix) -> int:
    """Return the binary exponent of the largest entry of a product."""
    largest = max(float(np.max(product, initial=0.0)), -float(np.min(product, initial=0.0)))
    if not np.isfinite(largest):
        raise ValueError(f"the product holds {largest}, so it has no eigenvalues. Check the data.")
    return int(np.frexp(largest)[1])
