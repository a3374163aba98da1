"""The density of a linear model, probabilistic PCA: likelihoods of rows, the covariance and its inverse."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.estimators.linear.axes import low_rank_plus_diagonal
from bigpca.estimators.linear.judging import Judging, check_density, has_covariance, plain_projection
from bigpca.estimators.linear.maps import LogLikelihood
from bigpca.estimators.shared.inputs import Input, Lazy
from bigpca.estimators.shared.transforming import mapped_to_numbers
from bigpca.passes.engine.solving import solving


@available_if(has_covariance)  # type: ignore[untyped-decorator]
@solving
def score_samples(self: Judging, X: Input) -> Lazy:
    """Return the log-likelihood of each row under probabilistic PCA (of the scaled features, if ``scale``).

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.

    Returns
    -------
    ndarray or dask.array.Array of shape (n,)
        Log-likelihoods in nats; NaN for rows omitted by ``nan_policy``. Lazy if X is lazy. For a DataArray, one with
        the coordinates of its samples.

    Raises
    ------
    ValueError
        If the noise variance is 0 and k < d: the model has no density.
    """
    check_is_fitted(self)
    check_density(self)
    likelihood = LogLikelihood(plain_projection(self), self.explained_variance_, self.noise_variance_)
    return mapped_to_numbers(self, X, likelihood, "log_likelihood")


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def score(self: Judging, X: Input, y: Input = None) -> float:
    """Return the mean log-likelihood of the rows (with ``nan_policy="omit"``, of the others); one read.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    y : ignored, default None

    Returns
    -------
    float
        In nats per row.
    """
    mean = np.nanmean if self.nan_policy == "omit" else np.mean
    return float(mean(self.score_samples(X)))


@available_if(has_covariance)  # type: ignore[untyped-decorator]
@solving
def get_covariance(self: Judging) -> NDArray[np.float64]:
    """Return the model's covariance (d, d): ``components' (variances - noise) components + noise I``.

    Returns
    -------
    ndarray of shape (d, d), float64
    """
    check_is_fitted(self)
    weights = np.maximum(self.explained_variance_ - self.noise_variance_, 0)
    return low_rank_plus_diagonal(self.components_, weights, self.noise_variance_)


@available_if(has_covariance)  # type: ignore[untyped-decorator]
@solving
def get_precision(self: Judging) -> NDArray[np.float64]:
    """Return the inverse of :meth:`get_covariance`, by the matrix inversion lemma.

    Returns
    -------
    ndarray of shape (d, d), float64
    """
    check_is_fitted(self)
    if self.noise_variance_ <= 0:
        if self.n_components_ < self.n_features_in_ or (self.explained_variance_ <= 0).any():
            return np.asarray(np.linalg.pinv(self.get_covariance(), hermitian=True))
        return low_rank_plus_diagonal(self.components_, 1 / self.explained_variance_, 0.0)
    noise = self.noise_variance_
    weights = 1 / np.maximum(self.explained_variance_, noise) - 1 / noise
    return low_rank_plus_diagonal(self.components_, weights, 1 / noise)
