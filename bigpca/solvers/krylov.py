"""Block Krylov iteration: leading eigenpairs of a matrix available only as products, each a read of all data.

In reading order: the growing basis of a run (orthonormal rows, their products with A, and what follows from both), the
Ritz pairs of a basis with their residuals, the approximation that the basis makes, what is given and returned, the
probes that bound the error of the pairs, and the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
from scipy.linalg import qr

from bigpca.arrays import Matrix, Vector, norm_of
from bigpca.blas import solving_alone
from bigpca.solvers.certificates import FAILURE, probe_quantile
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.nystrom import SHIFT, orthonormal_rows
from bigpca.solvers.strips import PARTS, STRIP_WIDTH, Strip, each_strip, sum_strips

EPS = float(np.finfo(np.float64).eps)
SETTLED = 0.01  # of the rounding of a product: a shorter remainder is zero
SMALL = 1e-3  # overlap of unit vectors, where one subtraction leaves rounding
ORTHONORMAL = 1e-14  # largest entry of a Gram matrix minus I that needs no correction
RELIABLE = 1e-3  # directions of given products below this share are dropped: they would only magnify rounding
INDEPENDENT = 0.1  # what a new direction must keep of its length when it is made orthogonal once more
RANDOM_RANK = 1e-8
FLOOR = 10.0  # of the precision, relative to theta_1: an eigenvalue below it is rounding
GRAM = 32.0  # times eps: rounding of a Gram matrix relative to its largest eigenvalue
OUTSIDE = 1e-4  # of the square of a column: with less of it outside the basis, it carries no information on E
NOISE = 4.0  # times precision: parts of a residual below this share of theta_1 are rounding, not directions
SAFETY = 1.5  # times the error at rho, because rho <= |E|_2
SPREAD = 0.5  # times the error at rho + sigma, which is rarely below that at |E|_2
MIN_STEPS = 2  # products with the probes before rho is used: a first product shows an average of E
PATIENCE = 3  # multiplications without progress before giving up, beside those that make up for a restart


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
        """Copy B (N, c) with A B and its relative rounding, made orthonormal; what is so already stays, to the bit."""
        c = B.shape[1]
        self.exponent = _exponent(AB)
        self.vectors[:c] = B.T
        np.ldexp(AB.T, -self.exponent, out=self.remainders[:c])
        # Orthonormal to rounding after two steps of Cholesky QR; products are combined alike.
        for _ in range(2):
            gram = _gram(self.vectors[:c])
            longest = float(np.sqrt(np.max(gram.diagonal(), initial=0.0)))  # B has the units of the scale it was given
            # Directions below this share would be divided by little, and their products' rounding with them.
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
            # Nothing left in this direction: any others will do, since a basis of fewer columns would waste the read.
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
        new = sum_strips(lambda j: R[c:stop, j] @ V[:stop, j].T, self.N, (stop - c) * stop)
        old = sum_strips(lambda j: R[s:c, j] @ V[c:stop, j].T, self.N, (c - s) * (stop - c))

        def subtract(j: Strip) -> Vector:
            # R = V A - H V: what of the products lies outside of the basis.
            R[c:stop, j] -= new @ V[:stop, j]
            R[s:c, j] -= old @ V[c:stop, j]
            part: Vector = np.einsum("ij,ij->i", R[s:stop, j], R[s:stop, j])
            return part

        squares = sum_strips(subtract, self.N, (stop - c) * stop)
        self._H[c:stop, :stop] = new
        self._H[:s, c:stop], self._H[s:c, c:stop] = 0.0, old
        # A vector has settled where its remainder is rounding: its product lies in the basis.
        left = np.flatnonzero(squares > (SETTLED * precision) ** 2 * np.sum(self._H[s:stop, :stop] ** 2, axis=1))
        self.count, self.settled = stop, s + int(left[0]) if len(left) else stop

    def ritz(self) -> tuple[Vector, Matrix]:
        """Return the Ritz values (c,), descending, and their coefficients in the basis as rows (c, c)."""
        # Rayleigh-Ritz: A on the span of B is H, and A (B c) = theta (B c) + R c for H c = theta c.
        values, coefficients = top_eigenpairs(self.projection)
        return np.ldexp(values, self.exponent), coefficients

    def residuals(self, unit: float, coefficients: Matrix, kept: int) -> Matrix:
        """Return ``r r'`` (c, c) of the residuals ``r = (A u - theta u) / unit`` of all Ritz pairs.

        The first ``kept`` are the next directions; they lie where the next block will, if there is room. They are
        computed as rows, and only then multiplied: from the Gram matrix of the remainders small residuals would keep
        half the digits, none where theta_1 is 1e8 theta_i.
        """
        c, outside = self.count, self.outside
        # A (B c) - theta (B c) = R c, and the settled part of R is 0.
        scaled = coefficients[:, self.settled :] / np.ldexp(unit, -self.exponent)
        rows = self.vectors[c : c + kept] if c + kept <= self.size else np.empty((kept, self.N))

        def multiply(j: Strip) -> Matrix:
            strip = scaled @ outside[:, j]
            rows[:, j] = strip[:kept]
            product: Matrix = strip @ strip.T
            return product

        self.directions = rows
        return sum_strips(multiply, self.N, len(scaled) * (len(scaled) + len(outside)))

    def inner(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """Return the inner products of rows (r, N) with the vectors (r, c), and with :attr:`outside`."""
        V, R = self.vectors[: self.count], self.outside
        each = len(rows) * (len(V) + len(R))
        both = sum_strips(lambda j: np.hstack([rows[:, j] @ V[:, j].T, rows[:, j] @ R[:, j].T]), self.N, each)
        return both[:, : self.count], both[:, self.count :]

    def rows(self, inside: Matrix, outside: Matrix, into: Matrix | None = None) -> Matrix:
        """Return ``inside B + outside R`` (r, N), subtracted from ``into`` in place if that is given."""
        V, R = self.vectors[: self.count], self.outside
        result = np.empty((len(inside), self.N)) if into is None else into

        def combine(j: Strip) -> None:
            strip = inside @ V[:, j]
            strip += outside @ R[:, j]
            result[:, j] = strip if into is None else result[:, j] - strip

        each_strip(combine, self.N, len(inside) * (len(V) + len(R)))
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
        # Along Ritz vectors u: (A u_i)'q = theta_i u_i'q + r_i'q, from B'q and R'q alone.
        images, lifted = inside[:r] @ self.projection @ coefficients.T, np.ldexp(weights, self.exponent)
        beyond = outside[:r] @ C.T
        seen = np.zeros((2 * r, C.shape[1]))
        seen[r:] = ((images + beyond) * lifted) @ C
        # Along B, A_hat is exact, so all of it goes; outside, what A_hat has of A Q.
        self.rows(inside, seen, rows)
        self._subtract_overlap(rows[r:], self.count)
        hidden = self.rows(np.zeros((r, self.count)), (beyond * lifted) @ C)
        return rows[:r].T, np.ldexp(rows[r:], self.exponent, out=rows[r:]).T, np.ldexp(hidden, self.exponent).T

    def restart_from_images(self, coefficients: Matrix) -> None:
        """Drop all vectors; the images ``A u`` of those with these coefficients (r, c) are the next directions."""
        # A (B c) = B H c + R c: the images are in the stored products, and need no multiplication.
        images = self.rows(coefficients @ self.projection, coefficients[:, self.settled :])
        self.directions = np.ldexp(images, self.exponent, out=images)
        self.count = self.settled = 0

    def restart(self, values: Vector, coefficients: Matrix) -> None:
        """Keep only these Ritz vectors (r, c), with their products: linear combinations, no multiplication."""
        r = len(values)
        _combine(coefficients, self.vectors)
        _combine(coefficients[:, self.settled :], self.outside, self.remainders)
        # In Ritz vectors the projection is diagonal, and their remainders are residuals.
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
        each = len(rows) * start
        # All inner products first, then all subtractions: classical Gram-Schmidt by matrix products. One step leaves
        # rounding.
        overlap = sum_strips(lambda j: rows[:, j] @ V[:, j].T, self.N, each)

        def subtract(j: Strip) -> None:
            rows[:, j] -= overlap @ V[:, j]

        each_strip(subtract, self.N, each)
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
    # With G = V g V', C = g^-1/2 V' has C G C' = I; g below eps g_1 is rounding of G.
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

    each_strip(combine, rows.shape[1], r * m)
    return result[:r]


def _gram(rows: Matrix) -> Matrix:
    return sum_strips(lambda j: rows[:, j] @ rows[:, j].T, rows.shape[1], len(rows) ** 2)


def _exponent(product: Matrix) -> int:
    """Return the binary exponent of the largest entry of a product."""
    largest = max(float(np.max(product, initial=0.0)), -float(np.min(product, initial=0.0)))
    if not np.isfinite(largest):
        raise ValueError(f"the product holds {largest}, so it has no eigenvalues. Check the data.")
    return int(np.frexp(largest)[1])


Wanted = int | Callable[[Vector], int]


@dataclass(frozen=True)
class RitzPairs:
    """Ritz pairs (theta_i, u_i) of a basis B of c columns, the number k (at most c) that is
    wanted, and what bounds the others.

    With the residuals ``r_i = A u_i - theta_i u_i``, orthogonal to B, and ``Z = R Theta^-1/2 = Q T^1/2 V'``
    by its Gram matrix ``Z'Z = V T V'``, the Nyström approximation is ``A_hat = (U Theta^1/2 + Z)(U Theta^1/2
    + Z)'``: its eigenvalues are those of ``Theta + Z'Z``, and in the basis [U, Q] it is ``[[Theta, K], [K',
    T]]`` with ``K = Theta^1/2 V T^1/2``.

    Attributes
    ----------
    values : ndarray of shape (c,), descending; coefficients : ndarray of shape (c, c), rows.
    gram : ndarray of shape (c, c); ``R'R / theta_1^2``.
    residuals : ndarray of shape (k,); norms of the first.
    nystrom_values : ndarray of shape (c,), between the Ritz values and the eigenvalues.
    coupling, outside : ndarray of shape (c, p), (p,); K and T, divided by theta_1.
    size : int; N.
    unit : float; theta_1.
    floor : float; F = 10 precision theta_1, below which an eigenvalue is rounding.
    tol : float
    shift : float; A is this multiple of I more than the matrix whose eigenvalues are wanted.
    complete : bool; whether the basis has as many columns as pairs are wanted.
    block : columns of the next block.
    """

    values: Vector
    coefficients: Matrix
    gram: Matrix
    residuals: Vector
    nystrom_values: Vector
    coupling: Matrix
    outside: Vector
    size: int
    unit: float
    floor: float
    tol: float
    shift: float
    complete: bool
    block: int

    @property
    def k(self) -> int:
        return len(self.residuals)

    @property
    def weights(self) -> Vector:
        """What ``(A u_i)(A u_i)'`` count in A_hat: ``1 / theta_i``, kept finite where theta_i vanishes."""
        return 1.0 / _lifted(self.values, self.floor)

    @property
    def scales(self) -> Vector:
        """What errors of the k values are compared with: ``max(nu_i, F / tol)``."""
        scales = np.maximum(self.nystrom_values[: self.k] - self.shift, self.floor / self.tol)
        return np.where(scales > 0, scales, 1.0)

    def unresolved(self, trace: float, error: float) -> int:
        """Return how many of the k values lie below ``F / tol``, where rounding hides a relative error of tol.

        The count is 0 if the resolved values leave at most k F: no value of interest is missing. They leave the rest of
        the trace; of a shifted matrix, whose trace does not bound a value, the value itself and its ``error``.
        """
        nu = self.nystrom_values[: self.k] - self.shift
        resolved = nu[nu >= self.floor / self.tol]
        left = trace - float(resolved.sum())
        if self.shift and len(resolved) < self.k:
            left = float(nu[len(resolved)]) + error * self.floor / self.tol
        return 0 if left <= self.k * self.floor else self.k - len(resolved)

    def upper_values(self, norm: float, first: int = 0, *, outer: bool = False) -> Vector:
        """Bound the k largest eigenvalues of A from above, if ``|A - A_hat|_2 <= norm``: the
        majorant ``A_hat + norm (I - BB')``.

        The remainder is zero on B, so an error norm counts only as far as eigenvectors lie outside of B. Without the
        pairs before ``first``, the largest bounds ``|A - A_hat|_2`` of the Nyström approximation by these pairs alone:
        it exceeds this one by what the others hold. ``outer``: norm is one of ``(I - BB') A (I - BB')`` itself, and the
        majorant has it in place of T + norm: closer once the pairs are exact, whatever their neighbours are.
        """
        # In the basis [U, Q]: [[Theta, K], [K', T + mu I]], all divided by theta_1.
        values, coupling = self.values[first:], self.coupling[first:]
        c, p, mu = len(values), len(self.outside), norm / self.unit
        M = np.zeros((c + p, c + p))
        np.fill_diagonal(M, np.concatenate([values / self.unit, np.full(p, mu) if outer else self.outside + mu]))
        M[:c, c:] = coupling
        M[c:, :c] = coupling.T
        # Beyond [U, Q] the majorant is mu I: it may have eigenvalues among the k largest there, too.
        elsewhere = self.k if c + p < self.size else 0
        bounds = np.concatenate([np.linalg.eigvalsh(M), np.full(elsewhere, mu)])
        return self.unit * np.sort(bounds)[::-1][: self.k]

    def error_for(self, norm: float, *, outer: bool = False) -> float:
        """Return the largest relative error of the k values, if ``|A - A_hat|_2`` (or ``outer``) has this norm."""
        if not np.isfinite(norm):
            return np.inf
        excess = self.upper_values(norm, outer=outer) - self.nystrom_values[: self.k]
        return max(0.0, float(np.max(excess / self.scales)))


