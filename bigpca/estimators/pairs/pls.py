"""Partial least squares regression from the joint moments of both sides."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
from scipy.linalg import pinv

from bigpca.arrays import Vector
from bigpca.errors import positive_integer, warn_approximation
from bigpca.estimators.pairs.model import (
    SCALED,
    JointMoments,
    Predicts,
    RotatedAxesResult,
    SideScores,
)
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.reading.row_maps import Preprocess
from bigpca.records import stored
from bigpca.solvers.eigh import EPS, ROUNDED
from bigpca.solvers.pairs import leading_triplets


@dataclass(frozen=True, kw_only=True)
class RegressionResult(RotatedAxesResult):
    """The result of :class:`PLSRegression`, whose attributes it has."""

    r2_: Vector = stored("k")
    vip_: Vector = stored("d")


@with_parameters
class PLSRegression(SideScores, Predicts):
    """Partial least squares regression (PLS2; PLS1 of one target), in one read of X and Y.

    Each score is the direction of X whose covariance with what is left of Y is largest; Y is regressed on the scores.
    Solved from ``X'X`` and ``X'Y`` without iterations over rows (Dayal & MacGregor 1997, modified kernel algorithm 2).
    Names and numbers are those of scikit-learn's PLSRegression at a small ``tol`` (its default leaves 1e-4 to 1e-3);
    only ``intercept_`` is that of predictions ``x'coef + intercept``.

    Parameters
    ----------
    n_components : int, default 2
        At most p.
    scale : bool, default True
        Divide columns by their standard deviations.
    preprocess, preprocess_y : :class:`bigpca.rows.L2`, :class:`bigpca.rows.Power`, list of those, or None, default None
        Applied to each row of X, and of Y, first.
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values on either side are rejected, or left out.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    x_weights_, x_rotations_, x_loadings_ : ndarray of shape (p, k)
    y_weights_, y_rotations_, y_loadings_ : ndarray of shape (q, k)
        As in scikit-learn: scores are ``(x - x_mean_) / x_std_ @ x_rotations_``. Components beyond those that explain
        all of Y, or that X has, are 0, with a warning.
    coef_ : ndarray of shape (q, p), intercept_ : ndarray of shape (q,)
        Of predictions of Y.
    r2_ : ndarray of shape (k,)
        Share of the variance of the (scaled) columns of Y that each component adds.
    vip_ : ndarray of shape (p,)
        Importance of each column of X in the projection; the mean of their squares is 1, so that columns above 1
        matter more than average (Wold, Sjöström & Eriksson 2001).
    x_mean_, y_mean_, x_std_, y_std_, n_targets_, n_samples_, n_omitted_, sum_weights_, n_effective_
        See :class:`bigpca.estimators.pairs.model.PairModel`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> PLSRegression(3).fit(X, X @ [[1.0], [2.0], [0.0]]).coef_.round(6).tolist()
    [[1.0, 2.0, 0.0]]
    """

    _traits = Traits(
        RegressionResult, "pls", frozenset({"covariates"}), summary=(("r2", "r2_"),), summed=("preprocess_y",),
        ranges=SCALED,
    )  # fmt: skip
    _axes = "rotations"

    n_components: int = 2
    _: KW_ONLY
    scale: bool = True
    preprocess_y: Preprocess = None

    def _check(self, p: int, q: int) -> None:
        k = positive_integer("n_components", self.n_components)
        if k > p:
            raise ValueError(f"n_components = {k}, but X has {p} columns: at most {p} components exist.")

    def _solve(self, joint: JointMoments, state: Accumulator) -> dict[str, Unchecked]:
        p, k, std = joint.p, self.n_components, joint.deviations()
        S = joint.scatter / np.outer(std, std) / joint.freedom
        C_xx, C_xy, total = S[:p, :p], S[:p, p:].copy(), float(np.trace(S[p:, p:]))
        q = C_xy.shape[1]
        W, R, P, Q, variances = np.zeros((p, k)), np.zeros((p, k)), np.zeros((p, k)), np.zeros((q, k)), np.zeros(k)
        least = ROUNDED * max(joint.summed.precision, EPS) * np.sqrt(p * q)
        first, spread = float(np.linalg.norm(C_xy)), float(np.trace(C_xx))
        for a in range(k):
            if not np.linalg.norm(C_xy) > least * first:
                warn_approximation(
                    f"{a} components explain all of Y that X can: the other {k - a} of n_components = {k} are 0. Fit "
                    "fewer."
                )
                break
            # 1. The weights: the left singular vector of what is left of X'Y; the largest is positive.
            w = leading_triplets(C_xy, 1)[0][:, 0]
            w *= np.sign(w[np.abs(w).argmax()])
            # 2. Rotations, by which scores are products with the rows as they are.
            r = w - R[:, :a] @ (P[:, :a].T @ w)
            Cr = C_xx @ r
            variance = float(r @ Cr)
            if not variance > least * spread * float(r @ r):
                warn_approximation(f"X has {a} components above rounding: the other {k - a} are 0. Fit fewer.")
                break
            # 3. Loadings, and X'Y without the part that the score explains.
            W[:, a], R[:, a], P[:, a], Q[:, a], variances[a] = w, r, Cr / variance, C_xy.T @ r / variance, variance
            C_xy -= variance * np.outer(P[:, a], Q[:, a])
        explained = variances * (Q**2).sum(axis=0)
        coef = ((R @ Q.T) * std[p:]).T / std[:p]
        return {
            "x_weights_": W,
            "y_weights_": Q.copy(),
            "x_rotations_": R,
            "y_rotations_": Q @ pinv(Q.T @ Q),
            "x_loadings_": P,
            "y_loadings_": Q,
            "coef_": coef,
            "intercept_": joint.mean[p:] - coef @ joint.mean[:p],
            "r2_": explained / total,
            "vip_": np.sqrt(p * (W**2 @ explained) / explained.sum()) if explained.any() else np.zeros(p),
            "x_std_": std[:p],
            "y_std_": std[p:],
        }
