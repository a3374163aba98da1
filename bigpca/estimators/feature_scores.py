"""How much each feature depends on the labels, and how well components of the best ones explain them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigpca.data.labels import ClassLabels, Labels, TargetLabels
from bigpca.estimators.label_statistics import LabelStatistics
from bigpca.passes.accumulators import unpack_upper
from bigpca.passes.class_moments import ClassMoments
from bigpca.solvers.eigh import top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def centred_targets(labels: TargetLabels) -> Matrix:
    """Return real labels about their mean (n, m); zeros for rows without one."""
    values = labels.values - labels.values[labels.used].mean(axis=0)
    return np.where(labels.used[:, None], values, 0.0)


def one_hot(codes: NDArray[np.int32], n_classes: int) -> Matrix:
    """Return one-hot classes (n, c); zeros for rows of code -1."""
    hot: Matrix = (codes[:, None] == np.arange(n_classes)).astype(np.float64)
    return hot


def feature_scores(statistics: LabelStatistics, labels: Labels) -> Vector:
    """Return F of every feature for classes, R^2 for real labels (d,); 0 for constant features.

    ``F = (sum_c n_c (mean_c - mean)^2 / (c - 1)) / (S_W / (n - c))``. ``R^2 = r'C^-1 r`` with the correlations r of a feature and
    the labels, C those among the labels.
    """
    n, within = statistics.count, np.maximum(statistics.moments.within, 0.0)
    if isinstance(labels, ClassLabels):
        between = (statistics.between**2).sum(axis=0)
        c = int(np.count_nonzero(statistics.moments.counts))
        noise = np.finfo(np.float64).eps * n * (within + between)
        constant = within + between <= np.finfo(np.float64).eps ** 2 * n * statistics.mean**2
        F = between / max(1, c - 1) / np.maximum(within, np.maximum(noise, np.finfo(np.float64).tiny)) * max(1, n - c)
        return np.where(constant, 0.0, F)
    cross = statistics.psi  # (m, d)
    known = labels.values[labels.used]
    S = np.cov(known.T, bias=True).reshape(cross.shape[0], -1) * len(known)
    explained = np.einsum("md,md->d", cross, np.linalg.pinv(S, hermitian=True) @ cross)
    constant = within <= np.finfo(np.float64).eps ** 2 * n * statistics.mean**2
    return np.where(constant, 0.0, np.minimum(explained / np.where(constant, 1.0, within), 1.0))


def explained_share(folds: list[ClassMoments], left_out: int, columns: NDArray[np.int64], q: int, k: int) -> float:
    """Return the share of the labels' variance in one fold that k components and regression of the other folds explain."""
    train = None
    for f, own in enumerate(folds):
        if f != left_out:
            train = own if train is None else train.merge(own)
    test = folds[left_out]
    if train is None or test.count < 2:
        return 0.0
    S, mean = symmetric(train), train.means[0]
    targets = np.arange(q, S.shape[0])
    _, axes = top_eigenpairs(S[np.ix_(columns, columns)].copy(), min(k, len(columns)))
    variances = axes @ S[np.ix_(columns, columns)] @ axes.T
    B = np.linalg.pinv(variances, hermitian=True) @ axes @ S[np.ix_(columns, targets)]  # (k, m)
    W = axes.T @ B
    off = test.means[0] - mean  # residual of y - mean_y - (x - mean_x) W, summed over the fold by its moments
    T = symmetric(test) + test.count * np.outer(off, off)
    residual = np.trace(
        T[np.ix_(targets, targets)] - 2 * W.T @ T[np.ix_(columns, targets)] + W.T @ T[np.ix_(columns, columns)] @ W
    )
    total = float(np.trace(T[np.ix_(targets, targets)]))
    return 1.0 - float(residual) / total if total > 0 else 0.0


def symmetric(moments: ClassMoments) -> Matrix:
    """Return the scatter whole (d, d)."""
    upper = unpack_upper(moments.within, moments.n_features)
    return np.triu(upper) + np.triu(upper, 1).T