def ritz_pairs(
    basis: KrylovBasis, k: Wanted, block: int, *, tol: float, shift: float, precision: float, rank: int
) -> RitzPairs:
    """Measure the Ritz pairs of a basis, from its stored products, and leave it the next directions.

    Costs ``2 N c r + N c^2`` flops, r the remainders of the basis that are not zero.

    Raises
    ------
    ValueError
        When the basis cannot hold twice the wanted pairs.
    """
    values, coefficients = basis.ritz()
    wanted = min(int(k(values)) if callable(k) else k, basis.N)
    check_room(wanted, basis.size, basis.N, rank)
    c = basis.count
    block = min(max(block, wanted), max(basis.size - wanted, 1))
    unit = float(values[0]) or 1.0
    floor = FLOOR * max(precision, EPS) * float(values[0])
    # T = Theta^-1/2 (R'R) Theta^-1/2 = Z'Z, whose sum with Theta has A_hat's eigenvalues.
    gram = basis.residuals(unit, coefficients, min(block, c))
    roots = np.sqrt(unit / _lifted(values, floor))
    T = roots[:, None] * gram * roots
    nystrom = unit * top_eigenpairs(np.diag(values / unit) + T)[0]
    if callable(k):  # Ritz values are below the eigenvalues: fewer of the latter may meet the rule
        wanted = min(wanted, int(k(nystrom)))
    norms = np.sqrt(gram.diagonal()[:wanted]) * values[0]
    # K = Theta^1/2 V T^1/2: how Ritz vectors and the directions Q of the residuals are coupled in A_hat.
    outside, V = top_eigenpairs(T)
    p = min(c, basis.N - c)
    coupling = np.sqrt(values / unit)[:, None] * V[:p].T * np.sqrt(outside[:p])
    return RitzPairs(
        values,
        coefficients,
        gram,
        norms,
        nystrom,
        coupling,
        outside[:p],
        basis.N,
        unit,
        floor,
        tol,
        shift,
        wanted <= c,
        block,
    )


