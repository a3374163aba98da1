"""The dependence of rows on their labels: the Hilbert-Schmidt independence criterion."""

from __future__ import annotations

from typing import Any

from bigpca.estimators.shared.fit import running
from bigpca.estimators.supervised.fits import LabelsFit
from bigpca.estimators.supervised.kernel_fit import FeatureLabelFit
from bigpca.estimators.supervised.kernel_supervised import KernelSupervisedPCA
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.estimators.supervised.supervised_pca import SupervisedPCA
from bigpca.passes.engine.progress import ProgressArgument


def hsic(
    X: Any,
    y: Any,
    *,
    kernel: Any = "linear",
    gamma: float | None = None,
    label_kernel: str = "linear",
    label_gamma: float | None = None,
    n_landmarks: int | None = None,
    missing_labels: str = "raise",
    progress: ProgressArgument = None,
) -> float:
    """Return ``tr(K H K_y H) / (n - 1)^2``, which is 0 for rows that do not depend on their labels.

    See Gretton et al. 2005; SPCA paper, eq. 29.

    Parameters
    ----------
    X, y
        Rows, and their labels as for :class:`bigpca.SupervisedPCA`; classes have the delta kernel.
    kernel, gamma
        Kernel of the rows, as in :class:`bigpca.KernelPCA`; defaults "linear" and None.
    label_kernel, label_gamma
        Kernel of real labels. The RBF kernel of more than 256 distinct labels is approximated by that many landmarks,
        as in :class:`bigpca.SupervisedPCA`: the result is never above the exact value, and a warning is issued if
        they miss 1e-3 of the kernel's trace. Defaults "linear" and None.
    n_landmarks : int or None, default None
        Estimate from the Nyström features of this many landmarks, which is never above the exact value; None for the
        exact value, by one read for the linear kernel, else by one sweep of ``n^2 / 2`` kernel evaluations.
    missing_labels : {"raise", "drop"}, default "raise"
        What to do about rows without a label.
    progress : True, "auto", a callable that receives events, or None, default None
        True shows a bar, "auto" one after two seconds.

    Returns
    -------
    float
        At least 0, in the units of the two kernels.

    Examples
    --------
    >>> X = [[0.0], [0], [1], [1]]
    >>> round(hsic(X, [0, 0, 1, 1]), 9), hsic(X, [0, 1, 0, 1])
    (0.222222222, 0.0)
    """
    if isinstance(kernel, str) and kernel == "linear" and n_landmarks is None:
        plain = SupervisedPCA(label_kernel=label_kernel, label_gamma=label_gamma, missing_labels=missing_labels)
        opened = plain._open(X, minimum=2)
        linear = plain._fit(opened, plain._labels_of_fit(opened.array, y))
        if not isinstance(linear, LabelsFit):
            raise TypeError(f"a {type(linear).__name__} reads no statistics of labels in one pass")
        linear.plan.check()
        with running(linear, progress=progress, workers_timeout=60.0) as run:
            return _criterion(linear.read(run).statistics)
    form = "dual" if n_landmarks is None else "direct"
    model = KernelSupervisedPCA(
        form=form, kernel=kernel, gamma=gamma, label_kernel=label_kernel, label_gamma=label_gamma,
        n_landmarks=n_landmarks,
        missing_labels=missing_labels,
    )  # fmt: skip
    opened = model._open(X, minimum=2)
    fit = model._fit(opened, model._labels_of_fit(opened.array, y))
    fit.plan.check()
    with running(fit, progress=progress, workers_timeout=60.0) as run:
        if isinstance(fit, FeatureLabelFit):
            return _criterion(fit.read(run).statistics)
        _, delta, product = fit.multiply(run)
        return max(0.0, float((delta * product).sum())) / (fit.rows.n_rows - 1) ** 2


def _criterion(statistics: LabelStatistics) -> float:
    return float((statistics.psi**2).sum()) / max(1, statistics.count - 1) ** 2
