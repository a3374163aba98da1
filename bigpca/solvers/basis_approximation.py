"""The Nyström approximation from a basis that was multiplied, by small matrices: what a Krylov iteration returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.krylov_basis import EPS, KrylovBasis
from bigpca.solvers.krylov_pairs import RitzPairs
from bigpca.solvers.nystrom import SHIFT, orthonormal_rows

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
GRAM = 32.0  # times eps: rounding of a Gram matrix relative to its largest eigenvalue


@dataclass(frozen=True)
class BasisApproximation:
    """``A_hat = A B (B'AB)^-1 (A B)'``: :class:`~bigpca.solvers.nystrom.NystromApproximation` with W = B orthonormal.

    With the Ritz pairs (theta_i, u_i) of the basis and their residuals r_i, orthogonal to it, the factor F of A_hat is
    ``f_i = (theta_i + nu)^1/2 u_i + (theta_i + nu)^-1/2 r_i``, so that small matrices and the residuals' Gram matrix
    take the place of any array as large as the basis.

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
        columns: Matrix = self._basis.vectors[: self._basis.count].T
        return columns

    def divided(self, exponent: int) -> BasisApproximation:
        """Return the approximation of ``A / 2^exponent``."""
        values, shift = np.ldexp(self.values, -exponent), float(np.ldexp(self.shift, -exponent))
        return replace(self, values=values, shift=shift, _exponent=self._exponent - exponent)

    def multiply(self, omega: Matrix) -> Matrix:
        """Return ``A_hat omega`` (N, p) for omega (N, p); 4 N (c + r) p flops, r the remainders that are not zero."""
        inside, outside = self._basis.inner(np.ascontiguousarray(omega.T))
        weights = (inside @ self._inside.T + outside @ self._outside.T) @ self._mixing
        product = self._basis.rows(weights @ self._inside, weights @ self._outside)
        result: Matrix = np.ldexp(product, self._exponent, out=product).T
        return result

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
    theta = np.ldexp(pairs.values, -basis.exponent)
    gram = pairs.gram * np.ldexp(pairs.unit, -basis.exponent) ** 2
    nu = SHIFT * precision * float(np.sqrt(np.sum(theta**2) + np.trace(gram)))
    lengths = np.sqrt(theta + nu)
    safe = np.where(lengths > 0, lengths, 1.0)
    T = gram / np.multiply.outer(safe, safe)
    squares, V = top_eigenpairs(np.diag(lengths**2) + T)
    values = np.maximum(squares - nu, 0.0)
    positive = np.where(squares > 0, squares, 1.0)
    C = pairs.coefficients
    inside, outside = lengths[:, None] * C, C[:, basis.settled :] / safe[:, None]
    used = squares[: pairs.k] > basis.N * EPS * squares[0]
    weights = V[: pairs.k] * (used / np.sqrt(positive[: pairs.k]))[:, None]
    vectors = orthonormal_rows(basis.rows(weights @ inside, weights @ outside))
    t, E = top_eigenpairs(T)
    t += GRAM * EPS * t[0]
    beyond = (np.sqrt(t)[:, None] * E)[: basis.N - basis.count]
    return BasisApproximation(
        np.ldexp(values, basis.exponent), vectors, float(np.ldexp(nu, basis.exponent)), basis, inside, outside, lengths,
        beyond, (V.T * (values / positive)) @ V, basis.exponent,
    )  # fmt: skip