def _lifted(values: Vector, floor: float) -> Vector:
    """Ritz values kept away from 0, so that dividing by them does not magnify the rounding of residuals."""
    return values + max(floor, float(np.finfo(np.float64).tiny))


def check_room(k: int, columns: int, N: int, rank: int) -> None:
    """Reject more eigenpairs than there are, or than a basis of this size can hold twice (or all of, where it can)."""
    if not 1 <= k <= N:
        raise ValueError(f"{k} eigenpairs were requested, but a matrix of size {N} has 1 to {N}.")
    needed = max(k, min(2 * k, rank))
    if columns < needed:
        raise ValueError(
            f"{k} eigenpairs need a basis of {needed} columns, but only {columns} fit the memory limit. "
            "Request fewer components, or raise memory_limit."
        )


@dataclass(frozen=True)
class BasisApproximation:
    """``A_hat = A B (B'AB)^-1 (A B)'``: :class:`~bigpca.solvers.nystrom.NystromApproximation` with W = B orthonormal.

    With the Ritz pairs (theta_i, u_i) of the basis and their residuals r_i, orthogonal to it, the factor F of A_hat is
    ``f_i = (theta_i + nu)^1/2 u_i + (theta_i + nu)^-1/2 r_i``, so that small matrices and the residuals' Gram matrix
    replace any array as large as the basis.

    Attributes
    ----------
    values : ndarray of shape (c,), descending, >= 0; no larger than the eigenvalues of A but by rounding.
    vectors : ndarray of shape (k, N), orthonormal rows.
    shift : float; nu, added to A before the factorisation and subtracted from the values.
    """

    values: Vector
    vectors: Matrix
    shift: float
    _basis: KrylovBasis = field(repr=False)
    _inside: Matrix = field(repr=False)  # (c, c) and (c, r): F' = inside B + outside R
    _outside: Matrix = field(repr=False)
    _lengths: Vector = field(repr=False)  # (c,); (theta_i + nu)^1/2
    _beyond: Matrix = field(repr=False)  # (p, c); F is that in orthonormal columns outside of the basis
    _mixing: Matrix = field(repr=False)  # (c, c); A_hat = 2^exponent F mixing F'
    _exponent: int = field(repr=False)

    @property
    def trace(self) -> float:
        """Trace of A_hat: the sum of all values."""
        return float(np.sum(self.values))

    @property
    def basis(self) -> Matrix:
        """B (N, c): the approximation is exact on these orthonormal columns."""
        return self._basis.vectors[: self._basis.count].T

    def divided(self, exponent: int) -> BasisApproximation:
        """Return the approximation of ``A / 2^exponent``."""
        values, shift = np.ldexp(self.values, -exponent), float(np.ldexp(self.shift, -exponent))
        return replace(self, values=values, shift=shift, _exponent=self._exponent - exponent)

    def multiply(self, omega: Matrix) -> Matrix:
        """Return ``A_hat omega`` (N, p) for omega (N, p); 4 N (c + r) p flops, r the remainders that are not zero."""
        # A_hat omega = F mixing (F'omega), with F' = inside B + outside R: two small products around a small matrix.
        inside, outside = self._basis.inner(np.ascontiguousarray(omega.T))
        weights = (inside @ self._inside.T + outside @ self._outside.T) @ self._mixing
        product = self._basis.rows(weights @ self._inside, weights @ self._outside)
        return np.ldexp(product, self._exponent, out=product).T

    def majorant_values(self, norm_bound: float, k: int) -> Vector:
        """Bound the k largest eigenvalues of A from above by those of ``A_hat + norm_bound (I - B B')``.

        ``A_hat B = A B``: the remainder ``A - A_hat`` is positive semi-definite and zero on B, so with ``|A - A_hat|_2
        <= norm_bound`` it is at most ``norm_bound (I - B B')``. Where a leading eigenvector lies in B up to an angle t,
        that adds ``norm_bound sin(t)^2`` to its eigenvalue, and not the whole norm_bound as Weyl's inequality does: an
        iteration that converges has bounds that close.

        Parameters
        ----------
        norm_bound : float
        k : int

        Returns
        -------
        ndarray of shape (k,), descending

        Notes
        -----
        In the orthonormal basis [U, Q] of the Ritz vectors and the residuals, the factor is ``[D; Z]``, with ``D`` its
        lengths and ``Z'Z`` the residuals' Gram matrix: the majorant is ``[D; Z] mixing [D; Z]' + norm_bound diag(0,
        I)``, and norm_bound elsewhere. It grows with Z'Z (a larger Z has the smaller one as a compression), whose
        rounding, ``GRAM eps |Z|^2``, is added to it: the root of what rounding hides would be too small by half the
        digits where eigenvalues equal norm_bound.
        """
        # [D; Z] is F in the orthonormal basis [U, Q].
        c = len(self._lengths)
        joint = np.vstack([np.diag(self._lengths), self._beyond])
        M = joint @ self._mixing @ joint.T
        norm = np.ldexp(norm_bound, -self._exponent)
        M[c:, c:] += norm * np.eye(len(self._beyond))
        values = np.concatenate([np.linalg.eigvalsh((M + M.T) / 2), np.full(k, norm)])
        bounds: Vector = np.ldexp(np.sort(values)[::-1][:k], self._exponent)
        return bounds


