"""Kernel supervised PCA and kernel Roweis discriminant analysis, on Nyström features that may be exact.

First their fits: on the features of landmarks, which are exact if all rows are landmarks, and kernel supervised PCA by
its dual, one sweep over pairs of rows, exact for any number of them. Then the estimators.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bigpca.engine.planning import SolveCost
from bigpca.engine.run import Run
from bigpca.estimators.kernel.landmarks import (
    Choice,
    LandmarksFit,
    features_dtype,
    landmark_expansion,
    pass_dtype,
)
from bigpca.estimators.kernel.model import UNWEIGHTED, KernelLike, KernelModel
from bigpca.estimators.kernel.spectrum import (
    KeptFeatures,
    KernelSpectrum,
    PairsFit,
    check_references,
    training_expansion,
    warn_alike,
    with_regression,
)
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import rows_of_fit
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import of_all, with_parameters
from bigpca.estimators.supervised.linear_supervised import OfLabelKernel, RoweisPoint
from bigpca.estimators.supervised.model import LABELS
from bigpca.estimators.supervised.problems import Problem, cut_axes, labels_of, read_labels
from bigpca.estimators.supervised.statistics import KeptLabels, LabelStatistics, Supervision
from bigpca.operators.kernel import products
from bigpca.parameters import Parameter
from bigpca.passes.accumulators.all_pairs import KernelProduct
from bigpca.passes.accumulators.landmark_moments import LandmarkMap
from bigpca.passes.fold import Declared, Folded, Read
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep
from bigpca.solvers.components import NComponents, check_total
from bigpca.solvers.roweis import Axes

EXACT_ROWS = 2000  # up to which all rows are landmarks


def of_labels(axes: Axes, supervision: Supervision) -> dict[str, Unchecked]:
    """Return what the result of a labelled fit has beside that of others."""
    classes, unlabelled, missed = supervision.classes, supervision.unlabelled, supervision.missed_label_trace
    return {"rank_": axes.rank, "classes_": classes, "n_unlabelled_": unlabelled, "missed_label_trace_": missed}


def features_spectrum(kept: KeptFeatures, problem: Problem) -> KernelSpectrum:
    """Return the result of a fit to the features of landmarks, from their statistics."""
    labelled: KeptLabels = kept.state
    state, axes = labelled.state, problem.solve(labelled.state)
    expansion = landmark_expansion(kept.features, axes.components.T, state.mean)
    found = kept.solved(axes.values, state.total_scatter, expansion, state.weight_sums)
    return replace(found, **of_labels(axes, labelled.supervision))


@dataclass(frozen=True)
class FeatureLabelFit(LandmarksFit):
    """A supervised fit on the features of landmarks.

    Attributes
    ----------
    problem : Problem
        Solved in the space of the features.
    """

    depends_on: ClassVar[tuple[str, ...]] = (*LandmarksFit.depends_on, "features.states")

    problem: Problem

    def _template(self, width: int) -> LabelStatistics:
        """Return the empty statistics of so many features: with the whole scatter as in the fit to the rows before."""
        whole = self.problem.whole if self.like is None else self.like.state.state.moments.whole
        return labels_of(self.rows).template(width, whole=whole)

    @property
    def account(self) -> str:
        return f"{self.choice.count} landmarks, features of all rows"

    @cached_property
    def features(self) -> Read[Folded[LabelStatistics]]:
        """The read of the features."""
        rows, kernel, m = self.rows, self.settings.kernel, self.choice.count
        mapped = rows.mapped(LandmarkMap.planned(kernel, m, rows.n_columns).step)
        dtype = features_dtype(rows, kernel, m)
        read = Read.into(mapped, "labelled-features", self._template(m), dtype=dtype, refinable=True)
        return read.costing(evaluations=float(rows.n_rows) * m)

    def passes(self) -> tuple[Declared, ...]:
        return (*self.choosing_passes(), self.features, *(self.regression if self.like is None else ()))

    def solve_cost(self) -> SolveCost:
        return replace(super().solve_cost(), held_bytes=labels_of(self.rows).nbytes)

    def read(self, run: Run) -> KeptFeatures:
        """Choose landmarks, if there are none, and read X once more."""
        features, rows = self.features_of_fit(run, self.precision), self.rows
        inner = self._template(features.transform.shape[1])
        exact = self.features.holding(inner, rows.mapped(features.step))
        found = exact.costing(dtype=pass_dtype(rows, features))(run)  # one pass over X
        state = found.state.finished()
        run.add_evaluations(state.count * len(features.landmarks))
        known = labels_of(rows).supervision.read()
        kept = KeptLabels(state=state, n_omitted_=found.omitted, roundings=rows.roundings, supervision=known)
        return KeptFeatures(features, kept, state.count, found.omitted, run.evaluations)

    def spectrum(self, run: Run) -> KernelSpectrum:
        kept = self.read(run)
        found, state = features_spectrum(kept, self.problem), kept.state.state
        trace = state.total_scatter
        rounding = kept.features.rounding(trace + state.weight * float(state.mean @ state.mean), state.precision)
        if rounding >= trace:
            warn_alike(np.array([trace]), rounding, "trace")
        return found


@dataclass(frozen=True)
class DualFit(PairsFit):
    """Kernel supervised PCA by its dual: one sweep over the kernel matrix with the label features.

    ``(Delta'H K H Delta) v = s^2 v``, scores ``s^-1 v'Delta'H k(X, x)`` (SPCA paper, section 6.2). NOTE: they are
    divided by s, not by s^2.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("settings.kernel", "rows.y")
    solver: ClassVar[str] = "dual"

    @property
    def account(self) -> str:
        return f"one sweep over pairs of rows with {labels_of(self.rows).columns} label features"

    @cached_property
    def sweep(self) -> Sweep[KernelProduct]:
        """The sweep."""
        columns = labels_of(self.rows).columns
        held = 3 * 8 * self.rows.n_rows * columns
        return products(self.rows, self.settings.kernel, columns).costing(driver_bytes=held)

    def solve_cost(self) -> SolveCost:
        return self.cost_of()

    def spectrum(self, run: Run) -> KernelSpectrum:
        rows, settings, labelled = self.rows, self.settings, labels_of(self.rows)
        operator, beside = self.operator(run, settings.seed), labelled.beside
        delta = beside.columns(beside.values)
        delta = delta - delta.mean(axis=0)
        Y = operator.begin(delta).AB  # one sweep
        G = delta.T @ Y
        check_total(float(np.abs(np.diagonal(G)).sum()), "Delta'H K H Delta")
        values, vectors = np.linalg.eigh((G + G.T) / 2)
        order = np.argsort(values)[::-1]
        values, vectors = values[order], vectors[:, order]
        # What rounding leaves of an eigenvalue: that of the solver, and that of the entries of K in their precision.
        longest = float(np.linalg.eigvalsh(delta.T @ delta)[-1])
        entries = operator.tile_rounding
        if not settings.kernel.needs_rows:
            # Labels do not depend on how a stored matrix was rounded: of c label features, such errors add up to those
            # of about 2 sqrt(c) entries, each eps |K|_F / 2n, and not to |E|_F.
            entries *= 2 * len(G) ** 0.5 / rows.n_rows
        noise = max(len(G) * float(np.finfo(np.float64).eps) * values[0], entries * longest)
        rank = int(np.count_nonzero(values > noise))
        axes = cut_axes(Axes(values[:rank], vectors[:, :rank].T, rank), settings.n_components, "Delta'H K H Delta")
        warn_alike(np.array([operator.norm]), operator.tile_rounding, "Frobenius norm")
        s = np.sqrt(axes.values)
        scores = Y @ axes.components.T / s  # of the training rows
        signs = np.sign(scores[np.argmax(np.abs(scores), axis=0), np.arange(len(s))])
        coefficients = delta @ (axes.components.T * signs) / s
        expansion = training_expansion(run, rows, settings, operator.shift, operator.row_means, coefficients)
        own = of_labels(axes, labelled.supervision)
        return KernelSpectrum(rows.n_rows, 0, axes.values, operator.trace, expansion, run.evaluations, **own)


@of_all
class LabelledFeatures(KernelModel):
    """What models of labels have that keep statistics of the features of landmarks."""

    n_landmarks: int | None = None
    sampling: str | ArrayLike = "rpcholesky"
    missing_labels: str = "raise"

    @abstractmethod
    def _problem(self, seed: int = 0) -> Problem:
        """Check the parameters and return the problem."""

    def _fit(self, rows: Rows, y: Unchecked, like: KeptFeatures | None = None) -> FeatureLabelFit | DualFit:
        """Plan a fit on the features of landmarks, or the read of rows to be added."""
        problem, rows = self._problem(), rows_of_fit(self, rows)
        if like is not None:
            old: KeptLabels = like.state
            if problem.whole:
                old.state.check_whole()
            rows = read_labels(self, rows, y, problem, like=old.supervision)
            return FeatureLabelFit(rows, self._settings(rows.n_columns), Choice.like(like), problem, like=like)
        problem.check(rows.n_rows)
        rows = read_labels(self, rows, y, problem)
        settings, n = self._settings(rows.n_columns, rows.seed), rows.n_present
        if not settings.kernel.positive_semidefinite:
            raise ValueError(
                f"{settings.kernel} is not positive semi-definite, so it has no features to learn axes in. Use a "
                f"kernel that is."
            )
        choice = Choice.of(self.n_landmarks, self.sampling, n, 1000 if n > EXACT_ROWS else n)
        # All rows that count as landmarks need no draw: they are named by number.
        if choice.count == n and isinstance(self.sampling, str):
            choice = Choice(n, np.flatnonzero(rows.counted.which(rows.n_rows)))
        return FeatureLabelFit(rows, settings, choice, problem)

    def _solve(self, kept: KeptFeatures) -> KernelSpectrum:
        return with_regression(features_spectrum(kept, self._problem()), self._settings(self.n_features_in_))

    @property
    def _why_fixed(self) -> str:
        if getattr(self, "solver", "") != "pairs":
            return ""
        return (
            'partial_fit needs the statistics of the features, which solver="pairs" does not keep. Use '
            'solver="landmarks".'
        )

    def _warn(self, found: KernelSpectrum, n_classes: int = 1) -> None:
        known = found.classes_ is not None and self._problem().needs_classes
        super()._warn(found, len(found.classes_) if known else 1)  # type: ignore[arg-type]

    def _template(self) -> object:
        return KeptLabels


@with_parameters
class KernelSupervisedPCA(OfLabelKernel, LabelledFeatures):
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
    landmarks_, landmark_indices_, landmark_transform_
        Of the solver "landmarks", as of :class:`bigpca.NystromKernelPCA`.
    eigenvalues_ : ndarray of shape (k,)
        Of all axes, their sum over ``(n - 1)^2`` is the Hilbert-Schmidt independence criterion of rows and labels,
        ``tr(K H K_y H) / (n - 1)^2`` (SPCA paper, eq. 29); of landmarks, no more than it.
    classes_, n_unlabelled_, missed_label_trace_, rank_
        As of :class:`bigpca.estimators.supervised.model.SupervisedModel`; see
        :class:`bigpca.estimators.kernel.model.KernelModel` for the others.

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

    def _fit(self, rows: Rows, y: Unchecked, like: KeptFeatures | None = None) -> FeatureLabelFit | DualFit:
        if self.solver != "pairs":
            return super()._fit(rows, y, like)
        problem, rows = self._problem(), rows_of_fit(self, rows, weighted=False)
        problem.check(rows.n_rows)
        rows = read_labels(self, rows, y, problem)
        if rows.nan_policy == "omit" or labels_of(rows).supervision.unlabelled:
            raise ValueError(
                "all pairs of rows are compared and must be known in advance: a sweep over pairs cannot omit rows with "
                'missing values or missing labels. Remove such rows first, or use solver="landmarks".'
            )
        settings = self._settings(rows.n_columns, rows.seed)
        self._check_regression(rows.n_rows)
        check_references(rows, settings.kernel)
        return DualFit(rows, settings)


@with_parameters
class KernelRoweisDiscriminantAnalysis(RoweisPoint, LabelledFeatures):
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
    landmarks_, landmark_indices_, landmark_transform_
        As of :class:`bigpca.NystromKernelPCA`; components are not orthonormal if r2 > 0.
    classes_, n_unlabelled_, rank_
        As of :class:`bigpca.estimators.supervised.model.SupervisedModel`; see
        :class:`bigpca.estimators.kernel.model.KernelModel` for the others.
    """

    _traits = Traits(KernelSpectrum, "kroweis", LABELS, UNWEIGHTED)
    _featured = True

    n_components: NComponents = None
    _: KW_ONLY
    r1: float = 0.5
    r2: float = 0.5
    normalize: bool = False
    kernel: KernelLike = "rbf"

    @property
    def _orthonormal(self) -> bool:
        return bool(self.r2 == 0)
