"""Partial least squares regression from the joint moments of both sides."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import cast

import numpy as np
from scipy.linalg import pinv

from bigpca.arrays import Matrix, Vector
from bigpca.errors import positive_integer, warn_approximation
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.pairs.model import SCALED, JointMoments, Predicts, RotatedAxesResult, SideScores, squared_errors
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates, left_out
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.residuals import taken_out
from bigpca.records import of_part, stored
from bigpca.solvers.components import CrossValidated, by_name
from bigpca.solvers.eigh import EPS, ROUNDED
from bigpca.solvers.pairs import leading_triplets

TRIED = 20  # components, where the rule does not say how many


@dataclass(frozen=True, kw_only=True)
class RegressionResult(RotatedAxesResult):
    """The result of :class:`PLSRegression`, whose attributes it has."""

    r2_: Vector = stored("k")
    vip_: Vector = stored("d")
    cv_errors_: Matrix | None = stored("f", "m", default=None)

    solve_error_ = of_part("regression", "error")


@with_parameters
class PLSRegression(SideScores, Predicts):
    """Partial least squares regression (PLS2; PLS1 of one target), in one read of X and Y.

    Each score is the direction of X whose covariance with what is left of Y is largest; Y is regressed on the scores.
    Solved from ``X'X`` and ``X'Y`` without iterations over rows (Dayal & MacGregor 1997, modified kernel algorithm 2).
    Names and numbers are those of scikit-learn's PLSRegression at a small ``tol`` (its default leaves 1e-4 to 1e-3);
    only ``intercept_`` is that of predictions ``x'coef + intercept``.

    Parameters
    ----------
    n_components : int or :class:`bigpca.rules.CrossValidated`, default 2
        At most p. The rule leaves out folds, or the groups of ``fit(X, Y, groups=labels)``, of the same read, and keeps
        the fewest components whose predictions are as good as the best, within one standard error; it tries up to
        ``max_components``, or 20.
    scale : bool, :class:`bigpca.scales.CosLatitude`, or a tuple of two, for X and Y, default True
        Divide columns by their standard deviations, or by those of a rule; in a tuple also by given positive numbers.
    preprocess, preprocess_y : a preprocessor such as :class:`bigpca.preprocessing.L2`, a list, or None, default None
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
    cv_errors_ : ndarray of shape (f, m)
        Of CrossValidated: mean squared errors of the predictions in each fold with 0 to m - 1 components, in units of
        the variances of the targets.
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
        RegressionResult, "pls", frozenset({"groups", "scores of y"}), summary=(("r2", "r2_"),),
        ranges=SCALED,
    )  # fmt: skip
    _axes = "rotations"

    n_components: int | str | CrossValidated = 2
    _: KW_ONLY

    def _check(self, widths: tuple[int, ...]) -> None:
        super()._check(widths)
        p, rule = widths[0], self._rule
        if rule is not None and rule.criterion != "column":
            raise ValueError(
                f"n_components = {rule}: the criterion is one of PCA, but PLSRegression compares the errors of "
                "predictions. Leave it out."
            )
        most = self._most(p)
        if most > p:
            raise ValueError(f"n_components = {most}, but X has {p} columns: at most {p} components exist.")

    @property
    def _rule(self) -> CrossValidated | None:
        """The rule for the number of components, if it is none."""
        rule = by_name(self.n_components)
        return rule if isinstance(rule, CrossValidated) else None

    def _most(self, p: int) -> int:
        """Return the largest number of components."""
        rule = self._rule
        if rule is None:
            return positive_integer("n_components", self.n_components)
        return min(p, TRIED) if rule.max_components is None else rule.max_components

    @property
    def _folds(self) -> int | None:
        return None if (rule := self._rule) is None else rule.cv

    def _solution(self, joint: JointMoments, state: Accumulator) -> dict[str, Unchecked]:
        p, std, errors = joint.p, joint.deviations(), None
        k, rule = self._most(p), self._rule
        if rule is not None and isinstance(state, FoldStates):
            errors, weights = _held_out_errors(state, joint, k)
            k = max(1, rule.at(errors, weights).choose(np.ones(1), 1.0, joint.moments.count, p) or 0)
        found = Latent.of(joint, k)
        if found.ended and rule is None:
            warn_approximation(found.ended)
        W, R, P, Q = found.weights, found.rotations, found.x_loadings, found.y_loadings
        e = int(np.frexp(np.abs(Q).max())[1])  # of the unit of Y in that of X, whose square may be out of range
        own = np.ldexp(Q, -e)
        explained = np.ldexp(found.variances * (own**2).sum(axis=0), 2 * e)
        coef = ((R @ Q.T) * std[p:]).T / std[:p]
        total = float(np.trace(joint.scatter[p:, p:] / np.outer(std[p:], std[p:]))) / joint.freedom
        return {
            "x_weights_": W,
            "y_weights_": Q.copy(),
            "x_rotations_": R,
            "y_rotations_": np.ldexp(own @ pinv(own.T @ own), -e),
            "x_loadings_": P,
            "y_loadings_": Q,
            "coef_": coef,
            "intercept_": joint.mean[p:] - coef @ joint.mean[:p],
            "r2_": explained / total,
            "vip_": np.sqrt(p * (W**2 @ explained) / explained.sum()) if explained.any() else np.zeros(p),
            "x_std_": std[:p],
            "y_std_": std[p:],
            "cv_errors_": errors,
        }