def approximate(basis: KrylovBasis, pairs: RitzPairs, *, precision: float) -> BasisApproximation:
    """Return the Nyström approximation of all products of a basis, with ``pairs.k`` eigenvectors.

    A is shifted by ``nu = 4 precision |A B|_F``, as in :func:`bigpca.solvers.nystrom.nystrom`; 2 N (c + r) k flops for
    the vectors, and those of a QR of them.

    Parameters
    ----------
    basis : KrylovBasis
    pairs : RitzPairs
        Of this basis.
    precision : float
        Relative rounding of the products.
    """
    # In Ritz vectors, B'AB = diag(theta), and gram = R'R of the remainders.
    theta = np.ldexp(pairs.values, -basis.exponent)
    gram = pairs.gram * np.ldexp(pairs.unit, -basis.exponent) ** 2
    nu = SHIFT * precision * float(np.sqrt(np.sum(theta**2) + np.trace(gram)))
    # F = A_nu B (B'A_nu B)^-1/2, so F'F = diag(theta + nu) + T with T what lies outside of the basis.
    lengths = np.sqrt(theta + nu)
    safe = np.where(lengths > 0, lengths, 1.0)
    T = gram / np.multiply.outer(safe, safe)
    # Eigenpairs of F F' from those of F'F, as in nystrom(); the shift is subtracted.
    squares, V = top_eigenpairs(np.diag(lengths**2) + T)
    values = np.maximum(squares - nu, 0.0)
    positive = np.where(squares > 0, squares, 1.0)
    C = pairs.coefficients
    # The vectors, as coefficients on the basis and on its remainders.
    inside, outside = lengths[:, None] * C, C[:, basis.settled :] / safe[:, None]
    used = squares[: pairs.k] > basis.N * EPS * squares[0]
    weights = V[: pairs.k] * (used / np.sqrt(positive[: pairs.k]))[:, None]
    vectors = orthonormal_rows(basis.rows(weights @ inside, weights @ outside))
    # T's own root: the triangular factor of the part outside, for the majorant.
    t, E = top_eigenpairs(T)
    t += GRAM * EPS * t[0]
    beyond = (np.sqrt(t)[:, None] * E)[: basis.N - basis.count]
    return BasisApproximation(
        np.ldexp(values, basis.exponent),
        vectors,
        float(np.ldexp(nu, basis.exponent)),
        basis,
        inside,
        outside,
        lengths,
        beyond,
        (V.T * (values / positive)) @ V,
        basis.exponent,
    )


