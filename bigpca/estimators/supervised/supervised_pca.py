"""Supervised PCA: the axes with the largest dependence on the labels, by the Hilbert-Schmidt criterion."""

from __future__ import annotations

from dataclasses import KW_ONLY

from bigpca.estimators.shared.fit import RandomState
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.sklearn_bases import BaseEstimator
from bigpca.estimators.shared.transformer import of_all, with_parameters
from bigpca.estimators.supervised.fits import SupervisedResult
from bigpca.estimators.supervised.model import LABELS, SupervisedModel
from bigpca.estimators.supervised.problems import ProjectionProblem, SupervisedProblem
from bigpca.settings import setting
from bigpca.solvers.components import NComponents


@of_all
class OfLabelKernel(BaseEstimator):
    """Supervised PCA, of rows or of their features: what it does with real labels."""

    label_kernel: str = "linear"
    label_gamma: float | None = None

    def _problem(self, seed: int = 0) -> SupervisedProblem:
        threads, kernel, gamma = setting(self, "solve_threads"), self.label_kernel, self.label_gamma
        return SupervisedProblem(self.n_components, threads, label_kernel=kernel, label_gamma=gamma)


@with_parameters
class SupervisedPCA(OfLabelKernel, SupervisedModel):
    """Supervised PCA: the leading eigenvectors of ``X'H K_y H X = Psi Psi'`` with ``Psi = X'H Delta`` (SPCA paper,
    section 5).

    One read for any d and n: only Psi' (m, d) is kept. Classes have the delta kernel, with at most c - 1 axes; real
    labels a linear kernel (as many axes as label columns) or a Gaussian one.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None, default None
        A float keeps that share of the sum of all eigenvalues; None uses the rank of Psi.
    label_kernel : {"linear", "rbf"}, default "linear"
        Of real labels. "rbf" is exact up to 256 distinct labels; for more, 256 landmarks are drawn by randomly pivoted
        Cholesky, and ``missed_label_trace_`` is the share of the label kernel's trace that they miss.
    label_gamma : float or None, default None
        None for 1 / (the sum of the variances of the label columns), by weight; it must be given with
        ``nan_policy="omit"``.
    missing_labels : {"raise", "drop"}, default "raise"
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised.model.SupervisedModel`; the components are orthonormal.

    Raises
    ------
    ValueError
        In ``fit``, if there are more components than the rank of Psi.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0, 0, 3], [0, 1, -3], [5, 0, 3], [5, 1, -3]])
    >>> SupervisedPCA().fit(X, ["a", "a", "b", "b"]).components_.round(9).tolist()
    [[1.0, 0.0, 0.0]]
    """

    _traits = Traits(SupervisedResult, "spca", LABELS)

    n_components: NComponents = None
    _: KW_ONLY


@with_parameters
class SupervisedRandomProjection(SupervisedModel):
    """Supervised PCA with random Fourier features in place of a Gaussian label kernel (SPCA paper, section 5.4).

    ``Psi = X'H Delta`` with m random features Delta of the labels spans the projection; its leading left singular
    vectors are the components. NOTE: classes use the delta kernel of :class:`SupervisedPCA`, without random features,
    because a centred Gaussian kernel of their one-hot vectors is a multiple of it.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None, default None
        A float keeps that share of the sum of all eigenvalues; None for the rank of Psi, all that the features span.
    n_features : int, default 100
        m.
    label_gamma, missing_labels
        As in :class:`SupervisedPCA`; defaults None and "raise".
    random_state : int, RandomState, Generator or None, default 0
        Of the features; as in :class:`bigpca.PCA`.
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    See :class:`bigpca.estimators.supervised.model.SupervisedModel`.
    """

    _traits = Traits(SupervisedResult, "srp", LABELS)

    n_components: NComponents = None
    _: KW_ONLY
    n_features: int = 100
    label_gamma: float | None = None
    random_state: RandomState = 0

    def _problem(self, seed: int = 0) -> ProjectionProblem:
        threads, m, gamma = setting(self, "solve_threads"), self.n_features, self.label_gamma
        return ProjectionProblem(self.n_components, threads, n_features=m, label_gamma=gamma, seed=seed)
