"""Bounds on the error of an approximation: Gaussian probes are multiplied in every step of an iteration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from bigpca.solvers.certificates import probe_quantile

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Remainder = Callable[[Matrix, Matrix], tuple[Matrix, Matrix]]  # of Q and A Q: (I - BB') Q and (A - A_hat) Q
OUTSIDE = 1e-4  # of the square of a column: with less of it outside the basis, it carries no information on E


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
    """

    def __init__(self, probes: Matrix, products: Matrix, failure: float) -> None:
        Q, R = qr(probes, mode="economic")
        self._first, self._root = (Q, R), float(np.sqrt(probe_quantile(probes.shape[1], failure)))
        self.begin(products @ np.linalg.pinv(R))

    def begin(self, product: Matrix | None = None) -> None:
        """Begin with the probes, whose product is that, or is still to be computed."""
        self.columns, self._R = self._first
        self._product = product  # A Q of the first columns
        self._log = self._dropped = 0.0
        self._grows = True
        self.steps = 0
        self.norm_bound = self.likely = self.spread = np.inf

    def shrink(self, dropped: float, norm_bound: float) -> None:
        """Take note that the basis lost vectors: the largest Ritz value of those, and a bound of ``|E|_2`` since."""
        self._grows, self._dropped, self.norm_bound = False, dropped, norm_bound

    def advance(self, product: Matrix | None, remainder: Remainder) -> None:
        """Advance by the product ``A Q`` of the present columns; None if it is the known product of the probes."""
        if self._product is None:
            self._product = product
        if product is None:
            product = self._product
        if product is None:
            return
        outside, missed = remainder(self.columns, product)  # E Q is E (I - BB') Q too
        self._estimate(outside, missed)
        self.steps += 1
        self.columns, S = qr(missed, mode="economic")
        if self._grows:
            self._lengthen(S)
            bound = float(np.exp((self._log - np.log(self._root)) / self.steps))
            self.norm_bound = min(self.norm_bound, bound)
        else:
            Q, R = self._first
            whole = remainder(Q, self._product)[1] @ R  # type: ignore[arg-type]
            self.norm_bound = min(self.norm_bound, float(np.linalg.norm(whole, 2)) / self._root)

    def _estimate(self, outside: Matrix, missed: Matrix) -> None:
        """Set rho and sigma by the Gram matrix outside the basis, without directions that have too little there."""
        g, U = np.linalg.eigh(outside.T @ outside)
        kept = g >= min(OUTSIDE, g[-1])
        X = U[:, kept] / np.sqrt(np.maximum(g[kept], np.finfo(np.float64).tiny))
        inside = X.T @ (outside.T @ missed) @ X
        values, V = np.linalg.eigh((inside + inside.T) / 2)
        y = X @ V[:, -1]
        self.likely = max(float(values[-1]), self._dropped)
        self.spread = float(np.linalg.norm(missed @ y - values[-1] * (outside @ y)))

    def _lengthen(self, S: Matrix) -> None:
        """Multiply R by S; its scale goes into a logarithm, of 0 too."""
        self._R = S @ self._R
        norm = float(np.linalg.norm(self._R, 2))
        with np.errstate(divide="ignore"):
            self._log += float(np.log(norm))
        self._R /= norm or 1.0