class Multiplied(Protocol):
    """A symmetric positive semi-definite A of size N, given by its products, whose precision may be raised."""

    @property
    def trace(self) -> float:
        """Trace of A, with the rounding of the products."""

    @property
    def precision(self) -> float:
        """Relative rounding of the products: 1.2e-7 for float32, 2.2e-16 for float64."""

    def multiply(self, V: Matrix, /) -> Matrix:
        """Return ``A V`` (N, l)."""

    @property
    def refinable(self) -> bool:
        """Whether :meth:`refine` would make products more precise."""

    def refine(self) -> None:
        """Make later products, and the trace, more precise."""


@dataclass(frozen=True)
class Known:
    """The start of the iteration: a first block with its product, and probes.

    The basis holds copies, so a caller that drops these arrays frees their memory.

    Attributes
    ----------
    B, AB : ndarray of shape (N, c); any B with its product A B.
    probes : ndarray of shape (N, r); Gaussian columns with a covariance of at least I, on which no column of B depends.
    probe_products : ndarray of shape (N, r)
    """

    B: Matrix
    AB: Matrix
    probes: Matrix
    probe_products: Matrix


@dataclass(frozen=True)
class KrylovOptions:
    """Limits and tolerance of :func:`~bigpca.solvers.krylov.block_krylov`.

    Attributes
    ----------
    tol : float in (0, 1); relative error of each wanted eigenvalue.
    max_multiplications : int >= 0; each reads all data once.
    max_columns : int; the basis is restarted rather than exceed it. At least twice the wanted
        eigenpairs, or the rank of A.
    block : int; columns per multiplication, beside the probes.
    rank : int or None; the rank of A is at most this. None for N.
    shift : A is this multiple of I more than the matrix whose eigenvalues are wanted, and to which tol is relative.
    seed : of the random columns.
    threads : BLAS threads between multiplications; None leaves the process's setting.
    """

    tol: float
    max_multiplications: int
    max_columns: int
    block: int
    rank: int | None = None
    shift: float = 0.0
    seed: int = 0
    threads: int | None = None


@dataclass(frozen=True)
class KrylovResult:
    """The k leading eigenpairs, and why the iteration stopped.

    Attributes
    ----------
    approximation : BasisApproximation
        From all stored products: ``values`` and ``vectors``, its trace and basis, and products with probes.
    ritz_values, residuals : ndarray of shape (k,); ``residuals[i] = |A u_i - ritz_values[i] u_i|`` of the Ritz vectors.
    stopped : {"tol", "unresolved", "multiplications", "stagnation"}
        The reason: tol is met; tol is met except by values below the precision of the products; max_multiplications is
        reached; multiplications in a row, three or as many as make up for a restart, in which neither a value nor the
        estimated error moved by more than rounding.
    largest_error : float; estimate of the largest relative error of a value, which is compared with tol; of unresolved
        values, what rounding may be of the last.
    unresolved : int; how many of the last values lie below ``10 precision lambda_1 / tol``.
    norm_bound : float
        c_m: ``|A - A_hat|_2`` is at most this with probability 1 - 1e-3. Infinite where no probe was multiplied.
    multiplications : int; the products computed here.
    """

    approximation: BasisApproximation
    ritz_values: Vector
    residuals: Vector
    stopped: str
    largest_error: float
    unresolved: int
    norm_bound: float
    multiplications: int

    @property
    def converged(self) -> bool:
        return self.stopped == "tol"

    @property
    def values(self) -> Vector:
        """The k eigenvalues (k,): by Nyström, between the Ritz values and the true ones."""
        return self.approximation.values[: len(self.ritz_values)]

    @property
    def vectors(self) -> Matrix:
        """Orthonormal rows (k, N)."""
        return self.approximation.vectors

    @property
    def basis(self) -> Matrix:
        """The orthonormal columns (N, c) that were multiplied: the approximation is exact on them."""
        return self.approximation.basis


def krylov_bytes(N: int, columns: int, block: int, k: int, probes: int) -> int:
    """Peak bytes of :func:`~bigpca.solvers.krylov.block_krylov`, its result included.

    Basis and remainders, one block, and its product or the finish; strips and sums of several threads.

    Parameters
    ----------
    N : size of the matrix.
    columns : max_columns.
    block : columns per multiplication.
    k : eigenpairs wanted.
    probes : columns multiplied together with each block.

    Examples
    --------
    >>> f"{krylov_bytes(100_352, 300, 100, 50, 10) / 2**20:.0f} MiB"
    '821 MiB'
    """
    columns, block = min(columns, N), max(block, k)
    held = 16 * N * columns + 56 * N * probes + 160 * columns**2
    first = 16 * N * (min(2 * block, columns) + block + probes) - held  # what is known, and the copies of it
    sums = 8 * PARTS * (STRIP_WIDTH * (2 * columns + block) + columns**2)
    product = 16 * N * (block + probes) + 8 * N * block
    return held + max(first, product, 24 * N * k) + sums


def krylov_flops(N: int, block: int, k: int, products: int) -> float:
    """Floating-point operations of :func:`~bigpca.solvers.krylov.block_krylov` for so many products, beside them.

    Small eigenproblems are counted as 100 c^3, by their measured time.

    Examples
    --------
    >>> f"{krylov_flops(25_088, 100, 50, 3) / 1e9:.1f} Gflop"
    '34.8 Gflop'
    """
    bases = [min(block * i, N) for i in range(1, products + 1)]
    c = bases[-1]
    splits = sum(8.0 * b * block for b in bases)
    residuals = sum(2.0 * b * block + b * b for b in bases)
    orthogonal = 7.0 * block**2 * products + sum(4.0 * b * block for b in bases[:-1])
    finish = 4.0 * k * (c + block) + 4.0 * k * (2 * c + k)
    return N * (splits + residuals + orthogonal + finish) + 100.0 * c**3


