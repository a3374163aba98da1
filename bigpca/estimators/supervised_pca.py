"""Supervised PCA: axes along which rows depend on their labels most, by the Hilbert-Schmidt independence criterion."""

from __future__ import annotations

from typing import Any

from bigpca.data.labels import TargetLabels
from bigpca.estimators.label_features import FourierLabels, LabelFeatures, LandmarkLabels, LinearLabels, label_width
from bigpca.estimators.label_statistics import LabelStatistics
from bigpca.estimators.supervised_model import SupervisedModel, Supervision
from bigpca.seeds import check_seed
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
    n_components : int or None
        None for the rank of Psi.
    label_kernel : {"linear", "rbf"}
        Of real labels.
    label_gamma : float or None
        None for ``1 / (columns x variance)`` of the labels.
    missing_labels : {"raise", "drop"}
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised_model.SupervisedModel`; the components are orthonormal.

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

    def _features(self, labels: TargetLabels) -> LabelFeatures:
        if self.label_kernel not in LABEL_KERNELS:
            raise ValueError(f'label_kernel = {self.label_kernel!r} is unknown; "linear" or "rbf" was expected.')
        known = labels.values[labels.used]
        gamma = label_width(known)  # refuses labels that are all equal
        if self.label_kernel == "linear":
            return LinearLabels()
        return LandmarkLabels.of(known, gamma if self.label_gamma is None else float(self.label_gamma))

    def _solve(self, statistics: LabelStatistics, supervision: Supervision) -> Axes:
        return leading_axes(statistics, self.n_components, self.solve_threads)


class SupervisedRandomProjection(SupervisedModel):
    """Supervised PCA whose label kernel, Gaussian, is replaced by random Fourier features (SPCA paper, section 5.4).

    ``Psi = X'H Delta`` with m random features Delta of the labels spans the projection; its leading left singular vectors are
    the components. Classes are one-hot vectors first.

    Parameters
    ----------
    n_components : int or None
        None for the rank of Psi: all that the features span.
    n_features : int
        m.
    label_gamma, missing_labels
        As in :class:`SupervisedPCA`.
    random_state : int
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    See :class:`bigpca.estimators.supervised_model.SupervisedModel`; there are no classes.
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        n_features: int = 100,
        label_gamma: float | None = None,
        random_state: int = 0,
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

    def _features(self, labels: TargetLabels) -> LabelFeatures:
        known = labels.values[labels.used]
        gamma = label_width(known) if self.label_gamma is None else float(self.label_gamma)
        count = positive_integer("n_features", self.n_features)
        return FourierLabels.draw(known.shape[1], count, gamma, check_seed(self.random_state, "random_state"))

    def _solve(self, statistics: LabelStatistics, supervision: Supervision) -> Axes:
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
    if not found.rank:
        raise ValueError(
            f"rows do not depend on their labels: X'H Delta is 0 for {statistics.count} rows, as with a single class, equal rows "
            f"or labels. Labels that differ, and with them the rows, were expected."
        )
    return cut_axes(found, n_components, f"X'H Delta with {len(psi)} label features")


def cut_axes(found: Axes, n_components: Any, what: str) -> Axes:
    """Return as many axes as are wanted.

    Raises
    ------
    ValueError
        For more than the labels determine.
    """
    if n_components is None:
        return found
    k = positive_integer("n_components", n_components)
    if k > found.rank:
        raise ValueError(
            f"n_components = {k}, but the labels determine {found.rank} axes, the rank of {what}: for classes, one less than "
            f"there are. Use {found.rank} or fewer, or Roweis discriminant analysis with r1 < 1."
        )
    return Axes(found.values[:k], found.components[:k], found.rank)