@dataclass(frozen=True)
class Latent:
    """Components of X that explain Y, in the units of columns that are divided by their deviations.

    Attributes
    ----------
    weights, rotations, x_loadings : ndarray of shape (p, k), y_loadings : ndarray of shape (q, k)
        0 of components that do not exist.
    variances : ndarray of shape (k,)
        Of the scores.
    ended : str
        Why some do not exist; "" if all do.
    """

    weights: Matrix
    rotations: Matrix
    x_loadings: Matrix
    y_loadings: Matrix
    variances: Vector
    ended: str = ""

    @classmethod
    def of(cls, joint: JointMoments, k: int) -> Latent:
        """Return k components, one after the other (Dayal & MacGregor 1997, modified kernel algorithm 2)."""
        p, std = joint.p, joint.deviations()
        S = joint.scatter / np.outer(std, std) / joint.freedom
        # Columns that are not divided may have any unit: each side in one by which squares of products are in range.
        e_x, e_y = (int(np.frexp(np.sqrt(side.max(initial=0.0)))[1]) for side in np.split(np.diagonal(S), [p]))
        C_xx, C_xy = np.ldexp(S[:p, :p], -2 * e_x), np.ldexp(S[:p, p:], -e_x - e_y)
        q = C_xy.shape[1]
        W, R, P, Q, variances = np.zeros((p, k)), np.zeros((p, k)), np.zeros((p, k)), np.zeros((q, k)), np.zeros(k)
        least = ROUNDED * max(joint.summed.precision, EPS) * np.sqrt(p * q)
        first, spread, ended = float(np.linalg.norm(C_xy)), float(np.trace(C_xx)), ""
        for a in range(k):
            if not np.linalg.norm(C_xy) > least * first:
                ended = (
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
                ended = f"X has {a} components above rounding: the other {k - a} are 0. Fit fewer."
                break
            # 3. Loadings, and X'Y without the part that the score explains.
            W[:, a], R[:, a], P[:, a], Q[:, a], variances[a] = w, r, Cr / variance, C_xy.T @ r / variance, variance
            C_xy -= variance * np.outer(P[:, a], Q[:, a])
        return cls(W, R, P, np.ldexp(Q, e_y - e_x), np.ldexp(variances, 2 * e_x), ended)


def _held_out_errors(folds: FoldStates, joint: JointMoments, k: int) -> tuple[Matrix, Vector]:
    """Return the errors (f, k + 1) of 0 to k components per row of each fold, by all others, and the rows of each.

    Of the targets in units of their variances, on average: squares of y less its prediction.
    """
    p, found, states = joint.p, [], cast("list[Moments]", folds.filled("an int"))
    q = joint.moments.n_features - p
    variances = joint.moments.squares[p:] / joint.moments.weight
    for state, others in zip(states, left_out(states), strict=True):
        check_enough_rows(others.count, sums=others.weight_sums)
        kept = joint.of(others)
        std, components = kept.deviations(), Latent.of(kept, k)
        # The moments of scores beside y: errors of any number of components are those of the first columns.
        M = np.zeros((p + q, k + q))
        M[:p, :k], M[p:, k:] = components.rotations / std[:p, None], np.eye(q)
        own, mean = taken_out(state, kept.regression).times(M), kept.summed_mean @ M
        errors = []
        for a in range(k + 1):
            D = np.zeros((k, q))
            D[:a] = components.y_loadings[:, :a].T * std[p:]
            squares, _ = squared_errors(own, k, D, mean[:k], mean[k:])
            errors.append(np.divide(squares, variances, out=np.zeros(q), where=variances > 0).mean() / state.weight)
        found.append(errors)
    return np.array(found), np.array([state.weight for state in states])