Remainder = Callable[[Matrix, Matrix], tuple[Matrix, Matrix, Matrix]]  # of Q and A Q: (I - BB') Q and (A - A_hat) Q


class ProbeChain:
    """Norm of ``E_m = A - A_hat_m`` after each multiplication m, certified and as it is likely to be.

    With Gaussian probes g (N, r) that no basis depends on, and Nyström approximations A_hat_m from bases B_m::

        w_0 = g,    w_m = E_m w_(m-1) = A w_(m-1) - A_hat_m w_(m-1)
        c_m = min over j <= m of (|w_j|_2 / sqrt(x))^(1/j)                x the failure quantile of chi^2_r
        rho, y = largest eigenpair of E_m on the span of (I - B_m B_m') w_(m-1),    sigma = |E_m y - rho y|

    ``|E_m|_2 <= c_m`` but for the stated probability: ``E_1 >= ... >= E_m >= 0`` while the basis only grows, so a
    unit v with ``E_m v = lambda v`` has ``|v'E_m ... E_1| >= lambda^m``, and v'w_m is Gaussian with deviations of
    at least lambda^m. A restart makes E larger: what holds then is ``|E_m g|_2 / sqrt(x)``, and c_m with what it
    dropped. ``rho <= |E_m|_2``, and an eigenvalue of E_m lies within sigma of rho. The columns of w go on through
    restarts, since they have turned towards what converges last; of what a restart drops, the largest Ritz value is
    known instead.

    The chain is kept as ``w_m = Q R`` with orthonormal Q, and Q is what is multiplied: products of columns that grow
    parallel, or shrink as lambda^m does, would lose their digits (and leave float32's range).

    Parameters
    ----------
    probes : ndarray of shape (N, r); Gaussian columns with a covariance of at least I.
    products : ndarray of shape (N, r)
    failure : probability that one c_m is wrong; divide it by the number of looks.

    Attributes
    ----------
    steps : int; m, since the chain began.
    columns : ndarray of shape (N, r); Q, to be multiplied next.
    norm_bound, likely, spread : float; c_m, rho and sigma. Infinite before the first step.
    grows : bool; whether the basis lost no vector since the chain began.
    outer : float; rho + sigma of ``(I - BB') A (I - BB')`` in place of E, on the same span.
    """

    def __init__(self, probes: Matrix, products: Matrix, failure: float) -> None:
        # A g = (A Q) R, so the product of Q is known from that of the probes: nothing is multiplied for the first step.
        Q, R = qr(probes, mode="economic")
        self._first, self._root = (Q, R), float(np.sqrt(probe_quantile(probes.shape[1], failure)))
        self.begin(products @ np.linalg.pinv(R))

    def begin(self, product: Matrix | None = None) -> None:
        """Begin with the probes, whose product is that, or is still to be computed."""
        self.columns, self._R = self._first
        self._product = product  # A Q of the first columns
        self._log = self._dropped = 0.0
        self.grows = True
        self.steps = 0
        self.norm_bound = self.likely = self.spread = self.outer = np.inf

    def shrink(self, dropped: float, norm_bound: float) -> None:
        """Take note that the basis lost vectors: the largest Ritz value of those, and a bound of ``|E|_2`` since."""
        self.grows, self._dropped, self.norm_bound = False, dropped, norm_bound

    def advance(self, product: Matrix | None, remainder: Remainder) -> None:
        """Advance by the product ``A Q`` of the present columns; None if it is the known product of the probes."""
        if self._product is None:
            self._product = product
        if product is None:
            product = self._product
        if product is None:
            return
        outside, missed, hidden = remainder(self.columns, product)  # E Q is E (I - BB') Q too
        # Not below what a restart dropped, which the probes may not see.
        rho, self.spread = _leading_pair(outside, missed)
        self.likely = max(rho, self._dropped)
        self.outer = max(sum(_leading_pair(outside, missed + hidden)), self._dropped)
        self.steps += 1
        # w_m = E_m w_(m-1) = E_m Q R = Q' (S R): the next columns, and the factor that they lack.
        self.columns, S = qr(missed, mode="economic")
        if self.grows:
            # R is multiplied by S; its scale goes into a logarithm, of 0 too.
            self._R = S @ self._R
            norm = float(np.linalg.norm(self._R, 2))
            with np.errstate(divide="ignore"):
                self._log += float(np.log(norm))
            self._R /= norm or 1.0
            bound = float(np.exp((self._log - np.log(self._root)) / self.steps))
            self.norm_bound = min(self.norm_bound, bound)
        else:
            Q, R = self._first
            # After a restart the chain says nothing of E: one factor does, |E g|_2 / sqrt(x), from the stored product
            # of g.
            whole = remainder(Q, self._product)[1] @ R  # type: ignore[arg-type]
            self.norm_bound = min(self.norm_bound, float(np.linalg.norm(whole, 2)) / self._root)


def _leading_pair(outside: Matrix, product: Matrix) -> tuple[float, float]:
    """Return the largest eigenvalue rho on the span of the columns ``outside`` that a symmetric matrix maps to
    ``product``, and its residual sigma: by their Gram matrix, without directions that have too little there."""
    # Orthonormal columns ``outside X`` of the span, on which the matrix is ``inside`` (Rayleigh-Ritz).
    g, U = np.linalg.eigh(outside.T @ outside)
    kept = g >= min(OUTSIDE, g[-1])
    X = U[:, kept] / np.sqrt(np.maximum(g[kept], np.finfo(np.float64).tiny))
    inside = X.T @ (outside.T @ product) @ X
    values, V = np.linalg.eigh((inside + inside.T) / 2)
    y = X @ V[:, -1]
    return float(values[-1]), float(norm_of(product @ y - values[-1] * (outside @ y)))


