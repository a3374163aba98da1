"""Canonical correlations of two sides, and the singular value decomposition of the covariance between them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import cast

import numpy as np

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.errors import warn_approximation
from bigpca.estimators.linear.maps import SecondRead
from bigpca.estimators.pairs.model import (
    SCALED,
    AxesResult,
    JointMoments,
    PairResult,
    Predicts,
    RotatedAxesResult,
    SideScores,
    check_components,
)
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.passes.accumulators.base import Accumulator
from bigpca.records import of_part, stored
from bigpca.solvers.eigh import ENOUGH, EPS
from bigpca.solvers.moments import Solution
from bigpca.solvers.pairs import canonical, deflated, leading_triplets


@dataclass(frozen=True, kw_only=True)
class PLSResult(AxesResult):
    """The result of :class:`PLSSVD`, whose attributes it has."""

    singular_values_: Vector = stored("k")
    squared_covariance_fraction_: Vector = stored("k")

    solve_error_ = of_part("regression", "error")


@dataclass(frozen=True, kw_only=True)
class CCAResult(RotatedAxesResult):
    """The result of :class:`CCA`, whose attributes it has."""

    correlations_: Vector = stored("k")
    ranks_: Integers = stored("2")
    solve_error_: float = stored(of=float, least=0)


@with_parameters
class CCA(SideScores, Predicts):
    """Canonical correlation analysis: the directions of X and of Y whose scores correlate most, in one read of both.

    The correlations are the singular values of ``L_x^-1 C_xy L_y^-T`` with ``L L' = C + regularization I``. Scores,
    weights, rotations and predictions equal those of scikit-learn's CCA, which iterates. Columns may have any units.
    Where they are so nearly dependent that one read leaves too few digits, the rows are read once more.

    Parameters
    ----------
    n_components : int, default 2
        At most min(p, q).
    regularization : float or tuple of two, default 0.0
        Added to the covariances of X and of Y (of the scaled columns), for more columns than rows (Vinod 1976).
    scale : bool, :class:`bigpca.scales.CosLatitude`, or a tuple of two, for X and Y, default True
        Divide columns by their standard deviations, or by those of a rule; in a tuple also by given positive numbers.
        Without, correlations are the same, but predictions are not, as in scikit-learn.
    preprocess, preprocess_y : a preprocessor such as :class:`bigpca.preprocessing.L2`, a list, or None, default None
        Applied to each row of X, and of Y, first.
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with missing values on either side are rejected, or left out.
    memory_limit : int, str or None, default None
        Per process.

    Attributes
    ----------
    correlations_ : ndarray of shape (k,)
        Canonical correlations of the fit, descending.
    x_weights_, x_rotations_, x_loadings_ : ndarray of shape (p, k)
    y_weights_, y_rotations_, y_loadings_ : ndarray of shape (q, k)
        As in scikit-learn: scores are ``(x - x_mean_) / x_std_ @ x_rotations_``.
    coef_ : ndarray of shape (q, p), intercept_ : ndarray of shape (q,)
        Of predictions of Y.
    ranks_ : ndarray of shape (2,)
        Numerical ranks of the covariances of X and Y. Where one is below its number of columns and there is no
        regularization, CCA works on the numerical range, with a warning.
    solve_error_ : float
        Estimated error of the solution by rounding, relative to its norm in units of the columns' standard deviations;
        above 1e-3 with a warning.
    x_mean_, y_mean_, x_std_, y_std_, n_targets_, n_samples_, n_omitted_, sum_weights_, n_effective_
        See :class:`bigpca.estimators.pairs.model.PairModel`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> CCA(1).fit(X, X[:, :1] + 5).correlations_.round(6).tolist()
    [1.0]
    """

    _traits = Traits(
        CCAResult, "cca", frozenset({"scores of y"}), summary=(("correlation", "correlations_"),),
        ranges=SCALED,
    )  # fmt: skip
    _axes = "rotations"
    _enough = ENOUGH
    _remedy = "Give a regularization, such as 0.1, or fewer columns."

    n_components: int = 2
    _: KW_ONLY
    regularization: float | tuple[float, float] = 0.0

    def _check(self, widths: tuple[int, ...]) -> None:
        super()._check(widths)
        check_components(self.n_components, *widths[:2])
        self._added()

    def _added(self) -> tuple[float, float]:
        given: Unchecked = self.regularization
        pair = tuple(given) if isinstance(given, list | tuple) else (given, given)
        numbers = [one for one in pair if isinstance(one, int | float | np.number) and not isinstance(one, bool)]
        if len(pair) != 2 or len(numbers) != 2 or not all(0 <= one < np.inf for one in numbers):
            raise ValueError(f"regularization = {given!r}; a number of at least 0, or two, were expected, such as 0.1.")
        return float(numbers[0]), float(numbers[1])

    def _sides(self, joint: JointMoments) -> tuple[Solution, Solution]:
        """Return both scatters, of columns that are divided to correlations or covariances, with their penalties."""
        units, added = joint.deviations() * np.sqrt(joint.freedom), self._added()
        parts = (joint.x, units[: joint.p], added[0]), (joint.y, units[joint.p :], added[1])
        x, y = (replace(side, frame=side.frame.divided(own)).solved(alpha) for side, own, alpha in parts)
        return x, y

    def _again(self, joint: JointMoments) -> SecondRead:
        return SecondRead(joint.moments.mean, slice(joint.p), joint.x.refined(), joint.y.refined())

    def _stored(self, joint: JointMoments, solution: dict[str, Unchecked]) -> float:
        units, weight, found = joint.deviations() * np.sqrt(joint.freedom), joint.moments.weight, 0.0
        rest = 1 - solution["correlations_"] ** 2
        noises = np.split(joint.stored / units**2, [joint.p])
        for name, side, noise in zip("xy", self._sides(joint), noises, strict=True):
            # As of regressions of one score on whitened columns: their noise moves it, and its own makes it smaller.
            V, rotations = side.along(np.eye(side.rank)), solution[f"{name}_rotations_"]
            own = noise @ (rotations / np.linalg.norm(np.linalg.lstsq(V, rotations)[0], axis=0)) ** 2
            moved = (float(noise @ (V**2).sum(axis=1)) * rest + side.rank * own) / weight
            found = max(found, float(np.sqrt(moved + own**2 / 4).max()))
        return found

    def _warn(self, found: PairResult, n_classes: int = 1) -> None:
        solved = cast("CCAResult", found)
        n, known = found.n_samples_, found.regression
        n, beside = (n, "") if known is None else (n - known.rank, " beside the covariates")
        widths, ranks = (len(found.x_mean_), found.n_targets_), solved.ranks_.tolist()
        sides = zip("XY", ranks, widths, self._added(), strict=True)
        singular = [(name, rank, width) for name, rank, width, added in sides if rank < width and not added]
        for name, rank, width in singular:
            sure = f" (solve_error_ = {solved.solve_error_:.1g})" if solved.solve_error_ > ENOUGH else ""
            warn_approximation(
                f"the covariance of {name} is singular: of {width} columns, {rank} are independent in {n} rows{beside}"
                f"{sure}. CCA is done on their range, where correlations are too high if rows are few. {self._remedy}"
            )
        # Among the n - 1 dimensions of centred rows, subspaces of r_x and r_y share r_x + r_y - (n - 1) at least.
        if not singular and sum(ranks) >= n and not any(self._added()):
            warn_approximation(
                f"X and Y have {sum(ranks)} independent columns together, and {n} rows{beside} can tell at most "
                f"{n - 1} apart: {sum(ranks) - n + 1} of the correlations are 1 whatever the rows are. {self._remedy}"
            )
        super()._warn(replace(solved, solve_error_=0.0) if singular else found)  # which was told

    def _solution(self, joint: JointMoments, state: Accumulator) -> dict[str, Unchecked]:
        p, moments, std = joint.p, joint.moments, joint.deviations()
        x, y = self._sides(joint)
        ranks = x.scatter.rank, y.scatter.rank
        if not all(ranks):
            raise ValueError(
                f"{'XY'[ranks.index(0)]} varies by no more than the rounding of float64, {EPS:.1g} of the size of its "
                "values. Give deviations from a constant."
            )
        cross = joint.cross if joint.second is not None else joint.y.frame.into(joint.cross.T).T
        found = canonical(x, y, cross, self.n_components)
        (x_weights, x_rotations), (y_weights, y_rotations) = deflated(found.x), deflated(found.y)
        # scikit-learn's signs: the largest weight of X is positive.
        flip = np.sign(x_weights[np.abs(x_weights).argmax(axis=0), np.arange(x_weights.shape[1])])
        x_weights, x_rotations, y_weights, y_rotations = (
            one * flip for one in (x_weights, x_rotations, y_weights, y_rotations)
        )
        # Loadings: the regression of the columns on each score, which are uncorrelated.
        x_loadings = _loadings(found.x_products, found.x, x_rotations)
        y_loadings = _loadings(found.y_products, found.y, y_rotations)
        # As scikit-learn predicts: y - mean_y = std_y * (P_y R_x'((x - mean_x) / std_x)).
        coef = ((x_rotations @ y_loadings.T) * std[p:]).T / std[:p]
        return {
            "x_weights_": x_weights,
            "y_weights_": y_weights,
            "x_rotations_": x_rotations,
            "y_rotations_": y_rotations,
            "x_loadings_": x_loadings,
            "y_loadings_": y_loadings,
            "coef_": coef,
            "intercept_": moments.mean[p:] - coef @ moments.mean[:p],
            "correlations_": found.values,
            "x_std_": std[:p],
            "y_std_": std[p:],
            "ranks_": np.array(ranks),
            "solve_error_": joint.error(max(x.error, y.error)),
        }


def _loadings(products: Matrix, directions: Matrix, rotations: Matrix) -> Matrix:
    """Return ``C r / (r'C r)`` of rotations r, which are multiples of the directions v, from ``C v``."""
    lengths = np.einsum("ij,ij->j", directions, products)
    shares = np.einsum("ij,ij->j", rotations, directions) / np.einsum("ij,ij->j", directions, directions)
    return np.asarray(products / (lengths * shares))


@with_parameters
class PLSSVD(SideScores):
    """Singular value decomposition of the covariance between X and Y (maximum covariance analysis), in one read.

    ``C_xy = x_weights_ @ diag(singular_values_) @ y_weights_.T + residual``. The same as scikit-learn's PLSSVD, and as
    MCA in climatology.

    Parameters
    ----------
    n_components : int, default 2
        At most min(p, q).
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
    x_weights_ : ndarray of shape (p, k), y_weights_ : ndarray of shape (q, k)
        Orthonormal columns; the largest entry of each of X is positive.
    singular_values_ : ndarray of shape (k,)
        Covariances of the pairs of scores, divisor n - 1.
    squared_covariance_fraction_ : ndarray of shape (k,)
        Shares of ``|C_xy|_F^2``.
    x_mean_, y_mean_, x_std_, y_std_, n_targets_, n_samples_, n_omitted_, sum_weights_, n_effective_
        See :class:`bigpca.estimators.pairs.model.PairModel`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> PLSSVD(1).fit(X, X[:, :1] + 5).squared_covariance_fraction_.round(6).tolist()
    [1.0]
    """

    _traits = Traits(
        PLSResult,
        "plssvd",
        frozenset({"scores of y"}),
        summary=(("covariance", "singular_values_"), ("share", "squared_covariance_fraction_")),
        ranges=SCALED,
    )
    _axes = "weights"

    n_components: int = 2
    _: KW_ONLY

    def _check(self, widths: tuple[int, ...]) -> None:
        super()._check(widths)
        check_components(self.n_components, *widths[:2])

    def _solution(self, joint: JointMoments, state: Accumulator) -> dict[str, Unchecked]:
        # C_xy of the scaled columns, and its singular value decomposition, whose signs the weights of X fix.
        p, std = joint.p, joint.deviations()
        C, k = joint.scatter[:p, p:] / joint.freedom / np.outer(std[:p], std[p:]), self.n_components
        total = float(np.linalg.norm(C / np.abs(C).max())) * float(np.abs(C).max()) if C.any() else 0.0
        U, s, V = leading_triplets(C, k)
        flip = np.sign(U[np.abs(U).argmax(axis=0), np.arange(k)])
        return {
            "x_weights_": U * flip,
            "y_weights_": V * flip,
            "singular_values_": s,
            "squared_covariance_fraction_": (s / total) ** 2 if total > 0 else np.zeros(k),
            "x_std_": std[:p],
            "y_std_": std[p:],
        }
