"""Partial least squares and ridge regression from the joint moments of both sides; folds from the same read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import cast

import numpy as np
from scipy.linalg import pinv
from sklearn.utils import RegressorTags, Tags

from bigpca.arrays import Array, Integers, Matrix, Vector, unmasked
from bigpca.errors import positive_integer, warn_approximation
from bigpca.estimators.linear.maps import SecondRead
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.pairs.model import (
    SCALED,
    JointMoments,
    PairResult,
    Predicts,
    RotatedAxesResult,
    SideScores,
    squared_errors,
)
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates, left_out
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.row_maps import RowMap
from bigpca.passes.residuals import taken_out
from bigpca.records import of_part, stored
from bigpca.solvers.components import CrossValidated, by_name
from bigpca.solvers.eigh import AGAIN, EPS, ROUNDED
from bigpca.solvers.moments import Coefficients, least_squares
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
        # Scores are uncorrelated: y = Q t has the variance sum_a var(t_a) |q_a|^2.
        explained = np.ldexp(found.variances * (own**2).sum(axis=0), 2 * e)
        coef = ((R @ Q.T) * std[p:]).T / std[:p]
        total = float(np.trace(joint.scatter[p:, p:] / np.outer(std[p:], std[p:]))) / joint.freedom
        # vip_j^2 = p sum_a w_ja^2 ss_a / sum_a ss_a, of weights of length 1 and variances ss_a that are explained.
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


@dataclass(frozen=True, kw_only=True)
class RidgeResult(PairResult):
    """The result of :class:`Ridge`, whose attributes it has.

    Attributes
    ----------
    coef : ndarray of shape (q, p), intercept : ndarray of shape (q,)
        Of a single target too.
    cv_scores_ : ndarray of shape (number of penalties, q)
    chosen : ndarray of shape (q,)
        Penalties; all equal unless ``per_target``.
    """

    coef: Matrix = stored("q", "d")
    intercept: Vector = stored("q")
    cv_scores_: Matrix = stored("a", "q")
    chosen: Vector = stored("q")
    per_target: bool = stored(of=bool)
    solve_error_: float = stored(of=float, least=0)

    @property
    def n_components_(self) -> int:
        """Columns of the predictions, q."""
        return self.n_targets_

    @property
    def coef_(self) -> Matrix | Vector:
        """Coefficients (q, p), or (p,)."""
        return self.coef[0] if self.targets.single else self.coef

    @property
    def intercept_(self) -> Vector | float:
        """Intercepts (q,), or one number."""
        return float(self.intercept[0]) if self.targets.single else self.intercept

    @property
    def alpha_(self) -> Vector | float:
        """Penalties (q,), or that of all targets."""
        return self.chosen if self.per_target else float(self.chosen[0])


@with_parameters
class Ridge(Predicts):
    """Linear regression with a penalty on the coefficients, for many penalties and targets, in one read of X and Y.

    Minimises ``sum_t |y_t - W'x_t - b|^2 + alpha |W|_F^2``: ``W = (S_xx + alpha I)^-1 S_xy`` with the scatter matrices,
    and alpha as in scikit-learn's Ridge. If you give several penalties, the one with the highest R^2 on
    left-out folds is used. All folds come from the same read. Columns may have any units, and may be dependent. Where
    they are so nearly dependent that one read leaves too few digits, the rows are read once more.

    Parameters
    ----------
    alpha : float or sequence of floats, default 1.0
        Penalties, at least 0; 0 is least squares.
    cv : int from 2 to 20, default 5
        Folds for several penalties, by a hash of the keys of the rows, or of their numbers if they have none. With
        ``fit(X, Y, groups=labels)`` the folds are the groups instead, as many as fit in memory: each is left out in
        turn. Rows that ``partial_fit`` or a merge adds join the group of their label, or have the fold of their key.
        Without keys or groups, ``partial_fit`` continues the row numbers, and a merged model keeps the folds of both
        fits. One fit on all rows would have other folds. One penalty needs no folds.
    fit_intercept : bool, default True
        False for predictions ``W'x``, without b.
    alpha_per_target : bool, default False
        Choose a penalty for each target by its own scores, as in scikit-learn's RidgeCV.
    preprocess : a preprocessor such as :class:`bigpca.preprocessing.L2`, a list, or None, default None
        Applied to each row of X first.
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values on either side are rejected, or left out.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    coef_ : ndarray of shape (q, p), intercept_ : ndarray of shape (q,)
        (p,) and a float if Y was (n,).
    alpha_ : float, or ndarray of shape (q,)
    cv_scores_ : ndarray of shape (number of penalties, q)
        R^2 of each target on the left-out folds together, ``1 - sum_f |residuals|^2 / sum |y - mean|^2``; of one
        penalty, that of the fit. With covariates, of what they leave of Y; left-out folds are predicted from
        covariates by their effects on the other folds too.
    solve_error_ : float
        Estimated error by rounding, with the smallest penalty, relative to the norm of the coefficients in units of
        the columns' standard deviations and of the targets (small ones may have fewer digits); above 1e-3 with a
        warning. The rounding of stored values does not count: if it changes more than 1 %, another warning tells.
    x_mean_, y_mean_, n_targets_, n_samples_, n_omitted_, sum_weights_, n_effective_
        See :class:`bigpca.estimators.pairs.model.PairModel`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> model = Ridge([0.1, 10.0, 1000.0]).fit(X, X @ np.ones((4, 2)))
    >>> model.alpha_, bool(model.score(X, X @ np.ones((4, 2))) > 0.999)
    (0.1, True)
    """

    _traits = Traits(
        RidgeResult,
        "ridge",
        frozenset({"groups"}),
        output="predictions",
        summary=(("alpha", "alpha_"), ("cv_score", "_chosen_scores")),
        alike=("preprocess", "cv", "fit_intercept"),
    )
    _remedy = "Give a larger penalty, or fewer columns."
    _enough = AGAIN
    _beside = True  # predictions

    alpha: float | Sequence[float] | Array = 1.0
    _: KW_ONLY
    cv: int = 5
    fit_intercept: bool = True
    alpha_per_target: bool = False

    def _penalties(self) -> list[float]:
        given = np.atleast_1d(unmasked(self.alpha))
        if (
            given.ndim != 1
            or not len(given)
            or given.dtype.kind not in "fiu"
            or not (np.isfinite(given) & (given >= 0)).all()
        ):
            raise ValueError(
                f"alpha = {self.alpha!r}; a number of at least 0, or a list of those, was expected, such as "
                "[0.1, 1.0, 10.0]."
            )
        return [float(alpha) for alpha in given]

    @property
    def _chosen_scores(self) -> Vector:
        """R^2 of each target, with the penalty that was taken."""
        best = self._best(self.cv_scores_)
        return np.asarray(np.take_along_axis(self.cv_scores_, best[None], axis=0)[0])

    def _best(self, scores: Matrix) -> Integers:
        """Return which penalty each target takes (q,)."""
        if self.alpha_per_target:
            return np.asarray(scores.argmax(axis=0))
        return np.full(scores.shape[1], scores.mean(axis=1).argmax())

    def _check(self, widths: tuple[int, ...]) -> None:
        super()._check(widths)
        self._penalties()

    def _row_map(self) -> RowMap:
        return self._prediction()

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True  # predictions are float64
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _folds(self) -> int | None:
        return None if len(self._penalties()) == 1 else self.cv

    def _again(self, joint: JointMoments) -> SecondRead:
        B, _ = least_squares(joint.x, joint.cross, 0.0)
        return SecondRead(joint.mean, slice(joint.p), joint.x.refined(), B=B)

    def _at(self, joint: JointMoments, alpha: float, W: Matrix) -> Coefficients:
        """Return the coefficients W (p, q) with one penalty, and what their errors depend on."""
        p, mean, moments = joint.p, joint.summed_mean, joint.moments
        residuals, _ = squared_errors(joint.summed, p, joint.deviating(W), mean[:p], mean[p:])
        sums = moments.squares + moments.weight * moments.mean**2
        squares = moments.squares if joint.centred else sums
        return Coefficients(joint.x, alpha, W, squares[:p], sums[:p], squares[p:], residuals)

    def _stored(self, joint: JointMoments, solution: dict[str, Unchecked]) -> float:
        chosen, found = solution["chosen"], 0.0
        for alpha in np.unique(chosen):
            every = self._at(joint, alpha, solution["coef"].T)
            own = replace(every, totals=np.where(chosen == alpha, every.totals, 0.0))
            found = max(found, own.stored(joint.stored[: joint.p], joint.moments.weight))
        return found

    def _solution(self, joint: JointMoments, state: Accumulator) -> dict[str, Unchecked]:
        p, alphas = joint.p, self._penalties()
        q, scores = joint.moments.n_features - p, None
        if isinstance(state, FoldStates):
            scores = cross_validated(state, joint, alphas)
        best = np.zeros(q, np.int64) if scores is None else self._best(scores)
        W = np.zeros((p, q))
        for i in np.unique(best):
            W[:, best == i] = coefficients(joint, alphas[i])[:, best == i]
        D, last = joint.deviating(W), joint.summed_mean
        if scores is None:
            residual, _ = squared_errors(joint.summed, p, D, last[:p], last[p:])
            total = joint.moments.squares[p:]
            scores = (1 - np.divide(residual, total, out=np.ones(q), where=total > 0))[None]
        # b = mean_y - W'mean_x; a second read, of e = y - mean_y - B'(x - mean_x) = d'z + rest, adds mean_e - d'mean_z.
        intercept = joint.mean[p:] - W.T @ joint.mean[:p]
        if joint.second is not None:
            intercept += last[p:] - D.T @ last[:p]
        chosen, least = np.array(alphas)[best], min(alphas)
        return {
            "coef": W.T,
            "intercept": intercept + 0.0,
            "cv_scores_": scores,
            "chosen": chosen,
            "per_target": bool(self.alpha_per_target),
            "solve_error_": joint.error(self._at(joint, least, coefficients(joint, least)).error()),
        }


def coefficients(joint: JointMoments, alpha: float) -> Matrix:
    """Return W (p, q) with that penalty."""
    return least_squares(joint.x, joint.cross, alpha, None if joint.second is None else joint.second.B)[0]


def cross_validated(folds: FoldStates, joint: JointMoments, alphas: list[float]) -> Matrix:
    """Return R^2 (number of penalties, q) on the left-out folds together, from the states of the last read.

    Raises
    ------
    ValueError
        If fewer than two folds have rows.
    """
    states = cast("list[Moments]", folds.filled("one penalty"))
    p, errors = joint.p, np.zeros((len(alphas), joint.moments.n_features - joint.p))
    for state, others in zip(states, left_out(states), strict=True):
        # The scatter of the others for all penalties; errors about their means.
        kept = joint.of(others)
        mean = kept.summed_mean
        own = taken_out(state, kept.regression)
        found = [joint.deviating(coefficients(kept, alpha)) for alpha in alphas]
        errors += np.stack([squared_errors(own, p, D, mean[:p], mean[p:])[0] for D in found])
    total = joint.moments.squares[p:]
    return 1 - np.divide(errors, total, out=np.ones(errors.shape), where=total > 0)
