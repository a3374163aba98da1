"""The problems that are solved from statistics of labelled rows, and their requirements on rows and labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.data.batch_labels import LabelColumn
from bigpca.data.labels import TargetLabels
from bigpca.errors import check_choice
from bigpca.estimators.shared.inputs import Input
from bigpca.estimators.supervised.label_features import (
    ColumnLabels,
    FourierLabels,
    LabelFeatures,
    LandmarkLabels,
    LinearLabels,
    checked_gamma,
    label_width,
)
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.sketches.base import positive_integer
from bigpca.solvers.roweis import Axes, supervised_axes

LABEL_KERNELS = ("linear", "rbf")


@dataclass(frozen=True)
class LabelUse:
    """How labels are used: real ones become linear features, unless a subclass overrides that."""

    @property
    def needs_classes(self) -> bool:
        """Whether the scatter within classes is used, so that whole numbers are classes whatever their dtype."""
        return False

    def features(self, labels: TargetLabels) -> LabelFeatures:
        """Return the features of real labels.

        Raises
        ------
        ValueError
            If all labels are equal, or classes are required.
        """
        known = labels.values[labels.used]
        label_width(known)  # raises if all labels are equal
        return LinearLabels.of(known)

    def features_before(self, column: LabelColumn, columns: int) -> LabelFeatures | None:
        """Return features of real labels that come with the rows; None if they depend on all labels."""
        return ColumnLabels(column, columns)


@dataclass(frozen=True)
class Problem(LabelUse):
    """A problem in the statistics of labelled rows, or of their features under a kernel.

    Attributes
    ----------
    n_components : int, float in (0, 1), or None
    threads : int or None
        BLAS threads of the solve.
    """

    n_components: Input
    threads: int | None

    @property
    def whole(self) -> bool:
        """Whether the solve requires the whole (d, d) scatter within classes."""
        return False

    @property
    def classifies(self) -> bool:
        """Whether the solution is also a classifier."""
        return False

    def check(self, d: int) -> None:
        """Check the parameters for rows of d columns, before any read.

        Raises
        ------
        TypeError, ValueError
        """
        check_count(self.n_components)

    def most_axes(self, rank: int, d: int) -> int:
        """Return the maximum number of axes for rows of d columns, if the labels determine ``rank`` axes."""
        counted = self.n_components is not None and not is_share(self.n_components)
        return int(self.n_components) if counted else min(rank, d)

    def solve(self, statistics: LabelStatistics) -> Axes:
        """Return the axes: those of supervised PCA, unless a subclass overrides that."""
        return leading_axes(statistics, self.n_components, self.threads)


@dataclass(frozen=True)
class SupervisedProblem(Problem):
    """Supervised PCA.

    Attributes
    ----------
    label_kernel : {"linear", "rbf"}
        Of real labels.
    label_gamma : float or None
    """

    label_kernel: str
    label_gamma: float | None

    def check(self, d: int) -> None:
        check_label_kernel(self.label_kernel)
        super().check(d)

    def features(self, labels: TargetLabels) -> LabelFeatures:
        check_label_kernel(self.label_kernel)
        known = labels.values[labels.used]
        gamma = label_width(known, self.label_gamma)
        return LinearLabels.of(known) if self.label_kernel == "linear" else LandmarkLabels.of(known, gamma)

    def features_before(self, column: LabelColumn, columns: int) -> LabelFeatures | None:
        return super().features_before(column, columns) if self.label_kernel == "linear" else None


@dataclass(frozen=True)
class ProjectionProblem(Problem):
    """Supervised PCA with random Fourier features of real labels.

    Attributes
    ----------
    n_features : int
    label_gamma : float or None
    seed : int
        Of the features.
    """

    n_features: int
    label_gamma: float | None
    seed: int

    def check(self, d: int) -> None:
        super().check(d)
        positive_integer("n_features", self.n_features)

    def features(self, labels: TargetLabels) -> LabelFeatures:
        known = labels.values[labels.used]
        return self._drawn(known.shape[1], label_width(known, self.label_gamma))

    def features_before(self, column: LabelColumn, columns: int) -> LabelFeatures | None:
        return None if self.label_gamma is None else self._drawn(columns, checked_gamma(self.label_gamma))

    def _drawn(self, columns: int, gamma: float) -> FourierLabels:
        return FourierLabels.draw(columns, positive_integer("n_features", self.n_features), gamma, self.seed)


def leading_axes(statistics: LabelStatistics, n_components: Input, threads: int | None) -> Axes:
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


def cut_axes(found: Axes, n_components: Input, what: str) -> Axes:
    """Return the requested axes: a number, or those that hold a share of the sum of all eigenvalues.

    Raises
    ------
    ValueError
        For no axis at all, and for more than the labels determine.
    """
    if not found.rank:
        raise ValueError(
            f"rows do not depend on their labels: {what} is 0, as with a single class, equal rows or equal "
            f"labels. Check that rows and labels are in the same order and differ."
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
            f"n_components = {k}, but the labels determine {found.rank} axes, the rank of {what}: for classes, one "
            f"less than there are. Use {found.rank} or fewer, or Roweis discriminant analysis with r1 < 1."
        )
    return Axes(found.values[:k], found.components[:k], found.rank)


def is_share(n_components: Input) -> bool:
    """Whether a number of components is given as a share of the sum of the eigenvalues."""
    return isinstance(n_components, float) and 0 < n_components < 1


def share_count(values: NDArray[np.float64], share: float) -> int:
    """Return the number of leading eigenvalues that hold that share of their sum; at least 1."""
    shares = np.cumsum(values) / max(values.sum(), np.finfo(np.float64).tiny)
    return min(int(np.searchsorted(shares, share)) + 1, len(shares))


def check_count(n_components: Input) -> None:
    """Reject a number of components that is not None, a share in (0, 1) or a positive integer.

    Raises
    ------
    TypeError, ValueError
    """
    if n_components is not None and not is_share(n_components):
        positive_integer("n_components", n_components)


def check_label_kernel(label_kernel: Input) -> None:
    """Reject an unknown label kernel.

    Raises
    ------
    ValueError
    """
    check_choice("label_kernel", label_kernel, LABEL_KERNELS)
