"""Kernel supervised PCA and kernel Roweis discriminant analysis, on Nyström features that may be exact."""

from __future__ import annotations

from typing import Any

from bigpca.data.labels import TargetLabels
from bigpca.estimators.kernel.spectrum import check_references
from bigpca.estimators.shared.inputs import Opened
from bigpca.estimators.shared.transformer import RandomState
from bigpca.estimators.supervised.kernel_fit import DualFit, FeatureLabelFit
from bigpca.estimators.supervised.kernel_model import KernelLabelModel
from bigpca.estimators.supervised.label_features import LabelFeatures, LinearLabels, label_width
from bigpca.estimators.supervised.roweis_axes import (
    check_classes,
    check_components,
    check_conditioning,
    check_factor,
    family_axes,
    family_of,
)
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.estimators.supervised.supervised_pca import (
    check_count,
    check_label_kernel,
    cut_axes,
    kernel_features,
    leading_axes,
)
from bigpca.solvers.components import NComponents
from bigpca.solvers.roweis import Axes, Conditioning

FORMS = ("direct", "dual")


class KernelSupervisedPCA(KernelLabelModel):
    """Kernel supervised PCA (SPCA paper, section 6): axes in feature space on which images depend on the labels most.

    ``form="direct"``: supervised PCA of Nyström features, in one read beyond the choice of landmarks; exact where all rows are
    landmarks. ``form="dual"``: exact for any n by one sweep over pairs of rows, ``n^2 / 2`` kernel evaluations; new rows are
    compared with all training rows.

    Parameters
    ----------
    n_components : int or None
        None for all axes that the labels determine: c - 1 for classes.
    form : {"direct", "dual"}
    kernel, gamma, degree, coef0, random_state, max_kernel_evaluations, fit_inverse_transform, alpha
        As in :class:`bigpca.KernelPCA`; "rbf" by default.
    label_kernel, label_gamma, missing_labels
        As in :class:`bigpca.SupervisedPCA`.
    n_landmarks : int or None
        None for all rows up to 2,000, else 1,000.
    sampling, rounds
        As in :class:`bigpca.NystromKernelPCA`.
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    See :class:`KernelLabelModel`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 50)
    >>> X = rng.standard_normal((100, 2)) * (1 + 4 * y[:, None])  # told apart by their lengths
    >>> model = KernelSupervisedPCA(gamma=0.2).fit(X, y)
    >>> scores = model.transform(X)[:, 0]
    >>> bool(abs(scores[y == 0].mean() - scores[y == 1].mean()) > 2 * scores.std() * 0.7)
    True
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        form: str = "direct",
        kernel: Any = "rbf",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1,
        label_kernel: str = "linear",
        label_gamma: float | None = None,
        n_landmarks: int | None = None,
        sampling: Any = "rpcholesky",
        rounds: int = 3,
        random_state: RandomState = 0,
        max_kernel_evaluations: float = 2e11,
        fit_inverse_transform: bool = False,
        alpha: float = 1.0,
        missing_labels: str = "raise",
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.n_components = n_components
        self.form = form
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.label_kernel = label_kernel
        self.label_gamma = label_gamma
        self.n_landmarks = n_landmarks
        self.sampling = sampling
        self.rounds = rounds
        self.random_state = random_state
        self.max_kernel_evaluations = max_kernel_evaluations
        self.fit_inverse_transform = fit_inverse_transform
        self.alpha = alpha
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

    def _solve(self, statistics: LabelStatistics) -> Axes:
        return leading_axes(statistics, self.n_components, self.solve_threads)

    def _fit(self, opened: Opened, y: Any) -> FeatureLabelFit | DualFit:
        if self.form not in FORMS:
            raise ValueError(f'form = {self.form!r} is unknown; "direct" or "dual" was expected.')
        check_label_kernel(self.label_kernel)
        check_count(self.n_components)
        rows, resources = self._rows(opened.array)
        labelled = self._labelled(y, rows.n_rows)
        if self.form == "direct":
            return self._feature_fit(rows, resources, labelled, opened.seed)
        if rows.nan_policy == "omit" or labelled.supervision.unlabelled:
            raise ValueError(
                'form="dual" compares all pairs of rows and must know them before: it leaves out none, neither for missing '
                'values nor for missing labels. Remove such rows first, or use form="direct".'
            )
        settings = self._settings(rows.n_columns, opened.seed)
        self._check_preimage(rows.n_rows)
        check_references(rows, settings.kernel)
        return DualFit(rows, resources, settings, labelled, self._wanted)

    def _wanted(self, found: Axes) -> Axes:
        return cut_axes(found, self.n_components, "Delta'H K H Delta")


class KernelRoweisDiscriminantAnalysis(KernelLabelModel):
    """Kernel Roweis discriminant analysis (RDA paper, section 4): the family of (r1, r2) in feature space.

    Roweis discriminant analysis of Nyström features, in one read beyond the choice of landmarks: (0, 0) is kernel PCA, (1, 0)
    kernel supervised PCA, (0, 1) kernel Fisher discriminant analysis. With all rows as landmarks it is the representer form
    ``K H P H K theta = lambda (r2 N + (1 - r2) K) theta``, reduced to the range of K; with r2 = 1 the scatter within classes is
    then singular, and refused unless something is said about it.

    Parameters
    ----------
    n_components, r1, r2, robust, robust_share, regularization, normalize, missing_labels
        As in :class:`bigpca.RoweisDiscriminantAnalysis`.
    kernel, gamma, degree, coef0, random_state, max_kernel_evaluations, fit_inverse_transform, alpha
        As in :class:`bigpca.KernelPCA`; "rbf" by default.
    n_landmarks, sampling, rounds
        As in :class:`KernelSupervisedPCA`.
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    See :class:`KernelLabelModel`; components are not orthonormal where r2 > 0.
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        r1: float = 0.5,
        r2: float = 0.5,
        robust: bool = False,
        robust_share: float = 0.98,
        regularization: float | str | None = None,
        normalize: bool = False,
        kernel: Any = "rbf",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1,
        n_landmarks: int | None = None,
        sampling: Any = "rpcholesky",
        rounds: int = 3,
        random_state: RandomState = 0,
        max_kernel_evaluations: float = 2e11,
        fit_inverse_transform: bool = False,
        alpha: float = 1.0,
        missing_labels: str = "raise",
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.n_components = n_components
        self.r1 = r1
        self.r2 = r2
        self.robust = robust
        self.robust_share = robust_share
        self.regularization = regularization
        self.normalize = normalize
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.n_landmarks = n_landmarks
        self.sampling = sampling
        self.rounds = rounds
        self.random_state = random_state
        self.max_kernel_evaluations = max_kernel_evaluations
        self.fit_inverse_transform = fit_inverse_transform
        self.alpha = alpha
        self.missing_labels = missing_labels
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.solve_threads = solve_threads
        self.workers_timeout = workers_timeout

    @property
    def _needs_classes(self) -> bool:
        return check_factor("r2", self.r2) > 0

    @property
    def supervision_level_(self) -> float:
        """``(r1 + r2) / 2``."""
        return (check_factor("r1", self.r1) + check_factor("r2", self.r2)) / 2

    @property
    def roweis_criterion_(self) -> float:
        """``tr(U'R1 U) / tr(U'R2 U)``, the mean of the eigenvalues."""
        return float(self.eigenvalues_.mean())

    @property
    def _orthonormal(self) -> bool:
        return bool(self.r2 == 0)

    @property
    def _whole(self) -> bool:
        return True

    def _features(self, labels: TargetLabels, seed: int) -> LabelFeatures:
        if check_factor("r2", self.r2) > 0:
            raise ValueError(
                f"labels are continuous numbers, and r2 = {self.r2:g} > 0 needs the scatter within classes; classes were expected. Give "
                f"classes (strings or integers), or use r2 = 0."
            )
        known = labels.values[labels.used]
        label_width(known)  # refuses labels that are all equal
        return LinearLabels.of(known)

    @property
    def _normalized(self) -> bool:
        return bool(self.normalize)

    @property
    def _conditioning(self) -> Conditioning:
        return check_conditioning(self.robust, self.robust_share, self.regularization)

    def _solve(self, statistics: LabelStatistics) -> Axes:
        r1, r2 = check_factor("r1", self.r1), check_factor("r2", self.r2)
        check_classes(statistics, r1, r2)
        family = family_of(statistics, normalize=self._normalized, threads=self.solve_threads)
        return family_axes(family, r1, r2, self.n_components, self._conditioning, statistics)

    def _fit(self, opened: Opened, y: Any) -> FeatureLabelFit:
        check_factor("r1", self.r1)
        check_factor("r2", self.r2)
        check_conditioning(self.robust, self.robust_share, self.regularization)
        rows, resources = self._rows(opened.array)
        check_components(self.n_components, rows.n_rows)
        return self._feature_fit(rows, resources, self._labelled(y, rows.n_rows), opened.seed)