def block_krylov(A: Multiplied, known: Known, k: Wanted, options: KrylovOptions) -> KrylovResult:
    """Compute the k leading eigenpairs of a symmetric positive semi-definite A of size N in few multiplications.

    The basis B grows by one block per multiplication: the residuals ``A u - theta u`` of the leading Ritz pairs,
    made orthonormal to B (twice). Ritz pairs and residuals come from the stored products A B, without a
    multiplication. A full basis is restarted from its best Ritz vectors, half of it or three blocks if these are
    more. The answer is the Nyström approximation of all stored products, ``A_hat = AB (B'AB)^-1 (AB)'``, with
    eigenvalues nu_i <= lambda_i.

    The stopping rule bounds ``E = A - A_hat``, which is positive semi-definite and zero on B. Ten Gaussian probes are
    multiplied together with every block and never enter the basis. After m multiplications :class:`ProbeChain` gives

    - c with ``P(|E|_2 > c) <= 1e-3`` over the seed,
    - a Rayleigh quotient ``rho <= |E|_2``, and sigma: some eigenvalue of E lies in ``[rho - sigma, rho + sigma]``.

    If ``|E|_2 <= mu``, then ``lambda_i <= upper_i(mu) = eig_i(A_hat + mu (I - BB'))``, so the largest
    relative error is at most::

        E(mu) = max_i (upper_i(mu) - nu_i) / max(nu_i, F / tol)         F = 10 precision lambda_1
        error = min(E(min(c, trace(A) - trace(A_hat))),   for m >= 2:  max(1.5 E(rho), E(rho + sigma) / 2))

    (after a restart also at most ``E'(rho' + sigma')``, those of the part of A outside of B in place of E, if that is
    below the k-th value)
    and the iteration stops when ``error <= tol`` or B spans the whole space. The first term is certified, but
    pessimistic for small m: on a flat tail ``c ~ (N / r)^(1 / 2m) |E|_2``. The second is an estimate: it is too small
    only if the probes are nearly orthogonal to the leading eigenvector of E. Its safety factors were chosen on 3,375
    runs over 13 kinds of spectra (examples/benchmarks/honesty.py counts the failures). It needs m >= 2, because one
    product with random columns shows only an average of E.

    An eigenvalue below ``F / tol`` is *unresolved*: rounding of the products may be more than tol of it. If A can be
    refined, the iteration restarts from its Ritz vectors; otherwise the result is not converged, unless A_hat already
    holds the whole trace (:meth:`RitzPairs.unresolved`).

    Per multiplication, 4 N c l flops to make a block of l columns orthogonal to the c of the basis, 4 N (c + l) l to
    split its product, N (c + l)^2 + 2 N (c + l) l for residuals; memory is :func:`krylov_bytes`.

    Parameters
    ----------
    A : Multiplied
        By float64 columns (N, l + r) of length 1, in Fortran order.
    known : Known
        The first product. Some of its columns should be random: those computed from part of the data may miss
        directions.
    k : int, or a function of the Ritz values so far (c,) that returns how many eigenpairs are wanted, c + 1 for more
        than there are. Blocks grow to k columns.
    options : KrylovOptions

    Returns
    -------
    KrylovResult
        ``converged`` is False if max_multiplications, the rounding of the products, or multiplications without
        progress stopped it first.

    Raises
    ------
    ValueError
        If k is out of range, the basis cannot hold twice the wanted pairs, or a product has the
        wrong shape or is not finite.

    Notes
    -----
    Musco & Musco (2015), algorithm 2; Tropp & Webber (2023). NOTE: a stop at ``|r_i| <= tol theta_1`` leaves errors of
    14 tol in small wanted eigenvalues (i^-2, k = 50), and spends one multiplication too many where they fall slowly; a
    stop by the change between multiplications accepts clusters wider than a block too early. NOTE: blocks of the
    residuals of the wanted pairs alone need half the columns, but a multiplication more.

    Examples
    --------
    >>> class Diagonal:
    ...     spectrum, trace, precision, refinable = np.arange(1, 401.0) ** -2, 1.64, 2.2e-16, False
    ...     def multiply(self, V):
    ...         return self.spectrum[:, None] * V
    >>> A, rng = Diagonal(), np.random.default_rng(0)
    >>> B, probes = rng.standard_normal((400, 20)), rng.standard_normal((400, 10))
    >>> known = Known(B, A.multiply(B), probes, A.multiply(probes))
    >>> options = KrylovOptions(tol=1e-3, max_multiplications=9, max_columns=80, block=20)
    >>> result = block_krylov(A, known, 10, options)
    >>> result.multiplications, bool((1 - result.values / A.spectrum[:10]).max() < 1e-3)
    (2, True)
    """
    _check(known, k, options)
    run = _Run(A, options)
    run.begin(known)
    del known  # frees its arrays, unless the caller holds them
    stopped = ""
    while not stopped:
        pairs = run.measure(k)
        stopped = run.why_stop(pairs)
        if not stopped:
            run.extend(pairs)
    return run.finish(pairs, stopped)


