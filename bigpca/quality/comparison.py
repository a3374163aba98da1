"""Two fitted models compared: their axes, and the distributions of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import svdvals
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.linear.rotated_pca import RotatedPCA
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.driver import solving_with
from bigpca.passes.reading.preprocessing import preprocessors
from bigpca.quality.metrics import orthonormal, principal_angles, unit_rows
from bigpca.solvers.eigh import top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """How the axes of two models a and b agree.

    Attributes
    ----------
    angles : ndarray of shape (min(k_a, k_b),)
        Principal angles between their spans, in radians, the largest first.
    a_in_b, b_in_a : float
        The share of the variance along the components of one model that lies in the span of the other: ``sum_i lambda_i
        |P v_i|^2 / sum_i lambda_i``; 1 if that span contains all components.
    """

    angles: Vector
    a_in_b: float
    b_in_a: float


def compare(a: Any, b: Any) -> Comparison:
    """Compare the axes of two fitted models of the same features; nothing is read.

    Parameters
    ----------
    a, b : fitted models with ``components_`` and ``explained_variance_``
        Such as two :class:`bigpca.PCA`, of other rows, other solvers, or other numbers of components.

    Returns
    -------
    Comparison
        Principal angles, and the variance of each that the other captures.

    Raises
    ------
    ValueError
        For other numbers of features, a model of scaled features beside one of unscaled ones, other preprocessing, and
        models without axes.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.random.default_rng(0).standard_normal((200, 4)) * [9, 5, 1, 1]
    >>> found = compare(PCA(1).fit(X), PCA(2).fit(X))
    >>> round(found.a_in_b, 6), found.b_in_a < 0.9
    (1.0, True)
    """
    for model, name in ((a, "a"), (b, "b")):
        if isinstance(model, BaseEstimator):
            check_is_fitted(model)
        if not (hasattr(model, "components_") and hasattr(model, "explained_variance_")):
            raise ValueError(
                f"{name} is a {type(model).__name__}, which has no components_ with variances along them; two linear "
                "models such as PCA were expected. Compare scores, or their spectra, instead."
            )
    if (a.scale_ is None) != (b.scale_ is None):
        raise ValueError("one model has scaled features, and the other has not: fit both with the same scale.")
    _check_same_preprocess(a, b)
    # rotation keeps the span and the variance along it, but not one variance for each of orthonormal axes
    a, b = (model.estimator_ if isinstance(model, RotatedPCA) else model for model in (a, b))
    angles = principal_angles(a, b)
    return Comparison(angles, _share_within(a, b), _share_within(b, a))


def _share_within(of: Any, within: Any) -> float:
    basis = orthonormal(unit_rows(within, "components"), "components")
    variances = np.asarray(of.explained_variance_, np.float64)
    held = ((of.components_ @ basis.T) ** 2).sum(axis=1)
    total = float(variances.sum())
    return float(np.minimum(held, 1.0) @ variances) / total if total > 0 else 1.0


def frechet_distance(a: Any, b: Any) -> float:
    """Return the Fréchet distance between the Gaussians of the rows of two models, squared as FID is; nothing is read.

    ``|mean_a - mean_b|^2 + tr(C_a + C_b - 2 (C_a^1/2 C_b C_a^1/2)^1/2)``, of the means and covariances (divisor n - 1)
    of the unscaled features. On features of an Inception network it is the FID.

    Parameters
    ----------
    a, b : fitted PCA, with kept statistics
        ``n_components`` has no effect.

    Returns
    -------
    float
        At least 0.

    Raises
    ------
    TypeError
        For models of another class.
    ValueError
        For other numbers of features, other preprocessing, and models without the moments of their rows.

    Notes
    -----
    Dowson & Landau (1982); Heusel et al. (2017). NOTE: the trace of the square root is the sum of the singular values
    of ``C_a^1/2 C_b^1/2``, each root by a symmetric eigenproblem. The square root of the product ``C_a C_b``, which is
    not symmetric, loses half of the digits where covariances are nearly singular, and can be complex.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.random.default_rng(0).standard_normal((100, 3))
    >>> round(frechet_distance(PCA(1).fit(X), PCA(2).fit(X + [3.0, 0.0, 4.0])), 6)
    25.0
    """
    with solving_with(getattr(a, "solve_threads", None)):
        one, other = _moments_of(a, "a"), _moments_of(b, "b")
        _check_same_preprocess(a, b)
        if one.n_features != other.n_features:
            raise ValueError(
                f"the models have {one.n_features} and {other.n_features} features; the same number was "
                "expected. Fit both to features of one network."
            )
        (mean, first), (other_mean, second) = _gaussian(a, one), _gaussian(b, other)
        apart = float(((mean - other_mean) ** 2).sum())
        traces = float((first**2).sum() + (second**2).sum())
        return max(0.0, apart + traces - 2 * float(svdvals(first @ second.T).sum()))


def _check_same_preprocess(a: Any, b: Any) -> None:
    one, other = getattr(a, "preprocess", None), getattr(b, "preprocess", None)
    if preprocessors(one) != preprocessors(other):
        raise ValueError(
            f"the models have preprocess={one!r} and {other!r}, so that their rows are not of one space. Fit both with "
            "the same."
        )


def _moments_of(model: Any, name: str) -> Moments:
    if not isinstance(model, PCA):
        raise TypeError(
            f"{name} is of class {type(model).__name__}; a fitted PCA was expected. Fit one to the same rows."
        )
    check_is_fitted(model)
    return model._whole_state("frechet_distance")


def _gaussian(model: PCA, moments: Moments) -> tuple[Vector, Matrix]:
    """Return the mean (d,) of the unscaled rows, and their ``C^1/2``: ``sqrt(lambda_i) v_i`` (d, d).

    The root is determined up to a rotation from the left.
    """
    given = model._standardization(moments.n_features)
    covariance = moments.scatter / (moments.weight - 1) * (given.divisors[:, None] * given.divisors)
    values, vectors = top_eigenpairs(covariance)
    return given.shift + given.divisors * moments.mean, np.asarray(vectors * np.sqrt(values)[:, None])
