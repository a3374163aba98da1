"""Roweis and Fisher discriminant analysis: one family of generalised eigenproblems, each from one read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bigpca.data.labels import TargetLabels
from bigpca.estimators.fitting import check_iteration
from bigpca.estimators.label_features import LabelFeatures, LinearLabels, label_width
from bigpca.estimators.label_statistics import LabelStatistics
from bigpca.estimators.roweis_axes import (
    check_classes,
    check_components,
    check_conditioning,
    check_factor,
    family_axes,
    family_of,
)
from bigpca.estimators.roweis_krylov_route import KrylovRoweisJob, Point, plan_krylov_roweis, refuse_singular
from bigpca.estimators.supervised_model import SupervisedJob, SupervisedModel
from bigpca.estimators.supervised_pca import is_share, leading_axes
from bigpca.passes.accumulators import Accumulator
from bigpca.solvers.components import NComponents
from bigpca.solvers.roweis import Axes, Conditioning, RoweisFamily

SOLVERS = ("auto", "covariance", "krylov")
CHEAPER = 20.0  # times as many operations the exact route may take before an iteration is chosen by itself


class DiscriminantModel(SupervisedModel):
    """Generalised eigenproblems of the Roweis family; a subclass names its point (r1, r2)."""

    robust: bool
    robust_share: float
    regularization: float | str | None
    solver: str
    tol: float
    max_passes: int

    @property
    @abstractmethod
    def _factors(self) -> tuple[float, float]:
        """(r1, r2), checked."""

    @property
    @abstractmethod
    def _normalized(self) -> bool:
        """Whether the terms have equal traces."""

    @property
    def _needs_classes(self) -> bool:
        return self._factors[1] > 0

    @property
    def supervision_level_(self) -> float:
        """``(r1 + r2) / 2``: 0 for PCA, 1 for double supervised discriminant analysis."""
        return sum(self._factors) / 2

    @property
    def roweis_criterion_(self) -> float:
        """``tr(U'R1 U) / tr(U'R2 U)``, the mean of the eigenvalues."""
        return float(self.eigenvalues_.mean())

    @property
    def _whole(self) -> bool:
        return self._factors != (1.0, 0.0)

    def _features(self, labels: TargetLabels) -> LabelFeatures:
        if self._factors[1] > 0:
            raise ValueError(
                f"labels are numbers, and r2 = {self._factors[1]:g} > 0 needs the scatter within classes; classes were expected. "
                f"Give classes (strings or integers), or use r2 = 0."
            )
        known = labels.values[labels.used]
        label_width(known)  # refuses labels that are all equal
        return LinearLabels.of(known)

    def _check_parameters(self, d: int) -> None:
        check_components(self.n_components, d)
        check_conditioning(self.robust, self.robust_share, self.regularization)
        if self.solver not in SOLVERS:
            raise ValueError(
                f"solver = {self.solver!r} is unknown; one of {', '.join(map(repr, SOLVERS))} was expected."
            )
        check_iteration(self.tol, self.max_passes, 0)

    def _other_job(self, job: SupervisedJob, templates: Callable[..., dict[str, Accumulator]]) -> Any:
        if not self._whole:
            return None
        conditioning, (r1, r2) = self._conditioning, self._factors
        if r2 == 1.0 and conditioning == check_conditioning(False, self.robust_share, None):
            codes: Any = job.templates["classes"]
            refuse_singular(int(np.count_nonzero(codes.codes >= 0)), codes.n_classes, job.rows.n_columns)
        if self.solver == "covariance":
            return None
        classes = job.supervision.classes
        n_classes = 1 if classes is None else len(classes)
        given: Any = n_classes - 1 if self.n_components is None and (r1, r2) == (0.0, 1.0) else self.n_components
        if given is None or is_share(given) or conditioning.robust or conditioning.regularization == "pinv":
            what = "robust=True" if conditioning.robust else f"n_components = {given!r}"
            what = 'regularization="pinv"' if conditioning.regularization == "pinv" else what
            if self.solver == "auto":
                return None  # the plan says what does not fit
            raise ValueError(
                f'solver="krylov" with {what} would need the whole spectrum of the scatter, which it never forms. Give an integer '
                f"for n_components and a number for regularization."
            )
        added = float(conditioning.regularization or 0.0)
        point = Point(
            partial(self._axes_in, n_components=int(given)), int(given), r1, r2, added, self._normalized, float(self.tol),
            self.max_passes, threads=self.solve_threads,
        )  # fmt: skip
        thin = templates(whole=False)
        plan = plan_krylov_roweis(job.rows, thin, job.plan.resources, type(self).__name__, point)
        if self.solver == "auto" and job.plan.fits and job.plan.flops <= CHEAPER * plan.flops:
            return None
        return KrylovRoweisJob(job.rows, plan, thin, job.supervision, point)

    def _axes_in(self, family: RoweisFamily, statistics: LabelStatistics, *, n_components: int) -> Axes:
        check_classes(statistics, *self._factors)
        return family_axes(family, *self._factors, n_components, Conditioning(), statistics.n_classes)

    def _solve(self, statistics: LabelStatistics) -> Axes:
        if not self._whole:
            found = leading_axes(statistics, self.n_components, self.solve_threads)
            scale = statistics.psi.shape[1] / (statistics.psi**2).sum() if self._normalized else 1.0
            return replace(found, values=found.values * scale)
        check_classes(statistics, *self._factors)
        family = family_of(statistics, normalize=self._normalized, threads=self.solve_threads)
        return family_axes(family, *self._factors, self.n_components, self._conditioning, statistics.n_classes)

    @property
    def _conditioning(self) -> Conditioning:
        return check_conditioning(self.robust, self.robust_share, self.regularization)


class RoweisDiscriminantAnalysis(DiscriminantModel):
    """Maximise ``tr(U'R1 U)`` subject to ``U'R2 U = I`` (RDA paper, eq. 35).

    ``R1 = r1 Psi Psi' + (1 - r1) S_T``, ``R2 = r2 S_W + (1 - r2) I``: (0, 0) is PCA, (1, 0) supervised PCA, (0, 1) Fisher's
    discriminant analysis, (1, 1) double supervised discriminant analysis. One read, where a (d, d) matrix fits.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None
        A float keeps that share of the sum of all generalised eigenvalues; None all axes of eigenvalues that are not 0.
    r1, r2 : float in [0, 1]
        Real labels need ``r2 = 0``; where r2 is more, real numbers that are all whole are classes.
    robust : bool
        For singular or ill-conditioned R2: its trailing eigenvalues are replaced by their mean (RDA paper, section 5.2).
    robust_share : float in (0, 1)
        Share of the sum of R2's eigenvalues that the leading ones, which are kept, hold.
    regularization : None, "pinv" or float > 0
        Of a singular R2: refuse it, leave out its null space, or add that multiple of I.
    normalize : bool
        Scale ``Psi Psi'``, ``S_T`` and ``S_W`` to the trace of I. NOTE: as printed they grow as n^2, n and n, so that on large n
        all but the corners of the square of (r1, r2) coincide; the printed formula is the default.
    solver : {"auto", "covariance", "krylov"}
        The (d, d) matrices, or, where these do not fit or cost 20 times as much,
        Rayleigh-Ritz on a block Krylov space of S_W, in some reads more: for a
        given number of components, and neither ``robust`` nor "pinv".
    tol : float
        Relative change of the eigenvalues between reads at which "krylov" stops.
    max_passes : int
        Most reads of "krylov".
    missing_labels : {"raise", "drop"}
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    supervision_level_, roweis_criterion_ : float
    components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised_model.SupervisedModel`; ``components_ R2 components_' = I``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 50)
    >>> X = rng.standard_normal((100, 3)) * [9, 1, 1] + np.outer(y, [0, 5, 0])
    >>> RoweisDiscriminantAnalysis(1, r1=0.5, r2=0.5, normalize=True).fit(X, y).components_.round(1).argmax()
    np.int64(1)
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
        solver: str = "auto",
        tol: float = 1e-3,
        max_passes: int = 20,
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
        self.solver = solver
        self.tol = tol
        self.max_passes = max_passes
        self.missing_labels = missing_labels
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.solve_threads = solve_threads
        self.workers_timeout = workers_timeout

    @property
    def _factors(self) -> tuple[float, float]:
        return check_factor("r1", self.r1), check_factor("r2", self.r2)

    @property
    def _normalized(self) -> bool:
        return bool(self.normalize)


class FisherDiscriminantAnalysis(DiscriminantModel):
    """Fisher's discriminant analysis: ``S_T u = lambda S_W u``, the point (0, 1) of the Roweis family.

    The c - 1 axes that tell classes apart have ``lambda > 1``; beyond them all eigenvalues are 1 and the axes arbitrary.

    Parameters
    ----------
    n_components : int or None
        None for c - 1.
    robust, robust_share, regularization, solver, tol, max_passes, missing_labels
        As in :class:`RoweisDiscriminantAnalysis`.
    nan_policy, missing_chunks, memory_limit, solve_threads, workers_timeout
        As in :class:`bigpca.PCA`.

    Attributes
    ----------
    See :class:`RoweisDiscriminantAnalysis`.
    """

    def __init__(
        self,
        n_components: NComponents = None,
        *,
        robust: bool = False,
        robust_share: float = 0.98,
        regularization: float | str | None = None,
        solver: str = "auto",
        tol: float = 1e-3,
        max_passes: int = 20,
        missing_labels: str = "raise",
        nan_policy: str = "raise",
        missing_chunks: str = "raise",
        memory_limit: int | str | None = None,
        solve_threads: int | None = None,
        workers_timeout: float = 60.0,
    ) -> None:
        self.n_components = n_components
        self.robust = robust
        self.robust_share = robust_share
        self.regularization = regularization
        self.solver = solver
        self.tol = tol
        self.max_passes = max_passes
        self.missing_labels = missing_labels
        self.nan_policy = nan_policy
        self.missing_chunks = missing_chunks
        self.memory_limit = memory_limit
        self.solve_threads = solve_threads
        self.workers_timeout = workers_timeout

    @property
    def _factors(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def _normalized(self) -> bool:
        return False