@dataclass
class _Run:
    """State of one computation: the basis, the probes, the multiplications and the estimated error."""

    A: Multiplied
    options: KrylovOptions
    multiplications: int = 0
    error: float = np.inf
    _best: float = np.inf
    _tries: int = 0
    _highest: Vector = field(default_factory=lambda: np.zeros(0))
    _product: Matrix | None = None  # of the probes; evaluated with the next Ritz pairs

    def begin(self, known: Known) -> None:
        """Copy the first block and its product into the basis."""
        o = self.options
        self.rank = o.rank or len(known.B)
        self.basis = KrylovBasis(o.max_columns, len(known.B), o.seed, beside=known.probes.shape[1])
        looks = o.max_multiplications + 1
        with solving_alone(o.threads):
            self.basis.adopt(known.B, known.AB, self.A.precision)
            self.probes = ProbeChain(known.probes, known.probe_products, FAILURE / looks)

    def measure(self, k: Wanted) -> RitzPairs:
        """Return the Ritz pairs of the present basis, and update the estimated error."""
        o, basis = self.options, self.basis
        with solving_alone(o.threads):
            pairs = ritz_pairs(basis, k, o.block, tol=o.tol, shift=o.shift, precision=self.A.precision, rank=self.rank)
            self.probes.advance(self._product, partial(basis.remainder, pairs.weights, pairs.coefficients))
            self._product = None
            self.error = self._estimate(pairs) if pairs.complete else np.inf
        # On a flat spectrum the values grow while the estimate stays the same, and it falls long after they are known.
        # Both are compared with the best so far: rounding and probes that turn set new records ever more rarely.
        moved = self.error < (1 - FLOOR * self.A.precision) * self._best or self._gained(pairs)
        self._best, self._tries = min(self._best, self.error), 0 if moved or not pairs.complete else self._tries + 1
        return pairs

    def _gained(self, pairs: RitzPairs) -> bool:
        """Whether a value exceeds the largest so far by more than rounding, or none is comparable."""
        if not pairs.complete:
            return True
        last, now = self._highest, pairs.nystrom_values[: pairs.k]
        if len(last) != len(now):
            self._highest = now.copy()
            return True
        self._highest = np.maximum(last, now)
        return bool(np.max(self._highest - last) > pairs.floor)

    def _estimate(self, pairs: RitzPairs) -> float:
        # |E|_2 <= trace(E), which needs no probability.
        chain, trace = self.probes, self.A.trace
        left = max(0.0, trace - float(pairs.nystrom_values.sum())) + self.A.precision * trace
        certified = pairs.error_for(min(chain.norm_bound, left))
        if chain.steps < MIN_STEPS or certified <= self.options.tol:
            return certified
        likely = SAFETY * pairs.error_for(chain.likely)
        error = min(certified, max(likely, SPREAD * pairs.error_for(chain.likely + chain.spread)))
        if chain.grows or chain.outer >= pairs.values[pairs.k - 1]:
            return error
        # After a restart c_m no longer falls, and on a flat spectrum T + rho exceeds lambda_k for ever: E is as large
        # as the values that a block of the basis just misses. What all directions outside of the basis hold does fall.
        return min(error, pairs.error_for(chain.outer, outer=True))

    def why_stop(self, pairs: RitzPairs) -> str:
        """Return the reason to stop, or an empty string."""
        whole = self.basis.count == self.basis.N
        if pairs.complete and (self.error <= self.options.tol or whole) and not self._coarse(pairs):
            return "unresolved" if self._unresolved(pairs) else "tol"
        if self.multiplications >= self.options.max_multiplications:
            return "multiplications"
        cycle = self.basis.size - self._kept(pairs) if self.basis.size < self.basis.N else 0
        return "stagnation" if self._tries >= PATIENCE + cycle // pairs.block else ""

    def _kept(self, pairs: RitzPairs) -> int:
        """Return how many Ritz vectors a restart keeps: three blocks of four, and half of a larger basis."""
        return min(self.basis.size - pairs.block, max(self.basis.size // 2, 3 * pairs.block))

    def _unresolved(self, pairs: RitzPairs) -> int:
        return pairs.unresolved(self.A.trace, self.error)

    def _coarse(self, pairs: RitzPairs) -> bool:
        """Whether values lie below the rounding of these products, and the next products can be more precise.

        The trace has the same rounding, so the remaining trace is unknown too.
        """
        hidden = pairs.unresolved(np.inf, np.inf) > 0 or not pairs.values[0] > 0  # if the first is 0, all are
        return pairs.complete and self.A.refinable and hidden

    def extend(self, pairs: RitzPairs) -> None:
        """Multiply the next block; if it would not fit, first restart from the best Ritz vectors."""
        o = self.options
        # The products were rounded too coarsely for these residuals: begin again, in float64, from the Ritz vectors.
        if self._coarse(pairs):
            with solving_alone(o.threads):
                self.basis.restart_from_images(pairs.coefficients[: pairs.block] / pairs.unit)
            self.A.refine()
            self.probes.begin()
        elif self.basis.count > self.basis.size - pairs.block and self.basis.size < self.basis.N:
            # Full: a thick restart keeps the leading Ritz vectors and their remainders (Wu & Simon 2000).
            keep = self._kept(pairs)
            with solving_alone(o.threads):
                self.probes.shrink(float(pairs.values[keep]), pairs.upper_values(self.probes.norm_bound, keep)[0])
                self.basis.restart(pairs.values[:keep], pairs.coefficients[:keep])
        with solving_alone(o.threads):
            together = self.basis.fill(pairs.block, NOISE * self.A.precision, self.probes.columns)
        product = self.A.multiply(together)  # one read of all data
        self.multiplications += 1
        if not np.isfinite(np.sum(product)):
            raise ValueError(
                f"multiplication {self.multiplications} returned values that are not finite. "
                "Check the data for NaN and infinity."
            )
        with solving_alone(self.options.threads):
            # The probes' part is evaluated with the Ritz pairs of the basis that holds this block.
            own = together.shape[1] - self.probes.columns.shape[1]
            self._product = product[:, own:].copy()
            self.basis.close(product[:, :own], self.A.precision)

    def finish(self, pairs: RitzPairs, stopped: str) -> KrylovResult:
        """Return the Nyström approximation of all stored products."""
        with solving_alone(self.options.threads):
            found = approximate(self.basis, pairs, precision=self.A.precision)
        unresolved, error = self._unresolved(pairs), self.error
        if unresolved:  # of which rounding may be more than tol
            last = float(pairs.nystrom_values[pairs.k - 1] - pairs.shift)
            error = max(error, pairs.floor / max(pairs.floor, last))
        return KrylovResult(
            found,
            pairs.values[: pairs.k],
            pairs.residuals,
            stopped,
            error,
            unresolved,
            self.probes.norm_bound,
            self.multiplications,
        )


def _check(known: Known, k: Wanted, options: KrylovOptions) -> None:
    N = len(known.B)
    if not callable(k):
        check_room(k, min(options.max_columns, N), N, options.rank or N)
