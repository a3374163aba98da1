"""Supervised PCA: axes along which rows depend on their labels most, by the Hilbert-Schmidt independence criterion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bigpca.data.labels import TargetLabels
from bigpca.estimators.shared.transformer import RandomState
from bigpca.estimators.supervised.label_features import (
    FourierLabels,
    LabelFeatures,
    LandmarkLabels,
    LinearLabels,
    label_width,
)
from bigpca.estimators.supervised.model import SupervisedModel
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.sketches.base import positive_integer
from bigpca.solvers.components import NComponents
from bigpca.solvers.roweis import Axes, supervised_axes

LABEL_KERNELS = ("linear", "rbf")


class SupervisedPCA(SupervisedModel):
    """Supervised PCA: the leading eigenvectors of ``X'H K_y H X = Psi Psi'`` with ``Psi = X'H Delta`` (SPCA paper, section 5).

    One read whatever d and n: Psi' (m, d) is all that is kept of the rows. Classes have the delta kernel, of at most c - 1 axes;
    real labels a linear kernel (as many axes as label columns) or a Gaussian one.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None
        A float keeps that share of the sum of all eigenvalues; None for the rank of Psi.
    label_kernel : {"linear", "rbf"}
        Of real labels. "rbf" is exact up to 256 distinct labels; of more, 256 landmarks are drawn by randomly pivoted
        Cholesky, and ``missed_label_trace_`` is the share of the label kernel's trace that they miss.
    label_gamma : float or None
        None for one over the sum of the variances of the label columns.
    missing_labels : {"raise", "drop"}
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised.model.SupervisedModel`; the components are orthonormal.

    Raises
    ------
    ValueError
        At fit, for more components than Psi has rank.

    Examples
    --------
    >>> X = np.array([[0.0, 0, 3], [0, 1, -3], [5, 0, 3], [5, 1, -3]])
    >>> SupervisedPCA().fit(X, ["a", "a", "b", "b"]).components_.round(9).tolist()
    [[1.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        label_kernel: str = "linear",
        label_gamma: float | None = None,
        missing_labels: str = "raise",
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.n_components = n_components
        self.label_kernel = label_kernel
        self.label_gamma = label_gamma
        self.missing_labels = missing_labels
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.solve_threads = solve_threads
        self.workers_timeout = workers_timeout

    @property
    def _whole(self) -> bool:
        return False

    def _features(self, labels: TargetLabels, seed: int) -> LabelFeatures:
        return kernel_features(labels, self.label_kernel, self.label_gamma)

    def _check_parameters(self, d: int) -> None:
        check_label_kernel(self.label_kernel)
        check_count(self.n_components)

    def _solve(self, statistics: LabelStatistics) -> Axes:
        return leading_axes(statistics, self.n_components, self.solve_threads)


class SupervisedRandomProjection(SupervisedModel):
    """Supervised PCA whose label kernel, Gaussian, is replaced by random Fourier features (SPCA paper, section 5.4).

    ``Psi = X'H Delta`` with m random features Delta of the labels spans the projection; its leading left singular vectors are
    the components. NOTE: classes have the delta kernel of :class:`SupervisedPCA`, without random features: a Gaussian kernel
    of their one-hot vectors, once centred, is a multiple of it.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None
        A float keeps that share of the sum of all eigenvalues; None for the rank of Psi: all that the features span.
    n_features : int
        m.
    label_gamma, missing_labels
        As in :class:`SupervisedPCA`.
    random_state : int, RandomState, Generator or None
        Of the features; as in :class:`bigpca.PCA`.
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    See :class:`bigpca.estimators.supervised.model.SupervisedModel`.
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        n_features: int = 100,
        label_gamma: float | None = None,
        random_state: RandomState = 0,
        missing_labels: str = "raise",
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.n_components = n_components
        self.n_features = n_features
        self.label_gamma = label_gamma
        self.random_state = random_state
        self.missing_labels = missing_labels
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.solve_threads = solve_threads
        self.workers_timeout = workers_timeout

    @property
    def _whole(self) -> bool:
        return False

    def _features(self, labels: TargetLabels, seed: int) -> LabelFeatures:
        known = labels.values[labels.used]
        gamma = label_width(known, self.label_gamma)
        count = positive_integer("n_features", self.n_features)
        return FourierLabels.draw(known.shape[1], count, gamma, seed)

    def _check_parameters(self, d: int) -> None:
        check_count(self.n_components)
        positive_integer("n_features", self.n_features)

    def _solve(self, statistics: LabelStatistics) -> Axes:
        return leading_axes(statistics, self.n_components, self.solve_threads)


def leading_axes(statistics: LabelStatistics, n_components: Any, threads: int | None) -> Axes:
    """Return the axes of supervised PCA.

    Raises
    ------
    ValueError
        For no axis at all, and for more than the labels determine.
    """
    psi = statistics.psi
    found = supervised_axes(psi, None, threads=threads)
    if statistics.independent:
        found = replace(found, rank=0)
    return cut_axes(found, n_components, f"X'H Delta with {len(psi)} label features")


def cut_axes(found: Axes, n_components: Any, what: str) -> Axes:
    """Return as many axes as are wanted: a number, or those that hold a share of the sum of all eigenvalues.

    Raises
    ------
    ValueError
        For no axis at all, and for more than the labels determine.
    """
    if not found.rank:
        raise ValueError(
            f"rows do not depend on their labels: {what} is 0, as with a single class, equal rows or labels. Labels that differ, "
            f"and with them the rows, were expected."
        )
    if n_components is None:
        return found
    k = (
        share_count(found.values, n_components)
        if is_share(n_components)
        else positive_integer("n_components", n_components)
    )
    if k > found.rank:
        raise ValueError(
            f"n_components = {k}, but the labels determine {found.rank} axes, the rank of {what}: for classes, one less than "
            f"there are. Use {found.rank} or fewer, or Roweis discriminant analysis with r1 < 1."
        )
    return Axes(found.values[:k], found.components[:k], found.rank)


def is_share(n_components: Any) -> bool:
    """Whether a number of components is given as a share of the sum of the eigenvalues."""
    return isinstance(n_components, float) and 0 < n_components < 1


def share_count(values: Any, share: float) -> int:
    """Return how many leading eigenvalues hold that share of their sum; 1 at least."""
    shares = np.cumsum(values) / max(values.sum(), np.finfo(np.float64).tiny)
    return min(int(np.searchsorted(shares, share)) + 1, len(shares))


def check_count(n_components: Any) -> None:
    """Refuse what is neither None, nor a share in (0, 1), nor a positive integer.

    Raises
    ------
    TypeError, ValueError
    """
    if n_components is not None and not is_share(n_components):
        positive_integer("n_components", n_components)


def check_label_kernel(label_kernel: Any) -> None:
    """Refuse an unknown label kernel.

    Raises
    ------
    ValueError
    """
    if label_kernel not in LABEL_KERNELS:
        raise ValueError(f'label_kernel = {label_kernel!r} is unknown; "linear" or "rbf" was expected.')


def kernel_features(labels: TargetLabels, label_kernel: str, label_gamma: Any) -> LabelFeatures:
    """Return the features of real labels under a linear or Gaussian label kernel.

    Raises
    ------
    ValueError
        For another kernel, and for labels that are all equal.
    """
    check_label_kernel(label_kernel)
    known = labels.values[labels.used]
    gamma = label_width(known, label_gamma)
    return LinearLabels.of(known) if label_kernel == "linear" else LandmarkLabels.of(known, gamma)
