"""Kernel supervised PCA and kernel Roweis discriminant analysis, on Nyström features that may be exact.

And the criterion that supervised PCA maximises, as a number: the dependence of rows on their labels, :func:`hsic`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import partial

from numpy.typing import ArrayLike

from bigpca.estimators.kernel.landmarks import landmark_features
from bigpca.estimators.kernel.model import UNWEIGHTED, KernelLike, KernelModel
from bigpca.estimators.kernel.spectrum import KernelSettings, KernelSpectrum, check_references
from bigpca.estimators.shared.fit import RandomState, running
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import labels_of_fit, rows_of_fit
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.estimators.supervised.discriminants import RoweisPoint
from bigpca.estimators.supervised.fits import LabelsFit
from bigpca.estimators.supervised.kernel_fit import DualFit, FeatureLabelFit, LabelledGrowth, kept_labels, solve_labels
from bigpca.estimators.supervised.model import LABELS
from bigpca.estimators.supervised.problems import (
    Problem,
    RoweisProblem,
    SupervisedProblem,
    check_among,
    check_conditioning,
    read_labels,
)
from bigpca.estimators.supervised.statistics import KeptStatistics, LabelStatistics
from bigpca.estimators.supervised.supervised_pca import SupervisedPCA
from bigpca.parameters import Parameter
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.rows import Rows
from bigpca.settings import setting
from bigpca.solvers.components import NComponents


class LabelledFeatures(KernelModel):
    """What models of labels have that keep statistics of the features of landmarks."""

    @abstractmethod
    def _problem(self, seed: int = 0) -> Problem:
        """Check the parameters and return the problem."""

    def _growth(self, rows: Rows, y: Unchecked, latest: KernelSpectrum) -> LabelledGrowth:
        rows, resources = rows_of_fit(self, rows)
        old, problem = kept_labels(latest), self._problem()
        if problem.whole:
            old.statistics.check_whole()
        settings = self._settings(rows.n_columns)
        labelled = read_labels(self, y, rows.n_rows, problem, like=old.supervision)
        whole, features = old.statistics.moments.whole, landmark_features(latest)
        return LabelledGrowth(rows, resources, settings, features, labelled, problem, whole)

    def _solve_grown(self, kept: KernelSpectrum, settings: KernelSettings) -> Callable[[], KernelSpectrum]:
        return partial(solve_labels, kept, self._problem())

    def _check_classes(self, y: Unchecked, classes: Unchecked) -> None:
        check_among(y, classes, self.missing_labels)

    def _warn(self, found: KernelSpectrum, n_classes: int = 1) -> None:
        known = found.classes_ is not None and self._problem().needs_classes
        super()._warn(found, len(found.classes_) if known else 1)  # type: ignore[arg-type]

    def _template(self) -> object:
        return KeptStatistics


@with_parameters
class KernelSupervisedPCA(LabelledFeatures):
    """Kernel supervised PCA (SPCA paper, section 6): axes in feature space with the largest dependence on the labels.

    ``solver="landmarks"``: supervised PCA of Nyström features, in one read after the choice of landmarks; exact if all
    rows are landmarks. ``solver="pairs"``: the dual problem, exact for any n by one sweep over pairs of rows, ``n^2 /
    2`` kernel evaluations; new rows must be compared with all training rows.

    Parameters
    ----------
    n_components : int or None, default None
        None for all axes that the labels determine: c - 1 for classes.
    solver : {"landmarks", "pairs"}, default "landmarks"
        "pairs" has no landmarks: ``n_landmarks`` and ``sampling`` are ignored.
    kernel, gamma, degree, coef0, random_state, fit_inverse_transform
        As in :class:`bigpca.KernelPCA`; defaults "rbf", None, 3, 1, 0 and False.
    label_kernel, label_gamma, missing_labels
        As in :class:`bigpca.SupervisedPCA`; defaults "linear", None and "raise".
    n_landmarks : int or None, default None
        None for all rows if there are at most 2,000, else 1,000.
    sampling : str, or row numbers (m,), or rows (m, d), default "rpcholesky"
        As in :class:`bigpca.NystromKernelPCA`.
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    See :class:`bigpca.estimators.kernel.model.KernelModel`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 50)
    >>> X = rng.standard_normal((100, 2)) * (1 + 4 * y[:, None])  # the classes differ in length
    >>> model = KernelSupervisedPCA(gamma=0.2).fit(X, y)
    >>> scores = model.transform(X)[:, 0]
    >>> bool(abs(scores[y == 0].mean() - scores[y == 1].mean()) > 2 * scores.std() * 0.7)
    True
    """

    _traits = Traits(
        KernelSpectrum, "kspca", LABELS, UNWEIGHTED, ranges={"solver": Parameter(words=("landmarks", "pairs"))}
    )

    n_components: NComponents = None
    _: KW_ONLY
    solver: str = "landmarks"
    kernel: KernelLike = "rbf"
    gamma: float | None = None
    degree: int = 3
    coef0: float = 1
    label_kernel: str = "linear"
    label_gamma: float | None = None
    n_landmarks: int | None = None
    sampling: str | ArrayLike = "rpcholesky"
    random_state: RandomState = 0
    fit_inverse_transform: bool | float = False
    missing_labels: str = "raise"

    @property
    def _why_fixed(self) -> str:
        if self.solver != "pairs":
            return ""
        return (
            'partial_fit needs the statistics of the features, which solver="pairs" does not keep. Use '
            'solver="landmarks".'
        )

    def _problem(self, seed: int = 0) -> SupervisedProblem:
        return SupervisedProblem(self.n_components, setting(self, "solve_threads"), self.label_kernel, self.label_gamma)

    def _fit(self, rows: Rows, y: Unchecked) -> FeatureLabelFit | DualFit:
        if self.solver == "landmarks":
            return plan_features(self, rows, y, self._problem())
        problem, (rows, resources) = self._problem(), rows_of_fit(self, rows, weighted=False)
        problem.check(rows.n_columns)
        labelled = read_labels(self, y, rows.n_rows, problem)
        if rows.nan_policy == "omit" or labelled.supervision.unlabelled:
            raise ValueError(
                'solver="pairs" compares all pairs of rows and must know them in advance: it cannot omit rows with '
                'missing values or missing labels. Remove such rows first, or use solver="landmarks".'
            )
        settings = self._settings(rows.n_columns, rows.seed)
        self._check_regression(rows.n_rows)
        check_references(rows, settings.kernel)
        return DualFit(rows, resources, settings, labelled)


@with_parameters
class KernelRoweisDiscriminantAnalysis(LabelledFeatures, RoweisPoint):
    """Kernel Roweis discriminant analysis (RDA paper, section 4): the family of (r1, r2) in feature space.

    Roweis discriminant analysis of Nyström features, in one read after the choice of landmarks: (0, 0) is kernel PCA,
    (1, 0) kernel supervised PCA, (0, 1) kernel Fisher discriminant analysis. With all rows as landmarks it is the
    representer form ``K H P H K theta = lambda (r2 N + (1 - r2) K) theta``, reduced to the range of K; with r2 = 1 the
    within-class scatter is then singular, and is rejected unless ``robust`` or ``regularization`` is set.

    Parameters
    ----------
    n_components, r1, r2, robust, regularization, normalize, missing_labels
        As in :class:`bigpca.RoweisDiscriminantAnalysis`; defaults None, 0.5, 0.5, False, None, False and "raise".
    kernel, gamma, degree, coef0, random_state, fit_inverse_transform
        As in :class:`bigpca.KernelPCA`; defaults "rbf", None, 3, 1, 0 and False.
    n_landmarks, sampling
        As in :class:`KernelSupervisedPCA`; defaults None and "rpcholesky".
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    See :class:`bigpca.estimators.kernel.model.KernelModel`; components are not orthonormal if r2 > 0.
    """

    _traits = Traits(KernelSpectrum, "kroweis", LABELS, UNWEIGHTED)

    n_components: NComponents = None
    _: KW_ONLY
    r1: float = 0.5
    r2: float = 0.5
    robust: bool | float = False
    regularization: float | str | None = None
    normalize: bool = False
    kernel: KernelLike = "rbf"
    gamma: float | None = None
    degree: int = 3
    coef0: float = 1
    n_landmarks: int | None = None
    sampling: str | ArrayLike = "rpcholesky"
    random_state: RandomState = 0
    fit_inverse_transform: bool | float = False
    missing_labels: str = "raise"

    @property
    def _orthonormal(self) -> bool:
        return bool(self.r2 == 0)

    @property
    def _why_fixed(self) -> str:
        return ""

    def _problem(self, seed: int = 0) -> RoweisProblem:
        return RoweisProblem(
            self.n_components,
            setting(self, "solve_threads"),
            float(self.r1),
            float(self.r2),
            check_conditioning(self.robust, self.regularization),
            bool(self.normalize),
            featured=True,
        )

    def _fit(self, rows: Rows, y: Unchecked) -> FeatureLabelFit:
        return self._planned(rows, y, self._problem())

    def _planned(self, rows: Rows, y: Unchecked, problem: RoweisProblem) -> FeatureLabelFit:
        return plan_features(self, rows, y, problem)


def plan_features(
    model: KernelSupervisedPCA | KernelRoweisDiscriminantAnalysis, rows: Rows, y: Unchecked, problem: Problem
) -> FeatureLabelFit:
    """Plan a fit on the features of landmarks."""
    rows, resources = rows_of_fit(model, rows)
    problem.check(rows.n_rows)
    labelled = read_labels(model, y, rows.n_rows, problem, weights=rows.weights)
    return FeatureLabelFit.of(
        rows,
        resources,
        model._settings(rows.n_columns, rows.seed),
        labelled,
        problem,
        n_landmarks=model.n_landmarks,
        sampling=model.sampling,
    )


def hsic(
    X: Unchecked,
    y: Unchecked,
    *,
    kernel: KernelLike = "linear",
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
        Estimate from the Nyström features of this many landmarks, never above the exact value. None computes the exact
        value: in one read for the linear kernel, otherwise in one sweep of ``n^2 / 2`` kernel evaluations.
    missing_labels : {"raise", "drop"}, default "raise"
        What to do about rows without a label.
    progress : True, "auto", a callable that receives events, or None, default None
        True shows a bar; "auto" shows one after two seconds.

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
        linear = plain._fit(opened, labels_of_fit(plain, opened.X, y))
        if not isinstance(linear, LabelsFit):
            raise TypeError(f"a {type(linear).__name__} reads no statistics of labels in one pass")
        linear.plan.check()
        with running(linear, progress=progress) as run:
            return _criterion(linear.read(run).statistics)
    # tr(K H K_y H) is |Psi|_F^2 with the features of rows and labels, and the sum over Delta * (K Delta) without.
    solver = "pairs" if n_landmarks is None else "landmarks"
    model = KernelSupervisedPCA(
        solver=solver,
        kernel=kernel,
        gamma=gamma,
        label_kernel=label_kernel,
        label_gamma=label_gamma,
        n_landmarks=n_landmarks,
        missing_labels=missing_labels,
    )
    opened = model._open(X, minimum=2)
    fit = model._fit(opened, labels_of_fit(model, opened.X, y))
    fit.plan.check()
    with running(fit, progress=progress) as run:
        if isinstance(fit, FeatureLabelFit):
            return _criterion(fit.read(run).statistics)
        _, delta, product = fit.multiply(run)
        return max(0.0, float((delta * product).sum())) / (fit.rows.n_rows - 1) ** 2


def _criterion(statistics: LabelStatistics) -> float:
    return float((statistics.psi**2).sum()) / max(1, statistics.count - 1) ** 2
